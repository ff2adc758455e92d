/* The I/O queue of a drive. Where a machine is emulated, an operation ends when the emulated drive and link would have
 * ended it, if it has really ended by then; otherwise this is storage's queue itself.
 *
 * Threading: as of struct shore__io, one thread.
 */
#ifndef SHORE_DRIVE_LOCAL_PACED_H
#define SHORE_DRIVE_LOCAL_PACED_H

#include "drive/throttle.h"
#include "storage/blockio.h"

struct shore__paced_op;

struct shore__paced {
    struct shore__io *io;
    struct shore__throttle *throttle; /* NULL: nothing is emulated */
    uint32_t drive;
    unsigned capacity, count;
    struct shore__paced_op *ops; /* under way; throttled only */
};

/* Takes io over. capacity: operations under way at once, waits included. */
int shore__paced_open(struct shore__paced *q, struct shore__io *io, struct shore__throttle *throttle, uint32_t drive,
                      unsigned capacity);
void shore__paced_close(struct shore__paced *q); /* drains; harmless on one that was never opened */

/* shore__io_submit(): at the drive's emulated rate if `charged` is set, and not before an instant (0: any). */
int shore__paced_submit(struct shore__paced *q, struct shore__io_op *op, bool charged, uint64_t not_before_ns);
/* No I/O: op comes back from reap at an instant. */
int shore__paced_wait(struct shore__paced *q, struct shore__io_op *op, uint64_t instant_ns);
/* shore__io_reap(); where a machine is emulated it may also hand back less than min after a while. */
unsigned shore__paced_reap(struct shore__paced *q, struct shore__io_op **ops, unsigned max, unsigned min);

#endif
