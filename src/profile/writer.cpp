// Writes a recording piece by piece; otlp.hpp has the layout.
//
// Places, stacks and thread identities are numbered as they come. What is new since the last piece is kept as
// plain values and encoded when the piece is written: only then are places symbolized and, so that zstd finds
// the frames that stacks share, new stacks sorted by their callers.
#define XXH_INLINE_ALL
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>
#include <zstd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <numeric>
#include <optional>
#include <protozero/pbf_writer.hpp>
#include <tuple>
#include <unordered_map>
#include <utility>

#include "profile/otlp.hpp"
#include "profile/profile.hpp"
#include "profile/text.hpp"

namespace clew::profile {
namespace {

constexpr uint64_t kPieceNs = 5'000'000'000;
constexpr size_t kPieceBytes = 8 << 20;
constexpr int kZstdLevel = 6;
// Time stamps lose their lowest bits: those are noise (a timer fires when it fires), and noise does not
// compress.
constexpr uint64_t kTimeMask = ~uint64_t{1023};
// What remembers which stacks and places are already written is bounded: past this many entries it starts
// afresh, and an entry that occurs again is written again (a dictionary may hold equal entries).
constexpr size_t kRemembered = 1 << 20;

uint64_t now_ns(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<uint64_t>(time.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(time.tv_nsec);
}

// The bytes of a place that make it what it is, without padding.
struct PlaceKey {
  uint64_t address;
  uint64_t rest;
  explicit PlaceKey(const Place& place)
      : address(place.address),
        rest(place.mapping | uint64_t{static_cast<uint8_t>(place.kind)} << 32 | uint64_t{place.how} << 40 |
             uint64_t{place.flags} << 48) {}
  bool operator==(const PlaceKey&) const = default;
};
static_assert(sizeof(PlaceKey) == 16);

struct PlaceHash {
  size_t operator()(const PlaceKey& key) const { return XXH3_64bits(&key, sizeof key); }
};

struct StackKey {
  uint64_t low, high;
  bool operator==(const StackKey&) const = default;
};
struct StackHash {
  size_t operator()(const StackKey& key) const { return key.low; }
};

struct IdentityKey {
  pid_t pid, tid;
  clew_end end;
  std::string comm;
  bool operator==(const IdentityKey&) const = default;
};
struct IdentityHash {
  size_t operator()(const IdentityKey& key) const {
    const uint64_t ids = uint64_t{static_cast<uint32_t>(key.pid)} << 32 | static_cast<uint32_t>(key.tid);
    return XXH3_64bits_withSeed(key.comm.data(), key.comm.size(), ids * 31 + key.end);
  }
};

struct Observation {
  uint32_t identity, stack;
  uint64_t time_ns, weight_ns;
  bool blocked;
};

// One piece being encoded: a protobuf message a table, put together at the end.
struct Dictionary {
  std::string mappings, locations, functions, links, strings, attributes, stacks;
  std::string joined() const {
    return mappings + locations + functions + links + strings + attributes + stacks;
  }
};

// Creates the file; an older recording steps aside. Links are not followed and nothing but a regular file is
// moved:
// `-o /dev/null` must not rename the device.
Result<int> create_file(const std::string& path) {
  struct stat status{};
  if (lstat(path.c_str(), &status) == 0) {
    if (!S_ISREG(status.st_mode))
      return Error{fmt::format(
          "cannot write {}: it exists and is not a regular file; choose another name with -o", path)};
    const std::string kept = path + ".1";
    if (rename(path.c_str(), kept.c_str()) != 0)
      return Error{fmt::format("cannot keep the older {} as {}: {}", path, kept, strerror(errno))};
  }
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0644);
  if (fd < 0)
    return Error{fmt::format("cannot create {}: {}; choose another place with -o", path, strerror(errno))};
  return fd;
}

}  // namespace

struct Writer::State {
  ~State() {
    if (fd >= 0) close(fd);
    ZSTD_freeCCtx(zstd);
  }

  std::string path;
  int fd = -1;
  uint64_t file_bytes = 0;
  std::optional<Error> failed;
  ZSTD_CCtx* zstd = ZSTD_createCCtx();
  Symbolize symbolize;

  uint64_t period_ns = 0;
  int64_t unix_offset_ns = 0;
  uint64_t last_piece_ns = 0;
  uint64_t hash_seed = 0;

