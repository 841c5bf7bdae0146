#include "unwind/local/thread_memory.hpp"

namespace clew::unwind::local {
namespace {

constexpr size_t kThreads = 128, kTries = 4;
ThreadMemory pool[kThreads];

}  // namespace

ThreadMemory* ThreadMemory::acquire() {
  const uintptr_t self = thread_pointer();
  const size_t first = (self >> 12) * 0x9e3779b97f4a7c15u >> 57;
  static_assert(kThreads == size_t{1} << (64 - 57));
  // Its own place, else one that nobody owns, else one whose owner is not walking now.
  ThreadMemory* other = nullptr;
  for (size_t i = 0; i < kTries; ++i) {
    ThreadMemory& memory = pool[(first + i) % kThreads];
    const uintptr_t owner = memory.owner_.load(std::memory_order_relaxed);
    if (owner == self) {
      if (memory.busy_.exchange(true, std::memory_order_acquire)) return nullptr;
      // Another may have taken it over between the two.
      if (memory.owner_.load(std::memory_order_relaxed) == self) return &memory;
      memory.release();
      return nullptr;
    }
    if (!other || (owner == 0 && other->owner_.load(std::memory_order_relaxed) != 0)) other = &memory;
  }
  if (other->busy_.exchange(true, std::memory_order_acquire)) return nullptr;
  other->owner_.store(self, std::memory_order_relaxed);
  other->start(static_cast<int>(system_call(SYS_gettid, 0, 0, 0, 0)));
  return other;
}

}  // namespace clew::unwind::local
