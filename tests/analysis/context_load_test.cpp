// Where swapcontext takes on another context's stack.
#include <gtest/gtest.h>

#include <initializer_list>
#include <vector>

#include "analysis/analysis.hpp"
#include "core/rule.h"

namespace clew::analysis::test {
namespace {

using Bytes = std::initializer_list<unsigned>;

std::vector<std::byte> joined(std::initializer_list<Bytes> instructions) {
  std::vector<std::byte> code;
  for (const auto& instruction : instructions)
    for (const unsigned byte : instruction) code.push_back(static_cast<std::byte>(byte));
  return code;
}

const Bytes kSaveRbx = {0x48, 0x89, 0x9f, 0x80, 0, 0, 0};  // mov [rdi + 0x80], rbx
const Bytes kLoadRsp = {0x48, 0x8b, 0xa2, 0xa0, 0, 0, 0};  // mov rsp, [rdx + 0xa0], and so on
const Bytes kLoadRbx = {0x48, 0x8b, 0x9a, 0x80, 0, 0, 0}, kLoadRbp = {0x48, 0x8b, 0x6a, 0x78};
const Bytes kLoadR12 = {0x4c, 0x8b, 0x62, 0x48}, kLoadR13 = {0x4c, 0x8b, 0x6a, 0x50};
const Bytes kLoadR14 = {0x4c, 0x8b, 0x72, 0x58}, kLoadR15 = {0x4c, 0x8b, 0x7a, 0x60};
const Bytes kLoadRcx = {0x48, 0x8b, 0x8a, 0xa8, 0, 0, 0}, kPushRcx = {0x51};
const Bytes kLoadRdx = {0x48, 0x8b, 0x92, 0x88, 0, 0, 0}, kLoadByRsi = {0x4c, 0x8b, 0x7e, 0x60};
const Bytes kNop = {0x90}, kRet = {0xc3}, kPushRax = {0x50}, kEndbr = {0xf3, 0x0f, 0x1e, 0xfa};

TEST(ContextLoad, FromTheStackPointerToThePushOfTheReturnAddress) {
  const auto code = joined({kSaveRbx, kNop, kLoadRsp, kLoadRbx, kLoadRbp, kLoadR12, kLoadR13, kLoadR14,
                            kLoadR15, kLoadRcx, kPushRcx, kRet});
  const auto load = context_load(code);
  ASSERT_TRUE(load);
  EXPECT_EQ(load->begin, 15u);
  EXPECT_EQ(load->end, code.size() - 1);
  EXPECT_EQ(load->base, static_cast<uint32_t>(CLEW_RDX));
  const std::vector<std::pair<uint32_t, int32_t>> expected = {
      {CLEW_RBX, 0x80}, {CLEW_RBP, 0x78}, {CLEW_R12, 0x48}, {CLEW_R13, 0x50},
      {CLEW_R14, 0x58}, {CLEW_R15, 0x60}, {CLEW_RIP, 0xa8}};
  EXPECT_EQ(load->registers, expected);
}

TEST(ContextLoad, OtherCodeIsLeftAlone) {
  // No load of rsp; one register missing; by another register; the base lost; a push of something else; code
  // between.
  EXPECT_FALSE(
      context_load(joined({kLoadRbx, kLoadRbp, kLoadR12, kLoadR13, kLoadR14, kLoadR15, kLoadRcx, kPushRcx})));
  EXPECT_FALSE(
      context_load(joined({kLoadRsp, kLoadRbx, kLoadRbp, kLoadR12, kLoadR13, kLoadR14, kLoadRcx, kPushRcx})));
  EXPECT_FALSE(context_load(
      joined({kLoadRsp, kLoadRbx, kLoadRbp, kLoadR12, kLoadR13, kLoadR14, kLoadByRsi, kLoadRcx, kPushRcx})));
  EXPECT_FALSE(context_load(joined(
      {kLoadRsp, kLoadRdx, kLoadRbx, kLoadRbp, kLoadR12, kLoadR13, kLoadR14, kLoadR15, kLoadRcx, kPushRcx})));
  EXPECT_FALSE(context_load(
      joined({kLoadRsp, kLoadRbx, kLoadRbp, kLoadR12, kLoadR13, kLoadR14, kLoadR15, kLoadRcx, kPushRax})));
  EXPECT_FALSE(context_load(joined(
      {kLoadRsp, kLoadRbx, kLoadRbp, kLoadR12, kLoadR13, kLoadR14, kLoadR15, kLoadRcx, kRet, kPushRcx})));
  EXPECT_FALSE(context_load(joined({kLoadRsp, kLoadRbx})));
  EXPECT_FALSE(context_load({}));
}

TEST(ContextLoad, ItsFunctionBeginsBySaving) {
  EXPECT_TRUE(saves_context(joined({kSaveRbx})));
  EXPECT_TRUE(saves_context(joined({kEndbr, kSaveRbx})));
  EXPECT_FALSE(saves_context(joined({kLoadRbx})));
  EXPECT_FALSE(saves_context(joined({kEndbr})));
  EXPECT_FALSE(saves_context({}));
}

}  // namespace
}  // namespace clew::analysis::test
