// libclew: the stacks of this process, from anywhere, a signal handler too.
//
//   uintptr_t addresses[128];
//   const size_t count = clew::backtrace(addresses);
//
// Everything but load_tables() and unwind_thread() is async-signal-safe and reentrant: no lock, no
// allocation, errno is left alone. No exception leaves a function. See clew/unwind.h for what each needs and
// promises.
#pragma once

#include <optional>
#include <span>

#include "clew/unwind.h"

namespace clew {

using Frame = ::clew_frame;
using Trace = ::clew_trace;

/// Code addresses of the calling thread, innermost first; returns how many were written.
[[gnu::always_inline]] inline size_t backtrace(std::span<uintptr_t> out) noexcept {
  return clew_backtrace(out.data(), out.size());
}

/// Frames of the calling thread, the caller's first.
[[gnu::always_inline]] inline Trace unwind_here(std::span<Frame> out) noexcept {
  return clew_unwind_here(out.data(), out.size());
}

/// Frames of an interrupted thread, from a signal handler's ucontext_t.
inline Trace unwind_ucontext(const void* ucontext, std::span<Frame> out) noexcept {
  return clew_unwind_ucontext(ucontext, out.data(), out.size());
}

/// Frames of another thread of this process, by a signal that it must not use otherwise.
inline Trace unwind_thread(int tid, int signal, unsigned milliseconds, std::span<Frame> out) noexcept {
  return clew_unwind_thread(tid, signal, milliseconds, out.data(), out.size());
}

/// Frame by frame, with registers.
class Cursor {
 public:
  explicit Cursor(const void* ucontext) noexcept { clew_cursor_ucontext(&cursor_, ucontext); }

  /// The next frame, or nothing: then end() tells why.
  std::optional<Frame> next() noexcept {
    Frame frame;
    if (!clew_cursor_next(&cursor_, &frame)) return std::nullopt;
    return frame;
  }
  clew_end end() const noexcept { return static_cast<clew_end>(clew_cursor_end(&cursor_)); }
  /// A register (DWARF number) in the frame that next() gave last.
  std::optional<uint64_t> value(unsigned number) const noexcept {
    uint64_t value;
    if (!clew_cursor_register(&cursor_, number, &value)) return std::nullopt;
    return value;
  }

 private:
  clew_cursor cursor_;
};

/// Loads the compact tables of what is mapped now; returns how many. Not in a signal handler.
inline size_t load_tables() noexcept { return clew_load_tables(); }

}  // namespace clew
