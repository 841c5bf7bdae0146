// The child process that reads files for a Symbolizer.
//
// LLVM's readers were not written for hostile input: a crafted file can make them allocate or compute without
// bound, or crash. In a child with limits this costs the file's own names only. The child holds no descriptor
// but its socket, ignores the terminal's signals, and ends when the socket closes.
//
// One request is one SOCK_STREAM message, integers little endian as the machine has them:
//   parent: u32 flags (1: a debug file follows, 2: symbols only), u32 length of build-id, u64 count,
//   build-id,
//           count × u64 address; with the first byte SCM_RIGHTS: the file, then the debug file
//   child:  count answers, each u32 lines, and for each: u32 line, u32 bytes, u32 bytes, function, file
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "symbolize/object.hpp"
#include "symbolize/symbolize.hpp"

namespace clew::symbolize {

/// What tells two open files apart: device, inode, size, time of change.
std::string file_identity(int fd, int debug_fd);

/// Objects by the identity of their files; the least recently used go when there are too many or too much is
/// held.
class ObjectCache {
 public:
  Object* get(int fd, int debug_fd, const std::string& build_id, Depth depth);

 private:
  struct Entry {
    std::string key;
    std::unique_ptr<Object> object;
  };
  std::vector<Entry> entries_;  // most recently used last
};

class Worker {
 public:
  explicit Worker(const Limits& limits) : limits_(limits) {}
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;
  ~Worker();
  /// Forks the child where none lives. False where it cannot.
  bool start();
  bool alive() const { return socket_ >= 0; }
  /// Answers for the addresses in order, as many as the child lived to give (all, where nothing went wrong).
  /// A child that failed is gone afterwards.
  std::vector<Lines> ask(int fd, int debug_fd, const std::string& build_id, Depth depth,
                         std::span<const uint64_t> addresses);
  uint64_t cpu_ns() const;

 private:
  void stop();
  Limits limits_;
  int socket_ = -1;
  pid_t pid_ = -1;
  uint64_t ended_cpu_ns_ = 0;  // of children that are gone
};

}  // namespace clew::symbolize
