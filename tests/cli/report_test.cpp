// `clew report` as it is called from a shell: outputs, errors and exit statuses.
#include <algorithm>
#include <filesystem>

#include "profile/recording.hpp"

namespace clew::profile::test {
namespace {

constexpr const char* kClew = CLEW_BINARY_DIR "/clew";

Ran report(const std::string& arguments) {
  return run(std::string(kClew) + " report " + arguments + " 2>&1");
}

void expect_one_line(const Ran& ran, const std::string& part) {
  EXPECT_EQ(ran.status, 2) << ran.output;
  EXPECT_EQ(std::count(ran.output.begin(), ran.output.end(), '\n'), 1) << ran.output;
  EXPECT_NE(ran.output.find(part), std::string::npos) << ran.output;
}

class Report : public testing::Test {
 protected:
  void SetUp() override {
    if (!std::filesystem::exists(kClew)) GTEST_SKIP() << kClew << " is not built";
    write_recording(recording_);
  }
  TemporaryDirectory directory_;
  std::string recording_ = directory_.file("clew.otlp.zst");
};

TEST_F(Report, ReadsTheDefaultFileAndShowsSummaryAndTable) {
  const Ran ran = run("cd " + directory_.file("") + " && " + kClew + " report");
  EXPECT_EQ(ran.status, 0);
  EXPECT_NE(ran.output.find("8 samples"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("self      total  function"), std::string::npos) << ran.output;
}

TEST_F(Report, WritesEachFormat) {
  EXPECT_NE(report("--format summary " + recording_).output.find("8 samples"), std::string::npos);
  EXPECT_EQ(report("--format summary-json " + recording_).output.find("{\"samples\": 8, "), 0U);
  EXPECT_NE(report("--format folded " + recording_).output.find("main;work();helper(int) 5\n"),
            std::string::npos);
  EXPECT_NE(report("--format speedscope " + recording_).output.find("\"type\":\"sampled\""),
            std::string::npos);
  EXPECT_EQ(report("--format pprof " + recording_).output.substr(0, 2), "\x1f\x8b");
  const std::string message = directory_.file("message");
  EXPECT_EQ(report("--format otlp -o " + message + " " + recording_).status, 0);
  EXPECT_EQ(*otlp_message(recording_), contents(message));
}

TEST_F(Report, AcceptsBothViews) {
  EXPECT_EQ(report("--view physical --format folded " + recording_).status, 0);
  EXPECT_EQ(report("--view logical --format folded " + recording_).status, 0);
  expect_one_line(report("--view sideways " + recording_),
                  "no view is called 'sideways'; there are logical and physical");
}

TEST_F(Report, SaysInOneLineWhatIsWrong) {
  expect_one_line(report(directory_.file("missing")), "does not exist");
  put(directory_.file("empty"), "");
  expect_one_line(report(directory_.file("empty")), "is empty");
  put(directory_.file("text"), "hello\n");
  expect_one_line(report(directory_.file("text")), "not a clew recording");
  put(directory_.file("cut"), contents(recording_).substr(0, 20));
  expect_one_line(report(directory_.file("cut")), "cut short");
  // Before the file is looked for: what is wrong is the name.
  for (const std::string& file : {recording_, directory_.file("missing")}) {
    for (const char* later : {"firefox", "html"})
      expect_one_line(report(std::string("--format ") + later + " " + file), "not built yet");
    const Ran unknown = report("--format FOO " + file);
    for (const char* name : {"'FOO'", "summary", "summary-json", "folded", "pprof", "speedscope", "otlp"})
      expect_one_line(unknown, name);
    EXPECT_EQ(unknown.output.find("not built"), std::string::npos) << unknown.output;
  }
  expect_one_line(report("--nonsense"), "--nonsense");
  expect_one_line(report("-o " + directory_.file("none/x") + " " + recording_), "cannot create");
  if (std::filesystem::exists("/dev/full"))
    expect_one_line(report("-o /dev/full " + recording_), "No space left");
}

TEST_F(Report, AWrongWordIsNamedWithTheRightOnes) {
  const auto clew = [](const std::string& words) { return run(std::string(kClew) + " " + words + " 2>&1"); };
  expect_one_line(clew("frob"), "no subcommand of clew is called 'frob'; there are record, report");
  expect_one_line(clew("table frob x"),
                  "no subcommand of clew table is called 'frob'; there are stats, dump");
  expect_one_line(clew(""), "clew needs a subcommand; there are record, report");
  expect_one_line(clew("--frob"), "no option of clew is called '--frob'");
  expect_one_line(clew("report a b"), "see clew report --help");
}

TEST_F(Report, DoesNotOverwriteTheRecording) {
  const std::string before = contents(recording_);
  expect_one_line(report("--format folded -o " + recording_ + " " + recording_), "is the recording itself");
  EXPECT_EQ(contents(recording_), before);
}

TEST_F(Report, ShowsWhatAKilledRecorderLeft) {
  const std::string whole = contents(recording_);
  put(directory_.file("killed"), whole.substr(0, whole.size() - 10));
  const Ran ran = report(directory_.file("killed"));
  EXPECT_EQ(ran.status, 0);
  EXPECT_NE(ran.output.find("3 samples"), std::string::npos) << ran.output;
  EXPECT_NE(ran.output.find("The recorder was killed"), std::string::npos) << ran.output;
}

}  // namespace
}  // namespace clew::profile::test