  // Numbers given out so far; each table's element 0 is the zero value.
  std::vector<Mapping> mappings{{}};
  size_t written_mappings = 1;
  std::unordered_map<std::string, uint32_t> mapping_numbers;
  std::unordered_map<PlaceKey, uint32_t, PlaceHash> places;
  std::vector<uint32_t> place_index{0};  // by the number given out: the index in the file, known once written
  std::unordered_map<StackKey, uint32_t, StackHash> stacks;
  std::vector<uint32_t> stack_index{0};  // by the number given out: the index in the file, known once written
  std::unordered_map<IdentityKey, uint32_t, IdentityHash> identities;
  std::vector<std::vector<uint32_t>> identity_attributes;
  std::unordered_map<std::string, uint32_t> strings{{"", 0}};
  std::unordered_map<std::string, uint32_t> functions;   // by name and file
  std::unordered_map<std::string, uint32_t> attributes;  // by their encoding
  uint32_t string_count = 1, function_count = 1, attribute_count = 1;

  // New since the last piece.
  std::vector<Place> new_places;
  std::vector<std::vector<uint32_t>> new_stacks;  // place numbers, leaf first
  std::vector<Observation> observations;
  size_t pending_bytes = 0;
  std::vector<PlaceKey> stack_keys;  // scratch of stack()
  Dictionary dictionary;

  uint32_t string(const std::string& text);
  uint32_t function(const std::string& name, const std::string& file);
  uint32_t attribute(const char* key, const std::string& encoded_value);
  uint32_t attribute_string(const char* key, std::string_view value);
  uint32_t attribute_int(const char* key, int64_t value);
  uint32_t attribute_true(const char* key);
  uint32_t attribute_strings(const char* key, const std::vector<std::string>& values);
  uint32_t place(const Place& place);
  uint32_t identity(const Sample& sample);

