// Each instruction and each defect of the instruction loop, in hand-assembled FDEs.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "cfi/pointer.hpp"
#include "cfi/section_builder.hpp"

namespace clew::cfi::test {
namespace {

constexpr uint64_t kStart = 0x10000;

struct Ran {
  bool whole = false;
  uint64_t end = 0;
  Defects defects;
  std::vector<std::string> rows;  // "offset CFA register=rule..."
};

template <class Arch>
std::string text_of(uint64_t offset, const BasicRow<Arch>& row) {
  std::string text = std::to_string(offset) + " " + describe_cfa<Arch>(row.cfa);
  for (unsigned reg = 0; reg < Arch::kRegisters; ++reg) {
    EXPECT_EQ(row.present[reg], row.registers[reg].kind != RuleKind::kUnspecified) << reg;
    if (row.present[reg])
      text += " " + register_name<Arch>(reg) + "=" + describe_register<Arch>(row.registers[reg]);
  }
  return text;
}

struct Program {
  Bytes instructions;
  uint64_t size = 100;
  Bytes initial = usual_initial();
  uint8_t encoding = 0;
  uint8_t code_alignment = 1;
};

template <class Arch = X86_64>
Ran run(const Program& program) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie(program.encoding, program.initial, program.code_alignment);
  Bytes addresses;
  if (program.encoding == 0) {
    addresses.u64(kStart).u64(program.size);
  } else {  // pcrel | sdata4
    const uint64_t here = SectionBuilder::kAddress + builder.position() + 8;
    addresses.u32(static_cast<uint32_t>(kStart - here)).u32(static_cast<uint32_t>(program.size));
  }
  builder.fde_of(cie, addresses.u8(0).add(program.instructions));
  const Section section = builder.section();

