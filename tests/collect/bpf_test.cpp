// Samples taken and unwound by BPF programs. As root.
#include <bpf/libbpf.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <chrono>
#include <cstdarg>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "burn.skel.h"
#include "collect/bpf/programs.hpp"
#include "collect/perf/session.hpp"
#include "symbolize/symbolize.hpp"

namespace clew::collect {
namespace {

struct Taken {
  std::vector<uint64_t> kernel;  // innermost first
  size_t user = 0;
  clew_end end = CLEW_END_ROOT;
};

/// CPU time of a process so far.
uint64_t cpu_ns(pid_t pid) {
  clockid_t clock = 0;
  timespec time = {};
  if (clock_getcpuclockid(pid, &clock) != 0 || clock_gettime(clock, &time) != 0) return 0;
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

/// A child that has a BPF program burn time at each of its system calls, until it is killed.
pid_t start_burning(const char* program, int ready) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  burn* skeleton = burn__open();
  if (skeleton == nullptr) _exit(1);
  bpf_program__set_autoload(bpf_object__find_program_by_name(skeleton->obj, program), true);
  if (burn__load(skeleton) != 0) _exit(1);
  skeleton->bss->target = static_cast<uint32_t>(getpid());
  if (burn__attach(skeleton) != 0 || write(ready, "x", 1) != 1) _exit(1);
  for (;;) syscall(SYS_getppid);
}

class BpfPrograms : public testing::TestWithParam<const char*> {};

TEST_P(BpfPrograms, AreWholeInTheStacksOfWhatTheyInterrupt) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  int ready[2];
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = start_burning(GetParam(), ready[1]);
  close(ready[1]);
  char byte;
  ASSERT_EQ(read(ready[0], &byte, 1), 1) << "the BPF program could not be loaded";
  close(ready[0]);

  std::mutex mutex;
  std::vector<Taken> taken;
  perf::SessionOptions options;
  options.pids = {child};
  options.bpf = true;
  auto session = perf::Session::start(options, [&](const Trace& trace) {
    Taken one;
    one.end = trace.end;
    for (const TraceFrame& frame : trace.frames) {
      if (frame.frame.how == CLEW_HOW_KERNEL) {
        one.kernel.push_back(frame.frame.pc);
      } else {
        ++one.user;
      }
    }
    const std::lock_guard lock(mutex);
    taken.push_back(std::move(one));
  });
  if (!session) {
    kill(child, SIGKILL);
    waitpid(child, nullptr, 0);
    FAIL() << session.error();
  }
  const uint64_t cpu_before_ns = cpu_ns(child);
  std::this_thread::sleep_for(std::chrono::milliseconds(1500));
  const uint64_t cpu_used_ns = cpu_ns(child) - cpu_before_ns;
  (*session)->stop();
  const auto names = symbolize::KernelSymbols::load();  // while the programs are there
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);

  const auto is = [&](const Taken& one, size_t frame, const char* part) {
    return frame < one.kernel.size() && names.name(one.kernel[frame]).find(part) != std::string::npos;
  };
  size_t inner = 0, middle = 0, holes = 0, incomplete = 0, interrupted = 0;
  for (const Taken& one : taken) {
    incomplete += one.end != CLEW_END_ROOT;
    EXPECT_EQ(one.end == CLEW_END_ROOT, one.user != 0) << one.end;
    for (size_t i = 0; i < one.kernel.size(); ++i) {
      if (is(one, i, "burn_inner")) {
        ++inner;
        const bool whole = is(one, i + 1, "burn_middle") || is(one, i + 1, "bpf_loop");
        EXPECT_TRUE(whole || i > 0);
        interrupted += !whole;
      } else if (is(one, i, "burn_middle")) {
        ++middle;
        EXPECT_TRUE(is(one, i + 1, GetParam())) << "frame " << i;
      } else if (is(one, i, GetParam())) {
        EXPECT_TRUE(is(one, i + 1, "bpf_trace_run") || is(one, i + 1, "trace_call_bpf")) << "frame " << i;
        // What lies between it and the kernel's entry is missing: the trace says so.
        const bool hole = i + 2 >= one.kernel.size();
        EXPECT_TRUE(!hole || one.end == CLEW_END_NO_RULE) << one.end;
        holes += hole;
      }
    }
  }
  // No sample is missing: nearly all of the child's time is inside the program.
  const uint64_t due = cpu_used_ns * options.frequency_hz / 1'000'000'000;
  EXPECT_GT(taken.size(), due * 9 / 10);
  EXPECT_GT(inner, 50u);
  EXPECT_GT(middle, 500u);
  EXPECT_LE(incomplete, holes + taken.size() / 1000 + 2);
  // Below an interrupt the kernel leaves the same caller out, where nobody sees the registers: one sample in
  // a thousand.
  EXPECT_LE(interrupted, taken.size() / 200 + 2);
  // The kernel does not get past the first instructions of the program itself: some in a thousand samples.
  EXPECT_LE(holes, taken.size() / 100 + 2);
}

INSTANTIATE_TEST_SUITE_P(Kinds, BpfPrograms, testing::Values("burn_raw", "burn_btf", "burn_classic"),
                         [](const auto& kind) { return std::string(kind.param); });

TEST(BpfProgramsOfOurs, FollowChildrenAndForgetWhatEnds) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  auto programs = bpf::Programs::load({});
  ASSERT_TRUE(programs) << programs.error();
  ASSERT_TRUE((*programs)->start(1'000'000));
  int go[2], back[2];
  ASSERT_EQ(pipe(go), 0);
  ASSERT_EQ(pipe(back), 0);
  const pid_t child = fork();
  if (child == 0) {
    char byte;
    if (read(go[0], &byte, 1) != 1) _exit(1);
    const pid_t grandchild = fork();
    if (write(back[1], "x", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
    if (grandchild != 0) {
      std::thread([] {}).join();  // the end of a thread is not the end of the process
      waitpid(grandchild, nullptr, 0);
      if (write(back[1], "y", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
    }
    _exit(0);
  }
  char byte;
  (*programs)->add_target(child, false);
  EXPECT_EQ((*programs)->targets(), 1u);
  ASSERT_EQ(write(go[1], "1", 1), 1);  // forks
  for (int i = 0; i < 2; ++i) ASSERT_EQ(read(back[0], &byte, 1), 1);
  EXPECT_EQ((*programs)->targets(), 2u);
  ASSERT_EQ(write(go[1], "22", 2), 2);  // the grandchild ends
  ASSERT_EQ(read(back[0], &byte, 1), 1);
  EXPECT_EQ((*programs)->targets(), 1u);
  ASSERT_EQ(write(go[1], "3", 1), 1);
  waitpid(child, nullptr, 0);
  EXPECT_EQ((*programs)->targets(), 0u);
}

}  // namespace
}  // namespace clew::collect
