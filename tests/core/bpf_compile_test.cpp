// The core stays within BPF's constraints: clang compiles it for that target, loops, stack and arguments
// included.
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cstdlib>
#include <string>

TEST(Core, CompilesForBpf) {
  const std::string command =
      "clang-19 -target bpf -mcpu=v3 -O2 -g -ffreestanding -Wall -Wextra -Werror -I" CLEW_SOURCE_DIR
      "/src -I" CLEW_SOURCE_DIR "/include -c " CLEW_SOURCE_DIR "/tests/core/walk.bpf.c -o /dev/null";
  if (std::system("clang-19 --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "clang-19 is not installed";
  EXPECT_EQ(std::system(command.c_str()), 0);
}

TEST(Core, IsFreestandingC) {
  const std::string command =
      "cc -std=c11 -O1 -ffreestanding -Wall -Wextra -Wpedantic -Wshadow -Werror -c -I" CLEW_SOURCE_DIR
      "/src -I" CLEW_SOURCE_DIR "/include " CLEW_SOURCE_DIR "/tests/core/walk_freestanding.c -o /dev/null";
  EXPECT_EQ(std::system(command.c_str()), 0);
}
