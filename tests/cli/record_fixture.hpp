// clew record as an ordinary user runs it: in a child process without privileges, on programs compiled here
// whose chains are known from their source.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "cli/cli.hpp"
#include "profile/profile.hpp"

namespace clew::cli {

inline constexpr uid_t kNobody = 65534;

inline std::string contents(const std::string& path) {
  std::ifstream file(path);
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

struct Ran {
  int status = -1;  // as a shell gives it
  std::string out, err;
};

class RecordTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (std::filesystem::temp_directory_path() / "clew-record-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder_ = name;
    chmod(folder_.c_str(), 0777);
  }
  void TearDown() override {
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  /// Starts `clew WORDS...` in the test's folder as an ordinary user; `before` runs in the child first.
  pid_t start(const std::vector<std::string>& words, const std::function<void()>& before = {}) {
    const pid_t child = fork();
    if (child != 0) return child;
    const int out = open(path("out").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    const int err = open(path("err").c_str(), O_CREAT | O_TRUNC | O_WRONLY, 0644);
    dup2(out, 1);
    dup2(err, 2);
    if (geteuid() == 0 && !as_root_) {
      if (setgroups(0, nullptr) != 0 || setresgid(kNobody, kNobody, kNobody) != 0 ||
          setresuid(kNobody, kNobody, kNobody) != 0) {
        _exit(99);
      }
      prctl(PR_SET_DUMPABLE, 1);  // as after an exec of the real program
    }
    setenv("CLEW_CACHE_DIR", path("cache").c_str(), 1);
    if (chdir(folder_.c_str()) != 0) _exit(99);
    if (before) before();
    std::vector<std::string> copies = words;
    copies.insert(copies.begin(), "clew");
    std::vector<char*> argv;
    for (std::string& word : copies) argv.push_back(word.data());
    _exit(run(static_cast<int>(argv.size()), argv.data()));
  }

  Ran wait_for(pid_t child) {
    Ran ran;
    int status = 0;
    waitpid(child, &status, 0);
    ran.status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    ran.out = contents(path("out"));
    ran.err = contents(path("err"));
    return ran;
  }

  Ran clew(const std::vector<std::string>& words, const std::function<void()>& before = {}) {
    return wait_for(start(words, before));
  }

  /// Compiles a C program into the test's folder.
  std::string compile(const std::string& name, const std::string& source, const std::string& flags = "-O1") {
    std::ofstream(path(name + ".c")) << source;
    const std::string command = "cc -g -fomit-frame-pointer -fno-optimize-sibling-calls " + flags + " -o " +
                                path(name) + " " + path(name + ".c");
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return path(name);
  }

  std::string path(const std::string& name) const { return folder_ + "/" + name; }

  profile::Profile recording() {
    auto profile = profile::read(path("clew.otlp.zst"));
    EXPECT_TRUE(profile) << (profile ? "" : profile.error());
    return profile ? std::move(*profile) : profile::Profile();
  }

  std::string folder_;
  bool as_root_ = false;
};

/// Function names of a sample, root first, joined by ';'.
inline std::string chain(const profile::Profile& profile, const profile::ReadSample& sample) {
  std::string text;
  const std::vector<uint32_t>& stack = profile.stacks[sample.stack];
  for (auto location = stack.rbegin(); location != stack.rend(); ++location) {
    const auto& lines = profile.locations[*location].lines;
    for (auto line = lines.rbegin(); line != lines.rend(); ++line) {
      text += (text.empty() ? "" : ";") + profile.strings[line->function];
    }
  }
  return text;
}

inline size_t count(const profile::Profile& profile,
                    const std::function<bool(const profile::ReadSample&)>& is) {
  return static_cast<size_t>(std::ranges::count_if(profile.samples, is));
}

inline size_t incomplete(const profile::Profile& profile) {
  return count(profile, [](const auto& sample) { return sample.end != CLEW_END_ROOT; });
}

inline constexpr const char* kSpin = R"(
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include <sys/wait.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
static volatile unsigned long sink;
/* Burns CPU time of this thread, ms. */
__attribute__((noinline)) void spin(long ms) {
  struct timespec start, now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &start);
  do {
    for (int i = 0; i < 20000; i++) sink += i;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < ms);
}
)";

/// From here on perf_event_open fails as at kernel.perf_event_paranoid 3.
inline void forbid_perf() {
  sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_perf_event_open, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EACCES),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program = {.len = std::size(filter), .filter = filter};
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
      prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
    _exit(99);
  }
}

/// Waits, without end but the test's own, until a file is there.
inline void wait_for_file(const std::string& name) {
  while (!std::filesystem::exists(name)) std::this_thread::sleep_for(std::chrono::milliseconds(5));
}

}  // namespace clew::cli
