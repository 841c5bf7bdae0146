// Each kind of rule as a transition of registers, worked out by hand.
#include <gtest/gtest.h>

#include "core/fake_memory.hpp"

namespace clew::test {
namespace {

struct Stepped {
  uint32_t result;
  clew_state state;
  clew_step step;
};

Stepped step(FakeMemory memory, clew_state state, clew_rule rule, FakeTable table = {}, bool full = true) {
  Stepped out{0, state, {full, 0, false, false, false, false}};
  out.result = clew_step_by_rule(&memory, table.header(), rule, &out.state, &out.step);
  return out;
}

TEST(Step, CfaFromStackPointer) {  // (sp, pc) = (sp + 24, *(sp + 16))
  const auto out =
      step({{{0x7010, 0x1234}}}, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}, {CLEW_RBP, 0x99}}),
           clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 24, 0, 0, false));
  EXPECT_EQ(out.result, CLEW_CONTINUE);
  EXPECT_EQ(out.state.value[CLEW_RSP], 0x7018u);
  EXPECT_EQ(out.state.value[CLEW_RIP], 0x1234u);
  EXPECT_EQ(out.state.value[CLEW_RBP], 0x99u);
  EXPECT_TRUE(clew_known(&out.state, CLEW_RBP));
}

TEST(Step, CfaFromFramePointerRestoresIt) {  // push rbp; mov rbp, rsp: CFA = rbp + 16, rbp at CFA - 16
  const auto out = step({{{0x7100, 0x7200}, {0x7108, 0x1234}}},
                        state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}, {CLEW_RBP, 0x7100}}),
                        clew_rule_make(CLEW_CFA_REG, CLEW_RBP, 16, 2, 0, false));
  EXPECT_EQ(out.result, CLEW_CONTINUE);
  EXPECT_EQ(out.state.value[CLEW_RSP], 0x7110u);
  EXPECT_EQ(out.state.value[CLEW_RBP], 0x7200u);
}

TEST(Step, UnreadableReturnAddressEnds) {
  const auto out = step({}, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}}),
                        clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, 0, 0, false));
  EXPECT_EQ(out.result, static_cast<uint32_t>(CLEW_END_UNREADABLE));
  EXPECT_EQ(out.step.bad_address, 0x7000u);
}

TEST(Step, UnknownBaseRegisterEnds) {
  const auto out = step({{{0x7000, 1}}}, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}}),
                        clew_rule_make(CLEW_CFA_REG, CLEW_RBX, 8, 0, 0, false));
  EXPECT_EQ(out.result, static_cast<uint32_t>(CLEW_END_NO_REGISTER));
}

TEST(Step, RootAndNothing) {
  const auto state = state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}});
  EXPECT_EQ(step({}, state, clew_rule_make(CLEW_CFA_ROOT, 0, 0, 0, 0, false)).result,
            static_cast<uint32_t>(CLEW_END_ROOT));
  EXPECT_EQ(step({}, state, 0).result, static_cast<uint32_t>(CLEW_END_NO_RULE));
}

TEST(Step, BehindCloneTheChildIsOutermost) {
  const clew_rule rule = clew_rule_make(CLEW_CFA_CHILD, CLEW_RSP, 8, 0, 0, false);
  FakeMemory memory{{{0x7000, 0x11}}};
  const auto child = step(memory, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}, {CLEW_RAX, 0}}), rule);
  EXPECT_EQ(child.result, static_cast<uint32_t>(CLEW_END_ROOT));
  for (const uint64_t rax : {uint64_t{4711}, static_cast<uint64_t>(-11)}) {
    const auto parent =
        step(memory, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}, {CLEW_RAX, rax}}), rule);
    EXPECT_EQ(parent.result, CLEW_CONTINUE);
    EXPECT_EQ(parent.state.value[CLEW_RIP], 0x11u);
    EXPECT_EQ(parent.state.value[CLEW_RSP], 0x7008u);
  }
  EXPECT_EQ(step(memory, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}}), rule).result, CLEW_CONTINUE);
}

