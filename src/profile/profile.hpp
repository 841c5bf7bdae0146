// The profile: one OTLP ProfilesData message, written in pieces (DESIGN §5), and its reading.
//
// A recording is a file of zstd frames; their decompressed contents, put together, are one valid protobuf message of
// opentelemetry.proto.profiles.v1development (revision 1.11.0). A piece adds only new dictionary entries and samples.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clew/result.hpp"
#include "core/frame.h"
#include "symbolize/symbolize.hpp"

namespace clew::profile {

enum class FrameKind : uint8_t { kNative, kKernel, kBpf };

/// A mapped file as the profile names it.
struct Mapping {
  uint64_t start = 0, end = 0, offset = 0;
  std::string path;
  std::string build_id;  // hex
  bool operator==(const Mapping&) const = default;
};

/// One place in code, before it has names. Equal places are one location of the profile.
struct Place {
  uint32_t mapping = 0;   // from Writer::mapping(); 0: none
  uint64_t address = 0;   // virtual address in the file, unadjusted; without a mapping, in memory
  FrameKind kind = FrameKind::kNative;
  uint8_t how = 0;        // enum clew_how
  uint8_t flags = 0;      // enum clew_frame_flags
  bool operator==(const Place&) const = default;
};

struct Sample {
  uint32_t stack = 0;  // from Writer::stack()
  pid_t pid = 0, tid = 0;
  std::string_view comm;
  uint64_t time_ns = 0;   // CLOCK_MONOTONIC
  uint64_t weight_ns = 0; // CPU time that the sample stands for
  clew_end end = CLEW_END_ROOT;
};

/// Counts of a whole recording, kept in the profile's attributes; what `summary-json` prints.
struct Totals {
  uint64_t lost = 0;
  uint64_t duration_ns = 0;
  uint64_t cpu_used_ns = 0;       // of the targets, as the kernel accounts it
  uint64_t clew_cpu_ns = 0;
  std::string collector;
  std::string command;
  std::vector<std::string> notes;  // one line each: what was named on the way (setuid exec, unreadable modules, ...)
};

/// Names for places: called once a piece with the places that are new in it.
using Symbolize = std::function<std::vector<symbolize::Lines>(std::span<const Place>)>;

class Writer {
 public:
  /// Creates `path` (an older file is kept as path.1).
  static Result<std::unique_ptr<Writer>> create(const std::string& path, uint64_t period_ns, Symbolize symbolize);
  ~Writer();
  uint32_t mapping(const Mapping& mapping);
  uint32_t stack(std::span<const Place> frames);  // leaf first
  void sample(const Sample& sample);
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

struct Location {
  Place place;
  symbolize::Lines lines;
};
struct ReadSample {
  uint32_t stack;
  pid_t pid, tid;
  uint32_t comm;  // index into Profile::strings
  uint64_t time_ns, weight_ns;
  clew_end end;
};
struct Profile {
  std::vector<std::string> strings;
  std::vector<Mapping> mappings;
  std::vector<Location> locations;
  std::vector<std::vector<uint32_t>> stacks;  // location indices, leaf first
  std::vector<ReadSample> samples;
  Totals totals;
  uint64_t period_ns = 0;
  uint64_t file_bytes = 0;
  bool truncated = false;  // the last piece is missing (a killed recorder); what is there is whole
};

/// Reads a recording; hostile files give an error or fewer samples, never a crash; memory is bounded by 64 × the
/// file's size (a zstd bomb is refused).
Result<Profile> read(const std::string& path);

// One function an output format (one file each): text to print, or bytes to write.
std::string summary(const Profile&);
std::string summary_json(const Profile&);
std::string table(const Profile&, size_t rows);  // hottest functions: self %, total %
std::string folded(const Profile&);
std::string pprof(const Profile&);               // gzip of profile.proto

}  // namespace clew::profile
