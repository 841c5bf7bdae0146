#include "collect/perf/unwinder.hpp"

#include <algorithm>
#include <cstring>

namespace clew::collect::perf {

namespace {

constexpr uint64_t kWindowNs =
    4'000'000;  // records younger than this before a round may have older ones behind
constexpr uint64_t kKeepEndedNs = 1'000'000'000;   // how long an ended process is remembered for late records
constexpr uint64_t kRefreshEveryNs = 200'000'000;  // a process's maps are read again at most this often
constexpr uint64_t kStopNoLongerNs =
    10'000'000'000;  // a thread is let go when stopping it was of no use for so long
constexpr size_t kMostFrames = 8192;
constexpr uint64_t kKernelChainLimit = 127;  // kernel.perf_event_max_stack unless it was changed

}  // namespace

Unwinder::Unwinder(RoundQueue& queue, size_t largest_size, Sink sink, std::function<void(size_t)> resize,
                   std::function<void(pid_t, pid_t)> scattered)
    : queue_(queue),
      sink_(std::move(sink)),
      resize_(std::move(resize)),
      scattered_(std::move(scattered)),
      size_(largest_size),
      target_(code_),
      stopped_target_(code_),
      walked_(kMostFrames) {}

void Unwinder::expect_walked(uint64_t period_ns, FileSeen mapped, FileSeen missing) {
  period_ns_ = period_ns;
  mapped_file_ = std::move(mapped);
  missing_table_ = std::move(missing);
}

void Unwinder::take(std::unique_ptr<Round> round) {
  Round* added = round.get();
  added->unread = added->entries.size();
  const uint64_t start_ns = added->start_ns;
  rounds_.push_back(std::move(round));
  for (uint32_t i = 0; i < added->entries.size(); ++i) {
    const Entry& entry = added->entries[i];
    const uint64_t order = order_++;
    pending_.push_back({entry.time_ns, order, added, i, arrive(*added, entry, order)});
  }
  std::ranges::sort(pending_, [](const Pending& a, const Pending& b) {
    return a.time_ns != b.time_ns ? a.time_ns < b.time_ns : a.order < b.order;
  });
  if (added->entries.empty()) release(added);
  use_until(start_ns > kWindowNs ? start_ns - kWindowNs : 0);
  const std::lock_guard lock(mutex_);
  tree_.forget_ended(start_ns > kKeepEndedNs ? start_ns - kKeepEndedNs : 0);
}

/// What cannot wait for an entry's turn, because a process may be gone by then. Returns whether a mapping was
/// opened.
bool Unwinder::arrive(const Round& round, const Entry& entry, uint64_t order) {
  const std::span<const std::byte> bytes = entry_bytes(round, entry);
  Comm comm = {};
  if (entry.type == PERF_RECORD_COMM && read_comm(bytes, entry.misc, comm) && comm.exec) {
    starting_.insert(static_cast<pid_t>(comm.pid));
  }
  if (BpfEvent event = {}; entry.type == PERF_RECORD_BPF_EVENT && read_bpf_event(bytes, event)) {
    const std::lock_guard lock(mutex_);
    if (event.type == PERF_BPF_EVENT_PROG_LOAD) bpf_functions_.loaded(event.id, entry.time_ns);
    if (event.type == PERF_BPF_EVENT_PROG_UNLOAD) bpf_functions_.unloaded(event.id, entry.time_ns);
    return false;
  }
  Mmap2 mapping = {};
  if (entry.type != PERF_RECORD_MMAP2 || !read_mmap2(bytes, mapping)) return false;
  if (starting_.erase(static_cast<pid_t>(mapping.pid)) != 0) {
    StackMemory::prepare_main_stack(static_cast<pid_t>(mapping.pid));
  }
  const std::lock_guard lock(mutex_);
  const process::Mapping& opened = opened_.emplace(order, tree_.open(mapping)).first->second;
  if (mapped_file_ && opened.executable && opened.module) {
    clew_bpf_file file = {.inode = mapping.inode,
                          .device = mapping.major << 20 | mapping.minor,
                          .generation = static_cast<uint32_t>(mapping.generation)};
    if (mapping.path == "[vdso]") file = {.inode = 0, .device = CLEW_BPF_VDSO, .generation = 0};
    mapped_file_(file, *opened.module);
  }
  return true;
}

void Unwinder::finish() {
  use_until(UINT64_MAX);
  while (!rounds_.empty()) release(rounds_.front().get());
}

void Unwinder::use_until(uint64_t time_ns) {
  size_t used = 0;
  while (used < pending_.size() && pending_[used].time_ns <= time_ns) {
    const Pending& pending = pending_[used++];
    use(pending);
    if (--pending.round->unread == 0) release(pending.round);
  }
  pending_.erase(pending_.begin(), pending_.begin() + static_cast<ptrdiff_t>(used));
}

void Unwinder::release(Round* round) {
  const auto found = std::ranges::find(rounds_, round, &std::unique_ptr<Round>::get);
  if (found == rounds_.end()) return;
  std::unique_ptr<Round> owned = std::move(*found);
  rounds_.erase(found);
  queue_.recycle(std::move(owned));
}

void Unwinder::use(const Pending& pending) {
  const Entry& entry = pending.round->entries[pending.entry];
  const std::span<const std::byte> bytes = entry_bytes(*pending.round, entry);
  bool understood = true;
  const std::lock_guard lock(mutex_);
  switch (entry.type) {
    case kResumed: {
      Resumed record = {};
      std::memcpy(&record, bytes.data(), sizeof record);  // made by ourselves
      resumed(record, entry.time_ns);
      break;
    }
    case PERF_RECORD_SAMPLE: {
      if ((entry.misc & kMiscBlocked) != 0) {
        keep_blocked(entry, bytes);
        break;
      }
      Sample record = {};
      understood = read_sample(bytes, record);
      if (understood) sample(record, entry.misc);
      break;
    }
    case kWalkedSample:
      if ((entry.misc & kMiscBlocked) != 0) {
        keep_blocked(entry, bytes);
      } else {
        understood = walked_sample(bytes);
      }
      break;
    case kMissingTable: {
      MissingTable missing = {};
      std::memcpy(&missing, bytes.data(), sizeof missing);  // made by ourselves
      if (missing_table_) miss(missing);
      break;
    }
    case PERF_RECORD_MMAP2: {
      Mmap2 record = {};
      const auto opened = opened_.find(pending.order);
      understood = read_mmap2(bytes, record) && opened != opened_.end();
      if (understood) {
        tree_.map(record, std::move(opened->second), entry.time_ns);
        opened_.erase(opened);
      }
      break;
    }
    case PERF_RECORD_FORK:
    case PERF_RECORD_EXIT: {
      Task record = {};
      understood = read_task(bytes, record);
      if (!understood) break;
      if (entry.type == PERF_RECORD_FORK) {
        tree_.fork(record);
      } else {
        tree_.exit(record, entry.time_ns);
        size_.forget(static_cast<pid_t>(record.tid));
        blocked_.erase(static_cast<pid_t>(record.tid));
      }
      break;
    }
    case PERF_RECORD_COMM: {
      Comm record = {};
      understood = read_comm(bytes, entry.misc, record);
      if (!understood) break;
      if (record.exec) {
        stacks_.forget(static_cast<pid_t>(record.pid));
        stopped_.erase(static_cast<pid_t>(record.tid));  // the exec removed its event
      }
      tree_.comm(record);
      break;
    }
    case PERF_RECORD_LOST:
    case PERF_RECORD_LOST_SAMPLES:
      counters_.lost.fetch_add(read_lost(bytes, entry.type), std::memory_order_relaxed);
      break;
    case PERF_RECORD_THROTTLE:
      counters_.throttled.fetch_add(1, std::memory_order_relaxed);
      break;
    default:
      break;
  }
  if (!understood) counters_.unknown.fetch_add(1, std::memory_order_relaxed);
}

void Unwinder::append_kernel(const Sample& sample) {
  // The chain begins with a marker of what follows (PERF_CONTEXT_KERNEL).
  for (uint32_t i = 0; i < sample.head.chain_count; ++i) {
    uint64_t address = 0;
    std::memcpy(&address, sample.chain.data() + size_t{i} * sizeof address, sizeof address);
    if (address < PERF_CONTEXT_MAX) append_kernel_frame(address, sample.head.time_ns);
  }
}

void Unwinder::append_kernel_frame(uint64_t address, uint64_t time_ns) {
  if (!kernel_roots_) kernel_roots_ = KernelRoots::load();
  // Return addresses, but for the sampled one and where an interrupt's or a fault's entry lies below: what it
  // interrupted was about to run this instruction.
  const bool exact = frames_.empty() ||
                     (kernel_roots_->contains(frames_.back().frame.pc) && !kernel_roots_->contains(address));
  frames_.push_back({.frame = {.pc = address,
                               .sp = 0,
                               .how = CLEW_HOW_KERNEL,
                               .flags = exact ? uint32_t{CLEW_FRAME_EXACT_PC} : 0},
                     .mapping = nullptr,
                     .bpf_function = bpf_functions_.find(exact ? address : address - 1, time_ns)});
}

clew_end Unwinder::kernel_end() {
  if (frames_.empty()) return CLEW_END_ROOT;
  const clew_frame& last = frames_.back().frame;
  if (kernel_roots_->contains(last.pc - ((last.flags & CLEW_FRAME_EXACT_PC) != 0 ? 0 : 1)))
    return CLEW_END_ROOT;
  if (frames_.size() >= kKernelChainLimit) return CLEW_END_DEPTH_LIMIT;
  return kernel_roots_->known() ? CLEW_END_NO_RULE : CLEW_END_ROOT;
}

Process& Unwinder::known(pid_t pid) {
  if (tree_.find(pid) == nullptr) tree_.adopt(pid);
  return *tree_.find(pid);
}

void Unwinder::deliver(Trace& trace) {
  trace.comm = tree_.comm(trace.pid, trace.tid);
  trace.frames = frames_;
  if (blocked_ns_ != 0) {
    trace.blocked = true;
    trace.weight_ns = blocked_ns_;
    trace.frames = trace.frames.subspan(frames_before_schedule());
    counters_.waits.fetch_add(1, std::memory_order_relaxed);
  } else {
    counters_.samples.fetch_add(1, std::memory_order_relaxed);
    if (trace.end == CLEW_END_ROOT) counters_.complete.fetch_add(1, std::memory_order_relaxed);
  }
  sink_(trace);
}

bool Unwinder::taken_elsewhere(pid_t tid, uint64_t time_ns) const {
  if (stopped_.empty()) return false;
  const auto found = stopped_.find(tid);
  return found != stopped_.end() && time_ns >= found->second.from_ns && time_ns < found->second.until_ns;
}

void Unwinder::sample(const Sample& sample, uint16_t misc) {
  const auto pid = static_cast<pid_t>(sample.head.pid);
  const auto tid = static_cast<pid_t>(sample.head.tid);
  const bool in_user = (misc & PERF_RECORD_MISC_CPUMODE_MASK) == PERF_RECORD_MISC_USER;
  if (in_user && taken_elsewhere(tid, sample.head.time_ns)) return;
  frames_.clear();
  append_kernel(sample);
  Trace trace;
  trace.pid = pid;
  trace.tid = tid;
  trace.time_ns = sample.head.time_ns;
  trace.weight_ns = sample.head.period;
  trace.end = kernel_end();
  if (sample.head.abi == PERF_SAMPLE_REGS_ABI_NONE) {
    // A kernel thread: the kernel's chain is the whole stack.
    if (frames_.empty()) trace.end = CLEW_END_NO_USER_STACK;
  } else if (trace.end == CLEW_END_ROOT) {
    Process& process = known(pid);
    if (in_user) process.in_exec = false;
    const size_t kernel_frames = frames_.size();
    unwind_user(sample, process, trace);
    if (process.in_exec && trace.end == CLEW_END_NOT_MAPPED && frames_.size() <= kernel_frames + 1 &&
        kernel_frames != 0) {
      // Inside execve the old program is gone and the new one has not begun: the kernel's chain is the whole
      // stack.
      frames_.resize(kernel_frames);
      trace.end = CLEW_END_ROOT;
    }
  }
  deliver(trace);
}

bool Unwinder::walked_sample(std::span<const std::byte> bytes) {
  clew_bpf_sample head = {};
  if (bytes.size() < sizeof head) return false;
  std::memcpy(&head, bytes.data(), sizeof head);
  const std::span<const std::byte> places = bytes.subspan(sizeof head);
  if (places.size() / 8 < size_t{head.kernel_frames} + head.user_frames) return false;
  const auto pid = static_cast<pid_t>(head.pid);
  const auto tid = static_cast<pid_t>(head.tid);
  if (head.in_kernel == 0 && taken_elsewhere(tid, head.time_ns)) return true;
  const auto word = [&places](size_t i) {
    uint64_t value = 0;
    std::memcpy(&value, places.data() + i * sizeof value, sizeof value);
    return value;
  };
  frames_.clear();
  for (uint32_t i = 0; i < head.kernel_frames; ++i) append_kernel_frame(word(i), head.time_ns);
  Trace trace;
  trace.pid = pid;
  trace.tid = tid;
  trace.time_ns = head.time_ns;
  trace.weight_ns = period_ns_;
  trace.end = kernel_end();
  const Process& process = known(pid);
  for (uint32_t i = 0; i < head.user_frames && trace.end == CLEW_END_ROOT; ++i) {
    const uint64_t value = word(head.kernel_frames + i);
    const clew_frame frame = {.pc = value & 0x00ff'ffff'ffff'ffff,
                              .sp = 0,
                              .how = static_cast<uint32_t>(value >> 56 & 15),
                              .flags = static_cast<uint32_t>(value >> 60)};
    frames_.push_back({frame, process.space ? process.space->find(frame.pc) : nullptr});
  }
  deliver(trace);
  return true;
}

void Unwinder::miss(const MissingTable& missing) {
  const Process& process = known(static_cast<pid_t>(missing.pid));
  const process::Mapping* mapping = process.space ? process.space->find(missing.pc) : nullptr;
  if (mapping != nullptr && mapping->module) missing_table_(missing.file, *mapping->module);
}

void Unwinder::keep_blocked(const Entry& entry, std::span<const std::byte> bytes) {
  uint32_t tid = 0;
  if (entry.type == kWalkedSample) {
    clew_bpf_sample head;
    if (bytes.size() < sizeof head) return;
    std::memcpy(&head, bytes.data(), sizeof head);
    tid = head.tid;
  } else {
    Sample record = {};
    if (!read_sample(bytes, record)) return;
    tid = record.head.tid;
  }
  Blocked& blocked = blocked_[static_cast<pid_t>(tid)];
  blocked.since_ns = entry.time_ns;
  blocked.type = entry.type;
  blocked.misc = entry.misc;
  blocked.bytes.assign(bytes.begin(), bytes.end());
}

void Unwinder::resumed(const Resumed& record, uint64_t time_ns) {
  const auto found = blocked_.find(static_cast<pid_t>(record.tid));
  if (found == blocked_.end() || found->second.since_ns != record.since_ns) {
    counters_.lost.fetch_add(1, std::memory_order_relaxed);
    return;
  }
  const Blocked blocked = std::move(found->second);
  blocked_.erase(found);
  blocked_ns_ = std::max<uint64_t>(time_ns - record.since_ns, 1);
  if (blocked.type == kWalkedSample) {
    walked_sample(blocked.bytes);
  } else if (Sample waiting = {}; read_sample(blocked.bytes, waiting)) {
    sample(waiting, blocked.misc);
  }
  blocked_ns_ = 0;
}

size_t Unwinder::frames_before_schedule() const {
  constexpr size_t kMost = 12;
  for (size_t i = 0; i < std::min(kMost, frames_.size()) && kernel_roots_; ++i)
    if (frames_[i].frame.how == CLEW_HOW_KERNEL && kernel_roots_->in_schedule(frames_[i].frame.pc - 1))
      return i;
  return 0;
}

void Unwinder::stopped_begun(pid_t pid, pid_t tid, uint64_t time_ns) {
  const std::lock_guard lock(mutex_);
  known(pid);
  stopped_[tid] = {.from_ns = time_ns, .until_ns = UINT64_MAX, .needed_ns = time_ns};
}

void Unwinder::stopped_ended(pid_t tid, uint64_t time_ns) {
  const std::lock_guard lock(mutex_);
  if (const auto found = stopped_.find(tid); found != stopped_.end()) found->second.until_ns = time_ns;
}

bool Unwinder::stopped_sample(pid_t pid, pid_t tid, uint64_t time_ns, uint64_t weight_ns,
                              const unwind::Registers& registers) {
  const std::lock_guard lock(mutex_);
  Process& process = known(pid);
  const auto walk = [&] {
    stopped_target_.set_thread(pid, process.space.get(), registers.value[CLEW_RSP]);
    return unwind::walk(stopped_target_, registers, walked_);
  };
  unwind::WalkResult result = walk();
  // The records of new mappings may still be on their way.
  if (result.end == CLEW_END_NOT_MAPPED && tree_.refresh(pid)) result = walk();
  frames_.clear();
  for (size_t i = 0; i < result.frames; ++i)
    frames_.push_back({walked_[i], stopped_target_.mapping(walked_[i].pc)});
  Trace trace;
  trace.pid = pid;
  trace.tid = tid;
  trace.time_ns = time_ns;
  trace.weight_ns = weight_ns;
  trace.end = result.end;
  deliver(trace);
  const auto found = stopped_.find(tid);
  if (found == stopped_.end()) return false;
  if (stopped_target_.read_outside_copy()) {
    // Reading outside is no need yet: a register's slot below the stack pointer may be without consequence.
    stopped_target_.restrict_to_copy();
    const unwind::WalkResult from_copy = unwind::walk(stopped_target_, registers, walked_);
    if (from_copy.end != result.end || from_copy.frames != result.frames) found->second.needed_ns = time_ns;
  }
  return time_ns < found->second.needed_ns + kStopNoLongerNs;
}

void Unwinder::unwind_user(const Sample& sample, Process& process, Trace& trace) {
  const pid_t pid = trace.pid;
  target_.set(pid, process.space.get(), sample);
  const unwind::Registers registers = target_.registers();
  unwind::WalkResult result;
  if (sample.head.abi != PERF_SAMPLE_REGS_ABI_64) {
    walked_[0] = {registers.value[CLEW_RIP], registers.value[CLEW_RSP], CLEW_HOW_REGISTERS,
                  CLEW_FRAME_EXACT_PC};
    result = {.frames = 1, .end = CLEW_END_NO_RULE, .end_detail = 0};  // a 32-bit program
  } else {
    result = unwind::walk(target_, registers, walked_);
    if (result.end == CLEW_END_NOT_MAPPED && sample.head.time_ns >= refreshed_at_ns_[pid] + kRefreshEveryNs) {
      // Perf does not tell of every mapping (mremap): look whether the process has it now.
      refreshed_at_ns_[pid] = sample.head.time_ns;
      if (tree_.refresh(pid)) {
        target_.set(pid, process.space.get(), sample);
        result = unwind::walk(target_, registers, walked_);
      }
    }
  }

  const uint64_t copy_end = target_.sp() + sample.stack.size();
  if (result.end == CLEW_END_STACK_CUT || result.end == CLEW_END_OTHER_STACK) {
    if (sample.head.stack_asked == 0) {
      result.end = CLEW_END_NO_USER_STACK;  // the task is exiting: its memory is gone already
    } else if (const auto range = stacks_.range(pid, target_.sp(), sample.head.time_ns)) {
      const uint64_t address = result.end_detail;
      const bool same = address >= target_.sp() && address < range->end;
      result.end = same ? CLEW_END_STACK_CUT : CLEW_END_OTHER_STACK;
      if (same && sample.stack.size() < sample.head.stack_asked) {
        stacks_.touch(pid, trace.tid, copy_end, std::min(range->end, target_.sp() + kStackSizes.back()),
                      sample.head.time_ns);
      }
    }
  }
  const bool cut = result.end == CLEW_END_STACK_CUT && sample.stack.size() == sample.head.stack_asked;
  if (const auto size =
          size_.observe(trace.tid, sample.head.stack_asked, target_.depth(), cut, sample.head.time_ns))
    resize_(*size);

  // No copy of one piece can hold this stack.
  const bool too_deep = cut && sample.stack.size() > kStackSizes[kStackSizes.size() - 2];
  if ((result.end == CLEW_END_OTHER_STACK || too_deep) && scattered_) scattered_(pid, trace.tid);

  trace.end = result.end;
  for (size_t i = 0; i < result.frames; ++i) frames_.push_back({walked_[i], target_.mapping(walked_[i].pc)});
}

}  // namespace clew::collect::perf
