#include "agent/process_ring.hpp"

#include <fcntl.h>
#include <linux/falloc.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <new>

#include "agent/agent.hpp"
#include "process/clock.hpp"
#include "unwind/local/mappings.hpp"
#include "unwind/local/memory.hpp"
#include "unwind/local/modules.hpp"

namespace clew::agent {
namespace {

using unwind::local::system_call;

constexpr size_t kMostMappings = 4096;
constexpr size_t kMostChecks = 16;          // libraries of one sample asked whether they are still the same
constexpr uint64_t kReadMappingsRest = 50;  // mappings are read again no sooner than after so many times as
                                            // the last time took
constexpr uint64_t kChangedRest = 4;        // where names would be wrong

/// An executable mapping that the recorder was told of.
struct Told {
  uintptr_t start, end;
  uint64_t contents;  // of a library that may be unloaded, by Module::contents; else 0
};
/// In address order.
struct ToldList {
  size_t count;
  Told mappings[kMostMappings];

  const Told* find(uintptr_t address) const {
    const Told* last = mappings + std::min(count, kMostMappings);
    const Told* after = std::upper_bound(mappings, last, address,
                                         [](uintptr_t at, const Told& told) { return at < told.start; });
    return after != mappings && address < after[-1].end ? after - 1 : nullptr;
  }
};

enum Phase : uint32_t { kNone, kOpening, kOpen, kNever };

/// Zero in a forked child.
struct State {
  std::atomic<uint32_t> phase;
  std::atomic<bool> reading;  // a thread reads the mappings
  std::atomic<RingHeader*> ring;
  std::atomic<uint64_t> mappings_read_ns, mappings_took_ns;  // when last, and how long it took
  std::atomic<const ToldList*> told;
  ToldList lists[2];  // the one that is not `told` is written next
};
State* state = nullptr;
size_t ring_bytes = size_t{256} << 10;

char* append_number(char* out, uint64_t value, unsigned base) {
  char digits[20];
  size_t count = 0;
  do {
    digits[count++] = "0123456789abcdef"[value % base];
    value /= base;
  } while (value != 0);
  while (count != 0) *out++ = digits[--count];
  return out;
}

/// DIRECTORY/PID-TIME: no two programs that a process runs one after the other have the same.
void name_ring(char* out, uint32_t pid) {
  const size_t length = std::strlen(config.directory);
  std::memcpy(out, config.directory, length);
  out += length;
  *out++ = '/';
  out = append_number(out, pid, 10);
  *out++ = '-';
  out = append_number(out, monotonic_ns(), 16);
  *out = '\0';
}

/// Room that is really there: a write to a full filesystem's mapping would be a SIGBUS. Nor may the file be
/// longer than the process's limit, which is a signal as well.
bool take_room(int fd, size_t bytes) {
  rlimit limit = {};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur < bytes) return false;
  return system_call(SYS_fallocate, fd, 0, 0, static_cast<long>(bytes)) == 0;
}

RingHeader* open_ring(bool& never) {
  if (recorder_is_gone()) {  // nobody would read it, nor take it away
    never = true;
    return nullptr;
  }
  char path[sizeof config.directory + 48];
  const auto pid = static_cast<uint32_t>(system_call(SYS_getpid, 0, 0, 0, 0));
  name_ring(path, pid);
  const long fd = system_call(SYS_openat, AT_FDCWD, reinterpret_cast<long>(path),
                              O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) {
    never = fd != -EMFILE && fd != -ENFILE && fd != -EINTR;
    return nullptr;
  }
  const size_t bytes = kRingPage + ring_bytes;
  void* mapped = MAP_FAILED;
  if (take_room(static_cast<int>(fd), bytes)) {
    const long at =
        system_call(SYS_mmap, 0, static_cast<long>(bytes), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at >= 0 || at < -4095) mapped = reinterpret_cast<void*>(at);
  }
  system_call(SYS_close, fd, 0, 0, 0);
  if (mapped == MAP_FAILED) {
    never = true;  // the empty file stays: it tells the recorder that samples are missing
    return nullptr;
  }
  system_call(SYS_madvise, reinterpret_cast<long>(mapped), static_cast<long>(bytes), MADV_DONTFORK, 0);
  auto* header = new (mapped) RingHeader{};
  header->pid = pid;
  header->bytes = ring_bytes;
  header->opened_ns = monotonic_ns();
  std::atomic_ref(header->magic).store(kRingMagic, std::memory_order_release);
  return header;
}

/// Room for a record of `size` bytes; null where the recorder has not made any yet.
RecordHeader* take(RingHeader& ring, size_t size) {
  auto* data = reinterpret_cast<std::byte*>(&ring) + kRingPage;
  uint64_t head = ring.head.load(std::memory_order_relaxed);
  for (;;) {
    const uint64_t tail = ring.tail.load(std::memory_order_acquire);
    const uint64_t at = head % ring_bytes;
    const uint64_t skipped = at + size > ring_bytes ? ring_bytes - at : 0;
    if (head - tail > ring_bytes || skipped + size > ring_bytes - (head - tail)) return nullptr;
    if (!ring.head.compare_exchange_weak(head, head + skipped + size, std::memory_order_relaxed)) continue;
    if (skipped != 0) {
      auto* rest = reinterpret_cast<RecordHeader*>(data + at);
      rest->kind = RecordKind::kUnused;
      rest->size.store(static_cast<uint32_t>(skipped), std::memory_order_release);
    }
    return reinterpret_cast<RecordHeader*>(data + (head + skipped) % ring_bytes);
  }
}

size_t padded(size_t size) { return (size + 7) & ~size_t{7}; }

void write_mapping(RingHeader& ring, const char* line, size_t length) {
  const size_t size = padded(sizeof(RecordHeader) + length + 1);
  RecordHeader* record = take(ring, size);
  if (record == nullptr) return;  // the recorder looks into /proc where it is not told
  record->kind = RecordKind::kMapping;
  char* text = reinterpret_cast<char*>(record + 1);
  std::memcpy(text, line, length);
  std::memset(text + length, 0, size - sizeof(RecordHeader) - length);
  record->size.store(static_cast<uint32_t>(size), std::memory_order_release);
}

uint64_t contents_of(uintptr_t address) {
  unwind::local::Module module;
  return unwind::local::find_module(address, module) && !module.permanent ? module.contents : 0;
}

void read_mappings(RingHeader& ring, ToldList& list) {
  list.count = 0;
  char buffer[2 * kMostPath];
  unwind::local::read_maps(buffer, [&](const char* line, const char* end, bool whole) {
    unwind::local::Mapping mapping;
    if (!whole || !unwind::local::parse_maps_line(line, end, mapping) || !mapping.executable) return;
    write_mapping(ring, line, static_cast<size_t>(end - line));
    if (list.count < kMostMappings)
      list.mappings[list.count++] = {mapping.start, mapping.end, contents_of(mapping.start)};
  });
}

enum class Known { kAll, kNotAll, kChanged };

/// What the recorder knows of the code of all frames; kChanged: another library lies where it was told of
/// one. Frames in such are marked.
Known what_is_told(const ToldList* list, clew_frame* frames, size_t count) {
  if (list == nullptr) return Known::kNotAll;
  Known known = Known::kAll;
  const Told* last = nullptr;
  const Told* checked = nullptr;
  bool changed = false;
  size_t checks = 0;
  for (size_t i = 0; i < count; ++i) {
    const uintptr_t pc = frames[i].pc;
    if (last == nullptr || pc - last->start >= last->end - last->start) last = list->find(pc);
    if (last == nullptr) {
      if (known == Known::kAll) known = Known::kNotAll;
      continue;
    }
    if (last->contents == 0) continue;
    if (last != checked && checks < kMostChecks) {
      checked = last;
      ++checks;
      changed = contents_of(pc) != last->contents;
    } else if (last != checked) {
      changed = true;  // not looked at: not to be named
    }
    if (!changed) continue;
    frames[i].flags |= kChangedFlag;
    known = Known::kChanged;
  }
  return known;
}

}  // namespace

