// Headers, sections, segments, build-ids and contents, against readelf and objcopy.
#include "elf/image.hpp"

#include <elf.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <set>
#include <sstream>

#include "elf/fixtures.hpp"

namespace clew::test {
namespace {

using elf::Image;

std::vector<std::string> system_files() {
  std::vector<std::string> files;
  for (const char* path : {"/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libcrypto.so.3",
                           "/lib64/ld-linux-x86-64.so.2", "/usr/bin/node", "/usr/bin/perl",
                           "/usr/bin/python3", "/bin/ls", "/lib/aarch64-linux-gnu/libc.so.6"}) {
    if (access(path, R_OK) == 0) files.emplace_back(path);
  }
  return files;
}

std::vector<std::byte> to_vector(std::span<const std::byte> bytes) { return {bytes.begin(), bytes.end()}; }

/// Headers' fields from `readelf -SW`: name, type, address, offset, size (hex).
struct ReadelfSection {
  std::string name;
  uint64_t address, offset, size;
};
std::vector<ReadelfSection> readelf_sections(const std::string& path) {
  std::vector<ReadelfSection> sections;
  std::istringstream lines(output_of("readelf -SW " + path));
  for (std::string line; std::getline(lines, line);) {
    const auto close = line.find(']');
    if (line.find("  [") != 0 || close == std::string::npos || line.find("Nr") < close) continue;
    std::istringstream fields(line.substr(close + 1));
    ReadelfSection section;
    std::string type;
    fields >> section.name >> type >> std::hex >> section.address >> section.offset >> section.size;
    if (fields && section.name != "NULL") sections.push_back(section);
  }
  return sections;
}

TEST(Image, ReadsSectionsAsReadelf) {
  for (const std::string& path : system_files()) {
    SCOPED_TRACE(path);
    auto image = Image::open(path);
    ASSERT_TRUE(image) << image.error();
    const auto expected = readelf_sections(path);
    ASSERT_GT(expected.size(), 5u);
    ASSERT_EQ(image->sections().size(), expected.size() + 1);  // and the null section
    for (size_t i = 0; i < expected.size(); ++i) {
      const elf::Section& section = image->sections()[i + 1];
      EXPECT_EQ(section.name, expected[i].name);
      EXPECT_EQ(section.address, expected[i].address);
      EXPECT_EQ(section.offset, expected[i].offset);
      EXPECT_EQ(section.size, expected[i].size);
    }
    EXPECT_TRUE(image->defects().empty());
  }
}

TEST(Image, ReadsSegmentsAsReadelf) {
  for (const std::string& path : system_files()) {
    SCOPED_TRACE(path);
    auto image = Image::open(path);
    ASSERT_TRUE(image) << image.error();
    std::istringstream lines(output_of("readelf -lW " + path + " | grep -E '^  LOAD'"));
    std::vector<elf::Segment> loads;
    for (const auto& segment : image->segments()) {
      if (segment.type == PT_LOAD) loads.push_back(segment);
    }
    size_t seen = 0;
    for (std::string line; std::getline(lines, line); ++seen) {
      std::istringstream fields(line);
      std::string type, physical;
      uint64_t offset, vaddr, physical_address, file_size, memory_size;
      fields >> type >> std::hex >> offset >> vaddr >> physical_address >> file_size >> memory_size;
      ASSERT_LT(seen, loads.size());
      EXPECT_EQ(loads[seen].offset, offset);
      EXPECT_EQ(loads[seen].vaddr, vaddr);
      EXPECT_EQ(loads[seen].file_size, file_size);
      EXPECT_EQ(loads[seen].memory_size, memory_size);
      EXPECT_EQ((loads[seen].flags & PF_X) != 0,
                line.substr(line.size() - 14).find('E') != std::string::npos);
    }
    EXPECT_EQ(seen, loads.size());
  }
}

TEST(Image, ReadsBuildIdAsReadelf) {
  for (const std::string& path : system_files()) {
    auto image = Image::open(path);
    ASSERT_TRUE(image) << image.error();
    const std::string text =
        output_of("readelf -nW " + path + " 2>/dev/null | sed -n 's/.*Build ID: //p' | tr -d '\\n'");
    EXPECT_EQ(image->build_id_hex(), text) << path;
    EXPECT_EQ(image->build_id().size() * 2, text.size());
  }
}

TEST(Image, ReadsContentsAsObjcopyDumpsThem) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "-g");
  auto image = Image::open(path);
  ASSERT_TRUE(image) << image.error();
  for (const char* name : {".text", ".eh_frame", ".rodata", ".debug_info", ".dynstr"}) {
    run("objcopy --dump-section " + std::string(name) + "=" + directory.file("dump") + " " + path);
    const auto expected = read_whole(directory.file("dump"));
    ASSERT_FALSE(expected.empty()) << name;
    ASSERT_NE(image->section(name), nullptr) << name;
    EXPECT_EQ(to_vector(image->section_bytes(*image->section(name))), expected) << name;
  }
  EXPECT_TRUE(image->section_bytes(*image->section(".bss")).empty());
  EXPECT_TRUE(image->defects().empty());
  EXPECT_EQ(image->section(".nothing"), nullptr);
  image->release_sections();
  EXPECT_FALSE(image->section_bytes(*image->section(".text")).empty());
}

