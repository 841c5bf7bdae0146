#include <algorithm>

#include "analysis/analysis.hpp"
#include "analysis/frame_state.hpp"
#include "analysis/instruction.hpp"

namespace clew::analysis {
namespace {

constexpr clew_rule kNone = 0;
constexpr int64_t kFarthest = 1 << 28;

// Stack addresses during the look ahead: what rsp or rbp held at the start, plus an offset.
struct Place {
  uint8_t base = kRsp;
  int64_t offset = 0;
  bool operator==(const Place&) const = default;
};

struct Ahead {
  Place rsp;
  bool moved_up = false;       // pops, leave, add rsp: an epilogue
  int64_t pushed = 0;          // bytes of pushes and sub rsp: a prologue
  bool prologue_over = false;  // another instruction came behind those
  bool rbp_pushed = false;     // at rbp_push
  Place rbp_push;
  bool rbp_restored = false;  // from rbp_slot
  Place rbp_slot;
  bool just_restored = false;
  bool by_leave = false;  // leave, or mov rsp, rbp: not just pops, which may also clean up arguments
};

uint32_t slot_number(const Place& cfa, const Place& slot) {
  int64_t distance = cfa.offset - slot.offset;
  return cfa.base == slot.base && distance > 8 && distance % 8 == 0 && distance / 8 < CLEW_BP_IN_SAVES
             ? static_cast<uint32_t>(distance / 8)
             : uint32_t{CLEW_BP_IN_SAVES};
}

clew_rule make_rule(const Place& cfa, uint32_t bp) {
  if (bp == CLEW_BP_IN_SAVES || cfa.offset > kFarthest || cfa.offset < 8) return kNone;
  return clew_rule_make(CLEW_CFA_REG, dwarf_register(cfa.base), static_cast<int32_t>(cfa.offset), bp, 0,
                        false);
}

// The return address is what rsp points at.
clew_rule at_return(const Ahead& ahead) {
  Place cfa = ahead.rsp;
  cfa.offset += 8;
  if (ahead.rbp_restored) return make_rule(cfa, slot_number(cfa, ahead.rbp_slot));
  // rbp is not touched up to the ret, so it is the caller's; but a CFA from it would mean that it is a frame
  // pointer.
  return cfa.base == kRsp ? make_rule(cfa, CLEW_BP_UNCHANGED) : kNone;
}

bool is_mov_rbp_rsp(const Instruction& in) {
  return in.wide() && !in.reg_high() && !in.base_high() &&
         ((in.is(0x89) && in.modrm == 0xe5) || (in.is(0x8b) && in.modrm == 0xec));
}
bool is_mov_rsp_rbp(const Instruction& in) {
  return in.wide() && !in.reg_high() && !in.base_high() &&
         ((in.is(0x89) && in.modrm == 0xec) || (in.is(0x8b) && in.modrm == 0xe5));
}
bool is_adjust(const Instruction& in) {
  return in.wide() && (in.is(0x81) || in.is(0x83)) && in.is_register_form() && in.rm() == kRsp &&
         (in.digit() == 0 || in.digit() == 5);
}

bool ends_in(std::span<const std::byte> bytes, std::initializer_list<uint8_t> tail) {
  return bytes.size() >= tail.size() &&
         std::equal(tail.begin(), tail.end(), bytes.end() - static_cast<std::ptrdiff_t>(tail.size()),
                    [](uint8_t a, std::byte b) { return a == std::to_integer<uint8_t>(b); });
}

void pop_into(Ahead& ahead, uint8_t reg) {
  ahead.moved_up = true;
  if (reg == kRbp) {
    ahead.rbp_restored = ahead.just_restored = true;
    ahead.rbp_slot = ahead.rsp;
  }
  ahead.rsp.offset += 8;
}

enum class Step { kGoOn, kGiveUp, kPrologue };

// Instructions that move rsp or rbp. `next` is the one behind.
Step stack_step(Ahead& ahead, const Instruction& in, const Instruction* next) {
  uint8_t op = in.opcode;
  bool one_byte = in.map == Map::kOneByte && in.encoding == Encoding::kLegacy;
  bool narrow = in.operand16() && !in.wide();
  if (one_byte && op >= 0x50 && op < 0x58) {
    if (ahead.moved_up || narrow) return Step::kGiveUp;
    if (in.opcode_register() == kRbp) {
      if (ahead.pushed != 0) return Step::kGiveUp;
      ahead.rbp_pushed = true;
      if (next && is_mov_rbp_rsp(*next)) return Step::kPrologue;
    }
    ahead.rsp.offset -= 8;
    ahead.pushed += 8;
    if (in.opcode_register() == kRbp) ahead.rbp_push = ahead.rsp;
    return Step::kGoOn;
  }
  if (one_byte && op >= 0x58 && op < 0x60) {
    // Popping rsp, or rbp twice, is no epilogue.
    if (narrow || ahead.pushed || in.opcode_register() == kRsp || ahead.rbp_restored) return Step::kGiveUp;
    pop_into(ahead, in.opcode_register());
    return Step::kGoOn;
  }
  if (is_adjust(in)) {
    int64_t by = in.digit() == 0 ? in.immediate : -in.immediate;
    if (by < 0 ? ahead.moved_up : ahead.pushed != 0) return Step::kGiveUp;
    ahead.rsp.offset += by;
    if (by > 0) ahead.moved_up = true;
    if (by < 0) ahead.pushed -= by;
    return Step::kGoOn;
  }
  if (in.is(0x8d) && in.wide() && in.is_memory_form() && (in.reg() == kRsp || in.reg() == kRbp)) {
    Memory memory = in.memory();
    if (memory.index != kNoRegister || !memory.plain) return Step::kGiveUp;
    if (in.reg() == kRbp) return Step::kGiveUp;  // a prologue's is dealt with by the caller
    if (ahead.pushed || ahead.rbp_restored) return Step::kGiveUp;
    if (memory.base == kRsp && memory.displacement > 0) {
      ahead.rsp.offset += memory.displacement;
    } else if (memory.base == kRbp) {
      ahead.rsp = {kRbp, memory.displacement};
    } else {
      return Step::kGiveUp;
    }
    ahead.moved_up = true;
    return Step::kGoOn;
  }
  if (in.is(0xc9) || is_mov_rsp_rbp(in)) {
    if (ahead.pushed || ahead.rbp_restored) return Step::kGiveUp;
    ahead.rsp = {kRbp, 0};
    ahead.moved_up = true;
    ahead.by_leave = true;
    if (in.is(0xc9)) pop_into(ahead, kRbp);
    return Step::kGoOn;
  }
  return Step::kGiveUp;
}

// Whether `before` ends in push rbp, other pushes, and perhaps sub rsp, which together put the caller's rbp
// at rsp + `distance`. Matched byte for byte: code cannot be decoded backwards, but this much of it is no
// accident.
bool ends_in_prologue(std::span<const std::byte> before, int64_t distance) {
  auto byte = [&](size_t back) {
    return back <= before.size() ? std::to_integer<unsigned>(before[before.size() - back]) : 0x100u;
  };
  int64_t size = 0;
  if (byte(4) == 0x48 && byte(3) == 0x83 && byte(2) == 0xec && byte(1) < 0x80) {
    size = byte(1);
    before = before.first(before.size() - 4);
  } else if (byte(7) == 0x48 && byte(6) == 0x81 && byte(5) == 0xec && byte(1) < 0x80) {
    size = byte(4) | byte(3) << 8 | byte(2) << 16 | byte(1) << 24;
    before = before.first(before.size() - 7);
  }
  for (; size < distance; size += 8) {
    if (byte(1) < 0x50 || byte(1) > 0x57 || byte(1) == 0x54) return false;
    before = before.first(before.size() - (byte(2) == 0x41 ? 2 : 1));
  }
  return size == distance && byte(1) == 0x55 && byte(2) != 0x41;
}

// lea rbp, [rsp + n] behind nothing but pushes and sub rsp: rbp then points at where the caller's rbp was
// pushed.
clew_rule at_lea_rbp(const Ahead& ahead, const Instruction& in, std::span<const std::byte> before) {
  Memory memory = in.memory();
  if (ahead.moved_up || ahead.prologue_over || memory.base != kRsp || memory.index != kNoRegister ||
      !memory.plain)
    return kNone;
  Place slot{kRsp, ahead.rsp.offset + memory.displacement};
  if (ahead.rbp_pushed)  // ahead of us: we are at the entry
    return slot == ahead.rbp_push ? make_rule({kRsp, 8}, CLEW_BP_UNCHANGED) : kNone;
  return ends_in_prologue(before, slot.offset) ? make_rule({kRsp, slot.offset + 16}, 2) : kNone;
}

}  // namespace

clew_rule rule_at(std::span<const std::byte> code, size_t offset) {
  if (offset >= code.size()) return kNone;
  std::span<const std::byte> before = code.first(offset);
  Instruction in;
  if (!decode(code.subspan(offset), in)) return kNone;
  if (is_mov_rbp_rsp(in)) return ends_in(before, {0x55}) ? make_rule({kRsp, 16}, 2) : kNone;

  // Padding behind a call: the call does not return, and what follows is another function's, or another
  // block's.
  if (is_padding(in) && call_precedes(before.last(std::min<size_t>(before.size(), 16)))) return kNone;

  constexpr uint16_t kFrame = 1u << kRsp | 1u << kRbp;
  Ahead ahead;
  size_t at = offset;
  for (unsigned count = 0; count < kRuleAtInstructions; ++count) {
    at += in.length;
    Instruction next;
    bool has_next = at <= code.size() && decode(code.subspan(at), next);
    int64_t target = 0;
    Flow flow = flow_of(in, target);
    switch (flow) {
      case Flow::kReturn:
        return in.is(0xc3) || in.is(0xc2) ? (ahead.pushed ? kNone : at_return(ahead)) : kNone;
      case Flow::kJump:
      case Flow::kJumpIndirect:
        return ahead.just_restored && ahead.by_leave ? at_return(ahead) : kNone;
      case Flow::kCall:
      case Flow::kCallIndirect:
      case Flow::kStop:
        return kNone;
      case Flow::kBranch:
        ahead.just_restored = false;
        break;
      case Flow::kNext: {
        if (in.is(0x8d) && in.wide() && in.is_memory_form() && in.reg() == kRbp)
          return at_lea_rbp(ahead, in, before);
        ahead.just_restored = false;
        if (written_registers(in) & kFrame) {
          switch (stack_step(ahead, in, has_next ? &next : nullptr)) {
            case Step::kGoOn:
              break;
            case Step::kGiveUp:
              return kNone;
            case Step::kPrologue:
              return ahead.moved_up ? kNone : make_rule({kRsp, 8}, CLEW_BP_UNCHANGED);
          }
        } else if (in.is_memory_form() && (in.is(0x89) || in.is(0xc7)) && in.memory().base == kRsp &&
                   in.memory().displacement == 0) {
          return kNone;  // may overwrite the return address (retpolines do)
        } else if (ahead.pushed != 0 && !(in.encoding == Encoding::kVex && in.opcode == 0x77)) {
          ahead.prologue_over = true;  // all but vzeroupper
        }
        break;
      }
    }
    if (!has_next) return kNone;
    in = next;
  }
  return kNone;
}

}  // namespace clew::analysis
