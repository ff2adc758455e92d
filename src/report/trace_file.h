/* RUN/trace.spans: the spans of a run's last steps. docs/run-directory.md describes the bytes. */
#ifndef SHORE_REPORT_TRACE_FILE_H
#define SHORE_REPORT_TRACE_FILE_H

#include <jansson.h>

#include "drive/recorder.h"
#include "longshore/error.h"

#define SHORE__TRACE_FILE "trace.spans"
#define SHORE__TRACE_START_BYTES 32u /* of a file, before its head */
#define SHORE__TRACE_FRAME_BYTES 32u /* of a frame, before its spans */

/* Lays out what begins a file, and what begins a frame of spans. */
void shore__trace_start(const char *head, size_t head_bytes, unsigned char out[SHORE__TRACE_START_BYTES]);
void shore__trace_frame(const struct shore__recorded *spans, unsigned char out[SHORE__TRACE_FRAME_BYTES]);

struct shore__trace_read {
    json_t *head;                   /* lanes, charges, drives: names; steps */
    struct shore__work_span *spans; /* in no order, of the last `steps` steps and what went on between them */
    size_t count;
    uint64_t steps, lost, begin_ns; /* begin_ns: of the first step */
};
/* Takes the bytes of a file. An end that a kill has torn is left out. name: for messages. Errors: SHORE_EFORMAT,
 * SHORE_EINPUT, -ENOMEM. */
int shore__trace_parse(const unsigned char *data, size_t bytes, const char *name, struct shore__trace_read *out,
                       struct shore_diag *diag);
/* Reads a run's, of at most so many bytes. Errors: also SHORE_EMISSING (there is none), -EIO. */
int shore__trace_load(const char *run, size_t limit_bytes, struct shore__trace_read *out, struct shore_diag *diag);
/* The name of a lane, charge or drive (list), which is there. */
const char *shore__trace_name(const struct shore__trace_read *t, const char *list, size_t i);
void shore__trace_free(struct shore__trace_read *read);

#endif
