/* Runs from a file that no longer exists: copies itself, executes the copy, and the copy unlinks itself. With
 * the argument `memfd` the copy is an anonymous memory file instead. */
#define _GNU_SOURCE
#include "burn.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile uint64_t sink;

static LEVEL void deleted_leaf(void) {
  sink += burn(50000);
  AFTER_CALL;
}
static LEVEL void deleted_work(void) {
  volatile char room[777];
  room[sink % sizeof(room)] = 1;
  deleted_leaf();
  sink += (uint64_t)room[sink % sizeof(room)];
}

static LEVEL void copy_self(int out) {
  char buffer[8192];
  int in = open("/proc/self/exe", O_RDONLY);
  for (ssize_t n; (n = read(in, buffer, sizeof(buffer))) > 0;)
    if (write(out, buffer, (size_t)n) != n) _exit(3);
  close(in);
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  if (argc > 2 && strcmp(argv[2], "now") == 0) {
    if (argc > 3) unlink(argv[3]);
    while (time_left()) deleted_work();
    return 0;
  }
  if (argc > 2 && strcmp(argv[2], "memfd") == 0) {
    int fd = memfd_create("deleted", 0);
    copy_self(fd);
    char* again[] = {argv[0], argv[1], "now", NULL};
    fexecve(fd, again, environ);
    return 3;
  }
  char path[] = "/tmp/clew-deleted-XXXXXX";
  int fd = mkstemp(path);
  if (fd < 0) return 2;
  copy_self(fd);
  fchmod(fd, 0755);
  close(fd);
  char* again[] = {path, argc > 1 ? argv[1] : "2", "now", path, NULL};
  execv(path, again);
  return 3;
}
