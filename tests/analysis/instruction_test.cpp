// Lengths, judged by objdump and by Zydis over whole programs.
#include "analysis/instruction.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>
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

#ifdef CLEW_HAVE_ZYDIS
bool is_knights_corner(const ZydisDecodedInstruction& instruction) {
  return instruction.encoding == ZYDIS_INSTRUCTION_ENCODING_MVEX ||
         instruction.meta.isa_ext == ZYDIS_ISA_EXT_KNC || instruction.meta.isa_ext == ZYDIS_ISA_EXT_KNCE ||
         instruction.meta.isa_ext == ZYDIS_ISA_EXT_KNCV;
}

// The general registers that Zydis sees written. Calls are left out: step_over_call() does them.
uint32_t zydis_writes(const ZydisDecodedInstruction& instruction, const ZydisDecodedOperand* operands) {
  uint32_t writes = 0;
  for (unsigned i = 0; i < instruction.operand_count; ++i) {
    const ZydisDecodedOperand& operand = operands[i];
    if (operand.type != ZYDIS_OPERAND_TYPE_REGISTER || !(operand.actions & ZYDIS_OPERAND_ACTION_MASK_WRITE))
      continue;
    ZydisRegister full = ZydisRegisterGetLargestEnclosing(ZYDIS_MACHINE_MODE_LONG_64, operand.reg.value);
    if (full >= ZYDIS_REGISTER_RAX && full <= ZYDIS_REGISTER_R15) writes |= 1u << (full - ZYDIS_REGISTER_RAX);
  }
  return writes;
}
#endif

class LengthsOfPrograms : public ::testing::TestWithParam<Text> {};

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

