// Function symbols, against nm.
#include <elf.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <sstream>

#include "elf/fixtures.hpp"
#include "elf/image.hpp"

namespace clew::test {
namespace {

using elf::Image;
using Names = std::set<std::pair<uint64_t, std::string>>;

/// Defined functions as `readelf -s` lists them (address, name), versions cut off.
Names readelf_functions(const std::string& path, const std::string& table) {
  Names names;
  std::istringstream lines(output_of("readelf -W " + table + " " + path));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string number, size, type, binding, visibility, index, name;
    uint64_t address;
    fields >> number >> std::hex >> address >> size >> type >> binding >> visibility >> index >> name;
    if (!fields || (type != "FUNC" && type != "IFUNC") || index == "UND" || index == "ABS") continue;
    names.emplace(address, name.substr(0, name.find('@')));
  }
  return names;
}

Names functions_of(Image& image) {
  Names names;
  for (const elf::Symbol& symbol : image.symbols()) {
    if (symbol.type != STT_NOTYPE) names.emplace(symbol.address, symbol.name);
  }
  return names;
}

void expect_sorted_and_unique(Image& image) {
  const auto symbols = image.symbols();
  std::set<std::pair<uint64_t, std::string_view>> seen;
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (i > 0) {
      ASSERT_LE(symbols[i - 1].address, symbols[i].address);
    }
    EXPECT_TRUE(seen.emplace(symbols[i].address, symbols[i].name).second) << symbols[i].name;
  }
}

TEST(Symbols, AreThoseOfReadelf) {
  TemporaryDirectory directory;
  std::vector<std::string> files = {compile_program(directory, "program", ""),
                                    compile_program(directory, "static_program", "-static")};
  for (const char* path : {"/lib/x86_64-linux-gnu/libc.so.6", "/lib/x86_64-linux-gnu/libcrypto.so.3",
                           "/usr/bin/perl", "/usr/bin/node", "/lib64/ld-linux-x86-64.so.2"}) {
    if (access(path, R_OK) == 0) files.emplace_back(path);
  }
  for (const std::string& path : files) {
    SCOPED_TRACE(path);
    auto image = Image::open(path);
    ASSERT_TRUE(image) << image.error();
    const Names expected = readelf_functions(path, "-s");  // both tables
    EXPECT_FALSE(expected.empty());
    EXPECT_TRUE(functions_of(*image) == expected) << functions_of(*image).size() << " " << expected.size();
    expect_sorted_and_unique(*image);
    EXPECT_TRUE(image->defects().empty());
  }
}

TEST(Symbols, PutGlobalAliasesFirstAndKeepBareLabels) {
  TemporaryDirectory directory;
  auto image = Image::open(compile_program(directory, "program", ""));
  ASSERT_TRUE(image) << image.error();
  std::set<std::string> labels;
  for (const elf::Symbol& symbol : image->symbols()) {
    if (symbol.type == STT_NOTYPE) labels.emplace(symbol.name);
  }
  EXPECT_TRUE(labels.contains("bare_label"));
  EXPECT_FALSE(labels.contains("_etext"));
  EXPECT_FALSE(labels.contains("__data_start"));
}

TEST(Symbols, AreTheSameWithoutNames) {
  TemporaryDirectory directory;
  for (const std::string& path : {compile_program(directory, "program", ""), std::string("/usr/bin/node")}) {
    if (access(path.c_str(), R_OK) != 0) continue;
    SCOPED_TRACE(path);
    auto image = Image::open(path);
    ASSERT_TRUE(image) << image.error();
    std::set<std::pair<uint64_t, bool>> expected, found;  // address, whether it is a label
    const elf::AddressRange everywhere{0, UINT64_MAX};
    for (const elf::Symbol& symbol : image->symbols_in({&everywhere, 1}))
      found.emplace(symbol.address, symbol.type == STT_NOTYPE);
    for (const elf::Symbol& symbol : image->symbols()) {
      const bool label = symbol.type == STT_NOTYPE;
      // Of a function's aliases those that are labels are left out where names do not tell them apart.
      if (!label || !expected.contains({symbol.address, false})) expected.emplace(symbol.address, label);
    }
    EXPECT_FALSE(expected.empty());
    EXPECT_TRUE(found == expected) << found.size() << " " << expected.size();
    EXPECT_TRUE(image->defects().empty());
  }
}