TEST(Image, ReadsByAddressAndOffset) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "");
  auto image = Image::open(path);
  ASSERT_TRUE(image) << image.error();
  const elf::Section* text = image->section(".text");
  const auto expected = to_vector(image->section_bytes(*text));
  std::vector<std::byte> bytes(expected.size());
  EXPECT_EQ(image->read(text->address, bytes), bytes.size());
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(image->read_offset(text->offset, bytes), bytes.size());
  EXPECT_EQ(bytes, expected);
  EXPECT_EQ(image->vaddr_of_offset(text->offset), text->address);
  // Zero fill is not read, nor what lies outside.
  const elf::Section* bss = image->section(".bss");
  ASSERT_NE(bss, nullptr);
  EXPECT_EQ(image->read(bss->address + bss->size - 8, std::span(bytes).first(8)), 0u);
  EXPECT_EQ(image->read(0x7fff00000000, bytes), 0u);
  EXPECT_EQ(image->read(UINT64_MAX - 3, bytes), 0u);
  EXPECT_EQ(image->read_offset(UINT64_MAX - 3, bytes), 0u);
  EXPECT_FALSE(image->vaddr_of_offset(1u << 30).has_value());
}

TEST(Image, HasTheAddressOfAMappingForFixedAndRelocatablePrograms) {
  TemporaryDirectory directory;
  for (const char* options :
       {"-no-pie", "-static-pie -fPIE", "-static", "-no-pie -Wl,-Ttext-segment=0x7000000",
        "-shared -fPIC -Wl,-Ttext-segment=0x3000000"}) {
    SCOPED_TRACE(options);
    const std::string path = compile_program(directory, "program", options);
    auto image = Image::open(path);
    ASSERT_TRUE(image) << image.error();
    const elf::Section* text = image->section(".text");
    ASSERT_NE(text, nullptr);
    // As the kernel maps it: whole pages.
    const uint64_t page = text->offset & ~uint64_t{4095};
    EXPECT_EQ(image->vaddr_of_offset(page), text->address - (text->offset - page));
  }
}

// lld lets segments share a page of the file: the executable mapping then starts in a page whose first bytes
// belong to the segment before.
TEST(Image, PrefersTheSegmentThatStartsInAPage) {
  if (!have("ld.lld-19") && !have("ld.lld")) GTEST_SKIP() << "needs lld";
  TemporaryDirectory directory;
  const std::string path = compile_program(
      directory, "program", have("ld.lld") ? "-fuse-ld=lld" : "-B/usr/lib/llvm-19/bin -fuse-ld=lld");
  auto image = Image::open(path);
  ASSERT_TRUE(image) << image.error();
  const auto code = std::find_if(
      image->segments().begin(), image->segments().end(),
      [](const elf::Segment& segment) { return segment.type == PT_LOAD && (segment.flags & PF_X) != 0; });
  ASSERT_NE(code, image->segments().end());
  const uint64_t page = code->offset & ~uint64_t{4095};
  EXPECT_EQ(image->vaddr_of_offset(page), code->vaddr - (code->offset - page));
}

