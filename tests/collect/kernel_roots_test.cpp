// Where the kernel's own stacks begin.
#include "collect/perf/kernel_roots.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

namespace clew::collect::perf {
namespace {

KernelRoots roots_of(const std::string& text) {
  const std::string path = testing::TempDir() + "/kallsyms." + std::to_string(getpid());
  std::ofstream(path) << text;
  const KernelRoots roots = KernelRoots::load(path);
  std::filesystem::remove(path);
  return roots;
}

TEST(KernelRoots, AreTheEntryTextAndWhatBeginsTasks) {
  const KernelRoots roots = roots_of(
      "ffffffff81000000 T _stext\n"
      "ffffffff81000010 T __entry_text_start\n"
      "ffffffff81000080 T entry_SYSCALL_64\n"
      "ffffffff81001a87 T __entry_text_end\n"
      "ffffffff81249130 t before\n"
      "ffffffff81249140 T ret_from_fork_asm\n"
      "ffffffff81249140 T alias\n"
      "ffffffff81249170 t after\n"
      "ffffffff82263000 T asm_fred_entrypoint_user\n"
      "ffffffff82263100 t behind\n");
  EXPECT_TRUE(roots.known());
  for (const uint64_t root :
       {0xffffffff81000010u, 0xffffffff81000080u, 0xffffffff81001a86u, 0xffffffff81249140u,
        0xffffffff8124916fu, 0xffffffff82263000u, 0xffffffff822630ffu})
    EXPECT_TRUE(roots.contains(root)) << std::hex << root;
  for (const uint64_t other : {0xffffffff8100000fu, 0xffffffff81001a87u, 0xffffffff81249130u,
                               0xffffffff81249170u, 0xffffffff82263100u})
    EXPECT_FALSE(roots.contains(other)) << std::hex << other;
}

TEST(KernelRoots, TellTheSchedulersFunction) {
  const KernelRoots roots = roots_of(
      "ffffffff82263000 t __schedule\nffffffff82263000 t alias\n"
      "ffffffff82263800 T schedule\n");
  EXPECT_TRUE(roots.in_schedule(0xffffffff82263000));
  EXPECT_TRUE(roots.in_schedule(0xffffffff822637ff));
  EXPECT_FALSE(roots.in_schedule(0xffffffff82262fff));
  EXPECT_FALSE(roots.in_schedule(0xffffffff82263800));
  EXPECT_FALSE(roots_of("").in_schedule(0));
}

TEST(KernelRoots, AreNotKnownWhereAddressesAreHiddenOrTheListIsDamaged) {
  EXPECT_FALSE(roots_of("0000000000000000 T __entry_text_start\n"
                        "0000000000000000 T __entry_text_end\n"
                        "0000000000000000 T ret_from_fork_asm\n")
                   .known());
  EXPECT_FALSE(roots_of("").known());
  EXPECT_FALSE(roots_of("ffffffff81000010\nffffffff81000010 \nzz T __entry_text_start\n"
                        "ffffffff81001a87 T __entry_text_end\nfffffffffffffffffffffffff T ret_from_fork\n")
                   .known());
  // A function that nothing ends holds nothing.
  EXPECT_FALSE(roots_of("ffffffff81249140 T ret_from_fork_asm\n").contains(0xffffffff81249140));
}

TEST(KernelRoots, OfThisKernelHoldItsSystemCallEntry) {
  std::ifstream symbols("/proc/kallsyms");
  std::string address, type, name;
  uint64_t entry = 0, elsewhere = 0;
  while (symbols >> address >> type >> name) {
    if (name == "entry_SYSCALL_64") entry = std::stoull(address, nullptr, 16);
    if (name == "do_syscall_64") elsewhere = std::stoull(address, nullptr, 16);
    symbols.ignore(1024, '\n');
  }
  if (entry == 0) GTEST_SKIP() << "the kernel hides its addresses";
  const KernelRoots roots = KernelRoots::load();
  EXPECT_TRUE(roots.contains(entry + 1));
  EXPECT_FALSE(roots.contains(elsewhere + 1));
}

}  // namespace
}  // namespace clew::collect::perf
