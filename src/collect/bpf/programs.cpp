#include "collect/bpf/programs.hpp"

#include <bpf/bpf.h>
#include <bpf/btf.h>
#include <bpf/libbpf.h>
#include <elf.h>
#include <linux/capability.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>

#include "clew_sample.skel.h"
#include "collect/perf/perf_event.hpp"
#include "collect/perf/sample_target.hpp"
#include "process/clock.hpp"

namespace clew::collect::bpf {

namespace {

constexpr size_t kPageBytes = size_t{CLEW_BPF_PAGE_WORDS} * 4;
constexpr size_t kTablesBytes = CLEW_BPF_TABLE_PAGES * kPageBytes;

int say_nothing(libbpf_print_level, const char*, va_list) { return 0; }

std::string why_not(int error) {
  std::string text = "the BPF programs cannot be loaded: ";
  text += std::strerror(error);
  if (error == EPERM || error == EACCES) return text + "; run clew as root, or with CAP_BPF and CAP_PERFMON";
  if (error == ENOENT || error == ESRCH) return text + "; the kernel must have BTF (/sys/kernel/btf/vmlinux)";
  return text;
}

void append(perf::Round& round, uint32_t type, uint16_t misc, uint64_t time_ns,
            std::initializer_list<std::span<const std::byte>> parts) {
  perf::Entry entry = {.time_ns = time_ns,
                       .offset = static_cast<uint32_t>(round.bytes.size()),
                       .size = 0,
                       .type = type,
                       .misc = misc};
  for (const auto& part : parts) {
    entry.size += static_cast<uint32_t>(part.size());
    round.bytes.insert(round.bytes.end(), part.begin(), part.end());
  }
  round.entries.push_back(entry);
}

std::span<const std::byte> bytes_of(const void* from, size_t size) {
  return {static_cast<const std::byte*>(from), size};
}

/// Where variables that each CPU has lie to each other, as the kernel's BTF tells.
class CpuVariables {
 public:
  CpuVariables() : btf_(btf__load_vmlinux_btf()) {
    const int section = btf_ == nullptr ? 0 : btf__find_by_name_kind(btf_, ".data..percpu", BTF_KIND_DATASEC);
    if (section > 0) section_ = btf__type_by_id(btf_, static_cast<uint32_t>(section));
  }
  ~CpuVariables() { btf__free(btf_); }
  CpuVariables(const CpuVariables&) = delete;
  CpuVariables& operator=(const CpuVariables&) = delete;

  std::optional<int64_t> offset(std::string_view name) const {
    if (section_ == nullptr) return std::nullopt;
    for (const btf_var_secinfo& variable :
         std::span(btf_var_secinfos(section_), static_cast<size_t>(btf_vlen(section_)))) {
      const btf_type* type = btf__type_by_id(btf_, variable.type);
      const char* its_name = type != nullptr ? btf__name_by_offset(btf_, type->name_off) : nullptr;
      if (its_name != nullptr && name == its_name) return variable.offset;
    }
    return std::nullopt;
  }

 private:
  btf* btf_;
  const btf_type* section_ = nullptr;
};

/// For clew_missed; false where the kernel does not tell.
bool find_cpu_variables(clew_sample& skeleton) {
  const CpuVariables variables;
  const auto bases = variables.offset("hrtimer_bases"), active = variables.offset("bpf_prog_active"),
             interrupted = variables.offset("__irq_regs");
  if (!bases || !active || !interrupted) return false;
  skeleton.rodata->active_offset = *active - *bases;
  skeleton.rodata->interrupted_offset = *interrupted - *bases;
  return true;
}

}  // namespace

struct Programs::State {
  clew_sample* skeleton = nullptr;
  ring_buffer* ring = nullptr;
  std::vector<bpf_link*> links;
  std::byte* tables = nullptr;
  uint64_t period_ns = 0;
  uint32_t next_page = 0;
  uint32_t next_module = 0;
  std::atomic<bool> ended = false;  // and what blocks is still to be told of
  // Its number in the map of modules; CLEW_BPF_MODULES: it has no place.
  std::map<std::shared_ptr<const table::Table>, uint32_t> loaded;
  std::set<std::array<uint64_t, 4>> files;  // that the programs know: inode, device, generation, module

