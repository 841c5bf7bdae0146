// Field numbers and names of an OTLP profile, as clew writes and reads it.
//
// Source: opentelemetry-proto 1.11.0, opentelemetry/proto/profiles/v1development/profiles.proto and
// common/v1/common.proto (https://github.com/open-telemetry/opentelemetry-proto). A dictionary table's
// element 0 is the zero value and is present; all *_index and *_indices fields count from the start of the
// table.
//
// A recording is a sequence of zstd frames (pieces). Each holds whole top-level fields, in this order:
//
//   ProfilesData.dictionary          the table entries that are new (the first piece also has element 0 of
//   each) ProfilesData.resource_profiles   one ResourceProfiles > ScopeProfiles > Profile with the samples of
//   the piece
//
// Protobuf merges a singular message that occurs again, and the repeated fields inside it grow: the
// decompressed pieces put together are one ProfilesData whose tables are the concatenation of the pieces'.
// The last piece's Profile has the totals among its attributes; where they are missing, the recorder was
// killed.
#pragma once

#include <cstdint>

namespace clew::profile::otlp {

enum ProfilesData : uint32_t { kResourceProfiles = 1, kDictionary = 2 };
enum ResourceProfiles : uint32_t { kScopeProfiles = 2 };
enum ScopeProfiles : uint32_t { kScope = 1, kProfiles = 2 };
enum InstrumentationScope : uint32_t { kScopeName = 1, kScopeVersion = 2 };

enum Dictionary : uint32_t {
  kMappingTable = 1,
  kLocationTable = 2,
  kFunctionTable = 3,
  kLinkTable = 4,
  kStringTable = 5,
  kAttributeTable = 6,
  kStackTable = 7,
};

enum Profile : uint32_t {
  kSampleType = 1,
  kSamples = 2,
  kTimeUnixNano = 3,  // fixed64
  kDurationNano = 4,
  kPeriodType = 5,
  kPeriod = 6,
  kProfileAttributes = 11,
};

enum ValueType : uint32_t { kType = 1, kUnit = 2 };

// `values` and `timestamps_unix_nano` run in parallel: one element an observation of this stack by this
// thread.
enum Sample : uint32_t {
  kStackIndex = 1,
  kSampleAttributes = 2,
  kValues = 4,      // packed int64
  kTimestamps = 5,  // packed fixed64
};

enum Stack : uint32_t { kLocationIndices = 1 };  // packed, leaf first

enum Mapping : uint32_t {
  kMemoryStart = 1,
  kMemoryLimit = 2,
  kFileOffset = 3,
  kFilename = 4,
  kMappingAttributes = 5,
};

enum Location : uint32_t { kMappingIndex = 1, kAddress = 2, kLines = 3, kLocationAttributes = 4 };
enum Line : uint32_t { kFunctionIndex = 1, kLineNumber = 2 };
enum Function : uint32_t { kFunctionName = 1, kSystemName = 2, kFunctionFile = 3 };
enum Link : uint32_t { kTraceId = 1, kSpanId = 2 };

enum KeyValueAndUnit : uint32_t { kKey = 1, kValue = 2, kAttributeUnit = 3 };
enum AnyValue : uint32_t {
  kString = 1,
  kBool = 2,
  kInt = 3,
  kArray = 5,
  kStringIndex = 8,
};
enum ArrayValue : uint32_t { kArrayValues = 1 };

// Attribute keys: those of the OpenTelemetry semantic conventions, and clew's own.
inline constexpr const char* kPid = "process.pid";               // on samples
inline constexpr const char* kTid = "thread.id";                 // on samples
inline constexpr const char* kThreadName = "thread.name";        // on samples
inline constexpr const char* kEnd = "clew.trace.end";            // on samples: clew_end_name()
inline constexpr const char* kFrameType = "profile.frame.type";  // on locations: native, kernel, bpf
inline constexpr const char* kHow = "clew.frame.how";            // on locations: clew_how_name()
inline constexpr const char* kExactPc = "clew.frame.exact_pc";   // on locations: not a return address
inline constexpr const char* kSignal = "clew.frame.signal";      // on locations: a signal trampoline
inline constexpr const char* kGuessed = "clew.frame.guessed";    // on locations
inline constexpr const char* kBuildId = "process.executable.build_id.gnu";         // on mappings
inline constexpr const char* kClockOffset = "clew.clock.unix_minus_monotonic_ns";  // on every Profile
// The totals, on the last Profile.
inline constexpr const char* kLost = "clew.samples.lost";
inline constexpr const char* kDuration = "clew.duration_ns";
inline constexpr const char* kCpuUsed = "clew.cpu_used_ns";
inline constexpr const char* kClewCpu = "clew.overhead.cpu_ns";
inline constexpr const char* kBpfCpu = "clew.overhead.bpf_cpu_ns";
inline constexpr const char* kCollector = "clew.collector";
inline constexpr const char* kCommand = "process.command_line";
inline constexpr const char* kNotes = "clew.notes";

// Types of samples, in nanoseconds: a piece has a Profile of each that occurred.
inline constexpr const char* kCpu = "cpu";
inline constexpr const char* kOffCpu = "off_cpu";

inline constexpr const char* kFrameTypeNames[] = {"native", "kernel", "bpf"};  // by FrameKind

}  // namespace clew::profile::otlp
