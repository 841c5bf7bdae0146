// Perf records, decoded: what the drain thread copies out of a ring, and what the unwind thread reads.
//
// Byte layouts: <linux/perf_event.h>, enum perf_event_type. Every record but a sample ends with the trailer
// that perf_event.cpp asks for: {u32 pid, tid; u64 time; u64 identifier}, 24 bytes. A sample is
//   identifier, ip, {pid, tid}, time, period, [nr, ips[nr]], abi, [regs[17] unless abi is 0], size,
//   [data[size], dyn_size unless size is 0]
// with the call chain only where kernel samples are allowed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "bpf/shared.h"
#include "collect/perf/perf_event.hpp"
#include "collect/perf/ring.hpp"

namespace clew::collect::perf {

/// The fixed part of a sample as it is queued; `chain_count` addresses and `stack_bytes` of stack follow it.
struct SampleHead {
  uint64_t identifier;
  uint64_t ip;
  uint64_t time_ns;
  uint64_t period;
  uint32_t pid, tid;
  uint32_t abi;  // enum perf_sample_regs_abi
  uint32_t chain_count;
  uint32_t stack_asked;                                // bytes the kernel was to copy; 0 where it copied none
  uint32_t stack_bytes;                                // bytes it copied
  std::array<uint64_t, kUserRegisterCount> registers;  // in the order of PERF_REG_X86_*
};

/// One record in a round: a sample as SampleHead + chain + stack, or any other record as it lay in the ring.
struct Entry {
  uint64_t time_ns;
  uint32_t offset;  // in Round::bytes
  uint32_t size;
  uint32_t type;  // enum perf_event_type
  uint16_t misc;
};

/// Types of entries besides the kernel's, from the BPF collector: a sample that was unwound in the kernel
/// (clew_bpf_sample and its frames, bpf/shared.h), and a file whose table was missing there.
inline constexpr uint32_t kWalkedSample = 0x10000;
inline constexpr uint32_t kMissingTable = 0x10001;
struct MissingTable {
  uint32_t pid, reserved;
  uint64_t pc;  // lies in the file
  clew_bpf_file file;
};

/// Of a sample from the BPF collector, in Entry::misc, in a bit that perf does not use: the thread is about
/// to block.
inline constexpr uint16_t kMiscBlocked = 1 << 8;
/// It runs again.
inline constexpr uint32_t kResumed = 0x10002;
struct Resumed {
  uint32_t tid, reserved;
  uint64_t since_ns;  // the time of the sample
};

/// What one pass over all rings brought.
struct Round {
  uint64_t start_ns = 0;  // CLOCK_MONOTONIC before the first ring was read
  std::vector<std::byte> bytes;
  std::vector<Entry> entries;
  size_t unread = 0;  // entries that the unwind thread still needs; it owns this count

  void clear() {
    bytes.clear();
    entries.clear();
    unread = 0;
  }
};

struct AppendResult {
  bool malformed = false;
  bool dropped = false;  // a sample that would have passed `room`
};

/// Copies a record from the ring to the end of the round, a sample without the unused rest of its stack area.
/// A sample that does not fit into `room` bytes is dropped; other records always fit, because losing one
/// would make later samples wrong.
AppendResult append_record(const RecordView& record, bool with_callchain, size_t room, Round& round);

// ---- Reading an entry ----

struct Sample {
  SampleHead head;
  std::span<const std::byte> chain;  // chain_count × u64, maybe unaligned
  std::span<const std::byte> stack;
};
struct Mmap2 {
  uint32_t pid, tid;
  uint64_t address, length, offset;
  uint32_t major, minor;
  uint64_t inode, generation;
  uint32_t protection, flags;
  std::string_view path;
};
struct Task {  // fork and exit
  uint32_t pid, ppid, tid, ptid;
};
struct BpfEvent {  // a BPF program was loaded or unloaded
  uint16_t type;   // enum perf_bpf_event_type
  uint32_t id;
};
struct Comm {
  uint32_t pid, tid;
  std::string_view name;
  bool exec;
};

std::span<const std::byte> entry_bytes(const Round& round, const Entry& entry);
/// False where the bytes are too short for the type.
bool read_sample(std::span<const std::byte> bytes, Sample& out);
bool read_mmap2(std::span<const std::byte> bytes, Mmap2& out);
bool read_task(std::span<const std::byte> bytes, Task& out);
bool read_bpf_event(std::span<const std::byte> bytes, BpfEvent& out);
bool read_comm(std::span<const std::byte> bytes, uint16_t misc, Comm& out);
/// The count of a LOST or LOST_SAMPLES record; 0 for anything else.
uint64_t read_lost(std::span<const std::byte> bytes, uint32_t type);

}  // namespace clew::collect::perf
