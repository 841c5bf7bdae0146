// A system call that the sample's signal interrupted begins again, as if nothing had happened.
//
// The timer runs while the thread is on a CPU: what it interrupts is a call that was about to wait and has
// done nothing yet, so its arguments, which are still in the registers, are right for another time. The
// kernel does so itself for most calls (SA_RESTART); those below fail with EINTR whatever the flags say
// (signal(7)). The number of the call is no longer in a register: it is in the instruction that loaded it.
#include <sys/syscall.h>
#include <ucontext.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <span>

#include "agent/agent.hpp"
#include "analysis/instruction.hpp"
#include "unwind/local/memory.hpp"

namespace clew::agent {
namespace {

constexpr long kNeverRepeatedByKernel[] = {
    SYS_poll,         SYS_ppoll,         SYS_select,         SYS_pselect6,     SYS_epoll_wait,
    SYS_epoll_pwait,  SYS_nanosleep,     SYS_clock_nanosleep, SYS_pause,        SYS_rt_sigsuspend,
    SYS_rt_sigtimedwait, SYS_semop,      SYS_semtimedop,     SYS_msgrcv,       SYS_msgsnd,
    SYS_io_getevents, SYS_futex,         SYS_recvfrom,       SYS_recvmsg,      SYS_recvmmsg,
    SYS_accept,       SYS_accept4,       SYS_sendto,         SYS_sendmsg,      441 /* epoll_pwait2 */,
    449 /* futex_waitv */};
constexpr size_t kMostBefore = 24;  // bytes between loading the number and the call
constexpr std::byte kMoveToEax{0xb8};
constexpr std::byte kSyscall[] = {std::byte{0x0f}, std::byte{0x05}};

/// The number that the code before a `syscall` instruction loads; -1 where that is not plain to see: mov
/// $number, %eax, then instructions that leave rax alone.
long number_before(uintptr_t instruction) {
  std::byte bytes[kMostBefore + sizeof kSyscall];
  if (!unwind::local::copy_memory(instruction - kMostBefore, bytes, sizeof bytes)) return -1;
  const auto code = std::span(bytes).first<kMostBefore>();
  if (!std::ranges::equal(std::span(bytes).subspan<kMostBefore>(), kSyscall)) return -1;
  for (size_t at = kMostBefore - 5;; --at) {
    if (code[at] == kMoveToEax) {
      size_t next = at + 5;
      analysis::Instruction decoded;
      while (next < kMostBefore && analysis::decode(code.subspan(next), decoded) &&
             (analysis::written_registers(decoded) & 1u << analysis::kRax) == 0) {
        int64_t target = 0;
        if (analysis::flow_of(decoded, target) != analysis::Flow::kNext) break;
        next += decoded.length;
      }
      if (next == kMostBefore) {
        uint32_t number;
        std::memcpy(&number, &code[at + 1], sizeof number);
        return number;
      }
    }
    if (at == 0) return -1;
  }
}

}  // namespace

bool repeat_interrupted_call(void* ucontext) {
  auto& registers = static_cast<ucontext_t*>(ucontext)->uc_mcontext.gregs;
  // The instruction leaves its own return address in rcx.
  if (registers[REG_RAX] != -EINTR || registers[REG_RCX] != registers[REG_RIP]) return true;
  const auto instruction = static_cast<uintptr_t>(registers[REG_RIP]) - sizeof kSyscall;
  const long number = number_before(instruction);
  if (number < 0 || std::ranges::find(kNeverRepeatedByKernel, number) == std::end(kNeverRepeatedByKernel))
    return false;
  registers[REG_RAX] = number;
  registers[REG_RIP] = static_cast<greg_t>(instruction);
  return true;
}

}  // namespace clew::agent
