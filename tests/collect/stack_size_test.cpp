#include "collect/perf/stack_size.hpp"

#include <gtest/gtest.h>

namespace clew::collect::perf {
namespace {

constexpr uint64_t kMs = 1'000'000;
constexpr uint32_t kSmall = kStackSizes[0], kMiddle = kStackSizes[1];
constexpr size_t kLargest = kStackSizes.size() - 1;

TEST(StackSize, TheKernelsTrimmedSizeIsStillTheLargest) {
  EXPECT_EQ(stack_size_index(kStackSizes.back() - 300), kLargest);
  EXPECT_EQ(stack_size_index(kSmall), 0u);
  EXPECT_EQ(stack_size_index(kMiddle), 1u);
}

TEST(StackSize, OneCutStackGrowsToTheLargestAtOnce) {
  StackSize size(0);
  EXPECT_EQ(size.observe(kSmall, 100, false, 0), std::nullopt);
  EXPECT_EQ(size.observe(kSmall, kSmall, true, kMs), kLargest);
  EXPECT_EQ(size.index(), kLargest);
  // Samples that were taken before the switch say nothing.
  EXPECT_EQ(size.observe(kSmall, kSmall, true, 2 * kMs), std::nullopt);
  // Nothing is larger.
  EXPECT_EQ(size.observe(kStackSizes.back(), 65'000, true, 3 * kMs), std::nullopt);
}

TEST(StackSize, ShrinksWhenStacksStayShallow) {
  StackSize size(1);
  std::optional<size_t> change;
  uint64_t samples = 0;
  for (uint64_t time = 0; !change && time < 10'000 * kMs; time += kMs, ++samples) {
    change = size.observe(kMiddle, kSmall / 2, false, time);
  }
  ASSERT_EQ(change, 0u);
  EXPECT_GE(samples, 1000u);
}

TEST(StackSize, StaysWhenOneStackNeedsMoreThanHalfOfTheNextSize) {
  StackSize size(1);
  for (uint64_t i = 0; i < 10'000; ++i) {
    ASSERT_EQ(size.observe(kMiddle, i % 900 == 0 ? kSmall / 2 + 8 : 100, false, i * kMs), std::nullopt);
  }
}

TEST(StackSize, ShrinkingThatProvedWrongIsTriedLater) {
  StackSize size(0);
  uint64_t time = 0;
  const auto shallow_until_change = [&] {
    const uint64_t from = time;
    for (;;) {
      time += kMs;
      const uint32_t asked = kStackSizes[size.index()];
      if (size.observe(asked, 100, false, time) == 0u) return time - from;
    }
  };
  size.observe(kSmall, kSmall, true, time);
  const uint64_t first = shallow_until_change();
  size.observe(kSmall, kSmall, true, time);
  const uint64_t second = shallow_until_change();
  EXPECT_GT(second, 2 * first);
}

}  // namespace
}  // namespace clew::collect::perf
