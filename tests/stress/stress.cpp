// The local unwinder under load: profiling signals at random times in a process that loads and unloads
// plugins, throws, jumps, forks, begins and ends threads and switches coroutines, all at once. Each handler
// unwinds from its ucontext. What a worker runs under cannot change while it runs and was recorded by glibc's
// backtrace when it began: a complete chain must end in it, and every chain should be complete.
//
// Prints one line of figures and, for what was not right, the first chain of its kind. Exit status 1 where a
// chain was wrong, more than one in 500 ended early, or errno was changed.
#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <random>
#include <span>
#include <string>
#include <string_view>

#include "clew/unwind.hpp"

namespace {

#define LEVEL __attribute__((noinline, noipa))
#define AFTER_CALL asm volatile("" ::: "memory")

constexpr size_t kWorkers = 4;
constexpr size_t kFrames = 256;
constexpr size_t kPage = 4096;

// ---- What is counted ----

struct Chain {
  std::atomic<bool> taken{false};
  std::array<clew::Frame, 48> frames;
  size_t count = 0;
  uint64_t detail = 0;
};

/// In memory that forked children share, so that theirs count too.
struct Figures {
  std::atomic<uint64_t> signals{0}, right{0}, wrong{0}, unmarked{0}, errno_changed{0};
  std::atomic<uint64_t> early[CLEW_END_COUNT] = {};
  std::atomic<uint64_t> throws{0}, jumps{0}, forks{0}, vforks{0}, threads{0}, switches{0}, loads{0},
      same_place{0};
  Chain first_wrong, first_early[CLEW_END_COUNT];
};
Figures* figures;

void count(std::atomic<uint64_t>& figure) { figure.fetch_add(1, std::memory_order_relaxed); }

// ---- What is known of a thread ----

struct Tail {
  std::array<uintptr_t, 32> pcs;
  size_t count = 0;

