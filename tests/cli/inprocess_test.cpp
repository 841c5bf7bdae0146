// clew record with the in-process collector: what it samples, and that the program does not notice.
#include <signal.h>
#include <sys/resource.h>

#include <set>

#include "cli/record_fixture.hpp"
#include "collect/inprocess/agent_file.hpp"

namespace clew::cli {
namespace {

class Inprocess : public RecordTest {
 protected:
  void SetUp() override {
#ifdef __SANITIZE_ADDRESS__
    GTEST_SKIP() << "a sanitizer's build has no agent";
#endif
    RecordTest::SetUp();
  }
  Ran record(std::vector<std::string> command, const std::function<void()>& before = {}) {
    std::vector<std::string> words = {"record", "--collector", "inprocess", "--"};
    words.insert(words.end(), command.begin(), command.end());
    return clew(words, before);
  }
  /// Whether a note of the recording holds this.
  bool noted(const char* text) {
    const profile::Profile profile = recording();
    return std::ranges::any_of(profile.totals.notes,
                               [&](const std::string& note) { return note.find(text) != std::string::npos; });
  }
};

uint64_t sampled_ns(
    const profile::Profile& profile,
    const std::function<bool(const profile::ReadSample&)>& is = [](const auto&) { return true; }) {
  uint64_t sum = 0;
  for (const auto& sample : profile.samples)
    if (is(sample)) sum += sample.weight_ns;
  return sum;
}

/// Sampled time of the stacks that have these functions one after the other.
uint64_t time_in(const profile::Profile& profile, const char* part) {
  return sampled_ns(
      profile, [&](const auto& sample) { return chain(profile, sample).find(part) != std::string::npos; });
}

TEST_F(Inprocess, EveryStackReachesItsRootAndAllTimeIsSampled) {
  const std::string program = compile("known", std::string(kSpin) + R"(
#include <sys/stat.h>
__attribute__((noinline)) void leaf(void) { spin(300); sink++; }
__attribute__((noinline)) void middle(void) { leaf(); sink++; }
__attribute__((noinline)) void outer(void) { middle(); sink++; }
/* Time in system calls: some 300 ms. */
__attribute__((noinline)) void in_kernel(void) {
  struct timespec start, now;
  struct stat status;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
  do {
    for (int i = 0; i < 300; i++) stat("/usr/lib/x86_64-linux-gnu/libc.so.6", &status);
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < 300);
}
static void* thread(void* p) { outer(); return p; }
int main(void) {
  pthread_t t;
  pthread_create(&t, 0, thread, 0);
  outer();
  pthread_join(t, 0);
  in_kernel();
  return 7;
}
)",
                                      "-O1 -pthread");
  const Ran ran = record({program});
  EXPECT_EQ(ran.status, 7) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_EQ(profile.totals.collector, "inprocess");
  EXPECT_EQ(incomplete(profile), 0u);
  EXPECT_EQ(profile.totals.lost, 0u);
  EXPECT_NEAR(static_cast<double>(time_in(profile, "main;outer;middle;leaf;spin")), 300e6, 40e6);
  EXPECT_NEAR(static_cast<double>(time_in(profile, "start_thread;thread;outer;middle;leaf;spin")), 300e6,
              40e6);
  EXPECT_NEAR(static_cast<double>(time_in(profile, "main;in_kernel")), 300e6, 40e6);
  EXPECT_GT(profile.totals.cpu_used_ns, 850'000'000u);
  EXPECT_NEAR(static_cast<double>(sampled_ns(profile)), static_cast<double>(profile.totals.cpu_used_ns),
              60e6);
  for (const auto& sample : profile.samples)
    EXPECT_EQ(chain(profile, sample).find("agent"), std::string::npos) << chain(profile, sample);
}

TEST_F(Inprocess, ChildrenAreSampledWhetherTheyForkOrExec) {
  const std::string program = compile("family", std::string(kSpin) + R"(
__attribute__((noinline)) void in_parent(void) { spin(120); sink++; }
__attribute__((noinline)) void in_child(void) { spin(120); sink++; }
__attribute__((noinline)) void in_program(void) { spin(120); sink++; }
__attribute__((noinline)) void in_childs_thread(void) { spin(120); sink++; }
static void* thread(void* p) { in_childs_thread(); return p; }
int main(int argc, char** argv) {
  if (argc > 1) { in_program(); return 0; }
  if (fork() == 0) {
    pthread_t t;
    in_child();
    pthread_create(&t, 0, thread, 0);
    pthread_join(t, 0);
    execl("/proc/self/exe", argv[0], "again", (char*)0);
  }
  in_parent();
  wait(0);
  return 0;
}
)",
                                      "-O1 -pthread");
  const Ran ran = record({program});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_EQ(incomplete(profile), 0u);
  std::set<pid_t> parents, children;
  for (const auto& sample : profile.samples)
    (chain(profile, sample).find("in_parent") != std::string::npos ? parents : children).insert(sample.pid);
  EXPECT_EQ(parents.size(), 1u);
  for (const char* function : {"in_parent", "in_child", "in_program", "in_childs_thread"}) {
    std::set<pid_t> pids;
    const uint64_t ns = sampled_ns(profile, [&](const auto& sample) {
      const std::string names = chain(profile, sample) + ";";
      if (names.find(std::string(";") + function + ";") == std::string::npos) return false;
      pids.insert(sample.pid);
      return true;
    });
    EXPECT_NEAR(static_cast<double>(ns), 120e6, 30e6) << function;
    EXPECT_EQ(pids.size(), 1u) << function;
    EXPECT_EQ(parents.contains(*pids.begin()), std::string(function) == "in_parent") << function;
  }
}

