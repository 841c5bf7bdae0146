// The local unwinder in the places where unwinders fail: at every instruction (single-stepped by the trap
// flag), in handlers on both stacks, interrupting itself, after a call of nothing, on a broken stack. The
// truth is what the test itself called, or glibc's backtrace.
#include <dlfcn.h>
#include <execinfo.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csetjmp>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "clew/unwind.hpp"
#include "corpus.hpp"

namespace clew::test {
namespace {

#define NOINLINE __attribute__((noinline, noipa))
#define AFTER_CALL asm volatile("" ::: "memory")

/// What a handler or a leaf saw. Plain arrays: handlers do not allocate.
struct Seen {
  std::array<Frame, 256> frames;
  Trace trace{};
  bool root() const { return trace.end == CLEW_END_ROOT; }
  std::vector<uintptr_t> pcs() const {
    std::vector<uintptr_t> out;
    for (size_t i = 0; i < trace.frames; ++i) out.push_back(frames[i].pc);
    return out;
  }
};

/// Whether `tail` are the last of `pcs`.
bool ends_in(const std::vector<uintptr_t>& pcs, const std::vector<uintptr_t>& tail) {
  return pcs.size() >= tail.size() && std::equal(tail.rbegin(), tail.rend(), pcs.rbegin());
}

struct Handler {
  Handler(int signal, void (*function)(int, siginfo_t*, void*), int flags = 0) : signal_(signal) {
    struct sigaction action{};
    action.sa_sigaction = function;
    action.sa_flags = SA_SIGINFO | flags;
    sigaction(signal, &action, &before_);
  }
  ~Handler() { sigaction(signal_, &before_, nullptr); }
  int signal_;
  struct sigaction before_;
};

NOINLINE size_t by_both(std::vector<uintptr_t>& ours, std::vector<uintptr_t>& glibcs) {
  ours.resize(256);
  glibcs.resize(256);
  const size_t count = backtrace(ours);
  // Of the very library: the address sanitizer puts a frame of its own before it.
  static const auto of_glibc =
      reinterpret_cast<decltype(&::backtrace)>(dlsym(dlopen("libc.so.6", RTLD_NOW), "backtrace"));
  const int theirs = of_glibc(reinterpret_cast<void**>(glibcs.data()), 256);
  ours.resize(count);
  glibcs.resize(static_cast<size_t>(theirs));
  AFTER_CALL;
  return count;
}

NOINLINE size_t recurse(int depth, std::vector<uintptr_t>& ours, std::vector<uintptr_t>& glibcs) {
  volatile char room[40];
  room[0] = static_cast<char>(depth);
  const size_t count = depth == 0 ? by_both(ours, glibcs) : recurse(depth - 1, ours, glibcs);
  AFTER_CALL;
  return count + static_cast<size_t>(room[0]) * 0;
}

TEST(Local, BacktraceIsGlibcs) {
  std::vector<uintptr_t> ours, glibcs;
  // Again and again: from nothing known, from the cache, from the remembered trace.
  for (const int depth : {0, 1, 40, 40, 40, 3, 100, 40, 0}) {
    recurse(depth, ours, glibcs);
    ASSERT_EQ(ours.size(), glibcs.size()) << depth;
    // The first is where each was called from.
    EXPECT_TRUE(std::equal(ours.begin() + 1, ours.end(), glibcs.begin() + 1)) << depth;
    EXPECT_NE(ours[0], glibcs[0]);
  }
}

TEST(Local, ABacktraceThatDoesNotFitIsItsInnermostPart) {
  std::vector<uintptr_t> ours, glibcs;
  recurse(30, ours, glibcs);
  std::vector<uintptr_t> whole, part(7);
  const auto at = [&](std::span<uintptr_t> out) NOINLINE { return backtrace(out); };
  whole.resize(256);
  whole.resize(at(whole));
  EXPECT_EQ(at(part), 7u);
  EXPECT_TRUE(std::equal(part.begin() + 2, part.end(), whole.begin() + 2));
  EXPECT_EQ(at({}), 0u);
}

TEST(Local, FramesSayHowTheyWereFound) {
  std::array<Frame, 256> frames;
  const Trace trace = unwind_here(frames);
  ASSERT_GT(trace.frames, 3u);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_ROOT));
  EXPECT_EQ(frames[0].how, static_cast<uint32_t>(CLEW_HOW_REGISTERS));
  for (size_t i = 1; i < trace.frames; ++i) {
    EXPECT_EQ(frames[i].how, static_cast<uint32_t>(CLEW_HOW_TABLE));
    EXPECT_GT(frames[i].sp, frames[i - 1].sp);
  }
  std::vector<uintptr_t> ours(256);
  ours.resize(backtrace(ours));
  ASSERT_EQ(ours.size(), trace.frames);
  for (size_t i = 1; i < ours.size(); ++i) EXPECT_EQ(ours[i], frames[i].pc);
}

