// The local walk: frames whose rule is in the cache are stepped in a short loop; all others by the core,
// which finds the module and its table (or .eh_frame in place) and fills the cache.
#include "unwind/local/walk.hpp"

#include <sys/auxv.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>

#include "analysis/analysis.hpp"
#include "unwind/code_around.hpp"
#include "unwind/local/modules.hpp"
#include "unwind/local/rule_cache.hpp"
#include "unwind/local/thread_memory.hpp"

struct clew_code;
struct clew_one_rule;

namespace clew::unwind::local {

static RuleCache rule_cache;
// A process's first walk may be its only one, of a crash reporter: it leaves the cache alone, whose pages are
// not there yet: the rest takes 130 us with libLLVM, faults of the cache another 65 (bench_first).
static std::atomic<bool> has_walked{false};

/// What one walk knows while it runs.
struct Context {
  StackMemory stack;
  Module module;  // found last: neighbouring frames are mostly in the same
  bool has_module = false;
  Module before;  // that before it, to which a walk often comes back
  bool has_before = false;
  clew_one_rule* one;  // a rule read in place
  bool fills_cache = true;
  bool few_registers = false;  // rip, rsp and rbp are all that is followed

  bool find(uintptr_t pc) {
    if (has_module && module.covers(pc)) return true;
    std::swap(module, before);
    std::swap(has_module, has_before);
    if (!has_module || !module.covers(pc)) has_module = find_module(pc, module) || find_mapped(pc, module);
    return has_module;
  }
};

static uint32_t find_code(Context* context, uint64_t pc, clew_code* code);
static clew_rule rule_of(Context* context, clew_code* code, uint64_t address);
static clew_rule analyse(Context* context, uint64_t pc);
static bool vouch(Context* context, uint64_t pc);

}  // namespace clew::unwind::local

#define CLEW_CONTEXT clew::unwind::local::Context*
#define CLEW_READ_U64(context, address, out) (context)->stack.read(address, out)
#define CLEW_READ_CODE(context, address, out, size) \
  clew::unwind::local::read_module((context)->module, address, out, size)
#define CLEW_FIND(context, pc, code) clew::unwind::local::find_code(context, pc, code)
#define CLEW_RULE(context, code, address) clew::unwind::local::rule_of(context, code, address)
#define CLEW_ANALYSE(context, pc) clew::unwind::local::analyse(context, pc)
#define CLEW_VOUCH(context, pc) clew::unwind::local::vouch(context, pc)

#include "core/eh_frame.h"
#include "core/walk.h"

namespace clew::unwind::local {

static uint32_t find_code(Context* context, uint64_t pc, clew_code* code) {
  if (!context->find(pc)) return CLEW_END_NOT_MAPPED;
  if (!context->module.text_at(pc)) return CLEW_END_NOT_EXECUTABLE;
  code->table = context->module.table;
  code->bias = context->module.bias;
  return CLEW_CONTINUE;
}

/// Whether `pc`, in code whose CFI is that of a function's entry, is in makecontext's trampoline.
static bool in_start_context(const Module& module, uint64_t pc) {
  constexpr size_t kBehind = analysis::kStartContextMost - 1;
  std::byte code[kBehind + analysis::kStartContextBytes];
  const Module::Range* text = module.text_at(pc);
  if (!text) return false;
  const uint64_t start = pc - std::min<uint64_t>(kBehind, pc - text->start);
  const auto size = static_cast<size_t>(std::min(pc + analysis::kStartContextBytes, text->end) - start);
  if (!read_module(module, start, code, size)) return false;
  for (size_t at = 0; start + at <= pc; ++at)
    if (analysis::is_start_context({code + at, size - at})) return true;
  return false;
}

static clew_rule rule_of(Context* context, clew_code* code, uint64_t address) {
  const clew_rule kEntry = clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, CLEW_BP_UNCHANGED, 0, false);
  const clew_rule kRoot = clew_rule_make(CLEW_CFA_ROOT, 0, 0, CLEW_BP_UNCHANGED, 0, false);
  const Module& module = context->module;
  const bool keyed = !module.permanent && module.has_build_id && context->fills_cache;
  clew_rule rule = 0;
  if (keyed && context->few_registers) rule = rule_cache.rule(module.key_of(address + 1));
  if (rule != 0) return rule;
  if (code->table) {
    rule = clew_table_lookup(context, code->table, address - code->bias);
  } else if (module.eh_frame_hdr != 0) {
    rule = clew_eh_frame_rule(context, module.eh_frame_hdr, address, context->one);
    // What is returned into without a call, a signal trampoline or the outermost frame of a coroutine, is so
    // at its first instruction: the byte before it may be nobody's.
    if (rule == 0) {
      rule = clew_eh_frame_rule(context, module.eh_frame_hdr, address + 1, context->one);
      const bool trampoline = clew_rule_saves(rule) != 0 && (context->one->saves[1] & CLEW_SAVES_SIGNAL) != 0;
      if (!trampoline && rule != kEntry && clew_rule_kind(rule) != CLEW_CFA_ROOT) rule = 0;
      if (rule == kEntry && !in_start_context(module, address + 1)) rule = 0;
    }
    if (rule == kEntry && in_start_context(module, address + 1)) rule = kRoot;
    code->table = &context->one->header;
  }
  if (rule != 0 && module.permanent && context->fills_cache) rule_cache.insert(address + 1, rule);
  // What was read in place may be another module's by now.
  if (rule != 0 && keyed && (module.table || is_still(module)))
    rule_cache.insert(module.key_of(address + 1), rule);
  return rule;
}

