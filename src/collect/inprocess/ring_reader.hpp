// One process's ring (agent/ring.hpp), read from outside. Nothing in it is trusted: the process may write
// anything, and may cut the file short, so it is read by pread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "clew/frame.h"
#include "clew/result.hpp"
#include "process/process.hpp"

namespace clew::collect::inprocess {

struct RingSample {
  uint64_t time_ns;
  pid_t tid;
  uint32_t periods;
  clew_end end;
  std::string_view comm;
  std::span<const clew_frame> frames;
};

class RingReader {
 public:
  /// Nothing in the error case but that it is not a ring (yet): the agent writes its first page last.
  static Result<RingReader> open(int directory, const std::string& name);

  pid_t pid() const { return pid_; }
  uint64_t opened_ns() const { return opened_ns_; }

  /// Delivers what is there, in order, and makes room. False where the ring cannot be read any further.
  bool drain(const std::function<void(const RingSample&)>& sample,
             const std::function<void(std::string_view line)>& mapping);
  /// Tells the process to sample no longer.
  void stop() const;

  struct Counts {
    uint64_t dropped = 0, handler_ns = 0, threads_without_timer = 0;
  };
  Counts counts() const;
  uint64_t malformed() const { return malformed_; }

 private:
  RingReader(process::UniqueFd fd, pid_t pid, uint64_t bytes, uint64_t opened_ns)
      : fd_(std::move(fd)), pid_(pid), bytes_(bytes), opened_ns_(opened_ns) {}

  process::UniqueFd fd_;
  pid_t pid_;
  uint64_t bytes_;
  uint64_t opened_ns_;
  uint64_t tail_ = 0;
  uint64_t malformed_ = 0;
  std::vector<std::byte> buffer_;
  std::vector<clew_frame> frames_;
};

}  // namespace clew::collect::inprocess
