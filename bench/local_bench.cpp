// Unwinding the calling thread beside peers: ns a frame, and as a multiple of a frame-pointer walk of the
// same stacks.
//   bench_local [--json FILE]
#include <time.h>
#include <ucontext.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "clew/remote.hpp"
#include "figures.hpp"
#include "framehop_peer.hpp"
#include "local_functions.hpp"
#include "local_unwinders.hpp"

namespace clew::bench {
namespace {

constexpr size_t kDepth = 66;

struct Unwinder {
  const char* name;
  size_t (*unwind)();
  bool frame_pointers;  // walks the twin
};

/// The walk to compare with: a chain of saved rbp, each checked to lie in the stack and above the last.
[[gnu::noinline]] size_t by_frame_pointer() {
  static uintptr_t stack_end = 0;
  auto* frame = static_cast<uintptr_t*>(__builtin_frame_address(0));
  if (stack_end == 0) stack_end = reinterpret_cast<uintptr_t>(frame) + (1 << 16);
  size_t count = 0;
  while (count < kMost) {
    frames[count++] = frame[1];
    auto* next = reinterpret_cast<uintptr_t*>(frame[0]);
    if (next <= frame || reinterpret_cast<uintptr_t>(next) >= stack_end) break;
    frame = next;
  }
  return count;
}

struct Measured {
  double ns_a_frame = 0;
  size_t frames = 0;
};

double ns_a_tick() {
  timespec a, b;
  clock_gettime(CLOCK_MONOTONIC, &a);
  const uint64_t begin = __rdtsc();
  do clock_gettime(CLOCK_MONOTONIC, &b);
  while ((b.tv_sec - a.tv_sec) * 1000000000 + (b.tv_nsec - a.tv_nsec) < 20000000);
  const double ns = static_cast<double>((b.tv_sec - a.tv_sec) * 1000000000 + (b.tv_nsec - a.tv_nsec));
  return ns / static_cast<double>(__rdtsc() - begin);
}

struct Work {
  const Unwinder* unwinder;
  unsigned unwinds;  // at the leaf, one after the other
  std::vector<uint64_t> ticks;
  size_t frames = 0;
};

void leaf(Path& path) {
  auto& work = *static_cast<Work*>(path.context);
  for (unsigned i = 0; i < work.unwinds; ++i) {
    unsigned unused;
    const uint64_t begin = __rdtscp(&unused);
    work.frames = work.unwinder->unwind();
    const uint64_t end = __rdtscp(&unused);
    work.ticks.push_back(end - begin);
  }
}

/// The median of the ticks of one unwind, less what reading the clock takes.
Measured measure(const Unwinder& unwinder, unsigned functions, bool random, double tick_ns, Run run) {
  static uint64_t clock_ticks = [] {
    std::vector<uint64_t> ticks;
    for (int i = 0; i < 1001; ++i) {
      unsigned unused;
      const uint64_t begin = __rdtscp(&unused);
      ticks.push_back(__rdtscp(&unused) - begin);
    }
    std::nth_element(ticks.begin(), ticks.begin() + 500, ticks.end());
    return ticks[500];
  }();
  std::mt19937 engine(functions);
  std::vector<uint16_t> path_functions(kDepth -
                                       4);  // the leaf, run, measure and main are the rest, or nearly
  Work work{&unwinder, random ? 1u : 5000u, {}, 0};
  Path path{path_functions.data(), path_functions.size(), 0, leaf, &work};
  const int paths = random ? 20000 : 3;
  for (int i = 0; i < paths; ++i) {
    for (uint16_t& next : path_functions) next = static_cast<uint16_t>(engine() % functions);
    run(path);
  }
  // The first tenth warms up.
  std::vector<uint64_t> ticks(work.ticks.begin() + static_cast<std::ptrdiff_t>(work.ticks.size() / 10),
                              work.ticks.end());
  double sum = 0;
  std::sort(ticks.begin(), ticks.end());
  // The mean without the slowest hundredth: interrupts and other tenants, not the unwinder.
  const size_t kept = ticks.size() * 99 / 100;
  for (size_t i = 0; i < kept; ++i) sum += static_cast<double>(ticks[i]);
  const double mean = sum / static_cast<double>(kept) - static_cast<double>(clock_ticks);
  return {mean * tick_ns / static_cast<double>(work.frames), work.frames};
}

/// The same functions in a module that was loaded with dlopen, and could be unloaded.
void measure_plugin(const std::vector<Unwinder>& unwinders, double tick_ns, Figures& figures) {
  const char* const run_name = "_ZN4clew5bench22without_frame_pointers3runERNS0_4PathE";
  const Run run = of_library<void(Path&)>(CLEW_BENCH_PLUGIN, run_name);
  if (!run) return;
  prepare_framehop();  // again: there is a module more
  std::printf("\nns a frame, in a module loaded with dlopen: 64 functions, repeated\n");
  for (const Unwinder& unwinder : unwinders) {
    if (unwinder.frame_pointers) continue;
    const Measured measured = measure(unwinder, 64, false, tick_ns, run);
    std::printf("%-16s %8.2f\n", unwinder.name, measured.ns_a_frame);
    figures.add("64 functions of a module loaded with dlopen, repeated", "unwind", "ns/frame",
                measured.ns_a_frame, unwinder.name);
  }
}

/// The stack of such a path, copied from `leaf` on.
void copy_stack(Path& path) {
  auto& sample = *static_cast<Sample*>(path.context);
  static std::byte copy[1 << 16];
  ucontext_t context;
  getcontext(&context);
  constexpr int kOrder[] = {REG_RAX, REG_RDX, REG_RCX, REG_RBX, REG_RSI, REG_RDI, REG_RBP, REG_RSP, REG_R8,
                            REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP};
  for (size_t i = 0; i < std::size(kOrder); ++i)
    sample.registers.value[i] = static_cast<uint64_t>(context.uc_mcontext.gregs[kOrder[i]]);
  sample.registers.known = (1u << std::size(kOrder)) - 1;
  sample.stack = copy;
  sample.stack_address = sample.registers.value[7];
  sample.stack_size = std::min<uint64_t>(end_of_stack() - sample.stack_address, sizeof copy);
  std::memcpy(copy, reinterpret_cast<const void*>(sample.stack_address), sample.stack_size);
}

/// As a profiler unwinds: many samples with copied stacks, in one call.
void measure_batch(Figures& figures) {
  constexpr size_t kSamples = 1000, kRounds = 21;
  std::mt19937 engine(1);
  std::vector<uint16_t> next(kDepth - 4);
  for (uint16_t& function : next) function = static_cast<uint16_t>(engine() % 64);
  Sample sample{};
  Path path{next.data(), next.size(), 0, copy_stack, &sample};
  without_frame_pointers::run(path);
  Space space;
  if (!space.set_process(getpid())) return;
  const std::vector<Sample> samples(kSamples, sample);
  std::vector<Frame> out(kSamples * 128);
  std::vector<Trace> traces(kSamples);
  std::vector<double> ns;
  size_t found = 0;
  for (size_t i = 0; i < kRounds; ++i) {
    timespec a, b;
    clock_gettime(CLOCK_MONOTONIC, &a);
    space.unwind_batch(samples, 128, out, traces);
    clock_gettime(CLOCK_MONOTONIC, &b);
    found = 0;
    for (const Trace& trace : traces) found += trace.frames;
    ns.push_back(
        (static_cast<double>(b.tv_sec - a.tv_sec) * 1e9 + static_cast<double>(b.tv_nsec - a.tv_nsec)) /
        static_cast<double>(found));
  }
  std::sort(ns.begin(), ns.end());
  std::printf("\nSamples with copied stacks, 1,000 in a call: %.1f ns a frame (%zu frames each, end: %s)\n",
              ns[kRounds / 2], found / kSamples, clew_end_name(traces[0].end));
  figures.add("1,000 samples with copied stacks", "unwind", "ns/frame", ns[kRounds / 2]);
}

#ifdef CLEW_BENCH_FIRST
/// What bench_first says for these arguments: the median of so many fresh processes.
struct Fresh {
  double value = 0;
  size_t frames = 0;
};
Fresh run_afresh(const std::string& arguments, int times) {
  std::vector<Fresh> all;
  for (int i = 0; i < times; ++i) {
    FILE* pipe = popen((CLEW_BENCH_FIRST " " + arguments).c_str(), "r");
    Fresh one;
    if (pipe && std::fscanf(pipe, "%lf %zu", &one.value, &one.frames) == 2) all.push_back(one);
    if (pipe) pclose(pipe);
  }
  if (all.empty()) return {};
  std::sort(all.begin(), all.end(), [](const Fresh& a, const Fresh& b) { return a.value < b.value; });
  return all[all.size() / 2];
}

void measure_first(const std::vector<Unwinder>& unwinders, Figures& figures) {
  std::printf("\nA process's first unwind, in a handler that interrupts libLLVM (median of 25 processes)\n");
  for (const Unwinder& unwinder : unwinders) {
    // framehop is told of the modules beforehand, which is no first unwind.
    if (unwinder.frame_pointers || unwinder.unwind == by_framehop) continue;
    const Fresh fresh = run_afresh(unwinder.name, 25);
    std::printf("%-16s %8.1f us  (%zu frames)\n", unwinder.name, fresh.value / 1000, fresh.frames);
    figures.add("first unwind, libLLVM loaded", "unwind", "us", fresh.value / 1000, unwinder.name);
  }
  const double before = run_afresh("threads 0", 5).value, after = run_afresh("threads 1", 5).value;
  const double kib = (after - before) / 100 / 1024;
  std::printf("\nMemory of clew for a thread: %.1f KiB (mean of 100 threads, 120 frames deep)\n", kib);
  figures.add("memory", "for a thread", "KiB", kib);
}
#endif

}  // namespace
}  // namespace clew::bench

