// The entries of a section: CIEs and FDEs. Their layout is in cfi.hpp.
#include <algorithm>
#include <cstring>

#include "cfi/cfi.hpp"
#include "cfi/cursor.hpp"
#include "cfi/pointer.hpp"

namespace clew::cfi {
namespace {

constexpr size_t kMaxAugmentation = 16;  // characters; the longest known has six

PointerBases bases_of(const Section& section) {
  return {section.bytes.data(), section.address, section.text_base, section.data_base, 0, false};
}

struct Entry {
  Cursor body{nullptr, nullptr};  // behind the id
  uint64_t length = 0;            // 0: terminator or padding
  bool is_cie = false;
  bool has_id = false;
  uint64_t cie_offset = 0;  // of an FDE; UINT64_MAX where it names none
  uint64_t next = 0;        // offset behind the entry
};

/// Reads an entry's length and id; false where it passes the section's end.
bool read_entry(const Section& section, uint64_t offset, Entry& entry) {
  if (offset >= section.bytes.size()) return false;
  const std::byte* const begin = section.bytes.data();
  Cursor cursor(section.bytes.subspan(offset));

  entry.length = cursor.fixed<uint32_t>();
  const bool is_64_bit = entry.length == 0xffffffff;
  if (is_64_bit) entry.length = cursor.fixed<uint64_t>();
  // The lengths in front of 0xffffffff are reserved; no section that can be read is that large.
  if (!cursor.ok() || entry.length > cursor.left()) return false;
  entry.next = static_cast<uint64_t>(cursor.at() - begin) + entry.length;
  if (entry.length == 0) return true;

  Cursor body(cursor.at(), cursor.at() + entry.length);
  const auto id_offset = static_cast<uint64_t>(body.at() - begin);
  if (section.debug_frame) {
    const uint64_t id = is_64_bit ? body.fixed<uint64_t>() : body.fixed<uint32_t>();
    entry.is_cie = id == (is_64_bit ? UINT64_MAX : uint64_t{UINT32_MAX});
    entry.cie_offset = id;
  } else {
    const uint64_t id = body.fixed<uint32_t>();  // four bytes also behind a 64-bit length
    entry.is_cie = id == 0;
    entry.cie_offset = id <= id_offset ? id_offset - id : UINT64_MAX;
  }
  if (!body.ok()) {
    entry.is_cie = false;
    entry.cie_offset = UINT64_MAX;
  }
  entry.has_id = body.ok();
  entry.body = body;
  return true;
}

/// Reads what the augmentation string describes; false where a letter is unknown, since what it stands for is
/// too.
bool read_augmentation(const Section& section, std::span<const char> letters, Cursor& cursor, Cie& cie) {
  Cursor data = cursor;
  if (!letters.empty() && letters[0] == 'z') {
    cie.has_augmentation_data = true;
    const uint64_t length = cursor.uleb();
    const std::byte* begin = cursor.skip(length);
    if (!cursor.ok()) return false;
    data = Cursor(begin, begin + length);
    letters = letters.subspan(1);
  }
  for (const char letter : letters) {
    switch (letter) {
      case 'R':
        cie.pointer_encoding = data.fixed<uint8_t>();
        break;
      case 'L':
        cie.lsda_encoding = data.fixed<uint8_t>();
        break;
      case 'P': {
        // The personality routine is of no interest, only where it ends; so indirect does not matter.
        const auto encoding = data.fixed<uint8_t>();
        uint64_t personality;
        if (encoding != DW_EH_PE_omit &&
            !read_pointer(data, encoding & ~DW_EH_PE_indirect, bases_of(section), personality)) {
          return false;
        }
        break;
      }
      case 'S':
        cie.signal_frame = true;
        break;
      case 'B':  // AArch64: return addresses are signed with key B
      case 'G':  // AArch64: stack memory is tagged
        break;
      default:
        return false;
    }
  }
  if (!cie.has_augmentation_data) cursor = data;
  return data.ok();
}

}  // namespace

std::optional<Cie> read_cie(const Section& section, uint64_t offset) {
  Entry entry;
  if (!read_entry(section, offset, entry) || !entry.is_cie) return std::nullopt;
  Cursor& cursor = entry.body;

  Cie cie;
  cie.offset = offset;
  cie.version = cursor.fixed<uint8_t>();
  if (cie.version != 1 && cie.version != 3 && cie.version != 4 && cie.version != 5) return std::nullopt;

  const auto* letters = reinterpret_cast<const char*>(cursor.at());
  const size_t letter_count = strnlen(letters, std::min(cursor.left(), kMaxAugmentation + 1));
  if (letter_count > kMaxAugmentation || letter_count == cursor.left()) return std::nullopt;
  std::span<const char> augmentation(letters, letter_count);
  cursor.skip(letter_count + 1);

  if (letter_count >= 2 && augmentation[0] == 'e' &&
      augmentation[1] == 'h') {  // of GCC 2: a pointer to its tables
    cursor.skip(8);
    augmentation = augmentation.subspan(2);
  }
  if (cie.version >= 4) {
    cie.address_size = cursor.fixed<uint8_t>();
    cie.segment_size = cursor.fixed<uint8_t>();
  }
  cie.code_alignment = cursor.uleb();
  cie.data_alignment = cursor.sleb();
  cie.return_register = cie.version == 1 ? cursor.fixed<uint8_t>() : cursor.uleb();
  if (!cursor.ok() || !read_augmentation(section, augmentation, cursor, cie) || !cursor.ok())
    return std::nullopt;
  cie.instructions = cursor.rest();
  return cie;
}

Reader::Reader(const Section& section) : section_(section) {}

/// The index of the CIE at an offset, or kBadCie.
uint32_t Reader::find_cie(uint64_t offset) {
  RecentCie& recent = recent_[offset / 4 * 0x9e3779b97f4a7c15 >> 60];
  if (recent.offset == offset) return recent.index;
  const auto [place, inserted] = cie_by_offset_.try_emplace(offset, kBadCie);
  if (inserted) {
    const std::optional<Cie> cie = read_cie(section_, offset);
    if (cie && cie->address_size == 8 && cie->segment_size <= 8 &&
        cie->instructions.size() <= kMaxInitialInstructions) {
      place->second = static_cast<uint32_t>(cies_.size());
      cies_.push_back(*cie);
    }
  }
  recent = {offset, place->second};
  return place->second;
}

bool Reader::next(Fde& fde) {
  while (position_ < section_.bytes.size()) {
    const uint64_t offset = position_;
    Entry entry;
    if (!read_entry(section_, offset, entry)) {
      if (!behind_terminator_) ++defects_.truncated;
      position_ = section_.bytes.size();
      return false;
    }
    position_ = entry.next;
    if (entry.length == 0) {
      behind_terminator_ = !section_.debug_frame;
      continue;
    }
    if (entry.is_cie && !behind_terminator_) continue;

    // The first entry behind a terminator decides whether another section was joined on, or something else
    // lies there.
    const uint32_t index = find_cie(entry.is_cie ? offset : entry.cie_offset);
    if (behind_terminator_ && index == kBadCie) {
      position_ = section_.bytes.size();
      return false;
    }
    behind_terminator_ = false;
    if (entry.is_cie) continue;
    if (!entry.has_id) {
      ++defects_.truncated;
      continue;
    }
    if (index == kBadCie) {
      ++defects_.bad_cie;
      continue;
    }

    const Cie& cie = cies_[index];
    Cursor& cursor = entry.body;
    const PointerBases bases = bases_of(section_);
    cursor.skip(cie.segment_size);
    uint64_t start;
    uint64_t size;
    // A size is stored as the start is, but relative to nothing.
    if (!read_pointer(cursor, cie.pointer_encoding, bases, start) ||
        !read_pointer(cursor, cie.pointer_encoding & 0x0f, bases, size) || start + size < start) {
      ++defects_.bad_pointer;
      continue;
    }
    if (cie.has_augmentation_data) {
      cursor.skip(cursor.uleb());
      if (!cursor.ok()) {
        ++defects_.truncated;
        continue;
      }
    }
    if (size == 0) continue;
    fde = {start, size, cursor.rest(), index, offset};
    return true;
  }
  return false;
}

std::span<const std::byte> expression_bytes(const Section& section, const Cfa& cfa) {
  if (cfa.kind != CfaKind::kExpression || cfa.expression > section.bytes.size()) return {};
  const auto rest = section.bytes.subspan(cfa.expression);
  return cfa.expression_length <= rest.size() ? rest.first(cfa.expression_length)
                                              : std::span<const std::byte>{};
}

std::span<const std::byte> expression_bytes(const Section& section, const RegisterRule& rule) {
  if (rule.kind != RuleKind::kExpression && rule.kind != RuleKind::kValExpression) return {};
  Cfa place;
  place.kind = CfaKind::kExpression;
  place.expression = static_cast<uint64_t>(rule.value);
  place.expression_length = rule.expression_length;
  return expression_bytes(section, place);
}

}  // namespace clew::cfi
