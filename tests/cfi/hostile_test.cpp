// Damaged and malicious sections: no crash (run under the sanitizers), promises kept, work bounded.
#include <gtest/gtest.h>

#include <random>

#include "cfi/elf_sections.hpp"
#include "cfi/exercise.hpp"
#include "cfi/section_builder.hpp"

namespace clew::cfi::test {
namespace {

// The same damage in every run; std::uniform_int_distribution is not the same everywhere, so plain
// remainders.
class Damage {
 public:
  uint64_t below(uint64_t bound) { return engine_() % bound; }

 private:
  std::mt19937_64 engine_{20240611};
};

// One byte anywhere, also in lengths, which hides all that follows.
TEST(Hostile, FlippedByteOfTheLoader) {
  const auto owned = find_section("/lib64/ld-linux-x86-64.so.2", ".eh_frame");
  if (!owned) GTEST_SKIP() << "no loader here";
  Damage damage;
  std::vector<std::byte> bytes = owned->bytes;
  Section section = owned->section;
  section.bytes = bytes;
  for (int round = 0; round < 300; ++round) {
    const size_t place = damage.below(bytes.size());
    const std::byte kept = bytes[place];
    bytes[place] ^= static_cast<std::byte>(1 + damage.below(255));
    const Exercised done = damage.below(4) == 0 ? exercise<Aarch64>(section) : exercise(section);
    EXPECT_LE(done.rows, bytes.size());
    bytes[place] = kept;
  }
  for (size_t place = 0; place < 64; ++place) {  // the first CIE and FDE: each value of each byte
    const std::byte kept = bytes[place];
    for (int value = 0; value < 256; ++value) {
      bytes[place] = static_cast<std::byte>(value);
      section.debug_frame = value % 2 != 0;
      exercise(section);
    }
    bytes[place] = kept;
  }
}

// Many bytes at once behind the lengths and ids, so that every entry is still found.
TEST(Hostile, FlippedBytesOfLibc) {
  const auto owned = find_section("/lib/x86_64-linux-gnu/libc.so.6", ".eh_frame");
  if (!owned) GTEST_SKIP() << "no libc here";
  EXPECT_EQ(0u, exercise(owned->section).defects.total());
  std::vector<std::pair<uint64_t, uint64_t>> bodies;  // of FDEs, behind length and id: offset and size
  Reader reader(owned->section);
  for (Fde fde; reader.next(fde);) {
    uint32_t length;
    std::memcpy(&length, owned->bytes.data() + fde.offset, sizeof length);
    bodies.push_back({fde.offset + 8, length - 4});
  }

  Damage damage;
  Defects seen;
  for (int round = 0; round < 100; ++round) {
    std::vector<std::byte> bytes = owned->bytes;
    for (int flips = 0; flips < 2000; ++flips) {
      const auto [body, size] = bodies[damage.below(bodies.size())];
      bytes[body + damage.below(size)] ^= static_cast<std::byte>(1 + damage.below(255));
    }
    Section section = owned->section;
    section.bytes = bytes;
    const Exercised done = exercise(section);
    EXPECT_LE(done.rows, bytes.size());
    EXPECT_GT(done.fdes, bodies.size() / 2);
    seen.bad_instruction += done.defects.bad_instruction;
    seen.stack_overflow += done.defects.stack_overflow;
    seen.bad_register += done.defects.bad_register;
  }
  EXPECT_GT(seen.bad_instruction, 0u);
  EXPECT_GT(seen.stack_overflow, 0u);
  EXPECT_GT(seen.bad_register, 0u);
}

TEST(Hostile, RandomBytes) {
  Damage damage;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(damage.below(300));
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(damage.below(damage.below(2) == 0 ? 256 : 20));
    Section section;
    section.bytes = bytes;
    section.debug_frame = round % 2 == 0;
    exercise(section);
  }
}

TEST(Hostile, RandomInstructions) {
  Damage damage;
  for (int round = 0; round < 5000; ++round) {
    Bytes instructions;
    const int opcodes[] = {0x41, 0x48, 0x83, 0x90, 0xc3, 0xd0, 0x0a, 0x0b,
                           0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x12, 0x16, 0x02};
    for (uint64_t left = damage.below(60); left > 0; --left) {
      instructions.u8(static_cast<uint8_t>(damage.below(4) != 0 ? opcodes[damage.below(16)]
                                                                : static_cast<int>(damage.below(256))));
    }
    SectionBuilder builder;
    builder.fde(builder.cie(), 0x1000, 1 + damage.below(100), instructions);
    exercise(builder.section());
    exercise<Aarch64>(builder.section());
  }
}

// Each FDE names another CIE, the last first, and no two CIEs share their initial row.
TEST(Hostile, ManyCies) {
  SectionBuilder builder;
  std::vector<uint64_t> cies;
  constexpr int kCies = 20000;
  for (int i = 0; i < kCies; ++i)
    cies.push_back(builder.cie(0, Bytes{0x0c, 7}.u8(uint8_t(i & 0x7f)).u8(0x83).u8(uint8_t(i >> 7 & 0x7f))));
  for (int i = kCies - 1; i >= 0; --i) builder.fde(cies[static_cast<size_t>(i)], 0x1000, 1, {});
  const Exercised done = exercise(builder.section());
  EXPECT_EQ(kCies, static_cast<int>(done.rows));
  EXPECT_EQ(0u, done.defects.total());
}

// CIEs as long as they may be, in turns: the most work that a byte of a section can make.
TEST(Hostile, LongCiesInTurns) {
  Bytes initial{0x0c, 7, 8};
  while (initial.size() + 2 <= kMaxInitialInstructions) initial.add({0x83, 2});
  Bytes other = initial;
  other.bytes()[2] = std::byte{16};
  SectionBuilder builder;
  const uint64_t one = builder.cie(0, initial);
  const uint64_t two = builder.cie(0, other);
  for (int i = 0; i < 2000; ++i) builder.fde(i % 2 == 0 ? one : two, 0x1000, 1, {});
  EXPECT_EQ(2000u, exercise(builder.section()).rows);
}

}  // namespace
}  // namespace clew::cfi::test
