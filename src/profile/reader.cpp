// Reads a recording; otlp.hpp has the layout.
//
// The pieces are decompressed into one buffer, which is then one protobuf message. The dictionary is decoded
// first and the samples after it, so that every index can be checked where it is used. Nothing in the file is
// believed: sizes are charged to a budget before anything is allocated for them, indices are checked, and
// what makes no sense is left out and counted.
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zstd.h>

#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <protozero/pbf_reader.hpp>
#include <utility>

#include "profile/otlp.hpp"
#include "profile/profile.hpp"
#include "profile/reader.hpp"
#include "profile/text.hpp"

namespace clew::profile {
namespace {

constexpr uint64_t kMemoryFactor = 64;
constexpr uint64_t kMemoryFloor = 16 << 20;
// Frames from other tools may ask for a window of up to 2 GiB; clew's pieces need 8 MiB.
constexpr int kWindowLogMax = 23;

struct TooLarge {};

// Half of the bound: what is charged lies in vectors, which while they grow hold up to twice their contents.
class Budget {
 public:
  explicit Budget(uint64_t file_bytes) : left_((file_bytes * kMemoryFactor + kMemoryFloor) / 2) {}
  void charge(uint64_t bytes) {
    if (bytes > left_) throw TooLarge{};
    left_ -= bytes;
  }
  void refund(uint64_t bytes) { left_ += bytes; }

 private:
  uint64_t left_;
};

struct Fd {
  int number;
  ~Fd() {
    if (number >= 0) close(number);
  }
};

Result<std::string> read_file(const std::string& path) {
  const Fd fd{open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)};
  if (fd.number < 0)
    return Error{errno == ENOENT
                     ? fmt::format("{} does not exist; make a recording with: clew record -- COMMAND", path)
                     : fmt::format("cannot open {}: {}", path, strerror(errno))};
  struct stat status{};
  if (fstat(fd.number, &status) != 0) return Error{fmt::format("cannot read {}: {}", path, strerror(errno))};
  if (!S_ISREG(status.st_mode))
    return Error{fmt::format("{} is not a regular file, so not a recording", path)};
  std::string bytes;
  // The file may grow while it is read (a recording under way): the size seen first is what is read.
  bytes.resize(static_cast<size_t>(status.st_size));
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t count = ::read(fd.number, bytes.data() + done, bytes.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Error{fmt::format("cannot read {}: {}", path, strerror(errno))};
    if (count == 0) break;
    done += static_cast<size_t>(count);
  }
  bytes.resize(done);
  return bytes;
}

struct Message {
  std::string bytes;
  bool truncated = false;
};

// One frame whose decompressed size its header does not say.
std::optional<std::string> decompress_unsized(ZSTD_DCtx* zstd, std::string_view frame, Budget& budget) {
  std::string result;
  ZSTD_DCtx_reset(zstd, ZSTD_reset_session_only);
  ZSTD_inBuffer in{frame.data(), frame.size(), 0};
  std::string chunk(ZSTD_DStreamOutSize(), '\0');
  for (;;) {
    ZSTD_outBuffer out{chunk.data(), chunk.size(), 0};
    const size_t status = ZSTD_decompressStream(zstd, &out, &in);
    if (ZSTD_isError(status)) return std::nullopt;
    budget.charge(out.pos);
    result.append(chunk.data(), out.pos);
    if (status == 0) return result;
    if (in.pos == in.size && out.pos < out.size) return std::nullopt;
  }
}

// The whole pieces of a file, put together. A piece that is cut short or damaged ends it: what follows would
// refer to dictionary entries that are not there.
Result<Message> decompress(const std::string& path, const std::string& file, Budget& budget) {
  if (file.empty()) return Error{path + " is empty: nothing was recorded"};
  struct Free {
    void operator()(ZSTD_DCtx* context) const { ZSTD_freeDCtx(context); }
  };
  const std::unique_ptr<ZSTD_DCtx, Free> zstd(ZSTD_createDCtx());
  ZSTD_DCtx_setParameter(zstd.get(), ZSTD_d_windowLogMax, kWindowLogMax);
  Message message;
  size_t at = 0, pieces = 0;
  while (at < file.size()) {
    const std::string_view rest = std::string_view(file).substr(at);
    const size_t frame_size = ZSTD_findFrameCompressedSize(rest.data(), rest.size());
    if (ZSTD_isError(frame_size)) break;
    const std::string_view frame = rest.substr(0, frame_size);
    const unsigned long long size = ZSTD_getFrameContentSize(frame.data(), frame.size());
    if (size == ZSTD_CONTENTSIZE_ERROR) break;
    if (size == ZSTD_CONTENTSIZE_UNKNOWN) {
      const std::optional<std::string> content = decompress_unsized(zstd.get(), frame, budget);
      if (!content) break;
      message.bytes += *content;
    } else {
      budget.charge(size);
      const size_t before = message.bytes.size();
      message.bytes.resize(before + size);
      const size_t got =
          ZSTD_decompressDCtx(zstd.get(), message.bytes.data() + before, size, frame.data(), frame.size());
      if (ZSTD_isError(got) || got != size) {
        message.bytes.resize(before);
        break;
      }
    }
    at += frame_size;
    ++pieces;
  }
  if (pieces == 0) {
    static constexpr char kMagic[] = "\x28\xb5\x2f\xfd";
    const size_t known = std::min(file.size(), sizeof kMagic - 1);
    if (file.compare(0, known, kMagic, known) == 0)
      return Error{fmt::format("{} is cut short: it holds no whole piece of a recording", path)};
    return Error{fmt::format("{} is not a clew recording (those are made by clew record)", path)};
  }
  message.truncated = at < file.size();
  return message;
}

struct Attribute {
  uint32_t key = 0;
  int64_t number = 0;              // an int or a bool
  std::optional<uint32_t> string;  // an index into Profile::strings
  std::string text;                // where there is no such index
  std::vector<std::string> array;
};

struct Function {
  uint32_t name = 0, file = 0;
};

// The decoder of one message; protozero's exceptions leave through it to read().
class Decoder {
 public:
  Decoder(Profile& profile, Budget& budget) : profile_(profile), budget_(budget) {}

