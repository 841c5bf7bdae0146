// clew record with the perf collector.
#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/record_fixture.hpp"
#include "collect/perf/perf_event.hpp"
#include "profile/profile.hpp"

namespace clew::cli {
namespace {

class Record : public RecordTest {
 protected:
  void SetUp() override {
    if (const auto rights = collect::perf::probe_rights(false); !rights) GTEST_SKIP() << rights.error();
    RecordTest::SetUp();
  }
};

TEST_F(Record, EveryStackOfAProgramReachesItsRoot) {
  const std::string program = compile("known", std::string(kSpin) + R"(
__attribute__((noinline)) void leaf(void) { spin(400); sink++; }
__attribute__((noinline)) void middle(void) { leaf(); sink++; }
__attribute__((noinline)) void outer(void) { middle(); sink++; }
int main(void) { outer(); return 7; }
)");
  const Ran ran = clew({"record", "--", program});
  EXPECT_EQ(ran.status, 7) << ran.err;
  EXPECT_EQ(ran.out, "");  // the command's own
  const profile::Profile profile = recording();
  ASSERT_GT(profile.samples.size(), 100u);
  EXPECT_EQ(incomplete(profile), 0u);
  EXPECT_EQ(profile.totals.lost, 0u);
  const size_t known = count(profile, [&](const auto& sample) {
    return chain(profile, sample).find("main;outer;middle;leaf;spin") != std::string::npos;
  });
  EXPECT_GT(known, profile.samples.size() * 9 / 10);
  // The time between the samples is what the kernel accounts, but for the start-up and time in the kernel.
  uint64_t sampled_ns = 0;
  for (const auto& sample : profile.samples) sampled_ns += sample.weight_ns;
  EXPECT_GT(profile.totals.cpu_used_ns, 350'000'000u);
  EXPECT_LE(sampled_ns, profile.totals.cpu_used_ns * 105 / 100);
}

TEST_F(Record, TheCommandsStatusIsPassedOn) {
  EXPECT_EQ(clew({"record", "--", "sh", "-c", "exit 3"}).status, 3);
  EXPECT_EQ(clew({"record", "--", "sh", "-c", "kill -9 $$"}).status, 137);
  EXPECT_EQ(clew({"record", "--", "sh", "-c", "exit 0"}).status, 0);
}

TEST_F(Record, TheCommandsWordsAreItsOwn) {
  const Ran ran = clew({"record", "--", "echo", "-o", "--", "--help"});
  EXPECT_EQ(ran.status, 0) << ran.err;
  EXPECT_EQ(ran.out, "-o -- --help\n");
}

TEST_F(Record, AMissingCommandIsOneLineAndNoRecording) {
  for (const char* name : {"no-such-command-here", "./no-such-file", "/"}) {
    const Ran ran = clew({"record", "--", name});
    EXPECT_EQ(ran.status, 125);
    EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
    EXPECT_NE(ran.err.find(std::string("cannot run '") + name + "'"), std::string::npos) << ran.err;
  }
  EXPECT_FALSE(std::filesystem::exists(path("clew.otlp.zst")));
}

TEST_F(Record, AnUnwritableOutputStopsBeforeTheCommandRuns) {
  const Ran ran = clew({"record", "-o", "/proc/clew.otlp.zst", "--", "touch", "ran"});
  EXPECT_EQ(ran.status, 125);
  EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(path("ran")));
}

TEST_F(Record, OptionsThatMakeNoSense) {
  EXPECT_EQ(clew({"record"}).status, 2);
  EXPECT_EQ(clew({"record", "-p", "1", "-a"}).status, 2);
  const auto expect_line = [this](std::vector<std::string> words, int status, const std::string& part) {
    words.insert(words.begin(), "record");
    const Ran ran = clew(words);
    EXPECT_EQ(ran.status, status) << ran.err;
    EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
    EXPECT_NE(ran.err.find(part), std::string::npos) << ran.err;
  };
  expect_line({"-F", "0", "--", "true"}, 125, "between 1 and 100000 Hz");
  expect_line({"-F", "-5", "--", "true"}, 125, "--frequency = -5 is not a number in its range");
  expect_line({"-F", "x", "-p", "1"}, 2, "--frequency = x is not a number in its range");
  expect_line({"-p", "x"}, 2, "--pid = x is not a number in its range; see clew record --help");
  expect_line({"-p", "99999999999"}, 2, "--pid = 99999999999 is not a number in its range");
  expect_line({"-p", "0"}, 2, "give a PID");
  expect_line({"--collector", "x", "--", "true"}, 125, "no collector 'x': use auto, bpf, perf");
  for (const char* seconds : {"-1", "nan", "inf", "1e300"})
    expect_line({"--duration", seconds, "--", "true"}, 125, "give the seconds to record");
  expect_line({"echo", "x"}, 2, "'echo' is not an option; put -- before the command: clew record -- echo");
  expect_line({"--frob", "--", "true"}, 125, "--frob");
  const Ran bpf = clew({"record", "--collector", "bpf", "--", "true"});  // as an ordinary user
  EXPECT_EQ(bpf.status, 125);
  EXPECT_NE(bpf.err.find("CAP_BPF"), std::string::npos) << bpf.err;
  EXPECT_EQ(std::ranges::count(bpf.err, '\n'), 1) << bpf.err;
  const Ran gone = clew({"record", "-p", "2147483000"});
  EXPECT_EQ(gone.status, 2);
  EXPECT_NE(gone.err.find("no process 2147483000"), std::string::npos) << gone.err;
  EXPECT_EQ(std::ranges::count(gone.err, '\n'), 1) << gone.err;
}

TEST_F(Record, WherePerfIsForbiddenItSaysWhatToDo) {
  const Ran ran = clew({"record", "--collector", "perf", "--", "touch", "ran"}, forbid_perf);
  EXPECT_EQ(ran.status, 125);
  EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
  EXPECT_NE(ran.err.find("perf_event_paranoid"), std::string::npos) << ran.err;
  EXPECT_NE(ran.err.find("sysctl"), std::string::npos) << ran.err;
  EXPECT_FALSE(std::filesystem::exists(path("ran")));
  EXPECT_FALSE(std::filesystem::exists(path("clew.otlp.zst")));
}

TEST_F(Record, WherePerfIsForbiddenTheDoctorSaysSo) {
  const Ran ran = clew({"doctor", "--json"}, forbid_perf);
  EXPECT_EQ(ran.status, 0) << ran.err;
  for (const char* name : {"own_processes", "kernel_time", "all_processes", "hardware_counters"}) {
    const std::string text = std::string("{\"name\":\"") + name + "\",\"works\":";
    EXPECT_NE(ran.out.find(text + "false"), std::string::npos) << name << "\n" << ran.out;
  }
  EXPECT_NE(ran.out.find("sysctl kernel.perf_event_paranoid=2"), std::string::npos) << ran.out;
}

TEST_F(Record, AnInterruptEndsTheCommandAndKeepsTheRecording) {
  const std::string program = compile("endless", std::string(kSpin) + R"(
int main(int argc, char** argv) {
  FILE_MARK
  for (;;) spin(1000);
}
)",
                                      "-O1 '-DFILE_MARK=spin(100); { int fd = creat(argv[1], 0644); "
                                      "close(fd); }' -include fcntl.h -Wno-unused");
  for (const int signal : {SIGINT, SIGTERM}) {
    const std::string mark = path("mark" + std::to_string(signal));
    const pid_t child = start({"record", "--", program, mark});
    wait_for_file(mark);
    kill(child, signal);
    const Ran ran = wait_for(child);
    EXPECT_EQ(ran.status, 128 + signal) << ran.err;
    EXPECT_GT(recording().samples.size(), 20u);
  }
}

