// Entries of hand-assembled sections: every form of CIE and FDE, and every defect.
#include <gtest/gtest.h>

#include "cfi/pointer.hpp"
#include "cfi/section_builder.hpp"

namespace clew::cfi::test {
namespace {

void expect_fde(const Fde& fde, uint64_t offset, uint64_t start, uint64_t size) {
  EXPECT_EQ(offset, fde.offset);
  EXPECT_EQ(start, fde.start);
  EXPECT_EQ(size, fde.size);
}

Bytes cie_head(uint8_t version, std::string_view augmentation) {
  Bytes bytes;
  bytes.u8(version).text(augmentation);
  if (version >= 4) bytes.u8(8).u8(0);
  return bytes.u8(4).u8(0x7c).u8(30);
}

TEST(Reader, EmptySection) {
  const ReadFdes read = read_all(Section{});
  EXPECT_TRUE(read.fdes.empty());
  EXPECT_EQ(0u, read.defects.total());
}

TEST(Reader, FdeOfEhFrame) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie();
  const uint64_t fde = builder.fde(cie, 0x1234, 0x10, {0x41, 0, 0});
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(1u, read.fdes.size());
  expect_fde(read.fdes[0], fde, 0x1234, 0x10);
  EXPECT_EQ(3u, read.fdes[0].instructions.size());
  ASSERT_EQ(1u, read.cies.size());
  EXPECT_EQ(1u, read.cies[0].code_alignment);
  EXPECT_EQ(-8, read.cies[0].data_alignment);
  EXPECT_EQ(16u, read.cies[0].return_register);
  EXPECT_EQ(5u, read.cies[0].instructions.size());
  EXPECT_EQ(0u, read.defects.total());
}

TEST(Reader, FdeOfDebugFrame) {
  SectionBuilder builder(true);
  builder.fde(builder.cie(), 1, 1);  // so that the next CIE is not at offset 0
  const uint64_t cie = builder.cie();
  const uint64_t fde = builder.fde(cie, 0x1234, 0x10, {0x41});
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(2u, read.fdes.size());
  expect_fde(read.fdes[1], fde, 0x1234, 0x10);
  EXPECT_EQ(cie, read.cies[read.fdes[1].cie].offset);
  EXPECT_EQ(1u, read.fdes[1].instructions.size());
}

TEST(Reader, CieBehindItsFde) {
  SectionBuilder builder(true);
  const uint64_t fde_size = 4 + 4 + 16;
  builder.fde(fde_size, 0x1234, 0x10);
  EXPECT_EQ(fde_size, builder.cie());
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(1u, read.fdes.size());
  EXPECT_EQ(0u, read.defects.total());
}

TEST(Reader, Lengths64Bit) {
  for (const bool debug_frame : {false, true}) {
    SectionBuilder builder(debug_frame);
    builder.cie();
    const uint64_t cie = builder.cie_of(cie_head(3, ""), true);
    const uint64_t fde = builder.fde_of(cie, Bytes().u64(0x1234).u64(0x10), true);
    const ReadFdes read = read_all(builder.section());
    ASSERT_EQ(1u, read.fdes.size()) << debug_frame;
    expect_fde(read.fdes[0], fde, 0x1234, 0x10);
    EXPECT_EQ(30u, read.cies[0].return_register);
    EXPECT_EQ(0u, read.defects.total());
  }
}

TEST(Reader, CieVersions) {
  for (const uint8_t version : {1, 3, 4, 5}) {
    SectionBuilder builder(true);
    Bytes contents;
    contents.u8(version).text("");
    if (version >= 4) contents.u8(8).u8(0);
    contents.u8(4).u8(0x7c);
    if (version == 1) {
      contents.u8(0x90);  // one byte, not the beginning of a LEB128
    } else {
      contents.add({0x90, 1});
    }
    const uint64_t cie = builder.cie_of(contents.add({0, 0}));
    builder.fde(cie, 1, 1);
    const ReadFdes read = read_all(builder.section());
    ASSERT_EQ(1u, read.fdes.size()) << version;
    EXPECT_EQ(version, read.cies[0].version);
    EXPECT_EQ(4u, read.cies[0].code_alignment);
    EXPECT_EQ(-4, read.cies[0].data_alignment);
    EXPECT_EQ(0x90u, read.cies[0].return_register);
    EXPECT_EQ(2u, read.cies[0].instructions.size());
  }
  for (const uint8_t version : {0, 2, 6}) {
    SectionBuilder builder(true);
    builder.fde(builder.cie_of(cie_head(version, "")), 1, 1);
    const ReadFdes read = read_all(builder.section());
    EXPECT_TRUE(read.fdes.empty());
    EXPECT_EQ(1u, read.defects.bad_cie);
  }
}

TEST(Reader, SegmentSelectorsArePassedOver) {
  SectionBuilder builder(true);
  const uint64_t cie = builder.cie_of(Bytes{4, 0, 8, 2, 1, 0x78, 16});
  const uint64_t fde = builder.fde_of(cie, Bytes{1, 1}.u64(0x1234).u64(0x10));
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(1u, read.fdes.size());
  expect_fde(read.fdes[0], fde, 0x1234, 0x10);
}

TEST(Reader, OtherAddressSizesAreCounted) {
  SectionBuilder builder(true);
  const uint64_t cie = builder.cie_of(Bytes{4, 0, 4, 0, 1, 0x78, 16});
  builder.fde_of(cie, Bytes().u32(0x1234).u32(0x10));
  builder.fde_of(cie, Bytes().u32(0x1244).u32(0x10));
  const ReadFdes read = read_all(builder.section());
  EXPECT_TRUE(read.fdes.empty());
  EXPECT_EQ(2u, read.defects.bad_cie);
  EXPECT_EQ(2u, read.defects.total());
}

TEST(Reader, Augmentations) {
  const uint8_t pcrel4 = DW_EH_PE_pcrel | DW_EH_PE_sdata4;
  SectionBuilder builder;
  const uint64_t cie = builder.cie_of(cie_head(1, "zPLRSBG")
                                          .u8(1 + 4 + 1 + 1 + 3)
                                          .u8(DW_EH_PE_indirect | pcrel4)
                                          .u32(99)
                                          .u8(0x1c)
                                          .u8(pcrel4)
                                          .add({0, 0, 0})  // more than the letters need
                                          .add({0, 0, 0, 0}));
  const uint64_t here = builder.position() + 8 + SectionBuilder::kAddress;
  const uint64_t fde =
      builder.fde_of(cie, Bytes().u32(uint32_t(0x1234 - here)).u32(0x10).u8(8).u64(0x77).add({0x41, 0x42}));
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(1u, read.fdes.size());
  expect_fde(read.fdes[0], fde, 0x1234, 0x10);
  EXPECT_EQ(2u, read.fdes[0].instructions.size());
  EXPECT_EQ(pcrel4, read.cies[0].pointer_encoding);
  EXPECT_EQ(0x1c, read.cies[0].lsda_encoding);
  EXPECT_TRUE(read.cies[0].has_augmentation_data);
  EXPECT_TRUE(read.cies[0].signal_frame);
  EXPECT_EQ(4u, read.cies[0].instructions.size());
}

TEST(Reader, AugmentationWithoutLength) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie_of(cie_head(1, "RS").u8(DW_EH_PE_udata4).add({0, 0}));
  builder.fde_of(cie, Bytes().u32(0x1234).u32(0x10).u8(0x41));
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(1u, read.fdes.size());
  EXPECT_EQ(0x1234u, read.fdes[0].start);
  EXPECT_EQ(1u, read.fdes[0].instructions.size());
  EXPECT_EQ(2u, read.cies[0].instructions.size());
  EXPECT_TRUE(read.cies[0].signal_frame);
  EXPECT_FALSE(read.cies[0].has_augmentation_data);
}

