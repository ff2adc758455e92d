/* Threads with small stacks, so that they fit a budget, and conditions that can be waited for with an end. */
#ifndef SHORE_BASE_THREAD_H
#define SHORE_BASE_THREAD_H

#include <pthread.h>

#define SHORE__THREAD_STACK_BYTES (256u * 1024u)

/* pthread_create with a small stack, all signals blocked (the main thread handles them) and a name of 15 characters
 * at most. 0 or a negated errno value. */
int shore__thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *ctx);

/* pthread_cond_init with timed waits on the monotonic clock: setting the machine's time does not end them. */
void shore__cond_init(pthread_cond_t *cond);

#endif
