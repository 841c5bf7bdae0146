#include "collect/perf/kernel_roots.hpp"

#include <algorithm>
#include <array>
#include <charconv>
#include <fstream>
#include <string_view>

namespace clew::collect::perf {

namespace {

// arch/x86/entry, arch/x86/xen: SYM_CODE_START.
constexpr std::array<std::string_view, 4> kPrefixes = {"ret_from_fork", "asm_fred_entrypoint", "xen_asm_",
                                                       "xen_entry_"};

}  // namespace

KernelRoots KernelRoots::load(const std::string& path) {
  KernelRoots roots;
  std::ifstream file(path);
  std::string text;
  uint64_t entry_start = 0;
  bool open = false;  // the last range ends at the next symbol that lies above its start
  while (std::getline(file, text)) {
    const std::string_view line = text;
    uint64_t address = 0;
    const auto [rest, error] = std::from_chars(line.data(), line.data() + line.size(), address, 16);
    const auto at = static_cast<size_t>(rest - line.data());
    if (error != std::errc() || address == 0 || line.size() < at + 3) continue;
    const std::string_view name = line.substr(at + 3);
    if (open && address > roots.ranges_.back().first) {
      roots.ranges_.back().second = address;
      open = false;
    }
    if (roots.schedule_.second == 0 && address > roots.schedule_.first && roots.schedule_.first != 0)
      roots.schedule_.second = address;
    if (name == "__schedule") roots.schedule_ = {address, 0};
    if (name == "__entry_text_start") entry_start = address;
    if (name == "__entry_text_end" && entry_start != 0 && address > entry_start)
      roots.ranges_.emplace_back(entry_start, address);
    if (!open && std::ranges::any_of(kPrefixes, [&](auto prefix) { return name.starts_with(prefix); })) {
      roots.ranges_.emplace_back(address, address);
      open = true;
    }
  }
  return roots;
}

bool KernelRoots::contains(uint64_t address) const {
  return std::ranges::any_of(
      ranges_, [&](const auto& range) { return address >= range.first && address < range.second; });
}

}  // namespace clew::collect::perf
