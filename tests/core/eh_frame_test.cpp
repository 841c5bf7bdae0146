// .eh_frame read in place against the compiled table of the same file, whose rows readelf has judged
// (tests/table): at each row both rules must step random registers over the same memory to the same caller.
#include <elf.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>

#include "cfi/cfi.hpp"
#include "elf/image.hpp"
#include "table/table.hpp"

struct clew_code;

namespace clew::test {

static uint64_t scramble(uint64_t value) {
  value = (value ^ value >> 31) * 0x9e3779b97f4a7c15u;
  return value ^ value >> 29;
}

/// Any address of data holds a word made from the address; code comes from a file, all but `missing`.
struct CodeInFile {
  const elf::Image* image = nullptr;
  uint64_t missing = UINT64_MAX;
  uint64_t reads = 0;

  bool read_code(uint64_t address, void* out, size_t size) {
    ++reads;
    if (missing - address < size) return false;
    return image->read(address, {static_cast<std::byte*>(out), size}) == size;
  }
};

static bool read_u64(CodeInFile*, uint64_t address, uint64_t* out) {
  *out = scramble(address);
  return true;
}

}  // namespace clew::test

#define CLEW_CONTEXT clew::test::CodeInFile*
#define CLEW_READ_U64(context, address, out) clew::test::read_u64(context, address, out)
#define CLEW_READ_CODE(context, address, out, size) (context)->read_code(address, out, size)
#include "core/eh_frame.h"
#include "core/step.h"

