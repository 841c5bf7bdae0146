// Separate debug files.
#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "elf/fixtures.hpp"
#include "process/process.hpp"

namespace clew::test {
namespace {

namespace fs = std::filesystem;

struct Separated {
  TemporaryDirectory directory;
  std::string program = compile_program(directory, "program", "-g");
  std::string debug = directory.file("program.debug");

  Separated() {
    run("objcopy --only-keep-debug " + program + " " + debug + " && objcopy -g --add-gnu-debuglink=" + debug +
        " " + program);
  }
  std::optional<std::string> find(const std::string& root = "") {
    auto image = elf::Image::open(program);
    EXPECT_TRUE(image) << image.error();
    return process::find_debug_file(*image, root.empty() ? program : program.substr(root.size()), root);
  }
};

TEST(DebugFile, IsFoundByItsLink) {
  Separated files;
  EXPECT_EQ(files.find(), files.debug);
  fs::create_directory(files.directory.file(".debug"));
  fs::rename(files.debug, files.directory.file(".debug/program.debug"));
  EXPECT_EQ(files.find(), files.directory.file(".debug/program.debug"));
}

TEST(DebugFile, WithAnotherChecksumIsNotTaken) {
  Separated files;
  run("echo x >> " + files.debug);
  EXPECT_EQ(files.find(), std::nullopt);
  fs::remove(files.debug);
  EXPECT_EQ(files.find(), std::nullopt);
  run("mkfifo " + files.debug);  // not waited for
  EXPECT_EQ(files.find(), std::nullopt);
}

TEST(DebugFile, IsFoundUnderARoot) {
  Separated files;
  const std::string root = files.directory.path();
  fs::create_directories(root + "/usr/lib/debug");
  fs::rename(files.debug, root + "/usr/lib/debug/program.debug");
  EXPECT_EQ(files.find(root), root + "/usr/lib/debug/program.debug");
}

TEST(DebugFile, IsFoundByBuildId) {
  Separated files;
  auto image = elf::Image::open(files.program);
  ASSERT_TRUE(image) << image.error();
  const std::string id = image->build_id_hex(), root = files.directory.path();
  const std::string folder = root + "/usr/lib/debug/.build-id/" + id.substr(0, 2);
  const std::string expected = folder + "/" + id.substr(2) + ".debug";
  fs::create_directories(folder);
  // A file of another build in its place is passed over.
  fs::copy_file(compile_program(files.directory, "other", "-g -O0"), expected);
  EXPECT_EQ(files.find(root), root + "/program.debug");
  fs::remove(expected);
  fs::rename(files.debug, expected);
  EXPECT_EQ(files.find(root), expected);
}

TEST(DebugFile, IsOpenedForItsDebugFrameWhereTheProgramHasNone) {
  TemporaryDirectory directory;
  const std::string folder = directory.path();
  std::ofstream(folder + "/f.c") << "int f(int x) { return x + 1; }\nint main(void) { return f(-1); }\n";
  const auto build = [&](const std::string& flags) {
    run("cd " + folder + " && rm -f f f.debug && gcc -g " + flags +
        " -o f f.c && objcopy --only-keep-debug f f.debug");
  };
  const auto opened = [&] {
    auto image = elf::Image::open(folder + "/f");
    EXPECT_TRUE(image) << image.error();
    return process::open_debug_frame(*image, folder + "/f", "");
  };
  const std::string separate = "cd " + folder + " && objcopy -g --add-gnu-debuglink=f.debug f";
  build("-fno-asynchronous-unwind-tables");
  run("cd " + folder + " && objcopy --add-gnu-debuglink=f.debug f");
  EXPECT_FALSE(opened().has_value()) << "the program has its own";
  run(separate);
  const auto debug = opened();
  ASSERT_TRUE(debug.has_value());
  EXPECT_EQ(debug->name(), folder + "/f.debug");
  run("echo x >> " + folder + "/f.debug");
  EXPECT_FALSE(opened().has_value()) << "another checksum";
  build("-fasynchronous-unwind-tables");
  run(separate);
  EXPECT_FALSE(opened().has_value()) << "nothing to be had there";
}

TEST(DebugFile, LinkMustNotLeadElsewhere) {
  Separated files;
  const std::string section = files.directory.file("link");
  run("printf '../" + fs::path(files.directory.path()).filename().string() +
      "/program.debug\\0\\0\\0\\0' > " + section);
  auto bytes = read_whole(section);
  const auto length =
      static_cast<size_t>(std::find(bytes.begin(), bytes.end(), std::byte{0}) - bytes.begin());
  bytes.resize((length + 1 + 3) / 4 * 4 + 4);
  const uint32_t crc = static_cast<uint32_t>(
      std::stoul(output_of("gzip -c1 " + files.debug + " | tail -c8 | od -An -tu4 -N4")));
  std::memcpy(bytes.data() + bytes.size() - 4, &crc, 4);
  write_whole(section, bytes);
  run("objcopy --remove-section .gnu_debuglink --add-section .gnu_debuglink=" + section + " " +
      files.program);
  auto image = elf::Image::open(files.program);
  ASSERT_TRUE(image) << image.error();
  ASSERT_TRUE(image->debug_link().has_value());
  EXPECT_EQ(image->debug_link()->second, crc);
  EXPECT_EQ(files.find(), std::nullopt);
}

}  // namespace
}  // namespace clew::test
