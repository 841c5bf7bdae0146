// Assembles .eh_frame and .debug_frame sections byte by byte, well-formed or not.
#pragma once

#include <cstring>
#include <initializer_list>
#include <string_view>
#include <vector>

#include "cfi/cfi.hpp"

namespace clew::cfi::test {

class Bytes {
 public:
  Bytes() = default;
  Bytes(std::initializer_list<int> values) {
    for (const int value : values) u8(static_cast<uint8_t>(value));
  }

  Bytes& u8(uint8_t value) { return append(value); }
  Bytes& u16(uint16_t value) { return append(value); }
  Bytes& u32(uint32_t value) { return append(value); }
  Bytes& u64(uint64_t value) { return append(value); }
  Bytes& text(std::string_view value) {
    for (const char c : value) u8(static_cast<uint8_t>(c));
    return u8(0);
  }
  Bytes& add(const Bytes& other) {
    bytes_.insert(bytes_.end(), other.bytes_.begin(), other.bytes_.end());
    return *this;
  }
  uint64_t size() const { return bytes_.size(); }
  std::vector<std::byte>& bytes() { return bytes_; }
  const std::vector<std::byte>& bytes() const { return bytes_; }

 private:
  template <class T>
  Bytes& append(T value) {
    std::byte raw[sizeof value];
    std::memcpy(raw, &value, sizeof value);
    bytes_.insert(bytes_.end(), raw, raw + sizeof raw);
    return *this;
  }
  std::vector<std::byte> bytes_;
};

/// What every x86-64 CIE begins with: CFA = rsp+8, return address at CFA-8.
inline Bytes usual_initial() { return {0x0c, 7, 8, 0x90, 1}; }

class SectionBuilder {
 public:
  static constexpr uint64_t kAddress = 0x5000;

  explicit SectionBuilder(bool debug_frame = false) : debug_frame_(debug_frame) {}

  uint64_t position() const { return out_.size(); }
  Bytes& raw() { return out_; }

  /// An entry of any contents behind its length; returns its offset.
  uint64_t entry(const Bytes& contents, bool is_64_bit = false) {
    const uint64_t offset = position();
    if (is_64_bit) {
      out_.u32(0xffffffff).u64(contents.size());
    } else {
      out_.u32(static_cast<uint32_t>(contents.size()));
    }
    out_.add(contents);
    return offset;
  }

  /// A CIE from its version on.
  uint64_t cie_of(const Bytes& contents, bool is_64_bit = false) {
    Bytes all;
    if (debug_frame_ && is_64_bit) {
      all.u64(UINT64_MAX);
    } else {
      all.u32(debug_frame_ ? UINT32_MAX : 0);
    }
    return entry(all.add(contents), is_64_bit);
  }

  /// A CIE as compilers write it: .eh_frame "zR" with a given encoding, .debug_frame "".
  uint64_t cie(uint8_t encoding = 0, const Bytes& instructions = usual_initial(),
               uint8_t code_alignment = 1) {
    Bytes contents;
    contents.u8(1).text(debug_frame_ ? "" : "zR").u8(code_alignment).u8(0x78).u8(16);
    if (!debug_frame_) contents.u8(1).u8(encoding);
    return cie_of(contents.add(instructions));
  }

  /// An FDE of any contents behind its CIE pointer.
  uint64_t fde_of(uint64_t cie, const Bytes& contents, bool is_64_bit = false) {
    Bytes all;
    if (debug_frame_ && is_64_bit) {
      all.u64(cie);
    } else {
      const uint64_t id_offset = position() + (is_64_bit ? 12 : 4);
      all.u32(static_cast<uint32_t>(debug_frame_ ? cie : id_offset - cie));
    }
    return entry(all.add(contents), is_64_bit);
  }

  /// An FDE with absolute addresses, for a CIE of encoding 0.
  uint64_t fde(uint64_t cie, uint64_t start, uint64_t size, const Bytes& instructions = {}) {
    Bytes contents;
    contents.u64(start).u64(size);
    if (!debug_frame_) contents.u8(0);
    return fde_of(cie, contents.add(instructions));
  }

  /// Valid while the builder lives unchanged.
  Section section() const {
    Section section;
    section.bytes = out_.bytes();
    section.address = kAddress;
    section.debug_frame = debug_frame_;
    return section;
  }

 private:
  bool debug_frame_;
  Bytes out_;
};

struct ReadFdes {
  std::vector<Fde> fdes;
  std::vector<Cie> cies;
  Defects defects;
};

inline ReadFdes read_all(const Section& section) {
  ReadFdes out;
  Reader reader(section);
  for (Fde fde; reader.next(fde);) out.fdes.push_back(fde);
  out.cies.assign(reader.cies().begin(), reader.cies().end());
  out.defects = reader.defects();
  return out;
}

}  // namespace clew::cfi::test
