// Function symbols: .symtab, .dynsym and the .symtab inside .gnu_debugdata (a small ELF file, xz-compressed:
// what distributions leave in stripped programs, "MiniDebugInfo").
#include <algorithm>
#include <array>
#include <optional>

#include "elf/decompress.hpp"
#include "elf/image_state.hpp"

namespace clew::elf {

namespace {

struct Candidate {
  Symbol symbol;
  uint8_t rank;     // lower is preferred among equal addresses
  uint32_t number;  // in order of reading
};

uint8_t rank_of(unsigned type, unsigned binding) {
  const unsigned by_binding = binding == STB_GLOBAL ? 0 : binding == STB_WEAK ? 1 : 2;
  return static_cast<uint8_t>((type == STT_NOTYPE ? 3 : 0) + by_binding);
}

/// Labels that are there for assemblers and debuggers: local labels, AArch64 mapping symbols.
bool is_marker(std::string_view name) { return name.starts_with('$') || name.starts_with(".L"); }

bool order(const Candidate& a, const Candidate& b) {
  if (a.symbol.address != b.symbol.address) return a.symbol.address < b.symbol.address;
  if (a.rank != b.rank) return a.rank < b.rank;
  return a.number < b.number;  // not by name: comparing long names that mostly stand twice is what takes time
}

constexpr std::array<AddressRange, 1> kEverywhere = {{{0, UINT64_MAX}}};

bool within(std::span<const AddressRange> ranges, uint64_t address) {
  const auto range =
      std::upper_bound(ranges.begin(), ranges.end(), address,
                       [](uint64_t a, const AddressRange& candidate) { return a < candidate.end; });
  return range != ranges.end() && address >= range->start;
}

/// Drops what stands twice, and labels inside sized functions.
void tidy(std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(), order);
  uint64_t covered = 0;
  size_t kept = 0;
  for (size_t i = 0; i < candidates.size(); ++i) {
    const Symbol& symbol = candidates[i].symbol;
    const bool label = symbol.type == STT_NOTYPE;
    if (label && symbol.address < covered) continue;
    // The same name may be some entries back: aliases of one address are few.
    bool repeated = false;
    constexpr size_t kMaxAliases = 64;
    for (size_t j = kept; j > 0 && kept - j < kMaxAliases && !repeated; --j) {
      if (candidates[j - 1].symbol.address != symbol.address) break;
      repeated = candidates[j - 1].symbol.name == symbol.name;
    }
    if (!label) covered = std::max(covered, add_saturated(symbol.address, symbol.size));
    if (!repeated) candidates[kept++] = candidates[i];
  }
  candidates.erase(candidates.begin() + static_cast<ptrdiff_t>(kept), candidates.end());
}

}  // namespace