  /// The last walked trace of a CPU: its frames as they were sent, from the root on.
  struct LastTrace {
    uint32_t number = 0;
    std::vector<uint64_t> frames;
  };
  std::unordered_map<uint32_t, LastTrace> last;

  // While a drain is under way.
  perf::Round* round = nullptr;
  size_t room = 0;
  perf::AppendResult result;

  ~State() {
    for (bpf_link* link : links) bpf_link__destroy(link);
    if (ring != nullptr) ring_buffer__free(ring);
    if (tables != nullptr) munmap(tables, kTablesBytes);
    if (skeleton != nullptr) clew_sample__destroy(skeleton);
  }
  int take(const void* data, size_t size);
  void take_resumed(const clew_bpf_resumed& resumed);
  void take_blocked(uint64_t now_ns);
  bool complete_trace(const clew_bpf_sample& head, std::span<const std::byte> frames);
};

/// Makes last[head.cpu] this trace; false where what it shares with the one before is not known.
bool Programs::State::complete_trace(const clew_bpf_sample& head, std::span<const std::byte> frames) {
  LastTrace& trace = last[head.cpu];
  const bool follows = head.number == trace.number + 1 && head.shared_frames <= trace.frames.size();
  trace.number = head.number;
  if (head.shared_frames != 0 && !follows) {
    trace.frames.clear();
    return false;
  }
  trace.frames.resize(head.shared_frames);
  for (size_t i = frames.size() / 8; i-- > 0;) {
    uint64_t frame = 0;
    std::memcpy(&frame, frames.data() + i * sizeof frame, sizeof frame);
    trace.frames.push_back(frame);
  }
  return true;
}

void Programs::State::take_resumed(const clew_bpf_resumed& resumed) {
  const perf::Resumed record = {.tid = resumed.tid, .reserved = 0, .since_ns = resumed.since_ns};
  append(*round, perf::kResumed, 0, resumed.time_ns, {bytes_of(&record, sizeof record)});
}

/// Those that block as the recording ends.
void Programs::State::take_blocked(uint64_t now_ns) {
  const int map = bpf_map__fd(skeleton->maps.blocked_since);
  clew_bpf_resumed resumed = {
      .time_ns = now_ns, .pid = 0, .tid = 0, .state = CLEW_BPF_RESUMED, .reserved = 0, .since_ns = 0};
  const uint32_t* last_key = nullptr;
  while (bpf_map_get_next_key(map, last_key, &resumed.tid) == 0) {
    last_key = &resumed.tid;
    if (bpf_map_lookup_elem(map, last_key, &resumed.since_ns) == 0 &&
        now_ns >= resumed.since_ns + skeleton->rodata->least_blocked_ns)
      take_resumed(resumed);
  }
}

/// One record of the ring.
int Programs::State::take(const void* data, size_t size) {
  clew_bpf_resumed resumed;
  if (size >= sizeof resumed) {
    std::memcpy(&resumed, data, sizeof resumed);
    if (resumed.state == CLEW_BPF_RESUMED) {
      take_resumed(resumed);
      return 0;
    }
  }
  if (size < sizeof(clew_bpf_sample)) {
    result.malformed = true;
    return 0;
  }
  clew_bpf_sample head;
  std::memcpy(&head, data, sizeof head);
  const auto* behind = static_cast<const std::byte*>(data) + sizeof head;
  const size_t rest = size - sizeof head;
  const uint16_t blocked = head.blocked != 0 ? perf::kMiscBlocked : 0;
  if (head.state == CLEW_BPF_WALKED) {
    const size_t kernel_bytes = size_t{head.kernel_frames} * 8, user_bytes = size_t{head.user_frames} * 8;
    if (rest < kernel_bytes + user_bytes ||
        !complete_trace(head, bytes_of(behind + kernel_bytes, user_bytes))) {
      result.malformed = true;
      return 0;
    }
    const std::vector<uint64_t>& frames = last[head.cpu].frames;
    head.user_frames = static_cast<uint32_t>(frames.size());
    if (round->bytes.size() + sizeof head + kernel_bytes + frames.size() * 8 > room) {
      result.dropped = true;
      return 0;
    }
    const std::vector<uint64_t> outwards(frames.rbegin(), frames.rend());
    append(*round, perf::kWalkedSample, blocked, head.time_ns,
           {bytes_of(&head, sizeof head), bytes_of(behind, kernel_bytes),
            bytes_of(outwards.data(), outwards.size() * 8)});
    return 0;
  }
  if (round->bytes.size() + size + 64 > room) {
    result.dropped = true;
    return 0;
  }
  perf::SampleHead sample = {};
  sample.ip = head.registers[CLEW_RIP];
  sample.time_ns = head.time_ns;
  sample.period = period_ns;
  sample.pid = head.pid;
  sample.tid = head.tid;
  sample.chain_count = std::min<uint32_t>(head.kernel_frames, CLEW_BPF_KERNEL_FRAMES);
  if (rest < sample.chain_count * sizeof(uint64_t)) {
    result.malformed = true;
    return 0;
  }
  const auto chain = bytes_of(behind, sample.chain_count * sizeof(uint64_t));
  std::span<const std::byte> stack;
  if (head.state == CLEW_BPF_SHIPPED) {
    constexpr size_t kStackAt = offsetof(clew_bpf_shipped, stack) - sizeof head;
    if (rest < kStackAt || rest - kStackAt < head.stack_bytes) {
      result.malformed = true;
      return 0;
    }
    sample.abi = PERF_SAMPLE_REGS_ABI_64;
    sample.registers = perf::from_registers(head.registers);
    stack = bytes_of(behind + kStackAt, head.stack_bytes);
    sample.stack_asked = head.stack_asked;
    sample.stack_bytes = head.stack_bytes;
    if (head.missing_pc != 0) {
      const perf::MissingTable missing = {
          .pid = head.pid, .reserved = 0, .pc = head.missing_pc, .file = head.missing};
      append(*round, perf::kMissingTable, 0, head.time_ns, {bytes_of(&missing, sizeof missing)});
    }
  }
  const uint16_t misc = head.in_kernel != 0 ? PERF_RECORD_MISC_KERNEL : PERF_RECORD_MISC_USER;
  append(*round, PERF_RECORD_SAMPLE, misc | blocked, head.time_ns,
         {bytes_of(&sample, sizeof sample), chain, stack});
  return 0;
}

Programs::Programs(std::unique_ptr<State> state) : state_(std::move(state)) {}
Programs::~Programs() = default;

std::string Programs::forbidden() {
  constexpr ino_t kInitialPidNamespace = 0xeffffffc;  // include/linux/proc_ns.h, PROC_PID_INIT_INO
  struct stat own = {};
  if (stat("/proc/self/ns/pid", &own) == 0 && own.st_ino != kInitialPidNamespace)
    return "the bpf collector does not work inside a PID namespace (a container); perf does";
  __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3, .pid = 0};
  __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3] = {};
  if (syscall(SYS_capget, &header, data) != 0) return why_not(errno);
  const auto has = [&data](unsigned capability) {
    return (data[capability / 32].effective >> capability % 32 & 1) != 0;
  };
  const bool may = has(CAP_SYS_ADMIN) || (has(CAP_BPF) && has(CAP_PERFMON));
  return may ? std::string() : "the bpf collector needs root, or CAP_BPF and CAP_PERFMON";
}

