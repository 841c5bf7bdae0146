// A C++ exception, instruction by instruction: the functions on the stack at each of them.
//
// The child throws through two functions with destructors; it is single-stepped and walked at every
// instruction. What is expected is the order in which the functions begin and end, which the source says.
#include <alloca.h>
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <string>
#include <vector>

#include "process/stop.hpp"

volatile int steps_sink = 1;

extern "C" {
[[gnu::noinline]] void steps_cleanup() { steps_sink = steps_sink + 1; }
[[gnu::noinline]] void steps_done() { steps_sink = steps_sink + 1; }
}

namespace {
struct Guard {
  ~Guard() { steps_cleanup(); }
};
}  // namespace

extern "C" {
[[gnu::noinline]] void steps_thrower() {
  if (steps_sink != 0) throw 1;
}
[[gnu::noinline]] void steps_inner() {
  Guard guard;
  steps_thrower();
  steps_sink = steps_sink + 2;
}
// With a frame pointer, of which the inner function knows nothing.
[[gnu::noinline]] void steps_outer() {
  Guard guard;
  auto* array = static_cast<volatile char*>(alloca(static_cast<size_t>(steps_sink) % 100 + 16));
  array[0] = 1;
  steps_inner();
  steps_sink = steps_sink + array[0];
}
[[gnu::noinline]] void steps_catcher() {
  try {
    steps_outer();
  } catch (int) {
    steps_sink = 1;
  }
  steps_done();
  steps_sink = steps_sink + 1;  // no tail call
}
}

namespace clew::process {
namespace {

/// Names of our functions, by their symbols.
class Functions {
 public:
  Functions() {
    auto image = elf::Image::open("/proc/self/exe");
    EXPECT_TRUE(image) << image.error();
    for (const elf::Symbol& symbol : image->symbols()) {
      std::string name(symbol.name);
      if (!name.starts_with("steps_")) continue;
      name = name.substr(6, name.find('.') - 6);  // .cold and such are the function as well
      functions_.push_back({symbol.address, symbol.address + symbol.size, name});
    }
    for (const Function& function : functions_)
      if (function.name == "done") bias_ = reinterpret_cast<uint64_t>(&steps_done) - function.start;
  }
  std::string at(uint64_t address) const {
    for (const Function& function : functions_)
      if (address - bias_ >= function.start && address - bias_ < function.end) return function.name;
    return "";
  }

 private:
  struct Function {
    uint64_t start, end;
    std::string name;
  };
  std::vector<Function> functions_;
  uint64_t bias_ = 0;
};

unwind::Registers registers_of(const user_regs_struct& user) {
  unwind::Registers registers;
  registers.value = {user.rax, user.rdx, user.rcx, user.rbx, user.rsi, user.rdi, user.rbp, user.rsp, user.r8,
                     user.r9,  user.r10, user.r11, user.r12, user.r13, user.r14, user.r15, user.rip};
  registers.known = (1u << CLEW_REGISTERS) - 1;
  return registers;
}

TEST(ThrowSteps, EveryInstructionHasTheFunctionsThatAreLeft) {
  const Functions functions;
  steps_catcher();  // symbols are bound now
  const pid_t pid = fork();
  if (pid == 0) {
    if (ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) _exit(98);
    raise(SIGSTOP);
    steps_catcher();
    _exit(0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(pid, &status, 0), pid);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 98) GTEST_SKIP() << "ptrace is forbidden here";
  ASSERT_TRUE(WIFSTOPPED(status));
  ModuleCache modules;
  auto space = AddressSpace::of_process(pid, modules);
  ASSERT_TRUE(space) << space.error();

  std::vector<std::string> seen;
  std::vector<clew_frame> frames(512);
  size_t steps = 0, incomplete = 0;
  std::string chain, first_incomplete;
  while (chain != "catcher done" && ++steps < 1'000'000) {
    ASSERT_EQ(ptrace(PTRACE_SINGLESTEP, pid, nullptr, nullptr), 0);
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    ASSERT_TRUE(WIFSTOPPED(status)) << "after " << steps << " steps";
    user_regs_struct user;
    ASSERT_EQ(ptrace(PTRACE_GETREGS, pid, nullptr, &user), 0);
    StoppedTarget target(pid, *space);
    const unwind::WalkResult walked = unwind::walk(target, registers_of(user), frames);
    chain.clear();
    for (size_t i = walked.frames; i-- > 0;) {
      const uint64_t pc = frames[i].pc - ((frames[i].flags & CLEW_FRAME_EXACT_PC) ? 0 : 1);
      if (const std::string name = functions.at(pc); !name.empty())
        chain += (chain.empty() ? "" : " ") + name;
    }
    if (walked.end != CLEW_END_ROOT && incomplete++ == 0)
      first_incomplete = std::string(clew_end_name(walked.end)) + " at step " + std::to_string(steps);
    if (seen.empty() ? !chain.empty() : seen.back() != chain) seen.push_back(chain);
  }
  kill(pid, SIGKILL);
  waitpid(pid, &status, 0);
  EXPECT_EQ(incomplete, 0u) << first_incomplete;
  const std::vector<std::string> expected = {"catcher",
                                             "catcher outer",
                                             "catcher outer inner",
                                             "catcher outer inner thrower",
                                             "catcher outer inner",
                                             "catcher outer inner cleanup",
                                             "catcher outer inner",
                                             "catcher outer",
                                             "catcher outer cleanup",
                                             "catcher outer",
                                             "catcher",
                                             "catcher done"};
  EXPECT_EQ(seen, expected) << "after " << steps << " steps";
}

}  // namespace
}  // namespace clew::process
