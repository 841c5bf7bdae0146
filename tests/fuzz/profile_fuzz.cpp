// The profile reader and every output of what it accepts. The first byte chooses: a file as it is on disk, or
// the message inside (so that mutations get past zstd's checksums). Its seeds are made by
// tests/profile/seeds_test.cpp.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "profile/profile.hpp"
#include "profile/reader.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace clew::profile;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data + 1), size - 1);
  const clew::Result<Profile> profile = data[0] & 1 ? decode_file("f", bytes) : decode_message("f", bytes);
  if (!profile) return 0;
  // The outputs are as large as stacks are deep and names are long; only the reader's memory is bounded.
  uint64_t frames = 0;
  for (const ReadSample& sample : profile->samples) frames += profile->stacks[sample.stack].size();
  uint64_t longest = 0;
  for (const std::string& text : profile->strings) longest = std::max<uint64_t>(longest, text.size());
  if (frames * (longest + 32) > (64 << 20)) return 0;
  size_t total = 0;
  for (const std::string& text : {summary(*profile), summary_json(*profile), table(*profile, 20),
                                  folded(*profile), pprof(*profile), speedscope(*profile)})
    total += text.size();
  if (total == 0) std::abort();
  return 0;
}
