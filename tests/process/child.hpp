// Programs that run while a test looks at them.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <functional>
#include <string>
#include <vector>

namespace clew::test {

/// A started program that has printed its first line; ended with its holder.
class Child {
 public:
  /// `prepare` runs in the child before exec; a descriptor >= 0 is executed instead of the path.
  explicit Child(
      std::vector<std::string> arguments, const std::function<void()>& prepare = [] {}, int descriptor = -1) {
    int pipe_ends[2];
    EXPECT_EQ(pipe2(pipe_ends, O_CLOEXEC), 0);
    pid_ = fork();
    if (pid_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      dup2(pipe_ends[1], STDOUT_FILENO);
      prepare();
      std::vector<char*> argv;
      for (std::string& argument : arguments) argv.push_back(argument.data());
      argv.push_back(nullptr);
      if (descriptor >= 0) {
        fexecve(descriptor, argv.data(), environ);
      } else {
        execv(argv[0], argv.data());
      }
      _exit(127);
    }
    close(pipe_ends[1]);
    char byte;
    while (read(pipe_ends[0], &byte, 1) == 1 && byte != '\n') line_ += byte;
    close(pipe_ends[0]);
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;
  ~Child() { end(); }
  void end() {
    if (pid_ <= 0) return;
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
  }
  pid_t pid() const { return pid_; }
  const std::string& line() const { return line_; }

 private:
  pid_t pid_ = -1;
  std::string line_;
};

inline bool is_root() { return geteuid() == 0; }

/// Runs `body` in a child process as an ordinary user (as ourselves where we are one); its failures are the
/// test's.
inline void unprivileged(const std::function<void()>& body) {
  std::fflush(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    constexpr uid_t kNobody = 65534;
    const bool dropped = !is_root() || (setresgid(kNobody, kNobody, kNobody) == 0 &&
                                        setresuid(kNobody, kNobody, kNobody) == 0);
    prctl(PR_SET_DUMPABLE, 1);
    if (!dropped) _exit(99);
    body();
    std::fflush(nullptr);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  waitpid(pid, &status, 0);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "in the unprivileged child, see above";
}

}  // namespace clew::test
