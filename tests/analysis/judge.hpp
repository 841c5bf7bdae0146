// Rules judged by a library's own .eh_frame, as readelf prints it.
#pragma once

#include <map>
#include <sstream>

#include "analysis/function_flow.hpp"
#include "support.hpp"

namespace clew::analysis::test {

// A row as readelf --debug-dump=frames-interp prints it.
struct Expected {
  uint64_t address = 0;
  std::string cfa;
  std::string rbp;  // "c-16", "u", or ""
  std::string ra;
};
struct Fde {
  uint64_t start = 0, end = 0;
  std::vector<Expected> rows;
};

inline std::vector<Fde> readelf_rows(const std::string& path) {
  std::vector<Fde> fdes;
  std::map<std::string, std::vector<Expected>> cies;
  std::string cie;  // being read, if not empty
  std::vector<std::string> columns;
  lines_of("readelf -W --debug-dump=frames-interp " + path + " 2>/dev/null", [&](const char* line) {
    std::istringstream words(line);
    std::vector<std::string> word((std::istream_iterator<std::string>(words)), {});
    if (word.size() >= 4 && word[3] == "CIE") {
      cie = word[0].size() > 8 ? word[0].substr(word[0].size() - 8) : word[0];
      cies[cie];
    } else if (word.size() >= 6 && word[3] == "FDE") {
      std::string of = word[4].substr(4);
      cie.clear();
      Fde fde;
      std::sscanf(word[5].c_str(), "pc=%lx..%lx", &fde.start, &fde.end);
      fde.rows =
          cies[of.size() > 8 ? of.substr(of.size() - 8) : of];  // those of the CIE, if it has none of its own
      for (Expected& row : fde.rows) row.address = fde.start;
      fdes.push_back(std::move(fde));
      columns.clear();
    } else if (word.size() >= 2 && word[0] == "LOC") {
      columns = word;
      if (cie.empty() && !fdes.empty()) fdes.back().rows.clear();
    } else if (word.size() >= 2 && word[0].size() == 16 && word.size() == columns.size()) {
      Expected row;
      row.address = std::strtoull(word[0].c_str(), nullptr, 16);
      for (size_t i = 1; i < word.size(); ++i) {
        if (columns[i] == "CFA") row.cfa = word[i];
        if (columns[i] == "rbp") row.rbp = word[i];
        if (columns[i] == "ra") row.ra = word[i];
      }
      (cie.empty() ? fdes.back().rows : cies[cie]).push_back(row);
    }
  });
  return fdes;
}

inline const char* const kNames[] = {"rax", "rdx", "rcx", "rbx", "rsi", "rdi", "rbp", "rsp",
                                     "r8",  "r9",  "r10", "r11", "r12", "r13", "r14", "r15"};

inline std::string text(clew_rule rule) {
  if (clew_rule_kind(rule) == CLEW_CFA_NONE) return "none";
  std::string out =
      std::string(kNames[clew_rule_register(rule)]) + "+" + std::to_string(clew_rule_offset(rule));
  if (clew_rule_bp(rule)) out += " rbp c-" + std::to_string(8 * clew_rule_bp(rule));
  return out;
}

struct Score {
  uint64_t functions = 0, left_out = 0;
  uint64_t instructions = 0, equal = 0, same_by_other = 0, none = 0, wrong = 0, no_verdict = 0;
};

// Is "reg+offset" what the state says too?
inline bool agrees(const std::string& cfa, const FrameState& state) {
  size_t plus = cfa.find_first_of("+-");
  if (plus == std::string::npos) return false;
  int offset = std::atoi(cfa.c_str() + plus);
  for (uint8_t reg = 0; reg < kGeneralRegisters; ++reg) {
    if (cfa.compare(0, plus, kNames[dwarf_register(reg)]) != 0) continue;
    return state.registers[reg] == Value{-offset, Value::kCfa};
  }
  return false;
}

// Is "c-n" below rsp?
inline bool starts_below(const std::string& slot, clew_rule rule) {
  return slot.rfind("c-", 0) == 0 && std::atoi(slot.c_str() + 2) > clew_rule_offset(rule);
}

/// Compares a rule for each instruction with the table's. `rule_for(offset, flow's rule)` gives the rule to
/// judge. A CFA by another register than the table's is checked by what the flow knows of that register.
template <class RuleFor>
void judge(const Fde& fde, std::span<const std::byte> code, RuleFor&& rule_for, Score& score,
           std::vector<std::string>& wrong) {
  struct Seen {
    FrameState state;
    bool any = false;
  };
  std::vector<Seen> seen(code.size());  // of the last round; what earlier ones reached alone has no rule
  FunctionFlow flow(code, fde.start);
  flow.enter(0, FrameState::entry());
  flow.run([&](size_t at, const FrameState& state) { seen[at] = {state, true}; });
  ++score.functions;
  size_t row = 0;
  for (size_t at = 0; at < code.size();) {
    Instruction in;
    if (!decode(code.subspan(at), in)) {
      ++at;
      continue;
    }
    size_t here = at;
    at += in.length;
    if (is_padding(in) && !seen[here].any) continue;
    ++score.instructions;
    while (row + 1 < fde.rows.size() && fde.rows[row + 1].address <= fde.start + here) ++row;
    const Expected& expected = fde.rows[row];
    clew_rule rule = rule_for(here, seen[here].any ? flow.rule(here) : clew_rule{0});
    if (clew_rule_kind(rule) == CLEW_CFA_NONE) {
      ++score.none;
      continue;
    }
    if (expected.cfa == "exp") {  // readelf does not evaluate it
      ++score.no_verdict;
      continue;
    }
    const FrameState& state = seen[here].state;
    std::string cfa =
        std::string(kNames[clew_rule_register(rule)]) + "+" + std::to_string(clew_rule_offset(rule));
    bool same_cfa = cfa == expected.cfa;
    bool other = !same_cfa && agrees(expected.cfa, state);
    std::string slot = clew_rule_bp(rule) ? "c-" + std::to_string(8 * clew_rule_bp(rule)) : "u";
    std::string slot_expected = expected.rbp.empty() ? "u" : expected.rbp;
    // Saved and not yet changed: both are right.
    bool same_rbp = slot == slot_expected || state.rbp().kind == Value::kCallerRbp;
    // Popped already: compilers do not say so, but the table's place lies below rsp.
    if (slot == "u" && same_cfa && clew_rule_register(rule) == CLEW_RSP && starts_below(slot_expected, rule))
      same_rbp = true;
    if (expected.ra == "c-8" && (same_cfa || other) && same_rbp) {
      ++(same_cfa ? score.equal : score.same_by_other);
      continue;
    }
    ++score.wrong;
    std::ostringstream line;
    line << std::hex << fde.start + here << " (function " << fde.start << "): ours " << text(rule)
         << ", table " << expected.cfa << " rbp " << expected.rbp << " ra " << expected.ra;
    wrong.push_back(line.str());
  }
}

/// All functions in .text whose FDE describes them from their entry.
template <class RuleFor>
void judge_file(const std::string& path, RuleFor&& rule_for, Score& score, std::vector<std::string>& wrong) {
  std::vector<Section> all = sections(path);
  for (const Fde& fde : readelf_rows(path)) {
    // A part of a function that does not begin as one (gcc's .cold), or a stub, says nothing about functions.
    if (fde.rows.empty() || fde.rows.front().cfa != "rsp+8" || fde.rows.front().ra != "c-8") {
      ++score.left_out;
      continue;
    }
    for (const Section& in : all) {
      if (!in.executable || in.name != ".text" || fde.start < in.address ||
          fde.end > in.address + in.bytes.size())
        continue;
      std::span<const std::byte> text = in.bytes;
      size_t start = fde.start - in.address;
      // A nop that changes the CFA: gcc puts it before a .cold part, which begins behind it.
      if (fde.rows.size() > 1 && fde.rows[1].address == fde.start + 1 && text[start] == std::byte{0x90}) {
        ++score.left_out;
        continue;
      }
      judge(
          fde, text.subspan(start, fde.end - fde.start),
          [&](size_t at, clew_rule by_flow) { return rule_for(text, start + at, by_flow); }, score, wrong);
    }
  }
}

inline double percent(const Score& score, uint64_t n) {
  return 100.0 * static_cast<double>(n) / static_cast<double>(score.instructions);
}

inline void print(const std::string& path, const Score& score, const std::vector<std::string>& wrong) {
  std::printf(
      "%s: %lu functions (%lu left out), %lu instructions: equal %.3f %%, same by another register %.3f %%, "
      "none %.3f %%, not judged %.3f %%, wrong %.4f %% (%lu)\n",
      path.c_str(), score.functions, score.left_out, score.instructions, percent(score, score.equal),
      percent(score, score.same_by_other), percent(score, score.none), percent(score, score.no_verdict),
      percent(score, score.wrong), score.wrong);
  size_t shown = std::getenv("CLEW_SHOW_ALL") ? wrong.size() : 10;
  for (size_t i = 0; i < wrong.size() && i < shown; ++i) std::printf("  %s\n", wrong[i].c_str());
}

}  // namespace clew::analysis::test
