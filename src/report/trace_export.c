/* A trace as JSON in Chrome's format: events of kind X (a span), and M (the name of a lane). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/sized.h"
#include "files/atomic.h"
#include "longshore/trace.h"
#include "report/trace_file.h"

#define BEGIN "{\"displayTimeUnit\":\"ms\",\"traceEvents\":"

enum { PROCESS = 1, STEP_LANE = 1 };

/* The lane in the trace: steps and their charges are one; then the lanes of no drive, then those of each drive. */
static size_t lane_of(const struct shore__trace_read *t, const struct shore__work_span *s) {
    size_t of = s->drive == SHORE__NO_DRIVE ? 0 : (size_t)s->drive + 1;
    if (s->kind != SHORE__SPAN_LANE) return STEP_LANE;
    return STEP_LANE + 1 + of * json_array_size(json_object_get(t->head, "lanes")) + s->what;
}

static void put_string(FILE *out, const char *text) {
    json_t *string = json_string(text);
    char *quoted = string ? json_dumps(string, JSON_ENCODE_ANY | JSON_ENSURE_ASCII) : NULL;
    fputs(quoted ? quoted : "\"?\"", out);
    free(quoted);
    json_decref(string);
}

/* Both directions of a link have one name in metrics. */
static void lane_name(const struct shore__trace_read *t, const struct shore__work_span *s, char *out, size_t bytes) {
    const char *lane = shore__trace_name(t, "lanes", s->what), *way = "";
    if (s->what && !strcmp(shore__trace_name(t, "lanes", s->what - 1), lane)) way = " out";
    out[0] = '\0';
    if (s->kind != SHORE__SPAN_LANE)
        shore__append(out, bytes, "step");
    else if (s->drive == SHORE__NO_DRIVE)
        shore__append(out, bytes, "%s%s", lane, way);
    else
        shore__append(out, bytes, "%s %s%s", shore__trace_name(t, "drives", s->drive), lane, way);
}

static void put_lane(FILE *out, const struct shore__trace_read *t, const struct shore__work_span *s) {
    char name[640];
    lane_name(t, s, name, sizeof name);
    fprintf(out, ",\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"thread_name\",\"args\":{\"name\":", PROCESS,
            lane_of(t, s));
    put_string(out, name);
    fprintf(out,
            "}},\n{\"ph\":\"M\",\"pid\":%d,\"tid\":%zu,\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%zu}}",
            PROCESS, lane_of(t, s), lane_of(t, s));
}

static void put_span(FILE *out, const struct shore__trace_read *t, const struct shore__work_span *s) {
    uint64_t at = s->begin_ns - t->begin_ns, took = s->end_ns - s->begin_ns;
    fprintf(out, ",\n{\"ph\":\"X\",\"pid\":%d,\"tid\":%zu,\"ts\":%llu.%03u,\"dur\":%llu.%03u,\"name\":", PROCESS,
            lane_of(t, s), (unsigned long long)(at / 1000), (unsigned)(at % 1000), (unsigned long long)(took / 1000),
            (unsigned)(took % 1000));
    if (s->kind == SHORE__SPAN_STEP)
        fprintf(out, "\"step %llu\"", (unsigned long long)s->amount);
    else
        put_string(out, shore__trace_name(t, s->kind == SHORE__SPAN_LANE ? "lanes" : "charges", s->what));
    if (s->kind == SHORE__SPAN_LANE && s->amount)
        fprintf(out, ",\"args\":{\"bytes\":%llu}", (unsigned long long)s->amount);
    fputc('}', out);
}

/* By lane, and by time; what contains another comes first. */
static int compare(const void *a, const void *b, void *trace) {
    const struct shore__work_span *x = a, *y = b;
    size_t lanes[2] = {lane_of(trace, x), lane_of(trace, y)};
    if (lanes[0] != lanes[1]) return lanes[0] < lanes[1] ? -1 : 1;
    if (x->begin_ns != y->begin_ns) return x->begin_ns < y->begin_ns ? -1 : 1;
    return x->end_ns == y->end_ns ? (int)y->kind - x->kind : x->end_ns > y->end_ns ? -1 : 1;
}

static void put_events(FILE *out, struct shore__trace_read *t) {
    qsort_r(t->spans, t->count, sizeof *t->spans, compare, t);
    fprintf(out,
            BEGIN "[\n"
                  "{\"ph\":\"M\",\"pid\":%d,\"name\":\"process_name\",\"args\":{\"name\":\"longshore\"}}",
            PROCESS);
    for (size_t i = 0; i < t->count; i++) {
        struct shore__work_span *s = &t->spans[i];
        if (s->begin_ns < t->begin_ns) s->begin_ns = t->begin_ns; /* begun before the first step */
        if (i == 0 || lane_of(t, s) != lane_of(t, s - 1)) put_lane(out, t, s);
        put_span(out, t, s);
    }
    fprintf(out, "\n],\"baseTimeNanoseconds\":%llu}\n",
            (unsigned long long)t->begin_ns + (uint64_t)json_integer_value(json_object_get(t->head, "unix_ns")));
}

static bool is_trace(const char *path) {
    return shore__file_begins(path, BEGIN);
}

static int write_events(const char *to, struct shore__trace_read *t, struct shore_diag *diag) {
    struct shore__atomic file;
    int rc = shore__atomic_open(to, &file, diag);
    if (rc) return rc;
    int fd = dup(file.fd);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (out) put_events(out, t);
    if (!out || ferror(out)) rc = shore__fail_errno(diag, to, "cannot be written");
    if (out && fclose(out) && !rc) rc = shore__fail_errno(diag, to, "cannot be written");
    if (!out && fd >= 0) close(fd);
    if (!rc) return shore__atomic_commit(&file, diag);
    shore__atomic_abort(&file);
    return rc;
}

int shore_trace_export(const char *run, const char *to, struct shore_trace_written *given, struct shore_diag *diag) {
    struct shore_trace_written w = {.size = sizeof w};
    struct shore__trace_read read = {0};
    int rc = shore__check_replaced(to, is_trace, "trace", diag);
    if (!rc) rc = shore__trace_load(run, SIZE_MAX, &read, diag);
    if (rc == SHORE_EMISSING)
        shore__fail(diag, rc,
                    shore__path_exists(run, ".")
                        ? "%s: has no trace: the next start with --trace N records its last N steps"
                        : "%s: there is no such run",
                    run);
    if (!rc && !read.steps) rc = shore__fail(diag, SHORE_EINPUT, "%s/" SHORE__TRACE_FILE ": holds no step", run);
    for (size_t i = 0; !rc && i < read.count; i++)
        if (read.spans[i].kind == SHORE__SPAN_STEP) {
            if (!w.first_step) w.first_step = read.spans[i].amount;
            w.last_step = read.spans[i].amount;
        }
    w.merged = read.lost;
    if (!rc) rc = write_events(to, &read, diag);
    if (!rc) rc = shore__sized_out(given, &w, sizeof w);
    shore__trace_free(&read);
    return rc;
}
