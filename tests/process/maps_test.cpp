// Lines of /proc/PID/maps, threads and memory.
#include <pthread.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "elf/fixtures.hpp"
#include "process/child.hpp"
#include "process/process.hpp"

namespace clew::test {
namespace {

using process::MapsEntry;
using process::parse_maps_line;

TEST(Maps, ReadsTheFieldsOfALine) {
  const auto entry = parse_maps_line(
      "7f4abf436000-7f4abf58c000 r-xp 00026000 fe:0a 326269                     "
      "/usr/lib/x86_64-linux-gnu/libc.so.6\n");
  ASSERT_TRUE(entry.has_value());
  EXPECT_EQ(entry->start, 0x7f4abf436000u);
  EXPECT_EQ(entry->end, 0x7f4abf58c000u);
  EXPECT_EQ(entry->offset, 0x26000u);
  EXPECT_EQ(entry->device_major, 0xfeu);
  EXPECT_EQ(entry->device_minor, 0x0au);
  EXPECT_EQ(entry->inode, 326269u);
  EXPECT_TRUE(entry->readable && entry->executable && !entry->writable && !entry->shared && !entry->deleted);
  EXPECT_EQ(entry->path, "/usr/lib/x86_64-linux-gnu/libc.so.6");
}

TEST(Maps, ReadsNamesOfEveryKind) {
  const auto path_of = [](const std::string& rest) {
    const auto entry = parse_maps_line("1000-2000 rw-s 00000000 00:01 5 " + rest);
    EXPECT_TRUE(entry.has_value()) << rest;
    return entry ? entry->path + (entry->deleted ? "|deleted" : "") : "";
  };
  EXPECT_EQ(path_of(""), "");
  EXPECT_EQ(path_of("   [stack]"), "[stack]");
  EXPECT_EQ(path_of("[anon: a name ]"), "[anon: a name ]");
  EXPECT_EQ(path_of("/a dir/with  spaces "), "/a dir/with  spaces ");
  EXPECT_EQ(path_of("/new\\012line"), "/new\nline");
  EXPECT_EQ(path_of("/back\\slash\\040"), "/back\\slash\\040");  // the kernel does not escape these
  EXPECT_EQ(path_of("/usr/bin/x (deleted)"), "/usr/bin/x|deleted");
  EXPECT_EQ(path_of("/memfd:jit code (deleted)"), "/memfd:jit code|deleted");
  EXPECT_EQ(path_of("anon_inode:[perf_event]"), "anon_inode:[perf_event]");
  // The last page of the address space, and no name or blanks behind the inode.
  EXPECT_TRUE(
      parse_maps_line("ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0 [vsyscall]").has_value());
  EXPECT_TRUE(parse_maps_line("1000-2000 rw-p 00000000 00:00 0").has_value());
}

TEST(Maps, RefusesWhatIsNoLine) {
  for (const char* line : {"", " ", "1000", "1000-", "1000-2000", "1000-2000 rwxp", "1000-2000 rwxp 0",
                           "2000-1000 rwxp 0 0:0 0", "1000-2000 rwxp 0 0:0", "1000-2000 rwxp 0 0:0 x",
                           "g000-2000 rwxp 0 0:0 0", "11111111111111111-2000 rwxp 0 0:0 0", "Size: 4 kB"}) {
    EXPECT_FALSE(parse_maps_line(line).has_value()) << line;
  }
  const std::string line = "7f4abf436000-7f4abf58c000 r-xp 00026000 fe:00 326269     /usr/lib/libc.so.6";
  for (size_t length = 0; length < line.size(); ++length) (void)parse_maps_line(line.substr(0, length));
}

TEST(Maps, ReadsThisProcess) {
  auto maps = process::read_maps(getpid());
  ASSERT_TRUE(maps) << maps.error();
  const auto address = reinterpret_cast<uint64_t>(&is_root);
  unsigned found = 0;
  for (const MapsEntry& entry : *maps) {
    if (address < entry.start || address >= entry.end) continue;
    ++found;
    EXPECT_TRUE(entry.executable);
    EXPECT_EQ(entry.path, std::filesystem::read_symlink("/proc/self/exe").string());
  }
  EXPECT_EQ(found, 1u);
}

TEST(Maps, SayWhyAProcessCannotBeRead) {
  const pid_t gone = fork();
  if (gone == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(gone), &info, WEXITED | WNOWAIT);
  auto zombie = process::read_maps(gone);
  EXPECT_TRUE(!zombie || zombie->empty());
  waitpid(gone, nullptr, 0);
  auto maps = process::read_maps(gone);
  ASSERT_FALSE(maps);
  EXPECT_EQ(maps.error(), "process " + std::to_string(gone) + ": no such process");
  if (!is_root()) GTEST_SKIP() << "the rest needs root, to be another user";
  const pid_t parent = getpid();
  unprivileged([parent] {
    auto foreign = process::read_maps(parent);
    ASSERT_FALSE(foreign);
    EXPECT_NE(foreign.error().find("not permitted"), std::string::npos) << foreign.error();
  });
}

TEST(Memory, IsReadUpToTheFirstHole) {
  constexpr size_t kPage = 4096;
  auto* area = static_cast<std::byte*>(
      mmap(nullptr, 200 * kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  std::memset(area, 0x5a, 200 * kPage);
  std::vector<std::byte> out(200 * kPage);
  const auto address = reinterpret_cast<uint64_t>(area);
  EXPECT_EQ(process::read_memory(getpid(), address, out), out.size());
  EXPECT_EQ(out.back(), std::byte{0x5a});
  munmap(area + 150 * kPage, kPage);
  EXPECT_EQ(process::read_memory(getpid(), address, out), 150 * kPage);
  EXPECT_EQ(process::read_memory(getpid(), address + 3, out), 150 * kPage - 3);
  EXPECT_EQ(process::read_memory(getpid(), address + 150 * kPage - 8, std::span(out).first(16)), 8u);
  mprotect(area + kPage, kPage, PROT_NONE);
  EXPECT_EQ(process::read_memory(getpid(), address, out), kPage);
  EXPECT_EQ(process::read_memory(getpid(), address + kPage, out), 0u);
  EXPECT_EQ(process::read_memory(getpid(), UINT64_MAX - 4, out), 0u);
  EXPECT_EQ(process::read_memory(getpid(), 0xffff800000000000, out), 0u);
  EXPECT_EQ(process::read_memory(getpid(), address, std::span(out).first(0)), 0u);
  munmap(area, 200 * kPage);
}

TEST(Threads, AreListedWithTheirNames) {
  std::mutex hold;
  hold.lock();
  std::thread other([&hold] {
    pthread_setname_np(pthread_self(), "a (b) c");
    const std::lock_guard wait(hold);
  });
  bool named = false;
  for (int i = 0; i < 2000 && !named; ++i) {
    for (const pid_t tid : process::threads(getpid()))
      named |= process::thread_name(getpid(), tid) == "a (b) c";
    usleep(1000);
  }
  EXPECT_TRUE(named);
  const auto tids = process::threads(getpid());
  EXPECT_GE(tids.size(), 2u);
  EXPECT_EQ(tids.front(), getpid());
  hold.unlock();
  other.join();
  EXPECT_TRUE(process::threads(0x7ffffff0).empty());
  EXPECT_EQ(process::thread_name(0x7ffffff0, 1), "");
}

}  // namespace
}  // namespace clew::test
