// Every FDE, every row and every column against GNU readelf: the system's libraries, programs compiled here,
// and the dumps that the shared corpus keeps.
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "cfi/readelf_rows.hpp"

namespace clew::cfi::test {
namespace {

void compare_all(const std::string& path, const char* name) {
  SCOPED_TRACE(path);
  const auto section = find_section(path, name);
  if (!section) GTEST_SKIP() << path << " is not here or has no " << name;
  const ReadelfDump dump = run_readelf(path);
  if (!dump.contains(name)) GTEST_SKIP() << "no readelf here";
  const Compared compared = compare_with_readelf<X86_64>(*section, dump.at(name));
  EXPECT_GT(compared.rows, compared.fdes);
  std::printf("%s %s: %zu FDEs, %zu rows, %zu rules (readelf: %zu rows of no length, %zu behind an end)\n",
              path.c_str(), name, compared.fdes, compared.rows, compared.cells, compared.rows_of_no_length,
              compared.rows_behind_end);
}

TEST(Readelf, SystemLibc) { compare_all("/lib/x86_64-linux-gnu/libc.so.6", ".eh_frame"); }
TEST(Readelf, SystemLoader) { compare_all("/lib64/ld-linux-x86-64.so.2", ".eh_frame"); }
TEST(Readelf, SystemLibcrypto) { compare_all("/usr/lib/x86_64-linux-gnu/libcrypto.so.3", ".eh_frame"); }
TEST(Readelf, SystemLibstdcxx) { compare_all("/usr/lib/x86_64-linux-gnu/libstdc++.so.6", ".eh_frame"); }
TEST(Readelf, ThisProgram) {  // not as /proc/self/exe: that would be readelf
  compare_all(std::filesystem::read_symlink("/proc/self/exe").string(), ".eh_frame");
}

// For large files: a colon-separated list in CLEW_READELF_FILES.
TEST(Readelf, FilesOfTheEnvironment) {
  const char* files = std::getenv("CLEW_READELF_FILES");
  if (files == nullptr) GTEST_SKIP() << "CLEW_READELF_FILES names no files";
  std::istringstream in(files);
  for (std::string path; std::getline(in, path, ':');) compare_all(path, ".eh_frame");
}

// What compilers make of code that needs every kind of frame: exceptions, alloca, over-aligned locals (DRAP),
// variable arguments, many arguments, and a function split in hot and cold parts.
constexpr const char* kCxx = R"(
#include <alloca.h>
#include <cstdarg>
#include <cstdio>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>
__attribute__((noinline)) int sum(int n, ...) {
  va_list list; va_start(list, n); int s = 0;
  for (int i = 0; i < n; ++i) s += va_arg(list, int);
  va_end(list); return s;
}
__attribute__((noinline)) int aligned(int n) {
  alignas(64) volatile char buffer[256]; char* more = static_cast<char*>(alloca(n));
  std::memset(more, 1, n); buffer[n & 255] = more[0]; return buffer[n & 255] + sum(9, 1, 2, 3, 4, 5, 6, 7, 8, n);
}
__attribute__((noinline)) int thrower(const std::vector<std::string>& v) {
  if (v.size() > 3) throw std::runtime_error(v[0] + v[1]);
  return static_cast<int>(v.size());
}
int main(int argc, char** argv) {
  std::vector<std::string> v(argv, argv + argc);
  try { v.resize(v.size() + 4); return thrower(v); } catch (const std::exception& e) { std::puts(e.what()); }
  return aligned(argc * 16);
}
)";

// Every instruction that has a directive in gas, and those without by .cfi_escape, with other alignments of
// the data where gas chooses the operand's form.
constexpr const char* kAssembly = R"(
  .text
  .globl main
main:
  .cfi_startproc
  .cfi_personality 0x9b, indirect_personality
  .cfi_lsda 0x1b, lsda
  push %rbp
  .cfi_def_cfa_offset 16
  .cfi_offset rbp, -16
  mov %rsp, %rbp
  .cfi_def_cfa_register rbp
  nop
  .cfi_remember_state
  .cfi_val_offset rbx, -24
  nop
  .cfi_register r12, rax
  .cfi_same_value r13
  nop
  .cfi_remember_state
  .cfi_undefined r14
  .cfi_escape 0x10, 3, 2, 0x77, 8                  # DW_CFA_expression rbx
  nop
  .cfi_escape 0x16, 6, 2, 0x77, 16                 # DW_CFA_val_expression rbp
  .cfi_escape 0x0f, 3, 0x77, 8, 6                  # DW_CFA_def_cfa_expression
  nop
  .cfi_escape 0x15, 15, 0x7e                       # DW_CFA_val_offset_sf r15, -2
  .cfi_escape 0x11, 14, 3                          # DW_CFA_offset_extended_sf r14, 3
  nop
  .cfi_escape 0x2e, 16                             # DW_CFA_GNU_args_size
  .cfi_escape 0x2f, 12, 4                          # DW_CFA_GNU_negative_offset_extended
  nop
  .cfi_escape 0x12, 7, 0x7d                        # DW_CFA_def_cfa_sf rsp, -3
  nop
  .cfi_escape 0x13, 0x7c                           # DW_CFA_def_cfa_offset_sf -4
  nop
  .cfi_restore_state
  .cfi_restore r12
  nop
  .cfi_escape 0x06, 13                             # DW_CFA_restore_extended
  .cfi_escape 0x05, 13, 5                          # DW_CFA_offset_extended
  .skip 70, 0x90
  .cfi_adjust_cfa_offset 1000
  .skip 300, 0x90
  .cfi_restore_state
  .cfi_def_cfa_offset 24
  .skip 70000, 0x90
  .cfi_def_cfa rsp, 8
  .cfi_return_column rip
  ret
  .cfi_endproc
  .type signal_return, @function
signal_return:
  .cfi_startproc simple
  .cfi_signal_frame
  .cfi_def_cfa rsp, 160
  .cfi_offset rip, 8
  .cfi_offset rsp, -16
  nop
  .cfi_undefined rip
  nop
  .cfi_endproc
empty:
  .cfi_startproc
  .cfi_endproc
indirect_personality: .quad 0
lsda: .long 0
  .section .note.GNU-stack,"",@progbits
)";

