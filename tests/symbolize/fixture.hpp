// What the symbolizer's tests share: a scratch folder, compiling into it, and asking peers.
#pragma once

#include <gtest/gtest.h>
#include <stdlib.h>

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "elf/image.hpp"
#include "symbolize/symbolize.hpp"

namespace clew::symbolize {

/// Standard output and exit status of a shell command.
struct Ran {
  int status = -1;
  std::string output;
};
inline Ran run(const std::string& command) {
  Ran ran;
  FILE* const pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return ran;
  char buffer[4096];
  for (size_t got = 0; (got = fread(buffer, 1, sizeof buffer, pipe)) > 0;) ran.output.append(buffer, got);
  ran.status = pclose(pipe);
  return ran;
}

inline bool have(const std::string& program) {
  return run("command -v " + program + " >/dev/null 2>&1").status == 0;
}

class Scratch : public testing::Test {
 protected:
  Scratch() {
    std::string pattern = (std::filesystem::temp_directory_path() / "clew-symbolize-XXXXXX").string();
    if (mkdtemp(pattern.data()) != nullptr) folder_ = pattern;
  }
  ~Scratch() override {
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }
  std::string path(const std::string& name) const { return (folder_ / name).string(); }
  static std::string program(const std::string& name) {
    return std::string(CLEW_SOURCE_DIR "/tests/symbolize/programs/") + name;
  }
  /// Runs a command in the scratch folder; the test fails where it does.
  void shell(const std::string& command) const {
    const Ran ran = run("cd " + folder_.string() + " && { " + command + " ; } 2>&1");
    ASSERT_EQ(ran.status, 0) << command << "\n" << ran.output;
  }
  /// Compiles programs/inlines.cpp to `output`.
  std::string compile(const std::string& flags, const std::string& output = "program") const {
    shell("g++ -std=c++20 " + flags + " -o " + output + " " + program("inlines.cpp"));
    return path(output);
  }

  std::filesystem::path folder_;
};

/// Every address of a file's .text in steps of `step` bytes.
inline std::vector<uint64_t> text_addresses(const std::string& file, uint64_t step) {
  std::vector<uint64_t> addresses;
  auto image = elf::Image::open(file);
  if (!image) return addresses;
  const elf::Section* const text = image->section(".text");
  if (text == nullptr) return addresses;
  for (uint64_t a = text->address; a < text->address + text->size; a += step) addresses.push_back(a);
  return addresses;
}

/// The address of a symbol whose raw name is `name`; 0 where there is none.
inline uint64_t address_of(const std::string& file, const std::string& name) {
  auto image = elf::Image::open(file);
  if (!image) return 0;
  for (const elf::Symbol& symbol : image->symbols()) {
    if (symbol.name == name) return symbol.address;
  }
  return 0;
}

/// What a peer says: the output of llvm-symbolizer (LLVM style, its blank line ends an answer) or of
/// addr2line -afiC.
inline std::vector<Lines> ask_peer(const std::string& command, const std::vector<uint64_t>& addresses,
                                   const std::string& scratch_file) {
  std::ofstream questions(scratch_file);
  for (const uint64_t address : addresses) questions << "0x" << std::hex << address << "\n";
  questions.close();
  std::istringstream output(run(command + " < " + scratch_file).output);
  std::vector<Lines> answers;
  for (std::string line; std::getline(output, line);) {
    if (line.empty()) continue;
    if (line.starts_with("0x")) {
      answers.emplace_back();
      continue;
    }
    if (answers.empty()) break;
    Line answer;
    answer.function = line == "??" ? "" : line;
    std::getline(output, line);
    line = line.substr(0, line.find(" (discriminator"));
    const size_t colon = line.find(':');
    answer.file = line.substr(0, colon);
    if (answer.file == "??") answer.file.clear();
    if (colon != std::string::npos)
      answer.line = static_cast<uint32_t>(strtoul(line.c_str() + colon + 1, nullptr, 10));
    answers.back().push_back(std::move(answer));
  }
  return answers;
}

inline std::vector<Lines> llvm_symbolizer(const std::string& file, const std::vector<uint64_t>& addresses,
                                          const std::string& scratch_file) {
  return ask_peer("llvm-symbolizer-19 -a -e " + file, addresses, scratch_file);
}

inline std::string text(const Lines& lines) {
  std::string out;
  for (const Line& line : lines)
    out += "  " + line.function + " " + line.file + ":" + std::to_string(line.line) + "\n";
  return out;
}

}  // namespace clew::symbolize
