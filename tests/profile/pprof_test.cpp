// The pprof output, opened by Go's own reader.
#include "recording.hpp"

namespace clew::profile::test {
namespace {

std::string go_pprof(const TemporaryDirectory& directory, const std::string& options) {
  // Go builds the tool on its first use; nothing of it lands outside the build directory, and it needs no
  // network.
  const Ran ran = run(
      "HOME=" + directory.file("") +
      " GOCACHE=" CLEW_BINARY_DIR "/go-cache GOTOOLCHAIN=local GOFLAGS=-mod=mod GOPROXY=off PPROF_TMPDIR=" +
      directory.file("") + " go tool pprof -symbolize=none " + options + " " + directory.file("p") + " 2>&1");
  EXPECT_EQ(ran.status, 0) << ran.output;
  return ran.output;
}

TEST(ProfilePprof, IsReadByGoToolPprof) {
  if (!has_program("go")) GTEST_SKIP() << "go is not installed here";
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  const Result<Profile> profile = read(directory.file("r"));
  ASSERT_TRUE(profile);
  put(directory.file("p"), pprof(*profile));

  const std::string top = go_pprof(directory, "-top -sample_index=samples");
  EXPECT_NE(top.find("Showing nodes accounting for 8, 100% of 8 total"), std::string::npos) << top;
  EXPECT_NE(top.find("75.00% 75.00%"), std::string::npos) << top;
  EXPECT_NE(top.find("helper(int) (inline)"), std::string::npos) << top;
  EXPECT_NE(top.find("75.00%  main"), std::string::npos) << top;
  EXPECT_NE(top.find("do_syscall_64"), std::string::npos) << top;
  EXPECT_NE(top.find("[no frames: no-user-stack]"), std::string::npos) << top;

  const std::string raw = go_pprof(directory, "-raw");
  EXPECT_NE(raw.find("Period: 1001001"), std::string::npos) << raw;
  EXPECT_NE(raw.find("samples/count cpu/nanoseconds[dflt]"), std::string::npos) << raw;
  EXPECT_NE(raw.find("3    3003003: 2 1"), std::string::npos) << raw;  // main > work > helper, by one thread
  EXPECT_NE(raw.find("2    2002002: 2 1"), std::string::npos) << raw;  // and by the other
  EXPECT_NE(raw.find("0x1000/0x9000/0x1000 /usr/bin/app 00112233445566778899aabbccddeeff00112233 [FN]"),
            std::string::npos)
      << raw;
  EXPECT_NE(raw.find("ended:[stack-cut]"), std::string::npos) << raw;
  EXPECT_NE(raw.find("thread:[worker]"), std::string::npos) << raw;
}

}  // namespace
}  // namespace clew::profile::test
