// The profile: one OTLP ProfilesData message, written in pieces (DESIGN §5), and its reading.
//
// A recording is a file of zstd frames; their decompressed contents, put together, are one valid protobuf
// message of opentelemetry.proto.profiles.v1development (revision 1.11.0). A piece adds only new dictionary
// entries and samples.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clew/frame.h"
#include "clew/result.hpp"
#include "symbolize/symbolize.hpp"

namespace clew::profile {

enum class FrameKind : uint8_t { kNative, kKernel, kBpf };

/// A mapped file as the profile names it. `start` and `end` are in the address space of Place::address, the
/// file's own virtual addresses: one file is then one mapping, wherever processes load it, and no random load
/// address makes a new one. `offset` is the file offset of `start`.
struct Mapping {
  uint64_t start = 0, end = 0, offset = 0;
  std::string path;
  std::string build_id;  // hex
  bool operator==(const Mapping&) const = default;
};

/// One place in code, before it has names. Equal places are one location of the profile.
struct Place {
  uint32_t mapping = 0;  // from Writer::mapping(); 0: none
  uint64_t address = 0;  // virtual address in the file, unadjusted; without a mapping, in memory
  FrameKind kind = FrameKind::kNative;
  uint8_t how = 0;    // enum clew_how
  uint8_t flags = 0;  // enum clew_frame_flags
  bool operator==(const Place&) const = default;
};

struct Sample {
  uint32_t stack = 0;  // from Writer::stack()
  pid_t pid = 0, tid = 0;
  std::string_view comm;
  uint64_t time_ns = 0;    // CLOCK_MONOTONIC
  uint64_t weight_ns = 0;  // CPU time that the sample stands for, or how long the thread was blocked
  clew_end end = CLEW_END_ROOT;
  bool blocked = false;
};

/// Counts of a whole recording, kept in the profile's attributes; what `summary-json` prints.
struct Totals {
  uint64_t lost = 0;
  uint64_t duration_ns = 0;
  uint64_t cpu_used_ns = 0;  // of the targets, as the kernel accounts it
  uint64_t clew_cpu_ns = 0;
  uint64_t bpf_cpu_ns = 0;  // of the BPF programs, in the targets' time
  std::string collector;
  std::string command;
  std::vector<std::string>
      notes;  // one line each: what was named on the way (setuid exec, unreadable modules, ...)
};

/// Names for places: called once a piece with the places that are new in it.
using Symbolize = std::function<std::vector<symbolize::Lines>(std::span<const Place>)>;

/// Writes a recording. Not thread-safe. After an error (disk full, ...) the file keeps its whole pieces,
/// further samples are dropped and every later flush() and finish() returns the same error.
class Writer {
 public:
  /// Creates `path`; an older recording is kept as path.1. A symbolic link or anything else that is not a
  /// regular file is refused. `period_ns` is the sampling period. The file is a valid, empty recording at
  /// once.
  static Result<std::unique_ptr<Writer>> create(const std::string& path, uint64_t period_ns,
                                                Symbolize symbolize);
  ~Writer();
  uint32_t mapping(const Mapping& mapping);       // equal mappings have one number
  uint32_t stack(std::span<const Place> frames);  // leaf first; equal stacks have one number
  void sample(const Sample& sample);              // times are kept to about 1 µs (2^10 ns)
  /// Writes a piece if one is due (5 s or 8 MiB), always if `now`.
  Result<bool> flush(bool now = false);
  /// Writes the last piece with the totals and closes. Returns the file's size in bytes.
  Result<uint64_t> finish(const Totals& totals);

 private:
  struct State;
  explicit Writer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// ---- Reading ----

struct ReadLine {
  uint32_t function = 0, file = 0;  // indices into Profile::strings; 0 where unknown
  uint32_t line = 0;                // 0 where unknown
};
struct Location {
  Place place;                  // place.mapping is an index into Profile::mappings
  std::vector<ReadLine> lines;  // innermost inlined function first; empty where nothing is known
};
struct ReadSample {
  uint32_t stack;
  pid_t pid, tid;
  uint32_t comm;     // index into Profile::strings
  uint64_t time_ns;  // CLOCK_MONOTONIC of the recorder's machine
  uint64_t weight_ns;
  clew_end end;  // CLEW_END_COUNT: the file does not say
};
/// Every index in here is in range, every string valid UTF-8. Element 0 of `strings` (""), `mappings`,
/// `locations` and `stacks` is there and empty.
struct Profile {
  std::string path;
  std::vector<std::string> strings;
  std::vector<Mapping> mappings;
  std::vector<Location> locations;
  std::vector<std::vector<uint32_t>> stacks;  // location indices, leaf first
  std::vector<ReadSample> samples;            // of CPU time, in the file's order, not by time
  std::vector<ReadSample> waits;              // of threads that were blocked
  bool off_cpu = false;                       // the two have changed places: for output
  Totals totals;                              // where `truncated`: only what the samples themselves say
  uint64_t period_ns = 0;
  int64_t unix_offset_ns = 0;  // CLOCK_REALTIME minus CLOCK_MONOTONIC, when the recording began
  uint64_t file_bytes = 0;
  uint64_t ignored =
      0;  // entries of the file that make no sense and were left out (hostile or foreign files)
  bool truncated = false;  // the last piece is missing (a killed recorder); what is there is whole
};

/// Reads a recording. Hostile files give an error or fewer samples (`ignored`), never a crash. Memory is
/// bounded by 64 × the file's size (and 16 MiB, whatever the size): a zstd bomb is refused.
Result<Profile> read(const std::string& path);

/// The recording as the one OTLP message that it is
/// (`opentelemetry.proto.profiles.v1development.ProfilesData`), not compressed; the whole pieces of a
/// truncated one. The same bounds.
Result<std::string> otlp_message(const std::string& path);

/// Makes the blocked threads' samples those that are put out: weights are the time that they were blocked.
void turn_off_cpu(Profile& profile);

// One function an output format (one file each): text to print, or bytes to write. Names are made printable:
// a recorded program cannot send control characters to the terminal.
std::string summary(const Profile&);  // fits 80 columns
std::string summary_json(const Profile&);
std::string table(const Profile&, size_t rows);  // hottest functions: self %, total %
/// Root first, `;` between functions, a space, the number of samples; off CPU the microseconds.
std::string folded(const Profile&);
std::string pprof(const Profile&);       // gzip of profile.proto
std::string speedscope(const Profile&);  // JSON, one profile a thread

}  // namespace clew::profile
