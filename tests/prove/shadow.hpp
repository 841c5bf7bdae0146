// The shadow stack: where each frame of a thread will return to, known from the calls that it executed.
//
// It is fed every instruction. A call pushes its return address together with the stack slot that holds it. A
// frame is gone once control is transferred while the stack pointer is above its slot: by a return, a tail
// call, a landing pad, longjmp. Between a pop of the return address and such a transfer (vfork holds it in a
// register) the frame is still there.
//
// A stack pointer that was loaded rather than moved (Instruction::moves_stack) may point into another stack.
// When control is next transferred, the shadow looks for a stack that covers it: a signal's segment or what
// it interrupted, or a context that was left earlier (coroutines). One that nobody knows is new: its first
// frame's caller is what its first slot holds, if that is code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "prove/instruction.hpp"

namespace clew::prove {

struct Caller {
  uint64_t slot;     // where the return address lies; kNoSlot for an interrupted instruction
  uint64_t address;  // where control goes on
};

inline constexpr uint64_t kNoSlot = UINT64_MAX;

/// One executed instruction.
struct Step {
  Instruction instruction;
  uint64_t pc, sp;            // before
  uint64_t next_pc, next_sp;  // after
};

/// What an instruction did to the frame that executed it.
enum class Left : uint8_t {
  kNo,
  kReturned,  // control left the frame for one of its callers
  kSwitched   // control went to another stack
};

/// What the shadow asks about the program.
class Program {
 public:
  virtual ~Program() = default;
  virtual bool read_word(uint64_t address, uint64_t& word) = 0;
  virtual bool is_code(uint64_t address) = 0;
};

class ShadowStack {
 public:
  /// A thread that begins with `sp` and has no caller.
  explicit ShadowStack(uint64_t sp);

  Left step(const Step& step, Program& program);
  /// A handler begins with `sp`, which points at the restorer's address; it interrupted `pc`, whose stack
  /// pointer was `interrupted_sp`.
  void begin_handler(uint64_t sp, uint64_t restorer, uint64_t pc, uint64_t interrupted_sp);
  /// rt_sigreturn gave control and this stack pointer back.
  Left end_handler(uint64_t sp, Program& program);

  /// The callers, outermost first.
  std::span<const Caller> callers() const { return current_.callers; }

 private:
  // A piece of a context on one stack: [low, base]. Each signal begins one, and each call on a switched
  // stack.
  struct Segment {
    size_t first = 0;         // its outermost caller
    uint64_t base = 0;        // the highest stack pointer in it
    uint64_t low = 0;         // the stack pointer when control left it for the next segment or context
    bool signal = false;      // callers[first] is the interrupted instruction
    bool was_loaded = false;  // of what it interrupted
    uint64_t was_before = 0;
  };
  struct Context {
    std::vector<Caller> callers;
    std::vector<Segment> segments;
  };
  struct Place {
    size_t context = kCurrent;  // or an index of others_
    size_t segment = 0;
  };
  static constexpr size_t kCurrent = SIZE_MAX;
  static constexpr size_t kMaxContexts = 1024;

  bool find_stack(uint64_t sp, Place& place) const;
  void pop_to(uint64_t sp);
  void drop_segments_above(size_t segment);
  void suspend();
  void begin_context(uint64_t sp, Program& program);
  Left land(Flow flow, uint64_t sp, Program& program);

  Context current_;
  std::vector<Context> others_;  // left earlier; the latest last
  bool loaded_ = false;          // the stack pointer was loaded since the last transfer
  uint64_t before_ = 0;          // what it was before
};

}  // namespace clew::prove