Result<std::unique_ptr<Programs>> Programs::load(const Options& options) {
  if (std::string why = forbidden(); !why.empty()) return Error{std::move(why)};
  libbpf_set_print(say_nothing);
  auto state = std::make_unique<State>();
  state->skeleton = clew_sample__open();
  if (state->skeleton == nullptr) return Error{why_not(errno)};
  state->skeleton->rodata->all_processes = options.all_processes;
  state->skeleton->rodata->least_blocked_ns = options.least_blocked_ns.value_or(0);
  bpf_program__set_autoload(state->skeleton->progs.clew_switch, options.least_blocked_ns.has_value());
  bpf_map__set_max_entries(state->skeleton->maps.last_traces,
                           static_cast<uint32_t>(std::max(libbpf_num_possible_cpus(), 1)));
  if (!find_cpu_variables(*state->skeleton))
    bpf_program__set_autoload(state->skeleton->progs.clew_missed, false);
  if (const int error = clew_sample__load(state->skeleton); error != 0) return Error{why_not(-error)};
  state->ring = ring_buffer__new(
      bpf_map__fd(state->skeleton->maps.ring),
      [](void* context, void* data, size_t size) { return static_cast<State*>(context)->take(data, size); },
      state.get(), nullptr);
  if (state->ring == nullptr) return Error{why_not(errno)};
  void* tables = mmap(nullptr, kTablesBytes, PROT_READ | PROT_WRITE, MAP_SHARED,
                      bpf_map__fd(state->skeleton->maps.table_pages), 0);
  if (tables == MAP_FAILED) return Error{why_not(errno)};
  state->tables = static_cast<std::byte*>(tables);
  return std::unique_ptr<Programs>(new Programs(std::move(state)));
}

