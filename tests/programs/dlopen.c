/* Plugins loaded and unloaded in turn from one path, whose file is replaced meanwhile: three different
 * plugins, so that what is at an address, and what is at the path, changes. Each is called from a function of
 * its own, by name. */
#include "burn.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static volatile uint64_t sink;
static char folder[PATH_MAX], work[PATH_MAX];

/* Puts plugin `which` at the path that all of them are loaded from; the old file is unlinked by the rename.
 */
static LEVEL void replace_file(int which) {
  char from[2 * PATH_MAX], to[2 * PATH_MAX], path[2 * PATH_MAX], buffer[8192];
  snprintf(from, sizeof(from), "%s/plugin_%d.so", folder, which);
  snprintf(to, sizeof(to), "%s/new.so", work);
  snprintf(path, sizeof(path), "%s/plugin.so", work);
  int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0755);
  if (in < 0 || out < 0) _exit(3);
  for (ssize_t n; (n = read(in, buffer, sizeof(buffer))) > 0;)
    if (write(out, buffer, (size_t)n) != n) _exit(3);
  close(in);
  close(out);
  if (rename(to, path) != 0) _exit(3);
}
static LEVEL void* load(int which) {
  replace_file(which);
  char path[2 * PATH_MAX];
  snprintf(path, sizeof(path), "%s/plugin.so", work);
  void* plugin = dlopen(path, RTLD_NOW);
  if (plugin == NULL) _exit(4);
  return plugin;
}
static LEVEL uint64_t (*entry_of(void* plugin, const char* name))(double) {
  return (uint64_t (*)(double))dlsym(plugin, name);
}
#define TURN(N)                                                                     \
  static LEVEL void turn_##N(void) {                                                \
    void* plugin = load(N);                                                         \
    sink += entry_of(plugin, "plugin_entry_" #N)(budget_s == 0 ? 0 : TURN_SECONDS); \
    dlclose(plugin);                                                                \
  }
#define TURN_SECONDS 0.05 /* of CPU time: the busier the machine, the longer a plugin stays */
TURN(0)
TURN(1)
TURN(2)

int main(int argc, char** argv) {
  read_budget(argc, argv);
  char self[PATH_MAX];
  ssize_t length = readlink("/proc/self/exe", self, sizeof(self) - 1);
  if (length < 0) return 2;
  self[length] = 0;
  strcpy(folder, dirname(self));
  strcpy(work, "/tmp/clew-plugins-XXXXXX");
  if (mkdtemp(work) == NULL) return 2;
  while (time_left()) {
    turn_0();
    turn_1();
    turn_2();
  }
  char path[2 * PATH_MAX];
  snprintf(path, sizeof(path), "%s/plugin.so", work);
  unlink(path);
  rmdir(work);
  return 0;
}
