#include "collect/inprocess/session.hpp"

#include <dirent.h>
#include <elf.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <optional>
#include <string_view>

#include "agent/ring.hpp"
#include "process/clock.hpp"

namespace clew::collect::inprocess {

namespace {

constexpr auto kDrainEvery = std::chrono::milliseconds(20);
constexpr uint64_t kRefreshEveryNs = 200'000'000;
constexpr size_t kMostProcesses = 65536;  // that live, or whose rings are not read to the end yet
constexpr size_t kMostDirectory = 240;    // what an agent has room for
constexpr std::string_view kPrefix = "clew-";

bool is_gone(pid_t pid) { return kill(pid, 0) != 0 && errno == ESRCH; }

/// The names in a directory, "." and ".." left out.
std::vector<std::string> names_in(int directory) {
  std::vector<std::string> names;
  const int fd = openat(directory, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* opened = fd >= 0 ? fdopendir(fd) : nullptr;
  if (opened == nullptr) {
    if (fd >= 0) close(fd);
    return names;
  }
  while (const dirent* entry = readdir(opened)) {
    const std::string_view name = entry->d_name;
    if (name != "." && name != ".." && names.size() < kMostProcesses) names.emplace_back(name);
  }
  closedir(opened);
  return names;
}

void remove_directory(const std::string& path) {
  {
    const process::UniqueFd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!fd) return;
    for (const std::string& name : names_in(fd.get())) unlinkat(fd.get(), name.c_str(), 0);
  }
  rmdir(path.c_str());
}

/// The recorder's number in "clew-NUMBER-XXXXXX".
std::optional<pid_t> owner_of(std::string_view name) {
  if (!name.starts_with(kPrefix)) return std::nullopt;
  name.remove_prefix(kPrefix.size());
  pid_t pid = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), pid);
  if (error != std::errc() || pid <= 0 || end == name.data() + name.size() || *end != '-')
    return std::nullopt;
  return pid;
}

