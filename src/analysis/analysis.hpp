// What tables leave out, from the instructions themselves: x86-64 code that no FDE describes.
//
// All functions are pure: bytes in, rows out; time and memory are linear in the bytes. rows() allocates; the
// others do not, and are async-signal-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/rule.h"

namespace clew::analysis {

/// A rule that holds from `address` to the next row.
struct Row {
  uint64_t address;
  clew_rule rule;
};

enum class Code : uint8_t {
  kPlt,           // .plt: PLT0 (pushes the link map and jumps) and lazy stubs (jmp; push; jmp)
  kPltSec,        // .plt.sec, .plt.got: stubs that only jump
  kInit,          // .init, .fini: crti.o's and crtn.o's halves, often with more between
  kStart,         // the program's entry: the outermost frame
  kFunction,      // a function without FDE
  kUnnamed,       // what lies between functions that symbols name: functions, parts of others, padding
  kSignalReturn,  // mov eax, 15; syscall (and mov rax)
  kChild          // syscall, in what describes itself up to there: clone(2), whose child has another stack
};

class FunctionFlow;

/// Memory that rows() works in. Kept from one piece of code to the next, it is asked for once.
class Workspace {
 public:
  Workspace();
  ~Workspace();
  FunctionFlow& flow() { return *flow_; }

 private:
  std::unique_ptr<FunctionFlow> flow_;
};

/// Rows for `code`, which lies at `address`; no two neighbours have the same rule. Addresses that the
/// analysis cannot vouch for get CLEW_CFA_NONE.
///
///   kPlt, kPltSec  Each stub is entered with the return address at rsp, PLT0 with the stub's number above
///   it. Stubs of
///                  16 bytes in a row that push at the same place share one CLEW_CFA_PLT row.
///   kInit          As kFunction.
///   kStart         CLEW_CFA_ROOT as far as the entry code goes: to the first hlt, jump or return that no
///   branch passes
///                  over (musl: _start runs on into _start_c); then NONE.
///   kFunction      `code` begins with a function. Followed along its branches (function_flow.hpp): CFA by
///   rbp where
///                  that is set up as frame pointer, else by rsp. Functions behind it in `code` that it, or a
///                  function reached, calls are followed as well, and those that begin with push rbp; mov
///                  rbp, rsp.
///   kUnnamed       Likewise, but nothing is known to begin anywhere.
///   kSignalReturn  CLEW_CFA_SIGFRAME over the sequence.
///   kChild         As kFunction, but CLEW_CFA_CHILD behind the system call until the stack pointer moves.
///
/// `called`, sorted: addresses that other code calls or takes. kUnnamed enters the functions that begin
/// there. `calls`, if given, grows by those outside `code` that it calls or takes.
std::vector<Row> rows(Code kind, std::span<const std::byte> code, uint64_t address,
                      std::span<const uint64_t> called = {}, std::vector<uint64_t>* calls = nullptr,
                      Workspace* workspace = nullptr);

/// Whether `code` begins with the signal return sequence (x86-64: mov $15, %eax or %rax; syscall).
bool is_signal_return(std::span<const std::byte> code);

/// Whether `code` begins with a system call.
bool is_system_call(std::span<const std::byte> code);

/// Whether a call ends exactly behind `before`: the bytes (up to 16) that precede a return address.
/// Every encoding of near call on x86-64: e8 rel32, ff /2 with each ModRM, SIB, displacement and prefix.
bool call_precedes(std::span<const std::byte> before);

/// Where in its frame is the code at `offset` of `code` (what is readable around the address)? `offset` is an
/// instruction boundary: a sampled rip or a return address, not less one. Answers with a rule for exactly
/// that instruction, or CLEW_CFA_NONE, which for a caller means: the frame is either set up or unknown, so
/// take the frame-pointer step (and check what it finds). x86 cannot be decoded backwards, so it looks
/// forward, at most kRuleAtInstructions in a straight line (conditional jumps are taken not to be taken,
/// calls end it):
///
///   - to a ret, counting pops, add rsp and lea rsp: CFA from rsp, or from rbp if `leave` or `mov rsp, rbp`
///   comes
///     first; rbp from where `pop rbp` will take it;
///   - to a jmp right behind `leave`, or `mov rsp, rbp; pop rbp`, likewise (a tail call; pops alone may as
///   well clean up
///     a call's arguments, and while a pop rbp is still ahead the frame-pointer step serves);
///   - to push rbp; mov rbp, rsp, with nothing before it that moves rsp: CFA = rsp + 8;
///   - at mov rbp, rsp with the byte of push rbp before it: CFA = rsp + 16, rbp saved at CFA - 16;
///   - nowhere from a nop behind a call: that is what follows a call that does not return;
///   - through pushes and sub rsp to `lea rbp, [rsp + n]`, which makes rbp point at where rbp was pushed
///   (.NET), if
///     that push lies ahead, or the bytes before `offset` are just such a prologue.
constexpr unsigned kRuleAtInstructions = 24;
clew_rule rule_at(std::span<const std::byte> code, size_t offset);

/// Where a function of libgcc's unwinder (_Unwind_Resume, _Unwind_RaiseException, ...) takes on its target's
/// frame.
///
/// uw_install_context_1 copies the target's saved registers, the return address last, over those in the
/// function's own frame; the epilogue of __builtin_eh_return then restores them and moves rsp. Between the
/// two the CFA is still that of the function's caller, while register after register is the target's.
struct ContextInstall {
  size_t call = 0;     // the call of uw_install_context_1
  int32_t cfa_at = 0;  // the target's CFA is in [base + cfa_at]
};

/// Before its CFA, struct _Unwind_Context (libgcc's unwind-dw2.c, x86-64) has pointers to where the registers
/// were saved: at cfa_at + kContextRegisters + 8 * n for DWARF register n. Behind its CFA, where it goes on.
constexpr int32_t kContextRegisters = -18 * 8, kContextReturn = 8;

/// `code` is such a function from its start to where its epilogue has restored all but rsp, `base` the DWARF
/// number of its frame pointer. Known by its last two calls: behind the first, uw_install_context_1, the
/// target's CFA and, from the next word, its new rip are loaded from the frame as the arguments of the
/// second, _Unwind_DebugHook.
std::optional<ContextInstall> context_install(std::span<const std::byte> code, uint32_t base);

/// Where swapcontext takes on the registers of a context that lies in memory, and its stack with them: behind
/// the load of rsp its own frame is gone, and the return address is not on the other stack before the push.
struct ContextLoad {
  size_t begin = 0, end = 0;                            // behind the load of rsp, behind the push
  uint32_t base = 0;                                    // what the registers are loaded by,
  std::vector<std::pair<uint32_t, int32_t>> registers;  // and where: rbx, rbp, r12 ... r15, rip
};

/// `code` is a function from its start. Straight code is meant, from the load of rsp by a register and a
/// displacement on: loads of all callee-saved registers and of one that is pushed then, by the same base.
std::optional<ContextLoad> context_load(std::span<const std::byte> code);

/// Whether `code` begins as a function that saves a context: mov [rdi + n], rbx.
bool saves_context(std::span<const std::byte> code);

/// Whether `code` begins with makecontext's trampoline (glibc's __start_context): the outermost frame of its
/// stack, entered by a return to its first instruction. Older versions describe it as an ordinary function.
bool is_start_context(std::span<const std::byte> code);
constexpr size_t kStartContextBytes = 13;
constexpr size_t kStartContextMost = 32;  // it ends before

}  // namespace clew::analysis
