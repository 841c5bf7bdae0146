// The ring of this process, opened by its first sample. All of it is async-signal-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "agent/ring.hpp"
#include "clew/frame.h"

namespace clew::agent {

/// Called before main: memory that a forked child finds empty, so that it opens a ring of its own.
bool prepare_ring();

/// This process's ring; null where there can be none (`never`: nor will there be), or another thread is about
/// to open it.
RingHeader* ring(bool& never);

/// Writes a sample of the calling thread, whose `frames` are given; false, and counted, where there is no
/// room.
struct SampleHead {
  uint64_t time_ns;
  uint32_t tid, periods, end;
  char comm[16];
};
bool write_sample(const SampleHead& head, const clew_frame* frames, size_t count);

/// Writes the executable mappings if code among the frames lies in none that was written, or in a library
/// that another was loaded in the place of. Where that has to wait, such frames are marked (kChangedFlag).
void write_new_mappings(clew_frame* frames, size_t count);

}  // namespace clew::agent
