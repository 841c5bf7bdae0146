// SFrame sections written byte by byte, as the specification draws them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace clew::sframe::test {

/// Appends numbers in one byte order.
struct Bytes {
  bool big = false;
  std::vector<std::byte> bytes;

  Bytes& number(uint64_t value, unsigned size) {
    for (unsigned i = 0; i < size; ++i)
      bytes.push_back(static_cast<std::byte>(value >> 8 * (big ? size - 1 - i : i)));
    return *this;
  }
  Bytes& u8(uint64_t value) { return number(value, 1); }
  Bytes& u16(uint64_t value) { return number(value, 2); }
  Bytes& u32(uint64_t value) { return number(value, 4); }
  Bytes& u64(uint64_t value) { return number(value, 8); }
  Bytes& list(std::initializer_list<int> values) {
    for (const int value : values) u8(static_cast<uint64_t>(value));
    return *this;
  }
  Bytes& append(const Bytes& other) {
    bytes.insert(bytes.end(), other.bytes.begin(), other.bytes.end());
    return *this;
  }
};

struct Header {
  uint8_t version = 3;
  uint8_t flags = 5;
  uint8_t abi = 3;  // AMD64
  int fixed_ra = -8;
  uint32_t functions = 1;
  uint32_t rows = 1;
};

/// A whole section: header, function table, rows.
inline std::vector<std::byte> build(const Header& header, const Bytes& functions, const Bytes& rows) {
  Bytes section{functions.big, {}};
  section.u16(0xdee2).u8(header.version).u8(header.flags).u8(header.abi).u8(0);
  section.u8(static_cast<uint64_t>(header.fixed_ra)).u8(0);
  section.u32(header.functions).u32(header.rows).u32(rows.bytes.size()).u32(0).u32(functions.bytes.size());
  return section.append(functions).append(rows).bytes;
}

}  // namespace clew::sframe::test