  void run(std::string_view bytes) {
    each(bytes, [&](protozero::pbf_reader& field) {
      if (is(field, otlp::kDictionary, kBytes)) return dictionary(field.get_view());
      field.skip();
    });
    resolve();
    each(bytes, [&](protozero::pbf_reader& field) {
      if (is(field, otlp::kResourceProfiles, kBytes)) return resource_profiles(field.get_view());
      field.skip();
    });
  }

  bool has_tables() const { return has_string_; }
  bool has_totals() const { return has_totals_; }

 private:
  static constexpr auto kVarint = protozero::pbf_wire_type::varint;
  static constexpr auto kBytes = protozero::pbf_wire_type::length_delimited;
  static constexpr auto kFixed64 = protozero::pbf_wire_type::fixed64;

  static bool is(const protozero::pbf_reader& field, uint32_t tag, protozero::pbf_wire_type type) {
    return field.tag() == tag && field.wire_type() == type;
  }
  template <class Handler>
  static void each(const protozero::data_view& bytes, Handler handler) {
    each(std::string_view(bytes.data(), bytes.size()), handler);
  }
  template <class Handler>
  static void each(std::string_view bytes, Handler handler) {
    protozero::pbf_reader message(bytes.data(), bytes.size());
    while (message.next()) handler(message);
  }

  // Adds an index list, packed or not, to `indices`.
  void add_indices(protozero::pbf_reader& field, uint32_t tag, std::vector<uint32_t>& indices, bool& known) {
    known = true;
    if (is(field, tag, kBytes)) {
      const auto packed = field.get_packed_int32();
      budget_.charge(packed.size() * sizeof(uint32_t));
      for (const int32_t index : packed) indices.push_back(static_cast<uint32_t>(index));
    } else if (is(field, tag, kVarint)) {
      budget_.charge(sizeof(uint32_t));
      indices.push_back(static_cast<uint32_t>(field.get_int32()));
    } else {
      known = false;
    }
  }

