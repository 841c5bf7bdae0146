// A recording by the in-process collector: an agent preloaded into the command samples each of its threads by
// a timer of the thread's CPU time and unwinds it in the timer's signal handler (agent/agent.hpp). Here its
// rings are read and the addresses in them get their modules.
//
//   agents' rings (one a process, files in a directory) --drain thread--> Sink
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "clew/result.hpp"
#include "collect/collector.hpp"
#include "collect/inprocess/agent_file.hpp"
#include "collect/inprocess/ring_reader.hpp"
#include "collect/trace.hpp"
#include "process/address_space.hpp"

namespace clew::collect::inprocess {

class Session final : public Collector {
 public:
  /// Makes the directory and the agent's file and starts the drain thread, on which `sink` is called.
  static Result<std::unique_ptr<Session>> start(unsigned frequency_hz, Sink sink);
  ~Session() override;

  /// What the command's environment needs; it is sampled from its exec on, and so are its children.
  std::vector<std::pair<std::string, std::string>> environment() const;

  void stop() override;
  Counters counters() const override;
  uint64_t period_ns() const override { return period_ns_; }
  std::vector<std::string> notes() const override;

 private:
  struct Process {
    RingReader ring;
    process::AddressSpace space;
    uint64_t refreshed_at_ns = 0;
  };

  Session(std::string directory, process::UniqueFd directory_fd, AgentFile agent, uint64_t period_ns,
          Sink sink);
  void run();
  void drain_all();
  void look_for_rings();
  /// False where nothing more can come of it.
  bool drain(Process& process);
  void deliver(Process& process, const RingSample& sample);
  void settle(const RingReader& ring);  // a ring that is read no longer

  std::string directory_;
  process::UniqueFd directory_fd_;
  AgentFile agent_;
  uint64_t period_ns_;
  Sink sink_;

  // The drain thread's.
  process::ModuleCache modules_;
  std::unordered_map<std::string, Process> processes_;  // by the ring's name
  std::vector<TraceFrame> frames_;
  uint64_t without_room_ = 0;  // processes that could make no ring
  uint64_t unread_ = 0;        // rings that could not be opened
  uint64_t unreadable_ = 0;    // rings whose contents make no sense
  uint64_t periods_ = 0;       // that all samples stand for
  uint64_t threads_without_timer_ = 0;

  std::atomic<uint64_t> samples_ = 0, complete_ = 0, dropped_ = 0, handler_ns_ = 0;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool ending_ = false, stopped_ = false;
  std::thread thread_;
};

/// Why the agent will not be loaded into a program: it is linked statically, or gains rights by its exec.
/// "" where it will, or where that cannot be told (a script).
std::string cannot_be_entered(const std::string& path);

}  // namespace clew::collect::inprocess
