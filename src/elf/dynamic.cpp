// Sections that nothing names, from the program headers: .eh_frame_hdr and .eh_frame by PT_GNU_EH_FRAME,
// .dynsym and .dynstr by PT_DYNAMIC. For files without section headers, and images in a process's memory.
//
// .eh_frame_hdr (Linux Standard Base 5.0, section 10.6.2):
//   0 u8 version (1), 1 u8 encoding of the pointer, 2 u8 encoding of the count, 3 u8 encoding of the table,
//   4 pointer to .eh_frame, count of FDEs, then as many pairs (start of function, address of FDE), sorted
// DT_HASH (gABI): u32 nbucket, u32 nchain = the number of symbols.
// DT_GNU_HASH: u32 nbuckets, u32 first hashed symbol, u32 words of the Bloom filter (8 bytes each), u32
// shift, the
//   filter, u32 buckets[nbuckets] (lowest symbol of the chain), u32 chain[] (bit 0 set in the last of a
//   chain).
#include <algorithm>
#include <array>

#include "elf/image_state.hpp"

namespace clew::elf {

namespace {

// DW_EH_PE_* (LSB 5.0, section 10.5): the low four bits are the format, the next three what is added.
enum : uint8_t {
  kAbsolute = 0x00,
  kUnsigned4 = 0x03,
  kUnsigned8 = 0x04,
  kSigned4 = 0x0b,
  kSigned8 = 0x0c,
  kPcRelative = 0x10,
  kDataRelative = 0x30,
  kOmitted = 0xff
};

/// A pointer of .eh_frame_hdr and the position behind it.
struct Pointer {
  uint64_t value;
  uint64_t next;
};
std::optional<Pointer> decode(std::span<const std::byte> bytes, uint64_t position, uint8_t encoding,
                              uint64_t base) {
  uint64_t value;
  uint64_t width;
  switch (encoding & 0x0f) {
    case kUnsigned4:
      value = load<uint32_t>(bytes, position), width = 4;
      break;
    case kSigned4:
      value = static_cast<uint64_t>(int64_t{load<int32_t>(bytes, position)}), width = 4;
      break;
    case kAbsolute:
    case kUnsigned8:
    case kSigned8:
      value = load<uint64_t>(bytes, position), width = 8;
      break;
    default:
      return std::nullopt;
  }
  switch (encoding & 0xf0) {
    case kAbsolute:
      break;
    case kPcRelative:
      value += base + position;
      break;
    case kDataRelative:
      value += base;
      break;
    default:
      return std::nullopt;
  }
  if (position > bytes.size() || width > bytes.size() - position) return std::nullopt;
  return Pointer{value, position + width};
}

/// What .eh_frame_hdr says: where .eh_frame is, and the highest address of an FDE (0: unknown).
struct FrameHeader {
  uint64_t eh_frame;
  uint64_t last_fde;
};
std::optional<FrameHeader> decode_frame_header(std::span<const std::byte> bytes, uint64_t address) {
  if (load<uint8_t>(bytes, 0) != 1) return std::nullopt;
  const auto pointer = decode(bytes, 4, load<uint8_t>(bytes, 1), address);
  if (!pointer) return std::nullopt;
  FrameHeader header{pointer->value, 0};
  const auto table_encoding = load<uint8_t>(bytes, 3);
  const auto count = decode(bytes, pointer->next, load<uint8_t>(bytes, 2), address);
  if (!count || table_encoding == kOmitted) return header;
  uint64_t position = count->next;
  for (uint64_t i = 0; i < count->value; ++i) {
    const auto start = decode(bytes, position, table_encoding, address);
    const auto fde = start ? decode(bytes, start->next, table_encoding, address) : std::nullopt;
    if (!fde) break;
    header.last_fde = std::max(header.last_fde, fde->value);
    position = fde->next;
  }
  return header;
}

/// Bytes of .eh_frame, which ends with a terminator or behind the last FDE that the header knows.
uint64_t eh_frame_extent(std::span<const std::byte> bytes, uint64_t address, uint64_t last_fde) {
  uint64_t position = 0;
  while (position + 4 <= bytes.size()) {
    const bool behind_last = last_fde != 0 && address + position > last_fde;
    uint64_t length = load<uint32_t>(bytes, position);
    if (length == 0 && (behind_last || last_fde == 0)) return position + 4;
    if (behind_last) return position;
    uint64_t size_of_length = 4;
    if (length == 0xffffffff) {
      length = load<uint64_t>(bytes, position + 4);
      size_of_length = 12;
    }
    if (position + size_of_length > bytes.size() || length > bytes.size() - position - size_of_length) break;
    position += size_of_length + length;
  }
  return bytes.size();
}

}  // namespace

void Image::State::add_missing_sections() {
  add_frame_sections();
  add_dynamic_sections();
}

void Image::State::add_section(std::string_view section_name, uint32_t type, uint64_t address,
                               uint64_t length, uint32_t link) {
  const auto offset = offset_of_vaddr(address);
  if (!offset || length == 0) return;
  const uint64_t entry_size = type == SHT_DYNSYM ? sizeof(Elf64_Sym) : 0;
  sections.push_back(
      {std::string(section_name), type, SHF_ALLOC, address, *offset, length, link, entry_size});
}

void Image::State::add_frame_sections() {
  const auto segment = std::find_if(segments.begin(), segments.end(),
                                    [](const Segment& entry) { return entry.type == PT_GNU_EH_FRAME; });
  if (segment == segments.end() || find_section(".eh_frame") != nullptr) return;
  const auto read_at = [&](uint64_t vaddr, uint64_t limit) {
    return read_vaddr_up_to(vaddr, std::min({loaded_from(vaddr), limit, kMaxContentBytes}));
  };
  const Buffer raw_header = read_at(segment->vaddr, segment->file_size);
  const auto frame_header = decode_frame_header(raw_header.view(), segment->vaddr);
  if (!frame_header) return defect("an .eh_frame_hdr that cannot be read");
  const Buffer frames = read_at(frame_header->eh_frame, kMaxContentBytes);
  if (frames.size == 0) return defect("an .eh_frame_hdr that points outside the file");
  if (find_section(".eh_frame_hdr") == nullptr) {
    add_section(".eh_frame_hdr", SHT_PROGBITS, segment->vaddr, raw_header.size, 0);
  }
  add_section(".eh_frame", SHT_PROGBITS, frame_header->eh_frame,
              eh_frame_extent(frames.view(), frame_header->eh_frame, frame_header->last_fde), 0);
}

uint64_t Image::State::dynamic_vaddr(uint64_t pointer) const {
  // In memory, the dynamic loader may have replaced virtual addresses by addresses.
  if (memory && loaded_from(pointer) == 0) return pointer - memory_bias;
  return pointer;
}

namespace {

/// The number of symbols that a DT_GNU_HASH table knows, at most `limit`. `read(position, out)` reads from
/// its start.
template <class Read>
uint64_t symbols_of_gnu_hash(const Read& read, uint64_t limit) {
  struct {
    uint32_t buckets, first_symbol, bloom_words, shift;
  } header{};
  if (!read(0, std::as_writable_bytes(std::span(&header, 1)))) return 0;
  const uint64_t buckets = sizeof(header) + uint64_t{header.bloom_words} * 8;
  const uint64_t chains = buckets + uint64_t{header.buckets} * 4;
  uint64_t last = 0;
  std::array<uint32_t, 256> block{};
  for (uint64_t i = 0; i < header.buckets; i += block.size()) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), header.buckets - i));
    if (!read(buckets + i * 4, std::as_writable_bytes(part))) return 0;
    last = std::max<uint64_t>(last, *std::max_element(part.begin(), part.end()));
  }
  if (last < header.first_symbol) return std::min<uint64_t>(header.first_symbol, limit);
  while (last < limit) {
    const auto part = std::span(block).first(std::min<uint64_t>(block.size(), limit - last));
    const bool all = read(chains + (last - header.first_symbol) * 4, std::as_writable_bytes(part));
    // Near the end of the segment one at a time, since a block may not be there whole.
    if (!all && !read(chains + (last - header.first_symbol) * 4, std::as_writable_bytes(part.first(1))))
      return last;
    for (const uint32_t hash : all ? part : part.first(1)) {
      ++last;
      if ((hash & 1) != 0) return last;
    }
  }
  return limit;
}

}  // namespace

