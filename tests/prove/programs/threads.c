/* Threads that return, exit from deep within, are cancelled, and have something to clean up. */
#define _GNU_SOURCE
#include "features.h"

#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

static pthread_key_t key;
static sem_t begun;

OWN static void work(uint64_t n) {
  volatile char room[64];
  room[n % 64] = 1;
  __atomic_fetch_add(&sink, (uint64_t)room[n % 64], __ATOMIC_RELAXED);
}
static void clean(void* value) { work((uint64_t)(uintptr_t)value); }
static void* returns(void* argument) {
  pthread_setspecific(key, argument);
  work(3);
  return argument;
}
OWN static void exit_deep(int n) {
  if (n == 0) pthread_exit(NULL);
  exit_deep(n - 1);
  work(1);
}
static void* exits(void* argument) {
  pthread_cleanup_push(clean, argument);
  exit_deep(4);
  pthread_cleanup_pop(0);
  return argument;
}
static void* is_cancelled(void* argument) {
  pthread_cleanup_push(clean, argument);
  sem_post(&begun);
  for (;;) pause();
  pthread_cleanup_pop(0);
  return argument;
}

void run_threads(void) {
  pthread_t thread;
  char value;
  pthread_key_create(&key, clean);
  sem_init(&begun, 0, 0);
  pthread_create(&thread, NULL, returns, &value);
  pthread_join(thread, NULL);
  pthread_create(&thread, NULL, exits, &value);
  pthread_join(thread, NULL);
  pthread_create(&thread, NULL, is_cancelled, &value);
  sem_wait(&begun);
  pthread_cancel(thread);
  pthread_join(thread, NULL);
  sem_destroy(&begun);
  pthread_key_delete(key);
}
