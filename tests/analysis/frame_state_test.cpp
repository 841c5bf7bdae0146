// What single instructions do to a frame's state.
#include "analysis/frame_state.hpp"

#include <gtest/gtest.h>

#include "support.hpp"

namespace clew::analysis::test {
namespace {

struct Code {
  const char* text;
  std::vector<std::byte> bytes;
};

// Behind push rbp; mov rbp, rsp; sub rsp, 32: rsp is CFA - 48, rbp CFA - 16 with the caller's saved there.
FrameState framed() {
  FrameState state = FrameState::entry();
  for (const auto& code : {bytes({0x55}), bytes({0x48, 0x89, 0xe5}), bytes({0x48, 0x83, 0xec, 0x20})}) {
    Instruction in;
    EXPECT_TRUE(decode(code, in));
    EXPECT_TRUE(apply(state, effect_of(in)));
  }
  return state;
}

FrameState behind(FrameState state, const std::vector<std::byte>& code, bool* changed = nullptr) {
  Instruction in;
  EXPECT_TRUE(decode(code, in));
  const Effect effect = effect_of(in);
  const bool any = apply(state, effect);
  if (changed) *changed = any;
  if (effect.kind == Effect::kNone) state.forget(written_registers(in));
  return state;
}

Value cfa(int32_t offset) { return {offset, Value::kCfa}; }

TEST(FrameState, FollowsThePrologue) {
  const FrameState state = framed();
  EXPECT_EQ(state.rsp(), cfa(-48));
  EXPECT_EQ(state.rbp(), cfa(-16));
  EXPECT_EQ(state.rbp_slot, 16);
  EXPECT_TRUE(state.return_intact);
  EXPECT_EQ(state.known, 1u << kRsp | 1u << kRbp);
}

TEST(FrameState, FollowsWhatMovesKnownValues) {
  const FrameState state = framed();
  EXPECT_EQ(behind(state, bytes({0xc9})).rsp(), cfa(-8)) << "leave";
  EXPECT_EQ(behind(state, bytes({0xc9})).rbp().kind, Value::kCallerRbp) << "leave";
  EXPECT_EQ(behind(state, bytes({0x48, 0x8d, 0x65, 0xf8})).rsp(), cfa(-24)) << "lea rsp, [rbp - 8]";
  EXPECT_EQ(behind(state, bytes({0x4c, 0x8d, 0x54, 0x24, 0x08})).get(kR10), cfa(-40)) << "lea r10, [rsp + 8]";
  EXPECT_EQ(behind(state, bytes({0x48, 0x87, 0xe0})).get(kRax), cfa(-48)) << "xchg rax, rsp";
  EXPECT_EQ(behind(state, bytes({0x48, 0x8b, 0x45, 0x00})).get(kRax).kind, Value::kCallerRbp)
      << "mov rax, [rbp]";
  EXPECT_EQ(behind(state, bytes({0x48, 0x8b, 0x45, 0x08})).get(kRax).kind, Value::kReturnAddress)
      << "mov rax, [rbp + 8]";
  EXPECT_EQ(behind(state, bytes({0x6a, 0x01})).rsp(), cfa(-56)) << "push 1";
  EXPECT_EQ(behind(state, bytes({0x66, 0x6a, 0x01})).rsp(), cfa(-50)) << "push 1, two bytes";
  EXPECT_EQ(behind(state, bytes({0xff, 0x75, 0x08})).rsp(), cfa(-56)) << "push [rbp + 8]";
  EXPECT_EQ(behind(state, bytes({0x8f, 0x45, 0xf8})).rsp(), cfa(-40)) << "pop [rbp - 8]";
  EXPECT_EQ(behind(state, bytes({0xc8, 0x10, 0, 0})).rsp(), cfa(-72)) << "enter 16, 0";
  EXPECT_EQ(behind(state, bytes({0xc8, 0x10, 0, 0})).rbp(), cfa(-56)) << "enter 16, 0";
  EXPECT_EQ(behind(state, bytes({0xe8, 0, 0, 0, 0})).rsp(), cfa(-56)) << "call next";
}

TEST(FrameState, ForgetsWhatIsOverwritten) {
  const FrameState state = framed();
  EXPECT_FALSE(behind(state, bytes({0x48, 0xc7, 0x45, 0x08, 0, 0, 0, 0})).return_intact)
      << "mov qword [rbp + 8], 0";
  EXPECT_EQ(behind(state, bytes({0xc6, 0x45, 0x07, 0})).rbp_slot, 0) << "mov byte [rbp + 7], 0";
  EXPECT_EQ(behind(state, bytes({0xc6, 0x45, 0xff, 0})).rbp_slot, 16) << "mov byte [rbp - 1], 0";
  EXPECT_EQ(behind(state, bytes({0x89, 0xe5})).rbp().kind, Value::kUnknown) << "mov ebp, esp";
  EXPECT_EQ(behind(state, bytes({0x48, 0x83, 0xe4, 0xf0})).rsp().kind, Value::kUnknown) << "and rsp, -16";
  EXPECT_EQ(behind(state, bytes({0x48, 0x81, 0xec, 0, 0, 0, 0x80})).rsp().kind, Value::kUnknown)
      << "sub rsp, INT_MIN: no frame is that large";
  EXPECT_EQ(behind(state, bytes({0x64, 0x48, 0x8d, 0x65, 0xf8})).rsp().kind, Value::kUnknown)
      << "an address with a segment is not followed";
}

TEST(FrameState, SaysWhetherAnythingChanged) {
  bool changed = true;
  const FrameState state = framed();
  EXPECT_EQ(behind(state, bytes({0x48, 0x8b, 0x45, 0xe8}), &changed), state);  // mov rax, [rbp - 24]
  EXPECT_FALSE(changed);
  EXPECT_EQ(behind(state, bytes({0x48, 0x89, 0x45, 0xe8}), &changed), state);  // mov [rbp - 24], rax
  EXPECT_FALSE(changed);
  behind(state, bytes({0x48, 0x89, 0x45, 0x00}), &changed);  // mov [rbp], rax
  EXPECT_TRUE(changed);
}

// Where an effect makes use of no register that is known, to forget what is written must do the same.
TEST(FrameState, EffectsOfUnknownRegistersOnlyForget) {
  const std::vector<Code> codes = {{"mov rax, [rbx + 8]", bytes({0x48, 0x8b, 0x43, 0x08})},
                                   {"mov [rbx + 8], rbp", bytes({0x48, 0x89, 0x6b, 0x08})},
                                   {"lea rbp, [rbx + 8]", bytes({0x48, 0x8d, 0x6b, 0x08})},
                                   {"mov rsp, rbx", bytes({0x48, 0x89, 0xdc})},
                                   {"add rbx, 8", bytes({0x48, 0x83, 0xc3, 0x08})}};
  for (const Code& code : codes) {
    Instruction in;
    ASSERT_TRUE(decode(code.bytes, in));
    const Effect effect = effect_of(in);
    FrameState applied = framed(), forgotten = framed();
    ASSERT_EQ(used_registers(effect) & applied.known, 0) << code.text;
    apply(applied, effect);
    forgotten.forget(written_registers(in));
    EXPECT_EQ(applied, forgotten) << code.text;
  }
}

TEST(FrameState, MeetKeepsWhatBothKnow) {
  FrameState state = framed();
  EXPECT_FALSE(meet(state, framed()));
  EXPECT_EQ(state, framed());
  FrameState other = framed();
  other.set(kRsp, cfa(-64));
  other.set(kRax, cfa(0));
  EXPECT_TRUE(meet(state, other));
  EXPECT_EQ(state.rsp().kind, Value::kUnknown);
  EXPECT_EQ(state.rbp(), cfa(-16));
  EXPECT_EQ(state.known, 1u << kRbp);
  EXPECT_FALSE(meet(state, other));
}

}  // namespace
}  // namespace clew::analysis::test
