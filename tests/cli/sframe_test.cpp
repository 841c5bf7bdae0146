// clew sframe as scripts see it: readelf's text, the JSON, the exit status.
#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <string>

#include "corpus.hpp"

namespace clew::test {
namespace {

const std::string kClew = CLEW_BINARY_DIR "/clew sframe ";

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// A V3 section for x86-64 at address 0: one function of 16 bytes at 0x1000 whose first row starts at 0. The
/// second row's start is `second`.
std::vector<std::byte> section(int second) {
  std::vector<std::byte> bytes;
  for (const int value :
       {0xe2, 0xde, 3, 5, 3,  0, -8, 0, 1,    0,    0,    0, 2,      0,    0, 0, 11, 0, 0, 0,  // header
        0,    0,    0, 0, 16, 0, 0,  0, 0xe4, 0x0f, 0,    0, 0,      0,    0, 0, 16, 0, 0, 0,
        0,    0,    0, 0, 2,  0, 0,  0, 0,    0,    0x03, 8, second, 0x03, 16})
    bytes.push_back(static_cast<std::byte>(value));
  return bytes;
}

TEST(SframeCommand, DumpIsWhatReadelfPrints) {
  const std::string folder = corpus("sframe");
  CLEW_NEED_CORPUS(folder);
  size_t files = 0;
  const auto manifest = read_json(folder + "/manifest.json");
  for (const auto& [file, facts] : manifest.items()) {
    // The text of older releases differs in the header.
    if (facts["readelf"].dump().find("2.47") == std::string::npos) continue;
    const Output output = run_command(kClew + "dump " + folder + "/" + file);
    EXPECT_EQ(output.status, 0) << file << output.err;
    // Not EXPECT_EQ: of texts of 27,000 lines that differ it would look for the least difference.
    EXPECT_TRUE(output.out == text_of(folder + "/" + file.substr(0, file.rfind('.')) + ".sframe.txt"))
        << file;
    ++files;
  }
  EXPECT_EQ(files, 86u);
}

TEST(SframeCommand, DumpAsJson) {
  TemporaryFolder folder;
  write_file(folder.path() + "/s", section(4));
  const Output output = run_command(kClew + "dump --json --raw x86_64:0 " + folder.path() + "/s");
  ASSERT_EQ(output.status, 0) << output.err;
  const auto json = nlohmann::json::parse(output.out);
  EXPECT_EQ(json["version"], 3);
  EXPECT_EQ(json["arch"], "amd64");
  EXPECT_EQ(json["flags"], 5);
  ASSERT_EQ(json["functions"].size(), 1u);
  const auto& function = json["functions"][0];
  EXPECT_EQ(function["start"], 0x1000);
  EXPECT_EQ(function["size"], 16);
  EXPECT_EQ(function["kind"], "inc");
  EXPECT_EQ(function["rows"][1], nlohmann::json::parse(R"({"pc":4100,"cfa":"sp+16","fp":"u","ra":"f"})"));
}

TEST(SframeCommand, VerifySaysWhereAndExitsWith1) {
  TemporaryFolder folder;
  write_file(folder.path() + "/good", section(4));
  write_file(folder.path() + "/bad", section(0));
  const Output good = run_command(kClew + "verify --raw amd64:0x0 " + folder.path() + "/good");
  EXPECT_EQ(good.status, 0);
  EXPECT_EQ(good.out, folder.path() + "/good: ok\n");
  const Output bad = run_command(kClew + "verify --raw x86_64:0 " + folder.path() + "/bad");
  EXPECT_EQ(bad.status, 1);
  EXPECT_EQ(
      bad.out,
      folder.path() + "/bad: 0x34: the function at 0x1000: a row does not start behind the one before it\n");
  const Output json = run_command(kClew + "verify --json --raw x86_64:0 " + folder.path() + "/bad");
  EXPECT_EQ(json.status, 1);
  const auto verdict = nlohmann::json::parse(json.out);
  EXPECT_EQ(verdict["verdict"], "bad");
  EXPECT_EQ(verdict["defects"][0]["offset"], 0x34);
  // The same bytes, said to be of another machine or of the other byte order.
  EXPECT_EQ(run_command(kClew + "verify --raw aarch64:0 " + folder.path() + "/good").status, 1);
  EXPECT_EQ(run_command(kClew + "verify --raw x86_64:0:be " + folder.path() + "/good").status, 1);
}

TEST(SframeCommand, AFileThatHasNoneIsAnErrorOfOneLine) {
  TemporaryFolder folder;
  write_file(folder.path() + "/a\x1b[31m", bytes_of("no ELF file"));
  for (const std::string command : {"dump", "verify"}) {
    const Output output = run_command(kClew + command + " '" + folder.path() + "/a\x1b[31m'");
    EXPECT_EQ(output.status, 2);
    EXPECT_EQ(output.err, "clew: " + folder.path() + "/a\\x1b[31m: not a 64-bit ELF file\n");
    EXPECT_EQ(output.out, "");
  }
  EXPECT_EQ(run_command(kClew + "dump --raw x86_64 " + folder.path()).status, 2);
  EXPECT_EQ(run_command(kClew + "verify --raw x86_64:0x " + folder.path() + "/absent").status, 2);
}

}  // namespace
}  // namespace clew::test
