// Sections of real assemblers and linkers decode to what readelf says of them, and the in-place look-up finds
// the same rows.
#include <algorithm>
#include <regex>
#include <sstream>

#include "corpus.hpp"
#include "sframe/sframe.hpp"

namespace clew::sframe {
namespace {

/// What readelf --sframe says of a function; rows as one line each.
struct Expected {
  uint64_t start = 0;
  int64_t size = 0;
  bool mask = false, signal = false, flexible = false, key_b = false;
  std::vector<std::string> rows;
};

bool operator==(const Expected& a, const Expected& b) {
  return a.start == b.start && a.size == b.size && a.mask == b.mask && a.signal == b.signal &&
         a.flexible == b.flexible && a.key_b == b.key_b && a.rows == b.rows;
}

std::ostream& operator<<(std::ostream& out, const Expected& function) {
  out << std::hex << function.start << std::dec << " size " << function.size << (function.mask ? " mask" : "")
      << (function.signal ? " S" : "") << (function.flexible ? " F" : "") << (function.key_b ? " B" : "");
  for (const std::string& row : function.rows) out << "\n  " << row;
  return out;
}

/// readelf of binutils 2.40 prints `u` for what is at the header's fixed offset.
std::vector<Expected> read_expected(const std::string& path, bool old_amd64) {
  static const std::regex head(
      R"re(^    func idx \[\d+\]: pc = 0x([0-9a-f]+), size = (-?\d+) bytes(?:, attr = "(S?)(F?)")?(, pauth = B key)?$)re");
  // The last cell of a row of any length may touch the one before it.
  static const std::regex line(
      R"(^    ([0-9a-f]{16})  (?:(RA undefined)|(\(?(?:sp|fp|r\d+)[+-]-?\d+\)?) *(u|\(?(?:c|sp|fp|r\d+)[+-]\d+\)?|r\d+) *(f|u|U|\(?(?:c|sp|fp|r\d+)[+-]\d+\)?|r\d+)(\[s\])?) *$)");
  std::vector<Expected> functions;
  std::ifstream file(path);
  std::string text;
  std::smatch match;
  while (std::getline(file, text)) {
    if (text.starts_with("    STARTPC")) {
      functions.back().mask = text.find("[m]") != std::string::npos;
    } else if (std::regex_match(text, match, head)) {
      Expected function;
      function.start = std::stoull(match[1], nullptr, 16);
      function.size = std::stoll(match[2]);
      function.signal = match[3].length() != 0;
      function.flexible = match[4].length() != 0;
      function.key_b = match[5].matched;
      functions.push_back(function);
    } else if (std::regex_match(text, match, line)) {
      std::string row = match[1].str() + " ";
      if (match[2].matched) {
        row += "outermost";
      } else {
        // gas writes negative offsets of the default type as sp+-16.
        const std::string ra = old_amd64 && match[5] == "u" ? "f" : match[5].str();
        row += std::regex_replace(match[3].str(), std::regex(R"(\+-)"), "-") + " " + match[4].str() + " " +
               ra + (match[6].matched ? " signed" : "");
      }
      functions.back().rows.push_back(row);
    } else if (text.starts_with("    0")) {
      ADD_FAILURE() << path << ": not understood: " << text;
    }
  }
  return functions;
}

std::string text_of(const Part& part, const Function& function, const clew_sframe_row& row) {
  char start[24];
  std::snprintf(
      start, sizeof start, "%016llx ",
      static_cast<unsigned long long>(function.entry.mask ? row.start : function.entry.start + row.start));
  if (row.outermost) return std::string(start) + "outermost";
  return start + describe_cfa(part, row) + " " + describe_fp(part, row) + " " + describe_ra(part, row) +
         (row.is_signed ? " signed" : "");
}

std::vector<Expected> all_functions(const Decoded& decoded) {
  std::vector<Expected> functions;
  for (const Part& part : decoded.parts)
    for (const Function& function : part.functions) {
      EXPECT_EQ(function.result, static_cast<uint32_t>(CLEW_SFRAME_OK)) << describe(function.result);
      const clew_sframe_function& entry = function.entry;
      Expected found{entry.start,
                     static_cast<int32_t>(entry.size),
                     entry.mask,
                     entry.signal,
                     entry.flexible,
                     entry.key_b,
                     {}};
      for (uint32_t i = 0; i < function.row_count; ++i)
        found.rows.push_back(text_of(part, function, part.rows[function.first_row + i]));
      functions.push_back(found);
    }
  return functions;
}

FileSection section_of(const std::string& path) {
  const auto section = read_section(test::read_file(path));
  EXPECT_TRUE(section) << path << ": " << section.error();
  return section ? *section : FileSection{};
}

/// A start address that the readelf of the time did not relocate.
void unrelocate(std::vector<Expected>& functions) {
  for (Expected& function : functions) {
    for (std::string& row : function.rows) {
      const uint64_t start = std::stoull(row, nullptr, 16) - (function.mask ? 0 : function.start);
      char text[20];
      std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(start));
      row.replace(0, 16, text);
    }
    function.start = 0;
  }
}

TEST(SframeGolden, EverySectionDecodesToWhatReadelfSays) {
  const std::string folder = test::corpus("sframe");
  CLEW_NEED_CORPUS(folder);
  const auto manifest = test::read_json(folder + "/manifest.json");
  size_t files = 0, rows = 0;
  for (const auto& [file, facts] : manifest.items()) {
    SCOPED_TRACE(file);
    const int version = facts["sframe_version"];
    const FileSection bytes = section_of(folder + "/" + file);
    EXPECT_EQ(bytes.note.empty(), version == 3 || facts["kind"] != "reloc");
    const auto decoded = decode(bytes.section());
    ASSERT_TRUE(decoded) << decoded.error();
    EXPECT_EQ(decoded->parts.size(), facts.value("headers", 1u));
    EXPECT_EQ(decoded->parts[0].header.version, version);
    EXPECT_EQ(decoded->parts[0].header.flags, facts["flags"].get<int>());
    EXPECT_EQ(decoded->parts[0].header.abi, facts["abi"].get<int>());
    EXPECT_EQ(decoded->parts[0].header.fixed_ra, facts["fixed_ra"].get<int>());
    const auto expected = read_expected(folder + "/" + file.substr(0, file.rfind('.')) + ".sframe.txt",
                                        version == 1 && decoded->parts[0].header.abi == CLEW_SFRAME_AMD64);
    auto found = all_functions(*decoded);
    if (bytes.relocatable && version != 3) unrelocate(found);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) {
      EXPECT_EQ(found[i], expected[i]);
      rows += found[i].rows.size();
    }
    ++files;
  }
  EXPECT_EQ(files, 194u);
  EXPECT_GT(rows, 30000u);
  RecordProperty("rows", static_cast<int>(rows));
  RecordProperty("files", static_cast<int>(files));
}

