// What the agent and its recorder share: one file a process, in the recording's directory, which the agent
// maps and writes, and the recorder reads by pread (a target that truncates the file harms only itself).
//
//   one page: RingHeader | data: records, each at a multiple of 8 bytes, none across the end
//
// Writers take room by moving `head`, fill it in, and store the record's size last. The recorder reads
// records as long as their size is there, sets what it has read to zero, and moves `tail`.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace clew::agent {

constexpr uint64_t kRingMagic = 0x31676e69'7277656c;  // "lewring1"
constexpr size_t kRingPage = 4096;
constexpr size_t kMostFrames = 8192;
constexpr size_t kMostPath = 4096;
constexpr uint32_t kChangedFlag =
    8;  // of a frame, beside enum clew_frame_flags: what lies there now was not told of
constexpr int kSampleSignal = 64;                      // the last one: all others are delivered before it
constexpr const char* kConfigVariable = "CLEW_AGENT";  // DIRECTORY:RECORDER'S PID:PERIOD IN NS

// What one side writes has a cache line of its own: NOLINTNEXTLINE(clang-analyzer-optin.performance.Padding)
struct RingHeader {
  uint64_t magic;  // written last
  uint32_t pid;
  uint32_t reserved;
  uint64_t bytes;  // of data, a power of two
  uint64_t
      opened_ns;  // CLOCK_MONOTONIC: of two rings of a process the later one is that of its present program
  alignas(64) std::atomic<uint64_t> head;
  alignas(64) std::atomic<uint64_t> tail;
  std::atomic<uint32_t> stop;                 // by the recorder: sample no longer
  alignas(64) std::atomic<uint64_t> dropped;  // samples without room
  std::atomic<uint64_t> handler_ns;           // time spent in the agent's handler
  std::atomic<uint64_t> threads_without_timer;
};
static_assert(sizeof(RingHeader) <= kRingPage);

enum class RecordKind : uint32_t {
  kUnused = 0,   // to the end of the data: the next record begins at its start
  kSample = 1,   // SampleRecord
  kMapping = 2,  // an executable mapping: RecordHeader, then its line of /proc/self/maps
};

struct RecordHeader {
  std::atomic<uint32_t> size;  // in bytes, header and padding included; 0: not written yet
  RecordKind kind;
};

struct SampleRecord {
  RecordHeader header;
  uint64_t time_ns;  // CLOCK_MONOTONIC
  uint32_t tid;
  uint32_t periods;  // of the thread's CPU time since its last sample
  uint32_t end;      // enum clew_end
  uint32_t frames;
  char comm[16];
  // uint64_t pc[frames], then uint8_t how_and_flags[frames]: enum clew_how in the low 4 bits, flags above
};

}  // namespace clew::agent
