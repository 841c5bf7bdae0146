#include "collect/perf/process_tree.hpp"

#include <gtest/gtest.h>

namespace clew::collect::perf {
namespace {

Task task(uint32_t pid, uint32_t ppid, uint32_t tid, uint32_t ptid) { return {pid, ppid, tid, ptid}; }

Comm name(uint32_t pid, uint32_t tid, std::string_view text, bool exec) { return {pid, tid, text, exec}; }

Mmap2 mapping(uint32_t pid, uint64_t address) {
  Mmap2 record = {};
  record.pid = pid;
  record.tid = pid;
  record.address = address;
  record.length = 0x1000;
  record.protection = 5;
  return record;
}

process::Mapping anonymous(uint64_t address) {
  process::Mapping mapping;
  mapping.start = address;
  mapping.end = address + 0x1000;
  mapping.executable = true;
  return mapping;
}

// Numbers that no process of this machine has: the largest PID is 4,194,304.
constexpr uint32_t kParent = 5'000'001, kChild = 5'000'002, kThread = 5'000'003;

class ProcessTreeTest : public testing::Test {
 protected:
  void map(uint32_t pid, uint64_t address, uint64_t time_ns = 1) {
    tree_.map(mapping(pid, address), anonymous(address), time_ns);
  }
  bool mapped(uint32_t pid, uint64_t address) {
    Process* process = tree_.find(static_cast<pid_t>(pid));
    return process != nullptr && process->space && process->space->find(address) != nullptr;
  }
  ProcessTree tree_;
};

TEST_F(ProcessTreeTest, AForkedChildSharesMappingsUntilEitherChangesThem) {
  tree_.comm(name(kParent, kParent, "parent", true));
  map(kParent, 0x1000);
  tree_.fork(task(kChild, kParent, kChild, kParent));
  EXPECT_TRUE(mapped(kChild, 0x1000));
  EXPECT_EQ(tree_.find(kChild)->space, tree_.find(kParent)->space);
  EXPECT_EQ(tree_.comm(kChild, kChild), "parent");

  map(kChild, 0x5000);
  EXPECT_FALSE(mapped(kParent, 0x5000));
  map(kParent, 0x9000);
  EXPECT_FALSE(mapped(kChild, 0x9000));
  EXPECT_TRUE(mapped(kChild, 0x1000));
}

TEST_F(ProcessTreeTest, AnExecLeavesNothingOfTheOldProgram) {
  tree_.comm(name(kParent, kParent, "parent", true));
  map(kParent, 0x1000);
  tree_.fork(task(kChild, kParent, kChild, kParent));
  tree_.comm(name(kChild, kChild, "child", true));
  EXPECT_FALSE(mapped(kChild, 0x1000));
  EXPECT_TRUE(mapped(kParent, 0x1000));
  EXPECT_EQ(tree_.comm(kChild, kChild), "child");
  EXPECT_EQ(tree_.comm(kParent, kParent), "parent");
}

TEST_F(ProcessTreeTest, ANameAloneIsNoExec) {
  tree_.comm(name(kParent, kParent, "parent", true));
  map(kParent, 0x1000);
  tree_.comm(name(kParent, kParent, "renamed", false));
  EXPECT_TRUE(mapped(kParent, 0x1000));
}

TEST_F(ProcessTreeTest, AProcessIsForgottenWithItsLastThreadAndNotAtOnce) {
  tree_.comm(name(kParent, kParent, "parent", true));
  tree_.fork(task(kParent, kParent, kThread, kParent));
  map(kParent, 0x1000);
  tree_.exit(task(kParent, 1, kParent, 1), 100);
  tree_.forget_ended(1000);
  EXPECT_TRUE(mapped(kParent, 0x1000));  // the leader is gone, a thread goes on
  tree_.exit(task(kParent, 1, kThread, 1), 2000);
  tree_.forget_ended(2000);
  EXPECT_TRUE(mapped(kParent, 0x1000));  // a record from before the exit may still come
  tree_.forget_ended(2001);
  EXPECT_EQ(tree_.size(), 0u);
}

TEST_F(ProcessTreeTest, ANumberThatIsUsedAgainIsNotForgotten) {
  tree_.comm(name(kParent, kParent, "parent", true));
  tree_.fork(task(kChild, kParent, kChild, kParent));
  tree_.exit(task(kChild, kParent, kChild, kParent), 100);
  tree_.fork(task(kChild, kParent, kChild, kParent));
  tree_.forget_ended(1000);
  EXPECT_NE(tree_.find(kChild), nullptr);
}

TEST_F(ProcessTreeTest, AnExecThatEndsSamplingIsNamed) {
  tree_.comm(name(kParent, kParent, "sudo", true));
  tree_.exit(task(kParent, 1, kParent, 1), 100);
  const std::vector<std::string> notes = tree_.take_notes();
  ASSERT_EQ(notes.size(), 1u);
  EXPECT_NE(notes[0].find("sudo"), std::string::npos);
  EXPECT_NE(notes[0].find("setuid"), std::string::npos);
}

TEST_F(ProcessTreeTest, AnOrdinaryExitIsNotNamed) {
  tree_.comm(name(kParent, kParent, "true", true));
  map(kParent, 0x1000);
  tree_.exit(task(kParent, 1, kParent, 1), 100);
  EXPECT_TRUE(tree_.take_notes().empty());
}

TEST_F(ProcessTreeTest, ARunningProcessIsReadFromProcAndOlderRecordsSayNothingNew) {
  const pid_t self = getpid();
  tree_.adopt(self);
  const auto here = reinterpret_cast<uint64_t>(&task);
  EXPECT_TRUE(mapped(static_cast<uint32_t>(self), here));
  map(static_cast<uint32_t>(self), 0x1000, 1);  // long before it was read
  EXPECT_FALSE(mapped(static_cast<uint32_t>(self), 0x1000));
  map(static_cast<uint32_t>(self), 0x1000, UINT64_MAX);
  EXPECT_TRUE(mapped(static_cast<uint32_t>(self), 0x1000));
}

TEST_F(ProcessTreeTest, AProcessThatIsGoneIsKnownWithoutMappings) {
  tree_.adopt(kParent);
  ASSERT_NE(tree_.find(kParent), nullptr);
  EXPECT_FALSE(mapped(kParent, 0x1000));
  EXPECT_FALSE(tree_.refresh(kParent));
}

}  // namespace
}  // namespace clew::collect::perf
