// "Does a call precede this?", judged by objdump over whole programs.
#include <gtest/gtest.h>

#include "analysis/analysis.hpp"
#include "support.hpp"

namespace clew::analysis::test {
namespace {

TEST(CallPrecedes, EveryEncoding) {
  for (auto call : {bytes({0xe8, 1, 2, 3, 4}),                    // call rel32
                    bytes({0x67, 0xe8, 1, 2, 3, 4}),              // addr32 call (relaxed TLS and GOT calls)
                    bytes({0x66, 0x66, 0x48, 0xe8, 1, 2, 3, 4}),  // data16 data16 rex.W call (__tls_get_addr)
                    bytes({0xf2, 0xe8, 1, 2, 3, 4}),              // bnd call
                    bytes({0xff, 0xd0}),                          // call rax
                    bytes({0x41, 0xff, 0xd7}),                    // call r15
                    bytes({0x3e, 0xff, 0xd0}),                    // notrack call rax
                    bytes({0xff, 0x10}),                          // call [rax]
                    bytes({0x65, 0xff, 0x10}),                    // call gs:[rax]
                    bytes({0xff, 0x14, 0x24}),                    // call [rsp]
                    bytes({0x41, 0xff, 0x14, 0xc4}),              // call [r12 + rax * 8]
                    bytes({0xff, 0x50, 0x18}),                    // call [rax + 24]
                    bytes({0xff, 0x54, 0x24, 0x08}),              // call [rsp + 8]
                    bytes({0xff, 0x90, 1, 2, 3, 4}),              // call [rax + disp32]
                    bytes({0xff, 0x15, 1, 2, 3, 4}),              // call [rip + disp32]
                    bytes({0xff, 0x94, 0x24, 1, 2, 3, 4}),        // call [rsp + disp32]
                    bytes({0xff, 0x14, 0xc5, 1, 2, 3, 4}),        // call [rax * 8 + disp32]
                    bytes({0x42, 0xff, 0x14, 0x25, 1, 2, 3, 4})}) {  // call [r12 * 1 + disp32]
    EXPECT_TRUE(call_precedes(call)) << call.size() << " bytes, opcode "
                                     << std::to_integer<unsigned>(call[0]);
    std::vector<std::byte> longer(16 - call.size(), std::byte{0x90});
    longer.insert(longer.end(), call.begin(), call.end());
    EXPECT_TRUE(call_precedes(longer));
    EXPECT_FALSE(call_precedes(std::span(call).first(call.size() - 1)));
  }
}

TEST(CallPrecedes, NotWhatIsNoNearCall) {
  EXPECT_FALSE(call_precedes({}));
  for (auto code : {bytes({0x0f, 0x05}),        // syscall
                    bytes({0xff, 0xe0}),        // jmp rax
                    bytes({0xff, 0x18}),        // call far [rax]
                    bytes({0xff, 0xd8}),        // invalid
                    bytes({0xe9, 1, 2, 3, 4}),  // jmp
                    bytes({0xff, 0x34, 0x24}),  // push [rsp]
                    bytes({0x48, 0xc7, 0xc0, 0x0f, 0, 0, 0, 0x0f, 0x05})}) {
    EXPECT_FALSE(call_precedes(code));
  }
}

class CallPrecedesJudged : public ::testing::TestWithParam<const char*> {};

TEST_P(CallPrecedesJudged, FindsEveryCallThatObjdumpShows) {
  std::string path = GetParam();
  if (!exists(path) || !have("objdump")) GTEST_SKIP() << path << " or objdump is not installed";
  auto text = section(path, ".text");
  ASSERT_TRUE(text);
  uint64_t calls = 0, missed = 0, others = 0, false_positives = 0;
  bool was_call = false, any = false;
  lines_of("objdump -d -w --no-show-raw-insn -j .text " + path, [&](const char* line) {
    char* end = nullptr;
    uint64_t address = std::strtoull(line, &end, 16);
    if (end == line || *end != ':' || end[1] != '\t') return;
    if (any) {
      size_t at = address - text->address;
      size_t back = std::min<size_t>(at, 16);
      bool precedes = call_precedes(std::span(text->bytes).subspan(at - back, back));
      if (was_call) {
        ++calls;
        missed += !precedes;
      } else {
        ++others;
        false_positives += precedes;
      }
    }
    any = true;
    std::string rest = end + 2;
    size_t call = rest.find("call");
    was_call = call != std::string::npos && rest.find("lcall") == std::string::npos &&
               rest.find("syscall") == std::string::npos && rest.find_first_of("<#") > call;
  });
  std::printf("%s: %lu of %lu calls missed; %lu of %lu other instructions seem to be calls\n", path.c_str(),
              missed, calls, false_positives, others);
  EXPECT_GT(calls, 500u);
  EXPECT_EQ(missed, 0u);
}

INSTANTIATE_TEST_SUITE_P(Libraries, CallPrecedesJudged, ::testing::Values(kLibc, kLoader, kLibstdcxx));

}  // namespace
}  // namespace clew::analysis::test
