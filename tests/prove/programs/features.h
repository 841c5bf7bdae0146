/* The features of the program `features`, each a function that runs it briefly: clew-prove executes every instruction
 * singly. */
#ifndef CLEW_PROVE_FEATURES_H
#define CLEW_PROVE_FEATURES_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

void run_frames(void);
void run_recursion(void);
void run_jumps(void);
void run_signals(void);
void run_contexts(void);
void run_threads(void);
void run_indirect_functions(void);
void run_vdso(void);
void run_tails(void);
void run_by_hand(void);
void run_exceptions(void);
void run_interrupted(void);

/* Results go here, so that no compiler leaves the work out. */
extern volatile uint64_t sink;

#define OWN __attribute__((noinline))

#ifdef __cplusplus
}
#endif
#endif