  bool ends(std::span<const clew::Frame> frames) const {
    if (frames.size() < count) return false;
    for (size_t i = 0; i < count; ++i)
      if (frames[frames.size() - count + i].pc != pcs[i]) return false;
    return true;
  }
  bool ends(std::span<const uintptr_t> addresses) const {
    return addresses.size() >= count &&
           std::memcmp(addresses.data() + addresses.size() - count, pcs.data(), count * sizeof pcs[0]) == 0;
  }
};

/// Which tail holds: neither is known at a thread's start, both are possible while stacks are switched.
enum Place : int { kNowhere = 0, kThread = 1, kCoroutine = 2, kEither = 3 };

struct Marks {
  Tail thread, coroutine;
  volatile int place = kNowhere;
};

constinit thread_local Marks* marks = nullptr;

void set_place(Place place) {
  std::atomic_signal_fence(std::memory_order_seq_cst);
  marks->place = place;
  std::atomic_signal_fence(std::memory_order_seq_cst);
}

/// Records the chain from the caller's caller on.
LEVEL void record_tail(Tail& tail) {
  std::array<void*, 24> found;
  const auto all = static_cast<size_t>(::backtrace(found.data(), static_cast<int>(found.size())));
  size_t first = 0;  // a sanitizer's backtrace has a frame of its own
  while (first < all && found[first] != __builtin_return_address(0)) ++first;
  tail.count = 0;
  while (++first < all) tail.pcs[tail.count++] = reinterpret_cast<uintptr_t>(found[first]);
  AFTER_CALL;
}

// ---- The handler ----

void keep(Chain& chain, std::span<const clew::Frame> frames, uint64_t detail) {
  if (chain.taken.exchange(true)) return;
  chain.count = std::min(frames.size(), chain.frames.size());
  std::copy_n(frames.data(), chain.count, chain.frames.data());
  chain.detail = detail;
}

void judge(std::span<const clew::Frame> frames, const clew::Trace& trace) {
  if (trace.end != CLEW_END_ROOT) {
    count(figures->early[trace.end]);
    keep(figures->first_early[trace.end], frames, trace.detail);
    return;
  }
  const int place = marks ? marks->place : kNowhere;
  if (place == kNowhere) {
    count(figures->unmarked);
    return;
  }
  const bool right = ((place & kThread) != 0 && marks->thread.ends(frames)) ||
                     ((place & kCoroutine) != 0 && marks->coroutine.ends(frames));
  count(right ? figures->right : figures->wrong);
  if (!right) keep(figures->first_wrong, frames, trace.detail);
}

void on_signal(int, siginfo_t*, void* ucontext) {
  const int before = errno;
  errno = 12345;
  std::array<clew::Frame, kFrames> frames;
  const clew::Trace trace = clew::unwind_ucontext(ucontext, frames);
  if (errno != 12345) count(figures->errno_changed);
  judge({frames.data(), trace.frames}, trace);
  count(figures->signals);
  errno = before;
}

// ---- What the workers do ----

LEVEL uint64_t burn(uint64_t rounds) {
  uint64_t x = rounds | 1;
  for (uint64_t i = 0; i < rounds; ++i) {
    x = x * 6364136223846793005u + 1442695040888963407u;
    asm volatile("" : "+r"(x));
  }
  return x;
}

LEVEL void throw_through(int depth) {
  const std::string guard(static_cast<size_t>(30 + depth), 'x');  // a destructor on the way
  if (depth == 0) throw depth;
  throw_through(depth - 1);
  AFTER_CALL;
}

LEVEL void do_throw() {
  try {
    throw_through(5);
  } catch (int) {
    count(figures->throws);
  }
}

LEVEL void jump_through(sigjmp_buf& back, int depth) {
  volatile char room[200];
  room[0] = 1;
  static_cast<void>(room[0]);
  if (depth == 0) siglongjmp(back, 1);
  jump_through(back, depth - 1);
  AFTER_CALL;
}

LEVEL void do_jump() {
  sigjmp_buf back;
  if (sigsetjmp(back, 1) == 0) jump_through(back, 6);
  count(figures->jumps);
}

/// The thread's own chain by both, which are interrupted in it.
LEVEL void do_backtrace(int depth) {
  volatile char room[64];
  room[0] = 1;
  static_cast<void>(room[0]);
  if (depth > 0) {
    do_backtrace(depth - 1);
    AFTER_CALL;
    return;
  }
  std::array<uintptr_t, kFrames> ours;
  std::array<uintptr_t, kFrames> glibcs;
  const size_t frames = clew::backtrace(ours);
  const int theirs = ::backtrace(reinterpret_cast<void**>(glibcs.data()), static_cast<int>(glibcs.size()));
  const Tail& tail = marks->place == kCoroutine ? marks->coroutine : marks->thread;
  if (!tail.ends(std::span<const uintptr_t>(ours.data(), frames)) ||
      !tail.ends(std::span<const uintptr_t>(glibcs.data(), static_cast<size_t>(theirs))))
    count(figures->wrong);
}

void unwind_in_child() {
  for (int i = 0; i < 3; ++i) raise(i % 2 == 0 ? SIGUSR1 : SIGUSR2);
}

LEVEL void do_fork() {
  const pid_t child = fork();
  if (child == 0) {
    unwind_in_child();
    _exit(0);
  }
  int status = 0;
  if (child < 0) return;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) {
    count(figures->wrong);
    std::fprintf(stderr, "a forked child ended with status %#x\n", static_cast<unsigned>(status));
  }
  count(figures->forks);
}

LEVEL void do_vfork() {
  const pid_t child = vfork();
  if (child == 0) {
    syscall(SYS_tgkill, syscall(SYS_getpid), syscall(SYS_gettid), SIGUSR1);
    _exit(0);
  }
  int status = 0;
  if (child < 0) return;
  while (waitpid(child, &status, 0) < 0 && errno == EINTR) {
  }
  if (status != 0) count(figures->wrong);
  count(figures->vforks);
}