TEST(Reader, AugmentationOfOldGcc) {
  SectionBuilder builder;
  const uint64_t cie =
      builder.cie_of(Bytes().u8(1).text("eh").u64(0x1122334455667788).u8(4).u8(0x7c).u8(16).u8(0));
  builder.fde_of(cie, Bytes().u64(0x1234).u64(0x10));
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(1u, read.fdes.size());
  EXPECT_EQ(4u, read.cies[0].code_alignment);
  EXPECT_EQ(1u, read.cies[0].instructions.size());
}

TEST(Reader, OmittedPersonality) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie_of(cie_head(1, "zPR").u8(2).u8(DW_EH_PE_omit).u8(DW_EH_PE_udata4));
  builder.fde_of(cie, Bytes().u32(0x1234).u32(0x10).u8(0));
  EXPECT_EQ(1u, read_all(builder.section()).fdes.size());
}

TEST(Reader, BadCies) {
  const Bytes cases[] = {
      cie_head(1, "zQ").u8(1).u8(0),                       // unknown letter
      cie_head(1, "Q"),                                    //
      cie_head(1, "zRRRRRRRRRRRRRRRRRRR").u8(20).u64(0),   // overlong augmentation
      cie_head(1, "zR").u8(0x50).u8(0),                    // augmentation data past the entry
      cie_head(1, "zR").u8(0),                             // and too short for its letters
      cie_head(1, "zP").u8(3).u8(DW_EH_PE_udata4).u16(0),  //
      cie_head(1, "zP").u8(5).u8(0x05).u32(0),             // personality of unknown encoding
      Bytes{1, 'z', 'R'},                                  // no end of the string
      Bytes{1, 0, 1},                                      // ends in the alignments
      Bytes{1, 0, 1, 0x78},                                //
      Bytes{3, 0, 1, 0x78, 0x80},                          // and in the return register
      Bytes{4, 0, 8},                                      //
      Bytes{4, 0, 8, 9, 1, 0x78, 16},                      // segment selectors of no size that there is
      Bytes{},                                             //
      Bytes{1, 'e', 'h', 0, 1, 2, 3},                      // no room for the pointer of "eh"
      Bytes(cie_head(3, ""))
          .add(Bytes().text(std::string(kMaxInitialInstructions, '\0'))),  // too many instructions
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SectionBuilder builder;
    const uint64_t bad = builder.cie_of(cases[i]);
    builder.fde_of(bad, Bytes().u64(1).u64(1).u64(0));
    builder.fde(builder.cie(), 0x1234, 0x10);  // which is read all the same
    const ReadFdes read = read_all(builder.section());
    EXPECT_EQ(1u, read.defects.bad_cie) << i;
    EXPECT_EQ(1u, read.defects.total()) << i;
    ASSERT_EQ(1u, read.fdes.size()) << i;
    EXPECT_EQ(0x1234u, read.fdes[0].start);
  }
}

