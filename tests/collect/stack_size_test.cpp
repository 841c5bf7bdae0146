#include "collect/perf/stack_size.hpp"

#include <gtest/gtest.h>

namespace clew::collect::perf {
namespace {

constexpr pid_t kTask = 1, kSleeper = 2;
constexpr uint64_t kMs = 1'000'000;
constexpr uint32_t kSmall = kStackSizes[0], kMiddle = kStackSizes[1], kLarge = kStackSizes[2];
constexpr size_t kLargest = kStackSizes.size() - 1;

/// Samples each millisecond, none deeper than `depth`, until the size changes or `limit` of them were taken.
uint64_t samples_until_change(StackSize& size, uint64_t depth, uint64_t& time, uint64_t limit = 100'000) {
  for (uint64_t samples = 1; samples <= limit; ++samples) {
    time += kMs;
    if (size.observe(kTask, kStackSizes[size.index()], depth, false, time)) return samples;
  }
  return limit;
}

TEST(StackSize, TheKernelsTrimmedSizeIsStillTheLargest) {
  EXPECT_EQ(stack_size_index(kStackSizes.back() - 300), kLargest);
  EXPECT_EQ(stack_size_index(kSmall), 0u);
  EXPECT_EQ(stack_size_index(kMiddle), 1u);
}

TEST(StackSize, BeginsWithTheLargestThatTheRingHolds) {
  EXPECT_EQ(StackSize(kLargest).index(), kLargest);
  EXPECT_EQ(StackSize(1).index(), 1u);
}

TEST(StackSize, ShrinksAtOnceToWhatFitsTwice) {
  for (const auto& [depth, expected] : {std::pair{kSmall / 2, 0u}, {kSmall / 2 + 8, 1u}, {kMiddle / 2, 1u}}) {
    StackSize size(kLargest);
    uint64_t time = 0;
    EXPECT_GE(samples_until_change(size, depth, time), 1000u) << depth;
    EXPECT_EQ(size.index(), expected) << depth;
  }
}

TEST(StackSize, StaysWhenOneStackNeedsMoreThanHalfOfTheNextSize) {
  StackSize size(kLargest);
  for (uint64_t i = 0; i < 10'000; ++i) {
    ASSERT_EQ(size.observe(kTask, kLarge, i % 900 == 0 ? kMiddle / 2 + 8 : 100, false, i * kMs),
              std::nullopt);
  }
}

TEST(StackSize, OneCutStackGrowsToTheLargestAtOnce) {
  for (const size_t largest : {size_t{1}, kLargest}) {
    StackSize size(largest);
    uint64_t time = 0;
    samples_until_change(size, 100, time);
    ASSERT_EQ(size.index(), 0u);
    EXPECT_EQ(size.observe(kTask, kSmall, kSmall, true, time += kMs), largest);
    EXPECT_EQ(size.index(), largest);
    // Samples that were taken before the switch say nothing.
    EXPECT_EQ(size.observe(kTask, kSmall, kSmall, true, time += kMs), std::nullopt);
    // Nothing is larger.
    EXPECT_EQ(size.observe(kTask, kStackSizes[largest], kStackSizes[largest], true, time += kMs),
              std::nullopt);
  }
}

TEST(StackSize, ShrinkingThatProvedWrongIsTriedLater) {
  StackSize size(kLargest);
  uint64_t time = 0;
  const uint64_t first = samples_until_change(size, 100, time);
  size.observe(kTask, kSmall, kSmall, true, time += kMs);
  const uint64_t second = samples_until_change(size, 100, time);
  EXPECT_GT(second, 2 * first);
}

/// A thread that needs the largest size, and then sleeps.
void sleep_deep(StackSize& size, uint64_t& time) {
  for (int i = 0; i < 50; ++i) size.observe(kSleeper, kLarge, kMiddle / 2 + 8, false, time += kMs);
}

TEST(StackSize, AThreadThatSleepsStillNeedsWhatItNeeded) {
  StackSize size(kLargest);
  uint64_t time = 0;
  sleep_deep(size, time);
  EXPECT_EQ(samples_until_change(size, 100, time, 50'000), 50'000u);
  size.forget(kSleeper);  // it ended
  samples_until_change(size, 100, time);
  EXPECT_EQ(size.index(), 0u);
}

TEST(StackSize, AThreadThatNoLongerNeedsItOrSleepsForLongDoesNotCount) {
  StackSize size(kLargest);
  uint64_t time = 0;
  sleep_deep(size, time);
  for (int i = 0; i < 1000; ++i) size.observe(kSleeper, kLarge, 100, false, time += kMs);
  samples_until_change(size, 100, time);
  EXPECT_EQ(size.index(), 0u);

  StackSize other(kLargest);
  sleep_deep(other, time);
  samples_until_change(other, 100, time);
  EXPECT_EQ(other.index(), 0u);
}

}  // namespace
}  // namespace clew::collect::perf
