#include "collect/perf/round_queue.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace clew::collect::perf {
namespace {

std::unique_ptr<Round> round_of(RoundQueue& queue, size_t bytes, uint64_t start_ns) {
  std::unique_ptr<Round> round = queue.fresh();
  round->bytes.resize(bytes);
  round->start_ns = start_ns;
  return round;
}

TEST(RoundQueue, RoomCountsWhatTheReaderStillHolds) {
  RoundQueue queue(1000);
  queue.push(round_of(queue, 400, 1));
  EXPECT_EQ(queue.room(), 600u);
  std::unique_ptr<Round> held = queue.pop();
  EXPECT_EQ(queue.room(), 600u);
  queue.push(round_of(queue, 700, 2));
  EXPECT_EQ(queue.room(), 0u);
  queue.recycle(std::move(held));
  EXPECT_EQ(queue.room(), 300u);
}

TEST(RoundQueue, ARecycledRoundComesBackEmpty) {
  RoundQueue queue(1000);
  queue.push(round_of(queue, 400, 1));
  queue.recycle(queue.pop());
  const std::unique_ptr<Round> again = queue.fresh();
  EXPECT_TRUE(again->bytes.empty());
  EXPECT_TRUE(again->entries.empty());
}

TEST(RoundQueue, KeepsTheOrderAndEndsWhenClosed) {
  RoundQueue queue(1 << 20);
  std::thread writer([&queue] {
    for (uint64_t i = 0; i < 1000; ++i) queue.push(round_of(queue, 10, i));
    queue.close();
  });
  uint64_t expected = 0;
  while (std::unique_ptr<Round> round = queue.pop()) {
    EXPECT_EQ(round->start_ns, expected++);
    queue.recycle(std::move(round));
  }
  EXPECT_EQ(expected, 1000u);
  EXPECT_EQ(queue.room(), size_t{1} << 20);
  writer.join();
}

}  // namespace
}  // namespace clew::collect::perf
