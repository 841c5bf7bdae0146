/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* What bpf_test.cpp samples: a program that burns time at each system call of one process, by bpf_loop and
 * functions. */
#include <stdint.h>

#include "bpf/helpers.h"

char program_license[] SEC("license") = "GPL";

volatile uint64_t sum = 0;
volatile uint32_t target = 0;

static __attribute__((noinline)) long burn_inner(uint32_t index, void* argument) {
  (void)argument;
  sum += index * 7;
  return 0;
}

static __attribute__((noinline)) int burn_middle(int times) {
  bpf_loop((uint32_t)times, burn_inner, 0, 0);
  return (int)sum;
}

static __always_inline int burn(void) {
  if (bpf_get_current_pid_tgid() >> 32 == target) burn_middle(20000);
  return 0;
}

/* The same at each kind of tracepoint: one of them is loaded. */
SEC("?raw_tp/sys_enter")
int burn_raw(void* context) {
  (void)context;
  return burn();
}
SEC("?tp_btf/sys_enter")
int burn_btf(void* context) {
  (void)context;
  return burn();
}
SEC("?tp/raw_syscalls/sys_enter")
int burn_classic(void* context) {
  (void)context;
  return burn();
}
