/* Runs functions of a drive in memory: pieces are copied at once. */
#include <errno.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "drive/local/ram.h"

struct ram_reach {
    struct shore__reach reach;
    struct ram *r;
    struct shore__local_job *job;
};

static unsigned char *place_of(const struct ram_reach *r, const struct shore__piece *p, uint32_t local) {
    unsigned char *from = r->r->scratch;
    if (p->of == SHORE__PIECE_PLANE) from = shore__ram_plane(r->r, r->job->slot, p->plane, local);
    if (p->of == SHORE__PIECE_SPILLED) from = r->r->spill + local * shore__gradient_segment_bytes(r->job->call.form);
    return from + p->offset;
}

static void move(struct shore__reach *reach, bool write, const struct shore__piece *p) {
    struct ram_reach *r = (struct ram_reach *)reach;
    const struct shore__call *call = &r->job->call;
    const struct shore__function *function = shore__function(call->function);
    uint32_t local = 0;
    if (!r->job->rc) r->job->rc = shore__piece_check(reach, call, write, p, &local, &r->job->diag);
    if (r->job->rc) return;
    unsigned char *place = place_of(r, p, local);
    memcpy(write ? place : p->buffer, write ? p->buffer : place, p->bytes);
    if (write && p->of == SHORE__PIECE_SPILLED) r->r->front.spilled[local] = (unsigned char)(1 + call->form);
    r->r->front.moved[write ? function->writes : function->reads] += p->bytes;
}

static int wait(struct shore__reach *reach, struct shore_diag *diag) {
    struct ram_reach *r = (struct ram_reach *)reach;
    if (r->job->rc) *diag = r->job->diag;
    return r->job->rc;
}

int shore__ram_run(struct ram *r, struct shore__local_job *job) {
    const size_t bytes = shore__stage_bytes(&r->front.config);
    struct ram_reach reach = {.r = r, .job = job};
    struct shore_diag diag = {0};
    int rc = shore__front_call_begins(&r->front, job);
    if (!rc && !r->stage) r->stage = shore__arena_alloc(NULL, bytes);
    if (!rc && !r->stage) rc = shore__fail(&job->diag, -ENOMEM, "ram: out of memory for a function");
    if (rc) return rc;
    reach.reach = (struct shore__reach){&r->front.config, &r->desc, r->stage, bytes, move, wait};
    rc = shore__function(job->call.function)->run(&reach.reach, &job->call, &diag);
    if (rc && !job->rc) job->diag = diag;
    return job->rc ? job->rc : rc;
}
