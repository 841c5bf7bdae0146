// .eh_frame and .debug_frame to rows.
//
// Sources of the format: DWARF 5 sections 6.4 and 7.24 (CIE, FDE, instructions); Linux Standard Base Core 5.0
// section 10.6 (.eh_frame, augmentations, pointer encodings); x86-64 psABI figure 3.36 and "DWARF for the Arm
// 64-bit Architecture" section 4.1 (register numbers).
//
//   entry   u32 length, or 0xffffffff and u64 length (64-bit DWARF); length 0 is a terminator or padding
//           id: .eh_frame u32, 0 = CIE, else the distance from this field back to the CIE;
//               .debug_frame u32 or u64 with the length, all ones = CIE, else the CIE's offset in the section
//   CIE     u8 version, augmentation string, [old "eh": u64], [version >= 4: u8 address size, u8 segment
//   size],
//           uleb code alignment, sleb data alignment, return register (version 1: u8, else uleb),
//           ['z': uleb length, augmentation data], instructions
//   FDE     [segment selector], encoded start, encoded size, ['z': uleb length, augmentation data],
//   instructions
//
// Work and memory are bounded by the section's bytes; nothing in the section is trusted.
#pragma once

#include <array>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace clew::cfi {

/// An architecture: how many registers a row follows, by DWARF number, and which instructions are its own.
struct X86_64 {
  static constexpr unsigned kRegisters = 17;  // 0..15 and 16, the return address
  static constexpr bool kPointerAuthentication = false;
};
struct Aarch64 {
  static constexpr unsigned kRegisters = 96;  // x0..x30, sp 31, pc 32, ra_sign_state 34, v0..v31 from 64
  static constexpr bool kPointerAuthentication = true;
};

constexpr unsigned kRegisters = X86_64::kRegisters;

/// A section to read. All addresses are virtual addresses of the file.
struct Section {
  std::span<const std::byte> bytes;
  uint64_t address = 0;    // of bytes[0]; base of DW_EH_PE_pcrel
  uint64_t text_base = 0;  // DW_EH_PE_textrel
  uint64_t data_base = 0;  // DW_EH_PE_datarel (.got, or .eh_frame_hdr inside that table)
  bool debug_frame = false;
};

enum class CfaKind : uint8_t { kUnset, kRegister, kExpression };
struct Cfa {
  CfaKind kind = CfaKind::kUnset;
  uint8_t reg = 0;
  uint32_t expression_length = 0;
  int64_t offset =
      0;  // reg and offset outlive an expression: DW_CFA_def_cfa_register takes the offset up again
  uint64_t expression = 0;  // kExpression: offset in the section, see expression_bytes
};

enum class RuleKind : uint8_t {
  kUnspecified,
  kUndefined,
  kSameValue,
  kOffset,         // *(CFA + value)
  kValOffset,      // CFA + value
  kRegister,       // held in register `value` (any number, also beyond those that a row follows)
  kExpression,     // *(expression), its offset in the section is `value`
  kValExpression,  // expression, likewise
};
struct RegisterRule {
  RuleKind kind = RuleKind::kUnspecified;
  uint32_t expression_length = 0;
  int64_t value = 0;
  bool operator==(const RegisterRule&) const = default;
};
static_assert(sizeof(RegisterRule) == 16);

/// The state of the table at one address.
template <class Arch>
struct BasicRow {
  Cfa cfa;
  /// A hash of the register rules, 0 for none: a consumer can keep what it made of the registers, also of
  /// another FDE's. Rules that differ have different numbers, but for a chance of one in 2^64.
  uint64_t registers_version = 0;
  std::bitset<Arch::kRegisters> present;  // registers whose rule is not kUnspecified
  std::array<RegisterRule, Arch::kRegisters> registers;
};
using Row = BasicRow<X86_64>;

/// The bytes of an expression in the section that it came from; empty for any other rule.
std::span<const std::byte> expression_bytes(const Section& section, const Cfa& cfa);
std::span<const std::byte> expression_bytes(const Section& section, const RegisterRule& rule);

struct Cie {
  uint8_t version = 0;
  uint8_t pointer_encoding = 0;  // of FDE addresses (augmentation R)
  uint8_t lsda_encoding = 0xff;
  uint8_t address_size = 8;
  uint8_t segment_size = 0;
  bool has_augmentation_data = false;  // 'z'
  bool signal_frame = false;           // 'S'
  uint64_t code_alignment = 1;
  int64_t data_alignment = 1;
  uint64_t return_register = 16;
  std::span<const std::byte> instructions;
  uint64_t offset = 0;  // in the section; identifies the CIE
};

struct Fde {
  uint64_t start = 0;  // virtual address
  uint64_t size = 0;   // start + size does not wrap
  std::span<const std::byte> instructions;
  uint32_t cie = 0;     // index into Reader::cies()
  uint64_t offset = 0;  // in the section
};