/// A program that judges what it sees of itself: exit status 0, or the number of what was not as it should
/// be.
constexpr const char* kUndisturbed = R"(
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <sys/ipc.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/time.h>
static int entries(const char* path) {
  int count = 0;
  DIR* directory = opendir(path);
  while (readdir(directory)) count++;
  closedir(directory);
  return count;
}
static volatile sig_atomic_t profs, lasts, on_own_stack;
static char own_stack[64 << 10];
static void on_prof(int s) { profs += s == SIGPROF; }
static void on_last(int s) { lasts += s == SIGRTMAX; }
static void on_usr1(int s) { (void)s; char here; on_own_stack += &here >= own_stack && &here < own_stack + sizeof own_stack; spin(20); }
#define MUST(what, number) do { if (!(what)) { fprintf(stderr, "%s: errno %d\n", #what, errno); return number; } } while (0)
int main(void) {
  const int descriptors = entries("/proc/self/fd");
  stack_t stack = {0};
  /* Waits that the kernel ends with EINTR after any signal handler, whatever SA_RESTART says. */
  const int epoll = epoll_create1(0);
  const int semaphore = semget(IPC_PRIVATE, 1, 0600);
  struct timespec begin, now, short_time = {0, 1};
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  do {
    for (int i = 0; i < 20; i++) {
      struct epoll_event event;
      struct timeval tv = {0, 1};
      struct sembuf wait_for_it = {0, -1, 0};
      struct timespec for_semaphore = {0, 1};
      sigset_t none;
      sigemptyset(&none);
      MUST(nanosleep(&short_time, 0) == 0, 1);
      MUST(clock_nanosleep(CLOCK_MONOTONIC, 0, &short_time, 0) == 0, 2);
      MUST(poll(0, 0, 0) == 0, 3);
      MUST(ppoll(0, 0, &short_time, &none) == 0, 4);
      MUST(select(0, 0, 0, 0, &tv) == 0, 5);
      MUST(pselect(0, 0, 0, 0, &short_time, 0) == 0, 6);
      MUST(epoll_wait(epoll, &event, 1, 0) == 0, 7);
      MUST(semtimedop(semaphore, &wait_for_it, 1, &for_semaphore) == -1 && errno == EAGAIN, 8);
    }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  } while ((now.tv_sec - begin.tv_sec) * 1000 + (now.tv_nsec - begin.tv_nsec) / 1000000 < 400);
  semctl(semaphore, 0, IPC_RMID);
  close(epoll);
  /* errno survives. */
  errno = 4711;
  spin(100);
  MUST(errno == 4711, 10);
  /* The program's own profiling signal and timer. */
  struct sigaction action = {0};
  action.sa_handler = on_prof;
  sigaction(SIGPROF, &action, 0);
  struct itimerval timer = {{0, 10000}, {0, 10000}};
  setitimer(ITIMER_PROF, &timer, 0);
  spin(200);
  timer = (struct itimerval){0};
  setitimer(ITIMER_PROF, &timer, 0);
  MUST(profs >= 2, 11);  /* ticks are rare on a busy machine */
  /* Its alternate stack, none at first. */
  MUST(sigaltstack(0, &stack) == 0 && stack.ss_flags == SS_DISABLE, 12);
  stack = (stack_t){.ss_sp = own_stack, .ss_size = sizeof own_stack};
  MUST(sigaltstack(&stack, 0) == 0, 13);
  action.sa_handler = on_usr1;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &action, 0);
  raise(SIGUSR1);
  MUST(on_own_stack == 1, 14);
  MUST(sigaltstack(0, &stack) == 0 && stack.ss_sp == own_stack && stack.ss_flags == 0, 15);
  /* The very signal that the agent uses. */
  action.sa_handler = on_last;
  action.sa_flags = 0;
  struct sigaction before;
  MUST(sigaction(SIGRTMAX, &action, &before) == 0 && before.sa_handler == SIG_DFL, 16);
  raise(SIGRTMAX);
  MUST(lasts == 1, 17);
  MUST(signal(SIGRTMAX, SIG_IGN) == on_last, 18);
  raise(SIGRTMAX);
  MUST(lasts == 1, 19);
  signal(SIGRTMAX, SIG_DFL);
  spin(50);
  /* A child that dies of it as it would otherwise. */
  int status = 0;
  pid_t child = fork();
  if (child == 0) { spin(30); raise(SIGRTMAX); _exit(1); }
  MUST(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGRTMAX, 20);
  /* With every signal blocked, sampling goes on (the test counts the samples). */
  sigset_t all;
  sigfillset(&all);
  MUST(pthread_sigmask(SIG_BLOCK, &all, 0) == 0, 21);
  void all_blocked(void);
  all_blocked();
  struct timespec no_time = {0, 0};
  MUST(sigtimedwait(&all, 0, &no_time) == -1 && errno == EAGAIN, 22);
  /* Nothing left open, no thread added. */
  MUST(entries("/proc/self/fd") == descriptors, 23);
  MUST(entries("/proc/self/task") == 3, 24);
  return 0;
}
__attribute__((noinline)) void all_blocked(void) { spin(200); sink++; }
)";

