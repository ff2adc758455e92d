/* Writes what a recorder took to RUN/trace.spans, in a thread. The file is appended to; once it has twice as many steps
 * as are kept, the last ones begin a new file that replaces it. */
#include "longshore/trace.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/thread.h"
#include "base/units.h"
#include "drive/counters.h"
#include "files/atomic.h"
#include "longshore/metrics.h"
#include "report/trace_file.h"

/* A frame in the file. */
struct frame {
    uint64_t at; /* offset; the next one's is its end */
    uint32_t steps;
};

struct shore_trace {
    struct shore__recorder *recorder;
    char *path, *head;
    size_t head_bytes;
    uint32_t keep; /* steps */
    pthread_t thread;
    /* the thread's: */
    int fd; /* -1: there is no file yet */
    uint64_t end, steps;
    uint32_t nframes;
    int rc; /* of writing; then nothing more is written */
    struct shore_diag diag;
    struct frame frames[]; /* twice as many as steps are kept: each has one at least */
};

static size_t own_bytes(uint32_t keep) {
    return sizeof(struct shore_trace) + 2 * (size_t)keep * sizeof(struct frame);
}

uint64_t shore_trace_memory_bytes(uint32_t ndrives) {
    return shore__recorder_bytes(ndrives) + own_bytes(SHORE_TRACE_STEPS_MOST) + SHORE__THREAD_STACK_BYTES;
}

/* ---- the file ---------------------------------------------------------------------------------------------------- */

static int copy(struct shore_trace *t, int from, int to, uint64_t at, uint64_t bytes, uint64_t put) {
    unsigned char block[16384];
    int rc = 0;
    for (size_t n; !rc && bytes; at += n, put += n, bytes -= n) {
        n = bytes < sizeof block ? (size_t)bytes : sizeof block;
        rc = shore__read_at(from, block, n, at, t->path, &t->diag);
        if (!rc) rc = shore__write_at(to, block, n, put, t->path, &t->diag);
    }
    return rc;
}

/* Begins a new file with the last frames that hold the steps to keep, but for the `more` steps that will follow. */
static int begin_file(struct shore_trace *t, uint32_t more) {
    unsigned char start[SHORE__TRACE_START_BYTES];
    struct shore__atomic file;
    uint32_t first = t->nframes;
    uint64_t steps = more, begin = SHORE__TRACE_START_BYTES + t->head_bytes;
    while (first > 0 && steps < t->keep)
        steps += t->frames[--first].steps;
    uint64_t from = first < t->nframes ? t->frames[first].at : t->end, kept = t->end - from;
    int rc = shore__atomic_open(t->path, &file, &t->diag);
    if (rc) return rc;
    shore__trace_start(t->head, t->head_bytes, start);
    rc = shore__write_at(file.fd, start, sizeof start, 0, t->path, &t->diag);
    if (!rc) rc = shore__write_at(file.fd, t->head, t->head_bytes, sizeof start, t->path, &t->diag);
    if (!rc && kept) rc = copy(t, t->fd, file.fd, from, kept, begin);
    int fd = rc ? -1 : dup(file.fd);
    if (!rc && fd < 0) rc = shore__fail_errno(&t->diag, t->path, "cannot be opened");
    if (rc)
        shore__atomic_abort(&file);
    else
        rc = shore__atomic_commit(&file, &t->diag);
    if (t->fd >= 0) close(t->fd);
    t->fd = fd;
    memmove(t->frames, t->frames + first, (t->nframes - first) * sizeof *t->frames);
    t->nframes -= first;
    for (uint32_t i = 0; i < t->nframes; i++)
        t->frames[i].at = t->frames[i].at - from + begin;
    t->end = begin + kept;
    t->steps = steps - more;
    return rc;
}

static int append(struct shore_trace *t, const struct shore__recorded *spans) {
    unsigned char start[SHORE__TRACE_FRAME_BYTES];
    bool full = t->steps + spans->steps > 2 * (uint64_t)t->keep;
    int rc = t->fd < 0 || full ? begin_file(t, spans->steps) : 0;
    if (rc) return rc;
    shore__trace_frame(spans, start);
    t->frames[t->nframes++] = (struct frame){t->end, spans->steps};
    rc = shore__write_at(t->fd, start, sizeof start, t->end, t->path, &t->diag);
    t->end += sizeof start;
    if (!rc) rc = shore__write_at(t->fd, spans->spans, spans->count * sizeof *spans->spans, t->end, t->path, &t->diag);
    t->end += spans->count * sizeof *spans->spans;
    t->steps += spans->steps;
    return rc;
}