/// An ELF header and PT_LOADs: offset, vaddr, size, executable.
struct Load {
  uint64_t offset, vaddr, size;
  bool executable;
};
std::vector<std::byte> make_file(const std::vector<Load>& loads, size_t size, uint16_t machine = EM_X86_64) {
  std::vector<std::byte> file(size);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = machine;
  header.e_phoff = sizeof(header);
  header.e_phentsize = sizeof(Elf64_Phdr);
  header.e_phnum = static_cast<uint16_t>(loads.size());
  std::memcpy(file.data(), &header, sizeof(header));
  for (size_t i = 0; i < loads.size(); ++i) {
    Elf64_Phdr entry{};
    entry.p_type = PT_LOAD;
    entry.p_flags = PF_R | (loads[i].executable ? PF_X : 0);
    entry.p_offset = loads[i].offset;
    entry.p_vaddr = loads[i].vaddr;
    entry.p_filesz = entry.p_memsz = loads[i].size;
    entry.p_align = 4096;
    std::memcpy(file.data() + sizeof(header) + i * sizeof(entry), &entry, sizeof(entry));
  }
  return file;
}

TEST(Image, TakesSegmentsAsPages) {
  auto image = Image::from_bytes(make_file({{0, 0, 0x1234, false},
                                            {0x1234, 0x3234, 0x2000, true},
                                            {0x3234, 0x9234, 0x500, true},
                                            {0x3734, 0xb734, 0x100, false}},
                                           0x4000),
                                 "made");
  ASSERT_TRUE(image) << image.error();
  EXPECT_EQ(image->vaddr_of_offset(0), 0u);
  EXPECT_EQ(image->vaddr_of_offset(0x1000),
            0x3000u);  // the code that starts there, not the data that ends there
  EXPECT_EQ(image->vaddr_of_offset(0x2000), 0x4000u);
  EXPECT_EQ(image->vaddr_of_offset(0x3000),
            0x9000u);  // of two pieces of code, the one that starts in that page
  EXPECT_EQ(image->vaddr_of_offset(0x3100), 0x5100u);  // a single byte belongs to who holds it
  EXPECT_FALSE(image->vaddr_of_offset(0x3900).has_value());
}

TEST(Image, CountsOverlappingSegmentsAndReadsTheFirst) {
  auto file = make_file({{0x1000, 0x1000, 0x1000, true}, {0x2000, 0x1800, 0x1000, true}}, 0x3000);
  std::fill(file.begin() + 0x1000, file.begin() + 0x2000, std::byte{1});
  std::fill(file.begin() + 0x2000, file.end(), std::byte{2});
  auto image = Image::from_bytes(std::move(file), "made");
  ASSERT_TRUE(image) << image.error();
  std::vector<std::byte> bytes(0x2000);
  EXPECT_EQ(image->read(0x1000, bytes), 0x1800u);
  EXPECT_EQ(bytes[0xfff], std::byte{1});
  EXPECT_EQ(bytes[0x1000], std::byte{2});
  ASSERT_EQ(image->defects().size(), 1u);
  EXPECT_EQ(image->defects()[0].first, "overlapping segments");
}

TEST(Image, CountsSegmentsThatTheFileDoesNotHold) {
  auto image = Image::from_bytes(
      make_file(
          {{0, 0, 0x1000, true}, {0x800, 0x5000, UINT64_MAX - 4, true}, {0x100, UINT64_MAX - 4, 0x100, true}},
          0x1000),
      "made");
  ASSERT_TRUE(image) << image.error();
  std::vector<std::byte> bytes(0x2000);
  EXPECT_EQ(image->read(0x5000, bytes), 0x800u);
  EXPECT_EQ(image->defects().size(), 2u);
}

