/* A local drive whose UPDATE a device computes: opencl:PATH. */
#ifndef SHORE_DRIVE_LOCAL_ON_DEVICE_H
#define SHORE_DRIVE_LOCAL_ON_DEVICE_H

#include "drive/local/local.h"

/* Opens the engine, and lowers the chunks to what the device has memory for; before the ring is taken. */
int shore__on_device_open(struct shore__local *l, struct shore_diag *diag);

/* Bytes of a segment in a buffer of the update ring, for the gradient and the engine's tables. */
size_t shore__on_device_segment_bytes(void);

/* A job's room at `at`, behind its planes, for chunks of so many segments: first the gradient. */
void shore__on_device_lay_out(struct shore__engine_job *job, unsigned char *at, uint32_t segments);

/* Tests the device with a job's memory, which is idle, and says how long compiling took. */
int shore__on_device_check(struct shore__local *l, struct shore__engine_job *job, unsigned char *planes,
                           struct shore_diag *diag);

/* Says where the elements lie, and puts a gathered gradient into the room that starts at gradient. */
int shore__on_device_prepare(const struct shore__drive_config *config, struct shore__engine_job *job,
                             const struct shore__stored *stored, unsigned char *gradient);

/* Names the tensor whose new value is not finite. */
void shore__on_device_explain(const struct shore__drive_config *config, struct shore__engine_job *job);

#endif
