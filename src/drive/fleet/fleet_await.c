/* Waiting until what another part asks for is written. */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "base/diag.h"
#include "base/thread.h"
#include "drive/fleet/join.h"

int shore__fleet_follow_writes(struct shore_fleet *f) {
    f->written = calloc((size_t)f->layout->segments + 1, sizeof *f->written);
    f->written_of = calloc(f->layout->nblocks, sizeof *f->written_of);
    for (uint32_t b = 1; f->written_of && b < f->layout->nblocks; b++)
        f->written_of[b] = f->written_of[b - 1] + f->layout->blocks[b - 1].segments;
    shore__cond_init(&f->wrote);
    return f->written && f->written_of ? 0 : -ENOMEM;
}

void shore__fleet_unfollow_writes(struct shore_fleet *f) {
    free(f->written);
    free(f->written_of);
    if (f->is_part) pthread_cond_destroy(&f->wrote);
}

void shore__fleet_wrote(struct shore_fleet *f, const struct shore_update *update) {
    if (!f->is_part) return;
    const uint32_t first = f->written_of[update->block] + update->segment;
    for (uint32_t i = 0; i < update->count; i++)
        f->written[first + i] = f->round;
    pthread_cond_broadcast(&f->wrote);
}

void shore__fleet_next_round(struct shore_fleet *f) {
    f->round++;
    if (f->is_part) pthread_cond_broadcast(&f->wrote);
}

static bool all_written(const struct shore_fleet *f, uint32_t block, uint32_t segment, uint32_t count) {
    const uint64_t *written = f->written + f->written_of[block] + segment;
    for (uint32_t i = 0; i < count; i++)
        if (written[i] != f->round) return false;
    return true;
}

/* Called with the lock held. 1: it has to wait. */
static int can_be_fetched(const struct shore_fleet *f, uint64_t step, uint32_t block, uint32_t segment, uint32_t count,
                          struct shore_diag *diag) {
    if (!f->ready) return shore__fail(diag, -EINVAL, "the parts have not united yet");
    if (step == f->step || (f->unconfirmed && step + 1 == f->step)) return 0; /* that one is still in the other slots */
    if (step < f->step)
        return shore__fail(diag, SHORE_ESTALE, "step %llu is over: step %llu is committed", (unsigned long long)step,
                           (unsigned long long)f->step);
    if (f->broken_rc) return shore__fail_of(diag, f->broken_rc, &f->broken_diag, "%s", f->broken_diag.text);
    if (step != f->step + 1) return 1;
    if (f->attempt_rc) return shore__fail_of(diag, f->attempt_rc, &f->attempt_diag, "%s", f->attempt_diag.text);
    return !all_written(f, block, segment, count);
}

int shore_fleet_await(struct shore_fleet *f, uint64_t step, uint32_t block, uint32_t segment, uint32_t count,
                      uint32_t timeout_ms, struct shore_diag *diag) {
    uint32_t own, nown;
    if (!f->is_part || shore__fleet_check_range(f, block, segment, count) || !shore_fleet_own(f, block, &own, &nown) ||
        segment < own || segment + count > own + nown)
        return shore__fail(diag, -EINVAL, "segments %u to %u of block %u are not this part's", segment,
                           segment + count - 1, block);
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    const uint64_t ns = (uint64_t)until.tv_nsec + (uint64_t)timeout_ms % 1000 * 1000000;
    until.tv_sec += (time_t)(timeout_ms / 1000 + ns / 1000000000);
    until.tv_nsec = (long)(ns % 1000000000);
    pthread_mutex_lock(&f->lock);
    int rc, late = 0;
    while ((rc = can_be_fetched(f, step, block, segment, count, diag)) > 0 && !late)
        late = pthread_cond_timedwait(&f->wrote, &f->lock, &until);
    pthread_mutex_unlock(&f->lock);
    if (rc <= 0) return rc;
    return shore__fail(diag, -ETIMEDOUT, "segments %u to %u of block %u were not written for step %llu within %u ms",
                       segment, segment + count - 1, block, (unsigned long long)step, timeout_ms);
}
