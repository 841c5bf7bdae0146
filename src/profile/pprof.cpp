// pprof's profile.proto, gzip-compressed (https://github.com/google/pprof/blob/main/proto/profile.proto).
//
//   Profile   sample_type 1, sample 2, mapping 3, location 4, function 5, string_table 6 ([0] is ""),
//   time_nanos 9,
//             duration_nanos 10, period_type 11, period 12, comment 13, default_sample_type 14
//   Sample    location_id 1 (leaf first), value 2 (one a sample type), label 3
//   Label     key 1, str 2, num 3
//   Mapping   id 1, memory_start 2, memory_limit 3, file_offset 4, filename 5, build_id 6, has_functions 7,
//             has_filenames 8, has_line_numbers 9, has_inline_frames 10
//   Location  id 1, mapping_id 2, address 3, line 4 (innermost first)
//   Line      function_id 1, line 2
//   Function  id 1, name 2, system_name 3, filename 4
//
// Ids are clew's own indices, where 0 likewise means "none". Samples of one stack, thread and end reason are
// one.
#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <protozero/pbf_writer.hpp>
#include <tuple>
#include <unordered_map>

#include "profile/counts.hpp"
#include "profile/functions.hpp"
#include "profile/profile.hpp"
#include "profile/text.hpp"

namespace clew::profile {
namespace {

class Encoder {
 public:
  explicit Encoder(const Profile& profile) : profile_(profile) { string(""); }

  std::string run() {
    value_type(1, "samples", "count");
    const char* const type = profile_.off_cpu ? "off_cpu" : "cpu";
    value_type(1, type, "nanoseconds");
    samples();
    mappings();
    locations();
    no_frames_locations();
    uint64_t first = UINT64_MAX;
    for (const ReadSample& sample : profile_.samples) first = std::min(first, sample.time_ns);
    if (!profile_.samples.empty())
      message_.add_int64(9, static_cast<int64_t>(first + static_cast<uint64_t>(profile_.unix_offset_ns)));
    message_.add_int64(10, static_cast<int64_t>(profile_.totals.duration_ns));
    value_type(11, "cpu", "nanoseconds");
    message_.add_int64(12, static_cast<int64_t>(profile_.period_ns));
    for (const std::string& note : profile_.totals.notes) message_.add_int64(13, string(printable(note)));
    message_.add_int64(14, string(type));
    for (const std::string* text : order_) message_.add_string(6, *text);
    return std::move(bytes_);
  }

 private:
  int64_t string(const std::string& text) {
    const auto [entry, is_new] = strings_.try_emplace(text, static_cast<int64_t>(order_.size()));
    if (is_new) order_.push_back(&entry->first);
    return entry->second;
  }

  void value_type(uint32_t field, const char* type, const char* unit) {
    protozero::pbf_writer message(message_, field);
    message.add_int64(1, string(type));
    message.add_int64(2, string(unit));
  }

  void label(protozero::pbf_writer& sample, const char* key, const std::string& text) {
    protozero::pbf_writer message(sample, 3);
    message.add_int64(1, string(key));
    message.add_int64(2, string(printable(text)));
  }
  void label(protozero::pbf_writer& sample, const char* key, int64_t number) {
    protozero::pbf_writer message(sample, 3);
    message.add_int64(1, string(key));
    message.add_int64(3, number);
  }

  void samples() {
    std::vector<uint32_t> order(profile_.samples.size());
    for (uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    const auto key = [&](uint32_t i) {
      const ReadSample& s = profile_.samples[i];
      return std::tie(s.stack, s.pid, s.tid, s.comm, s.end);
    };
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return key(a) < key(b); });
    for (size_t i = 0; i < order.size();) {
      const ReadSample& first = profile_.samples[order[i]];
      uint64_t count = 0, weight_ns = 0;
      for (const uint32_t start = order[i]; i < order.size() && key(order[i]) == key(start); ++i) {
        ++count;
        weight_ns += profile_.samples[order[i]].weight_ns;
      }
      const std::vector<uint32_t>& stack = profile_.stacks[first.stack];
      const int64_t values[] = {static_cast<int64_t>(count), static_cast<int64_t>(weight_ns)};
      protozero::pbf_writer message(message_, 2);
      if (stack.empty()) {
        const uint64_t stand_in = no_frames_location(first.end);
        message.add_packed_uint64(1, &stand_in, &stand_in + 1);
      } else {
        message.add_packed_uint64(1, stack.begin(), stack.end());
      }
      message.add_packed_int64(2, std::begin(values), std::end(values));
      label(message, "pid", first.pid);
      label(message, "tid", first.tid);
      label(message, "thread", profile_.strings[first.comm]);
      if (first.end != CLEW_END_ROOT) label(message, "ended", std::string(clew_end_name(first.end)));
    }
  }