TEST(Step, DereferencedCfa) {  // DRAP: CFA = *(rbp - 8), r10's value; another stack is allowed
  const auto out = step({{{0x70f8, 0x7300}, {0x72f8, 0x1234}}},
                        state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}, {CLEW_RBP, 0x7100}}),
                        clew_rule_make(CLEW_CFA_DEREF, CLEW_RBP, -8, 0, 0, false));
  EXPECT_EQ(out.result, CLEW_CONTINUE);
  EXPECT_EQ(out.state.value[CLEW_RSP], 0x7300u);
  EXPECT_EQ(out.state.value[CLEW_RIP], 0x1234u);
  EXPECT_TRUE(out.step.switched);
}

TEST(Step, LazyPlt) {  // before the push (rip & 15 < 11) CFA = rsp + 8, behind it rsp + 16
  FakeMemory memory{{{0x7000, 0x11}, {0x7008, 0x22}}};
  const clew_rule rule = clew_rule_make(CLEW_CFA_PLT, CLEW_RSP, 11, 0, 0, false);
  EXPECT_EQ(step(memory, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x102a}}), rule).state.value[CLEW_RIP],
            0x11u);
  EXPECT_EQ(step(memory, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x102b}}), rule).state.value[CLEW_RIP],
            0x22u);
}

TEST(Step, SavedRegistersAreFollowed) {
  FakeTable table;
  const uint32_t list = table.list({3, clew_save_make(CLEW_SAVE_AT_CFA, CLEW_RBX, -32),
                                    clew_save_make(CLEW_SAVE_CFA_PLUS, CLEW_R13, 40),
                                    clew_save_make(CLEW_SAVE_REGISTER, CLEW_R12, CLEW_R14)});
  FakeMemory memory{{{0x7018, 0xbbb}, {0x7030, 0x1234}}};
  const auto state = state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}, {CLEW_R14, 0xe}, {CLEW_R15, 0xf}});
  const clew_rule rule = clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 56, 0, list, false);
  const auto full = step(memory, state, rule, table);
  EXPECT_EQ(full.result, CLEW_CONTINUE);
  EXPECT_EQ(full.state.value[CLEW_RBX], 0xbbbu);
  EXPECT_EQ(full.state.value[CLEW_R13], 0x7038u + 40);
  EXPECT_EQ(full.state.value[CLEW_R12], 0xeu);
  EXPECT_EQ(full.state.value[CLEW_R15], 0xfu) << "unspecified is unchanged";
  const auto fast = step(memory, state, rule, table, false);
  EXPECT_EQ(fast.state.value[CLEW_RIP], 0x1234u);
  EXPECT_FALSE(clew_known(&fast.state, CLEW_RBX)) << "not followed, so not known";
}

TEST(Step, LostRegisterIsUnknownNotWrong) {
  FakeTable table;
  const uint32_t list = table.list(
      {2, clew_save_make(CLEW_SAVE_UNDEFINED, CLEW_RBX, 0), clew_save_make(CLEW_SAVE_AT_CFA, CLEW_R12, 800)});
  const auto out = step({{{0x7000, 0x1234}}},
                        state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1}, {CLEW_RBX, 7}, {CLEW_R12, 7}}),
                        clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, 0, list, false), table);
  EXPECT_EQ(out.result, CLEW_CONTINUE);
  EXPECT_FALSE(clew_known(&out.state, CLEW_RBX));
  EXPECT_FALSE(clew_known(&out.state, CLEW_R12)) << "its slot cannot be read";
}

