// Stopping a live process for as long as its threads' registers and stacks are read.
//
// ptrace(2): PTRACE_SEIZE and PTRACE_INTERRUPT. No signal is sent, so none is added, merged or lost.
#pragma once

#include <sys/types.h>
#include <sys/user.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "clew/result.hpp"
#include "process/address_space.hpp"
#include "unwind/remote.hpp"

namespace clew::process {

struct StoppedThread {
  pid_t tid = 0;
  bool stopped =
      false;  // false: it sleeps where nothing interrupts it (state D); its registers are not known
  unwind::Registers registers;
  bool just_begun = false;  // see just_begun()

  // What resume() has to give back.
  int signal = 0;            // that was about to be delivered when the thread stopped
  bool interrupted = false;  // by us, and not stopped anyway
};

/// The registers that PTRACE_GETREGS and NT_PRSTATUS give, by DWARF number.
unwind::Registers registers_of(const user_regs_struct& from);

/// Whether the process can be stopped, as far as that shows without touching it. The error is one line that
/// says why not and what to do: no such process, a zombie, a kernel thread, a thread's id, traced already,
/// another user's.
Result<bool> can_stop(pid_t pid);

/// All threads of a process, stopped. Destroying it lets them go on. It must be made, used and destroyed by
/// one thread.
///
/// What the process notices: nothing but the time. System calls that the stop interrupts are restarted: most
/// by the kernel itself; those that it would end with EINTR (epoll_wait and its kin, timed socket reads,
/// semop, sigtimedwait) by setting their result to "restart unless a handler runs", with their full timeout
/// again. Signals that arrive or are being delivered stay so. A process that stands stopped (SIGSTOP) remains
/// stopped.
class StoppedProcess {
 public:
  static Result<StoppedProcess> stop(pid_t pid);
  StoppedProcess(StoppedProcess&& other) noexcept;
  StoppedProcess& operator=(StoppedProcess&&) = delete;
  ~StoppedProcess();

  std::span<const StoppedThread> threads() const { return threads_; }
  void resume();
  /// From the first thread's interruption until resume().
  uint64_t stopped_ns() const { return resumed_ns_ - began_ns_; }

 private:
  explicit StoppedProcess(pid_t pid) : pid_(pid) {}
  Result<bool> seize_new_threads(bool& found);
  void wait_for_all(uint64_t deadline_ns);
  Result<bool> read_registers();

  pid_t pid_ = 0;
  std::vector<StoppedThread> threads_;
  std::unordered_set<pid_t> seen_;
  uint64_t began_ns_ = 0;
  uint64_t resumed_ns_ = 0;
};

/// The memory of a stopped process, read by pages that are kept: valid until it goes on.
class StoppedTarget : public unwind::Target {
 public:
  StoppedTarget(pid_t pid, const AddressSpace& space);
  bool read(uint64_t address, void* out, size_t size) override;
  bool find(uint64_t address, unwind::Code& code) override;

 private:
  static constexpr size_t kPageBytes = 4096;
  static constexpr size_t kPages = 64;
  struct Page {
    uint64_t address = UINT64_MAX;
    size_t readable = 0;  // bytes from its start
    std::array<std::byte, kPageBytes> bytes;
  };
  const Page& page_at(uint64_t address);

  pid_t pid_;
  const AddressSpace& space_;
  std::unique_ptr<std::array<Page, kPages>> pages_;
};

}  // namespace clew::process
