// What a fault may do to a walk, and what it may not.
#include "prove/fault.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace clew::prove {
namespace {

// Code at [0x1000, 0x2000): a call before each address that ends in 5, nops elsewhere. A stack of zeros at
// 0x7000.
class Fake : public unwind::Target {
 public:
  bool read(uint64_t address, void* out, size_t size) override {
    if (address < 0x7000 || address + size > 0x8000) return false;
    std::memset(out, 0, size);
    return true;
  }
  bool find(uint64_t address, unwind::Code& code) override {
    if (address < 0x1000 || address >= 0x3000) return false;
    code = {address & ~0xfffull, (address & ~0xfffull) + 0x1000, address < 0x2000, 0, nullptr};
    return true;
  }
  bool read_code(uint64_t address, void* out, size_t size) override {
    for (size_t i = 0; i < size; ++i)
      static_cast<std::byte*>(out)[i] = (address + i) % 16 == 0  ? std::byte{0xe8}
                                        : (address + i) % 16 < 5 ? std::byte{0}
                                                                 : std::byte{0x90};
    return true;
  }
};

Outcome outcome(Fault fault, std::vector<uint64_t> broken, clew_end end, clew_how how = CLEW_HOW_TABLE) {
  Fake target;
  auto frames_of = [how](const std::vector<uint64_t>& pcs) {
    std::vector<clew_frame> frames;
    for (uint64_t pc : pcs) frames.push_back({pc, 0, static_cast<uint32_t>(how), 0});
    return frames;
  };
  const auto whole = frames_of({0x1002, 0x1015, 0x1025}), part = frames_of(broken);
  return judge_fault(fault, {whole, {whole.size(), CLEW_END_ROOT, 0}}, {part, {part.size(), end, 0}}, target);
}

TEST(Fault, AFaultInAWordThatDoesNotMatter) {
  EXPECT_EQ(outcome(Fault::kUnreadable, {0x1002, 0x1015, 0x1025}, CLEW_END_ROOT), Outcome::kSame);
}

TEST(Fault, APartOfTheChainNeedsTheRightReason) {
  EXPECT_EQ(outcome(Fault::kUnreadable, {0x1002}, CLEW_END_UNREADABLE), Outcome::kEnded);
  EXPECT_EQ(outcome(Fault::kUnreadable, {0x1002}, CLEW_END_NO_REGISTER), Outcome::kEnded);
  EXPECT_EQ(outcome(Fault::kUnreadable, {0x1002}, CLEW_END_NOT_MAPPED), Outcome::kPhantom);
  EXPECT_EQ(outcome(Fault::kFlipped, {0x1002, 0x1015}, CLEW_END_NOT_MAPPED), Outcome::kEnded);
  EXPECT_EQ(outcome(Fault::kFlipped, {0x1002, 0x1015}, CLEW_END_ROOT), Outcome::kPhantom);
  EXPECT_EQ(outcome(Fault::kHidden, {0x1002}, CLEW_END_NOT_MAPPED), Outcome::kEnded);
  EXPECT_EQ(outcome(Fault::kHidden, {0x1002}, CLEW_END_NO_RULE), Outcome::kPhantom);
  EXPECT_EQ(outcome(Fault::kHidden, {0x1002, 0x1015, 0x1025}, CLEW_END_NOT_MAPPED), Outcome::kEnded);
}

TEST(Fault, ACallOfNothingEndsWhereNothingIs) {
  Fake target;
  const std::vector<clew_frame> whole = {{0, 0, CLEW_HOW_REGISTERS, CLEW_FRAME_EXACT_PC},
                                         {0x1015, 0, CLEW_HOW_TABLE, 0}};
  auto with_end = [&](clew_end end) {
    const std::span<const clew_frame> part(whole.data(), 1);
    return judge_fault(Fault::kUnreadable, {whole, {2, CLEW_END_ROOT, 0}}, {part, {1, end, 0}}, target);
  };
  EXPECT_EQ(with_end(CLEW_END_NOT_MAPPED), Outcome::kEnded);
  EXPECT_EQ(with_end(CLEW_END_NOT_A_CALL), Outcome::kPhantom);
}

TEST(Fault, AFrameMoreIsAPhantomUnlessACallPrecedesIt) {
  EXPECT_EQ(outcome(Fault::kFlipped, {0x1002, 0x1035, 0x1045}, CLEW_END_ROOT), Outcome::kUndetectable);
  EXPECT_EQ(outcome(Fault::kFlipped, {0x1002, 0x1035, 0x1048}, CLEW_END_ROOT), Outcome::kTable);
  EXPECT_EQ(outcome(Fault::kFlipped, {0x1002, 0x1035, 0x1048}, CLEW_END_ROOT, CLEW_HOW_FRAME_POINTER),
            Outcome::kPhantom);
  EXPECT_EQ(outcome(Fault::kFlipped, {0x1002, 0x2035}, CLEW_END_NO_RULE),
            Outcome::kPhantom);  // not executable
  EXPECT_EQ(outcome(Fault::kFlipped, {0x1002, 0x9035}, CLEW_END_NOT_MAPPED), Outcome::kPhantom);
}

TEST(Fault, TheTargetBreaksWhatItIsTold) {
  Fake inner;
  FaultyTarget target(inner);
  uint64_t word = 1;
  EXPECT_TRUE(target.read(0x7010, &word, sizeof word));
  EXPECT_EQ(word, 0u);
  EXPECT_EQ(target.words(), std::vector<uint64_t>{0x7010});
  target.replace_word(0x7010, 77);
  EXPECT_TRUE(target.read(0x7010, &word, sizeof word));
  EXPECT_EQ(word, 77u);
  target.break_word(0x7018);
  EXPECT_FALSE(target.read(0x7018, &word, sizeof word));
  EXPECT_TRUE(target.read(0x7020, &word, sizeof word));
  unwind::Code code;
  ASSERT_TRUE(target.find(0x1002, code));
  target.hide(code);
  EXPECT_FALSE(target.find(0x1002, code));
  EXPECT_TRUE(target.find(0x2002, code));
}

}  // namespace
}  // namespace clew::prove