static auto code_reader(const Module& module) {
  return
      [&module](uint64_t address, void* out, size_t size) { return read_module(module, address, out, size); };
}

/// Whether `pc` is where crti.o's _init, which begins a library's code, has not moved the stack pointer yet:
/// the first access to its page is where dlopen is interrupted most. Its call hides its end from the
/// analysis.
static bool at_init(const Module& module, const Module::Range& text, uint64_t pc) {
  constexpr std::array<uint8_t, 8> kInit = {0xf3, 0x0f, 0x1e, 0xfa,
                                            0x48, 0x83, 0xec, 0x08};  // endbr64; sub $8, %rsp
  std::array<uint8_t, 8> code;
  if (pc - text.start > 4 || text.end - text.start < code.size() ||
      !read_module(module, text.start, code.data(), code.size()))
    return false;
  for (const size_t skipped : {size_t{0}, size_t{4}})
    if (pc - text.start <= 4 - skipped &&
        std::memcmp(code.data(), kInit.data() + skipped, kInit.size() - skipped) == 0)
      return true;
  return false;
}

static clew_rule analyse(Context* context, uint64_t pc) {
  const Module& module = context->module;
  const Module::Range* text = module.text_at(pc);
  if (!text) return 0;
  const clew_rule rule = rule_around(pc, text->start, text->end, code_reader(module));
  if (rule != 0 || !at_init(module, *text, pc)) return rule;
  return clew_rule_make(CLEW_CFA_REG, CLEW_RSP, 8, CLEW_BP_UNCHANGED, 0, false);
}

static bool vouch(Context* context, uint64_t pc) {
  if (!context->find(pc)) return false;
  const Module::Range* text = context->module.text_at(pc);
  return text && follows_call(pc, text->start, code_reader(context->module));
}

