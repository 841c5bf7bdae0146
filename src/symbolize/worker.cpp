#include "symbolize/worker.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <ctime>
#include <fstream>
#include <optional>
#include <utility>

namespace clew::symbolize {
namespace {

constexpr size_t kMaxObjects = 8;
constexpr uint64_t kMaxCacheBytes = uint64_t{1} << 30;
/// Of address space, beyond what the process has at the fork. A debug file larger than this is read for
/// symbols only.
constexpr uint64_t kMaxWorkerBytes = uint64_t{4} << 30;
/// By the clock, for a child that waits for a disk that does not answer; work is limited by CPU time.
constexpr unsigned kMaxStallSeconds = 120;
constexpr size_t kChunkAddresses = 256;
constexpr size_t kChunkBytes = size_t{64} << 10;
constexpr uint32_t kMaxLines = 512;

constexpr uint32_t kHasDebugFile = 1;
constexpr uint32_t kSymbolsOnly = 2;

struct Request {
  uint32_t flags = 0;
  uint32_t build_id_bytes = 0;
  uint64_t count = 0;
};
struct LineHeader {
  uint32_t line = 0;
  uint32_t function_bytes = 0;
  uint32_t file_bytes = 0;
};
constexpr uint32_t kMaxBuildIdBytes = 1024;

/// Room for two descriptors in a control message.
union Control {
  cmsghdr header;
  char bytes[CMSG_SPACE(2 * sizeof(int))];
};

bool send_all(int socket, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t sent = send(socket, at, size, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, size_t size) {
  char* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t got = recv(socket, at, size, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    size -= static_cast<size_t>(got);
  }
  return true;
}

bool send_request(int socket, const Request& request, int fd, int debug_fd) {
  Control control{};
  iovec data{const_cast<Request*>(&request), sizeof request};  // sendmsg only reads
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  const int fds[2] = {fd, debug_fd};
  const size_t fd_bytes = (debug_fd >= 0 ? 2 : 1) * sizeof(int);
  message.msg_control = control.bytes;
  message.msg_controllen = CMSG_SPACE(fd_bytes);
  cmsghdr* const header = CMSG_FIRSTHDR(&message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(fd_bytes);
  std::memcpy(CMSG_DATA(header), fds, fd_bytes);
  ssize_t sent = 0;
  do sent = sendmsg(socket, &message, MSG_NOSIGNAL);
  while (sent < 0 && errno == EINTR);
  return sent == static_cast<ssize_t>(sizeof request);
}

bool receive_request(int socket, Request& request, int (&fds)[2]) {
  Control control{};
  iovec data{&request, sizeof request};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control.bytes;
  message.msg_controllen = sizeof control.bytes;
  ssize_t got = 0;
  do got = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_WAITALL);
  while (got < 0 && errno == EINTR);
  if (got != static_cast<ssize_t>(sizeof request)) return false;
  const cmsghdr* const header = CMSG_FIRSTHDR(&message);
  if (header == nullptr || header->cmsg_type != SCM_RIGHTS) return false;
  std::memcpy(fds, CMSG_DATA(header), std::min<size_t>(header->cmsg_len - CMSG_LEN(0), sizeof fds));
  return fds[0] >= 0;
}

void append(std::string& out, const Lines& lines) {
  const auto count = static_cast<uint32_t>(lines.size());
  out.append(reinterpret_cast<const char*>(&count), sizeof count);
  for (const Line& line : lines) {
    const LineHeader header{line.line, static_cast<uint32_t>(line.function.size()),
                            static_cast<uint32_t>(line.file.size())};
    out.append(reinterpret_cast<const char*>(&header), sizeof header);
    out += line.function;
    out += line.file;
  }
}

/// Kills this process where the next chunk takes longer than that; 0 lifts it.
void allow(unsigned cpu_seconds) {
  itimerval limit{};
  limit.it_value.tv_sec = cpu_seconds;
  setitimer(ITIMER_PROF, &limit, nullptr);
  alarm(cpu_seconds == 0 ? 0 : kMaxStallSeconds);
}

/// Answers one request; false where the parent is gone or does not make sense.
bool serve(int socket, ObjectCache& objects, const Limits& limits) {
  Request request;
  int fds[2] = {-1, -1};
  if (!receive_request(socket, request, fds) || request.build_id_bytes > kMaxBuildIdBytes) return false;
  std::string build_id(request.build_id_bytes, '\0');
  std::vector<uint64_t> addresses(request.count);
  if (!receive_all(socket, build_id.data(), build_id.size())) return false;
  if (!receive_all(socket, addresses.data(), addresses.size() * sizeof(uint64_t))) return false;

  const bool symbols_only = (request.flags & kSymbolsOnly) != 0;
  const unsigned cpu_seconds = symbols_only ? limits.symbols_cpu_seconds : limits.dwarf_cpu_seconds;
  allow(cpu_seconds);
  const Depth depth = symbols_only ? Depth::kSymbols : Depth::kDwarf;
  Object* const object = objects.get(fds[0], fds[1], build_id, depth);
  for (const int fd : fds) {
    if (fd >= 0) close(fd);
  }
  std::string answers;
  for (size_t i = 0; i < addresses.size(); ++i) {
    append(answers, object->lines(addresses[i]));
    if (i + 1 < addresses.size() && (i + 1) % kChunkAddresses != 0 && answers.size() < kChunkBytes) continue;
    if (!send_all(socket, answers.data(), answers.size())) return false;
    answers.clear();
    allow(cpu_seconds);
  }
  allow(0);
  return true;
}

void limit_memory() {
  const rlimit no_core{0, 0};
  setrlimit(RLIMIT_CORE, &no_core);
#ifndef __SANITIZE_ADDRESS__  // whose shadow takes terabytes of address space
  uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  rlimit limit{};
  getrlimit(RLIMIT_AS, &limit);
  const uint64_t bytes = pages * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) + kMaxWorkerBytes;
  if (limit.rlim_cur == RLIM_INFINITY || limit.rlim_cur > bytes) {
    limit.rlim_cur = bytes;
    setrlimit(RLIMIT_AS, &limit);
  }
#endif
  std::ofstream("/proc/self/oom_score_adj")
      << "1000";  // where memory runs out, this process is the one to go
}

/// The child's life. Nothing of the parent's is kept: no descriptor (a perf event or a pipe held open here
/// would outlive its owner), no signal handler, no signal mask.
[[noreturn]] void run_child(int socket, const Limits& limits) {
  for (int signal = 1; signal < NSIG; ++signal) std::signal(signal, SIG_DFL);
  for (const int ignored : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGTSTP})
    std::signal(ignored, SIG_IGN);
  sigset_t none;
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, nullptr);
  const int null = open("/dev/null", O_RDWR);
  for (const int standard : {0, 1, 2}) {
    if (null >= 0) dup2(null, standard);
  }
  if (socket > 3) close_range(3, static_cast<unsigned>(socket) - 1, 0);
  close_range(static_cast<unsigned>(socket) + 1, ~0U, 0);
  limit_memory();
  ObjectCache objects;
  while (serve(socket, objects, limits)) {
  }
  _exit(0);
}

