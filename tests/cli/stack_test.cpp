// clew stack on live programs: what it prints, what the program notices, and what it says when it cannot.
#include <gtest/gtest.h>
#include <sys/ptrace.h>

#include <algorithm>
#include <map>
#include <set>
#include <sstream>

#include "cli/live_program.hpp"
#include "cli/text.hpp"

namespace clew::test {
namespace {

const std::string kClew = CLEW_BINARY_DIR "/clew";

/// Every test compiles into a folder of its own, which is the cache as well.
class Stack : public testing::Test {
 protected:
  void SetUp() override { setenv("CLEW_CACHE_DIR", folder.path().c_str(), 1); }
  Output clew(const std::string& arguments) { return run_command(kClew + " stack " + arguments); }
  nlohmann::json stacks_of(const std::string& arguments) {
    Output output = clew("--json " + arguments);
    EXPECT_EQ(output.status, 0) << output.err;
    return output.status == 0 ? nlohmann::json::parse(output.out)
                              : nlohmann::json{{"threads", nlohmann::json::array()}};
  }
  TemporaryFolder folder;
};

std::vector<std::string> names_of(const nlohmann::json& thread) {
  std::vector<std::string> names;
  for (const auto& frame : thread["frames"]) names.push_back(frame["function"]);
  return names;
}

/// Whether `part` occurs in `whole` in one piece.
bool contains_chain(const std::vector<std::string>& whole, const std::vector<std::string>& part) {
  return std::search(whole.begin(), whole.end(), part.begin(), part.end()) != whole.end();
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += name + " < ";
  return text;
}

// Four threads below known chains: in a system call, spinning, in a handler on an alternate stack, in an
// inlined function.
const char* const kThreads = R"(
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
#define NOINLINE __attribute__((noinline, noclone))
static std::atomic<int> ready;
static volatile unsigned long sink;
extern "C" NOINLINE void sleeper() { ready++; for (;;) pause(); }
extern "C" NOINLINE void sleeper_outer(int n) { char room[256]; snprintf(room, sizeof room, "%d", n); sleeper(); sink += room[0]; }
extern "C" NOINLINE void spinner() { ready++; for (;;) sink = sink * 3 + 1; }
extern "C" NOINLINE void spinner_outer(int n) { spinner(); sink += n; }
extern "C" NOINLINE void handler_inner() { ready++; for (;;) pause(); }
extern "C" void handler(int) { handler_inner(); sink++; }
extern "C" NOINLINE void raiser() { raise(SIGUSR1); sink++; }
static inline __attribute__((always_inline)) void innermost_inline() { ready++; for (;;) pause(); }
static inline __attribute__((always_inline)) void middle_inline() { innermost_inline(); }
extern "C" NOINLINE void holder() { middle_inline(); sink++; }
static void* t1(void*) { sleeper_outer(7); return 0; }
static void* t2(void*) { spinner_outer(7); return 0; }
static void* t3(void*) {
  stack_t stack{};
  stack.ss_size = 65536;
  stack.ss_sp = malloc(stack.ss_size);
  sigaltstack(&stack, 0);
  raiser();
  return 0;
}
static void* t4(void*) { holder(); return 0; }
int main() {
  struct sigaction action{};
  action.sa_handler = handler;
  action.sa_flags = SA_ONSTACK;
  sigaction(SIGUSR1, &action, 0);
  pthread_t threads[4];
  void* (*starts[])(void*) = {t1, t2, t3, t4};
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], 0, starts[i], 0);
  while (ready < 4) usleep(1000);
  usleep(50000);
  puts("ready");
  fflush(stdout);
  for (int i = 0; i < 4; i++) pthread_join(threads[i], 0);
}
)";

