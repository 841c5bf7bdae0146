// Files that are not what they claim cost their own names, and nothing else.
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <random>

#include "symbolize/fixture.hpp"

namespace clew::symbolize {
namespace {

class Hostile : public Scratch {
 protected:
  static std::string read_file(const std::string& file) {
    std::ifstream in(file, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  static void write_file(const std::string& file, const std::string& bytes) {
    std::ofstream(file, std::ios::binary | std::ios::trunc) << bytes;
  }
};

TEST_F(Hostile, DamagedDwarf) {
  const std::string file = compile("-O2 -g");
  const std::string sound = read_file(file);
  const std::vector<uint64_t> addresses = text_addresses(file, 9);
  struct Range {
    uint64_t offset, size;
  };
  std::vector<Range> debug;
  {
    auto image = elf::Image::open(file);
    ASSERT_TRUE(image);
    for (const elf::Section& section : image->sections()) {
      if (section.name.starts_with(".debug_") && section.size > 0)
        debug.push_back({section.offset, section.size});
    }
  }
  ASSERT_GE(debug.size(), 5U);
  std::mt19937 random(19);
  Symbolizer symbolizer;
  for (int round = 0; round < 60; ++round) {
    std::string bytes = sound;
    const Range range = debug[static_cast<size_t>(round) % debug.size()];
    for (int i = 0; i < 1 + round / 4; ++i)
      bytes[range.offset + random() % range.size] = static_cast<char>(random());
    write_file(path("damaged"), bytes);
    ASSERT_EQ(symbolizer.symbolize({path("damaged"), "", ""}, addresses).size(), addresses.size());
  }
}

TEST_F(Hostile, TruncatedAnywhere) {
  const std::string file = compile("-O2 -g");
  const std::string sound = read_file(file);
  const std::vector<uint64_t> addresses = text_addresses(file, 29);
  Symbolizer symbolizer;
  for (size_t parts = 0; parts < 40; ++parts) {
    write_file(path("cut"), sound.substr(0, sound.size() * parts / 40));
    ASSERT_EQ(symbolizer.symbolize({path("cut"), "", ""}, addresses).size(), addresses.size());
  }
}

TEST_F(Hostile, NoFileNoHang) {
  ASSERT_EQ(mkfifo(path("fifo").c_str(), 0600), 0);
  const std::vector<uint64_t> addresses{0x1000, 0x2000};
  Symbolizer symbolizer;
  for (const std::string& name :
       {path("absent"), path("fifo"), std::string("/dev/zero"), folder_.string(), std::string()}) {
    const auto answers = symbolizer.symbolize({name, name, "00"}, addresses);
    ASSERT_EQ(answers.size(), 2U);
    EXPECT_TRUE(answers[0].empty() && answers[1].empty());
  }
  EXPECT_TRUE(symbolizer.symbolize({"/proc/self/exe", "", ""}, {}).empty());
}

TEST_F(Hostile, SkeletonUnitThatNamesAPipe) {
  const std::string file = compile("-O2 -gdwarf-5 -gsplit-dwarf");
  const std::vector<uint64_t> address{address_of(file, "plain_c")};
  shell("rm ./*.dwo && mkfifo \"$(strings -a program | grep '\\.dwo$' | head -1 | xargs basename)\"");
  Symbolizer symbolizer;
  const auto answers = symbolizer.symbolize({file, "", ""}, address);
  ASSERT_FALSE(answers[0].empty());
  EXPECT_EQ(answers[0].back().function, "plain_c");
  EXPECT_NE(answers[0].back().line, 0U);  // the skeleton's own line table still serves
  EXPECT_EQ(symbolizer.failures(), 0U);
}

TEST_F(Hostile, ControlCharactersInNames) {
  const std::string file = compile("-O1");
  std::string bytes = read_file(file);
  const uint64_t address = address_of(file, "plain_c");
  for (size_t at = 0; (at = bytes.find("plain_c", at)) != std::string::npos;)
    bytes.replace(at, 7, "\x1b[2J\xff\nc");
  write_file(path("changed"), bytes);
  Symbolizer symbolizer;
  const auto answers = symbolizer.symbolize({path("changed"), "", ""}, std::vector<uint64_t>{address});
  ASSERT_EQ(answers[0].size(), 1U);
  EXPECT_EQ(answers[0][0].function, "?[2J\xef\xbf\xbd?c");
}

/// _Z1f1a1bIS_S_ES0_IS1_S1_E...: each parameter is the one before it, twice. Its readable form doubles with
/// each.
std::string doubling_name(int levels) {
  const auto base36 = [](int n) {
    std::string digits;
    for (; n > 0 || digits.empty(); n /= 36)
      digits.insert(digits.begin(), "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[n % 36]);
    return digits;
  };
  std::string name = "_Z1f1a1bIS_S_E";
  for (int i = 1; i < levels; ++i) name += "S0_IS" + base36(i) + "_S" + base36(i) + "_E";
  return name;
}

TEST_F(Hostile, NameThatGrowsWithoutBound) {
  ASSERT_GT(demangle(doubling_name(6)).size(),
            2 * demangle(doubling_name(5)).size() - 64);  // it does what it claims
  const std::string name = doubling_name(50);
  write_file(path("bomb.s"),
             ".globl " + name + "\n.type " + name + ",@function\n" + name + ":\nret\n.size " + name + ",1\n");
  shell("gcc -shared -nostdlib -o bomb.so bomb.s");
  const std::vector<uint64_t> address{address_of(path("bomb.so"), name)};
  ASSERT_NE(address[0], 0U);
  const std::string sound = compile("-O2 -g");
  const std::vector<uint64_t> sound_address{address_of(sound, "plain_c")};
  Symbolizer symbolizer(Limits{1, 1});
  EXPECT_TRUE(symbolizer.symbolize({path("bomb.so"), "", ""}, address)[0].empty());
  EXPECT_EQ(symbolizer.failures(), 2U);  // with DWARF, with symbols only; then it is left alone
  EXPECT_TRUE(symbolizer.symbolize({path("bomb.so"), "", ""}, address)[0].empty());
  EXPECT_EQ(symbolizer.failures(), 2U);
  EXPECT_EQ(symbolizer.symbolize({sound, "", ""}, sound_address)[0].back().function, "plain_c");
  EXPECT_GT(symbolizer.child_cpu_ns(), 0U);
}

/// This thread's children.
std::vector<pid_t> children() {
  std::ifstream file("/proc/thread-self/children");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

TEST_F(Hostile, ChildKilledFromOutside) {
  const std::string file = compile("-O2 -g");
  const std::vector<uint64_t> address{address_of(file, "plain_c")};
  Symbolizer symbolizer;
  EXPECT_NE(symbolizer.symbolize({file, "", ""}, address)[0].back().line, 0U);
  const std::vector<pid_t> pids = children();
  if (pids.empty()) GTEST_SKIP() << "the kernel does not list children";
  for (const pid_t pid : pids) ASSERT_EQ(kill(pid, SIGKILL), 0);
  EXPECT_EQ(symbolizer.symbolize({file, "", ""}, address)[0].back().function, "plain_c");
  EXPECT_EQ(symbolizer.failures(), 1U);
}

TEST_F(Hostile, ChildHoldsNoDescriptorAndGoesWithTheSymbolizer) {
  const std::string file = compile("-O2 -g");
  int ends[2];
  ASSERT_EQ(pipe2(ends, O_NONBLOCK), 0);
  {
    Symbolizer symbolizer;
    symbolizer.symbolize({file, "", ""}, std::vector<uint64_t>{address_of(file, "plain_c")});
    close(ends[1]);
    char byte = 0;
    EXPECT_EQ(read(ends[0], &byte, 1), 0);  // end of file: nobody else holds the writing end
    close(ends[0]);
  }
  EXPECT_TRUE(children().empty());
}

}  // namespace
}  // namespace clew::symbolize
