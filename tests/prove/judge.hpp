// Compares unwound chains with the shadow stack, and counts.
//
// A chain is right if it is the shadow's and ends at the root; it ended early if it is a part of that from
// the leaf on, and gives a reason; else it is wrong. One more chain is right: where a frame is left for
// somewhere else than its caller (longjmp, an exception's landing pad, a switch of contexts), its last
// instructions are described by many binaries as a frame whose caller is the place where control goes next.
// Whether that is so shows when control leaves the frame, so chains that differ from the shadow wait until
// then.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "clew/frame.h"
#include "prove/shadow.hpp"

namespace clew::prove {

/// A chain as an unwinder gave it, from the leaf's own pc on.
struct Chain {
  std::span<const uint64_t> addresses;
  bool at_root = false;
  const char* reason = "";  // why it ended, where it is not at the root
};

inline constexpr const char* kWrong = "wrong";

/// Chains that went wrong or ended early at one instruction.
struct Finding {
  uint64_t count = 0;
  std::string reason;  // kWrong, or why it ended
  // Of the first one: where it differs from the truth (or ends), and both words.
  size_t frame = 0;
  uint64_t expected = 0, found = 0;
};

struct Tally {
  uint64_t right = 0, wrong = 0;
  std::map<std::string, uint64_t> ended;                         // by reason
  std::map<std::pair<uint64_t, std::string>, Finding> findings;  // by pc and reason; at most kMaxFindings
  uint64_t unlisted = 0;                                         // chains of further findings

  static constexpr size_t kMaxFindings = 4096;
  void note(uint64_t pc, const Finding& finding);
};

/// The judge of one thread. `tally` must outlive it.
class Judge {
 public:
  explicit Judge(Tally& tally) : tally_(&tally) {}
  /// Judges a chain against the callers, outermost first, of a frame that executes `pc`. Returns whether it
  /// is right as it stands.
  bool judge(uint64_t pc, const Chain& chain, std::span<const Caller> callers);
  /// Control has left the innermost frames for `pc` with these callers: chains that wait for that are
  /// settled.
  void returned(uint64_t pc, std::span<const Caller> callers) { settle(pc, callers, false); }
  /// The same where control went to another stack: all chains that wait are settled.
  void switched(uint64_t pc, std::span<const Caller> callers) { settle(pc, callers, true); }
  /// The thread has ended or executes another program: what waits can no longer turn out to be right.
  void finish();

 private:
  struct Waiting {
    uint64_t pc;
    uint64_t rest_hash;  // of the chain from where it differs
    size_t rest;         // how many addresses those are
    size_t depth;        // callers of the frame that has to be left
    Finding finding;
  };
  static constexpr size_t kMaxWaiting = 4096;
  void settle(uint64_t pc, std::span<const Caller> callers, bool all);
  void settle_as_wrong(const Waiting& waiting);

  Tally* tally_;
  std::vector<Waiting> waiting_;
};

}  // namespace clew::prove
