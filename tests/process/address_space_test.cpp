// Mappings by address, and the modules behind them.
#include "process/address_space.hpp"

#include <fcntl.h>
#include <linux/fs.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <random>

#include "elf/fixtures.hpp"
#include "process/child.hpp"

namespace clew::test {
namespace {

using process::AddressSpace;
using process::Mapping;
using process::MapsEntry;
using process::ModuleCache;

Mapping mapping(uint64_t start, uint64_t end, uint64_t offset, const std::string& path) {
  Mapping made;
  made.start = start;
  made.end = end;
  made.offset = offset;
  made.path = path;
  return made;
}

TEST(AddressSpace, ReplacesWhatANewMappingOverlaps) {
  AddressSpace space;
  space.map(mapping(0x1000, 0x9000, 0x100000, "a"));
  space.map(mapping(0x3000, 0x5000, 0, "b"));  // splits a
  ASSERT_EQ(space.mappings().size(), 3u);
  EXPECT_EQ(space.find(0x2fff)->path, "a");
  EXPECT_EQ(space.find(0x3000)->path, "b");
  EXPECT_EQ(space.find(0x5000)->path, "a");
  EXPECT_EQ(space.find(0x5000)->offset, 0x104000u);
  space.map(mapping(0x2000, 0x6000, 0, "c"));  // covers b, cuts both ends of a
  ASSERT_EQ(space.mappings().size(), 3u);
  EXPECT_EQ(space.find(0x1fff)->end, 0x2000u);
  EXPECT_EQ(space.find(0x6000)->offset, 0x105000u);
  EXPECT_EQ(space.find(0xfff), nullptr);
  EXPECT_EQ(space.find(0x9000), nullptr);
  space.map(mapping(0x4000, 0x4000, 0, "empty"));
  space.map(mapping(0x5000, 0x4000, 0, "reversed"));
  EXPECT_EQ(space.mappings().size(), 3u);
  space.map(mapping(0, UINT64_MAX, 0, "all"));
  EXPECT_EQ(space.mappings().size(), 1u);
  space.clear();
  EXPECT_EQ(space.find(0x4000), nullptr);
}

TEST(AddressSpace, AgreesWithAnArrayOfPages) {
  constexpr uint64_t kPages = 64;
  std::mt19937_64 random(7);
  for (int round = 0; round < 200; ++round) {
    AddressSpace space;
    std::map<uint64_t, std::pair<std::string, uint64_t>> pages;  // page: who maps it, and which page of that
    for (int i = 0; i < 40; ++i) {
      const uint64_t first = random() % kPages, count = 1 + random() % 12;
      const std::string name = std::to_string(i);
      space.map(mapping(first, first + count, 1000, name));
      for (uint64_t page = first; page < first + count; ++page) pages[page] = {name, 1000 + page - first};
    }
    for (uint64_t page = 0; page < kPages + 14; ++page) {
      const Mapping* found = space.find(page);
      const auto expected = pages.find(page);
      ASSERT_EQ(found != nullptr, expected != pages.end());
      if (found == nullptr) continue;
      EXPECT_EQ(found->path, expected->second.first);
      EXPECT_EQ(found->offset + (page - found->start), expected->second.second);
    }
  }
}

/// Prints where a function of its own is.
constexpr const char* kWhere = R"(
#include <stdio.h>
#include <unistd.h>
__attribute__((noinline)) int here(int x) { return x + 1; }
int main(void) {
  printf("%p\n", (void*)here);
  fflush(stdout);
  pause();
}
)";

uint64_t address_of_symbol(const std::string& path, const std::string& name) {
  return std::stoull(output_of("nm " + path + " | awk '$3 == \"" + name + "\" { print $1 }'"), nullptr, 16);
}

TEST(AddressSpace, KnowsTheBiasOfEveryKindOfProgram) {
  TemporaryDirectory directory;
  for (const char* options :
       {"", "-no-pie", "-static", "-static-pie", "-no-pie -Wl,-Ttext-segment=0x7000000",
        "-Wl,-z,noseparate-code", "-no-pie -Wl,-z,noseparate-code", "-Wl,-z,max-page-size=0x200000",
        "-B/usr/lib/llvm-19/bin -fuse-ld=lld", "-fuse-ld=gold"}) {
    const std::string linker = std::string(options).find("lld") != std::string::npos    ? "ld.lld-19"
                               : std::string(options).find("gold") != std::string::npos ? "ld.gold"
                                                                                        : "ld";
    if (!have(linker)) continue;
    SCOPED_TRACE(options);
    const std::string path = compile_program(directory, "program", options, kWhere);
    const Child child({path});
    const uint64_t address = std::stoull(child.line(), nullptr, 16);
    ModuleCache modules;
    auto space = AddressSpace::of_process(child.pid(), modules);
    ASSERT_TRUE(space) << space.error();
    const Mapping* found = space->find(address);
    ASSERT_NE(found, nullptr);
    EXPECT_TRUE(found->executable);
    ASSERT_NE(found->module, nullptr);
    EXPECT_EQ(found->module->path, path);
    EXPECT_EQ(address - found->bias, address_of_symbol(path, "here"));
    // Only code has modules.
    for (const auto& [start, other] : space->mappings()) {
      if (!other.executable) {
        EXPECT_EQ(other.module, nullptr) << other.path;
      }
    }
  }
}

TEST(AddressSpace, HasTheVdsoAndLeavesAnonymousCodeAlone) {
  void* code = mmap(nullptr, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ModuleCache modules;
  auto space = AddressSpace::of_process(getpid(), modules);
  ASSERT_TRUE(space) << space.error();
  const Mapping* anonymous = space->find(reinterpret_cast<uint64_t>(code));
  ASSERT_NE(anonymous, nullptr);
  EXPECT_TRUE(anonymous->executable);
  EXPECT_EQ(anonymous->module, nullptr);
  EXPECT_EQ(anonymous->bias, 0u);
  unsigned vdso = 0;
  for (const auto& [start, other] : space->mappings()) {
    if (other.path == "[vsyscall]") {
      EXPECT_EQ(other.module, nullptr);
    }
    if (other.path != "[vdso]") continue;
    ++vdso;
    ASSERT_NE(other.module, nullptr);
    EXPECT_NE(other.module->image, nullptr);
    EXPECT_EQ(other.bias, start);
  }
  EXPECT_EQ(vdso, 1u);
  munmap(code, 4096);
}

TEST(AddressSpace, OfAProcessWithoutMemoryIsAnError) {
  const pid_t pid = fork();
  if (pid == 0) _exit(0);
  siginfo_t info;
  waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT);
  ModuleCache modules;
  EXPECT_FALSE(AddressSpace::of_process(pid, modules));
  waitpid(pid, nullptr, 0);
  EXPECT_FALSE(AddressSpace::of_process(pid, modules));
}

Mapping from_event(pid_t pid, const MapsEntry& entry, ModuleCache& modules, uint64_t generation = 0) {
  return process::mapping_from_event(pid, entry.start, entry.end - entry.start, entry.offset,
                                     entry.device_major, entry.device_minor, entry.inode, generation,
                                     PROT_READ | PROT_EXEC, entry.path + (entry.deleted ? " (deleted)" : ""),
                                     modules);
}

std::vector<MapsEntry> code_of(pid_t pid, const std::string& path) {
  std::vector<MapsEntry> code;
  auto maps = process::read_maps(pid);
  EXPECT_TRUE(maps) << maps.error();
  for (const MapsEntry& entry : *maps) {
    if (entry.executable && entry.path == path) code.push_back(entry);
  }
  EXPECT_FALSE(code.empty()) << path;
  return code;
}

TEST(ModuleCache, OpensAFileOnce) {
  ModuleCache modules;
  const auto maps = process::read_maps(getpid());
  ASSERT_TRUE(maps) << maps.error();
  std::string libc;
  for (const MapsEntry& entry : *maps) {
    if (entry.executable && entry.path.find("/libc.so") != std::string::npos) libc = entry.path;
  }
  const MapsEntry entry = code_of(getpid(), libc).at(0);
  const Mapping first = from_event(getpid(), entry, modules);
  ASSERT_NE(first.module, nullptr);
  ASSERT_NE(first.module->image, nullptr);
  for (int i = 0; i < 100; ++i) {
    EXPECT_EQ(from_event(getpid(), entry, modules).module, first.module);
    // Of processes that are gone, too.
    EXPECT_EQ(from_event(0x7ffffff0, entry, modules).module, first.module);
  }
  EXPECT_EQ(modules.counts().opened, 1u);
  EXPECT_EQ(modules.counts().shared, 200u);
  EXPECT_EQ(modules.counts().failed, 0u);
}

TEST(ModuleCache, TellsAReplacedFileApart) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "", kWhere);
  const Child first({path});
  ModuleCache modules;
  const MapsEntry entry = code_of(first.pid(), path).at(0);
  const Mapping before = from_event(first.pid(), entry, modules);
  ASSERT_NE(before.module->image, nullptr);
  std::filesystem::remove(path);
  compile_program(directory, "program", "-O0", kWhere);
  const Child second({path});
  const Mapping after = from_event(second.pid(), code_of(second.pid(), path).at(0), modules);
  ASSERT_NE(after.module, nullptr);
  EXPECT_NE(after.module, before.module);
  EXPECT_NE(after.module->build_id, before.module->build_id);
  // The old one still reads, though its name is another's.
  std::byte byte;
  EXPECT_EQ(before.module->image->read_offset(0, std::span(&byte, 1)), 1u);
  // A late event of the first process still finds its own file.
  const Mapping late = from_event(first.pid(), code_of(first.pid(), path).at(0), modules);
  EXPECT_EQ(late.module, before.module);
}

