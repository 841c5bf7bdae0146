// What the process knows of the return addresses that its walks met: address to rule, shared by all threads
// without a lock.
//
// A walk is a chain of loads: the stack gives a return address, that a rule, the rule the next place on the
// stack. So that the chain is short, a rule's common part is 16 bits at the byte that the low 16 bits of the
// return address name (no two calls end at neighbouring bytes), in the form in which they are used; that they
// are the address's own is checked beside, by a word that the processor need not wait for:
//
//   hint   bits 3..15  CFA - base, bytes (a multiple of 8)
//          bit  2      set, so that an empty place is no rule's
//          bit  1      the outermost frame
//          bit  0      the base is rbp, not rsp
//   word   bits 0..15  the hint
//          bits 16..47 bits 16..47 of the return address
//          bits 48..55 n: rbp is saved at CFA - 8 n; 0: it is unchanged
//
// A reader that sees the hint of one address with the word of another sees that they do not match. An address
// whose place is another's is kept in a second level, four to a set. Once all is there, nothing is written
// any more, so that threads do not take cache lines from each other. Only rules that can be said so are here.
// Addresses of modules that may be unloaded are here by Module::key_of, which the loop over cached frames
// does not meet: who asks for them has found the module first.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "core/rule.h"
#include "unwind/local/memory.hpp"

namespace clew::unwind::local {

class RuleCache {
 public:
  /// By the low 16 bits of the return address.
  uintptr_t hint(uintptr_t low) const { return load_quarter(reinterpret_cast<uintptr_t>(hints_) + low); }
  uint64_t word(uintptr_t low) const { return words_[low].load(std::memory_order_relaxed); }

  /// Whether hint and word are of the return address `pc`. An empty place is that of an address below 64 KiB:
  /// its hint is of no kind.
  static bool match(uint64_t word, uintptr_t pc, uintptr_t hint) {
    return (word ^ ((pc & ~uint64_t{0xffff}) | hint)) << 16 == 0;
  }

  /// What the second level has of `pc`; false where it has nothing.
  bool find_second(uintptr_t pc, uintptr_t& hint, uint64_t& word) const {
    for (const std::atomic<uint64_t>& way : second_[pc % kSets]) {
      const uint64_t found = way.load(std::memory_order_relaxed);
      if (found >> 24 != pc / kSets || found == 0) continue;
      hint = static_cast<uint16_t>(found);
      word = (found >> 16 & 255) << 48;
      return true;
    }
    return false;
  }

  /// The low bits of a hint whose base is rsp.
  static constexpr uintptr_t kCommon = 4;
  static bool is_common(uintptr_t hint) { return (hint & 7) == kCommon; }
  static bool is_root(uintptr_t hint) { return (hint & 2) != 0; }
  static bool by_rbp(uintptr_t hint) { return (hint & 1) != 0; }
  static uintptr_t offset(uintptr_t hint) { return hint & 0xfff8u; }
  /// CFA less where rbp is saved; 0: it is not.
  static uintptr_t rbp_offset(uint64_t word) { return word >> 48 << 3; }

  /// The rule of `pc` as far as rip, rsp and rbp are concerned; 0: not known.
  clew_rule rule(uintptr_t pc) const {
    uintptr_t found = hint(pc & 0xffff);
    uint64_t its_word = word(pc & 0xffff);
    if (!match(its_word, pc, found) && !find_second(pc, found, its_word)) return 0;
    if (is_root(found)) return clew_rule_make(CLEW_CFA_ROOT, 0, 0, CLEW_BP_UNCHANGED, 0, false);
    return clew_rule_make(CLEW_CFA_REG, by_rbp(found) ? CLEW_RBP : CLEW_RSP,
                          static_cast<int32_t>(offset(found)),
                          static_cast<uint32_t>(rbp_offset(its_word) / 8), 0, false);
  }

  void insert(uintptr_t pc, clew_rule rule) {
    uint16_t hint = 0;
    uint64_t word = 0;
    if (pc >> 48 != 0 || !encode(pc, rule, hint, word)) return;
    const auto low = static_cast<uint16_t>(pc);
    const uint64_t old = words_[low].load(std::memory_order_relaxed);
    // Now and then the newer one takes the place, so that what is no longer met does not keep it.
    const bool take = old == 0 || inserted_.fetch_add(1, std::memory_order_relaxed) % 8 == 0;
    if (take) {
      words_[low].store(word, std::memory_order_relaxed);
      std::memcpy(hints_ + low, &hint, sizeof hint);
    }
    if (old == 0) return;
    if (take) {
      word = old;
      pc = (old & 0xffffffff0000u) | low;
    }
    auto& set = second_[pc % kSets];
    size_t way = 0;
    while (way < kWays && set[way].load(std::memory_order_relaxed) != 0) ++way;
    if (way == kWays) way = inserted_.load(std::memory_order_relaxed) / 8 % kWays;
    set[way].store(pc / kSets << 24 | word >> 48 << 16 | (word & 0xffff), std::memory_order_relaxed);
  }

 private:
  // In the second level the low bits of the return address are the set's number: bits 24..63 of an entry are
  // the rest, bits 16..23 the n of rbp, bits 0..15 the hint.
  static constexpr size_t kSets = 2048;
  static constexpr size_t kWays = 4;

  static bool encode(uintptr_t pc, clew_rule rule, uint16_t& hint, uint64_t& word) {
    uint64_t rbp = 0;
    if (clew_rule_kind(rule) == CLEW_CFA_ROOT) {
      hint = 4 | 2;
    } else {
      const int32_t offset = clew_rule_offset(rule);
      rbp = clew_rule_bp(rule);
      if (!clew_rule_simple(rule) || offset < 8 || offset % 8 != 0 || offset > 0xfff8) return false;
      hint = static_cast<uint16_t>(offset | 4 | (clew_rule_register(rule) == CLEW_RBP ? 1 : 0));
    }
    word = rbp << 48 | (pc & 0xffffffff0000u) | hint;
    return true;
  }

  unsigned char hints_[(1 << 16) + 1] = {};
  std::atomic<uint64_t> words_[1 << 16] = {};
  std::atomic<uint64_t> second_[kSets][kWays] = {};
  std::atomic<uint32_t> inserted_{0};
};

}  // namespace clew::unwind::local
