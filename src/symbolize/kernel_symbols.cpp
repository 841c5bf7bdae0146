// Kernel symbols as /proc/kallsyms lists them: "ffffffff81000000 T _stext", and for a module or a BPF program
// a tab and its name in brackets behind that. Source of the format: kernel/kallsyms.c, s_show().
#include <algorithm>
#include <charconv>
#include <fstream>
#include <string_view>
#include <utility>

#include "symbolize/symbolize.hpp"

namespace clew::symbolize {
namespace {

/// The last function of a range has no next symbol to end it: nothing beyond this far away is named after it.
constexpr uint64_t kMaxFunctionBytes = uint64_t{1} << 24;

struct Entry {
  uint64_t address = 0;
  bool global = false;
  std::string name;
};

/// One line, if it is a function with an address.
bool parse(std::string_view line, Entry& entry) {
  const char* const end = line.data() + line.size();
  const auto [rest, error] = std::from_chars(line.data(), end, entry.address, 16);
  if (error != std::errc{} || end - rest < 4 || rest[0] != ' ' || rest[2] != ' ') return false;
  const char type = rest[1];
  if (type != 't' && type != 'T' && type != 'w' && type != 'W') return false;
  if (entry.address == 0) return false;
  std::string_view name(rest + 3, static_cast<size_t>(end - rest - 3));
  std::string_view owner;
  if (const size_t tab = name.find('\t'); tab != std::string_view::npos) {
    owner = name.substr(tab + 1);
    name = name.substr(0, tab);
  }
  if (name.empty()) return false;
  entry.global = type == 'T';
  entry.name = sanitize(demangle(std::string(name)));
  if (!owner.empty()) (entry.name += ' ') += sanitize(owner);
  return true;
}

}  // namespace

KernelSymbols KernelSymbols::load(const std::string& path) {
  KernelSymbols symbols;
  std::vector<Entry> entries;
  std::ifstream file(path);
  std::string line;
  Entry entry;
  while (std::getline(file, line)) {
    if (!parse(line, entry)) continue;
    if (entry.name == "_stext") symbols.text_start_ = entry.address;
    if (entry.name == "_etext") symbols.text_end_ = entry.address;
    entries.push_back(std::move(entry));
  }
  // Of several names for one address the global one is kept, else the first: BPF programs and modules have
  // one.
  std::stable_sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return a.address != b.address ? a.address < b.address : a.global && !b.global;
  });
  for (Entry& e : entries) {
    if (!symbols.addresses_.empty() && symbols.addresses_.back() == e.address) continue;
    symbols.addresses_.push_back(e.address);
    symbols.names_.push_back(std::move(e.name));
  }
  return symbols;
}

std::string KernelSymbols::name(uint64_t address) const {
  const auto next = std::upper_bound(addresses_.begin(), addresses_.end(), address);
  if (next == addresses_.begin()) return {};
  const size_t index = static_cast<size_t>(next - addresses_.begin()) - 1;
  if (address - addresses_[index] >= kMaxFunctionBytes) return {};
  return names_[index];
}

}  // namespace clew::symbolize