void expect_all_chains(const nlohmann::json& stacks) {
  std::vector<std::vector<std::string>> wanted = {{"sleeper", "sleeper_outer"},
                                                  {"spinner", "spinner_outer"},
                                                  {"handler_inner", "handler"},
                                                  {"raiser"},
                                                  {"holder"},
                                                  {"main"}};
  ASSERT_EQ(stacks["threads"].size(), 5u);
  for (const auto& chain : wanted) {
    bool found = false;
    std::string all;
    for (const auto& thread : stacks["threads"]) {
      found |= contains_chain(names_of(thread), chain);
      all += joined(names_of(thread)) + "\n";
    }
    EXPECT_TRUE(found) << joined(chain) << "\n" << all;
  }
  for (const auto& thread : stacks["threads"]) {
    EXPECT_EQ(thread["end"], "root") << thread.dump(1);
    for (const auto& frame : thread["frames"]) EXPECT_FALSE(frame["guessed"].get<bool>()) << thread.dump(1);
  }
}

TEST_F(Stack, EveryThreadOfALiveProgram) {
  Child child({compile(folder, "threads", kThreads, "-O2 -g -pthread")});
  ASSERT_EQ(child.line(), "ready");
  auto stacks = stacks_of(std::to_string(child.pid()));
  expect_all_chains(stacks);
  // The first thread is the process's, the inlined functions stand above the one that holds them, with their
  // lines.
  EXPECT_EQ(stacks["threads"][0]["tid"], child.pid());
  EXPECT_EQ(stacks["threads"][0]["name"], "threads");
  for (const auto& thread : stacks["threads"]) {
    auto names = names_of(thread);
    auto holder = std::ranges::find(names, "holder");
    if (holder == names.end()) continue;
    ASSERT_GE(holder - names.begin(), 2) << joined(names);
    EXPECT_TRUE((holder - 1)->starts_with("middle_inline")) << joined(names);
    EXPECT_TRUE((holder - 2)->starts_with("innermost_inline")) << joined(names);
    const auto& frames = thread["frames"];
    size_t at = static_cast<size_t>(holder - names.begin());
    EXPECT_TRUE(frames[at - 1]["inlined"].get<bool>());
    EXPECT_FALSE(frames[at]["inlined"].get<bool>());
    EXPECT_EQ(frames[at]["line"], 21);
    EXPECT_TRUE(frames[at]["file"].get<std::string>().ends_with("threads.cpp"));
    EXPECT_TRUE(frames[at]["module"].get<std::string>().ends_with("/threads"));
    EXPECT_EQ(frames[at]["how"], "table");
  }
}

TEST_F(Stack, TextOfADeepStackLeavesOutItsMiddle) {
  const char* const source = R"(
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int deeper(int n) {
  if (n == 0) { puts("ready"); fflush(stdout); pause(); return 0; }
  return deeper(n - 1) + 1;
}
int main() { return deeper(1000); }
)";
  Child child({compile(folder, "deep", source, "-O1 -g -fno-optimize-sibling-calls")});
  ASSERT_EQ(child.line(), "ready");
  const nlohmann::json stacks = stacks_of(std::to_string(child.pid()));
  const std::vector<std::string> names = names_of(stacks["threads"][0]);
  ASSERT_EQ(std::ranges::count(names, "deeper(int)"), 1001) << joined(names);
  std::istringstream text(clew(std::to_string(child.pid())).out);
  std::vector<std::string> lines;
  for (std::string line; std::getline(text, line);) lines.push_back(line);
  EXPECT_LT(lines.size(), 300u);
  const auto gap =
      std::ranges::find_if(lines, [](const std::string& line) { return line.starts_with("     ..."); });
  ASSERT_NE(gap, lines.end());
  // Both ends are there, and the numbers and the count agree with JSON's.
  EXPECT_TRUE(lines[3].starts_with("#0 ")) << lines[3];
  const size_t before = std::stoul((gap - 1)->substr(1)), after = std::stoul((gap + 1)->substr(1));
  EXPECT_NE(gap->find(" " + std::to_string(after - before - 1) + " frames"), std::string::npos) << *gap;
  EXPECT_EQ(std::stoul(lines.back().substr(1)) + 1, names.size()) << lines.back();
}

