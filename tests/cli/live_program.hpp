// Programs that tests compile, start, and end.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <stdexcept>
#include <string>
#include <vector>

#include "corpus.hpp"

namespace clew::test {

/// Compiles `source` (C++ by the name's suffix) and returns the program's path; throws with the compiler's
/// words.
inline std::string compile(const TemporaryFolder& folder, const std::string& name, const std::string& source,
                           const std::string& flags, const std::string& compiler = "g++") {
  std::string file = folder.path() + "/" + name + (compiler == "g++" ? ".cpp" : ".c");
  std::ofstream(file) << source;
  std::string program = folder.path() + "/" + name;
  Output output = run_command(compiler + " " + flags + " " + file + " -o " + program);
  if (output.status != 0) throw std::runtime_error(output.err);
  return program;
}

/// A running child with pipes at its standard input and output. Killed and collected at the end.
class Child {
 public:
  explicit Child(const std::vector<std::string>& command) {
    int in[2], out[2];
    if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) throw std::runtime_error("pipe failed");
    std::vector<char*> arguments;
    for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
    arguments.push_back(nullptr);
    pid_ = fork();
    if (pid_ == 0) {
      dup2(in[0], 0);
      dup2(out[1], 1);
      execvp(arguments[0], arguments.data());
      _exit(127);
    }
    close(in[0]);
    close(out[1]);
    in_ = in[1];
    out_ = out[0];
  }
  ~Child() {
    close_input();
    close(out_);
    if (pid_ > 0) {
      kill(pid_, SIGKILL);
      waitpid(pid_, nullptr, 0);
    }
  }
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  pid_t pid() const { return pid_; }
  void close_input() {
    if (in_ >= 0) close(in_);
    in_ = -1;
  }
  /// The next line of output, "" at its end.
  std::string line() {
    std::string text;
    char c;
    while (read(out_, &c, 1) == 1 && c != '\n') text += c;
    return text;
  }

 private:
  pid_t pid_ = -1;
  int in_ = -1;
  int out_ = -1;
};

/// The letter behind "State:" of /proc/PID/status, waiting up to a few seconds until it is one of `wanted`.
inline char state_of(pid_t pid, const std::string& wanted) {
  char state = '?';
  for (int i = 0; i < 500; ++i) {
    std::ifstream status("/proc/" + std::to_string(pid) + "/status");
    std::string line;
    while (std::getline(status, line))
      if (line.starts_with("State:")) state = line[7];
    if (wanted.find(state) != std::string::npos) break;
    usleep(10'000);
  }
  return state;
}

}  // namespace clew::test