TEST_F(Inprocess, TheProgramNoticesNothing) {
  const std::string program =
      compile("undisturbed", "#define _GNU_SOURCE\n" + std::string(kSpin) + kUndisturbed);
  ASSERT_EQ(std::system(program.c_str()), 0) << "without being recorded";
  const Ran ran = record({program});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_GT(sampled_ns(profile), 800'000'000u);
  const uint64_t blocked = time_in(profile, "main;all_blocked;spin");
  EXPECT_NEAR(static_cast<double>(blocked), 200e6, 40e6);
}

TEST_F(Inprocess, ThreadsThatComeAndGo) {
  const std::string program = compile("many", "#include <threads.h>\n" + std::string(kSpin) + R"(
static int c11(void* p) { spin(5); return p == 0 ? 42 : 1; }
static void* posix(void* p) { spin(5); return p; }
static pthread_key_t key;
__attribute__((noinline)) static void destructor(void* p) { spin(100); sink += p != 0; }
static void* with_destructor(void* p) { pthread_setspecific(key, p); return 0; }
int main(void) {
  for (int i = 0; i < 20; i++) {
    thrd_t t[2];
    pthread_t p[2];
    int result = 0;
    void* value = 0;
    for (int k = 0; k < 2; k++) if (thrd_create(&t[k], c11, 0) != thrd_success || pthread_create(&p[k], 0, posix, t)) return 1;
    for (int k = 0; k < 2; k++) {
      if (thrd_join(t[k], &result) != thrd_success || result != 42) return 2;
      if (pthread_join(p[k], &value) != 0 || value != t) return 3;
    }
  }
  pthread_t last;
  pthread_key_create(&key, destructor);
  pthread_create(&last, 0, with_destructor, &key);
  pthread_join(last, 0);
  return 0;
}
)",
                                      "-O1 -pthread");
  const Ran ran = record({program});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_EQ(incomplete(profile), 0u);
  const uint64_t late = time_in(profile, "destructor");
  EXPECT_NEAR(static_cast<double>(late), 100e6, 30e6);
}