  void dictionary(const protozero::data_view& bytes) {
    each(bytes, [&](protozero::pbf_reader& field) {
      if (field.wire_type() != kBytes) return field.skip();
      switch (field.tag()) {
        case otlp::kMappingTable:
          return mapping(field.get_view());
        case otlp::kLocationTable:
          return location(field.get_view());
        case otlp::kFunctionTable:
          return function(field.get_view());
        case otlp::kStringTable:
          return string(field.get_view());
        case otlp::kAttributeTable:
          return attribute(field.get_view());
        case otlp::kStackTable:
          return stack(field.get_view());
        default:
          return field.skip();
      }
    });
  }

  void string(const protozero::data_view& bytes) {
    std::string text = valid_utf8({bytes.data(), bytes.size()});
    budget_.charge(sizeof(std::string) + text.size());
    profile_.strings.push_back(std::move(text));
    has_string_ = true;
  }

  void mapping(const protozero::data_view& bytes) {
    budget_.charge(sizeof(Mapping) + sizeof(RawMapping));
    Mapping mapping;
    RawMapping raw;
    each(bytes, [&](protozero::pbf_reader& field) {
      bool known = false;
      if (is(field, otlp::kMemoryStart, kVarint)) {
        mapping.start = field.get_uint64();
      } else if (is(field, otlp::kMemoryLimit, kVarint)) {
        mapping.end = field.get_uint64();
      } else if (is(field, otlp::kFileOffset, kVarint)) {
        mapping.offset = field.get_uint64();
      } else if (is(field, otlp::kFilename, kVarint)) {
        raw.path = field.get_uint32();
      } else {
        add_indices(field, otlp::kMappingAttributes, raw.attributes, known);
        if (!known) field.skip();
      }
    });
    profile_.mappings.push_back(std::move(mapping));
    mappings_.push_back(std::move(raw));
  }

  void function(const protozero::data_view& bytes) {
    budget_.charge(sizeof(Function));
    Function function;
    uint32_t system_name = 0;
    each(bytes, [&](protozero::pbf_reader& field) {
      if (is(field, otlp::kFunctionName, kVarint))
        function.name = field.get_uint32();
      else if (is(field, otlp::kSystemName, kVarint))
        system_name = field.get_uint32();
      else if (is(field, otlp::kFunctionFile, kVarint))
        function.file = field.get_uint32();
      else
        field.skip();
    });
    if (function.name == 0) function.name = system_name;
    functions_.push_back(function);
  }

  void location(const protozero::data_view& bytes) {
    budget_.charge(sizeof(Location));
    Location location;
    scratch_.clear();
    each(bytes, [&](protozero::pbf_reader& field) {
      bool known = false;
      if (is(field, otlp::kMappingIndex, kVarint)) {
        location.place.mapping = field.get_uint32();
      } else if (is(field, otlp::kAddress, kVarint)) {
        location.place.address = field.get_uint64();
      } else if (is(field, otlp::kLines, kBytes)) {
        location.lines.push_back(line(field.get_view()));
      } else {
        add_indices(field, otlp::kLocationAttributes, scratch_, known);
        if (!known) field.skip();
      }
    });
    location.lines.shrink_to_fit();
    // The attributes may still be to come: the indices are kept in one array until then.
    location_attributes_.push_back(
        {static_cast<uint32_t>(location_indices_.size()), static_cast<uint32_t>(scratch_.size())});
    location_indices_.insert(location_indices_.end(), scratch_.begin(), scratch_.end());
    profile_.locations.push_back(std::move(location));
  }

  // The function index stays in `function` until all functions are known.
  ReadLine line(const protozero::data_view& bytes) {
    budget_.charge(2 * sizeof(ReadLine));
    ReadLine line;
    each(bytes, [&](protozero::pbf_reader& field) {
      if (is(field, otlp::kFunctionIndex, kVarint)) {
        line.function = field.get_uint32();
      } else if (is(field, otlp::kLineNumber, kVarint)) {
        const int64_t number = field.get_int64();
        line.line =
            number >= 0 && number <= std::numeric_limits<uint32_t>::max() ? static_cast<uint32_t>(number) : 0;
      } else {
        field.skip();
      }
    });
    return line;
  }

