// The file behind a mapping: replaced, deleted, without a name, in another namespace.
#include <elf.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>

#include "elf/fixtures.hpp"
#include "process/child.hpp"
#include "process/process.hpp"

namespace clew::test {
namespace {

using process::MapsEntry;

/// The executable mapping whose path ends with `suffix`.
MapsEntry code_of(const std::vector<MapsEntry>& maps, const std::string& suffix) {
  for (const MapsEntry& entry : maps) {
    if (entry.executable && entry.path.ends_with(suffix)) return entry;
  }
  ADD_FAILURE() << "no executable mapping of " << suffix;
  return {};
}

std::vector<MapsEntry> maps_of(pid_t pid) {
  auto maps = process::read_maps(pid);
  EXPECT_TRUE(maps) << maps.error();
  return maps ? *maps : std::vector<MapsEntry>{};
}

std::string build_id_of(const std::string& path) {
  auto image = elf::Image::open(path);
  return image ? image->build_id_hex() : image.error();
}

std::string build_id_of(const process::UniqueFd& fd) {
  auto image = elf::Image::from_fd(fd.get(), "fd");
  return image ? image->build_id_hex() : image.error();
}

/// A program that loads the library that is its first argument, and waits.
constexpr const char* kLoader = R"(
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) {
  void* library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL;
  printf("%p\n", library == NULL ? NULL : dlsym(library, "global_function"));
  fflush(stdout);
  pause();
}
)";

TEST(MappedFile, IsOpenedByPath) {
  TemporaryDirectory directory;
  const std::string path = directory.file("a program\nof two lines");
  std::filesystem::copy_file(compile_program(directory, "program", "-Wl,--build-id"), path);
  const Child child({path, "wait"});
  const auto maps = maps_of(child.pid());
  const MapsEntry entry = code_of(maps, "two lines");
  auto fd = process::open_mapped_file(child.pid(), entry);
  ASSERT_TRUE(fd) << fd.error();
  EXPECT_EQ(build_id_of(*fd), build_id_of(path));
  auto located = process::locate_mapped_file(child.pid(), entry);
  ASSERT_TRUE(located) << located.error();
  EXPECT_EQ(located->root, "");
  EXPECT_EQ(located->path, path);
}

TEST(MappedFile, WhoseNameOnlyLooksEscapedOrDeleted) {
  TemporaryDirectory directory;
  const std::string compiled = compile_program(directory, "program", "");
  for (const std::string name : {"back\\012slash", "not gone (deleted)"}) {
    const std::string path = directory.file(name);
    std::filesystem::copy_file(compiled, path);
    const Child child({path, "wait"});
    for (const MapsEntry& entry : maps_of(child.pid())) {
      if (!entry.executable || !entry.path.starts_with(directory.path())) continue;
      auto located = process::locate_mapped_file(child.pid(), entry);
      ASSERT_TRUE(located) << located.error();
      EXPECT_EQ(located->path, path);
    }
  }
}

TEST(MappedFile, OfAProgramThatWasReplacedOrDeleted) {
  TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0777));
  const std::string path = compile_program(directory, "program", "");
  const std::string other = compile_program(directory, "other", "-DOTHER=1 -O0");
  const std::string build_id = build_id_of(path);
  ASSERT_NE(build_id, build_id_of(other));
  for (const bool replace : {true, false}) {
    unprivileged([&] {
      const std::string copy = directory.file(replace ? "replaced" : "deleted");
      std::filesystem::copy_file(path, copy);
      const Child child({copy, "wait"});
      if (replace) {
        std::filesystem::copy_file(other, copy + ".new");
        std::filesystem::rename(copy + ".new", copy);
      } else {
        std::filesystem::remove(copy);
      }
      const auto maps = maps_of(child.pid());
      const MapsEntry entry = code_of(maps, replace ? "replaced" : "deleted");
      EXPECT_TRUE(entry.deleted);
      EXPECT_FALSE(process::locate_mapped_file(child.pid(), entry));
      auto fd = process::open_mapped_file(child.pid(), entry);
      ASSERT_TRUE(fd) << fd.error();
      EXPECT_EQ(build_id_of(*fd), build_id);
    });
  }
}

