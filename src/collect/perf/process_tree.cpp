#include "collect/perf/process_tree.hpp"

#include <sys/mman.h>

#include <limits>

#include "collect/perf/mapping.hpp"
#include "process/clock.hpp"

namespace clew::collect::perf {

process::AddressSpace& ProcessTree::writable(Process& process) {
  if (!process.space) process.space = std::make_shared<process::AddressSpace>();
  if (process.space.use_count() > 1) process.space = std::make_shared<process::AddressSpace>(*process.space);
  return *process.space;
}

void ProcessTree::adopt(pid_t pid) {
  Process& process = processes_[pid];
  process = Process();
  process.read_at_ns = monotonic_ns();
  for (const pid_t tid : process::threads(pid)) {
    process.threads.insert(tid);
    comms_[tid] = process::thread_name(pid, tid);
  }
  if (auto space = process::AddressSpace::of_process(pid, modules_)) {
    process.space = std::make_shared<process::AddressSpace>(std::move(*space));
  } else {
    process.space = std::make_shared<process::AddressSpace>();
  }
}

bool ProcessTree::refresh(pid_t pid) {
  Process* process = find(pid);
  if (process == nullptr) return false;
  auto now = process::AddressSpace::of_process(pid, modules_);
  if (!now) return false;
  bool added = false;
  for (const auto& [start, mapping] : now->mappings()) {
    if (!mapping.executable) continue;
    const process::Mapping* known = process->space ? process->space->find(start) : nullptr;
    if (known != nullptr && known->end >= mapping.end && known->module == mapping.module) continue;
    writable(*process).map(mapping);
    added = true;
  }
  return added;
}

void ProcessTree::fork(const Task& task) {
  const auto pid = static_cast<pid_t>(task.pid);
  const auto tid = static_cast<pid_t>(task.tid);
  if (const auto name = comms_.find(static_cast<pid_t>(task.ptid)); name != comms_.end()) {
    const std::string copy = name->second;
    comms_[tid] = copy;
  }
  if (task.pid != task.ppid) {
    const auto parent = processes_.find(static_cast<pid_t>(task.ppid));
    Process child;
    if (parent != processes_.end()) {
      child.space = parent->second.space;
      child.read_at_ns = parent->second.read_at_ns;
    }
    processes_[pid] = std::move(child);
  }
  processes_[pid].threads.insert(tid);
}

void ProcessTree::exit(const Task& task, uint64_t time_ns) {
  Process* process = find(static_cast<pid_t>(task.pid));
  if (process == nullptr) return;
  if (process->exec_unmapped && task.pid == task.tid) {
    notes_.push_back(
        "sampling of process " + std::to_string(task.pid) + " (" +
        std::string(comm(static_cast<pid_t>(task.pid), static_cast<pid_t>(task.tid))) +
        ") ended at its exec: the kernel hides programs that are setuid, setgid or not readable");
  }
  process->threads.erase(static_cast<pid_t>(task.tid));
  ended_.emplace_back(time_ns, task);
}

void ProcessTree::comm(const Comm& comm) {
  const auto pid = static_cast<pid_t>(comm.pid);
  const auto tid = static_cast<pid_t>(comm.tid);
  comms_[tid] = std::string(comm.name);
  if (!comm.exec) return;
  // A thread that execs becomes the leader and the only thread; nothing of the old program stays mapped.
  Process& process = processes_[pid];
  process = Process();
  process.space = std::make_shared<process::AddressSpace>();
  process.threads = {tid};
  process.exec_unmapped = true;
  process.in_exec = true;
}

process::Mapping ProcessTree::open(const Mmap2& record) { return open_mapping(record, modules_); }

void ProcessTree::map(const Mmap2& record, process::Mapping mapping, uint64_t time_ns) {
  Process& process = processes_[static_cast<pid_t>(record.pid)];
  if (time_ns < process.read_at_ns) return;
  process.exec_unmapped = false;
  writable(process).map(std::move(mapping));
}

Process* ProcessTree::find(pid_t pid) {
  const auto found = processes_.find(pid);
  return found == processes_.end() ? nullptr : &found->second;
}

std::string_view ProcessTree::comm(pid_t pid, pid_t tid) {
  auto found = comms_.find(tid);
  if (found == comms_.end()) found = comms_.emplace(tid, process::thread_name(pid, tid)).first;
  return found->second;
}

void ProcessTree::forget_ended(uint64_t time_ns) {
  while (!ended_.empty() && ended_.front().first < time_ns) {
    const auto pid = static_cast<pid_t>(ended_.front().second.pid);
    const auto tid = static_cast<pid_t>(ended_.front().second.tid);
    ended_.pop_front();
    Process* process = find(pid);
    if (process == nullptr || process->threads.contains(tid)) continue;  // its number is in use again
    comms_.erase(tid);
    if (process->threads.empty()) processes_.erase(pid);
  }
}

}  // namespace clew::collect::perf
