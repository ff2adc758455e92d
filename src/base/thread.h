/* Threads with small stacks, which fit a budget, and conditions with timed waits. */
#ifndef SHORE_BASE_THREAD_H
#define SHORE_BASE_THREAD_H

#include <pthread.h>

#define SHORE__THREAD_STACK_BYTES (256u * 1024u)

/* pthread_create with a small stack, all signals blocked (the main thread handles them), and a name of at most 15
 * characters. Returns 0 or a negated errno value. */
int shore__thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *ctx);

/* pthread_cond_init for timed waits on the monotonic clock, which setting the machine's time does not end. */
void shore__cond_init(pthread_cond_t *cond);

#endif