TEST(Symbols, ComeFromDynsymWithoutSections) {
  const std::string path = "/lib/x86_64-linux-gnu/libc.so.6";
  if (access(path.c_str(), R_OK) != 0) GTEST_SKIP() << "needs " << path;
  auto file = read_whole(path);
  drop_section_headers(file);
  auto image = Image::from_bytes(std::move(file), "no sections");
  ASSERT_TRUE(image) << image.error();
  EXPECT_TRUE(functions_of(*image) == readelf_functions(path, "--dyn-syms"));
}

// As Fedora makes it: the symbols that .dynsym lacks, in a small ELF file, xz-compressed.
TEST(Symbols, ComeFromGnuDebugdata) {
  if (!have("xz")) GTEST_SKIP() << "needs xz";
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "-g");
  const Names expected = readelf_functions(path, "-s");
  run("objcopy --only-keep-debug --remove-section .comment --remove-section '.debug_*' " + path + " " +
      directory.file("mini") + " && xz -k " + directory.file("mini") + " && strip " + path);
  auto stripped = Image::open(path);
  ASSERT_TRUE(stripped) << stripped.error();
  ASSERT_FALSE(functions_of(*stripped) == expected);
  run("objcopy --add-section .gnu_debugdata=" + directory.file("mini.xz") + " " + path);
  auto image = Image::open(path);
  ASSERT_TRUE(image) << image.error();
  EXPECT_TRUE(functions_of(*image) == expected);
  image->release_sections();
  EXPECT_TRUE(functions_of(*image) == expected);  // names do not live in the section cache
  EXPECT_TRUE(image->defects().empty());
}

TEST(Symbols, CountADamagedGnuDebugdata) {
  if (!have("xz")) GTEST_SKIP() << "needs xz";
  TemporaryDirectory directory;
  const std::string path = compile_program(directory, "program", "-s");
  for (const char* make : {"echo nothing", "echo nothing | xz -c", "head -c 100000000 /dev/zero | xz -0 -c",
                           "xz -c /bin/ls | head -c 1000"}) {
    SCOPED_TRACE(make);
    run(std::string(make) + " > " + directory.file("data"));
    run("objcopy --remove-section .gnu_debugdata --add-section .gnu_debugdata=" + directory.file("data") +
        " " + path);
    auto image = Image::open(path);
    ASSERT_TRUE(image) << image.error();
    (void)image->symbols();
    EXPECT_EQ(image->defects().size(), 1u);
  }
}

// A table of many symbols that all name the same long text must not cost (symbols × text).
TEST(Symbols, BoundTheWorkOfACraftedTable) {
  constexpr size_t kSymbols = 200'000, kText = 8 << 20;
  std::vector<Elf64_Shdr> sections(3);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_ident[EI_CLASS] = ELFCLASS64;
  header.e_ident[EI_DATA] = ELFDATA2LSB;
  header.e_ident[EI_VERSION] = EV_CURRENT;
  header.e_type = ET_DYN;
  header.e_machine = EM_X86_64;
  header.e_shoff = sizeof(header);
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  const size_t table = sizeof(header) + sizeof(Elf64_Shdr) * 3, text = table + kSymbols * sizeof(Elf64_Sym);
  sections[1].sh_type = SHT_SYMTAB;
  sections[1].sh_offset = table;
  sections[1].sh_size = kSymbols * sizeof(Elf64_Sym);
  sections[1].sh_link = 2;
  sections[2].sh_type = SHT_STRTAB;
  sections[2].sh_offset = text;
  sections[2].sh_size = kText;
  std::vector<std::byte> file(text + kText, std::byte{'x'});
  std::memcpy(file.data(), &header, sizeof(header));
  std::memcpy(file.data() + sizeof(header), sections.data(), sizeof(Elf64_Shdr) * 3);
  for (size_t i = 0; i < kSymbols; ++i) {
    Elf64_Sym symbol{};
    symbol.st_info = ELF64_ST_INFO(STB_GLOBAL, STT_FUNC);
    symbol.st_shndx = 1;
    symbol.st_value = i;
    std::memcpy(file.data() + table + i * sizeof(symbol), &symbol, sizeof(symbol));
  }
  auto image = Image::from_bytes(std::move(file), "crafted");
  ASSERT_TRUE(image) << image.error();
  EXPECT_TRUE(image->symbols().empty());
  ASSERT_FALSE(image->defects().empty());
}

}  // namespace
}  // namespace clew::test
