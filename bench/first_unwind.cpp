// A process's first unwind ever, in a signal handler that interrupts code of libLLVM, without anything
// prepared: prints how long it took, ns, and how many frames it found. bench_local runs it afresh for each
// figure.
//   bench_first UNWINDER
// With "threads 0" or "threads 1" it prints instead how much memory the process has written to, bytes, when
// 100 threads are alive that have not unwound, or have.
#include <llvm-c/Core.h>
#include <llvm-c/IRReader.h>
#include <signal.h>
#include <sys/time.h>
#include <time.h>
#include <ucontext.h>

#include <barrier>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "local_unwinders.hpp"

namespace clew::bench {
namespace {

size_t (*unwind)() = nullptr;
uintptr_t llvm_start, llvm_end;  // its code
volatile sig_atomic_t done = 0;
uint64_t took_ns = 0;
size_t found = 0;

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

void on_timer(int, siginfo_t*, void* context) {
  const auto pc = static_cast<uintptr_t>(static_cast<ucontext_t*>(context)->uc_mcontext.gregs[REG_RIP]);
  if (done || pc < llvm_start || pc >= llvm_end) return;
  const uint64_t begin = now_ns();
  found = unwind();
  took_ns = now_ns() - begin;
  done = 1;
}

/// Where the code of libLLVM lies, as maps says: nothing of the library itself is touched.
void find_llvm() {
  std::ifstream maps("/proc/self/maps");
  for (std::string line; std::getline(maps, line);) {
    if (line.find("libLLVM") == std::string::npos || line.find("r-xp") == std::string::npos) continue;
    std::sscanf(line.c_str(), "%lx-%lx", &llvm_start, &llvm_end);
    return;
  }
}

/// Parses and prints a module, again and again, until the handler is done.
void work_in_llvm() {
  std::string text;
  for (int i = 0; i < 300; ++i)
    text += "define i64 @f" + std::to_string(i) +
            "(i64 %a, i64 %b) {\n  %c = add i64 %a, %b\n  %d = mul i64 %c, %a\n  ret i64 %d\n}\n";
  while (!done) {
    LLVMContextRef context = LLVMContextCreate();
    LLVMMemoryBufferRef buffer =
        LLVMCreateMemoryBufferWithMemoryRangeCopy(text.data(), text.size(), "module");
    LLVMModuleRef module = nullptr;
    char* error = nullptr;
    if (LLVMParseIRInContext(context, buffer, &module, &error) != 0) std::abort();
    LLVMDisposeMessage(LLVMPrintModuleToString(module));
    LLVMDisposeModule(module);
    LLVMContextDispose(context);
  }
}

int first_unwind() {
  find_llvm();
  struct sigaction action = {};
  action.sa_sigaction = on_timer;
  action.sa_flags = SA_SIGINFO | SA_RESTART;
  sigaction(SIGPROF, &action, nullptr);
  const itimerval every{{0, 4000}, {0, 4000}};
  setitimer(ITIMER_PROF, &every, nullptr);
  work_in_llvm();
  std::printf("%lu %zu\n", took_ns, found);
  return 0;
}

uint64_t written_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;) {
    uint64_t kib = 0;
    if (word == "Private_Dirty:" && rollup >> kib) return kib * 1024;
  }
  return 0;
}

/// Writes as far down the stack as a walk does, so that its pages are there either way, and may walk.
[[gnu::noinline]] void descend(int depth, bool walking) {
  volatile char room[32];
  room[0] = 1;
  if (depth > 0) return descend(depth - 1, walking), static_cast<void>(room[0]);
  volatile char below[12 << 10];
  for (size_t i = 0; i < sizeof below; i += 64) below[i] = 1;
  for (int walk = 0; walking && walk < 3; ++walk) by_clew();
}

int threads_memory(bool walking) {
  constexpr int kThreads = 100;
  std::barrier all(kThreads + 1);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i)
    threads.emplace_back([&] {
      descend(120, walking);
      all.arrive_and_wait();
      all.arrive_and_wait();
    });
  all.arrive_and_wait();
  std::printf("%lu 0\n", written_bytes());
  all.arrive_and_wait();
  for (std::thread& thread : threads) thread.join();
  return 0;
}

}  // namespace
}  // namespace clew::bench

int main(int argc, char** argv) {
  using namespace clew::bench;
  const std::string name = argc > 1 ? argv[1] : "";
  if (name == "threads" && argc > 2) return threads_memory(argv[2][0] == '1');
  if (name == "clew") unwind = by_clew;
  if (name == "glibc") unwind = by_glibc;
  if (name == "libgcc") unwind = by_libgcc;
#ifdef CLEW_HAVE_LIBUNWIND
  if (name == "libunwind") unwind = by_libunwind;
#endif
  return unwind ? first_unwind() : 2;
}