Result<bool> Programs::start(uint64_t period_ns) {
  state_->period_ns = period_ns;
  bpf_prog_info info = {};
  uint32_t info_size = sizeof info;
  if (bpf_obj_get_info_by_fd(bpf_program__fd(state_->skeleton->progs.clew_sample), &info, &info_size) != 0)
    return Error{why_not(errno)};
  state_->skeleton->bss->sample_program = info.id;
  const auto& programs = state_->skeleton->progs;
  for (const bpf_program* program : {programs.clew_fork, programs.clew_exec, programs.clew_exit,
                                     programs.clew_missed, programs.clew_switch}) {
    if (!bpf_program__autoload(program)) continue;
    bpf_link* link = bpf_program__attach(program);
    if (link == nullptr) return Error{why_not(errno)};
    state_->links.push_back(link);
  }
  for (const int cpu : perf::online_cpus()) {
    perf_event_attr attr = {};
    attr.size = sizeof attr;
    attr.type = PERF_TYPE_SOFTWARE;
    attr.config = PERF_COUNT_SW_CPU_CLOCK;
    attr.sample_period = period_ns;
    attr.exclude_idle = 1;
    const int fd = perf::open_event(attr, -1, cpu);
    if (fd == -ENODEV) continue;  // went offline
    if (fd < 0) return Error{perf::explain_open_error(-fd, 0, true)};
    bpf_link* link = bpf_program__attach_perf_event(state_->skeleton->progs.clew_sample, fd);
    if (link == nullptr) {
      close(fd);
      return Error{why_not(errno)};
    }
    state_->links.push_back(link);  // which owns the event
  }
  return true;
}

void Programs::stop() {
  for (bpf_link* link : state_->links) bpf_link__destroy(link);
  state_->links.clear();
  state_->ended = bpf_program__autoload(state_->skeleton->progs.clew_switch);
}

void Programs::add_target(pid_t pid, bool at_exec) {
  const auto key = static_cast<uint32_t>(pid);
  const uint8_t value = at_exec ? CLEW_BPF_AT_EXEC : CLEW_BPF_SAMPLED;
  bpf_map_update_elem(bpf_map__fd(state_->skeleton->maps.targets), &key, &value, BPF_ANY);
}

