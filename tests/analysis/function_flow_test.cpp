// The analysis judged by compilers: for functions that have an FDE, what would we say if they had none?
#include "analysis/function_flow.hpp"

#include <gtest/gtest.h>

#include "judge.hpp"

namespace clew::analysis::test {
namespace {

class FunctionFlowJudged : public ::testing::TestWithParam<const char*> {};

TEST_P(FunctionFlowJudged, AgreesWithEhFrame) {
  std::string path = GetParam();
  if (!exists(path) || !have("readelf")) GTEST_SKIP() << path << " or readelf is not installed";
  Score score;
  std::vector<std::string> wrong;
  judge_file(
      path, [](std::span<const std::byte>, size_t, clew_rule by_flow) { return by_flow; }, score, wrong);
  print(path, score, wrong);
  ASSERT_GT(score.instructions, 10000u);
  // In Debian 12's files every difference but two kinds is a fault of the table, where ours is right: libc's
  // and OpenSSL's assembly (pushes and sub rsp without CFI, `rsp + 184` before `repz ret`). The two:
  // setcontext's table describes the context that it is about to enter; and a .cold part in libstdc++ that
  // begins with a nop.
  EXPECT_LT(percent(score, score.wrong), 0.1);
  EXPECT_GT(percent(score, score.equal + score.same_by_other), 90.0);
}

INSTANTIATE_TEST_SUITE_P(Libraries, FunctionFlowJudged,
                         ::testing::Values(kLibc, kLibcrypto, kLibstdcxx, kLibm, kLoader));

// Compiled C throughout: here the tables are right, so nothing may differ.
class FunctionFlowJudgedStrictly : public ::testing::TestWithParam<const char*> {};

TEST_P(FunctionFlowJudgedStrictly, NeverContradictsEhFrame) {
  std::string path = GetParam();
  if (!exists(path) || !have("readelf")) GTEST_SKIP() << path << " or readelf is not installed";
  Score score;
  std::vector<std::string> wrong;
  judge_file(
      path, [](std::span<const std::byte>, size_t, clew_rule by_flow) { return by_flow; }, score, wrong);
  print(path, score, wrong);
  ASSERT_GT(score.instructions, 10000u);
  EXPECT_EQ(score.wrong, 0u);
}

INSTANTIATE_TEST_SUITE_P(Programs, FunctionFlowJudgedStrictly,
                         ::testing::Values(kGit, kPerl, kPython, kSqlite, kLibm, kLoader));

}  // namespace
}  // namespace clew::analysis::test
