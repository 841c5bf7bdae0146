// What the format allows and few producers write, in sections written byte by byte.
#include "sframe/sframe.hpp"

#include <gtest/gtest.h>

#include "sframe/builder.hpp"

namespace clew::sframe {
namespace {

using test::build;
using test::Bytes;
using test::Header;

constexpr uint64_t kAt = 0x10000;  // where sections are loaded
constexpr uint64_t kTable = 28;    // where the first function's entry is

std::string row_at(const std::vector<std::byte>& bytes, uint64_t pc) {
  const auto decoded = decode({bytes, kAt, 0, false, {}});
  if (!decoded) return decoded.error();
  const Found found = find(*decoded, pc);
  if (!found.function) return "no function";
  if (found.function->result != CLEW_SFRAME_OK) return describe(found.function->result);
  if (!found.row) return "no row";
  if (found.row->outermost) return "outermost";
  return describe_cfa(*found.part, *found.row) + " " + describe_fp(*found.part, *found.row) + " " +
         describe_ra(*found.part, *found.row);
}

/// A V3 function of 64 bytes at 0x5000 with one row.
std::vector<std::byte> one_row(std::initializer_list<int> row, int type = 0, int info = 0, uint8_t abi = 3) {
  Bytes functions{abi == 4, {}}, rows{abi == 4, {}};
  functions.u64(0x5000 - kAt - kTable).u32(64).u32(0);
  rows.u16(1).u8(static_cast<uint64_t>(info)).u8(static_cast<uint64_t>(type)).u8(0).list(row);
  Header header;
  header.abi = abi;
  header.fixed_ra = abi == 3 ? -8 : 0;
  return build(header, functions, rows);
}

TEST(Sframe, StartsCountFromTheirFieldOrFromTheSection) {
  Bytes rows;
  rows.list({0, 0x03, 16});  // one word of one byte, sp
  Bytes functions;
  functions.u32(0x5000 - kAt).u32(64).u32(0).u32(1).u8(0).u8(0).u16(0);
  Header header;
  header.version = 2;
  header.flags = 1;
  EXPECT_EQ(row_at(build(header, functions, rows), 0x5000), "sp+16 u f");
  header.flags = 5;
  EXPECT_EQ(row_at(build(header, functions, rows), 0x5000 + kTable), "sp+16 u f");
  EXPECT_EQ(row_at(build(header, functions, rows), 0x5000), "no function");
}

TEST(Sframe, AStartMayBeBeyond32Bits) {
  Bytes functions, rows;
  functions.u64(0x7000000000005000 - kAt - kTable).u32(64).u32(0);
  rows.u16(1).list({0, 0, 0, 0, 0x03, 16});
  EXPECT_EQ(row_at(build({}, functions, rows), 0x7000000000005010), "sp+16 u f");
}

TEST(Sframe, FunctionsEndWhereTheirSizeSays) {
  const auto bytes = one_row({0, 0x03, 8});
  EXPECT_EQ(row_at(bytes, 0x4fff), "no function");
  EXPECT_EQ(row_at(bytes, 0x503f), "sp+8 u f");
  EXPECT_EQ(row_at(bytes, 0x5040), "no function");
}

TEST(Sframe, WordsOfEverySizeAreSigned) {
  EXPECT_EQ(row_at(one_row({0, 0x05, 16, 0xf0}), 0x5000), "sp+16 c-16 f");
  EXPECT_EQ(row_at(one_row({0, 0x24, 16, 0, 0x00, 0xff}), 0x5000), "fp+16 c-256 f");
  EXPECT_EQ(row_at(one_row({0, 0x44, 16, 0, 1, 0, 0, 0, 0xff, 0xff}), 0x5000), "fp+65552 c-65536 f");
}

TEST(Sframe, FlexibleRowsNameTheirRegisters) {
  // CFA = r10 + 0; RA at the header's offset; FP = *(CFA - 16).
  EXPECT_EQ(row_at(one_row({0, 0x0a, 10 << 3 | 1, 0, 0, 2, 0xf0}, 1), 0x5000), "r10+0 c-16 U");
  // CFA = *(fp - 8), RA = *(CFA + 8), FP = *(fp + 0).
  EXPECT_EQ(row_at(one_row({0, 0x0c, 6 << 3 | 3, 0xf8, 2, 8, 6 << 3 | 3, 0}, 1), 0x5000),
            "(fp-8) (fp+0) c+8");
  // RA = r1 + 4, FP = CFA - 8 itself.
  EXPECT_EQ(row_at(one_row({0, 0x0c, 7 << 3 | 1, 8, 1 << 3 | 1, 4, 4 << 3, 0xf8}, 1), 0x5000),
            "sp+8 =c-8 r1+4");
}

TEST(Sframe, FlexibleRowsThatMeanNothingAreRefused) {
  const char* control = describe(CLEW_SFRAME_BAD_CONTROL_WORD);
  const char* count = describe(CLEW_SFRAME_BAD_WORD_COUNT);
  EXPECT_EQ(row_at(one_row({0, 0x04, 2, 8}, 1), 0x5000), control);                 // the CFA by the CFA
  EXPECT_EQ(row_at(one_row({0, 0x04, 7 << 3 | 5, 8}, 1), 0x5000), control);        // a reserved bit
  EXPECT_EQ(row_at(one_row({0, 0x08, 7 << 3 | 1, 8, 0, 8}, 1), 0x5000), control);  // padding with an offset
  EXPECT_EQ(row_at(one_row({0, 0x06, 7 << 3 | 1, 8, 2}, 1), 0x5000), count);       // half a pair
  EXPECT_EQ(row_at(one_row({0, 0x0a, 7 << 3 | 1, 8, 2, 2, 8}, 1), 0x5000),
            count);  // a lone word that is not 0
  EXPECT_EQ(row_at(one_row({0, 0x04, 31 << 3 | 1, 8}, 1, 0, 2), 0x5000),
            describe(CLEW_SFRAME_BAD_FUNCTION_TYPE));  // AArch64 has none
}

TEST(Sframe, S390xScalesTheCfaAndNamesRegisters) {
  EXPECT_EQ(row_at(one_row({0, 0x03, 3}, 0, 0, 4), 0x5000), "sp+184 u u");
  EXPECT_EQ(row_at(one_row({0, 0x07, 0, 0, 0xb8}, 0, 0, 4), 0x5000), "sp+160 c-72 U");
  EXPECT_EQ(row_at(one_row({0, 0x43, 0x7f, 0xff, 0xff, 0xff}, 0, 0, 4), 0x5000),
            describe(CLEW_SFRAME_OFFSET_RANGE));
  Bytes functions{true, {}}, rows{true, {}};
  functions.u32(0x5000 - kAt).u32(64).u32(0).u32(1).u8(0).u8(0).u16(0);
  rows.list({0, 0x07, 0, 0xd0, 17 << 1 | 1});
  Header header{2, 1, 4, 0, 1, 1};
  EXPECT_EQ(row_at(build(header, functions, rows), 0x5000), "sp+160 r17 c-48");
}

TEST(Sframe, RepeatedBlocks) {
  Bytes functions, rows;
  functions.u64(0x5000 - kAt - kTable).u32(64).u32(0);
  rows.u16(2).u8(0x10).u8(0).u8(16).list({0, 0x03, 8, 11, 0x03, 16});
  const auto bytes = build({}, functions, rows);
  EXPECT_EQ(row_at(bytes, 0x503a), "sp+8 u f");
  EXPECT_EQ(row_at(bytes, 0x503b), "sp+16 u f");
  EXPECT_EQ(row_at(bytes, 0x5030), "sp+8 u f");
}

TEST(Sframe, OutermostFrames) {
  EXPECT_EQ(row_at(one_row({0, 0x01}), 0x5000), "outermost");
  // A function without rows is one as well, unless it is a signal frame that the assembler could not express.
  Bytes functions, plain, signal;
  functions.u64(0x5000 - kAt - kTable).u32(64).u32(0);
  plain.u16(0).list({0, 0, 0});
  signal.u16(0).list({0x80, 0, 0});
  clew_sframe section;
  clew_sframe_function function;
  clew_sframe_row row;
  auto look_up = [&](const std::vector<std::byte>& bytes) {
    const auto at = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(bytes.data()));
    EXPECT_EQ(clew_sframe_open(nullptr, &section, at, bytes.size(), kAt), 0u);
    return clew_sframe_lookup(nullptr, &section, 0x5000, &function, &row);
  };
  EXPECT_EQ(look_up(build({}, functions, plain)), 0u);
  EXPECT_TRUE(row.outermost);
  EXPECT_EQ(look_up(build({}, functions, signal)), static_cast<uint32_t>(CLEW_SFRAME_NOTHING));
  EXPECT_TRUE(function.signal);
}

TEST(Sframe, EmptyFunctionsHideNothing) {
  Bytes functions, rows;
  functions.u64(0x5000 - kAt - kTable).u32(64).u32(0);
  for (uint64_t i = 1; i < 4; ++i) functions.u64(0x5020 - kAt - kTable - 16 * i).u32(0).u32(0);
  rows.u16(1).list({0, 0, 0, 0, 0x03, 8});
  Header header;
  header.functions = 4;
  const auto bytes = build(header, functions, rows);
  EXPECT_EQ(row_at(bytes, 0x5030), "sp+8 u f");
  clew_sframe section;
  clew_sframe_function function;
  clew_sframe_row row;
  const auto at = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(bytes.data()));
  ASSERT_EQ(clew_sframe_open(nullptr, &section, at, bytes.size(), kAt), 0u);
  EXPECT_EQ(clew_sframe_lookup(nullptr, &section, 0x5030, &function, &row), 0u);
  EXPECT_EQ(function.start, 0x5000u);
}