size_t Programs::targets() const {
  const int map = bpf_map__fd(state_->skeleton->maps.targets);
  size_t count = 0;
  uint32_t key = 0;
  const uint32_t* last = nullptr;
  while (bpf_map_get_next_key(map, last, &key) == 0) {
    ++count;
    last = &key;
  }
  return count;
}

void Programs::set_stack_bytes(uint32_t bytes) { state_->skeleton->data->stack_bytes = bytes; }

void Programs::drain(perf::Round& round, size_t room, perf::AppendResult& result) {
  state_->round = &round;
  state_->room = room;
  state_->result = {};
  ring_buffer__consume(state_->ring);
  if (state_->ended.exchange(false)) state_->take_blocked(monotonic_ns());
  state_->round = nullptr;
  result = state_->result;
}

bool Programs::load_table(const clew_bpf_file& file, const process::Module& module) {
  if (!module.table || !module.image) return false;
  auto [place, fresh] = state_->loaded.try_emplace(module.table, CLEW_BPF_MODULES);
  if (fresh) {
    const std::span<const std::byte> bytes = module.table->bytes();
    const auto pages = static_cast<uint32_t>((bytes.size() + kPageBytes - 1) / kPageBytes);
    if (state_->next_module >= CLEW_BPF_MODULES || pages > CLEW_BPF_TABLE_PAGES - state_->next_page) {
      ++without_room_;
      return false;
    }
    clew_bpf_module entry = {};
    entry.header = *module.table->header();
    entry.first_page = state_->next_page;
    entry.index = state_->next_module;
    entry.serial = entry.index + 1;  // 0 is what an empty cache holds
    for (const elf::Segment& segment : module.image->segments()) {
      if (segment.type != PT_LOAD || (segment.flags & PF_X) == 0 || entry.segments == CLEW_BPF_SEGMENTS)
        continue;
      entry.segment[entry.segments++] = {.offset = segment.offset,
                                         .end = segment.offset + segment.file_size,
                                         .to_vaddr = segment.vaddr - segment.offset};
    }
    std::memcpy(state_->tables + entry.first_page * kPageBytes, bytes.data(), bytes.size());
    if (bpf_map_update_elem(bpf_map__fd(state_->skeleton->maps.modules), &entry.index, &entry, BPF_ANY) != 0)
      return false;
    place->second = entry.index;
    state_->next_page += pages;
    ++state_->next_module;
  }
  if (place->second == CLEW_BPF_MODULES) return false;
  if (!state_->files.insert({file.inode, file.device, file.generation, place->second}).second) return true;
  return bpf_map_update_elem(bpf_map__fd(state_->skeleton->maps.module_of_file), &file, &place->second,
                             BPF_ANY) == 0;
}

bool Programs::half_empty() const {
  return state_->next_page < CLEW_BPF_TABLE_PAGES / 2 && state_->next_module < CLEW_BPF_MODULES / 2;
}

bool Programs::sees_inside_programs() const {
  return bpf_program__autoload(state_->skeleton->progs.clew_missed);
}

clew_bpf_counts Programs::counts() const {
  clew_bpf_counts sum = {};
  const uint32_t zero = 0;
  std::vector<clew_bpf_counts> values(static_cast<size_t>(std::max(libbpf_num_possible_cpus(), 1)));
  if (bpf_map_lookup_elem(bpf_map__fd(state_->skeleton->maps.counts), &zero, values.data()) != 0) return sum;
  for (const clew_bpf_counts& one : values) {
    sum.walked += one.walked;
    sum.shipped += one.shipped;
    sum.lost += one.lost;
    sum.run_ns += one.run_ns;
    sum.missed += one.missed;
  }
  return sum;
}

}  // namespace clew::collect::bpf