/// Runs `work` under the mark of `which`.
LEVEL void under_mark(Tail& tail, Place place, void (*work)()) {
  record_tail(tail);
  set_place(place);
  work();
  set_place(kNowhere);
}

void short_work() {
  burn(2000);
  do_throw();
  do_backtrace(3);
  burn(2000);
}

void* short_thread(void*) {
  Marks own;
  marks = &own;
  under_mark(own.thread, kThread, short_work);
  set_place(kNowhere);
  marks = nullptr;
  return nullptr;
}

/// One that takes the process's own profiling signal, from its first instruction on.
LEVEL void do_threads() {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  sigset_t none;
  sigemptyset(&none);
  pthread_attr_setsigmask_np(&attributes, &none);
  std::array<pthread_t, 3> threads;
  for (pthread_t& thread : threads)
    if (pthread_create(&thread, &attributes, short_thread, nullptr) != 0) std::abort();
  for (const pthread_t thread : threads) pthread_join(thread, nullptr);
  pthread_attr_destroy(&attributes);
  figures->threads.fetch_add(threads.size(), std::memory_order_relaxed);
}

thread_local ucontext_t switch_back, switch_there;

// The address sanitizer has to be told of switches: it clears its notes of a stack that an exception leaves.
#ifdef __SANITIZE_ADDRESS__
extern "C" void __sanitizer_start_switch_fiber(void** saved, const void* bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void* saved, const void** bottom, size_t* size);
#else
void __sanitizer_start_switch_fiber(void**, const void*, size_t) {}
void __sanitizer_finish_switch_fiber(void*, const void**, size_t*) {}
#endif
thread_local const void* thread_stack;
thread_local size_t thread_stack_size;

void in_coroutine() {
  do_throw();
  do_jump();
  do_backtrace(2);
  burn(1000);
  set_place(kEither);
  __sanitizer_start_switch_fiber(nullptr, thread_stack, thread_stack_size);
  swapcontext(&switch_there, &switch_back);  // for good: its stack goes away
}

void coroutine() {
  __sanitizer_finish_switch_fiber(nullptr, &thread_stack, &thread_stack_size);
  under_mark(marks->coroutine, kCoroutine, in_coroutine);
  AFTER_CALL;
}

LEVEL void do_coroutine() {
  const size_t size = (256 + static_cast<size_t>(random()) % 16) * kPage;
  void* stack = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (stack == MAP_FAILED) std::abort();
  getcontext(&switch_there);
  switch_there.uc_stack = {stack, 0, size};
  switch_there.uc_link = nullptr;
  makecontext(&switch_there, coroutine, 0);
  set_place(kNowhere);  // until it has recorded what it runs under
  void* sanitizers = nullptr;
  __sanitizer_start_switch_fiber(&sanitizers, stack, size);
  swapcontext(&switch_back, &switch_there);
  __sanitizer_finish_switch_fiber(sanitizers, nullptr, nullptr);
  set_place(kThread);
  munmap(stack, size);
  count(figures->switches);
}

/// On the alternate stack, where there is one.
void on_busy(int, siginfo_t*, void*) {
  do_throw();
  do_backtrace(1);
  burn(1000);
}

LEVEL void do_handler() { raise(SIGURG); }

// ---- Plugins ----

std::string plugin_folder, plugin_path;
bool load_tables_too = false;

void replace_plugin(int number) {
  const std::string fresh = plugin_path + ".new";
  std::filesystem::copy_file(plugin_folder + "/plugin_" + std::to_string(number) + ".so", fresh,
                             std::filesystem::copy_options::overwrite_existing);
  std::filesystem::rename(fresh, plugin_path);
}

