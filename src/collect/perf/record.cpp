#include "collect/perf/record.hpp"

#include <limits>

namespace clew::collect::perf {

namespace {

constexpr size_t kHeader = sizeof(perf_event_header);
constexpr size_t kTrailer = 24;
constexpr size_t kMaxRoundBytes = size_t{1} << 30;

/// Grows the round by `size` bytes without clearing what is about to be overwritten anyway.
std::byte* grow(Round& round, size_t size) {
  const size_t at = round.bytes.size();
  round.bytes.resize(at + size);
  return round.bytes.data() + at;
}

AppendResult append_sample(const RecordView& record, bool with_callchain, size_t room, Round& round) {
  SampleHead head = {};
  size_t at = kHeader;
  const auto next = [&](auto& field) {
    const bool read = record.read(at, field);
    at += sizeof field;
    return read;
  };
  if (!next(head.identifier) || !next(head.ip) || !next(head.pid) || !next(head.tid) || !next(head.time_ns) ||
      !next(head.period)) {
    return {.malformed = true};
  }
  size_t chain_at = 0;
  if (with_callchain) {
    uint64_t count = 0;
    if (!next(count) || count > (record.size() - at) / sizeof(uint64_t)) return {.malformed = true};
    head.chain_count = static_cast<uint32_t>(count);
    chain_at = at;
    at += count * sizeof(uint64_t);
  }
  uint64_t abi = 0;
  if (!next(abi)) return {.malformed = true};
  head.abi = static_cast<uint32_t>(abi);
  if (abi != PERF_SAMPLE_REGS_ABI_NONE && !next(head.registers)) return {.malformed = true};
  uint64_t asked = 0;
  if (!next(asked)) return {.malformed = true};
  size_t stack_at = 0;
  if (asked != 0) {
    uint64_t copied = 0;
    if (asked > record.size() - at || !record.read(at + asked, copied) || copied > asked)
      return {.malformed = true};
    stack_at = at;
    head.stack_asked = static_cast<uint32_t>(asked);
    head.stack_bytes = static_cast<uint32_t>(copied);
  }

  const size_t chain_bytes = head.chain_count * sizeof(uint64_t);
  const size_t size = sizeof head + chain_bytes + head.stack_bytes;
  if (size > room) return {.dropped = true};
  round.entries.push_back({.time_ns = head.time_ns,
                           .offset = static_cast<uint32_t>(round.bytes.size()),
                           .size = static_cast<uint32_t>(size),
                           .type = record.type(),
                           .misc = record.misc()});
  std::byte* out = grow(round, size);
  std::memcpy(out, &head, sizeof head);
  record.copy(chain_at, out + sizeof head, chain_bytes);
  record.copy(stack_at, out + sizeof head + chain_bytes, head.stack_bytes);
  return {};
}

template <class T>
bool read_at(std::span<const std::byte> bytes, size_t offset, T& out) {
  if (offset > bytes.size() || sizeof out > bytes.size() - offset) return false;
  std::memcpy(&out, bytes.data() + offset, sizeof out);
  return true;
}

/// A NUL-terminated string from `offset` to, at most, the trailer.
std::string_view text_at(std::span<const std::byte> bytes, size_t offset) {
  if (bytes.size() < kTrailer || offset >= bytes.size() - kTrailer) return {};
  const auto* first = reinterpret_cast<const char*>(bytes.data() + offset);
  return {first, strnlen(first, bytes.size() - kTrailer - offset)};
}

}  // namespace

AppendResult append_record(const RecordView& record, bool with_callchain, size_t room, Round& round) {
  // Offsets in a round have 32 bits; far less than that ever waits.
  if (round.bytes.size() > kMaxRoundBytes) return {.dropped = true};
  if (record.type() == PERF_RECORD_SAMPLE) return append_sample(record, with_callchain, room, round);
  uint64_t time_ns = 0;
  if (record.size() < kHeader + kTrailer || !record.read(record.size() - 16, time_ns))
    return {.malformed = true};
  round.entries.push_back({.time_ns = time_ns,
                           .offset = static_cast<uint32_t>(round.bytes.size()),
                           .size = static_cast<uint32_t>(record.size()),
                           .type = record.type(),
                           .misc = record.misc()});
  record.copy(0, grow(round, record.size()), record.size());
  return {};
}

std::span<const std::byte> entry_bytes(const Round& round, const Entry& entry) {
  return std::span(round.bytes).subspan(entry.offset, entry.size);
}

bool read_sample(std::span<const std::byte> bytes, Sample& out) {
  if (!read_at(bytes, 0, out.head)) return false;
  const size_t chain = size_t{out.head.chain_count} * sizeof(uint64_t);
  if (bytes.size() - sizeof out.head != chain + out.head.stack_bytes) return false;
  out.chain = bytes.subspan(sizeof out.head, chain);
  out.stack = bytes.subspan(sizeof out.head + chain);
  return true;
}

bool read_mmap2(std::span<const std::byte> bytes, Mmap2& out) {
  const bool whole =
      read_at(bytes, 8, out.pid) && read_at(bytes, 12, out.tid) && read_at(bytes, 16, out.address) &&
      read_at(bytes, 24, out.length) && read_at(bytes, 32, out.offset) && read_at(bytes, 40, out.major) &&
      read_at(bytes, 44, out.minor) && read_at(bytes, 48, out.inode) && read_at(bytes, 56, out.generation) &&
      read_at(bytes, 64, out.protection) && read_at(bytes, 68, out.flags);
  out.path = text_at(bytes, 72);
  return whole && out.length <= std::numeric_limits<uint64_t>::max() - out.address;
}

bool read_task(std::span<const std::byte> bytes, Task& out) {
  return read_at(bytes, 8, out.pid) && read_at(bytes, 12, out.ppid) && read_at(bytes, 16, out.tid) &&
         read_at(bytes, 20, out.ptid);
}

bool read_bpf_event(std::span<const std::byte> bytes, BpfEvent& out) {
  return read_at(bytes, 8, out.type) && read_at(bytes, 12, out.id);
}

bool read_comm(std::span<const std::byte> bytes, uint16_t misc, Comm& out) {
  out.exec = (misc & PERF_RECORD_MISC_COMM_EXEC) != 0;
  out.name = text_at(bytes, 16);
  return read_at(bytes, 8, out.pid) && read_at(bytes, 12, out.tid);
}

uint64_t read_lost(std::span<const std::byte> bytes, uint32_t type) {
  uint64_t lost = 0;
  if (type == PERF_RECORD_LOST) return read_at(bytes, 16, lost) ? lost : 0;
  if (type == PERF_RECORD_LOST_SAMPLES) return read_at(bytes, 8, lost) ? lost : 0;
  return 0;
}

}  // namespace clew::collect::perf
