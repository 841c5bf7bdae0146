// Another thread of this process, and what a handler was given.
#pragma once

#include "unwind/local/walk.hpp"

namespace clew::unwind::local {

/// The interrupted registers that a signal handler's third argument holds. Async-signal-safe.
Start start_of_ucontext(const void* ucontext);

/// Has thread `tid` unwind itself in a handler of `signal`; no frames where it does not answer in time.
WalkResult walk_thread(int tid, int signal, unsigned milliseconds, clew_frame* out, size_t capacity);

}  // namespace clew::unwind::local