int main(int argc, char** argv) {
  using namespace clew::bench;
  Figures figures(argc, argv);
  std::vector<Unwinder> unwinders = {
      {"frame pointers", by_frame_pointer, true},
      {"clew", by_clew, false},
#ifdef CLEW_HAVE_LIBUNWIND
      {"libunwind", by_libunwind, false},
#endif
      {"glibc", by_glibc, false},
      {"libgcc", by_libgcc, false},
  };
  if (prepare_framehop())
    unwinders.insert(unwinders.begin() + 2, {"framehop", by_framehop, false});
  else
    std::printf("framehop is not there: ./dev bench local builds it where there is cargo\n");
  const double tick_ns = ns_a_tick();
  std::printf("%-16s %22s %22s %22s %22s\n", "ns a frame", "64 repeated", "64 random", "4096 repeated",
              "4096 random");
  std::vector<double> base;
  for (const Unwinder& unwinder : unwinders) {
    std::printf("%-16s", unwinder.name);
    size_t column = 0, seen = 0;
    for (const unsigned functions : {64u, 4096u}) {
      for (const bool random : {false, true}) {
        const Run run = unwinder.frame_pointers ? with_frame_pointers::run : without_frame_pointers::run;
        const Measured measured = measure(unwinder, functions, random, tick_ns, run);
        if (base.size() == column) base.push_back(measured.ns_a_frame);
        const double ratio = measured.ns_a_frame / base[column++];
        std::printf("  %8.2f  %8.2f x", measured.ns_a_frame, ratio);
        const std::string name =
            std::to_string(functions) + (random ? " functions, random" : " functions, repeated");
        figures.add(name, "unwind", "ns/frame", measured.ns_a_frame, unwinder.name);
        figures.add(name, "unwind / frame-pointer walk", "ratio", ratio, unwinder.name);
        seen = measured.frames;
      }
    }
    std::printf("  (%zu frames)\n", seen);
    std::fflush(stdout);
  }
  measure_plugin(unwinders, tick_ns, figures);
  measure_batch(figures);
#ifdef CLEW_BENCH_FIRST
  measure_first(unwinders, figures);
#endif
  return figures.write();
}
