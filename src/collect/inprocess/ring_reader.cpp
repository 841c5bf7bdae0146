#include "collect/inprocess/ring_reader.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstddef>
#include <cstring>
#include <type_traits>

#include "agent/ring.hpp"

namespace clew::collect::inprocess {

namespace {

using agent::RecordHeader;
using agent::RecordKind;
using agent::RingHeader;
using agent::SampleRecord;

constexpr uint64_t kMostBytes = uint64_t{16} << 20;
constexpr uint32_t kMostPeriods = 1'000'000'000;

bool read_bytes(int fd, uint64_t offset, std::span<std::byte> out) {
  return pread(fd, out.data(), out.size(), static_cast<off_t>(offset)) == static_cast<ssize_t>(out.size());
}
template <class T>
bool read_at(int fd, uint64_t offset, T& out) {
  static_assert(std::is_trivially_copyable_v<T>);
  return read_bytes(fd, offset, std::as_writable_bytes(std::span(&out, 1)));
}
template <class T>
bool write_at(int fd, uint64_t offset, const T& value) {
  return pwrite(fd, &value, sizeof value, static_cast<off_t>(offset)) == ssize_t{sizeof value};
}
bool write_zeros(int fd, uint64_t offset, uint64_t count) {
  static constexpr std::byte kZeros[64 << 10] = {};
  while (count != 0) {
    const size_t part = std::min<uint64_t>(count, sizeof kZeros);
    if (pwrite(fd, kZeros, part, static_cast<off_t>(offset)) != static_cast<ssize_t>(part)) return false;
    offset += part;
    count -= part;
  }
  return true;
}

template <class T>
T field(std::span<const std::byte> bytes, size_t offset) {  // which lies inside
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

bool parse_sample(std::span<const std::byte> bytes, std::vector<clew_frame>& frames, RingSample& out) {
  if (bytes.size() < sizeof(SampleRecord)) return false;
  const auto count = field<uint32_t>(bytes, offsetof(SampleRecord, frames));
  if (count > agent::kMostFrames || bytes.size() - sizeof(SampleRecord) < size_t{count} * 9) return false;
  const auto end = field<uint32_t>(bytes, offsetof(SampleRecord, end));
  out.time_ns = field<uint64_t>(bytes, offsetof(SampleRecord, time_ns));
  out.tid = static_cast<pid_t>(field<uint32_t>(bytes, offsetof(SampleRecord, tid)));
  out.periods = field<uint32_t>(bytes, offsetof(SampleRecord, periods));
  if (end >= CLEW_END_COUNT || out.periods == 0 || out.periods > kMostPeriods) return false;
  out.end = static_cast<clew_end>(end);
  const auto* comm = reinterpret_cast<const char*>(bytes.data()) + offsetof(SampleRecord, comm);
  out.comm = {comm, strnlen(comm, sizeof SampleRecord::comm)};
  frames.resize(count);
  const auto places = bytes.subspan(sizeof(SampleRecord));
  for (size_t i = 0; i < count; ++i) {
    const auto how = field<uint8_t>(places, count * sizeof(uint64_t) + i);
    if ((how & 15) >= CLEW_HOW_COUNT) return false;
    frames[i] = {.pc = field<uint64_t>(places, i * sizeof(uint64_t)),
                 .sp = 0,
                 .how = static_cast<uint32_t>(how & 15),
                 .flags = static_cast<uint32_t>(how >> 4)};
  }
  out.frames = frames;
  return true;
}

}  // namespace

Result<RingReader> RingReader::open(int directory, const std::string& name) {
  process::UniqueFd fd(
      openat(directory, name.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY));
  struct stat status = {};
  if (!fd || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return Error{"not a ring"};
  uint64_t magic = 0, bytes = 0, opened_ns = 0;
  uint32_t pid = 0;
  if (!read_at(fd.get(), offsetof(RingHeader, magic), magic) || magic != agent::kRingMagic ||
      !read_at(fd.get(), offsetof(RingHeader, pid), pid) ||
      !read_at(fd.get(), offsetof(RingHeader, bytes), bytes) ||
      !read_at(fd.get(), offsetof(RingHeader, opened_ns), opened_ns)) {
    return Error{"not a ring yet"};
  }
  if (!std::has_single_bit(bytes) || bytes < 4096 || bytes > kMostBytes || pid == 0 || pid > INT32_MAX)
    return Error{"not a ring"};
  return RingReader(std::move(fd), static_cast<pid_t>(pid), bytes, opened_ns);
}

bool RingReader::drain(const std::function<void(const RingSample&)>& sample,
                       const std::function<void(std::string_view line)>& mapping) {
  uint64_t head = 0;
  if (!read_at(fd_.get(), offsetof(RingHeader, head), head) || head - tail_ > bytes_) return false;
  while (tail_ < head) {
    const uint64_t at = tail_ % bytes_;
    buffer_.resize(std::min(head - tail_, bytes_ - at));
    if (!read_bytes(fd_.get(), agent::kRingPage + at, buffer_)) return false;
    std::span<const std::byte> rest(buffer_);
    while (rest.size() >= sizeof(RecordHeader)) {
      const auto size = field<uint32_t>(rest, offsetof(RecordHeader, size));
      if (size == 0) break;  // its writer is not done
      if (size % 8 != 0 || size < sizeof(RecordHeader) || size > rest.size()) return false;
      const auto record = rest.first(size);
      const auto kind = field<RecordKind>(record, offsetof(RecordHeader, kind));
      if (kind == RecordKind::kSample) {
        RingSample parsed = {};
        if (parse_sample(record, frames_, parsed)) {
          sample(parsed);
        } else {
          ++malformed_;
        }
      } else if (kind == RecordKind::kMapping) {
        const auto* line = reinterpret_cast<const char*>(record.data() + sizeof(RecordHeader));
        mapping({line, strnlen(line, size - sizeof(RecordHeader))});
      } else if (kind != RecordKind::kUnused) {
        ++malformed_;
      }
      rest = rest.subspan(size);
    }
    const uint64_t used = buffer_.size() - rest.size();
    if (used == 0) break;
    if (!write_zeros(fd_.get(), agent::kRingPage + at, used)) return false;
    tail_ += used;
    if (!write_at(fd_.get(), offsetof(RingHeader, tail), tail_)) return false;
    if (!rest.empty()) break;
  }
  return true;
}

void RingReader::stop() const { write_at(fd_.get(), offsetof(RingHeader, stop), uint32_t{1}); }

RingReader::Counts RingReader::counts() const {
  Counts counts;
  read_at(fd_.get(), offsetof(RingHeader, dropped), counts.dropped);
  read_at(fd_.get(), offsetof(RingHeader, handler_ns), counts.handler_ns);
  read_at(fd_.get(), offsetof(RingHeader, threads_without_timer), counts.threads_without_timer);
  return counts;
}

}  // namespace clew::collect::inprocess
