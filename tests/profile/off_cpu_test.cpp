// Waits in a profile, beside its samples of CPU time.
#include <llvm/Support/JSON.h>

#include "recording.hpp"

namespace clew::profile::test {
namespace {

/// One sample of 1 ms in main;work, two waits of 3 ms and 2.5 µs in main;read;[kernel].
Profile with_waits(const std::string& path) {
  std::vector<Place> running = {{.address = 0x20}, {.address = 0x10}};
  std::vector<Place> waiting = {
      {.address = 0xffffffff81000000, .kind = FrameKind::kKernel}, {.address = 0x30}, {.address = 0x10}};
  const auto symbolize = [](std::span<const Place> places) {
    std::vector<symbolize::Lines> lines;
    for (const Place& place : places) {
      const char* name = place.address == 0x10   ? "main"
                         : place.address == 0x20 ? "work"
                         : place.address == 0x30 ? "read"
                                                 : "schedule";
      lines.push_back({{.function = name, .file = {}, .line = 0}});
    }
    return lines;
  };
  auto writer = Writer::create(path, 1'000'000, symbolize);
  EXPECT_TRUE(writer);
  const auto add = [&](std::span<const Place> places, uint64_t time_ns, uint64_t weight_ns, bool blocked) {
    Sample sample;
    sample.stack = (*writer)->stack(places);
    sample.pid = sample.tid = 7;
    sample.comm = "app";
    sample.time_ns = time_ns;
    sample.weight_ns = weight_ns;
    sample.blocked = blocked;
    (*writer)->sample(sample);
  };
  add(waiting, 5'000'000, 3'000'000, true);
  add(running, 4'000'000, 1'000'000, false);
  EXPECT_TRUE((*writer)->flush(true));
  add(waiting, 9'000'000, 2'500, true);
  EXPECT_TRUE((*writer)->finish({}));
  auto profile = read(path);
  EXPECT_TRUE(profile) << profile.error();
  return std::move(*profile);
}

TEST(ProfileOffCpu, WaitsAreReadApartFromSamples) {
  const TemporaryDirectory directory;
  const Profile profile = with_waits(directory.file("r"));
  EXPECT_EQ(profile.ignored, 0u);
  ASSERT_EQ(profile.samples.size(), 1u);
  EXPECT_EQ(profile.samples[0].weight_ns, 1'000'000u);
  ASSERT_EQ(profile.waits.size(), 2u);
  EXPECT_EQ(profile.waits[0].weight_ns, 3'000'000u);
  EXPECT_EQ(profile.waits[1].weight_ns, 2'500u);
  EXPECT_EQ(profile.waits[0].tid, 7);
  EXPECT_EQ(profile.stacks[profile.waits[0].stack].size(), 3u);
}

TEST(ProfileOffCpu, EachOutputShowsOneOfTheTwo) {
  const TemporaryDirectory directory;
  Profile profile = with_waits(directory.file("r"));
  EXPECT_EQ(folded(profile), "main;work 1\n");
  EXPECT_NE(summary(profile).find("\nOff the CPU: 2 waits, 100.00 % complete, 0.00 s"), std::string::npos)
      << summary(profile);
  auto json = llvm::json::parse(summary_json(profile));
  ASSERT_TRUE(bool(json));
  EXPECT_EQ(json->getAsObject()->getInteger("samples"), 1);
  EXPECT_EQ(json->getAsObject()->getInteger("cpu_sampled_ns"), 1'000'000);
  const llvm::json::Object* off_cpu = json->getAsObject()->getObject("off_cpu");
  ASSERT_NE(off_cpu, nullptr);
  EXPECT_EQ(off_cpu->getInteger("waits"), 2);
  EXPECT_EQ(off_cpu->getInteger("complete"), 2);
  EXPECT_EQ(off_cpu->getInteger("blocked_ns"), 3'002'500);

  turn_off_cpu(profile);
  EXPECT_EQ(folded(profile), "main;read;schedule 3002\n");
  // The program's own function that waits is the one shown, not the kernel's scheduler.
  EXPECT_NE(table(profile, 1).find("100.00 %   100.00 %  read\n"), std::string::npos) << table(profile, 1);
  EXPECT_TRUE(summary(profile).starts_with("2 waits off the CPU in ")) << summary(profile);
}

}  // namespace
}  // namespace clew::profile::test