void Image::State::add_dynamic_sections() {
  const auto segment = std::find_if(segments.begin(), segments.end(),
                                    [](const Segment& entry) { return entry.type == PT_DYNAMIC; });
  if (segment == segments.end() || find_section(".dynsym") != nullptr) return;
  constexpr uint64_t kMaxEntries = 4096;
  std::vector<Elf64_Dyn> entries(std::min(segment->file_size / sizeof(Elf64_Dyn), kMaxEntries));
  entries.resize(read_vaddr(segment->vaddr, std::as_writable_bytes(std::span(entries))) / sizeof(Elf64_Dyn));

  uint64_t symbol_table = 0, strings = 0, string_bytes = 0, hash = 0, gnu_hash = 0;
  for (const Elf64_Dyn& entry : entries) {
    if (entry.d_tag == DT_NULL) break;
    if (entry.d_tag == DT_SYMTAB) symbol_table = dynamic_vaddr(entry.d_un.d_ptr);
    if (entry.d_tag == DT_STRTAB) strings = dynamic_vaddr(entry.d_un.d_ptr);
    if (entry.d_tag == DT_STRSZ) string_bytes = entry.d_un.d_val;
    if (entry.d_tag == DT_HASH) hash = dynamic_vaddr(entry.d_un.d_ptr);
    if (entry.d_tag == DT_GNU_HASH) gnu_hash = dynamic_vaddr(entry.d_un.d_ptr);
  }
  if (symbol_table == 0 || strings == 0) return;

  const uint64_t limit = loaded_from(symbol_table) / sizeof(Elf64_Sym);
  uint64_t count = 0;
  if (hash != 0) {
    std::array<uint32_t, 2> counts{};
    const auto out = std::as_writable_bytes(std::span(counts));
    if (read_vaddr(hash, out) == out.size()) count = std::min<uint64_t>(counts[1], limit);
  }
  if (count == 0 && gnu_hash != 0) {
    const auto read = [&](uint64_t position, std::span<std::byte> out) {
      return read_vaddr(gnu_hash + position, out) == out.size();
    };
    count = symbols_of_gnu_hash(read, limit);
  }
  const auto index = static_cast<uint32_t>(sections.size());
  add_section(".dynsym", SHT_DYNSYM, symbol_table, count * sizeof(Elf64_Sym), index + 1);
  if (sections.size() > index) {
    add_section(".dynstr", SHT_STRTAB, strings, std::min(string_bytes, loaded_from(strings)), 0);
  }
}

}  // namespace clew::elf
