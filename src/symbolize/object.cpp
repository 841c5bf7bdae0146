// DWARF through LLVM, over section contents that elf::Image has read: no mapping of the file (a file that
// shrinks under one raises SIGBUS), and only those sections that answer "which function, which line".
#include "symbolize/object.hpp"

#include <llvm/ADT/StringMap.h>
#include <llvm/BinaryFormat/Dwarf.h>
#include <llvm/DebugInfo/DIContext.h>
#include <llvm/DebugInfo/DWARF/DWARFCompileUnit.h>
#include <llvm/DebugInfo/DWARF/DWARFContext.h>
#include <llvm/DebugInfo/DWARF/DWARFUnit.h>
#include <llvm/Support/Error.h>
#include <llvm/Support/MemoryBuffer.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <optional>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "elf/image.hpp"
#include "symbolize/function_ranges.hpp"

namespace clew::symbolize {
namespace {

constexpr std::array<std::string_view, 11> kDebugSections = {
    ".debug_info", ".debug_types",       ".debug_abbrev", ".debug_line",     ".debug_line_str", ".debug_str",
    ".debug_addr", ".debug_str_offsets", ".debug_ranges", ".debug_rnglists", ".debug_aranges"};

/// LLVM keeps each unit that it has parsed, as about four times its bytes. Beyond this many bytes of units
/// the reader is made anew.
constexpr uint64_t kMaxUnitBytes = uint64_t{64} << 20;
constexpr unsigned kMaxInlineDepth = 256;
/// Names are demangled once: inlined functions and hot symbols repeat.
constexpr size_t kMaxDemangled = 100'000;
constexpr uint64_t kExecuteFlag = 4;  // SHF_EXECINSTR

bool is_known(const std::string& text) { return !text.empty() && text != llvm::DILineInfo::BadString; }

bool is_mangled(std::string_view name) { return name.starts_with("_Z") || name.starts_with("_R"); }

/// "_ZN1a1bEv.cold" without ".cold": the function that the user wrote.
std::string without_clone_suffix(std::string_view name) {
  return std::string(name.substr(0, name.find('.')));
}

std::optional<elf::Image> open_image(int fd, const char* name) {
  if (fd < 0) return std::nullopt;
  auto image = elf::Image::from_fd(fd, name);
  if (!image) return std::nullopt;
  return std::move(*image);
}

/// A function by its address, to which the Symbolizer adds the file's name.
std::string unnamed_function(uint64_t start) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%c+0x%llx", kUnnamedMark, static_cast<unsigned long long>(start));
  return text.data();
}

}  // namespace

struct Object::State {
  std::optional<elf::Image> image;
  std::optional<elf::Image> debug_image;
  llvm::StringMap<std::unique_ptr<llvm::MemoryBuffer>> sections;
  uint64_t section_bytes = 0;
  uint8_t address_size = 8;
  std::unique_ptr<llvm::DWARFContext> dwarf;
  std::unordered_map<const llvm::DWARFUnit*, bool> units;  // seen by `dwarf`: may their DIEs be parsed?
  uint64_t unit_bytes = 0;
  std::unordered_map<std::string, std::string> demangled;
  std::optional<FunctionRanges> unnamed;

  bool load_sections(elf::Image& from);
  void open_dwarf();
  bool may_parse(llvm::DWARFUnit& unit);
  Lines from_dwarf(uint64_t address);
  std::optional<std::string_view> symbol(uint64_t address);
  static std::optional<std::string_view> symbol_in(elf::Image& from, uint64_t address);
  const std::string& readable(const std::string& name);
};

Object::Object(int fd, int debug_fd, const std::string& build_id, Depth depth)
    : state_(std::make_unique<State>()) {
  auto& image = state_->image = open_image(fd, "the file");
  auto& debug_image = state_->debug_image = open_image(debug_fd, "the debug file");
  if (debug_image && !build_id.empty() && debug_image->build_id_hex() != build_id) debug_image.reset();
  if (depth == Depth::kSymbols) return;
  const bool loaded =
      (debug_image && state_->load_sections(*debug_image)) || (image && state_->load_sections(*image));
  if (loaded) state_->open_dwarf();
}

Object::~Object() = default;