// gcc's epilogue after `pop %rbp`: the frame is the return address, the rule still says rbp at CFA - 16,
// which is below the stack pointer and not in a copied stack. The pop has restored the register.
TEST(Step, RegisterWhoseSlotIsPoppedIsRestored) {
  const auto state = state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1000}, {CLEW_RBP, 0x7100}, {CLEW_R12, 0xc}});
  const auto out = step({{{0x7000, 0x1234}}}, state, clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, 2, 0, false));
  EXPECT_EQ(out.result, CLEW_CONTINUE);
  EXPECT_TRUE(clew_known(&out.state, CLEW_RBP));
  EXPECT_EQ(out.state.value[CLEW_RBP], 0x7100u);

  FakeTable table;
  const uint32_t list = table.list({1, clew_save_make(CLEW_SAVE_AT_CFA, CLEW_R12, -24)});
  const auto saves =
      step({{{0x7000, 0x1234}}}, state, clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, 2, list, false), table);
  EXPECT_EQ(saves.result, CLEW_CONTINUE);
  EXPECT_TRUE(clew_known(&saves.state, CLEW_RBP));
  EXPECT_TRUE(clew_known(&saves.state, CLEW_R12));
  EXPECT_EQ(saves.state.value[CLEW_R12], 0xcu);

  // A slot at or above the stack pointer that cannot be read is lost.
  const auto lost =
      step({{{0x7008, 0x1234}}}, state, clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 16, 2, 0, false));
  EXPECT_EQ(lost.result, CLEW_CONTINUE);
  EXPECT_FALSE(clew_known(&lost.state, CLEW_RBP));
}

TEST(Step, ReturnAddressInRegister) {  // glibc's vfork: rip in rdi
  FakeTable table;
  const uint32_t list = table.list({1, clew_save_make(CLEW_SAVE_REGISTER, CLEW_RIP, CLEW_RDI)});
  const auto out = step({}, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1}, {CLEW_RDI, 0x1234}}),
                        clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 0, 0, list, true), table);
  EXPECT_EQ(out.result, CLEW_CONTINUE);
  EXPECT_EQ(out.state.value[CLEW_RIP], 0x1234u);
  EXPECT_EQ(out.state.value[CLEW_RSP], 0x7000u);
  EXPECT_TRUE(out.step.switched) << "or the walk would take it for a step that leads nowhere";
}

TEST(Step, SignalFrameByExpressions) {  // as glibc's __restore_rt: rip at *(rsp + 168), rsp at *(rsp + 160)
  FakeTable table;
  const int32_t cfa = table.expression({0x77, 0xa0, 0x01, 0x06});  // breg7 160; deref
  const int32_t rip = table.expression({0x77, 0xa8, 0x01});
  const uint32_t list = table.list({1 | CLEW_SAVES_SIGNAL, clew_save_make(CLEW_SAVE_EXPR_AT, CLEW_RIP, rip)});
  const auto out =
      step({{{0x70a0, 0x9000}, {0x70a8, 0x1234}}}, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1}}),
           clew_rule_make(CLEW_CFA_EXPR, 0, cfa, 0, list, true), table);
  EXPECT_EQ(out.result, CLEW_CONTINUE);
  EXPECT_TRUE(out.step.signal);
  EXPECT_TRUE(out.step.switched);
  EXPECT_EQ(out.state.value[CLEW_RSP], 0x9000u);
  EXPECT_EQ(out.state.value[CLEW_RIP], 0x1234u);
}

TEST(Step, KernelSignalFrame) {  // gregs of struct ucontext as <sys/ucontext.h> numbers them, 40 bytes in
  constexpr int kGregs[17] = {CLEW_R8,  CLEW_R9,  CLEW_R10, CLEW_R11, CLEW_R12, CLEW_R13,
                              CLEW_R14, CLEW_R15, CLEW_RDI, CLEW_RSI, CLEW_RBP, CLEW_RBX,
                              CLEW_RDX, CLEW_RAX, CLEW_RCX, CLEW_RSP, CLEW_RIP};
  FakeMemory memory;
  for (unsigned i = 0; i < 17; ++i) memory.words[0x7000 + 40 + 8 * i] = 100 + i;
  const auto out = step(memory, state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x1}}),
                        clew_rule_make(CLEW_CFA_SIGFRAME, CLEW_RSP, 0, 0, 0, false));
  EXPECT_EQ(out.result, CLEW_CONTINUE);
  EXPECT_TRUE(out.step.signal);
  for (unsigned i = 0; i < 17; ++i) EXPECT_EQ(out.state.value[kGregs[i]], 100 + i) << i;
}

