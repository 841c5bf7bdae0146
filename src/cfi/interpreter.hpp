// The instruction loop of cfi.hpp's Interpreter: DWARF 5 section 6.4.2, plus the GNU, MIPS and AArch64
// instructions that compilers write. In a header so that the consumer of rows is compiled into the loop.
// Included by cfi.hpp.
#pragma once

#include <algorithm>
#include <bit>

#include "cfi/cfi.hpp"
#include "cfi/cursor.hpp"
#include "cfi/pointer.hpp"

namespace clew::cfi {

enum Instruction : uint8_t {
  DW_CFA_nop = 0x00,
  DW_CFA_set_loc = 0x01,
  DW_CFA_advance_loc1 = 0x02,
  DW_CFA_advance_loc2 = 0x03,
  DW_CFA_advance_loc4 = 0x04,
  DW_CFA_offset_extended = 0x05,
  DW_CFA_restore_extended = 0x06,
  DW_CFA_undefined = 0x07,
  DW_CFA_same_value = 0x08,
  DW_CFA_register = 0x09,
  DW_CFA_remember_state = 0x0a,
  DW_CFA_restore_state = 0x0b,
  DW_CFA_def_cfa = 0x0c,
  DW_CFA_def_cfa_register = 0x0d,
  DW_CFA_def_cfa_offset = 0x0e,
  DW_CFA_def_cfa_expression = 0x0f,
  DW_CFA_expression = 0x10,
  DW_CFA_offset_extended_sf = 0x11,
  DW_CFA_def_cfa_sf = 0x12,
  DW_CFA_def_cfa_offset_sf = 0x13,
  DW_CFA_val_offset = 0x14,
  DW_CFA_val_offset_sf = 0x15,
  DW_CFA_val_expression = 0x16,
  DW_CFA_MIPS_advance_loc8 = 0x1d,
  DW_CFA_AARCH64_negate_ra_state_with_pc = 0x2c,
  DW_CFA_GNU_window_save = 0x2d,  // on AArch64: DW_CFA_AARCH64_negate_ra_state
  DW_CFA_GNU_args_size = 0x2e,
  DW_CFA_GNU_negative_offset_extended = 0x2f,
  // The operand is in the low six bits:
  DW_CFA_advance_loc = 0x40,
  DW_CFA_offset = 0x80,
  DW_CFA_restore = 0xc0,
};

namespace detail {
// Factored operands wrap like the unsigned arithmetic of every consumer; signed overflow would be undefined.
inline int64_t scale(uint64_t factor, int64_t alignment) {
  return static_cast<int64_t>(factor * static_cast<uint64_t>(alignment));
}
inline int64_t scale(int64_t factor, int64_t alignment) {
  return scale(static_cast<uint64_t>(factor), alignment);
}
/// What a register's rule adds to BasicRow::registers_version.
inline uint64_t version_of(uint64_t reg, const RegisterRule& rule) {
  uint64_t hash = static_cast<uint64_t>(rule.value) * 0x9e3779b97f4a7c15;
  hash ^= (uint64_t{rule.expression_length} << 16 | reg << 8 | static_cast<uint64_t>(rule.kind)) *
          0xd6e8feb86659fd93;
  hash = (hash ^ hash >> 32) * 0xbf58476d1ce4e5b9;
  return hash ^ hash >> 29;
}
inline int64_t negate(int64_t value) { return static_cast<int64_t>(-static_cast<uint64_t>(value)); }
}  // namespace detail

template <class Arch>
inline void BasicInterpreter<Arch>::set(uint64_t reg, RuleKind kind, int64_t value,
                                        uint32_t expression_length) {
  if (reg >= Arch::kRegisters) return;
  RegisterRule& rule = row_.registers[reg];
  if (row_.present[reg]) row_.registers_version -= detail::version_of(reg, rule);
  rule = {kind, expression_length, value};
  row_.registers_version += detail::version_of(reg, rule);
  row_.present[reg] = true;
  touched_[reg] = true;
}

template <class Arch>
inline void BasicInterpreter<Arch>::restore(uint64_t reg) {
  if (reg >= Arch::kRegisters) return;
  if (row_.present[reg]) row_.registers_version -= detail::version_of(reg, row_.registers[reg]);
  row_.registers[reg] = initial_.registers[reg];
  row_.present[reg] = initial_.present[reg];
  if (row_.present[reg]) row_.registers_version += detail::version_of(reg, row_.registers[reg]);
}

template <class Arch>
inline void BasicInterpreter<Arch>::set_cfa_register(uint64_t reg) {
  if (reg >= Arch::kRegisters) {
    ++defects_.bad_register;
    row_.cfa.kind = CfaKind::kUnset;
    return;
  }
  row_.cfa.kind = CfaKind::kRegister;
  row_.cfa.reg = static_cast<uint8_t>(reg);
}

/// Sets row_ to what the CIE's instructions give, as cheaply as can be: mostly that is the row of the FDE
/// before.
template <class Arch>
bool BasicInterpreter<Arch>::begin(const Section& section, const Cie& cie) {
  const bool known =
      initial_section_ == section.bytes.data() && initial_code_alignment_ == cie.code_alignment &&
      initial_data_alignment_ == cie.data_alignment &&
      initial_instructions_.size() == cie.instructions.size() &&
      std::equal(initial_instructions_.begin(), initial_instructions_.end(), cie.instructions.begin());
  remembered_.clear();
  if (!known) {
    initial_section_ = section.bytes.data();
    initial_code_alignment_ = cie.code_alignment;
    initial_data_alignment_ = cie.data_alignment;
    initial_instructions_.assign(cie.instructions.begin(), cie.instructions.end());
    initial_ = ArchRow{};
    row_ = ArchRow{};
    const Defects before = std::exchange(defects_, Defects{});
    Fde instructions_of_cie;
    instructions_of_cie.instructions = cie.instructions;
    initial_ok_ = execute<true>(section, cie, instructions_of_cie, [](uint64_t, const ArchRow&) {});
    initial_defects_ = std::exchange(defects_, before);
    remembered_.clear();
    initial_ = row_;
    touched_.reset();
  }
  // A defect of the CIE is one of each of its FDEs.
  defects_.bad_instruction += initial_defects_.bad_instruction;
  defects_.stack_overflow += initial_defects_.stack_overflow;
  defects_.bad_register += initial_defects_.bad_register;

  if constexpr (Arch::kRegisters <= 64) {
    row_.cfa = initial_.cfa;
    row_.registers_version = initial_.registers_version;
    row_.present = initial_.present;
    for (uint64_t left = touched_.to_ullong(); left != 0; left &= left - 1) {
      const auto reg = static_cast<unsigned>(std::countr_zero(left));
      row_.registers[reg] = initial_.registers[reg];
    }
  } else {
    row_ = initial_;
  }
  touched_.reset();
  return initial_ok_;
}

template <class Arch>
template <class Sink>
bool BasicInterpreter<Arch>::run(const Section& section, const Cie& cie, const Fde& fde, Sink&& sink) {
  end_ = 0;
  absolute_ = false;
  if (!begin(section, cie)) return false;
  return execute<false>(section, cie, fde, sink);
}

template <class Arch>
template <bool kInitial, class Sink>
bool BasicInterpreter<Arch>::execute(const Section& section, const Cie& cie, const Fde& fde, Sink&& sink) {
  Cursor cursor(fde.instructions);
  uint64_t location = 0;  // of row_, relative to the FDE's start

  const auto section_offset = [&](const std::byte* at) {
    return static_cast<uint64_t>(at - section.bytes.data());
  };
  const auto bytes_of = [&](uint64_t advance) {  // an advance past everything must stay one
    uint64_t bytes;
    return __builtin_mul_overflow(advance, cie.code_alignment, &bytes) ? UINT64_MAX : bytes;
  };
  const auto failed = [&](uint64_t& counter) {
    ++counter;
    end_ = location;
    return false;
  };

  while (!cursor.done()) {
    const auto opcode = cursor.fixed<uint8_t>();
    uint64_t advance = 0;  // bytes
    switch (opcode < DW_CFA_advance_loc ? opcode : opcode & 0xc0) {
      case DW_CFA_advance_loc:
        advance = bytes_of(opcode & 0x3f);
        break;
      case DW_CFA_offset:
        set(opcode & 0x3f, RuleKind::kOffset, detail::scale(cursor.uleb(), cie.data_alignment));
        break;
      case DW_CFA_restore:
        restore(opcode & 0x3f);
        break;
      case DW_CFA_nop:
        break;

      case DW_CFA_set_loc: {
        absolute_ = true;
        const PointerBases bases{section.bytes.data(), section.address, section.text_base,
                                 section.data_base,    fde.start,       true};
        uint64_t address;
        if (!read_pointer(cursor, cie.pointer_encoding, bases, address) || address < fde.start + location) {
          return failed(defects_.bad_instruction);
        }
        advance = address - fde.start - location;
        break;
      }
      case DW_CFA_advance_loc1:
        advance = bytes_of(cursor.fixed<uint8_t>());
        break;
      case DW_CFA_advance_loc2:
        advance = bytes_of(cursor.fixed<uint16_t>());
        break;
      case DW_CFA_advance_loc4:
        advance = bytes_of(cursor.fixed<uint32_t>());
        break;
      case DW_CFA_MIPS_advance_loc8:
        advance = bytes_of(cursor.fixed<uint64_t>());
        break;

      case DW_CFA_def_cfa:
        set_cfa_register(cursor.uleb());
        row_.cfa.offset = static_cast<int64_t>(cursor.uleb());
        break;
      case DW_CFA_def_cfa_sf:
        set_cfa_register(cursor.uleb());
        row_.cfa.offset = detail::scale(cursor.sleb(), cie.data_alignment);
        break;
      case DW_CFA_def_cfa_register:
        set_cfa_register(cursor.uleb());
        break;
      case DW_CFA_def_cfa_offset:
        row_.cfa.offset = static_cast<int64_t>(cursor.uleb());
        break;
      case DW_CFA_def_cfa_offset_sf:
        row_.cfa.offset = detail::scale(cursor.sleb(), cie.data_alignment);
        break;
      case DW_CFA_def_cfa_expression: {
        const uint64_t length = cursor.uleb();
        row_.cfa.expression = section_offset(cursor.at());
        row_.cfa.expression_length = static_cast<uint32_t>(length);
        row_.cfa.kind = CfaKind::kExpression;
        if (length > UINT32_MAX) return failed(defects_.bad_instruction);
        cursor.skip(length);
        break;
      }

      case DW_CFA_undefined:
        set(cursor.uleb(), RuleKind::kUndefined, 0);
        break;
      case DW_CFA_same_value:
        set(cursor.uleb(), RuleKind::kSameValue, 0);
        break;
      case DW_CFA_offset_extended: {
        const uint64_t reg = cursor.uleb();
        set(reg, RuleKind::kOffset, detail::scale(cursor.uleb(), cie.data_alignment));
        break;
      }
      case DW_CFA_offset_extended_sf: {
        const uint64_t reg = cursor.uleb();
        set(reg, RuleKind::kOffset, detail::scale(cursor.sleb(), cie.data_alignment));
        break;
      }
      case DW_CFA_GNU_negative_offset_extended: {
        const uint64_t reg = cursor.uleb();
        set(reg, RuleKind::kOffset, detail::negate(detail::scale(cursor.uleb(), cie.data_alignment)));
        break;
      }
      case DW_CFA_val_offset: {
        const uint64_t reg = cursor.uleb();
        set(reg, RuleKind::kValOffset, detail::scale(cursor.uleb(), cie.data_alignment));
        break;
      }
      case DW_CFA_val_offset_sf: {
        const uint64_t reg = cursor.uleb();
        set(reg, RuleKind::kValOffset, detail::scale(cursor.sleb(), cie.data_alignment));
        break;
      }
      case DW_CFA_register: {
        const uint64_t reg = cursor.uleb();
        set(reg, RuleKind::kRegister, static_cast<int64_t>(cursor.uleb()));
        break;
      }
      case DW_CFA_expression:
      case DW_CFA_val_expression: {
        const uint64_t reg = cursor.uleb();
        const uint64_t length = cursor.uleb();
        if (length > UINT32_MAX) return failed(defects_.bad_instruction);
        const std::byte* expression = cursor.skip(length);
        if (!cursor.ok()) return failed(defects_.bad_instruction);
        set(reg, opcode == DW_CFA_expression ? RuleKind::kExpression : RuleKind::kValExpression,
            static_cast<int64_t>(section_offset(expression)), static_cast<uint32_t>(length));
        break;
      }
      case DW_CFA_restore_extended:
        restore(cursor.uleb());
        break;

      case DW_CFA_remember_state:
        if (remembered_.size() == kRememberDepth) return failed(defects_.stack_overflow);
        remembered_.push_back(row_);
        break;
      case DW_CFA_restore_state:
        if (remembered_.empty()) return failed(defects_.stack_overflow);
        row_ = remembered_.back();
        remembered_.pop_back();
        break;

      case DW_CFA_GNU_args_size:  // of outgoing arguments: only for a landing pad's stack pointer
        cursor.uleb();
        break;
      case DW_CFA_GNU_window_save:  // AArch64: the return address is signed, or no longer; it lies where it
                                    // lay
        break;
      case DW_CFA_AARCH64_negate_ra_state_with_pc:
        if (!Arch::kPointerAuthentication) return failed(defects_.bad_instruction);
        break;

      default:
        return failed(defects_.bad_instruction);
    }
    if (!cursor.ok()) return failed(defects_.bad_instruction);
    if (advance == 0) continue;
    if (kInitial) return failed(defects_.bad_instruction);
    sink(location, static_cast<const ArchRow&>(row_));
    if (advance >= fde.size - location) {  // location < size
      end_ = fde.size;
      return true;
    }
    location += advance;
  }

  if constexpr (!kInitial) {
    sink(location, static_cast<const ArchRow&>(row_));
    end_ = fde.size;
  }
  return true;
}

}  // namespace clew::cfi
