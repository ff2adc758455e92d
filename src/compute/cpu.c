/* Sets the state of the threads that compute. */
#include "compute/cpu.h"

#include <signal.h>

#include "number/fpcontrol.h"

void shore__cpu_flush_to_zero(void) {
    uint64_t control = shore__fp_get();
    if ((control & SHORE__FP_FLUSH) != SHORE__FP_FLUSH) shore__fp_set(control | SHORE__FP_FLUSH);
}

/* Blocks signals in workers: oneDNN's kernels keep values below the stack pointer, where a signal's frame would lie. */
static void leave_signals_to_caller(void) {
    sigset_t all;
    sigfillset(&all);
    if (omp_get_thread_num() > 0) pthread_sigmask(SIG_BLOCK, &all, NULL);
}

static _Thread_local bool workers_ready;

struct shore__cpu_thread shore__cpu_enter(const struct shore__cpu *c) {
    struct shore__cpu_thread state = {shore__fp_get(), omp_get_max_threads(), omp_get_dynamic()};
    if (state.dynamic) omp_set_dynamic(0);
    if (state.threads != c->base.threads) omp_set_num_threads(c->base.threads);
    if (!workers_ready) { /* oneDNN's parallel regions run on the same workers, which keep this setting */
#pragma omp parallel num_threads(c->base.threads)
        {
            shore__cpu_flush_to_zero();
            leave_signals_to_caller();
        }
        workers_ready = true;
    }
    shore__cpu_flush_to_zero();
    return state;
}

void shore__cpu_leave(struct shore__cpu_thread *state) {
    shore__fp_set(state->control);
    if (state->dynamic) omp_set_dynamic(state->dynamic);
    if (omp_get_max_threads() != state->threads) omp_set_num_threads(state->threads);
}
