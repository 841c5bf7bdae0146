#include "cfi/cursor.hpp"

#include <gtest/gtest.h>

#include <limits>

#include "cfi/section_builder.hpp"

namespace clew::cfi::test {
namespace {

struct Uleb {
  Bytes bytes;
  uint64_t value;
};
struct Sleb {
  Bytes bytes;
  int64_t value;
};

// The examples of DWARF 5 tables 7.7 and 7.8, then the ends of the ranges and padded forms.
TEST(Cursor, UnsignedLeb128) {
  const Uleb cases[] = {
      {{2}, 2},
      {{127}, 127},
      {{0x80, 1}, 128},
      {{0x81, 1}, 129},
      {{0xb9, 0x64}, 12857},
      {{0x80, 0x80, 0x80, 0}, 0},
      {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1}, UINT64_MAX},
      {{0x83, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0}, 3},
  };
  for (const Uleb& c : cases) {
    Cursor cursor(c.bytes.bytes());
    EXPECT_EQ(c.value, cursor.uleb());
    EXPECT_TRUE(cursor.ok() && cursor.done());
  }
}

TEST(Cursor, SignedLeb128) {
  const Sleb cases[] = {
      {{2}, 2},
      {{0x7e}, -2},
      {{0xff, 0}, 127},
      {{0x81, 0x7f}, -127},
      {{0x80, 1}, 128},
      {{0x80, 0x7f}, -128},
      {{0x81, 1}, 129},
      {{0xff, 0x7e}, -129},
      {{0xff, 0xff, 0xff, 0x7f}, -1},
      {{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x7f}, std::numeric_limits<int64_t>::min()},
      {{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x00}, std::numeric_limits<int64_t>::max()},
      {{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f}, -2},
  };
  for (const Sleb& c : cases) {
    Cursor cursor(c.bytes.bytes());
    EXPECT_EQ(c.value, cursor.sleb());
    EXPECT_TRUE(cursor.ok() && cursor.done()) << c.value;
  }
}

TEST(Cursor, NumbersOfMoreThan64BitsFail) {
  const Bytes high_bit{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2};
  const Bytes behind{0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1};
  for (const Bytes& bytes : {high_bit, behind}) {
    Cursor a(bytes.bytes());
    EXPECT_EQ(0u, a.uleb());
    EXPECT_FALSE(a.ok());
    Cursor b(bytes.bytes());
    EXPECT_EQ(0, b.sleb());
    EXPECT_FALSE(b.ok());
  }
}

TEST(Cursor, ReadsStopAtTheEnd) {
  const Bytes bytes{0x80, 0x80, 0x80};
  Cursor uleb(bytes.bytes());
  EXPECT_EQ(0u, uleb.uleb());
  EXPECT_FALSE(uleb.ok());
  Cursor sleb(bytes.bytes());
  EXPECT_EQ(0, sleb.sleb());
  EXPECT_FALSE(sleb.ok());
  Cursor fixed(bytes.bytes());
  EXPECT_EQ(0x8080, fixed.fixed<uint16_t>());
  EXPECT_EQ(0, fixed.fixed<uint16_t>());
  EXPECT_FALSE(fixed.ok());
  Cursor skip(bytes.bytes());
  EXPECT_EQ(nullptr, skip.skip(UINT64_MAX));
  EXPECT_FALSE(skip.ok());
  EXPECT_TRUE(skip.done());
}

}  // namespace
}  // namespace clew::cfi::test
