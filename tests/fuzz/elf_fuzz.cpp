// Fuzzes the ELF reader: any bytes, as a file and as an image in memory, through every accessor.
#include <cstdint>
#include <cstring>

#include "elf/image.hpp"

namespace {

void use_everything(clew::elf::Image& image) {
  std::byte buffer[256];
  for (const auto& segment : image.segments()) {
    (void)image.read(segment.vaddr, buffer);
    (void)image.read_offset(segment.offset, buffer);
    (void)image.vaddr_of_offset(segment.offset);
  }
  uint64_t bytes_seen = 0;
  unsigned left = 256;
  for (const auto& section : image.sections()) {
    if (left-- == 0) break;
    (void)image.section(section.name);
    const auto bytes = image.section_bytes(section);
    if (!bytes.empty()) bytes_seen += std::to_integer<uint64_t>(bytes.back());
    if (left % 16 == 0) image.release_sections();
  }
  (void)image.build_id_hex();
  (void)image.debug_link();
  for (const auto& symbol : image.symbols()) bytes_seen += symbol.name.size() + symbol.address;
  (void)image.defects();
  [[maybe_unused]] volatile uint64_t sink = bytes_seen;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<std::byte> bytes(size);
  if (size != 0) std::memcpy(bytes.data(), data, size);
  if (auto image = clew::elf::Image::from_bytes(bytes, "fuzz")) use_everything(*image);

  const uint64_t base = 0x7f0000000000;
  const auto read = [&bytes](uint64_t address, std::span<std::byte> out) -> size_t {
    if (address < base || address - base >= bytes.size()) return 0;
    const size_t count = std::min<uint64_t>(out.size(), bytes.size() - (address - base));
    std::memcpy(out.data(), bytes.data() + (address - base), count);
    return count;
  };
  if (auto image = clew::elf::Image::from_memory(read, base, "fuzz")) use_everything(*image);
  return 0;
}
