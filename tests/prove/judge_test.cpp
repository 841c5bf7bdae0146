// What is right, wrong, ended early, against callers written by hand.
#include "prove/judge.hpp"

#include <gtest/gtest.h>

namespace clew::prove {
namespace {

constexpr uint64_t kPc = 0x10;
// Innermost last, as the shadow has them.
const std::vector<Caller> kCallers = {{0x900, 0x50}, {0x800, 0x40}, {0x700, 0x30}};

struct JudgeTest : testing::Test {
  bool judge(const std::vector<uint64_t>& addresses, const char* ended = nullptr) {
    return judge_.judge(kPc, {addresses, ended == nullptr, ended ? ended : ""}, kCallers);
  }
  Tally tally;
  Judge judge_{tally};
};

TEST_F(JudgeTest, AWholeChainToTheRootIsRight) {
  EXPECT_TRUE(judge({0x10, 0x30, 0x40, 0x50}));
  EXPECT_EQ(tally.right, 1u);
  EXPECT_TRUE(tally.findings.empty());
}

TEST_F(JudgeTest, APartWithAReasonEndedEarly) {
  EXPECT_FALSE(judge({0x10, 0x30}, "no-rule"));
  EXPECT_FALSE(judge({0x10, 0x30, 0x40, 0x50}, "no-rule"));  // not declared complete
  EXPECT_EQ(tally.ended["no-rule"], 2u);
  EXPECT_EQ(tally.wrong, 0u);
  const Finding& finding = tally.findings.at({kPc, "no-rule"});
  EXPECT_EQ(finding.count, 2u);
  EXPECT_EQ(finding.frame, 2u);
  EXPECT_EQ(finding.expected, 0x40u);
}

TEST_F(JudgeTest, ARootTooEarlyOrTooLateIsWrong) {
  judge({0x10, 0x30, 0x40});
  judge({0x10, 0x30, 0x40, 0x50, 0x60});
  judge_.finish();
  EXPECT_EQ(tally.wrong, 2u);
}

TEST_F(JudgeTest, AnotherFrameIsWrongHoweverTheChainEnds) {
  judge({0x10, 0x31, 0x40}, "no-rule");
  EXPECT_EQ(tally.wrong, 1u);
  judge({0x10, 0x40, 0x50});  // one is missing
  judge_.returned(0x30, std::span(kCallers).first(2));
  EXPECT_EQ(tally.wrong, 2u);
  EXPECT_EQ(tally.findings.at({kPc, kWrong}).expected, 0x30u);
  EXPECT_EQ(tally.findings.at({kPc, kWrong}).found, 0x31u);
}

TEST_F(JudgeTest, WhereAFrameGoesInsteadOfReturningIsRight) {
  judge({0x10, 0x77, 0x50});
  EXPECT_EQ(tally.right, 0u);
  judge_.returned(0x20, kCallers);  // from a frame that it had called
  EXPECT_EQ(tally.right, 0u);
  judge_.returned(0x77, std::span(kCallers).first(1));
  EXPECT_EQ(tally.right, 1u);
  EXPECT_EQ(tally.wrong, 0u);
}

TEST_F(JudgeTest, WhereACallerGoesInsteadOfReturningIsRight) {
  judge({0x10, 0x30, 0x77, 0x50});
  judge_.returned(0x30, std::span(kCallers).first(2));
  EXPECT_EQ(tally.right, 0u);
  judge_.returned(0x77, std::span(kCallers).first(1));
  EXPECT_EQ(tally.right, 1u);
}

TEST_F(JudgeTest, GoingSomewhereElseThanTheChainSaysIsWrong) {
  judge({0x10, 0x77, 0x50});
  judge_.returned(0x78, std::span(kCallers).first(1));
  judge({0x10, 0x77, 0x50});
  judge_.returned(0x77, std::span(kCallers).first(2));
  EXPECT_EQ(tally.wrong, 2u);
}

TEST_F(JudgeTest, ASwitchOfStacksSettlesWhatWaits) {
  const std::vector<Caller> deeper = {{1, 1}, {2, 2}, {3, 3}, {4, 4}, {5, 5}};
  judge({0x10, 0x77, 5, 4, 3, 2, 1});
  judge_.switched(0x77, deeper);
  EXPECT_EQ(tally.right, 1u);
  judge({0x10, 0x77, 5, 4, 3, 2});
  judge_.switched(0x77, deeper);
  EXPECT_EQ(tally.wrong, 1u);
}

TEST_F(JudgeTest, FindingsAreBounded) {
  for (uint64_t pc = 0; pc < Tally::kMaxFindings + 10; ++pc)
    judge_.judge(pc, {std::vector<uint64_t>{pc + 1}, true, ""}, kCallers);
  EXPECT_EQ(tally.wrong, Tally::kMaxFindings + 10);
  EXPECT_EQ(tally.findings.size(), Tally::kMaxFindings);
  EXPECT_EQ(tally.unlisted, 10u);
}

}  // namespace
}  // namespace clew::prove
