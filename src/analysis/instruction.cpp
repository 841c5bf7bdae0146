#include "analysis/instruction.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "core/rule.h"

namespace clew::analysis {
namespace {

constexpr size_t kMaxLength = 15;

// What follows an opcode, one letter an opcode:
//   .  nothing                 m  ModRM                    b  imm8                 w  imm16
//   z  imm16/32                B  ModRM, imm8              Z  ModRM, imm16/32      v  imm16/32/64 by operand
//   size r  rel32                   a  address of 8 (or 4)      e  imm16, imm8          R  ModRM, always
//   registers g  ModRM, imm8 for /0 /1   G  the same with imm16/32   x  invalid, or a prefix that is dealt
//   with before
constexpr std::string_view kOneByteForms =
    "mmmmbzxxmmmmbzxx"   // 00
    "mmmmbzxxmmmmbzxx"   // 10
    "mmmmbzxxmmmmbzxx"   // 20
    "mmmmbzxxmmmmbzxx"   // 30
    "xxxxxxxxxxxxxxxx"   // 40
    "................"   // 50
    "xxxmxxxxzZbB...."   // 60
    "bbbbbbbbbbbbbbbb"   // 70
    "BZxBmmmmmmmmmmmm"   // 80
    "..........x....."   // 90
    "aaaa....bz......"   // a0
    "bbbbbbbbvvvvvvvv"   // b0
    "BBw.xxBZe.w..bx."   // c0
    "mmmmxxx.mmmmmmmm"   // d0
    "bbbbbbbbrrxb...."   // e0
    "x.xx..gG......mm";  // f0
constexpr std::string_view kTwoByteForms =
    "mmmmx.....x.xm.B"   // 0f 00
    "mmmmmmmmmmmmmmmm"   // 0f 10
    "RRRRxxxxmmmmmmmm"   // 0f 20
    "......x.xxxxxxxx"   // 0f 30
    "mmmmmmmmmmmmmmmm"   // 0f 40
    "mmmmmmmmmmmmmmmm"   // 0f 50
    "mmmmmmmmmmmmmmmm"   // 0f 60
    "BBBBmmm.mmxxmmmm"   // 0f 70
    "rrrrrrrrrrrrrrrr"   // 0f 80
    "mmmmmmmmmmmmmmmm"   // 0f 90
    "...mBmmm...mBmmm"   // 0f a0
    "mmmmmmmmmmBmmmmm"   // 0f b0
    "mmBmBBBm........"   // 0f c0
    "mmmmmmmmmmmmmmmm"   // 0f d0
    "mmmmmmmmmmmmmmmm"   // 0f e0
    "mmmmmmmmmmmmmmmm";  // 0f f0
static_assert(kOneByteForms.size() == 256 && kTwoByteForms.size() == 256);

// The same as bytes to read.
struct Operands {
  bool valid, modrm, by_operand;
  uint8_t immediate, second;
};
constexpr std::array<Operands, 128> kOperands = [] {
  std::array<Operands, 128> of{};
  of['.'] = {true, false, false, 0, 0};
  of['m'] = of['R'] = {true, true, false, 0, 0};
  of['B'] = of['g'] = {true, true, false, 1, 0};
  of['M'] = {true, true, false, 4, 0};
  of['Z'] = of['G'] = {true, true, true, 0, 0};
  of['b'] = {true, false, false, 1, 0};
  of['w'] = {true, false, false, 2, 0};
  of['z'] = of['v'] = {true, false, true, 0, 0};
  of['r'] = {true, false, false, 4, 0};
  of['a'] = {true, false, false, 0, 0};
  of['e'] = {true, false, false, 2, 1};
  return of;
}();

char form_of(const Instruction& in) {
  switch (in.map) {
    case Map::kOneByte:
      return kOneByteForms[in.opcode];
    case Map::k0F: {
      char form = kTwoByteForms[in.opcode];
      if (in.encoding == Encoding::kLegacy) return form;
      if (in.opcode == 0x77) return '.';  // vzeroupper
      if (in.opcode == 0x7a || in.opcode == 0x7b) return 'm';
      return form == 'm' || form == 'B' ? form : 'x';
    }
    case Map::k0F3A:
    case Map::kXop8:
      return 'B';
    case Map::kXopA:
      return 'M';
    case Map::kEvex4:  // APX: the legacy instructions once more
      switch (in.opcode) {
        case 0x24:
        case 0x2c:
        case 0x6b:
        case 0x80:
        case 0x83:
        case 0xc0:
        case 0xc1:
          return 'B';
        case 0x69:
        case 0x81:
          return 'Z';
        case 0xf6:
          return 'g';
        case 0xf7:
          return 'G';
        default:
          return 'm';
      }
    default:
      return 'm';
  }
}

// Bytes in order. There are always as many as are read: what lies behind the code is zeros, and decode()
// refuses an instruction that reaches there.
struct Cursor {
  const std::byte* at;

