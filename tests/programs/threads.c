/* Threads that start, work for a few milliseconds and exit, four at a time; the starter works too. */
#include "burn.h"

#include <pthread.h>

static volatile uint64_t sink;

static LEVEL void thread_leaf(uint64_t rounds) {
  sink += burn(rounds);
  AFTER_CALL;
}
static LEVEL void* thread_body(void* argument) {
  for (int i = 0; i < TIMES(100); i++) thread_leaf(20000);
  return argument;
}
static LEVEL void starter_leaf(void) {
  sink += burn(20000);
  AFTER_CALL;
}
static LEVEL void start_threads(void) {
  pthread_t threads[4];
  for (int i = 0; i < 4; i++) pthread_create(&threads[i], NULL, thread_body, NULL);
  starter_leaf();
  for (int i = 0; i < 4; i++) pthread_join(threads[i], NULL);
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  while (time_left()) start_threads();
  return 0;
}
