#include "collect/perf/record.hpp"

#include <gtest/gtest.h>

#include <random>

#include "collect/synthetic_ring.hpp"

namespace clew::collect::perf {
namespace {

using tests::RecordBytes;
using tests::sample_bytes;
using tests::SyntheticRing;
using tests::SyntheticSample;

struct Appended {
  Round round;
  AppendResult result;
};

Appended append(const std::vector<std::byte>& bytes, bool with_chain, size_t room = 1 << 20,
                uint64_t position = 0) {
  SyntheticRing ring(1 << 17, position);
  ring.write(bytes);
  Appended appended;
  uint64_t malformed = 0;
  for_each_record(ring.data(), ring.tail(), ring.head(), malformed, [&](const RecordView& record) {
    appended.result = append_record(record, with_chain, room, appended.round);
  });
  EXPECT_EQ(malformed, 0u);
  return appended;
}

TEST(Record, ASampleKeepsRegistersAndTheCopiedStackOnly) {
  for (const uint64_t position : {uint64_t{0}, uint64_t{(1 << 17) - 100}}) {
    const Appended appended = append(sample_bytes({}), false, 1 << 20, position);
    ASSERT_EQ(appended.round.entries.size(), 1u);
    EXPECT_EQ(appended.round.entries[0].time_ns, 1000u);
    Sample sample = {};
    ASSERT_TRUE(read_sample(entry_bytes(appended.round, appended.round.entries[0]), sample));
    EXPECT_EQ(sample.head.ip, 0x401000u);
    EXPECT_EQ(sample.head.pid, 10u);
    EXPECT_EQ(sample.head.tid, 11u);
    EXPECT_EQ(sample.head.period, 1'001'001u);
    EXPECT_EQ(sample.head.stack_asked, 64u);
    ASSERT_EQ(sample.stack.size(), 24u);
    for (size_t i = 0; i < 24; ++i) EXPECT_EQ(sample.stack[i], static_cast<std::byte>(i));
    for (size_t i = 0; i < 17; ++i) EXPECT_EQ(sample.head.registers[i], 0x1000 + i);
    EXPECT_EQ(appended.round.bytes.size(), sizeof(SampleHead) + 24);
  }
}

TEST(Record, ASampleWithAKernelChain) {
  SyntheticSample wanted;
  wanted.with_chain = true;
  wanted.chain = {PERF_CONTEXT_KERNEL, 0xffffffff81000010, 0xffffffff81000020};
  const Appended appended = append(sample_bytes(wanted), true);
  ASSERT_EQ(appended.round.entries.size(), 1u);
  Sample sample = {};
  ASSERT_TRUE(read_sample(entry_bytes(appended.round, appended.round.entries[0]), sample));
  ASSERT_EQ(sample.head.chain_count, 3u);
  uint64_t last = 0;
  std::memcpy(&last, sample.chain.data() + 16, 8);
  EXPECT_EQ(last, 0xffffffff81000020);
  EXPECT_EQ(sample.stack.size(), 24u);
}

TEST(Record, AKernelThreadHasNeitherRegistersNorStack) {
  SyntheticSample wanted;
  wanted.abi = PERF_SAMPLE_REGS_ABI_NONE;
  wanted.asked = 0;
  const Appended appended = append(sample_bytes(wanted), false);
  ASSERT_EQ(appended.round.entries.size(), 1u);
  Sample sample = {};
  ASSERT_TRUE(read_sample(entry_bytes(appended.round, appended.round.entries[0]), sample));
  EXPECT_EQ(sample.head.abi, 0u);
  EXPECT_EQ(sample.head.stack_asked, 0u);
  EXPECT_TRUE(sample.stack.empty());
}

TEST(Record, EveryTruncationOfASampleIsMalformedNeverRead) {
  SyntheticSample wanted;
  wanted.with_chain = true;
  wanted.chain = {1, 2, 3};
  const std::vector<std::byte> whole = sample_bytes(wanted);
  for (size_t size = 8; size < whole.size(); ++size) {
    std::vector<std::byte> cut(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
    const auto short_size = static_cast<uint16_t>(size);
    std::memcpy(cut.data() + 6, &short_size, sizeof short_size);
    const Appended appended = append(cut, true);
    EXPECT_TRUE(appended.result.malformed) << size;
    EXPECT_TRUE(appended.round.entries.empty());
  }
}

TEST(Record, HostileLengthsInsideASample) {
  for (const uint64_t count : {uint64_t{1} << 61, UINT64_MAX, uint64_t{9000}}) {
    RecordBytes record(PERF_RECORD_SAMPLE);
    record.add<uint64_t>(7).add<uint64_t>(1).add<uint64_t>(1).add<uint64_t>(1).add<uint64_t>(1).add(count);
    record.bytes(std::vector<std::byte>(512));
    EXPECT_TRUE(append(record.done(), true).result.malformed);
  }
  SyntheticSample copied_too_much;
  copied_too_much.copied = 65;
  EXPECT_TRUE(append(sample_bytes(copied_too_much), false).result.malformed);
  for (const uint64_t asked : {UINT64_MAX, UINT64_MAX - 7, uint64_t{1} << 40}) {
    RecordBytes record(PERF_RECORD_SAMPLE);
    record.add<uint64_t>(7).add<uint64_t>(1).add<uint64_t>(1).add<uint64_t>(1).add<uint64_t>(1).add<uint64_t>(
        0);
    record.add(asked).bytes(std::vector<std::byte>(64));
    EXPECT_TRUE(append(record.done(), false).result.malformed);
  }
}

TEST(Record, OnlySamplesAreDroppedForWantOfRoom) {
  const Appended sample = append(sample_bytes({}), false, sizeof(SampleHead) + 23);
  EXPECT_TRUE(sample.result.dropped);
  EXPECT_TRUE(sample.round.bytes.empty());
  EXPECT_FALSE(append(sample_bytes({}), false, sizeof(SampleHead) + 24).result.dropped);
  const std::vector<std::byte> fork = RecordBytes(PERF_RECORD_FORK)
                                          .add<uint32_t>(5)
                                          .add<uint32_t>(4)
                                          .add<uint32_t>(5)
                                          .add<uint32_t>(4)
                                          .add<uint64_t>(99)
                                          .trailer(4, 4, 99)
                                          .done();
  const Appended kept = append(fork, false, 0);
  ASSERT_EQ(kept.round.entries.size(), 1u);
  EXPECT_EQ(kept.round.entries[0].time_ns, 99u);
  Task task = {};
  ASSERT_TRUE(read_task(entry_bytes(kept.round, kept.round.entries[0]), task));
  EXPECT_EQ(task.pid, 5u);
  EXPECT_EQ(task.ppid, 4u);
}

TEST(Record, MappingsCommsAndLosses) {
  const std::vector<std::byte> mmap2 = RecordBytes(PERF_RECORD_MMAP2)
                                           .add<uint32_t>(5)
                                           .add<uint32_t>(6)
                                           .add<uint64_t>(0x7f0000001000)
                                           .add<uint64_t>(0x2000)
                                           .add<uint64_t>(0x3000)
                                           .add<uint32_t>(8)
                                           .add<uint32_t>(1)
                                           .add<uint64_t>(1234)
                                           .add<uint64_t>(42)
                                           .add<uint32_t>(5)
                                           .add<uint32_t>(2)
                                           .text("/usr/lib/libx.so")
                                           .trailer(5, 6, 77)
                                           .done();
  const Appended mapped = append(mmap2, false);
  Mmap2 mapping = {};
  ASSERT_TRUE(read_mmap2(entry_bytes(mapped.round, mapped.round.entries.at(0)), mapping));
  EXPECT_EQ(mapping.address, 0x7f0000001000u);
  EXPECT_EQ(mapping.length, 0x2000u);
  EXPECT_EQ(mapping.offset, 0x3000u);
  EXPECT_EQ(mapping.inode, 1234u);
  EXPECT_EQ(mapping.generation, 42u);
  EXPECT_EQ(mapping.path, "/usr/lib/libx.so");

  const std::vector<std::byte> exec = RecordBytes(PERF_RECORD_COMM, PERF_RECORD_MISC_COMM_EXEC)
                                          .add<uint32_t>(5)
                                          .add<uint32_t>(6)
                                          .text("cc1plus")
                                          .trailer(5, 6, 78)
                                          .done();
  const Appended named = append(exec, false);
  Comm comm = {};
  const Entry& entry = named.round.entries.at(0);
  ASSERT_TRUE(read_comm(entry_bytes(named.round, entry), entry.misc, comm));
  EXPECT_EQ(comm.name, "cc1plus");
  EXPECT_TRUE(comm.exec);

  const Appended lost = append(
      RecordBytes(PERF_RECORD_LOST).add<uint64_t>(1).add<uint64_t>(321).trailer(0, 0, 1).done(), false);
  EXPECT_EQ(read_lost(entry_bytes(lost.round, lost.round.entries.at(0)), PERF_RECORD_LOST), 321u);
  const Appended lost_samples =
      append(RecordBytes(PERF_RECORD_LOST_SAMPLES).add<uint64_t>(12).trailer(0, 0, 1).done(), false);
  EXPECT_EQ(
      read_lost(entry_bytes(lost_samples.round, lost_samples.round.entries.at(0)), PERF_RECORD_LOST_SAMPLES),
      12u);
}

TEST(Record, AMappingThatWrapsAroundTheAddressSpaceIsRefused) {
  const std::vector<std::byte> bytes = RecordBytes(PERF_RECORD_MMAP2)
                                           .add<uint64_t>(1)
                                           .add<uint64_t>(0xfffffffffffff000)
                                           .add<uint64_t>(0x2000)
                                           .bytes(std::vector<std::byte>(40))
                                           .text("x")
                                           .trailer(1, 1, 1)
                                           .done();
  const Appended appended = append(bytes, false);
  Mmap2 mapping = {};
  EXPECT_FALSE(read_mmap2(entry_bytes(appended.round, appended.round.entries.at(0)), mapping));
}

TEST(Record, RandomRecordsAreDecodedWithoutHarm) {
  std::mt19937_64 random(7);
  for (int turn = 0; turn < 20'000; ++turn) {
    RecordBytes record(static_cast<uint32_t>(random() % 14), static_cast<uint16_t>(random()));
    for (uint64_t words = random() % 40; words != 0; --words)
      record.add<uint64_t>(random() % 4 != 0 ? random() % 64 : random());
    const Appended appended = append(record.done(), turn % 2 != 0);
    for (const Entry& entry : appended.round.entries) {
      const auto bytes = entry_bytes(appended.round, entry);
      Sample sample = {};
      Mmap2 mmap2 = {};
      Task task = {};
      Comm comm = {};
      read_sample(bytes, sample);
      read_mmap2(bytes, mmap2);
      read_task(bytes, task);
      read_comm(bytes, entry.misc, comm);
      read_lost(bytes, entry.type);
    }
  }
}

}  // namespace
}  // namespace clew::collect::perf
