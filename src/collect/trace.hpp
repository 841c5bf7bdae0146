// What every collector delivers: one sample, unwound.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string_view>

#include "clew/frame.h"
#include "collect/bpf/functions.hpp"
#include "process/address_space.hpp"

namespace clew::collect {

struct TraceFrame {
  clew_frame frame;
  const process::Mapping* mapping;              // null: nothing is mapped there, or kernel code
  const bpf::Function* bpf_function = nullptr;  // kernel code of a BPF program
};

/// All that it refers to is valid during the call that delivers it; a Mapping's module may be kept, and a
/// bpf::Function as long as the collector is there.
struct Trace {
  pid_t pid = 0, tid = 0;
  std::string_view comm;
  uint64_t time_ns = 0;    // CLOCK_MONOTONIC
  uint64_t weight_ns = 0;  // CPU time that it stands for, or how long the thread was blocked
  bool blocked = false;
  clew_end end = CLEW_END_ROOT;
  std::span<const TraceFrame> frames;  // leaf first: kernel frames, then the program's
};

using Sink = std::function<void(const Trace&)>;

}  // namespace clew::collect
