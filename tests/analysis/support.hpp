// What the analysis tests share: sections of ELF files, the output of programs, assembled snippets.
#pragma once

#include <elf.h>
#include <stdlib.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace clew::analysis::test {

struct Section {
  std::string name;
  uint64_t address = 0;
  bool executable = false;
  std::vector<std::byte> bytes;
};

/// Sections with contents. The files are this machine's own, so nothing is checked beyond the magic.
inline std::vector<Section> sections(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::vector<char> file((std::istreambuf_iterator<char>(in)), {});
  std::vector<Section> out;
  if (file.size() < sizeof(Elf64_Ehdr) || std::memcmp(file.data(), ELFMAG, SELFMAG) != 0) return out;
  Elf64_Ehdr header;
  std::memcpy(&header, file.data(), sizeof header);
  std::vector<Elf64_Shdr> table(header.e_shnum);
  std::memcpy(table.data(), file.data() + header.e_shoff, table.size() * sizeof(Elf64_Shdr));
  for (const Elf64_Shdr& entry : table) {
    if (entry.sh_type == SHT_NOBITS || entry.sh_type == SHT_NULL) continue;
    Section section;
    section.name = file.data() + table[header.e_shstrndx].sh_offset + entry.sh_name;
    section.address = entry.sh_addr;
    section.executable = (entry.sh_flags & SHF_EXECINSTR) != 0;
    section.bytes.resize(entry.sh_size);
    if (entry.sh_size) std::memcpy(section.bytes.data(), file.data() + entry.sh_offset, entry.sh_size);
    out.push_back(std::move(section));
  }
  return out;
}

inline std::optional<Section> section(const std::string& path, const std::string& name) {
  for (Section& candidate : sections(path))
    if (candidate.name == name) return std::move(candidate);
  return std::nullopt;
}

/// Each line that `command` writes; its exit status.
inline int lines_of(const std::string& command, const std::function<void(const char*)>& sink) {
  FILE* pipe = popen(command.c_str(), "r");
  if (!pipe) return -1;
  char* line = nullptr;
  size_t size = 0;
  while (getline(&line, &size, pipe) > 0) sink(line);
  free(line);
  return pclose(pipe);
}

inline bool exists(const std::string& path) { return access(path.c_str(), R_OK) == 0; }

inline bool have(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null 2>&1").c_str()) == 0;
}

/// A directory that goes away with its files.
class Scratch {
 public:
  Scratch() {
    char name[] = "/tmp/clew-analysis-XXXXXX";
    path_ = mkdtemp(name);
  }
  ~Scratch() { (void)!std::system(("rm -rf " + path_).c_str()); }
  Scratch(const Scratch&) = delete;
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(*this / name) << text;
    return *this / name;
  }

 private:
  std::string path_;
};

inline std::vector<std::byte> bytes(std::initializer_list<unsigned> values) {
  std::vector<std::byte> out;
  for (unsigned value : values) out.push_back(static_cast<std::byte>(value));
  return out;
}

constexpr const char* kLibc = "/lib/x86_64-linux-gnu/libc.so.6";
constexpr const char* kLibm = "/lib/x86_64-linux-gnu/libm.so.6";
constexpr const char* kLoader = "/lib64/ld-linux-x86-64.so.2";
constexpr const char* kLibcrypto = "/usr/lib/x86_64-linux-gnu/libcrypto.so.3";
constexpr const char* kLibstdcxx = "/usr/lib/x86_64-linux-gnu/libstdc++.so.6";
constexpr const char* kGit = "/usr/bin/git";
constexpr const char* kPerl = "/usr/bin/perl";
constexpr const char* kPython = "/usr/bin/python3.11";
constexpr const char* kSqlite = "/usr/lib/x86_64-linux-gnu/libsqlite3.so.0";
constexpr const char* kLibxml2 = "/usr/lib/x86_64-linux-gnu/libxml2.so.2";
constexpr const char* kNode = "/usr/bin/node";

}  // namespace clew::analysis::test