TEST(ModuleCache, KeepsTheReasonWhereAFileCannotBeHad) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "", kWhere);
  Child child({path});
  const MapsEntry entry = code_of(child.pid(), path).at(0);
  child.end();
  std::filesystem::remove(path);
  ModuleCache modules;
  const Mapping lost = from_event(0x7ffffff0, entry, modules);
  ASSERT_NE(lost.module, nullptr);
  EXPECT_EQ(lost.module->path, path);
  EXPECT_EQ(lost.module->image, nullptr);
  EXPECT_NE(lost.module->why_no_table.find("No such file"), std::string::npos) << lost.module->why_no_table;
  EXPECT_EQ(lost.bias, entry.start - entry.offset);
  EXPECT_EQ(modules.counts().failed, 1u);
  EXPECT_EQ(modules.failures().size(), 1u);
}

TEST(ModuleCache, DoesNotTakeANewFileWithAReusedInodeForTheOld) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "", kWhere);
  const Child child({path});
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  unsigned long generation = 0;
  const bool known = ioctl(fd, FS_IOC_GETVERSION, &generation) == 0 && (generation & 0xffffffff) != 0;
  close(fd);
  if (!known) GTEST_SKIP() << "this filesystem does not tell inode generations";
  const MapsEntry entry = code_of(child.pid(), path).at(0);
  ModuleCache modules;
  EXPECT_NE(from_event(child.pid(), entry, modules, generation & 0xffffffff).module->image, nullptr);
  const Mapping old = from_event(child.pid(), entry, modules, (generation + 1) & 0xffffffff);
  EXPECT_EQ(old.module->image, nullptr);
  EXPECT_NE(old.module->why_no_table.find("replaced"), std::string::npos);
  ModuleCache fresh;
  EXPECT_EQ(from_event(child.pid(), entry, fresh, (generation + 1) & 0xffffffff).module->image, nullptr);
}

