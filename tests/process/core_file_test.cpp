// Core files: notes, memory, truncation, damage. Expected values come from the corpus (libdw's) and from
// eu-readelf.
#include "process/core_file.hpp"

#include <elf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <random>

#include "corpus.hpp"

namespace clew::test {
namespace {

using process::CoreFile;

/// A core of the corpus, unpacked; "" where that is not possible here.
std::string unpack_core(const TemporaryFolder& folder, const std::string& name) {
  std::string root = corpus("core-dumps");
  if (root.empty() || !have("bzip2")) return "";
  std::string path = folder.path() + "/" + name + ".core";
  Output output = run_command("bzip2 -dc '" + root + "/" + name + "/" + name + ".core.bz2' >'" + path + "'");
  return output.status == 0 ? path : "";
}

/// A small core of our own making: one thread, two pieces of memory, NT_FILE and NT_AUXV.
struct Made {
  std::vector<std::byte> bytes;

  template <class T>
  void add(const T& value) {
    const auto* data = reinterpret_cast<const std::byte*>(&value);
    bytes.insert(bytes.end(), data, data + sizeof value);
  }
  void pad(size_t size) { bytes.resize(size); }
};

std::vector<std::byte> note(uint32_t type, const std::vector<std::byte>& descriptor) {
  Made made;
  made.add(Elf64_Nhdr{5, static_cast<uint32_t>(descriptor.size()), type});
  made.add(std::array<char, 8>{'C', 'O', 'R', 'E'});
  made.bytes.insert(made.bytes.end(), descriptor.begin(), descriptor.end());
  made.pad((made.bytes.size() + 3) / 4 * 4);
  return made.bytes;
}

std::vector<std::byte> make_core() {
  std::vector<std::byte> status(336);
  auto put = [](std::vector<std::byte>& to, size_t at, auto value) {
    std::memcpy(to.data() + at, &value, sizeof value);
  };
  put(status, 12, int16_t{11});
  put(status, 32, int32_t{4711});
  for (uint64_t i = 0; i < 27; ++i) put(status, 112 + 8 * i, 0x100 + i);
  std::vector<std::byte> info(136);
  std::memcpy(info.data() + 40, "0123456789abcdef", 16);  // no room for a zero at its end
  Made files;
  for (uint64_t word : {2u, 4096u, 0x10000u, 0x11000u, 0u, 0x11000u, 0x13000u, 3u}) files.add(uint64_t{word});
  for (char c : std::string("/bin/a\0/lib/b.so", 16)) files.add(c);  // the last name ends with the note
  Made vector;
  for (uint64_t word : {uint64_t{AT_ENTRY}, uint64_t{0x10040}, uint64_t{AT_NULL}, uint64_t{0}})
    vector.add(word);

  std::vector<std::byte> notes;
  for (const auto& one : {note(NT_PRSTATUS, status), note(NT_PRPSINFO, info), note(NT_FILE, files.bytes),
                          note(NT_AUXV, vector.bytes), note(NT_PRSTATUS, std::vector<std::byte>(7))})
    notes.insert(notes.end(), one.begin(), one.end());

  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_type = ET_CORE;
  header.e_machine = EM_X86_64;
  header.e_phoff = sizeof header;
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = 4;
  Made made;
  made.add(header);
  uint64_t notes_at = sizeof header + 4 * sizeof(Elf64_Phdr);
  made.add(Elf64_Phdr{PT_NOTE, 0, notes_at, 0, 0, notes.size(), 0, 4});
  // Out of order; the first is in the file only by half; the third wraps around the end of memory.
  made.add(Elf64_Phdr{PT_LOAD, PF_R | PF_W, 0x1000, 0x20000, 0, 0x800, 0x1000, 0x1000});
  made.add(Elf64_Phdr{PT_LOAD, PF_R | PF_X, 0x1800, 0x10000, 0, 0x1000, 0x1000, 0x1000});
  made.add(Elf64_Phdr{PT_LOAD, PF_R, 0x1000, ~uint64_t{0xfff}, 0, 0x1000, 0x2000, 0x1000});
  made.bytes.insert(made.bytes.end(), notes.begin(), notes.end());
  made.pad(0x1000);
  for (size_t i = 0; i < 0x1800; ++i) made.bytes.push_back(static_cast<std::byte>(i * 7));
  return made.bytes;
}

Result<CoreFile> open_bytes(const TemporaryFolder& folder, const std::vector<std::byte>& bytes) {
  write_file(folder.path() + "/core", bytes);
  return CoreFile::open(folder.path() + "/core");
}

TEST(CoreFileTest, ReadsNotesAndMemory) {
  TemporaryFolder folder;
  auto core = open_bytes(folder, make_core());
  ASSERT_TRUE(core) << core.error();
  ASSERT_EQ(core->threads().size(), 1u);
  const process::CoreThread& thread = core->threads()[0];
  EXPECT_EQ(thread.tid, 4711);
  EXPECT_EQ(thread.signal, 11);
  EXPECT_EQ(thread.registers.known, (1u << CLEW_REGISTERS) - 1);
  // Places in the kernel's user_regs_struct (sys/user.h).
  EXPECT_EQ(thread.registers.value[CLEW_R15], 0x100u);
  EXPECT_EQ(thread.registers.value[CLEW_RBP], 0x104u);
  EXPECT_EQ(thread.registers.value[CLEW_RBX], 0x105u);
  EXPECT_EQ(thread.registers.value[CLEW_RAX], 0x10au);
  EXPECT_EQ(thread.registers.value[CLEW_RIP], 0x110u);
  EXPECT_EQ(thread.registers.value[CLEW_RSP], 0x113u);
  EXPECT_EQ(core->command(), "0123456789abcdef");
  EXPECT_EQ(core->auxiliary(AT_ENTRY), 0x10040u);
  EXPECT_FALSE(core->auxiliary(AT_PHDR));
  ASSERT_EQ(core->mapped_files().size(), 2u);
  EXPECT_EQ(core->mapped_files()[0].path, "/bin/a");
  EXPECT_EQ(core->mapped_files()[1].path, "/lib/b.so");
  EXPECT_EQ(core->mapped_files()[1].offset, 3u * 4096);

  ASSERT_EQ(core->segments().size(), 2u);
  EXPECT_EQ(core->segments()[0].start, 0x10000u);
  EXPECT_TRUE(core->segments()[0].executable);
  EXPECT_TRUE(core->segments()[1].writable);
  std::array<std::byte, 16> out;
  EXPECT_EQ(core->read_memory(0x20000, out), 16u);
  EXPECT_EQ(out[3], static_cast<std::byte>(3 * 7));
  EXPECT_EQ(core->read_memory(0x20000 + 0x7f8, out), 8u);  // the rest of the segment is not in the file
  EXPECT_EQ(core->read_memory(0x20000 + 0x800, out), 0u);
  EXPECT_EQ(core->read_memory(0xffff, out), 0u);
  EXPECT_EQ(core->read_memory(~uint64_t{0}, out), 0u);
  EXPECT_EQ(core->missing_bytes(), 0u);
}

TEST(CoreFileTest, ATruncatedCoreSaysHowMuchIsMissing) {
  TemporaryFolder folder;
  auto bytes = make_core();
  bytes.resize(0x1900);
  auto core = open_bytes(folder, bytes);
  ASSERT_TRUE(core) << core.error();
  EXPECT_EQ(core->missing_bytes(), 0xf00u);
  std::array<std::byte, 16> out;
  EXPECT_EQ(core->read_memory(0x100f8, out), 8u);
}

TEST(CoreFileTest, WhatIsNoCoreIsNamed) {
  TemporaryFolder folder;
  auto error_of = [&](const std::string& text) {
    auto core = open_bytes(folder, bytes_of(text));
    return core ? std::string("no error") : core.error();
  };
  EXPECT_NE(error_of("").find("not an ELF file"), std::string::npos);
  EXPECT_NE(error_of("hello").find("not an ELF file"), std::string::npos);
  EXPECT_NE(error_of("\x28\xb5\x2f\xfd....").find("unzstd"), std::string::npos);
  EXPECT_NE(error_of("BZh1....").find("bunzip2"), std::string::npos);
  auto executable = CoreFile::open("/proc/self/exe");
  ASSERT_FALSE(executable);
  EXPECT_NE(executable.error().find("not a core"), std::string::npos);
  auto nothing = CoreFile::open(folder.path() + "/missing");
  ASSERT_FALSE(nothing);
  EXPECT_NE(nothing.error().find("cannot open"), std::string::npos);
  auto directory = CoreFile::open(folder.path());
  ASSERT_FALSE(directory);
  EXPECT_NE(directory.error().find("not a regular file"), std::string::npos);
}

void use(const TemporaryFolder& folder, const std::vector<std::byte>& bytes) {
  auto core = open_bytes(folder, bytes);
  if (!core) return;
  auto mapped = process::map_core(*core, "");
  if (!mapped) return;
  process::CoreTarget target(*core, mapped->space);
  for (const process::CoreThread& thread : core->threads()) {
    std::vector<clew_frame> frames(64);
    unwind::walk(target, thread.registers, frames);
  }
}

// Under the sanitizers this is the test: no crash, no endless loop, no allocation by an unchecked count.
TEST(CoreFileTest, DamagedCores) {
  TemporaryFolder folder;
  setenv("CLEW_CACHE_DIR", folder.path().c_str(), 1);
  auto bytes = make_core();
  for (size_t size = 0; size < bytes.size(); size += size < 1400 ? 7 : 97)
    use(folder, {bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(size)});
  std::mt19937_64 random(42);
  for (int round = 0; round < 500; ++round) {
    auto damaged = bytes;
    for (unsigned i = 0; i < 1 + random() % 4; ++i)
      damaged[16 + random() % 1600] ^= static_cast<std::byte>(1u << random() % 8);
    use(folder, damaged);
  }
}

TEST(CoreFileTest, ThreadsAndRegistersAreThoseOfTheCorpus) {
  TemporaryFolder folder;
  std::string path = unpack_core(folder, "backtrace.x86_64");
  if (path.empty()) GTEST_SKIP() << "the corpus or bzip2 is not here";
  auto core = CoreFile::open(path);
  ASSERT_TRUE(core) << core.error();
  auto expected = read_json(corpus("core-dumps") + "/backtrace.x86_64/expected.json");
  ASSERT_EQ(core->threads().size(), expected["threads"].size());
  for (size_t i = 0; i < core->threads().size(); ++i) {
    EXPECT_EQ(core->threads()[i].tid, expected["threads"][i]["tid"]);
    EXPECT_EQ(core->threads()[i].registers.value[CLEW_RIP],
              number(expected["threads"][i]["frames"][0]["pc"]));
    EXPECT_EQ(core->threads()[i].registers.value[CLEW_RSP],
              number(expected["threads"][i]["frames"][0]["sp"]));
  }
}

TEST(CoreFileTest, AnotherProgramIsRefused) {
  TemporaryFolder folder;
  std::string path = unpack_core(folder, "linkmap-cut");
  if (path.empty()) GTEST_SKIP() << "the corpus or bzip2 is not here";
  auto core = CoreFile::open(path);
  ASSERT_TRUE(core) << core.error();
  auto mapped = process::map_core(*core, "/proc/self/exe");
  ASSERT_FALSE(mapped);
  EXPECT_NE(mapped.error().find("is not the program of"), std::string::npos) << mapped.error();
}

}  // namespace
}  // namespace clew::test
