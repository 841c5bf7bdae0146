// Rings as an agent writes them, and as a hostile process might.
#include "collect/inprocess/ring_reader.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "agent/ring.hpp"
#include "collect/inprocess/session.hpp"

namespace clew::collect::inprocess {
namespace {

using agent::RecordHeader;
using agent::RecordKind;
using agent::RingHeader;
using agent::SampleRecord;

constexpr uint64_t kBytes = 4096;

class AgentRing : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "clew-ring-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    directory_ = process::UniqueFd(open(folder_.c_str(), O_RDONLY | O_DIRECTORY));
    file_ = process::UniqueFd(open((folder_ + "/ring").c_str(), O_RDWR | O_CREAT, 0600));
    ASSERT_EQ(ftruncate(file_.get(), agent::kRingPage + kBytes), 0);
    put(offsetof(RingHeader, magic), agent::kRingMagic);
    put(offsetof(RingHeader, pid), uint32_t{1234});
    put(offsetof(RingHeader, bytes), kBytes);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  template <class T>
  void put(uint64_t offset, const T& value) const {
    ASSERT_EQ(pwrite(file_.get(), &value, sizeof value, static_cast<off_t>(offset)), ssize_t{sizeof value});
  }
  template <class T>
  T get(uint64_t offset) const {
    T value = {};
    EXPECT_EQ(pread(file_.get(), &value, sizeof value, static_cast<off_t>(offset)), ssize_t{sizeof value});
    return value;
  }
  void put_header(uint64_t at, uint32_t size, RecordKind kind) const {
    put(agent::kRingPage + at, size);
    put(agent::kRingPage + at + 4, static_cast<uint32_t>(kind));
  }
  /// A sample with frames 0x1000, 0x1001, ...; returns its size.
  uint32_t put_sample(uint64_t at, uint32_t frames, uint32_t end = CLEW_END_ROOT, uint8_t how = 1) const {
    const auto size = static_cast<uint32_t>((sizeof(SampleRecord) + frames * 9 + 7) / 8 * 8);
    const uint64_t base = agent::kRingPage + at;
    put(base + offsetof(SampleRecord, time_ns), uint64_t{77});
    put(base + offsetof(SampleRecord, tid), uint32_t{1235});
    put(base + offsetof(SampleRecord, periods), uint32_t{4});
    put(base + offsetof(SampleRecord, end), end);
    put(base + offsetof(SampleRecord, frames), frames);
    const char comm[16] = "worker";
    put(base + offsetof(SampleRecord, comm), comm);
    for (uint32_t i = 0; i < frames; ++i) {
      put(base + sizeof(SampleRecord) + i * 8, uint64_t{0x1000} + i);
      put(base + sizeof(SampleRecord) + frames * 8 + i, how);
    }
    put_header(at, size, RecordKind::kSample);
    return size;
  }
  void put_head(uint64_t head) const { put(offsetof(RingHeader, head), head); }

  RingReader reader() {
    auto opened = RingReader::open(directory_.get(), "ring");
    EXPECT_TRUE(opened);
    return std::move(*opened);
  }
  bool drain(RingReader& ring) {
    return ring.drain(
        [this](const RingSample& sample) {
          ++samples_;
          last_ = sample;
          comm_ = sample.comm;
          frames_.assign(sample.frames.begin(), sample.frames.end());
        },
        [this](std::string_view line) { lines_.emplace_back(line); });
  }

  std::string folder_;
  process::UniqueFd directory_, file_;
  size_t samples_ = 0;
  RingSample last_ = {};
  std::string comm_;
  std::vector<clew_frame> frames_;
  std::vector<std::string> lines_;
};

TEST_F(AgentRing, RecordsComeInOrderAndMakeRoom) {
  const char line[] = "1000-2000 r-xp 00000000 00:01 5 /lib/a.so";
  put(agent::kRingPage + sizeof(RecordHeader), line);
  put_header(0, 56, RecordKind::kMapping);
  const uint32_t size = put_sample(56, 3, CLEW_END_NO_RULE, 1 | CLEW_FRAME_EXACT_PC << 4);
  put_head(56 + size);
  RingReader ring = reader();
  EXPECT_EQ(ring.pid(), 1234);
  EXPECT_TRUE(drain(ring));
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0], line);
  ASSERT_EQ(samples_, 1u);
  EXPECT_EQ(last_.time_ns, 77u);
  EXPECT_EQ(last_.tid, 1235);
  EXPECT_EQ(last_.periods, 4u);
  EXPECT_EQ(last_.end, CLEW_END_NO_RULE);
  EXPECT_EQ(comm_, "worker");
  ASSERT_EQ(frames_.size(), 3u);
  EXPECT_EQ(frames_[2].pc, 0x1002u);
  EXPECT_EQ(frames_[2].how, uint32_t{CLEW_HOW_TABLE});
  EXPECT_EQ(frames_[2].flags, uint32_t{CLEW_FRAME_EXACT_PC});
  EXPECT_EQ(get<uint64_t>(offsetof(RingHeader, tail)), 56u + size);
  for (uint64_t at = 0; at < 56 + size; at += 8) EXPECT_EQ(get<uint64_t>(agent::kRingPage + at), 0u) << at;
  EXPECT_TRUE(drain(ring));
  EXPECT_EQ(samples_, 1u);
}