TEST(MappedFile, OfADeletedLibraryIsReadFromMemory) {
  TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0777));
  const std::string loader = compile_program(directory, "loader", "", kLoader);
  for (const char* options : {"-shared -fPIC", "-shared -fPIC -Wl,-Ttext-segment=0x3000000",
                              "-shared -fPIC -Wl,--hash-style=sysv -Wl,-z,noseparate-code"}) {
    SCOPED_TRACE(options);
    const std::string library = compile_program(directory, "library.so", options);
    auto file = elf::Image::open(library);
    ASSERT_TRUE(file) << file.error();
    unprivileged([&] {
      const std::string copy = directory.file("copy.so");
      std::filesystem::remove(copy);
      std::filesystem::copy_file(library, copy);
      const Child child({loader, copy});
      const uint64_t function = std::stoull(child.line(), nullptr, 16);
      ASSERT_NE(function, 0u);
      std::filesystem::remove(copy);
      std::ofstream(copy) << "something else";
      const auto maps = maps_of(child.pid());
      const MapsEntry entry = code_of(maps, "copy.so");
      auto fd = process::open_mapped_file(child.pid(), entry);
      ASSERT_FALSE(fd);
      EXPECT_EQ(fd.error().find('\n'), std::string::npos);
      EXPECT_NE(fd.error().find("by path: another file"), std::string::npos) << fd.error();

      auto image = process::image_of_mapping(child.pid(), maps, entry);
      ASSERT_TRUE(image) << image.error();
      EXPECT_EQ(image->build_id_hex(), file->build_id_hex());
      const auto frames = image->section_bytes(*image->section(".eh_frame"));
      const auto expected = file->section_bytes(*file->section(".eh_frame"));
      ASSERT_LE(frames.size(), expected.size());
      ASSERT_GE(frames.size() + 4, expected.size());
      EXPECT_TRUE(std::equal(frames.begin(), frames.end(), expected.begin()));
      const auto vaddr = image->vaddr_of_offset(entry.offset);
      ASSERT_TRUE(vaddr.has_value());
      const uint64_t bias = entry.start - *vaddr;
      bool found = false;
      for (const elf::Symbol& symbol : image->symbols()) {
        found |= symbol.name == "global_function" && symbol.address + bias == function;
      }
      EXPECT_TRUE(found);
    });
  }
}

TEST(MappedFile, OfADeletedLibraryIsOpenedByMapFilesAsRoot) {
  if (!is_root()) GTEST_SKIP() << "needs root";
  TemporaryDirectory directory;
  const std::string loader = compile_program(directory, "loader", "", kLoader);
  const std::string library = compile_program(directory, "library.so", "-shared -fPIC");
  const std::string build_id = build_id_of(library);
  const Child child({loader, library});
  std::filesystem::remove(library);
  const auto maps = maps_of(child.pid());
  auto fd = process::open_mapped_file(child.pid(), code_of(maps, "library.so"));
  ASSERT_TRUE(fd) << fd.error();
  EXPECT_EQ(build_id_of(*fd), build_id);
}

TEST(MappedFile, WhoseNameIsNowAFifoIsNotWaitedFor) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "");
  const std::string build_id = build_id_of(path);
  const Child child({path, "wait"});
  std::filesystem::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0666), 0);
  const auto maps = maps_of(child.pid());
  auto fd = process::open_mapped_file(child.pid(), code_of(maps, "program"));
  ASSERT_TRUE(fd) << fd.error();
  EXPECT_EQ(build_id_of(*fd), build_id);
}

