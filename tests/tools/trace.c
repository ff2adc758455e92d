/* What a program hands over to its drives, in that order: linked with -Wl,--wrap=shore_fleet_update and so on
 * (nets.cmake), into the program or the Python extension, whose objects are otherwise those of every build. With
 * LONGSHORE_TRACE=FILE each send is a line of FILE, by each process that is started so; without it nothing is written.
 */
#include "tools/trace.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "longshore/state.h"

void trace(const char *format, ...) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static FILE *file;
    static char *opened;
    const char *name = getenv("LONGSHORE_TRACE");
    va_list args;
    if (!name || !*name) return;
    pthread_mutex_lock(&lock);
    if (!opened || strcmp(opened, name) != 0) {
        if (file) fclose(file);
        free(opened);
        if (!(opened = strdup(name)) || !(file = fopen(name, "we"))) abort();
    }
    va_start(args, format);
    vfprintf(file, format, args);
    va_end(args);
    putc('\n', file);
    fflush(file);
    pthread_mutex_unlock(&lock);
}

static const char *const forms[] = {"fp32", "bf16", "sparse", "rows"};

#define WRAP(type, name, ...)        \
    type __real_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__)

WRAP(int, shore_fleet_update, struct shore_fleet *fleet, const struct shore_update *u, struct shore_completion done) {
    trace("update to %llu: block %u, %u + %u, %s%s%s%s", (unsigned long long)u->base_step + 1, u->block, u->segment,
          u->count, forms[u->form],
          u->gradient ? ""
          : u->gather ? ", gathered"
                      : ", spilled",
          u->coefficient == 1 ? "" : ", clipped", u->params_out ? ", handed back" : "");
    return __real_shore_fleet_update(fleet, u, done);
}

WRAP(int, shore_fleet_store, struct shore_fleet *fleet, const struct shore_store *s, struct shore_completion done) {
    trace("store to %llu: block %u, %u + %u", (unsigned long long)s->base_step + 1, s->block, s->segment, s->count);
    return __real_shore_fleet_store(fleet, s, done);
}

WRAP(int, shore_fleet_spill, struct shore_fleet *fleet, uint32_t block, uint32_t segment, uint32_t count,
     enum shore_gradient_form form, const void *gradient, struct shore_completion done) {
    trace("spill: block %u, %u + %u, %s", block, segment, count, forms[form]);
    return __real_shore_fleet_spill(fleet, block, segment, count, form, gradient, done);
}

WRAP(int, shore_fleet_spill_gathered, struct shore_fleet *fleet, uint32_t block, uint32_t segment, uint32_t count,
     enum shore_gradient_form form, const struct shore_gather *gather, uint32_t ngather, struct shore_completion done) {
    trace("spill: block %u, %u + %u, %s, gathered", block, segment, count, forms[form]);
    return __real_shore_fleet_spill_gathered(fleet, block, segment, count, form, gather, ngather, done);
}

WRAP(int, shore_fleet_carry, struct shore_fleet *fleet, uint64_t base_step, uint64_t attempt, uint32_t block,
     uint32_t segment, uint32_t count, struct shore_completion done) {
    trace("carry to %llu: block %u, %u + %u", (unsigned long long)base_step + 1, block, segment, count);
    return __real_shore_fleet_carry(fleet, base_step, attempt, block, segment, count, done);
}

WRAP(uint64_t, shore_fleet_discard, struct shore_fleet *fleet) {
    trace("discard");
    return __real_shore_fleet_discard(fleet);
}

WRAP(int, shore_fleet_commit_with, struct shore_fleet *fleet, const struct shore_commit *c,
     struct shore_completion done) {
    static const char *const how[] = {"updated", "skipped", "restored"};
    trace("commit %llu: %s", (unsigned long long)c->step, how[c->how]);
    return __real_shore_fleet_commit_with(fleet, c, done);
}

WRAP(int, shore_fleet_commit, struct shore_fleet *fleet, uint64_t base_step, bool skip, const void *metrics,
     uint32_t metrics_bytes, struct shore_completion done) {
    trace("commit %llu: %s", (unsigned long long)base_step + 1, skip ? "skipped" : "updated");
    return __real_shore_fleet_commit(fleet, base_step, skip, metrics, metrics_bytes, done);
}

WRAP(int, shore_fleet_scratch_put, struct shore_fleet *fleet, uint64_t offset, uint64_t bytes, const void *src,
     unsigned char seal[16], struct shore_completion done) {
    trace("scratch put: %llu bytes at %llu", (unsigned long long)bytes, (unsigned long long)offset);
    return __real_shore_fleet_scratch_put(fleet, offset, bytes, src, seal, done);
}

/* The same, of the store; older builds have none. */
#pragma weak __real_shore__fleet_scratch
WRAP(int, shore__fleet_scratch, struct shore_fleet *fleet, bool put, uint64_t offset, uint64_t bytes, void *buffer,
     unsigned char *seals, struct shore_completion done) {
    if (put) trace("scratch put: %llu bytes at %llu", (unsigned long long)bytes, (unsigned long long)offset);
    return __real_shore__fleet_scratch(fleet, put, offset, bytes, buffer, seals, done);
}

/* All that it has moved, but for requests: of a step, that depends on when its commit is seen. */
WRAP(void, shore_fleet_close, struct shore_fleet *fleet) {
    struct shore_ledger l = {.size = sizeof l};
    if (fleet && !shore_fleet_ledger(fleet, &l))
        trace("moved %llu",
              (unsigned long long)(l.link_in_gradients + l.link_in_compressed + l.link_out_params + l.link_activations +
                                   l.link_in_state + l.link_out_state + l.link_out_gradients + l.drive_read_state +
                                   l.drive_write_state + l.drive_read_fetch + l.drive_read_spill + l.drive_write_spill +
                                   l.drive_read_scratch + l.drive_write_scratch + l.drive_write_commit));
    __real_shore_fleet_close(fleet);
}