/// What could not be read, by kind. A reader goes on behind a defect wherever the next entry can be found.
struct Defects {
  uint64_t truncated = 0;    // an entry passes the section's end (reading ends there) or its own
  uint64_t bad_cie = 0;      // FDEs that name no CIE, or one of unknown version, augmentation or address size
  uint64_t bad_pointer = 0;  // FDEs whose addresses cannot be decoded, are indirect, or wrap around
  uint64_t bad_instruction = 0;  // unknown opcode or operand past the end: rows from there on are left out
  uint64_t stack_overflow =
      0;  // remember_state deeper than kRememberDepth or restore without remember: likewise
  uint64_t bad_register = 0;  // CFA in a register that a row does not follow: unset until it is defined anew
                              // (rules for such registers are ignored, not counted)
  uint64_t total() const {
    return truncated + bad_cie + bad_pointer + bad_instruction + stack_overflow + bad_register;
  }
};

constexpr unsigned kRememberDepth = 64;
constexpr size_t kMaxInitialInstructions =
    1024;  // bytes in a CIE; they run anew for FDEs of alternating CIEs

/// The CIE at an offset of the section, whatever its address size; nothing where there is none that can be
/// read.
std::optional<Cie> read_cie(const Section& section, uint64_t offset);

/// Walks a section's entries front to back. 64-bit lengths, padding, a terminator (which ends the reading
/// only where nothing but zeros or no valid entry follows: linkers join sections), CIEs in any order. Only
/// CIEs of 8-byte addresses. FDEs are given as they are: unsorted, overlapping, and in .debug_frame those of
/// discarded functions (start 0) too.
class Reader {
 public:
  explicit Reader(const Section& section);
  /// The next FDE of non-zero size, in section order; false at the end.
  bool next(Fde& fde);
  /// The CIEs that FDEs named so far. Grows (and moves) with next().
  std::span<const Cie> cies() const { return cies_; }
  const Defects& defects() const { return defects_; }
  Defects& defects() { return defects_; }

 private:
  static constexpr uint32_t kBadCie = UINT32_MAX;
  struct RecentCie {
    uint64_t offset = UINT64_MAX;
    uint32_t index = kBadCie;
  };
  uint32_t find_cie(uint64_t offset);

  Section section_;
  uint64_t position_ = 0;
  bool behind_terminator_ = false;
  std::vector<Cie> cies_;
  Defects defects_;
  std::array<RecentCie, 16> recent_;  // in front of the map: FDEs name the same few CIEs again and again
  std::map<uint64_t, uint32_t> cie_by_offset_;  // kBadCie: no CIE there
};

/// Runs the instructions of a CIE and of an FDE. `sink(uint64_t offset, const BasicRow<Arch>& row)` is called
/// once a row, in address order, with the row's start relative to the FDE's start; a row of no length (a
/// second change at the same address) is not reported, nor one at or behind the FDE's end. The first offset
/// is 0. A row can equal the one before. Returns false where the rows end early (counted): the last row then
/// holds up to end(), and nothing is known from there on. The row is changed in place after the call. One
/// interpreter serves one section, whose bytes the instructions must lie in.
template <class Arch>
class BasicInterpreter {
 public:
  using ArchRow = BasicRow<Arch>;
  explicit BasicInterpreter(Defects& defects) : defects_(defects) {}
  template <class Sink>
  bool run(const Section& section, const Cie& cie, const Fde& fde, Sink&& sink);
  /// Where the rows of the last run end, relative to the FDE's start; its size if run() returned true.
  uint64_t end() const { return end_; }
  /// Whether the last run met an absolute address (DW_CFA_set_loc): its rows hold at that FDE's start only.
  bool absolute() const { return absolute_; }
  /// The row that the CIE of the last run begins with.
  const ArchRow& initial() const { return initial_; }

 private:
  bool begin(const Section& section, const Cie& cie);
  template <bool kInitial, class Sink>
  bool execute(const Section& section, const Cie& cie, const Fde& fde, Sink&& sink);
  void set(uint64_t reg, RuleKind kind, int64_t value, uint32_t expression_length = 0);
  void restore(uint64_t reg);
  void set_cfa_register(uint64_t reg);

  Defects& defects_;
  ArchRow row_;
  ArchRow initial_;
  std::bitset<Arch::kRegisters> touched_;  // registers of row_ that can differ from initial_
  uint64_t end_ = 0;
  bool absolute_ = false;
  std::vector<ArchRow> remembered_;
  // What initial_ was made from. CIEs that differ only in their augmentation share it.
  std::vector<std::byte> initial_instructions_;
  const std::byte* initial_section_ = nullptr;
  uint64_t initial_code_alignment_ = 0;
  int64_t initial_data_alignment_ = 0;
  Defects initial_defects_;  // of one run of the initial instructions
  bool initial_ok_ = false;
};
using Interpreter = BasicInterpreter<X86_64>;

/// Readelf's notation: "rsp+16", "exp"; "u" unspecified, "U" undefined (readelf writes "u"), "s" same value,
/// "c-16", "v+8", "rbx" (held there), "exp", "vexp". An unset CFA is "?".
template <class Arch = X86_64>
std::string describe_cfa(const Cfa& cfa);
template <class Arch = X86_64>
std::string describe_register(const RegisterRule& rule);
/// The name of a DWARF register number; "rN" for those without one.
template <class Arch = X86_64>
std::string register_name(uint64_t reg);

}  // namespace clew::cfi

#include "cfi/interpreter.hpp"
