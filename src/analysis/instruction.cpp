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
struct Layout {
  bool valid = false, modrm = false;
  bool by_operand = false;  // 2 or 4 more bytes of immediate, by operand size
  bool unusual = false;     // see unusual_operands()
  uint8_t immediate = 0;
};

constexpr Layout layout_of(char form) {
  switch (form) {
    case '.':
      return {true, false, false, false, 0};
    case 'm':
      return {true, true, false, false, 0};
    case 'B':
      return {true, true, false, false, 1};
    case 'M':
      return {true, true, false, false, 4};
    case 'Z':
      return {true, true, true, false, 0};
    case 'b':
      return {true, false, false, false, 1};
    case 'w':
      return {true, false, false, false, 2};
    case 'z':
      return {true, false, true, false, 0};
    case 'r':
      return {true, false, false, false, 4};
    case 'R':
    case 'g':
    case 'G':
      return {true, true, false, true, 0};
    case 'v':
    case 'a':
    case 'e':
      return {true, false, false, true, 0};
    default:
      return {};
  }
}

constexpr std::array<Layout, 256> layouts_of(std::string_view forms) {
  std::array<Layout, 256> layouts;
  for (size_t i = 0; i < layouts.size(); ++i) layouts[i] = layout_of(forms[i]);
  return layouts;
}
constexpr std::array<Layout, 256> kOneByteLayouts = layouts_of(kOneByteForms);
constexpr std::array<Layout, 256> kTwoByteLayouts = [] {
  std::array<Layout, 256> layouts = layouts_of(kTwoByteForms);
  layouts[0x78].unusual = true;
  return layouts;
}();