  void mappings() {
    struct Has {
      bool functions = false, files = false, lines = false, inlined = false;
    };
    std::vector<Has> has(profile_.mappings.size());
    for (const Location& location : profile_.locations) {
      Has& of = has[location.place.mapping];
      of.inlined |= location.lines.size() > 1;
      for (const ReadLine& line : location.lines) {
        of.functions |= line.function != 0;
        of.files |= line.file != 0;
        of.lines |= line.line != 0;
      }
    }
    for (uint32_t i = 1; i < profile_.mappings.size(); ++i) {
      const Mapping& mapping = profile_.mappings[i];
      const int64_t path = string(printable(mapping.path)), build_id = string(printable(mapping.build_id));
      protozero::pbf_writer message(message_, 3);
      message.add_uint64(1, i);
      message.add_uint64(2, mapping.start);
      message.add_uint64(3, mapping.end);
      message.add_uint64(4, mapping.offset);
      message.add_int64(5, path);
      message.add_int64(6, build_id);
      message.add_bool(7, has[i].functions);
      message.add_bool(8, has[i].files);
      message.add_bool(9, has[i].lines);
      message.add_bool(10, has[i].inlined);
    }
  }

  void locations() {
    for (uint32_t i = 1; i < profile_.locations.size(); ++i) {
      const Location& location = profile_.locations[i];
      std::vector<std::pair<uint64_t, uint32_t>> lines;
      lines.reserve(location.lines.size());
      for (const ReadLine& line : location.lines) lines.emplace_back(function(line), line.line);
      // Kernel code without a mapping has no name that pprof could make up; clew's own stands in for it.
      if (lines.empty() && location.place.mapping == 0)
        lines.emplace_back(function_named(unmapped(location)), 0);
      protozero::pbf_writer message(message_, 4);
      message.add_uint64(1, i);
      if (location.place.mapping) message.add_uint64(2, location.place.mapping);
      message.add_uint64(3, location.place.address);
      for (const auto& [id, number] : lines) {
        protozero::pbf_writer line(message, 4);
        line.add_uint64(1, id);
        if (number) line.add_int64(2, number);
      }
    }
  }

  // pprof shows a sample only by its locations: one that has none gets a location that says why.
  uint64_t no_frames_location(clew_end end) const { return profile_.locations.size() + end; }

  void no_frames_locations() {
    for (uint32_t end = 0; end <= CLEW_END_COUNT; ++end) {
      const auto reason = static_cast<clew_end>(end);
      const bool used =
          std::any_of(profile_.samples.begin(), profile_.samples.end(), [&](const ReadSample& sample) {
            return sample.end == reason && profile_.stacks[sample.stack].empty();
          });
      if (!used) continue;
      const uint64_t function = function_named(no_frames_name(reason));
      protozero::pbf_writer message(message_, 4);
      message.add_uint64(1, no_frames_location(reason));
      protozero::pbf_writer line(message, 4);
      line.add_uint64(1, function);
    }
  }

  static std::string unmapped(const Location& location) {
    return location.place.kind == FrameKind::kKernel ? "[kernel]" : "[unknown]";
  }

  uint64_t function_named(const std::string& name) { return function_id(string(name), 0); }

  uint64_t function(const ReadLine& line) {
    const std::string& name = profile_.strings[line.function];
    return function_id(string(name.empty() ? "[unknown]" : printable(name)),
                       string(printable(profile_.strings[line.file])));
  }

  uint64_t function_id(int64_t name, int64_t file) {
    const auto [entry, is_new] = functions_.try_emplace(
        static_cast<uint64_t>(name) << 32 | static_cast<uint64_t>(file), functions_.size() + 1);
    if (is_new) {
      protozero::pbf_writer message(message_, 5);
      message.add_uint64(1, entry->second);
      message.add_int64(2, name);
      message.add_int64(3, name);
      message.add_int64(4, file);
    }
    return entry->second;
  }

  const Profile& profile_;
  std::string bytes_;
  protozero::pbf_writer message_{bytes_};
  std::unordered_map<std::string, int64_t> strings_;
  std::vector<const std::string*> order_;             // keys of strings_, whose nodes do not move
  std::unordered_map<uint64_t, uint64_t> functions_;  // by name and file
};

std::string gzip(const std::string& bytes) {
  constexpr int kGzip = 15 + 16;  // zlib: a 32 KiB window, gzip's header
  z_stream stream{};
  if (deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, kGzip, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    return {};
  std::string result;
  std::string input = bytes;
  std::string chunk(1 << 16, '\0');
  size_t at = 0;
  int status = Z_OK;
  while (status == Z_OK) {
    if (stream.avail_in == 0 && at < input.size()) {
      const size_t count = std::min<size_t>(input.size() - at, 1 << 30);
      stream.next_in = reinterpret_cast<Bytef*>(input.data() + at);
      stream.avail_in = static_cast<uInt>(count);
      at += count;
    }
    stream.next_out = reinterpret_cast<Bytef*>(chunk.data());
    stream.avail_out = static_cast<uInt>(chunk.size());
    status = deflate(&stream, at == input.size() ? Z_FINISH : Z_NO_FLUSH);
    result.append(chunk.data(), chunk.size() - stream.avail_out);
  }
  deflateEnd(&stream);
  return result;
}

}  // namespace

std::string pprof(const Profile& profile) { return gzip(Encoder(profile).run()); }

}  // namespace clew::profile
