#include "collect/perf/ring.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>

namespace clew::collect::perf {

Ring Ring::map(int fd, size_t data_bytes, int& error) {
  const auto page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Ring ring;
  void* memory = mmap(nullptr, page + data_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED) {
    error = -errno;
    return ring;
  }
  error = 0;
  ring.page_ = static_cast<perf_event_mmap_page*>(memory);
  ring.mapped_bytes_ = page + data_bytes;
  ring.data_ = {static_cast<const std::byte*>(memory) + page, data_bytes};
  return ring;
}

Ring::Ring(Ring&& other) noexcept
    : page_(std::exchange(other.page_, nullptr)),
      mapped_bytes_(std::exchange(other.mapped_bytes_, 0)),
      data_(std::exchange(other.data_, {})) {}

Ring& Ring::operator=(Ring&& other) noexcept {
  std::swap(page_, other.page_);
  std::swap(mapped_bytes_, other.mapped_bytes_);
  std::swap(data_, other.data_);
  return *this;
}

Ring::~Ring() {
  if (page_ != nullptr) munmap(page_, mapped_bytes_);
}

}  // namespace clew::collect::perf
