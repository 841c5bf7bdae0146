/* vfork: the child burns on the parent's stack, below a frame of libc whose return address is in a register.
 */
#define _DEFAULT_SOURCE
#include "burn.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

static volatile uint64_t sink;

static LEVEL void vfork_leaf(void) {
  sink += burn(2000000);
  AFTER_CALL;
}
static LEVEL void vfork_start(void) {
  pid_t child = vfork();
  if (child == 0) {
    vfork_leaf();
    _exit(0);
  }
  waitpid(child, NULL, 0);
}
static LEVEL void vfork_many(void) {
  for (int i = 0; i < TIMES(100); i++) {
    pid_t child = vfork();
    if (child == 0) _exit(0);
    waitpid(child, NULL, 0);
  }
}
static LEVEL double all_seconds(void) {
  struct rusage children;
  getrusage(RUSAGE_CHILDREN, &children);
  return cpu_seconds() + (double)children.ru_utime.tv_sec + (double)children.ru_utime.tv_usec * 1e-6;
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  do {
    for (uint64_t i = 0; i < (uint64_t)TIMES(20); i++) vfork_start();
    vfork_many();
  } while (all_seconds() < budget_s);
  return 0;
}