TEST_F(AgentRing, WhatIsNotWrittenYetIsWaitedFor) {
  const uint32_t size = put_sample(0, 2);
  put_header(0, 0, RecordKind::kSample);  // room was taken, no more
  const uint32_t second = put_sample(size, 2);
  put_head(size + second);
  RingReader ring = reader();
  EXPECT_TRUE(drain(ring));
  EXPECT_EQ(samples_, 0u);
  put_header(0, size, RecordKind::kSample);
  EXPECT_TRUE(drain(ring));
  EXPECT_EQ(samples_, 2u);
}

TEST_F(AgentRing, GoesRoundManyTimes) {
  RingReader ring = reader();
  uint64_t head = 0;
  for (unsigned i = 0; i < 200; ++i) {
    const uint32_t frames = 1 + i * 7 % 40;
    const auto size = static_cast<uint32_t>((sizeof(SampleRecord) + frames * 9 + 7) / 8 * 8);
    if (const uint64_t rest = kBytes - head % kBytes; rest < size) {
      put_header(head % kBytes, static_cast<uint32_t>(rest), RecordKind::kUnused);
      head += rest;
    }
    put_sample(head % kBytes, frames);
    head += size;
    put_head(head);
    ASSERT_TRUE(drain(ring));
    ASSERT_EQ(samples_, i + 1);
    ASSERT_EQ(frames_.size(), frames);
  }
}

TEST_F(AgentRing, RecordsThatMakeNoSenseAreCounted) {
  uint64_t at = put_sample(0, 2, CLEW_END_COUNT);
  at += put_sample(at, 2, CLEW_END_ROOT, CLEW_HOW_COUNT);
  const uint64_t lying = at;
  at += put_sample(at, 2);
  put(agent::kRingPage + lying + offsetof(SampleRecord, frames),
      uint32_t{100});  // more than the record holds
  put_header(at, 16, static_cast<RecordKind>(99));
  at += 16;
  put_header(at, 16, RecordKind::kSample);  // too short
  at += 16;
  at += put_sample(at, 2);  // a good one behind them
  put_head(at);
  RingReader ring = reader();
  EXPECT_TRUE(drain(ring));
  EXPECT_EQ(ring.malformed(), 5u);
  EXPECT_EQ(samples_, 1u);
}

TEST_F(AgentRing, SizesAndPositionsThatCannotBeEndTheRing) {
  for (const uint32_t size : {4u, 12u, 0xfffffff8u, 8192u}) {
    put_header(0, size, RecordKind::kSample);
    put_head(64);
    RingReader ring = reader();
    EXPECT_FALSE(drain(ring)) << size;
  }
  put_header(0, 16, RecordKind::kUnused);
  for (const uint64_t head : {kBytes + 8, uint64_t{1} << 63}) {
    put_head(head);
    RingReader ring = reader();
    EXPECT_FALSE(drain(ring)) << head;
  }
  put_head(64);
  RingReader ring = reader();
  ASSERT_EQ(ftruncate(file_.get(), agent::kRingPage + 8), 0);
  EXPECT_FALSE(drain(ring));
  EXPECT_EQ(samples_, 0u);
}

