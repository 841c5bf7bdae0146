// Encoded pointers (Linux Standard Base Core 5.0 section 10.5.1): one byte says how a value is stored (low
// half), what it is relative to (bits 4..6) and whether it is the address of the pointer instead (bit 7).
#pragma once

#include <cstdint>

#include "cfi/cursor.hpp"

namespace clew::cfi {

enum PointerEncoding : uint8_t {
  DW_EH_PE_absptr = 0x00,
  DW_EH_PE_uleb128 = 0x01,
  DW_EH_PE_udata2 = 0x02,
  DW_EH_PE_udata4 = 0x03,
  DW_EH_PE_udata8 = 0x04,
  DW_EH_PE_signed = 0x08,
  DW_EH_PE_sleb128 = 0x09,
  DW_EH_PE_sdata2 = 0x0a,
  DW_EH_PE_sdata4 = 0x0b,
  DW_EH_PE_sdata8 = 0x0c,
  DW_EH_PE_pcrel = 0x10,
  DW_EH_PE_textrel = 0x20,
  DW_EH_PE_datarel = 0x30,
  DW_EH_PE_funcrel = 0x40,
  DW_EH_PE_aligned = 0x50,
  DW_EH_PE_indirect = 0x80,
  DW_EH_PE_omit = 0xff,
};

/// What encoded pointers are relative to. An absent base (no value) makes a pointer of that kind undecodable.
struct PointerBases {
  const std::byte* section = nullptr;  // where `address` is: gives a pointer's own address
  uint64_t address = 0;
  uint64_t text = 0;
  uint64_t data = 0;
  uint64_t function = 0;
  bool has_function = false;
};

/// Reads one pointer into `value`; false where the encoding is unknown, omitted or indirect, or the bytes
/// end.
inline bool read_pointer(Cursor& cursor, uint8_t encoding, const PointerBases& bases, uint64_t& value) {
  const auto address_here = [&] {
    return bases.address + static_cast<uint64_t>(cursor.at() - bases.section);
  };
  if (encoding == (DW_EH_PE_pcrel | DW_EH_PE_sdata4)) {  // what nearly every x86-64 FDE uses
    const uint64_t here = address_here();
    value = here + static_cast<uint64_t>(static_cast<int64_t>(cursor.fixed<int32_t>()));
    return cursor.ok();
  }
  if ((encoding & DW_EH_PE_indirect) != 0) return false;  // omit too

  uint64_t base = 0;
  switch (encoding & 0x70) {
    case DW_EH_PE_absptr:
      break;
    case DW_EH_PE_pcrel:
      base = address_here();
      break;
    case DW_EH_PE_textrel:
      base = bases.text;
      break;
    case DW_EH_PE_datarel:
      base = bases.data;
      break;
    case DW_EH_PE_funcrel:
      if (!bases.has_function) return false;
      base = bases.function;
      break;
    case DW_EH_PE_aligned:
      if (encoding != DW_EH_PE_aligned) return false;
      cursor.skip(-address_here() & 7);
      break;
    default:
      return false;
  }
  switch (encoding & 0x0f) {
    case DW_EH_PE_absptr:
    case DW_EH_PE_udata8:
    case DW_EH_PE_signed:
    case DW_EH_PE_sdata8:
      value = cursor.fixed<uint64_t>();
      break;
    case DW_EH_PE_uleb128:
      value = cursor.uleb();
      break;
    case DW_EH_PE_udata2:
      value = cursor.fixed<uint16_t>();
      break;
    case DW_EH_PE_udata4:
      value = cursor.fixed<uint32_t>();
      break;
    case DW_EH_PE_sleb128:
      value = static_cast<uint64_t>(cursor.sleb());
      break;
    case DW_EH_PE_sdata2:
      value = static_cast<uint64_t>(static_cast<int64_t>(cursor.fixed<int16_t>()));
      break;
    case DW_EH_PE_sdata4:
      value = static_cast<uint64_t>(static_cast<int64_t>(cursor.fixed<int32_t>()));
      break;
    default:
      return false;
  }
  value += base;
  return cursor.ok();
}

}  // namespace clew::cfi
