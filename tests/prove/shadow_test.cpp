// The shadow stack fed with instructions by hand: what each does to the callers follows from the
// architecture.
#include "prove/shadow.hpp"

#include <gtest/gtest.h>

#include <map>

namespace clew::prove {
namespace {

constexpr uint64_t kCode = 0x400000, kCodeEnd = 0x500000;

struct FakeProgram : Program {
  std::map<uint64_t, uint64_t> words;
  bool read_word(uint64_t address, uint64_t& word) override {
    auto known = words.find(address);
    if (known == words.end()) return false;
    word = known->second;
    return true;
  }
  bool is_code(uint64_t address) override { return address >= kCode && address < kCodeEnd; }
};

/// A thread whose instructions are five bytes long and named by what they do.
struct Thread : testing::Test {
  Left call(uint64_t target) {
    program.words[sp - 8] = pc + 5;
    return execute({5, Flow::kCall}, target, sp - 8);
  }
  Left ret() { return execute({5, Flow::kReturn}, program.words.at(sp), sp + 8); }
  Left jump(uint64_t target) { return execute({5, Flow::kJump}, target, sp); }
  Left jump_indirect(uint64_t target) { return execute({5, Flow::kIndirectJump}, target, sp); }
  Left add_sp(int64_t bytes) {
    return execute({5, Flow::kStraight}, pc + 5, sp + static_cast<uint64_t>(bytes));
  }
  Left load_sp(uint64_t value) { return execute({5, Flow::kStraight, true}, pc + 5, value); }
  void push(uint64_t word) {
    add_sp(-8);
    program.words[sp] = word;
  }
  Left execute(Instruction instruction, uint64_t next_pc, uint64_t next_sp) {
    Left left = shadow.step({instruction, pc, sp, next_pc, next_sp}, program);
    pc = next_pc;
    sp = next_sp;
    return left;
  }
  /// Innermost first, as a chain has them.
  std::vector<uint64_t> callers() const {
    std::vector<uint64_t> addresses;
    for (const Caller& caller : shadow.callers()) addresses.insert(addresses.begin(), caller.address);
    return addresses;
  }
  using Chain = std::vector<uint64_t>;

