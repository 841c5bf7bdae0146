// Sections of ELF files for the tests of cfi, apart from src/elf so that neither hides a fault of the other.
// Only for files that the tests trust.
#pragma once

#include <elf.h>
#include <zlib.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cfi/cfi.hpp"

namespace clew::cfi::test {

/// A section with the bytes that it spans.
struct OwnedSection {
  std::vector<std::byte> bytes;
  Section section;
  uint16_t machine = 0;
};

inline std::vector<std::byte> read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> chars{std::istreambuf_iterator<char>(in), {}};
  const auto* begin = reinterpret_cast<const std::byte*>(chars.data());
  return {begin, begin + chars.size()};
}

inline std::optional<OwnedSection> find_section(const std::string& path, std::string_view name) {
  const std::vector<std::byte> file = read_file(path);
  if (file.size() < sizeof(Elf64_Ehdr)) return std::nullopt;
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  const auto section_at = [&](size_t index) {
    Elf64_Shdr section;
    std::memcpy(&section, file.data() + header.e_shoff + index * sizeof section, sizeof section);
    return section;
  };
  const Elf64_Shdr names = section_at(header.e_shstrndx);
  for (size_t i = 1; i < header.e_shnum; ++i) {
    const Elf64_Shdr found = section_at(i);
    if (name != reinterpret_cast<const char*>(file.data() + names.sh_offset + found.sh_name)) continue;
    if (found.sh_type == SHT_NOBITS) return std::nullopt;
    OwnedSection out;
    out.machine = header.e_machine;
    const std::byte* begin = file.data() + found.sh_offset;
    if ((found.sh_flags & SHF_COMPRESSED) != 0) {
      Elf64_Chdr compressed;
      std::memcpy(&compressed, begin, sizeof compressed);
      out.bytes.resize(compressed.ch_size);
      uLongf size = compressed.ch_size;
      if (uncompress(reinterpret_cast<Bytef*>(out.bytes.data()), &size,
                     reinterpret_cast<const Bytef*>(begin) + sizeof compressed,
                     found.sh_size - sizeof compressed) != Z_OK) {
        return std::nullopt;
      }
    } else {
      out.bytes.assign(begin, begin + found.sh_size);
    }
    out.section.bytes = out.bytes;
    out.section.address = found.sh_addr;
    out.section.debug_frame = name == ".debug_frame";
    return out;
  }
  return std::nullopt;
}

/// The folder of shared test data, or nothing where there is none.
inline std::optional<std::string> shared_folder() {
  const char* set = std::getenv("CLEW_SHARED");
  const std::string folder = set != nullptr ? set : CLEW_SOURCE_DIR "/../shared";
  if (!std::filesystem::is_directory(folder + "/corpus")) return std::nullopt;
  return folder;
}

}  // namespace clew::cfi::test