std::string compiled(const std::string& name, const char* extension, const char* text,
                     const std::string& command) {
  const std::string base = testing::TempDir() + "clew_cfi_" + std::to_string(getpid()) + "_" + name;
  std::ofstream(base + extension) << text;
  const std::string line = command + " -o '" + base + "' '" + base + extension + "'";
  const bool made = std::system(line.c_str()) == 0;
  std::remove((base + extension).c_str());
  return made ? base : "";
}

void compare_compiled(const char* name, const char* extension, const char* text, const std::string& command,
                      const char* section) {
  const std::string path = compiled(name, extension, text, command);
  if (path.empty()) GTEST_SKIP() << "no compiler here: " << command;
  compare_all(path, section);
  std::remove(path.c_str());
}

TEST(Readelf, CompiledOptimised) { compare_compiled("o2", ".cpp", kCxx, "g++ -O2", ".eh_frame"); }
TEST(Readelf, CompiledUnoptimised) { compare_compiled("o0", ".cpp", kCxx, "g++ -O0", ".eh_frame"); }
TEST(Readelf, CompiledRealigned) {
  compare_compiled("drap", ".cpp", kCxx, "g++ -O2 -mstackrealign -mincoming-stack-boundary=3", ".eh_frame");
}
TEST(Readelf, CompiledStaticPie) {
  compare_compiled("static", ".cpp", kCxx, "g++ -O2 -static-pie", ".eh_frame");
}

constexpr const char* kC =
    "int g(int); int f(int n) { char b[n]; b[0] = 1; return g(b[n - 1]) + 1; }\n"
    "int g(int n) { return n < 2 ? n : g(n - 1) + f(n - 2); } int main(void) { return f(3); }\n";
constexpr const char* kNoEhFrame = "gcc -fno-asynchronous-unwind-tables -fno-unwind-tables -O2 -g";
TEST(Readelf, CompiledDebugFrame) { compare_compiled("debug", ".c", kC, kNoEhFrame, ".debug_frame"); }
TEST(Readelf, CompiledDebugFrame64Bit) {
  compare_compiled("debug64", ".c", kC, std::string(kNoEhFrame) + " -gdwarf64", ".debug_frame");
}
TEST(Readelf, CompiledDebugFrameCompressed) {
  compare_compiled("debugz", ".c", kC, std::string(kNoEhFrame) + " -gz", ".debug_frame");
}
TEST(Readelf, CompiledDebugFrameOfDwarf3) {
  compare_compiled("debug3", ".c", kC, std::string(kNoEhFrame) + " -gdwarf-3", ".debug_frame");
}
TEST(Readelf, Assembly) { compare_compiled("asm", ".s", kAssembly, "gcc", ".eh_frame"); }
TEST(Readelf, AssemblyOfMediumModel) {  // 8-byte encodings
  compare_compiled("medium", ".c", kC, "gcc -O2 -mcmodel=large -fPIC", ".eh_frame");
}

template <class Arch>
Compared compare_corpus(const std::string& name, const char* section_name) {
  const std::string path = *shared_folder() + "/corpus/readelf-rows/" + name;
  const auto section = find_section(path, section_name);
  std::ifstream text(path + ".readelf.txt");
  ReadelfDump dump = parse_readelf(text);
  EXPECT_TRUE(section);
  EXPECT_TRUE(dump.contains(section_name));
  return section ? compare_with_readelf<Arch>(*section, dump[section_name]) : Compared{};
}

TEST(Readelf, CorpusPointerAuthentication) {
  if (!shared_folder()) GTEST_SKIP() << "no shared corpus: set CLEW_SHARED";
  const Compared compared = compare_corpus<Aarch64>("arm64/basic-cpp-pac-bti", ".eh_frame");
  EXPECT_EQ(15u, compared.fdes);
}

TEST(Readelf, CorpusLoaderOfArm64) {
  if (!shared_folder()) GTEST_SKIP() << "no shared corpus: set CLEW_SHARED";
  const Compared compared = compare_corpus<Aarch64>("arm64/ld-2.31.so", ".eh_frame");
  EXPECT_EQ(215u, compared.fdes);
}

TEST(Readelf, CorpusCompressedDebugFrameOfGo) {
  if (!shared_folder()) GTEST_SKIP() << "no shared corpus: set CLEW_SHARED";
  const Compared compared = compare_corpus<X86_64>("amd64/basic-go", ".debug_frame");
  EXPECT_EQ(1493u, compared.fdes);
}

}  // namespace
}  // namespace clew::cfi::test