TEST(Sframe, SharedRowsTakeNoMoreMemoryThanTheSectionHasBytes) {
  // 4,000 functions that all have the same 2,000 rows.
  Bytes functions, rows;
  Header header;
  header.functions = 4000;
  for (uint64_t i = 0; i < header.functions; ++i)
    functions.u64(0x500000 + 64 * i - kAt - kTable - 16 * i).u32(64).u32(0);
  rows.u16(2000).list({1, 0, 0});
  for (uint64_t i = 0; i < 2000; ++i) rows.u16(i).list({0x03, 8});
  const auto bytes = build(header, functions, rows);
  const auto decoded = decode({bytes, kAt, 0, false, {}});
  ASSERT_TRUE(decoded);
  EXPECT_LE(decoded->parts[0].rows.size(), rows.bytes.size());
  EXPECT_EQ(decoded->parts[0].functions[0].result, 0u);
  EXPECT_EQ(decoded->parts[0].functions[3999].result, static_cast<uint32_t>(CLEW_SFRAME_BAD_ROW_COUNT));
}

TEST(Sframe, TheByteOrderIsThatOfTheFile) {
  const auto bytes = one_row({0, 0x03, 8});
  EXPECT_TRUE(decode({bytes, kAt, 62, false, false}));
  const auto decoded = decode({bytes, kAt, 62, false, true});
  ASSERT_FALSE(decoded);
  EXPECT_EQ(decoded.error(), std::string(".sframe: ") + describe(CLEW_SFRAME_BAD_ORDER));
}

TEST(Sframe, VerifySaysWhere) {
  Bytes functions, rows;
  functions.u64(0x5000 - kAt - kTable).u32(64).u32(0);
  rows.u16(2).list({0, 0, 0, 0, 0x03, 8, 0, 0x03, 16});
  const auto bytes = build({}, functions, rows);
  const Verdict verdict = verify({bytes, kAt, 62, false, {}});
  ASSERT_EQ(verdict.defects.size(), 1u);
  EXPECT_EQ(verdict.defects[0].offset, 28u + 16 + 5 + 3);
  EXPECT_EQ(verdict.defects[0].what, "the function at 0x5000: a row does not start behind the one before it");
  // The header counts one row.
  ASSERT_EQ(verdict.notes.size(), 1u);
  EXPECT_EQ(verdict.notes[0].offset, 12u);
}

}  // namespace
}  // namespace clew::sframe
