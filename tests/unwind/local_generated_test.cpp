// The local walk through code that no module covers, as a JIT makes it. The code is written here by hand; its
// right chain is what the test called.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "clew/unwind.hpp"

namespace clew::test {
namespace {

#define NOINLINE __attribute__((noinline, noipa))
#define AFTER_CALL asm volatile("" ::: "memory")

constexpr size_t kPage = 4096;
using Leaf = void (*)();

/// A mapping of its own with one function of a JIT.
class Generated {
 public:
  explicit Generated(const std::vector<uint8_t>& code) {
    memory_ = static_cast<uint8_t*>(
        mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    std::copy(code.begin(), code.end(), memory_);
    protect(PROT_READ | PROT_EXEC);
  }
  ~Generated() {
    if (memory_ != nullptr) unmap();
  }
  Generated(const Generated&) = delete;
  Generated& operator=(const Generated&) = delete;

  void protect(int protection) { mprotect(memory_, kPage, protection); }
  /// Returns where it was.
  uintptr_t unmap() {
    munmap(memory_, kPage);
    return reinterpret_cast<uintptr_t>(std::exchange(memory_, nullptr));
  }
  uintptr_t address(size_t offset) const { return reinterpret_cast<uintptr_t>(memory_) + offset; }

 private:
  uint8_t* memory_;
};

// push %rbp; mov %rsp, %rbp; call *%rdi
constexpr std::array<uint8_t, 6> kInner = {0x55, 0x48, 0x89, 0xe5, 0xff, 0xd7};
// push %rbp; mov %rsp, %rbp; mov %rdi, %rax; mov %rsi, %rdi; call *%rax
constexpr std::array<uint8_t, 12> kOuter = {0x55, 0x48, 0x89, 0xe5, 0x48, 0x89,
                                            0xf8, 0x48, 0x89, 0xf7, 0xff, 0xd0};

/// Then `padding` instructions; pop %rbp; ret. With many, only the frame pointer tells where the frame is.
template <class Begin>
std::vector<uint8_t> function(const Begin& begin, size_t padding) {
  std::vector<uint8_t> code(begin.begin(), begin.end());
  code.insert(code.end(), padding, 0x90);
  code.insert(code.end(), {0x5d, 0xc3});
  return code;
}
constexpr size_t kLong = 1000;

struct Seen {
  std::array<Frame, 256> frames;
  Trace trace{};
  std::vector<uintptr_t> addresses = std::vector<uintptr_t>(256);
};
Seen seen;

NOINLINE void look() {
  seen.trace = unwind_here(seen.frames);
  seen.addresses.resize(256);
  seen.addresses.resize(backtrace(seen.addresses));
  AFTER_CALL;
}

NOINLINE void call_generated(const Generated& outer, const Generated& inner, Leaf leaf) {
  reinterpret_cast<void (*)(uintptr_t, Leaf)>(outer.address(0))(inner.address(0), leaf);
  AFTER_CALL;
}

/// The callers of this function, from its own caller on.
NOINLINE std::vector<uintptr_t> callers() {
  std::vector<uintptr_t> out(256);
  out.resize(backtrace(out));
  out.erase(out.begin(),
            out.begin() + 2);  // this one, and where it was called: there the walk's call differs
  return out;
}

class LocalGenerated : public testing::TestWithParam<size_t> {};

TEST_P(LocalGenerated, IsWalkedThroughToTheRoot) {
  const Generated inner(function(kInner, GetParam())), outer(function(kOuter, GetParam()));
  const std::vector<uintptr_t> tail = callers();
  for (int round = 0; round < 3; ++round) {  // from nothing known, then from what is remembered
    call_generated(outer, inner, look);
    ASSERT_EQ(seen.trace.end, static_cast<uint32_t>(CLEW_END_ROOT)) << clew_end_name(seen.trace.end);
    ASSERT_EQ(seen.trace.frames, tail.size() + 5);  // look, the two, their caller, this function
    EXPECT_EQ(seen.frames[1].pc, inner.address(kInner.size()));
    EXPECT_EQ(seen.frames[2].pc, outer.address(kOuter.size()));
    for (size_t i = 0; i < tail.size(); ++i) EXPECT_EQ(seen.frames[5 + i].pc, tail[i]);
    // Each says how it was found: what is behind a frame pointer alone is a guess.
    const bool guessed = GetParam() == kLong;
    EXPECT_EQ(seen.frames[1].how, static_cast<uint32_t>(CLEW_HOW_TABLE));
    EXPECT_EQ(seen.frames[2].how,
              static_cast<uint32_t>(guessed ? CLEW_HOW_FRAME_POINTER : CLEW_HOW_ANALYSIS));
    EXPECT_EQ(seen.frames[1].flags, 0u);
    for (size_t i = 2; i < seen.trace.frames; ++i)
      EXPECT_EQ(seen.frames[i].flags, guessed ? uint32_t{CLEW_FRAME_GUESSED} : 0u) << i;
    ASSERT_EQ(seen.addresses.size(), seen.trace.frames);
    for (size_t i = 1; i < seen.trace.frames; ++i) EXPECT_EQ(seen.addresses[i], seen.frames[i].pc);
  }
}

std::vector<uintptr_t> stepped_tail;
std::array<uintptr_t, 2> stepped_code;  // the outer one, the inner one
size_t steps, wrong_steps;

TEST_P(LocalGenerated, IsRightAtEveryInstruction) {
  const Generated inner(function(kInner, GetParam())), outer(function(kOuter, GetParam()));
  stepped_tail = callers();
  stepped_code = {outer.address(0), inner.address(0)};
  steps = wrong_steps = 0;
  struct sigaction action{}, before;
  action.sa_flags = SA_SIGINFO;
  action.sa_sigaction = [](int, siginfo_t*, void* context) {
    const auto pc = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
    const bool in_inner = pc - stepped_code[1] < kPage;
    if (!in_inner && pc - stepped_code[0] >= kPage) return;
    ++steps;
    seen.trace = unwind_ucontext(context, seen.frames);
    // The inner one, the outer one, call_generated, the test, its callers.
    const size_t first = in_inner ? 4 : 3;
    bool right = seen.trace.end == CLEW_END_ROOT && seen.trace.frames == first + stepped_tail.size();
    for (size_t i = 0; right && i < stepped_tail.size(); ++i)
      right = seen.frames[first + i].pc == stepped_tail[i];
    wrong_steps += right ? 0 : 1;
  };
  sigaction(SIGTRAP, &action, &before);
  asm volatile("pushfq; orq $0x100, (%%rsp); popfq" ::: "memory", "cc");
  call_generated(outer, inner, [] {});
  asm volatile("pushfq; andq $~0x100, (%%rsp); popfq" ::: "memory", "cc");
  sigaction(SIGTRAP, &before, nullptr);
  EXPECT_EQ(steps, 5 + 7 + 2 * GetParam());
  EXPECT_EQ(wrong_steps, 0u);
}

INSTANTIATE_TEST_SUITE_P(Lengths, LocalGenerated, testing::Values(size_t{0}, kLong),
                         [](const auto& test) { return test.param == kLong ? "Long" : "Short"; });

/// The walk of a thread that is said to be in the middle of generated code, whose frame has this return
/// address.
Trace walk_with_return_address(const Generated& code, uintptr_t address) {
  ucontext_t context;
  getcontext(&context);
  // Zeros beyond, for a walk that gets past that address: else it would go on in this test's own stack.
  std::array<uintptr_t, 64> stack = {0, 0, address};
  context.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(code.address(kInner.size() + kLong / 2));
  context.uc_mcontext.gregs[REG_RSP] = reinterpret_cast<greg_t>(&stack[0]);
  context.uc_mcontext.gregs[REG_RBP] = reinterpret_cast<greg_t>(&stack[1]);
  return unwind_ucontext(&context, seen.frames);
}

TEST(LocalGeneratedEnds, SayWhatLiesAtTheReturnAddress) {
  const Generated code(function(kInner, kLong)), other(function(kInner, kLong));
  Generated data(function(kInner, 0));
  data.protect(PROT_READ | PROT_WRITE);
  const auto end_at = [&](uintptr_t address) {
    const Trace trace = walk_with_return_address(code, address);
    EXPECT_EQ(trace.frames, trace.end == CLEW_END_NO_RULE ? 2u : 1u);
    return static_cast<clew_end>(trace.end);
  };
  // Behind a call of generated code it is a caller, whose own frame then cannot be: its rbp is 0.
  EXPECT_EQ(end_at(other.address(kInner.size())), CLEW_END_NO_RULE);
  EXPECT_EQ(end_at(other.address(1)), CLEW_END_NOT_A_CALL);
  EXPECT_EQ(end_at(data.address(kInner.size())), CLEW_END_NOT_EXECUTABLE);
  data.protect(PROT_NONE);
  EXPECT_EQ(end_at(data.address(kInner.size())), CLEW_END_NOT_EXECUTABLE);
  EXPECT_EQ(end_at(reinterpret_cast<uintptr_t>(&code)), CLEW_END_NOT_EXECUTABLE);  // the stack
  const uintptr_t gone = data.unmap();
  for (const uintptr_t address : {gone + kInner.size(), uintptr_t{8}, ~uintptr_t{7}, uintptr_t{1} << 60})
    EXPECT_EQ(end_at(address), CLEW_END_NOT_MAPPED) << address;
}

TEST(LocalGeneratedEnds, AReturnAddressAtAddressZeroIsNotRead) {
  const Generated code(function(kInner, 0));
  ucontext_t context;
  getcontext(&context);
  context.uc_mcontext.gregs[REG_RIP] = static_cast<greg_t>(code.address(kInner.size() + 1));  // its ret
  context.uc_mcontext.gregs[REG_RSP] = 0;
  context.uc_mcontext.gregs[REG_RBP] = 0;
  const Trace trace = unwind_ucontext(&context, seen.frames);
  EXPECT_EQ(trace.frames, 1u);
  EXPECT_EQ(trace.end, static_cast<uint32_t>(CLEW_END_UNREADABLE));
}

TEST(LocalGeneratedEnds, CodeThatIsDataByNowIsNone) {
  const Generated code(function(kInner, kLong));
  Generated other(function(kInner, kLong));
  const uintptr_t address = other.address(kInner.size());
  EXPECT_EQ(walk_with_return_address(code, address).end, static_cast<uint32_t>(CLEW_END_NO_RULE));
  other.protect(PROT_READ);
  usleep(300'000);  // before Linux 6.11 it may count as code for a little
  EXPECT_EQ(walk_with_return_address(code, address).end, static_cast<uint32_t>(CLEW_END_NOT_EXECUTABLE));
}

TEST(LocalGeneratedEnds, MappingsThatChangeMeanwhileCrashNothing) {
  const Generated code(function(kInner, kLong));
  std::atomic<uintptr_t> address{0};
  std::atomic<bool> stop{false};
  std::thread changing([&] {
    while (!stop) {
      Generated other(function(kInner, 0));
      address = other.address(kInner.size());
      std::this_thread::yield();
      other.protect(PROT_NONE);
    }
  });
  while (address == 0) std::this_thread::yield();
  std::array<size_t, CLEW_END_COUNT> ends{};
  for (int i = 0; i < 3000; ++i) ++ends[walk_with_return_address(code, address).end];
  stop = true;
  changing.join();
  EXPECT_EQ(ends[CLEW_END_ROOT], 0u);
  EXPECT_EQ(ends[CLEW_END_NO_RULE] + ends[CLEW_END_NOT_EXECUTABLE] + ends[CLEW_END_NOT_MAPPED] +
                ends[CLEW_END_NOT_A_CALL],
            3000u);
}

bool own_maps_are_empty() {
  const int fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
  char byte;
  const bool empty = read(fd, &byte, 1) == 0;
  close(fd);
  return empty;
}

TEST(LocalGeneratedEnds,
     AreTheRootAfterTheFirstThreadHasEnded) {  // which /proc and the kernel know the process by
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);
    static const Generated inner(function(kInner, kLong)), outer(function(kOuter, kLong));
    std::thread([] {
      while (!own_maps_are_empty()) std::this_thread::yield();
      call_generated(outer, inner, look);
      _exit(seen.trace.end == CLEW_END_ROOT ? 0 : 1);
    }).detach();
    syscall(SYS_exit, 0);  // this thread alone
  }
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace clew::test
