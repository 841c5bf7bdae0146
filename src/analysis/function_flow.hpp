// The frame at every instruction of a piece of code, by following control flow from its entries.
//
// Each place where ways meet keeps one state, what all of them agree on, so that a state only ever loses
// knowledge and the work is bounded: at most kStepsPerByte instructions are followed for a byte of code, in
// at most twelve rounds; where that does not suffice, nothing is vouched for. What direct branches do not
// reach is entered, in this order:
//
//   1. behind a call, where a branch leads to the same place: the branch's state counts;
//   2. at the targets of calls within the code, and of instructions that take an address in it (lea
//      rip-relative), as functions;
//   3. behind jumps and returns, where `push rbp; mov rbp, rsp` begins, as a function;
//   4. behind jumps, returns and calls with padding, where no branch leads: with the state of the code's
//      jumps through tables, if those agree on one; else as a function.
//
// Way 4 is a guess. It counts only if a return is reached from there with the stack as it was at a function's
// entry, or code with the same depth that was reached otherwise. All is done anew without it if it does not,
// or if a return, a jump out of the code, or code reached otherwise contradicts it.
//
// Calls that do not return are the hard part: what stands behind one has a state that nobody can see. A
// call is not followed, and all is done anew without what came of it, if
//
//   - padding stands behind it and no branch leads behind that;
//   - a branch leads behind it that was itself never reached;
//   - the stack does not add up: two depths meet (the deeper one's last call is to blame, or one before it
//   that ends
//     where 16 aligned bytes do, but for padding), or a ret finds another depth than the entry's;
//   - the code jumps through tables, arguments are still pushed, and the call ends where the next 16 bytes
//     begin.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "analysis/frame_state.hpp"

namespace clew::analysis {

constexpr size_t kStepsPerByte = 32;

class FunctionFlow {
 public:
  /// Code beyond kMostCode bytes is left out (no rules). Memory: some 15 bytes for a byte of code, and a
  /// state (some 150 bytes) for a branch target.
  static constexpr size_t kMostCode = size_t{1} << 28;

  /// `address` of code[0] tells what is aligned.
  explicit FunctionFlow(std::span<const std::byte> code, uint64_t address = 0) { begin(code, address); }
  /// To be begun with code before anything else.
  FunctionFlow() = default;
  /// Forgets all and begins with other code; memory is kept.
  void begin(std::span<const std::byte> code, uint64_t address);
  void enter(size_t offset, const FrameState& state);
  /// Perhaps a function begins at the first instruction: way 4. Those of `addresses` (called, or taken,
  /// elsewhere) where one may begin are entered by way 2.
  void may_enter(std::span<const uint64_t> addresses);  // sorted
  /// Follows all that the entries reach. `observe`, if given, sees each instruction's state, the last word
  /// last.
  void run(const std::function<void(size_t offset, const FrameState&)>& observe = nullptr);

  /// Addresses outside the code that it calls or takes.
  std::span<const uint64_t> outside() const { return outside_; }
  /// Calls `sink(offset, rule)` for each change of rule, front to back: CLEW_CFA_NONE where nothing was
  /// reached.
  template <class Sink>
  void each_rule(Sink&& sink);
  bool reached(size_t offset) const { return at_[offset] != 0 && places_[at_[offset] - 1].owner != 0; }
  clew_rule rule(size_t offset) const { return at_[offset] != 0 ? places_[at_[offset] - 1].rule : 0; }
  size_t size() const { return code_.size(); }
  /// Of the instruction at an offset; 0 if none is there.
  unsigned length(size_t offset) { return decoded_[index_at(offset)].length; }
  bool padding(size_t offset) { return decoded_[index_at(offset)].padding; }
  /// Offsets of instructions by plain front-to-back decoding which follow a jump, return or stop (padding
  /// skipped).
  std::span<const uint32_t> after_ends() const { return after_ends_; }

 private:
  /// What following an instruction again and again needs of it, worked out once.
  struct Decoded {
    Effect effect;
    int32_t relative = 0;  // to its end: the target of a branch, or what lea takes the address of
    uint16_t used = 0, written = 0;
    uint8_t length = 0;  // 0: none is there
    Flow flow = Flow::kNext;
    uint8_t sum = kNoRegister;    // the register in which it makes a sum of two
    uint8_t other = kNoRegister;  // jmp register, or cmp rsp with register
    bool padding : 1 = false;
    bool table : 1 = false;          // jumps through a table, whatever registers hold
    bool not_zero : 1 = false;       // jne
    bool takes : 1 = false;          // the address of something, by lea
    bool branch_target : 1 = false;  // of one that the sweep found
    bool doubtful_call : 1 = false;  // ends where padding or nothing parts it from a multiple of 16
    bool final_call : 1 = false;     // one that does not return

    int64_t target() const { return int64_t{length} + relative; }  // relative to its start
  };
  /// What a round finds there.
  struct Place {
    uint32_t owner = 0;  // 0 not reached; else block + 1; kDisputed
    uint32_t block = 0;  // that begins here; 0 none; else block + 1
    clew_rule rule = 0;
  };

