#include "collect/perf/ring.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "collect/synthetic_ring.hpp"

namespace clew::collect::perf {
namespace {

using tests::RecordBytes;
using tests::SyntheticRing;

struct Seen {
  std::vector<std::pair<uint32_t, std::vector<std::byte>>> records;
  uint64_t malformed = 0;
  uint64_t tail = 0;
};

Seen read_all(std::span<const std::byte> data, uint64_t tail, uint64_t head) {
  Seen seen;
  seen.tail = for_each_record(data, tail, head, seen.malformed, [&](const RecordView& record) {
    std::vector<std::byte> bytes(record.size());
    EXPECT_TRUE(record.copy(0, bytes.data(), bytes.size()));
    seen.records.emplace_back(record.type(), bytes);
  });
  return seen;
}

std::vector<std::byte> comm(const std::string& name) {
  return RecordBytes(PERF_RECORD_COMM).add<uint32_t>(1).add<uint32_t>(2).text(name).trailer(1, 2, 3).done();
}

TEST(Ring, ReadsRecordsThatWrapAtEveryPlace) {
  const std::vector<std::byte> first = comm("first"), second = comm("the second one");
  for (uint64_t position = 0; position < 128; ++position) {
    SyntheticRing ring(128, (uint64_t{1} << 32) * 128 + position);
    ring.write(first);
    ring.write(second);
    const Seen seen = read_all(ring.data(), ring.tail(), ring.head());
    ASSERT_EQ(seen.records.size(), 2u);
    EXPECT_EQ(seen.records[0].second, first);
    EXPECT_EQ(seen.records[1].second, second);
    EXPECT_EQ(seen.tail, ring.head());
    EXPECT_EQ(seen.malformed, 0u);
  }
}

TEST(Ring, CountersThatOverflowAreNoEnd) {
  SyntheticRing ring(128, std::numeric_limits<uint64_t>::max() - 20);
  ring.write(comm("over"));
  const Seen seen = read_all(ring.data(), ring.tail(), ring.head());
  ASSERT_EQ(seen.records.size(), 1u);
  EXPECT_EQ(seen.records[0].second, comm("over"));
}

TEST(Ring, ASizeBelowTheHeaderIsCountedAndEndsTheReading) {
  for (uint16_t size = 0; size < 8; ++size) {
    std::vector<std::byte> bytes = comm("x");
    std::memcpy(bytes.data() + 6, &size, sizeof size);
    SyntheticRing ring(256, 0);
    ring.write(bytes);
    ring.write(comm("never reached"));
    const Seen seen = read_all(ring.data(), ring.tail(), ring.head());
    EXPECT_TRUE(seen.records.empty());
    EXPECT_EQ(seen.malformed, 1u);
    EXPECT_EQ(seen.tail, ring.head());
  }
}

TEST(Ring, ASizeBeyondTheHeadIsNotRead) {
  std::vector<std::byte> bytes = comm("x");
  const uint16_t size = 65535;
  std::memcpy(bytes.data() + 6, &size, sizeof size);
  SyntheticRing ring(128, 64);
  ring.write(bytes);
  const Seen seen = read_all(ring.data(), ring.tail(), ring.head());
  EXPECT_TRUE(seen.records.empty());
  EXPECT_EQ(seen.malformed, 1u);
}

TEST(Ring, AHeadFurtherThanTheRingIsLongIsMalformed) {
  const std::vector<std::byte> data(128);
  const Seen seen = read_all(data, 0, 129);
  EXPECT_TRUE(seen.records.empty());
  EXPECT_EQ(seen.malformed, 1u);
  EXPECT_EQ(seen.tail, 129u);
}

TEST(Ring, AHeaderCutByTheHeadIsMalformed) {
  const std::vector<std::byte> data(128);
  const Seen seen = read_all(data, 0, 7);
  EXPECT_EQ(seen.malformed, 1u);
  EXPECT_EQ(seen.tail, 7u);
}

TEST(Ring, ReadsOfARecordStayInside) {
  SyntheticRing ring(128, 120);
  ring.write(comm("inside"));
  uint64_t malformed = 0;
  for_each_record(ring.data(), ring.tail(), ring.head(), malformed, [](const RecordView& record) {
    uint64_t value = 0;
    EXPECT_TRUE(record.read(record.size() - 8, value));
    EXPECT_FALSE(record.read(record.size() - 7, value));
    EXPECT_FALSE(record.read(record.size() + 1, value));
    EXPECT_FALSE(record.read(std::numeric_limits<size_t>::max() - 3, value));
  });
}

TEST(Ring, RandomBytesAreReadWithoutHarm) {
  std::mt19937_64 random(1);
  std::vector<std::byte> data(4096);
  for (int round = 0; round < 2000; ++round) {
    for (std::byte& byte : data) byte = static_cast<std::byte>(random() & (round % 2 != 0 ? 0xff : 0x1f));
    const uint64_t tail = random();
    const Seen seen = read_all(data, tail, tail + random() % 5000);
    EXPECT_LE(seen.records.size(), data.size() / 8);
  }
}

}  // namespace
}  // namespace clew::collect::perf
