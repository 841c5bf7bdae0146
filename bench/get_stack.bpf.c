/* SPDX-License-Identifier: GPL-2.0 OR Apache-2.0 */
/* The peer of `./dev bench bpf`: the kernel's own frame-pointer walk of the user's stack, at each sample of
 * one process. */
#include <stdint.h>

#include "bpf/helpers.h"

char program_license[] SEC("license") = "GPL";

volatile uint32_t target = 0;
/* Sums of each CPU, a cache line apart. */
enum { kApart = 8, kCpus = 1024 };
uint64_t samples[kCpus * kApart], frames[kCpus * kApart], ns[kCpus * kApart];

struct stack {
  uint64_t address[127];
};
struct {
  __uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
  __uint(max_entries, 1);
  __type(key, uint32_t);
  __type(value, struct stack);
} stacks SEC(".maps");

SEC("perf_event")
int get_stack(void* event) {
  const uint64_t begin = bpf_ktime_get_ns();
  uint32_t zero = 0;
  if (bpf_get_current_pid_tgid() >> 32 != target) return 0;
  struct stack* stack = bpf_map_lookup_elem(&stacks, &zero);
  if (!stack) return 0;
  const long bytes = bpf_get_stack(event, stack, sizeof *stack, BPF_F_USER_STACK);
  const uint32_t own = bpf_get_smp_processor_id() % kCpus * kApart;
  samples[own]++;
  frames[own] += bytes > 0 ? (uint64_t)bytes / 8 : 0;
  ns[own] += bpf_ktime_get_ns() - begin;
  return 0;
}
