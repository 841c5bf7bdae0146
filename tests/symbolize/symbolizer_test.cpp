// Names, files, lines and inlined functions of compiled programs, against what LLVM's and binutils' tools
// say.
#include <algorithm>
#include <regex>

#include "symbolize/fixture.hpp"

namespace clew::symbolize {
namespace {

/// A peer's answer in our terms: one unknown line is no answer, the file of a symbol without lines (STT_FILE)
/// is no source file, and the compiler's part of a function is the function.
Lines normal(Lines lines) {
  static const std::regex part(R"(( \(\.[a-z.0-9]+\)|\.(cold|part|isra|constprop)[.0-9]*)+$)");
  for (Line& line : lines) {
    if (line.line == 0) line.file.clear();
    line.function = std::regex_replace(line.function, part, "");
  }
  if (lines.size() == 1 && lines[0].function.empty() && lines[0].file.empty()) lines.clear();
  return lines;
}

/// How many of the answers are the same in function, file and line; the first difference is printed.
size_t equal(const std::vector<Lines>& ours, const std::vector<Lines>& theirs,
             const std::vector<uint64_t>& addresses) {
  size_t same = 0;
  bool shown = false;
  for (size_t i = 0; i < ours.size() && i < theirs.size(); ++i) {
    const Lines peer = normal(theirs[i]);
    const bool agree = text(normal(ours[i])) == text(peer);
    if (agree) ++same;
    if (!agree && !std::exchange(shown, true)) {
      ADD_FAILURE() << std::hex << addresses[i] << " ours:\n" << text(ours[i]) << "theirs:\n" << text(peer);
    }
  }
  return same;
}

class Compiled : public Scratch {
 protected:
  /// Symbolizes all of .text and expects llvm-symbolizer's answers, asked about `reference` (the file itself
  /// if "").
  void expect_as_peer(const std::string& file, const std::string& debug_path = "",
                      const std::string& reference = "") {
    const std::vector<uint64_t> addresses = text_addresses(reference.empty() ? file : reference, 3);
    ASSERT_GT(addresses.size(), 100U);
    Symbolizer symbolizer;
    const auto ours = symbolizer.symbolize({file, debug_path, ""}, addresses);
    const auto theirs = llvm_symbolizer(reference.empty() ? file : reference, addresses, path("questions"));
    ASSERT_EQ(ours.size(), addresses.size());
    ASSERT_EQ(theirs.size(), addresses.size());
    EXPECT_EQ(equal(ours, theirs, addresses), addresses.size());
    EXPECT_EQ(symbolizer.failures(), 0U);
  }
  static std::vector<Lines> ask(const std::string& file, std::vector<uint64_t> addresses,
                                const std::string& debug = "", const std::string& build_id = "") {
    Symbolizer symbolizer;
    return symbolizer.symbolize({file, debug, build_id}, addresses);
  }
};

TEST_F(Compiled, OptimisedWithInlines) {
  const std::string file = compile("-O2 -g");
  expect_as_peer(file);
  // The inlined chain is there at all: leaf in middle in plain_c.
  const auto lines = ask(file, text_addresses(file, 1));
  EXPECT_TRUE(std::any_of(lines.begin(), lines.end(), [](const Lines& l) {
    return l.size() == 3 && l[0].function.starts_with("leaf") && l[1].function.starts_with("middle") &&
           l[2].function == "plain_c";
  }));
}

TEST_F(Compiled, Unoptimised) { expect_as_peer(compile("-O0 -g")); }
TEST_F(Compiled, Dwarf4) { expect_as_peer(compile("-O2 -gdwarf-4")); }
TEST_F(Compiled, LinesOnly) { expect_as_peer(compile("-O2 -g1")); }
TEST_F(Compiled, CompressedSections) { expect_as_peer(compile("-O2 -g -gz")); }
TEST_F(Compiled, NotPie) { expect_as_peer(compile("-O2 -g -no-pie")); }
TEST_F(Compiled, TypeUnits) { expect_as_peer(compile("-O2 -g -fdebug-types-section")); }
TEST_F(Compiled, SplitDwarf) { expect_as_peer(compile("-O2 -gdwarf-5 -gsplit-dwarf")); }
TEST_F(Compiled, SplitDwarf4) { expect_as_peer(compile("-O2 -gdwarf-4 -gsplit-dwarf")); }

TEST_F(Compiled, ByClang) {
  if (!have("clang++-19")) GTEST_SKIP() << "no clang++-19 here";
  shell("clang++-19 -std=c++20 -O2 -g -o program " + program("inlines.cpp"));
  expect_as_peer(path("program"));
}

TEST_F(Compiled, AsAddr2lineSays) {
  const std::string file = compile("-O1 -g");
  const std::vector<uint64_t> addresses = text_addresses(file, 3);
  const auto theirs = ask_peer("addr2line -afiC -e " + file, addresses, path("questions"));
  const auto ours = ask(file, addresses);
  ASSERT_EQ(theirs.size(), ours.size());
  // binutils names the functions of inlined frames without their parameters and differs in some
  // end-of-sequence lines: the outermost file and line are compared.
  size_t compared = 0, same = 0;
  for (size_t i = 0; i < ours.size(); ++i) {
    const Lines peer = normal(theirs[i]);
    if (peer.empty() || ours[i].empty() || peer.back().line == 0) continue;
    ++compared;
    if (peer.back().file == ours[i].back().file && peer.back().line == ours[i].back().line) ++same;
  }
  EXPECT_GT(compared, 100U);
  EXPECT_GT(same * 100, compared * 97);
}

TEST_F(Compiled, SeparateDebugFile) {
  const std::string whole = compile("-O2 -g -Wl,--build-id", "whole");
  shell("objcopy --only-keep-debug whole debug && strip -o stripped whole");
  expect_as_peer(path("stripped"), path("debug"), whole);
}

TEST_F(Compiled, DebugFileOfAnotherBuildIsLeftAside) {
  const std::string file = compile("-O2 -g -Wl,--build-id=0x11", "one");
  compile("-O1 -g -DOTHER -Wl,--build-id=0x22", "two");
  shell("objcopy --only-keep-debug two debug && strip -g one");
  const std::vector<uint64_t> main_address{address_of(file, "main")};
  EXPECT_EQ(ask(file, main_address, path("debug"), "11")[0].at(0).line, 0U);
  EXPECT_EQ(ask(file, main_address, path("debug"), "11")[0].at(0).function, "main");
  // And where the ids agree it is taken.
  compile("-O2 -g -Wl,--build-id=0x11", "same");
  shell("objcopy --only-keep-debug same debug2");
  EXPECT_NE(ask(file, main_address, path("debug2"), "11")[0].at(0).line, 0U);
}

TEST_F(Compiled, SymbolTableOnly) {
  const std::string file = compile("-O2");
  expect_as_peer(file);
  const auto lines = ask(file, {address_of(file, "_ZN5outer5inner4textB5cxx11Ei") + 5});
  ASSERT_EQ(lines[0].size(), 1U);
  EXPECT_EQ(lines[0][0].function, "outer::inner::text[abi:cxx11](int)");
  EXPECT_EQ(lines[0][0].file, "");
}

TEST_F(Compiled, DynamicSymbolsOnly) {
  shell("g++ -std=c++20 -O2 -shared -fPIC -o library.so " + program("inlines.cpp"));
  const uint64_t address = address_of(path("library.so"), "plain_c");
  shell("strip library.so");
  EXPECT_EQ(ask(path("library.so"), {address + 2})[0].at(0).function, "plain_c");
}

TEST_F(Compiled, MiniDebugInfo) {
  if (!have("xz")) GTEST_SKIP() << "no xz here";
  const std::string file = compile("-O2 -rdynamic");
  const uint64_t address = address_of(file, "_ZL11file_statici");
  ASSERT_NE(address, 0U);
  // As a distribution builds it: a symbols-only file, compressed, in a section of the stripped program.
  shell(
      "objcopy --only-keep-debug program mini && xz -k mini && strip program && "
      "objcopy --add-section .gnu_debugdata=mini.xz program");
  EXPECT_EQ(ask(file, {address + 1})[0].at(0).function, "file_static(int)");
}

TEST_F(Compiled, LocalCxxFunctionGetsItsWholeName) {
  const std::string file = compile("-O2 -g");
  const uint64_t address = address_of(file, "_ZN12_GLOBAL__N_110local_onlyEi");
  ASSERT_NE(address, 0U);
  const auto lines = ask(file, {address});
  EXPECT_EQ(lines[0].back().function, "(anonymous namespace)::local_only(int)");
  EXPECT_NE(lines[0].back().line, 0U);
}

TEST_F(Compiled, Rust) {
  if (!have("rustc")) GTEST_SKIP() << "no rustc here";
  for (const char* const mangling : {"legacy", "v0"}) {
    shell(std::string("rustc -C opt-level=2 -g -C symbol-mangling-version=") + mangling +
          " -A warnings -o program " + program("names.rs") +
          " || RUSTC_BOOTSTRAP=1 rustc -C opt-level=2 -g -Z "
          "unstable-options -C symbol-mangling-version=" +
          mangling + " -A warnings -o program " + program("names.rs"));
    auto image = elf::Image::open(path("program"));
    ASSERT_TRUE(image);
    std::vector<uint64_t> addresses;
    for (const elf::Symbol& symbol : image->symbols()) {
      const std::string_view name = symbol.name;
      if (name.find("names") != name.npos) addresses.push_back(symbol.address);
    }
    ASSERT_GE(addresses.size(), 4U) << mangling;
    std::string all;
    for (const Lines& lines : ask(path("program"), addresses)) {
      ASSERT_FALSE(lines.empty());
      EXPECT_NE(lines.back().line, 0U);
      all += lines.back().function + "\n";
    }
    EXPECT_NE(all.find("names::geometry::double\n"), std::string::npos) << all;
    EXPECT_NE(all.find("<names::Square<u64> as names::Shape>::area\n"), std::string::npos) << all;
    EXPECT_NE(all.find("names::main\n"), std::string::npos) << all;
    EXPECT_EQ(all.find("$"), std::string::npos) << all;
    EXPECT_EQ(all.find("::h"), std::string::npos) << all;
  }
}

// Where nothing has a name, code is known by the start of its function: the whole file's symbols say where
// that is.
TEST_F(Compiled, UnnamedFunctionsGoByTheirStart) {
  const std::string file = compile("-O1 -fno-inline -no-pie");
  const uint64_t start = address_of(file, "plain_c");
  ASSERT_NE(start, 0U);
  shell("strip -o stripped " + file);
  std::ostringstream expected;
  expected << "[lib.so+0x" << std::hex << start << "]";
  Symbolizer symbolizer;
  File stripped{path("stripped"), "", "", "lib.so"};
  const auto named = symbolizer.symbolize(stripped, std::vector<uint64_t>{start, start + 3});
  ASSERT_EQ(named[0].size(), 1U);
  EXPECT_EQ(named[0][0].function, expected.str());
  EXPECT_EQ(named[1][0].function, expected.str());
  stripped.name.clear();
  EXPECT_TRUE(symbolizer.symbolize(stripped, std::vector<uint64_t>{start})[0].empty());
}

TEST_F(Compiled, AddressesOutsideAnyFunction) {
  const std::string file = compile("-O2 -g");
  const std::vector<uint64_t> outside{0, 1, 0x7fffffffffff, ~uint64_t{0}};
  for (const Lines& lines : ask(file, outside)) EXPECT_TRUE(lines.empty()) << text(lines);
}

TEST_F(Compiled, AnyOrderAndRepeatsGiveTheSame) {
  const std::string file = compile("-O2 -g");
  const std::vector<uint64_t> sorted = text_addresses(file, 7);
  std::vector<uint64_t> backwards(sorted.rbegin(), sorted.rend());
  backwards.insert(backwards.end(), sorted.begin(), sorted.end());
  Symbolizer symbolizer;
  const auto once = symbolizer.symbolize({file, "", ""}, sorted);
  const auto again = symbolizer.symbolize({file, "", ""}, backwards);
  ASSERT_EQ(again.size(), 2 * once.size());
  for (size_t i = 0; i < once.size(); ++i) {
    EXPECT_EQ(text(once[i]), text(again[once.size() - 1 - i]));
    EXPECT_EQ(text(once[i]), text(again[once.size() + i]));
  }
}

TEST_F(Compiled, ReplacedFileIsReadAnew) {
  const std::string file = compile("-O2 -g", "one");
  compile("-O0 -g", "two");
  Symbolizer symbolizer;
  const std::vector<uint64_t> before{address_of(file, "plain_c")};
  EXPECT_EQ(symbolizer.symbolize({file, "", ""}, before)[0].back().function, "plain_c");
  shell("mv two one");
  const std::vector<uint64_t> after{address_of(file, "plain_c")};
  EXPECT_NE(before, after);
  EXPECT_EQ(symbolizer.symbolize({file, "", ""}, after)[0].back().function, "plain_c");
}

TEST_F(Compiled, MoreFilesThanStayOpen) {
  Symbolizer symbolizer;
  const std::string file = compile("-O2 -g");
  const std::vector<uint64_t> address{address_of(file, "plain_c")};
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 20; ++i) {
      const std::string copy = path("copy" + std::to_string(i));
      if (round == 0) std::filesystem::copy_file(file, copy);
      EXPECT_EQ(symbolizer.symbolize({copy, "", ""}, address)[0].back().function, "plain_c");
    }
  }
}

}  // namespace
}  // namespace clew::symbolize