namespace clew::test {
namespace {

struct Stepped {
  uint32_t result;
  clew_state state;
  bool signal;
};

Stepped step(CodeInFile& memory, const clew_table_header* header, clew_rule rule, uint64_t address) {
  Stepped out{0, {}, false};
  for (unsigned reg = 0; reg < CLEW_REGISTERS; ++reg) out.state.value[reg] = scramble(address + reg) & ~7u;
  out.state.value[CLEW_RIP] = address;
  out.state.known = (1u << CLEW_REGISTERS) - 1;
  clew_step step{true, 0, false, false, false, false};
  out.result = clew_step_by_rule(&memory, header, rule, &out.state, &step);
  out.signal = step.signal;
  return out;
}

uint64_t header_of(const elf::Image& image) {
  for (const elf::Segment& segment : image.segments())
    if (segment.type == PT_GNU_EH_FRAME) return segment.vaddr;
  return 0;
}

/// Where FDEs begin and end.
std::map<uint64_t, uint64_t> functions_of(elf::Image& image) {
  std::map<uint64_t, uint64_t> functions;
  const elf::Section* section = image.section(".eh_frame");
  if (!section) return functions;
  cfi::Section source;
  source.bytes = image.section_bytes(*section);
  source.address = section->address;
  cfi::Reader reader(source);
  for (cfi::Fde fde; reader.next(fde);) functions[fde.start] = fde.start + fde.size;
  return functions;
}

/// Whether instruction analysis made the rule, or put it in front of what .eh_frame says.
bool is_analysed(const table::Table& table, clew_rule rule) {
  const clew_table_header* header = table.header();
  const uint32_t saves = clew_rule_saves(rule);
  if (clew_rule_kind(rule) == CLEW_CFA_SIGFRAME) return true;
  if (saves == 0) return false;
  const uint64_t list = clew_table_u64(nullptr, header, header->saves_at + saves * 8);
  return (list & (CLEW_SAVES_ANALYSED | CLEW_SAVES_EXACT)) != 0;
}

class InPlace : public testing::TestWithParam<std::string> {};

TEST_P(InPlace, StepsAsTheCompiledTable) {
  if (!std::filesystem::exists(GetParam())) GTEST_SKIP() << GetParam() << " is not here";
  auto image = elf::Image::open(GetParam());
  ASSERT_TRUE(image);
  const uint64_t header = header_of(*image);
  ASSERT_NE(header, 0u);
  auto table = table::compile(*image);
  ASSERT_TRUE(table);
  CodeInFile memory{&*image};
  const auto rows = table::dump(**table);
  const auto functions = functions_of(*image);
  size_t compared = 0, nothing = 0, different = 0;
  std::string first;
  for (size_t i = 0; i < rows.size(); ++i) {
    const clew_rule expected = rows[i].rule;
    if (is_analysed(**table, expected)) continue;
    const auto function = functions.upper_bound(rows[i].address);
    if (function == functions.begin() || rows[i].address >= std::prev(function)->second) continue;
    clew_one_rule one;
    const clew_rule got = clew_eh_frame_rule(&memory, header, rows[i].address, &one);
    if (clew_rule_kind(expected) == CLEW_CFA_NONE) continue;
    ++compared;
    if (got == 0) {
      ++nothing;
      if (first.empty()) first = "nothing at " + std::to_string(rows[i].address);
      continue;
    }
    const Stepped a = step(memory, (*table)->header(), expected, rows[i].address);
    const Stepped b = step(memory, &one.header, got, rows[i].address);
    bool equal = a.result == b.result;
    if (a.result == CLEW_CONTINUE) {
      equal &= a.signal == b.signal && a.state.known == b.state.known;
      for (unsigned reg = 0; reg < CLEW_REGISTERS; ++reg)
        equal &= !clew_known(&a.state, reg) || a.state.value[reg] == b.state.value[reg];
    }
    different += equal ? 0 : 1;
    if (!equal && first.empty()) first = "different at " + std::to_string(rows[i].address);
  }
  EXPECT_GT(compared, 5u);
  EXPECT_EQ(nothing, 0u) << "of " << compared << "; " << first;
  EXPECT_EQ(different, 0u) << "of " << compared << "; " << first;
}

const std::string kPrograms = CLEW_BINARY_DIR "/tests/programs/debian/";
INSTANTIATE_TEST_SUITE_P(Files, InPlace,
                         testing::Values("/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2",
                                         "/usr/lib/x86_64-linux-gnu/libcrypto.so.3",
                                         "/usr/lib/x86_64-linux-gnu/libstdc++.so.6", "/usr/bin/perl",
                                         kPrograms + "asm", kPrograms + "expr", kPrograms + "drap",
                                         kPrograms + "throw", kPrograms + "coroasm"),
                         [](const auto& test) {
                           std::string name = test.param.substr(test.param.rfind('/') + 1);
                           for (char& c : name)
                             if (!isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

TEST(InPlace, NothingOutsideFunctions) {
  auto image = elf::Image::open("/lib/x86_64-linux-gnu/libc.so.6");
  ASSERT_TRUE(image);
  CodeInFile memory{&*image};
  const uint64_t header = header_of(*image);
  clew_one_rule one;
  EXPECT_EQ(clew_eh_frame_rule(&memory, header, 0, &one), 0u);
  EXPECT_EQ(clew_eh_frame_rule(&memory, header, UINT64_MAX, &one), 0u);
  EXPECT_EQ(clew_eh_frame_rule(&memory, header + 1, 0x50000, &one), 0u);  // no header there
}

TEST(InPlace, NothingWhereAReadFails) {
  auto image = elf::Image::open("/lib/x86_64-linux-gnu/libc.so.6");
  ASSERT_TRUE(image);
  const uint64_t header = header_of(*image);
  auto table = table::compile(*image);
  ASSERT_TRUE(table);
  const uint64_t address = table::dump(**table)[1000].address;
  CodeInFile memory{&*image};
  clew_one_rule one;
  const uint64_t fde = clew_eh_find(&memory, header, address);
  ASSERT_NE(clew_eh_frame_rule(&memory, header, address, &one), 0u);
  EXPECT_LT(memory.reads, 40u);  // a binary search and two entries
  for (const uint64_t missing : {header, header + 8, fde, fde + 4, fde + 8, fde + 16}) {
    memory.missing = missing;
    EXPECT_EQ(clew_eh_frame_rule(&memory, header, address, &one), 0u) << missing - fde;
  }
}

/// Sections made by hand: a list of one function at 0x1000, its CIE and FDE with these instructions.
struct Handmade {
  std::vector<uint8_t> bytes;

  void u32(uint32_t value) {
    for (int i = 0; i < 4; ++i) bytes.push_back(static_cast<uint8_t>(value >> 8 * i));
  }
  Handmade(const std::vector<uint8_t>& instructions, uint32_t fde_length = 0) {
    bytes = {1, 0xff, 0x03, 0x3b};  // no pointer to .eh_frame, udata4 count, datarel sdata4 list
    u32(1);
    u32(0x1000 - kHeader);  // the function
    u32(16 + 20);           // its FDE
    u32(16);  // CIE: length, id, version 1, "", alignments 1 and -8, register 16, def_cfa rsp+8, ra at c-8
    u32(0);
    for (uint8_t byte : {1, 0, 1, 0x78, 16, 0x0c, 7, 8, 0x90, 1, 0, 0}) bytes.push_back(byte);
    u32(fde_length ? fde_length : static_cast<uint32_t>(20 + instructions.size()));
    u32(24);
    for (uint64_t word : {uint64_t{0x1000}, uint64_t{0x100}})
      for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<uint8_t>(word >> 8 * i));
    bytes.insert(bytes.end(), instructions.begin(), instructions.end());
  }
  static constexpr uint32_t kHeader = 0x800;
};

/// The rule at an offset of the function.
clew_rule rule_at(const Handmade& made, uint64_t offset, clew_one_rule& one) {
  std::vector<std::byte> file(0x4000);
  // A file of one segment at address 0: what is left is where the header lies.
  Elf64_Ehdr elf{};
  std::memcpy(elf.e_ident,
              "\x7f"
              "ELF\2\1\1",
              7);
  elf.e_type = ET_DYN;
  elf.e_machine = EM_X86_64;
  elf.e_version = 1;
  elf.e_ehsize = sizeof elf;
  elf.e_phoff = sizeof elf;
  elf.e_phentsize = sizeof(Elf64_Phdr);
  elf.e_phnum = 1;
  Elf64_Phdr load{};
  load.p_type = PT_LOAD;
  load.p_flags = PF_R | PF_X;
  load.p_filesz = load.p_memsz = file.size();
  load.p_align = 4096;
  std::memcpy(file.data(), &elf, sizeof elf);
  std::memcpy(file.data() + sizeof elf, &load, sizeof load);
  std::memcpy(file.data() + Handmade::kHeader, made.bytes.data(), made.bytes.size());
  auto image = elf::Image::from_bytes(file, "made by hand");
  EXPECT_TRUE(image);
  CodeInFile memory{&*image};
  return clew_eh_frame_rule(&memory, Handmade::kHeader, 0x1000 + offset, &one);
}

TEST(InPlace, RowsBeginWhereTheyAdvanceTo) {
  clew_one_rule one;
  const Handmade made({0x0e, 16, 0x41, 0x0e, 32, 0x02, 0x10, 0x0e, 8});  // +0: 16, +1: 32, +17: 8
  EXPECT_EQ(clew_rule_offset(rule_at(made, 0, one)), 16);
  EXPECT_EQ(clew_rule_offset(rule_at(made, 1, one)), 32);
  EXPECT_EQ(clew_rule_offset(rule_at(made, 16, one)), 32);
  EXPECT_EQ(clew_rule_offset(rule_at(made, 17, one)), 8);
  EXPECT_EQ(clew_rule_offset(rule_at(made, 0xff, one)), 8);
  EXPECT_EQ(rule_at(made, 0x100, one), 0u);
}

TEST(InPlace, StatesAreRememberedAndRestored) {
  clew_one_rule one;
  const Handmade made({0x0a, 0x0e, 64, 0x86, 2, 0x41, 0x0b, 0x41, 0xc0 | 7});
  EXPECT_EQ(rule_at(made, 0, one), clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 64, 2, 0, false));
  EXPECT_EQ(rule_at(made, 1, one), clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, 0, 0, false));
}

TEST(InPlace, WhatARuleCannotSayIsNoRule) {
  clew_one_rule one;
  EXPECT_EQ(rule_at(Handmade({0x0c, 40, 8}), 0, one), 0u);  // CFA in a register that nobody follows
  EXPECT_EQ(rule_at(Handmade({0x3f}), 0, one), 0u);         // no such instruction
  EXPECT_EQ(rule_at(Handmade({0x0b}), 0, one), 0u);         // restores what was not remembered
  EXPECT_EQ(rule_at(Handmade({0x0a, 0x0a, 0x0a, 0x0a, 0x0a}), 0, one), 0u);  // deeper than is kept
  EXPECT_EQ(rule_at(Handmade({0x0f, 200, 1}), 0, one), 0u);                  // an expression past the end
  EXPECT_EQ(rule_at(Handmade({0x08, 16}), 0, one), 0u);      // the return address is where it was
  EXPECT_EQ(rule_at(Handmade({}, 0x7fffffff), 0, one), 0u);  // an entry longer than any
  EXPECT_EQ(rule_at(Handmade({}, 3), 0, one), 0u);
  EXPECT_EQ(clew_rule_kind(rule_at(Handmade({0x07, 16}), 0, one)), static_cast<unsigned>(CLEW_CFA_ROOT));
}

}  // namespace
}  // namespace clew::test