TEST(Reader, FdeThatNamesNoCie) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie();
  const uint64_t fde = builder.fde(cie, 1, 1);
  builder.fde(fde, 2, 1);                                    // an FDE
  builder.fde(cie + 4, 3, 1);                                // not the beginning of an entry
  builder.entry(Bytes().u32(0x100000).u64(4).u64(1).u8(0));  // before the section
  builder.fde(0x7ff0, 5, 1);                                 // behind it (the distance wraps)
  builder.fde(cie, 6, 1);
  const ReadFdes read = read_all(builder.section());
  EXPECT_EQ(4u, read.defects.bad_cie);
  ASSERT_EQ(2u, read.fdes.size());
  EXPECT_EQ(6u, read.fdes[1].start);

  SectionBuilder debug(true);
  debug.fde(0x100000, 1, 1);
  debug.fde(0, 2, 1);  // itself no CIE
  EXPECT_EQ(2u, read_all(debug.section()).defects.bad_cie);
}

TEST(Reader, FdesOfManyCiesInTurns) {
  SectionBuilder builder;
  std::vector<uint64_t> cies;
  for (int i = 0; i < 100; ++i) {
    cies.push_back(
        builder.cie_of(Bytes().u8(1).text("zR").u8(static_cast<uint8_t>(i + 1)).u8(0x78).u8(16).u8(1).u8(0)));
  }
  for (int round = 0; round < 3; ++round) {
    for (const uint64_t cie : cies) builder.fde(cie, 0x1000, 1);
  }
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(300u, read.fdes.size());
  EXPECT_EQ(100u, read.cies.size());
  for (size_t i = 0; i < 300; ++i) EXPECT_EQ(i % 100 + 1, read.cies[read.fdes[i].cie].code_alignment);
}