TEST_F(Record, AnInterruptThatTheCommandIgnoresStillEndsTheRecording) {
  const std::string mark = path("mark");
  const pid_t child =
      start({"record", "--", "sh", "-c", "trap '' INT; touch mark; while [ -e mark ]; do :; done"});
  wait_for_file(mark);
  kill(child, SIGINT);
  const Ran ran = wait_for(child);
  std::filesystem::remove(mark);  // ends the command
  EXPECT_EQ(ran.status, 130) << ran.err;
  EXPECT_GT(recording().samples.size(), 0u);
}

TEST_F(Record, ARunningProcessWithItsThreadsAndLaterChildren) {
  const std::string program = compile("threads", std::string(kSpin) + R"(
#include <fcntl.h>
__attribute__((noinline)) void in_thread(void) { spin(50); sink++; }
__attribute__((noinline)) void in_later_thread(void) { spin(50); sink++; }
__attribute__((noinline)) void in_child(void) { spin(50); sink++; }
static void* first(void* p) { for (;;) in_thread(); return p; }
static void* later(void* p) { for (;;) in_later_thread(); return p; }
int main(int argc, char** argv) {
  pthread_t t;
  pthread_create(&t, 0, first, 0);
  close(creat(argv[1], 0644));
  while (access(argv[2], F_OK)) usleep(1000);
  pthread_create(&t, 0, later, 0);
  if (fork() == 0) for (int i = 0; i < 20; i++) in_child();
  spin(argc * 300);
  return 0;
}
)",
                                      "-O1 -pthread");
  const std::string mark = path("mark"), go = path("go");
  const pid_t target = fork();
  if (target == 0) {
    if (geteuid() == 0 && (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
                           setresuid(kNobody, kNobody, kNobody) != 0)) {
      _exit(99);
    }
    execl(program.c_str(), program.c_str(), mark.c_str(), go.c_str(), nullptr);
    _exit(99);
  }
  wait_for_file(mark);
  const pid_t child = start({"record", "-p", std::to_string(target)});
  // The recording is under way once its file is there.
  wait_for_file(path("clew.otlp.zst"));
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  std::ofstream(go) << "go";
  const Ran ran = wait_for(child);  // ends with the target
  waitpid(target, nullptr, 0);
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_EQ(incomplete(profile), 0u);
  for (const char* name : {"in_thread", "in_later_thread", "in_child", "main"}) {
    EXPECT_GT(
        count(profile, [&](const auto& s) { return chain(profile, s).find(name) != std::string::npos; }), 0u)
        << name;
  }
  EXPECT_GT(count(profile, [&](const auto& s) { return s.pid != target; }), 0u);
}

