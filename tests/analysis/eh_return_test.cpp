// Where libgcc's functions that end in __builtin_eh_return take on their target's frame.
#include <gtest/gtest.h>

#include <initializer_list>

#include "analysis/analysis.hpp"

namespace clew::analysis::test {
namespace {

std::vector<std::byte> joined(std::initializer_list<std::initializer_list<unsigned>> instructions) {
  std::vector<std::byte> code;
  for (const auto& instruction : instructions)
    for (const unsigned byte : instruction) code.push_back(static_cast<std::byte>(byte));
  return code;
}

using Bytes = std::initializer_list<unsigned>;
const Bytes kPushRbp = {0x55}, kMovRbpRsp = {0x48, 0x89, 0xe5}, kCall = {0xe8, 0, 0, 0, 0};
const Bytes kLoadRa = {0x48, 0x8b, 0xb5, 0x68, 0xff, 0xff, 0xff};   // mov rsi, [rbp - 0x98]
const Bytes kLoadCfa = {0x48, 0x8b, 0xbd, 0x60, 0xff, 0xff, 0xff};  // mov rdi, [rbp - 0xa0]
const Bytes kXorEdx = {0x31, 0xd2}, kMovRcxRax = {0x48, 0x89, 0xc1}, kRestoreRbp = {0x48, 0x8b, 0x6d, 0};
const Bytes kRet = {0xc3}, kSkip = {0x75, 0x01}, kNop = {0x90};

TEST(EhReturn, TheCallBeforeTheDebuggersHook) {
  const auto code = joined({kPushRbp, kMovRbpRsp, kCall, kCall, kLoadRa, kLoadCfa, kXorEdx, kCall, kSkip,
                            kNop, kMovRcxRax, kRestoreRbp});
  const auto install = context_install(code, CLEW_RBP);
  ASSERT_TRUE(install);
  EXPECT_EQ(install->call, 9u);
  EXPECT_EQ(install->cfa_at, -0xa0);
}

TEST(EhReturn, OtherCodeIsLeftAlone) {
  // No frame pointer as base; the two words apart; a return or a jump away between; one call; no code.
  EXPECT_FALSE(context_install(joined({kCall, kLoadRa, kLoadCfa, kCall}), CLEW_RSP));
  EXPECT_FALSE(
      context_install(joined({kCall, kLoadRa, {0x48, 0x8b, 0xbd, 0x68, 0xff, 0xff, 0xff}, kCall}), CLEW_RBP));
  EXPECT_FALSE(context_install(joined({kCall, kLoadRa, kLoadCfa, kRet, kCall}), CLEW_RBP));
  EXPECT_FALSE(context_install(joined({kCall, kLoadRa, kLoadCfa, {0xeb, 0x40}, kCall}), CLEW_RBP));
  EXPECT_FALSE(context_install(joined({kCall, kLoadRa, kLoadCfa, kCall, {0x75, 0x80}}), CLEW_RBP));
  EXPECT_FALSE(context_install(joined({kLoadRa, kLoadCfa, kCall}), CLEW_RBP));
  EXPECT_FALSE(context_install({}, CLEW_RBP));
}

}  // namespace
}  // namespace clew::analysis::test
