// The walk's contract (T1, T2, T4) over a made-up program: tables by hand, stack by hand.
#include <gtest/gtest.h>

#include <cstring>
#include <map>

#include "table/encode.hpp"
#include "unwind/remote.hpp"

namespace clew::unwind {
namespace {

constexpr uint64_t kText = 0x401000, kStack = 0x7ffc00001000;

/// One function of 256 bytes a program: leaf (CFA = rsp + 8), framed (rbp), root, one that has popped its
/// return address into rdi, and one without rules.
enum Function : uint64_t {
  kLeaf = kText,
  kFramed = kText + 0x100,
  kRoot = kText + 0x200,
  kPopped = kText + 0x300,
  kBare = kText + 0x400
};

std::shared_ptr<const table::Table> make_table() {
  table::Dictionary dictionary;
  table::Programs programs{{{0, table::Dictionary::kNone}}, {{0, 1}}};
  std::vector<table::Piece> pieces;
  const cfi::Section section;
  const auto add = [&](uint64_t start, const cfi::Row& row) {
    const auto first = static_cast<uint32_t>(programs.rows.size());
    dictionary.forget_registers();
    programs.rows.push_back({0, dictionary.rule_of_row(section, row, 0)});
    programs.programs.push_back({first, 1});
    pieces.push_back({start, start + 0x100, static_cast<uint32_t>(programs.programs.size() - 1), 0});
  };
  const auto set = [](cfi::Row& row, unsigned reg, cfi::RuleKind kind, int64_t value) {
    row.registers[reg] = {kind, 0, value};
    row.present[reg] = true;
  };
  cfi::Row leaf;
  leaf.cfa = {cfi::CfaKind::kRegister, CLEW_RSP, 0, 8, 0};
  set(leaf, CLEW_RIP, cfi::RuleKind::kOffset, -8);
  add(kLeaf, leaf);
  cfi::Row framed = leaf;
  framed.cfa = {cfi::CfaKind::kRegister, CLEW_RBP, 0, 16, 0};
  set(framed, CLEW_RBP, cfi::RuleKind::kOffset, -16);
  add(kFramed, framed);
  cfi::Row root = leaf;
  set(root, CLEW_RIP, cfi::RuleKind::kUndefined, 0);
  add(kRoot, root);
  cfi::Row popped = leaf;
  popped.cfa.offset = 0;
  set(popped, CLEW_RIP, cfi::RuleKind::kRegister, CLEW_RDI);
  add(kPopped, popped);
  auto table = table::Table::from_bytes(table::encode(programs, pieces, dictionary, {{}, 0, 0}, 4));
  EXPECT_TRUE(table) << table.error();
  return *table;
}

struct FakeTarget : Target {
  std::shared_ptr<const table::Table> table = make_table();
  std::map<uint64_t, uint64_t> words;
  std::map<uint64_t, std::byte> code;
  uint64_t text_end = kText + 0x1000;