TEST_F(Record, NoSampleOfManyShortProcessesLacksItsMappings) {
  const std::string program = compile("storm", std::string(kSpin) + R"(
__attribute__((noinline)) void execed(void) { spin(6); sink++; }
__attribute__((noinline)) void forked(void) { spin(4); sink++; }
int main(int argc, char** argv) {
  if (argc > 1) { execed(); return 0; }
  for (int i = 0; i < 60; i++) {
    if (fork() == 0) {
      forked();
      if (i % 2) execl(argv[0], argv[0], "x", (char*)0);
      _exit(0);
    }
    if (i % 4 == 3) while (wait(0) > 0) {}
  }
  while (wait(0) > 0) {}
  return 0;
}
)");
  const Ran ran = clew({"record", "--", program});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  std::set<pid_t> pids;
  for (const auto& sample : profile.samples) {
    pids.insert(sample.pid);
    EXPECT_EQ(sample.end, CLEW_END_ROOT) << clew_end_name(sample.end) << " " << chain(profile, sample);
    for (const uint32_t location : profile.stacks[sample.stack]) {
      const profile::Place& place = profile.locations[location].place;
      if (place.kind == profile::FrameKind::kNative) {
        EXPECT_NE(place.mapping, 0u);
      }
    }
  }
  EXPECT_GT(pids.size(), 50u);
  EXPECT_GT(
      count(profile,
            [&](const auto& s) { return chain(profile, s).find("main;execed;spin") != std::string::npos; }),
      30u);
}

