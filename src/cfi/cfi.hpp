// .eh_frame and .debug_frame to rows.
//
// Sources of the format: DWARF 5 section 6.4 and 7.24; Linux Standard Base Core 5.0 section 10.6 (.eh_frame);
// x86-64 psABI section 3.7 and figure 3.36 (register numbers).
//
// Everything here is bounded by the section's bytes and allocates only what its caller passes in.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace clew::cfi {

constexpr unsigned kRegisters = 17;  // DWARF numbers of x86-64: 0..15 and 16, the return address

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
  int64_t offset = 0;
  std::span<const std::byte> expression = {};  // into the section
};

enum class RuleKind : uint8_t {
  kUnspecified,
  kUndefined,
  kSameValue,
  kOffset,         // *(CFA + value)
  kValOffset,      // CFA + value
  kRegister,       // held in register `value`
  kExpression,     // *(expression)
  kValExpression,  // expression
};
struct RegisterRule {
  RuleKind kind = RuleKind::kUnspecified;
  int64_t value = 0;
  std::span<const std::byte> expression = {};
};

/// The state of the table at one address.
struct Row {
  Cfa cfa;
  std::array<RegisterRule, kRegisters> registers;
};

struct Cie {
  uint64_t code_alignment = 1;
  int64_t data_alignment = 1;
  uint64_t return_register = 16;
  uint8_t pointer_encoding = 0;  // of FDE addresses (augmentation R)
  uint8_t lsda_encoding = 0xff;
  uint8_t address_size = 8;
  uint8_t segment_size = 0;
  bool has_augmentation_data = false;  // 'z'
  bool signal_frame = false;           // 'S'
  std::span<const std::byte> instructions;
  uint64_t offset = 0;  // in the section; identifies the CIE
};

struct Fde {
  uint64_t start = 0;  // virtual address
  uint64_t size = 0;
  std::span<const std::byte> instructions;
  uint32_t cie = 0;     // index into Reader::cies()
  uint64_t offset = 0;  // in the section
};

/// What could not be read, by kind. A reader goes on behind a defect wherever the next entry can be found.
struct Defects {
  uint64_t truncated = 0;         // an entry passes the section's end
  uint64_t bad_cie = 0;           // unknown version, augmentation or encoding, or an FDE that names no CIE
  uint64_t bad_pointer = 0;       // an address that cannot be decoded, or indirect (DW_EH_PE_indirect for FDE start)
  uint64_t bad_instruction = 0;   // unknown opcode or operand past the end: rows from there on are left out
  uint64_t stack_overflow = 0;    // remember_state deeper than kRememberDepth, or restore without remember
  uint64_t bad_register = 0;      // rules for registers beyond kRegisters are ignored, not counted; a CFA there is
  uint64_t total() const {
    return truncated + bad_cie + bad_pointer + bad_instruction + stack_overflow + bad_register;
  }
};

constexpr unsigned kRememberDepth = 64;

/// Walks a section's entries front to back. 64-bit lengths, padding, a terminator (which ends the reading of
/// .eh_frame only where nothing but zeros or no valid entry follows: linkers join sections), CIEs in any order.
class Reader {
 public:
  explicit Reader(const Section& section);
  /// The next FDE of non-zero size, in section order; false at the end.
  bool next(Fde& fde);
  std::span<const Cie> cies() const { return cies_; }
  const Defects& defects() const { return defects_; }
  Defects& defects() { return defects_; }

 private:
  Section section_;
  uint64_t position_ = 0;
  std::vector<Cie> cies_;
  Defects defects_;
  std::vector<std::pair<uint64_t, uint32_t>> cie_by_offset_;
};

/// Runs the instructions of a CIE and of an FDE. `sink(offset, row)` is called once a row, in address order, with the
/// row's start relative to the FDE's start; a row of no length (a second change at the same address) is not reported,
/// nor one at or behind the FDE's end. The first offset is 0. Returns false where the rows end early (counted).
/// `Row` is passed by reference and changes after the call.
class Interpreter {
 public:
  explicit Interpreter(Defects& defects) : defects_(defects) {}
  template <class Sink>
  bool run(const Section& section, const Cie& cie, const Fde& fde, Sink&& sink);

 private:
  Defects& defects_;
  std::vector<Row> remembered_;
};

}  // namespace clew::cfi
