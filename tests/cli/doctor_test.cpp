// clew doctor: what it says is set against what the kernel says to the same user by other ways.
#include <gtest/gtest.h>
#include <unistd.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "corpus.hpp"

namespace clew::test {
namespace {

/// Runs as an ordinary user where the tests are root's; the program is copied to where that user may read it.
class Doctor : public testing::Test {
 protected:
  void SetUp() override {
    if (geteuid() == 0 && !have("setpriv")) GTEST_SKIP() << "needs setpriv";
    const std::string copy = folder_.path() + "/clew";
    ASSERT_EQ(run_command("chmod 755 " + folder_.path() + " && cp " CLEW_BINARY_DIR "/clew " + copy).status,
              0);
    if (geteuid() == 0) as_user_ = "setpriv --reuid=65534 --regid=65534 --clear-groups ";
  }
  Output run_as_user(const std::string& command) { return run_command(as_user_ + command); }
  Output doctor(const std::string& words = "") {
    return run_as_user(folder_.path() + "/clew doctor " + words);
  }

  nlohmann::json check(const std::string& name) {
    const Output output = doctor("--json");
    EXPECT_EQ(output.status, 0) << output.err;
    const auto json = nlohmann::json::parse(output.out);
    for (const auto& check : json["checks"])
      if (check["name"] == name) return check;
    ADD_FAILURE() << "no check " << name << " in " << output.out;
    return {};
  }

  TemporaryFolder folder_;
  std::string as_user_;
};

int paranoid() {
  std::ifstream file("/proc/sys/kernel/perf_event_paranoid");
  int level = 0;
  EXPECT_TRUE(file >> level);
  return level;
}

TEST_F(Doctor, PerfEventsAreAsTheParanoidLevelSays) {
  // Documentation/admin-guide/sysctl/kernel.rst; 3 is Debian's and Ubuntu's own.
  if (paranoid() > 2) GTEST_SKIP() << "perf events are forbidden here";
  EXPECT_TRUE(check("own_processes")["works"]);
  EXPECT_EQ(check("kernel_time")["works"], paranoid() <= 1);
  EXPECT_EQ(check("all_processes")["works"], paranoid() <= 0);
  if (paranoid() > 1) {
    EXPECT_NE(check("kernel_time")["advice"].get<std::string>().find("perf_event_paranoid=1"),
              std::string::npos);
  }
}

TEST_F(Doctor, KernelNamesAreThereWhereTheUserSeesAddresses) {
  const Output seen = run_as_user("grep -qv '^0000000000000000' /proc/kallsyms");
  EXPECT_EQ(check("kernel_names")["works"], seen.status == 0);
}

TEST_F(Doctor, LockedMemoryIsWhatTheLimitLeaves) {
  EXPECT_TRUE(check("ring_memory")["works"]);
  as_user_ = "prlimit --memlock=65536 " + as_user_;
  std::ifstream file("/proc/sys/kernel/perf_event_mlock_kb");
  unsigned long kb = 0;
  ASSERT_TRUE(file >> kb);
  if (kb != 516) GTEST_SKIP() << "not the kernel's default";
  // 516 KiB and a share of 64 KiB: rings have a power of two, so 512.
  EXPECT_EQ(check("ring_memory")["found"], "512 KiB a CPU for samples in flight");
}

TEST_F(Doctor, BpfProgramsNeedRights) {
  const auto as_ordinary_user = check("bpf");
  EXPECT_FALSE(as_ordinary_user["works"]);
  EXPECT_NE(as_ordinary_user["advice"].get<std::string>().find("CAP_BPF"), std::string::npos);
  if (geteuid() != 0) GTEST_SKIP() << "the rest needs root";
  as_user_.clear();
  // bpftool's word for whether such programs can be loaded.
  const Output probe = run_command("bpftool feature probe kernel 2>/dev/null");
  const bool can = probe.out.find("eBPF program_type perf_event is available") != std::string::npos;
  EXPECT_EQ(check("bpf")["works"], can) << check("bpf");
}

TEST_F(Doctor, TextFitsATerminalAndSaysWhatJsonSays) {
  const Output text = doctor();
  EXPECT_EQ(text.status, 0) << text.err;
  const auto json = nlohmann::json::parse(doctor("--json").out);
  size_t verdicts = 0;
  std::istringstream lines(text.out);
  for (std::string line; std::getline(lines, line);) {
    EXPECT_LE(line.size(), 80u) << line;
    verdicts += line.starts_with("yes  ") || line.starts_with("no   ");
  }
  EXPECT_EQ(verdicts, json["checks"].size()) << text.out;
  for (const auto& check : json["checks"]) {
    EXPECT_FALSE(check["found"].get<std::string>().empty());
    EXPECT_NE(check["works"].get<bool>(), check["advice"].get<std::string>().size() > 0) << check;
  }
}

}  // namespace
}  // namespace clew::test