TEST_F(Stack, TextNamesWhatJsonNames) {
  Child child({compile(folder, "threads", kThreads, "-O2 -g -pthread")});
  ASSERT_EQ(child.line(), "ready");
  Output output = clew(std::to_string(child.pid()));
  EXPECT_EQ(output.status, 0);
  EXPECT_EQ(output.err, "");
  EXPECT_NE(output.out.find("5 threads"), std::string::npos) << output.out;
  EXPECT_NE(output.out.find("[inlined]"), std::string::npos) << output.out;
  EXPECT_NE(
      output.out.find(" sleeper (" + folder.path() + "/threads.cpp:12) in " + folder.path() + "/threads\n"),
      std::string::npos)
      << output.out;
}

TEST_F(Stack, WaysToBuildAProgram) {
  struct {
    const char* name;
    const char* flags;
    const char* after;
  } const kWays[] = {{"no-pie", "-O1 -g -no-pie", ""},
                     {"static", "-O2 -g -static", ""},
                     {"static-pie", "-O2 -g -static-pie", ""},
                     {"unaligned-segments", "-O2 -g -Wl,-z,noseparate-code", ""},
                     {"hidden", "-O2 -fvisibility=hidden -rdynamic", "strip"}};
  for (const auto& way : kWays) {
    SCOPED_TRACE(way.name);
    std::string program = compile(folder, way.name, kThreads, std::string(way.flags) + " -pthread");
    Child child({program});
    ASSERT_EQ(child.line(), "ready");
    if (*way.after) {
      // No names, but complete all the same.
      std::string stripped = program + "-stripped";
      ASSERT_EQ(run_command("strip -s -o " + stripped + " " + program).status, 0);
      Child other({stripped});
      ASSERT_EQ(other.line(), "ready");
      auto stacks = stacks_of(std::to_string(other.pid()));
      ASSERT_EQ(stacks["threads"].size(), 5u);
      for (const auto& thread : stacks["threads"]) EXPECT_EQ(thread["end"], "root") << thread.dump(1);
      continue;
    }
    expect_all_chains(stacks_of(std::to_string(child.pid())));
  }
}

TEST_F(Stack, ADeletedAndAReplacedProgram) {
  std::string program = compile(folder, "threads", kThreads, "-O2 -g -pthread");
  Child child({program});
  ASSERT_EQ(child.line(), "ready");
  std::filesystem::remove(program);
  expect_all_chains(stacks_of(std::to_string(child.pid())));
  compile(folder, "threads", "int main() { return 0; }", "-O2");
  expect_all_chains(stacks_of(std::to_string(child.pid())));
}

TEST_F(Stack, SeparateDebugFile) {
  std::string program = compile(folder, "threads", kThreads, "-O2 -g -pthread");
  ASSERT_EQ(run_command("cd " + folder.path() +
                        " && mkdir .debug && objcopy --only-keep-debug threads .debug/threads.debug && "
                        "strip -s threads && objcopy --add-gnu-debuglink=.debug/threads.debug threads")
                .status,
            0);
  Child child({program});
  ASSERT_EQ(child.line(), "ready");
  expect_all_chains(stacks_of(std::to_string(child.pid())));
}

// Described by .debug_frame alone. The room that `hole` takes is known at run time only, and rbp holds
// anything: nothing but its CFI says where its caller's frame is.
constexpr const char* kHole = R"(
#include <stdio.h>
#include <unistd.h>
__attribute__((used)) unsigned long room = 4096, above;
__attribute__((noinline, noclone, used)) void inner(void) { puts("ready"); fflush(stdout); for (;;) pause(); }
void hole(void);
asm(".cfi_sections .debug_frame\n.text\n.type hole, @function\nhole: .cfi_startproc\n"
    "push %r13\n .cfi_def_cfa_offset 16\n .cfi_offset r13, -16\n"
    "lea 5(%rsp), %r13\n xor $5, %rbp\n .cfi_def_cfa r13, 11\n"
    "sub room(%rip), %rsp\n and $-16, %rsp\n call inner\n"
    "lea -5(%r13), %rsp\n .cfi_def_cfa rsp, 16\n xor $5, %rbp\n pop %r13\n .cfi_def_cfa_offset 8\n"
    "ret\n.cfi_endproc\n.size hole, .-hole\n");
