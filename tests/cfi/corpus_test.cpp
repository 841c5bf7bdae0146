// The row tables and rule facts of the shared corpus: what other unwinders make of the same sections.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "cfi/elf_sections.hpp"

namespace clew::cfi::test {
namespace {

std::string read_text(const std::string& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

// The value of the next "key": ... behind `at`, which moves behind it; all the JSON that these tests need.
std::optional<std::string> next_value(const std::string& json, const std::string& key, size_t& at) {
  const size_t found = json.find('"' + key + "\": ", at);
  if (found == std::string::npos) return std::nullopt;
  size_t begin = found + key.size() + 4;
  const bool quoted = json[begin] == '"';
  if (quoted) ++begin;
  at = json.find_first_of(quoted ? "\"" : ",}", begin);
  return json.substr(begin, at - begin);
}

// One line of a row table; the columns are explained in the corpus' README.
struct TableRow {
  uint64_t pc = 0;
  int cfa_type = 0;
  int fp_type = 0;
  int64_t cfa_offset = 0;
  int64_t fp_offset = 0;
  int64_t lr_offset = 0;

  bool same_rule(const TableRow& other) const {
    return cfa_type == other.cfa_type && fp_type == other.fp_type && cfa_offset == other.cfa_offset &&
           fp_offset == other.fp_offset && lr_offset == other.lr_offset;
  }
};

std::ostream& operator<<(std::ostream& out, const TableRow& row) {
  return out << std::hex << row.pc << std::dec << " cfa " << row.cfa_type << ' ' << row.cfa_offset << " fp "
             << row.fp_type << ' ' << row.fp_offset << " lr " << row.lr_offset;
}

std::vector<TableRow> read_rows(const std::string& path) {
  std::vector<TableRow> rows;
  std::istringstream in(read_text(path));
  for (std::string line; std::getline(in, line);) {
    TableRow row;
    unsigned long pc;
    long cfa_offset, fp_offset, lr_offset = 0;
    const int fields = std::sscanf(
        line.c_str(), "pc: %lx cfa_type: %d rbp_type: %d cfa_offset: %ld rbp_offset: %ldlr_offset: %ld", &pc,
        &row.cfa_type, &row.fp_type, &cfa_offset, &fp_offset, &lr_offset);
    if (fields < 6)
      std::sscanf(line.substr(line.find("rbp_offset: ")).c_str(), "rbp_offset: %*d lr_offset: %ld",
                  &lr_offset);
    EXPECT_GE(fields, 5) << line;
    row.pc = pc;
    row.cfa_offset = cfa_offset;
    row.fp_offset = fp_offset;
    row.lr_offset = lr_offset;
    rows.push_back(row);
  }
  return rows;
}

struct X86Columns {
  using Arch = X86_64;
  static constexpr unsigned kSp = 7, kFp = 6, kRa = 16;
};
struct ArmColumns {
  using Arch = Aarch64;
  static constexpr unsigned kSp = 31, kFp = 29, kRa = 30;
};

// rsp + 8 + (((rip & 15) >= N) << 3), as ld writes it: breg7 8, breg16 0, lit15, and, litN, ge, lit3, shl,
// plus
int64_t plt_form(std::span<const std::byte> expression) {
  const unsigned char form[] = {0x77, 8, 0x80, 0, 0x3f, 0x1a, 0, 0x2a, 0x33, 0x24, 0x22};
  if (expression.size() != sizeof form) return 0;
  for (size_t i = 0; i < sizeof form; ++i) {
    if (i != 6 && expression[i] != std::byte{form[i]}) return 0;
  }
  return expression[6] == std::byte{0x3b} ? 1 : expression[6] == std::byte{0x3a} ? 2 : 0;
}

template <class Columns, class ArchRow>
TableRow table_row(const Section& section, const ArchRow& row) {
  TableRow out;
  switch (row.cfa.kind) {
    case CfaKind::kRegister:
      out.cfa_type = row.cfa.reg == Columns::kFp ? 1 : row.cfa.reg == Columns::kSp ? 2 : 0;
      out.cfa_offset = row.cfa.offset;
      break;
    case CfaKind::kExpression:
      out.cfa_type = 3;
      out.cfa_offset = plt_form(expression_bytes(section, row.cfa));
      break;
    case CfaKind::kUnset:
      ADD_FAILURE() << "a row without CFA";
  }
  const RegisterRule& fp = row.registers[Columns::kFp];
  const RegisterRule& ra = row.registers[Columns::kRa];
  if (fp.kind == RuleKind::kOffset) {
    out.fp_type = 1;
    out.fp_offset = fp.value;
  } else if (fp.kind == RuleKind::kRegister) {
    out.fp_type = 2;
  } else if (fp.kind == RuleKind::kExpression || fp.kind == RuleKind::kValExpression) {
    out.fp_type = 3;
  }
  if (ra.kind == RuleKind::kUndefined) {
    out.fp_type = 4;
    out.fp_offset = 0;
  } else if (Columns::kRa == 30 && ra.kind == RuleKind::kOffset) {
    out.lr_offset = ra.value;
  }
  return out;
}

template <class Columns>
std::vector<TableRow> make_table(const Section& section) {
  Reader reader(section);
  BasicInterpreter<typename Columns::Arch> interpreter(reader.defects());
  std::vector<Fde> fdes;
  for (Fde fde; reader.next(fde);) fdes.push_back(fde);
  std::ranges::sort(fdes, {}, [](const Fde& fde) { return std::pair(fde.start, fde.offset); });

  std::vector<TableRow> all;
  uint64_t end = 0;
  const auto end_marker = [&] {
    TableRow marker;
    marker.pc = end;
    marker.cfa_type = 4;
    all.push_back(marker);
  };
  for (const Fde& fde : fdes) {
    if (end != 0 && fde.start != end) end_marker();
    EXPECT_TRUE(interpreter.run(section, reader.cies()[fde.cie], fde, [&](uint64_t offset, const auto& row) {
      all.push_back(table_row<Columns>(section, row));
      all.back().pc = fde.start + offset;
    }));
    end = fde.start + fde.size;
  }
  end_marker();
  EXPECT_EQ(0u, reader.defects().total());

  std::vector<TableRow> table;
  for (const TableRow& row : all) {
    if (table.empty() || !row.same_rule(table.back())) table.push_back(row);
  }
  return table;
}

// Rows that the corpus lists as wrong upstream: pc to true CFA offset.
std::map<uint64_t, int64_t> exceptions_of(const std::string& folder, const std::string& name) {
  const std::string text = read_text(folder + "/exceptions.json");
  const size_t begin = text.find('"' + name + '"');
  std::map<uint64_t, int64_t> found;
  if (begin == std::string::npos) return found;
  const std::string part = text.substr(begin, text.find(']', begin) - begin);
  for (size_t at = 0; const auto pc = next_value(part, "pc", at);) {
    found[std::stoull(*pc, nullptr, 16)] = std::stoll(next_value(part, "cfa_offset_true", at).value_or("0"));
  }
  return found;
}

class RowTables : public testing::TestWithParam<const char*> {};

TEST_P(RowTables, AgreeRowByRow) {
  if (!shared_folder()) GTEST_SKIP() << "no shared corpus: set CLEW_SHARED";
  const std::string name = GetParam();
  const std::string folder = *shared_folder() + "/corpus/row-tables";
  const auto section = find_section(folder + "/" + name, ".eh_frame");
  ASSERT_TRUE(section);
  std::vector<TableRow> theirs = read_rows(folder + "/" + name + ".rows.txt");
  const auto exceptions = exceptions_of(folder, name);
  EXPECT_EQ(name == "amd64/libc.so.6" ? 4u : 0u, exceptions.size());
  for (TableRow& row : theirs) {
    if (const auto found = exceptions.find(row.pc); found != exceptions.end()) row.cfa_offset = found->second;
  }

  const bool arm = name.starts_with("arm64/");
  const std::vector<TableRow> ours =
      arm ? make_table<ArmColumns>(section->section) : make_table<X86Columns>(section->section);
  ASSERT_EQ(theirs.size(), ours.size());
  for (size_t i = 0; i < ours.size(); ++i) {
    ASSERT_TRUE(ours[i].pc == theirs[i].pc && ours[i].same_rule(theirs[i]))
        << ours[i] << "\n  not " << theirs[i];
  }
}

INSTANTIATE_TEST_SUITE_P(Corpus, RowTables,
                         testing::Values("amd64/basic-cpp", "amd64/basic-cpp-multithreaded-no-fp",
                                         "amd64/basic-cpp-plt", "amd64/basic-cpp-plt-hardened",
                                         "amd64/libc.so.6", "amd64/systemd", "arm64/basic-cpp",
                                         "arm64/basic-cpp-multithreaded-no-fp", "arm64/basic-cpp-plt-pie",
                                         "arm64/libc.so.6"));

struct Found {
  uint64_t start = 0;
  uint64_t end = 0;
  Row row;
  Cie cie;
};

// The row that covers pc.
std::optional<Found> find_row(const Section& section, uint64_t pc) {
  Reader reader(section);
  Interpreter interpreter(reader.defects());
  std::optional<Found> found;
  for (Fde fde; reader.next(fde);) {
    if (pc < fde.start || pc - fde.start >= fde.size) continue;
    const Cie cie = reader.cies()[fde.cie];
    EXPECT_TRUE(interpreter.run(section, cie, fde, [&](uint64_t offset, const Row& row) {
      const uint64_t address = fde.start + offset;
      if (address <= pc) {
        found = {address, fde.start + fde.size, row, cie};
      } else if (found->end > address) {
        found->end = address;
      }
    }));
  }
  return found;
}

TEST(RuleFacts, RowsOfLibpython) {
  if (!shared_folder()) GTEST_SKIP() << "no shared corpus: set CLEW_SHARED";
  const std::string folder = *shared_folder() + "/corpus/rule-facts/";
  const auto section = find_section(folder + "bin/libpython3.8.so.1.0", ".eh_frame");
  ASSERT_TRUE(section);
  const std::string text = read_text(folder + "rows.json");
  size_t count = 0;
  for (size_t at = 0; const auto pc_text = next_value(text, "pc", at); ++count) {
    SCOPED_TRACE(*pc_text);
    const uint64_t pc = std::stoull(*pc_text, nullptr, 16);
    const std::string cfa = next_value(text, "cfa", at).value_or("");
    const std::string fp = next_value(text, "fp", at).value_or("");
    const auto found = find_row(section->section, pc);
    ASSERT_TRUE(found);
    EXPECT_EQ(pc, found->start);
    EXPECT_EQ(cfa, describe_cfa(found->row.cfa));
    EXPECT_EQ("c-8", describe_register(found->row.registers[16]));
    const RegisterRule& rbp = found->row.registers[6];
    if (fp == "unchanged") {
      // Upstream also says so where the slot lies below rsp, popped already.
      const bool below = rbp.kind == RuleKind::kOffset && found->row.cfa.offset + rbp.value < 0;
      EXPECT_TRUE(below || describe_register(rbp) == "u");
    } else {
      EXPECT_EQ("c" + fp.substr(3), describe_register(rbp));  // "CFA-48"
    }
  }
  EXPECT_EQ(9u, count);
}

// lookups.json: the CFA, the bounds and the explicit rules; the others are defaults of an ABI.
TEST(RuleFacts, LookUpsInBothKindsOfSection) {
  if (!shared_folder()) GTEST_SKIP() << "no shared corpus: set CLEW_SHARED";
  const std::string folder = *shared_folder() + "/corpus/rule-facts/bin/";
  for (const char* name : {".eh_frame", ".debug_frame"}) {
    const auto section = find_section(folder + "testfile12", name);
    ASSERT_TRUE(section) << name;
    const auto found = find_row(section->section, 0x9d0);
    ASSERT_TRUE(found) << name;
    EXPECT_EQ(0x9d0u, found->start);
    EXPECT_EQ(0x9d1u, found->end);
    EXPECT_EQ(16u, found->cie.return_register);
    EXPECT_EQ("rsp+8", describe_cfa(found->row.cfa));
    EXPECT_EQ("c-8", describe_register(found->row.registers[16]));
    EXPECT_EQ(uint64_t{1} << 16, found->row.present.to_ulong());
  }
}

// bytes.json: the CIE of DWARF 5 appendix D.6. Of 4-byte addresses, so no Reader gives FDEs of it.
TEST(RuleFacts, CieOfTheDwarfDocument) {
  if (!shared_folder()) GTEST_SKIP() << "no shared corpus: set CLEW_SHARED";
  const std::string text = read_text(*shared_folder() + "/corpus/rule-facts/bytes.json");
  size_t at = 0;
  std::vector<std::byte> bytes;
  std::istringstream in(next_value(text, "bytes", at).value_or(""));
  for (unsigned value; in >> std::hex >> value;) bytes.push_back(static_cast<std::byte>(value));
  ASSERT_EQ(0x28u, bytes.size());

  Section section;
  section.bytes = bytes;
  section.debug_frame = true;
  const auto cie = read_cie(section, 0);
  ASSERT_TRUE(cie);
  EXPECT_EQ(4, cie->version);
  EXPECT_EQ(4, cie->address_size);
  EXPECT_EQ(0, cie->segment_size);
  EXPECT_EQ(4u, cie->code_alignment);
  EXPECT_EQ(-4, cie->data_alignment);
  EXPECT_EQ(8u, cie->return_register);

  Defects defects;
  Interpreter interpreter(defects);
  Fde fde;
  fde.size = 1;
  ASSERT_TRUE(interpreter.run(section, *cie, fde, [](uint64_t, const Row&) {}));
  const Row& row = interpreter.initial();
  EXPECT_EQ("rsp+0", describe_cfa(row.cfa));                                    // register 7
  const char* const rules[] = {"s", "U", "U", "U", "s", "s", "s", "s", "rdx"};  // 8 is held in 1
  for (unsigned reg = 0; reg < std::size(rules); ++reg) {
    EXPECT_EQ(rules[reg], describe_register(row.registers[reg])) << reg;
  }
  EXPECT_EQ(0u, defects.total());
}

}  // namespace
}  // namespace clew::cfi::test
