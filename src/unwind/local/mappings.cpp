#include "unwind/local/mappings.hpp"

#include <sys/ioctl.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <ctime>

namespace clew::unwind::local {
namespace {

#ifdef CLEW_WITHOUT_MAP_QUERY  // as before Linux 6.11, for tests
std::atomic<bool> cannot_query{true};
#else
std::atomic<bool> cannot_query{false};
#endif

/// struct procmap_query of linux/fs.h.
struct MapQuery {
  uint64_t size, flags, address;                        // in
  uint64_t start, end, permissions, page_size, offset;  // out
  uint64_t inode;
  uint32_t device[2];
  uint32_t name_size, build_id_size;
  uint64_t name_address, build_id_address;
};
static_assert(sizeof(MapQuery) == 104);
constexpr unsigned long kQuery = _IOWR('f', 17, MapQuery);
constexpr uint64_t kExecutable = 4;

enum class Answer { kFound, kNone, kNotKnown };

Answer query(uintptr_t address, Mapping& mapping) {
  if (cannot_query.load(std::memory_order_relaxed)) return Answer::kNotKnown;
  const long fd = open_maps();
  if (fd < 0) return Answer::kNone;
  MapQuery asked = {};
  asked.size = sizeof asked;
  asked.address = address;
  const long result =
      system_call(SYS_ioctl, fd, static_cast<long>(kQuery), reinterpret_cast<long>(&asked), 0);
  system_call(SYS_close, fd, 0, 0, 0);
  if (result == -ENOTTY) {
    cannot_query.store(true, std::memory_order_relaxed);
    return Answer::kNotKnown;
  }
  if (result != 0) return Answer::kNone;
  mapping = {asked.start, asked.end, (asked.permissions & kExecutable) != 0};
  return Answer::kFound;
}

uint64_t now_ns() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return static_cast<uint64_t>(now.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(now.tv_nsec);
}

/// The executable mappings as they were read last. Readers look whether the version was the same before and
/// after; it is odd while one thread writes, and stays so in a child that was forked meanwhile, which then
/// reads maps each time.
class Snapshot {
 public:
  bool find(uintptr_t address, Mapping& mapping) const {
    const uint32_t version = version_.load(std::memory_order_acquire);
    if (version % 2 != 0 || now_ns() >= until_ns_.load(std::memory_order_relaxed)) return false;
    bool found = false;
    const size_t count = count_.load(std::memory_order_relaxed);
    for (size_t i = 0; i < count && !found; ++i) {
      mapping = {ranges_[i].start.load(std::memory_order_relaxed),
                 ranges_[i].end.load(std::memory_order_relaxed), true};
      found = address - mapping.start < mapping.end - mapping.start;
    }
    std::atomic_thread_fence(std::memory_order_acquire);
    return found && version_.load(std::memory_order_relaxed) == version;
  }

  /// Whether the caller may add what it reads, and then has to end.
  bool begin() {
    uint32_t version = version_.load(std::memory_order_relaxed);
    if (version % 2 != 0 ||
        !version_.compare_exchange_strong(version, version + 1, std::memory_order_acquire))
      return false;
    // What is written next is not seen before the version.
    std::atomic_thread_fence(std::memory_order_release);
    count_.store(0, std::memory_order_relaxed);
    return true;
  }
  void add(const Mapping& mapping) {
    const size_t at = count_.load(std::memory_order_relaxed);
    if (!mapping.executable || at == ranges_.size()) return;
    ranges_[at].start.store(mapping.start, std::memory_order_relaxed);
    ranges_[at].end.store(mapping.end, std::memory_order_relaxed);
    count_.store(at + 1, std::memory_order_relaxed);
  }
  void end(uint64_t until_ns) {
    until_ns_.store(until_ns, std::memory_order_relaxed);
    version_.store(version_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }

 private:
  struct Range {
    std::atomic<uintptr_t> start, end;
  };
  std::atomic<uint32_t> version_{0};
  std::atomic<uint64_t> until_ns_{0};
  std::atomic<size_t> count_{0};
  std::array<Range, 512> ranges_{};
};
constinit Snapshot snapshot;

/// Reading takes at most one fiftieth of the time.
constexpr uint64_t kRest = 50;

bool read(uintptr_t address, Mapping& mapping) {
  const uint64_t begin_ns = now_ns();
  const bool writes = snapshot.begin();
  bool found = false;
  std::array<char, 512> buffer;
  read_maps(buffer, [&](const char* line, const char* end, bool) {
    Mapping next;
    if (!parse_maps_line(line, end, next)) return;
    if (writes) snapshot.add(next);
    if (address - next.start >= next.end - next.start) return;
    mapping = next;
    found = true;
  });
  const uint64_t end_ns = now_ns();
  if (writes) snapshot.end(end_ns + kRest * (end_ns - begin_ns));
  return found;
}

}  // namespace

bool find_mapping(uintptr_t address, Mapping& mapping) {
  // Neither the pages where nothing may be mapped nor what is no address of user space.
  if (address < kPage || address >> 56 != 0) return false;
  const Answer answer = query(address, mapping);
  if (answer != Answer::kNotKnown) return answer == Answer::kFound;
  return snapshot.find(address, mapping) || read(address, mapping);
}

}  // namespace clew::unwind::local