  Ran ran;
  Reader reader(section);
  BasicInterpreter<Arch> interpreter(ran.defects);
  Fde fde;
  EXPECT_TRUE(reader.next(fde));
  // Twice: the second time from the remembered row of the CIE, which must change nothing.
  for (int round = 0; round < 2; ++round) {
    std::vector<std::string> rows;
    ran.defects = {};
    ran.whole = interpreter.run(
        section, reader.cies()[fde.cie], fde,
        [&](uint64_t offset, const BasicRow<Arch>& row) { rows.push_back(text_of(offset, row)); });
    ran.end = interpreter.end();
    if (round == 1) {
      EXPECT_EQ(ran.rows, rows);
    }
    ran.rows = rows;
  }
  return ran;
}

template <class Arch = X86_64>
void expect_rows(const Program& program, const std::vector<std::string>& rows) {
  const Ran ran = run<Arch>(program);
  EXPECT_EQ(rows, ran.rows);
  EXPECT_TRUE(ran.whole);
  EXPECT_EQ(program.size, ran.end);
  EXPECT_EQ(0u, ran.defects.total());
}

// What follows `instructions` in one row at the FDE's start.
void expect_row(const Bytes& instructions, const std::string& row) {
  expect_rows({instructions}, {"0 " + row});
}

TEST(Interpreter, NothingButTheCie) { expect_row({}, "rsp+8 rip=c-8"); }

TEST(Interpreter, DefCfa) {
  expect_row({0x0c, 6, 0x90, 1}, "rbp+144 rip=c-8");
  expect_row({0x0d, 6}, "rbp+8 rip=c-8");
  expect_row({0x0e, 0x90, 1}, "rsp+144 rip=c-8");
}

TEST(Interpreter, DefCfaFactored) {
  expect_row({0x12, 6, 0x7e}, "rbp+16 rip=c-8");
  expect_row({0x12, 6, 3}, "rbp-24 rip=c-8");
  expect_row({0x13, 0x7e}, "rsp+16 rip=c-8");
}

TEST(Interpreter, DefCfaExpression) {
  expect_row({0x0f, 2, 0x77, 8}, "exp rip=c-8");
  // An offset alone leaves the expression; a register ends it and takes up the offset.
  expect_row({0x0f, 2, 0x77, 8, 0x0e, 24}, "exp rip=c-8");
  expect_row({0x0f, 2, 0x77, 8, 0x0e, 24, 0x0d, 6}, "rbp+24 rip=c-8");
}

TEST(Interpreter, Offsets) {
  expect_row({0x83, 2}, "rsp+8 rbx=c-16 rip=c-8");
  expect_row({0x83, 0x80, 1}, "rsp+8 rbx=c-1024 rip=c-8");
  expect_row({0x05, 3, 2}, "rsp+8 rbx=c-16 rip=c-8");
  expect_row({0x11, 3, 0x7e}, "rsp+8 rbx=c+16 rip=c-8");
  expect_row({0x11, 3, 2}, "rsp+8 rbx=c-16 rip=c-8");
  expect_row({0x2f, 3, 2}, "rsp+8 rbx=c+16 rip=c-8");
  expect_row({0x14, 3, 2}, "rsp+8 rbx=v-16 rip=c-8");
  expect_row({0x15, 3, 0x7e}, "rsp+8 rbx=v+16 rip=c-8");
}

TEST(Interpreter, OtherRules) {
  expect_row({0x07, 3}, "rsp+8 rbx=U rip=c-8");
  expect_row({0x07, 16}, "rsp+8 rip=U");
  expect_row({0x08, 3}, "rsp+8 rbx=s rip=c-8");
  expect_row({0x09, 16, 13}, "rsp+8 rip=r13");
  expect_row({0x09, 3, 40}, "rsp+8 rbx=r40 rip=c-8");
  expect_row({0x10, 3, 2, 0x77, 8}, "rsp+8 rbx=exp rip=c-8");
  expect_row({0x16, 3, 2, 0x77, 8}, "rsp+8 rbx=vexp rip=c-8");
}

TEST(Interpreter, ExpressionsLieInTheSection) {
  SectionBuilder builder;
  builder.fde(builder.cie(), kStart, 1, {0x0f, 2, 0x77, 8, 0x10, 3, 3, 0x76, 1, 6, 0x16, 4, 0});
  const Section section = builder.section();
  Reader reader(section);
  Interpreter interpreter(reader.defects());
  Fde fde;
  ASSERT_TRUE(reader.next(fde));
  EXPECT_TRUE(interpreter.run(section, reader.cies()[fde.cie], fde, [&](uint64_t, const Row& row) {
    const auto cfa = expression_bytes(section, row.cfa);
    ASSERT_EQ(2u, cfa.size());
    EXPECT_EQ(std::byte{0x77}, cfa[0]);
    const auto rbx = expression_bytes(section, row.registers[3]);
    ASSERT_EQ(3u, rbx.size());
    EXPECT_EQ(std::byte{0x76}, rbx[0]);
    EXPECT_EQ(std::byte{6}, rbx[2]);
    EXPECT_TRUE(expression_bytes(section, row.registers[4]).empty());   // of no length
    EXPECT_TRUE(expression_bytes(section, row.registers[16]).empty());  // no expression
    RegisterRule beyond = row.registers[3];
    beyond.value = 1 << 20;
    EXPECT_TRUE(expression_bytes(section, beyond).empty());
  }));
}

TEST(Interpreter, Restore) {
  expect_rows({{0x07, 16, 0x83, 2, 0x41, 0xc3, 0xd0}}, {"0 rsp+8 rbx=c-16 rip=U", "1 rsp+8 rip=c-8"});
  expect_rows({{0x83, 2, 0x41, 0x06, 3}}, {"0 rsp+8 rbx=c-16 rip=c-8", "1 rsp+8 rip=c-8"});
  // To the CIE's rule, not to what the FDE said first.
  const Bytes initial{0x0c, 7, 8, 0x90, 1, 0x08, 3};
  expect_rows({{0x83, 2, 0x41, 0x83, 3, 0x41, 0xc3}, 100, initial},
              {"0 rsp+8 rbx=c-16 rip=c-8", "1 rsp+8 rbx=c-24 rip=c-8", "2 rsp+8 rbx=s rip=c-8"});
}

TEST(Interpreter, RememberAndRestoreState) {
  expect_rows({{0x0e, 16, 0x83, 2, 0x41, 0x0a, 0x0c, 6, 24, 0xc3, 0x41, 0x0b}},
              {"0 rsp+16 rbx=c-16 rip=c-8", "1 rbp+24 rip=c-8", "2 rsp+16 rbx=c-16 rip=c-8"});
}

TEST(Interpreter, NestedStates) {
  expect_rows(
      {{0x0e, 16, 0x0a, 0x0e, 24, 0x86, 2, 0x0a, 0x0e, 32, 0x07, 6, 0x41, 0x0b, 0x41, 0x0b, 0x41, 0x0e, 64}},
      {"0 rsp+32 rbp=U rip=c-8", "1 rsp+24 rbp=c-16 rip=c-8", "2 rsp+16 rip=c-8", "3 rsp+64 rip=c-8"});
}

TEST(Interpreter, RestoreStateOfAnExpression) {
  expect_rows({{0x0f, 1, 0x50, 0x0a, 0x0c, 7, 8, 0x41, 0x0b}}, {"0 rsp+8 rip=c-8", "1 exp rip=c-8"});
}

TEST(Interpreter, AdvanceOfEveryWidth) {
  Bytes instructions{0x41, 0x0e, 1, 0x7f, 0x0e, 2, 0x02, 0xff, 0x0e, 3, 0x03};
  instructions.u16(0xffff)
      .add({0x0e, 4, 0x04})
      .u32(0xffffffff)
      .add({0x0e, 5, 0x1d})
      .u64(0x100000000)
      .add({0x0e, 6});
  expect_rows({instructions, UINT64_MAX - kStart},
              {"0 rsp+8 rip=c-8", "1 rsp+1 rip=c-8", "64 rsp+2 rip=c-8", "319 rsp+3 rip=c-8",
               "65854 rsp+4 rip=c-8", "4295033149 rsp+5 rip=c-8", "8590000445 rsp+6 rip=c-8"});
}

TEST(Interpreter, CodeAlignment) {
  expect_rows({{0x41, 0x0e, 1, 0x02, 3, 0x0e, 2}, 100, usual_initial(), 0, 4},
              {"0 rsp+8 rip=c-8", "4 rsp+1 rip=c-8", "16 rsp+2 rip=c-8"});
}

TEST(Interpreter, SetLoc) {
  Bytes instructions{0x01};
  instructions.u64(kStart + 16).add({0x0e, 16, 0x41, 0x0e, 24, 0x01}).u64(kStart + 99).add({0x0e, 32});
  expect_rows({instructions},
              {"0 rsp+8 rip=c-8", "16 rsp+16 rip=c-8", "17 rsp+24 rip=c-8", "99 rsp+32 rip=c-8"});
}

TEST(Interpreter, SetLocRelativeToItself) {
  // CIE of 4 + 4 + 3 + "zR" + ... bytes: the operand's address is known only once it is built.
  SectionBuilder builder;
  const uint64_t cie = builder.cie(DW_EH_PE_pcrel | DW_EH_PE_sdata4);
  const uint64_t operand = SectionBuilder::kAddress + builder.position() + 4 + 4 + 8 + 1 + 1;
  expect_rows({Bytes{0x01}.u32(static_cast<uint32_t>(kStart + 16 - operand)).add({0x0e, 16}), 100,
               usual_initial(), DW_EH_PE_pcrel | DW_EH_PE_sdata4},
              {"0 rsp+8 rip=c-8", "16 rsp+16 rip=c-8"});
  EXPECT_EQ(0u, cie);
}

TEST(Interpreter, SetLocBackwards) {
  const Ran ran = run({Bytes{0x48, 0x0e, 16, 0x01}.u64(kStart + 4).add({0x0e, 24})});
  EXPECT_FALSE(ran.whole);
  EXPECT_EQ(1u, ran.defects.bad_instruction);
  EXPECT_EQ(std::vector<std::string>{"0 rsp+8 rip=c-8"}, ran.rows);
  EXPECT_EQ(8u, ran.end);
}

TEST(Interpreter, RowsOfNoLengthAreNotReported) {
  expect_rows({{0x0e, 16, 0x40, 0x0e, 24, 0x02, 0, 0x0e, 32, 0x41}},
              {"0 rsp+32 rip=c-8", "1 rsp+32 rip=c-8"});
}

TEST(Interpreter, RowsThatChangeNothingAreReported) {
  expect_rows({{0x41, 0x41}}, {"0 rsp+8 rip=c-8", "1 rsp+8 rip=c-8", "2 rsp+8 rip=c-8"});
}

TEST(Interpreter, RowsAtOrBehindTheEndAreNotReported) {
  expect_rows({{0x44, 0x0e, 16, 0x46, 0x0e, 24, 0x41, 0x0e, 32}, 10},
              {"0 rsp+8 rip=c-8", "4 rsp+16 rip=c-8"});
  expect_rows({{0x7f, 0x0e, 16}, 10}, {"0 rsp+8 rip=c-8"});
  // Advances that would wrap around.
  expect_rows({Bytes{0x44, 0x0e, 16, 0x1d}.u64(UINT64_MAX).add({0x0e, 24}), 10},
              {"0 rsp+8 rip=c-8", "4 rsp+16 rip=c-8"});
  expect_rows({Bytes{0x41, 0x0e, 16, 0x1d}.u64(UINT64_MAX / 2).add({0x0e, 24}), 10, usual_initial(), 0, 4},
              {"0 rsp+8 rip=c-8", "4 rsp+16 rip=c-8"});
}

TEST(Interpreter, IgnoredInstructions) {
  expect_row({0, 0x2e, 0x90, 1, 0x2d, 0x0e, 16, 0, 0}, "rsp+16 rip=c-8");
}

TEST(Interpreter, RegistersBeyondTheRowAreIgnored) {
  expect_row({0x91, 1,    0x05, 0x80, 2,    1,  0x08, 17,   0x07, 0xff, 0xff,
              3,    0x06, 99,   0xd1, 0x09, 60, 1,    0x10, 40,   1,    0x50},
             "rsp+8 rip=c-8");
}

TEST(Interpreter, CfaInARegisterBeyondTheRow) {
  for (const Bytes& cfa :
       {Bytes{0x0c, 40, 16}, Bytes{0x0d, 40}, Bytes{0x12, 40, 2}, Bytes{0x0c, 0x87, 2, 16}}) {
    Bytes instructions = cfa;
    const Ran ran = run({instructions.add({0x41, 0x0e, 16, 0x41, 0x0d, 7})});
    EXPECT_TRUE(ran.whole);
    EXPECT_EQ(1u, ran.defects.bad_register);
    EXPECT_EQ(1u, ran.defects.total());
    EXPECT_EQ((std::vector<std::string>{"0 ? rip=c-8", "1 ? rip=c-8", "2 rsp+16 rip=c-8"}), ran.rows);
  }
}

TEST(Interpreter, CieWithoutCfa) { expect_rows({{0x41, 0x0c, 7, 8}, 100, {}}, {"0 ?", "1 rsp+8"}); }

TEST(Interpreter, UnknownInstructionsEndTheRows) {
  for (const int opcode : {0x17, 0x18, 0x1c, 0x1e, 0x2c, 0x30, 0x3f}) {
    const Ran ran =
        run({Bytes{0x44, 0x0e, 16, 0x44, 0x0e, 24}.u8(static_cast<uint8_t>(opcode)).add({0x44, 0x0e, 32})});
    EXPECT_FALSE(ran.whole) << opcode;
    EXPECT_EQ(8u, ran.end) << opcode;
    EXPECT_EQ(1u, ran.defects.bad_instruction) << opcode;
    EXPECT_EQ(1u, ran.defects.total()) << opcode;
    EXPECT_EQ((std::vector<std::string>{"0 rsp+8 rip=c-8", "4 rsp+16 rip=c-8"}), ran.rows) << opcode;
  }
}

TEST(Interpreter, OperandsPastTheEnd) {
  const Bytes cases[] = {
      {0x02},
      {0x03, 1},
      {0x04, 1, 1, 1},
      {0x1d, 1, 1, 1, 1, 1, 1, 1},
      {0x01, 1, 1, 1, 1, 1, 1, 1},
      {0x83},
      {0x83, 0x80},
      {0x05},
      {0x05, 3},
      {0x06},
      {0x07},
      {0x08},
      {0x09, 3},
      {0x0c, 7},
      {0x0c},
      {0x0d},
      {0x0e},
      {0x0f},
      {0x0f, 2, 0x50},
      {0x10, 3},
      {0x10, 3, 1},
      {0x11, 3},
      {0x12, 7},
      {0x13},
      {0x14, 3},
      {0x15, 3, 0x80},
      {0x16, 3, 2, 0},
      {0x2e},
      {0x2f, 3},
      {0x0f, 0xff, 0xff, 0xff, 0xff, 0x7f},
      {0x10, 3, 0xff, 0xff, 0xff, 0xff, 0x7f},
      {0x16, 3, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1},
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    const Ran ran = run({Bytes{0x44}.add(cases[i])});
    EXPECT_FALSE(ran.whole) << i;
    EXPECT_EQ(4u, ran.end) << i;
    EXPECT_EQ(1u, ran.defects.bad_instruction) << i;
    EXPECT_EQ(1u, ran.defects.total()) << i;
    EXPECT_EQ(std::vector<std::string>{"0 rsp+8 rip=c-8"}, ran.rows) << i;
  }
}

TEST(Interpreter, RestoreStateWithoutRemember) {
  const Ran ran = run({{0x44, 0x0a, 0x0b, 0x0b, 0x44}});
  EXPECT_FALSE(ran.whole);
  EXPECT_EQ(4u, ran.end);
  EXPECT_EQ(1u, ran.defects.stack_overflow);
  EXPECT_EQ(1u, ran.rows.size());
}

TEST(Interpreter, RememberTooDeep) {
  Bytes deep;
  for (unsigned i = 0; i < kRememberDepth; ++i) deep.u8(0x0a);
  Bytes too_deep = deep;
  too_deep.u8(0x0a).u8(0x41);
  expect_rows({deep.u8(0x41)}, {"0 rsp+8 rip=c-8", "1 rsp+8 rip=c-8"});
  const Ran ran = run({too_deep});
  EXPECT_FALSE(ran.whole);
  EXPECT_EQ(0u, ran.end);
  EXPECT_EQ(1u, ran.defects.stack_overflow);
  EXPECT_TRUE(ran.rows.empty());
}

TEST(Interpreter, DefectsInTheCie) {
  const Bytes cases[] = {{0x3f}, {0x41}, {0x0b}, {0x0c, 7}};
  for (size_t i = 0; i < std::size(cases); ++i) {
    const Ran ran = run({{0x41, 0x0e, 16}, 100, cases[i]});
    EXPECT_FALSE(ran.whole) << i;
    EXPECT_EQ(0u, ran.end) << i;
    EXPECT_EQ(1u, ran.defects.total()) << i;  // once an FDE
    EXPECT_TRUE(ran.rows.empty()) << i;
  }
  const Ran ran = run({{0x41, 0x0c, 7, 16}, 100, {0x0c, 40, 8}});
  EXPECT_TRUE(ran.whole);
  EXPECT_EQ(1u, ran.defects.bad_register);
  EXPECT_EQ((std::vector<std::string>{"0 ?", "1 rsp+16"}), ran.rows);
}

// What a CIE remembered is no FDE's to restore.
TEST(Interpreter, StatesOfTheCieEndWithIt) {
  const Ran ran = run({{0x0b}, 100, {0x0c, 7, 8, 0x0a}});
  EXPECT_EQ(1u, ran.defects.stack_overflow);
}

TEST(Interpreter, Aarch64) {
  const Bytes initial{0x0c, 31, 0};
  expect_rows<Aarch64>(
      {{0x2d, 0x41, 0x0e, 32, 0x9d, 4, 0x9e, 3, 0x05, 72, 2, 0x2c, 0x41, 0x09, 30, 17}, 16, initial, 0, 4},
      {"0 sp+0", "4 sp+32 x29=c-32 x30=c-24 v8=c-16", "8 sp+32 x29=c-32 x30=x17 v8=c-16"});
}

TEST(Interpreter, AlternatingCies) {
  SectionBuilder builder;
  const uint64_t one = builder.cie();
  const uint64_t other = builder.cie(0, {0x0c, 6, 16, 0x90, 1, 0x86, 2});
  const uint64_t scaled = builder.cie(0, usual_initial(), 2);
  for (int i = 0; i < 3; ++i) {
    builder.fde(one, kStart, 10, {0x41, 0x83, 2});
    builder.fde(other, kStart, 10, {0x41, 0x07, 16, 0x07, 6});
    builder.fde(scaled, kStart, 10, {0x41, 0x83, 3});
  }
  const Section section = builder.section();
  Reader reader(section);
  Interpreter interpreter(reader.defects());
  std::vector<std::string> rows;
  for (Fde fde; reader.next(fde);) {
    EXPECT_TRUE(interpreter.run(section, reader.cies()[fde.cie], fde, [&](uint64_t offset, const Row& row) {
      rows.push_back(text_of(offset, row));
    }));
  }
  const std::vector<std::string> expected{"0 rsp+8 rip=c-8",           "1 rsp+8 rbx=c-16 rip=c-8",
                                          "0 rbp+16 rbp=c-16 rip=c-8", "1 rbp+16 rbp=U rip=U",
                                          "0 rsp+8 rip=c-8",           "2 rsp+8 rbx=c-24 rip=c-8"};
  ASSERT_EQ(18u, rows.size());
  for (size_t i = 0; i < rows.size(); ++i) EXPECT_EQ(expected[i % 6], rows[i]) << i;
}

// A consumer may keep what it made of the registers as long as the version is one that it has seen.
TEST(Interpreter, EqualVersionsMeanEqualRegisters) {
  SectionBuilder builder;
  const uint64_t one = builder.cie();
  const uint64_t other = builder.cie(0, {0x0c, 6, 16, 0x90, 1, 0x86, 2});
  for (const uint64_t cie : {one, one, other, one}) {
    builder.fde(cie, kStart, 50,
                {0x41, 0x0e, 16, 0x41, 0x86, 2, 0x0a, 0x41, 0xc6, 0x41, 0x07, 3, 0x41, 0x0b, 0x41, 0x0e, 8});
  }
  const Section section = builder.section();
  Reader reader(section);
  Interpreter interpreter(reader.defects());
  std::map<uint64_t, std::array<RegisterRule, kRegisters>> seen;
  size_t rows = 0;
  for (Fde fde; reader.next(fde);) {
    interpreter.run(section, reader.cies()[fde.cie], fde, [&](uint64_t, const Row& row) {
      ++rows;
      const auto [place, inserted] = seen.try_emplace(row.registers_version, row.registers);
      EXPECT_EQ(place->second, row.registers);
    });
  }
  EXPECT_EQ(28u, rows);
  EXPECT_LE(seen.size(), 16u);  // rows that change the CFA only, and the CIE's own, share one
}

TEST(Describe, Names) {
  EXPECT_EQ("rip", register_name(16));
  EXPECT_EQ("r17", register_name(17));
  EXPECT_EQ("sp", register_name<Aarch64>(31));
  EXPECT_EQ("x0", register_name<Aarch64>(0));
  EXPECT_EQ("v31", register_name<Aarch64>(95));
  EXPECT_EQ("r34", register_name<Aarch64>(34));
}

}  // namespace
}  // namespace clew::cfi::test