TEST_F(Record, TheCopiedSizeFollowsTheWholeTree) {
  // Stacks of some 50 KiB in a process and in what it forks before and after the size was switched.
  const std::string program = compile("deep", std::string(kSpin) + R"(
__attribute__((noinline)) void deep(int n, long ms) {
  char room[1000];
  memset(room, n, sizeof room);
  if (n > 0) deep(n - 1, ms); else spin(ms);
  sink += room[n];
}
int main(void) {
  int before = fork();
  deep(50, 200);
  int after = fork();
  deep(50, 500);
  int last = fork();
  deep(50, 150);
  while (wait(0) > 0) {}
  return 0 * (before + after + last);
}
)");
  const Ran ran = clew({"record", "--", program});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  ASSERT_GT(profile.samples.size(), 1000u);
  std::vector<profile::ReadSample> samples = profile.samples;
  std::ranges::sort(samples, {}, &profile::ReadSample::time_ns);
  const uint64_t start_ns = samples.front().time_ns;
  std::set<pid_t> pids;
  for (const auto& sample : samples) {
    pids.insert(sample.pid);
    // One cut sample switches the tree; on a busy machine that may take a while.
    if (sample.time_ns > start_ns + 1'000'000'000) {
      EXPECT_EQ(sample.end, CLEW_END_ROOT) << clew_end_name(sample.end);
    }
  }
  EXPECT_EQ(pids.size(), 8u);
  EXPECT_LT(incomplete(profile), profile.samples.size() / 5);
}

/// A handler on an alternate stack that takes a good part of the time, however fast the machine.
const std::string kAlternate = std::string(kSpin) + R"(
#include <sys/time.h>
static void handler(int s) { spin(1); sink += s; }
__attribute__((noinline)) void interrupted(void) { spin(1500); sink++; }
int main(void) {
  stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
  sigaltstack(&stack, 0);
  struct sigaction action = {.sa_handler = handler, .sa_flags = SA_ONSTACK | SA_RESTART};
  sigaction(SIGALRM, &action, 0);
  struct itimerval every = {{0, 2000}, {0, 2000}};
  setitimer(ITIMER_REAL, &every, 0);
  interrupted();
  return 9;
}
)";

TEST_F(Record, AHandlerOnAnAlternateStackIsFollowedToTheInterruptedFrames) {
  const std::string program = compile("alternate", kAlternate);
  const Ran ran = clew({"record", "--", program});
  EXPECT_EQ(ran.status, 9) << ran.err;
  const profile::Profile profile = recording();
  const auto in_handler = [&](const auto& sample) {
    return chain(profile, sample).find(";handler") != std::string::npos;
  };
  // The first such sample tells that the thread needs to be stopped; it takes a moment until it can be.
  EXPECT_GT(count(profile, in_handler), 50u);
  EXPECT_LT(incomplete(profile), profile.samples.size() / 50);
  for (const auto& sample : profile.samples) {
    if (!in_handler(sample) || sample.end != CLEW_END_ROOT) continue;
    EXPECT_NE(chain(profile, sample).find("main;interrupted;spin"), std::string::npos)
        << chain(profile, sample);
  }
  // Each instant is sampled once, not once in either way.
  uint64_t sampled_ns = 0;
  for (const auto& sample : profile.samples) sampled_ns += sample.weight_ns;
  EXPECT_LE(sampled_ns, profile.totals.cpu_used_ns * 105 / 100);
}

TEST_F(Record, NoThreadIsStoppedWhereThatIsForbidden) {
  const std::string program = compile("alternate", kAlternate);
  const Ran ran = clew({"record", "--no-stop", "--", program});
  EXPECT_EQ(ran.status, 9) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_GT(count(profile, [](const auto& sample) { return sample.end == CLEW_END_OTHER_STACK; }), 50u);
}

