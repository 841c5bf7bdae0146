// A small recording whose contents are known, and the tools that tests look at it with.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>

#include "profile/profile.hpp"

namespace clew::profile::test {

/// A directory of its own, removed with what is in it.
class TemporaryDirectory {
 public:
  TemporaryDirectory() {
    std::string name = (std::filesystem::temp_directory_path() / "clew-profile-XXXXXX").string();
    path_ = mkdtemp(name.data());
  }
  ~TemporaryDirectory() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline std::string contents(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline void put(const std::string& path, const std::string& bytes) {
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
}

struct Ran {
  int status = -1;  // the exit status
  std::string output;
};
inline Ran run(const std::string& command) {
  Ran ran;
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return ran;
  std::array<char, 4096> buffer;
  size_t count;
  while ((count = fread(buffer.data(), 1, buffer.size(), pipe)) > 0) ran.output.append(buffer.data(), count);
  const int status = pclose(pipe);
  ran.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return ran;
}
inline bool has_program(const std::string& name) {
  return run("command -v " + name + " >/dev/null 2>&1").status == 0;
}

constexpr uint64_t kPeriodNs = 1'001'001;
constexpr uint64_t kStartNs = 1'000'000'000'000;

// Addresses of the program: 0x1000s main, 0x2000s work with an inlined helper, 0x3000s nothing known.
inline std::vector<symbolize::Lines> names_of(std::span<const Place> places) {
  std::vector<symbolize::Lines> result;
  for (const Place& place : places) {
    if (place.kind == FrameKind::kKernel)
      result.push_back({{"do_syscall_64", "", 0}});
    else if (place.address >> 12 == 1)
      result.push_back({{"main", "/src/app.cpp", 10}});
    else if (place.address >> 12 == 2)
      result.push_back({{"helper(int)", "/src/app.hpp", 7}, {"work()", "/src/app.cpp", 20}});
    else
      result.emplace_back();
  }
  return result;
}

inline std::unique_ptr<Writer> create(const std::string& path, Symbolize symbolize = names_of) {
  Result<std::unique_ptr<Writer>> writer = Writer::create(path, kPeriodNs, std::move(symbolize));
  EXPECT_TRUE(writer) << writer.error();
  return writer ? std::move(*writer) : nullptr;
}

inline Mapping app() {
  return {0x1000, 0x9000, 0x1000, "/usr/bin/app", "00112233445566778899aabbccddeeff00112233"};
}

inline Place native(uint32_t mapping, uint64_t address, uint8_t how = CLEW_HOW_TABLE, uint8_t flags = 0) {
  return {mapping, address, FrameKind::kNative, how, flags};
}

inline Sample sample(uint32_t stack, uint64_t time_ns, clew_end end = CLEW_END_ROOT, pid_t tid = 100) {
  return {stack, 100, tid, tid == 100 ? "app" : "worker", time_ns, kPeriodNs, end};
}

/// Two pieces: five samples of main > work > helper, two of them by a worker; one in the kernel below work;
/// one that ends in the unknown 0x3abc behind a guess; one without frames. Totals: 3 lost, 12 ms used, a
/// note.
inline void write_recording(const std::string& path) {
  const std::unique_ptr<Writer> writer = create(path);
  const uint32_t mapping = writer->mapping(app());
  const Place leaf = native(mapping, 0x2010, CLEW_HOW_REGISTERS, CLEW_FRAME_EXACT_PC);
  const Place main = native(mapping, 0x1010);
  const uint32_t busy = writer->stack(std::array{leaf, main});
  for (uint64_t i = 0; i < 3; ++i) writer->sample(sample(busy, kStartNs + i * kPeriodNs));
  ASSERT_TRUE(writer->flush(true));

  for (uint64_t i = 3; i < 5; ++i) writer->sample(sample(busy, kStartNs + i * kPeriodNs, CLEW_END_ROOT, 101));
  const Place kernel{0, 0xffffffff81000010, FrameKind::kKernel, CLEW_HOW_KERNEL, CLEW_FRAME_EXACT_PC};
  writer->sample(
      sample(writer->stack(std::array{kernel, native(mapping, 0x2020), main}), kStartNs + 5 * kPeriodNs));
  const Place guess = native(mapping, 0x3abc, CLEW_HOW_FRAME_POINTER, CLEW_FRAME_GUESSED);
  writer->sample(
      sample(writer->stack(std::array{leaf, guess}), kStartNs + 6 * kPeriodNs, CLEW_END_STACK_CUT));
  writer->sample(sample(0, kStartNs + 7 * kPeriodNs, CLEW_END_NO_USER_STACK));
  Totals totals;
  totals.lost = 3;
  totals.duration_ns = 9'000'000;
  totals.cpu_used_ns = 12'000'000;
  totals.clew_cpu_ns = 250'000;
  totals.bpf_cpu_ns = 125'000;
  totals.collector = "perf";
  totals.command = "app --fast";
  totals.notes = {"app started a setuid program, which could not be sampled"};
  const Result<uint64_t> bytes = writer->finish(totals);
  ASSERT_TRUE(bytes) << bytes.error();
  ASSERT_EQ(*bytes, std::filesystem::file_size(path));
}

}  // namespace clew::profile::test