  void stack(const protozero::data_view& bytes) {
    budget_.charge(sizeof(std::vector<uint32_t>) + 16);
    scratch_.clear();
    each(bytes, [&](protozero::pbf_reader& field) {
      bool known = false;
      add_indices(field, otlp::kLocationIndices, scratch_, known);
      if (!known) field.skip();
    });
    profile_.stacks.emplace_back(scratch_.begin(), scratch_.end());
  }

  void attribute(const protozero::data_view& bytes) {
    budget_.charge(sizeof(Attribute) + sizeof(uint32_t));
    Attribute attribute;
    each(bytes, [&](protozero::pbf_reader& field) {
      if (is(field, otlp::kKey, kVarint))
        attribute.key = field.get_uint32();
      else if (is(field, otlp::kValue, kBytes))
        value(field.get_view(), attribute);
      else
        field.skip();
    });
    attributes_.push_back(std::move(attribute));
  }

  // An array's elements are read where they are strings; deeper nesting is not clew's and is skipped, so that
  // a file cannot make this recurse.
  void value(const protozero::data_view& bytes, Attribute& attribute) {
    each(bytes, [&](protozero::pbf_reader& field) {
      if (is(field, otlp::kString, kBytes)) {
        attribute.text = text(field.get_view());
      } else if (is(field, otlp::kBool, kVarint)) {
        attribute.number = field.get_bool();
      } else if (is(field, otlp::kInt, kVarint)) {
        attribute.number = field.get_int64();
      } else if (is(field, otlp::kStringIndex, kVarint)) {
        attribute.string = field.get_uint32();
      } else if (is(field, otlp::kArray, kBytes)) {
        each(field.get_view(), [&](protozero::pbf_reader& element) {
          if (!is(element, otlp::kArrayValues, kBytes)) return element.skip();
          each(element.get_view(), [&](protozero::pbf_reader& inner) {
            if (!is(inner, otlp::kString, kBytes)) return inner.skip();
            budget_.charge(sizeof(std::string));
            attribute.array.push_back(text(inner.get_view()));
          });
        });
      } else {
        field.skip();
      }
    });
  }

  std::string text(const protozero::data_view& bytes) {
    std::string text = valid_utf8({bytes.data(), bytes.size()});
    budget_.charge(text.size());
    return text;
  }

  // ---- Indices ----

  template <class T>
  uint32_t checked(uint32_t index, const std::vector<T>& table) {
    if (index < table.size()) return index;
    ++profile_.ignored;
    return 0;
  }

  const Attribute* attribute_at(uint32_t index) {
    if (index < attributes_.size()) return &attributes_[index];
    ++profile_.ignored;
    return nullptr;
  }

  std::string_view key_of(const Attribute& attribute) const { return profile_.strings[attribute.key]; }
  std::string_view text_of(const Attribute& attribute) const {
    return attribute.string ? std::string_view(profile_.strings[*attribute.string]) : attribute.text;
  }

  // Once the whole dictionary is known: element 0 of each table, and every index in range.
  void resolve() {
    if (profile_.strings.empty()) profile_.strings.emplace_back();
    if (!profile_.strings[0].empty()) {
      profile_.strings[0].clear();
      ++profile_.ignored;
    }
    if (profile_.mappings.empty()) profile_.mappings.emplace_back(), mappings_.emplace_back();
    if (profile_.locations.empty()) profile_.locations.emplace_back(), location_attributes_.emplace_back();
    if (profile_.stacks.empty()) profile_.stacks.emplace_back();
    if (functions_.empty()) functions_.emplace_back();
    for (Attribute& attribute : attributes_) {
      attribute.key = checked(attribute.key, profile_.strings);
      if (attribute.string) attribute.string = checked(*attribute.string, profile_.strings);
    }
    for (Function& function : functions_) {
      function.name = checked(function.name, profile_.strings);
      function.file = checked(function.file, profile_.strings);
    }
    for (size_t i = 0; i < mappings_.size(); ++i) resolve_mapping(profile_.mappings[i], mappings_[i]);
    for (size_t i = 0; i < location_attributes_.size(); ++i)
      resolve_location(profile_.locations[i], location_attributes_[i]);
    for (std::vector<uint32_t>& stack : profile_.stacks) {
      profile_.ignored += std::erase_if(
          stack, [&](uint32_t location) { return location == 0 || location >= profile_.locations.size(); });
    }
    if (!profile_.stacks[0].empty()) {
      profile_.stacks[0].clear();
      ++profile_.ignored;
    }
  }

