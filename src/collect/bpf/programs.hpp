// The BPF programs of a recording (src/bpf): loading, the tables in their maps, their samples.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bpf/shared.h"
#include "clew/result.hpp"
#include "collect/perf/record.hpp"
#include "process/address_space.hpp"

namespace clew::collect::bpf {

class Programs {
 public:
  /// Why they cannot be loaded, where this process lacks a capability or is in a PID namespace; else empty.
  static std::string forbidden();
  struct Options {
    bool all_processes = false;
    /// Threads that block are sampled too, and told of where that was for at least so long.
    std::optional<uint64_t> least_blocked_ns = {};
  };
  /// Loads the programs; nothing is sampled yet. The error says what is missing, and what to do.
  static Result<std::unique_ptr<Programs>> load(const Options& options);
  ~Programs();

  /// Samples every CPU from now on, every `period_ns` of its time.
  Result<bool> start(uint64_t period_ns);
  void stop();
  /// A process whose samples are wanted, and those of its children; `at_exec`: from its next exec on.
  void add_target(pid_t pid, bool at_exec);
  /// Processes that are sampled now.
  size_t targets() const;
  /// How much stack a shipped sample brings, at most CLEW_BPF_STACK.
  void set_stack_bytes(uint32_t bytes);

  /// Moves the samples that are there into a round: walked ones as perf::kWalkedSample, shipped ones as
  /// perf's own, before them perf::kMissingTable where a table was missing; those of threads that are about
  /// to block are marked perf::kMiscBlocked, and a perf::kResumed follows. After stop() threads that still
  /// block are told of as if they ran again. Drain thread.
  void drain(perf::Round& round, size_t room, perf::AppendResult& result);

  /// Loads a module's table for a file that the programs have met. Unwind thread. False where there is none,
  /// or no room.
  bool load_table(const clew_bpf_file& file, const process::Module& module);
  /// Whether there is room for tables that may never be needed.
  bool half_empty() const;

  /// Whether samples are taken that are due while another's BPF program keeps ours from running.
  bool sees_inside_programs() const;
  /// Sums over all CPUs.
  clew_bpf_counts counts() const;
  /// Tables that did not fit.
  uint64_t tables_without_room() const { return without_room_; }

 private:
  struct State;
  explicit Programs(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
  uint64_t without_room_ = 0;
};

}  // namespace clew::collect::bpf