  bool read(uint64_t address, void* out, size_t size) override {
    const auto word = words.find(address);
    if (size != 8 || word == words.end()) return false;
    std::memcpy(out, &word->second, 8);
    return true;
  }
  bool read_code(uint64_t address, void* out, size_t size) override {
    for (size_t i = 0; i < size; ++i) {
      const auto byte = code.find(address + i);
      static_cast<std::byte*>(out)[i] = byte == code.end() ? std::byte{0x90} : byte->second;
    }
    return true;
  }
  bool find(uint64_t address, Code& found) override {
    if (address >= kStack && address < kStack + 0x10000) {
      found = {kStack, kStack + 0x10000, false, 0, nullptr};
      return true;
    }
    if (address < kText || address >= text_end) return false;
    found = {kText, text_end, true, 0, table.get()};
    return true;
  }
  /// A call instruction that ends at `pc`.
  void call_before(uint64_t pc) { code[pc - 5] = std::byte{0xe8}; }
};

struct Walked {
  WalkResult result;
  std::vector<clew_frame> frames;
};

void expect_same(FakeTarget& target, const Registers& registers, size_t depth, KnownRules& known,
                 const Walked& walked) {
  std::vector<clew_frame> frames(depth);
  const WalkResult result = walk(target, registers, frames, known);
  EXPECT_EQ(result.end, walked.result.end);
  EXPECT_EQ(result.end_detail, walked.result.end_detail);
  ASSERT_EQ(result.frames, walked.result.frames);
  for (size_t i = 0; i < result.frames; ++i) {
    EXPECT_EQ(frames[i].pc, walked.frames[i].pc) << i;
    EXPECT_EQ(frames[i].sp, walked.frames[i].sp) << i;
    EXPECT_EQ(frames[i].how, walked.frames[i].how) << i;
    EXPECT_EQ(frames[i].flags, walked.frames[i].flags) << i;
  }
}

Walked walk_from(FakeTarget& target, uint64_t pc, uint64_t sp, uint64_t bp = 0, size_t depth = 16) {
  Registers registers;
  registers.value[CLEW_RIP] = pc;
  registers.value[CLEW_RSP] = sp;
  registers.value[CLEW_RBP] = bp;
  registers.known = (1u << CLEW_REGISTERS) - 1;
  std::vector<clew_frame> frames(depth);
  const WalkResult result = walk(target, registers, frames);
  frames.resize(result.frames);
  // From rules that are known already it is the same.
  KnownRules known;
  for (int i = 0; i < 2; ++i) expect_same(target, registers, depth, known, {result, frames});
  return {result, frames};
}

TEST(Walk, ReachesTheDeclaredRoot) {
  FakeTarget target;
  target.words = {{kStack, kFramed + 0x20}, {kStack + 0x40, kStack + 0x90}, {kStack + 0x48, kRoot + 0x10}};
  const auto walked = walk_from(target, kLeaf + 3, kStack, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_ROOT);
  ASSERT_EQ(walked.frames.size(), 3u);
  EXPECT_EQ(walked.frames[0].pc, kLeaf + 3);
  EXPECT_EQ(walked.frames[0].how, static_cast<uint32_t>(CLEW_HOW_REGISTERS));
  EXPECT_EQ(walked.frames[1].pc, kFramed + 0x20);
  EXPECT_EQ(walked.frames[1].sp, kStack + 8);
  EXPECT_EQ(walked.frames[1].how, static_cast<uint32_t>(CLEW_HOW_TABLE));
  EXPECT_EQ(walked.frames[2].pc, kRoot + 0x10);
  EXPECT_EQ(walked.frames[2].sp, kStack + 0x50);
}

TEST(Walk, ReturnAddressBehindTheFunctionBelongsToTheCall) {  // a noreturn call is framed's last instruction
  FakeTarget target;
  target.words = {{kStack, kFramed + 0x100}, {kStack + 0x40, 0}, {kStack + 0x48, kRoot + 0x10}};
  const auto walked = walk_from(target, kLeaf, kStack, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_ROOT);
  EXPECT_EQ(walked.frames.size(), 3u) << "looked up one byte earlier it is framed, not root";
}

TEST(Walk, AFrameWithoutStackHasACaller) {  // glibc's vfork between pop rdi and push rdi
  FakeTarget target;
  Registers registers;
  registers.value[CLEW_RIP] = kPopped + 8;
  registers.value[CLEW_RSP] = kStack;
  registers.value[CLEW_RDI] = kRoot + 0x10;
  registers.known = (1u << CLEW_REGISTERS) - 1;
  std::vector<clew_frame> frames(80);
  EXPECT_EQ(walk(target, registers, frames).end, CLEW_END_ROOT);
  EXPECT_EQ(frames[1].pc, kRoot + 0x10);
  EXPECT_EQ(frames[1].sp, kStack);
  registers.value[CLEW_RDI] = kPopped + 8;  // "called by itself": still it ends
  EXPECT_EQ(walk(target, registers, frames).end, CLEW_END_NO_PROGRESS);
}

TEST(Walk, CallerOutsideExecutableMappingsIsNoFrame) {
  FakeTarget target;
  target.words = {{kStack, 0x1234}};
  auto walked = walk_from(target, kLeaf, kStack);
  EXPECT_EQ(walked.result.end, CLEW_END_NOT_MAPPED);
  EXPECT_EQ(walked.result.end_detail, 0x1234u);
  EXPECT_EQ(walked.frames.size(), 1u);
  target.words = {{kStack, kStack + 0x100}};
  walked = walk_from(target, kLeaf, kStack);
  EXPECT_EQ(walked.result.end, CLEW_END_NOT_EXECUTABLE);
  EXPECT_EQ(walked.frames.size(), 1u);
}

TEST(Walk, UnreadableStackEnds) {
  FakeTarget target;
  const auto walked = walk_from(target, kLeaf, kStack);
  EXPECT_EQ(walked.result.end, CLEW_END_UNREADABLE);
  EXPECT_EQ(walked.result.end_detail, kStack);
}

TEST(Walk, StackMustGrow) {  // framed's rbp points below rsp
  FakeTarget target;
  target.words = {{kStack + 0x40, kStack + 0x40}, {kStack + 0x48, kFramed + 1}};
  const auto walked = walk_from(target, kFramed, kStack + 0x200, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_NO_PROGRESS);
  EXPECT_EQ(walked.frames.size(), 1u);
}

TEST(Walk, CycleOfFramePointersEnds) {
  FakeTarget target;
  target.words = {{kStack + 0x40, kStack + 0x40}, {kStack + 0x48, kFramed + 1}};
  const auto walked = walk_from(target, kFramed, kStack, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_NO_PROGRESS);
  EXPECT_EQ(walked.frames.size(), 2u);
}

TEST(Walk, DepthLimit) {
  FakeTarget target;
  for (uint64_t i = 0; i < 100; ++i) target.words[kStack + 8 * i] = kLeaf + 5;
  const auto walked = walk_from(target, kLeaf, kStack, 0, 16);
  EXPECT_EQ(walked.result.end, CLEW_END_DEPTH_LIMIT);
  EXPECT_EQ(walked.frames.size(), 16u);
}

TEST(Walk, DepthOfExactlyTheLimitIsComplete) {
  FakeTarget target;
  target.words = {{kStack, kRoot + 1}};
  EXPECT_EQ(walk_from(target, kLeaf, kStack, 0, 2).result.end, CLEW_END_ROOT);
}

TEST(Walk,
     CallThroughNullPointer) {  // T1: the sampled pc is the first frame; only a call's return address follows
  FakeTarget target;
  target.words = {{kStack, kFramed + 0x20}, {kStack + 0x40, 0}, {kStack + 0x48, kRoot + 0x10}};
  target.call_before(kFramed + 0x20);
  auto walked = walk_from(target, 0, kStack, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_ROOT);
  ASSERT_EQ(walked.frames.size(), 3u);
  EXPECT_EQ(walked.frames[0].pc, 0u);
  EXPECT_EQ(walked.frames[1].how, static_cast<uint32_t>(CLEW_HOW_ANALYSIS));
  target.code.clear();
  walked = walk_from(target, 0, kStack, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_NOT_MAPPED);
  EXPECT_EQ(walked.frames.size(), 1u);
}

TEST(
    Walk,
    FramePointerGuessIsMarkedAndChecked) {  // T3, T4: no rule for bare; everything behind the guess is marked
  FakeTarget target;
  target.words = {{kStack + 0x40, kStack + 0x80},
                  {kStack + 0x48, kFramed + 0x20},
                  {kStack + 0x80, 0},
                  {kStack + 0x88, kRoot + 0x10}};
  target.call_before(kFramed + 0x20);
  auto walked = walk_from(target, kBare + 0x10, kStack, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_ROOT);
  ASSERT_EQ(walked.frames.size(), 3u);
  EXPECT_EQ(walked.frames[1].how, static_cast<uint32_t>(CLEW_HOW_FRAME_POINTER));
  EXPECT_FALSE(walked.frames[0].flags & CLEW_FRAME_GUESSED);
  EXPECT_TRUE(walked.frames[1].flags & CLEW_FRAME_GUESSED);
  EXPECT_TRUE(walked.frames[2].flags & CLEW_FRAME_GUESSED);
  target.code.clear();
  walked = walk_from(target, kBare + 0x10, kStack, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_NOT_A_CALL);
  // Nor is a word that points at no code: where it points says why.
  target.words[kStack + 0x48] = 0x10;
  walked = walk_from(target, kBare + 0x10, kStack, kStack + 0x40);
  EXPECT_EQ(walked.result.end, CLEW_END_NOT_MAPPED);
  EXPECT_EQ(walked.result.end_detail, 0x10u);
  EXPECT_EQ(walked.frames.size(), 1u) << "an unvouched return address is never printed";
}

TEST(Walk, NoRuleAndNoFramePointerEnds) {
  FakeTarget target;
  const auto walked = walk_from(target, kBare + 0x10, kStack, 0x33);
  EXPECT_EQ(walked.result.end, CLEW_END_NO_RULE);
  EXPECT_EQ(walked.frames.size(), 1u);
}

TEST(Walk, WithoutProgramCounterOrStackPointerThereIsNothing) {
  FakeTarget target;
  std::vector<clew_frame> frames(4);
  EXPECT_EQ(walk(target, Registers{}, frames).end, CLEW_END_NO_USER_STACK);
}

}  // namespace
}  // namespace clew::unwind