__attribute__((noinline, noclone)) void outer(void) { hole(); above++; }
int main(void) { outer(); return (int)above; }
)";

TEST_F(Stack, DebugFrameOfASeparateFile) {
  std::ofstream(folder.path() + "/hole.c") << kHole;
  ASSERT_EQ(run_command("cd " + folder.path() +
                        " && gcc -O2 -g -fomit-frame-pointer -fno-asynchronous-unwind-tables"
                        " -Wl,--build-id -o hole hole.c && mkdir .debug"
                        " && objcopy --only-keep-debug hole .debug/hole.debug && strip -s hole"
                        " && objcopy --add-gnu-debuglink=.debug/hole.debug hole")
                .status,
            0);
  // readelf --debug-dump=frames-interp says r13+11 of the file as it was linked.
  const std::string dumped = run_command(kClew + " table dump " + folder.path() + "/hole").out;
  EXPECT_NE(dumped.find(" r13+11 u c-8\n"), std::string::npos) << dumped;
  Child child({folder.path() + "/hole"});
  ASSERT_EQ(child.line(), "ready");
  const auto stack = [this, &child] { return stacks_of(std::to_string(child.pid()))["threads"][0]; };
  const auto expect_whole = [](const nlohmann::json& thread) {
    EXPECT_EQ(thread["end"], "root") << thread.dump(1);
    EXPECT_TRUE(contains_chain(names_of(thread), {"inner", "hole", "outer", "main"})) << thread.dump(1);
    for (const auto& frame : thread["frames"]) EXPECT_FALSE(frame["guessed"].get<bool>()) << thread.dump(1);
  };
  expect_whole(stack());
  // The cached table that was made with the debug file is not taken for one made without, nor the reverse.
  std::filesystem::rename(folder.path() + "/.debug", folder.path() + "/elsewhere");
  EXPECT_NE(stack()["end"], "root");
  std::filesystem::rename(folder.path() + "/elsewhere", folder.path() + "/.debug");
  expect_whole(stack());
}

TEST_F(Stack, AProgramInAnotherMountNamespace) {
  if (geteuid() != 0 || run_command("unshare -m true").status != 0) GTEST_SKIP() << "needs root and unshare";
  std::string program = compile(folder, "threads", kThreads, "-O2 -g -static -pthread");
  std::string inside = folder.path() + "/inside";
  std::filesystem::create_directory(inside);
  // The program's path exists in that namespace only.
  Child child({"unshare", "-m", "sh", "-c",
               "mount -t tmpfs none " + inside + " && cp " + program + " " + inside + "/threads && exec " +
                   inside + "/threads"});
  ASSERT_EQ(child.line(), "ready");
  ASSERT_FALSE(std::filesystem::exists(inside + "/threads"));
  expect_all_chains(stacks_of(std::to_string(child.pid())));
}