  static constexpr uint64_t kTop = 0x7fff0000;
  FakeProgram program;
  uint64_t pc = 0x401000, sp = kTop;
  ShadowStack shadow{kTop};
};

using ShadowStackTest = Thread;

TEST_F(ShadowStackTest, CallsPushAndReturnsPop) {
  EXPECT_EQ(callers(), Chain{});
  EXPECT_EQ(call(0x402000), Left::kNo);
  add_sp(-32);
  call(0x403000);
  EXPECT_EQ(callers(), (Chain{0x40200a, 0x401005}));
  EXPECT_EQ(ret(), Left::kReturned);
  EXPECT_EQ(pc, 0x40200au);
  EXPECT_EQ(callers(), (Chain{0x401005}));
  add_sp(32);
  ret();
  EXPECT_EQ(callers(), Chain{});
}

TEST_F(ShadowStackTest, ATailCallKeepsTheCaller) {
  call(0x402000);
  add_sp(-32);
  add_sp(32);
  EXPECT_EQ(jump(0x403000), Left::kNo);
  EXPECT_EQ(jump_indirect(0x404000), Left::kNo);
  EXPECT_EQ(callers(), (Chain{0x401005}));
  EXPECT_EQ(ret(), Left::kReturned);
  EXPECT_EQ(callers(), Chain{});
}

TEST_F(ShadowStackTest, AReturnToAPushedAddressIsAJump) {
  call(0x402000);
  push(0x403000);
  EXPECT_EQ(ret(), Left::kNo);
  EXPECT_EQ(pc, 0x403000u);
  EXPECT_EQ(callers(), (Chain{0x401005}));
}

TEST_F(ShadowStackTest, AReturnAddressHeldInARegisterIsStillThere) {  // glibc's vfork
  call(0x402000);
  add_sp(8);
  EXPECT_EQ(callers(), (Chain{0x401005}));
  push(0x401005);
  EXPECT_EQ(callers(), (Chain{0x401005}));
  ret();
  EXPECT_EQ(callers(), Chain{});
}

TEST_F(ShadowStackTest, APoppedReturnAddressIsGoneAtTheJump) {
  call(0x402000);
  add_sp(8);
  EXPECT_EQ(jump_indirect(0x401005), Left::kReturned);
  EXPECT_EQ(callers(), Chain{});
}

TEST_F(ShadowStackTest, ACallOfTheNextInstructionIsNoFrame) {
  call(0x402000);
  call(0x402005);
  add_sp(8);
  EXPECT_EQ(callers(), (Chain{0x401005}));
}

TEST_F(ShadowStackTest, LongjmpDropsTheFramesBelow) {
  call(0x402000);
  uint64_t saved_sp = sp - 32;
  add_sp(-32);
  call(0x403000);
  add_sp(-100);
  call(0x404000);
  EXPECT_EQ(callers().size(), 3u);
  load_sp(saved_sp);
  EXPECT_EQ(jump(pc + 64), Left::kNo);  // a branch within longjmp
  EXPECT_EQ(callers().size(), 3u);
  EXPECT_EQ(jump_indirect(0x402005), Left::kReturned);
  EXPECT_EQ(callers(), (Chain{0x401005}));
}

TEST_F(ShadowStackTest, AllocaByALoadedStackPointerIsTheSameStack) {
  call(0x402000);
  load_sp(sp - 4096);
  call(0x403000);
  EXPECT_EQ(callers(), (Chain{0x40200a, 0x401005}));
  ret();
  load_sp(kTop - 8);
  EXPECT_EQ(ret(), Left::kReturned);
  EXPECT_EQ(callers(), Chain{});
}

TEST_F(ShadowStackTest, AJumpTableAfterAllocaIsTheSameStack) {
  call(0x402000);
  load_sp(sp - 4096);
  EXPECT_EQ(jump_indirect(0x402100), Left::kNo);
  EXPECT_EQ(callers(), (Chain{0x401005}));
}

// Between main and a coroutine, by a function that swaps stacks and returns.
TEST_F(ShadowStackTest, CoroutinesKeepTheirCallers) {
  constexpr uint64_t kStack = 0x10000000, kTrampoline = 0x409000, kEntry = 0x405000;
  call(0x402000);
  call(0x403000);  // switch
  uint64_t main_sp = sp;
  program.words[kStack] = kEntry;
  program.words[kStack + 8] = kTrampoline;
  load_sp(kStack);
  EXPECT_EQ(ret(), Left::kSwitched);
  EXPECT_EQ(callers(), Chain{kTrampoline});
  add_sp(-64);
  call(0x403000);
  EXPECT_EQ(callers(), (Chain{0x40500a, kTrampoline}));
  uint64_t coroutine_sp = sp;
  load_sp(main_sp);
  EXPECT_EQ(ret(), Left::kSwitched);
  EXPECT_EQ(pc, 0x402005u);
  EXPECT_EQ(callers(), (Chain{0x401005}));
  call(0x403000);
  load_sp(coroutine_sp);
  EXPECT_EQ(ret(), Left::kSwitched);
  EXPECT_EQ(callers(), (Chain{kTrampoline}));
}

TEST_F(ShadowStackTest, ACoroutineWithoutACallerIsARoot) {
  constexpr uint64_t kStack = 0x10000000;
  program.words[kStack] = 0x405000;
  program.words[kStack + 8] = 0;
  call(0x402000);
  load_sp(kStack);
  ret();
  EXPECT_EQ(callers(), Chain{});
  call(0x406000);
  EXPECT_EQ(callers(), Chain{0x405005});
}

TEST_F(ShadowStackTest, AStackThatIsUsedAnewHasNewCallers) {
  constexpr uint64_t kStack = 0x10000000;
  program.words[kStack] = 0x405000;
  program.words[kStack + 8] = 0x409000;
  call(0x403000);
  uint64_t main_sp = sp;
  load_sp(kStack);
  ret();
  add_sp(-64);
  call(0x403000);
  load_sp(main_sp);
  ret();
  call(0x403000);
  program.words[kStack] = 0x406000;
  program.words[kStack + 8] = 0x40a000;
  load_sp(kStack);
  EXPECT_EQ(ret(), Left::kSwitched);
  EXPECT_EQ(callers(), Chain{0x40a000});
}

TEST_F(ShadowStackTest, ACallOnAnotherStackContinuesTheChain) {
  constexpr uint64_t kStack = 0x10000000;
  call(0x402000);
  uint64_t main_sp = sp;
  load_sp(kStack);
  EXPECT_EQ(call(0x403000), Left::kNo);
  EXPECT_EQ(callers(), (Chain{0x40200a, 0x401005}));
  call(0x404000);
  ret();
  ret();
  EXPECT_EQ(callers(), (Chain{0x401005}));
  load_sp(main_sp);
  EXPECT_EQ(ret(), Left::kReturned);
  EXPECT_EQ(callers(), Chain{});
}

struct HandlerTest : Thread {
  void deliver(uint64_t handler_sp) {
    interrupted_pc = pc;
    interrupted_sp = sp;
    shadow.begin_handler(handler_sp, kRestorer, pc, sp);
    program.words[handler_sp] = kRestorer;
    pc = 0x408000;
    sp = handler_sp;
  }
  Left sigreturn(uint64_t to_pc, uint64_t to_sp) {
    pc = to_pc;
    sp = to_sp;
    return shadow.end_handler(sp, program);
  }
  static constexpr uint64_t kRestorer = 0x40f000, kOtherStack = 0x20000000;
  uint64_t interrupted_pc = 0, interrupted_sp = 0;
};

TEST_F(HandlerTest, AHandlersChainGoesThroughTheRestorer) {
  call(0x402000);
  for (uint64_t stack : {kOtherStack, sp - 2048}) {
    deliver(stack);
    EXPECT_EQ(callers(), (Chain{kRestorer, interrupted_pc, 0x401005}));
    call(0x403000);
    EXPECT_EQ(callers(), (Chain{0x408005, kRestorer, interrupted_pc, 0x401005}));
    ret();
    EXPECT_EQ(ret(), Left::kReturned);
    EXPECT_EQ(callers(), (Chain{interrupted_pc, 0x401005}));
    EXPECT_EQ(sigreturn(interrupted_pc, interrupted_sp), Left::kReturned);
    EXPECT_EQ(callers(), (Chain{0x401005}));
  }
}

TEST_F(HandlerTest, HandlersNest) {
  deliver(kOtherStack);
  uint64_t outer_pc = interrupted_pc, outer_sp = interrupted_sp;
  deliver(kOtherStack - 2048);
  EXPECT_EQ(callers(), (Chain{kRestorer, interrupted_pc, kRestorer, outer_pc}));
  ret();
  sigreturn(interrupted_pc, interrupted_sp);
  EXPECT_EQ(callers(), (Chain{kRestorer, outer_pc}));
  ret();
  sigreturn(outer_pc, outer_sp);
  EXPECT_EQ(callers(), Chain{});
}

TEST_F(HandlerTest, LongjmpLeavesAHandlerOnAnyStack) {
  call(0x402000);
  add_sp(-32);
  uint64_t saved_sp = sp;
  for (uint64_t stack : {kOtherStack, sp - 2048}) {
    call(0x403000);
    deliver(stack);
    call(0x404000);
    load_sp(saved_sp);
    EXPECT_EQ(jump_indirect(0x402100), Left::kReturned);
    EXPECT_EQ(callers(), (Chain{0x401005}));
  }
}

TEST_F(HandlerTest, AHandlerMayReturnElsewhere) {
  call(0x402000);
  uint64_t saved_sp = sp;
  add_sp(-32);
  call(0x403000);
  deliver(kOtherStack);
  ret();
  sigreturn(0x402100, saved_sp);
  EXPECT_EQ(callers(), (Chain{0x401005}));
}

TEST_F(HandlerTest, AHandlerThatInterruptsASwitchOfStacksGivesItBack) {
  constexpr uint64_t kStack = 0x10000000;
  program.words[kStack] = 0x405000;
  program.words[kStack + 8] = 0;
  call(0x402000);
  load_sp(kStack);
  deliver(kStack - 2048);
  call(0x403000);
  ret();
  ret();
  sigreturn(interrupted_pc, interrupted_sp);
  EXPECT_EQ(callers(), (Chain{0x401005}));
  EXPECT_EQ(ret(), Left::kSwitched);
  EXPECT_EQ(callers(), Chain{});
}

}  // namespace
}  // namespace clew::prove
