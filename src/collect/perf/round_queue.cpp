#include "collect/perf/round_queue.hpp"

namespace clew::collect::perf {

namespace {
constexpr size_t kMostSpare = 8;
constexpr size_t kMostSpareBytes = size_t{4}
                                   << 20;  // a round larger than this was an exception: give it back
}  // namespace

std::unique_ptr<Round> RoundQueue::fresh() {
  const std::lock_guard lock(mutex_);
  if (spare_.empty()) return std::make_unique<Round>();
  std::unique_ptr<Round> round = std::move(spare_.back());
  spare_.pop_back();
  return round;
}

void RoundQueue::push(std::unique_ptr<Round> round) {
  held_bytes_.fetch_add(round->bytes.size(), std::memory_order_relaxed);
  {
    const std::lock_guard lock(mutex_);
    rounds_.push_back(std::move(round));
  }
  changed_.notify_one();
}

void RoundQueue::close() {
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

std::unique_ptr<Round> RoundQueue::pop() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return closed_ || !rounds_.empty(); });
  if (rounds_.empty()) return nullptr;
  std::unique_ptr<Round> round = std::move(rounds_.front());
  rounds_.pop_front();
  return round;
}

void RoundQueue::recycle(std::unique_ptr<Round> round) {
  held_bytes_.fetch_sub(round->bytes.size(), std::memory_order_relaxed);
  const bool keep = round->bytes.capacity() <= kMostSpareBytes;
  round->clear();
  const std::lock_guard lock(mutex_);
  if (keep && spare_.size() < kMostSpare) spare_.push_back(std::move(round));
}

}  // namespace clew::collect::perf