// ---- Every instruction ----

struct Stepping {
  uintptr_t begin_sp = 0;       // frames above are the test's own, which do not change
  std::vector<uintptr_t> tail;  // their addresses
  uint64_t steps = 0, wrong = 0, incomplete = 0;
  uintptr_t first_wrong = 0;
  uint32_t first_end = 0;
  size_t first_frames = 0;
  std::array<uintptr_t, 16> first_pcs{};
};
Stepping* stepping = nullptr;
Seen stepped;

void on_step(int, siginfo_t*, void* ucontext) {
  Stepping& now = *stepping;
  ++now.steps;
  stepped.trace = unwind_ucontext(ucontext, stepped.frames);
  const size_t count = stepped.trace.frames;
  bool right = stepped.root() && count >= now.tail.size();
  for (size_t i = 0; right && i < now.tail.size(); ++i)
    right = stepped.frames[count - 1 - i].pc == now.tail[now.tail.size() - 1 - i];
  const auto pc = static_cast<uintptr_t>(static_cast<ucontext_t*>(ucontext)->uc_mcontext.gregs[REG_RIP]);
  right = right && stepped.frames[0].pc == pc;
  if (right) return;
  if (now.wrong++ == 0) {
    now.first_wrong = pc;
    now.first_end = stepped.trace.end;
    now.first_frames = count;
    for (size_t i = 0; i < std::min(count, now.first_pcs.size()); ++i)
      now.first_pcs[i] = stepped.frames[i].pc;
  }
}

/// Runs `work` with the trap flag set: the handler unwinds at each of its instructions.
NOINLINE void step_through(const std::function<void()>& work, Stepping& result) {
  Handler handler(SIGTRAP, on_step);
  std::vector<uintptr_t> here(256);
  here.resize(backtrace(here));
  result.tail.assign(here.begin() + 1, here.end());  // our callers
  stepping = &result;
  asm volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
  work();
  asm volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
  stepping = nullptr;
}

std::string describe(const Stepping& result) {
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(result.first_wrong), &info);
  char text[400];
  std::snprintf(text, sizeof text, "%lu of %lu wrong, first at %#lx (%s+%#lx %s), ended %s after %zu frames",
                static_cast<unsigned long>(result.wrong), static_cast<unsigned long>(result.steps),
                static_cast<unsigned long>(result.first_wrong), info.dli_fname ? info.dli_fname : "?",
                static_cast<unsigned long>(result.first_wrong - reinterpret_cast<uintptr_t>(info.dli_fbase)),
                info.dli_sname ? info.dli_sname : "?", clew_end_name(result.first_end), result.first_frames);
  return text;
}

NOINLINE int compare(const void* a, const void* b) {
  return *static_cast<const int*>(a) - *static_cast<const int*>(b);
}

NOINLINE void work_of_libc() {
  int values[40];
  for (int i = 0; i < 40; ++i) values[i] = i * 7919 % 31;
  qsort(values, 40, sizeof(int), compare);
  char text[100];
  std::snprintf(text, sizeof text, "%d %s %a %.3f", values[3], "word", 1.5, 2.25);
  free(std::malloc(5000));
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  getpid();
}

NOINLINE void work_of_alloca(size_t size) {
  auto* room = static_cast<volatile char*>(__builtin_alloca(size));
  room[0] = 1;
  alignas(64) volatile char aligned[64];
  aligned[5] = room[0];
  asm volatile("" ::"r"(&aligned[0]) : "memory");
}

NOINLINE void throws(int depth) {
  const std::string guard(static_cast<size_t>(40 + depth), 'x');  // a destructor on the way
  if (depth == 0) throw 5;
  throws(depth - 1);
  AFTER_CALL;
}

NOINLINE void work_of_exceptions() {
  try {
    throws(3);
  } catch (int) {
  }
}

NOINLINE void work_of_longjmp() {
  static jmp_buf back;
  if (setjmp(back) == 0) std::longjmp(back, 1);
}

class EveryInstruction : public testing::TestWithParam<const char*> {};

void run_work(const std::string& name) {
  if (name == "libc") work_of_libc();
  if (name == "alloca") {
    for (const size_t size : {17, 4000, 100}) work_of_alloca(size);
  }
  if (name == "exceptions") work_of_exceptions();
  if (name == "longjmp") work_of_longjmp();
  if (name == "plt") {
    // Bound lazily: the first call goes through the dynamic linker.
    static_cast<void>(::strverscmp("a1", "a2"));
    static_cast<void>(::strfry(std::string("a b").data()));
  }
}

