#include "cfi/pointer.hpp"

#include <gtest/gtest.h>

#include "cfi/section_builder.hpp"

namespace clew::cfi::test {
namespace {

// A pointer behind three other bytes of a section at 0x1000.
std::optional<uint64_t> decode(uint8_t encoding, const Bytes& pointer, bool in_function = true) {
  Bytes section{1, 2, 3};
  section.add(pointer);
  const PointerBases bases{section.bytes().data(), 0x1000, 0x20000, 0x300000, 0x4000000, in_function};
  Cursor cursor(section.bytes());
  cursor.skip(3);
  uint64_t value = 0;
  if (!read_pointer(cursor, encoding, bases, value)) return std::nullopt;
  EXPECT_TRUE(cursor.done());
  return value;
}

TEST(Pointer, Formats) {
  EXPECT_EQ(0x1122334455667788u, decode(DW_EH_PE_absptr, Bytes().u64(0x1122334455667788)));
  EXPECT_EQ(0x1122334455667788u, decode(DW_EH_PE_udata8, Bytes().u64(0x1122334455667788)));
  EXPECT_EQ(uint64_t(-5), decode(DW_EH_PE_sdata8, Bytes().u64(uint64_t(-5))));
  EXPECT_EQ(uint64_t(-5), decode(DW_EH_PE_signed, Bytes().u64(uint64_t(-5))));
  EXPECT_EQ(0x80000001u, decode(DW_EH_PE_udata4, Bytes().u32(0x80000001)));
  EXPECT_EQ(0xffffffff80000001u, decode(DW_EH_PE_sdata4, Bytes().u32(0x80000001)));
  EXPECT_EQ(0x8001u, decode(DW_EH_PE_udata2, Bytes().u16(0x8001)));
  EXPECT_EQ(0xffffffffffff8001u, decode(DW_EH_PE_sdata2, Bytes().u16(0x8001)));
  EXPECT_EQ(12857u, decode(DW_EH_PE_uleb128, {0xb9, 0x64}));
  EXPECT_EQ(uint64_t(-129), decode(DW_EH_PE_sleb128, {0xff, 0x7e}));
}

TEST(Pointer, Bases) {
  const Bytes minus_two = Bytes().u32(uint32_t(-2));
  EXPECT_EQ(0x1003u - 2, decode(DW_EH_PE_pcrel | DW_EH_PE_sdata4, minus_two));
  EXPECT_EQ(0x1003u + 5, decode(DW_EH_PE_pcrel | DW_EH_PE_udata2, Bytes().u16(5)));
  EXPECT_EQ(0x1003u + 5, decode(DW_EH_PE_pcrel | DW_EH_PE_absptr, Bytes().u64(5)));
  EXPECT_EQ(0x20000u - 2, decode(DW_EH_PE_textrel | DW_EH_PE_sdata4, minus_two));
  EXPECT_EQ(0x300000u - 2, decode(DW_EH_PE_datarel | DW_EH_PE_sdata4, minus_two));
  EXPECT_EQ(0x4000000u - 2, decode(DW_EH_PE_funcrel | DW_EH_PE_sdata4, minus_two));
  EXPECT_EQ(0x1003u + 12857, decode(DW_EH_PE_pcrel | DW_EH_PE_uleb128, {0xb9, 0x64}));
}

TEST(Pointer, AlignedStandsAtAMultipleOfEight) {
  EXPECT_EQ(0x99u, decode(DW_EH_PE_aligned, Bytes{1, 2, 3, 4, 5}.u64(0x99)));  // at 0x1008
}

TEST(Pointer, WhatCannotBeDecoded) {
  const Bytes eight = Bytes().u64(1);
  EXPECT_FALSE(decode(DW_EH_PE_omit, eight));
  EXPECT_FALSE(decode(DW_EH_PE_indirect | DW_EH_PE_pcrel | DW_EH_PE_sdata4, eight));
  EXPECT_FALSE(decode(DW_EH_PE_indirect, eight));
  EXPECT_FALSE(decode(0x60, eight));
  EXPECT_FALSE(decode(0x70, eight));
  EXPECT_FALSE(decode(0x05, eight));
  EXPECT_FALSE(decode(0x0f, eight));
  EXPECT_FALSE(decode(DW_EH_PE_aligned | DW_EH_PE_sdata4, eight));
  EXPECT_FALSE(decode(DW_EH_PE_funcrel, eight, false));
  EXPECT_FALSE(decode(DW_EH_PE_absptr, Bytes().u32(1)));
  EXPECT_FALSE(decode(DW_EH_PE_pcrel | DW_EH_PE_sdata4, Bytes().u16(1)));
  EXPECT_FALSE(decode(DW_EH_PE_aligned, {1, 2}));
}

}  // namespace
}  // namespace clew::cfi::test