TEST(Image, RefusesWhatItCannotReadWithOneClearLine) {
  const auto error_of = [](std::vector<std::byte> bytes) {
    auto image = Image::from_bytes(std::move(bytes), "some file");
    return image ? std::string("no error") : image.error();
  };
  auto file = make_file({}, 64);
  EXPECT_EQ(error_of(file), "no error");
  EXPECT_EQ(error_of({}), "some file: too short for an ELF file (0 bytes can be read)");
  EXPECT_EQ(error_of(std::vector<std::byte>(100, std::byte{'#'})), "some file: not an ELF file");
  file[EI_CLASS] = std::byte{ELFCLASS32};
  EXPECT_NE(error_of(file).find("not 64-bit"), std::string::npos);
  file = make_file({}, 64);
  file[EI_DATA] = std::byte{ELFDATA2MSB};
  EXPECT_NE(error_of(file).find("not little-endian"), std::string::npos);
  EXPECT_NE(error_of(make_file({}, 64, EM_RISCV)).find("machine 243"), std::string::npos);
  EXPECT_EQ(error_of(make_file({}, 64, EM_AARCH64)), "no error");

  auto missing = Image::open("/nonexistent/file");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error(), "/nonexistent/file: No such file or directory");
  auto directory = Image::open("/");
  ASSERT_FALSE(directory);
  EXPECT_EQ(directory.error(), "/: not a regular file");
}

TEST(Image, DoesNotWaitForAFifo) {
  TemporaryDirectory directory;
  ASSERT_EQ(mkfifo(directory.file("fifo").c_str(), 0600), 0);
  auto image = Image::open(directory.file("fifo"));
  ASSERT_FALSE(image);
  EXPECT_NE(image.error().find("not a regular file"), std::string::npos);
}

TEST(Image, OwnsADuplicateOfTheDescriptor) {
  const int fd = ::open("/proc/self/exe", O_RDONLY);
  auto image = Image::from_fd(fd, "self");
  close(fd);
  ASSERT_TRUE(image) << image.error();
  Image moved = std::move(*image);
  EXPECT_FALSE(moved.section_bytes(*moved.section(".eh_frame")).empty());
  auto again = Image::open("/proc/self/fd/" + std::to_string(moved.fd()));
  ASSERT_TRUE(again) << again.error();
  EXPECT_EQ(again->size(), moved.size());
}

TEST(Image, DecompressesDebugSections) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "-g -gz=none");
  auto plain = Image::open(path);
  ASSERT_TRUE(plain) << plain.error();
  for (const std::string kind : {"zlib", "zstd"}) {
    const std::string packed_path = directory.file(kind);
    const std::string tool = kind == "zlib" ? "objcopy" : "llvm-objcopy-19";
    if (!have(tool)) {
      std::printf("(%s is not there)\n", tool.c_str());
      continue;
    }
    run(tool + " --compress-debug-sections=" + kind + " " + path + " " + packed_path);
    auto packed = Image::open(packed_path);
    ASSERT_TRUE(packed) << packed.error();
    unsigned compressed = 0;
    for (const elf::Section& section : plain->sections()) {
      if (section.name.find(".debug_") != 0) continue;
      const elf::Section* other = packed->section(section.name);
      ASSERT_NE(other, nullptr) << section.name;
      compressed += (other->flags & SHF_COMPRESSED) != 0 ? 1 : 0;
      EXPECT_EQ(to_vector(packed->section_bytes(*other)), to_vector(plain->section_bytes(section)))
          << section.name;
    }
    EXPECT_GE(compressed, 2u) << kind;
    EXPECT_TRUE(packed->defects().empty());
  }
}

