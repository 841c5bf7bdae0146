/* Coroutines switched by assembly of our own that carries CFI; a coroutine's first frame is declared
 * outermost there. */
#include "burn.h"

enum { kCoroutines = 4, kStackBytes = 64 * 1024 };

/* coroasm_switch.S */
void coroutine_switch(void** save_sp, void* load_sp);
void coroutine_entry(void);

static void* scheduler_sp;
static void* coroutine_sp[kCoroutines];
static volatile uint64_t sink;

static LEVEL void coroutine_leaf(int which) {
  sink += burn(20000);
  coroutine_switch(&coroutine_sp[which], scheduler_sp);
  sink += burn(20000);
}
LEVEL void coroutine_body(int which) {
  for (;;) coroutine_leaf(which);
}
static LEVEL void resume(int which) {
  coroutine_switch(&scheduler_sp, coroutine_sp[which]);
  sink += burn(5000);
}

int main(int argc, char** argv) {
  read_budget(argc, argv);
  for (int i = 0; i < kCoroutines; i++) {
    char* stack = malloc(kStackBytes);
    uint64_t* top = (uint64_t*)(((uintptr_t)stack + kStackBytes) & ~(uintptr_t)15);
    /* What coroutine_switch pops: r15 r14 r13 r12 rbx rbp, then returns to. */
    *--top = 0;
    *--top = (uint64_t)(uintptr_t)coroutine_entry + 1; /* behind its nop */
    *--top = 0;                                        /* rbp */
    *--top = (uint64_t)i;                              /* rbx: the coroutine's number */
    for (int saved = 0; saved < 4; saved++) *--top = 0;
    coroutine_sp[i] = top;
  }
  while (time_left())
    for (int i = 0; i < kCoroutines; i++)
      for (int turn = 0; turn < TIMES(10); turn++) resume(i);
  return 0;
}
