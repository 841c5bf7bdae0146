// Lengths, judged by objdump and by Zydis over whole programs.
#include "analysis/instruction.hpp"

#include <gtest/gtest.h>

#include <set>
#include <sstream>

#include "support.hpp"

#ifdef CLEW_HAVE_ZYDIS
#include <Zydis/Zydis.h>
#endif

namespace clew::analysis::test {
namespace {

constexpr uint64_t kNodeBytes = 10 << 20;

struct Text {
  const char* path;
  const char* section;
  uint64_t limit;
};

std::string describe(const Section& text, uint64_t address, unsigned length) {
  std::string out;
  char buffer[32];
  std::snprintf(buffer, sizeof buffer, "%lx:", address);
  out = buffer;
  for (unsigned i = 0; i < length && address - text.address + i < text.bytes.size(); ++i) {
    std::snprintf(buffer, sizeof buffer, " %02x",
                  std::to_integer<unsigned>(text.bytes[address - text.address + i]));
    out += buffer;
  }
  return out;
}

unsigned our_length(const Section& text, uint64_t address) {
  Instruction in;
  return decode(std::span(text.bytes).subspan(address - text.address), in) ? in.length : 0;
}

class Lengths : public ::testing::TestWithParam<Text> {};

struct Line {
  uint64_t address;
  unsigned length;
  std::string mnemonic;
};

// In data between functions objdump writes prefixes that belong to no instruction as instructions of their
// own.
bool is_prefix_alone(const Line& line) {
  static const std::set<std::string> kPrefixes = {"rex",  "cs",       "ds",       "es",   "ss",  "fs",
                                                  "gs",   "data16",   "addr32",   "repz", "rep", "repnz",
                                                  "lock", "xacquire", "xrelease", "bnd"};
  std::istringstream words(line.mnemonic);
  for (std::string word; words >> word;)
    if (!kPrefixes.count(word) && word.rfind("rex.", 0) != 0) return false;
  return true;
}

// Differences that are a matter of reading: objdump joins fwait with the x87 instruction behind it, and reads
// a near branch with prefix 66 as AMD's processors do (16-bit displacement), where we and Zydis read it as
// Intel's.
bool is_known_difference(const Section& text, const Line& line, unsigned ours) {
  size_t at = line.address - text.address;
  auto byte = [&](size_t ahead) { return std::to_integer<unsigned>(text.bytes[at + ahead]); };
  if (byte(0) == 0x9b && ours == 1) return our_length(text, line.address + 1) + 1 == line.length;
  size_t opcode = at;
  bool operand16 = false;
  while (opcode < at + line.length && (std::to_integer<unsigned>(text.bytes[opcode]) == 0x66)) {
    operand16 = true;
    ++opcode;
  }
  unsigned op = byte(opcode - at);
  bool near = op == 0xe8 || op == 0xe9 || (op == 0x0f && (byte(opcode - at + 1) & 0xf0) == 0x80);
  return operand16 && near && ours == line.length + 2;
}

TEST_P(Lengths, EqualThoseOfObjdump) {
  Text what = GetParam();
  if (!exists(what.path) || !have("objdump")) GTEST_SKIP() << what.path << " or objdump is not installed";
  auto text = section(what.path, what.section);
  ASSERT_TRUE(text);
  std::string command = std::string("objdump -d -w -j ") + what.section;
  if (what.limit) command += " --stop-address=" + std::to_string(text->address + what.limit);
  uint64_t instructions = 0, invalid = 0, prefixes = 0, known = 0;
  std::vector<std::string> different;
  lines_of(command + " " + what.path, [&](const char* line) {
    char* end = nullptr;
    uint64_t address = std::strtoull(line, &end, 16);
    if (end == line || *end != ':' || end[1] != '\t') return;
    const char* hex = end + 2;
    const char* tab = std::strchr(hex, '\t');
    if (!tab) return;
    Line parsed{address, 0, tab + 1};
    for (const char* p = hex; p + 2 < tab && p[0] != ' '; p += 3) ++parsed.length;
    while (!parsed.mnemonic.empty() && std::isspace(static_cast<unsigned char>(parsed.mnemonic.back())))
      parsed.mnemonic.pop_back();
    std::string first = parsed.mnemonic.substr(0, parsed.mnemonic.find_first_of(" \t\n"));
    if (parsed.mnemonic.find("(bad)") != std::string::npos || first == ".byte") {
      ++invalid;
      return;
    }
    if (is_prefix_alone(parsed)) {
      ++prefixes;
      return;
    }
    ++instructions;
    unsigned ours = our_length(*text, address);
    if (ours == parsed.length) return;
    if (is_known_difference(*text, parsed, ours)) {
      ++known;
      return;
    }
    different.push_back(describe(*text, address, parsed.length) + "  " + parsed.mnemonic + ": ours " +
                        std::to_string(ours));
  });
  std::printf("%s %s: %lu instructions, %zu differ; %lu known, %lu invalid, %lu lone prefixes\n", what.path,
              what.section, instructions, different.size(), known, invalid, prefixes);
  for (size_t i = 0; i < different.size() && i < 20; ++i) std::printf("  %s\n", different[i].c_str());
  EXPECT_GT(instructions, 1000u);
  EXPECT_TRUE(different.empty());
}

TEST_P(Lengths, EqualThoseOfZydis) {
#ifdef CLEW_HAVE_ZYDIS
  Text what = GetParam();
  if (!exists(what.path)) GTEST_SKIP() << what.path << " is not installed";
  auto text = section(what.path, what.section);
  ASSERT_TRUE(text);
  ZydisDecoder decoder;
  ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
  uint64_t size = what.limit ? what.limit : text->bytes.size();
  uint64_t instructions = 0, invalid = 0, different = 0, wrong_writes = 0;
  for (uint64_t at = 0; at < size;) {
    ZydisDecodedInstruction theirs;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
    if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, text->bytes.data() + at, text->bytes.size() - at,
                                             &theirs, operands))) {
      ++invalid;
      ++at;
      continue;
    }
    ++instructions;
    Instruction in;
    bool ok = decode(std::span(text->bytes).subspan(at), in);
    // Knights Corner's jumps on a mask (jkzd, jknzd), in data: no other processor has them.
    bool knights = theirs.mnemonic == ZYDIS_MNEMONIC_JKZD || theirs.mnemonic == ZYDIS_MNEMONIC_JKNZD;
    if ((!ok || in.length != theirs.length) && !knights) {
      if (++different <= 20)
        std::printf("  %s: ours %u, Zydis %u\n", describe(*text, text->address + at, theirs.length).c_str(),
                    ok ? in.length : 0u, theirs.length);
    }
    // Every general register that Zydis sees written must be among ours, or belongs to what step() does
    // itself.
    uint32_t writes = 0;
    for (unsigned i = 0; i < theirs.operand_count; ++i) {
      const ZydisDecodedOperand& operand = operands[i];
      if (operand.type != ZYDIS_OPERAND_TYPE_REGISTER || !(operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE))
        continue;
      ZydisRegister full = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, operand.reg.value);
      if (full >= ZYDIS_REGISTER_RAX && full <= ZYDIS_REGISTER_R15)
        writes |= 1u << (full - ZYDIS_REGISTER_RAX);
    }
    if (ok && (writes & ~uint32_t{written_registers(in)})) {
      if (++wrong_writes <= 20)
        std::printf("  %s (%s) writes %x, ours %x\n",
                    describe(*text, text->address + at, theirs.length).c_str(),
                    ZydisMnemonicGetString(theirs.mnemonic), writes, written_registers(in));
    }
    at += theirs.length;
  }
  std::printf("%s %s: %lu instructions, %lu differ, %lu write more than we say; %lu bytes invalid to Zydis\n",
              what.path, what.section, instructions, different, wrong_writes, invalid);
  EXPECT_GT(instructions, 1000u);
  EXPECT_EQ(different, 0u);
  EXPECT_EQ(wrong_writes, 0u);
#else
  GTEST_SKIP() << "built without Zydis";
#endif
}

INSTANTIATE_TEST_SUITE_P(Programs, Lengths,
                         ::testing::Values(Text{kLibc, ".text", 0}, Text{kLibcrypto, ".text", 0},
                                           Text{kLoader, ".text", 0}, Text{kLibm, ".text", 0},
                                           Text{kLibstdcxx, ".text", 0}, Text{kNode, ".text", kNodeBytes}));

}  // namespace
}  // namespace clew::analysis::test
