// The clock that samples, records and waits are dated by.
#pragma once

#include <cstdint>
#include <ctime>

namespace clew {

/// CLOCK_MONOTONIC, in nanoseconds. Async-signal-safe.
inline uint64_t monotonic_ns() {
  timespec now = {};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

}  // namespace clew