TEST(Image, RefusesImplausibleCompressedSections) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "-g -gz=zlib");
  const auto whole = read_whole(path);
  auto image = Image::open(path);
  ASSERT_TRUE(image) << image.error();
  const elf::Section section = *image->section(".debug_info");
  ASSERT_NE(section.flags & SHF_COMPRESSED, 0u);
  const auto with = [&](size_t at, uint64_t value) {
    auto file = whole;
    std::memcpy(file.data() + section.offset + at, &value, sizeof(value));
    auto damaged = Image::from_bytes(std::move(file), "damaged");
    EXPECT_TRUE(damaged);
    EXPECT_TRUE(damaged->section_bytes(*damaged->section(".debug_info")).empty());
    // A second look costs nothing and is not counted again.
    EXPECT_TRUE(damaged->section_bytes(*damaged->section(".debug_info")).empty());
    EXPECT_EQ(damaged->defects().size(), 1u);
    return damaged->defects()[0];
  };
  using Defect = std::pair<std::string, uint64_t>;
  EXPECT_EQ(with(8, uint64_t{1} << 40), Defect("compressed sections of implausible size", 1));
  EXPECT_EQ(with(8, 10), Defect("compressed sections that cannot be decompressed", 1));
  EXPECT_EQ(with(0, 77), Defect("compressed sections that cannot be decompressed", 1));
  EXPECT_EQ(with(24, 0), Defect("compressed sections that cannot be decompressed", 1));
}

TEST(Image, LooksBehindACountOfSectionsThatDoesNotFit) {
  TemporaryDirectory directory;
  std::ofstream source(directory.file("many.s"));
  for (int i = 0; i < 66000; ++i) source << ".section .text.f" << i << ",\"ax\"\nret\n";
  source.close();
  run("as -o " + directory.file("many.o") + " " + directory.file("many.s"));
  auto image = Image::open(directory.file("many.o"));
  ASSERT_TRUE(image) << image.error();
  EXPECT_GT(image->sections().size(), 66000u);
  const elf::Section* last = image->section(".text.f65999");
  ASSERT_NE(last, nullptr);
  EXPECT_EQ(to_vector(image->section_bytes(*last)), std::vector<std::byte>{std::byte{0xc3}});
  EXPECT_TRUE(image->defects().empty());
}

TEST(Image, FindsTablesWithoutSectionHeaders) {
  TemporaryDirectory directory;
  std::vector<std::string> files = system_files();
  files.push_back(compile_program(directory, "program", "-rdynamic"));
  files.push_back(compile_program(directory, "sysv", "-rdynamic -Wl,--hash-style=sysv"));
  files.push_back(compile_program(directory, "static_pie", "-static-pie"));
  files.push_back(compile_program(directory, "linked", "-shared -fPIC -Wl,-Ttext-segment=0x3000000"));
  for (const std::string& path : files) {
    SCOPED_TRACE(path);
    auto whole = Image::open(path);
    ASSERT_TRUE(whole) << whole.error();
    auto file = read_whole(path);
    drop_section_headers(file);
    auto image = Image::from_bytes(std::move(file), "no sections");
    ASSERT_TRUE(image) << image.error();
    for (const char* name : {".eh_frame_hdr", ".eh_frame", ".dynsym", ".dynstr"}) {
      const elf::Section* expected = whole->section(name);
      const elf::Section* found = image->section(name);
      if (expected == nullptr) {
        EXPECT_EQ(found, nullptr) << name;
        continue;
      }
      // A static program's dynamic symbol table holds the null symbol alone, which says nothing.
      if (found == nullptr && expected->size <= sizeof(Elf64_Sym)) continue;
      ASSERT_NE(found, nullptr) << name;
      EXPECT_EQ(found->address, expected->address) << name;
      EXPECT_EQ(found->offset, expected->offset) << name;
      // All of it; .eh_frame may lack or have a terminator more.
      EXPECT_NEAR(static_cast<double>(found->size), static_cast<double>(expected->size), 8) << name;
    }
    EXPECT_EQ(image->build_id_hex(), whole->build_id_hex());
    EXPECT_TRUE(image->defects().empty());
  }
}

