// The processes of a recording as perf's side-band records tell of them: fork, exec, exit, names, mappings.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "collect/perf/record.hpp"
#include "process/address_space.hpp"

namespace clew::collect::perf {

/// One process. Forked children share their parent's address space until either changes it.
struct Process {
  std::shared_ptr<process::AddressSpace> space;
  std::set<pid_t> threads;
  /// Mappings that were read from /proc at this time: earlier records of mappings say nothing new. 0:
  /// followed from the start.
  uint64_t read_at_ns = 0;
  bool exec_unmapped = false;  // between an exec and its first mapping
  bool in_exec = false;        // nor has it run a user instruction since: its registers are the old program's
};

/// Fed in the order of time. Not thread-safe.
class ProcessTree {
 public:
  /// A process that was running already: its threads and mappings as /proc shows them now.
  void adopt(pid_t pid);
  void fork(const Task& task);
  void exit(const Task& task, uint64_t time_ns);
  void comm(const Comm& comm);
  /// Opens the file behind a mapping: to be called when its record arrives, before its turn in time.
  process::Mapping open(const Mmap2& record);
  void map(const Mmap2& record, process::Mapping mapping, uint64_t time_ns);

  /// Null for a process that is not known.
  Process* find(pid_t pid);
  std::string_view comm(pid_t pid, pid_t tid);
  /// Forgets what ended before `time_ns`. Later than at its exit, for records that arrive out of order.
  void forget_ended(uint64_t time_ns);
  size_t size() const { return processes_.size(); }

  /// Reads the mappings of a running process again, keeping what is known already; true if anything was
  /// added.
  bool refresh(pid_t pid);

  std::vector<std::string> take_notes() { return std::exchange(notes_, {}); }

 private:
  process::AddressSpace& writable(Process& process);

  std::unordered_map<pid_t, Process> processes_;
  std::unordered_map<pid_t, std::string> comms_;  // by thread
  std::deque<std::pair<uint64_t, Task>> ended_;
  process::ModuleCache modules_;
  std::vector<std::string> notes_;
};

}  // namespace clew::collect::perf