  struct RawMapping {
    uint32_t path = 0;
    std::vector<uint32_t> attributes;
  };
  struct Range {
    uint32_t first = 0, count = 0;
  };

  // Tables refer to strings by index, and many entries to one long string: copies are charged as well.
  void resolve_mapping(Mapping& mapping, const RawMapping& raw) {
    mapping.path = profile_.strings[checked(raw.path, profile_.strings)];
    budget_.charge(mapping.path.size());
    for (const uint32_t index : raw.attributes) {
      const Attribute* attribute = attribute_at(index);
      if (!attribute || key_of(*attribute) != otlp::kBuildId) continue;
      mapping.build_id = text_of(*attribute);
      budget_.charge(mapping.build_id.size());
    }
  }

  void resolve_location(Location& location, const Range& range) {
    location.place.mapping = checked(location.place.mapping, profile_.mappings);
    for (ReadLine& line : location.lines) {
      const Function& function = functions_[checked(line.function, functions_)];
      line.function = function.name;
      line.file = function.file;
    }
    for (uint32_t i = range.first; i < range.first + range.count; ++i) {
      const Attribute* attribute = attribute_at(location_indices_[i]);
      if (!attribute) continue;
      const std::string_view key = key_of(*attribute);
      if (key == otlp::kFrameType) {
        const std::string_view type = text_of(*attribute);
        location.place.kind = type == "kernel" ? FrameKind::kKernel
                              : type == "bpf"  ? FrameKind::kBpf
                                               : FrameKind::kNative;
      } else if (key == otlp::kHow) {
        location.place.how = how_named(text_of(*attribute));
      } else if (attribute->number != 0) {
        if (key == otlp::kExactPc) location.place.flags |= CLEW_FRAME_EXACT_PC;
        if (key == otlp::kSignal) location.place.flags |= CLEW_FRAME_SIGNAL;
        if (key == otlp::kGuessed) location.place.flags |= CLEW_FRAME_GUESSED;
      }
    }
  }

  static uint8_t how_named(std::string_view name) {
    uint8_t how = 0;
    while (how < CLEW_HOW_COUNT && name != clew_how_name(how)) ++how;
    return how;
  }

  static clew_end end_named(std::string_view name) {
    int end = 0;
    while (end < CLEW_END_COUNT && name != clew_end_name(static_cast<uint32_t>(end))) ++end;
    return static_cast<clew_end>(end);
  }

  // ---- Samples ----

  void resource_profiles(const protozero::data_view& bytes) {
    each(bytes, [&](protozero::pbf_reader& field) {
      if (!is(field, otlp::kScopeProfiles, kBytes)) return field.skip();
      each(field.get_view(), [&](protozero::pbf_reader& inner) {
        if (!is(inner, otlp::kProfiles, kBytes)) return inner.skip();
        profile(inner.get_view());
      });
    });
  }

  void profile(const protozero::data_view& bytes) {
    // A field may come in any order: what all samples need is read first.
    std::vector<uint32_t> indices;
    uint32_t type = 0;
    each(bytes, [&](protozero::pbf_reader& field) {
      bool known = false;
      if (is(field, otlp::kSampleType, kBytes)) {
        each(field.get_view(), [&](protozero::pbf_reader& inner) {
          if (is(inner, otlp::kType, kVarint))
            type = checked(inner.get_uint32(), profile_.strings);
          else
            inner.skip();
        });
      } else if (is(field, otlp::kPeriod, kVarint)) {
        profile_.period_ns = static_cast<uint64_t>(std::max<int64_t>(0, field.get_int64()));
      } else {
        add_indices(field, otlp::kProfileAttributes, indices, known);
        if (!known) field.skip();
      }
    });
    for (const uint32_t index : indices)
      if (const Attribute* attribute = attribute_at(index)) profile_attribute(*attribute);
    const bool is_cpu = profile_.strings[type] == otlp::kCpu,
               is_off_cpu = profile_.strings[type] == otlp::kOffCpu;
    each(bytes, [&](protozero::pbf_reader& field) {
      if (!is(field, otlp::kSamples, kBytes)) return field.skip();
      if (is_cpu || is_off_cpu) return sample(field.get_view(), is_cpu ? profile_.samples : profile_.waits);
      ++profile_.ignored;
      field.skip();
    });
  }

