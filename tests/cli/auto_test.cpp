// Which collector `clew record` takes by itself, and what it says of it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <string>

#include "cli/record_fixture.hpp"

namespace clew::cli {
namespace {

class Auto : public RecordTest {
 protected:
  std::string program() {
    return compile("spin", R"(
#include <time.h>
static volatile unsigned sink;
__attribute__((noinline)) void spin(void) {
  struct timespec now;
  do {
    for (unsigned i = 0; i < 1000; i++) sink += i;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  } while (now.tv_nsec < 200000000);
}
int main(void) { spin(); return 0; }
)");
  }
};

TEST_F(Auto, UnwindsInTheKernelAsRoot) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root";
  as_root_ = true;
  const Ran ran = clew({"record", "--", program()});
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_EQ(profile.totals.collector, "bpf");
  EXPECT_GT(profile.samples.size(), 100u);
  EXPECT_EQ(ran.err.find("recorded by perf"), std::string::npos) << ran.err;
}

TEST_F(Auto, TakesPerfAndSaysWhyWithoutPrivileges) {
  const Ran ran = clew({"record", "--", program()});
  if (ran.status == 125) GTEST_SKIP() << ran.err;
  EXPECT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_EQ(profile.totals.collector, "perf");
  ASSERT_EQ(profile.totals.notes.size(), 1u);
  EXPECT_EQ(profile.totals.notes[0],
            "recorded by perf: the bpf collector needs root, or CAP_BPF and CAP_PERFMON");
  const Ran asked = clew({"record", "--collector", "bpf", "--", "true"});
  EXPECT_EQ(asked.status, 125);
  EXPECT_EQ(asked.err, "clew: the bpf collector needs root, or CAP_BPF and CAP_PERFMON\n");
}

}  // namespace
}  // namespace clew::cli