/// Another file at the same path and mostly at the same address.
LEVEL void do_plugin() {
  static int number = 0;
  static void* last_place = nullptr;
  number = (number + 1) % 3;
  replace_plugin(number);
  void* plugin = dlopen(plugin_path.c_str(), RTLD_NOW);
  if (!plugin) std::abort();
  if (load_tables_too && random() % 4 == 0) clew::load_tables();
  const std::string name = "plugin_entry_" + std::to_string(number);
  auto* entry = reinterpret_cast<uint64_t (*)(double)>(dlsym(plugin, name.c_str()));
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(entry), &info);
  if (info.dli_fbase == last_place) count(figures->same_place);
  last_place = info.dli_fbase;
  for (int i = 0; i < 5; ++i) entry(1e-9);
  dlclose(plugin);
  count(figures->loads);
}

// ---- Running it ----

std::atomic<bool> stop{false};
std::array<std::atomic<int>, kWorkers> tids;

struct Worker {
  pthread_t thread;
  size_t number;
};
thread_local size_t worker_number = 0;

void work() {
  std::minstd_rand random(static_cast<unsigned>(worker_number) + 1);
  while (!stop.load(std::memory_order_relaxed)) {
    switch (random() % 64) {
      case 0:
        do_fork();
        break;
      case 1:
        do_vfork();
        break;
      case 2:
      case 3:
        do_threads();
        break;
      case 4:
      case 5:
      case 6:
        if (worker_number == 0) do_plugin();
        break;
      default:
        switch (random() % 6) {
          case 0:
            do_throw();
            break;
          case 1:
            do_jump();
            break;
          case 2:
            do_backtrace(static_cast<int>(random() % 30));
            break;
          case 3:
            do_coroutine();
            break;
          case 4:
            do_handler();
            break;
          default:
            std::free(std::malloc(random() % 100000));
            break;
        }
    }
  }
}

void* run_worker(void* argument) {
  const auto& worker = *static_cast<Worker*>(argument);
  worker_number = worker.number;
  // Half of them have an alternate stack.
  stack_t before;  // a sanitizer's: it unmaps what it finds at the thread's end
  sigaltstack(nullptr, &before);
  constexpr size_t kRoom = 1 << 20;
  stack_t stack{nullptr, SS_DISABLE, 0};
  if (worker.number % 2 == 0) {
    void* room = mmap(nullptr, kRoom, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (room == MAP_FAILED) std::abort();
    stack = {room, 0, kRoom};
  }
  sigaltstack(&stack, nullptr);
  Marks own;
  marks = &own;
  tids[worker.number] = gettid();
  under_mark(own.thread, kThread, work);
  set_place(kNowhere);
  tids[worker.number] = 0;
  sigaltstack(&before, nullptr);
  return nullptr;
}

void handle(int signal, void (*handler)(int, siginfo_t*, void*)) {
  struct sigaction action{};
  action.sa_sigaction = handler;
  action.sa_flags = SA_SIGINFO | SA_RESTART | SA_ONSTACK;
  sigaction(signal, &action, nullptr);
}

void print(const char* what, const Chain& chain) {
  if (!chain.taken) return;
  std::fprintf(stderr, "%s (%#lx):\n", what, static_cast<unsigned long>(chain.detail));
  for (size_t i = 0; i < chain.count; ++i) {
    const clew::Frame& frame = chain.frames[i];
    Dl_info info{};
    dladdr(reinterpret_cast<void*>(frame.pc), &info);
    std::fprintf(stderr, "  %#14lx sp %#14lx %s %s %s+%#lx\n", static_cast<unsigned long>(frame.pc),
                 static_cast<unsigned long>(frame.sp), clew_how_name(frame.how),
                 info.dli_sname ? info.dli_sname : "", info.dli_fname ? info.dli_fname : "?",
                 static_cast<unsigned long>(frame.pc - reinterpret_cast<uintptr_t>(info.dli_fbase)));
  }
}

/// Sends signals at random times until there are enough or the time is over.
void send(uint64_t signals, double seconds) {
  std::minstd_rand random(7);
  const auto begin = std::chrono::steady_clock::now();
  const auto end = begin + std::chrono::duration<double>(seconds);
  const pid_t pid = getpid();
  while (figures->signals < signals && std::chrono::steady_clock::now() < end) {
    const int tid = tids[random() % kWorkers];
    if (tid != 0) syscall(SYS_tgkill, pid, tid, random() % 2 == 0 ? SIGUSR1 : SIGUSR2);
    if (random() % 4 == 0) kill(pid, SIGPROF);
    burn(random() % 8192);
  }
}

}  // namespace