bool prepare_ring() {
  const long cpus = std::max(1L, sysconf(_SC_NPROCESSORS_ONLN));
  ring_bytes =
      std::bit_ceil(std::clamp<size_t>(static_cast<size_t>(cpus) << 16, ring_bytes, size_t{16} << 20));
  void* memory = mmap(nullptr, sizeof(State), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return false;
  if (madvise(memory, sizeof(State), MADV_WIPEONFORK) != 0) {
    munmap(memory, sizeof(State));
    return false;
  }
  state = static_cast<State*>(memory);
  return true;
}

RingHeader* ring(bool& never) {
  never = false;
  uint32_t phase = state->phase.load(std::memory_order_acquire);
  if (phase == kOpen) return state->ring.load(std::memory_order_relaxed);
  if (phase == kNever) {
    never = true;
    return nullptr;
  }
  if (phase != kNone || !state->phase.compare_exchange_strong(phase, kOpening)) return nullptr;
  RingHeader* opened = open_ring(never);
  state->ring.store(opened, std::memory_order_relaxed);
  state->phase.store(opened != nullptr ? kOpen : never ? kNever : kNone, std::memory_order_release);
  return opened;
}

bool write_sample(const SampleHead& head, const clew_frame* frames, size_t count) {
  RingHeader& to = *state->ring.load(std::memory_order_relaxed);
  const size_t size = padded(sizeof(SampleRecord) + count * (sizeof(uint64_t) + 1));
  auto* record = reinterpret_cast<SampleRecord*>(take(to, size));
  if (record == nullptr) {
    to.dropped.fetch_add(1, std::memory_order_relaxed);
    return false;
  }
  record->header.kind = RecordKind::kSample;
  record->time_ns = head.time_ns;
  record->tid = head.tid;
  record->periods = head.periods;
  record->end = head.end;
  record->frames = static_cast<uint32_t>(count);
  std::memcpy(record->comm, head.comm, sizeof record->comm);
  auto* pcs = reinterpret_cast<uint64_t*>(record + 1);
  auto* how = reinterpret_cast<uint8_t*>(pcs + count);
  for (size_t i = 0; i < count; ++i) {
    pcs[i] = frames[i].pc;
    how[i] = static_cast<uint8_t>((frames[i].how & 15) | frames[i].flags << 4);
  }
  record->header.size.store(static_cast<uint32_t>(size), std::memory_order_release);
  return true;
}

void write_new_mappings(clew_frame* frames, size_t count) {
  const Known known = what_is_told(state->told.load(std::memory_order_acquire), frames, count);
  if (known == Known::kAll) return;
  const uint64_t now = monotonic_ns();
  const uint64_t rested_ns = now - state->mappings_read_ns.load(std::memory_order_relaxed);
  const uint64_t rest = known == Known::kChanged ? kChangedRest : kReadMappingsRest;
  if (rested_ns < rest * state->mappings_took_ns.load(std::memory_order_relaxed)) return;
  if (state->reading.exchange(true, std::memory_order_acquire)) return;
  const ToldList* told = state->told.load(std::memory_order_relaxed);
  ToldList& next = state->lists[told == &state->lists[0] ? 1 : 0];
  read_mappings(*state->ring.load(std::memory_order_relaxed), next);
  state->told.store(&next, std::memory_order_release);
  const uint64_t after = monotonic_ns();
  state->mappings_read_ns.store(after, std::memory_order_relaxed);
  state->mappings_took_ns.store(after - now, std::memory_order_relaxed);
  state->reading.store(false, std::memory_order_release);
  for (size_t i = 0; i < count; ++i) frames[i].flags &= ~kChangedFlag;
}

}  // namespace clew::agent
