#include "near/engine.h"

#include <stddef.h>

void shore__engine_push(struct shore__engine *engine, struct shore__engine_job *job) {
    job->next = NULL;
    if (engine->first)
        engine->last->next = job;
    else
        engine->first = job;
    engine->last = job;
}

struct shore__engine_job *shore__engine_pop(struct shore__engine *engine) {
    struct shore__engine_job *job = engine->first;
    if (job) engine->first = job->next;
    return job;
}

static void host_submit(struct shore__engine *engine, struct shore__engine_job *job) {
    job->rc = job->here(job);
    shore__engine_push(engine, job);
}

static struct shore__engine_job *host_reap(struct shore__engine *engine, bool wait) {
    return shore__engine_pop(engine);
}

static const char *host_name(const struct shore__engine *engine) {
    return NULL;
}

static void host_close(struct shore__engine *engine) {}

void shore__engine_host(struct shore__engine *engine) {
    static const struct shore__engine_ops ops = {host_submit, host_reap, host_name, host_close};
    *engine = (struct shore__engine){.ops = &ops};
}
