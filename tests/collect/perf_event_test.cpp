#include "collect/perf/perf_event.hpp"

#include <gtest/gtest.h>

#include <cerrno>

namespace clew::collect::perf {
namespace {

TEST(PerfEvent, CpuLists) {
  EXPECT_EQ(parse_cpu_list("0"), (std::vector<int>{0}));
  EXPECT_EQ(parse_cpu_list("0-3,8,10-11\n"), (std::vector<int>{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_TRUE(parse_cpu_list("").empty());
  EXPECT_EQ(parse_cpu_list("x,5,3-,-2"), (std::vector<int>{5}));
  EXPECT_LE(parse_cpu_list("0-2000000000").size(), 65536u);
}

TEST(PerfEvent, TheErrorSaysWhatToDo) {
  EXPECT_NE(explain_open_error(EACCES, 0, false).find("sysctl kernel.perf_event_paranoid=2"),
            std::string::npos);
  EXPECT_NE(explain_open_error(EACCES, 77, false).find("process 77"), std::string::npos);
  EXPECT_NE(explain_open_error(EACCES, 0, true).find("CAP_PERFMON"), std::string::npos);
  EXPECT_NE(explain_open_error(ESRCH, 77, false).find("no process 77"), std::string::npos);
  EXPECT_NE(explain_open_error(EMFILE, 0, false).find("ulimit -n"), std::string::npos);
}

}  // namespace
}  // namespace clew::collect::perf