// musl has no unwind tables: what calls main and what calls a thread's function is known by its instructions,
// and a thread's root by the zero in rbp.
TEST_F(Stack, MuslPrograms) {
  if (!have("musl-gcc")) GTEST_SKIP() << "musl-tools is not installed";
  for (const char* kind : {"-static", ""}) {
    std::string program = compile(folder, std::string("musl") + kind, R"(
#include <pthread.h>
#include <stdio.h>
#include <unistd.h>
volatile int sink;
__attribute__((noinline)) void inner(void) { for (;;) pause(); }
__attribute__((noinline)) void outer(void) { inner(); sink++; }
__attribute__((noinline)) void* work(void* unused) { outer(); return unused; }
int main(void) {
  pthread_t thread;
  if (pthread_create(&thread, 0, work, 0)) return 1;
  usleep(100000);
  puts("ready");
  fflush(stdout);
  outer();
  return sink;
}
)",
                                  std::string("-O2 -g ") + kind, "musl-gcc");
    Child child({program});
    ASSERT_EQ(child.line(), "ready");
    state_of(child.pid(), "S");
    auto stacks = stacks_of(std::to_string(child.pid()));
    ASSERT_EQ(stacks["threads"].size(), 2u);
    EXPECT_TRUE(contains_chain(names_of(stacks["threads"][0]), {"inner", "outer", "main"})) << stacks.dump(1);
    EXPECT_TRUE(contains_chain(names_of(stacks["threads"][1]), {"inner", "outer", "work"})) << stacks.dump(1);
    for (const auto& thread : stacks["threads"]) EXPECT_EQ(thread["end"], "root") << thread.dump(1);
  }
}

// ---- What the program notices ----

// A thread for each call that may block; each counts how often it came back with EINTR.
const char* const kBlocked = R"(
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ipc.h>
#include <sys/msg.h>
#include <sys/select.h>
#include <sys/sem.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <atomic>
static std::atomic<int> ready, interrupted;
template <class F> static void* again(const char* name, F call) {
  ready++;
  for (;;) {
    if (call() == -1 && errno == EINTR) { interrupted++; fprintf(stderr, "%s: EINTR\n", name); }
  }
}
static int pair[2], quiet[2], pipe_fds[2];
static void* t_nanosleep(void*) { return again("nanosleep", [] { timespec t{1000, 0}; return nanosleep(&t, nullptr); }); }
static void* t_poll(void*) { return again("poll", [] { pollfd p{pair[0], POLLIN, 0}; return poll(&p, 1, -1); }); }
static void* t_poll_timed(void*) { return again("poll timed", [] { pollfd p{pair[0], POLLIN, 0}; return poll(&p, 1, 1000000); }); }
static void* t_select(void*) { return again("select", [] { fd_set s; FD_ZERO(&s); FD_SET(pair[0], &s); return select(pair[0] + 1, &s, 0, 0, 0); }); }
static void* t_epoll(void*) { int e = epoll_create1(0); return again("epoll_wait", [e] { epoll_event v; return epoll_wait(e, &v, 1, -1); }); }
static void* t_epoll_timed(void*) { int e = epoll_create1(0); return again("epoll_wait timed", [e] { epoll_event v; return epoll_wait(e, &v, 1, 1000000); }); }
static void* t_epoll_pwait(void*) { int e = epoll_create1(0); return again("epoll_pwait", [e] { epoll_event v; sigset_t s; sigfillset(&s); return epoll_pwait(e, &v, 1, -1, &s); }); }
static void* t_read_pipe(void*) { return again("read pipe", [] { char c; return (int)read(pipe_fds[0], &c, 1); }); }
static void* t_recv_timed(void*) { return again("recv timed", [] { char c; return (int)recv(quiet[0], &c, 1, 0); }); }
static void* t_inotify(void*) { int f = inotify_init1(0); inotify_add_watch(f, "/", IN_CREATE); return again("inotify", [f] { char c[4096]; return (int)read(f, c, sizeof c); }); }
static void* t_semaphore(void*) { static sem_t s; sem_init(&s, 0, 0); return again("sem_wait", [] { return sem_wait(&s); }); }
static void* t_sigwait(void*) { return again("sigtimedwait", [] { sigset_t s; sigemptyset(&s); sigaddset(&s, SIGUSR2); timespec t{1000, 0}; return sigtimedwait(&s, 0, &t); }); }
static void* t_semop(void*) { int id = semget(IPC_PRIVATE, 1, 0600); if (id < 0) { ready++; return 0; } ready--; ready++;
  return again("semop", [id] { sembuf b{0, -1, 0}; int r = semop(id, &b, 1); return r; }); }
