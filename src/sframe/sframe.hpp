// SFrame sections as a whole: decoded to functions and rows, searched, verified, described.
//
// The bytes are read by core/sframe.h, which has the format and its sources. What this adds: several sections
// one behind the other (linkers that do not know the format concatenate their inputs, each with its own
// header, at multiples of 8), unsorted sections, all or nothing for a function, and the rules that no single
// look-up can check.
//
// Work and memory are bounded by the section's bytes. Functions are thread-safe: they share nothing.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clew/result.hpp"
#include "core/sframe.h"

namespace clew::sframe {

constexpr uint32_t kSectionType = 0x6ffffff4;  // SHT_GNU_SFRAME, binutils 2.45 and later; SHT_PROGBITS before
constexpr uint32_t kSegmentType = 0x6474e554;  // PT_GNU_SFRAME

/// Bytes to read.
struct Section {
  std::span<const std::byte> bytes;
  uint64_t address = 0;      // virtual address of bytes[0]
  uint16_t machine = 0;      // EM_* that its ABI must fit; 0: any
  bool relocatable = false;  // of an object file: every section of text is at 0, so functions share addresses
  std::optional<bool> big;   // the byte order that it must have; none: either
};

/// One function. A broken one has no rows.
struct Function {
  clew_sframe_function entry;
  uint64_t at;       // of its entry, bytes from the start of the section
  size_t first_row;  // in Part::rows
  uint32_t row_count;
  uint32_t result;     // enum clew_sframe_result: what is wrong with it
  uint64_t result_at;  // and where, bytes from the start of the section
};

/// What one header spans.
struct Part {
  clew_sframe header;
  uint64_t at;                        // of the header, bytes from the start of the section
  std::vector<Function> functions;    // in the order of the section
  std::vector<clew_sframe_row> rows;  // those of a function side by side
  std::vector<uint32_t> by_start;     // indices of the functions that are not empty, by start
};

/// A decoded section. At least one part.
struct Decoded {
  std::vector<Part> parts;
  uint64_t end = 0;                           // of the last part, bytes from the start of the section
  uint32_t trailing = CLEW_SFRAME_BAD_MAGIC;  // why no part follows at `trailing_at`
  uint64_t trailing_at = 0;  // first byte behind the parts that is not 0; the section's size: none
};

/// Decodes all functions of all parts. An error where the first header is unsound, its ABI is not the
/// machine's, or functions are out of order although the header says that they are sorted.
Result<Decoded> decode(const Section& section);

/// The row in force at `pc`; of functions that overlap, that of the one that starts last, in the first part
/// that has one. `function` is set
/// where one covers pc, `row` where it says something; a function that is the outermost frame without having
/// rows has neither rows nor `row`: ask clew_sframe_outermost().
struct Found {
  const Part* part = nullptr;
  const Function* function = nullptr;
  const clew_sframe_row* row = nullptr;
};
Found find(const Decoded& decoded, uint64_t pc);

struct Defect {
  uint64_t offset;  // bytes from the start of the section
  std::string what;
};

/// What verify() found, each by offset. Notes are not against the format, but more than its producers write.
struct Verdict {
  std::vector<Defect> defects;
  std::vector<Defect> notes;
};
Verdict verify(const Section& section);

/// What a result means, in a few words: "unknown version".
const char* describe(uint32_t result);

/// A value in the notation of readelf --sframe: `sp+16`, `c-16`, `(fp-8)`, `r10+0`, `r16`, `u` still in its
/// register, `f` at the header's fixed offset, `U` a word that says nothing (on AMD64 as `f`, on s390x as
/// `u`). CFA + offset itself, for which readelf has none, is `=c-16`.
std::string describe_cfa(const Part& part, const clew_sframe_row& row);
std::string describe_fp(const Part& part, const clew_sframe_row& row);
std::string describe_ra(const Part& part, const clew_sframe_row& row);

/// "amd64", "aarch64", "aarch64-be" or "s390x".
const char* abi_name(uint8_t abi);

/// An ELF file's section: bytes of its own.
struct FileSection {
  std::vector<std::byte> bytes;
  uint64_t address = 0;
  uint16_t machine = 0;
  bool relocatable = false;
  std::optional<bool> big;
  std::string note;  // what a reader should know of it; else empty
  Section section() const { return {bytes, address, machine, relocatable, big}; }
};

/// Reads up to out.size() bytes of a file at `offset`; returns how many.
using ReadAt = std::function<size_t(uint64_t offset, std::span<std::byte> out)>;

/// Finds .sframe in a 64-bit ELF file of either byte order, by its section header or, without one, by
/// PT_GNU_SFRAME. In an object file the start addresses are relocated, every section of text being at 0. An
/// error, which does not name the file, where there is none or it cannot be read. `file_bytes`: the file's
/// size.
Result<FileSection> read_section(const ReadAt& read, uint64_t file_bytes);
Result<FileSection> read_section(std::span<const std::byte> file);

}  // namespace clew::sframe
