// A recording by the perf collector: events, the drain thread, the unwind thread.
//
//   rings (one a CPU) --drain thread: copies--> RoundQueue (bounded) --unwind thread--> Sink
//
// The drain thread does nothing but copy, so that a ring never waits for an unwind. Where the queue is full,
// samples are dropped and counted; records of mappings and processes never are.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "clew/result.hpp"
#include "collect/bpf/programs.hpp"
#include "collect/collector.hpp"
#include "collect/perf/event_set.hpp"
#include "collect/perf/round_queue.hpp"
#include "collect/perf/stop_sampler.hpp"
#include "collect/perf/unwinder.hpp"
#include "collect/trace.hpp"

namespace clew::collect::perf {

struct SessionOptions {
  unsigned frequency_hz = 999;
  pid_t command = 0;        // a child that waits before its exec
  std::vector<pid_t> pids;  // running processes
  bool all = false;
  bool bpf = false;  // samples are taken and unwound by BPF programs
  /// With `bpf`: also how long threads block, where it is for at least so long.
  std::optional<uint64_t> least_blocked_ns = {};
  bool stop_threads = true;  // to read stacks that are not in one piece (stop_sampler.hpp)
  size_t ring_bytes = size_t{4} << 20;
  size_t queue_bytes = size_t{128} << 20;
};

class Session final : public Collector {
 public:
  /// Opens the events and starts both threads. `sink` is called on the unwind thread.
  static Result<std::unique_ptr<Session>> start(const SessionOptions& options, Sink sink);
  ~Session() override;

  /// Switches sampling off, unwinds what was recorded, ends the threads.
  void stop() override;
  std::optional<int> reaped(pid_t pid) override { return stopper_ ? stopper_->reaped(pid) : std::nullopt; }
  Counters counters() const override;
  uint64_t period_ns() const override { return period_ns_; }
  std::vector<std::string> notes() const override;

 private:
  Session(const SessionOptions& options, EventSet events, std::unique_ptr<bpf::Programs> programs, Sink sink);
  void drain();
  void drain_once();
  void unwind();
  void resize(size_t index);

  EventSet events_;
  std::unique_ptr<bpf::Programs> programs_;  // null: the events sample
  uint64_t period_ns_;
  std::vector<pid_t> adopt_;
  bool adopt_all_;
  uint64_t machine_cpu_before_ns_ = 0;
  RoundQueue queue_;
  Unwinder unwinder_;
  std::unique_ptr<StopSampler> stopper_;
  process::UniqueFd wake_;  // an eventfd: ends the drain thread's wait
  std::atomic<bool> stopping_ = false;
  std::atomic<uint64_t> lost_in_queue_ = 0;
  std::atomic<uint64_t> malformed_ = 0;
  std::atomic<size_t> wanted_size_;
  uint64_t busy_until_ns_ =
      0;  // side-band records came a moment ago: look often, processes may be short-lived
  uint64_t confirm_at_ns_ = 0;  // when the last switch of sizes is repeated
  Counters final_ = {};
  bool stopped_ = false;
  std::vector<std::string> tree_notes_;
  std::thread drain_thread_;
  std::thread unwind_thread_;
};

}  // namespace clew::collect::perf