  void profile_attribute(const Attribute& attribute) {
    const std::string_view key = key_of(attribute);
    const auto number = static_cast<uint64_t>(std::max<int64_t>(0, attribute.number));
    Totals& totals = profile_.totals;
    // A list may name one attribute again and again: a copy each time is charged.
    budget_.charge(text_of(attribute).size());
    for (const std::string& element : attribute.array) budget_.charge(sizeof(std::string) + element.size());
    if (key == otlp::kClockOffset) profile_.unix_offset_ns = attribute.number;
    if (key == otlp::kLost) totals.lost = number, has_totals_ = true;
    if (key == otlp::kDuration) totals.duration_ns = number;
    if (key == otlp::kCpuUsed) totals.cpu_used_ns = number;
    if (key == otlp::kClewCpu) totals.clew_cpu_ns = number;
    if (key == otlp::kBpfCpu) totals.bpf_cpu_ns = number;
    if (key == otlp::kCollector) totals.collector = text_of(attribute);
    if (key == otlp::kCommand) totals.command = text_of(attribute);
    if (key == otlp::kNotes) totals.notes = attribute.array;
  }

  void sample(const protozero::data_view& bytes, std::vector<ReadSample>& samples) {
    budget_.refund((values_.size() + times_.size()) * sizeof(uint64_t) + indices_.size() * sizeof(uint32_t));
    indices_.clear();
    values_.clear();
    times_.clear();
    uint32_t stack = 0;
    each(bytes, [&](protozero::pbf_reader& field) {
      bool known = false;
      if (is(field, otlp::kStackIndex, kVarint)) {
        stack = field.get_uint32();
      } else if (is(field, otlp::kValues, kBytes)) {
        for (const int64_t value : field.get_packed_int64()) {
          budget_.charge(sizeof value);
          values_.push_back(value);
        }
      } else if (is(field, otlp::kValues, kVarint)) {
        budget_.charge(sizeof(int64_t));
        values_.push_back(field.get_int64());
      } else if (is(field, otlp::kTimestamps, kBytes)) {
        for (const uint64_t time : field.get_packed_fixed64()) {
          budget_.charge(sizeof time);
          times_.push_back(time);
        }
      } else if (is(field, otlp::kTimestamps, kFixed64)) {
        budget_.charge(sizeof(uint64_t));
        times_.push_back(field.get_fixed64());
      } else {
        add_indices(field, otlp::kSampleAttributes, indices_, known);
        if (!known) field.skip();
      }
    });
    const size_t count = std::max(values_.size(), times_.size());
    if (stack >= profile_.stacks.size()) {
      profile_.ignored += count;
      return;
    }
    ReadSample sample{stack, 0, 0, 0, 0, 0, static_cast<clew_end>(CLEW_END_COUNT)};
    for (const uint32_t index : indices_) {
      const Attribute* attribute = attribute_at(index);
      if (!attribute) continue;
      const std::string_view key = key_of(*attribute);
      if (key == otlp::kPid) sample.pid = static_cast<pid_t>(attribute->number);
      if (key == otlp::kTid) sample.tid = static_cast<pid_t>(attribute->number);
      if (key == otlp::kThreadName) sample.comm = thread_name(index, *attribute);
      if (key == otlp::kEnd) sample.end = end_named(text_of(*attribute));
    }
    if (!times_.empty() && !values_.empty() && times_.size() != values_.size()) ++profile_.ignored;
    budget_.charge(count * sizeof(ReadSample));
    for (size_t i = 0; i < count; ++i) {
      // Without values each time stamp counts as 1 (profiles.proto, message Sample).
      const int64_t value = i < values_.size() ? values_[i] : values_.empty() ? 1 : 0;
      sample.weight_ns = static_cast<uint64_t>(std::max<int64_t>(0, value));
      sample.time_ns = i < times_.size() ? times_[i] - static_cast<uint64_t>(profile_.unix_offset_ns) : 0;
      samples.push_back(sample);
    }
  }

