// The fuzzer's seeds. CLEW_WRITE_SEEDS=1 makes them anew: they are then the recordings of today's writer.
#include <cstdlib>
#include <filesystem>

#include "profile/reader.hpp"
#include "recording.hpp"

namespace clew::profile::test {
namespace {

const std::string kSeeds = CLEW_SOURCE_DIR "/tests/fuzz/seeds/profile_fuzz";

void write_seeds() {
  std::filesystem::create_directories(kSeeds);
  const TemporaryDirectory directory;
  write_recording(directory.file("r"));
  put(kSeeds + "/file", "\x01" + contents(directory.file("r")));
  put(kSeeds + "/message", std::string(1, '\0') + *otlp_message(directory.file("r")));
  create(directory.file("empty"));
  put(kSeeds + "/empty_file", "\x01" + contents(directory.file("empty")));
  put(kSeeds + "/empty_message", std::string(1, '\0') + *otlp_message(directory.file("empty")));
}

TEST(ProfileSeeds, AreRecordings) {
  if (getenv("CLEW_WRITE_SEEDS")) write_seeds();
  for (const char* name : {"file", "message", "empty_file", "empty_message"}) {
    const std::string seed = contents(kSeeds + "/" + name);
    ASSERT_FALSE(seed.empty()) << name;
    const Result<Profile> profile =
        seed[0] & 1 ? decode_file(name, seed.substr(1)) : decode_message(name, seed.substr(1));
    ASSERT_TRUE(profile) << profile.error();
    EXPECT_EQ(profile->samples.size(), std::string(name).starts_with("empty") ? 0U : 8U) << name;
  }
}

}  // namespace
}  // namespace clew::profile::test
