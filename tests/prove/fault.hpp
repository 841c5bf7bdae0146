// Faults: at an instruction whose chain is right, something is broken and the walk repeated. It must give the
// same chain, or a part of it from the leaf on and the reason that the fault makes.
#pragma once

#include <cstdint>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "clew/frame.h"
#include "unwind/remote.hpp"

namespace clew::prove {

enum class Fault : uint8_t {
  kUnreadable,  // a word of the stack cannot be read
  kFlipped,     // a word of the stack is another one
  kHidden       // the mapping of a frame is gone
};

/// The program with a fault; without one it notes what is read.
class FaultyTarget : public unwind::Target {
 public:
  explicit FaultyTarget(unwind::Target& inner) : inner_(&inner) {}
  bool read(uint64_t address, void* out, size_t size) override;
  bool find(uint64_t address, unwind::Code& code) override;
  bool read_code(uint64_t address, void* out, size_t size) override {
    return inner_->read_code(address, out, size);
  }

  /// Addresses of the words of the stack that were read.
  const std::vector<uint64_t>& words() const { return words_; }
  void break_word(uint64_t address) { unreadable_ = address; }
  void replace_word(uint64_t address, uint64_t word) {
    replaced_ = address;
    word_ = word;
  }
  void hide(const unwind::Code& code) { hidden_ = code; }

 private:
  static constexpr uint64_t kNowhere = UINT64_MAX;
  unwind::Target* inner_;
  std::vector<uint64_t> words_;
  uint64_t unreadable_ = kNowhere, replaced_ = kNowhere, word_ = 0;
  unwind::Code hidden_;
};

enum class Outcome : uint8_t {
  kSame,          // the fault concerned nothing
  kEnded,         // a part of the chain, and the right reason
  kUndetectable,  // other frames, all of which stand behind calls
  kTable,   // other frames; a table's rule led to one that stands behind no call (T4 leaves tables that)
  kPhantom  // a frame that is none, or the wrong reason
};

/// A chain with its end.
struct Walked {
  std::span<const clew_frame> frames;
  unwind::WalkResult result;
};

/// Judges the walk with the fault against the right one. `target` is the program without the fault.
Outcome judge_fault(Fault fault, const Walked& right, const Walked& broken, unwind::Target& target);

struct FaultTally {
  uint64_t same = 0, undetectable = 0, table = 0, wrong = 0;
  std::map<std::string, uint64_t> ended;     // by reason
  std::map<uint64_t, std::string> wrong_at;  // by the leaf's pc, what happened at first
};

/// Walks from the registers, and again with one fault, which `random` chooses.
class FaultInjector {
 public:
  void inject(unwind::Target& target, const unwind::Registers& registers, std::mt19937_64& random,
              FaultTally& tally);

 private:
  std::vector<clew_frame> right_ = std::vector<clew_frame>(kMaxFrames);
  std::vector<clew_frame> broken_ = std::vector<clew_frame>(kMaxFrames);
  static constexpr size_t kMaxFrames = 1 << 16;
};

}  // namespace clew::prove
