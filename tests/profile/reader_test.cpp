// Reading back, and files that are cut, damaged or made to do harm.
#include "profile/reader.hpp"

#include <zstd.h>

#include <filesystem>
#include <protozero/pbf_writer.hpp>
#include <random>

#include "profile/otlp.hpp"
#include "recording.hpp"

namespace clew::profile::test {
namespace {

std::string frame(const std::string& bytes) {
  std::string result(ZSTD_compressBound(bytes.size()), '\0');
  result.resize(ZSTD_compress(result.data(), result.size(), bytes.data(), bytes.size(), 3));
  return result;
}

// Uses every output, so that a bad index in the profile would be met.
void use(const Profile& profile) {
  for (const std::string& text : {summary(profile), summary_json(profile), table(profile, 10),
                                  folded(profile), pprof(profile), speedscope(profile)})
    EXPECT_FALSE(text.empty() && !profile.samples.empty());
}

TEST(ProfileReader, ReadsBackWhatWasWritten) {
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const Result<Profile> read_back = read(directory.file("r"));
  ASSERT_TRUE(read_back) << read_back.error();
  const Profile& profile = *read_back;
  EXPECT_FALSE(profile.truncated);
  EXPECT_EQ(profile.ignored, 0U);
  EXPECT_EQ(profile.period_ns, kPeriodNs);
  EXPECT_EQ(profile.file_bytes, std::filesystem::file_size(directory.file("r")));
  EXPECT_EQ(profile.totals.lost, 3U);
  EXPECT_EQ(profile.totals.duration_ns, 9'000'000U);
  EXPECT_EQ(profile.totals.cpu_used_ns, 12'000'000U);
  EXPECT_EQ(profile.totals.clew_cpu_ns, 250'000U);
  EXPECT_EQ(profile.totals.bpf_cpu_ns, 125'000U);
  EXPECT_EQ(profile.totals.collector, "perf");
  EXPECT_EQ(profile.totals.command, "app --fast");
  ASSERT_EQ(profile.totals.notes.size(), 1U);
  ASSERT_EQ(profile.mappings.size(), 2U);
  EXPECT_EQ(profile.mappings[1], app());

  ASSERT_EQ(profile.samples.size(), 8U);
  size_t cut = 0, worker = 0, none = 0;
  for (const ReadSample& read_sample : profile.samples) {
    EXPECT_EQ(read_sample.pid, 100);
    EXPECT_EQ(read_sample.weight_ns, kPeriodNs);
    const uint64_t index = (read_sample.time_ns - kStartNs + kPeriodNs / 2) / kPeriodNs;
    ASSERT_LT(index, 8U);
    EXPECT_NEAR(static_cast<double>(read_sample.time_ns), static_cast<double>(kStartNs + index * kPeriodNs),
                1024);
    const std::vector<uint32_t>& stack = profile.stacks[read_sample.stack];
    if (read_sample.tid == 101) {
      ++worker;
      EXPECT_EQ(profile.strings[read_sample.comm], "worker");
    }
    if (read_sample.end == CLEW_END_STACK_CUT) {
      ++cut;
      ASSERT_EQ(stack.size(), 2U);
      EXPECT_EQ(profile.locations[stack[1]].place,
                native(1, 0x3abc, CLEW_HOW_FRAME_POINTER, CLEW_FRAME_GUESSED));
      EXPECT_TRUE(profile.locations[stack[1]].lines.empty());
    }
    if (read_sample.end == CLEW_END_NO_USER_STACK) {
      ++none;
      EXPECT_TRUE(stack.empty());
    }
    if (index == 0) {
      ASSERT_EQ(stack.size(), 2U);
      const Location& leaf = profile.locations[stack[0]];
      EXPECT_EQ(leaf.place, native(1, 0x2010, CLEW_HOW_REGISTERS, CLEW_FRAME_EXACT_PC));
      ASSERT_EQ(leaf.lines.size(), 2U);
      EXPECT_EQ(profile.strings[leaf.lines[0].function], "helper(int)");
      EXPECT_EQ(profile.strings[leaf.lines[0].file], "/src/app.hpp");
      EXPECT_EQ(leaf.lines[1].line, 20U);
    }
    if (index == 5) {
      ASSERT_EQ(stack.size(), 3U);
      EXPECT_EQ(profile.locations[stack[0]].place.kind, FrameKind::kKernel);
    }
  }
  EXPECT_EQ(cut, 1U);
  EXPECT_EQ(worker, 2U);
  EXPECT_EQ(none, 1U);
}

TEST(ProfileReader, LosesOnlyTheLastPieceWhereverAFileIsCut) {
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const std::string file = contents(directory.file("r"));
  std::vector<size_t> ends;  // of the pieces
  for (size_t at = 0; at < file.size(); ends.push_back(at))
    at += ZSTD_findFrameCompressedSize(file.data() + at, file.size() - at);
  ASSERT_EQ(ends.size(), 3U);
  for (size_t size = 0; size < file.size(); ++size) {
    const Result<Profile> profile = decode_file("r", file.substr(0, size));
    if (size < ends[0]) {
      EXPECT_FALSE(profile) << size;
      continue;
    }
    ASSERT_TRUE(profile) << size << ": " << profile.error();
    EXPECT_TRUE(profile->truncated) << size;
    EXPECT_EQ(profile->samples.size(), size < ends[1] ? 0U : 3U) << size;
    use(*profile);
  }
}

TEST(ProfileReader, TakesADamagedByteForAnErrorOrFewerSamples) {
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const std::string file = contents(directory.file("r"));
  for (size_t at = 0; at < file.size(); ++at) {
    std::string damaged = file;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    const Result<Profile> profile = decode_file("r", damaged);
    if (!profile) continue;
    EXPECT_LE(profile->samples.size(), 8U);
    // Each frame has a checksum: what is damaged is not believed.
    EXPECT_TRUE(profile->truncated || profile->samples.size() == 8) << at;
    use(*profile);
  }
}

TEST(ProfileReader, SurvivesADamagedMessage) {
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const Result<std::string> message = otlp_message(directory.file("r"));
  ASSERT_TRUE(message);
  std::mt19937 random(1);
  for (size_t at = 0; at < message->size(); ++at)
    for (int i = 0; i < 3; ++i) {
      std::string damaged = *message;
      damaged[at] = static_cast<char>(random());
      if (i == 2) damaged.resize(at);
      if (const Result<Profile> profile = decode_message("r", damaged)) use(*profile);
    }
}

TEST(ProfileReader, ReadsARecordingThatWasCompressedAgain) {
  if (!has_program("zstd")) GTEST_SKIP() << "zstd is not installed here";
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  // From a pipe: the frame does not say its decompressed size.
  ASSERT_EQ(run("zstd -dcq " + directory.file("r") + " | zstd -q -9 > " + directory.file("again")).status, 0);
  const Result<Profile> profile = read(directory.file("again"));
  ASSERT_TRUE(profile) << profile.error();
  EXPECT_EQ(profile->samples.size(), 8U);
  EXPECT_FALSE(profile->truncated);
}

TEST(ProfileReader, RefusesWhatIsNoRecording) {
  const TemporaryDirectory directory;
  const auto error_of = [&](const std::string& bytes) {
    put(directory.file("f"), bytes);
    const Result<Profile> profile = read(directory.file("f"));
    return profile ? std::string() : profile.error();
  };
  EXPECT_NE(error_of("").find("is empty"), std::string::npos);
  EXPECT_NE(error_of("\x7f"
                     "ELF, or anything")
                .find("not a clew recording"),
            std::string::npos);
  EXPECT_NE(error_of("\x28\xb5").find("cut short"), std::string::npos);
  EXPECT_NE(error_of(frame("a text file\n")).find("not a clew recording"), std::string::npos);
  EXPECT_NE(error_of(frame("")).find("not a clew recording"), std::string::npos);
  const Result<Profile> missing = read(directory.file("missing"));
  ASSERT_FALSE(missing);
  EXPECT_NE(missing.error().find("does not exist"), std::string::npos);
  EXPECT_FALSE(read("/"));
  EXPECT_FALSE(read("/dev/zero"));
}

TEST(ProfileReader, RefusesAFileThatExpandsTooFar) {
  // 256 MiB of zeros are 8 KB of zstd; also where the header does not say the size.
  const std::string zeros(256 << 20, '\0');
  const Result<Profile> sized = decode_file("bomb", frame(zeros));
  ASSERT_FALSE(sized);
  EXPECT_NE(sized.error().find("expands"), std::string::npos) << sized.error();

  ZSTD_CCtx* zstd = ZSTD_createCCtx();
  ZSTD_CCtx_setParameter(zstd, ZSTD_c_contentSizeFlag, 0);
  std::string unsized_frame(ZSTD_compressBound(zeros.size()), '\0');
  unsized_frame.resize(
      ZSTD_compress2(zstd, unsized_frame.data(), unsized_frame.size(), zeros.data(), zeros.size()));
  ZSTD_freeCCtx(zstd);
  ASSERT_EQ(ZSTD_getFrameContentSize(unsized_frame.data(), unsized_frame.size()), ZSTD_CONTENTSIZE_UNKNOWN);
  const Result<Profile> streamed = decode_file("bomb", unsized_frame);
  ASSERT_FALSE(streamed);
  EXPECT_NE(streamed.error().find("expands"), std::string::npos) << streamed.error();
}

TEST(ProfileReader, RefusesSmallEntriesThatNeedMuchMemory) {
  // Two bytes an empty location: 16 MiB of them would be half a gigabyte here.
  std::string table;
  for (size_t i = 0; i < (8 << 20); ++i) table += std::string("\x12\x00", 2);
  std::string message;
  protozero::pbf_writer(message).add_message(otlp::kDictionary, table);
  const Result<Profile> profile = decode_file("bomb", frame(message));
  ASSERT_FALSE(profile);
  EXPECT_NE(profile.error().find("expands"), std::string::npos) << profile.error();
}

TEST(ProfileReader, RefusesCopiesOfOneLongString) {
  // A hundred thousand mappings that all name one string of a megabyte.
  std::string dictionary;
  protozero::pbf_writer tables(dictionary);
  tables.add_string(otlp::kStringTable, "");
  tables.add_string(otlp::kStringTable, std::string(1 << 20, 'a'));
  std::string mapping;
  protozero::pbf_writer(mapping).add_uint32(otlp::kFilename, 1);
  for (int i = 0; i < 100'000; ++i) tables.add_message(otlp::kMappingTable, mapping);
  std::string message;
  protozero::pbf_writer(message).add_message(otlp::kDictionary, dictionary);
  EXPECT_FALSE(decode_message("bomb", message));
}

// A message of a dictionary and one CPU profile, whose parts a test may get wrong.
struct Crafted {
  std::string dictionary, profile;
  Crafted() {
    protozero::pbf_writer tables(dictionary);
    for (const char* text : {"", "cpu", "f"}) tables.add_string(otlp::kStringTable, text);
    tables.add_message(otlp::kStackTable, std::string());
    tables.add_message(otlp::kLocationTable, std::string());
    std::string type;
    protozero::pbf_writer(type).add_uint32(otlp::kType, 1);
    protozero::pbf_writer(profile).add_message(otlp::kSampleType, type);
  }
  void entry(uint32_t table, const std::string& bytes) {
    protozero::pbf_writer(dictionary).add_message(table, bytes);
  }
  void add_sample(uint32_t stack, std::vector<uint32_t> attributes, std::vector<int64_t> values,
                  std::vector<uint64_t> times) {
    std::string bytes;
    protozero::pbf_writer message(bytes);
    message.add_uint32(otlp::kStackIndex, stack);
    message.add_packed_uint32(otlp::kSampleAttributes, attributes.begin(), attributes.end());
    message.add_packed_int64(otlp::kValues, values.begin(), values.end());
    message.add_packed_fixed64(otlp::kTimestamps, times.begin(), times.end());
    protozero::pbf_writer(profile).add_message(otlp::kSamples, bytes);
  }
  Result<Profile> decoded() const {
    std::string scope, resource, message;
    protozero::pbf_writer(scope).add_message(otlp::kProfiles, profile);
    protozero::pbf_writer(resource).add_message(otlp::kScopeProfiles, scope);
    // The samples first: a message's fields may come in any order.
    protozero::pbf_writer(message).add_message(otlp::kResourceProfiles, resource);
    protozero::pbf_writer(message).add_message(otlp::kDictionary, dictionary);
    return decode_message("crafted", message);
  }
};

TEST(ProfileReader, LeavesOutAndCountsIndicesThatPointNowhere) {
  Crafted crafted;
  std::string location, stack, line, function;
  protozero::pbf_writer(function).add_uint32(otlp::kFunctionName, 77);
  crafted.entry(otlp::kFunctionTable, function);
  protozero::pbf_writer(line).add_uint32(otlp::kFunctionIndex, 88);
  protozero::pbf_writer(location).add_uint32(otlp::kMappingIndex, 99);
  protozero::pbf_writer(location).add_message(otlp::kLines, line);
  crafted.entry(otlp::kLocationTable, location);
  const std::vector<uint32_t> places{1, 2, 0xffffffff, 0};
  protozero::pbf_writer(stack).add_packed_uint32(otlp::kLocationIndices, places.begin(), places.end());
  crafted.entry(otlp::kStackTable, stack);
  crafted.add_sample(1, {5}, {10}, {20});
  crafted.add_sample(2, {}, {10, 10}, {20, 30});
  const Result<Profile> profile = crafted.decoded();
  ASSERT_TRUE(profile) << profile.error();
  ASSERT_EQ(profile->samples.size(), 1U);
  EXPECT_EQ(profile->stacks[1], std::vector<uint32_t>{1});
  EXPECT_EQ(profile->locations[1].place.mapping, 0U);
  // The function's name, the line's function, the mapping, three locations, an attribute, two samples.
  EXPECT_EQ(profile->ignored, 9U);
  EXPECT_NE(summary(*profile).find("9 entries of the file"), std::string::npos);
  use(*profile);
}

TEST(ProfileReader, CountsASampleWithoutEndReasonAsNotComplete) {
  Crafted crafted;
  crafted.add_sample(0, {}, {1000}, {20});
  const Result<Profile> profile = crafted.decoded();
  ASSERT_TRUE(profile) << profile.error();
  ASSERT_EQ(profile->samples.size(), 1U);
  EXPECT_EQ(profile->samples[0].end, CLEW_END_COUNT);
  EXPECT_NE(summary_json(*profile).find("\"complete\": 0"), std::string::npos);
  EXPECT_NE(summary_json(*profile).find("\"end_reasons\": {\"unknown\": 1}"), std::string::npos);
}

TEST(ProfileReader, AcceptsTheShapesOfSamplesThatTheSpecificationAllows) {
  Crafted crafted;
  crafted.add_sample(0, {}, {}, {1, 2, 3});    // time stamps only: 1 each
  crafted.add_sample(0, {}, {500}, {});        // a sum without times
  crafted.add_sample(0, {}, {7, -7}, {1, 2});  // a negative weight is none
  const Result<Profile> profile = crafted.decoded();
  ASSERT_TRUE(profile) << profile.error();
  std::vector<uint64_t> weights;
  for (const ReadSample& one : profile->samples) weights.push_back(one.weight_ns);
  EXPECT_EQ(weights, (std::vector<uint64_t>{1, 1, 1, 500, 7, 0}));
}

TEST(ProfileReader, ReplacesInvalidUtf8) {
  Crafted crafted;
  protozero::pbf_writer(crafted.dictionary).add_string(otlp::kStringTable, "a\xff\xc0\x80z\xed\xa0\x80");
  const Result<Profile> profile = crafted.decoded();
  ASSERT_TRUE(profile) << profile.error();
  const std::string mark = "\xef\xbf\xbd";
  EXPECT_EQ(profile->strings[3], "a" + mark + mark + mark + "z" + mark + mark + mark);
}

TEST(ProfileReader, IsNotMadeToRecurse) {
  // Arrays in arrays, some 10,000 deep.
  std::string value;
  for (int i = 0; i < 10'000; ++i) {
    std::string element, array;
    protozero::pbf_writer(array).add_message(otlp::kArrayValues, value);
    protozero::pbf_writer(element).add_message(otlp::kArray, array);
    value = std::move(element);
  }
  std::string attribute;
  protozero::pbf_writer(attribute).add_message(otlp::kValue, value);
  Crafted crafted;
  crafted.entry(otlp::kAttributeTable, attribute);
  EXPECT_TRUE(crafted.decoded());
}

}  // namespace
}  // namespace clew::profile::test
