/* What the example of docs/library.md looks at: inner, called by outer, called by main, waits. */
#include <stdio.h>
#include <unistd.h>

__attribute__((noipa)) void inner(void) {
  pause();
  __asm__ volatile("");
}
__attribute__((noipa)) void outer(void) {
  inner();
  __asm__ volatile("");
}
int main(void) {
  puts("ready");
  fflush(stdout);
  outer();
  return 0;
}