TEST_P(LengthsOfPrograms, EqualThoseOfObjdump) {
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

TEST_P(LengthsOfPrograms, EqualThoseOfZydis) {
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
    // Knights Corner's own encodings, here in data: no other processor has them.
    bool knights = is_knights_corner(theirs);
    if ((!ok || in.length != theirs.length) && !knights) {
      if (++different <= 20)
        std::printf("  %s: ours %u, Zydis %u\n", describe(*text, text->address + at, theirs.length).c_str(),
                    ok ? in.length : 0u, theirs.length);
    }
    uint32_t writes = zydis_writes(theirs, operands);
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

INSTANTIATE_TEST_SUITE_P(Programs, LengthsOfPrograms,
                         ::testing::Values(Text{kLibc, ".text", 0}, Text{kLibcrypto, ".text", 0},
                                           Text{kLoader, ".text", 0}, Text{kLibm, ".text", 0},
                                           Text{kLibstdcxx, ".text", 0}, Text{kNode, ".text", kNodeBytes}));

// Code for processors that this machine need not have, disassembled by llvm-objdump.
class Compiled : public ::testing::TestWithParam<const char*> {};

TEST_P(Compiled, LengthsEqualThoseOfLlvm) {
  if (!have("clang-19") || !have("llvm-objdump-19"))
    GTEST_SKIP() << "clang-19 or llvm-objdump-19 is not installed";
  Scratch scratch;
  scratch.write("v.c", R"(
    #include <stdint.h>
    #include <string.h>
    float sum(const float* a, const float* b, int n) { float s = 0; for (int i = 0; i < n; ++i) s += a[i] * b[i]; return s; }
    void mix(uint8_t* d, const uint8_t* a, const uint8_t* b, int n) { for (int i = 0; i < n; ++i) d[i] = (a[i] + 3 * b[i]) >> 2; }
    void shift(uint64_t* d, const uint64_t* s, int n) { for (int i = 0; i < n; ++i) d[i] = s[i] << (s[i] & 31) ^ s[i] >> 7; }
    int64_t pick(const int* t, const int* i, int n) { int64_t s = 0; for (int k = 0; k < n; ++k) if (t[k] > 5) s += t[i[k]]; return s; }
    double poly(const double* x, int n) { double s = 1; for (int i = 0; i < n; ++i) s = s * x[i] + x[i] / (1 + s); return s; }
    uint64_t bits(uint64_t x, uint64_t y) { return __builtin_popcountll(x) + __builtin_clzll(y | 1) + (x & ~y) + (x << (y & 63)); }
    int many(int (*f)(int, int), int a, int b, int c, int d, int e, int g, int h, int i, int j, int k, int l, int m) {
      int r = 0; for (int z = 0; z < a; ++z) { r += f(a * b, c) + f(d - e, g) * h - f(i ^ j, k) / (l | 1) + m; a ^= r; b += e; c *= 3; } return r; }
    typedef _Float16 half; void halves(half* d, const half* a, const half* b, int n) { for (int i = 0; i < n; ++i) d[i] = a[i] * b[i] + d[i]; }
    uint64_t conditional(uint64_t a, uint64_t b, uint64_t c) { return a < b && b < c ? a + 1 : a == 7 || c > 9 ? b - 300000 : c ^ 129; }
  )");
  std::string object = scratch / "v.o";
  std::string command =
      std::string("clang-19 -O3 -c ") + GetParam() + " -o " + object + " " + (scratch / "v.c");
  ASSERT_EQ(std::system(command.c_str()), 0) << command;
  auto text = section(object, ".text");
  ASSERT_TRUE(text);
  uint64_t instructions = 0, different = 0;
  lines_of("llvm-objdump-19 -d --mattr=+egpr,+push2pop2,+ndd,+nf,+ccmp,+cf,+zu -j .text " + object,
           [&](const char* line) {
             char* end = nullptr;
             uint64_t address = std::strtoull(line, &end, 16);
             if (end == line || *end != ':' || end[1] != ' ') return;
             unsigned length = 0;
             for (const char* p = end + 2;
                  std::isxdigit(static_cast<unsigned char>(p[0])) &&
                  std::isxdigit(static_cast<unsigned char>(p[1])) && (p[2] == ' ' || p[2] == '\t');
                  p += 3)
               ++length;
             ++instructions;
             if (our_length(*text, address) != length && ++different <= 20)
               std::printf("  %s: ours %u, %s", describe(*text, address, length).c_str(),
                           our_length(*text, address), line);
           });
  std::printf("%s: %lu instructions, %lu differ\n", GetParam(), instructions, different);
  EXPECT_GT(instructions, 300u);
  EXPECT_EQ(different, 0u);
}

INSTANTIATE_TEST_SUITE_P(Targets, Compiled,
                         ::testing::Values("-march=skylake-avx512", "-march=sapphirerapids", "-march=znver4",
                                           "-march=bdver4", "-march=sapphirerapids -mapxf"));

#ifdef CLEW_HAVE_ZYDIS
// Random bytes behind every opcode map's prefixes: whatever Zydis takes for an instruction must be as long
// for us.
TEST(LengthsOfRandomBytes, EqualThoseOfZydis) {
  ZydisDecoder decoder;
  ZydisDecoderInit(&decoder, ZYDIS_MACHINE_MODE_LONG_64, ZYDIS_STACK_WIDTH_64);
  std::mt19937_64 random(20240229);
  const std::vector<std::vector<uint8_t>> heads = {{},
                                                   {0x66},
                                                   {0x48},
                                                   {0x66, 0x48},
                                                   {0x0f},
                                                   {0x66, 0x0f},
                                                   {0xf3, 0x0f},
                                                   {0xf2, 0x0f},
                                                   {0x0f, 0x38},
                                                   {0x0f, 0x3a},
                                                   {0xc5},
                                                   {0xc4},
                                                   {0x62},
                                                   {0x8f},
                                                   {0x67},
                                                   {0x41, 0x0f},
                                                   {0x66, 0x0f, 0x3a},
                                                   {0xf2, 0x48, 0x0f}};
  uint64_t valid = 0, different = 0, wrong_writes = 0;
  for (unsigned round = 0; round < 2000000; ++round) {
    std::array<std::byte, 16> code;
    for (size_t i = 0; i < 16; i += 8) {
      uint64_t word = random();
      std::memcpy(code.data() + i, &word, 8);
    }
    const auto& head = heads[round % heads.size()];
    for (size_t i = 0; i < head.size(); ++i) code[i] = std::byte{head[i]};
    ZydisDecodedInstruction theirs;
    ZydisDecodedOperand operands[ZYDIS_MAX_OPERAND_COUNT];
    if (!ZYAN_SUCCESS(ZydisDecoderDecodeFull(&decoder, code.data(), code.size(), &theirs, operands)))
      continue;
    if (is_knights_corner(theirs)) continue;
    ++valid;
    Instruction in;
    bool ok = decode(code, in);
    if (!ok || in.length != theirs.length) {
      if (++different <= 20) {
        std::printf("  %s:", ZydisMnemonicGetString(theirs.mnemonic));
        for (unsigned i = 0; i < theirs.length; ++i) std::printf(" %02x", std::to_integer<unsigned>(code[i]));
        std::printf(": ours %u, Zydis %u\n", ok ? in.length : 0u, theirs.length);
      }
      continue;
    }
    uint32_t missing = zydis_writes(theirs, operands) & ~uint32_t{written_registers(in)};
    if (missing && ++wrong_writes <= 20) {
      std::printf("  %s writes %x more than ours:", ZydisMnemonicGetString(theirs.mnemonic), missing);
      for (unsigned i = 0; i < theirs.length; ++i) std::printf(" %02x", std::to_integer<unsigned>(code[i]));
      std::printf("\n");
    }
  }
  std::printf("%lu valid, %lu differ, %lu write more than we say\n", valid, different, wrong_writes);
  EXPECT_GT(valid, 500000u);
  EXPECT_EQ(different, 0u);
  EXPECT_EQ(wrong_writes, 0u);
}
#endif

// What no disassembler at hand decodes.
TEST(Lengths, OfApxByHand) {
  const std::vector<std::vector<std::byte>> code = {
      bytes({0xd5, 0x10, 0x50}),                                // push r16
      bytes({0xd5, 0x08, 0xa1, 1, 2, 3, 4, 5, 6, 7, 8}),        // jmpabs (REX2, map 0, a1)
      bytes({0xd5, 0x80, 0xaf, 0xc1}),                          // imul, through REX2's map 1
      bytes({0x62, 0xf4, 0x7c, 0x18, 0xff, 0xf0}),              // push2
      bytes({0x62, 0xf4, 0x7c, 0x18, 0x81, 0xc0, 1, 2, 3, 4}),  // add, new data destination, imm32
      bytes({0x62, 0xf4, 0x7d, 0x18, 0x81, 0xc0, 1, 2})};       // the same with imm16
  for (const auto& one : code) {
    Instruction in;
    ASSERT_TRUE(decode(one, in));
    EXPECT_EQ(in.length, one.size());
    EXPECT_FALSE(decode(std::span(one).first(one.size() - 1), in)) << "never past the end";
  }
}

TEST(Lengths, AtMostFifteenBytes) {
  std::vector<std::byte> code(14, std::byte{0x66});
  code.push_back(std::byte{0x90});
  Instruction in;
  EXPECT_TRUE(decode(code, in));
  code.insert(code.begin(), std::byte{0x66});
  EXPECT_FALSE(decode(code, in));
}

TEST(Flow, TargetsOfExtremeDisplacements) {
  Instruction in;
  int64_t target = 0;
  ASSERT_TRUE(decode(bytes({0x0f, 0x84, 0xff, 0xff, 0xff, 0x7f}), in));  // je +0x7fffffff
  EXPECT_EQ(flow_of(in, target), Flow::kBranch);
  EXPECT_EQ(target, 6 + int64_t{0x7fffffff});
  ASSERT_TRUE(decode(bytes({0xeb, 0xfe}), in));  // jmp to itself
  EXPECT_EQ(flow_of(in, target), Flow::kJump);
  EXPECT_EQ(target, 0);
  ASSERT_TRUE(
      decode(bytes({0x48, 0xb8, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}), in));  // mov rax, INT64_MAX
  EXPECT_EQ(flow_of(in, target), Flow::kNext);
}

}  // namespace
}  // namespace clew::analysis::test
