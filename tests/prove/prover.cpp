// ptrace(2): the command is seized before it executes and single-stepped from its first instruction on.
#include "prove/prover.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <memory>
#include <random>
#include <unordered_map>

#include "process/core_file.hpp"
#include "process/stop.hpp"
#include "prove/peer.hpp"
#include "prove/tracee.hpp"
#include "unwind/remote.hpp"

namespace clew::prove {
namespace {

constexpr size_t kMaxFrames = 1 << 20;
constexpr size_t kLinesBefore = 5, kLinesAfter = 4;

double now() {
  timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Thread {
  explicit Thread(pid_t id, Report& report, size_t peers) : tid(id), judge(report.clew) {
    peer_judges.reserve(peers);
  }
  pid_t tid;
  ShadowStack shadow{0};
  Judge judge;
  std::vector<Judge> peer_judges;
  user_regs_struct before{};               // when it was last let go
  std::optional<Instruction> instruction;  // that it was let go at
  bool begun = false;                      // its first instruction is known
  bool was_stepped = false;                // it was let go to execute one
  int signal = 0;                          // given to it when it was let go
};

class Prover {
 public:
  Prover(const Options& options, pid_t pid) : options_(options), tracee_(pid) {
    for (const std::string& name : options.peers) {
      peers_.push_back(make_peer(name, pid));
      report_.peers[name];
    }
  }
  Report run();

 private:
  Thread& thread(pid_t tid);
  void forget(pid_t tid);
  void stopped(Thread& thread, int status);
  void resume(Thread& thread, int signal);
  void arrived(Thread& thread, const user_regs_struct& registers);
  void executed(Thread& thread, const user_regs_struct& registers);
  bool handler_begins(Thread& thread, const user_regs_struct& registers);
  void after_system_call(const user_regs_struct& before, const user_regs_struct& after);
  bool is_sampled();
  bool is_of_command(pid_t tid) const;
  void judge(Thread& thread, const user_regs_struct& registers);
  void describe(uint64_t pc);
  void new_program(Thread& thread);

  const Options& options_;
  Tracee tracee_;
  Report report_;
  std::vector<std::unique_ptr<Peer>> peers_;
  uint64_t peers_saw_maps_ = 0;
  std::unordered_map<pid_t, std::unique_ptr<Thread>> threads_;
  std::vector<clew_frame> frames_ = std::vector<clew_frame>(kMaxFrames);
  std::vector<uint64_t> addresses_;
  FaultInjector injector_;
  std::mt19937_64 random_{std::random_device{}()};
  uint64_t in_block_ = 0, chosen_ = 0;  // of the running block of `sample` instructions
};

Thread& Prover::thread(pid_t tid) {
  auto& slot = threads_[tid];
  if (!slot) {
    slot = std::make_unique<Thread>(tid, report_, peers_.size());
    for (const auto& peer : peers_) slot->peer_judges.emplace_back(report_.peers[peer->name()]);
  }
  return *slot;
}

void Prover::forget(pid_t tid) {
  auto known = threads_.find(tid);
  if (known == threads_.end()) return;
  known->second->judge.finish();
  for (Judge& judge : known->second->peer_judges) judge.finish();
  threads_.erase(known);
}

bool Prover::is_sampled() {
  if (options_.sample <= 1) return true;
  if (in_block_ == 0) chosen_ = random_() % options_.sample;
  bool is = in_block_ == chosen_;
  in_block_ = (in_block_ + 1) % options_.sample;
  return is;
}

/// What the place of a finding looks like, while its code is still there.
void Prover::describe(uint64_t pc) {
  if (report_.places.size() >= Tally::kMaxFindings || report_.places.contains(pc)) return;
  Place& place = report_.places[pc];
  const process::Mapping* mapping = tracee_.mapping_at(pc);
  if (mapping) {
    place.module = mapping->path;
    place.address = pc - mapping->bias;
    if (mapping->module && mapping->module->image) {
      auto symbols = mapping->module->image->symbols();
      auto after = std::ranges::upper_bound(symbols, place.address, {}, &elf::Symbol::address);
      if (after != symbols.begin()) {
        const elf::Symbol& symbol = *std::prev(after);
        if (symbol.size == 0 || place.address - symbol.address < symbol.size) place.function = symbol.name;
      }
    }
  } else {
    place.address = pc;
  }
  uint64_t from = pc;
  for (size_t i = 0; i < kLinesBefore; ++i) from = tracee_.executed_before(from).value_or(from);
  std::byte bytes[256];
  size_t got = process::read_memory(tracee_.pid(), from, bytes);
  uint64_t bias = pc - place.address;
  size_t after = 0;
  for (size_t at = 0; at < got && after <= kLinesAfter;) {
    auto here = std::span(bytes).first(got).subspan(at);
    auto instruction = decode(here);
    if (!instruction) break;
    bool is_pc = from + at == pc;
    if (is_pc || after > 0) ++after;
    place.around += fmt::format("{} {:8x}  {}\n", is_pc ? "=>" : "  ", from + at - bias,
                                disassemble(here, from + at - bias));
    at += instruction->length;
  }
}

void Prover::judge(Thread& thread, const user_regs_struct& registers) {
  auto callers = thread.shadow.callers();
  for (bool again = true; again;) {
    unwind::WalkResult result = unwind::walk(tracee_, process::registers_of(registers), frames_);
    bool just_begun = process::just_begun(registers.orig_rax, registers.rax);
    if (just_begun && result.frames == 1) result.end = CLEW_END_ROOT;
    addresses_.clear();
    for (size_t i = 0; i < result.frames; ++i) addresses_.push_back(frames_[i].pc);
    // The mappings that the walk knew may be old.
    again = result.end != CLEW_END_ROOT && tracee_.refresh();
    if (again) continue;
    Chain chain{addresses_, result.end == CLEW_END_ROOT, clew_end_name(result.end)};
    if (!thread.judge.judge(registers.rip, chain, callers)) {
      describe(registers.rip);
    } else if (options_.faults && !just_begun) {
      uint64_t wrong = report_.faults.wrong;
      injector_.inject(tracee_, process::registers_of(registers), random_, report_.faults);
      if (report_.faults.wrong > wrong) describe(registers.rip);
    }
  }
  if (!peers_.empty() && peers_saw_maps_ != tracee_.maps_read()) {
    peers_saw_maps_ = tracee_.maps_read();
    for (const auto& peer : peers_) peer->remapped();
  }
  for (size_t i = 0; i < peers_.size(); ++i) {
    Chain chain = peers_[i]->unwind(thread.tid);
    // A peer need not say that it has reached the root: libdw calls the dynamic linker's entry an error.
    chain.at_root |= chain.addresses.size() == callers.size() + 1;
    thread.peer_judges[i].judge(registers.rip, chain, callers);
  }
}

/// Whether the kernel has just made the stack frame of a handler for the signal that was given (struct
/// rt_sigframe, arch/x86/include/asm/sigframe.h): the restorer's address, then the ucontext.
bool Prover::handler_begins(Thread& thread, const user_regs_struct& registers) {
  if (thread.signal == 0 || registers.rdx != registers.rsp + 8 ||
      registers.rdi != static_cast<uint64_t>(thread.signal))
    return false;
  constexpr uint64_t kContextSp = 40 + 8 * 15, kContextPc = 40 + 8 * 16;
  uint64_t restorer = 0, pc = 0, sp = 0;
  if (!tracee_.read_word(registers.rsp, restorer) || !tracee_.read_word(registers.rdx + kContextSp, sp) ||
      !tracee_.read_word(registers.rdx + kContextPc, pc) || sp != thread.before.rsp)
    return false;
  thread.shadow.begin_handler(registers.rsp, restorer, pc, sp);
  return true;
}

void Prover::after_system_call(const user_regs_struct& before, const user_regs_struct& after) {
  bool failed = after.rax > -4096ull;
  uint64_t start = before.rdi, length = before.rsi;
  bool code = false;
  switch (before.rax) {
    case SYS_mmap:
      start = after.rax;
      code = (before.rdx & PROT_EXEC) != 0;
      break;
    case SYS_mprotect:
    case SYS_pkey_mprotect:
      code = (before.rdx & PROT_EXEC) != 0;
      break;
    case SYS_munmap:
      break;
    case SYS_mremap:
    case SYS_shmat:
    case SYS_remap_file_pages:
      code = true;
      break;
    default:
      return;
  }
  if (failed) return;
  tracee_.remapped(code || tracee_.had_code(start, start + length));
}

/// The instruction that the thread was let go at is done.
void Prover::executed(Thread& thread, const user_regs_struct& registers) {
  const user_regs_struct& before = thread.before;
  const Instruction& instruction = *thread.instruction;
  ++report_.instructions;
  tracee_.executed(before.rip, instruction);
  Left left = Left::kNo;
  if (instruction.flow == Flow::kSyscall) {
    if (before.rax == SYS_rt_sigreturn) {
      left = thread.shadow.end_handler(registers.rsp, tracee_);
    } else {
      after_system_call(before, registers);
    }
  } else {
    left = thread.shadow.step({instruction, before.rip, before.rsp, registers.rip, registers.rsp}, tracee_);
  }
  if (left == Left::kNo) return;
  auto settle = [&](Judge& judge) {
    if (left == Left::kSwitched)
      judge.switched(registers.rip, thread.shadow.callers());
    else
      judge.returned(registers.rip, thread.shadow.callers());
  };
  settle(thread.judge);
  for (Judge& judge : thread.peer_judges) settle(judge);
}

/// The thread stands at an instruction that it has not executed yet.
void Prover::arrived(Thread& thread, const user_regs_struct& registers) {
  if (!thread.begun) {
    thread.begun = true;
    thread.shadow = ShadowStack(registers.rsp);
  } else if (handler_begins(thread, registers)) {
    // Where it stands now is all that happened.
  } else if (registers.rip == thread.before.rip && registers.rsp == thread.before.rsp) {
    // A round of a string instruction, a signal before the instruction, or an event in a system call. A jump
    // to itself is taken for one, which changes nothing.
    thread.before = registers;
    return;
  } else if (thread.instruction) {
    executed(thread, registers);
  }
  thread.before = registers;
  thread.instruction = tracee_.instruction_at(registers.rip);
  if (is_sampled()) judge(thread, registers);
}

void Prover::new_program(Thread& thread) {
  thread.judge.finish();
  for (Judge& judge : thread.peer_judges) judge.finish();
  thread.begun = false;
  tracee_.remapped(true);
}

void Prover::resume(Thread& thread, int signal) {
  thread.signal = signal;
  tracee_.moved();
  ptrace(PTRACE_SINGLESTEP, thread.tid, nullptr, reinterpret_cast<void*>(static_cast<intptr_t>(signal)));
}

void Prover::stopped(Thread& thread, int status) {
  int signal = WSTOPSIG(status), event = status >> 16;
  user_regs_struct registers;
  if (ptrace(PTRACE_GETREGS, thread.tid, nullptr, &registers) != 0) return;  // killed meanwhile
  switch (event) {
    case 0:
      break;
    case PTRACE_EVENT_STOP:
      // A stopping signal's effect; else a new thread's first stop.
      if (signal == SIGSTOP || signal == SIGTSTP || signal == SIGTTIN || signal == SIGTTOU) {
        ptrace(PTRACE_LISTEN, thread.tid, nullptr, nullptr);
        return;
      }
      arrived(thread, registers);
      resume(thread, 0);
      return;
    case PTRACE_EVENT_EXEC: {
      // The process goes on as its leader, whichever thread asked for it.
      std::vector<pid_t> gone;
      for (const auto& [tid, other] : threads_)
        if (tid != thread.tid) gone.push_back(tid);
      for (pid_t tid : gone) forget(tid);
      new_program(thread);
      arrived(thread, registers);
      resume(thread, 0);
      return;
    }
    default:
      resume(thread, 0);  // within the system call that it has been let go at
      return;
  }
  // Our own step's trap, or a signal of the program's.
  bool trap = signal == SIGTRAP;
  if (trap && (registers.rip == thread.before.rip || !thread.instruction ||
               thread.instruction->flow == Flow::kSyscall || thread.instruction->length == 1)) {
    siginfo_t info;
    if (ptrace(PTRACE_GETSIGINFO, thread.tid, nullptr, &info) == 0)
      trap = info.si_code == TRAP_TRACE || info.si_code == TRAP_BRKPT || info.si_code == SIGTRAP;
  }
  arrived(thread, registers);
  resume(thread, trap ? 0 : signal);
}

/// A thread of the command; not a process that it made by clone.
bool Prover::is_of_command(pid_t tid) const {
  return threads_.contains(tid) ||
         access(fmt::format("/proc/{}/task/{}", tracee_.pid(), tid).c_str(), F_OK) == 0;
}

Report Prover::run() {
  double began = now();
  pid_t leader = tracee_.pid();
  thread(leader);
  // It stands at its execve.
  int first = 0;
  waitpid(leader, &first, __WALL);
  stopped(thread(leader), first);
  for (;;) {
    int status = 0;
    pid_t tid = waitpid(-1, &status, __WALL);
    if (tid < 0 && errno == EINTR) continue;
    if (tid < 0) break;
    if (WIFSTOPPED(status)) {
      if (is_of_command(tid))
        stopped(thread(tid), status);
      else
        ptrace(PTRACE_DETACH, tid, nullptr, nullptr);
      continue;
    }
    forget(tid);
    if (tid != leader) continue;
    report_.status = status;
    break;
  }
  while (!threads_.empty()) forget(threads_.begin()->first);
  report_.addresses = tracee_.executed_addresses();
  report_.seconds = now() - began;
  return std::move(report_);
}

void execute(const std::vector<std::string>& command) {
  std::vector<char*> arguments;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  arguments.push_back(nullptr);
  execvp(arguments[0], arguments.data());
}

/// Starts the command, seized before it executes and stopped once it does.
Result<pid_t> start(const Options& options) {
  int go[2], failed[2];
  if (pipe2(go, O_CLOEXEC) != 0 || pipe2(failed, O_CLOEXEC) != 0)
    return Error{fmt::format("cannot make a pipe: {}", std::strerror(errno))};
  pid_t pid = fork();
  if (pid < 0) return Error{fmt::format("cannot make a process: {}", std::strerror(errno))};
  if (pid == 0) {
    char byte;
    close(go[1]);
    if (read(go[0], &byte, 1) == 1) execute(options.command);
    int why = errno;
    (void)!write(failed[1], &why, sizeof why);
    _exit(127);
  }
  process::UniqueFd go_in(go[0]), go_out(go[1]), failed_in(failed[0]);
  close(failed[1]);
  unsigned long flags = PTRACE_O_EXITKILL | PTRACE_O_TRACEEXEC | (options.threads ? PTRACE_O_TRACECLONE : 0);
  if (ptrace(PTRACE_SEIZE, pid, nullptr, reinterpret_cast<void*>(flags)) != 0) {
    int why = errno;
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    return Error{fmt::format("cannot trace {}: {} (a sandbox may forbid ptrace: run it outside)",
                             options.command[0], std::strerror(why))};
  }
  (void)!write(go_out.get(), "", 1);
  int why = 0;
  if (read(failed_in.get(), &why, sizeof why) == static_cast<ssize_t>(sizeof why)) {
    waitpid(pid, nullptr, __WALL);
    return Error{fmt::format("cannot execute {}: {}", options.command[0], std::strerror(why))};
  }
  return pid;
}

}  // namespace

Result<Report> prove(const Options& options) {
  auto pid = start(options);
  if (!pid) return Error{pid.error()};
  // A terminal's signals are the command's.
  signal(SIGINT, SIG_IGN);
  signal(SIGQUIT, SIG_IGN);
  Prover prover(options, *pid);
  return prover.run();
}

}  // namespace clew::prove