TEST_F(Record, CoroutinesAreFollowedWhereverTheirStacksLie) {
  const std::string program = compile("coroutines", std::string(kSpin) + R"(
#include <ucontext.h>
static ucontext_t in_main, in_coroutine;
__attribute__((noinline)) void work(void) { spin(1); sink++; }
static void coroutine(void) { for (;;) { work(); swapcontext(&in_coroutine, &in_main); } }
int main(void) {
  getcontext(&in_coroutine);
  in_coroutine.uc_stack.ss_sp = malloc(1 << 16);
  in_coroutine.uc_stack.ss_size = 1 << 16;
  makecontext(&in_coroutine, coroutine, 0);
  for (int i = 0; i < 600; i++) { spin(1); swapcontext(&in_main, &in_coroutine); }
  return 0;
}
)");
  const Ran ran = clew({"record", "--", program});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_GT(count(profile,
                  [&](const auto& s) {
                    return chain(profile, s).find("coroutine;work;spin") != std::string::npos;
                  }),
            100u);
  EXPECT_LT(incomplete(profile), profile.samples.size() / 50);
}

TEST_F(Record, SignalsAndStopsReachAStoppedThreadAsEver) {
  // A child sends 300 signals of three kinds and stops and continues the process; the parent counts.
  const std::string program = compile("signals", std::string(kSpin) + R"(
#include <stdio.h>
#include <sys/time.h>
#include <sys/mman.h>
static volatile int usr1, usr2, rt, cont;
static volatile int* seen_stopped;
static void on_alrm(int s) { for (int i = 0; i < 400000; i++) sink += s; }
static void on(int s) { if (s == SIGUSR1) usr1++; else if (s == SIGUSR2) usr2++; else if (s == SIGCONT) cont++; else rt++; }
static void wait_state(int pid, char wanted) {
  char path[64], text[256];
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  for (;;) {
    FILE* f = fopen(path, "r");
    size_t n = fread(text, 1, sizeof text - 1, f);
    text[n] = 0;
    fclose(f);
    char state = strrchr(text, ')')[2];
    /* Under a tracer the same stop is shown as 't'. */
    if (state == wanted || state == wanted + 32) return;
    usleep(500);
  }
}
int main(void) {
  seen_stopped = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  stack_t stack = {.ss_sp = malloc(1 << 16), .ss_size = 1 << 16};
  sigaltstack(&stack, 0);
  struct sigaction action = {.sa_handler = on_alrm, .sa_flags = SA_ONSTACK | SA_RESTART};
  sigaction(SIGALRM, &action, 0);
  action.sa_handler = on;
  action.sa_flags = SA_RESTART;
  sigaction(SIGUSR1, &action, 0);
  sigaction(SIGUSR2, &action, 0);
  sigaction(SIGRTMIN, &action, 0);
  sigaction(SIGCONT, &action, 0);
  struct itimerval every = {{0, 2000}, {0, 2000}};
  setitimer(ITIMER_REAL, &every, 0);
  spin(200);  /* by now the thread is being stopped at its samples */
  int parent = getpid(), child = fork();
  if (child == 0) {
    for (int i = 0; i < 100; i++) {
      kill(parent, SIGRTMIN);
      usleep(1000);
    }
    kill(parent, SIGSTOP);
    /* stopped, and staying so */
    for (int i = 0; i < 20; i++) { wait_state(parent, 'T'); usleep(2000); *seen_stopped += 1; }
    kill(parent, SIGCONT);
    _exit(3);
  }
  spin(600);
  int status = 0;
  waitpid(child, &status, 0);
  printf("%d %d %d %d\n", rt, *seen_stopped, cont, WEXITSTATUS(status));
  return 11;
}
)");
  const Ran plain = [&] {
    Ran ran;
    const std::string command = program + " > " + path("plain");
    ran.status = std::system(command.c_str());
    ran.out = contents(path("plain"));
    return ran;
  }();
  ASSERT_EQ(plain.out, "100 20 1 3\n");
  const Ran ran = clew({"record", "--", program});
  EXPECT_EQ(ran.status, 11) << ran.err;
  EXPECT_EQ(ran.out, plain.out);
}

