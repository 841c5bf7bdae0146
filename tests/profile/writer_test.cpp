// What the writer puts into a file, seen by protoc and by the zstd program.
#include <sys/resource.h>
#include <sys/stat.h>
#include <zstd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>

#include "recording.hpp"

namespace clew::profile::test {
namespace {

size_t occurrences(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++count;
  return count;
}

// The message as protoc prints it; "" and a failure where protoc refuses it.
std::string by_protoc(const std::string& recording) {
  const Ran ran =
      run("zstd -dcq " + recording +
          " | protoc --decode=clew.test.ProfilesData -I" CLEW_SOURCE_DIR "/tests/profile otlp.proto 2>&1");
  EXPECT_EQ(ran.status, 0) << ran.output;
  return ran.output;
}

#define SKIP_WITHOUT_PROTOC()                                 \
  if (!has_program("protoc") || !has_program("zstd")) {       \
    GTEST_SKIP() << "protoc and zstd are not installed here"; \
  }

TEST(ProfileWriter, WritesOneMessageThatProtocDecodesWithoutUnknownFields) {
  SKIP_WITHOUT_PROTOC();
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const std::string text = by_protoc(directory.file("r"));
  // protoc prints a field that the schema does not have by its number.
  for (size_t line = 0; line < text.size(); line = text.find('\n', line) + 1) {
    const size_t word = text.find_first_not_of(' ', line);
    ASSERT_FALSE(isdigit(static_cast<unsigned char>(text[word]))) << text.substr(line, 80);
  }
  for (const char* expected :
       {"string_table: \"helper(int)\"", "string_table: \"/src/app.cpp\"", "string_table: \"/usr/bin/app\"",
        "string_table: \"process.pid\"", "string_table: \"thread.id\"", "string_table: \"thread.name\"",
        "string_table: \"profile.frame.type\"", "string_table: \"clew.frame.how\"",
        "string_table: \"clew.trace.end\"", "string_table: \"process.executable.build_id.gnu\"",
        "string_value: \"kernel\"", "string_value: \"stack-cut\"", "string_value: \"frame-pointer\"",
        "string_value: \"00112233445566778899aabbccddeeff00112233\"", "memory_start: 4096", "period: 1001001",
        "name: \"clew\""})
    EXPECT_NE(text.find(expected), std::string::npos) << expected;
}

TEST(ProfileWriter, HasElementZeroOfEachTableOnce) {
  SKIP_WITHOUT_PROTOC();
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const std::string text = by_protoc(directory.file("r"));
  for (const char* table :
       {"mapping_table", "location_table", "function_table", "attribute_table", "stack_table"})
    EXPECT_EQ(occurrences(text, std::string(table) + " {\n  }\n"), 1U) << table;
  EXPECT_EQ(occurrences(text, "string_table: \"\"\n"), 1U);
  EXPECT_EQ(occurrences(text, "link_table {"), 1U);
}

TEST(ProfileWriter, PutsSamplesOfOneStackByOneThreadIntoOneMessage) {
  SKIP_WITHOUT_PROTOC();
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const std::string text = by_protoc(directory.file("r"));
  // Three in the first piece; in the second the worker's, the kernel's, the cut one and the one without
  // frames.
  EXPECT_EQ(occurrences(text, "samples {"), 5U);
  EXPECT_EQ(occurrences(text, "timestamps_unix_nano:"), 8U);
  EXPECT_EQ(occurrences(text, "values: 1001001"), 8U);
}

TEST(ProfileWriter, WritesAnEntryOnlyInTheFirstPieceThatNeedsIt) {
  SKIP_WITHOUT_PROTOC();
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const std::string text = by_protoc(directory.file("r"));
  EXPECT_EQ(occurrences(text, "string_table: \"main\""), 1U);
  EXPECT_EQ(occurrences(text, "address: 4112\n"), 1U);  // 0x1010, in three stacks of two pieces
}

TEST(ProfileWriter, IsSymbolizedOncePerPlace) {
  const TemporaryDirectory directory;
  std::vector<uint64_t> asked;
  const std::unique_ptr<Writer> writer = create(directory.file("r"), [&](std::span<const Place> places) {
    for (const Place& place : places) asked.push_back(place.address);
    return names_of(places);
  });
  const uint32_t mapping = writer->mapping(app());
  for (int piece = 0; piece < 3; ++piece) {
    writer->sample(
        sample(writer->stack(std::array{native(mapping, 0x2010), native(mapping, 0x1010)}), kStartNs));
    ASSERT_TRUE(writer->flush(true));
  }
  std::sort(asked.begin(), asked.end());
  EXPECT_EQ(asked, (std::vector<uint64_t>{0x1010, 0x2010}));
}

TEST(ProfileWriter, NumbersEqualMappingsAndStacksEqually) {
  const TemporaryDirectory directory;
  const std::unique_ptr<Writer> writer = create(directory.file("r"));
  const uint32_t mapping = writer->mapping(app());
  EXPECT_EQ(writer->mapping(app()), mapping);
  Mapping other = app();
  other.build_id = "ff";
  EXPECT_NE(writer->mapping(other), mapping);
  const std::array stack{native(mapping, 0x2010), native(mapping, 0x1010)};
  const uint32_t number = writer->stack(stack);
  EXPECT_EQ(writer->stack(stack), number);
  std::array guessed = stack;
  guessed[0].flags = CLEW_FRAME_GUESSED;
  EXPECT_NE(writer->stack(guessed), number);
  EXPECT_EQ(writer->stack({}), 0U);
}

TEST(ProfileWriter, IsAnEmptyRecordingAtOnce) {
  const TemporaryDirectory directory;
  const std::unique_ptr<Writer> writer = create(directory.file("r"));
  const Result<Profile> profile = read(directory.file("r"));
  ASSERT_TRUE(profile) << profile.error();
  EXPECT_TRUE(profile->samples.empty());
  EXPECT_TRUE(profile->truncated);
}

TEST(ProfileWriter, IsReadableWhileItRecords) {
  const TemporaryDirectory directory;
  const std::unique_ptr<Writer> writer = create(directory.file("r"));
  writer->sample(sample(writer->stack(std::array{native(writer->mapping(app()), 0x1010)}), kStartNs));
  ASSERT_TRUE(writer->flush(true));
  const Result<Profile> profile = read(directory.file("r"));
  ASSERT_TRUE(profile) << profile.error();
  EXPECT_EQ(profile->samples.size(), 1U);
}

TEST(ProfileWriter, WritesAPieceOnlyWhenItIsDue) {
  const TemporaryDirectory directory;
  const std::unique_ptr<Writer> writer = create(directory.file("r"));
  Result<bool> written = writer->flush(true);
  ASSERT_TRUE(written);
  EXPECT_FALSE(*written) << "there was nothing to write";
  const uint32_t stack = writer->stack(std::array{native(writer->mapping(app()), 0x1010)});
  writer->sample(sample(stack, kStartNs));
  written = writer->flush();
  ASSERT_TRUE(written);
  EXPECT_FALSE(*written) << "five seconds have not passed";
  for (uint64_t i = 0; i < 500'000; ++i) writer->sample(sample(stack, kStartNs + i * kPeriodNs));
  written = writer->flush();
  ASSERT_TRUE(written);
  EXPECT_TRUE(*written) << "8 MiB are there";
}

TEST(ProfileWriter, KeepsAnOlderRecording) {
  const TemporaryDirectory directory;
  put(directory.file("r"), "older");
  put(directory.file("r.1"), "oldest");
  create(directory.file("r"));
  EXPECT_EQ(contents(directory.file("r.1")), "older");
  EXPECT_TRUE(read(directory.file("r")));
}

TEST(ProfileWriter, FollowsNoSymbolicLink) {
  const TemporaryDirectory directory;
  put(directory.file("precious"), "kept");
  ASSERT_EQ(symlink(directory.file("precious").c_str(), directory.file("r").c_str()), 0);
  const Result<std::unique_ptr<Writer>> writer = Writer::create(directory.file("r"), kPeriodNs, names_of);
  ASSERT_FALSE(writer);
  EXPECT_NE(writer.error().find(directory.file("r")), std::string::npos);
  EXPECT_EQ(contents(directory.file("precious")), "kept");
  EXPECT_TRUE(std::filesystem::is_symlink(directory.file("r")));
}

TEST(ProfileWriter, MovesNothingButARegularFile) {
  const TemporaryDirectory directory;
  ASSERT_EQ(mkfifo(directory.file("r").c_str(), 0600), 0);
  EXPECT_FALSE(Writer::create(directory.file("r"), kPeriodNs, names_of));
  EXPECT_TRUE(std::filesystem::is_fifo(directory.file("r")));
  EXPECT_FALSE(Writer::create(directory.file("none/r"), kPeriodNs, names_of));
}

TEST(ProfileWriter, KeepsWholePiecesWhenTheDiskIsFull) {
  const TemporaryDirectory directory;
  const std::string path = directory.file("r");
  signal(SIGXFSZ, SIG_IGN);
  const std::unique_ptr<Writer> writer = create(path);
  const uint32_t mapping = writer->mapping(app());
  writer->sample(sample(writer->stack(std::array{native(mapping, 0x1010)}), kStartNs));
  ASSERT_TRUE(writer->flush(true));
  const uintmax_t whole = std::filesystem::file_size(path);

  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  rlimit full = before;
  full.rlim_cur = whole + 10;
  setrlimit(RLIMIT_FSIZE, &full);
  writer->sample(sample(writer->stack(std::array{native(mapping, 0x2010)}), kStartNs));
  const Result<bool> failed = writer->flush(true);
  setrlimit(RLIMIT_FSIZE, &before);

  ASSERT_FALSE(failed);
  EXPECT_NE(failed.error().find(path), std::string::npos) << failed.error();
  EXPECT_EQ(std::filesystem::file_size(path), whole);
  EXPECT_FALSE(writer->finish({})) << "an error is not forgotten";
  const Result<Profile> profile = read(path);
  ASSERT_TRUE(profile) << profile.error();
  EXPECT_EQ(profile->samples.size(), 1U);
  EXPECT_TRUE(profile->truncated);
}

TEST(ProfileWriter, StoresNamesAsValidUtf8) {
  SKIP_WITHOUT_PROTOC();
  const TemporaryDirectory directory;
  const std::unique_ptr<Writer> writer = create(directory.file("r"), [](std::span<const Place> places) {
    return std::vector<symbolize::Lines>(places.size(), {{"f\xff", "\xc3", 1}});
  });
  Mapping mapping = app();
  mapping.path = "/bin/\xf0\x28";
  Sample one = sample(writer->stack(std::array{native(writer->mapping(mapping), 0x1010)}), kStartNs);
  one.comm = "c\x80";
  writer->sample(one);
  ASSERT_TRUE(writer->finish({}));
  const std::string text = by_protoc(directory.file("r"));  // refuses strings that are not UTF-8
  EXPECT_NE(text.find("f\\357\\277\\275"), std::string::npos) << text;
}

TEST(ProfileWriter, WritesIndependentZstdFrames) {
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const std::string file = contents(directory.file("r"));
  size_t pieces = 0;
  for (size_t at = 0; at < file.size(); ++pieces) {
    const size_t size = ZSTD_findFrameCompressedSize(file.data() + at, file.size() - at);
    ASSERT_FALSE(ZSTD_isError(size));
    std::string piece(ZSTD_getFrameContentSize(file.data() + at, size), '\0');
    EXPECT_EQ(ZSTD_decompress(piece.data(), piece.size(), file.data() + at, size), piece.size());
    at += size;
  }
  EXPECT_EQ(pieces, 3U);  // the empty recording, and two
}

}  // namespace
}  // namespace clew::profile::test
