// The remote walk: the core of src/core over a Target.
#include "unwind/remote.hpp"

#include "analysis/analysis.hpp"

struct clew_code;

namespace clew::unwind::remote {

struct Context {
  Target& target;
  Code last;  // the mapping found last: neighbouring frames are mostly in the same
  bool has_last = false;
};

static bool read_u64(Context* context, uint64_t address, uint64_t* out) {
  return context->target.read(address, out, sizeof *out);
}

static bool find_code(Context* context, uint64_t address) {
  if (context->has_last && address >= context->last.start && address < context->last.end) return true;
  context->has_last = context->target.find(address, context->last);
  return context->has_last;
}

/// Whether `pc` is a return address: executable, and a call ends there.
static bool vouch(Context* context, uint64_t pc) {
  if (!find_code(context, pc) || !context->last.executable) return false;
  std::byte before[16];
  // The call may begin at the mapping's start: read what there is.
  size_t size = sizeof before;
  if (pc < context->last.start + size) size = static_cast<size_t>(pc - context->last.start);
  if (size == 0 || !context->target.read_code(pc - size, before, size)) return false;
  return analysis::call_precedes({before, size});
}

/// The rule for code that nothing describes, from the instructions around it.
static clew_rule analyse(Context* context, uint64_t pc) {
  if (!find_code(context, pc)) return 0;
  constexpr size_t kBehind = 64, kAhead = 192;
  std::byte code[kBehind + kAhead];
  const uint64_t start = pc - std::min<uint64_t>(kBehind, pc - context->last.start);
  const uint64_t end = pc + std::min<uint64_t>(kAhead, context->last.end - pc);
  const auto size = static_cast<size_t>(end - start);
  if (!context->target.read_code(start, code, size)) return 0;
  const std::span bytes(code, size);
  const auto offset = static_cast<size_t>(pc - start);
  if (analysis::is_signal_return(bytes.subspan(offset))) {
    return clew_rule_make(CLEW_CFA_SIGFRAME, CLEW_RSP, 0, CLEW_BP_UNCHANGED, 0, false);
  }
  return analysis::rule_at(bytes, offset);
}

static uint32_t find(Context* context, uint64_t pc, clew_code* code);

}  // namespace clew::unwind::remote

#define CLEW_CONTEXT clew::unwind::remote::Context*
#define CLEW_READ_U64(context, address, out) clew::unwind::remote::read_u64(context, address, out)
#define CLEW_FIND(context, pc, code) clew::unwind::remote::find(context, pc, code)
#define CLEW_ANALYSE(context, pc) clew::unwind::remote::analyse(context, pc)
#define CLEW_VOUCH(context, pc) clew::unwind::remote::vouch(context, pc)

#include "core/walk.h"

namespace clew::unwind {

static uint32_t remote::find(Context* context, uint64_t pc, clew_code* code) {
  if (!find_code(context, pc)) return CLEW_END_NOT_MAPPED;
  if (!context->last.executable) return CLEW_END_NOT_EXECUTABLE;
  code->table = context->last.table ? context->last.table->header() : nullptr;
  code->bias = context->last.bias;
  return CLEW_CONTINUE;
}

WalkResult walk(Target& target, const Registers& registers, std::span<clew_frame> out) {
  constexpr uint32_t kNeeded = 1u << CLEW_RIP | 1u << CLEW_RSP;
  if ((registers.known & kNeeded) != kNeeded || out.empty()) return {};
  remote::Context context{target, {}};
  clew_walk walk;
  walk.context = &context;
  std::copy(registers.value.begin(), registers.value.end(), walk.state.value);
  walk.state.known = registers.known;
  walk.frames = out.data();
  walk.capacity = static_cast<uint32_t>(std::min<size_t>(out.size(), UINT32_MAX - 1));
  walk.full = true;
  clew_walk_run(&walk);

  WalkResult result{walk.count, static_cast<clew_end>(walk.end), walk.end_detail};
  if (result.end == CLEW_END_UNREADABLE) result.end = target.why_unreadable(result.end_detail);
  return result;
}

}  // namespace clew::unwind