int main(int argc, char** argv) {
  uint64_t signals = UINT64_MAX;
  double seconds = 5;
  plugin_folder = CLEW_PLUGINS;
  for (int i = 1; i < argc; ++i) {
    const std::string_view option = argv[i];
    if (option == "--tables") {
      load_tables_too = true;
    } else if (option == "--signals" && i + 1 < argc) {
      signals = std::strtoull(argv[++i], nullptr, 10);
      seconds = 1e9;
    } else if (option == "--seconds" && i + 1 < argc) {
      seconds = std::strtod(argv[++i], nullptr);
    } else {
      std::fprintf(stderr, "usage: %s [--seconds N | --signals N] [--tables]\n", argv[0]);
      return 2;
    }
  }
  char folder[] = "/tmp/clew-stress-XXXXXX";
  if (!mkdtemp(folder)) return 2;
  plugin_path = std::string(folder) + "/plugin.so";
  void* shared = mmap(nullptr, sizeof(Figures), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 2;
  figures = new (shared) Figures;
  if (load_tables_too) clew::load_tables();

  for (const int signal : {SIGUSR1, SIGUSR2, SIGPROF}) handle(signal, on_signal);
  handle(SIGURG, on_busy);
  sigset_t blocked;
  sigemptyset(&blocked);
  for (const int signal : {SIGUSR1, SIGUSR2, SIGPROF}) sigaddset(&blocked, signal);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  // A worker takes what is sent to it, not what is sent to the process: that is for the short-lived threads.
  sigset_t workers_blocked;
  sigemptyset(&workers_blocked);
  sigaddset(&workers_blocked, SIGPROF);
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  pthread_attr_setsigmask_np(&attributes, &workers_blocked);
  std::array<Worker, kWorkers> workers;
  for (size_t i = 0; i < kWorkers; ++i) {
    workers[i].number = i;
    if (pthread_create(&workers[i].thread, &attributes, run_worker, &workers[i]) != 0) return 2;
  }
  pthread_attr_destroy(&attributes);
  send(signals, seconds);
  stop = true;
  for (const Worker& worker : workers) pthread_join(worker.thread, nullptr);
  std::filesystem::remove_all(folder);

  uint64_t early = 0;
  std::string reasons;
  for (size_t end = 0; end < CLEW_END_COUNT; ++end) {
    const uint64_t times = figures->early[end];
    early += times;
    if (times != 0)
      reasons += std::string(" ") + clew_end_name(static_cast<uint32_t>(end)) + " " + std::to_string(times);
  }
  const auto n = [](const std::atomic<uint64_t>& figure) {
    return static_cast<unsigned long>(figure.load());
  };
  std::printf(
      "signals %lu: right %lu, wrong %lu, complete but unmarked %lu, ended early %lu%s, errno changed %lu; "
      "throws %lu, jumps %lu, forks %lu, vforks %lu, threads %lu, coroutines %lu, plugins %lu (%lu where one "
      "was)\n",
      n(figures->signals), n(figures->right), n(figures->wrong), n(figures->unmarked),
      static_cast<unsigned long>(early), reasons.c_str(), n(figures->errno_changed), n(figures->throws),
      n(figures->jumps), n(figures->forks), n(figures->vforks), n(figures->threads), n(figures->switches),
      n(figures->loads), n(figures->same_place));
  print("wrong", figures->first_wrong);
  for (size_t end = 0; end < CLEW_END_COUNT; ++end)
    print(clew_end_name(static_cast<uint32_t>(end)), figures->first_early[end]);
  return figures->wrong == 0 && early * 500 <= figures->signals && figures->errno_changed == 0 &&
                 figures->right != 0
             ? 0
             : 1;
}
