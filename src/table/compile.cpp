// Compiles a module's table: FDEs to programs (equal ones run once), overlaps resolved, gaps analysed, all
// encoded.
#include <elf.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <queue>

#include "analysis/analysis.hpp"
#include "cfi/cfi.hpp"
#include "table/dictionary.hpp"
#include "table/encode.hpp"
#include "table/table.hpp"

namespace clew::table {
namespace {

constexpr uint64_t kMaxSpan = uint64_t{1} << 32;
constexpr uint64_t kAlignment = 16;  // of functions, in practice; what lies below it before one is padding

// Sizes of swapcontext, which is looked for by its code: few functions without any frame are as long.
constexpr uint64_t kLeastSwapBytes = 200, kMostSwapBytes = 400;
constexpr size_t kContextSaveBytes = 16;

using Range = elf::AddressRange;

/// Defects by name, kept in order of appearance.
void count(std::vector<std::pair<std::string, uint64_t>>& defects, const char* what, uint64_t number) {
  if (number != 0) defects.emplace_back(what, number);
}

/// The executable ranges of the file, ascending, disjoint.
std::vector<Range> text_ranges(const elf::Image& image) {
  std::vector<Range> ranges;
  for (const elf::Segment& segment : image.segments()) {
    if (segment.type != PT_LOAD || !(segment.flags & PF_X) || segment.memory_size == 0) continue;
    uint64_t end;
    if (__builtin_add_overflow(segment.vaddr, segment.memory_size, &end)) continue;
    ranges.push_back({segment.vaddr, end});
  }
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.start < b.start; });
  std::vector<Range> joined;
  for (const Range& range : ranges) {
    if (!joined.empty() && range.start <= joined.back().end) {
      joined.back().end = std::max(joined.back().end, range.end);
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

/// Only __builtin_eh_return has saved rax and rdx (they pass values to the landing pad) and takes its stack
/// pointer from rcx.
bool begins_eh_return(const cfi::Row& row) {
  return row.cfa.kind == cfi::CfaKind::kRegister && row.cfa.reg == CLEW_RCX && row.present[CLEW_RAX] &&
         row.present[CLEW_RDX];
}

/// Sorts by start, those with the same in their order: by 11 bits at a time, since there are many.
void sort_by_start(std::vector<Piece>& pieces) {
  const auto earlier = [](const Piece& a, const Piece& b) { return a.start < b.start; };
  if (std::is_sorted(pieces.begin(), pieces.end(), earlier)) return;
  constexpr unsigned kBits = 11;
  constexpr size_t kDigits = size_t{1} << kBits;
  if (pieces.size() < kDigits) return std::stable_sort(pieces.begin(), pieces.end(), earlier);
  const auto [first, last] = std::minmax_element(pieces.begin(), pieces.end(), earlier);
  const uint64_t base = first->start;
  const uint64_t span = last->start - base;
  std::vector<Piece> sorted(pieces.size());
  for (unsigned shift = 0; shift < 64 && span >> shift != 0; shift += kBits) {
    std::array<uint32_t, kDigits> at{};
    for (const Piece& piece : pieces) ++at[(piece.start - base) >> shift & (kDigits - 1)];
    uint32_t sum = 0;
    for (uint32_t& place : at) sum += std::exchange(place, sum);
    for (const Piece& piece : pieces) sorted[at[(piece.start - base) >> shift & (kDigits - 1)]++] = piece;
    pieces.swap(sorted);
  }
}

class Compiler {
 public:
  Compiler(elf::Image& image, elf::Image* debug) : image_(image), debug_(debug), text_(text_ranges(image)) {
    programs_.rows.push_back({0, Dictionary::kNone});
    programs_.programs.push_back({0, 1});
    report_.functions = 0;
  }

  Result<std::shared_ptr<const Table>> run(Report* report);

 private:
  static constexpr uint32_t kNoRules = 0;  // the program of addresses that nothing describes

  void read_sections(elf::Image& image, const char* name);
  void read_section(elf::Image& image, const elf::Section& section, bool debug_frame);
  uint32_t program_of(const cfi::Section& section, cfi::Interpreter& interpreter, const cfi::Cie& cie,
                      const cfi::Fde& fde);
  uint32_t run_program(const cfi::Section& section, cfi::Interpreter& interpreter, const cfi::Cie& cie,
                       const cfi::Fde& fde);
  uint32_t eh_return_program(const cfi::Section& section, cfi::Interpreter& interpreter, const cfi::Cie& cie,
                             const cfi::Fde& fde, uint32_t program);
  uint32_t context_load_program(const cfi::Fde& fde, uint32_t program);
  bool in_text(uint64_t start, uint64_t& end) const;
  void resolve_overlaps();
  void fill_gaps();
  uint32_t root_before(const Piece& piece);
  void fill_gap(Range gap);
  void sort_called();
  void analyse(analysis::Code kind, Range range);
  struct Function {
    uint64_t start, end;
    analysis::Code kind;
  };
  std::vector<Function> functions_in(Range gap);

  elf::Image& image_;
  elf::Image* debug_;  // its separate debug file, or null
  std::vector<Range> text_;
  Dictionary dictionary_;
  Programs programs_;
  std::vector<Piece> pieces_;  // as read; then disjoint, in order
  std::vector<Piece> analysed_;
  std::vector<elf::Symbol> symbols_;  // in gaps
  std::vector<std::byte> code_;       // of what is analysed
  analysis::Workspace workspace_;
  std::vector<uint64_t> called_;  // addresses that analysed code calls or takes
  size_t called_sorted_ = 0;      // how many they were when they were last sorted
  Report report_;
  uint64_t outside_ = 0;

  // Programs by the bytes that they were made from.
  struct Source {
    const std::byte* bytes;
    uint32_t size;
    uint32_t cie;
    uint32_t program;
  };
  HashIndex source_index_;
  std::vector<Source> sources_;
  std::vector<uint32_t> eh_returns_;  // programs of functions that end in __builtin_eh_return
};

bool Compiler::in_text(uint64_t start, uint64_t& end) const {
  for (const Range& range : text_) {
    if (start < range.start || start >= range.end) continue;
    end = std::min(end, range.end);
    return true;
  }
  return false;
}

uint32_t Compiler::run_program(const cfi::Section& section, cfi::Interpreter& interpreter,
                               const cfi::Cie& cie, const cfi::Fde& fde) {
  // Run without the function's end: rows behind it are never looked up, and all functions of this kind share
  // them.
  cfi::Fde endless = fde;
  endless.size = UINT32_MAX;
  const auto first = static_cast<uint32_t>(programs_.rows.size());
  const auto add = [&](uint64_t offset, uint16_t rule) {
    if (programs_.rows.size() > first && programs_.rows.back().rule == rule) return;
    programs_.rows.push_back({static_cast<uint32_t>(offset), rule});
  };
  bool eh_return = false;
  const bool whole = interpreter.run(section, cie, endless, [&](uint64_t offset, const cfi::Row& row) {
    add(offset, dictionary_.rule_of_row(section, row, cie.signal_frame ? CLEW_SAVES_SIGNAL : 0));
    eh_return |= begins_eh_return(row);
  });
  if (!whole) add(interpreter.end(), Dictionary::kNone);
  if (programs_.rows.size() == first) return kNoRules;
  programs_.programs.push_back({first, static_cast<uint32_t>(programs_.rows.size() - first)});
  const auto program = static_cast<uint32_t>(programs_.programs.size() - 1);
  if (eh_return) eh_returns_.push_back(program);
  return program;
}

/// The program of one function that ends in __builtin_eh_return, whose CFI alone gives `program`: while it
/// installs its target's frame it steps to that, and its epilogue goes on at a landing pad.
uint32_t Compiler::eh_return_program(const cfi::Section& section, cfi::Interpreter& interpreter,
                                     const cfi::Cie& cie, const cfi::Fde& fde, uint32_t program) {
  std::vector<std::pair<uint64_t, cfi::Row>> rows;
  interpreter.run(section, cie, fde,
                  [&](uint64_t offset, const cfi::Row& row) { rows.emplace_back(offset, row); });
  const auto epilogue =
      std::find_if(rows.begin(), rows.end(), [](const auto& row) { return begins_eh_return(row.second); });
  if (epilogue == rows.end() || epilogue == rows.begin()) return program;
  const auto& [framed_at, framed] = *std::prev(epilogue);
  if (framed.cfa.kind != cfi::CfaKind::kRegister) return program;

  std::vector<std::byte> code(std::min<uint64_t>(epilogue->first, 1 << 16));
  code.resize(image_.read(fde.start, code));
  std::optional<analysis::ContextInstall> install;
  if (code.size() == epilogue->first) install = analysis::context_install(code, framed.cfa.reg);
  const auto first = static_cast<uint32_t>(programs_.rows.size());
  const auto add = [&](uint64_t offset, uint16_t rule) {
    programs_.rows.push_back({static_cast<uint32_t>(offset), rule});
  };
  bool lands = false;
  for (auto row = rows.begin(); row != rows.end(); ++row) {
    if (row == epilogue) {
      if (install && install->call >= framed_at)
        add(install->call, dictionary_.rule_of_install(framed, *install));
      lands = true;
    }
    lands &= row->second.cfa.kind == cfi::CfaKind::kRegister && row->second.cfa.reg != framed.cfa.reg;
    add(row->first, dictionary_.rule_of_row(section, row->second, lands ? CLEW_SAVES_EXACT : 0));
  }
  programs_.programs.push_back({first, static_cast<uint32_t>(programs_.rows.size() - first)});
  return static_cast<uint32_t>(programs_.programs.size() - 1);
}

/// The program of one function whose CFI says that its return address lies at rsp throughout (`program`),
/// where it may be one that takes on another context's stack: glibc's swapcontext.
uint32_t Compiler::context_load_program(const cfi::Fde& fde, uint32_t program) {
  std::array<std::byte, kMostSwapBytes> code;
  std::span<std::byte> read = std::span(code).first(fde.size);
  if (image_.read(fde.start, read.first(kContextSaveBytes)) != kContextSaveBytes ||
      !analysis::saves_context(read.first(kContextSaveBytes)) || image_.read(fde.start, read) != read.size())
    return program;
  const std::optional<analysis::ContextLoad> load = analysis::context_load(read);
  if (!load) return program;
  const auto first = static_cast<uint32_t>(programs_.rows.size());
  const uint16_t own = programs_.rows[programs_.programs[program].first].rule;
  programs_.rows.push_back({0, own});
  programs_.rows.push_back({static_cast<uint32_t>(load->begin), dictionary_.rule_of_load(*load)});
  programs_.rows.push_back({static_cast<uint32_t>(load->end), own});
  programs_.programs.push_back({first, 3});
  return static_cast<uint32_t>(programs_.programs.size() - 1);
}

uint32_t Compiler::program_of(const cfi::Section& section, cfi::Interpreter& interpreter, const cfi::Cie& cie,
                              const cfi::Fde& fde) {
  const auto bytes = fde.instructions;
  uint32_t program = kNoRules;
  const uint64_t hash = mix(hash_bytes(bytes.data(), bytes.size()), fde.cie);
  const uint32_t source = source_index_.find_or_add(
      hash,
      [&](uint32_t at) {
        const Source& known = sources_[at];
        return known.cie == fde.cie && known.size == bytes.size() &&
               std::memcmp(known.bytes, bytes.data(), bytes.size()) == 0;
      },
      [&] {
        program = run_program(section, interpreter, cie, fde);
        // An absolute address in the instructions makes a program its function's own.
        if (interpreter.absolute()) return HashIndex::kNone;
        sources_.push_back({bytes.data(), static_cast<uint32_t>(bytes.size()), fde.cie, program});
        return static_cast<uint32_t>(sources_.size() - 1);
      });
  return source == HashIndex::kNone ? program : sources_[source].program;
}

void Compiler::read_sections(elf::Image& image, const char* name) {
  for (const elf::Section& section : image.sections()) {
    if (section.name == name) read_section(image, section, section.name == ".debug_frame");
  }
}

void Compiler::read_section(elf::Image& image, const elf::Section& section, bool debug_frame) {
  cfi::Section source;
  source.bytes = image.section_bytes(section);
  source.address = section.address;
  source.debug_frame = debug_frame;
  if (!text_.empty()) source.text_base = text_.front().start;
  if (const elf::Section* got = image_.section(".got")) source.data_base = got->address;
  (debug_frame ? report_.debug_frame_bytes : report_.eh_frame_bytes) += source.bytes.size();

  source_index_ = HashIndex(source.bytes.size() / 128);
  dictionary_.forget_registers();
  cfi::Reader reader(source);
  cfi::Interpreter interpreter(reader.defects());
  cfi::Fde fde;
  const size_t before = pieces_.size();
  pieces_.reserve(before + source.bytes.size() / 48);
  programs_.rows.reserve(programs_.rows.size() +
                         source.bytes.size() / 8);  // memory that is not touched costs none
  while (reader.next(fde)) {
    uint64_t end = fde.start + fde.size;
    if (!in_text(fde.start, end)) {
      ++outside_;
      continue;
    }
    const cfi::Cie& cie = reader.cies()[fde.cie];
    uint32_t program = program_of(source, interpreter, cie, fde);
    if (std::find(eh_returns_.begin(), eh_returns_.end(), program) != eh_returns_.end())
      program = eh_return_program(source, interpreter, cie, fde, program);
    if (programs_.programs[program].count == 1 && fde.size >= kLeastSwapBytes && fde.size <= kMostSwapBytes)
      program = context_load_program(fde, program);
    uint64_t start = fde.start;
    // The kernel returns into a signal trampoline's first instruction: the byte before it is looked up.
    if (cie.signal_frame && start != 0) {
      uint64_t unused = UINT64_MAX;
      if (in_text(start - 1, unused)) --start;
    }
    pieces_.push_back({start, end, program, 0});
    report_.rows += programs_.programs[program].count;
  }
  report_.functions += pieces_.size() - before;
  source_index_ = HashIndex();
  sources_ = std::vector<Source>();  // what comes next needs the memory

  const cfi::Defects& defects = reader.defects();
  count(report_.defects, "truncated entries", defects.truncated);
  count(report_.defects, "FDEs of unreadable CIEs", defects.bad_cie);
  count(report_.defects, "undecodable addresses", defects.bad_pointer);
  count(report_.defects, "bad instructions", defects.bad_instruction);
  count(report_.defects, "remember_state without match", defects.stack_overflow);
  count(report_.defects, "CFAs in unknown registers", defects.bad_register);
}

/// Pieces as they were read to disjoint ones. Where two overlap, the one that starts later has its range, and
/// what it leaves of the other goes on behind it; of two that start together the one from the section read
/// first stays.
void Compiler::resolve_overlaps() {
  sort_by_start(pieces_);
  const auto overlap = [](const Piece& a, const Piece& b) { return a.end > b.start; };
  if (std::adjacent_find(pieces_.begin(), pieces_.end(), overlap) == pieces_.end())
    return;  // as in most files
  const std::vector<Piece> candidates = std::exchange(pieces_, {});
  const auto later = [](const Piece& a, const Piece& b) { return a.start > b.start; };
  std::priority_queue<Piece, std::vector<Piece>, decltype(later)> rests(later);
  pieces_.reserve(candidates.size());
  const auto place = [&](const Piece& candidate) {
    if (!pieces_.empty() && candidate.start < pieces_.back().end) {
      Piece& last = pieces_.back();
      if (last.start == candidate.start) {  // the first one stays; what reaches further goes on behind it
        if (candidate.end > last.end) {
          const auto skipped = static_cast<uint32_t>(last.end - candidate.start);
          rests.push({last.end, candidate.end, candidate.program, candidate.skip + skipped});
        }
        return;
      }
      if (last.end > candidate.end) {
        const auto skipped = static_cast<uint32_t>(candidate.end - last.start);
        rests.push({candidate.end, last.end, last.program, last.skip + skipped});
      }
      last.end = candidate.start;
    }
    pieces_.push_back(candidate);
  };
  for (const Piece& candidate : candidates) {
    while (!rests.empty() && rests.top().start <= candidate.start) {
      Piece rest = rests.top();
      rests.pop();
      // A rest yields to what starts where it does.
      if (rest.start == candidate.start) {
        if (rest.end > candidate.end) {
          const auto skipped = static_cast<uint32_t>(candidate.end - rest.start);
          rests.push({candidate.end, rest.end, rest.program, rest.skip + skipped});
        }
        continue;
      }
      place(rest);
    }
    place(candidate);
  }
  while (!rests.empty()) {
    const Piece rest = rests.top();
    rests.pop();
    place(rest);
  }
}

void Compiler::analyse(analysis::Code kind, Range range) {
  constexpr uint64_t kMaxCode = 64 << 20;
  if (range.end <= range.start || range.end - range.start > kMaxCode) return;
  if (code_.size() < range.end - range.start) code_.resize(range.end - range.start);
  std::span<std::byte> code = std::span(code_).first(range.end - range.start);
  code = code.first(image_.read(range.start, code));
  if (code.empty()) return;
  // The kernel returns into a signal trampoline's first instruction: the byte before it is looked up.
  const bool unnamed = kind == analysis::Code::kUnnamed;
  const bool trampoline = (kind == analysis::Code::kFunction || unnamed) && analysis::is_signal_return(code);
  if (trampoline) kind = analysis::Code::kSignalReturn;
  if (unnamed && analysis::is_system_call(code)) kind = analysis::Code::kChild;
  // What is read is sorted by then, and no longer grows.
  const std::vector<analysis::Row> rows = analysis::rows(
      kind, code, range.start, unnamed ? std::span<const uint64_t>(called_) : std::span<const uint64_t>(),
      unnamed ? nullptr : &called_, &workspace_);
  const auto first = static_cast<uint32_t>(programs_.rows.size());
  bool any = false;
  for (const analysis::Row& row : rows) {
    if (row.address < range.start || row.address >= range.end) continue;
    const uint16_t rule = dictionary_.rule_of_analysis(row.rule);
    if (programs_.rows.size() == first && row.address != range.start)
      programs_.rows.push_back({0, Dictionary::kNone});
    if (programs_.rows.size() > first && programs_.rows.back().rule == rule) continue;
    programs_.rows.push_back({static_cast<uint32_t>(row.address - range.start), rule});
    any |= rule != Dictionary::kNone;
  }
  if (!any) {
    programs_.rows.resize(first);
    return;
  }
  programs_.programs.push_back({first, static_cast<uint32_t>(programs_.rows.size() - first)});
  analysed_.push_back({range.start, range.end, static_cast<uint32_t>(programs_.programs.size() - 1), 0});
  ++report_.analysed;
}

/// The functions in a gap: what symbols say, each up to its size or the next one; and what lies between them,
/// where symbols name only some functions.
std::vector<Compiler::Function> Compiler::functions_in(Range gap) {
  std::vector<Function> functions;
  auto symbol = std::lower_bound(symbols_.begin(), symbols_.end(), gap.start,
                                 [](const elf::Symbol& a, uint64_t address) { return a.address < address; });
  uint64_t at = gap.start;
  for (; symbol != symbols_.end() && symbol->address < gap.end; ++symbol) {
    if (!functions.empty() && functions.back().start == symbol->address) continue;
    if (!functions.empty()) functions.back().end = std::min(functions.back().end, symbol->address);
    if (!functions.empty()) at = functions.back().end;
    if (at < symbol->address) functions.push_back({at, symbol->address, analysis::Code::kUnnamed});
    uint64_t end = gap.end;
    if (symbol->size != 0 && symbol->size < gap.end - symbol->address) end = symbol->address + symbol->size;
    functions.push_back({symbol->address, end, analysis::Code::kFunction});
  }
  if (!functions.empty()) at = functions.back().end;
  if (at < gap.end) functions.push_back({at, gap.end, analysis::Code::kUnnamed});
  return functions;
}

void Compiler::sort_called() {
  if (called_.size() == called_sorted_) return;
  std::sort(called_.begin(), called_.end());
  called_.erase(std::unique(called_.begin(), called_.end()), called_.end());
  called_sorted_ = called_.size();
}

void Compiler::fill_gap(Range gap) {
  for (const elf::Section& section : image_.sections()) {
    if (!(section.flags & SHF_ALLOC) || !(section.flags & SHF_EXECINSTR) || section.size == 0) continue;
    const Range part{
        std::max(gap.start, section.address),
        std::min(gap.end, section.address + std::min(section.size, UINT64_MAX - section.address))};
    if (part.start >= part.end) continue;
    if (section.name == ".plt") {
      analyse(analysis::Code::kPlt, part);
    } else if (section.name == ".plt.sec" || section.name == ".plt.got") {
      analyse(analysis::Code::kPltSec, part);
    } else if (section.name == ".init" || section.name == ".fini") {
      analyse(analysis::Code::kInit, part);
    } else {
      // Those with names first: they tell where others begin.
      std::vector<Function> functions = functions_in(part);
      const auto unnamed = std::stable_partition(functions.begin(), functions.end(), [](const Function& f) {
        return f.kind == analysis::Code::kFunction;
      });
      const auto analyse_one = [&](const Function& function) {
        const bool start = image_.entry() >= function.start && image_.entry() < function.end;
        analyse(start ? analysis::Code::kStart : function.kind,
                {start ? image_.entry() : function.start, function.end});
      };
      std::for_each(functions.begin(), unnamed, analyse_one);
      sort_called();
      std::for_each(unnamed, functions.end(), analyse_one);
    }
  }
}

/// The program of code that is entered by a return to its first instruction, as the outermost frame of its
/// stack, and of the byte before (that is what is looked up then): of what declares itself outermost, and of
/// makecontext's trampoline (glibc's __start_context), which older versions describe as an ordinary function.
/// kNoRules for all other code.
uint32_t Compiler::root_before(const Piece& piece) {
  if (piece.skip != 0 || piece.program >= programs_.programs.size()) return kNoRules;
  const auto [first, count] = programs_.programs[piece.program];
  if (clew_rule_kind(dictionary_.rules()[programs_.rows[first].rule]) == CLEW_CFA_ROOT) return piece.program;
  if (count != 1) return kNoRules;  // its FDE, as an ordinary function's, has no instructions
  if (const uint64_t size = piece.end - piece.start; size < 20 || size > analysis::kStartContextMost)
    return kNoRules;
  std::array<std::byte, analysis::kStartContextBytes> code = {};
  if (image_.read(piece.start, code) != code.size() || !analysis::is_start_context(code)) return kNoRules;
  const auto row = static_cast<uint32_t>(programs_.rows.size());
  const clew_rule root = clew_rule_make(CLEW_CFA_ROOT, 0, 0, CLEW_BP_UNCHANGED, 0, false);
  programs_.rows.push_back({0, dictionary_.rule_of_analysis(root)});
  programs_.programs.push_back({row, 1});
  return static_cast<uint32_t>(programs_.programs.size() - 1);
}

/// Looks at what lies between the pieces. Padding behind a function belongs to it; longer gaps are analysed.
void Compiler::fill_gaps() {
  std::vector<Range> gaps;
  size_t next = 0;
  for (const Range& range : text_) {
    uint64_t at = range.start;
    while (next < pieces_.size() && pieces_[next].start < range.end) {
      Piece& piece = pieces_[next];
      if (piece.start > at) {
        const bool padding = next != 0 && pieces_[next - 1].end == at && piece.start - at < kAlignment &&
                             piece.start % kAlignment == 0 && at % kAlignment != 0;
        if (padding) {
          pieces_[next - 1].end = piece.start;
          if (const uint32_t root = root_before(piece); root != kNoRules) {
            --pieces_[next - 1].end;
            analysed_.push_back({piece.start - 1, piece.start, root, 0});
            piece.program = root;
          }
        } else {
          gaps.push_back({at, piece.start});
        }
      }
      at = std::max(at, piece.end);
      ++next;
    }
    if (at < range.end) gaps.push_back({at, range.end});
  }
  const bool has_sections =
      std::any_of(image_.sections().begin(), image_.sections().end(),
                  [](const auto& section) { return (section.flags & SHF_EXECINSTR) != 0; });
  symbols_ = image_.symbols_in(gaps);
  for (const Range& gap : gaps) {
    if (has_sections) {
      fill_gap(gap);
    } else if (image_.entry() >= gap.start && image_.entry() < gap.end) {
      analyse(analysis::Code::kStart, {image_.entry(), gap.end});
    }
  }
  std::sort(analysed_.begin(), analysed_.end(),
            [](const Piece& a, const Piece& b) { return a.start < b.start; });

  // All pieces in order, with "nothing known" between those that do not touch.
  std::vector<Piece> all;
  all.reserve(pieces_.size() + analysed_.size() + gaps.size());
  const auto push = [&](const Piece& piece) {
    if (!all.empty() && piece.start < all.back().end)
      return;  // two sections that overlap: the first one's analysis
    if (!all.empty() && all.back().end < piece.start)
      all.push_back({all.back().end, piece.start, kNoRules, 0});
    all.push_back(piece);
  };
  size_t a = 0;
  for (const Piece& piece : pieces_) {
    for (; a < analysed_.size() && analysed_[a].start < piece.start; ++a) push(analysed_[a]);
    push(piece);
  }
  for (; a < analysed_.size(); ++a) push(analysed_[a]);
  pieces_ = std::move(all);
}

Result<std::shared_ptr<const Table>> Compiler::run(Report* report) {
  const auto begin = std::chrono::steady_clock::now();
  if (image_.machine() != EM_X86_64) {
    return Error{image_.name() + ": not an x86-64 file, no unwind table can be made for it yet"};
  }
  if (!text_.empty() && text_.back().end - text_.front().start >= kMaxSpan) {
    return Error{image_.name() +
                 ": its code spans more than 4 GiB of addresses, no unwind table is made for it"};
  }
  // Sections first read win: the loaded table before the debugger's.
  read_sections(image_, ".eh_frame");
  read_sections(image_, ".debug_frame");
  if (debug_) read_sections(*debug_, ".debug_frame");
  resolve_overlaps();
  fill_gaps();
  count(report_.defects, "FDEs outside executable segments", outside_);
  count(report_.defects, "rules that a compact table cannot say", dictionary_.unsupported());

  std::vector<std::byte> bytes =
      encode(programs_, pieces_, dictionary_, {image_.build_id(), image_.size(), source_hash(image_, debug_)},
             static_cast<uint32_t>(report_.functions));
  report_.rules = dictionary_.rules().size();
  report_.table_bytes = bytes.size();
  report_.build_ns = static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now() - begin).count());
  if (report) *report = report_;
  return Table::from_bytes(std::move(bytes));
}

}  // namespace

uint64_t source_hash(elf::Image& image, elf::Image* debug) {
  uint64_t hash = 0;
  const auto add = [&hash](elf::Image& from, const elf::Section& section) {
    const auto bytes = from.section_bytes(section);
    hash = mix(mix(hash, section.address), hash_bytes(bytes.data(), bytes.size()));
  };
  for (const elf::Section& section : image.sections())
    if (section.name == ".eh_frame" || section.name == ".debug_frame") add(image, section);
  if (debug) {
    for (const elf::Section& section : debug->sections())
      if (section.name == ".debug_frame") add(*debug, section);
  }
  return hash;
}

Result<std::shared_ptr<const Table>> compile(elf::Image& image, Report* report, elf::Image* debug) {
  return Compiler(image, debug).run(report);
}

}  // namespace clew::table
