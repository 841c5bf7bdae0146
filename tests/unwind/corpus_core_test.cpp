// Replays the core dumps of the corpus through `clew stack`: every thread, every frame, inlined functions and
// lines.
#include <gtest/gtest.h>

#include <algorithm>

#include "corpus.hpp"

namespace clew::test {
namespace {

const std::string kClew = CLEW_BINARY_DIR "/clew";

class CoreDump : public testing::TestWithParam<std::string> {};

TEST_P(CoreDump, Replays) {
  std::string root = corpus("core-dumps");
  CLEW_NEED_CORPUS(root);
  if (!have("bzip2")) GTEST_SKIP() << "bzip2 is not installed";
  std::string folder = root + "/" + GetParam();
  auto expected = read_json(folder + "/expected.json");
  if (expected["arch"] == "arm64") GTEST_SKIP() << "AArch64 unwinding is not built yet";

  TemporaryFolder unpacked;
  auto unpack = [&](const std::string& packed) {
    std::string path = unpacked.path() + "/" + packed.substr(0, packed.size() - 4);
    EXPECT_EQ(run_command("bzip2 -dc '" + folder + "/" + packed + "' >'" + path + "'").status, 0);
    return path;
  };
  // In the cases the code lies at other paths than in the core: the program is named, its library lies beside
  // it.
  std::string core = unpack(expected["files"]["core"]);
  std::string program;
  for (const auto& module : expected["files"]["modules"]) {
    std::string path = unpack(module["file"]);
    if (program.empty()) program = path;
  }
  Output output = run_command("CLEW_CACHE_DIR=" + unpacked.path() + " " + kClew + " stack --json " + core +
                              " " + program);
  ASSERT_EQ(output.status, 0) << output.err;
  auto got = nlohmann::json::parse(output.out);

  ASSERT_EQ(got["threads"].size(), expected["threads"].size());
  for (size_t t = 0; t < expected["threads"].size(); ++t) {
    const auto& wanted = expected["threads"][t];
    const auto& thread = got["threads"][t];
    SCOPED_TRACE("thread " + wanted["tid"].dump() + ": " + thread.dump(1));
    EXPECT_EQ(thread["tid"], wanted["tid"]);
    std::vector<nlohmann::json> frames;
    for (const auto& frame : thread["frames"])
      if (!frame["inlined"].get<bool>()) frames.push_back(frame);
    ASSERT_EQ(frames.size(), wanted["frames"].size());
    for (size_t i = 0; i < frames.size(); ++i) {
      const auto& frame = wanted["frames"][i];
      EXPECT_EQ(number(frames[i]["pc"]), number(frame["pc"]));
      if (!frame["sp"].is_null()) {
        EXPECT_EQ(number(frames[i]["sp"]), number(frame["sp"]));
      }
      if (!frame["function"].is_null()) {
        EXPECT_EQ(frames[i]["function"], frame["function"]) << i;
      }
      EXPECT_FALSE(frames[i]["guessed"].get<bool>());
    }
    // Complete where the program has rules down to its start; else the reason is the library that nobody has.
    bool without_library = wanted.contains("end");
    EXPECT_EQ(thread["end"] == "root", !without_library) << thread["end"];
  }
  if (!expected.contains("inlined")) return;
  const auto& inlined = expected["inlined"];
  std::vector<nlohmann::json> lines;
  for (const auto& frame : got["threads"][0]["frames"])
    if (number(frame["pc"]) == number(inlined["pc"])) lines.push_back(frame);
  ASSERT_EQ(lines.size(), inlined["innermost_first"].size());
  for (size_t i = 0; i < lines.size(); ++i) {
    const auto& wanted = inlined["innermost_first"][i];
    // Upstream prints inlined functions by DW_AT_name; demangled names have their parameters.
    std::string name = lines[i]["function"];
    EXPECT_EQ(name.substr(0, name.find('(')),
              wanted["function"].get<std::string>().substr(0, name.find('(')));
    EXPECT_TRUE(lines[i]["file"].get<std::string>().ends_with(wanted["file"].get<std::string>()))
        << lines[i]["file"];
    EXPECT_EQ(lines[i]["line"], wanted["line"]);
    EXPECT_EQ(lines[i]["inlined"].get<bool>(), i + 1 < lines.size());
  }
  const auto& caller = got["threads"][0]["frames"][lines.size()];
  EXPECT_EQ(caller["function"], inlined["caller"]["function"]);
  EXPECT_EQ(caller["line"], inlined["caller"]["line"]);
}

INSTANTIATE_TEST_SUITE_P(Corpus, CoreDump,
                         testing::Values("backtrace.x86_64", "backtrace.aarch64.fp", "testfiledwarfinlines",
                                         "linkmap-cut"),
                         [](const auto& param_info) {
                           std::string name = param_info.param;
                           std::ranges::replace_if(name, [](char c) { return c == '.' || c == '-'; }, '_');
                           return name;
                         });

}  // namespace
}  // namespace clew::test
