// The text and JSON outputs of the small recording, whose contents recording.hpp states.
#include <llvm/Support/JSON.h>

#include <algorithm>
#include <sstream>

#include "profile/text.hpp"
#include "recording.hpp"

namespace clew::profile::test {
namespace {

Profile recorded() {
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  Result<Profile> profile = read(directory.file("r"));
  EXPECT_TRUE(profile);
  return std::move(*profile);
}

llvm::json::Object parsed(const std::string& text) {
  llvm::Expected<llvm::json::Value> value = llvm::json::parse(text);
  if (!value) {
    ADD_FAILURE() << llvm::toString(value.takeError()) << '\n' << text;
    return {};
  }
  return *value->getAsObject();
}

size_t longest_line(const std::string& text) {
  size_t longest = 0;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);)
    longest =
        std::max<size_t>(longest, static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) {
                           return (static_cast<uint8_t>(c) & 0xc0) != 0x80;
                         })));
  return longest;
}

// A profile of one sample in a function of this name.
Profile named(const std::string& function) {
  Profile profile;
  profile.path = "r";
  profile.strings = {"", function};
  profile.mappings.resize(1);
  profile.locations.resize(2);
  profile.locations[1].lines = {{1, 0, 0}};
  profile.stacks = {{}, {1}};
  profile.samples = {{1, 1, 1, 0, 0, 1000, CLEW_END_ROOT}};
  return profile;
}

TEST(ProfileFolded, IsRootFirstWithInlinedFunctionsAndCounts) {
  EXPECT_EQ(folded(recorded()),
            "[app+0x3abc];work();helper(int) 1\n"
            "[no frames: no-user-stack] 1\n"
            "main;work();helper(int) 5\n"
            "main;work();helper(int);do_syscall_64 1\n");
}

TEST(ProfileFolded, KeepsALineALine) { EXPECT_EQ(folded(named("a;b\nc\x1b[2Jd")), "a:b?c?[2Jd 1\n"); }

TEST(ProfileFolded, SortsLinesByTheirBytesAndJoinsEqualOnes) {
  // The separator sorts behind a space and a digit, before a letter; two functions may have equal names.
  Profile profile = named("f");
  profile.strings = {"", "f", "f g", "f0", "fa", "g", "f", "x;y", "x:y", "f\xc3\xa4"};
  profile.locations.resize(1);
  for (uint32_t string = 1; string < profile.strings.size(); ++string)
    profile.locations.emplace_back().lines = {{string, 0, 0}};
  // Leaf first.
  profile.stacks = {{}, {5, 9}, {5, 1}, {5, 4}, {5, 3}, {5, 2}, {1}, {5, 6}, {7}, {8}, {5, 1, 1}, {6, 1}};
  profile.samples.clear();
  for (uint32_t stack = 1; stack < profile.stacks.size(); ++stack)
    profile.samples.push_back({stack, 1, 1, 0, 0, 1000, CLEW_END_ROOT});
  EXPECT_EQ(folded(profile),
            "f 1\n"
            "f g;g 1\n"
            "f0;g 1\n"
            "f;f 1\n"
            "f;f;g 1\n"
            "f;g 2\n"
            "fa;g 1\n"
            "f\xc3\xa4;g 1\n"
            "x:y 2\n");
}

TEST(ProfileFolded, NamesWhatIsUnknown) {
  Profile profile = named("");
  EXPECT_EQ(folded(profile), "[unknown] 1\n");
  profile.locations[1].lines.clear();
  EXPECT_EQ(folded(profile), "[unknown] 1\n");
  profile.locations[1].place.kind = FrameKind::kKernel;
  EXPECT_EQ(folded(profile), "[kernel] 1\n");
}

