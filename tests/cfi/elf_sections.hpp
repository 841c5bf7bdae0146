// Sections of ELF files for the tests of cfi.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cfi/cfi.hpp"
#include "elf/image.hpp"

namespace clew::cfi::test {

/// A section with the bytes that it spans.
struct OwnedSection {
  std::vector<std::byte> bytes;
  Section section;
};

inline std::optional<OwnedSection> find_section(const std::string& path, std::string_view name) {
  auto image = elf::Image::open(path);
  if (!image) return std::nullopt;
  const elf::Section* found = image->section(name);
  if (found == nullptr) return std::nullopt;
  const std::span<const std::byte> bytes = image->section_bytes(*found);
  if (bytes.empty()) return std::nullopt;
  OwnedSection out;
  out.bytes.assign(bytes.begin(), bytes.end());
  out.section.bytes = out.bytes;
  out.section.address = found->address;
  out.section.debug_frame = name == ".debug_frame";
  return out;
}

/// The folder of shared test data, or nothing where there is none.
inline std::optional<std::string> shared_folder() {
  const char* set = std::getenv("CLEW_SHARED");
  const std::string folder = set != nullptr ? set : CLEW_SOURCE_DIR "/../shared";
  if (!std::filesystem::is_directory(folder + "/corpus")) return std::nullopt;
  return folder;
}

}  // namespace clew::cfi::test