uint64_t to_ns(const timeval& time) {
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_usec) * 1000;
}

bool receive_text(int socket, uint32_t size, std::string& out) {
  if (size > kMaxNameBytes) return false;
  out.resize(size);
  return receive_all(socket, out.data(), size);
}

bool receive_lines(int socket, Lines& lines) {
  uint32_t count = 0;
  if (!receive_all(socket, &count, sizeof count) || count > kMaxLines) return false;
  lines.resize(count);
  for (Line& line : lines) {
    LineHeader header;
    if (!receive_all(socket, &header, sizeof header)) return false;
    line.line = header.line;
    if (!receive_text(socket, header.function_bytes, line.function)) return false;
    if (!receive_text(socket, header.file_bytes, line.file)) return false;
  }
  return true;
}

std::string identity(int fd) {
  struct stat status{};
  if (fd < 0 || fstat(fd, &status) != 0) return "-";
  return std::to_string(status.st_dev) + ':' + std::to_string(status.st_ino) + ':' +
         std::to_string(status.st_size) + ':' + std::to_string(status.st_mtim.tv_sec) + '.' +
         std::to_string(status.st_mtim.tv_nsec);
}

}  // namespace

std::string file_identity(int fd, int debug_fd) { return identity(fd) + ' ' + identity(debug_fd); }