bool Object::State::load_sections(elf::Image& from) {
  if (from.section(".debug_info") == nullptr) return false;
  for (std::string_view name : kDebugSections) {
    const elf::Section* section = from.section(name);
    if (section == nullptr) continue;
    const std::span<const std::byte> bytes = from.section_bytes(*section);
    if (bytes.empty()) continue;
    const llvm::StringRef contents(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    name.remove_prefix(1);  // LLVM's names have no dot
    sections[llvm::StringRef(name.data(), name.size())] =
        llvm::MemoryBuffer::getMemBuffer(contents, "", false);
    section_bytes += bytes.size();
  }
  return sections.count("debug_info") != 0;
}

void Object::State::open_dwarf() {
  const auto ignore = [](llvm::Error error) { llvm::consumeError(std::move(error)); };
  units.clear();
  unit_bytes = 0;
  dwarf.reset();
  dwarf = llvm::DWARFContext::create(sections, address_size, true, ignore, ignore);
}

/// A skeleton unit names the file that holds the rest; LLVM opens it. Anything but a regular file (a pipe, a
/// device) could block or never end.
bool Object::State::may_parse(llvm::DWARFUnit& unit) {
  const llvm::DWARFDie die = unit.getUnitDIE();
  const auto attribute = die.find({llvm::dwarf::DW_AT_dwo_name, llvm::dwarf::DW_AT_GNU_dwo_name});
  if (!attribute) return true;
  const std::string name = llvm::dwarf::toString(attribute, "");
  const char* const directory = unit.getCompilationDir();
  const std::string path =
      name.starts_with('/') || directory == nullptr ? name : std::string(directory) + "/" + name;
  struct stat status{};
  return stat(path.c_str(), &status) == 0 && S_ISREG(status.st_mode);
}

Lines Object::State::from_dwarf(uint64_t address) {
  llvm::DWARFCompileUnit* unit = dwarf->getCompileUnitForCodeAddress(address);
  if (unit == nullptr) return {};
  auto known = units.find(unit);
  if (known == units.end()) {
    if (unit_bytes > kMaxUnitBytes) {
      open_dwarf();
      unit = dwarf->getCompileUnitForCodeAddress(address);
      if (unit == nullptr) return {};
    }
    known = units.emplace(unit, may_parse(*unit)).first;
    unit_bytes += unit->getLength();
  }
  const llvm::object::SectionedAddress where{address, llvm::object::SectionedAddress::UndefSection};
  const llvm::DILineInfoSpecifier what(llvm::DILineInfoSpecifier::FileLineInfoKind::AbsoluteFilePath,
                                       llvm::DINameKind::LinkageName);
  llvm::DIInliningInfo chain;
  if (known->second) {
    chain = dwarf->getInliningInfoForAddress(where, what);
  } else {
    // Not getLineInfoForAddress(): it looks for the function as well.
    llvm::DILineInfo info;
    const auto* const table = dwarf->getLineTableForUnit(unit);
    if (table != nullptr)
      table->getFileLineInfoForAddress(where, unit->getCompilationDir(), what.FLIKind, info);
    chain.addFrame(info);
  }
  Lines lines;
  const unsigned frames = std::min(chain.getNumberOfFrames(), kMaxInlineDepth);
  for (unsigned i = 0; i < frames; ++i) {
    // Of a chain too deep to be true the outermost end is kept: it holds the function that the code belongs
    // to.
    const llvm::DILineInfo& info = chain.getFrame(chain.getNumberOfFrames() - frames + i);
    Line line;
    if (is_known(info.FunctionName)) line.function = info.FunctionName;
    if (is_known(info.FileName)) line.file = sanitize(info.FileName);
    line.line = info.Line;
    lines.push_back(std::move(line));
  }
  if (lines.size() == 1 && lines[0].function.empty() && lines[0].file.empty()) lines.clear();
  return lines;
}

std::optional<std::string_view> Object::State::symbol_in(elf::Image& from, uint64_t address) {
  const std::span<const elf::Symbol> symbols = from.symbols();
  const auto behind = [](uint64_t a, const elf::Symbol& s) { return a < s.address; };
  const auto next = std::upper_bound(symbols.begin(), symbols.end(), address, behind);
  // The nearest symbol may be a small one inside a larger one that covers the address: look back a little.
  constexpr ptrdiff_t kLookBack = 64;
  const auto stop = next - std::min(kLookBack, next - symbols.begin());
  const elf::Symbol* found = nullptr;
  const elf::Symbol* unsized = nullptr;
  for (auto s = next; s != stop;) {
    --s;
    if (found != nullptr && s->address != found->address) break;
    if (address - s->address < s->size) found = &*s;  // of one address the first is the one preferred
    if (s->size == 0 && s->address == (next - 1)->address) unsized = &*s;
  }
  if (found != nullptr) return found->name;
  if (unsized == nullptr) return std::nullopt;
  // No size: it reaches to the next symbol (none lies between), but not beyond its section.
  for (const elf::Section& section : from.sections()) {
    if ((section.flags & kExecuteFlag) == 0 || unsized->address < section.address) continue;
    if (unsized->address - section.address >= section.size) continue;
    if (address - section.address < section.size) return unsized->name;
  }
  return std::nullopt;
}

std::optional<std::string_view> Object::State::symbol(uint64_t address) {
  if (debug_image) {
    if (auto name = symbol_in(*debug_image, address)) return name;
  }
  if (image) return symbol_in(*image, address);
  return std::nullopt;
}

const std::string& Object::State::readable(const std::string& name) {
  const auto known = demangled.find(name);
  if (known != demangled.end()) return known->second;
  if (demangled.size() >= kMaxDemangled) demangled.clear();
  std::string text = name.size() <= kMaxNameBytes ? sanitize(demangle(name)) : sanitize(name);
  return demangled.emplace(name, std::move(text)).first->second;
}

Lines Object::lines(uint64_t address) {
  State& state = *state_;
  Lines lines;
  if (state.dwarf) lines = state.from_dwarf(address);
  if (lines.empty() || !is_mangled(lines.back().function)) {
    if (const auto symbol = state.symbol(address)) {
      if (lines.empty()) {
        lines.push_back({std::string(*symbol), "", 0});
      } else if (lines.back().function.empty()) {
        lines.back().function = *symbol;
      } else if (is_mangled(*symbol)) {
        // Compilers leave the linkage name of local C++ functions out of DWARF: "f" there is "(anonymous
        // namespace)::f()".
        lines.back().function = without_clone_suffix(*symbol);
      }
    }
  }
  for (Line& line : lines) {
    if (!line.function.empty()) line.function = state.readable(line.function);
  }
  if (lines.empty() && state.image) {
    if (!state.unnamed) state.unnamed.emplace(*state.image);
    if (const auto start = state.unnamed->start_of(address))
      lines.push_back({unnamed_function(*start), "", 0});
  }
  return lines;
}

uint64_t Object::memory_bytes() const {
  constexpr uint64_t kParsedPerByte = 4;
  constexpr uint64_t kNameBytes = 200;
  return state_->section_bytes + state_->unit_bytes * kParsedPerByte + state_->demangled.size() * kNameBytes;
}

}  // namespace clew::symbolize