  void encode_zero_elements();
  void encode_mappings();
  void encode_locations();
  void encode_stacks();
  void sort_observations();
  std::string encode_samples(std::span<const Observation> of_type) const;
  std::string encode_profile(const char* type_name, std::span<const Observation> of_type,
                             const Totals* totals);
  Result<bool> write_piece(const Totals* totals);
  Result<bool> append(const std::string& bytes);
};

uint32_t Writer::State::string(const std::string& text) {
  const auto [entry, is_new] = strings.try_emplace(text, string_count);
  if (is_new) {
    ++string_count;
    protozero::pbf_writer(dictionary.strings).add_string(otlp::kStringTable, valid_utf8(text));
  }
  return entry->second;
}

uint32_t Writer::State::function(const std::string& name, const std::string& file) {
  const auto [entry, is_new] = functions.try_emplace(name + '\0' + file, function_count);
  if (is_new) {
    ++function_count;
    protozero::pbf_writer table(dictionary.functions);
    const uint32_t name_index = string(name), file_index = string(file);
    protozero::pbf_writer message(table, otlp::kFunctionTable);
    if (name_index) message.add_uint32(otlp::kFunctionName, name_index);
    if (file_index) message.add_uint32(otlp::kFunctionFile, file_index);
  }
  return entry->second;
}

uint32_t Writer::State::attribute(const char* key, const std::string& encoded_value) {
  std::string bytes;
  protozero::pbf_writer message(bytes);
  message.add_uint32(otlp::kKey, string(key));
  message.add_message(otlp::kValue, encoded_value);
  const auto [entry, is_new] = attributes.try_emplace(bytes, attribute_count);
  if (is_new) {
    ++attribute_count;
    protozero::pbf_writer(dictionary.attributes).add_message(otlp::kAttributeTable, bytes);
  }
  return entry->second;
}

uint32_t Writer::State::attribute_string(const char* key, std::string_view value) {
  std::string encoded;
  protozero::pbf_writer(encoded).add_string(otlp::kString, valid_utf8(value));
  return attribute(key, encoded);
}

uint32_t Writer::State::attribute_int(const char* key, int64_t value) {
  std::string encoded;
  protozero::pbf_writer(encoded).add_int64(otlp::kInt, value);
  return attribute(key, encoded);
}

uint32_t Writer::State::attribute_true(const char* key) {
  std::string encoded;
  protozero::pbf_writer(encoded).add_bool(otlp::kBool, true);
  return attribute(key, encoded);
}

uint32_t Writer::State::attribute_strings(const char* key, const std::vector<std::string>& values) {
  std::string array;
  for (const std::string& value : values) {
    std::string element;
    protozero::pbf_writer(element).add_string(otlp::kString, valid_utf8(value));
    protozero::pbf_writer(array).add_message(otlp::kArrayValues, element);
  }
  std::string encoded;
  protozero::pbf_writer(encoded).add_message(otlp::kArray, array);
  return attribute(key, encoded);
}

uint32_t Writer::State::place(const Place& place) {
  const auto next = static_cast<uint32_t>(place_index.size() + new_places.size());
  const auto [entry, is_new] = places.try_emplace(PlaceKey(place), next);
  if (is_new) {
    new_places.push_back(place);
    pending_bytes += 64;
  }
  return entry->second;
}

// A number for (process, thread, name, end reason): the attributes of its samples are encoded once.
uint32_t Writer::State::identity(const Sample& sample) {
  const auto [entry, is_new] =
      identities.try_emplace(IdentityKey{sample.pid, sample.tid, sample.end, std::string(sample.comm)},
                             static_cast<uint32_t>(identity_attributes.size()));
  if (is_new)
    identity_attributes.push_back({attribute_int(otlp::kPid, sample.pid),
                                   attribute_int(otlp::kTid, sample.tid),
                                   attribute_string(otlp::kThreadName, sample.comm),
                                   attribute_string(otlp::kEnd, clew_end_name(sample.end))});
  return entry->second;
}

void Writer::State::encode_zero_elements() {
  const std::string zero;
  protozero::pbf_writer(dictionary.mappings).add_message(otlp::kMappingTable, zero);
  protozero::pbf_writer(dictionary.locations).add_message(otlp::kLocationTable, zero);
  protozero::pbf_writer(dictionary.functions).add_message(otlp::kFunctionTable, zero);
  protozero::pbf_writer(dictionary.strings).add_string(otlp::kStringTable, zero);
  protozero::pbf_writer(dictionary.attributes).add_message(otlp::kAttributeTable, zero);
  protozero::pbf_writer(dictionary.stacks).add_message(otlp::kStackTable, zero);
  // A link's zero value is written with its ids at full length, for readers that insist on 16 and 8 bytes.
  protozero::pbf_writer table(dictionary.links);
  protozero::pbf_writer link(table, otlp::kLinkTable);
  link.add_bytes(otlp::kTraceId, std::string(16, '\0'));
  link.add_bytes(otlp::kSpanId, std::string(8, '\0'));
}

void Writer::State::encode_mappings() {
  for (; written_mappings < mappings.size(); ++written_mappings) {
    const Mapping& mapping = mappings[written_mappings];
    const uint32_t name = string(mapping.path);
    protozero::pbf_writer table(dictionary.mappings);
    protozero::pbf_writer message(table, otlp::kMappingTable);
    message.add_uint64(otlp::kMemoryStart, mapping.start);
    message.add_uint64(otlp::kMemoryLimit, mapping.end);
    message.add_uint64(otlp::kFileOffset, mapping.offset);
    message.add_uint32(otlp::kFilename, name);
    if (!mapping.build_id.empty()) {
      const uint32_t build_id = attribute_string(otlp::kBuildId, mapping.build_id);
      message.add_packed_uint32(otlp::kMappingAttributes, &build_id, &build_id + 1);
    }
  }
}

void Writer::State::encode_locations() {
  std::vector<uint32_t> order(new_places.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::tie(new_places[a].mapping, new_places[a].address) <
           std::tie(new_places[b].mapping, new_places[b].address);
  });
  std::vector<Place> sorted;
  sorted.reserve(order.size());
  const size_t first = place_index.size();
  place_index.resize(first + order.size());
  for (const uint32_t i : order) {
    place_index[first + i] = static_cast<uint32_t>(first + sorted.size());
    sorted.push_back(new_places[i]);
  }
  new_places.clear();

