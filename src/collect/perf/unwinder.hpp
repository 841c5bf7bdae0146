// The unwind thread's work: rounds of records in, traces out, in the order of time.
//
// Records of different CPUs are merged by their time stamps: a process may map a file on one CPU and be
// sampled in it on another. A ring shows a record a moment after its time stamp was taken, so whatever is
// younger than a small window waits for the next round.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "collect/perf/kernel_roots.hpp"
#include "collect/perf/process_tree.hpp"
#include "collect/perf/record.hpp"
#include "collect/perf/round_queue.hpp"
#include "collect/perf/sample_target.hpp"
#include "collect/perf/stack_memory.hpp"
#include "collect/perf/stack_size.hpp"
#include "collect/perf/stopped_target.hpp"
#include "collect/trace.hpp"

namespace clew::collect::perf {

/// Written by the unwind thread, read by any.
struct UnwindCounters {
  std::atomic<uint64_t> samples = 0;
  std::atomic<uint64_t> complete = 0;
  std::atomic<uint64_t> lost = 0;       // by LOST records
  std::atomic<uint64_t> throttled = 0;  // times that the kernel paused sampling
  std::atomic<uint64_t> waits = 0;      // of blocked threads: not among the samples
  std::atomic<uint64_t> unknown = 0;    // records of a form that was not understood
};

class Unwinder {
 public:
  /// `resize` is called with an index into kStackSizes when the copies should have another size (they begin
  /// with `largest_size`), `scattered` with a thread whose stack cannot be had by copying one piece of it
  /// (null: nobody wants to know).
  Unwinder(RoundQueue& queue, size_t largest_size, Sink sink, std::function<void(size_t)> resize,
           std::function<void(pid_t, pid_t)> scattered);
  /// For samples from BPF programs, which stand for `period_ns` each: `mapped` is called with a file that a
  /// process has mapped, `missing` with one whose table the programs lacked. Before the first round.
  using FileSeen = std::function<void(const clew_bpf_file&, const process::Module&)>;
  void expect_walked(uint64_t period_ns, FileSeen mapped, FileSeen missing);

  ProcessTree& tree() { return tree_; }
  bpf::Functions& bpf_functions() { return bpf_functions_; }
  const UnwindCounters& counters() const { return counters_; }
  /// Takes over a round and uses what is old enough.
  void take(std::unique_ptr<Round> round);
  /// Uses everything that is left.
  void finish();

  // Samples of stopped threads (stop_sampler.hpp), from that sampler's thread.
  void stopped_begun(pid_t pid, pid_t tid, uint64_t time_ns);
  /// Returns false when the thread has not needed to be stopped for a while.
  bool stopped_sample(pid_t pid, pid_t tid, uint64_t time_ns, uint64_t weight_ns,
                      const unwind::Registers& registers);
  void stopped_ended(pid_t tid, uint64_t time_ns);

 private:
  struct Pending {
    uint64_t time_ns;
    uint64_t order;  // of arrival
    Round* round;
    uint32_t entry;
    bool opened;  // its mapping is in opened_
  };

  bool arrive(const Round& round, const Entry& entry, uint64_t order);
  void use_until(uint64_t time_ns);
  void use(const Pending& pending);
  void sample(const Sample& sample, uint16_t misc);
  Process& known(pid_t pid);
  void unwind_user(const Sample& sample, Process& process, Trace& trace);
  void append_kernel(const Sample& sample);
  void append_kernel_frame(uint64_t address, uint64_t time_ns);
  /// Why the kernel frames that were appended end: at the kernel's entry (or there are none), or before it.
  /// What the program's own stack holds does not follow then.
  clew_end kernel_end();
  bool walked_sample(std::span<const std::byte> bytes);
  void miss(const MissingTable& missing);
  /// Keeps a thread's sample until it runs again.
  void keep_blocked(const Entry& entry, std::span<const std::byte> bytes);
  void resumed(const Resumed& record, uint64_t time_ns);
  /// How many of a blocked thread's frames, the first ones, are the tracepoint's and its program's.
  size_t frames_before_schedule() const;
  void deliver(Trace& trace);
  /// Whether a sample of user space is taken with the thread stopped instead.
  bool taken_elsewhere(pid_t tid, uint64_t time_ns) const;
  void release(Round* round);

  struct Stopped {
    uint64_t from_ns = 0;
    uint64_t until_ns = UINT64_MAX;
    uint64_t needed_ns = 0;  // when it was last of use
  };

  struct Blocked {
    uint64_t since_ns = 0;
    uint32_t type = 0;
    uint16_t misc = 0;
    std::vector<std::byte> bytes;
  };

  RoundQueue& queue_;
  Sink sink_;
  std::function<void(size_t)> resize_;
  std::function<void(pid_t, pid_t)> scattered_;
  FileSeen mapped_file_, missing_table_;
  uint64_t period_ns_ = 0;  // of walked samples
  // Held while a record is used or a stopped thread is unwound: guards all that follows but the rounds.
  std::mutex mutex_;
  ProcessTree tree_;
  StackMemory stacks_;
  StackSize size_;
  CodeCache code_;
  SampleTarget target_;
  StoppedTarget stopped_target_;
  std::unordered_map<pid_t, Stopped> stopped_;
  std::unordered_map<pid_t, Blocked> blocked_;
  uint64_t blocked_ns_ = 0;  // of the sample in use; 0: it is none of a blocked thread
  UnwindCounters counters_;

  std::deque<std::unique_ptr<Round>> rounds_;
  std::vector<Pending> pending_;
  std::unordered_map<uint64_t, process::Mapping> opened_;  // mappings of records that wait for their turn
  uint64_t order_ = 0;
  std::unordered_map<pid_t, uint64_t> refreshed_at_ns_;
  std::set<pid_t> starting_;  // an exec was seen, its mappings not yet

  bpf::Functions bpf_functions_;
  std::optional<KernelRoots> kernel_roots_;  // since the first sample of the kernel

  std::vector<clew_frame> walked_;
  std::vector<TraceFrame> frames_;
};

}  // namespace clew::collect::perf
