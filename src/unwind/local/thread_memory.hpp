// What a thread's walks remember: which of its stack is readable, and its last trace.
//
// In a fixed pool, found by the thread pointer, since a handler can neither allocate nor safely touch a
// library's thread-local storage. A walk that finds its thread's place taken (it interrupted another walk of
// the same thread, or the pool is crowded) goes without.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "unwind/local/memory.hpp"

namespace clew::unwind::local {

/// The last trace of a thread, outermost frame first, so that what stays of it stays in place. Frames but the
/// innermost are known by where their return addresses were read: as long as those words are the same, and
/// the words that rbp was read from, the walk would read the same again.
struct RememberedTrace {
  static constexpr size_t kFrames = 256;
  static constexpr size_t kReads = 16;
  static constexpr size_t kPlaces = 64;

  struct Read {
    uintptr_t address;
    uint64_t value;
    uint32_t frame;  // whose step read it
  };

  uint32_t count = 0;
  uint32_t reads_count = 0;
  uintptr_t pc[kFrames];
  uintptr_t slot[kFrames];      // the frame's stack pointer, less 8: where its pc was read
  uintptr_t rbp_slot[kFrames];  // where its rbp is saved; 0: nowhere yet
  Read reads[kReads];           // of rbp, outermost frame first
  uint8_t place[kPlaces];       // frame by stack pointer

  static size_t place_of(uintptr_t sp) { return (sp >> 3 ^ sp >> 9) % kPlaces; }

  /// The frame with that state, or `count`.
  uint32_t find(uintptr_t frame_pc, uintptr_t sp, uintptr_t rbp_at) const {
    const uint32_t at = place[place_of(sp)];
    return at < count && slot[at] + 8 == sp && pc[at] == frame_pc && rbp_slot[at] == rbp_at ? at : count;
  }

  /// Whether all that the steps from frame `from` on read is unchanged. The loads are independent of each
  /// other.
  bool holds(uint32_t from) const {
    uint64_t changed = 0;
    for (uint32_t i = 0; i < from; ++i) changed |= load(slot[i]) ^ pc[i];
    for (uint32_t i = 0; i < reads_count && reads[i].frame <= from; ++i)
      changed |= load(reads[i].address) ^ reads[i].value;
    return changed == 0;
  }
};

/// Frames that the fast loop has stepped since it last had to ask, for the remembered trace. The innermost
/// first.
struct Record {
  static constexpr size_t kFrames = 128;
  size_t first = 0;  // number in the output of the first one
  size_t count = 0;
  size_t reads_count = 0;
  bool whole = true;  // none was left out
  uintptr_t slot[kFrames];
  uintptr_t rbp_slot[kFrames];
  RememberedTrace::Read reads[RememberedTrace::kReads];

  void restart() {
    count = reads_count = 0;
    whole = true;
  }
  void add(size_t number, uintptr_t sp, uintptr_t rbp_at) {
    if (count == kFrames) {
      whole = false;
      return;
    }
    if (count == 0) first = number;
    slot[count] = sp - 8;
    rbp_slot[count++] = rbp_at;
  }
  void add_read(uintptr_t address, uint64_t value) {
    if (reads_count == std::size(reads)) {
      whole = false;
      return;
    }
    reads[reads_count++] = {address, value, static_cast<uint32_t>(count - 1)};
  }
};

class ThreadMemory {
 public:
  Interval stack;  // of the thread's own stack; empty: not known yet
  RememberedTrace trace;
  Record record;         // not on the walk's own stack: an alternate one may be small
  uint32_t useless = 0;  // walks since the trace helped one

  /// The calling thread's, until release(); null where it cannot be had.
  static ThreadMemory* acquire();
  void release() { busy_.store(false, std::memory_order_release); }

  /// Forgets all where it is of a dead thread, whose control block lay where the calling thread's does: parts
  /// of its stack may be gone. A system call, needed before stack is trusted that the caller does not run on.
  void check_owner() {
    const auto self = static_cast<int>(system_call(SYS_gettid, 0, 0, 0, 0));
    if (self != tid_) start(self);
  }

 private:
  void start(int tid) {
    tid_ = tid;
    stack = {};
    trace.count = 0;
    useless = 0;
  }

  int tid_ = 0;
  std::atomic<bool> busy_{false};
  std::atomic<uintptr_t> owner_{0};
};

/// The thread pointer: on x86-64 the first word of the thread's control block is its own address.
inline uintptr_t thread_pointer() {
  uintptr_t pointer;
  asm("mov %%fs:0, %0" : "=r"(pointer));
  return pointer;
}

}  // namespace clew::unwind::local