static void* t_waitpid(void*) { pid_t c = fork(); if (c == 0) { for (;;) { char x; if (read(0, &x, 1) <= 0) _exit(0); } } return again("waitpid", [c] { int s; return (int)waitpid(c, &s, 0) == -1 && errno == EINTR ? -1 : (pause(), 0); }); }
static void* t_accept_timed(void*) {
  int s = socket(AF_UNIX, SOCK_STREAM, 0);
  sockaddr_un a{}; a.sun_family = AF_UNIX; snprintf(a.sun_path + 1, 100, "clew-%d", getpid());
  bind(s, (sockaddr*)&a, sizeof a); listen(s, 1);
  timeval t{1000, 0}; setsockopt(s, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  return again("accept timed", [s] { return accept(s, 0, 0); });
}
int main() {
  sigset_t block; sigemptyset(&block); sigaddset(&block, SIGUSR2); pthread_sigmask(SIG_BLOCK, &block, 0);
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) || socketpair(AF_UNIX, SOCK_STREAM, 0, quiet) || pipe(pipe_fds)) return 1;
  timeval t{1000, 0}; setsockopt(quiet[0], SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
  void* (*starts[])(void*) = {t_nanosleep, t_poll, t_poll_timed, t_select, t_epoll, t_epoll_timed, t_epoll_pwait, t_read_pipe,
                              t_recv_timed, t_inotify, t_semaphore, t_sigwait, t_semop, t_waitpid, t_accept_timed};
  int n = sizeof starts / sizeof *starts;
  for (int i = 0; i < n; i++) { pthread_t p; pthread_create(&p, 0, starts[i], 0); }
  while (ready < n) usleep(1000);
  usleep(100000);
  printf("ready %d\n", n); fflush(stdout);
  char c;
  while (read(0, &c, 1) > 0) { }
  printf("interrupted %d\n", interrupted.load()); fflush(stdout);
  _exit(0);
}
)";

TEST_F(Stack, NoSystemCallOfTheProgramIsInterrupted) {
  Child child({compile(folder, "blocked", kBlocked, "-O1 -g -pthread")});
  ASSERT_EQ(child.line(), "ready 15");
  for (int i = 0; i < 10; ++i) {
    auto stacks = stacks_of(std::to_string(child.pid()));
    EXPECT_EQ(stacks["threads"].size(), 16u);
    for (const auto& thread : stacks["threads"]) EXPECT_EQ(thread["end"], "root") << thread.dump(1);
  }
  child.close_input();
  EXPECT_EQ(child.line(), "interrupted 0");
}

// Queued signals, one number a signal: each must arrive once and in order, and a handler must still end
// epoll_wait.
const char* const kSignals = R"(
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <sys/epoll.h>
#include <unistd.h>
static volatile sig_atomic_t got, wrong, last;
static void handler(int, siginfo_t* info, void*) { got = got + 1; if (info->si_value.sival_int != got || info->si_code != SI_QUEUE) wrong = wrong + 1; last = info->si_value.sival_int; }
int main(int, char** argv) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO;
  sigaction(SIGRTMIN, &action, 0);
  int wanted = atoi(argv[1]), ended = 0, e = epoll_create1(0);
  puts("ready"); fflush(stdout);
  while (got < wanted) { epoll_event v; if (epoll_wait(e, &v, 1, 30000) == -1 && errno == EINTR) ended++; }
  printf("got %d wrong %d %s\n", (int)got, (int)wrong, ended > 0 ? "interrupted" : "never interrupted"); fflush(stdout);
}
)";