  std::vector<symbolize::Lines> names;
  if (symbolize && !sorted.empty()) names = symbolize(sorted);
  names.resize(sorted.size());
  for (size_t i = 0; i < sorted.size(); ++i) {
    const Place& place = sorted[i];
    std::vector<uint32_t> indices{
        attribute_string(otlp::kFrameType, otlp::kFrameTypeNames[static_cast<uint8_t>(place.kind)]),
        attribute_string(otlp::kHow, clew_how_name(place.how))};
    if (place.flags & CLEW_FRAME_EXACT_PC) indices.push_back(attribute_true(otlp::kExactPc));
    if (place.flags & CLEW_FRAME_SIGNAL) indices.push_back(attribute_true(otlp::kSignal));
    if (place.flags & CLEW_FRAME_GUESSED) indices.push_back(attribute_true(otlp::kGuessed));
    protozero::pbf_writer table(dictionary.locations);
    protozero::pbf_writer message(table, otlp::kLocationTable);
    if (place.mapping) message.add_uint32(otlp::kMappingIndex, place.mapping);
    message.add_uint64(otlp::kAddress, place.address);
    for (const symbolize::Line& line : names[i]) {
      const uint32_t index = function(line.function, line.file);
      protozero::pbf_writer line_message(message, otlp::kLines);
      line_message.add_uint32(otlp::kFunctionIndex, index);
      if (line.line) line_message.add_uint32(otlp::kLineNumber, line.line);
    }
    message.add_packed_uint32(otlp::kLocationAttributes, indices.begin(), indices.end());
  }
}

void Writer::State::encode_stacks() {
  for (std::vector<uint32_t>& places_of_stack : new_stacks)
    for (uint32_t& place : places_of_stack) place = place_index[place];
  std::vector<uint32_t> order(new_stacks.size());
  std::iota(order.begin(), order.end(), 0);
  std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return std::lexicographical_compare(new_stacks[a].rbegin(), new_stacks[a].rend(), new_stacks[b].rbegin(),
                                        new_stacks[b].rend());
  });
  const size_t first = stack_index.size();
  stack_index.resize(first + order.size());
  protozero::pbf_writer table(dictionary.stacks);
  for (uint32_t rank = 0; rank < order.size(); ++rank) {
    stack_index[first + order[rank]] = static_cast<uint32_t>(first + rank);
    const std::vector<uint32_t>& locations = new_stacks[order[rank]];
    protozero::pbf_writer message(table, otlp::kStackTable);
    message.add_packed_uint32(otlp::kLocationIndices, locations.begin(), locations.end());
  }
  new_stacks.clear();
}

void Writer::State::sort_observations() {
  for (Observation& observation : observations) observation.stack = stack_index[observation.stack];
  std::sort(observations.begin(), observations.end(), [](const Observation& a, const Observation& b) {
    return std::tie(a.blocked, a.identity, a.stack, a.time_ns) <
           std::tie(b.blocked, b.identity, b.stack, b.time_ns);
  });
}

// Samples of one stack by one thread are one message, as the specification asks.
std::string Writer::State::encode_samples(std::span<const Observation> of_type) const {
  std::string samples;
  std::vector<int64_t> values;
  std::vector<uint64_t> times;
  for (size_t i = 0; i < of_type.size();) {
    const Observation first = of_type[i];
    values.clear();
    times.clear();
    for (; i < of_type.size() && of_type[i].identity == first.identity && of_type[i].stack == first.stack;
         ++i) {
      values.push_back(static_cast<int64_t>(of_type[i].weight_ns));
      times.push_back(of_type[i].time_ns + static_cast<uint64_t>(unix_offset_ns));
    }
    const std::vector<uint32_t>& indices = identity_attributes[first.identity];
    protozero::pbf_writer table(samples);
    protozero::pbf_writer message(table, otlp::kSamples);
    message.add_uint32(otlp::kStackIndex, first.stack);
    message.add_packed_uint32(otlp::kSampleAttributes, indices.begin(), indices.end());
    message.add_packed_int64(otlp::kValues, values.begin(), values.end());
    message.add_packed_fixed64(otlp::kTimestamps, times.begin(), times.end());
  }
  return samples;
}

