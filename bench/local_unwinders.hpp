// The calling thread's addresses by clew and by its peers, for the benchmarks of the local walk.
#pragma once

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <unwind.h>

#include <cstddef>
#include <cstdint>

#include "clew/unwind.h"

#ifdef CLEW_HAVE_LIBUNWIND
#define UNW_LOCAL_ONLY
#include <libunwind.h>
#endif

namespace clew::bench {

constexpr size_t kMost = 256;
inline uintptr_t frames[kMost];

/// Where the calling thread's stack ends.
inline uint64_t end_of_stack() {
  pthread_attr_t attributes;
  void* start = nullptr;
  size_t size = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &start, &size);
  pthread_attr_destroy(&attributes);
  return reinterpret_cast<uint64_t>(start) + size;
}

/// From the very library: libunwind has functions of the same names.
template <class Type>
Type* of_library(const char* library, const char* name) {
  return reinterpret_cast<Type*>(dlsym(dlopen(library, RTLD_NOW), name));
}
inline auto* const backtrace_of_glibc = of_library<decltype(::backtrace)>("libc.so.6", "backtrace");
inline auto* const backtrace_of_libgcc =
    of_library<decltype(_Unwind_Backtrace)>("libgcc_s.so.1", "_Unwind_Backtrace");

[[gnu::noinline]] inline size_t by_clew() { return clew_backtrace(frames, kMost); }
[[gnu::noinline]] inline size_t by_glibc() {
  return static_cast<size_t>(backtrace_of_glibc(reinterpret_cast<void**>(frames), kMost));
}
[[gnu::noinline]] inline size_t by_libgcc() {
  size_t count = 0;
  backtrace_of_libgcc(
      [](_Unwind_Context* context, void* out) {
        size_t& at = *static_cast<size_t*>(out);
        if (at == kMost) return _URC_END_OF_STACK;
        frames[at++] = _Unwind_GetIP(context);
        return _URC_NO_REASON;
      },
      &count);
  return count;
}
#ifdef CLEW_HAVE_LIBUNWIND
[[gnu::noinline]] inline size_t by_libunwind() {
  return static_cast<size_t>(unw_backtrace(reinterpret_cast<void**>(frames), kMost));
}
#endif

}  // namespace clew::bench
