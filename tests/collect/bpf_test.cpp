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
#include <fstream>
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

/// Where a BPF program's frame lies, as the trace has it.
struct Place {
  std::string function, program, file;
  uint32_t line = 0;
  uint64_t address = 0;  // of the instruction, or in the call before it
};
Place place_of(const TraceFrame& frame) {
  Place place;
  const uint64_t address = frame.frame.pc - ((frame.frame.flags & CLEW_FRAME_EXACT_PC) != 0 ? 0 : 1);
  place.address = address;
  if (frame.bpf_function == nullptr) return place;
  place.function = frame.bpf_function->name;
  place.program = frame.bpf_function->program;
  for (const auto& line : frame.bpf_function->lines) {
    if (line.address > address) break;
    place.file = line.file;
    place.line = line.line;
  }
  return place;
}

/// The lines of a function in burn.bpf.c, from the one with its name to the closing brace.
std::pair<uint32_t, uint32_t> lines_of(const std::string& function) {
  std::ifstream source(CLEW_SOURCE_DIR "/tests/collect/burn.bpf.c");
  std::string text;
  uint32_t number = 0, first = 0;
  while (std::getline(source, text)) {
    ++number;
    if (first == 0 && text.find(function + "(") != std::string::npos && !text.starts_with(" "))
      first = number;
    if (first != 0 && text == "}") return {first, number};
  }
  return {0, 0};
}

struct Taken {
  std::vector<uint64_t> kernel;  // innermost first
  std::vector<Place> places;     // of the same frames
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
        one.places.push_back(place_of(frame));
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
  uint64_t cpu_used_ns = 0;  // enough of it, however busy the machine is
  for (int i = 0; i < 600 && cpu_used_ns < 1'400'000'000; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    cpu_used_ns = cpu_ns(child) - cpu_before_ns;
  }
  (*session)->stop();
  const auto names = symbolize::KernelSymbols::load();  // while the programs are there
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);

  const auto is = [&](const Taken& one, size_t frame, const char* part) {
    return frame < one.kernel.size() && names.name(one.kernel[frame]).find(part) != std::string::npos;
  };
  // burn() is inlined.
  const auto inlined = lines_of("burn");
  size_t inner = 0, middle = 0, holes = 0, incomplete = 0, interrupted = 0, in_program = 0;
  for (const Taken& one : taken) {
    incomplete += one.end != CLEW_END_ROOT;
    EXPECT_EQ(one.end == CLEW_END_ROOT, one.user != 0) << one.end;
    for (size_t i = 0; i < one.kernel.size(); ++i) {
      // What kallsyms calls bpf_prog_TAG_NAME is the function NAME, at one of its lines.
      const Place& place = one.places[i];
      const std::string symbol = names.name(place.address);
      // Not a return address: the instruction that was interrupted.
      EXPECT_TRUE(place.address == one.kernel[i] || (i != 0 && !is(one, i - 1, "asm_"))) << symbol;
      // Another test's program may run at the same system calls, and be gone by now.
      const bool mine = is(one, i, GetParam()) || is(one, i, "_burn_inner") || is(one, i, "_burn_middle");
      if (mine && symbol.find("_burn_") != std::string::npos) {
        ++in_program;
        EXPECT_TRUE(symbol.starts_with("bpf_prog_")) << symbol;
        EXPECT_NE(symbol.find("_" + place.function + " [bpf]"), std::string::npos)
            << symbol << place.function;
        EXPECT_EQ(place.program, place.function == GetParam() ? "" : GetParam());
        EXPECT_TRUE(place.file.ends_with("tests/collect/burn.bpf.c")) << place.file;
        const auto [first, last] = lines_of(place.function);
        const bool own = place.line >= first && place.line <= last;
        const bool of_inlined =
            place.function == GetParam() && place.line >= inlined.first && place.line <= inlined.second;
        EXPECT_TRUE(own || of_inlined) << place.function << " line " << place.line;
      } else if (names.is_permanent(place.address)) {
        EXPECT_EQ(place.function, "") << symbol;
      }
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
  EXPECT_GT(in_program, taken.size());
  // Nearly all of the child's time is inside the program, and the samples due there are taken: some are not
  // on a machine that is emulated or whose time is taken away, but where they are kept from us nearly all are
  // missing.
  const uint64_t due = cpu_used_ns * options.frequency_hz / 1'000'000'000;
  EXPECT_GT(taken.size(), due / 4);
  EXPECT_GT(inner, 30u);
  EXPECT_GT(middle, 250u);
  EXPECT_LE(incomplete, holes + taken.size() / 1000 + 2);
  // Below an interrupt the kernel leaves the same caller out, where nobody sees the registers: one sample in
  // a thousand.
  EXPECT_LE(interrupted, taken.size() / 200 + 2);
  // The kernel does not get past the first instructions of the program itself: some in a thousand samples.
  EXPECT_LE(holes, taken.size() / 100 + 2);
}

/// A program that is loaded while the recording runs, and unloaded before it ends.
TEST(BpfProgramsOfOthers, AreKnownThoughTheyComeAndGo) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  int go[2], ready[2];
  ASSERT_EQ(pipe(go), 0);
  ASSERT_EQ(pipe(ready), 0);
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
    char byte;
    if (read(go[0], &byte, 1) != 1) _exit(1);
    for (int round = 0; round < 3; ++round) {  // each may get the memory of the one before
      burn* skeleton = burn__open();
      const char* program = round % 2 == 0 ? "burn_raw" : "burn_btf";
      bpf_program__set_autoload(bpf_object__find_program_by_name(skeleton->obj, program), true);
      if (burn__load(skeleton) != 0) _exit(1);
      skeleton->bss->target = static_cast<uint32_t>(getpid());
      if (burn__attach(skeleton) != 0) _exit(1);
      for (int i = 0; i < 400; ++i) syscall(SYS_getppid);
      burn__destroy(skeleton);
    }
    if (write(ready[1], "x", 1) != 1 || read(go[0], &byte, 1) != 1) _exit(1);
    _exit(0);
  }
  perf::SessionOptions options;
  options.pids = {child};
  options.bpf = true;
  std::mutex mutex;
  size_t whole = 0, raw = 0, btf = 0;
  auto session = perf::Session::start(options, [&](const Trace& trace) {
    const std::lock_guard lock(mutex);
    std::string chain;
    for (const TraceFrame& frame : trace.frames) {
      const Place place = place_of(frame);
      if (place.function.empty()) continue;
      EXPECT_TRUE(place.file.ends_with("tests/collect/burn.bpf.c")) << place.file;
      EXPECT_NE(place.line, 0u);
      chain = place.function + ";" + chain;
      raw += place.function == "burn_raw";
      btf += place.function == "burn_btf";
    }
    whole += chain.starts_with("burn_raw;burn_middle;") || chain.starts_with("burn_btf;burn_middle;");
    // Never the functions of two programs in one chain.
    EXPECT_FALSE(chain.find("burn_raw") != std::string::npos && chain.find("burn_btf") != std::string::npos)
        << chain;
  });
  char byte;
  if (session) {
    EXPECT_EQ(write(go[1], "1", 1), 1);
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    (*session)->stop();
  }
  EXPECT_EQ(write(go[1], "2", 1), 1);
  waitpid(child, nullptr, 0);
  ASSERT_TRUE(session) << session.error();
  EXPECT_GT(whole, 20u);
  EXPECT_GT(raw, 10u);
  EXPECT_GT(btf, 5u);
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