// Of the maps that have no table: those of VEX, EVEX and XOP, and the three-byte ones.
char form_of(const Instruction& in) {
  switch (in.map) {
    case Map::k0F: {
      if (in.opcode == 0x77) return '.';  // vzeroupper
      if (in.opcode == 0x7a || in.opcode == 0x7b) return 'm';
      const char form = kTwoByteForms[in.opcode];
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
  int64_t little_endian(unsigned size) {  // up to 7
    uint64_t value;
    std::memcpy(&value, at, sizeof value);
    at += size;
    const unsigned unused = 56 - 8 * size;  // and 8 more: a shift by 64 means nothing
    return static_cast<int64_t>(value << unused << 8) >> unused >> 8;
  }
  int64_t eight_bytes() {
    int64_t value;
    std::memcpy(&value, at, sizeof value);
    at += sizeof value;
    return value;
  }
};

// What a byte at an instruction's start, or behind a prefix, is.
enum class Byte : uint8_t { kPrefix, kRex, kOpcode, kEscape, kRex2, kVector, kPopOrXop };

constexpr std::array<Byte, 256> kBytes = [] {
  std::array<Byte, 256> of{};
  of.fill(Byte::kOpcode);
  for (size_t byte = 0x40; byte < 0x50; ++byte) of[byte] = Byte::kRex;
  for (size_t byte : {0x26, 0x2e, 0x36, 0x3e, 0x64, 0x65, 0x66, 0x67, 0xf0, 0xf2, 0xf3})
    of[byte] = Byte::kPrefix;
  for (size_t byte : {0x62, 0xc4, 0xc5}) of[byte] = Byte::kVector;
  of[0x0f] = Byte::kEscape;
  of[0xd5] = Byte::kRex2;
  of[0x8f] = Byte::kPopOrXop;
  return of;
}();

// The bits in Instruction::prefixes: none for those that mean nothing here.
constexpr std::array<uint8_t, 256> kPrefixBits = [] {
  std::array<uint8_t, 256> of{};
  of[0x64] = of[0x65] = Instruction::kSegment;
  of[0x66] = Instruction::kOperand16;
  of[0x67] = Instruction::kAddress32;
  of[0xf2] = Instruction::kRepeatNot;
  of[0xf3] = Instruction::kRepeat;
  of[0x3e] = Instruction::kNotrack;
  return of;
}();

void set_implied_prefix(Instruction& out, unsigned pp) {
  constexpr std::array<uint8_t, 4> kImplied = {0, Instruction::kOperand16, Instruction::kRepeat,
                                               Instruction::kRepeatNot};
  constexpr unsigned kAll = Instruction::kOperand16 | Instruction::kRepeat | Instruction::kRepeatNot;
  out.prefixes = static_cast<uint8_t>((out.prefixes & ~kAll) | kImplied[pp]);
}

// c5 / c4 / 62 / 8f (XOP). The prefix byte is read already.
bool vector_prefix(Cursor& cursor, uint8_t prefix, Instruction& out) {
  out.has_rex = true;
  if (prefix == 0xc5) {
    uint8_t p = cursor.next();
    out.encoding = Encoding::kVex;
    out.map = Map::k0F;
    out.rex = (p & 0x80) ? 0 : 4;
    out.vvvv = static_cast<uint8_t>(~p >> 3 & 15);
    set_implied_prefix(out, p & 3);
    return true;
  }
  uint8_t p0 = cursor.next();
  uint8_t p1 = cursor.next();
  unsigned high = static_cast<unsigned>(~p0) >> 5 & 7;  // R, X, B
  out.rex = static_cast<uint8_t>((p1 & 0x80 ? 8u : 0u) | high);
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
    if (!(p0 & 0x10)) out.rex |= 0x40;
    if (p0 & 8) out.rex |= 0x10;
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

// The opcode behind `byte`, which is none itself: an escape, REX2, or what VEX, EVEX and XOP begin with.
Layout escaped_opcode(Cursor& cursor, uint8_t byte, Instruction& out) {
  switch (kBytes[byte]) {
    case Byte::kEscape:
      out.map = Map::k0F;
      out.opcode = cursor.next();
      if (out.opcode != 0x38 && out.opcode != 0x3a) return kTwoByteLayouts[out.opcode];
      out.map = out.opcode == 0x38 ? Map::k0F38 : Map::k0F3A;
      out.opcode = cursor.next();
      break;
    case Byte::kRex2: {
      const uint8_t payload = cursor.next();
      out.rex = payload & 0x7f;
      out.has_rex = true;
      out.opcode = cursor.next();
      if (!(payload & 0x80)) return kOneByteLayouts[out.opcode];
      out.map = Map::k0F;
      return out.opcode == 0x38 || out.opcode == 0x3a ? Layout{} : kTwoByteLayouts[out.opcode];
    }
    case Byte::kPopOrXop:
      if ((cursor.peek() & 31) < 8) return kOneByteLayouts[byte];
      [[fallthrough]];
    default:
      if (!vector_prefix(cursor, byte, out)) return {};
      out.opcode = cursor.next();
  }
  return layout_of(form_of(out));
}

// What ModRM says about the bytes behind it.
struct AddressForm {
  bool sib = false;
  uint8_t displacement = 0;
};
constexpr std::array<AddressForm, 256> kAddressForms = [] {
  std::array<AddressForm, 256> of{};
  for (unsigned modrm = 0; modrm < 0xc0; ++modrm) {
    const unsigned mod = modrm >> 6;
    of[modrm].sib = (modrm & 7) == 4;
    of[modrm].displacement = mod == 1 ? 1 : mod == 2 || (modrm & 7) == 5 ? 4 : 0;
  }
  return of;
}();

void modrm_and_displacement(Cursor& cursor, Instruction& out) {
  out.has_modrm = true;
  out.modrm = cursor.next();
  const AddressForm form = kAddressForms[out.modrm];
  unsigned size = form.displacement;
  if (form.sib) {
    out.has_sib = true;
    out.sib = cursor.next();
    if ((out.sib & 7) == 5 && out.mod() == 0) size = 4;
  }
  out.displacement = static_cast<int32_t>(cursor.little_endian(size));
}

// Reads what follows an opcode whose layout is unusual.
void unusual_operands(Cursor& cursor, Instruction& out) {
  const bool two_byte = out.map == Map::k0F;
  const char form = two_byte                   ? kTwoByteForms[out.opcode]
                    : out.map == Map::kOneByte ? kOneByteForms[out.opcode]
                                               : form_of(out);
  const unsigned operand = out.operand16() && !out.wide() ? 2 : 4;
  switch (form) {
    case 'R':  // whatever ModRM's mod says
      out.has_modrm = true;
      out.modrm = cursor.next() | 0xc0;
      return;
    case 'g':
    case 'G':
      modrm_and_displacement(cursor, out);
      if (out.digit() < 2) out.immediate = cursor.little_endian(form == 'g' ? 1 : operand);
      return;
    case 'v':
      out.immediate = out.wide() ? cursor.eight_bytes() : cursor.little_endian(operand);
      return;
    case 'a':
      out.immediate = out.address32() ? cursor.little_endian(4) : cursor.eight_bytes();
      return;
    case 'e':
      out.immediate = cursor.little_endian(2);
      out.second_immediate = cursor.next();
      return;
    default:
      modrm_and_displacement(cursor, out);
      // SSE4a: extrq xmm, imm8, imm8 and insertq xmm, xmm, imm8, imm8
      if (out.operand16() || out.repeat_not()) {
        out.immediate = cursor.little_endian(1);
        out.second_immediate = cursor.next();
      }
  }
}

// Prefixes and opcode, ModRM, SIB, displacement, immediates; and the bytes behind one of fewer than 8 that
// are loaded with it.
constexpr size_t kMostRead = kMaxLength + 4 + 2 + 4 + 9 + 8;

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

// What an instruction writes, one letter an opcode:
//   .  nothing       m  ModRM.rm     M  the same but for /7     b B  the same as byte registers
//   r  ModRM.reg     c  the same as a byte register             o    the opcode's register
//   a  rax           s  rsp          p  rsp and the opcode's register
//   ?  what written_otherwise() says                            x    invalid
constexpr std::string_view kOneByteWrites =
    "bmcraaxxbmcraaxx"   // 00
    "bmcraaxxbmcraaxx"   // 10
    "bmcraaxxbmcraaxx"   // 20
    "bmcraaxx......xx"   // 30
    "xxxxxxxxxxxxxxxx"   // 40
    "sssssssspppppppp"   // 50
    "xxxrxxxxsrsr????"   // 60
    "................"   // 70
    "BMxM..??bmcrmr.?"   // 80
    "????????a?x.ss.a"   // 90
    "aa..????..??????"   // a0
    "oooo????oooooooo"   // b0
    "bmssxx????ss.?xs"   // c0
    "bmbmxxxa.......?"   // d0
    "???.aa..s.x.aa.."   // e0
    "x.xx..??......b?";  // f0
constexpr std::string_view kTwoByteWrites =
    "??rrx?....x.x..."   // 0f 00
    "..........rr..?."   // 0f 10
    "mm..xxxx....??.."   // 0f 20
    ".?????x?xxxxxxxx"   // 0f 30
    "rrrrrrrrrrrrrrrr"   // 0f 40
    "r..............."   // 0f 50
    "................"   // 0f 60
    "........m.xx..?."   // 0f 70
    "................"   // 0f 80
    "bbbbbbbbbbbbbbbb"   // 0f 90
    "ss?.mm??ss.mmm?r"   // 0f a0
    "??rmrrrrr.?mrrrr"   // 0f b0
    "??...r.?oooooooo"   // 0f c0
    ".......r........"   // 0f d0
    "................"   // 0f e0
    "................";  // 0f f0
static_assert(kOneByteWrites.size() == 256 && kTwoByteWrites.size() == 256);

// The same, so that no branch depends on it: at most one register that the instruction's bytes name.
struct Writes {
  uint16_t fixed = 0;
  uint8_t digits = 0;          // bit n: that register with /n
  bool register_form = false;  // only if ModRM.rm is a register
  bool byte = false;
  bool otherwise = false;
  uint8_t place = 0;      // where its number is in opcode | ModRM << 8,
  uint8_t rex_place = 0;  // and in REX
};
using AllWrites = std::array<Writes, 256>;

constexpr AllWrites writes_of(std::string_view letters) {
  AllWrites all{};
  for (size_t i = 0; i < all.size(); ++i) {
    const char letter = letters[i];
    const auto is = [&](std::string_view any) { return any.find(letter) != any.npos; };
    Writes& writes = all[i];
    writes.fixed = is("a") ? kAx : is("sp") ? kSp : uint16_t{0};
    writes.digits = is("mbrcop") ? 0xff : is("MB") ? 0x7f : 0;
    writes.register_form = is("mbMB");
    writes.byte = is("bBc");
    writes.otherwise = is("?x");
    writes.place = is("op") ? 0 : is("rc") ? 11 : 8;
    writes.rex_place = is("rc") ? 2 : 0;
  }
  return all;
}
constexpr AllWrites kOneByte = writes_of(kOneByteWrites);
constexpr AllWrites kTwoByte = writes_of(kTwoByteWrites);

uint16_t written_otherwise(const Instruction& in) {
  const uint8_t op = in.opcode;
  const bool byte = !(op & 1);
  if (op >= 0x90 && op < 0x98) {  // xchg
    if (in.opcode_register() == kRax) return 0;
    return both(kAx, bit(in.opcode_register()));
  }
  switch (op) {
    case 0x6c:
    case 0x6d:
    case 0x6e:
    case 0x6f:
    case 0xa4:
    case 0xa5:
    case 0xa6:
    case 0xa7:
      return static_cast<uint16_t>(kSi | kDi | kCx);
    case 0x86:
    case 0x87:
      return both(rm_bit(in, byte), reg_bit(in, byte));
    case 0x8f:
      return both(kSp, rm_bit(in));
    case 0x99:
      return kDx;
    case 0xaa:
    case 0xab:
    case 0xae:
    case 0xaf:
      return both(kDi, kCx);
    case 0xac:
    case 0xad:
      return static_cast<uint16_t>(kAx | kSi | kCx);
    case 0xb4:
    case 0xb5:
    case 0xb6:
    case 0xb7:
      return byte_bit(in, in.opcode_register());
    case 0xc6:
    case 0xc7:
      return in.modrm == 0xf8 ? kAx : rm_bit(in, byte);  // xabort, xbegin
    case 0xc8:
    case 0xc9:
      return both(kSp, kBp);
    case 0xdf:
      return in.modrm == 0xe0 ? kAx : uint16_t{0};
    case 0xe0:
    case 0xe1:
    case 0xe2:
      return kCx;
    case 0xf6:
    case 0xf7:
      if (in.digit() < 2) return 0;
      return in.digit() < 4 ? rm_bit(in, byte) : both(kAx, kDx);
    case 0xff:
      return in.digit() < 2                                          ? rm_bit(in)
             : in.digit() == 2 || in.digit() == 3 || in.digit() == 6 ? kSp
                                                                     : uint16_t{0};
    default:
      return 0xffff;  // int n and the like: the kernel's answer
  }
}

uint16_t written_otherwise_0f(const Instruction& in) {
  switch (in.opcode) {
    case 0x00:
      return in.digit() < 2 ? rm_bit(in) : uint16_t{0};
    case 0x01:
      return both(rm_bit(in), static_cast<uint16_t>(kAx | kBx | kCx | kDx));
    case 0x05:
      return static_cast<uint16_t>(kAx | kCx | kR11Bit);
    case 0x1e:
      return in.repeat() && in.digit() == 1 ? rm_bit(in) : uint16_t{0};  // rdssp
    case 0x2c:
    case 0x2d:
      return in.repeat() || in.repeat_not() ? bit(in.reg()) : uint16_t{0};
    case 0x31:
    case 0x32:
    case 0x33:
      return both(kAx, kDx);
    case 0x37:
    case 0xa2:
      return static_cast<uint16_t>(kAx | kBx | kCx | kDx);
    case 0x7e:
      return in.repeat() ? uint16_t{0} : rm_bit(in);
    case 0xa6:
    case 0xa7:
      return static_cast<uint16_t>(kAx | kCx | kDx | kSi | kDi);  // VIA padlock
    case 0xae:
      return in.is_register_form() && in.repeat() ? rm_bit(in) : uint16_t{0};  // rdfsbase, incssp
    case 0xb0:
    case 0xb1:
      return both(kAx, rm_bit(in, in.opcode == 0xb0));
    case 0xba:
      return in.digit() == 4 ? uint16_t{0} : rm_bit(in);
    case 0xc0:
    case 0xc1:
      return both(rm_bit(in, in.opcode == 0xc0), reg_bit(in, in.opcode == 0xc0));
    case 0xc7:
      return in.is_register_form() ? rm_bit(in) : both(kAx, kDx);  // rdrand, cmpxchg16b
    default:
      return 0xffff;  // sysenter, sysexit
  }
}

// VEX, EVEX: instructions that move from a vector or mask register to a general one.
uint16_t written_vector_0f(const Instruction& in) {
  switch (in.opcode) {
    case 0x2c:
    case 0x2d:
      return in.repeat() || in.repeat_not() ? bit(in.reg()) : uint16_t{0};
    case 0x50:
    case 0x78:  // vcvt(t)ss2usi
    case 0x79:
    case 0x93:  // kmov
    case 0xc5:
    case 0xd7:
      return bit(in.reg());
    case 0x7e:
      return in.repeat() ? uint16_t{0} : rm_bit(in);
    default:
      return 0;
  }
}

uint16_t written_by_table(const Instruction& in, const Writes& writes) {
  const unsigned high = in.rex >> writes.rex_place & 0x11u;
  unsigned reg = (in.opcode | in.modrm << 8u) >> writes.place & 7u;
  reg |= (high & 1) << 3 | (high & 0x10);
  if (writes.byte && !in.has_rex) reg &= 3;  // ah..bh are parts of rax..rbx
  const bool named = (writes.digits >> in.digit() & 1) != 0 && (!writes.register_form || in.mod() == 3);
  return static_cast<uint16_t>(writes.fixed | unsigned{named} << reg);
}

constexpr std::array<Flow, 256> kOneByteFlow = [] {
  std::array<Flow, 256> of{};
  for (size_t op = 0x70; op < 0x80; ++op) of[op] = Flow::kBranch;
  for (size_t op = 0xe0; op < 0xe4; ++op) of[op] = Flow::kBranch;
  for (size_t op : {0xc2, 0xc3, 0xca, 0xcb, 0xcf}) of[op] = Flow::kReturn;
  for (size_t op : {0xcc, 0xf1, 0xf4}) of[op] = Flow::kStop;
  of[0xe8] = Flow::kCall;
  of[0xe9] = of[0xeb] = Flow::kJump;
  return of;
}();
constexpr std::array<Flow, 256> kTwoByteFlow = [] {
  std::array<Flow, 256> of{};
  for (size_t op = 0x80; op < 0x90; ++op) of[op] = Flow::kBranch;
  for (size_t op : {0x0b, 0xb9, 0xff}) of[op] = Flow::kStop;
  for (size_t op : {0x07, 0x35, 0xaa}) of[op] = Flow::kReturn;  // sysret, sysexit, rsm
  return of;
}();

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
  memory.plain = !address32() && !segment();
  if (has_sib) {
    uint8_t index = static_cast<uint8_t>((sib >> 3 & 7) | index_high());
    if (index != kRsp) memory.index = index;
    if ((sib & 7) != 5 || mod() != 0) memory.base = static_cast<uint8_t>((sib & 7) | base_high());
  } else if ((modrm & 7) != 5 || mod() != 0) {
    memory.base = rm();
  }
  return memory;
}

bool decode(std::span<const std::byte> code, Instruction& out) {
  if (code.size() < kMostRead) {
    std::array<std::byte, kMostRead> padded{};
    std::copy(code.begin(), code.end(), padded.begin());
    return decode(padded, out) && out.length <= code.size();
  }
  out = Instruction{};
  Cursor cursor{code.data()};
  // Legacy prefixes, then REX, then the opcode.
  uint8_t byte = cursor.next();
  unsigned prefixes = 0;
  uint8_t rex = 0;
  for (size_t count = 1; kBytes[byte] <= Byte::kRex; ++count, byte = cursor.next()) {
    if (count == kMaxLength) return false;
    prefixes |= kPrefixBits[byte];
    rex = kBytes[byte] == Byte::kRex ? byte : 0;  // counts only right before the opcode
  }
  out.prefixes = static_cast<uint8_t>(prefixes);
  out.has_rex = rex != 0;
  out.rex = rex & 15;
  out.opcode = byte;
  const Layout layout =
      kBytes[byte] == Byte::kOpcode ? kOneByteLayouts[byte] : escaped_opcode(cursor, byte, out);
  if (!layout.valid) return false;
  if (layout.unusual) {
    unusual_operands(cursor, out);
  } else {
    if (layout.modrm) modrm_and_displacement(cursor, out);
    const unsigned operand = layout.by_operand ? (out.operand16() && !out.wide() ? 2 : 4) : 0;
    out.immediate = cursor.little_endian(layout.immediate + operand);
  }
  const auto length = static_cast<size_t>(cursor.at - code.data());
  out.length = static_cast<uint8_t>(length);
  return length <= kMaxLength;
}

uint16_t written_registers(const Instruction& in) {
  switch (in.map) {
    case Map::kOneByte:
      if (kOneByte[in.opcode].otherwise) return written_otherwise(in);
      return written_by_table(in, kOneByte[in.opcode]);
    case Map::k0F:
      if (in.encoding != Encoding::kLegacy) return written_vector_0f(in);
      if (kTwoByte[in.opcode].otherwise) return written_otherwise_0f(in);
      return written_by_table(in, kTwoByte[in.opcode]);
    case Map::k0F38:
      if (in.encoding == Encoding::kEvex && in.opcode < 0xf0) return 0;
      switch (in.opcode) {  // movbe, crc32, adcx, adox, BMI
        case 0xf0:
        case 0xfa:
        case 0xfb:
          return bit(in.reg());
        case 0xf1:
          return in.repeat_not() || in.is_memory_form() ? bit(in.reg()) : uint16_t{0};
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
  if (in.map == Map::k0F) return kTwoByteFlow[in.opcode];
  if (in.map != Map::kOneByte) return Flow::kNext;
  if (in.opcode == 0xff) {
    if (in.digit() == 2 || in.digit() == 3) return Flow::kCallIndirect;
    return in.digit() == 4 || in.digit() == 5 ? Flow::kJumpIndirect : Flow::kNext;
  }
  if (in.opcode == 0xc7) return in.modrm == 0xf8 ? Flow::kBranch : Flow::kNext;  // xbegin
  return kOneByteFlow[in.opcode];
}

bool is_padding(const Instruction& in) {
  if (in.is(0xcc)) return true;
  if (in.is(0x90)) return !in.base_high();
  if (in.is_0f(0x1f)) return true;
  // xchg ax, ax is 66 90; lea 0(rsi), rsi and mov rsi, rsi are nops of old assemblers
  if (in.is(0x8d) && in.wide() && in.is_memory_form()) {
    Memory m = in.memory();
    return m.base == in.reg() && m.index == kNoRegister && m.displacement == 0;
  }
  return false;
}

}  // namespace clew::analysis
