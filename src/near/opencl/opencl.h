/* UPDATE on an OpenCL 1.2 device: the engine of a drive opencl:PATH.
 *
 * A job is queued: what it takes is written to the device or lent to it, a kernel runs, and what it makes comes back,
 * the parameters first. Each slot has a queue of its own, so that one chunk moves while another is computed. A device
 * that works on the host's memory works on the drive's buffers in place. */
#ifndef SHORE_NEAR_OPENCL_OPENCL_H
#define SHORE_NEAR_OPENCL_OPENCL_H

#include "near/engine.h"
#include "near/opencl/opencl_device.h"

#define SHORE__OPENCL_MEMORY (UINT64_C(4) << 30) /* taken at most, unless more is given */

struct shore__opencl_config {
    const char *drive, *options; /* its name; as in device.h, NULL: none. Borrowed */
    uint32_t number;             /* of the drive in its fleet */
    enum shore_optimizer optimizer;
    enum shore_moments moments;
    bool fp32_params;
    uint32_t plane_bytes[SHORE_PLANE_COUNT]; /* of a segment */
    uint32_t chunk_segments, slots;          /* at most; opening lowers them to what the device has memory for */
};

/* SHORE_EUSAGE, -EIO. *out: for close(). */
int shore__opencl_open(struct shore__opencl_config *config, struct shore__engine **out, struct shore_diag *diag);

/* Gives a slot the planes of a chunk, in a row, aligned to pages. *planes: the drive's memory; it becomes other memory
 * that the drive is to use instead, if drives read into the device's own. -EIO. */
int shore__opencl_attach(struct shore__engine *engine, uint32_t slot, unsigned char **planes, struct shore_diag *diag);

/* Tests a device that has not passed yet: a million hard cases against the scalar reference, in slot 0, with a job's
 * blocks and starts. Then keeps its kernels. seconds: compiling took; 0: they were kept. SHORE_EUSAGE, -EIO. */
int shore__opencl_check(struct shore__engine *engine, unsigned char *planes, struct shore__engine_block *blocks,
                        uint32_t *starts, double *seconds, struct shore_diag *diag);

/* Elements a second that the device updates with AdamW, after a test as above. The same errors. */
int shore__opencl_rate(const char *options, double *rate, struct shore_diag *diag);

/* The test alone, of any engine. config: its numbers; blocks and starts: of a segment. */
int shore__engine_check(struct shore__engine *engine, const struct shore__opencl_config *config, unsigned char *planes,
                        struct shore__engine_block *blocks, uint32_t *starts, struct shore_diag *diag);

#endif