TEST(MappedFile, OfAMemfdProgram) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "");
  unprivileged([&] {
    const int memory = memfd_create("a name", MFD_CLOEXEC);
    const auto bytes = read_whole(path);
    ASSERT_EQ(write(memory, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    const Child child({"program", "wait"}, [] {}, memory);
    close(memory);
    const auto maps = maps_of(child.pid());
    const MapsEntry entry = code_of(maps, "memfd:a name");
    EXPECT_TRUE(process::is_file_mapping(entry));
    auto image = process::image_of_mapping(child.pid(), maps, entry);
    ASSERT_TRUE(image) << image.error();
    EXPECT_EQ(image->build_id_hex(), build_id_of(path));
    EXPECT_NE(image->section(".symtab"), nullptr);  // the file itself, not what is loaded of it
  });
}

TEST(MappedFile, OfAMemfdLibraryThatIsStillOpen) {
  TemporaryDirectory directory;
  const std::string loader = compile_program(directory, "loader", "", kLoader);
  const std::string library = compile_program(directory, "library.so", "-shared -fPIC");
  unprivileged([&] {
    const int memory = memfd_create("library", 0);
    const auto bytes = read_whole(library);
    ASSERT_EQ(write(memory, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
    const Child child({loader, "/proc/self/fd/" + std::to_string(memory)});
    close(memory);
    const auto maps = maps_of(child.pid());
    auto fd = process::open_mapped_file(child.pid(), code_of(maps, "memfd:library"));
    ASSERT_TRUE(fd) << fd.error();
    EXPECT_EQ(build_id_of(*fd), build_id_of(library));
  });
}

TEST(MappedFile, InAnotherMountNamespace) {
  if (!is_root()) GTEST_SKIP() << "needs root";
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "");
  const std::string other = compile_program(directory, "other", "-O0");
  const std::string inside = directory.file("inside");
  std::filesystem::create_directory(inside);
  const std::string hidden = inside + "/program";
  std::filesystem::copy_file(other, hidden);  // the same name, another file, in our namespace
  const Child child({hidden, "wait"}, [&] {
    if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", inside.c_str(), "tmpfs", 0, nullptr) != 0) {
      _exit(1);
    }
    std::filesystem::copy_file(path, hidden);
  });
  if (child.line().empty()) GTEST_SKIP() << "cannot make a mount namespace here";
  const auto maps = maps_of(child.pid());
  const MapsEntry entry = code_of(maps, "/program");
  auto located = process::locate_mapped_file(child.pid(), entry);
  ASSERT_TRUE(located) << located.error();
  EXPECT_EQ(located->root, "/proc/" + std::to_string(child.pid()) + "/root");
  auto fd = process::open_mapped_file(child.pid(), entry);
  ASSERT_TRUE(fd) << fd.error();
  EXPECT_EQ(build_id_of(*fd), build_id_of(path));
}

// An overlay over several filesystems gives its files devices of their own in stat, not in maps (as btrfs
// does).
TEST(MappedFile, OnAnOverlay) {
  if (!is_root()) GTEST_SKIP() << "needs root";
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "");
  for (const char* name : {"lower", "upper", "merged"})
    std::filesystem::create_directory(directory.file(name));
  std::filesystem::copy_file(path, directory.file("lower/program"));
  const std::string upper = directory.file("upper");
  for (const bool several : {false, true}) {
    const std::string options = "lowerdir=" + directory.file("lower") + ",upperdir=" + upper +
                                "/upper,workdir=" + upper + "/work" + (several ? ",xino=off" : "");
    const Child child({directory.file("merged/program"), "wait"}, [&] {
      if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0)
        _exit(1);
      if (several && mount("none", upper.c_str(), "tmpfs", 0, nullptr) != 0) _exit(1);
      for (const char* name : {"/upper", "/work"}) std::filesystem::create_directory(upper + name);
      if (mount("none", directory.file("merged").c_str(), "overlay", 0, options.c_str()) != 0) _exit(1);
    });
    if (child.line().empty()) GTEST_SKIP() << "cannot mount an overlay here";
    const auto maps = maps_of(child.pid());
    const MapsEntry entry = code_of(maps, "/program");
    auto fd = process::open_mapped_file(child.pid(), entry);
    ASSERT_TRUE(fd) << fd.error();
    EXPECT_EQ(build_id_of(*fd), build_id_of(path));
  }
}

TEST(MappedFile, IsNotWhatHasNoFileBehindIt) {
  const auto with = [](const std::string& line) {
    const auto entry = process::parse_maps_line("1000-2000 r-xp 00000000 00:01 " + line);
    return entry && process::is_file_mapping(*entry);
  };
  EXPECT_TRUE(with("5 /usr/bin/x"));
  EXPECT_TRUE(with("5 /usr/bin/x (deleted)"));
  EXPECT_TRUE(with("5 /memfd:x (deleted)"));
  EXPECT_TRUE(with("5 /dev/shm/library.so"));
  for (const char* line : {"0 ", "0 [vdso]", "0 [vsyscall]", "0 [heap]", "0 //anon", "5 /dev/zero (deleted)",
                           "5 /SYSV00000000 (deleted)", "5 /anon_hugepage (deleted)",
                           "5 anon_inode:[perf_event]", "5 /dev/dri/card0", "5 /[aio] (deleted)"}) {
    EXPECT_FALSE(with(line)) << line;
  }
}

TEST(MappedFile, OfTheVdso) {
  const auto maps = maps_of(getpid());
  const MapsEntry entry = code_of(maps, "[vdso]");
  auto image = process::image_of_mapping(getpid(), maps, entry);
  ASSERT_TRUE(image) << image.error();
  EXPECT_FALSE(image->section_bytes(*image->section(".eh_frame")).empty());
  std::set<std::string_view> names;
  for (const elf::Symbol& symbol : image->symbols()) names.insert(symbol.name);
  EXPECT_TRUE(names.contains("__vdso_clock_gettime"));
  // Of a process that is gone: the same one.
  auto other = process::image_of_mapping(0x7ffffff0, {}, entry);
  ASSERT_TRUE(other) << other.error();
  EXPECT_EQ(other->build_id_hex(), image->build_id_hex());
}

}  // namespace
}  // namespace clew::test
