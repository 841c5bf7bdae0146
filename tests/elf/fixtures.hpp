// Files that the ELF tests read: made with the compiler and binutils where the test runs, and what other
// readers say.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace clew::test {

/// A directory that goes away with its holder.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string pattern = (std::filesystem::temp_directory_path() / "clew-test-XXXXXX").string();
    path_ = mkdtemp(pattern.data());
    // Tests that drop privileges must reach it.
    std::filesystem::permissions(path_, std::filesystem::perms(0755));
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

/// What a shell command prints; fails the test where it exits with an error.
inline std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = popen(("LC_ALL=C; export LC_ALL; " + command).c_str(), "r");
  char buffer[65536];
  while (const size_t got = fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, got);
  EXPECT_EQ(pclose(pipe), 0) << command;
  return text;
}
inline void run(const std::string& command) { output_of("{ " + command + "; } >/dev/null"); }
inline bool have(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

inline std::vector<std::byte> read_whole(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  const auto* first = reinterpret_cast<const std::byte*>(text.data());
  return {first, first + text.size()};
}
inline void write_whole(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

/// Clears where the section headers are, as `objcopy --strip-section-headers` of newer binutils does.
inline void drop_section_headers(std::vector<std::byte>& file) {
  for (size_t at = 40; at < 48; ++at) file.at(at) = std::byte{0};  // e_shoff
  for (size_t at = 60; at < 64; ++at) file.at(at) = std::byte{0};  // e_shnum, e_shstrndx
}

/// A program with functions of several bindings, a data segment, and a library beside it.
inline const char* const kProgram = R"(
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>
int counter = 7;
static int zeros[5000];
__attribute__((noinline)) static int local_function(int x) { zeros[x & 7] = x; return zeros[x & 3] * 3 + counter; }
__attribute__((noinline)) int global_function(int x) { return local_function(x) + 1; }
int alias_function(int x) __attribute__((alias("global_function")));
__attribute__((weak, noinline)) int weak_function(int x) { return global_function(x) * 2; }
__asm__(".text\nbare_label:\n ret\n ret\n");
int main(int argc, char** argv) {
  printf("ready %d\n", weak_function(argc));
  fflush(stdout);
  if (argc > 1) pause();
  return (int)(argv == NULL);
}
)";

/// Compiles kProgram; the file's path.
inline std::string compile_program(const TemporaryDirectory& directory, const std::string& name,
                                   const std::string& options, const std::string& source = kProgram) {
  const std::string source_file = directory.file(name + ".c");
  std::ofstream(source_file) << source;
  run("gcc -O1 " + options + " -o " + directory.file(name) + " " + source_file);
  return directory.file(name);
}

}  // namespace clew::test
