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
static void loop(uint32_t limit, long (*frame)(uint32_t, void*), clew_walk* walk);

}  // namespace clew::unwind::remote

#define CLEW_CONTEXT clew::unwind::remote::Context*
#define CLEW_READ_U64(context, address, out) clew::unwind::remote::read_u64(context, address, out)
#define CLEW_FIND(context, pc, code) clew::unwind::remote::find(context, pc, code)
#define CLEW_ANALYSE(context, pc) clew::unwind::remote::analyse(context, pc)
#define CLEW_VOUCH(context, pc) clew::unwind::remote::vouch(context, pc)
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

static void remote::loop(uint32_t limit, long (*frame)(uint32_t, void*), clew_walk* walk) {
  Registers* const of_frame = walk->context->of_frame;
  for (uint32_t i = 0; i < limit; ++i) {
    if (of_frame && i < walk->capacity) {
      std::copy(walk->state.value, walk->state.value + CLEW_REGISTERS, of_frame[i].value.begin());
      of_frame[i].known = known_in_frame(walk->state.known, walk->flags);
    }
    if (frame(i, walk) != 0) break;
  }
}

WalkResult walk(Target& target, const Registers& registers, std::span<clew_frame> out, Registers* of_frame) {
  constexpr uint32_t kNeeded = 1u << CLEW_RIP | 1u << CLEW_RSP;
  if ((registers.known & kNeeded) != kNeeded || out.empty()) return {};
  remote::Context context{target, {}};
  clew_walk walk;
  walk.context = &context;
  std::copy(registers.value.begin(), registers.value.end(), walk.state.value);
  walk.state.known = registers.known & ((1u << CLEW_REGISTERS) - 1);
  walk.frames = out.data();
  walk.capacity = static_cast<uint32_t>(std::min<size_t>(out.size(), UINT32_MAX - 1));
  walk.full = true;
  context.of_frame = of_frame;
  clew_walk_run(&walk);

  WalkResult result{walk.count, static_cast<clew_end>(walk.end), walk.end_detail};
  if (result.end == CLEW_END_UNREADABLE) result.end = target.why_unreadable(result.end_detail);
  return result;
}

}  // namespace clew::unwind
