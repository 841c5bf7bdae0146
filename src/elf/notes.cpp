// The build-id and the debug link.
//
// A note (gABI, "Note Section"), padded to 4 bytes: u32 name size, u32 descriptor size, u32 type, name,
// descriptor. The build-id is type 3 of name "GNU". `.gnu_debuglink`: a file name, its NUL, padding to 4
// bytes, u32 CRC-32.
#include <algorithm>

#include "elf/image_state.hpp"

namespace clew::elf {

namespace {

constexpr uint64_t kMaxNoteBytes = 1 << 20;
constexpr uint64_t kMaxBuildIdBytes = 64;
constexpr unsigned kMaxNoteAreas = 64;

uint64_t padded(uint64_t size) { return (size + 3) & ~uint64_t{3}; }

std::span<const std::byte> build_id_in(std::span<const std::byte> notes) {
  uint64_t position = 0;
  while (position + sizeof(Elf64_Nhdr) <= notes.size()) {
    const auto note = load<Elf64_Nhdr>(notes, position);
    const uint64_t name = position + sizeof(note);
    const uint64_t descriptor = name + padded(note.n_namesz);
    if (descriptor > notes.size() || note.n_descsz > notes.size() - descriptor) break;
    if (note.n_type == NT_GNU_BUILD_ID && note.n_namesz == sizeof(ELF_NOTE_GNU) && note.n_descsz > 0 &&
        note.n_descsz <= kMaxBuildIdBytes &&
        std::memcmp(notes.data() + name, ELF_NOTE_GNU, sizeof(ELF_NOTE_GNU)) == 0) {
      return notes.subspan(descriptor, note.n_descsz);
    }
    position = descriptor + padded(note.n_descsz);
  }
  return {};
}

}  // namespace

void Image::State::find_build_id() {
  unsigned areas = 0;
  const auto look = [&](uint64_t offset, uint64_t vaddr, uint64_t length) {
    if (areas++ >= kMaxNoteAreas || !build_id.empty()) return;
    std::vector<std::byte> notes(std::min({length, kMaxNoteBytes, size}));
    notes.resize(memory ? read_vaddr(vaddr, notes) : read_file(offset, notes));
    const auto found = build_id_in(notes);
    build_id.assign(found.begin(), found.end());
  };
  for (const Segment& segment : segments) {
    if (segment.type == PT_NOTE) look(segment.offset, segment.vaddr, segment.file_size);
  }
  // Relocatable files, and debug files whose segments point nowhere.
  for (const Section& section : sections) {
    if (section.type == SHT_NOTE) look(section.offset, section.address, section.size);
  }
}

std::optional<std::pair<std::string, uint32_t>> Image::debug_link() {
  const Section* link = section(".gnu_debuglink");
  if (link == nullptr) return std::nullopt;
  const auto bytes = section_bytes(*link);
  const auto end = std::find(bytes.begin(), bytes.end(), std::byte{0});
  const auto length = static_cast<uint64_t>(end - bytes.begin());
  if (length == 0 || end == bytes.end() || bytes.size() < padded(length + 1) + 4) {
    state_->defect("a damaged .gnu_debuglink");
    return std::nullopt;
  }
  return std::pair(std::string(reinterpret_cast<const char*>(bytes.data()), length),
                   load<uint32_t>(bytes, padded(length + 1)));
}

}  // namespace clew::elf