TEST(SframeGolden, VerifyFindsNoDefect) {
  const std::string folder = test::corpus("sframe");
  CLEW_NEED_CORPUS(folder);
  const auto manifest = test::read_json(folder + "/manifest.json");
  size_t files = 0;
  for (const auto& [file, facts] : manifest.items()) {
    const FileSection bytes = section_of(folder + "/" + file);
    for (const Defect& defect : verify(bytes.section()).defects)
      ADD_FAILURE() << file << ": " << defect.offset << ": " << defect.what;
    ++files;
  }
  EXPECT_EQ(files, 194u);
}

TEST(SframeGolden, InPlaceLookUpFindsTheSameRows) {
  const std::string folder = test::corpus("sframe");
  CLEW_NEED_CORPUS(folder);
  const auto manifest = test::read_json(folder + "/manifest.json");
  size_t asked = 0;
  for (const auto& [file, facts] : manifest.items()) {
    if (facts["kind"] == "obj" || facts["kind"] == "reloc" || facts.contains("headers")) continue;
    SCOPED_TRACE(file);
    const FileSection bytes = section_of(folder + "/" + file);
    const auto decoded = decode(bytes.section());
    ASSERT_TRUE(decoded) << decoded.error();
    const Part& part = decoded->parts[0];
    for (const Function& function : part.functions) {
      std::vector<uint64_t> places{0, function.entry.size / 2, function.entry.size - 1ull,
                                   function.entry.size};
      for (uint32_t i = 0; i < function.row_count; ++i) {
        places.push_back(part.rows[function.first_row + i].start);
        places.push_back(part.rows[function.first_row + i].start - 1ull);
      }
      for (const uint64_t place : places) {
        const uint64_t pc = function.entry.start + place;
        clew_sframe_function covering;
        clew_sframe_row row;
        const uint32_t result = clew_sframe_lookup(nullptr, &part.header, pc, &covering, &row);
        const Found found = find(*decoded, pc);
        ASSERT_EQ(
            result == CLEW_SFRAME_OK,
            found.row || (found.function && clew_sframe_outermost(&part.header, &found.function->entry)))
            << std::hex << pc << " " << describe(result);
        if (!found.row) continue;
        ASSERT_EQ(covering.start, found.function->entry.start);
        ASSERT_EQ(text_of(part, *found.function, row), text_of(part, *found.function, *found.row));
        ++asked;
      }
    }
  }
  EXPECT_GT(asked, 50000u);
}