Object* ObjectCache::get(int fd, int debug_fd, const std::string& build_id, Depth depth) {
  const std::string key =
      file_identity(fd, debug_fd) + ' ' + build_id + (depth == Depth::kSymbols ? " symbols" : "");
  const auto found =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
  if (found != entries_.end()) {
    std::rotate(found, found + 1, entries_.end());
    return entries_.back().object.get();
  }
  uint64_t held = 0;
  for (const Entry& entry : entries_) held += entry.object->memory_bytes();
  while (!entries_.empty() && (entries_.size() >= kMaxObjects || held > kMaxCacheBytes)) {
    held -= std::min(held, entries_.front().object->memory_bytes());
    entries_.erase(entries_.begin());
  }
  entries_.push_back({key, std::make_unique<Object>(fd, debug_fd, build_id, depth)});
  return entries_.back().object.get();
}

Worker::~Worker() { stop(); }

bool Worker::start() {
  if (socket_ >= 0) return true;
  int sockets[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, sockets) != 0) return false;
  const pid_t pid = fork();
  if (pid == 0) {
    close(sockets[0]);
    run_child(sockets[1], limits_);
  }
  close(sockets[1]);
  if (pid < 0) {
    close(sockets[0]);
    return false;
  }
  // The child ends its own stalls; this is for one that cannot.
  const timeval patience{time_t{2} * kMaxStallSeconds, 0};
  setsockopt(sockets[0], SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  setsockopt(sockets[0], SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
  socket_ = sockets[0];
  pid_ = pid;
  return true;
}

void Worker::stop() {
  if (socket_ < 0) return;
  close(std::exchange(socket_, -1));
  kill(pid_, SIGKILL);
  rusage usage{};
  pid_t gone = 0;
  do gone = wait4(pid_, nullptr, 0, &usage);
  while (gone < 0 && errno == EINTR);
  if (gone == pid_) ended_cpu_ns_ += to_ns(usage.ru_utime) + to_ns(usage.ru_stime);
  pid_ = -1;
}

std::vector<Lines> Worker::ask(int fd, int debug_fd, const std::string& build_id, Depth depth,
                               std::span<const uint64_t> addresses) {
  std::vector<Lines> answers;
  if (socket_ < 0) return answers;
  Request request;
  request.flags = (debug_fd >= 0 ? kHasDebugFile : 0) | (depth == Depth::kSymbols ? kSymbolsOnly : 0);
  request.build_id_bytes = static_cast<uint32_t>(std::min<size_t>(build_id.size(), kMaxBuildIdBytes));
  request.count = addresses.size();
  bool good = send_request(socket_, request, fd, debug_fd) &&
              send_all(socket_, build_id.data(), request.build_id_bytes) &&
              send_all(socket_, addresses.data(), addresses.size_bytes());
  answers.reserve(addresses.size());
  while (good && answers.size() < addresses.size()) {
    Lines lines;
    good = receive_lines(socket_, lines);
    if (good) answers.push_back(std::move(lines));
  }
  if (!good) stop();
  return answers;
}

uint64_t Worker::cpu_ns() const {
  clockid_t clock{};
  timespec time{};
  if (pid_ < 0 || clock_getcpuclockid(pid_, &clock) != 0 || clock_gettime(clock, &time) != 0)
    return ended_cpu_ns_;
  return ended_cpu_ns_ + static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<uint64_t>(time.tv_nsec);
}

}  // namespace clew::symbolize
