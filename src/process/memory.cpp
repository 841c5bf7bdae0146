// Memory of another process: process_vm_readv(2), else /proc/PID/mem where the call itself is not to be had.
#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "process/process.hpp"

namespace clew::process {

namespace {

constexpr size_t kPage = 4096;

size_t read_proc_mem(pid_t pid, uint64_t address, std::span<std::byte> out) {
  const UniqueFd fd(open(("/proc/" + std::to_string(pid) + "/mem").c_str(), O_RDONLY | O_CLOEXEC));
  size_t done = 0;
  while (fd && done < out.size()) {
    const ssize_t got =
        pread(fd.get(), out.data() + done, out.size() - done, static_cast<off_t>(address + done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) break;
    done += static_cast<size_t>(got);
  }
  return done;
}

/// One call whose pieces end at page boundaries, because a piece is read whole or not at all.
ssize_t read_pages(pid_t pid, uint64_t address, std::span<std::byte> out) {
  std::array<iovec, 64> pieces;
  size_t count = 0, planned = 0;
  while (planned < out.size() && count < pieces.size()) {
    const uint64_t at = address + planned;
    const size_t length = std::min<size_t>(out.size() - planned, kPage - at % kPage);
    pieces[count++] = {reinterpret_cast<void*>(at), length};
    planned += length;
  }
  const iovec local{out.data(), planned};
  return process_vm_readv(pid, &local, 1, pieces.data(), count, 0);
}

}  // namespace

size_t read_memory(pid_t pid, uint64_t address, std::span<std::byte> out) {
  if (out.empty() || out.size() > UINT64_MAX - address) return 0;
  const iovec local{out.data(), out.size()};
  const iovec remote{reinterpret_cast<void*>(address), out.size()};
  const ssize_t got = process_vm_readv(pid, &local, 1, &remote, 1, 0);
  if (got == static_cast<ssize_t>(out.size())) return out.size();
  if (got < 0 && errno != EFAULT) return errno == ESRCH ? 0 : read_proc_mem(pid, address, out);

  size_t done = 0;
  while (done < out.size()) {
    const ssize_t more = read_pages(pid, address + done, out.subspan(done));
    if (more <= 0) break;
    done += static_cast<size_t>(more);
  }
  return done;
}

}  // namespace clew::process
