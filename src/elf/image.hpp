// An ELF file as clew reads it: bounded, checked, never trusting a field.
//
// Bytes are read with pread into buffers of ours, never through a mapping of the file (a file that shrinks
// under a mapping raises SIGBUS). Source of the format: System V ABI, chapters 4 and 5; gABI for
// SHF_COMPRESSED.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "clew/result.hpp"

namespace clew::elf {

struct Segment {
  uint32_t type;
  uint32_t flags;
  uint64_t offset;
  uint64_t vaddr;
  uint64_t file_size;
  uint64_t memory_size;
  uint64_t align;
};

/// A section header. Where the file has none for them (stripped headers, an image in memory),
/// ".eh_frame_hdr",
/// ".eh_frame", ".dynsym" and ".dynstr" are made up from PT_GNU_EH_FRAME and PT_DYNAMIC, so that users need
/// not care.
struct Section {
  std::string name;
  uint32_t type;
  uint64_t flags;
  uint64_t address;
  uint64_t offset;
  uint64_t size;  // in the file; the decompressed size is that of section_bytes()
  uint32_t link;
  uint64_t entry_size;
};

struct Symbol {
  uint64_t address;
  uint64_t size;
  std::string_view name;  // into the image; valid while the image lives
  uint8_t type;           // STT_*
};

/// Addresses from `start` to before `end`.
struct AddressRange {
  uint64_t start, end;
};

/// Reads up to out.size() bytes at a file offset (or, for an image in memory, at an address); returns how
/// many.
using ReadAt = std::function<size_t(uint64_t offset, std::span<std::byte> out)>;

/// One ELF image. Movable; not thread-safe (the section cache fills on use).
class Image {
 public:
  /// Takes ownership of nothing: `fd` is duplicated. It must be a regular file or a memfd.
  static Result<Image> from_fd(int fd, std::string name);
  static Result<Image> open(const std::string& path);
  static Result<Image> from_bytes(std::vector<std::byte> bytes, std::string name);
  /// An image as loaded at `base` in some process: sections are unknown, everything comes from program
  /// headers and the dynamic section; `read` takes addresses. `base` is where file offset 0 is mapped. The
  /// image reads on use, so what was not read (section_bytes, symbols) before the process went away is lost.
  static Result<Image> from_memory(ReadAt read, uint64_t base, std::string name);

  Image(Image&&) noexcept;
  Image& operator=(Image&&) noexcept;
  ~Image();

  const std::string& name() const;
  uint16_t machine() const;  // EM_*
  uint16_t type() const;     // ET_*
  uint64_t entry() const;
  uint64_t size() const;  // of the file, bytes; for an image in memory, as far as its segments reach
  int fd() const;  // the image's own descriptor, so that /proc/self/fd/N names this very file; -1: none
  std::span<const Segment> segments() const;
  std::span<const Section> sections() const;
  const Section* section(std::string_view name) const;

  /// The section's contents, decompressed; empty (and counted in defects()) where the file does not hold them
  /// or the size is implausible. Cached until release_sections().
  std::span<const std::byte> section_bytes(const Section& section);
  void release_sections();

  /// Reads the bytes at a virtual address as the file gives them (PT_LOAD contents; zero fill is not read).
  /// Returns how many could be read.
  size_t read(uint64_t vaddr, std::span<std::byte> out) const;

  /// Reads bytes at a file offset (for an image in memory: of a PT_LOAD that holds it): PT_NOTE of core files
  /// and such.
  size_t read_offset(uint64_t offset, std::span<std::byte> out) const;

  /// The virtual address that a file offset is loaded at, by the executable PT_LOAD that holds it, else any.
  /// Segments are taken as mapped, in whole pages: for the page-aligned offset of a mapping, the segment that
  /// starts in that page goes before one that only ends in it (linkers let neighbours share a page of the
  /// file).
  std::optional<uint64_t> vaddr_of_offset(uint64_t offset) const;

  /// GNU build-id, empty where there is none.
  std::span<const std::byte> build_id() const;
  std::string build_id_hex() const;

  /// Name and CRC of `.gnu_debuglink`.
  std::optional<std::pair<std::string, uint32_t>> debug_link();

  /// Function symbols of .symtab, .dynsym and .gnu_debugdata (xz), sorted by address, each (address, name)
  /// once, symbol versions ("@@GLIBC_2.2") cut off; of aliases the global ones first. STT_NOTYPE labels in
  /// executable segments are there where no sized function covers them (hand-written assembly). Computed
  /// once.
  std::span<const Symbol> symbols();
  /// Those in `ranges` (ascending, disjoint), without their names: where few are wanted, the names of all,
  /// and sorting them, are what takes time. Read anew at each call.
  std::vector<Symbol> symbols_in(std::span<const AddressRange> ranges);

  /// What was wrong with the file so far: one line a kind of defect, with its count. Empty for a sound file.
  std::span<const std::pair<std::string, uint64_t>> defects() const;

 private:
  struct State;
  explicit Image(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace clew::elf
