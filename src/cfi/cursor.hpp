// Bounded little-endian reading and LEB128 (DWARF 5 section 7.6). A read past the end gives 0 and clears
// ok().
#pragma once

#include <concepts>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace clew::cfi {

class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : at_(bytes.data()), end_(bytes.data() + bytes.size()) {}
  Cursor(const std::byte* begin, const std::byte* end) : at_(begin), end_(end) {}

  bool ok() const { return ok_; }
  bool done() const { return at_ == end_; }
  const std::byte* at() const { return at_; }
  size_t left() const { return static_cast<size_t>(end_ - at_); }
  std::span<const std::byte> rest() const { return {at_, end_}; }

  template <std::integral T>
  T fixed() {
    if (left() < sizeof(T)) return fail<T>();
    T value;
    std::memcpy(&value, at_, sizeof(T));
    at_ += sizeof(T);
    return value;
  }

  uint64_t uleb() {
    if (at_ != end_ && static_cast<uint8_t>(*at_) < 0x80) return static_cast<uint8_t>(*at_++);
    return long_uleb();
  }

  int64_t sleb() {
    if (at_ != end_ && static_cast<uint8_t>(*at_) < 0x80) {
      const int64_t value = static_cast<uint8_t>(*at_++);
      return value < 0x40 ? value : value - 0x80;
    }
    return long_sleb();
  }

  /// Passes over `count` bytes; returns where they begin.
  const std::byte* skip(uint64_t count) {
    const std::byte* begin = at_;
    if (count > left()) return fail<const std::byte*>();
    at_ += count;
    return begin;
  }

 private:
  template <class T>
  T fail() {
    ok_ = false;
    at_ = end_;
    return T{};
  }

  // A number may be padded to any length, but bits beyond the 64th must say nothing.
  uint64_t long_uleb() {
    uint64_t value = 0;
    for (unsigned shift = 0; at_ != end_; shift = shift < 70 ? shift + 7 : shift) {
      const uint64_t byte = static_cast<uint8_t>(*at_++);
      const uint64_t bits = byte & 0x7f;
      if (shift < 64) value |= bits << shift;
      if ((shift == 63 && bits > 1) || (shift > 63 && bits != 0)) return fail<uint64_t>();
      if (byte < 0x80) return value;
    }
    return fail<uint64_t>();
  }

  int64_t long_sleb() {
    uint64_t value = 0;
    for (unsigned shift = 0; at_ != end_; shift = shift < 70 ? shift + 7 : shift) {
      const uint64_t byte = static_cast<uint8_t>(*at_++);
      const uint64_t bits = byte & 0x7f;
      if (shift < 64) value |= bits << shift;
      const uint64_t sign = value >> 63 != 0 ? 0x7f : 0;
      if (shift >= 63 && bits != sign) return fail<int64_t>();
      if (byte >= 0x80) continue;
      if (shift < 57 && (byte & 0x40) != 0) value |= ~uint64_t{0} << (shift + 7);
      return static_cast<int64_t>(value);
    }
    return fail<int64_t>();
  }

  const std::byte* at_;
  const std::byte* end_;
  bool ok_ = true;
};

}  // namespace clew::cfi
