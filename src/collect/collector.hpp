// What a recording asks of whatever takes its samples.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace clew::collect {

struct Counters {
  uint64_t samples = 0;
  uint64_t complete = 0;
  uint64_t lost = 0;
  std::optional<uint64_t>
      cpu_used_ns;           // of the targets, user and kernel; nothing where the collector cannot tell
  uint64_t bpf_ns = 0;       // CPU time of BPF programs
  uint64_t overhead_ns = 0;  // CPU time spent in the targets
};

class Collector {
 public:
  Collector() = default;
  virtual ~Collector() = default;
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  /// Ends sampling and delivers what was taken. May be called again.
  virtual void stop() = 0;
  /// At any time, from any thread.
  virtual Counters counters() const = 0;
  virtual uint64_t period_ns() const = 0;
  /// What the user should know, one line each; complete after stop().
  virtual std::vector<std::string> notes() const = 0;
  /// The wait status of a child of this process that the collector reaped.
  virtual std::optional<int> reaped(pid_t) { return std::nullopt; }
};

}  // namespace clew::collect