namespace {

struct Addresses {
  uintptr_t* out;
  void put(size_t at, uintptr_t pc, uintptr_t, uint32_t, uint32_t) const { out[at] = pc; }
  uintptr_t pc(size_t at) const { return out[at]; }
};

struct Frames {
  clew_frame* out;
  void put(size_t at, uintptr_t pc, uintptr_t sp, uint32_t how, uint32_t flags) const {
    out[at] = {pc, sp, how, flags};
  }
  uintptr_t pc(size_t at) const { return out[at].pc; }
};

/// The new trace: the recorded frames, then those of the old one from `joined` on (old.count: none).
template <class Sink>
void remember(ThreadMemory& memory, uint32_t joined, const Sink& sink) {
  const Record& record = memory.record;
  RememberedTrace& old = memory.trace;
  const size_t kept = joined < old.count ? joined + 1 : 0;
  const size_t count = kept + record.count;
  // Only what lies on the thread's own stack can be read again at any time.
  bool lasting = record.whole && count <= RememberedTrace::kFrames;
  if (record.count != 0)
    lasting &= memory.stack.holds(record.slot[0]) && memory.stack.holds(record.slot[record.count - 1]);
  for (size_t i = 0; i < record.reads_count; ++i) lasting &= memory.stack.holds(record.reads[i].address);
  if (!lasting) {
    old.count = 0;
    return;
  }
  uint32_t reads = 0;
  while (reads < old.reads_count && kept != 0 && old.reads[reads].frame <= joined) ++reads;
  if (reads + record.reads_count > RememberedTrace::kReads) {
    old.count = 0;
    return;
  }
  for (size_t i = record.reads_count; i-- > 0;) {
    old.reads[reads] = record.reads[i];
    old.reads[reads++].frame = static_cast<uint32_t>(count - 1 - record.reads[i].frame);
  }
  old.reads_count = reads;
  for (size_t i = 0; i < record.count; ++i) {
    const size_t at = count - 1 - i;
    old.pc[at] = sink.pc(record.first + i);
    old.slot[at] = record.slot[i];
    old.rbp_slot[at] = record.rbp_slot[i];
    old.place[RememberedTrace::place_of(record.slot[i] + 8)] = static_cast<uint8_t>(at);
  }
  old.count = static_cast<uint32_t>(count);
}

/// Runs the core over `out` with every register followed, as far as it gets.
template <class Sink>
WalkResult walk_slowly(Context& context, const Start& start, const Sink& sink, size_t capacity) {
  context.few_registers = false;
  clew_frame frame;
  clew_walk walk{};
  walk.context = &context;
  std::copy(start.registers.value.begin(), start.registers.value.end(), walk.state.value);
  walk.state.known = start.registers.known;
  walk.frames = &frame;
  walk.capacity = 1;
  walk.full = true;
  walk.how = CLEW_HOW_REGISTERS;
  walk.flags = start.exact ? uint32_t{CLEW_FRAME_EXACT_PC} : 0u;
  size_t count = 0;
  for (;;) {
    walk.count = 0;
    walk.capacity = count < capacity ? 1 : 0;
    const bool over = clew_walk_frame(0, &walk) != 0;
    if (walk.count == 1) sink.put(count++, frame.pc, frame.sp, frame.how, frame.flags);
    if (over) break;
  }
  return {count, static_cast<clew_end>(walk.end), walk.end_detail};
}

/// Where a walk stands: a frame that is not yet written.
struct Position {
  uintptr_t pc;
  uintptr_t sp;
  uint64_t rbp;
  bool rbp_known;
  uintptr_t rbp_slot;  // where the frame's rbp is saved; 0: it is `rbp`
  uint32_t how;
  uint32_t flags;
  size_t count;  // frames written
};

enum class Stop { kRoot, kAsk };

/// Steps from caller to caller as long as their rules are in the cache and their stack is known: the loop
/// whose length is the cost of a walk. With kTraced it also records what it reads, and ends where the
/// thread's last trace goes on the same. kAsk: the core has to step from here. Position::pc is a return
/// address.
template <bool kTraced, class Sink>
[[gnu::noinline]] Stop step_cached(const Interval& known, Position& at, const Sink& sink, size_t capacity,
                                   ThreadMemory* memory) {
  uintptr_t pc = at.pc, sp = at.sp, rbp_slot = at.rbp_slot;
  size_t count = at.count;
  uint32_t how = at.how;
  const uint32_t flags = at.flags;
  const uintptr_t low = known.low,
                  last = known.high - 8 - known.low;  // a word's address, less low, is at most `last`
  Stop stop = Stop::kAsk;
  if (known.high == 0) return stop;
  uintptr_t place = pc & 0xffff;
  while (count < capacity) {
    uintptr_t hint = rule_cache.hint(place);
    uint64_t word = rule_cache.word(place);
    if (!RuleCache::match(word, pc, hint) && !rule_cache.find_second(pc, hint, word)) [[unlikely]]
      break;
    if constexpr (kTraced) {
      RememberedTrace& trace = memory->trace;
      const uint32_t joined = trace.find(pc, sp, rbp_slot);
      if (joined < trace.count && joined < capacity - count && trace.holds(joined)) {
        for (uint32_t i = joined + 1; i-- > 0; how = CLEW_HOW_TABLE)
          sink.put(count++, trace.pc[i], trace.slot[i] + 8, how, flags);
        if (joined >= memory->record.count) memory->useless = 0;  // it saved half of the steps
        if (memory->record.count != 0) remember(*memory, joined, sink);
        stop = Stop::kRoot;
        break;
      }
      memory->record.add(count, sp, rbp_slot);
    }
    // The next frame waits for one load: its address is made of sp and hint, not of the CFA, which is made
    // beside.
    uintptr_t base = sp;
    asm("" : "+r"(base));
    uintptr_t cfa = sp + hint - RuleCache::kCommon;
    if (!RuleCache::is_common(hint)) [[unlikely]] {
      if (RuleCache::is_root(hint)) {
        sink.put(count++, pc, sp, how, flags);
        if constexpr (kTraced) remember(*memory, memory->trace.count, sink);
        stop = Stop::kRoot;
        break;
      }
      if (!RuleCache::by_rbp(hint)) break;  // an empty place
      if (rbp_slot != 0) {
        if (rbp_slot - low > last) break;
        at.rbp = load(rbp_slot);
        if constexpr (kTraced) memory->record.add_read(rbp_slot, at.rbp);
      } else if (!at.rbp_known) {
        break;
      } else if constexpr (kTraced) {
        memory->record.restart();  // what depends on a register is not remembered: from the next frame on
      }
      cfa = at.rbp + RuleCache::offset(hint);
      if (cfa <= sp) break;
      base = cfa - (hint - RuleCache::kCommon);
    }
    if (cfa - 8 - low > last) break;
    sink.put(count++, pc, sp, how, flags);
    how = CLEW_HOW_TABLE;
    place = load_quarter(base + hint - RuleCache::kCommon - 8);
    pc = load(cfa - 8);
    // Which functions save rbp cannot be predicted: a choice, not a branch.
    const uintptr_t below = RuleCache::rbp_offset(word);
    rbp_slot = __builtin_expect_with_probability(below != 0, 1, 0.5) ? cfa - below : rbp_slot;
    sp = cfa;
  }
  at.pc = pc;
  at.sp = sp;
  at.rbp_slot = rbp_slot;
  at.count = count;
  at.how = how;
  return stop;
}

/// As step_cached, from any position: an exact rip is looked up as if a call stood before the next byte.
template <class Sink>
Stop step_cached_from(const Interval& known, Position& at, const Sink& sink, size_t capacity,
                      ThreadMemory* memory, bool traced) {
  const Position start = at;
  const uint32_t exact = start.flags & CLEW_FRAME_EXACT_PC;
  if (exact != 0) {
    ++at.pc;
    at.flags &= ~exact;
  }
  const Stop stop = traced ? step_cached<true>(known, at, sink, capacity, memory)
                           : step_cached<false>(known, at, sink, capacity, memory);
  if (exact != 0 && at.count == start.count) {
    --at.pc;
    at.flags |= exact;
  } else if (exact != 0) {
    sink.put(start.count, start.pc, start.sp, start.how, start.flags);
  }
  return stop;
}

/// Likewise within the module that the walk has found last, where that may be unloaded. The thread's last
/// trace holds no such frames.
template <class Sink>
Stop step_keyed(const Context& context, Position& at, const Sink& sink, size_t capacity) {
  const Module& module = context.module;
  const Interval& known = context.stack.known();
  if (module.permanent || !module.has_build_id || (at.flags & CLEW_FRAME_EXACT_PC) != 0) return Stop::kAsk;
  while (at.count < capacity && module.covers(at.pc)) {
    const clew_rule rule = rule_cache.rule(module.key_of(at.pc));
    const bool root = clew_rule_kind(rule) == CLEW_CFA_ROOT;
    uintptr_t cfa = at.sp;
    if (!root) {
      if (rule == 0) break;
      if (clew_rule_register(rule) == CLEW_RBP) {
        if (at.rbp_slot != 0 && !known.holds(at.rbp_slot)) break;
        if (at.rbp_slot != 0) at.rbp = load(at.rbp_slot);
        if (at.rbp_slot == 0 && !at.rbp_known) break;
        cfa = at.rbp;
      }
      cfa += static_cast<uintptr_t>(clew_rule_offset(rule));
      if (cfa <= at.sp || !known.holds(cfa - 8)) break;
    }
    sink.put(at.count++, at.pc, at.sp, at.how, at.flags);
    if (root) return Stop::kRoot;
    at.how = CLEW_HOW_TABLE;
    at.pc = load(cfa - 8);
    if (clew_rule_bp(rule) != CLEW_BP_UNCHANGED) at.rbp_slot = cfa - 8 * uintptr_t{clew_rule_bp(rule)};
    at.sp = cfa;
  }
  return Stop::kAsk;
}

/// Goes on from where the cache did not know further.
template <class Sink>
[[gnu::noinline]] WalkResult walk_on(Context& context, const Start& start, Position at, const Sink& sink,
                                     size_t capacity, ThreadMemory* memory, bool traced) {
  uint32_t switches = 0;
  context.few_registers = true;
  for (;;) {
    // One step by the core.
    clew_frame frame;
    clew_walk step;
    step.context = &context;
    step.state.value[CLEW_RIP] = at.pc;
    step.state.value[CLEW_RSP] = at.sp;
    step.state.known = 1u << CLEW_RIP | 1u << CLEW_RSP;
    if (at.rbp_slot != 0) at.rbp_known = context.stack.read(at.rbp_slot, &at.rbp);
    at.rbp_slot = 0;
    step.state.value[CLEW_RBP] = at.rbp;
    if (at.rbp_known) step.state.known |= 1u << CLEW_RBP;
    step.frames = &frame;
    step.capacity = at.count < capacity ? 1 : 0;
    step.count = 0;
    step.full = false;
    step.how = at.how;
    step.flags = at.flags;
    step.switches = switches;
    const bool over = clew_walk_frame(0, &step) != 0;
    if (step.count == 1) sink.put(at.count++, frame.pc, frame.sp, frame.how, frame.flags);
    if (over) {
      // What this loop does not follow are the registers but rbp: where the walk ends early, they may have
      // been needed.
      const bool final = step.end == CLEW_END_ROOT || step.end == CLEW_END_DEPTH_LIMIT;
      if (traced) memory->trace.count = 0;
      if (!final) return walk_slowly(context, start, sink, capacity);
      return {at.count, static_cast<clew_end>(step.end), step.end_detail};
    }
    at.pc = step.state.value[CLEW_RIP];
    at.sp = step.state.value[CLEW_RSP];
    at.rbp = step.state.value[CLEW_RBP];
    at.rbp_known = clew_known(&step.state, CLEW_RBP);
    at.how = step.how;
    at.flags = step.flags;
    switches = step.switches;
    if (!context.fills_cache) continue;
    if (step_keyed(context, at, sink, capacity) == Stop::kRoot) return {at.count, CLEW_END_ROOT, 0};
    if (traced) memory->record.restart();
    if (step_cached_from(context.stack.known(), at, sink, capacity, memory, traced) == Stop::kRoot)
      return {at.count, CLEW_END_ROOT, 0};
  }
}

/// Whether all between what a walk read and the end of the thread's own stack can be read: then that stack
/// stays so as long as the thread lives. Its end is the thread's control block, or what the kernel put on the
/// first thread's stack.
bool is_own_stack(StackMemory& stack) {
  // The first thread's control block is not on its stack: next to it may lie any other memory, a coroutine's
  // stack too, that goes away before the thread does.
  const bool first = system_call(SYS_getpid, 0, 0, 0, 0) == system_call(SYS_gettid, 0, 0, 0, 0);
  const uintptr_t end = first ? getauxval(AT_RANDOM) : thread_pointer();
  constexpr uintptr_t kFarthest = 1 << 20;
  const uintptr_t high = stack.known().high;
  if (end - stack.known().low < high - stack.known().low) return true;
  if (end < high || end - high > kFarthest) return false;
  while (stack.known().high <= end)
    if (!stack.extend(stack.known().high)) return false;
  return true;
}

/// A walk from the registers that `start()` gives; rip, rsp and rbp are `at`. `here`: it begins where the
/// walker itself runs, so that its stack from rsp on is there.
template <class MakeStart, class Sink>
WalkResult run(const Position& at, const MakeStart& start, const Sink& sink, size_t capacity, bool here) {
  ThreadMemory* memory = ThreadMemory::acquire();
  if (memory && !here) memory->check_owner();
  // A trace that has not helped for long is tried seldom: recording it costs more than it saves.
  constexpr uint32_t kUseless = 8, kSeldom = 32;
  bool traced = false;
  Position position = at;
  if (memory) {
    const Interval own = memory->stack;
    if (own.holds(at.sp)) {
      traced = memory->useless < kUseless || memory->useless % kSeldom == 0;
      ++memory->useless;
      memory->record.restart();
      if (step_cached_from({at.sp & ~(kPage - 1), own.high}, position, sink, capacity, memory, traced) ==
          Stop::kRoot) {
        memory->release();
        return {position.count, CLEW_END_ROOT, 0};
      }
    }
  }
  if (memory && here) memory->check_owner();  // from here on it may leave the stack that the walker is on
  const bool first = !has_walked.load(std::memory_order_relaxed);
  if (first) has_walked.store(true, std::memory_order_relaxed);
  clew_one_rule one;
  Context context{
      StackMemory(memory ? memory->stack : Interval{}, at.sp), {}, false, {}, false, &one, !first};
  const WalkResult result = walk_on(context, start(), position, sink, capacity, memory, traced);
  if (memory) {
    const Interval& known = context.stack.known();
    if (memory->stack.high == 0) {
      if (known.high != 0 && is_own_stack(context.stack)) memory->stack = known;
    } else if (known.high == memory->stack.high && known.low < memory->stack.low) {
      memory->stack.low = known.low;  // deeper than before
    }
    memory->release();
  }
  return result;
}

}  // namespace