  // Thread names are attribute values; Profile keeps them with the other strings, each once.
  uint32_t thread_name(uint32_t index, const Attribute& attribute) {
    if (attribute.string) return *attribute.string;
    if (thread_names_.size() < attributes_.size()) thread_names_.resize(attributes_.size());
    uint32_t& string = thread_names_[index];
    if (string == 0 && !attribute.text.empty()) {
      budget_.charge(sizeof(std::string) + attribute.text.size());
      string = static_cast<uint32_t>(profile_.strings.size());
      profile_.strings.push_back(attribute.text);
    }
    return string;
  }

  Profile& profile_;
  Budget& budget_;
  std::vector<RawMapping> mappings_;
  std::vector<Function> functions_;
  std::vector<Attribute> attributes_;
  std::vector<Range> location_attributes_;  // into location_indices_
  std::vector<uint32_t> location_indices_;
  std::vector<uint32_t> thread_names_;  // by attribute: its string, 0 where not yet known
  std::vector<uint32_t> indices_;       // of the sample
  std::vector<uint32_t> scratch_;       // of the location or stack, before it is known how many
  std::vector<int64_t> values_;
  std::vector<uint64_t> times_;
  bool has_string_ = false, has_totals_ = false;
};

// A killed recorder wrote no totals: what the samples say by themselves.
void derive_totals(Profile& profile) {
  uint64_t first = UINT64_MAX, last = 0;
  for (const ReadSample& sample : profile.samples) {
    first = std::min(first, sample.time_ns);
    last = std::max(last, sample.time_ns);
  }
  if (!profile.samples.empty()) profile.totals.duration_ns = last - first;
}

Result<Profile> decode(const std::string& path, std::string_view message, Budget& budget) {
  Profile profile;
  profile.path = path;
  Decoder decoder(profile, budget);
  decoder.run(message);
  if (!decoder.has_tables()) return Error{path + " is not a clew recording (those are made by clew record)"};
  profile.truncated = !decoder.has_totals();
  if (!decoder.has_totals()) derive_totals(profile);
  return profile;
}

// Runs what may throw; no exception leaves this file.
template <class Work>
auto bounded(const std::string& path, Work work) -> decltype(work()) {
  try {
    return work();
  } catch (const TooLarge&) {
    return Error{fmt::format("{} expands to more than {} times its size; it was not made by clew", path,
                             kMemoryFactor)};
  } catch (const protozero::exception& error) {
    return Error{fmt::format("{} is damaged or not a clew recording: {}", path, error.what())};
  }
}

}  // namespace

Result<Profile> read(const std::string& path) {
  const Result<std::string> file = read_file(path);
  if (!file) return Error{file.error()};
  return decode_file(path, *file);
}

Result<Profile> decode_file(const std::string& path, const std::string& file) {
  Budget budget(file.size());
  return bounded(path, [&]() -> Result<Profile> {
    const Result<Message> message = decompress(path, file, budget);
    if (!message) return Error{message.error()};
    Result<Profile> profile = decode(path, message->bytes, budget);
    if (profile) {
      profile->file_bytes = file.size();
      profile->truncated |= message->truncated;
    }
    return profile;
  });
}

Result<Profile> decode_message(const std::string& path, std::string_view message) {
  Budget budget(message.size());
  return bounded(path, [&] { return decode(path, message, budget); });
}

Result<std::string> otlp_message(const std::string& path) {
  const Result<std::string> file = read_file(path);
  if (!file) return Error{file.error()};
  Budget budget(file->size());
  return bounded(path, [&]() -> Result<std::string> {
    Result<Message> message = decompress(path, *file, budget);
    if (!message) return Error{message.error()};
    return std::move(message->bytes);
  });
}

}  // namespace clew::profile