TEST_F(Record, SamplesOfTheKernelAreJoinedToTheProgramsStack) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  const std::string program = compile("reader", std::string(kSpin) + R"(
#include <fcntl.h>
__attribute__((noinline)) void reads(void) {
  static char room[1 << 20];
  int fd = open("/dev/zero", O_RDONLY);
  for (int i = 0; i < 3000; i++) sink += read(fd, room, sizeof room);
}
int main(void) { reads(); return 0; }
)");
  const pid_t child = fork();
  if (child == 0) {
    if (chdir(folder_.c_str()) != 0) _exit(99);
    const int err = open("err", O_CREAT | O_TRUNC | O_WRONLY, 0644);
    dup2(err, 2);
    std::string words[] = {"clew", "record", "--", program};
    char* argv[] = {words[0].data(), words[1].data(), words[2].data(), words[3].data()};
    _exit(run(4, argv));
  }
  const Ran ran = wait_for(child);
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  size_t joined = 0;
  for (const auto& sample : profile.samples) {
    const auto& stack = profile.stacks[sample.stack];
    if (stack.empty() || profile.locations[stack[0]].place.kind != profile::FrameKind::kKernel) continue;
    joined += chain(profile, sample).find("main;reads") != std::string::npos;
  }
  EXPECT_GT(joined, profile.samples.size() / 2) << ran.err;
}

TEST_F(Record, ASetuidProgramThatEndsSamplingIsNamed) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to make a setuid program";
  const std::string program =
      compile("setuid", std::string(kSpin) + "int main(void) { spin(100); return 0; }");
  chown(program.c_str(), 0, 0);
  chmod(program.c_str(), 04755);
  const Ran ran = clew({"record", "--", "sh", "-c", program + "; exit 5"});
  EXPECT_EQ(ran.status, 5) << ran.err;
  EXPECT_NE(ran.err.find("setuid"), std::string::npos) << ran.err;
}

/// The slice of a thread (0: the caller) that the scheduler keeps: sched_attr's sched_runtime, set first
/// where `wanted` is not 0.
uint64_t slice_ns(pid_t tid, uint64_t wanted = 0) {
  std::array<uint64_t, 6> attr = {};  // linux/sched/types.h: sched_runtime is the fourth
  if (syscall(SYS_sched_getattr, tid, attr.data(), sizeof attr, 0) != 0) return 0;
  if (wanted != 0) {
    attr[3] = wanted;
    syscall(SYS_sched_setattr, tid, attr.data(), 0);
    return slice_ns(tid);
  }
  return attr[3];
}

TEST_F(Record, TheThreadThatEmptiesTheRingsAsksForTheShortestSlice) {
  constexpr uint64_t kShortest = 100'000;
  uint64_t kept = 0;
  std::thread([&] { kept = slice_ns(0, kShortest); }).join();
  if (kept != kShortest) GTEST_SKIP() << "this kernel has no slices (Linux 6.12)";
  const std::string go = path("go");
  const pid_t child =
      start({"record", "--", "sh", "-c", "touch ready; while [ ! -e go ]; do sleep 0.01; done"});
  wait_for_file(path("ready"));
  std::vector<uint64_t> slices;
  for (const auto& task : std::filesystem::directory_iterator("/proc/" + std::to_string(child) + "/task")) {
    if (contents(task.path() / "comm") == "clew-drain\n")
      slices.push_back(slice_ns(static_cast<pid_t>(std::stol(task.path().filename()))));
  }
  std::ofstream(go) << "";
  EXPECT_EQ(wait_for(child).status, 0);
  EXPECT_EQ(slices, std::vector<uint64_t>{kShortest});
}

TEST_F(Record, TheDurationEndsTheRecordingNotTheCommand) {
  const Ran ran = clew({"record", "--duration", "0.3", "--", "sh", "-c", "sleep 1; touch ended; exit 4"});
  EXPECT_EQ(ran.status, 4) << ran.err;
  EXPECT_TRUE(std::filesystem::exists(path("ended")));
  EXPECT_LT(recording().totals.duration_ns, 900'000'000u);
}

}  // namespace
}  // namespace clew::cli