// ---- Expressions: stack programs and their value by DWARF 5 section 2.5 ----

uint64_t evaluate(const std::vector<uint8_t>& bytes, uint32_t expected = CLEW_CONTINUE,
                  FakeMemory memory = {}) {
  FakeTable table;
  const clew_state state = state_of({{CLEW_RSP, 0x7000}, {CLEW_RIP, 0x102b}});
  clew_evaluation evaluation{static_cast<uint32_t>(table.expression(bytes)), false, 0x5000, 0};
  EXPECT_EQ(clew_expression_evaluate(&memory, table.header(), &state, &evaluation), expected);
  return evaluation.value;
}

TEST(Expression, Arithmetic) {
  EXPECT_EQ(evaluate({0x35, 0x33, 0x22}), 8u);                               // 5 + 3
  EXPECT_EQ(evaluate({0x35, 0x33, 0x1c}), 2u);                               // 5 - 3
  EXPECT_EQ(evaluate({0x35, 0x33, 0x1e}), 15u);                              // 5 * 3
  EXPECT_EQ(evaluate({0x37, 0x1f, 0x32, 0x1b}), static_cast<uint64_t>(-3));  // -7 / 2, towards zero
  EXPECT_EQ(evaluate({0x37, 0x34, 0x1d}), 3u);                               // 7 mod 4
  EXPECT_EQ(evaluate({0x36, 0x33, 0x1a}), 2u);                               // 6 & 3
  EXPECT_EQ(evaluate({0x36, 0x33, 0x21}), 7u);                               // 6 | 3
  EXPECT_EQ(evaluate({0x36, 0x33, 0x27}), 5u);                               // 6 ^ 3
  EXPECT_EQ(evaluate({0x31, 0x34, 0x24}), 16u);                              // 1 << 4
  EXPECT_EQ(evaluate({0x30, 0x20, 0x08, 60, 0x25}), 15u);                    // ~0 >> 60
  EXPECT_EQ(evaluate({0x38, 0x1f, 0x31, 0x26}), static_cast<uint64_t>(-4));  // -8 >> 1, arithmetic
  EXPECT_EQ(evaluate({0x38, 0x1f, 0x08, 64, 0x26}), static_cast<uint64_t>(-1));
  EXPECT_EQ(evaluate({0x38, 0x1f, 0x19}), 8u);          // |-8|
  EXPECT_EQ(evaluate({0x31, 0x23, 0x80, 0x01}), 129u);  // 1 + uconst 128
}

TEST(Expression, ConstantsAndRegisters) {
  EXPECT_EQ(evaluate({0x09, 0xff}), static_cast<uint64_t>(-1));
  EXPECT_EQ(evaluate({0x08, 0xff}), 255u);
  EXPECT_EQ(evaluate({0x0b, 0xfe, 0xff}), static_cast<uint64_t>(-2));
  EXPECT_EQ(evaluate({0x0a, 0x34, 0x12}), 0x1234u);
  EXPECT_EQ(evaluate({0x0d, 0xfe, 0xff, 0xff, 0xff}), static_cast<uint64_t>(-2));
  EXPECT_EQ(evaluate({0x0e, 1, 2, 3, 4, 5, 6, 7, 8}), 0x0807060504030201u);
  EXPECT_EQ(evaluate({0x10, 0x80, 0x01}), 128u);
  EXPECT_EQ(evaluate({0x11, 0x7f}), static_cast<uint64_t>(-1));
  EXPECT_EQ(evaluate({0x77, 0x78}), 0x7000u - 8);
  EXPECT_EQ(evaluate({0x92, 0x07, 0x08}), 0x7008u);
  EXPECT_EQ(evaluate({0x9c}), 0x5000u);
}