TEST_P(EveryInstruction, UnwindsToTheRoot) {
  run_work("exceptions");  // what is done once a process is not what this is about
  const auto once = [&] {
    Stepping result;
    step_through([] { run_work(GetParam()); }, result);
    EXPECT_GT(result.steps, 100u);
    EXPECT_EQ(result.wrong, 0u) << describe(result);
  };
  clew_load_tables();
  once();
}
INSTANTIATE_TEST_SUITE_P(Local, EveryInstruction,
                         testing::Values("libc", "alloca", "exceptions", "longjmp", "plt"),
                         [](const auto& test) { return std::string(test.param); });

// ---- Handlers ----

Seen seen;

void on_signal(int, siginfo_t*, void* ucontext) { seen.trace = unwind_ucontext(ucontext, seen.frames); }
void on_signal_here(int, siginfo_t*, void*) {
  errno = 77;
  seen.trace = unwind_here(seen.frames);
  if (errno != 77) seen.trace = {};
}

NOINLINE void interrupted(int signal) {
  raise(signal);
  AFTER_CALL;
}

TEST(Local, AHandlersOwnStackGoesOnBelowIt) {
  Handler handler(SIGUSR1, on_signal_here);
  std::vector<uintptr_t> here(256);
  here.resize(backtrace(here));
  interrupted(SIGUSR1);
  ASSERT_TRUE(seen.root());
  const auto pcs = seen.pcs();
  EXPECT_TRUE(ends_in(pcs, {here.begin() + 1, here.end()}));
  EXPECT_GT(pcs.size(), here.size() + 3);  // the handler, its trampoline, raise, interrupted
  EXPECT_EQ(std::count_if(seen.frames.begin(), seen.frames.begin() + static_cast<long>(pcs.size()),
                          [](const Frame& frame) { return (frame.flags & CLEW_FRAME_SIGNAL) != 0; }),
            1);
}

TEST(Local, AHandlerOnAnotherStackReachesTheFirst) {
  std::vector<char> room(1 << 16);
  stack_t stack{room.data(), 0, room.size()}, before;
  sigaltstack(&stack, &before);
  {
    Handler handler(SIGUSR1, on_signal_here, SA_ONSTACK);
    std::vector<uintptr_t> here(256);
    here.resize(backtrace(here));
    for (int i = 0; i < 3; ++i) {
      interrupted(SIGUSR1);
      ASSERT_TRUE(seen.root()) << clew_end_name(seen.trace.end);
      EXPECT_TRUE(ends_in(seen.pcs(), {here.begin() + 1, here.end()}));
      EXPECT_LT(seen.frames[0].sp - reinterpret_cast<uintptr_t>(room.data()), room.size());
    }
  }
  sigaltstack(&before, nullptr);
}

TEST(Local, ACallOfNothingIsItsCallers) {
  static sigjmp_buf back;
  Handler handler(SIGSEGV, [](int signal, siginfo_t* info, void* ucontext) {
    on_signal(signal, info, ucontext);
    siglongjmp(back, 1);
  });
  for (const uintptr_t target : {uintptr_t{0}, uintptr_t{0x1234}, uintptr_t{1} << 46}) {
    void (*volatile nothing)() = reinterpret_cast<void (*)()>(target);
    std::vector<uintptr_t> here(256);
    here.resize(backtrace(here));
    if (sigsetjmp(back, 1) == 0) nothing();
    ASSERT_TRUE(seen.root()) << clew_end_name(seen.trace.end);
    EXPECT_EQ(seen.frames[0].pc, target);
    EXPECT_TRUE(ends_in(seen.pcs(), {here.begin() + 1, here.end()}));
  }
}