TEST_F(Inprocess, GeneratedCodeIsWalkedThrough) {
  const std::string program = compile("jit", std::string(kSpin) + R"(
#include <sys/mman.h>
__attribute__((noinline)) void leaf(void) { spin(300); sink++; }
/* push %rbp; mov %rsp, %rbp; call *%rdi; 1000 nop; pop %rbp; ret */
static const unsigned char begin[] = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7}, end[] = {0x5d, 0xc3};
__attribute__((noinline)) void make_and_call(void) {
  unsigned char* code = mmap(0, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  memset(code, 0x90, 4096);
  memcpy(code, begin, sizeof begin);
  memcpy(code + 1000, end, sizeof end);
  mprotect(code, 4096, PROT_READ | PROT_EXEC);
  ((void (*)(void (*)(void)))code)(leaf);
  sink++;
}
int main(void) { make_and_call(); return 0; }
)",
                                      "-O1");
  const Ran ran = record({program});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_EQ(incomplete(profile), 0u) << ran.err;
  // Nobody knows a name of the generated frame; what is around it is whole.
  const uint64_t through = time_in(profile, "main;make_and_call;leaf;spin");
  EXPECT_NEAR(static_cast<double>(through), 300e6, 40e6);
}

TEST_F(Inprocess, ThreadsShorterThanATickAreSampledInProportionToTheirTime) {
  const std::string program = compile("short", std::string(kSpin) + R"(
static void* thread(void* p) { spin(1); return p; }
int main(void) {
  for (int i = 0; i < 600; i++) {
    pthread_t t;
    pthread_create(&t, 0, thread, 0);
    pthread_join(t, 0);
  }
  return 0;
}
)",
                                      "-O1 -pthread");
  const Ran ran = record({program});
  EXPECT_EQ(ran.status, 0) << ran.err;
  // Some 150 ticks meet them, by chance: give or take 12 of 4 ms.
  EXPECT_NEAR(static_cast<double>(time_in(recording(), "thread;spin")), 600e6, 200e6);
}

TEST_F(Inprocess, WhereFilesMayNotGrowTheProgramRunsUnsampled) {
  const std::string program =
      compile("limited", std::string(kSpin) + "int main(void) { spin(100); return 5; }");
  const Ran ran = record({"sh", "-c", "ulimit -f 1; exec " + program});
  EXPECT_EQ(ran.status, 5) << ran.err;
  EXPECT_TRUE(noted("were not sampled")) << ran.err;
}

TEST_F(Inprocess, AStaticProgramIsNamed) {
  const std::string program =
      compile("static", std::string(kSpin) + "int main(void) { spin(50); return 6; }", "-O1 -static");
  const Ran ran = record({program});
  EXPECT_EQ(ran.status, 6) << ran.err;
  EXPECT_TRUE(noted("linked statically")) << ran.err;
}

TEST_F(Inprocess, TakesOverWherePerfIsForbidden) {
  const std::string program =
      compile("short", std::string(kSpin) + "int main(void) { spin(200); return 8; }");
  const Ran ran = clew({"record", "--", program}, forbid_perf);
  EXPECT_EQ(ran.status, 8) << ran.err;
  EXPECT_TRUE(noted("perf_event_paranoid")) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_EQ(profile.totals.collector, "inprocess");
  EXPECT_GT(sampled_ns(profile), 150'000'000u);
}

TEST_F(Inprocess, RunningProcessesCannotBeEntered) {
  const Ran ran = clew({"record", "--collector", "inprocess", "-p", std::to_string(getppid())});
  EXPECT_EQ(ran.status, 2);
  EXPECT_EQ(std::ranges::count(ran.err, '\n'), 1) << ran.err;
}