/// What a killed recorder of this user left behind.
void remove_leftovers(const std::string& parent) {
  const process::UniqueFd fd(open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd) return;
  for (const std::string& name : names_in(fd.get())) {
    const auto owner = owner_of(name);
    struct stat status = {};
    if (!owner || !is_gone(*owner) || fstatat(fd.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) != 0 ||
        !S_ISDIR(status.st_mode) || status.st_uid != geteuid()) {
      continue;
    }
    // A recorder in another PID namespace holds its lock.
    const process::UniqueFd directory(
        openat(fd.get(), name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
    if (!directory || flock(directory.get(), LOCK_EX | LOCK_NB) != 0) continue;
    remove_directory(std::string(parent).append("/").append(name));
  }
}

/// In memory rather than on a disk, where there is the choice. Agents get the path between colons.
Result<std::string> make_directory() {
  for (const char* parent : std::array<const char*, 4>{"/dev/shm", std::getenv("XDG_RUNTIME_DIR"),
                                                       std::getenv("TMPDIR"), "/tmp"}) {
    if (parent == nullptr || parent[0] != '/' || std::strchr(parent, ':') != nullptr) continue;
    std::string path = parent;
    path.append("/").append(kPrefix).append(std::to_string(getpid())).append("-XXXXXX");
    if (path.size() >= kMostDirectory) continue;
    remove_leftovers(parent);
    if (mkdtemp(path.data()) != nullptr) return path;
  }
  return Error{"cannot make a directory for the samples in /dev/shm, $TMPDIR or /tmp: " +
               std::string(std::strerror(errno))};
}

}  // namespace

Result<std::unique_ptr<Session>> Session::start(unsigned frequency_hz, Sink sink) {
  auto agent = agent_file();
  if (!agent) return Error{agent.error()};
  auto directory = make_directory();
  if (!directory) return Error{directory.error()};
  process::UniqueFd fd(open(directory->c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd || flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    return Error{"cannot open " + *directory + ": " + std::strerror(errno)};
  process::raise_descriptor_limit();  // a ring for each process
  return std::unique_ptr<Session>(new Session(std::move(*directory), std::move(fd), std::move(*agent),
                                              1'000'000'000 / std::max(1u, frequency_hz), std::move(sink)));
}

Session::Session(std::string directory, process::UniqueFd directory_fd, AgentFile agent, uint64_t period_ns,
                 Sink sink)
    : directory_(std::move(directory)),
      directory_fd_(std::move(directory_fd)),
      agent_(std::move(agent)),
      period_ns_(period_ns),
      sink_(std::move(sink)) {
  thread_ = std::thread([this] { run(); });
  pthread_setname_np(thread_.native_handle(), "clew-drain");
}

Session::~Session() { stop(); }

std::vector<std::pair<std::string, std::string>> Session::environment() const {
  std::string preload = agent_.path;
  if (const char* others = std::getenv("LD_PRELOAD"); others != nullptr && others[0] != '\0')
    preload.append(":").append(others);
  return {{"LD_PRELOAD", preload},
          {agent::kConfigVariable,
           directory_ + ":" + std::to_string(getpid()) + ":" + std::to_string(period_ns_)}};
}

void Session::run() {
  for (bool last = false; !last;) {
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, kDrainEvery, [this] { return ending_; });
      last = ending_;
    }
    drain_all();
  }
  for (auto& [name, process] : processes_) {
    process.ring.stop();
    drain(process);
    settle(process.ring);
  }
}

void Session::look_for_rings() {
  for (std::string& name : names_in(directory_fd_.get())) {
    if (processes_.contains(name) || processes_.size() >= kMostProcesses) continue;
    auto ring = RingReader::open(directory_fd_.get(), name);
    if (ring) processes_.emplace(std::move(name), Process{.ring = std::move(*ring), .space = {}});
  }
}

void Session::drain_all() {
  look_for_rings();
  // A process that executes another program begins a new ring.
  std::unordered_map<pid_t, uint64_t> latest;
  for (const auto& [name, process] : processes_)
    latest[process.ring.pid()] = std::max(latest[process.ring.pid()], process.ring.opened_ns());
  for (auto next = processes_.begin(); next != processes_.end();) {
    Process& process = next->second;
    // Before the drain: what was written until then is all.
    const bool over = process.ring.opened_ns() < latest[process.ring.pid()] || is_gone(process.ring.pid());
    if (drain(process) && !over) {
      ++next;
      continue;
    }
    settle(process.ring);
    unlinkat(directory_fd_.get(), next->first.c_str(), 0);
    next = processes_.erase(next);
  }
}

bool Session::drain(Process& process) {
  const bool good = process.ring.drain(
      [&](const RingSample& sample) { deliver(process, sample); },
      [&](std::string_view line) {
        const auto entry = process::parse_maps_line(line);
        if (entry) process.space.map(process::mapping_from_maps(process.ring.pid(), {}, *entry, modules_));
      });
  if (!good) ++unreadable_;
  return good;
}

void Session::deliver(Process& process, const RingSample& sample) {
  bool unknown = false;
  const auto place = [&] {
    frames_.clear();
    unknown = false;
    for (const clew_frame& frame : sample.frames) {
      const bool changed = (frame.flags & agent::kChangedFlag) != 0;
      frames_.push_back({frame, changed ? nullptr : process.space.find(frame.pc)});
      frames_.back().frame.flags &= ~agent::kChangedFlag;
      unknown |= frames_.back().mapping == nullptr;
    }
  };
  place();
  const uint64_t now_ns = monotonic_ns();
  if (unknown && now_ns >= process.refreshed_at_ns + kRefreshEveryNs) {
    process.refreshed_at_ns = now_ns;
    if (auto space = process::AddressSpace::of_process(process.ring.pid(), modules_)) {
      for (const auto& [start, mapping] : space->mappings())
        if (mapping.executable) process.space.map(mapping);
      place();
    }
  }
  periods_ += sample.periods;
  samples_.fetch_add(1, std::memory_order_relaxed);
  if (sample.end == CLEW_END_ROOT) complete_.fetch_add(1, std::memory_order_relaxed);
  sink_({.pid = process.ring.pid(),
         .tid = sample.tid,
         .comm = sample.comm,
         .time_ns = sample.time_ns,
         .weight_ns = sample.periods * period_ns_,
         .end = sample.end,
         .frames = frames_});
}

void Session::settle(const RingReader& ring) {
  const RingReader::Counts counts = ring.counts();
  threads_without_timer_ += counts.threads_without_timer;
  dropped_.fetch_add(counts.dropped + ring.malformed(), std::memory_order_relaxed);
  handler_ns_.fetch_add(counts.handler_ns, std::memory_order_relaxed);
}

void Session::stop() {
  if (stopped_) return;
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  for (const std::string& name : names_in(directory_fd_.get())) {
    struct stat status = {};
    if (fstatat(directory_fd_.get(), name.c_str(), &status, AT_SYMLINK_NOFOLLOW) == 0 &&
        !processes_.contains(name))
      (status.st_size == 0 ? without_room_ : unread_) += 1;
  }
  remove_directory(directory_);
  stopped_ = true;
}

Counters Session::counters() const {
  return {.samples = samples_.load(std::memory_order_relaxed),
          .complete = complete_.load(std::memory_order_relaxed),
          .lost = dropped_.load(std::memory_order_relaxed),
          .cpu_used_ns = std::nullopt,
          .overhead_ns = handler_ns_.load(std::memory_order_relaxed)};
}

std::vector<std::string> Session::notes() const {
  std::vector<std::string> notes;
  const auto add = [&notes](uint64_t count, const char* text) {
    if (count != 0) notes.push_back(std::to_string(count) + text);
  };
  if (const uint64_t samples = samples_.load(std::memory_order_relaxed); periods_ > samples * 3 / 2) {
    notes.push_back("a sample stands for " + std::to_string((periods_ + samples / 2) / samples) +
                    " periods: this kernel's timers of CPU time are no finer");
  }
  add(without_room_,
      " processes were not sampled: no room for their samples where the directory is, or a limit on "
      "the size of files");
  add(unread_,
      " processes' samples could not be read: too few descriptors (ulimit -n), or too many processes");
  add(unreadable_, " processes wrote samples that make no sense: what followed of them was left out");
  add(threads_without_timer_, " threads were not sampled: no timer to be had (RLIMIT_SIGPENDING)");
  return notes;
}

std::string cannot_be_entered(const std::string& path) {
  const process::UniqueFd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  struct stat status = {};
  if (!fd || fstat(fd.get(), &status) != 0 || !S_ISREG(status.st_mode)) return "";
  const bool gains = ((status.st_mode & S_ISUID) != 0 && status.st_uid != geteuid()) ||
                     ((status.st_mode & S_ISGID) != 0 && status.st_gid != getegid());
  if (gains) return "its exec gains rights (setuid or setgid), and then nothing is preloaded";
  Elf64_Ehdr header = {};
  if (pread(fd.get(), &header, sizeof header, 0) != ssize_t{sizeof header} ||
      std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0) {
    return "";
  }
  if (header.e_ident[EI_CLASS] != ELFCLASS64 || header.e_machine != EM_X86_64)
    return "it is a program of another architecture";
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment = {};
    const uint64_t at = header.e_phoff + uint64_t{i} * sizeof segment;
    if (pread(fd.get(), &segment, sizeof segment, static_cast<off_t>(at)) != ssize_t{sizeof segment})
      return "";
    if (segment.p_type != PT_INTERP) continue;
    char linker[256] = {};
    const auto size = static_cast<size_t>(std::min<uint64_t>(segment.p_filesz, sizeof linker - 1));
    if (pread(fd.get(), linker, size, static_cast<off_t>(segment.p_offset)) < 0) return "";
    return std::strstr(linker, "musl") != nullptr ? "it uses musl, and the agent glibc" : "";
  }
  return "it is linked statically";
}

}  // namespace clew::collect::inprocess
