// The walk of this process's own threads, async-signal-safe.
#pragma once

#include <cstddef>
#include <cstdint>

#include "clew/frame.h"
#include "unwind/remote.hpp"

namespace clew::unwind::local {

/// Where a walk begins: a frame's registers.
struct Start {
  Registers registers;
  bool exact = true;  // rip is the instruction itself, not a return address
};

/// A caller's registers where an entry of the library has pushed them, right below the caller's frame.
struct Saved {
  uint64_t words[7];  // r15, r14, r13, r12, rbx, rbp, the return address

  Start start() const;
};

/// Code addresses from the caller towards the root, innermost first, at most `capacity`.
WalkResult walk_addresses(const Saved& saved, uintptr_t* out, size_t capacity);
/// Whole frames from anywhere, likewise.
WalkResult walk_frames(const Start& start, clew_frame* out, size_t capacity);

/// One frame at a time, every register followed.
class Cursor {
 public:
  explicit Cursor(const Start& start);
  bool next(clew_frame& out);
  clew_end end() const { return end_; }
  /// Registers of the frame that was given last.
  const Registers& registers() const { return frame_; }

 private:
  Registers frame_;
  Registers next_;  // of the frame to come
  uint32_t how_ = 0, flags_ = 0, switches_ = 0;
  bool over_ = false;
  clew_end end_ = CLEW_END_NO_USER_STACK;
};

}  // namespace clew::unwind::local
