// Interning: small dense numbers for equal things, in order of first appearance.
#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace clew::table {

/// Mixes a 64-bit word into a hash. Not keyed: an attacker's file can make look-ups slow by its own number of
/// entries, which bounds the work at that of a linear search over what fits in one file; see
/// HashIndex::kMaxProbes.
inline uint64_t mix(uint64_t hash, uint64_t word) {
  hash = (hash ^ word) * 0x9e3779b97f4a7c15u;
  return hash ^ hash >> 29;
}

inline uint64_t hash_bytes(const std::byte* data, size_t size) {
  uint64_t hash = size * 0x9e3779b97f4a7c15u;
  uint64_t word = 0;
  for (; size >= 8; data += 8, size -= 8) {
    std::memcpy(&word, data, 8);
    hash = mix(hash, word);
  }
  if (size != 0) {
    word = 0;
    std::memcpy(&word, data, size);
    hash = mix(hash, word);
  }
  return hash;
}

/// Open addressing from a hash to numbers that the caller gives out: the things themselves stay with the
/// caller.
class HashIndex {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;
  static constexpr unsigned kMaxProbes = 64;

  explicit HashIndex(size_t expected = 64) {
    size_t size = 64;
    while (size < expected * 2) size *= 2;
    slots_.assign(size, {0, kNone});
  }

  /// The number among those with this hash for which `equal(number)`; else `add()` is called, and what it
  /// returns is remembered (unless it is kNone). After kMaxProbes of unequal things, as only a hostile file
  /// has, it is not remembered: equal things may then get several numbers.
  template <class Equal, class Add>
  uint32_t find_or_add(uint64_t hash, Equal&& equal, Add&& add) {
    size_t at = hash & (slots_.size() - 1);
    for (unsigned probe = 0; probe < kMaxProbes; ++probe, at = (at + 1) & (slots_.size() - 1)) {
      Slot& slot = slots_[at];
      if (slot.number == kNone) {
        const uint32_t number = add();
        if (number == kNone) return kNone;
        slot = {static_cast<uint32_t>(hash), number};
        if (++used_ * 2 > slots_.size()) grow();
        return number;
      }
      if (slot.hash == static_cast<uint32_t>(hash) && equal(slot.number)) return slot.number;
    }
    return add();
  }

 private:
  struct Slot {
    uint32_t hash;  // its low half
    uint32_t number;
  };

  void grow() {
    std::vector<Slot> old(slots_.size() * 2, {0, kNone});
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.number == kNone) continue;
      size_t at = slot.hash & (slots_.size() - 1);
      while (slots_[at].number != kNone) at = (at + 1) & (slots_.size() - 1);
      slots_[at] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t used_ = 0;
};

}  // namespace clew::table
