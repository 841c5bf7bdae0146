/* Starts about 20 processes a second, one after another: every second one is this program executed anew, the
 * others are forks that go on in the parent's mappings. Each burns 30 ms of CPU. */
#include "burn.h"

#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

extern char** environ;
static volatile uint64_t sink;
static const double kChildSeconds = 0.03;

static LEVEL void storm_leaf(void) {
  sink += burn(20000);
  AFTER_CALL;
}
static LEVEL void executed_child(void) {
  while (time_left()) storm_leaf();
}
static LEVEL void forked_child(void) {
  budget_s = kChildSeconds;
  while (time_left()) storm_leaf();
}
static LEVEL void start_fork(void) {
  pid_t child = fork();
  if (child == 0) {
    forked_child();
    _exit(0);
  }
  waitpid(child, NULL, 0);
}
static LEVEL void start_exec(void) {
  char* arguments[] = {"storm", "0.03", "child", NULL};
  pid_t child;
  if (posix_spawn(&child, "/proc/self/exe", NULL, NULL, arguments, environ) == 0) waitpid(child, NULL, 0);
}
static LEVEL double children_seconds(void) {
  struct rusage usage;
  getrusage(RUSAGE_CHILDREN, &usage);
  return (double)usage.ru_utime.tv_sec + (double)usage.ru_utime.tv_usec * 1e-6;
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  if (argc > 2) {
    executed_child();
    return 0;
  }
  while (children_seconds() < budget_s) {
    start_fork();
    usleep(15000);
    start_exec();
    usleep(15000);
  }
  return 0;
}