TEST(Reader, EveryEncodingOfAddresses) {
  struct Case {
    int encoding;
    Bytes address;
    uint64_t expected;
    Bytes size{0x10};
  };
  SectionBuilder probe;
  probe.cie();
  const uint64_t here = SectionBuilder::kAddress + probe.position() + 8;  // of an FDE's start
  const Case cases[] = {
      {DW_EH_PE_absptr, Bytes().u64(0x123456789a), 0x123456789a, Bytes().u64(0x10)},
      {DW_EH_PE_udata8, Bytes().u64(0x123456789a), 0x123456789a, Bytes().u64(0x10)},
      {DW_EH_PE_udata4, Bytes().u32(0x80001234), 0x80001234, Bytes().u32(0x10)},
      {DW_EH_PE_udata2, Bytes().u16(0x8234), 0x8234, Bytes().u16(0x10)},
      {DW_EH_PE_uleb128, Bytes{0xb9, 0x64}, 12857, Bytes{0x10}},
      {DW_EH_PE_pcrel | DW_EH_PE_sdata8, Bytes().u64(uint64_t(-16)), here - 16, Bytes().u64(0x10)},
      {DW_EH_PE_pcrel | DW_EH_PE_sdata4, Bytes().u32(uint32_t(-16)), here - 16, Bytes().u32(0x10)},
      {DW_EH_PE_pcrel | DW_EH_PE_sdata2, Bytes().u16(uint16_t(-16)), here - 16, Bytes().u16(0x10)},
      {DW_EH_PE_pcrel | DW_EH_PE_sleb128, Bytes{0x70}, here - 16, Bytes{0x10}},
      {DW_EH_PE_textrel | DW_EH_PE_udata4, Bytes().u32(0x10), 0x700010, Bytes().u32(0x10)},
      {DW_EH_PE_datarel | DW_EH_PE_sdata4, Bytes().u32(uint32_t(-1)), 0x8fffff, Bytes().u32(0x10)},
      {DW_EH_PE_aligned, Bytes(), 0x1234, Bytes().u64(0x10)},  // made below
  };
  for (const Case& c : cases) {
    SectionBuilder builder;
    const uint64_t cie = builder.cie(static_cast<uint8_t>(c.encoding));
    Bytes address = c.address;
    if (c.encoding == DW_EH_PE_aligned) {
      while ((here + address.size()) % 8 != 0) address.u8(0xee);
      address.u64(c.expected);
    }
    builder.fde_of(cie, address.add(c.size).u8(0).u8(0x41));
    Section section = builder.section();
    section.text_base = 0x700000;
    section.data_base = 0x900000;
    const ReadFdes read = read_all(section);
    ASSERT_EQ(1u, read.fdes.size()) << std::hex << c.encoding;
    EXPECT_EQ(c.expected, read.fdes[0].start) << std::hex << c.encoding;
    EXPECT_EQ(0x10u, read.fdes[0].size) << std::hex << c.encoding;
    EXPECT_EQ(1u, read.fdes[0].instructions.size()) << std::hex << c.encoding;
  }
}

TEST(Reader, AddressesThatCannotBeDecoded) {
  for (const int encoding : {int{DW_EH_PE_omit}, DW_EH_PE_indirect | DW_EH_PE_pcrel | DW_EH_PE_sdata4,
                             DW_EH_PE_funcrel | DW_EH_PE_sdata4, 0x05, 0x60}) {
    SectionBuilder builder;
    builder.fde_of(builder.cie(static_cast<uint8_t>(encoding)), Bytes().u64(1).u64(1).u8(0));
    builder.fde(builder.cie(), 0x1234, 0x10);
    const ReadFdes read = read_all(builder.section());
    EXPECT_EQ(1u, read.defects.bad_pointer) << encoding;
    EXPECT_EQ(1u, read.defects.total()) << encoding;
    EXPECT_EQ(1u, read.fdes.size()) << encoding;
  }
  SectionBuilder builder;
  const uint64_t cie = builder.cie();
  builder.fde_of(cie, Bytes().u64(1).u32(1));  // ends in the size
  builder.fde_of(cie, Bytes().u32(1));         // and in the start
  builder.fde(cie, UINT64_MAX - 5, 0x10);      // wraps around
  EXPECT_EQ(3u, read_all(builder.section()).defects.bad_pointer);
}

TEST(Reader, FdesOfNoCodeAreLeftOut) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie();
  builder.fde(cie, 0x1000, 0);
  builder.fde(cie, 0x1000, 1);
  const ReadFdes read = read_all(builder.section());
  EXPECT_EQ(1u, read.fdes.size());
  EXPECT_EQ(0u, read.defects.total());
}

TEST(Reader, OrderAndOverlapsAreKept) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie();
  builder.fde(cie, 0x3000, 0x100);
  builder.fde(cie, 0x1000, 0x100);
  builder.fde(cie, 0x1080, 0x100);
  builder.fde(cie, 0x1000, 0x100);
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(4u, read.fdes.size());
  EXPECT_EQ(0x3000u, read.fdes[0].start);
  EXPECT_EQ(0x1000u, read.fdes[1].start);
  EXPECT_EQ(0x1080u, read.fdes[2].start);
  EXPECT_EQ(0x1000u, read.fdes[3].start);
}

