// A stopped thread's memory: what a copy of its stack would not hold is told apart.
#include "collect/perf/stopped_target.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <vector>

#include "collect/perf/perf_event.hpp"

namespace clew::collect::perf {
namespace {

// OpenSSL's SHA-512 for AVX2 keeps the CFA below the stack pointer: no copy can hold that, although all of
// its frames lie above.
TEST(StoppedTarget, TellsReadsThatNoCopyHolds) {
  std::vector<uint64_t> stack(size_t{2} * kStackSizes.back() / sizeof(uint64_t), 7);
  const auto sp = reinterpret_cast<uint64_t>(&stack[16]);
  const uint64_t end = sp + kStackSizes.back();
  CodeCache code;
  StoppedTarget target(code);
  uint64_t word = 0;
  for (const uint64_t outside : {sp - 8, sp - 1, end - 7, end}) {
    target.set_thread(getpid(), nullptr, sp);
    EXPECT_TRUE(target.read(sp, &word, sizeof word));
    EXPECT_TRUE(target.read(end - 8, &word, sizeof word));
    EXPECT_FALSE(target.read_outside_copy());
    EXPECT_TRUE(target.read(outside, &word, sizeof word));
    EXPECT_TRUE(target.read_outside_copy());

    target.restrict_to_copy();
    EXPECT_FALSE(target.read(outside, &word, sizeof word));
    EXPECT_TRUE(target.read(sp, &word, sizeof word));
  }
}

}  // namespace
}  // namespace clew::collect::perf