static void *write_frames(void *ctx) {
    struct shore_trace *t = ctx;
    struct shore__recorded spans;
    while (shore__recorder_take(t->recorder, &spans))
        if (!t->rc) t->rc = append(t, &spans);
    return NULL;
}

/* ---- opening ----------------------------------------------------------------------------------------------------- */

/* The name of a drive: the directory of a volume that is alone there. */
static json_t *drive_name(const char *path) {
    const char *file = strrchr(path, '/'), *end = path + strlen(path);
    bool own = file && !strncmp(file, "/longshore", 10) && !strstr(file, ".rank") && !strcmp(end - 7, ".volume");
    json_t *name = json_stringn(path, (size_t)((own && file > path ? file : end) - path));
    return name ? name : json_string(shore__shown(path).text); /* it is not UTF-8 */
}

/* What the clock of spans is behind that of the day, which other traces have. */
static json_int_t behind_ns(void) {
    struct timespec day;
    clock_gettime(CLOCK_REALTIME, &day);
    return (json_int_t)day.tv_sec * 1000000000 + day.tv_nsec - (json_int_t)shore__now_ns();
}

static char *make_head(uint32_t steps, const struct shore_fleet *fleet) {
    json_t *lanes = json_array(), *charges = json_array(), *drives = json_array();
    for (int i = 0; i < SHORE_LANES; i++)
        json_array_append_new(lanes, json_string(shore_lane_name(i)));
    for (int i = 0; i < SHORE_CHARGES; i++)
        json_array_append_new(charges, json_string(shore_charge_name(i)));
    for (uint32_t d = 0; d < shore__fleet_info(fleet).ndrives; d++)
        json_array_append_new(drives, drive_name(shore_fleet_drive_path(fleet, d)));
    json_t *head = json_pack("{s:I, s:I, s:o, s:o, s:o}", "steps", (json_int_t)steps, "unix_ns", behind_ns(), "lanes",
                             lanes, "charges", charges, "drives", drives);
    char *text = head ? json_dumps(head, JSON_COMPACT) : NULL;
    json_decref(head);
    return text;
}

int shore_trace_open(const char *run, uint32_t steps, struct shore_fleet *fleet, struct shore_trace **out,
                     struct shore_diag *diag) {
    *out = NULL;
    if (!steps || steps > SHORE_TRACE_STEPS_MOST)
        return shore__fail(diag, -EINVAL, "a trace keeps 1 to %u steps, not %u", SHORE_TRACE_STEPS_MOST, steps);
    struct shore_trace *t = calloc(1, own_bytes(steps));
    if (!t) return shore__out_of_memory(diag);
    t->fd = -1;
    t->keep = steps;
    t->path = shore__path_join(run, SHORE__TRACE_FILE);
    t->head = make_head(steps, fleet);
    t->head_bytes = t->head ? strlen(t->head) : 0;
    int rc = t->path && t->head ? shore__recorder_open(shore__fleet_info(fleet).ndrives, &t->recorder) : -ENOMEM;
    if (!rc) rc = shore__thread_start(&t->thread, "shore-trace", write_frames, t);
    if (!rc) {
        shore_trace_follow(t, fleet);
        *out = t;
        return 0;
    }
    shore__recorder_close(t->recorder);
    free(t->path);
    free(t->head);
    free(t);
    return shore__fail(diag, rc, "a trace cannot be recorded: %s", strerror(-rc));
}

void shore_trace_follow(struct shore_trace *t, struct shore_fleet *fleet) {
    if (t) shore__fleet_set_recorder(fleet, t->recorder);
}

int shore_trace_close(struct shore_trace *t, struct shore_diag *diag) {
    if (!t) return 0;
    shore__recorder_end(t->recorder);
    pthread_join(t->thread, NULL);
    int rc = t->rc;
    if (rc) shore__fail_of(diag, rc, &t->diag, "the trace ends early: %s", t->diag.text);
    if (t->fd >= 0) close(t->fd);
    shore__recorder_close(t->recorder);
    free(t->path);
    free(t->head);
    free(t);
    return rc;
}
