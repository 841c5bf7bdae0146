// Rows of what tables leave out, judged by linkers' own .eh_frame, by objdump, and by CFI written by hand.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "analysis/analysis.hpp"
#include "judge.hpp"

namespace clew::analysis::test {
namespace {

clew_rule rule_for(const std::vector<Row>& rows, uint64_t address) {
  clew_rule rule = 0;
  for (const Row& row : rows) {
    if (row.address > address) break;
    rule = row.rule;
  }
  return rule;
}

// CFA - rsp at `address`; 0 where the rule is no such thing.
int depth(clew_rule rule, uint64_t address) {
  if (clew_rule_bp(rule) != CLEW_BP_UNCHANGED) return 0;
  if (clew_rule_kind(rule) == CLEW_CFA_REG && clew_rule_register(rule) == CLEW_RSP)
    return clew_rule_offset(rule);
  if (clew_rule_kind(rule) == CLEW_CFA_PLT)
    return 8 + ((address & 15) >= static_cast<uint64_t>(clew_rule_offset(rule)) ? 8 : 0);
  return 0;
}

std::string text_or_root(clew_rule rule) {
  return clew_rule_kind(rule) == CLEW_CFA_ROOT ? "root" : text(rule);
}

struct Disassembled {
  uint64_t address;
  std::string mnemonic;
};
std::vector<Disassembled> objdump(const std::string& path, const std::string& name) {
  std::vector<Disassembled> out;
  lines_of("objdump -d -w --no-show-raw-insn -j " + name + " " + path + " 2>/dev/null",
           [&](const char* line) {
             char* end = nullptr;
             uint64_t address = std::strtoull(line, &end, 16);
             if (end != line && *end == ':' && end[1] == '\t') out.push_back({address, end + 2});
           });
  return out;
}

bool starts_with(const std::string& text, const char* head) { return text.rfind(head, 0) == 0; }
bool is_jump(const std::string& mnemonic) {
  return starts_with(mnemonic, "jmp") || starts_with(mnemonic, "bnd jmp");
}
bool is_nop(const std::string& mnemonic) {
  return mnemonic.find("nop") != std::string::npos || starts_with(mnemonic, "xchg   %ax") ||
         starts_with(mnemonic, "int3");
}

struct Linker {
  const char* name;
  const char* program;
  const char* command;
};

class Plt : public ::testing::TestWithParam<Linker> {
 protected:
  void SetUp() override {
    for (const char* program : {"gcc", "objdump", "readelf", GetParam().program})
      if (!have(program)) GTEST_SKIP() << program << " is not installed";
    scratch_.write("p.c",
                   "#include <stdio.h>\nint main(void) { puts(\"x\"); getchar(); printf(\"%d\", 3); "
                   "fputs(\"a\", stdout); return 0; }\n");
    binary_ = scratch_ / "p";
    std::string command = std::string(GetParam().command) + " -O1 -Wl,-z,lazy -o " + binary_ + " " +
                          (scratch_ / "p.c") + " 2>/dev/null";
    ASSERT_EQ(std::system(command.c_str()), 0) << command;
  }
  Scratch scratch_;
  std::string binary_;
};

// What a push does to the depth, stub by stub.
TEST_P(Plt, DepthsFollowFromTheDisassembly) {
  size_t checked = 0;
  for (const char* name : {".plt", ".plt.sec", ".plt.got"}) {
    auto plt = section(binary_, name);
    if (!plt) continue;
    auto found = rows(std::string(name) == ".plt" ? Code::kPlt : Code::kPltSec, plt->bytes, plt->address);
    int expected = std::string(name) == ".plt" ? 16 : 8;  // PLT0 is entered with the number pushed
    bool ended = false;
    for (const Disassembled& in : objdump(binary_, name)) {
      if (ended && is_nop(in.mnemonic)) continue;
      if (ended) expected = 8;
      ended = false;
      if (in.mnemonic.find("(bad)") != std::string::npos) continue;
      EXPECT_EQ(depth(rule_for(found, in.address), in.address), expected)
          << name << " " << std::hex << in.address << " " << in.mnemonic;
      ++checked;
      if (starts_with(in.mnemonic, "push")) expected += 8;
      ended = is_jump(in.mnemonic) || starts_with(in.mnemonic, "ret");
    }
    std::printf("%s %s: %zu bytes, %zu rows\n", GetParam().name, name, plt->bytes.size(), found.size());
    EXPECT_LE(found.size(), 5u) << "stubs share a row";
  }
  EXPECT_GT(checked, 10u);
}

// ld and gold describe .plt themselves; lld does not.
TEST_P(Plt, AgreesWithTheLinkersOwnTable) {
  std::map<uint64_t, int> thresholds;  // FDE start: N of its expression
  uint64_t start = 0;
  lines_of("readelf -W --debug-dump=frames " + binary_, [&](const char* line) {
    std::string text = line;
    if (size_t at = text.find("pc="); at != std::string::npos)
      start = std::strtoull(text.c_str() + at + 3, nullptr, 16);
    if (size_t at = text.find("DW_OP_ge"); at != std::string::npos) {
      size_t lit = text.rfind("DW_OP_lit", at);
      thresholds[start] = std::atoi(text.c_str() + lit + 9);
    }
  });
  size_t checked = 0;
  for (const char* name : {".plt", ".plt.sec", ".plt.got"}) {
    auto plt = section(binary_, name);
    if (!plt) continue;
    auto found = rows(std::string(name) == ".plt" ? Code::kPlt : Code::kPltSec, plt->bytes, plt->address);
    for (const Fde& fde : readelf_rows(binary_)) {
      if (fde.start < plt->address || fde.start >= plt->address + plt->bytes.size() || fde.rows.empty())
        continue;
      size_t row = 0;
      bool ended = false;
      for (const Disassembled& in : objdump(binary_, name)) {
        bool padding = ended && is_nop(in.mnemonic);
        if (!padding) ended = is_jump(in.mnemonic);
        if (padding || in.address < fde.start || in.address >= fde.end) continue;
        while (row + 1 < fde.rows.size() && fde.rows[row + 1].address <= in.address) ++row;
        const std::string& cfa = fde.rows[row].cfa;
        int expected = starts_with(cfa, "rsp+") ? std::atoi(cfa.c_str() + 4) : 8;
        if (cfa == "exp") expected = 8 + 8 * (static_cast<int>(in.address & 15) >= thresholds[fde.start]);
        EXPECT_EQ(depth(rule_for(found, in.address), in.address), expected)
            << name << " " << std::hex << in.address << " " << in.mnemonic;
        ++checked;
      }
    }
  }
  if (checked == 0) GTEST_SKIP() << GetParam().name << " writes no table for its PLT";
}

INSTANTIATE_TEST_SUITE_P(Linkers, Plt,
                         ::testing::Values(Linker{"bfd", "ld.bfd", "gcc -fuse-ld=bfd"},
                                           Linker{"bfd_ibt", "ld.bfd",
                                                  "gcc -fuse-ld=bfd -fcf-protection -Wl,-z,ibtplt"},
                                           Linker{"bfd_static_pie", "ld.bfd", "gcc -fuse-ld=bfd -static-pie"},
                                           Linker{"gold", "ld.gold", "gcc -fuse-ld=gold"},
                                           Linker{"lld", "ld.lld-19", "clang-19 -fuse-ld=lld"},
                                           Linker{"lld_ibt", "ld.lld-19",
                                                  "clang-19 -fuse-ld=lld -fcf-protection -Wl,-z,force-ibt"}),
                         [](const auto& linker) { return linker.param.name; });

// mold: PLT0 pushes r11, the number that stubs leave there, and the link map; nothing lies on the stack
// before.
TEST(PltShapes, Mold) {
  auto code = bytes({0xf3, 0x0f, 0x1e, 0xfa,           // 1000 endbr64
                     0x41, 0x53,                       // 1004 push r11
                     0xff, 0x35, 0,    0,    0,    0,  // 1006 push [rip + link map]
                     0xff, 0x25, 0,    0,    0,    0,  // 100c jmp [rip + resolver]
                     0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xcc,
                     0xcc, 0xcc, 0xcc, 0xcc, 0xcc, 0xf3, 0x0f, 0x1e, 0xfa,  // 1020 endbr64
                     0x41, 0xbb, 1,    0,    0,    0,                       // 1024 mov r11d, 1
                     0xff, 0x25, 0,    0,    0,    0});                     // 102a jmp [rip + got]
  auto found = rows(Code::kPlt, code, 0x1000);
  EXPECT_EQ(depth(rule_for(found, 0x1004), 0x1004), 8);
  EXPECT_EQ(depth(rule_for(found, 0x1006), 0x1006), 16);
  EXPECT_EQ(depth(rule_for(found, 0x100c), 0x100c), 24);
  EXPECT_EQ(depth(rule_for(found, 0x1020), 0x1020), 8);
  EXPECT_EQ(depth(rule_for(found, 0x102a), 0x102a), 8);
}

// The lazy TLS descriptor stub at the end of .plt is called with nothing pushed. (ld's own table is wrong
// here.)
TEST(PltShapes, TlsDescriptorStub) {
  auto code = bytes({0xff, 0x35, 0, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0,    0x0f, 0x1f, 0x40, 0x00,    // PLT0
                     0xff, 0x25, 0, 0, 0, 0, 0x68, 0,    0, 0, 0, 0xe9, 0xe0, 0xff, 0xff, 0xff,    // stub
                     0xff, 0x25, 0, 0, 0, 0, 0x68, 1,    0, 0, 0, 0xe9, 0xd0, 0xff, 0xff, 0xff,    // stub
                     0xff, 0x35, 0, 0, 0, 0, 0xff, 0x25, 0, 0, 0, 0,    0x0f, 0x1f, 0x40, 0x00});  // TLSDESC
  auto found = rows(Code::kPlt, code, 0x1000);
  EXPECT_EQ(depth(rule_for(found, 0x1000), 0x1000), 16);
  EXPECT_EQ(depth(rule_for(found, 0x1006), 0x1006), 24);
  EXPECT_EQ(depth(rule_for(found, 0x1016), 0x1016), 8);
  EXPECT_EQ(depth(rule_for(found, 0x101b), 0x101b), 16);
  EXPECT_EQ(depth(rule_for(found, 0x1026), 0x1026), 8);
  EXPECT_EQ(depth(rule_for(found, 0x102b), 0x102b), 16);
  EXPECT_EQ(depth(rule_for(found, 0x1030), 0x1030), 8);
  EXPECT_EQ(depth(rule_for(found, 0x1036), 0x1036), 16);
}

struct Shape {
  const char* what;
  std::vector<std::pair<std::vector<std::byte>, const char*>> steps;
};

TEST(Init, EveryCrtShape) {
  const Shape shapes[] = {
      {"glibc",
       {{bytes({0x48, 0x83, 0xec, 0x08}), "rsp+8"},         // sub rsp, 8
        {bytes({0x48, 0x8b, 0x05, 0, 0, 0, 0}), "rsp+16"},  // mov rax, [rip + __gmon_start__]
        {bytes({0x48, 0x85, 0xc0}), "rsp+16"},              // test rax, rax
        {bytes({0x74, 0x02}), "rsp+16"},                    // je
        {bytes({0xff, 0xd0}), "rsp+16"},                    // call rax
        {bytes({0x48, 0x83, 0xc4, 0x08}), "rsp+16"},        // add rsp, 8
        {bytes({0xc3}), "rsp+8"}}},                         // ret
      {"old glibc",
       {{bytes({0x55}), "rsp+8"},                        // push rbp
        {bytes({0x48, 0x89, 0xe5}), "rsp+16 rbp c-16"},  // mov rbp, rsp
        {bytes({0xe8, 0, 1, 0, 0}), "rbp+16 rbp c-16"},  // call frame_dummy
        {bytes({0xe8, 0, 1, 0, 0}), "rbp+16 rbp c-16"},  // call __do_global_ctors_aux
        {bytes({0xc9}), "rbp+16 rbp c-16"},              // leave
        {bytes({0xc3}), "rsp+8"}}},                      // ret
      {"musl",
       {{bytes({0x50}), "rsp+8"},               // push rax
        {bytes({0xe8, 0, 1, 0, 0}), "rsp+16"},  // call
        {bytes({0x58}), "rsp+16"},              // pop rax
        {bytes({0xc3}), "rsp+8"}}}};            // ret
  for (const Shape& shape : shapes) {
    std::vector<std::byte> code;
    for (const auto& [piece, rule] : shape.steps) code.insert(code.end(), piece.begin(), piece.end());
    auto found = rows(Code::kInit, code, 0x1000);
    uint64_t address = 0x1000;
    for (const auto& [piece, rule] : shape.steps) {
      EXPECT_EQ(text(rule_for(found, address)), rule) << shape.what << " at " << std::hex << address;
      address += piece.size();
    }
  }
}

TEST(Start, GlibcEndsAtHlt) {
  for (const char* file : {"crt1.o", "Scrt1.o", "rcrt1.o", "gcrt1.o"}) {
    std::string path = std::string("/usr/lib/x86_64-linux-gnu/") + file;
    if (!exists(path)) continue;
    auto text = section(path, ".text");
    ASSERT_TRUE(text) << file;
    // The size of _start, as its own symbol says.
    uint64_t size = 0;
    lines_of("readelf -Ws " + path, [&](const char* line) {
      std::istringstream words(line);
      std::vector<std::string> word((std::istream_iterator<std::string>(words)), {});
      if (word.size() >= 8 && word[7] == "_start") size = std::strtoull(word[2].c_str(), nullptr, 0);
    });
    auto code = text->bytes;
    code.resize(code.size() + 8, std::byte{0x90});
    auto found = rows(Code::kStart, code, 0x1000);
    ASSERT_EQ(found.size(), 2u) << file;
    EXPECT_EQ(text_or_root(found[0].rule), "root");
    EXPECT_EQ(text_or_root(found[1].rule), "none");
    EXPECT_EQ(found[1].address, 0x1000 + size) << file;
  }
}

// musl's clone.s, the thread's side: what the new thread runs has no caller. Not so where zero in rbp is a
// number.
TEST(Function, ZeroInRbpBeforeAnIndirectCallIsTheRoot) {
  const auto clone = bytes({0x0f, 0x05, 0x85, 0xc0, 0x75, 0x0f,  // syscall; test eax, eax; jnz 1f
                            0x31, 0xed, 0x5f, 0x41, 0xff, 0xd1,  // xor ebp, ebp; pop rdi; call *r9
                            0x89, 0xc7, 0x31, 0xc0, 0xb0, 0x3c, 0x0f, 0x05, 0xf4,  // exit; hlt
                            0xc3});                                                // 1: ret
  auto found = rows(Code::kFunction, clone, 0x1000);
  EXPECT_EQ(text_or_root(rule_for(found, 0x1006)), "rsp+8");
  EXPECT_EQ(text_or_root(rule_for(found, 0x100b)), "root");  // where a return address less one lies
  EXPECT_EQ(text_or_root(rule_for(found, 0x100c)), "root");
  EXPECT_EQ(text_or_root(rule_for(found, 0x1015)), "rsp+8");
  // call *r9 replaced by a direct call, then by code that returns behind it.
  auto direct = clone;
  std::copy_n(bytes({0x90, 0x90, 0x90}).begin(), 3, direct.begin() + 9);
  EXPECT_NE(text_or_root(rule_for(rows(Code::kFunction, direct, 0x1000), 0x100c)), "root");
  auto returning = clone;
  returning[20] = std::byte{0xc3};
  EXPECT_NE(text_or_root(rule_for(rows(Code::kFunction, returning, 0x1000), 0x100c)), "root");
  // push rbp; xor ebp, ebp; call *r9; pop rbp; ret
  const auto saved = bytes({0x55, 0x31, 0xed, 0x41, 0xff, 0xd1, 0x5d, 0xc3});
  EXPECT_EQ(text(rule_for(rows(Code::kFunction, saved, 0x1000), 0x1006)), "rsp+16 rbp c-16");
}

// Between functions that have names: what is reached by nothing is a function only if it returns as one.
TEST(Unnamed, IsAFunctionIfItReturnsAsOne) {
  const auto function =
      bytes({0x0f, 0x1f, 0x40, 0x00, 0x53, 0xff, 0xd0, 0x5b, 0xc3});  // nop; push rbx; call rax; ...
  auto found = rows(Code::kUnnamed, function, 0x1000);
  EXPECT_EQ(text(rule_for(found, 0x1004)), "rsp+8");
  EXPECT_EQ(text(rule_for(found, 0x1005)), "rsp+16");
  EXPECT_EQ(text(rule_for(found, 0x1008)), "rsp+8");
  const auto part = bytes({0x90, 0xff, 0xd0, 0x5b, 0xc3});  // call rax; pop rbx; ret: a cold part of another
  EXPECT_EQ(clew_rule_kind(rule_for(rows(Code::kUnnamed, part, 0x1000), 0x1003)), uint32_t{CLEW_CFA_NONE});
  // Never returns: known only where something calls it.
  const auto stops = bytes({0x50, 0xff, 0xd0, 0x0f, 0x0b});
  const std::vector<uint64_t> called{0x1000};
  EXPECT_EQ(clew_rule_kind(rule_for(rows(Code::kUnnamed, stops, 0x1000), 0x1001)), uint32_t{CLEW_CFA_NONE});
  EXPECT_EQ(text(rule_for(rows(Code::kUnnamed, stops, 0x1000, called), 0x1001)), "rsp+16");
}

// The vector and its length are facts from the tests of OpenTelemetry's eBPF profiler (musl 1.2.5).
TEST(Start, MuslRunsIntoStartC) {
  auto code = bytes({0x48, 0x31, 0xed, 0x48, 0x89, 0xe7, 0x48, 0x8d, 0x35, 0xb2, 0xc2, 0x00, 0x00, 0x48, 0x83,
                     0xe4, 0xf0, 0xe8, 0x00, 0x00, 0x00, 0x00, 0x8b, 0x37, 0x48, 0x8d, 0x57, 0x08, 0x4c, 0x8d,
                     0x05, 0xd0, 0x62, 0x00, 0x00, 0x45, 0x31, 0xc9, 0x48, 0x8d, 0x0d, 0x62, 0xfa, 0xff, 0xff,
                     0x48, 0x8d, 0x3d, 0x8b, 0xfa, 0xff, 0xff, 0xe9, 0x76, 0xfa, 0xff, 0xff, 0x90, 0x90});
  auto found = rows(Code::kStart, code, 0x1000);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(text_or_root(found[0].rule), "root");
  EXPECT_EQ(found[1].address, 0x1000u + 57);
}

TEST(Start, GoJumps) {
  auto found =
      rows(Code::kStart, bytes({0xe9, 0x1b, 0xc8, 0xff, 0xff, 0xcc, 0xcc}), 0x1000);  // jmp _rt0_amd64
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(text_or_root(found[0].rule), "root");
  EXPECT_EQ(found[1].address, 0x1005u);
}

TEST(Start, TheDynamicLinkersOwn) {
  auto code =
      bytes({0x48, 0x89, 0xe7, 0xe8, 0x98, 0x0c, 0,    0,  // mov rdi, rsp; call _dl_start
             0x49, 0x89, 0xc4, 0x48, 0x8b, 0x14, 0x24,     // _dl_start_user: mov r12, rax; mov rdx, [rsp]
             0x48, 0x89, 0xd6, 0x49, 0x89, 0xe5,           // mov rsi, rdx; mov r13, rsp
             0x48, 0x83, 0xe4, 0xf0,                       // and rsp, -16
             0xe8, 0,    1,    0,    0,                    // call _dl_init
             0x4c, 0x89, 0xec, 0x41, 0xff, 0xe4,           // mov rsp, r13; jmp r12
             0x55});
  auto found = rows(Code::kStart, code, 0x1000);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(found[1].address, 0x1000 + code.size() - 1);
}

// glibc's clone: its CFI ends at the system call and goes on in the child.
TEST(Child, BehindTheSystemCall) {
  const auto code = bytes({0x0f, 0x05, 0x48, 0x85, 0xc0,  // syscall; test rax, rax
                           0x7c, 0x03, 0x74, 0x01, 0xc3,  // jl +3; je +1; ret
                           0x53, 0x5b, 0xc3});            // push rbx; pop rbx; ret
  EXPECT_TRUE(is_system_call(code));
  EXPECT_FALSE(is_system_call(std::span(code).subspan(2)));
  EXPECT_FALSE(is_system_call({}));
  const auto found = rows(Code::kChild, code, 0x1000);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(clew_rule_kind(found[0].rule), static_cast<uint32_t>(CLEW_CFA_REG));
  EXPECT_EQ(found[1].address, 0x1002u);
  EXPECT_EQ(clew_rule_kind(found[1].rule), static_cast<uint32_t>(CLEW_CFA_CHILD));
  EXPECT_EQ(clew_rule_offset(found[1].rule), 8);
  EXPECT_EQ(clew_rule_kind(found[2].rule), static_cast<uint32_t>(CLEW_CFA_REG));
  EXPECT_EQ(clew_rule_offset(found[2].rule), 16);
  EXPECT_EQ(clew_rule_kind(found[3].rule), static_cast<uint32_t>(CLEW_CFA_CHILD));
}

TEST(SignalReturn, ByItsBytes) {
  EXPECT_TRUE(
      is_signal_return(bytes({0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05})));    // mov rax, 15; syscall
  EXPECT_TRUE(is_signal_return(bytes({0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05, 0x90})));  // mov eax, 15; syscall
  EXPECT_FALSE(is_signal_return(bytes({0xb8, 0x0e, 0, 0, 0, 0x0f, 0x05})));
  EXPECT_FALSE(is_signal_return(bytes({0xb8, 0x0f, 0, 0, 0, 0x0f})));
  EXPECT_FALSE(is_signal_return({}));
  auto found = rows(Code::kSignalReturn, bytes({0xb8, 0x0f, 0, 0, 0, 0x0f, 0x05, 0x90}), 0x1000);
  ASSERT_EQ(found.size(), 2u);
  EXPECT_EQ(clew_rule_kind(found[0].rule), static_cast<uint32_t>(CLEW_CFA_SIGFRAME));
  EXPECT_EQ(clew_rule_offset(found[0].rule), 0);
  EXPECT_EQ(found[1].address, 0x1007u);
}

// glibc describes its own trampoline: the registers must lie where it says.
TEST(SignalReturn, RegistersLieWhereGlibcSays) {
  if (!exists(kLibc) || !have("readelf")) GTEST_SKIP() << "no glibc or readelf";
  std::map<int, int> expected;
  bool in_signal_cie = false, in_fde = false;
  std::string signal_cie;
  lines_of(std::string("readelf -W --debug-dump=frames ") + kLibc + " 2>/dev/null", [&](const char* raw) {
    std::string line = raw;
    if (line.find(" CIE") != std::string::npos) {
      in_signal_cie = true;
      in_fde = false;
      signal_cie = line.substr(0, 8);
    }
    if (in_signal_cie && line.find("Augmentation:") != std::string::npos) {
      in_signal_cie = false;
      if (line.find('S') == std::string::npos) signal_cie.clear();
    }
    if (line.find(" FDE ") != std::string::npos)
      in_fde = !signal_cie.empty() && line.find("cie=" + signal_cie) != std::string::npos;
    int reg = 0, offset = 0;
    if (in_fde && expected.empty() && line.find("DW_CFA_def_cfa_expression") != std::string::npos)
      if (std::sscanf(line.c_str() + line.find("(rsp): "), "(rsp): %d", &offset) == 1) expected[-1] = offset;
    size_t at = line.find("DW_CFA_expression: r");
    if (in_fde && at != std::string::npos &&
        std::sscanf(line.c_str() + at, "DW_CFA_expression: r%d", &reg) == 1 &&
        std::sscanf(line.c_str() + line.find("(rsp): "), "(rsp): %d", &offset) == 1)
      expected[reg] = offset;
  });
  ASSERT_EQ(expected.size(), 18u) << "glibc's FDE was not found";
  std::map<int, int> ours;
  for (unsigned i = 0; i < 17; ++i)
    ours[static_cast<int>(clew_sigcontext_register(i))] = static_cast<int>(40 + 8 * i);
  ours[-1] = ours[CLEW_RSP];
  EXPECT_EQ(ours, expected);
}

class Shapes : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!have("gcc") || !have("readelf") || !have("nm")) GTEST_SKIP() << "gcc or binutils is not installed";
    object_ = scratch_ / "shapes.so";
    ASSERT_EQ(
        std::system(
            ("gcc -shared -nostdlib -o " + object_ + " " CLEW_SOURCE_DIR "/tests/analysis/shapes.s").c_str()),
        0);
  }
  Scratch scratch_;
  std::string object_;
};

