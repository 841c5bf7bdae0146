/* libbpf's headers, which want the kernel's names of the integer types first. */
#ifndef CLEW_BPF_HELPERS_H
#define CLEW_BPF_HELPERS_H

/* clang-format off */
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>
#include <bpf/bpf_core_read.h>
/* clang-format on */

#endif
