// Makes the fuzzer's seeds: test_profile --gtest_also_run_disabled_tests
// --gtest_filter='*DISABLED_ProfileSeeds*'.
#include <filesystem>

#include "recording.hpp"

namespace clew::profile::test {
namespace {

TEST(DISABLED_ProfileSeeds, Write) {
  const std::string seeds = CLEW_SOURCE_DIR "/tests/fuzz/seeds/profile_fuzz";
  std::filesystem::create_directories(seeds);
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  put(seeds + "/file", "\x01" + contents(directory.file("r")));
  put(seeds + "/message", std::string(1, '\0') + *otlp_message(directory.file("r")));
  create(directory.file("empty"));
  put(seeds + "/empty_file", "\x01" + contents(directory.file("empty")));
  put(seeds + "/empty_message", std::string(1, '\0') + *otlp_message(directory.file("empty")));
}

}  // namespace
}  // namespace clew::profile::test