TEST_F(Stack, NoSignalIsLostOrChanged) {
  std::string source = kSignals;
  Child child({compile(folder, "signals", "#include <stdlib.h>\n" + source, "-O1 -g"), "400"});
  ASSERT_EQ(child.line(), "ready");
  pid_t sender = fork();
  if (sender == 0) {
    for (int i = 1; i <= 400; ++i) {
      sigval value;
      value.sival_int = i;
      while (sigqueue(child.pid(), SIGRTMIN, value) != 0) usleep(1000);
      usleep(1000);
    }
    _exit(0);
  }
  int looks = 0;
  while (waitpid(sender, nullptr, WNOHANG) == 0) {
    // The program may end in between, once all have arrived.
    Output output = clew(std::to_string(child.pid()));
    EXPECT_TRUE(output.status == 0 || output.err.find("no process") != std::string::npos ||
                output.err.find("zombie") != std::string::npos)
        << output.err;
    ++looks;
  }
  EXPECT_GE(looks, 1);
  EXPECT_EQ(child.line(), "got 400 wrong 0 interrupted");
}

TEST_F(Stack, AStoppedProcessStaysStopped) {
  Child child({compile(folder, "threads", kThreads, "-O2 -g -pthread")});
  ASSERT_EQ(child.line(), "ready");
  kill(child.pid(), SIGSTOP);
  ASSERT_EQ(state_of(child.pid(), "T"), 'T');
  expect_all_chains(stacks_of(std::to_string(child.pid())));
  usleep(50'000);
  EXPECT_EQ(state_of(child.pid(), "T"), 'T');
  kill(child.pid(), SIGCONT);
  EXPECT_NE(state_of(child.pid(), "RS"), 'T');
}

TEST_F(Stack, ThreadsThatComeAndGo) {
  Child child({compile(folder, "churn", R"(
#include <pthread.h>
#include <stdio.h>
static void* worker(void*) { return 0; }
static void* maker(void*) { for (;;) { pthread_t t; if (pthread_create(&t, 0, worker, 0) == 0) pthread_join(t, 0); } }
int main() {
  pthread_t t[3];
  for (auto& one : t) pthread_create(&one, 0, maker, 0);
  puts("ready"); fflush(stdout);
  for (auto& one : t) pthread_join(one, 0);
}
)",
                       "-O1 -g -pthread")});
  ASSERT_EQ(child.line(), "ready");
  for (int i = 0; i < 20; ++i) {
    auto stacks = stacks_of(std::to_string(child.pid()));
    EXPECT_GE(stacks["threads"].size(), 4u);
    std::set<int> tids;
    for (const auto& thread : stacks["threads"]) {
      EXPECT_TRUE(tids.insert(thread["tid"].get<int>()).second);
      EXPECT_EQ(thread["end"], "root") << thread.dump(1);
    }
  }
}

// A parent that waits for its vfork'ed child cannot be stopped; the other thread can.
TEST_F(Stack, AThreadThatCannotBeStoppedIsNamed) {
  Child child({compile(folder, "forker", R"(
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>
static void* forker(void*) { if (vfork() == 0) { prctl(PR_SET_PDEATHSIG, SIGKILL); for (;;) pause(); } return 0; }
int main() {
  pthread_t t;
  pthread_create(&t, 0, forker, 0);
  usleep(100000);
  puts("ready"); fflush(stdout);
  pthread_join(t, 0);
}
)",
                       "-O1 -g -pthread")});
  ASSERT_EQ(child.line(), "ready");
  Output output = clew("--json " + std::to_string(child.pid()));
  ASSERT_EQ(output.status, 0) << output.err;
  EXPECT_NE(output.err.find("1 of the threads sleep"), std::string::npos) << output.err;
  auto stacks = nlohmann::json::parse(output.out);
  ASSERT_EQ(stacks["threads"].size(), 2u);
  EXPECT_EQ(stacks["threads"][0]["end"], "root");
  EXPECT_EQ(stacks["threads"][1]["end"], "no-user-stack");
  EXPECT_TRUE(stacks["threads"][1]["frames"].empty());
}

// ---- What cannot be done ----

void expect_error(const Output& output, const std::string& words) {
  EXPECT_EQ(output.status, 2);
  EXPECT_EQ(output.out, "");
  EXPECT_NE(output.err.find(words), std::string::npos) << output.err;
  EXPECT_TRUE(output.err.starts_with("clew: ")) << output.err;
  EXPECT_EQ(std::ranges::count(output.err, '\n'), 1) << output.err;
}

