/* Runs functions of a local drive: their pieces go through the fetch lane's I/O queue, with many under way. */
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/local/local.h"

struct local_reach {
    struct shore__reach reach;
    struct shore__local *l;
    struct shore__local_job *job;
    struct shore__io_op op[SHORE__FETCH_OPS], *free[SHORE__FETCH_OPS];
    unsigned nfree;
    uint64_t link_ns;  /* when a gate lets its input off the host link; 0: no gate */
    uint64_t since_ns; /* it has computed since then, if that is recorded */
};

/* The function waits from now on: what it did before was computing. */
static void computed(struct local_reach *r) {
    struct shore__recorder *recorder = r->l->front.drive.recorder;
    if (r->since_ns)
        shore__recorder_worked(recorder, SHORE_LANE_DRIVE_UPDATE, r->l->volume.desc.drive, r->since_ns, shore__now_ns(),
                               0);
}

static void reap(struct local_reach *r) {
    struct shore__io_op *ops[SHORE__FETCH_OPS];
    unsigned n = shore__io_reap(r->l->fetch_io, ops, SHORE__FETCH_OPS, 1);
    for (unsigned i = 0; i < n; i++) {
        if (ops[i]->rc) shore__local_io_failed(r->l, r->job, ops[i]);
        shore__local_io_done(r->l, ops[i]);
        r->free[r->nfree++] = ops[i];
    }
}

static void submit(struct local_reach *r, struct shore__io_op what) {
    if (!r->nfree) {
        computed(r);
        reap(r);
        r->since_ns = shore__recorder_clock(r->l->front.drive.recorder);
    }
    struct shore__io_op *op = r->free[--r->nfree];
    *op = what;
    if (!shore__local_io_begin(r->l, r->l->fetch_io, r->job, op)) r->free[r->nfree++] = op;
}

/* Where it lies in the file. */
static uint64_t offset_of(const struct local_reach *r, const struct shore__piece *p, uint32_t local) {
    const struct shore__volume *v = &r->l->volume;
    if (p->of == SHORE__PIECE_PLANE) return shore__volume_plane_offset(v, r->job->slot, p->plane, local) + p->offset;
    if (p->of == SHORE__PIECE_SPILLED)
        return shore__volume_spill_offset(v, local, shore__gradient_segment_bytes(r->job->call.form)) + p->offset;
    return shore__volume_scratch_offset(v) + p->offset;
}

static void move(struct shore__reach *reach, bool write, const struct shore__piece *p) {
    struct local_reach *r = (struct local_reach *)reach;
    const struct shore__function *function = shore__function(r->job->call.function);
    uint32_t local = 0;
    if (r->job->rc) return;
    r->job->rc = shore__piece_check(reach, &r->job->call, write, p, &local, &r->job->diag);
    if (r->job->rc) return;
    if (p->of == SHORE__PIECE_SPILLED && write) {
        shore__leaf_make(p->buffer, p->bytes, local, &r->l->spill_leaf[local]);
        r->l->front.spilled[local] = (unsigned char)(1 + r->job->call.form);
    }
    uint64_t drive_ns = shore__local_gate_ns(r->l, write ? SHORE_LANE_DRIVE_WRITE : SHORE_LANE_DRIVE_READ, p->bytes);
    submit(r, (struct shore__io_op){.kind = write ? SHORE__IO_WRITE : SHORE__IO_READ,
                                    .buffer = p->buffer,
                                    .offset = offset_of(r, p, local),
                                    .bytes = p->bytes,
                                    .not_before_ns = drive_ns > r->link_ns ? drive_ns : r->link_ns});
    r->l->front.moved[write ? function->writes : function->reads] += p->bytes;
}

static int wait(struct shore__reach *reach, struct shore_diag *diag) {
    struct local_reach *r = (struct local_reach *)reach;
    computed(r);
    while (r->nfree < SHORE__FETCH_OPS)
        reap(r);
    r->since_ns = shore__recorder_clock(r->l->front.drive.recorder);
    if (r->job->rc && diag != &r->job->diag) *diag = r->job->diag;
    return r->job->rc;
}

/* So many bytes cross the host link. Returns when a gate lets them arrive. */
static uint64_t cross(struct local_reach *r, enum shore_lane lane, uint64_t bytes) {
    return bytes ? shore__local_gate_ns(r->l, lane, bytes) : 0;
}

void shore__local_run(struct shore__local *l, struct shore__local_job *job) {
    const struct shore__call *call = &job->call;
    struct local_reach r = {
        .reach = {&l->front.config, &l->volume.desc, l->stage, l->stage_bytes, move, wait}, .l = l, .job = job};
    struct shore_diag diag = {0};
    job->rc = shore__front_call_begins(&l->front, job);
    if (job->rc) return;
    while (r.nfree < SHORE__FETCH_OPS) {
        r.free[r.nfree] = &r.op[r.nfree];
        r.nfree++;
    }
    r.link_ns = cross(&r, SHORE_LANE_LINK_IN, call->in_bytes);
    r.since_ns = shore__recorder_clock(l->front.drive.recorder);
    int rc = shore__function(call->function)->run(&r.reach, call, &diag);
    const uint64_t out_ns = cross(&r, SHORE_LANE_LINK_OUT, call->out_bytes);
    const uint64_t over_ns = out_ns > r.link_ns ? out_ns : r.link_ns;
    if (over_ns) submit(&r, (struct shore__io_op){.kind = SHORE__IO_PAUSE, .not_before_ns = over_ns});
    wait(&r.reach, &job->diag); /* also what the function has left under way */
    if (!job->rc && rc) {
        job->rc = rc;
        job->diag = diag;
    }
}
