// .sframe of an ELF file. clew's ELF reader takes little-endian files only; s390x writes SFrame too, so this
// finds the one section in either order.
//
// Sources: System V ABI chapters 4 and 5 (headers, sections, segments, relocations with addend); the psABIs
// of the machines (every relocation of .sframe that they write is symbol + addend - place).
#include <algorithm>
#include <cstring>
#include <optional>
#include <string_view>

#include "sframe/sframe.hpp"

namespace clew::sframe {
namespace {

constexpr uint32_t kNoBits = 8;
constexpr uint16_t kRelocatable = 1;

uint64_t number(std::span<const std::byte> bytes, uint64_t at, unsigned size, bool big) {
  uint64_t value = 0;
  for (unsigned i = 0; i < size; ++i)
    value |= std::to_integer<uint64_t>(bytes[at + i]) << 8 * (big ? size - 1 - i : i);
  return value;
}

void put(std::span<std::byte> bytes, uint64_t at, unsigned size, bool big, uint64_t value) {
  for (unsigned i = 0; i < size; ++i)
    bytes[at + i] = static_cast<std::byte>(value >> 8 * (big ? size - 1 - i : i));
}

struct SectionHeader {
  uint32_t name, type, link;
  uint64_t address, offset, size;
};

/// A file that is read piece by piece, each piece checked against its size first.
class File {
 public:
  File(const ReadAt& read, uint64_t bytes) : read_(read), bytes_(bytes) {}

  std::optional<std::vector<std::byte>> piece(uint64_t offset, uint64_t size) const {
    if (offset > bytes_ || size > bytes_ - offset) return std::nullopt;
    std::vector<std::byte> bytes(size);
    if (read_(offset, bytes) != size) return std::nullopt;
    return bytes;
  }

  /// False where it is no 64-bit ELF file.
  bool open() {
    const auto header = piece(0, 64);
    if (!header) return false;
    const auto& ident = *header;
    if (std::memcmp(ident.data(), "\177ELF", 4) != 0 || ident[4] != std::byte{2}) return false;
    if (ident[5] != std::byte{1} && ident[5] != std::byte{2}) return false;
    big = ident[5] == std::byte{2};
    type = static_cast<uint16_t>(number(*header, 16, 2, big));
    machine = static_cast<uint16_t>(number(*header, 18, 2, big));
    const uint64_t segments_at = number(*header, 32, 8, big), sections_at = number(*header, 40, 8, big);
    if (number(*header, 54, 2, big) == 56)
      if (auto table = piece(segments_at, 56 * number(*header, 56, 2, big))) segments = std::move(*table);
    if (sections_at != 0 && number(*header, 58, 2, big) == 64)
      read_sections(sections_at, number(*header, 60, 2, big), number(*header, 62, 2, big));
    return true;
  }

  const SectionHeader* section(std::string_view name) const {
    const auto found = std::find_if(sections.begin(), sections.end(), [&](const SectionHeader& section) {
      return section.name < names.size() && name.size() < names.size() - section.name &&
             std::memcmp(&names[section.name], name.data(), name.size()) == 0 &&
             names[section.name + name.size()] == std::byte{0};
    });
    return found == sections.end() ? nullptr : &*found;
  }

  std::vector<std::byte> contents(const SectionHeader* section) const {
    if (!section || section->type == kNoBits) return {};
    auto bytes = piece(section->offset, section->size);
    return bytes ? std::move(*bytes) : std::vector<std::byte>{};
  }

  bool big = false;
  uint16_t type = 0, machine = 0;
  std::vector<std::byte> segments;  // program headers of 56 bytes
  std::vector<SectionHeader> sections;

