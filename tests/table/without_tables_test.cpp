// Programs whose files have no unwind tables (Alpine's musl, stripped firmware): the same libraries, once as
// they are and once without .eh_frame, must be given the same rules, as far as any are given.
#include <gtest/gtest.h>

#include "elf/fixtures.hpp"
#include "table/table.hpp"

namespace clew::table {
namespace {

struct Agreement {
  uint64_t right = 0, wrong = 0, none = 0;  // bytes of code
};

/// Whether both rules find the same caller's frame where both find it by the stack pointer. By another
/// register they may agree without looking alike; compile_test and analysis/judge.hpp judge those.
bool contradict(clew_rule a, clew_rule b) {
  const bool by_rsp = clew_rule_kind(a) == CLEW_CFA_REG && clew_rule_kind(b) == CLEW_CFA_REG &&
                      clew_rule_register(a) == CLEW_RSP && clew_rule_register(b) == CLEW_RSP;
  const bool root = clew_rule_kind(b) == CLEW_CFA_ROOT && clew_rule_kind(a) != CLEW_CFA_ROOT;
  return root || (by_rsp && clew_rule_offset(a) != clew_rule_offset(b));
}

void compare(const std::string& path) {
  if (!std::filesystem::exists(path)) GTEST_SKIP() << path << " is not installed";
  test::TemporaryDirectory directory;
  const std::string bare = directory.file("bare");
  test::run("objcopy --remove-section=.eh_frame --remove-section=.eh_frame_hdr $(realpath " + path + ") " +
            bare);
  auto image = elf::Image::open(path);
  auto bare_image = elf::Image::open(bare);
  ASSERT_TRUE(image && bare_image);
  auto with = compile(*image);
  auto without = compile(*bare_image);
  ASSERT_TRUE(with && without);
  Agreement agreement;
  const auto rows = dump(**with);
  for (size_t i = 0; i + 1 < rows.size(); ++i) {
    if (clew_rule_kind(rows[i].rule) == CLEW_CFA_NONE) continue;
    for (uint64_t at = rows[i].address; at < rows[i + 1].address; ++at) {
      if (at == image->entry()) break;  // of a library: its banner's code
      const clew_rule rule = (*without)->lookup(at);
      if (clew_rule_kind(rule) == CLEW_CFA_NONE) {
        ++agreement.none;
      } else if (contradict(rows[i].rule, rule)) {
        ++agreement.wrong;
      } else {
        ++agreement.right;
      }
    }
  }
  const uint64_t all = agreement.right + agreement.wrong + agreement.none;
  EXPECT_GT(agreement.right * 100, all * 70) << agreement.right << " of " << all;
  EXPECT_LE(agreement.wrong * 1000, all) << agreement.wrong << " of " << all;
}

TEST(WithoutTables, Libc) { compare("/lib/x86_64-linux-gnu/libc.so.6"); }
TEST(WithoutTables, Libcrypto) { compare("/lib/x86_64-linux-gnu/libcrypto.so.3"); }
TEST(WithoutTables, Libstdcxx) { compare("/lib/x86_64-linux-gnu/libstdc++.so.6"); }
TEST(WithoutTables, Libsqlite) { compare("/lib/x86_64-linux-gnu/libsqlite3.so.0"); }
TEST(WithoutTables, Perl) { compare("/usr/bin/perl"); }

}  // namespace
}  // namespace clew::table
