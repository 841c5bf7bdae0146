// Unwinding from registers and a memory reader: a live process, a copied piece of stack, a core file.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "clew/frame.h"
#include "core/rule.h"
#include "table/table.hpp"

namespace clew::unwind {

/// Register values in DWARF order (core/rule.h); bit r of `known` says whether value[r] holds.
struct Registers {
  std::array<uint64_t, CLEW_REGISTERS> value{};
  uint32_t known = 0;
};

/// Of the registers that a walk follows, those that a frame with `flags` (enum clew_frame_flags) has for
/// sure: after a call only what the psABI makes callees keep, since tables do not say what they change.
constexpr uint32_t known_in_frame(uint32_t known, uint32_t flags) {
  constexpr uint32_t kKept = 1u << CLEW_RBX | 1u << CLEW_RBP | 1u << CLEW_RSP | 1u << CLEW_R12 |
                             1u << CLEW_R13 | 1u << CLEW_R14 | 1u << CLEW_R15 | 1u << CLEW_RIP;
  return (flags & CLEW_FRAME_EXACT_PC) != 0 ? known : known & kKept;
}

/// The mapping that covers an address.
struct Code {
  uint64_t start = 0;  // of the mapping
  uint64_t end = 0;
  bool executable = false;
  uint64_t bias = 0;                    // address in memory minus virtual address in the file
  const table::Table* table = nullptr;  // null: nothing describes it; alive while the walk runs
};

/// How the walk reaches its target. Implementations need not be thread-safe; one walk uses one target.
class Target {
 public:
  virtual ~Target() = default;
  /// Reads exactly `size` bytes at `address`; false where any is not to be had.
  virtual bool read(uint64_t address, void* out, size_t size) = 0;
  /// The mapping at `address`; false where nothing is mapped.
  virtual bool find(uint64_t address, Code& code) = 0;
  /// Reads code bytes (for "does a call precede this?"); may use the file behind the mapping. Default:
  /// read().
  virtual bool read_code(uint64_t address, void* out, size_t size) { return read(address, out, size); }
  /// What an unreadable stack address means here: CLEW_END_UNREADABLE, or STACK_CUT, OTHER_STACK for a copied
  /// piece.
  virtual clew_end why_unreadable(uint64_t /*address*/) { return CLEW_END_UNREADABLE; }
};

struct WalkResult {
  size_t frames = 0;
  clew_end end = CLEW_END_NO_USER_STACK;
  uint64_t end_detail = 0;  // the address that could not be read, or was not covered
};

/// Rules that walks met, by return address: for many walks with the same mappings, one thread at a time.
struct KnownRules {
  struct Entry {
    uint64_t pc = 0;
    clew_rule rule = 0;
  };
  std::array<Entry, 1024> entries{};

  Entry& at(uint64_t pc) { return entries[(pc ^ pc >> 10) % entries.size()]; }
};

/// Walks from `registers` (rip and rsp must be known) towards the root; frames go to `out`, the first one
/// first, and where `of_frame` is not null, of_frame[i] gets the registers that are known in frame i.
WalkResult walk(Target& target, const Registers& registers, std::span<clew_frame> out,
                Registers* of_frame = nullptr);
/// The same frames, sooner where their rules are in `known`.
WalkResult walk(Target& target, const Registers& registers, std::span<clew_frame> out, KnownRules& known);

}  // namespace clew::unwind
