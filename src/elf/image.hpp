// An ELF file as clew reads it: bounded, checked, never trusting a field.
//
// Bytes are read with pread into buffers of ours, never through a mapping of the file (a file that shrinks under a
// mapping raises SIGBUS). Source of the format: System V ABI, chapters 4 and 5; gABI for SHF_COMPRESSED.
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
};

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

/// Reads up to out.size() bytes at a file offset (or, for an image in memory, at an address); returns how many.
using ReadAt = std::function<size_t(uint64_t offset, std::span<std::byte> out)>;

/// One ELF image. Movable; not thread-safe (the section cache fills on use).
class Image {
 public:
  /// Takes ownership of nothing: `fd` is duplicated.
  static Result<Image> from_fd(int fd, std::string name);
  static Result<Image> open(const std::string& path);
  static Result<Image> from_bytes(std::vector<std::byte> bytes, std::string name);
  /// An image as loaded at `base` in some process: sections are unknown, everything comes from program headers and
  /// the dynamic section; `read` takes addresses.
  static Result<Image> from_memory(ReadAt read, uint64_t base, std::string name);

  Image(Image&&) noexcept;
  Image& operator=(Image&&) noexcept;
  ~Image();

  const std::string& name() const;
  uint16_t machine() const;  // EM_*
  uint16_t type() const;     // ET_*
  uint64_t entry() const;
  uint64_t size() const;  // of the file, bytes
  std::span<const Segment> segments() const;
  std::span<const Section> sections() const;
  const Section* section(std::string_view name) const;

  /// The section's contents, decompressed; empty (and counted in defects()) where the file does not hold them or the
  /// size is implausible. Cached until release_sections().
  std::span<const std::byte> section_bytes(const Section& section);
  void release_sections();

  /// Reads the bytes at a virtual address as the file gives them (PT_LOAD contents; zero fill is not read).
  /// Returns how many could be read.
  size_t read(uint64_t vaddr, std::span<std::byte> out) const;

  /// The virtual address that a file offset is loaded at, by the executable PT_LOAD that holds it, else any.
  std::optional<uint64_t> vaddr_of_offset(uint64_t offset) const;

  /// GNU build-id, empty where there is none.
  std::span<const std::byte> build_id() const;
  std::string build_id_hex() const;

  /// Name and CRC of `.gnu_debuglink`.
  std::optional<std::pair<std::string, uint32_t>> debug_link();

  /// Function symbols of .symtab, .dynsym and .gnu_debugdata (xz), sorted by address, deduplicated. Computed once.
  std::span<const Symbol> symbols();

  /// What was wrong with the file so far: one line a kind of defect, with its count. Empty for a sound file.
  std::span<const std::pair<std::string, uint64_t>> defects() const;

 private:
  struct State;
  explicit Image(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace clew::elf
