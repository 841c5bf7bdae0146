// ./dev bench bpf: what a sample costs inside the kernel. A program 91 frames deep, sampled at 999 Hz,
// unwound by our BPF program; its twin with frame pointers by a program that only calls bpf_get_stack. In
// turn, several rounds. Root.
#include <bpf/libbpf.h>
#include <linux/perf_event.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <string>
#include <vector>

#include "collect/perf/perf_event.hpp"
#include "collect/perf/session.hpp"
#include "figures.hpp"
#include "get_stack.skel.h"

namespace {

constexpr unsigned kHz = 999;
constexpr int kRounds = 7;
const char* const kMilliseconds = "1500";

struct Cost {
  double ns = 0, frames = 0;  // a sample
  double samples = 0;
};

/// A child that waits until its standard input says something, then becomes the program.
struct Child {
  explicit Child(const char* program) {
    int ends[2];
    if (pipe(ends) != 0) std::exit(2);
    pid = fork();
    if (pid == 0) {
      char byte;
      close(ends[1]);
      if (read(ends[0], &byte, 1) == 1) execl(program, program, kMilliseconds, nullptr);
      _exit(2);
    }
    close(ends[0]);
    go = ends[1];
  }
  void run() const {
    if (write(go, "x", 1) != 1) std::exit(2);
    int status = 0;
    waitpid(pid, &status, 0);
    close(go);
  }
  pid_t pid = 0;
  int go = 0;
};

Cost by_clew() {
  const Child child(CLEW_DEEP_WITHOUT);
  uint64_t frames = 0, samples = 0;
  clew::collect::perf::SessionOptions options;
  options.frequency_hz = kHz;
  options.command = child.pid;
  options.bpf = true;
  auto session = clew::collect::perf::Session::start(options, [&](const clew::collect::Trace& trace) {
    frames += trace.frames.size();
    samples += 1;
  });
  if (!session) {
    std::fprintf(stderr, "%s\n", session.error().c_str());
    std::exit(1);
  }
  child.run();
  (*session)->stop();
  const double n = samples > 100 ? static_cast<double>(samples) : 1500;
  return {static_cast<double>((*session)->counters().bpf_ns) / n, static_cast<double>(frames) / n, n};
}

Cost by_kernel() {
  const Child child(CLEW_DEEP_WITH);
  get_stack* skeleton = get_stack__open_and_load();
  if (skeleton == nullptr) std::exit(1);
  skeleton->bss->target = static_cast<uint32_t>(child.pid);
  std::vector<bpf_link*> links;
  for (const int cpu : clew::collect::perf::online_cpus()) {
    perf_event_attr attr = {};
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.sample_period = 1'000'000'000 / kHz;
    const int fd = clew::collect::perf::open_event(attr, -1, cpu);
    if (fd >= 0) links.push_back(bpf_program__attach_perf_event(skeleton->progs.get_stack, fd));
  }
  child.run();
  for (bpf_link* link : links) bpf_link__destroy(link);
  uint64_t samples = 0, frames = 0, ns = 0;
  for (const uint64_t count : skeleton->bss->samples) samples += count;
  for (const uint64_t count : skeleton->bss->frames) frames += count;
  for (const uint64_t time : skeleton->bss->ns) ns += time;
  get_stack__destroy(skeleton);
  const double n = static_cast<double>(std::max<uint64_t>(samples, 1));
  return {static_cast<double>(ns) / n, static_cast<double>(frames) / n, n};
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  clew::bench::Figures figures(argc, argv);
  libbpf_set_print([](libbpf_print_level, const char*, va_list) { return 0; });
  std::vector<double> ours, theirs, ratios;
  Cost clew_cost, kernel_cost;
  for (int round = 0; round < kRounds; ++round) {
    clew_cost = by_clew();
    kernel_cost = by_kernel();
    ours.push_back(clew_cost.ns);
    theirs.push_back(kernel_cost.ns);
    ratios.push_back(clew_cost.ns / kernel_cost.ns);
  }
  std::printf("%-28s %8s %8s\n", "a sample, 999 Hz", "frames", "ns");
  std::printf("%-28s %8.1f %8.0f\n", "clew, no frame pointers", clew_cost.frames, median(ours));
  std::printf("%-28s %8.1f %8.0f\n", "bpf_get_stack, frame pointers", kernel_cost.frames, median(theirs));
  std::printf("ratio, median of %d rounds: %.2f (%.2f to %.2f)\n", kRounds, median(ratios),
              std::ranges::min(ratios), std::ranges::max(ratios));
  figures.add("91 frames", "time in the BPF program a sample", "ns", median(ours));
  figures.add("91 frames", "time in the BPF program a sample", "ns", median(theirs), "bpf_get_stack");
  figures.add("91 frames", "time in the BPF program a sample, relative", "ratio", median(ratios),
              "bpf_get_stack");
  return figures.write();
}
