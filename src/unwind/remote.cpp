// The remote walk: the core of src/core over a Target.
#include "unwind/remote.hpp"

#include "unwind/code_around.hpp"

struct clew_code;
struct clew_walk;

namespace clew::unwind::remote {

struct Context {
  Target& target;
  Code last;  // the mapping found last: neighbouring frames are mostly in the same
  bool has_last = false;
  Registers* of_frame = nullptr;  // null: not wanted
  KnownRules* known = nullptr;    // null: there are none
};

static bool read_u64(Context* context, uint64_t address, uint64_t* out) {
  return context->target.read(address, out, sizeof *out);
}

static bool find_code(Context* context, uint64_t address) {
  if (context->has_last && address >= context->last.start && address < context->last.end) return true;
  context->has_last = context->target.find(address, context->last);
  return context->has_last;
}

static auto code_reader(Context* context) {
  return [context](uint64_t address, void* out, size_t size) {
    return context->target.read_code(address, out, size);
  };
}

/// Whether `pc` is a return address: executable, and a call ends there.
static bool vouch(Context* context, uint64_t pc) {
  return find_code(context, pc) && context->last.executable &&
         follows_call(pc, context->last.start, code_reader(context));
}

/// The rule for code that nothing describes, from the instructions around it.
static clew_rule analyse(Context* context, uint64_t pc) {
  if (!find_code(context, pc)) return 0;
  return rule_around(pc, context->last.start, context->last.end, code_reader(context));
}

static uint32_t find(Context* context, uint64_t pc, clew_code* code);
static clew_rule rule_of(Context* context, const clew_code* code, uint64_t address);
static void loop(uint32_t limit, long (*frame)(uint32_t, void*), clew_walk* walk);

}  // namespace clew::unwind::remote

#define CLEW_CONTEXT clew::unwind::remote::Context*
#define CLEW_READ_U64(context, address, out) clew::unwind::remote::read_u64(context, address, out)
#define CLEW_FIND(context, pc, code) clew::unwind::remote::find(context, pc, code)
#define CLEW_ANALYSE(context, pc) clew::unwind::remote::analyse(context, pc)
#define CLEW_VOUCH(context, pc) clew::unwind::remote::vouch(context, pc)
#define CLEW_RULE(context, code, address) clew::unwind::remote::rule_of(context, code, address)
// Before each frame: its registers are those that the walk stands at.
#define CLEW_LOOP(limit, function, walk) clew::unwind::remote::loop(limit, function, walk)

#include "core/walk.h"

namespace clew::unwind {

static uint32_t remote::find(Context* context, uint64_t pc, clew_code* code) {
  if (!find_code(context, pc)) return CLEW_END_NOT_MAPPED;
  if (!context->last.executable) return CLEW_END_NOT_EXECUTABLE;
  code->table = context->last.table ? context->last.table->header() : nullptr;
  code->bias = context->last.bias;
  return CLEW_CONTINUE;
}

static clew_rule remote::rule_of(Context* context, const clew_code* code, uint64_t address) {
  if (!code->table) return 0;
  const clew_rule rule = clew_table_lookup(context, code->table, address - code->bias);
  if (context->known && clew_rule_simple(rule) && address + 1 < context->last.end)
    context->known->at(address + 1) = {address + 1, rule};
  return rule;
}

/// Steps a frame whose rule is known; false where it is not, or anything is out of the ordinary: the core
/// tells.
static bool step_known(clew_walk& walk) {
  remote::Context& context = *walk.context;
  const uint64_t pc = walk.state.value[CLEW_RIP], sp = walk.state.value[CLEW_RSP];
  const KnownRules::Entry& entry = context.known->at(pc);
  if (entry.pc != pc || (walk.flags & CLEW_FRAME_EXACT_PC) != 0 || walk.count >= walk.capacity) return false;
  const uint32_t base = clew_rule_register(entry.rule), bp = clew_rule_bp(entry.rule);
  if (!clew_known(&walk.state, base)) return false;
  const uint64_t cfa = walk.state.value[base] + static_cast<uint64_t>(int64_t{clew_rule_offset(entry.rule)});
  uint64_t caller = 0, saved = walk.state.value[CLEW_RBP];
  if (cfa <= sp || !context.target.read(cfa - 8, &caller, sizeof caller)) return false;
  if (bp != CLEW_BP_UNCHANGED && !context.target.read(cfa - 8 * uint64_t{bp}, &saved, sizeof saved))
    return false;
  walk.frames[walk.count++] = {pc, sp, walk.how, walk.flags};
  walk.state.value[CLEW_RIP] = caller;
  walk.state.value[CLEW_RSP] = cfa;
  walk.state.value[CLEW_RBP] = saved;
  walk.state.known &= 1u << CLEW_RIP | 1u << CLEW_RSP | 1u << CLEW_RBP;
  if (bp != CLEW_BP_UNCHANGED) walk.state.known |= 1u << CLEW_RBP;
  walk.how = CLEW_HOW_TABLE;
  walk.flags &= CLEW_FRAME_GUESSED;
  return true;
}

static void remote::loop(uint32_t limit, long (*frame)(uint32_t, void*), clew_walk* walk) {
  Registers* const of_frame = walk->context->of_frame;
  for (uint32_t i = 0; i < limit; ++i) {
    if (of_frame && i < walk->capacity) {
      std::copy(walk->state.value, walk->state.value + CLEW_REGISTERS, of_frame[i].value.begin());
      of_frame[i].known = known_in_frame(walk->state.known, walk->flags);
    }
    if (walk->context->known && step_known(*walk)) continue;
    if (frame(i, walk) != 0) break;
  }
}

static WalkResult run(Target& target, const Registers& registers, std::span<clew_frame> out,
                      Registers* of_frame, KnownRules* known) {
  constexpr uint32_t kNeeded = 1u << CLEW_RIP | 1u << CLEW_RSP;
  if ((registers.known & kNeeded) != kNeeded || out.empty()) return {};
  remote::Context context{target, {}};
  clew_walk walk;
  walk.context = &context;
  std::copy(registers.value.begin(), registers.value.end(), walk.state.value);
  walk.state.known = registers.known & ((1u << CLEW_REGISTERS) - 1);
  walk.frames = out.data();
  walk.capacity = static_cast<uint32_t>(std::min<size_t>(out.size(), UINT32_MAX - 1));
  walk.full = known == nullptr;
  context.of_frame = of_frame;
  context.known = known;
  clew_walk_run(&walk);

  WalkResult result{walk.count, static_cast<clew_end>(walk.end), walk.end_detail};
  if (result.end == CLEW_END_UNREADABLE) result.end = target.why_unreadable(result.end_detail);
  return result;
}

WalkResult walk(Target& target, const Registers& registers, std::span<clew_frame> out, Registers* of_frame) {
  return run(target, registers, out, of_frame, nullptr);
}

WalkResult walk(Target& target, const Registers& registers, std::span<clew_frame> out, KnownRules& known) {
  const WalkResult result = run(target, registers, out, nullptr, &known);
  // The registers that were not followed may have been needed, but not where the stack was at its end.
  const bool final =
      result.end == CLEW_END_ROOT || result.end == CLEW_END_DEPTH_LIMIT || result.end == CLEW_END_STACK_CUT;
  return final ? result : run(target, registers, out, nullptr, nullptr);
}

}  // namespace clew::unwind
