// The contents of sections: read at once, and decompressed where SHF_COMPRESSED says so.
//
// A compressed section starts with (gABI, "Section Compression"):
//   0  u32 ch_type       1 zlib, 2 zstd
//   4  u32 ch_reserved
//   8  u64 ch_size       bytes when decompressed
//   16 u64 ch_addralign
//   24 the compressed bytes
#include <algorithm>

#include "elf/decompress.hpp"
#include "elf/image_state.hpp"

namespace clew::elf {

std::span<const std::byte> Image::State::contents(const Section& section) {
  if (section.type == SHT_NOBITS || section.size == 0) return {};
  const auto [entry, fresh] =
      cache.try_emplace({section.offset, section.size, section.address, section.flags});
  if (fresh) entry->second = read_contents(section);
  return entry->second.view();
}

Buffer Image::State::read_contents(const Section& section) {
  if (section.type == SHT_NOBITS || section.size == 0) return {};
  if (section.size > kMaxContentBytes) {
    defect("sections larger than 1 GiB");
    return {};
  }
  if (!memory && (section.offset >= size || section.size > size - section.offset)) {
    defect("sections beyond the end of the file");
    return {};
  }
  Buffer raw;
  if (memory) {
    raw = read_vaddr_up_to(section.address, section.size);
  } else {
    raw = Buffer::of_size(section.size);
    // A file that became shorter meanwhile is being rewritten: none of it is to be trusted.
    if (read_file(section.offset, raw.span()) < section.size) raw = {};
  }
  if (raw.size < section.size) defect("sections that could not be read whole");
  return (section.flags & SHF_COMPRESSED) != 0 ? decompress(raw) : std::move(raw);
}

Buffer Image::State::decompress(const Buffer& raw) {
  const auto chdr = load<Elf64_Chdr>(raw.view(), 0);
  if (raw.size < sizeof(chdr)) {
    defect("compressed sections without a header");
    return {};
  }
  const auto packed = raw.view().subspan(sizeof(chdr));
  if (chdr.ch_size > expansion_limit(packed.size())) {
    defect("compressed sections of implausible size");
    return {};
  }
  Buffer plain = Buffer::of_size(chdr.ch_size);
  constexpr uint32_t kZstd = 2;  // ELFCOMPRESS_ZSTD, younger than this <elf.h>
  const bool whole =
      plain.size == chdr.ch_size && (chdr.ch_type == ELFCOMPRESS_ZLIB ? unzlib(packed, plain.span())
                                     : chdr.ch_type == kZstd          ? unzstd(packed, plain.span())
                                                                      : false);
  if (!whole) {
    defect("compressed sections that cannot be decompressed");
    return {};
  }
  return plain;
}

}  // namespace clew::elf