std::string Writer::State::encode_profile(const char* type_name, std::span<const Observation> of_type,
                                          const Totals* totals) {
  uint64_t first_ns = UINT64_MAX, last_ns = 0;
  for (const Observation& observation : of_type) {
    first_ns = std::min(first_ns, observation.time_ns);
    last_ns = std::max(last_ns, observation.time_ns);
  }
  const std::string samples = encode_samples(of_type);
  std::vector<uint32_t> indices{attribute_int(otlp::kClockOffset, unix_offset_ns)};
  if (totals) {
    indices.push_back(attribute_int(otlp::kLost, static_cast<int64_t>(totals->lost)));
    indices.push_back(attribute_int(otlp::kDuration, static_cast<int64_t>(totals->duration_ns)));
    indices.push_back(attribute_int(otlp::kCpuUsed, static_cast<int64_t>(totals->cpu_used_ns)));
    indices.push_back(attribute_int(otlp::kClewCpu, static_cast<int64_t>(totals->clew_cpu_ns)));
    indices.push_back(attribute_int(otlp::kBpfCpu, static_cast<int64_t>(totals->bpf_cpu_ns)));
    indices.push_back(attribute_string(otlp::kCollector, totals->collector));
    indices.push_back(attribute_string(otlp::kCommand, totals->command));
    if (!totals->notes.empty()) indices.push_back(attribute_strings(otlp::kNotes, totals->notes));
  }
  const auto value_type = [this](const char* name) {
    std::string type;
    protozero::pbf_writer message(type);
    message.add_uint32(otlp::kType, string(name));
    message.add_uint32(otlp::kUnit, string("nanoseconds"));
    return type;
  };

  std::string profile;
  protozero::pbf_writer message(profile);
  message.add_message(otlp::kSampleType, value_type(type_name));
  profile += samples;
  if (!of_type.empty()) {
    message.add_fixed64(otlp::kTimeUnixNano, first_ns + static_cast<uint64_t>(unix_offset_ns));
    message.add_uint64(otlp::kDurationNano, last_ns - first_ns + 1);
  }
  message.add_message(otlp::kPeriodType, value_type(otlp::kCpu));
  message.add_int64(otlp::kPeriod, static_cast<int64_t>(period_ns));
  message.add_packed_uint32(otlp::kProfileAttributes, indices.begin(), indices.end());
  return profile;
}

Result<bool> Writer::State::write_piece(const Totals* totals) {
  if (failed) return *failed;
  encode_mappings();
  encode_locations();
  encode_stacks();
  sort_observations();
  const auto blocked = std::ranges::find(observations, true, &Observation::blocked);
  std::vector<std::string> profiles;
  if (blocked != observations.end())
    profiles.push_back(encode_profile(otlp::kOffCpu, {blocked, observations.end()}, nullptr));
  profiles.push_back(encode_profile(otlp::kCpu, {observations.begin(), blocked}, totals));

  std::string scope;
  protozero::pbf_writer(scope).add_string(otlp::kScopeName, "clew");
  std::string scope_profiles;
  protozero::pbf_writer scope_message(scope_profiles);
  scope_message.add_message(otlp::kScope, scope);
  for (const std::string& profile : profiles) scope_message.add_message(otlp::kProfiles, profile);
  std::string resource_profiles;
  protozero::pbf_writer(resource_profiles).add_message(otlp::kScopeProfiles, scope_profiles);
  std::string piece;
  protozero::pbf_writer piece_message(piece);
  piece_message.add_message(otlp::kDictionary, dictionary.joined());
  piece_message.add_message(otlp::kResourceProfiles, resource_profiles);

  dictionary = {};
  observations.clear();
  pending_bytes = 0;
  last_piece_ns = now_ns(CLOCK_MONOTONIC);
  // Only between pieces: nothing pending refers to what is forgotten here.
  if (places.size() > kRemembered) places.clear();
  if (stacks.size() > kRemembered) stacks.clear();
  if (identities.size() > kRemembered) identities.clear(), identity_attributes.clear();

  std::string frame(ZSTD_compressBound(piece.size()), '\0');
  const size_t size = ZSTD_compress2(zstd, frame.data(), frame.size(), piece.data(), piece.size());
  if (ZSTD_isError(size)) {
    failed = Error{fmt::format("cannot compress for {}: {}", path, ZSTD_getErrorName(size))};
    return *failed;
  }
  frame.resize(size);
  return append(frame);
}

