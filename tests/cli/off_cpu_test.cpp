// clew record --off-cpu: how long threads were blocked, and where. As root.
#include <gtest/gtest.h>
#include <unistd.h>

#include <map>
#include <sstream>
#include <string>

#include "cli/record_fixture.hpp"

namespace clew::cli {
namespace {

// Waits in known functions and prints how long each took by its own clock, in microseconds.
constexpr const char* kWaits = R"(
#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int ends[2];
static volatile unsigned sink;
static long now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}
__attribute__((noinline)) void naps(long ms) {
  struct timespec time = {0, ms * 1000000};
  nanosleep(&time, 0);
  sink++;
}
__attribute__((noinline)) void holds(void) {
  pthread_mutex_lock(&mutex);
  naps(60);
  pthread_mutex_unlock(&mutex);
  sink++;
}
__attribute__((noinline)) void wants(void) {
  pthread_mutex_lock(&mutex);
  pthread_mutex_unlock(&mutex);
  sink++;
}
__attribute__((noinline)) void reads(void) {
  char byte;
  if (read(ends[0], &byte, 1) != 1) _exit(1);
  sink++;
}
static void* other(void* unused) {
  long us = 0;
  for (int i = 0; i < 5; i++) {
    long start = now_us();
    holds();
    us += now_us() - start;
    naps(8);
  }
  printf("holds %ld\n", us);
  naps(100);
  if (write(ends[1], "x", 1) != 1) _exit(1);
  return unused;
}
int main(void) {
  pthread_t thread;
  long start, wants_us = 0;
  if (pipe(ends) != 0) return 1;
  pthread_create(&thread, 0, other, 0);
  naps(10);
  for (int i = 0; i < 3; i++) {
    start = now_us();
    wants();
    wants_us += now_us() - start;
    naps(10);
  }
  start = now_us();
  reads();
  printf("wants %ld\nreads %ld\n", wants_us, now_us() - start);
  pthread_join(thread, 0);
  return 0;
}
)";

class OffCpu : public RecordTest {
 protected:
  void SetUp() override {
    RecordTest::SetUp();
    if (geteuid() != 0) GTEST_SKIP() << "needs root";
    as_root_ = true;
  }

  /// Blocked time of the stacks through a function, in microseconds.
  static uint64_t blocked_us(const profile::Profile& profile, const std::string& function) {
    uint64_t sum_ns = 0;
    for (const auto& wait : profile.waits)
      if ((";" + chain(profile, wait) + ";").find(";" + function + ";") != std::string::npos)
        sum_ns += wait.weight_ns;
    return sum_ns / 1000;
  }
};

TEST_F(OffCpu, WaitsAreTheProgramsOwn) {
  const Ran ran = clew({"record", "--off-cpu", "--", compile("waits", kWaits, "-O1 -pthread")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  std::istringstream lines(ran.out);
  std::string name;
  uint64_t us = 0;
  int compared = 0;
  while (lines >> name >> us) {
    const uint64_t blocked = blocked_us(profile, name);
    EXPECT_LE(blocked, us) << name;
    EXPECT_GE(blocked, us * 9 / 10) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 3) << ran.out;
  EXPECT_EQ(profile.totals.lost, 0u);
  for (const auto& wait : profile.waits) {
    EXPECT_EQ(wait.end, CLEW_END_ROOT) << chain(profile, wait);
    EXPECT_GE(wait.weight_ns, 1'000'000u);
    // It begins where the task leaves its CPU: what records it is not part of it.
    EXPECT_TRUE(chain(profile, wait).ends_with(";__schedule")) << chain(profile, wait);
  }
  EXPECT_NE(ran.err.find("Off the CPU: "), std::string::npos) << ran.err;
}

TEST_F(OffCpu, WaitsBelowTheLeastAreLeftOut) {
  const Ran ran = clew({"record", "--off-cpu", "40", "--", compile("waits", kWaits, "-O1 -pthread")});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  for (const auto& wait : profile.waits) EXPECT_GE(wait.weight_ns, 40'000'000u) << chain(profile, wait);
  EXPECT_GE(blocked_us(profile, "holds"), 300'000u);
}

TEST_F(OffCpu, AThreadThatStillBlocksAtTheEndIsThere) {
  const Ran ran = clew({"record", "--off-cpu", "--duration", "0.6", "--", "sleep", "1.5"});
  ASSERT_EQ(ran.status, 0) << ran.err;
  uint64_t longest_ns = 0;
  for (const auto& wait : recording().waits) longest_ns = std::max(longest_ns, wait.weight_ns);
  EXPECT_GT(longest_ns, 100'000'000u);
  EXPECT_LT(longest_ns, 1'450'000'000u);
}

TEST_F(OffCpu, APreemptedThreadDoesNotWait) {
  const std::string program = compile("spins", R"(
#include <time.h>
#include <unistd.h>
static volatile unsigned sink;
int main(void) {
  struct timespec now;
  for (int i = 0; i < 3; i++) if (fork() == 0) break;
  do {
    for (unsigned k = 0; k < 1000; k++) sink += k;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
  } while (now.tv_nsec < 200000000);
  return 0;
}
)");
  const Ran ran = clew({"record", "--off-cpu", "--", "taskset", "-c", "0", program});
  ASSERT_EQ(ran.status, 0) << ran.err;
  const profile::Profile profile = recording();
  EXPECT_GT(profile.samples.size(), 600u);  // four times 0.2 s on one CPU: each is off it for 0.6 s
  EXPECT_LT(blocked_us(profile, "main"), 100'000u);
}

TEST_F(OffCpu, NeedsTheBpfCollector) {
  as_root_ = false;
  const Ran ran = clew({"record", "--off-cpu", "--", "true"});
  EXPECT_EQ(ran.status, 125);
  EXPECT_EQ(ran.err, "clew: the bpf collector needs root, or CAP_BPF and CAP_PERFMON\n");
  EXPECT_EQ(clew({"record", "--off-cpu", "--collector", "perf", "--", "true"}).err,
            "clew: --off-cpu is the bpf collector's: leave --collector perf out\n");
  for (const char* least : {"-1", "nan", "1e300"})
    EXPECT_EQ(clew({"record", "--off-cpu=" + std::string(least), "--", "true"}).err,
              "clew: --off-cpu: give the least milliseconds that a wait must take to be recorded\n")
        << least;
}

}  // namespace
}  // namespace clew::cli