TEST(ProfileSummary, SaysWhatAPersonWantsToKnow) {
  const std::string text = summary(recorded());
  for (const char* part :
       {"8 samples in 0.0 s by the perf collector: app --fast", "complete",
        "75.00 % of the samples reach the root", "stack-cut", "the copied piece of stack was too short",
        "no-user-stack", "lost", "guessed", "0.01 s used", "perf_event_paranoid 2", "75.00 %  helper(int)",
        "12.50 %  do_syscall_64", "Note: app started a setuid program"})
    EXPECT_NE(text.find(part), std::string::npos) << part << "\nin\n" << text;
}

TEST(ProfileSummary, DoesNotRoundUpToAllComplete) {
  Profile profile = named("f");
  profile.samples.resize(100'000, profile.samples[0]);
  profile.samples[0].end = CLEW_END_NO_RULE;
  EXPECT_NE(summary(profile).find("99.99 %"), std::string::npos);
  EXPECT_EQ(summary(profile).find("100.00 % of the samples"), std::string::npos);
}

TEST(ProfileSummary, SaysWhyThereIsNoKernelTimeOnlyWhereItIsMissing) {
  Profile profile = named("f");
  profile.totals.collector = "perf";
  profile.totals.cpu_used_ns = 1050;
  EXPECT_EQ(summary(profile).find("paranoid"), std::string::npos);
  profile.totals.cpu_used_ns = 2000;
  EXPECT_NE(summary(profile).find("paranoid"), std::string::npos);
  profile.totals.collector = "inprocess";  // which samples that time as well
  EXPECT_EQ(summary(profile).find("paranoid"), std::string::npos);
}

TEST(ProfileSummary, FitsEightyColumnsWhateverTheNames) {
  Profile profile = named("std::map<" + std::string(500, 'x') + ">::find(int)");
  profile.path = "/home/" + std::string(300, 'd') + "/clew.otlp.zst";
  profile.totals.command = std::string(300, 'c');
  profile.totals.collector = std::string(300, 'p');
  profile.totals.lost = UINT64_MAX / 10000;
  profile.totals.notes = {"a note " + std::string(100, 'n') + " and some more words that need another line"};
  for (uint32_t end = 0; end <= CLEW_END_COUNT; ++end) {
    profile.samples.push_back(profile.samples[0]);
    profile.samples.back().end = static_cast<clew_end>(end);
  }
  profile.ignored = UINT64_MAX;
  profile.truncated = true;
  EXPECT_LE(longest_line(summary(profile)), 80U) << summary(profile);
  EXPECT_LE(longest_line(table(profile, 20)), 80U);
  EXPECT_NE(summary(profile).find("::find(int)"), std::string::npos) << "the end of a long name is kept";
}

TEST(ProfileSummary, SendsNothingToTheTerminalButText) {
  Profile profile = named("evil\x1b]0;x\x07 \xc2\x9b \xe2\x80\xae");
  profile.path = "r\x1b";
  profile.totals.command = "c\r\x1b";
  profile.totals.collector = "k\x1b";
  profile.totals.notes = {"n\x1b"};
  for (const std::string& text :
       {summary(profile), table(profile, 5), folded(profile), speedscope(profile)}) {
    for (const char c : text) EXPECT_TRUE(c == '\n' || static_cast<uint8_t>(c) >= 0x20);
    EXPECT_EQ(text.find("\xc2\x9b"), std::string::npos);
    EXPECT_EQ(text.find("\xe2\x80\xae"), std::string::npos);
  }
}

TEST(ProfileSummary, ExplainsThatThereAreNoSamples) {
  Profile profile = named("f");
  profile.samples.clear();
  EXPECT_NE(summary(profile).find("No samples"), std::string::npos);
  EXPECT_EQ(folded(profile), "");
}

TEST(ProfileTable, CountsRecursionOnceAndSelfOfTheInnermost) {
  Profile profile = named("f");
  profile.stacks[1] = {1, 1, 1};
  EXPECT_NE(table(profile, 5).find(" 100.00 %   100.00 %  f\n"), std::string::npos) << table(profile, 5);
  const std::string text = table(recorded(), 5);
  EXPECT_NE(text.find("   0.00 %    75.00 %  main\n"), std::string::npos) << text;
}

TEST(ProfileSummaryJson, HasTheKeysOfTheContract) {
  const llvm::json::Object json = parsed(summary_json(recorded()));
  EXPECT_EQ(json.getInteger("samples"), 8);
  EXPECT_EQ(json.getInteger("complete"), 6);
  EXPECT_EQ(json.getInteger("lost"), 3);
  EXPECT_EQ(json.getInteger("guessed"), 1);
  EXPECT_EQ(json.getInteger("frames"), 15);  // five of 2, one of 3, one of 2, one of 0
  EXPECT_GT(*json.getInteger("bytes"), 0);
  EXPECT_EQ(json.getString("collector"), llvm::StringRef("perf"));
  EXPECT_EQ(json.getInteger("duration_ns"), 9'000'000);
  EXPECT_EQ(json.getInteger("cpu_used_ns"), 12'000'000);
  EXPECT_EQ(json.getInteger("cpu_sampled_ns"), 8 * 1'001'001);
  EXPECT_EQ(json.getBoolean("truncated"), false);
  const llvm::json::Object* ends = json.getObject("end_reasons");
  ASSERT_TRUE(ends);
  EXPECT_EQ(ends->size(), 3U);
  EXPECT_EQ(ends->getInteger("root"), 6);
  EXPECT_EQ(ends->getInteger("stack-cut"), 1);
  EXPECT_EQ(ends->getInteger("no-user-stack"), 1);
  ASSERT_TRUE(json.getObject("overhead"));
  EXPECT_EQ(json.getObject("overhead")->getNumber("clew_cpu_s"), 0.00025);
  EXPECT_EQ(json.getObject("overhead")->getNumber("bpf_cpu_s"), 0.000125);
}

TEST(ProfileSummaryJson, EscapesWhatJsonMustEscape) {
  Profile profile = named("f");
  profile.totals.command = "say \"hi\"\\\n\x01\xff";
  EXPECT_EQ(parsed(summary_json(profile)).getString("command"),
            llvm::StringRef("say \"hi\"\\\n\x01\xef\xbf\xbd"));
}

TEST(ProfileSpeedscope, HasAProfilePerThreadInOrderOfTime) {
  const llvm::json::Object json = parsed(speedscope(recorded()));
  const llvm::json::Array* profiles = json.getArray("profiles");
  ASSERT_TRUE(profiles);
  ASSERT_EQ(profiles->size(), 2U);
  const llvm::json::Object& first = *(*profiles)[0].getAsObject();
  EXPECT_EQ(first.getString("name"), llvm::StringRef("app (100/100)"));
  EXPECT_EQ(first.getArray("samples")->size(), 6U);
  EXPECT_EQ(first.getArray("weights")->size(), 6U);
  EXPECT_EQ(first.getInteger("endValue"), 6 * 1'001'001);
  const llvm::json::Array& frames = *json.getObject("shared")->getArray("frames");
  const llvm::json::Array& stack = *(*first.getArray("samples"))[0].getAsArray();
  ASSERT_EQ(stack.size(), 3U);
  EXPECT_EQ(frames[static_cast<size_t>(*stack[0].getAsInteger())].getAsObject()->getString("name"),
            llvm::StringRef("main"));
}

TEST(ProfileText, ShortensInTheMiddleByCharacters) {
  EXPECT_EQ(shortened("abcdef", 6), "abcdef");
  EXPECT_EQ(shortened("abcdefg", 6), "abc…fg");
  EXPECT_EQ(shortened("äöüäöüä", 6), "äöü…üä");
  EXPECT_EQ(grouped(999), "999");
  EXPECT_EQ(grouped(1000), "1,000");
  EXPECT_EQ(grouped(1234567), "1,234,567");
}

}  // namespace
}  // namespace clew::profile::test
