#include "drive/local/paced.h"

#include <errno.h>
#include <stdlib.h>

#include "base/units.h"

/* A lane that waits for an emulated drive looks at its queue now and then: a real one would have been woken. */
#define LOOK_NS 10000000u

struct shore__paced_op {
    struct shore__io_op *op;
    uint64_t due_ns;
    bool ended; /* the real operation */
};

int shore__paced_open(struct shore__paced *q, struct shore__io *io, struct shore__throttle *throttle, uint32_t drive,
                      unsigned capacity) {
    *q = (struct shore__paced){.io = io, .throttle = throttle, .drive = drive, .capacity = capacity};
    if (throttle) q->ops = calloc(capacity, sizeof *q->ops);
    return throttle && !q->ops ? -ENOMEM : 0;
}

void shore__paced_close(struct shore__paced *q) {
    shore__io_close(q->io);
    free(q->ops);
    *q = (struct shore__paced){0};
}

static int add(struct shore__paced *q, struct shore__io_op *op, uint64_t due_ns, bool ended) {
    if (q->count == q->capacity) return -EBUSY;
    q->ops[q->count++] = (struct shore__paced_op){op, due_ns, ended};
    return 0;
}

int shore__paced_submit(struct shore__paced *q, struct shore__io_op *op, bool charged, uint64_t not_before_ns) {
    if (!q->throttle) return shore__io_submit(q->io, op);
    if (q->count == q->capacity) return -EBUSY;
    int rc = shore__io_submit(q->io, op);
    if (rc) return rc;
    uint64_t due = 0;
    if (charged) due = shore__throttle_io(q->throttle, q->drive, op->kind == SHORE__IO_WRITE, op->bytes);
    return add(q, op, due > not_before_ns ? due : not_before_ns, false);
}

int shore__paced_wait(struct shore__paced *q, struct shore__io_op *op, uint64_t instant_ns) {
    op->rc = 0;
    return q->throttle ? add(q, op, instant_ns, true) : -EINVAL;
}

/* Notes which operations have really ended; min: waits for so many of them. */
static unsigned collect(struct shore__paced *q, unsigned min) {
    struct shore__io_op *ops[32];
    unsigned n = shore__io_reap(q->io, ops, 32, min);
    for (unsigned i = 0; i < n; i++)
        for (unsigned k = 0; k < q->count; k++)
            if (q->ops[k].op == ops[i]) q->ops[k].ended = true;
    return n;
}

static unsigned take_due(struct shore__paced *q, struct shore__io_op **ops, unsigned max) {
    uint64_t now = shore__now_ns();
    unsigned taken = 0, kept = 0;
    for (unsigned k = 0; k < q->count; k++) {
        if (taken < max && q->ops[k].ended && q->ops[k].due_ns <= now)
            ops[taken++] = q->ops[k].op;
        else
            q->ops[kept++] = q->ops[k];
    }
    q->count = kept;
    return taken;
}

/* The instant at which the next operation may come back; really ended or not. */
static uint64_t next_due(const struct shore__paced *q) {
    uint64_t first = UINT64_MAX;
    for (unsigned k = 0; k < q->count; k++)
        if (q->ops[k].due_ns < first) first = q->ops[k].due_ns;
    return first;
}

unsigned shore__paced_reap(struct shore__paced *q, struct shore__io_op **ops, unsigned max, unsigned min) {
    if (!q->throttle) return shore__io_reap(q->io, ops, max, min);
    unsigned got = 0;
    for (;;) {
        while (collect(q, 0) == 32) {
        }
        got += take_due(q, ops + got, max - got);
        if (got >= min || got == max || !q->count) return got;
        uint64_t due = next_due(q), now = shore__now_ns();
        if (due > now + LOOK_NS) {
            shore__sleep_until(now + LOOK_NS);
            return got;
        }
        if (due > now) {
            shore__sleep_until(due);
        } else {
            /* an operation is due that has not ended: the real drive is slower than the emulated one */
            collect(q, 1);
        }
    }
}
