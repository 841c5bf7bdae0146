// Every row that readelf prints of real binaries is what the compact table answers, registers included.
#include <gtest/gtest.h>
#include <unistd.h>
#include <algorithm>

#include <map>

#include "cfi/readelf_rows.hpp"
#include "core/table.h"
#include "table/table.hpp"

namespace clew::table {
namespace {

/// readelf's notation of the registers that a rule restores, as the table says them.
std::map<std::string, std::string> cells_of(const Table& table, clew_rule rule) {
  static constexpr const char* kNames[] = {"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp", "r8",
                                           "r9",  "r10", "r11", "r12", "r13", "r14", "r15", "ra"};
  const auto at = [](int64_t offset) {
    return "c" + std::string(offset < 0 ? "" : "+") + std::to_string(offset);
  };
  std::map<std::string, std::string> cells;
  const RuleText text = describe(table, rule);
  const uint32_t kind = clew_rule_kind(rule);
  cells["CFA"] = kind == CLEW_CFA_REG
                     ? kNames[clew_rule_register(rule)] + text.cfa.substr(text.cfa.find_first_of("+-"))
                     : "exp";
  cells["ra"] = kind == CLEW_CFA_ROOT ? "u" : "c-8";
  const uint32_t bp = clew_rule_bp(rule);
  if (bp != CLEW_BP_UNCHANGED && bp != CLEW_BP_IN_SAVES) cells["rbp"] = at(-8 * static_cast<int64_t>(bp));
  if (clew_rule_kind(rule) == CLEW_CFA_SIGFRAME)  // the one rule for what seventeen expressions say
    for (const char* name : kNames) cells[name] = "exp";
  const clew_table_header& header = *table.header();
  if (const uint32_t saves = clew_rule_saves(rule)) {
    const uint64_t list = clew_table_u64(nullptr, &header, header.saves_at + saves * 8);
    for (uint32_t i = 1; i <= (list & CLEW_SAVES_COUNT_MASK); ++i) {
      const clew_save save = clew_table_u64(nullptr, &header, header.saves_at + (saves + i) * 8);
      const int32_t offset = clew_save_offset(save);
      std::string& cell = cells[kNames[clew_save_register(save)]];
      switch (clew_save_kind_of(save)) {
        case CLEW_SAVE_AT_CFA:
          cell = at(offset);
          break;
        case CLEW_SAVE_CFA_PLUS:
          cell = "v" + at(offset).substr(1);
          break;
        case CLEW_SAVE_REGISTER:
          cell = kNames[offset];
          break;
        case CLEW_SAVE_EXPR_AT:
          cell = "exp";
          break;
        case CLEW_SAVE_EXPR_VALUE:
          cell = "vexp";
          break;
        default:
          cell = "u";
          break;
      }
    }
  }
  return cells;
}

/// `mended` of the rows are not what the section says, because that is wrong.
void compare(const std::string& path, double max_size, size_t mended = 0) {
  if (access(path.c_str(), R_OK) != 0) GTEST_SKIP() << path << " is not here";
  auto image = elf::Image::open(path);
  ASSERT_TRUE(image) << image.error();
  Report report;
  auto table = compile(*image, &report);
  ASSERT_TRUE(table) << table.error();
  for (const auto& [what, number] : report.defects) ADD_FAILURE() << path << ": " << what << ": " << number;

  const auto dump = cfi::test::run_readelf(path);
  size_t rows = 0, wrong = 0;
  for (const auto& fde : dump.at(".eh_frame")) {
    for (size_t i = 0; i < fde.rows.size(); ++i) {
      const uint64_t address = fde.rows[i].address;
      const uint64_t next = i + 1 < fde.rows.size() ? fde.rows[i + 1].address : fde.end;
      if (address >= fde.end || next <= address) continue;  // rows that hold nowhere
      auto expected = fde.rows[i].cells;
      const bool root = expected["ra"] == "u" || expected["ra"].empty();
      for (auto cell = expected.begin(); cell != expected.end();) {
        const bool unsaid = cell->first != "ra" && (cell->second == "u" || cell->second == "s");
        cell = unsaid ? expected.erase(cell) : std::next(cell);
      }
      for (const uint64_t pc : {address, std::min(next, fde.end) - 1}) {
        const clew_rule rule = (*table)->lookup(pc);
        ++rows;
        // Where the return address is undefined the table keeps nothing else.
        const bool right = root
                               ? clew_rule_kind(rule) == CLEW_CFA_ROOT
                               : clew_rule_kind(rule) != CLEW_CFA_NONE && cells_of(**table, rule) == expected;
        if (!right && ++wrong > mended && wrong < mended + 10) {
          std::string ours, theirs;
          for (const auto& [name, cell] : cells_of(**table, rule)) ours += name + "=" + cell + " ";
          for (const auto& [name, cell] : expected) theirs += name + "=" + cell + " ";
          ADD_FAILURE() << path << " " << std::hex << pc << ": " << ours << " instead of " << theirs;
        }
      }
    }
  }
  EXPECT_EQ(wrong, mended);
  EXPECT_GT(rows, 100u);
  EXPECT_LE(static_cast<double>(report.table_bytes), max_size * static_cast<double>(report.eh_frame_bytes));
}

// Sizes: at most 0.40 of .eh_frame, but for small files, where the header and the dictionary weigh more.
// Both ends of makecontext's trampoline, which nobody called.
TEST(Compile, EveryRowOfLibc) { compare("/lib/x86_64-linux-gnu/libc.so.6", 0.40, 2); }
TEST(Compile, EveryRowOfLibcrypto) { compare("/lib/x86_64-linux-gnu/libcrypto.so.3", 0.40); }
TEST(Compile, EveryRowOfLibstdcxx) { compare("/lib/x86_64-linux-gnu/libstdc++.so.6", 0.40); }
TEST(Compile, EveryRowOfTheDynamicLinker) { compare("/lib64/ld-linux-x86-64.so.2", 0.70); }
TEST(Compile, EveryRowOfBash) { compare("/bin/bash", 0.45); }

TEST(Compile, DumpAgreesWithLookup) {
  auto image = elf::Image::open("/lib/x86_64-linux-gnu/libc.so.6");
  ASSERT_TRUE(image);
  auto table = compile(*image);
  ASSERT_TRUE(table);
  const auto rows = dump(**table);
  ASSERT_GT(rows.size(), 10000u);
  for (size_t i = 0; i < rows.size(); ++i) {
    ASSERT_EQ((*table)->lookup(rows[i].address), rows[i].rule) << std::hex << rows[i].address;
    if (i + 1 < rows.size()) {
      ASSERT_LT(rows[i].address, rows[i + 1].address);
      ASSERT_EQ((*table)->lookup(rows[i + 1].address - 1), rows[i].rule)
          << std::hex << rows[i + 1].address - 1;
    }
  }
}

TEST(Compile, TheProgramsEntryIsTheRoot) {
  for (const char* path : {"/bin/bash", "/bin/ls", "/lib64/ld-linux-x86-64.so.2"}) {
    auto image = elf::Image::open(path);
    ASSERT_TRUE(image) << path;
    auto table = compile(*image);
    ASSERT_TRUE(table);
    EXPECT_EQ(clew_rule_kind((*table)->lookup(image->entry())), static_cast<uint32_t>(CLEW_CFA_ROOT)) << path;
  }
}

TEST(Compile, ASignalTrampolineIsOneRule) {
  auto image = elf::Image::open("/lib/x86_64-linux-gnu/libc.so.6");
  if (!image) GTEST_SKIP() << image.error();
  auto table = compile(*image);
  ASSERT_TRUE(table) << table.error();
  // __restore_rt, the one function of libc whose registers all lie in a struct ucontext.
  const auto rows = dump(**table);
  EXPECT_EQ(std::ranges::count_if(rows,
                                  [](const DumpRow& row) {
                                    return clew_rule_kind(row.rule) == CLEW_CFA_SIGFRAME &&
                                           clew_rule_offset(row.rule) == 0;
                                  }),
            1);
}

}  // namespace
}  // namespace clew::table