Start Saved::start() const {
  Start start;
  start.exact = false;
  constexpr uint32_t kOrder[] = {CLEW_R15, CLEW_R14, CLEW_R13, CLEW_R12, CLEW_RBX, CLEW_RBP, CLEW_RIP};
  static_assert(std::size(kOrder) == std::size(decltype(words){}));
  for (size_t i = 0; i < std::size(kOrder); ++i) {
    start.registers.value[kOrder[i]] = words[i];
    start.registers.known |= 1u << kOrder[i];
  }
  start.registers.value[CLEW_RSP] = reinterpret_cast<uintptr_t>(this + 1);
  start.registers.known |= 1u << CLEW_RSP;
  return start;
}

WalkResult walk_addresses(const Saved& saved, uintptr_t* out, size_t capacity) {
  const Position at{saved.words[6],
                    reinterpret_cast<uintptr_t>(&saved + 1),
                    saved.words[5],
                    true,
                    0,
                    CLEW_HOW_REGISTERS,
                    0,
                    0};
  return run(at, [&] { return saved.start(); }, Addresses{out}, capacity, true);
}

WalkResult walk_frames(const Start& start, clew_frame* out, size_t capacity) {
  constexpr uint32_t kNeeded = 1u << CLEW_RIP | 1u << CLEW_RSP;
  const Registers& registers = start.registers;
  if ((registers.known & kNeeded) != kNeeded) return {};
  const Position at{registers.value[CLEW_RIP],
                    registers.value[CLEW_RSP],
                    registers.value[CLEW_RBP],
                    (registers.known >> CLEW_RBP & 1) != 0,
                    0,
                    CLEW_HOW_REGISTERS,
                    start.exact ? uint32_t{CLEW_FRAME_EXACT_PC} : 0u,
                    0};
  return run(at, [from = &start]() -> const Start& { return *from; }, Frames{out}, capacity, !start.exact);
}

