// The bounded queue between the drain thread, which only copies, and the unwind thread.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "collect/perf/record.hpp"

namespace clew::collect::perf {

/// Rounds in order, bounded in bytes. One thread pushes, one pops. A round's bytes count from push() to
/// recycle(), so that what the reader holds back (for the order in time) is within the bound too.
class RoundQueue {
 public:
  explicit RoundQueue(size_t limit_bytes) : limit_bytes_(limit_bytes) {}

  /// Bytes that may still be added; 0 where the queue is full.
  size_t room() const {
    const size_t held = held_bytes_.load(std::memory_order_relaxed);
    return held < limit_bytes_ ? limit_bytes_ - held : 0;
  }
  /// An empty round, with the memory of an earlier one where there is one.
  std::unique_ptr<Round> fresh();
  void push(std::unique_ptr<Round> round);
  /// No round comes after this.
  void close();
  /// Waits for a round; null when the queue is closed and empty.
  std::unique_ptr<Round> pop();
  /// Gives a round back when nothing refers to its bytes any more.
  void recycle(std::unique_ptr<Round> round);

 private:
  const size_t limit_bytes_;
  std::atomic<size_t> held_bytes_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::unique_ptr<Round>> rounds_;
  std::vector<std::unique_ptr<Round>> spare_;
  bool closed_ = false;
};

}  // namespace clew::collect::perf
