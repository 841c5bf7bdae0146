#include "cfi/readelf_rows.hpp"

#include <cinttypes>
#include <cstdio>
#include <sstream>

namespace clew::cfi::test {
namespace {

std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  std::vector<std::string> words;
  for (std::string word; in >> word;) {
    if (word.front() == '(' && !words.empty()) {
      words.back() = word.substr(1, word.size() - 2);  // a register as value: "r0 (rax)"
    } else {
      words.push_back(word);
    }
  }
  return words;
}

template <class Arch>
std::string column_name(const Cie& cie, unsigned reg) {
  return reg == cie.return_register ? "ra" : register_name<Arch>(reg);
}

template <class Arch>
Cells cells_of(const Cie& cie, const BasicRow<Arch>& row) {
  Cells cells;
  cells["CFA"] = describe_cfa<Arch>(row.cfa);
  for (unsigned reg = 0; reg < Arch::kRegisters; ++reg) {
    std::string rule = describe_register<Arch>(row.registers[reg]);
    if (rule == "U") rule = "u";  // readelf does not tell undefined from unspecified
    if (rule != "u") cells[column_name<Arch>(cie, reg)] = rule;
  }
  return cells;
}

}  // namespace

// Blocks: a line with CIE or FDE, then (unless an FDE adds nothing to its CIE) a line of column names and the
// rows.
ReadelfDump parse_readelf(std::istream& text) {
  ReadelfDump dump;
  std::vector<ReadelfFde>* section = nullptr;
  std::map<uint64_t, Cells> cie_rows;
  std::vector<std::string> columns;
  bool in_cie = false;
  uint64_t cie = 0;
  const auto finish = [&] {
    if (section == nullptr || section->empty() || in_cie) return;
    ReadelfFde& fde = section->back();
    if (fde.rows.empty()) fde.rows.push_back({fde.start, cie_rows[cie]});
  };
  for (std::string line; std::getline(text, line);) {
    if (line.rfind("Contents of the ", 0) == 0) {
      finish();
      section = &dump[line.substr(16, line.find(' ', 16) - 16)];
      cie_rows.clear();
      in_cie = true;
      continue;
    }
    const std::vector<std::string> words = words_of(line);
    if (section == nullptr || words.size() < 2 || words[1] == "ZERO") continue;  // a terminator
    if (words.size() > 3 && words[3] == "CIE") {
      finish();
      in_cie = true;
      cie = std::stoull(words[0], nullptr, 16);
    } else if (words.size() > 5 && words[3] == "FDE") {
      finish();
      in_cie = false;
      ReadelfFde fde{};
      fde.offset = std::stoull(words[0], nullptr, 16);
      cie = std::stoull(words[4].substr(4), nullptr, 16);
      EXPECT_EQ(2, std::sscanf(words[5].c_str(), "pc=%" SCNx64 "..%" SCNx64, &fde.start, &fde.end)) << line;
      section->push_back(fde);
    } else if (words[0] == "LOC") {
      columns = words;
    } else {
      EXPECT_EQ(columns.size(), words.size()) << line;
      Cells cells;
      for (size_t i = 1; i < words.size() && i < columns.size(); ++i) {
        if (words[i] != "u") cells[columns[i]] = words[i];
      }
      if (in_cie) {
        cie_rows[cie] = cells;
      } else {
        section->back().rows.push_back({std::stoull(words[0], nullptr, 16), cells});
      }
    }
  }
  finish();
  return dump;
}

ReadelfDump run_readelf(const std::string& path) {
  const std::string command =
      "LC_ALL=C readelf --debug-dump=no-follow-links,frames-interp -W '" + path + "' 2>/dev/null";
  std::FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return {};
  std::string text;
  char buffer[65536];
  for (size_t got; (got = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, got);
  pclose(pipe);
  std::istringstream in(text);
  return parse_readelf(in);
}

template <class Arch>
Compared compare_with_readelf(const OwnedSection& section, const std::vector<ReadelfFde>& expected) {
  Compared compared;
  Reader reader(section.section);
  BasicInterpreter<Arch> interpreter(reader.defects());
  Fde fde;
  size_t index = 0;
  for (; reader.next(fde); ++index) {
    while (index < expected.size() && expected[index].start == expected[index].end)
      ++index;  // an FDE of no code
    if (index == expected.size()) {
      ADD_FAILURE() << "FDE at " << fde.offset << " is not in readelf's list";
      return compared;
    }
    const ReadelfFde& other = expected[index];
    ++compared.fdes;
    EXPECT_EQ(other.offset, fde.offset);
    EXPECT_EQ(other.start, fde.start);
    EXPECT_EQ(other.end, fde.start + fde.size);
    const Cie cie = reader.cies()[fde.cie];

    std::vector<ReadelfRow> ours;
    EXPECT_TRUE(interpreter.run(section.section, cie, fde, [&](uint64_t offset, const BasicRow<Arch>& row) {
      ours.push_back({fde.start + offset, cells_of(cie, row)});
    }));

    std::vector<const ReadelfRow*> theirs;
    for (const ReadelfRow& row : other.rows) {
      if (row.address >= other.end) {
        ++compared.rows_behind_end;
        continue;
      }
      if (!theirs.empty() && theirs.back()->address == row.address) {
        ++compared.rows_of_no_length;
        theirs.pop_back();  // the later line holds
      }
      theirs.push_back(&row);
    }
    EXPECT_EQ(theirs.size(), ours.size()) << "rows of the FDE at " << fde.offset;
    for (size_t i = 0; i < std::min(theirs.size(), ours.size()); ++i) {
      ++compared.rows;
      compared.cells += theirs[i]->cells.size();
      EXPECT_EQ(theirs[i]->address, ours[i].address) << "in the FDE at " << fde.offset;
      EXPECT_EQ(theirs[i]->cells, ours[i].cells) << "at " << std::hex << ours[i].address;
    }
    if (testing::Test::HasFailure()) return compared;  // one FDE's differences say enough
  }
  while (index < expected.size() && expected[index].start == expected[index].end) ++index;
  EXPECT_EQ(expected.size(), index) << "FDEs that readelf lists are missing";
  EXPECT_EQ(0u, reader.defects().total());
  return compared;
}

template Compared compare_with_readelf<X86_64>(const OwnedSection&, const std::vector<ReadelfFde>&);
template Compared compare_with_readelf<Aarch64>(const OwnedSection&, const std::vector<ReadelfFde>&);

}  // namespace clew::cfi::test