Cursor::Cursor(const Start& start) : next_(start.registers) {
  how_ = CLEW_HOW_REGISTERS;
  flags_ = start.exact ? uint32_t{CLEW_FRAME_EXACT_PC} : 0u;
}

bool Cursor::next(clew_frame& out) {
  constexpr uint32_t kNeeded = 1u << CLEW_RIP | 1u << CLEW_RSP;
  if (over_ || (next_.known & kNeeded) != kNeeded) return false;
  clew_one_rule one;
  Context context{StackMemory(Interval{}, next_.value[CLEW_RSP]), {}, false, {}, false, &one};
  clew_walk step{};
  step.context = &context;
  std::copy(next_.value.begin(), next_.value.end(), step.state.value);
  step.state.known = next_.known;
  step.frames = &out;
  step.capacity = 1;
  step.full = true;
  step.how = how_;
  step.flags = flags_;
  step.switches = switches_;
  frame_ = next_;
  frame_.known = known_in_frame(next_.known, flags_);
  over_ = clew_walk_frame(0, &step) != 0;
  if (over_) end_ = static_cast<clew_end>(step.end);
  std::copy(step.state.value, step.state.value + CLEW_REGISTERS, next_.value.begin());
  next_.known = step.state.known;
  how_ = step.how;
  flags_ = step.flags;
  switches_ = step.switches;
  return step.count == 1;
}

}  // namespace clew::unwind::local
