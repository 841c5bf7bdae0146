#include <algorithm>
#include <array>

#include "analysis/analysis.hpp"
#include "analysis/function_flow.hpp"
#include "analysis/instruction.hpp"

namespace clew::analysis {
namespace {

constexpr clew_rule kNone = 0;
constexpr size_t kSystemCallBytes = 2;

void append(std::vector<Row>& rows, uint64_t address, clew_rule rule) {
  if (!rows.empty() && rows.back().rule == rule) return;
  if (!rows.empty() && rows.back().address == address) {
    rows.back().rule = rule;
    return;
  }
  rows.push_back({address, rule});
}

// One rule for each instruction of `code`, front to back. Padding keeps the rule before it.
template <class Sink>
void each_instruction(FunctionFlow& flow, std::span<const std::byte> code, Sink&& sink) {
  size_t covered = 0;
  for (size_t at = 0; at < flow.size(); ++at) {
    const bool reached = flow.reached(at);
    if (!reached && at < covered) continue;
    if (reached) {
      sink(at, flow.rule(at));
    } else if (!(at > 0 && flow.padding(at))) {
      sink(at, kNone);
    }
    if (reached || flow.padding(at)) covered = std::max(covered, at + flow.length(at));
  }
  if (flow.size() < code.size()) sink(flow.size(), kNone);
}

// Whether there is nothing else.
bool is_padding(std::span<const std::byte> code) {
  Instruction in;
  for (size_t at = 0; at < code.size(); at += in.length)
    if (!decode(code.subspan(at), in) || !is_padding(in)) return false;
  return true;
}

std::vector<Row> function_rows(std::span<const std::byte> code, uint64_t address, bool certain,
                               std::span<const uint64_t> called, std::vector<uint64_t>* calls,
                               FunctionFlow& flow) {
  std::vector<Row> rows;
  if (!certain && is_padding(code)) return rows;
  flow.begin(code, address);
  if (certain) {
    flow.enter(0, FrameState::entry());
  } else {
    flow.may_enter(called);
  }
  if (calls != nullptr) calls->insert(calls->end(), flow.outside().begin(), flow.outside().end());
  flow.run();
  flow.each_rule([&](size_t at, clew_rule rule) { append(rows, address + at, rule); });
  if (flow.size() < code.size()) append(rows, address + flow.size(), kNone);
  return rows;
}

// PLT0: push [rip + link map], as it is entered by stubs that have pushed their number.
bool is_lazy_header(std::span<const std::byte> code) {
  Instruction in;
  if (!decode(code, in)) return false;
  if (in.is_0f(0x1e) && in.repeat() && !decode(code.subspan(in.length), in)) return false;
  return in.is(0xff) && in.digit() == 6 && in.is_memory_form();
}

// For each 16 aligned bytes: N if the rules are those of CLEW_CFA_PLT with threshold N, 16 for rsp + 8
// throughout.
struct Slot {
  bool uniform = true;
  uint8_t threshold = 16;
};

std::vector<Row> plt_rows(std::span<const std::byte> code, uint64_t address) {
  constexpr size_t kStub = 16;
  FunctionFlow flow(code, address);
  if (flow.size() == 0) return {};
  flow.enter(0, FrameState::entry(is_lazy_header(code) ? 8 : 0));
  for (uint32_t at : flow.after_ends()) flow.enter(at, FrameState::entry());
  flow.run();

  const clew_rule shallow = rule_of(FrameState::entry());
  const clew_rule deep = rule_of(FrameState::entry(8));
  size_t lead = (kStub - address % kStub) % kStub;  // bytes before the first aligned stub
  std::vector<Slot> slots(code.size() > lead ? (code.size() - lead) / kStub : 0);
  std::vector<Row> plain;
  each_instruction(flow, code, [&](size_t at, clew_rule rule) {
    append(plain, address + at, rule);
    if (at < lead || (at - lead) / kStub >= slots.size()) return;
    Slot& slot = slots[(at - lead) / kStub];
    auto within = static_cast<uint8_t>((at - lead) % kStub);
    if (rule == deep && within > 0) {
      slot.threshold = std::min(slot.threshold, within);
    } else if (rule != shallow || slot.threshold != 16) {
      slot.uniform = false;
    }
  });

  std::vector<Row> rows;
  size_t next = 0;  // in plain
  auto copy_to = [&](uint64_t end) {
    for (; next < plain.size() && plain[next].address < end; ++next)
      append(rows, plain[next].address, plain[next].rule);
  };
  clew_rule current = kNone;
  for (size_t first = 0; first < slots.size();) {
    size_t last = first;
    while (last < slots.size() && slots[last].uniform && slots[last].threshold == slots[first].threshold)
      ++last;
    if (last - first < 2 || slots[first].threshold == 16) {
      first = std::max(last, first + 1);
      continue;
    }
    uint64_t start = address + lead + first * kStub;
    uint64_t end = address + lead + last * kStub;
    copy_to(start);
    append(rows, start, clew_rule_make(CLEW_CFA_PLT, CLEW_RSP, slots[first].threshold, 0, 0, false));
    for (; next < plain.size() && plain[next].address < end; ++next) current = plain[next].rule;
    // What follows may go on with the last stub's rule, which has no row of its own there.
    if (end < address + code.size() && (next >= plain.size() || plain[next].address != end))
      append(rows, end, current);
    first = last;
  }
  copy_to(UINT64_MAX);
  return rows;
}

// How far the code of a process's entry goes.
size_t start_length(std::span<const std::byte> code) {
  size_t farthest = 0;   // branch target
  bool runs_on = false;  // call next: musl's _start, _start_c follows
  for (size_t at = 0; at < code.size();) {
    Instruction in;
    if (!decode(code.subspan(at), in)) return at;
    int64_t target = 0;
    Flow flow = flow_of(in, target);
    size_t end = at + in.length;
    if (flow == Flow::kBranch && target > 0) farthest = std::max(farthest, at + static_cast<size_t>(target));
    if (flow == Flow::kCall && target == in.length) {
      runs_on = true;
    } else if (runs_on && (flow == Flow::kCall || flow == Flow::kCallIndirect)) {
      return end;
    }
    bool ends =
        flow == Flow::kJump || flow == Flow::kJumpIndirect || flow == Flow::kReturn || flow == Flow::kStop;
    if (ends && farthest < end) return end;
    at = end;
  }
  return code.size();
}

std::vector<Row> start_rows(std::span<const std::byte> code, uint64_t address) {
  std::vector<Row> rows;
  size_t length = start_length(code);
  if (length > 0) append(rows, address, clew_rule_make(CLEW_CFA_ROOT, 0, 0, 0, 0, false));
  if (length < code.size()) append(rows, address + length, kNone);
  return rows;
}

bool begins_with(std::span<const std::byte> code, std::initializer_list<uint8_t> bytes) {
  return code.size() >= bytes.size() &&
         std::equal(bytes.begin(), bytes.end(), code.begin(),
                    [](uint8_t a, std::byte b) { return a == std::to_integer<uint8_t>(b); });
}

std::vector<Row> child_rows(std::span<const std::byte> code, uint64_t address, FunctionFlow& flow) {
  std::vector<Row> rows;
  const clew_rule entry = rule_of(FrameState::entry());
  for (const Row& row : function_rows(code, address, true, {}, nullptr, flow)) {
    if (row.rule != entry) {
      append(rows, row.address, row.rule);
      continue;
    }
    if (row.address == address) append(rows, address, entry);
    append(rows, std::max<uint64_t>(row.address, address + kSystemCallBytes),
           clew_rule_make(CLEW_CFA_CHILD, CLEW_RSP, clew_rule_offset(entry), CLEW_BP_UNCHANGED, 0, false));
  }
  return rows;
}

size_t signal_return_length(std::span<const std::byte> code) {
  if (begins_with(code, {0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05})) return 9;  // mov $15, %rax; syscall
  if (begins_with(code, {0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05})) return 7;              // mov $15, %eax; syscall
  return 0;
}

std::vector<Row> signal_return_rows(std::span<const std::byte> code, uint64_t address) {
  std::vector<Row> rows;
  size_t length = signal_return_length(code);
  if (length > 0)
    append(rows, address, clew_rule_make(CLEW_CFA_SIGFRAME, CLEW_RSP, 0, CLEW_BP_UNCHANGED, 0, false));
  if (length < code.size()) append(rows, address + length, kNone);
  return rows;
}

}  // namespace

Workspace::Workspace() : flow_(std::make_unique<FunctionFlow>()) {}
Workspace::~Workspace() = default;

std::vector<Row> rows(Code kind, std::span<const std::byte> code, uint64_t address,
                      std::span<const uint64_t> called, std::vector<uint64_t>* calls, Workspace* workspace) {
  if (workspace == nullptr) {
    Workspace own;
    return rows(kind, code, address, called, calls, &own);
  }
  switch (kind) {
    case Code::kPlt:
    case Code::kPltSec:
      return plt_rows(code, address);
    case Code::kInit:
    case Code::kFunction:
      return function_rows(code, address, true, called, calls, workspace->flow());
    case Code::kUnnamed:
      return function_rows(code, address, false, called, calls, workspace->flow());
    case Code::kStart:
      return start_rows(code, address);
    case Code::kSignalReturn:
      return signal_return_rows(code, address);
    case Code::kChild:
      return child_rows(code, address, workspace->flow());
  }
  return {};
}

bool is_signal_return(std::span<const std::byte> code) { return signal_return_length(code) != 0; }

bool is_system_call(std::span<const std::byte> code) { return begins_with(code, {0x0f, 0x05}); }

}  // namespace clew::analysis