TEST_F(AgentRing, OtherFilesAreNoRings) {
  put(offsetof(RingHeader, magic), uint64_t{0});
  EXPECT_FALSE(RingReader::open(directory_.get(), "ring"));  // not yet
  put(offsetof(RingHeader, magic), agent::kRingMagic);
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{2048}, uint64_t{5000}, uint64_t{1} << 40}) {
    put(offsetof(RingHeader, bytes), bytes);
    EXPECT_FALSE(RingReader::open(directory_.get(), "ring")) << bytes;
  }
  put(offsetof(RingHeader, bytes), kBytes);
  put(offsetof(RingHeader, pid), uint32_t{0x80000000});
  EXPECT_FALSE(RingReader::open(directory_.get(), "ring"));
  EXPECT_FALSE(RingReader::open(directory_.get(), "missing"));
  ASSERT_EQ(mkfifo((folder_ + "/fifo").c_str(), 0600), 0);
  EXPECT_FALSE(RingReader::open(directory_.get(), "fifo"));  // and does not wait for a writer
  ASSERT_EQ(symlink("ring", (folder_ + "/link").c_str()), 0);
  put(offsetof(RingHeader, pid), uint32_t{1234});
  EXPECT_FALSE(RingReader::open(directory_.get(), "link"));
  EXPECT_TRUE(RingReader::open(directory_.get(), "ring"));
}

TEST_F(AgentRing, AnyBytesAtAllDoNoHarm) {
  std::mt19937_64 random(1);
  size_t drained = 0;
  for (int round = 0; round < 2000; ++round) {
    uint64_t at = 0;
    while (at < kBytes - 256) {  // plausible records with one field in ten out of order
      const uint32_t frames = static_cast<uint32_t>(random() % 12);
      const uint32_t size = put_sample(at, frames, static_cast<uint32_t>(random() % (CLEW_END_COUNT + 1)));
      if (random() % 2 == 0)
        put(agent::kRingPage + at + random() % size / 4 * 4, static_cast<uint32_t>(random()));
      at += size;
    }
    put_head(at);
    put(offsetof(RingHeader, tail), random());
    RingReader ring = reader();
    drained += drain(ring);
    for (const clew_frame& frame : frames_) ASSERT_LT(frame.how, uint32_t{CLEW_HOW_COUNT});
  }
  EXPECT_GT(drained, 0u);
  EXPECT_GT(samples_, 1000u);
}

TEST(InprocessSession, TheLaterRingOfAProcessIsThatOfItsProgramInWhateverOrderTheyAreSeen) {
  std::mutex mutex;
  std::set<uint64_t> seen;
  auto session = Session::start(999, [&](const Trace& trace) {
    const std::lock_guard lock(mutex);
    seen.insert(trace.time_ns);
  });
  if (!session) GTEST_SKIP() << session.error();  // a sanitizer's build has no agent
  const std::string config = (*session)->environment().back().second;
  const std::string directory = config.substr(0, config.find(':'));
  // Two programs of this process, which lives: seen in one look, in both orders of their making.
  for (const bool later_first : {false, true}) {
    const uint64_t time_ns = later_first ? 200 : 100;
    const auto make = [&](const std::string& name, uint64_t opened_ns) {
      const process::UniqueFd file(open((directory + "/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL, 0600));
      const auto put = [&](uint64_t offset, const auto& value) {
        ASSERT_EQ(pwrite(file.get(), &value, sizeof value, static_cast<off_t>(offset)),
                  ssize_t{sizeof value});
      };
      ASSERT_EQ(ftruncate(file.get(), agent::kRingPage + kBytes), 0);
      put(offsetof(RingHeader, pid), static_cast<uint32_t>(getpid()));
      put(offsetof(RingHeader, bytes), kBytes);
      put(offsetof(RingHeader, opened_ns), opened_ns);
      put(agent::kRingPage + offsetof(SampleRecord, time_ns), opened_ns);
      put(agent::kRingPage + offsetof(SampleRecord, periods), uint32_t{1});
      put(agent::kRingPage, static_cast<uint32_t>(sizeof(SampleRecord)));
      put(agent::kRingPage + 4, static_cast<uint32_t>(RecordKind::kSample));
      put(offsetof(RingHeader, head), uint64_t{sizeof(SampleRecord)});
      put(offsetof(RingHeader, magic), agent::kRingMagic);
    };
    const std::string prefix = std::to_string(time_ns);
    const std::string first = prefix + (later_first ? "-later" : "-earlier"),
                      second = prefix + (later_first ? "-earlier" : "-later");
    const auto opened = [&](const std::string& name) { return time_ns + name.ends_with("later"); };
    make(first, opened(first));
    make(second, opened(second));
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    // Only the earlier one was taken away, and what both held has arrived.
    EXPECT_FALSE(std::filesystem::exists(directory + "/" + prefix + "-earlier"));
    EXPECT_TRUE(std::filesystem::exists(directory + "/" + prefix + "-later"));
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(seen.contains(time_ns));
    EXPECT_TRUE(seen.contains(time_ns + 1));
  }
  (*session)->stop();
}

}  // namespace
}  // namespace clew::collect::inprocess