TEST_F(Shapes, RulesAreThoseOfTheHandWrittenCfi) {
  Score score;
  std::vector<std::string> wrong;
  judge_file(
      object_, [](std::span<const std::byte>, size_t, clew_rule by_flow) { return by_flow; }, score, wrong);
  print("shapes.s", score, wrong);
  EXPECT_EQ(score.functions, 13u);
  EXPECT_EQ(score.wrong, 0u);
  EXPECT_EQ(score.none, 0u);
}

TEST_F(Shapes, SilentWhereNothingCanBeVouchedFor) {
  auto in = section(object_, ".text");
  ASSERT_TRUE(in);
  std::map<std::string, uint64_t> symbols;
  lines_of("nm " + object_, [&](const char* line) {
    char name[128];
    uint64_t address = 0;
    if (std::sscanf(line, "%lx %*c %127s", &address, name) == 2) symbols[name] = address;
  });
  for (const char* name : {"aligned", "switched", "conflict", "popped", "rbp_lost", "behind_call"}) {
    ASSERT_TRUE(symbols.count(std::string("none_") + name)) << name;
    uint64_t start = symbols[std::string("none_") + name], silent = symbols[std::string("silent_") + name];
    auto found = rows(Code::kFunction, std::span(in->bytes).subspan(start - in->address), start);
    EXPECT_EQ(text(rule_for(found, start)), "rsp+8") << name;
    EXPECT_EQ(text(rule_for(found, silent)), "none") << name;
  }
}

TEST(Function, NoCodeNoRows) {
  EXPECT_TRUE(rows(Code::kFunction, {}, 0).empty());
  EXPECT_TRUE(rows(Code::kPlt, {}, 0).empty());
  EXPECT_TRUE(rows(Code::kStart, {}, 0).empty());
  EXPECT_TRUE(rows(Code::kSignalReturn, {}, 0).empty());
}

}  // namespace
}  // namespace clew::analysis::test