TEST(Expression, StackOperations) {
  EXPECT_EQ(evaluate({0x31, 0x32, 0x12, 0x22, 0x22}), 5u);  // 1 2 dup + +
  EXPECT_EQ(evaluate({0x31, 0x32, 0x13}), 1u);              // drop
  EXPECT_EQ(evaluate({0x31, 0x32, 0x14}), 1u);              // over
  EXPECT_EQ(evaluate({0x31, 0x32, 0x33, 0x15, 2}), 1u);     // pick 2
  EXPECT_EQ(evaluate({0x31, 0x33, 0x16, 0x1c}), 2u);        // 1 3 swap: 3 - 1
  EXPECT_EQ(evaluate({0x31, 0x32, 0x33, 0x17, 0x1c, 0x16, 0x13}),
            static_cast<uint64_t>(-1));  // 1 2 3 rot: 3 1 2; 1 - 2
}

TEST(Expression, PltRuleOfLd) {  // rsp + 8 + ((rip & 15) >= 11) * 8 at rip 0x102b
  EXPECT_EQ(evaluate({0x77, 8, 0x80, 0, 0x3f, 0x1a, 0x3b, 0x2a, 0x33, 0x24, 0x22}), 0x7010u);
}

TEST(Expression, ComparisonsAreSigned) {
  EXPECT_EQ(evaluate({0x31, 0x1f, 0x31, 0x2d}), 1u);  // -1 < 1
  EXPECT_EQ(evaluate({0x31, 0x1f, 0x31, 0x2b}), 0u);
  EXPECT_EQ(evaluate({0x31, 0x31, 0x29}), 1u);
  EXPECT_EQ(evaluate({0x31, 0x31, 0x2e}), 0u);
}

TEST(Expression, Branches) {
  EXPECT_EQ(evaluate({0x32, 0x31, 0x28, 1, 0, 0x33, 0x34, 0x13}), 0u + evaluate({0x32}))
      << "bra over lit3: 2 4 drop";
  EXPECT_EQ(evaluate({0x35, 0x2f, 1, 0, 0x36}), 5u) << "skip over lit6";
  evaluate({0x2f, 0xfd, 0xff}, CLEW_END_BAD_EXPRESSION);        // an endless loop is cut
  evaluate({0x31, 0x2f, 0x10, 0x00}, CLEW_END_BAD_EXPRESSION);  // out of the expression
}

TEST(Expression, Memory) {
  FakeMemory memory{{{0x7000, 0x1122334455667788}, {0x7008, 0x99aabbccddeeff00}}};
  EXPECT_EQ(evaluate({0x77, 0, 0x06}, CLEW_CONTINUE, memory), 0x1122334455667788u);
  EXPECT_EQ(evaluate({0x77, 2, 0x94, 2}, CLEW_CONTINUE, memory), 0x5566u);
  EXPECT_EQ(evaluate({0x77, 6, 0x94, 4}, CLEW_CONTINUE, memory), 0xff001122u) << "across two words";
  evaluate({0x30, 0x06}, CLEW_END_UNREADABLE);
}

TEST(Expression, MalformedEnds) {
  evaluate({}, CLEW_END_BAD_EXPRESSION);
  evaluate({0x22}, CLEW_END_BAD_EXPRESSION);              // plus on an empty stack
  evaluate({0x31, 0x30, 0x1b}, CLEW_END_BAD_EXPRESSION);  // division by zero
  evaluate({0x31, 0x30, 0x1d}, CLEW_END_BAD_EXPRESSION);
  evaluate({0x0e, 1, 2}, CLEW_END_BAD_EXPRESSION);                    // cut operand
  evaluate({0xff}, CLEW_END_BAD_EXPRESSION);                          // unknown operation
  evaluate({0x73, 0}, CLEW_END_NO_REGISTER);                          // rbx is not known
  evaluate(std::vector<uint8_t>(17, 0x31), CLEW_END_BAD_EXPRESSION);  // deeper than the stack
}

}  // namespace
}  // namespace clew::test