std::vector<Symbol> Image::State::collect_symbols(std::span<const AddressRange> ranges, bool names) {
  std::vector<Candidate> candidates;
  constexpr size_t kMaxCodeSegments = 64;  // sound files have one or two
  std::vector<std::pair<uint64_t, uint64_t>> code;
  for (const Segment& segment : segments) {
    if (segment.type != PT_LOAD || (segment.flags & PF_X) == 0 || code.size() == kMaxCodeSegments) continue;
    code.emplace_back(segment.vaddr, segment.file_size);
  }
  const auto in_executable_segment = [&](uint64_t address) {
    return std::any_of(code.begin(), code.end(), [&](const auto& range) {
      return address >= range.first && address - range.first < range.second;
    });
  };
  const auto add_table = [&](State& from, uint32_t type) {
    const auto table = std::find_if(from.sections.begin(), from.sections.end(),
                                    [&](const Section& section) { return section.type == type; });
    if (table == from.sections.end()) return;
    if (table->link >= from.sections.size()) return defect("symbol tables without names");
    const Section& string_table = from.sections[table->link];
    const Buffer raw = from.read_contents(*table);
    // Names are the largest part of many files. Where few are wanted, each is read by itself.
    const bool by_itself = !names && !from.memory && (string_table.flags & SHF_COMPRESSED) == 0;
    std::optional<Buffer> strings;
    // Names may overlap; how much of them is read in all is bounded, so that a crafted table costs no time.
    uint64_t budget = 0;
    for (uint64_t at = 0; at + sizeof(Elf64_Sym) <= raw.size; at += sizeof(Elf64_Sym)) {
      const auto entry = load<Elf64_Sym>(raw.view(), at);
      const unsigned kind = ELF64_ST_TYPE(entry.st_info);
      if (entry.st_shndx == SHN_UNDEF || entry.st_shndx == SHN_ABS || entry.st_shndx == SHN_COMMON) continue;
      if (kind != STT_FUNC && kind != STT_GNU_IFUNC && kind != STT_NOTYPE) continue;
      if (!within(ranges, entry.st_value)) continue;
      if (kind == STT_NOTYPE && !in_executable_segment(entry.st_value)) continue;
      if (by_itself && kind == STT_NOTYPE) {
        // Of a label's name only the first characters count.
        std::array<char, 3> begin{};
        if (entry.st_name >= string_table.size) {
          defect("symbols whose name lies outside the names");
          continue;
        }
        from.read_file(string_table.offset + entry.st_name,
                       std::as_writable_bytes(std::span(begin)).first(begin.size() - 1));
        if (begin[0] == 0 || is_marker(begin.data())) continue;
      }
      std::string_view symbol_name;
      if (names || (kind == STT_NOTYPE && !by_itself)) {
        if (!strings) {
          strings = from.read_contents(string_table);
          budget = add_saturated(strings->size * 16, raw.size * 16);
        }
        if (entry.st_name >= strings->size) {
          defect("symbols whose name lies outside the names");
          continue;
        }
        const char* text = reinterpret_cast<const char*>(strings->data.get()) + entry.st_name;
        const uint64_t most = std::min({strings->size - entry.st_name, kMaxNameBytes, budget});
        symbol_name = {text, strnlen(text, most)};
        budget -= symbol_name.size();
        if (symbol_name.size() == most) {
          defect("symbols whose name does not end");
          if (budget == 0) break;
          continue;
        }
        if (kind == STT_NOTYPE && is_marker(symbol_name)) continue;
        if (const auto version = symbol_name.find('@'); version != std::string_view::npos && version != 0) {
          symbol_name = symbol_name.substr(0, version);
        }
        if (symbol_name.empty()) continue;
      }
      candidates.push_back({{entry.st_value, entry.st_size, names ? symbol_name : std::string_view(),
                             static_cast<uint8_t>(kind)},
                            rank_of(kind, ELF64_ST_BIND(entry.st_info)),
                            static_cast<uint32_t>(candidates.size())});
    }
    if (names && strings) symbol_strings.push_back(std::move(*strings));
  };

  add_table(*this, SHT_SYMTAB);
  add_table(*this, SHT_DYNSYM);
  if (const Section* debug_data = find_section(".gnu_debugdata")) {
    const Buffer packed = read_contents(*debug_data);
    auto plain = unxz(packed.view());
    if (!plain) {
      defect("a .gnu_debugdata that cannot be decompressed");
    } else if (auto inner = Image::from_bytes(std::move(*plain), name + ":.gnu_debugdata"); !inner) {
      defect("a .gnu_debugdata that is not an ELF file");
    } else {
      add_table(*inner->state_, SHT_SYMTAB);
    }
  }
  tidy(candidates);
  std::vector<Symbol> collected;
  collected.reserve(candidates.size());
  for (const Candidate& candidate : candidates) collected.push_back(candidate.symbol);
  return collected;
}

std::span<const Symbol> Image::symbols() {
  if (!state_->symbols_collected) {
    state_->symbols_collected = true;
    state_->symbols = state_->collect_symbols(kEverywhere, true);
  }
  return state_->symbols;
}

std::vector<Symbol> Image::symbols_in(std::span<const AddressRange> ranges) {
  return state_->collect_symbols(ranges, false);
}

}  // namespace clew::elf