/// The row in force at an address in the notation of verdicts.json: "sp+8 u f", "RA undefined", "" for none.
std::string row_at(const Decoded& decoded, uint64_t pc) {
  const Found found = find(decoded, pc);
  if (!found.row) return "";
  if (found.row->outermost) return "RA undefined";
  return describe_cfa(*found.part, *found.row) + " " + describe_fp(*found.part, *found.row) + " " +
         describe_ra(*found.part, *found.row);
}

/// The same by the look-up in place.
std::string row_in_place(const Part& part, uint64_t pc) {
  clew_sframe_function function;
  clew_sframe_row row;
  const uint32_t result = clew_sframe_lookup(nullptr, &part.header, pc, &function, &row);
  if (result != CLEW_SFRAME_OK) return describe(result);
  if (row.outermost) return "RA undefined";
  return describe_cfa(part, row) + " " + describe_fp(part, row) + " " + describe_ra(part, row);
}

TEST(SframeMalformed, EveryVerdictIsReached) {
  const std::string folder = test::corpus("sframe");
  CLEW_NEED_CORPUS(folder);
  size_t cases = 0, probes = 0;
  for (const auto& expected : test::read_json(folder + "/malformed/verdicts.json")) {
    const std::string file = expected["file"];
    SCOPED_TRACE(file + ": " + expected["change"].get<std::string>());
    const auto content = test::read_file(folder + "/malformed/" + file);
    FileSection bytes;
    if (file.ends_with(".elf")) {
      if (auto section = read_section(content)) bytes = *section;
    } else {
      bytes.bytes = content;
      bytes.address = test::number(expected["section_address"]);
      bytes.machine = expected["machine"];
      bytes.big = expected["byte_order"] == "big";
    }
    ++cases;
    const auto decoded = decode(bytes.section());
    const Verdict verdict = verify(bytes.section());
    const std::string also = expected.value("also_allowed", "");
    const bool of_section = expected["scope"].is_string() && expected["scope"] == "section";
    if (expected["verdict"] == "reject") {
      if (!also.starts_with("accept: through PT_GNU_SFRAME")) {
        EXPECT_FALSE(verdict.defects.empty());
      }
      if (of_section && also.empty()) {
        EXPECT_FALSE(decoded);
      }
    } else {
      EXPECT_TRUE(decoded) << decoded.error();
      for (const Defect& defect : verdict.defects) ADD_FAILURE() << defect.offset << ": " << defect.what;
    }
    if (!decoded) continue;
    for (const auto& probe : expected.value("probes", nlohmann::json::array())) {
      const uint64_t pc = test::number(probe["pc"]);
      const std::string row = probe["row"].is_null() ? "" : probe["row"].get<std::string>();
      EXPECT_EQ(row_at(*decoded, pc), row) << std::hex << pc;
      if (!row.empty()) {
        EXPECT_EQ(row_in_place(decoded->parts[0], pc), row) << std::hex << pc;
      }
      ++probes;
    }
  }
  EXPECT_EQ(cases, 83u);
  EXPECT_GT(probes, 1000u);
}

}  // namespace
}  // namespace clew::sframe