TEST(Reader, TerminatorsInTheMiddle) {
  SectionBuilder builder;
  builder.fde(builder.cie(), 0x1000, 1);
  builder.raw().u32(0);
  builder.fde(builder.cie(), 0x2000, 1);  // a whole section joined on
  builder.raw().u32(0).u32(0);
  builder.fde(0, 0x3000, 1);  // an FDE first
  builder.raw().u32(0);
  const ReadFdes read = read_all(builder.section());
  ASSERT_EQ(3u, read.fdes.size());
  EXPECT_EQ(0x3000u, read.fdes[2].start);
  EXPECT_EQ(0u, read.defects.total());
}

TEST(Reader, WhatIsNoEntryBehindATerminatorEndsTheReading) {
  const Bytes cases[] = {
      Bytes{1, 2, 3},                        // too short for a length
      Bytes().u32(0x7fffffff).u64(0),        // a length past the end
      Bytes().u32(8).u32(3).u32(0),          // an FDE of no CIE
      Bytes().u32(12).u32(0).u32(9).u32(9),  // a CIE of unknown version
      Bytes().u32(2).u16(0),                 // no room for an id
  };
  for (size_t i = 0; i < std::size(cases); ++i) {
    SectionBuilder builder;
    const uint64_t cie = builder.cie();
    builder.fde(cie, 0x1000, 1);
    builder.raw().u32(0).add(cases[i]);
    builder.fde(cie, 0x2000, 1);
    const ReadFdes read = read_all(builder.section());
    EXPECT_EQ(1u, read.fdes.size()) << i;
    EXPECT_EQ(0u, read.defects.total()) << i;
  }
}

TEST(Reader, EntriesPastTheEnd) {
  for (const bool is_64_bit : {false, true}) {
    SectionBuilder builder;
    builder.fde(builder.cie(), 0x1000, 1);
    if (is_64_bit) {
      builder.raw().u32(0xffffffff).u64(UINT64_MAX - 2).u64(0);
    } else {
      builder.raw().u32(100).u64(0);
    }
    const ReadFdes read = read_all(builder.section());
    EXPECT_EQ(1u, read.fdes.size());
    EXPECT_EQ(1u, read.defects.truncated);
    EXPECT_EQ(1u, read.defects.total());
  }
  for (const Bytes& tail : {Bytes{1, 2}, Bytes().u32(0xffffffff).u32(1), Bytes().u32(0xfffffff0).u64(0)}) {
    SectionBuilder builder;
    builder.fde(builder.cie(), 0x1000, 1);
    builder.raw().add(tail);
    EXPECT_EQ(1u, read_all(builder.section()).defects.truncated);
  }
}

TEST(Reader, EntriesTooShortForTheirFields) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie();
  builder.raw().u32(2).u16(7);                                   // no room for an id
  builder.fde_of(cie, Bytes().u64(0x1000).u64(1).u8(20).u8(0));  // augmentation data past the entry
  builder.fde_of(cie, Bytes().u64(0x1000).u64(1));               // no length of it
  builder.fde(cie, 0x2000, 1);
  const ReadFdes read = read_all(builder.section());
  EXPECT_EQ(3u, read.defects.truncated);
  ASSERT_EQ(1u, read.fdes.size());
  EXPECT_EQ(0x2000u, read.fdes[0].start);
}

// A prefix of a section gives a prefix of its FDEs, whatever the cut.
TEST(Reader, EveryPrefix) {
  SectionBuilder builder;
  const uint64_t cie = builder.cie();
  builder.fde(cie, 0x1000, 8, {0x41, 0x0e, 16});
  builder.fde(builder.cie(), 0x2000, 8);
  const Section whole = builder.section();
  for (size_t size = 0; size <= whole.bytes.size(); ++size) {
    const std::vector<std::byte> copy(whole.bytes.begin(), whole.bytes.begin() + static_cast<long>(size));
    Section section = whole;
    section.bytes = copy;
    const ReadFdes read = read_all(section);
    ASSERT_LE(read.fdes.size(), 2u);
    for (size_t i = 0; i < read.fdes.size(); ++i) EXPECT_EQ(0x1000u * (i + 1), read.fdes[i].start);
    EXPECT_LE(read.defects.total(), 1u);
  }
}

}  // namespace
}  // namespace clew::cfi::test
