/* What the BPF programs and the recorder share: maps' values and the records of the ring. */
#ifndef CLEW_BPF_SHARED_H
#define CLEW_BPF_SHARED_H

#include "core/table.h"

enum {
  CLEW_BPF_FRAMES = 1024,       /* user frames of a trace unwound in the kernel */
  CLEW_BPF_KERNEL_FRAMES = 127, /* kernel.perf_event_max_stack unless it was changed */
  CLEW_BPF_MODULES = 4096,      /* whose tables are loaded at a time */
  CLEW_BPF_SEGMENTS = 4,        /* executable segments of a module */
  CLEW_BPF_PAGE_WORDS = 8192,   /* of a page of tables */
  CLEW_BPF_TABLE_PAGES = 1024,  /* 32 MiB */
  CLEW_BPF_STACK = 65536        /* bytes of stack that a sample ships at most */
};

/* A file that code is mapped from; the vDSO has the device CLEW_BPF_VDSO. */
#define CLEW_BPF_VDSO 0xffffffffu
struct clew_bpf_file {
  uint64_t inode;
  uint32_t device; /* as the kernel numbers it: major << 20 | minor */
  uint32_t generation;
};

/* A module whose table is loaded. */
struct clew_bpf_module {
  struct clew_table_header header;
  uint32_t first_page; /* of its table, in the map of pages */
  uint32_t serial;     /* never used twice */
  uint32_t index;      /* its own */
  uint32_t segments;
  struct {
    uint64_t offset, end; /* in the file */
    uint64_t to_vaddr;    /* what to add to an offset */
  } segment[CLEW_BPF_SEGMENTS];
};

/* How a sample's user stack was unwound. */
enum clew_bpf_state {
  CLEW_BPF_WALKED = 0,  /* in the kernel, to the root */
  CLEW_BPF_SHIPPED = 1, /* registers and stack are shipped, for user space to unwind */
  CLEW_BPF_NO_USER = 2, /* a kernel thread, or a process that is exiting */
  CLEW_BPF_RESUMED = 3  /* no sample: the record is a clew_bpf_resumed */
};

/* The head of a record: then the kernel's addresses, innermost first, then by `state` the user frames (pc,
 * with enum clew_how and flags in its upper byte) or the stack's bytes from the stack pointer on. Of a walked
 * trace only the frames are here that the CPU's last walked one did not have. */
struct clew_bpf_sample {
  uint64_t time_ns; /* CLOCK_MONOTONIC */
  uint32_t pid, tid;
  uint32_t state;
  uint32_t kernel_frames;
  uint32_t user_frames;
  uint32_t shared_frames; /* the outermost ones of the CPU's last walked trace that follow them */
  uint32_t cpu;           /* of a walked trace */
  uint32_t number;        /* of a walked trace, on its CPU */
  uint32_t stack_asked;   /* bytes of stack to ship */
  uint32_t stack_bytes;   /* that are here */
  uint32_t in_kernel;     /* the sample is of kernel code */
  uint32_t blocked;       /* the thread is about to block; clew_bpf_resumed says for how long it did */
  uint64_t registers[CLEW_REGISTERS]; /* by DWARF number, the user's */
  struct clew_bpf_file missing;       /* a file without a table that the walk has met; all 0: none */
  uint64_t missing_pc;                /* the address in it */
};

/* A thread runs again that blocked for long enough to be told of: begins as a sample does. */
struct clew_bpf_resumed {
  uint64_t time_ns; /* now */
  uint32_t pid, tid;
  uint32_t state; /* CLEW_BPF_RESUMED */
  uint32_t reserved;
  uint64_t since_ns; /* the time of its sample */
};

/* A record of a shipped sample has room for the most of both. */
struct clew_bpf_shipped {
  struct clew_bpf_sample head;
  uint64_t kernel[CLEW_BPF_KERNEL_FRAMES + 1];
  uint8_t stack[CLEW_BPF_STACK];
};

/* Counts of a CPU. */
struct clew_bpf_counts {
  uint64_t walked;  /* in the kernel, to the root */
  uint64_t shipped; /* to be unwound by user space */
  uint64_t lost;    /* the ring was full */
  uint64_t run_ns;  /* time in the programs */
  uint64_t missed;  /* of those shipped: due while another BPF program kept ours from running */
};

/* A process in the map of targets. */
enum clew_bpf_target { CLEW_BPF_AT_EXEC = 0, CLEW_BPF_SAMPLED = 1 };

#endif
