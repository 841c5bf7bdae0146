// Files that are not what they claim: every truncation, and thousands of flipped bits. Run under the
// sanitizers too.
#include <elf.h>

#include <cstring>
#include <random>

#include "elf/fixtures.hpp"
#include "elf/image.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace clew::test {
namespace {

/// The fuzzer's own harness: as a file and as an image in memory, through every accessor.
void use(const std::vector<std::byte>& file) {
  LLVMFuzzerTestOneInput(reinterpret_cast<const uint8_t*>(file.data()), file.size());
}

std::vector<std::byte> small_file(const TemporaryDirectory& directory, bool sections) {
  const std::string path = compile_program(
      directory, "small",
      "-nostdlib -shared -fPIC -s -Wl,-z,max-page-size=4096,-z,noseparate-code -Wl,--gc-sections",
      "int f(int x) { return x + 1; }\nint g(int x) { return f(x) * 2; }\n");
  auto file = read_whole(path);
  if (!sections) drop_section_headers(file);
  return file;
}

TEST(HostileElf, TruncatedAnywhere) {
  TemporaryDirectory directory;
  for (const bool sections : {true, false}) {
    const auto file = small_file(directory, sections);
    ASSERT_LT(file.size(), 40000u);
    for (size_t size = 0; size < file.size(); ++size) {
      use({file.begin(), file.begin() + static_cast<ptrdiff_t>(size)});
    }
    // A file without its tail says so.
    auto image = elf::Image::from_bytes({file.begin(), file.begin() + 600}, "cut");
    ASSERT_TRUE(image) << image.error();
    EXPECT_FALSE(image->defects().empty());
  }
}

TEST(HostileElf, FlippedBits) {
  TemporaryDirectory directory;
  std::mt19937_64 random(20240607);
  for (const bool sections : {true, false}) {
    const auto file = small_file(directory, sections);
    const size_t headers = sizeof(Elf64_Ehdr) + 12 * sizeof(Elf64_Phdr);
    for (int round = 0; round < 4000; ++round) {
      auto damaged = file;
      const unsigned flips = 1 + random() % 4;
      for (unsigned i = 0; i < flips; ++i) {
        // Half of them in the headers at the front, where they hurt most.
        const size_t at = i % 2 == 0 ? 16 + random() % (headers - 16) : random() % file.size();
        damaged[at] ^= std::byte{static_cast<uint8_t>(1u << random() % 8)};
      }
      use(damaged);
    }
  }
}

TEST(HostileElf, ExtremeValuesInEveryHeaderWord) {
  TemporaryDirectory directory;
  for (const bool sections : {true, false}) {
    const auto file = small_file(directory, sections);
    std::vector<size_t> positions;
    for (size_t at = 16; at + 8 <= 64 + 12 * sizeof(Elf64_Phdr); at += 4) positions.push_back(at);
    const auto table = sections ? file.size() - (file.size() - 64) % 8 - 8 : 64;
    for (size_t at = table; sections && at > table - 1600 && at > 64; at -= 4) positions.push_back(at);
    for (const size_t at : positions) {
      for (const uint64_t value : {uint64_t{0}, UINT64_MAX, uint64_t{1} << 63, uint64_t{0x7fffffffffffffff},
                                   uint64_t{0xffffffff}, uint64_t{file.size()}, uint64_t{file.size() - 1}}) {
        auto damaged = file;
        std::memcpy(damaged.data() + at, &value, std::min<size_t>(8, damaged.size() - at));
        use(damaged);
      }
    }
  }
}

}  // namespace
}  // namespace clew::test