TEST_F(Inprocess, AKilledRecorderLeavesTheProgramAlone) {
  const std::string mark = path("mark"), done = path("done");
  const std::string program = compile("survivor", "#include <fcntl.h>\n" + std::string(kSpin) + R"(
int main(int argc, char** argv) {
  close(creat(argv[1], 0644));
  spin(1500);
  int status = fork();
  if (status == 0) execl("/bin/true", "true", (char*)0);
  waitpid(status, &status, 0);
  if (status == 0) close(creat(argv[2], 0644));
  return argc;
}
)");
  const pid_t child = start({"record", "--collector", "inprocess", "--", program, mark, done});
  wait_for_file(mark);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  wait_for_file(done);
  // What it left behind goes when the same user records again.
  const auto left = [&] {
    size_t count = 0;
    for (const auto& entry : std::filesystem::directory_iterator("/dev/shm"))
      count += entry.path().filename().string().starts_with("clew-" + std::to_string(child) + "-");
    return count;
  };
  EXPECT_EQ(left(), 1u);
  EXPECT_EQ(record({"true"}).status, 0);
  EXPECT_EQ(left(), 0u);
}

TEST_F(Inprocess, TheDurationEndsTheRecordingNotTheCommand) {
  // The program goes on until the test has seen the summary, however late that is.
  const std::string program = compile("long", "#include <sys/stat.h>\n" + std::string(kSpin) + R"(
__attribute__((noinline)) void at_first(const char* go) {
  struct stat status;
  for (int i = 0; i < 5000 && stat(go, &status) != 0; i++) spin(10);
  sink++;
}
__attribute__((noinline)) void afterwards(void) { spin(200); sink++; }
int main(int argc, char** argv) { at_first(argv[argc - 1]); afterwards(); return 9; }
)");
  const std::string go = path("go");
  const pid_t child = start({"record", "--collector", "inprocess", "--duration", "0.3", "--", program, go});
  while (contents(path("err")).find("reach the root") == std::string::npos &&
         waitpid(child, nullptr, WNOHANG) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  std::ofstream(go) << "go";
  const Ran ran = wait_for(child);
  EXPECT_EQ(ran.status, 9) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_GE(profile.totals.duration_ns, 300'000'000u);
  // What the one thread used until then is what was sampled, however little that was.
  const auto used = static_cast<double>(profile.totals.cpu_used_ns);
  EXPECT_GT(sampled_ns(profile), 0u);
  EXPECT_NEAR(static_cast<double>(sampled_ns(profile)), used, 50e6 + used / 10);
  EXPECT_LE(profile.totals.cpu_used_ns, profile.totals.duration_ns);
  EXPECT_EQ(count(profile,
                  [&](const auto& s) { return chain(profile, s).find("afterwards") != std::string::npos; }),
            0u);
}

TEST_F(Inprocess, LibrariesInTheSamePlaceAreNotMistakenForEachOther) {
  for (const char* letter : {"a", "b", "c"}) {
    std::ofstream(path("lib.c")) << "extern void callback_" << letter
                                 << "(void);\n__attribute__((noinline)) void inside_" << letter
                                 << "(void) { callback_" << letter
                                 << "(); __asm__(\"\"); }\nvoid entry(void) { inside_" << letter
                                 << "(); __asm__(\"\"); }\n";
    ASSERT_EQ(std::system(("cc -g -O1 -shared -fPIC -Wl,--build-id -o " +
                           path(std::string("lib_") + letter + ".so") + " " + path("lib.c"))
                              .c_str()),
              0);
  }
  const std::string program =
      compile("swap", "#include <dlfcn.h>\n#include <stdio.h>\n" + std::string(kSpin) + R"(
void callback_a(void) { spin(3); sink++; }
void callback_b(void) { spin(3); sink++; }
void callback_c(void) { spin(3); sink++; }
int main(int argc, char** argv) {
  for (int i = 0; i < 300; i++) {
    void* library = dlopen(argv[1 + i % 3], RTLD_NOW);
    ((void (*)(void))dlsym(library, "entry"))();
    dlclose(library);
  }
  return argc != 4;
}
)",
              "-O1 -rdynamic");
  const Ran ran = record({program, path("lib_a.so"), path("lib_b.so"), path("lib_c.so")});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  size_t named = 0;
  for (const auto& sample : profile.samples) {
    const std::string names = chain(profile, sample);
    for (const char letter : {'a', 'b', 'c'}) {
      if (names.find(std::string("callback_") + letter) == std::string::npos) continue;
      const size_t inside = names.find("inside_");
      if (inside == std::string::npos) continue;
      ++named;
      EXPECT_EQ(names[inside + 7], letter) << names;
    }
  }
  EXPECT_GT(named, 20u);
}

