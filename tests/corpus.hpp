// The recorded corpus: where it is, its JSON, its packed files. Tests skip where it is absent.
#pragma once

#include <gtest/gtest.h>
#include <zlib.h>

#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace clew::test {

/// The folder of a kind of case, "" where the corpus is not here.
inline std::string corpus(const std::string& kind) {
  const char* shared = std::getenv("CLEW_SHARED");
  std::string path = std::string(shared ? shared : CLEW_SOURCE_DIR "/../shared") + "/corpus/" + kind;
  return std::filesystem::is_directory(path) ? path : "";
}

#define CLEW_NEED_CORPUS(folder) \
  if ((folder).empty()) GTEST_SKIP() << "the corpus is not here: set CLEW_SHARED, or put it at ../shared"

inline nlohmann::json read_json(const std::string& path) {
  std::ifstream file(path);
  return nlohmann::json::parse(file);
}

inline uint64_t number(const nlohmann::json& value) {
  return std::stoull(value.get<std::string>(), nullptr, 16);
}

inline std::vector<std::byte> bytes_of(const std::string& text) {
  const auto* data = reinterpret_cast<const std::byte*>(text.data());
  return {data, data + text.size()};
}

/// A file's bytes; *.gz unpacked.
inline std::vector<std::byte> read_file(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");  // reads what is not gzip as it is
  if (!file) throw std::runtime_error("cannot open " + path);
  std::vector<std::byte> bytes;
  std::array<std::byte, 65536> buffer;
  int got;
  while ((got = gzread(file, buffer.data(), buffer.size())) > 0)
    bytes.insert(bytes.end(), buffer.begin(), buffer.begin() + got);
  gzclose(file);
  return bytes;
}

/// A folder that is removed with its contents.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "clew-test-XXXXXX").string();
    if (!mkdtemp(pattern.data())) throw std::runtime_error("cannot make a folder for the test");
    path_ = pattern;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

inline void write_file(const std::string& path, const std::vector<std::byte>& bytes) {
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
}

struct Output {
  int status = -1;
  std::string out;
  std::string err;
};

/// Runs a shell command.
inline Output run_command(const std::string& command) {
  TemporaryFolder folder;
  Output output;
  int status =
      std::system(("(" + command + ") >" + folder.path() + "/out 2>" + folder.path() + "/err").c_str());
  output.status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  auto slurp = [](const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  output.out = slurp(folder.path() + "/out");
  output.err = slurp(folder.path() + "/err");
  return output;
}

inline bool have(const std::string& program) { return run_command("command -v " + program).status == 0; }

}  // namespace clew::test