  struct Block {
    FrameState state;
    uint32_t offset;
    uint32_t last_call;  // to blame if the state is wrong: the call that it came past, plus 1; 0: none
    uint32_t guess;      // the guessed entry that its state came from, plus 1; 0: none
    bool queued;
  };
  /// What leaves the code at an offset: the last word on it.
  struct Exit {
    uint32_t at;
    uint32_t last_call;
    uint32_t guess;
    bool returns;  // and does not jump
    bool right;    // the stack is as it was at the entry
  };

  uint32_t index_at(size_t offset) {
    if (at_[offset] == 0) decode_at(offset);
    return at_[offset] - 1;
  }
  static Decoded decode_one(std::span<const std::byte> code);
  void decode_at(size_t offset);
  /// Whether ways meet there.
  bool meeting(uint32_t index) const { return decoded_[index].branch_target || places_[index].block != 0; }
  void sweep();
  void enter_if_begins(uint32_t offset);
  void follow_all(const std::function<void(size_t, const FrameState&)>& observe);
  bool ban_doubtful();
  size_t behind_padding(size_t offset);
  void clear_round();
  void arrive(int64_t offset, const FrameState& state, uint32_t last_call = 0, uint32_t guess = 0);
  void leave(size_t at, const FrameState& state, const Block& from, uint32_t last_call, bool returns);
  bool guess_at(size_t end);
  bool withdraw_wrong_guesses();
  void suspect(uint32_t call);
  void follow(uint32_t block, const std::function<void(size_t, const FrameState&)>& observe);
  bool enter_unreached();
  bool looks_like_entry(size_t offset);

  std::span<const std::byte> code_;
  uint64_t address_ = 0;
  std::vector<uint32_t> at_;  // of an offset: 0 not decoded yet; else index + 1
  std::vector<Decoded> decoded_;
  std::vector<Place> places_;  // of each of decoded_
  size_t swept_ = 0;           // how many of them the sweep decoded, which do not overlap
  std::vector<Block> blocks_;
  std::vector<uint32_t> queue_;
  struct Behind {
    uint32_t offset;
    uint32_t last_call;
    uint32_t guess;
    FrameState state;
  };
  std::vector<Behind> behind_calls_;
  std::vector<uint64_t> outside_;
  std::vector<uint32_t> taken_;  // addresses, by the sweep
  std::vector<uint32_t> call_targets_;
  std::vector<uint32_t> after_ends_;
  std::vector<std::pair<uint32_t, FrameState>> entries_;
  std::vector<std::pair<uint32_t, uint32_t>> branches_;  // target, source: by the sweep, sorted
  std::vector<uint32_t> fallen_into_;                    // entered by way 1
  std::vector<uint32_t> suspects_;                       // calls behind which the stack does not add up
  std::vector<Exit> exits_;
  enum class Guess : uint8_t { kTable, kFunction, kNone };
  struct Guessed {
    uint32_t offset;
    uint32_t end;  // index in after_ends_
    Guess guess;
  };
  std::vector<Guessed> guesses_;        // entered by way 4, this round, ascending
  std::vector<Guess> next_guess_;       // of each of after_ends_
  std::vector<uint32_t> contradicted_;  // guesses that what is known elsewhere contradicts
  std::vector<uint32_t> confirmed_;     // guesses that it bears out
  bool guessing_ = true;
  struct AlignedCall {
    uint32_t at;
    int32_t rsp;  // relative to the CFA
  };
  std::vector<AlignedCall> aligned_calls_;  // end 16-aligned
  std::vector<uint32_t> banned_;            // not to be entered by way 1, sorted
  bool has_table_ = false;                  // the code jumps indirectly
  // Code whose state is that of the outermost frame is, if it calls the function that it was given and does
  // not return; else zero in rbp was a number.
  bool outermost_calls_ = false;
  bool outermost_returns_ = false;
  size_t next_call_target_ = 0;
  size_t next_end_ = 0;
  FrameState table_state_;
  enum class Tables : uint8_t { kNone, kAgree, kDiffer } tables_ = Tables::kNone;
  size_t steps_left_ = 0;
};

template <class Sink>
void FunctionFlow::each_rule(Sink&& sink) {
  constexpr clew_rule kNone = 0;
  const bool overlaps = decoded_.size() != swept_;
  size_t covered = 0;  // by what was reached
  bool none = false;   // was the last word
  for (size_t at = 0; at < at_.size();) {
    const uint32_t known = at_[at];
    size_t length = 1;
    if (known != 0 && places_[known - 1].owner != 0) {
      length = decoded_[known - 1].length;
      covered = std::max(covered, at + length);
      sink(at, places_[known - 1].rule);
      none = false;
    } else if (at >= covered && !none) {
      sink(at, kNone);
      none = true;
    }
    at += overlaps ? 1 : length;
  }
}

}  // namespace clew::analysis
