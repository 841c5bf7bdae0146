// Where in its frame is code that nothing describes?
#include <gtest/gtest.h>

#include "analysis/analysis.hpp"
#include "judge.hpp"

namespace clew::analysis::test {
namespace {

// Each instruction's bytes and the rule expected there, as text() writes it.
struct Step {
  std::initializer_list<unsigned> code;
  const char* rule;
};

void expect_rules(std::initializer_list<Step> steps) {
  std::vector<std::byte> code;
  std::vector<size_t> starts;
  for (const Step& step : steps) {
    starts.push_back(code.size());
    for (unsigned byte : step.code) code.push_back(static_cast<std::byte>(byte));
  }
  size_t i = 0;
  for (const Step& step : steps) {
    EXPECT_EQ(text(rule_at(code, starts[i])), step.rule) << "instruction " << i << " at offset " << starts[i];
    ++i;
  }
}

TEST(RuleAt, FramePointerFunction) {
  expect_rules({{{0xf3, 0x0f, 0x1e, 0xfa}, "rsp+8"},      // endbr64
                {{0x55}, "rsp+8"},                        // push rbp
                {{0x48, 0x89, 0xe5}, "rsp+16 rbp c-16"},  // mov rbp, rsp
                {{0x48, 0x83, 0xec, 0x10}, "none"},       // sub rsp, 16
                {{0xe8, 0, 0, 0, 0}, "none"},             // call
                {{0xb8, 0, 0, 0, 0}, "rbp+16 rbp c-16"},  // mov eax, 0; leave is ahead
                {{0xc9}, "rbp+16 rbp c-16"},              // leave
                {{0xc3}, "rsp+8"}});                      // ret
}

TEST(RuleAt, EpilogueOfPops) {
  expect_rules({{{0x48, 0x83, 0xc4, 0x18}, "rsp+48 rbp c-16"},  // add rsp, 24
                {{0x5b}, "rsp+24 rbp c-16"},                    // pop rbx
                {{0x5d}, "rsp+16 rbp c-16"},                    // pop rbp
                {{0xc2, 0x10, 0x00}, "rsp+8"}});                // ret 16
}

TEST(RuleAt, EpilogueThroughTheFramePointer) {
  expect_rules({{{0x48, 0x8d, 0x65, 0xf0}, "rbp+16 rbp c-16"},  // lea rsp, [rbp - 16]
                {{0x5b}, "rsp+32 rbp c-16"},                    // pop rbx
                {{0x41, 0x5c}, "rsp+24 rbp c-16"},              // pop r12
                {{0x5d}, "rsp+16 rbp c-16"},                    // pop rbp
                {{0xc3}, "rsp+8"}});
}

TEST(RuleAt, TailCall) {
  expect_rules({{{0xc9}, "rbp+16 rbp c-16"},     // leave
                {{0xe9, 0, 0, 0, 0}, "none"}});  // jmp: rsp + 8, but nothing here says so
  // gcc pops stack arguments into dead registers: behind a call, pop rbx; pop rbp; jmp is no epilogue.
  expect_rules({{{0x5b}, "none"}, {{0x5d}, "none"}, {{0xe9, 0, 0, 0, 0}, "none"}});
  expect_rules({{{0xff, 0xe0}, "none"}});  // jmp rax
}

// V8's optimised code checks for deoptimization before it builds its frame.
TEST(RuleAt, V8Prologue) {
  expect_rules({{{0x8b, 0x59, 0xf4}, "rsp+8"},            // mov ebx, [rcx - 12]
                {{0xf6, 0x43, 0x1a, 0x20}, "rsp+8"},      // test byte [rbx + 26], 32
                {{0x0f, 0x85, 0, 1, 0, 0}, "rsp+8"},      // jnz CompileLazyDeoptimizedCode
                {{0x55}, "rsp+8"},                        // push rbp
                {{0x48, 0x8b, 0xec}, "rsp+16 rbp c-16"},  // mov rbp, rsp
                {{0x56}, "none"},                         // push rsi
                {{0x57}, "none"},                         // push rdi
                {{0x48, 0x8b, 0xe5}, "rbp+16 rbp c-16"},  // mov rsp, rbp
                {{0x5d}, "rsp+16 rbp c-16"},              // pop rbp
                {{0xc2, 0x08, 0x00}, "rsp+8"}});          // ret 8
}

TEST(RuleAt, DotnetPrologue) {
  expect_rules({{{0x55}, "rsp+8"},                                    // push rbp
                {{0x41, 0x57}, "rsp+16 rbp c-16"},                    // push r15
                {{0x53}, "rsp+24 rbp c-16"},                          // push rbx
                {{0x48, 0x83, 0xec, 0x20}, "rsp+32 rbp c-16"},        // sub rsp, 32
                {{0x48, 0x8d, 0x6c, 0x24, 0x30}, "rsp+64 rbp c-16"},  // lea rbp, [rsp + 48]
                {{0x33, 0xc0}, "none"},                               // xor eax, eax
                {{0xe8, 0, 0, 0, 0}, "none"}});                       // call
}

// Arguments are pushed, and a pointer to a local among them is made in rbp.
TEST(RuleAt, PushedArgumentsAreNoPrologue) {
  expect_rules({{{0x48, 0x83, 0xec, 0x08}, "none"},                          // sub rsp, 8
                {{0x41, 0x52}, "none"},                                      // push r10
                {{0x48, 0x8d, 0xac, 0x24, 0xb0, 0x00, 0x00, 0x00}, "none"},  // lea rbp, [rsp + 176]
                {{0x55}, "none"},                                            // push rbp
                {{0xe8, 0, 0, 0, 0}, "none"}});                              // call
}

// A retpoline puts the target over the return address and returns to it.
TEST(RuleAt, RetpolineIsNoReturn) {
  expect_rules({{{0x4c, 0x89, 0x1c, 0x24}, "none"},  // mov [rsp], r11
                {{0xc3}, "rsp+8"}});
}

TEST(RuleAt, WhatIsNotVouchedFor) {
  expect_rules({{{0x48, 0x89, 0xe5}, "none"}, {{0x90}, "none"}});  // mov rbp, rsp without push rbp before it
  expect_rules({{{0x53}, "none"}, {{0x48, 0x89, 0xc3}, "none"}, {{0xcc}, "none"}});
  expect_rules(
      {{{0x41, 0x5a}, "none"}, {{0x48, 0x8d, 0x24, 0xcc}, "none"}, {{0x41, 0xff, 0xe2}, "none"}});  // jmp r10
  EXPECT_EQ(rule_at({}, 0), 0u);
  std::vector<std::byte> one = bytes({0xc3});
  EXPECT_EQ(rule_at(one, 1), 0u);
}

class RuleAtJudged : public ::testing::TestWithParam<const char*> {};

// Whatever it says of compiled code must be what the compiler says.
TEST_P(RuleAtJudged, AgreesWithEhFrame) {
  std::string path = GetParam();
  if (!exists(path) || !have("readelf")) GTEST_SKIP() << path << " or readelf is not installed";
  Score score;
  std::vector<std::string> wrong;
  judge_file(
      path, [](std::span<const std::byte> code, size_t at, clew_rule) { return rule_at(code, at); }, score,
      wrong);
  print(path, score, wrong);
  ASSERT_GT(score.instructions, 10000u);
  EXPECT_LT(percent(score, score.wrong), 0.1);
}

INSTANTIATE_TEST_SUITE_P(Libraries, RuleAtJudged,
                         ::testing::Values(kLibc, kLibcrypto, kLibstdcxx, kLoader, kGit, kPerl, kPython,
                                           kSqlite, kLibxml2));

// In code with frame pointers every instruction outside of the body has a rule: in the body the chain serves.
TEST(RuleAt, CoversWhereTheFramePointerDoesNotServe) {
  Scratch scratch;
  scratch.write(
      "a.c",
      "#include <string.h>\n"
      "int g(const char*, int*);\n"
      "int a(int x) { return x + 1; }\n"
      "int b(const char* s) { int n[9]; memset(n, 1, sizeof n); return g(s, n) + n[2]; }\n"
      "int c(const char* s, int n) { if (n < 2) return 7; int r = 0; for (int i = 0; i < n; ++i) r += "
      "b(s + i) * a(i); return r; }\n"
      "int d(const char* s, int n) { return c(s, n - 1) * c(s + 1, n) + d(s, n + 2) - n; }\n"
      "int e(const char* s) { int n[9]; g(s, n); return b(s); }\n");
  for (const char* compiler : {"gcc", "clang-19"}) {
    if (!have(compiler)) continue;
    std::string object = scratch / "a.so";
    std::string command = std::string(compiler) +
                          " -O2 -fno-omit-frame-pointer -fPIC -shared -nostdlib -fno-inline -o " + object +
                          " " + (scratch / "a.c");
    ASSERT_EQ(std::system(command.c_str()), 0);
    Score score;
    std::vector<std::string> wrong;
    uint64_t bare = 0, bare_answered = 0;
    auto rule_for = [&](std::span<const std::byte> code, size_t at, clew_rule by_flow) {
      clew_rule rule = rule_at(code, at);
      bool body = clew_rule_register(by_flow) == CLEW_RBP;
      if (clew_rule_kind(by_flow) != CLEW_CFA_NONE && !body) {
        ++bare;
        bare_answered += clew_rule_kind(rule) != CLEW_CFA_NONE;
      }
      return rule;
    };
    judge_file(object, rule_for, score, wrong);
    print(compiler, score, wrong);
    std::printf("%s: %lu of %lu instructions outside of bodies have a rule\n", compiler, bare_answered, bare);
    EXPECT_EQ(score.wrong, 0u);
    EXPECT_GE(score.functions, 5u);
    EXPECT_GT(bare, 10u);
    // Not: jumps behind pop rbp, and leaf code farther from its ret than rule_at looks.
    EXPECT_GT(bare_answered * 10, bare * 8);
  }
}

}  // namespace
}  // namespace clew::analysis::test
