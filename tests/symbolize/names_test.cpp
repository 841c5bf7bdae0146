// Demangling, sanitizing, kernel symbols.
#include <fstream>

#include "symbolize/fixture.hpp"

namespace clew::symbolize {
namespace {

// Expected values: llvm-cxxfilt for C++, rustfilt's documented examples and RFC 2603 for Rust.
TEST(Demangle, Cxx) {
  EXPECT_EQ(demangle("_ZN5outer5inner4textEi"), "outer::inner::text(int)");
  EXPECT_EQ(demangle("_ZNSt6vectorIiSaIiEE9push_backEOi"),
            "std::vector<int, std::allocator<int>>::push_back(int&&)");
}

TEST(Demangle, RustV0) {
  EXPECT_EQ(demangle("_RNvNtNtCs1234_7mycrate3foo3bar3baz"), "mycrate::foo::bar::baz");
  EXPECT_EQ(demangle("_RINvNtC3std3mem8align_ofjdE"), "std::mem::align_of::<usize, f64>");
}

TEST(Demangle, LegacyRustLosesItsHash) {
  EXPECT_EQ(demangle("_ZN4core3fmt9Formatter3pad17h0123456789abcdefE"), "core::fmt::Formatter::pad");
  EXPECT_EQ(demangle("_ZN71_$LT$Test$u20$$u2b$$u20$$u27$static$u20$as$u20$foo..Bar$LT$Test$GT$$GT$"
                     "3bar17h930b740aa94f1d3aE"),
            "<Test + 'static as foo::Bar<Test>>::bar");
  EXPECT_EQ(demangle("_ZN4test1a2bc17h0123456789abcdefE.llvm.1234"), "test::a::bc");
}

TEST(Demangle, CxxNameThatOnlyLooksLikeRust) {
  EXPECT_EQ(demangle("_ZN3foo3barE"), "foo::bar");
  EXPECT_EQ(demangle("_ZN3foo17h0123456789abcdegE"), "foo::h0123456789abcdeg");
}

TEST(Demangle, OtherNamesStay) {
  for (const char* name : {"main", "", "_Z", "_ZN", "_R", "malloc@plt", "_ZNnonsense", "foo.cold", "$u7b$"}) {
    EXPECT_EQ(demangle(name), name);
  }
}

TEST(Sanitize, KeepsValidText) {
  EXPECT_EQ(sanitize("std::vector<int>"), "std::vector<int>");
  EXPECT_EQ(sanitize("größe_λ_关_🧵"), "größe_λ_关_🧵");
  EXPECT_EQ(sanitize(""), "");
}

TEST(Sanitize, ControlCharacters) {
  EXPECT_EQ(sanitize("a\x1b[31mred\nb\tc\x7f"), "a?[31mred?b?c?");
  EXPECT_EQ(sanitize(std::string_view("a\0b", 3)), "a?b");
  EXPECT_EQ(sanitize("a\xc2\x9b"
                     "b"),
            "a?b");  // C1: a one-byte CSI to some terminals
}

TEST(Sanitize, InvalidUtf8) {
  const std::string bad = "\xef\xbf\xbd";
  EXPECT_EQ(sanitize("a\xff"
                     "b"),
            "a" + bad + "b");
  EXPECT_EQ(sanitize("\xc0\xaf"), bad + bad);                      // overlong
  EXPECT_EQ(sanitize("\xed\xa0\x80"), bad + bad + bad);            // a surrogate
  EXPECT_EQ(sanitize("\xf4\x90\x80\x80"), bad + bad + bad + bad);  // beyond U+10FFFF
  EXPECT_EQ(sanitize("a\xe2\x82"), "a" + bad + bad);               // cut short
}

TEST(Sanitize, LengthIsLimited) {
  const std::string exact(kMaxNameBytes, 'x');
  EXPECT_TRUE(sanitize(exact) == exact);
  const std::string cut = sanitize(exact + "y");
  EXPECT_EQ(cut.size(), kMaxNameBytes);
  EXPECT_TRUE(cut.ends_with("x..."));
  std::string wide;
  for (size_t i = 0; i < kMaxNameBytes; ++i) wide += "λ";
  const std::string cut_wide = sanitize(wide);
  EXPECT_LE(cut_wide.size(), kMaxNameBytes);
  EXPECT_TRUE(cut_wide.ends_with("λ..."));  // no character is cut in two
  EXPECT_LE(sanitize(std::string(kMaxNameBytes, '\xff')).size(), kMaxNameBytes);
}

class Kallsyms : public Scratch {
 protected:
  KernelSymbols load(const std::string& text) const {
    std::ofstream(path("kallsyms")) << text;
    return KernelSymbols::load(path("kallsyms"));
  }
};

TEST_F(Kallsyms, FunctionsModulesAndBpfPrograms) {
  const KernelSymbols symbols = load(
      "0000000000000000 A fixed_percpu_data\n"
      "ffffffff81000000 T startup_64\n"
      "ffffffff81000100 t do_one_initcall\n"
      "ffffffff81000200 W weak_function\n"
      "ffffffff81000280 d some_data\n"
      "ffffffff81000200 t an_alias\n"
      "ffffffff81000300 t low\n"
      "ffffffff81000300 T high\n"
      "ffffffffc0001000 t ext4_readdir\t[ext4]\n"
      "ffffffffc0280000 t bpf_prog_6deef7357e7b4530_count\t[bpf]\n"
      "ffffffffc0300000 t _RNvNtC6kernel5print5write\n");
  EXPECT_FALSE(symbols.empty());
  EXPECT_EQ(symbols.name(0xffffffff80ffffff), "");
  EXPECT_EQ(symbols.name(0xffffffff81000000), "startup_64");
  EXPECT_EQ(symbols.name(0xffffffff810000ff), "startup_64");
  EXPECT_EQ(symbols.name(0xffffffff81000100), "do_one_initcall");
  EXPECT_EQ(symbols.name(0xffffffff81000290),
            "weak_function");  // data is no function, and the first alias is kept
  EXPECT_EQ(symbols.name(0xffffffff81000300), "high");
  EXPECT_EQ(symbols.name(0xffffffffc0001010), "ext4_readdir [ext4]");
  EXPECT_EQ(symbols.name(0xffffffffc0280004), "bpf_prog_6deef7357e7b4530_count [bpf]");
  EXPECT_EQ(symbols.name(0xffffffffc0300001), "kernel::print::write");
  EXPECT_EQ(symbols.name(0xffffffffffffffff), "");  // far behind the last function
  EXPECT_EQ(symbols.name(0), "");
}

TEST_F(Kallsyms, WhatCameWithTheKernelIsPermanent) {
  const KernelSymbols symbols = load(
      "ffffffff81000000 T _stext\n"
      "ffffffff81000100 t do_one_initcall\n"
      "ffffffff82000000 T _etext\n"
      "ffffffffc0280000 t bpf_prog_6deef7357e7b4530_count\t[bpf]\n");
  EXPECT_TRUE(symbols.is_permanent(0xffffffff81000000));
  EXPECT_TRUE(symbols.is_permanent(0xffffffff81fffffe));
  EXPECT_FALSE(symbols.is_permanent(0xffffffff82000000));
  EXPECT_FALSE(symbols.is_permanent(0xffffffffc0280004));
  EXPECT_FALSE(KernelSymbols().is_permanent(0xffffffff81000000));
}

TEST_F(Kallsyms, HiddenAddresses) {
  const KernelSymbols symbols = load(
      "0000000000000000 T startup_64\n"
      "0000000000000000 t do_one_initcall\n"
      "0000000000000000 t ext4_readdir\t[ext4]\n");
  EXPECT_TRUE(symbols.empty());
  EXPECT_EQ(symbols.name(0), "");
  EXPECT_EQ(symbols.name(0xffffffff81000000), "");
}

TEST_F(Kallsyms, DamagedLinesAndControlCharacters) {
  const KernelSymbols symbols = load(
      "\n \nffffffff\nffffffff81000000\nffffffff81000000 T\nffffffff81000000 T \nzz T name\n"
      "ffffffff81000000 T fine\nffffffff81001000 T \x1b[2Jbad\n");
  EXPECT_EQ(symbols.name(0xffffffff81000000), "fine");
  EXPECT_EQ(symbols.name(0xffffffff81001000), "?[2Jbad");
}

TEST_F(Kallsyms, NoFile) { EXPECT_TRUE(KernelSymbols::load(path("absent")).empty()); }

}  // namespace
}  // namespace clew::symbolize
