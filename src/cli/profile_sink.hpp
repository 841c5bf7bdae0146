// From traces to the profile: what every collector's samples pass through on their way into the file.
//
// add() runs on the collector's thread and only collects; a thread of its own writes and symbolizes, because
// one look into a large program's debug information can take seconds, and no sample may wait for it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

#include "clew/result.hpp"
#include "collect/trace.hpp"
#include "profile/profile.hpp"
#include "symbolize/symbolize.hpp"

namespace clew::cli {

class ProfileSink {
 public:
  ProfileSink() = default;
  ~ProfileSink();

  /// One trace; from one thread at a time.
  void add(const collect::Trace& trace);
  /// Creates the file and starts writing what was added and will be.
  Result<bool> open(const std::string& path, uint64_t period_ns);
  /// Writes the rest and closes. To be called when nothing is added any more. Returns the file's size in
  /// bytes.
  Result<uint64_t> finish(const profile::Totals& totals);
  /// Files that wait for symbolization in the piece that is being written.
  size_t files_left() const { return files_left_.load(std::memory_order_relaxed); }
  /// Samples that were dropped because the writer did not keep up.
  uint64_t dropped() const { return dropped_; }

 private:
  /// What a module's addresses are looked up in, gathered when it is first seen: its image belongs to the
  /// collector.
  struct Source {
    profile::Mapping mapping;
    symbolize::File file;
    std::shared_ptr<process::Module> module;  // keeps the image's descriptor open
    struct Symbol {
      uint64_t address, size;
      std::string name;
    };
    std::vector<Symbol>
        symbols;  // where there is no file: the vDSO, an image in memory, a BPF program's function
    std::vector<collect::bpf::Function::Line> lines;  // of such a function
  };
  struct Queued {
    size_t first_place, places;
    size_t first_comm, comm_size;
    pid_t pid, tid;
    uint64_t time_ns, weight_ns;
    clew_end end;
    bool blocked;
  };
  struct Batch {
    std::vector<profile::Place> places;  // Place::mapping is 1 + an index of sources_
    std::vector<Queued> samples;
    std::string comms;
    std::vector<std::unique_ptr<Source>> sources;  // new ones
  };

  uint32_t source_of(const process::Mapping& mapping);
  uint32_t source_of(const collect::bpf::Function& function);
  void run();
  void write(Batch& batch);
  std::vector<symbolize::Lines> symbolize(std::span<const profile::Place> places);

  // The collector's thread.
  std::unordered_map<const process::Module*, uint32_t> by_module_;
  std::unordered_map<std::string, uint32_t> by_path_;
  std::unordered_map<const collect::bpf::Function*, uint32_t> by_function_;
  uint32_t source_count_ = 0;
  uint64_t dropped_ = 0;

  // Between the two.
  std::mutex mutex_;
  std::condition_variable changed_;
  Batch batch_;
  bool ending_ = false;
  std::atomic<size_t> files_left_ = 0;

  // The writer's thread.
  std::unique_ptr<profile::Writer> writer_;
  std::vector<std::unique_ptr<Source>> sources_;
  std::vector<uint32_t> writer_mappings_;  // by source
  std::unordered_map<uint32_t, size_t> source_of_mapping_;
  symbolize::Symbolizer symbolizer_;
  symbolize::KernelSymbols kernel_;
  std::string failed_;
  std::thread thread_;
};

}  // namespace clew::cli