TEST(ModuleCache, ReadsADeletedLibraryFromMemoryAndKeepsItsSymbols) {
  TemporaryDirectory directory;
  std::filesystem::permissions(directory.path(), std::filesystem::perms(0777));
  const std::string loader = compile_program(directory, "loader", "", R"(
#include <dlfcn.h>
#include <stdio.h>
#include <unistd.h>
int main(int argc, char** argv) {
  printf("%p\n", argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL);
  fflush(stdout);
  pause();
}
)");
  const std::string library = compile_program(directory, "library.so", "-shared -fPIC");
  unprivileged([&] {
    const std::string copy = directory.file("copy.so");
    std::filesystem::copy_file(library, copy);
    Child child({loader, copy});
    std::filesystem::remove(copy);
    ModuleCache modules;
    const MapsEntry entry = code_of(child.pid(), copy).at(0);
    const Mapping found = from_event(child.pid(), entry, modules);
    ASSERT_NE(found.module, nullptr);
    ASSERT_NE(found.module->image, nullptr) << found.module->why_no_table;
    EXPECT_EQ(modules.counts().from_memory, 1u);
    EXPECT_EQ(from_event(child.pid(), entry, modules).module, found.module);
    child.end();
    bool named = false;
    for (const auto& symbol : found.module->image->symbols()) named |= symbol.name == "global_function";
    EXPECT_TRUE(named);
  });
}

TEST(ModuleCache, TakesAnythingExecutableThatIsNoProgram) {
  TemporaryDirectory directory;
  const std::string path = directory.file("data");
  std::ofstream(path) << std::string(10000, 'x');
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  void* area = mmap(nullptr, 8192, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 4096);
  close(fd);
  ModuleCache modules;
  auto space = AddressSpace::of_process(getpid(), modules);
  ASSERT_TRUE(space) << space.error();
  const Mapping* found = space->find(reinterpret_cast<uint64_t>(area));
  ASSERT_NE(found, nullptr);
  ASSERT_NE(found->module, nullptr);
  EXPECT_EQ(found->module->image, nullptr);
  EXPECT_EQ(found->module->why_no_table, path + ": not an ELF file");
  EXPECT_EQ(found->bias, found->start - 4096);
  munmap(area, 8192);
}

}  // namespace
}  // namespace clew::test
