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

SEC("raw_tp/sys_enter")
int burn_outer(void* context) {
  (void)context;
  if (bpf_get_current_pid_tgid() >> 32 == target) burn_middle(20000);
  return 0;
}