Result<bool> Writer::State::append(const std::string& bytes) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      failed = Error{fmt::format("cannot write {}: {}; its first {} bytes are a whole recording", path,
                                 count < 0 ? strerror(errno) : "no progress", file_bytes)};
      // The half-written piece goes; should that fail too, the reader leaves it out.
      if (ftruncate(fd, static_cast<off_t>(file_bytes)) != 0) errno = 0;
      return *failed;
    }
    done += static_cast<size_t>(count);
  }
  file_bytes += bytes.size();
  return true;
}

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::~Writer() = default;

Result<std::unique_ptr<Writer>> Writer::create(const std::string& path, uint64_t period_ns,
                                               Symbolize symbolize) {
  Result<int> fd = create_file(path);
  if (!fd) return Error{fd.error()};
  auto state = std::make_unique<State>();
  state->path = path;
  state->fd = *fd;
  state->symbolize = std::move(symbolize);
  state->period_ns = period_ns;
  const uint64_t offset = now_ns(CLOCK_REALTIME) - now_ns(CLOCK_MONOTONIC);
  state->unix_offset_ns = static_cast<int64_t>(offset & kTimeMask);
  ZSTD_CCtx_setParameter(state->zstd, ZSTD_c_compressionLevel, kZstdLevel);
  ZSTD_CCtx_setParameter(state->zstd, ZSTD_c_checksumFlag, 1);
  // Stacks are told apart by a hash alone; the seed keeps anyone from preparing two that collide.
  if (getrandom(&state->hash_seed, sizeof state->hash_seed, GRND_NONBLOCK) < 0) state->hash_seed = offset;
  state->encode_zero_elements();
  if (Result<bool> written = state->write_piece(nullptr); !written) return Error{written.error()};
  return std::unique_ptr<Writer>(new Writer(std::move(state)));
}

uint32_t Writer::mapping(const Mapping& mapping) {
  const std::string key = fmt::format("{:x} {:x} {:x} {} {}", mapping.start, mapping.end, mapping.offset,
                                      mapping.build_id, mapping.path);
  const auto [entry, is_new] =
      state_->mapping_numbers.try_emplace(key, static_cast<uint32_t>(state_->mappings.size()));
  if (is_new) state_->mappings.push_back(mapping);
  return entry->second;
}

uint32_t Writer::stack(std::span<const Place> frames) {
  if (frames.empty()) return 0;
  std::vector<PlaceKey>& keys = state_->stack_keys;
  keys.clear();
  for (const Place& frame : frames) keys.emplace_back(frame);
  const XXH128_hash_t digest =
      XXH3_128bits_withSeed(keys.data(), keys.size() * sizeof keys[0], state_->hash_seed);
  const auto next = static_cast<uint32_t>(state_->stack_index.size() + state_->new_stacks.size());
  const auto [entry, is_new] = state_->stacks.try_emplace(StackKey{digest.low64, digest.high64}, next);
  if (is_new) {
    std::vector<uint32_t> locations;
    locations.reserve(frames.size());
    for (const Place& frame : frames) locations.push_back(state_->place(frame));
    state_->pending_bytes += 2 * locations.size() + 4;
    state_->new_stacks.push_back(std::move(locations));
  }
  return entry->second;
}

void Writer::sample(const Sample& sample) {
  if (state_->failed) return;
  const uint32_t stack =
      sample.stack < state_->stack_index.size() + state_->new_stacks.size() ? sample.stack : 0;
  state_->observations.push_back(
      {state_->identity(sample), stack, sample.time_ns & kTimeMask, sample.weight_ns, sample.blocked});
  state_->pending_bytes += 24;
}

Result<bool> Writer::flush(bool now) {
  if (const std::optional<Error>& failed = state_->failed) return *failed;
  const bool due = state_->pending_bytes >= kPieceBytes ||
                   (state_->pending_bytes > 0 && now_ns(CLOCK_MONOTONIC) - state_->last_piece_ns >= kPieceNs);
  if (!due && !(now && state_->pending_bytes > 0)) return false;
  return state_->write_piece(nullptr);
}

Result<uint64_t> Writer::finish(const Totals& totals) {
  if (Result<bool> written = state_->write_piece(&totals); !written) return Error{written.error()};
  const int fd = std::exchange(state_->fd, -1);
  if (close(fd) != 0) return Error{fmt::format("cannot write {}: {}", state_->path, strerror(errno))};
  return state_->file_bytes;
}

}  // namespace clew::profile
