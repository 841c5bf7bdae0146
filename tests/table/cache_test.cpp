// Tables on disk: made once, mapped afterwards, a damaged or foreign one made anew.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "table/table.hpp"

namespace clew::table {
namespace {

namespace fs = std::filesystem;

class Cache : public testing::Test {
 protected:
  void SetUp() override {
    char directory[] = "/tmp/clew-cache-test-XXXXXX";
    directory_ = mkdtemp(directory);
    setenv("CLEW_CACHE_DIR", directory_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("CLEW_CACHE_DIR");
    fs::remove_all(directory_);
  }
  Report load() {
    auto image = elf::Image::open("/lib/x86_64-linux-gnu/libc.so.6");
    EXPECT_TRUE(image);
    Report report;
    auto table = load_or_compile(*image, &report);
    EXPECT_TRUE(table);
    EXPECT_NE((*table)->lookup(image->symbols()[image->symbols().size() / 2].address), 0u);
    return report;
  }
  fs::path file() const {
    for (const auto& entry : fs::recursive_directory_iterator(directory_)) {
      if (entry.is_regular_file()) return entry.path();
    }
    return {};
  }
  std::string directory_;
};

TEST_F(Cache, SecondLoadIsFromDisk) {
  EXPECT_FALSE(load().from_cache);
  EXPECT_TRUE(load().from_cache);
}

TEST_F(Cache, DamagedFileIsRebuilt) {
  load();
  {
    std::fstream stream(file(), std::ios::in | std::ios::out | std::ios::binary);
    stream.seekp(5000);
    stream.put('x').put('y').put('z');
  }
  EXPECT_FALSE(load().from_cache);
  EXPECT_TRUE(load().from_cache) << "the rebuilt one replaced it";
}

TEST_F(Cache, TruncatedFileIsRebuilt) {
  load();
  fs::resize_file(file(), 4096);
  EXPECT_FALSE(load().from_cache);
}

TEST_F(Cache, FileThatOthersCanWriteIsNotTrusted) {
  load();
  chmod(file().c_str(), 0666);
  EXPECT_FALSE(load().from_cache);
}

TEST_F(Cache, TableOfAnotherFileIsNotTaken) {
  load();
  auto other = elf::Image::open("/lib64/ld-linux-x86-64.so.2");
  ASSERT_TRUE(other);
  const std::string id = other->build_id_hex();
  fs::create_directories(directory_ + "/" + id.substr(0, 2));
  fs::copy_file(file(), directory_ + "/" + id.substr(0, 2) + "/" + id.substr(2) + ".clewtable");
  Report report;
  ASSERT_TRUE(load_or_compile(*other, &report));
  EXPECT_FALSE(report.from_cache);
}

TEST_F(Cache, DirectoryThatCannotBeMadeIsNoError) {
  setenv("CLEW_CACHE_DIR", "/proc/nowhere", 1);
  EXPECT_FALSE(load().from_cache);
}

}  // namespace
}  // namespace clew::table