TEST(Local, ABrokenStackEndsTheTrace) {
  Handler handler(SIGUSR1, [](int, siginfo_t*, void* context) {
    auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    ucontext_t broken = *static_cast<ucontext_t*>(context);
    auto* guard = static_cast<char*>(mmap(nullptr, 2 * 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    mprotect(guard, 4096, PROT_READ | PROT_WRITE);
    size_t unreadable = 0;
    const uintptr_t places[] = {0,
                                8,
                                reinterpret_cast<uintptr_t>(guard) + 4096 - 4,
                                UINTPTR_MAX - 4,
                                reinterpret_cast<uintptr_t>(guard) + 4096,
                                uintptr_t{1} << 60,
                                reinterpret_cast<uintptr_t>(guard) + 4096 - 16};
    for (const uintptr_t place : places) {
      broken.uc_mcontext.gregs[REG_RSP] = static_cast<greg_t>(place);
      broken.uc_mcontext.gregs[REG_RBP] = static_cast<greg_t>(place);
      seen.trace = unwind_ucontext(&broken, seen.frames);
      unreadable += seen.trace.end == CLEW_END_UNREADABLE || seen.trace.end == CLEW_END_NOT_MAPPED ? 1 : 0;
      if (seen.trace.frames == 0 || seen.frames[0].pc != static_cast<uintptr_t>(registers[REG_RIP]))
        unreadable = 99;
    }
    munmap(guard, 2 * 4096);
    seen.trace.frames = unreadable;
  });
  raise(SIGUSR1);
  EXPECT_EQ(seen.trace.frames, 7u);
}

// ---- Itself, interrupted ----

std::atomic<uint64_t> ticks{0}, wrong_ticks{0};
std::vector<uintptr_t> below;  // of the thread that is interrupted
thread_local const std::vector<uintptr_t>* own_tail = nullptr;

void on_tick(int, siginfo_t*, void* ucontext) {
  std::array<Frame, 256> frames;
  const Trace trace = unwind_ucontext(ucontext, frames);
  ticks.fetch_add(1, std::memory_order_relaxed);
  bool right = trace.end == CLEW_END_ROOT;
  if (const auto* tail = own_tail) {
    right = right && trace.frames >= tail->size();
    for (size_t i = 0; right && i < tail->size(); ++i)
      right = frames[trace.frames - 1 - i].pc == (*tail)[tail->size() - 1 - i];
  }
  if (!right) wrong_ticks.fetch_add(1, std::memory_order_relaxed);
}

TEST(Local, InterruptsItself) {
  clew_load_tables();
  below.resize(256);
  below.resize(backtrace(below));
  below.erase(below.begin());
  own_tail = &below;
  ticks = wrong_ticks = 0;
  {
    Handler handler(SIGPROF, on_tick, SA_RESTART);
    const itimerval often{{0, 1000}, {0, 1000}}, never{};
    setitimer(ITIMER_PROF, &often, nullptr);
    std::vector<uintptr_t> ours, glibcs;
    size_t different = 0;
    for (int i = 0; ticks < 300 && i < 2'000'000; ++i) {
      recurse(i % 50, ours, glibcs);
      different += ours.size() != glibcs.size() ? 1 : 0;
    }
    setitimer(ITIMER_PROF, &never, nullptr);
    EXPECT_EQ(different, 0u);
  }
  own_tail = nullptr;
  EXPECT_GT(ticks, 50u);
  EXPECT_EQ(wrong_ticks, 0u);
}

TEST(Local, ThreadsThatBeginAndEnd) {
  clew_load_tables();
  ticks = wrong_ticks = 0;
  {
    Handler handler(SIGPROF, on_tick, SA_RESTART);
    const itimerval often{{0, 1000}, {0, 1000}}, never{};
    setitimer(ITIMER_PROF, &often, nullptr);
    for (int i = 0; ticks < 300 && i < 100'000; ++i) {
      std::thread one([] { work_of_libc(); });
      std::thread two([] { work_of_exceptions(); });
      one.join();
      two.join();
    }
    setitimer(ITIMER_PROF, &never, nullptr);
  }
  EXPECT_GT(ticks, 50u);
  EXPECT_EQ(wrong_ticks, 0u);
}

// ---- A stack that a dead thread had more of ----

constexpr size_t kLargeStack = 1 << 20, kSmallStack = 128 << 10;
std::byte* large_stack;

NOINLINE size_t deep_walk(size_t bytes) {
  volatile char room[4000];
  room[0] = 1;
  std::array<uintptr_t, 16> addresses;
  const size_t count = bytes > sizeof room ? deep_walk(bytes - sizeof room) : backtrace(addresses);
  AFTER_CALL;
  return count + static_cast<size_t>(room[0]);
}

void* run_on_stack(std::byte* stack, size_t size, void* (*function)(void*)) {
  pthread_attr_t attributes;
  pthread_attr_init(&attributes);
  EXPECT_EQ(pthread_attr_setstack(&attributes, stack, size), 0);
  pthread_t thread;
  EXPECT_EQ(pthread_create(&thread, &attributes, function, nullptr), 0);
  void* result = nullptr;
  pthread_join(thread, &result);
  pthread_attr_destroy(&attributes);
  return result;
}

/// A handler on an alternate stack that finds the thread where its stack has none: walks from there, and
/// through the signal frame to there.
void on_gone_stack(int, siginfo_t*, void* context) {
  auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
  const auto right = registers[REG_RSP];
  registers[REG_RSP] = reinterpret_cast<greg_t>(large_stack + kLargeStack / 2);
  seen.trace = unwind_ucontext(context, seen.frames);
  std::array<uintptr_t, 16> addresses;
  backtrace(addresses);
  registers[REG_RSP] = right;
}

TEST(Local, ANewThreadMayHaveLessStackThanADeadOneInItsPlace) {
  large_stack = static_cast<std::byte*>(
      mmap(nullptr, kLargeStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  void* const before = run_on_stack(large_stack, kLargeStack, [](void*) -> void* {
    // All but its end, several times: what is known grows.
    for (int i = 0; i < 3; ++i) deep_walk(kLargeStack - kSmallStack);
    return reinterpret_cast<void*>(pthread_self());
  });
  constexpr size_t kGone = kLargeStack - kSmallStack;
  ASSERT_EQ(mprotect(large_stack, kGone, PROT_NONE), 0);
  for (int round = 0; round < 2; ++round) {
    seen.trace = {};
    Handler handler(SIGUSR1, on_gone_stack, SA_ONSTACK);
    void* const after = run_on_stack(large_stack + kGone, kSmallStack, [](void*) -> void* {
      static std::array<std::byte, 64 << 10> alternate;
      const stack_t stack{alternate.data(), 0, alternate.size()};
      stack_t before_it;
      sigaltstack(&stack, &before_it);
      raise(SIGUSR1);
      sigaltstack(&before_it, nullptr);  // a sanitizer's own, which it unmaps at the thread's end
      return reinterpret_cast<void*>(pthread_self());
    });
    ASSERT_EQ(after, before) << "the control block is not where the dead thread's was";
    EXPECT_EQ(seen.trace.end, static_cast<uint32_t>(CLEW_END_UNREADABLE)) << clew_end_name(seen.trace.end);
    EXPECT_EQ(seen.trace.frames, 1u);
  }
  munmap(large_stack, kLargeStack);
}

// ---- Another thread ----

TEST(Local, AnotherThreadUnwindsItself) {
  std::atomic<int> tid{0};
  std::atomic<bool> stop{false};
  std::vector<uintptr_t> tail;
  std::thread other([&] {
    tail.resize(256);
    tail.resize(backtrace(tail));
    tid = gettid();
    while (!stop) work_of_libc();
  });
  while (tid == 0) std::this_thread::yield();
  std::array<Frame, 256> frames;
  for (int i = 0; i < 20; ++i) {
    const Trace trace = unwind_thread(tid, SIGRTMIN + 5, 2000, frames);
    ASSERT_GE(trace.frames, tail.size());  // as many where it is about to begin its work
    EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_ROOT));
    for (size_t k = 1; k + 1 < tail.size(); ++k)
      EXPECT_EQ(frames[trace.frames - k].pc, tail[tail.size() - k]);
  }
  stop = true;
  other.join();
  EXPECT_EQ(unwind_thread(tid, SIGRTMIN + 5, 10, frames).frames, 0u);  // it is gone
}

// ---- Frame by frame ----

TEST(Local, ACursorKnowsRegisters) {
  Handler handler(SIGUSR1, [](int, siginfo_t*, void* context) {
    Cursor cursor(context);
    seen.trace = {};
    const auto& registers = static_cast<ucontext_t*>(context)->uc_mcontext.gregs;
    auto frame = cursor.next();
    const bool first = frame && cursor.value(0) == static_cast<uint64_t>(registers[REG_RAX]) &&
                       cursor.value(7) == frame->sp && cursor.value(16) == frame->pc;
    while (frame) {
      // rbx is saved by whoever changes it: the caller's comes back. See below.
      if (cursor.value(3) == 0x1122334455667788u) seen.trace.detail = 1;
      // rax is anybody's to change: behind a call nobody knows it.
      const bool exact = (frame->flags & CLEW_FRAME_EXACT_PC) != 0;
      if (cursor.value(0).has_value() != exact) seen.trace.end = CLEW_END_NO_REGISTER;
      ++seen.trace.frames;
      frame = cursor.next();
    }
    if (seen.trace.end == 0) seen.trace.end = cursor.end();
    if (!first) seen.trace.end = CLEW_END_NO_RULE;
  });
  register uint64_t kept asm("rbx") = 0x1122334455667788u;
  asm volatile("" : "+r"(kept));
  raise(SIGUSR1);
  asm volatile("" : "+r"(kept));
  EXPECT_TRUE(seen.root());
  EXPECT_GT(seen.trace.frames, 4u);
  EXPECT_EQ(seen.trace.detail, 1u);
}

TEST(Local, AForkedChildNeedNotWaitForTheOther) {
  // Other threads of the parent are asking when it forks.
  std::atomic<bool> stop{false};
  std::atomic<int> tid{0};
  std::thread asked([&] {
    tid = gettid();
    while (!stop) std::this_thread::yield();
  });
  while (tid == 0) std::this_thread::yield();
  std::thread asking([&] {
    std::array<Frame, 64> frames;
    while (!stop) unwind_thread(tid, SIGRTMIN + 5, 2000, frames);
  });
  for (int i = 0; i < 20; ++i) {
    usleep(300);
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      std::array<Frame, 64> frames;
      unwind_thread(gettid() + 1'000'000, SIGRTMIN + 5, 1, frames);  // nobody
      _exit(0);
    }
    int status = -1;
    waitpid(child, &status, 0);
    ASSERT_EQ(status, 0);
  }
  stop = true;
  asking.join();
  asked.join();
}

// ---- Coroutines and their stacks ----

ucontext_t switch_back, switch_there;
NOINLINE void look() {
  seen.trace = unwind_here(seen.frames);
  AFTER_CALL;
}
void coroutine() {
  volatile char room[100'000];  // so that most of the stack is read
  room[0] = 0;
  static_cast<void>(room[0]);
  look();
  swapcontext(&switch_there, &switch_back);
}
void run_coroutine(void* stack, size_t size) {
  getcontext(&switch_there);
  switch_there.uc_stack = {stack, 0, size};
  switch_there.uc_link = nullptr;
  makecontext(&switch_there, coroutine, 0);
  swapcontext(&switch_back, &switch_there);
}

TEST(Local, ACoroutinesStackIsItsOwn) {  // no table is loaded
  std::vector<char> stack(1 << 17);
  run_coroutine(stack.data(), stack.size());
  ASSERT_TRUE(seen.root()) << clew_end_name(seen.trace.end);
  EXPECT_EQ(seen.trace.frames, 3u);  // and glibc's trampoline
}

TEST(Local, ACoroutinesStackThatGoesAwayIsNotRead) {
  // Where the first thread's control block is, a coroutine's stack may lie just before.
  uintptr_t block;
  asm("mov %%fs:0, %0" : "=r"(block));
  uintptr_t mapped = block & ~uintptr_t{4095};  // the beginning of the block's mapping
  unsigned char resident;
  while (mincore(reinterpret_cast<void*>(mapped - 4096), 4096, &resident) == 0) mapped -= 4096;
  if (block - mapped > 900'000) GTEST_SKIP() << "the control block is far from free memory";
  constexpr size_t kSize = 1 << 17;
  const auto map = [&](size_t size) {
    return mmap(reinterpret_cast<void*>(mapped - kSize), size, PROT_READ | PROT_WRITE,
                MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1, 0);
  };
  void* stack = map(kSize);
  if (stack == MAP_FAILED) GTEST_SKIP() << "no room before the control block";
  const pid_t child = fork();  // whose memory of its stack is empty
  if (child == 0) {
    run_coroutine(stack, kSize);
    munmap(stack, kSize);
    // A smaller one at its place; what would be above is nobody's now.
    if (map(kSize / 2) == MAP_FAILED) _exit(2);
    ucontext_t context;
    getcontext(&context);
    auto* top = reinterpret_cast<uintptr_t*>(reinterpret_cast<uintptr_t>(stack) + kSize / 2);
    context.uc_mcontext.gregs[REG_RIP] = 0x1234;  // a call of nothing, with the return address out of reach
    context.uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(top - 1);
    // A return address of which the caller's frame would be above.
    top[-1] = seen.frames[0].pc;
    seen.trace = unwind_ucontext(&context, seen.frames);
    _exit(seen.root() ? 1 : 0);
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  munmap(stack, kSize);
}

// ---- Modules that replace each other ----

/// A library with a function that holds `bytes` of stack, all of it copies of its return address, while it
/// calls its argument; `call` calls it and holds as many copies as are needed for a walk that takes it for
/// another such function to have nothing to notice but a wrong stack pointer. All such libraries have the
/// same layout, and a note that is longer than the build-id and the same in all.
std::string library_with_frame(const std::string& folder, int bytes) {
  const std::string source = folder + "/" + std::to_string(bytes) + ".s";
  const std::string library = folder + "/" + std::to_string(bytes) + ".so";
  const auto function = [](const std::string& name, const std::string& size, const std::string& calls) {
    return ".type " + name + ", @function\n" + name + ":\n.cfi_startproc\nsub $" + size +
           ", %rsp\n.cfi_adjust_cfa_offset " + size + "\nmov " + size + "(%rsp), %rax\nmov $" + size +
           "/8, %ecx\n1: mov %rax, -8(%rsp,%rcx,8)\ndec %ecx\njnz 1b\ncall " + calls + "\nadd $" + size +
           ", %rsp\n.cfi_adjust_cfa_offset -" + size + "\nret\n.cfi_endproc\n.size " + name + ", . - " +
           name + "\n";
  };
  std::ofstream(source) << ".section .note.same, \"a\", @note\n.p2align 3\n.long 4, 64, 1\n.asciz \"abc\"\n"
                           ".fill 64, 1, 7\n.text\n.globl call\n"
                        << function("call", "264", "inner")
                        << function("inner", std::to_string(bytes), "*%rdi")
                        << ".section .note.GNU-stack, \"\", @progbits\n";
  const Output built =
      run_command("gcc -shared -nostdlib -Wl,--build-id -o " + library + " " + source + " 2>&1");
  EXPECT_EQ(built.status, 0) << built.out;
  return library;
}

NOINLINE void look_at_three() {
  seen.trace = unwind_here(std::span(seen.frames).first(3));
  AFTER_CALL;
}

/// Loads such libraries one after the other at one address, and walks through each, again and again: from its
/// tables or .eh_frame, and from what is remembered.
void replace_modules(bool tables) {
  const std::string folder = testing::TempDir() + "clew_local_" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  void* place = nullptr;
  for (const int bytes : {24, 40, 56, 24}) {
    void* module = dlopen(library_with_frame(folder, bytes).c_str(), RTLD_NOW);
    ASSERT_TRUE(module) << dlerror();
    void* call = dlsym(module, "call");
    if (place) {
      EXPECT_EQ(call, place) << "what this is about has not happened";
    }
    place = call;
    if (tables) clew_load_tables();
    for (int i = 0; i < 3; ++i) {
      reinterpret_cast<void (*)(void (*)())>(call)(look);
      EXPECT_TRUE(seen.root()) << bytes << clew_end_name(seen.trace.end);
      ASSERT_GT(seen.trace.frames, 2u);
      EXPECT_EQ(seen.frames[2].sp - seen.frames[1].sp, static_cast<uintptr_t>(bytes) + 8);
      reinterpret_cast<void (*)(void (*)())>(call)(look_at_three);  // no further than all looks well
      EXPECT_EQ(seen.frames[2].sp - seen.frames[1].sp, static_cast<uintptr_t>(bytes) + 8) << bytes;
    }
    dlclose(module);
  }
  std::filesystem::remove_all(folder);
}

TEST(Local, AnotherModuleAtTheSameAddressHasItsOwnRules) { replace_modules(false); }
TEST(Local, AnotherModuleAtTheSameAddressHasItsOwnTable) { replace_modules(true); }

/// Copies of a library with other build-ids: number i of them is at folder/copy_i.so.
void copy_under_other_names(const std::string& library, const std::string& folder, size_t first, size_t step,
                            size_t end) {
  std::ifstream file(library, std::ios::binary);
  std::string bytes((std::istreambuf_iterator<char>(file)), {});
  // The note's header: a name of 4 bytes, contents of 20, NT_GNU_BUILD_ID.
  const size_t note = bytes.find(std::string("\4\0\0\0\x14\0\0\0\3\0\0\0GNU", 16));
  ASSERT_NE(note, std::string::npos);
  for (size_t i = first; i < end; i += step) {
    std::memcpy(bytes.data() + note + 16, &i, sizeof i);
    std::ofstream(folder + "/copy_" + std::to_string(i) + ".so", std::ios::binary) << bytes;
  }
}

/// A walk of the calling thread again and again, beside what glibc says of it.
void walk_until(const std::atomic<bool>& stop, std::atomic<size_t>& walks, std::atomic<size_t>& wrong) {
  std::vector<uintptr_t> ours, glibcs;
  for (int i = 0; !stop; ++i) {
    recurse(i % 20, ours, glibcs);
    ++walks;
    wrong += ours.size() != glibcs.size() || !std::equal(ours.begin() + 1, ours.end(), glibcs.begin() + 1);
  }
}

TEST(Local, TablesAreLoadedByThreadsWhileOthersWalkAndReplaceModules) {
  // Libraries that take each other's place, of two kinds: with the table of the one, a frame of the other has
  // the wrong size.
  constexpr size_t kLibraries = 2000;
  constexpr std::array<int, 2> kSizes = {24, 40};
  const std::string folder = testing::TempDir() + "clew_tables_" + std::to_string(getpid());
  std::filesystem::create_directory(folder);
  for (size_t kind = 0; kind < 2; ++kind)
    copy_under_other_names(library_with_frame(folder, kSizes[kind]), folder, kind, 2, kLibraries);
  // What loads tables is stopped for a moment now and then, anywhere.
  Handler handler(SIGUSR1, [](int, siginfo_t*, void*) { usleep(700); }, SA_RESTART);
  std::atomic<bool> stop{false};
  std::atomic<size_t> walks{0}, wrong{0}, loads{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i)
    threads.emplace_back([&] {
      for (; !stop; ++loads) clew_load_tables();
    });
  const std::array<pthread_t, 2> loading = {threads[0].native_handle(), threads[1].native_handle()};
  threads.emplace_back([&] { walk_until(stop, walks, wrong); });
  std::thread stopping([&] {
    for (unsigned i = 0; !stop; ++i) {
      pthread_kill(loading[i % 2], SIGUSR1);
      usleep(500 + i * 7919 % 600);
    }
  });
  void* place = nullptr;
  size_t same_place = 0, wrong_frames = 0;
  const auto with_library = [&](size_t number, void (*work)()) {
    void* module = dlopen((folder + "/copy_" + std::to_string(number) + ".so").c_str(), RTLD_NOW);
    ASSERT_TRUE(module) << dlerror();
    void* call = dlsym(module, "call");
    same_place += call == place;
    place = call;
    reinterpret_cast<void (*)(void (*)())>(call)(work);
    dlclose(module);
  };
  for (size_t i = 1; i < kLibraries; ++i) {
    with_library(i, [] { std::this_thread::yield(); });  // seen by who loads tables, but in no walk
    with_library(i - 1, look);
    const auto size = static_cast<uintptr_t>(kSizes[(i - 1) % 2]) + 8;
    wrong_frames += !seen.root() || seen.frames[2].sp - seen.frames[1].sp != size;
  }
  stop = true;
  stopping.join();
  for (std::thread& thread : threads) thread.join();
  std::filesystem::remove_all(folder);
  EXPECT_GT(same_place, kLibraries) << "what this is about has not happened";
  EXPECT_GT(loads, 2u);
  EXPECT_GT(walks, 100u);
  EXPECT_EQ(wrong_frames, 0u);
  EXPECT_EQ(wrong, 0u) << "of " << walks;
}

// ---- What it needs ----

TEST(Local, AWalkFitsOnASmallAlternateStack) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a sanitizer's frames are larger";
#endif
  constexpr size_t kRoom = 1 << 16;
  constexpr size_t kMost =
      5120;  // what clew/unwind.h says, less what binding a function for the first time needs
  std::vector<char> room(kRoom);
  static volatile uintptr_t in_handler;
  stack_t stack{room.data(), 0, kRoom}, before;
  sigaltstack(&stack, &before);
  {
    Handler handler(
        SIGUSR1,
        [](int signal, siginfo_t* info, void* ucontext) {
          in_handler = reinterpret_cast<uintptr_t>(__builtin_frame_address(0));
          on_signal(signal, info, ucontext);
        },
        SA_ONSTACK);
    raise(SIGUSR1);  // binds
    for (int tables = 0; tables < 2; ++tables) {
      std::fill(room.begin(), room.end(), '\x5a');
      interrupted(SIGUSR1);
      const auto untouched = static_cast<size_t>(
          std::find_if(room.begin(), room.end(), [](char c) { return c != '\x5a'; }) - room.begin());
      EXPECT_TRUE(seen.root());
      EXPECT_LT(in_handler - (reinterpret_cast<uintptr_t>(room.data()) + untouched), kMost) << tables;
      clew_load_tables();
    }
  }
  sigaltstack(&before, nullptr);
}

// ---- What it is made of ----

TEST(Local, NeedsNothingThatAHandlerMayNotCall) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "a sanitizer's code is in all that it compiles";
#endif
  const Output symbols = run_command("nm -u " CLEW_BINARY_DIR
                                     "/libclew_unwind.a 2>/dev/null | awk '/walk.cpp.o:/{p=1} "
                                     "/^$/{p=0} p && $1==\"U\"{print $2}'");
  ASSERT_EQ(symbols.status, 0);
  for (const char* forbidden : {"malloc", "_Znwm", "_Znam", "pthread_mutex_lock", "__cxa_guard_acquire",
                                "__tls_get_addr", "__cxa_throw", "dl_iterate_phdr"})
    EXPECT_EQ(symbols.out.find(forbidden), std::string::npos) << forbidden;
  EXPECT_NE(symbols.out.find("getauxval"), std::string::npos);  // so that the list is one
}

}  // namespace
}  // namespace clew::test
