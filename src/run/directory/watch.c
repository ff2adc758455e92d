/* Watches a run from outside, also while it trains: who works on it, and how its last steps went. A process that locks
 * the run for writing signs RUN/worker.json; the lock says whether that still holds. */
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/units.h"
#include "files/atomic.h"
#include "run/internal.h"

#define NAME "worker.json"

enum { TAIL_BYTES = SHORE__METRICS_LINE_MOST, STEPS_TIMED = 31 };

void shore__worker_sign(struct shore__run *run) {
    const struct shore__path path = shore__path_in(run->path, NAME);
    char host[256] = "";
    gethostname(host, sizeof host - 1);
    json_t *j = json_pack("{s:I, s:s, s:I, s:s}", "pid", (json_int_t)getpid(), "host", host, "since",
                          (json_int_t)time(NULL), "process", program_invocation_short_name);
    char *text = j ? json_dumps(j, JSON_COMPACT) : NULL; /* NULL: a name is not UTF-8 */
    unlink(path.text);                                   /* a backup may have a link to it */
    int fd = text ? open(path.text, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666) : -1;
    if (fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text)) run->private->signed_by = getpid();
    if (fd >= 0) close(fd);
    json_decref(j);
    free(text);
}

void shore__worker_leave(const struct shore__run *run) {
    if (run->private->signed_by != getpid()) return; /* nobody, or this process's parent */
    run->private->signed_by = 0;
    unlink(shore__path_in(run->path, NAME).text);
}

bool shore__run_worker(const char *run, struct shore__worker *out) {
    int directory = open(run, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool busy = directory >= 0 && flock(directory, LOCK_SH | LOCK_NB) < 0 && errno == EWOULDBLOCK;
    if (directory >= 0) close(directory);
    *out = (struct shore__worker){0};
    json_t *j = json_load_file(shore__path_in(run, NAME).text, 0, NULL);
    const char *host = json_string_value(json_object_get(j, "host")),
               *process = json_string_value(json_object_get(j, "process"));
    out->pid = json_integer_value(json_object_get(j, "pid"));
    out->since = json_integer_value(json_object_get(j, "since"));
    snprintf(out->host, sizeof out->host, "%s", host ? host : "");
    snprintf(out->process, sizeof out->process, "%s", process ? process : "");
    json_decref(j);
    return busy;
}

void shore__run_last_lines(const struct shore__run *run, const char *name,
                           bool (*take)(void *ctx, const char *line, size_t bytes), void *ctx) {
    char *buffer = malloc(TAIL_BYTES);
    int fd = open(shore__path_in(run->path, name).text, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    off_t end = fd >= 0 ? lseek(fd, 0, SEEK_END) : -1, from = end > TAIL_BYTES ? end - TAIL_BYTES : 0;
    ssize_t n = buffer && end > 0 ? pread(fd, buffer, (size_t)(end - from), from) : 0;
    char *stop = n > 0 ? memrchr(buffer, '\n', (size_t)n) : NULL; /* the line after it is still being written */
    for (bool more = true; stop && more;) {
        char *before = memrchr(buffer, '\n', (size_t)(stop - buffer)), *line = before ? before + 1 : buffer;
        more = (before || from == 0) && take(ctx, line, (size_t)(stop - line));
        stop = before;
    }
    if (fd >= 0) close(fd);
    free(buffer);
}

struct timing {
    struct shore__pulse *out;
    double seconds[STEPS_TIMED];
};

static bool take_line(void *ctx, const char *text, size_t bytes) {
    struct timing *t = ctx;
    json_t *line = json_loadb(text, bytes, 0, NULL);
    const json_t *loss = json_object_get(line, "loss"), *took = json_object_get(line, "step_seconds");
    if (json_is_number(loss) && isnan(t->out->loss)) t->out->loss = json_number_value(loss);
    if (!t->out->steps_timed)
        t->out->written_bytes = (uint64_t)json_integer_value(json_object_get(line, "drive_write_bytes"));
    const json_t *charges = json_object_get(line, "charges");
    for (int i = 0; i < SHORE_CHARGES; i++)
        t->out->charges[i] += json_number_value(json_object_get(charges, shore_charge_name((enum shore_charge)i)));
    t->out->steps_charged += json_is_object(charges);
    if (json_number_value(took) > 0) t->seconds[t->out->steps_timed++] = json_number_value(took);
    json_decref(line);
    return t->out->steps_timed < STEPS_TIMED;
}

void shore__run_pulse(const struct shore__run *run, struct shore__pulse *out) {
    struct timing timing = {.out = out};
    struct stat st;
    *out = (struct shore__pulse){.loss = NAN};
    if (stat(shore__path_in(run->path, "metrics.jsonl").text, &st) == 0)
        out->seconds_ago = difftime(time(NULL), st.st_mtime);
    shore__run_last_lines(run, "metrics.jsonl", take_line, &timing);
    /* a step that evaluation or a pause made long says nothing about the others */
    out->step_seconds = shore__median(timing.seconds, out->steps_timed);
    if (run->model && run->settings.steps > run->hint_step && !shore__settings_emulated(&run->settings))
        out->remaining_seconds = out->step_seconds * (double)(run->settings.steps - run->hint_step);
}