TEST_F(Stack, BadTargetsAreNamedInOneLine) {
  expect_error(clew("4194305"), "there is no process 4194305");
  expect_error(clew("99999999999999999999"), "is no PID");
  expect_error(clew("0"), "is no PID");
  expect_error(clew(folder.path() + "/nothing"), "cannot open");
  expect_error(clew("/bin/true"), "not a core");
  expect_error(clew(""), "");
  expect_error(clew("1 /bin/true"), "EXE belongs to a core");
}

TEST_F(Stack, AZombie) {
  pid_t zombie = fork();
  if (zombie == 0) _exit(0);
  ASSERT_EQ(state_of(zombie, "Z"), 'Z');
  expect_error(clew(std::to_string(zombie)), "is a zombie");
  waitpid(zombie, nullptr, 0);
  expect_error(clew(std::to_string(zombie)), "there is no process");
}

TEST_F(Stack, AThreadsId) {
  Child child({compile(folder, "threads", kThreads, "-O2 -g -pthread")});
  ASSERT_EQ(child.line(), "ready");
  int tid = stacks_of(std::to_string(child.pid()))["threads"][1]["tid"];
  expect_error(clew(std::to_string(tid)), "is a thread of process " + std::to_string(child.pid()));
}

TEST_F(Stack, ATracedProcess) {
  Child child({"sleep", "100"});
  ASSERT_EQ(ptrace(PTRACE_SEIZE, child.pid(), nullptr, nullptr), 0);
  expect_error(clew(std::to_string(child.pid())),
               "is traced already, by process " + std::to_string(getpid()));
  ptrace(PTRACE_INTERRUPT, child.pid(), nullptr, nullptr);
  waitpid(child.pid(), nullptr, __WALL);
  ptrace(PTRACE_DETACH, child.pid(), nullptr, nullptr);
}

TEST_F(Stack, AnotherUsersProcess) {
  if (geteuid() != 0 || !have("setpriv")) GTEST_SKIP() << "needs root and setpriv";
  Child child({"sleep", "100"});
  // The program is copied to where that user may read it.
  TemporaryFolder open;
  ASSERT_EQ(run_command("chmod 755 " + open.path() + " && cp " + kClew + " " + open.path() + "/clew").status,
            0);
  expect_error(run_command("setpriv --reuid=65534 --regid=65534 --clear-groups " + open.path() +
                           "/clew stack " + std::to_string(child.pid())),
               "belongs to user root: run clew as that user or as root");
}

TEST_F(Stack, AKernelThread) {
  std::ifstream name("/proc/2/comm");
  std::string text;
  if (!std::getline(name, text) || text != "kthreadd") GTEST_SKIP() << "no kernel threads are visible here";
  expect_error(clew("2"), "is a kernel thread");
}

TEST(Text, ForeignNamesCannotSteerATerminal) {
  EXPECT_EQ(cli::printable("plain äöü €"), "plain äöü €");
  EXPECT_EQ(cli::printable("\x1b[31mred\n"), "\\x1b[31mred\\x0a");
  EXPECT_EQ(cli::printable("a\xff\xc0\x80z"), "a\\xff\\xc0\\x80z");
  EXPECT_EQ(cli::printable("\xc2\x9b"
                           "31m"),
            "\\xc2\\x9b31m");
  EXPECT_EQ(cli::printable("\xe2\x80\xae"), "\\xe2\\x80\\xae");
  EXPECT_EQ(cli::json_string("a\"b\\c\n\xff"), "\"a\\\"b\\\\c\\u000a\xef\xbf\xbd\"");
  EXPECT_EQ(nlohmann::json::parse(cli::json_string("\x01\"\\/\xf0\x9f\x98\x80")),
            "\x01\"\\/\xf0\x9f\x98\x80");
}

}  // namespace
}  // namespace clew::test
