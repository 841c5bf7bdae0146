// The frame at every instruction of a piece of code, by following control flow from its entries.
//
// Each place where ways meet keeps one state, what all of them agree on, so that a state only ever loses
// knowledge and the work is bounded: at most kStepsPerByte instructions are followed for a byte of code;
// where that does not suffice, nothing is vouched for. What direct branches do not reach is entered, in this
// order:
//
//   1. behind a call, where a branch leads to the same place: the branch's state counts, for if the two
//   differ then
//      the call does not return;
//   2. at the targets of calls within the code, as functions;
//   3. behind jumps and returns, where `push rbp; mov rbp, rsp` begins, as a function;
//   4. behind jumps and returns, with the state of the code's jumps through tables, if those agree on one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "analysis/frame_state.hpp"

namespace clew::analysis {

constexpr size_t kStepsPerByte = 16;

class FunctionFlow {
 public:
  /// Code beyond kMostCode bytes is left out (no rules). Memory: 14 bytes for a byte of code, and a state a
  /// branch target.
  static constexpr size_t kMostCode = size_t{1} << 28;

  explicit FunctionFlow(std::span<const std::byte> code);
  void enter(size_t offset, const FrameState& state);
  /// Follows all that the entries reach. `observe`, if given, sees each instruction's state, the last word
  /// last.
  void run(const std::function<void(size_t offset, const FrameState&)>& observe = nullptr);

  bool reached(size_t offset) const { return owners_[offset] != 0; }
  clew_rule rule(size_t offset) const { return rules_[offset]; }
  size_t size() const { return code_.size(); }
  /// Offsets of instructions by plain front-to-back decoding which follow a jump, return or stop (padding
  /// skipped).
  std::span<const uint32_t> after_ends() const { return after_ends_; }

 private:
  struct Block {
    FrameState state;
    uint32_t offset;
    bool queued;
  };

  void sweep();
  uint32_t block_at(size_t offset);
  void arrive(int64_t offset, const FrameState& state);
  void follow(uint32_t block, const std::function<void(size_t, const FrameState&)>& observe);
  void note(size_t offset, uint32_t owner, clew_rule rule);
  bool enter_unreached();
  bool looks_like_entry(size_t offset) const;

  std::span<const std::byte> code_;
  std::vector<clew_rule> rules_;
  std::vector<uint32_t> owners_;     // 0 not reached; else block + 1; kDisputed
  std::vector<uint32_t> blocks_at_;  // 0 none; else block + 1
  std::vector<bool> targets_;
  std::vector<Block> blocks_;
  std::vector<uint32_t> queue_;
  std::vector<std::pair<uint32_t, FrameState>> behind_calls_;
  std::vector<uint32_t> call_targets_;
  std::vector<uint32_t> after_ends_;
  size_t next_end_ = 0;
  FrameState table_state_;
  enum class Tables : uint8_t { kNone, kAgree, kDiffer } tables_ = Tables::kNone;
  size_t steps_left_ = 0;
};

}  // namespace clew::analysis
