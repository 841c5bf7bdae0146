// What an Image holds; private to this folder. Its member functions are spread over the files named beside
// them.
#pragma once

#include <elf.h>
#include <functional>

#include <bit>
#include <cstring>
#include <map>
#include <tuple>
#include <type_traits>
#include <vector>

#include "elf/image.hpp"

namespace clew::elf {

static_assert(std::endian::native == std::endian::little, "fields are copied as they are");

/// Limits on what a file can make us allocate or do, beyond those that its own size sets.
constexpr uint64_t kMaxHeaders = 1u << 20;                // section headers, program headers
constexpr uint64_t kMaxContentBytes = uint64_t{1} << 30;  // one section, decompressed or not
constexpr uint64_t kMaxExpansion = 200;                   // decompressed bytes a compressed byte ...
constexpr uint64_t kExpansionFloor = 64ull << 10;         // ... beyond these
constexpr uint64_t kMaxNameBytes = 64ull << 10;           // one symbol's name

/// Bytes that are not cleared before they are read into.
struct Buffer {
  std::unique_ptr<std::byte[]> data;
  size_t size = 0;

  /// Null data where there is no memory for it.
  static Buffer of_size(uint64_t size);
  std::span<std::byte> span() { return {data.get(), size}; }
  std::span<const std::byte> view() const { return {data.get(), size}; }
};

/// The T at `offset`, or zeros where the bytes end before.
template <class T>
T load(std::span<const std::byte> bytes, uint64_t offset) {
  static_assert(std::is_trivially_copyable_v<T>);
  T value{};
  if (offset <= bytes.size() && sizeof(T) <= bytes.size() - offset) {
    std::memcpy(&value, bytes.data() + offset, sizeof(T));
  }
  return value;
}

/// a + b, the largest value where that overflows.
inline uint64_t add_saturated(uint64_t a, uint64_t b) {
  uint64_t sum;
  return __builtin_add_overflow(a, b, &sum) ? UINT64_MAX : sum;
}

struct Image::State {
  /// A piece of a PT_LOAD that the file holds; pieces do not overlap.
  struct Load {
    uint64_t vaddr;
    uint64_t end;
    uint64_t offset;
  };

  State() = default;
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  ~State();

  // image.cpp
  Result<bool> load_headers();
  void load_segments();
  void load_sections();
  void index_loads();
  const Section* find_section(std::string_view section_name) const;
  size_t read_file(uint64_t offset, std::span<std::byte> out) const;
  size_t read_vaddr(uint64_t vaddr, std::span<std::byte> out) const;
  /// At most `most` bytes from `vaddr` on, as many as could be read.
  Buffer read_vaddr_up_to(uint64_t vaddr, uint64_t most) const;
  /// How many bytes the PT_LOAD at `vaddr` holds from there on; 0 where none does.
  uint64_t loaded_from(uint64_t vaddr) const;
  std::optional<uint64_t> offset_of_vaddr(uint64_t vaddr) const;
  void defect(std::string_view kind);

  // dynamic.cpp
  void add_missing_sections();
  void add_frame_sections();
  void add_dynamic_sections();
  uint64_t dynamic_vaddr(uint64_t pointer) const;
  void add_section(std::string_view section_name, uint32_t type, uint64_t address, uint64_t size,
                   uint32_t link);

  // contents.cpp
  std::span<const std::byte> contents(const Section& section);
  Buffer read_contents(const Section& section);
  Buffer decompress(const Buffer& raw);

  // notes.cpp
  void find_build_id();

  // symbols.cpp
  std::vector<Symbol> collect_symbols(std::span<const AddressRange> ranges, bool names);

  std::string name;

  // Exactly one source: a descriptor, bytes, or a process's memory.
  int fd = -1;
  std::vector<std::byte> bytes;
  ReadAt memory;
  uint64_t memory_base = 0;  // address of file offset 0
  uint64_t memory_bias = 0;  // address minus virtual address
  uint64_t size = 0;

  Elf64_Ehdr header{};
  std::vector<Segment> segments;
  std::vector<Section> sections;
  std::vector<Load> loads;  // by vaddr
  std::vector<std::byte> build_id;
  std::vector<std::pair<std::string, uint64_t>> defects;

  std::map<std::tuple<uint64_t, uint64_t, uint64_t, uint64_t>, Buffer> cache;  // offset, size, address, flags

  bool symbols_collected = false;
  std::vector<Symbol> symbols;
  std::vector<Buffer> symbol_strings;  // what the names point into
};

}  // namespace clew::elf
