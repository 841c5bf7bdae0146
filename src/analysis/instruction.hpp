// One x86-64 instruction: its length, its parts, and which general registers it writes.
//
// Source of the encodings: Intel SDM volume 2, chapter 2 (instruction format) and appendix A (opcode maps);
// AMD APM volume 3 (XOP, 3DNow!, SSE4a); Intel APX specification (REX2, EVEX map 4). An instruction is
//
//   legacy prefixes | REX, REX2, VEX, EVEX or XOP | opcode (one of several maps) | ModRM | SIB | disp |
//   immediate
//
// and at most 15 bytes long. Only 64-bit mode; near branches have a 32-bit displacement whatever their
// prefixes say (Intel's reading). Whether operands make sense is not checked, only what the length depends
// on.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace clew::analysis {

/// Register numbers as instructions encode them (not DWARF's); APX adds 16..31, which nothing here follows.
enum X86 : uint8_t { kRax = 0, kRcx, kRdx, kRbx, kRsp, kRbp, kRsi, kRdi, kR8, kR10 = 10, kR11 = 11 };
constexpr uint8_t kNoRegister = 0xff;
constexpr unsigned kGeneralRegisters = 16;

/// The DWARF number (core/rule.h) of register `reg` < 16.
uint32_t dwarf_register(uint8_t reg);

enum class Map : uint8_t { kOneByte, k0F, k0F38, k0F3A, kEvex4, kEvex5, kEvex6, kXop8, kXop9, kXopA };
enum class Encoding : uint8_t { kLegacy, kVex, kEvex, kXop };

/// A memory operand: base + index * scale + displacement.
struct Memory {
  uint8_t base = kNoRegister;  // kNoRegister also for RIP-relative operands
  uint8_t index = kNoRegister;
  int32_t displacement = 0;
  bool plain =
      false;  // 64-bit address, no fs or gs: base and displacement are all that counts if index is none
};

struct Instruction {
  uint8_t length = 0;
  Map map = Map::kOneByte;
  Encoding encoding = Encoding::kLegacy;
  uint8_t opcode = 0;
  bool has_modrm = false;
  uint8_t modrm = 0;
  bool has_sib = false;
  uint8_t sib = 0;
  bool has_rex = false;  // a byte register 4..7 is spl..dil, not ah..bh
  uint8_t rex = 0;       // as in REX2's payload: R4 X4 B4 W R3 X3 B3; also what VEX, EVEX and XOP say of it
  uint8_t prefixes = 0;  // a bit for each Prefix; also what VEX, EVEX and XOP imply
  uint8_t vvvv = 0;      // the register that VEX, EVEX and XOP add
  uint8_t second_immediate = 0;
  int32_t displacement = 0;
  int64_t immediate = 0;  // the first one, sign-extended

  enum Prefix : uint8_t {
    kOperand16 = 1,  // 66
    kAddress32 = 2,  // 67
    kRepeat = 4,     // f3
    kRepeatNot = 8,  // f2
    kNotrack = 16,   // 3e
    kSegment = 32    // 64, 65
  };
  bool operand16() const { return (prefixes & kOperand16) != 0; }
  bool address32() const { return (prefixes & kAddress32) != 0; }
  bool repeat() const { return (prefixes & kRepeat) != 0; }
  bool repeat_not() const { return (prefixes & kRepeatNot) != 0; }
  bool notrack() const { return (prefixes & kNotrack) != 0; }
  bool segment() const { return (prefixes & kSegment) != 0; }

  bool wide() const { return (rex & 8) != 0; }
  // 8 and 16: what is added to ModRM.reg, SIB.index, and to ModRM.rm, SIB.base and the opcode's register.
  uint8_t reg_high() const { return static_cast<uint8_t>((rex & 4) << 1 | (rex & 0x40) >> 2); }
  uint8_t index_high() const { return static_cast<uint8_t>((rex & 2) << 2 | (rex & 0x20) >> 1); }
  uint8_t base_high() const { return static_cast<uint8_t>((rex & 1) << 3 | (rex & 0x10)); }

  uint8_t mod() const { return static_cast<uint8_t>(modrm >> 6); }
  uint8_t digit() const { return static_cast<uint8_t>(modrm >> 3 & 7); }  // the opcode extension
  uint8_t reg() const { return static_cast<uint8_t>(digit() | reg_high()); }
  uint8_t rm() const { return static_cast<uint8_t>((modrm & 7) | base_high()); }
  uint8_t opcode_register() const { return static_cast<uint8_t>((opcode & 7) | base_high()); }
  bool is_register_form() const { return has_modrm && mod() == 3; }
  bool is_memory_form() const { return has_modrm && mod() != 3; }
  /// Legacy-encoded opcode of the one-byte map, or of map 0F.
  bool is(uint8_t op) const { return map == Map::kOneByte && encoding == Encoding::kLegacy && opcode == op; }
  bool is_0f(uint8_t op) const { return map == Map::k0F && encoding == Encoding::kLegacy && opcode == op; }
  Memory memory() const;
};

/// Decodes the instruction that `code` begins with; false if it is invalid, or longer than `code`.
bool decode(std::span<const std::byte> code, Instruction& out);

/// The general registers, bit r for register r < 16, whose value the instruction may change other than by
/// what calls do. Never too few: what is not known to leave its register operands alone counts as writing
/// them.
uint16_t written_registers(const Instruction& instruction);

/// How control goes on behind an instruction.
enum class Flow : uint8_t {
  kNext,
  kBranch,        // jcc, loop, jrcxz, xbegin: `target` or next
  kJump,          // jmp rel: `target`
  kJumpIndirect,  // jmp r/m
  kCall,          // call rel: `target`, then next
  kCallIndirect,
  kReturn,  // ret, iret, far ret
  kStop     // hlt, ud0, ud1, ud2, int3
};

/// `target` is relative to the instruction's first byte.
Flow flow_of(const Instruction& instruction, int64_t& target);

bool is_padding(const Instruction& instruction);  // nop in any form, int3

}  // namespace clew::analysis