TEST(Image, ReadsItselfFromMemory) {
  // This program, as the loader has mapped and relocated it.
  uint64_t base = 0;
  std::ifstream maps("/proc/self/maps");
  const std::string self = std::filesystem::read_symlink("/proc/self/exe").string();
  for (std::string line; std::getline(maps, line) && base == 0;) {
    if (line.find(self) != std::string::npos) base = std::stoull(line, nullptr, 16);
  }
  const int memory = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  ASSERT_GE(memory, 0);
  const auto read = [memory](uint64_t address, std::span<std::byte> out) -> size_t {
    const ssize_t got = pread(memory, out.data(), out.size(), static_cast<off_t>(address));
    return got < 0 ? 0 : static_cast<size_t>(got);
  };
  auto image = Image::from_memory(read, base, "self");
  ASSERT_TRUE(image) << image.error();
  auto file = Image::open("/proc/self/exe");
  ASSERT_TRUE(file) << file.error();
  EXPECT_EQ(image->build_id_hex(), file->build_id_hex());
  ASSERT_NE(image->section(".eh_frame"), nullptr);
  EXPECT_EQ(to_vector(image->section_bytes(*image->section(".eh_frame"))),
            to_vector(file->section_bytes(*file->section(".eh_frame"))));
  EXPECT_EQ(image->vaddr_of_offset(file->section(".text")->offset), file->section(".text")->address);
  EXPECT_EQ(image->fd(), -1);
  std::set<uint64_t> in_file;
  for (const auto& symbol : file->symbols()) in_file.insert(symbol.address);
  for (const auto& symbol : image->symbols()) EXPECT_TRUE(in_file.contains(symbol.address)) << symbol.name;
  EXPECT_TRUE(image->defects().empty());
  close(memory);
}

TEST(Image, ReadsDebugLinks) {
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "-g");
  const std::string debug = directory.file("program.debug");
  run("objcopy --only-keep-debug " + path + " " + debug + " && objcopy --add-gnu-debuglink=" + debug + " " +
      path);
  auto image = Image::open(path);
  ASSERT_TRUE(image) << image.error();
  const auto link = image->debug_link();
  ASSERT_TRUE(link.has_value());
  EXPECT_EQ(link->first, "program.debug");
  const std::string crc = output_of("gzip -c1 " + debug + " | tail -c8 | od -An -tu4 -N4");
  EXPECT_EQ(link->second, std::stoul(crc));
  // The debug file itself: no contents for code, and that is no defect.
  auto separate = Image::open(debug);
  ASSERT_TRUE(separate) << separate.error();
  EXPECT_TRUE(separate->section_bytes(*separate->section(".text")).empty());
  EXPECT_EQ(separate->build_id_hex(), image->build_id_hex());
  EXPECT_FALSE(separate->debug_link().has_value());
}

TEST(Image, DoesWithoutABuildId) {
  TemporaryDirectory directory;
  auto image = Image::open(compile_program(directory, "program", "-Wl,--build-id=none"));
  ASSERT_TRUE(image) << image.error();
  EXPECT_EQ(image->build_id_hex(), "");
}

TEST(Image, OpensCoreFiles) {
  const char* shared = std::getenv("CLEW_SHARED");
  const std::string corpus = shared != nullptr ? shared : CLEW_SOURCE_DIR "/../shared";
  const std::string packed = corpus + "/corpus/core-dumps/backtrace.x86_64/backtrace.x86_64.core.bz2";
  if (access(packed.c_str(), R_OK) != 0) GTEST_SKIP() << "needs the corpus (CLEW_SHARED)";
  TemporaryDirectory directory;
  run("bzip2 -dc " + packed + " > " + directory.file("core"));
  auto image = Image::open(directory.file("core"));
  ASSERT_TRUE(image) << image.error();
  EXPECT_EQ(image->type(), ET_CORE);
  const auto notes = std::find_if(image->segments().begin(), image->segments().end(),
                                  [](const elf::Segment& segment) { return segment.type == PT_NOTE; });
  ASSERT_NE(notes, image->segments().end());
  std::vector<std::byte> bytes(notes->file_size);
  EXPECT_EQ(image->read_offset(notes->offset, bytes), bytes.size());
  EXPECT_EQ(std::memcmp(bytes.data() + sizeof(Elf64_Nhdr), "CORE", 5), 0);
}

}  // namespace
}  // namespace clew::test
