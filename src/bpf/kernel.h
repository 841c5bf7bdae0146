/* The few members of kernel structures that the programs read, found in the running kernel's BTF by name
 * (CO-RE): not the kernel's own declarations. */
#ifndef CLEW_BPF_KERNEL_H
#define CLEW_BPF_KERNEL_H

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct super_block {
  unsigned int s_dev;
};
struct inode {
  unsigned long i_ino;
  struct super_block* i_sb;
  unsigned int i_generation;
};
struct file {
  struct inode* f_inode;
};
struct maple_tree {
  void* ma_root;
};
struct mm_struct {
  struct maple_tree mm_mt;
  struct mm_context___kernel {
    void* vdso;
  } context;
};
/* Counts the changes of a process's mappings; odd while one is under way (6.13 and later). */
struct mm_struct___sequence {
  struct {
    unsigned int sequence;
  } mm_lock_seq;
};
struct vm_area_struct {
  unsigned long vm_start, vm_end, vm_pgoff, vm_flags;
  struct mm_struct* vm_mm;
  struct file* vm_file;
};
struct signal_struct {
  struct {
    int counter;
  } live; /* threads */
};
struct task_struct {
  int pid, tgid; /* the kernel's pid is the thread's */
  struct signal_struct* signal;
  unsigned int flags;
  struct mm_struct* mm;
};
struct bpf_prog_aux {
  unsigned int id;
};
struct bpf_prog {
  struct bpf_prog_aux* aux;
};
struct hrtimer_cpu_base {
  unsigned int cpu;
};
struct hrtimer_clock_base {
  struct hrtimer_cpu_base* cpu_base;
};
struct hrtimer {
  struct hrtimer_clock_base* base;
};
struct hw_perf_event {
  struct hrtimer hrtimer; /* of a clock event */
};
struct perf_event {
  struct hw_perf_event hw;
  struct bpf_prog* prog;
};
#pragma clang attribute pop

/* A perf_event program's context (linux/bpf_perf_event.h): as the ABI has it, nothing to be found. The
 * kernel's own struct pt_regs, as its entry saves a program's registers, is laid out alike (asm/ptrace.h). */
struct bpf_user_pt_regs {
  unsigned long r15, r14, r13, r12, bp, bx, r11, r10, r9, r8, ax, cx, dx, si, di, orig_ax, ip, cs, flags, sp,
      ss;
};
struct bpf_perf_event_data {
  struct bpf_user_pt_regs regs;
  unsigned long long sample_period, addr;
};

#endif