TEST_F(Inprocess, ProgramsThatTheAgentMustKeepOutOf) {
  // Each exits with 7 by itself.
  const std::string filtered =
      compile("filtered",
              "#include <stddef.h>\n#include <linux/filter.h>\n#include <linux/seccomp.h>\n"
              "#include <sys/prctl.h>\n#include <sys/syscall.h>\n" +
                  std::string(kSpin) + R"(
int main(void) {
  struct sock_filter filter[] = {
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 2, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_clock_gettime, 1, 0),
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 0, 1),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  spin(30);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 1;
  spin(100);
  return 7;
}
)");
  EXPECT_EQ(record({filtered}).status, 7);
  const std::string small_stack = compile("small", std::string(kSpin) + R"(
static char small[2048];
int main(void) {
  stack_t stack = {.ss_sp = small, .ss_size = sizeof small};
  if (sigaltstack(&stack, 0) != 0) return 7;  /* refused on this processor */
  spin(100);
  return 7;
}
)");
  EXPECT_EQ(record({small_stack}).status, 7);
  const std::string held = compile("held", std::string(kSpin) + R"(
int main(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGRTMAX);
  sigprocmask(SIG_BLOCK, &set, 0);
  raise(SIGRTMAX);
  spin(50);
  return 7;
}
)",
                                   "-O1 -D_GNU_SOURCE");
  EXPECT_EQ(record({held}).status, 7);
  if (std::system("command -v musl-gcc >/dev/null") == 0) {
    std::ofstream(path("musl.c")) << "int main(void) { return 7; }\n";
    ASSERT_EQ(std::system(("musl-gcc -o " + path("musl") + " " + path("musl.c")).c_str()), 0);
    const Ran ran = record({path("musl")});
    EXPECT_EQ(ran.status, 7) << ran.err;
    EXPECT_TRUE(noted("musl"));
    EXPECT_EQ(record({"sh", "-c", path("musl") + "; exit $?"}).status, 7);
  }
}

TEST_F(Inprocess, CancelledInTheMiddleOfASample) {
  const std::string program = compile("cancelled", "#define _GNU_SOURCE\n" + std::string(kSpin) + R"(
static volatile int ready;
__attribute__((noinline)) int descend(int n) {
  volatile char frame[16];
  frame[0] = (char)n;
  if (n == 0) { ready = 1; for (;;) sink++; }
  return descend(n - 1) + frame[0];
}
static void* thread(void* p) { pthread_setcanceltype(PTHREAD_CANCEL_ASYNCHRONOUS, 0); descend(7000); return p; }
__attribute__((noinline)) void after(void) { spin(300); sink++; }
int main(void) {
  for (int i = 0; i < 300; i++) {
    pthread_t t;
    ready = 0;
    pthread_create(&t, 0, thread, 0);
    while (!ready) usleep(100);
    usleep(3000 + rand() % 3000);
    pthread_cancel(t);
    pthread_join(t, 0);
  }
  after();
  return 0;
}
)",
                                      "-O1 -pthread");
  EXPECT_EQ(record({program}).status, 0);
  const profile::Profile profile = recording();
  const uint64_t after = time_in(profile, "main;after;spin");
  EXPECT_GT(after, 150'000'000u);  // none, where the ring was left in the middle of a record
}

}  // namespace
}  // namespace clew::cli