 private:
  void read_sections(uint64_t at, uint64_t count, uint64_t names_index) {
    // Counts that 16 bits do not hold are in the first header.
    const auto first = piece(at, 64);
    if (!first) return;
    if (count == 0) count = number(*first, 32, 8, big);
    if (names_index == 0xffff) names_index = number(*first, 40, 4, big);
    if (count > bytes_ / 64) return;
    const auto table = piece(at, count * 64);
    if (!table) return;
    for (uint64_t i = 0; i < count; ++i) {
      const auto header = std::span(*table).subspan(i * 64, 64);
      sections.push_back({static_cast<uint32_t>(number(header, 0, 4, big)),
                          static_cast<uint32_t>(number(header, 4, 4, big)),
                          static_cast<uint32_t>(number(header, 40, 4, big)), number(header, 16, 8, big),
                          number(header, 24, 8, big), number(header, 32, 8, big)});
    }
    if (names_index < sections.size()) names = contents(&sections[names_index]);
  }

  const ReadAt& read_;
  uint64_t bytes_;
  std::vector<std::byte> names;
};

/// Puts the start addresses in, as a linker that leaves every section at 0 would. False, and nothing changed,
/// where there are relocations that are not those of start addresses (ld -r of binutils before 2.47 leaves
/// stale ones).
bool relocate(const File& file, std::vector<std::byte>& bytes) {
  const SectionHeader* section = file.section(".rela.sframe");
  clew_sframe header;
  if (!section || section->link >= file.sections.size() ||
      clew_sframe_open(nullptr, &header, static_cast<uint64_t>(reinterpret_cast<uintptr_t>(bytes.data())),
                       bytes.size(), 0) != CLEW_SFRAME_OK)
    return true;
  const auto relocations = file.contents(section);
  const auto symbols = file.contents(&file.sections[section->link]);
  const unsigned size = header.version == 3 ? 8 : 4;
  std::vector<std::byte> relocated = bytes;
  for (uint64_t at = 0; at + 24 <= relocations.size(); at += 24) {
    const uint64_t place = number(relocations, at, 8, file.big);
    const uint64_t symbol = (number(relocations, at + 8, 8, file.big) >> 32) * 24;
    if (place < header.functions_at || place >= header.rows_at || symbol + 24 > symbols.size() ||
        (place - header.functions_at) % header.entry_bytes != 0)
      return false;
    // Without the flag the linker makes the place's own address the header's.
    const uint64_t from = (header.flags & CLEW_SFRAME_PCREL) != 0 ? place : 0;
    if (place + size > bytes.size()) return false;
    put(relocated, place, size, file.big,
        number(symbols, symbol + 8, 8, file.big) + number(relocations, at + 16, 8, file.big) - from);
  }
  bytes = std::move(relocated);
  return true;
}

}  // namespace

Result<FileSection> read_section(const ReadAt& read, uint64_t file_bytes) {
  File file(read, file_bytes);
  if (!file.open()) return Error{"not a 64-bit ELF file"};
  FileSection found;
  found.machine = file.machine;
  found.big = file.big;
  found.relocatable = file.type == kRelocatable;
  const SectionHeader* section = file.section(".sframe");
  found.bytes = file.contents(section);
  if (!found.bytes.empty()) {
    found.address = section->address;
    if (found.relocatable && !relocate(file, found.bytes))
      found.note = "its relocations are not those of start addresses: left out";
    return found;
  }
  for (uint64_t at = 0; at + 56 <= file.segments.size(); at += 56) {
    if (number(file.segments, at, 4, file.big) != kSegmentType) continue;
    auto bytes =
        file.piece(number(file.segments, at + 8, 8, file.big), number(file.segments, at + 32, 8, file.big));
    if (!bytes) return Error{"PT_GNU_SFRAME reaches past the end of the file"};
    found.bytes = std::move(*bytes);
    found.address = number(file.segments, at + 16, 8, file.big);
    return found;
  }
  if (!section) return Error{"has no .sframe"};
  return Error{section->size == 0 || section->type == kNoBits ? ".sframe is empty here"
                                                              : ".sframe reaches past the end of the file"};
}

Result<FileSection> read_section(std::span<const std::byte> file) {
  return read_section(
      [file](uint64_t offset, std::span<std::byte> out) -> size_t {
        if (offset >= file.size()) return 0;
        const size_t count = std::min<uint64_t>(out.size(), file.size() - offset);
        std::copy_n(file.begin() + static_cast<ptrdiff_t>(offset), count, out.begin());
        return count;
      },
      file.size());
}

}  // namespace clew::sframe