  uint8_t peek() const { return std::to_integer<uint8_t>(*at); }
  uint8_t next() { return std::to_integer<uint8_t>(*at++); }
  int64_t little_endian(unsigned size) {  // up to 8
    if (size == 0) return 0;
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    at += size;
    const unsigned unused = 64 - 8 * size;
    return static_cast<int64_t>(value << unused) >> unused;
  }
};

// REX bits W, R, X, B into the instruction; `bits` as in REX's low nibble.
void set_rex(Instruction& out, unsigned bits) {
  out.wide = (bits & 8) != 0;
  out.reg_high = static_cast<uint8_t>((bits & 4) << 1);
  out.index_high = static_cast<uint8_t>((bits & 2) << 2);
  out.base_high = static_cast<uint8_t>((bits & 1) << 3);
}

// What a byte at an instruction's start, or behind a prefix, is.
enum class Prefix : uint8_t {
  kNone,
  kRex,
  kEscape,
  kRex2,
  kVector,
  kPopOrXop,
  kOperand16,
  kAddress32,
  kRepeatNot,
  kRepeat,
  kNotrack,
  kSegment,
  kIgnored
};

constexpr std::array<Prefix, 256> kPrefixes = [] {
  std::array<Prefix, 256> of{};
  for (size_t byte = 0x40; byte < 0x50; ++byte) of[byte] = Prefix::kRex;
  for (size_t byte : {0x26, 0x2e, 0x36, 0xf0}) of[byte] = Prefix::kIgnored;
  for (size_t byte : {0x62, 0xc4, 0xc5}) of[byte] = Prefix::kVector;
  of[0x64] = of[0x65] = Prefix::kSegment;
  of[0x0f] = Prefix::kEscape;
  of[0xd5] = Prefix::kRex2;
  of[0x8f] = Prefix::kPopOrXop;
  of[0x66] = Prefix::kOperand16;
  of[0x67] = Prefix::kAddress32;
  of[0xf2] = Prefix::kRepeatNot;
  of[0xf3] = Prefix::kRepeat;
  of[0x3e] = Prefix::kNotrack;
  return of;
}();

void set_implied_prefix(Instruction& out, unsigned pp) {
  out.operand16 = pp == 1;
  out.repeat = pp == 2;
  out.repeat_not = pp == 3;
}

// c5 / c4 / 62 / 8f (XOP). The prefix byte is read already.
bool vector_prefix(Cursor& cursor, uint8_t prefix, Instruction& out) {
  out.has_rex = true;
  if (prefix == 0xc5) {
    uint8_t p = cursor.next();
    out.encoding = Encoding::kVex;
    out.map = Map::k0F;
    set_rex(out, (p & 0x80) ? 0 : 4);
    out.vvvv = static_cast<uint8_t>(~p >> 3 & 15);
    set_implied_prefix(out, p & 3);
    return true;
  }
  uint8_t p0 = cursor.next();
  uint8_t p1 = cursor.next();
  unsigned high = static_cast<unsigned>(~p0) >> 5 & 7;  // R, X, B
  set_rex(out, (p1 & 0x80 ? 8u : 0u) | high);
  out.vvvv = static_cast<uint8_t>(~p1 >> 3 & 15);
  set_implied_prefix(out, p1 & 3);
  if (prefix == 0x62) {
    out.encoding = Encoding::kEvex;
    uint8_t p2 = cursor.next();
    switch (p0 & 7) {
      case 1:
        out.map = Map::k0F;
        break;
      case 2:
        out.map = Map::k0F38;
        break;
      case 3:
        out.map = Map::k0F3A;
        break;
      case 4:
        out.map = Map::kEvex4;
        break;
      case 5:
        out.map = Map::kEvex5;
        break;
      case 6:
        out.map = Map::kEvex6;
        break;
      default:
        return false;
    }
    if (!(p0 & 0x10)) out.reg_high |= 16;
    if (p0 & 8) out.base_high |= 16;
    if (out.map == Map::kEvex4 && !(p2 & 8)) out.vvvv |= 16;
    return true;
  }
  unsigned map = p0 & 31;
  if (prefix == 0x8f) {
    out.encoding = Encoding::kXop;
    if (map < 8 || map > 10) return false;
    out.map = map == 8 ? Map::kXop8 : map == 9 ? Map::kXop9 : Map::kXopA;
    return true;
  }
  out.encoding = Encoding::kVex;
  if (map < 1 || map > 3) return false;
  out.map = map == 1 ? Map::k0F : map == 2 ? Map::k0F38 : Map::k0F3A;
  return true;
}

// Legacy prefixes, then REX, then the opcode with its escape bytes.
bool prefixes_and_opcode(Cursor& cursor, Instruction& out) {
  for (unsigned count = 0; count < kMaxLength; ++count) {
    const uint8_t byte = cursor.next();
    switch (kPrefixes[byte]) {
      case Prefix::kNone:
        out.opcode = byte;
        return true;
      case Prefix::kRex:
        set_rex(out, byte);
        out.has_rex = true;
        continue;  // counts only right before the opcode: any other prefix behind it undoes it, below
      case Prefix::kEscape:
        out.map = Map::k0F;
        out.opcode = cursor.next();
        if (out.opcode == 0x38 || out.opcode == 0x3a) {
          out.map = out.opcode == 0x38 ? Map::k0F38 : Map::k0F3A;
          out.opcode = cursor.next();
        }
        return true;
      case Prefix::kRex2: {  // M0 R4 X4 B4 W R3 X3 B3
        const uint8_t payload = cursor.next();
        set_rex(out, payload);
        out.has_rex = true;
        if (payload & 0x40) out.reg_high |= 16;
        if (payload & 0x20) out.index_high |= 16;
        if (payload & 0x10) out.base_high |= 16;
        out.map = payload & 0x80 ? Map::k0F : Map::kOneByte;
        out.opcode = cursor.next();
        return out.map != Map::k0F || (out.opcode != 0x38 && out.opcode != 0x3a);
      }
      case Prefix::kPopOrXop:
        if ((cursor.peek() & 31) < 8) {
          out.opcode = byte;
          return true;
        }
        [[fallthrough]];
      case Prefix::kVector:
        if (!vector_prefix(cursor, byte, out)) return false;
        out.opcode = cursor.next();
        return true;
      case Prefix::kOperand16:
        out.operand16 = true;
        break;
      case Prefix::kAddress32:
        out.address32 = true;
        break;
      case Prefix::kRepeatNot:
        out.repeat_not = true;
        break;
      case Prefix::kRepeat:
        out.repeat = true;
        break;
      case Prefix::kNotrack:
        out.notrack = true;
        break;
      case Prefix::kSegment:
        out.segment = true;
        break;
      case Prefix::kIgnored:
        break;
    }
    set_rex(out, 0);
    out.has_rex = false;
  }
  return false;
}

void modrm_and_displacement(Cursor& cursor, Instruction& out, bool registers_only) {
  out.has_modrm = true;
  out.modrm = cursor.next();
  if (registers_only) out.modrm |= 0xc0;
  if (out.mod() == 3) return;
  unsigned base = out.modrm & 7;
  if (base == 4) {
    out.has_sib = true;
    out.sib = cursor.next();
    base = out.sib & 7;
  }
  unsigned size = out.mod() == 1 ? 1 : out.mod() == 2 || base == 5 ? 4 : 0;
  out.displacement = static_cast<int32_t>(cursor.little_endian(size));
}

// Prefixes and opcode, ModRM, SIB, displacement, immediates; and the bytes behind one of fewer than 8 that
// are loaded with it.
constexpr size_t kMostRead = kMaxLength + 4 + 2 + 4 + 9 + 8;

// Decodes what lies at `code`, where kMostRead bytes can be read.
bool decode_padded(const std::byte* code, size_t size, Instruction& out) {
  Cursor cursor{code};
  if (!prefixes_and_opcode(cursor, out)) return false;
  const char form = form_of(out);
  const Operands operands = kOperands[static_cast<unsigned char>(form)];
  if (!operands.valid) return false;
  const unsigned operand = out.operand16 && !out.wide ? 2 : 4;
  unsigned immediate = operands.immediate;
  unsigned second = operands.second;
  if (operands.by_operand) immediate += operand;
  if (operands.modrm) {
    modrm_and_displacement(cursor, out, form == 'R');
    if ((form == 'g' || form == 'G') && out.digit() > 1) immediate = 0;
  } else if (form == 'v' && out.wide) {
    immediate = 8;
  } else if (form == 'a') {
    immediate = out.address32 ? 4 : 8;
  }
  // SSE4a: extrq xmm, imm8, imm8 and insertq xmm, xmm, imm8, imm8
  if (out.is_0f(0x78) && (out.operand16 || out.repeat_not)) immediate = second = 1;
  out.immediate = cursor.little_endian(immediate);
  if (second != 0) out.second_immediate = cursor.next();
  const auto length = static_cast<size_t>(cursor.at - code);
  out.length = static_cast<uint8_t>(length);
  return length <= size;
}

uint16_t bit(uint8_t reg) { return reg < kGeneralRegisters ? static_cast<uint16_t>(1u << reg) : uint16_t{0}; }

constexpr uint16_t kAx = 1u << kRax, kCx = 1u << kRcx, kDx = 1u << kRdx, kBx = 1u << kRbx, kSp = 1u << kRsp,
                   kBp = 1u << kRbp, kSi = 1u << kRsi, kDi = 1u << kRdi, kR11Bit = 1u << kR11;

// A byte operand without REX: 4..7 are ah, ch, dh, bh.
uint16_t byte_bit(const Instruction& in, uint8_t reg) {
  return !in.has_rex && reg >= 4 && reg < 8 ? bit(static_cast<uint8_t>(reg - 4)) : bit(reg);
}
uint16_t rm_bit(const Instruction& in) { return in.is_register_form() ? bit(in.rm()) : uint16_t{0}; }
uint16_t rm_bit(const Instruction& in, bool byte) {
  if (!in.is_register_form()) return 0;
  return byte ? byte_bit(in, in.rm()) : bit(in.rm());
}
uint16_t reg_bit(const Instruction& in, bool byte) { return byte ? byte_bit(in, in.reg()) : bit(in.reg()); }

uint16_t both(uint16_t a, uint16_t b) { return static_cast<uint16_t>(a | b); }

uint16_t written_one_byte(const Instruction& in) {
  uint8_t op = in.opcode;
  bool byte = !(op & 1);
  if (op < 0x40) {
    if (op >= 0x38) return 0;  // cmp
    switch (op & 7) {
      case 0:
      case 1:
        return rm_bit(in, byte);
      case 2:
      case 3:
        return reg_bit(in, byte);
      default:
        return kAx;
    }
  }
  if (op >= 0x50 && op < 0x58) return kSp;
  if (op >= 0x58 && op < 0x60) return both(kSp, bit(in.opcode_register()));
  if (op >= 0x70 && op < 0x80) return 0;
  if (op >= 0x90 && op < 0x98) {
    if (in.opcode_register() == kRax) return 0;
    return both(kAx, bit(in.opcode_register()));
  }
  if (op >= 0xb0 && op < 0xb8) return byte_bit(in, in.opcode_register());
  if (op >= 0xb8 && op < 0xc0) return bit(in.opcode_register());
  if (op >= 0xd8 && op < 0xe0) return op == 0xdf && in.modrm == 0xe0 ? kAx : uint16_t{0};
  switch (op) {
    case 0x63:
    case 0x69:
    case 0x6b:
    case 0x8b:
    case 0x8d:
      return bit(in.reg());
    case 0x68:
    case 0x6a:
      return kSp;
    case 0x6c:
    case 0x6d:
    case 0x6e:
    case 0x6f:
      return static_cast<uint16_t>(kSi | kDi | kCx);
    case 0x80:
    case 0x81:
    case 0x83:
      return in.digit() == 7 ? uint16_t{0} : rm_bit(in, op == 0x80);
    case 0x84:
    case 0x85:
      return 0;
    case 0x86:
    case 0x87:
      return both(rm_bit(in, byte), reg_bit(in, byte));
    case 0x88:
    case 0x89:
      return rm_bit(in, byte);
    case 0x8a:
      return reg_bit(in, true);
    case 0x8c:
      return rm_bit(in);
    case 0x8e:
      return 0;
    case 0x8f:
      return both(kSp, rm_bit(in));
    case 0x98:
      return kAx;
    case 0x99:
      return kDx;
    case 0x9b:
    case 0x9e:
    case 0xa2:
    case 0xa3:
    case 0xa8:
    case 0xa9:
      return 0;
    case 0x9c:
    case 0x9d:
      return kSp;
    case 0x9f:
    case 0xa0:
    case 0xa1:
    case 0xd7:
      return kAx;
    case 0xa4:
    case 0xa5:
    case 0xa6:
    case 0xa7:
      return static_cast<uint16_t>(kSi | kDi | kCx);
    case 0xaa:
    case 0xab:
    case 0xae:
    case 0xaf:
      return both(kDi, kCx);
    case 0xac:
    case 0xad:
      return static_cast<uint16_t>(kAx | kSi | kCx);
    case 0xc0:
    case 0xc1:
    case 0xd0:
    case 0xd1:
    case 0xd2:
    case 0xd3:
      return rm_bit(in, byte);
    case 0xc6:
    case 0xc7:
      return in.modrm == 0xf8 ? kAx : rm_bit(in, byte);  // xabort, xbegin
    case 0xc8:
    case 0xc9:
      return both(kSp, kBp);
    case 0xc2:
    case 0xc3:
    case 0xca:
    case 0xcb:
    case 0xcf:
    case 0xe8:
      return kSp;
    case 0xcc:
    case 0xf1:
    case 0xf4:
    case 0xf5:
    case 0xf8:
    case 0xf9:
    case 0xfa:
    case 0xfb:
    case 0xfc:
    case 0xfd:
      return 0;
    case 0xe0:
    case 0xe1:
    case 0xe2:
      return kCx;
    case 0xe3:
    case 0xe6:
    case 0xe7:
    case 0xe9:
    case 0xeb:
    case 0xee:
    case 0xef:
      return 0;
    case 0xe4:
    case 0xe5:
    case 0xec:
    case 0xed:
      return kAx;
    case 0xf6:
    case 0xf7:
      if (in.digit() < 2) return 0;
      return in.digit() < 4 ? rm_bit(in, byte) : both(kAx, kDx);
    case 0xfe:
      return rm_bit(in, true);
    case 0xff:
      return in.digit() < 2                                          ? rm_bit(in)
             : in.digit() == 2 || in.digit() == 3 || in.digit() == 6 ? kSp
                                                                     : uint16_t{0};
    default:
      return 0xffff;  // int n and the like: the kernel's answer
  }
}

uint16_t written_0f(const Instruction& in) {
  uint8_t op = in.opcode;
  bool legacy = in.encoding == Encoding::kLegacy;
  // The same in every encoding: instructions that move from a vector or mask register to a general one.
  switch (op) {
    case 0x2c:
    case 0x2d:
      return in.repeat || in.repeat_not ? bit(in.reg()) : uint16_t{0};
    case 0x50:
    case 0xc5:
    case 0xd7:
      return bit(in.reg());
    case 0x7e:
      return in.repeat ? uint16_t{0} : rm_bit(in);
    default:
      break;
  }
  if (!legacy) {
    if (op == 0x93 || op == 0x78 || op == 0x79) return bit(in.reg());  // kmov, vcvt(t)ss2usi
    return 0;
  }
  if ((op >= 0x40 && op < 0x50)) return bit(in.reg());
  if ((op >= 0x80 && op < 0x90)) return 0;
  if (op >= 0x90 && op < 0xa0) return rm_bit(in, true);
  if (op >= 0xc8 && op < 0xd0) return bit(in.opcode_register());
  switch (op) {
    case 0x00:
      return in.digit() < 2 ? rm_bit(in) : uint16_t{0};
    case 0x01:
      return both(rm_bit(in), static_cast<uint16_t>(kAx | kBx | kCx | kDx));
    case 0x02:
    case 0x03:
    case 0x1a:
    case 0x1b:
    case 0xaf:
    case 0xb2:
    case 0xb4:
    case 0xb5:
    case 0xb8:
    case 0xbc:
    case 0xbd:
    case 0xb6:
    case 0xb7:
    case 0xbe:
    case 0xbf:
      return bit(in.reg());
    case 0x1e:
      return in.repeat && in.digit() == 1 ? rm_bit(in) : uint16_t{0};  // rdssp
    case 0x05:
      return static_cast<uint16_t>(kAx | kCx | kR11Bit);
    case 0x20:
    case 0x21:
    case 0x78:
    case 0xa4:
    case 0xa5:
    case 0xac:
    case 0xad:
    case 0xab:
    case 0xb3:
    case 0xbb:
      return rm_bit(in);
    case 0x31:
    case 0x32:
    case 0x33:
      return both(kAx, kDx);
    case 0x34:
    case 0x35:  // sysenter, sysexit
      return 0xffff;
    case 0x37:
      return static_cast<uint16_t>(kAx | kBx | kCx | kDx);
    case 0xa0:
    case 0xa1:
    case 0xa8:
    case 0xa9:
      return kSp;
    case 0xa2:
      return static_cast<uint16_t>(kAx | kBx | kCx | kDx);
    case 0xa6:
    case 0xa7:
      return static_cast<uint16_t>(kAx | kCx | kDx | kSi | kDi);  // VIA padlock
    case 0xae:
      return in.is_register_form() && in.repeat ? rm_bit(in) : uint16_t{0};  // rdfsbase, incssp
    case 0xb0:
    case 0xb1:
      return both(kAx, rm_bit(in, op == 0xb0));
    case 0xba:
      return in.digit() == 4 ? uint16_t{0} : rm_bit(in);
    case 0xc0:
    case 0xc1:
      return both(rm_bit(in, op == 0xc0), reg_bit(in, op == 0xc0));
    case 0xc7:
      return in.is_register_form() ? rm_bit(in) : both(kAx, kDx);  // rdrand, cmpxchg16b
    default:
      return 0;
  }
}

}  // namespace

uint32_t dwarf_register(uint8_t reg) {
  constexpr std::array<uint8_t, kGeneralRegisters> kDwarf = {
      CLEW_RAX, CLEW_RCX, CLEW_RDX, CLEW_RBX, CLEW_RSP, CLEW_RBP, CLEW_RSI, CLEW_RDI,
      CLEW_R8,  CLEW_R9,  CLEW_R10, CLEW_R11, CLEW_R12, CLEW_R13, CLEW_R14, CLEW_R15};
  return kDwarf[reg & 15];
}

Memory Instruction::memory() const {
  Memory memory;
  if (!is_memory_form()) return memory;
  memory.displacement = displacement;
  memory.plain = !address32 && !segment;
  if (has_sib) {
    uint8_t index = static_cast<uint8_t>((sib >> 3 & 7) | index_high);
    if (index != kRsp) memory.index = index;
    if ((sib & 7) != 5 || mod() != 0) memory.base = static_cast<uint8_t>((sib & 7) | base_high);
  } else if ((modrm & 7) != 5 || mod() != 0) {
    memory.base = rm();
  }
  return memory;
}

bool decode(std::span<const std::byte> code, Instruction& out) {
  out = Instruction{};
  if (code.size() >= kMostRead) return decode_padded(code.data(), kMaxLength, out);
  std::array<std::byte, kMostRead> padded{};
  std::copy(code.begin(), code.end(), padded.begin());
  return decode_padded(padded.data(), std::min(code.size(), kMaxLength), out);
}

uint16_t written_registers(const Instruction& in) {
  switch (in.map) {
    case Map::kOneByte:
      return written_one_byte(in);
    case Map::k0F:
      return written_0f(in);
    case Map::k0F38:
      if (in.encoding == Encoding::kEvex && in.opcode < 0xf0) return 0;
      switch (in.opcode) {  // movbe, crc32, adcx, adox, BMI
        case 0xf0:
        case 0xfa:
        case 0xfb:
          return bit(in.reg());
        case 0xf1:
          return in.repeat_not || in.is_memory_form() ? bit(in.reg()) : uint16_t{0};
        case 0xf2:
        case 0xf5:
        case 0xf6:
        case 0xf7:
          return both(bit(in.reg()), bit(in.vvvv));
        case 0xf3:
          return bit(in.vvvv);
        default:
          return 0;
      }
    case Map::k0F3A:
      switch (in.opcode) {
        case 0x14:
        case 0x15:
        case 0x16:
        case 0x17:
          return rm_bit(in);
        case 0x60:
        case 0x61:
        case 0x62:
        case 0x63:
          return kCx;
        case 0xf0:
          return bit(in.reg());
        default:
          return 0;
      }
    case Map::kEvex5:
      switch (in.opcode) {
        case 0x2c:
        case 0x2d:
        case 0x78:
        case 0x79:
          return bit(in.reg());
        case 0x7e:
          return rm_bit(in);
        default:
          return 0;
      }
    case Map::kEvex6:
    case Map::kXop8:
      return 0;
    case Map::kEvex4:  // APX: new data destinations, push2 and pop2
      if (in.opcode == 0xff || in.opcode == 0x8f) return 0xffff;
      return static_cast<uint16_t>(rm_bit(in) | bit(in.reg()) | bit(in.vvvv));
    case Map::kXop9:
    case Map::kXopA:
      return both(bit(in.reg()), bit(in.vvvv));
  }
  return 0xffff;
}

Flow flow_of(const Instruction& in, int64_t& target) {
  target = int64_t{in.length} + static_cast<int32_t>(in.immediate);  // of branches; mov has 64-bit immediates
  if (in.encoding != Encoding::kLegacy) return Flow::kNext;
  uint8_t op = in.opcode;
  if (in.map == Map::k0F) {
    if (op >= 0x80 && op < 0x90) return Flow::kBranch;
    if (op == 0x0b || op == 0xb9 || op == 0xff) return Flow::kStop;
    if (op == 0x07 || op == 0x35 || op == 0xaa) return Flow::kReturn;  // sysret, sysexit, rsm
    return Flow::kNext;
  }
  if (in.map != Map::kOneByte) return Flow::kNext;
  if ((op >= 0x70 && op < 0x80) || (op >= 0xe0 && op < 0xe4)) return Flow::kBranch;
  switch (op) {
    case 0xe8:
      return Flow::kCall;
    case 0xe9:
    case 0xeb:
      return Flow::kJump;
    case 0xc2:
    case 0xc3:
    case 0xca:
    case 0xcb:
    case 0xcf:
      return Flow::kReturn;
    case 0xcc:
    case 0xf1:
    case 0xf4:
      return Flow::kStop;
    case 0xc7:
      return in.modrm == 0xf8 ? Flow::kBranch : Flow::kNext;
    case 0xff:
      if (in.digit() == 2 || in.digit() == 3) return Flow::kCallIndirect;
      if (in.digit() == 4 || in.digit() == 5) return Flow::kJumpIndirect;
      return Flow::kNext;
    default:
      return Flow::kNext;
  }
}

bool is_padding(const Instruction& in) {
  if (in.is(0xcc)) return true;
  if (in.is(0x90)) return !in.base_high;
  if (in.is_0f(0x1f)) return true;
  // xchg ax, ax is 66 90; lea 0(rsi), rsi and mov rsi, rsi are nops of old assemblers
  if (in.is(0x8d) && in.wide && in.is_memory_form()) {
    Memory m = in.memory();
    return m.base == in.reg() && m.index == kNoRegister && m.displacement == 0;
  }
  return false;
}

}  // namespace clew::analysis
