// A perf ring: the memory that one CPU's records arrive in, and bounds-checked access to a record.
//
// Layout (perf_event_open(2)): one page `perf_event_mmap_page`, then 2^n pages of data. Records begin with
// perf_event_header {u32 type; u16 misc; u16 size} and lie back to back at data_tail .. data_head; both
// counters only grow, and a record may wrap around the end of the data.
#pragma once

#include <linux/perf_event.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <type_traits>

#include "clew/result.hpp"
#include "process/process.hpp"

namespace clew::collect::perf {

/// One record where it lies in the ring. Valid until the ring's tail is moved past it.
class RecordView {
 public:
  RecordView(std::span<const std::byte> ring, uint64_t position, const perf_event_header& header)
      : ring_(ring), position_(position), header_(header) {}

  uint32_t type() const { return header_.type; }
  uint16_t misc() const { return header_.misc; }
  size_t size() const { return header_.size; }

  /// Copies `size` bytes at `offset` (from the header's first byte); false where the record does not hold
  /// them.
  bool copy(size_t offset, void* out, size_t size) const {
    if (offset > header_.size || size > header_.size - offset) return false;
    const size_t start = (position_ + offset) & (ring_.size() - 1);
    const size_t first = std::min(size, ring_.size() - start);
    if (size != 0) {
      std::memcpy(out, ring_.data() + start, first);
      std::memcpy(static_cast<std::byte*>(out) + first, ring_.data(), size - first);
    }
    return true;
  }

  template <class T>
  bool read(size_t offset, T& out) const {
    static_assert(std::is_trivially_copyable_v<T>);
    return copy(offset, &out, sizeof out);
  }

 private:
  std::span<const std::byte> ring_;
  uint64_t position_;
  perf_event_header header_;
};

/// Calls `use` with each record of [tail, head) and returns the new tail. `ring` is the data area, a power of
/// two bytes. What cannot be a record (a size below a header's, or beyond the head) ends the reading: the
/// rest is skipped and counted in `malformed`.
template <class Use>
uint64_t for_each_record(std::span<const std::byte> ring, uint64_t tail, uint64_t head, uint64_t& malformed,
                         Use&& use) {
  if (head - tail > ring.size()) {
    ++malformed;
    return head;
  }
  while (tail != head) {
    perf_event_header header = {};
    header.size = sizeof header;
    if (head - tail < sizeof header || !RecordView(ring, tail, header).read(0, header) ||
        header.size < sizeof header || header.size > head - tail) {
      ++malformed;
      return head;
    }
    use(RecordView(ring, tail, header));
    tail += header.size;
  }
  return tail;
}

/// The mapped ring of an event that `fd` refers to. Reading moves the tail, so that the kernel can write
/// again.
class Ring {
 public:
  Ring() = default;
  /// Maps with `data_bytes` (a power of two, a multiple of the page size); -errno in `error` where the kernel
  /// refuses.
  static Ring map(int fd, size_t data_bytes, int& error);
  Ring(Ring&& other) noexcept;
  Ring& operator=(Ring&& other) noexcept;
  ~Ring();

  explicit operator bool() const { return page_ != nullptr; }
  size_t data_bytes() const { return data_.size(); }

  /// Uses every record that is there now.
  template <class Use>
  void drain(uint64_t& malformed, Use&& use) {
    const uint64_t head = __atomic_load_n(&page_->data_head, __ATOMIC_ACQUIRE);
    const uint64_t tail = for_each_record(data_, page_->data_tail, head, malformed, use);
    __atomic_store_n(&page_->data_tail, tail, __ATOMIC_RELEASE);
  }
  /// Uses every record that is there now and leaves it there.
  template <class Use>
  void peek(Use&& use) const {
    uint64_t malformed = 0;
    for_each_record(data_, page_->data_tail, __atomic_load_n(&page_->data_head, __ATOMIC_ACQUIRE), malformed,
                    use);
  }

 private:
  perf_event_mmap_page* page_ = nullptr;
  size_t mapped_bytes_ = 0;
  std::span<const std::byte> data_;
};

}  // namespace clew::collect::perf
