/* metrics.jsonl: one line per step, numbered from 1, none missing and none twice. A line is appended after its commit,
 * so a kill can leave one line too few, or a torn one. For that case the fleet's record holds the last line. */
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "base/units.h"
#include "files/atomic.h"
#include "run/internal.h"

#define NAME "metrics.jsonl"

enum { LINE_BYTES_MOST = SHORE__METRICS_LINE_MOST };
static const uint64_t sync_every_ns = UINT64_C(1000000000);

static int fail_io(const struct shore__run *run, const char *what, struct shore_diag *diag) {
    return shore__fail(diag, -errno, "%s/" NAME ": %s: %s", run->path, what, strerror(errno));
}

/* Takes in what a line says of the validation loss. */
static void take_measured(struct shore__run *run, uint64_t step, const char *line, size_t bytes) {
    static const char key[] = "\"val_loss\":";
    struct shore__measured *m = &run->measured;
    const char *at = memmem(line, bytes, key, sizeof key - 1);
    if (!at || step <= run->val_from) return;
    char *end; /* a line ends with '}' */
    double loss = strtod(at + sizeof key - 1, &end);
    m->step = step;
    m->loss = end == at + sizeof key - 1 || !isfinite(loss) ? NAN : loss; /* null */
    m->since++;
    if (!(m->loss < m->least)) return;
    m->least = m->loss;
    m->least_step = step;
    m->since = 0;
}

struct scan {
    uint64_t steps, bytes; /* good lines: 1 .. steps */
    bool foreign;          /* what follows is neither a torn line nor a later step */
};

/* Cuts the members from the end that a record has no room for. */
uint32_t shore__metrics_fit(const char *line, char out[SHORE__METRICS_BYTES]) {
    size_t bytes = strlen(line), cut = 0;
    if (bytes <= SHORE__METRICS_BYTES) {
        memcpy(out, line, bytes);
        return (uint32_t)bytes;
    }
    bool text = false;
    for (size_t i = 0, depth = 0; i < SHORE__METRICS_BYTES; i++) {
        if (text && line[i] == '\\') {
            i++;
            continue;
        }
        text ^= line[i] == '"';
        if (text) continue;
        depth += line[i] == '{' || line[i] == '[';
        depth -= line[i] == '}' || line[i] == ']';
        if (line[i] == ',' && depth == 1) cut = i;
    }
    assert(cut); /* the step comes first */
    memcpy(out, line, cut);
    out[cut] = '}';
    return (uint32_t)cut + 1;
}

/* Reads from the start until a line is not the next step, or `step` lines are read. */
static int scan(struct shore__run *run, uint64_t step, struct scan *out, struct shore_diag *diag) {
    char *buffer = malloc(LINE_BYTES_MOST);
    size_t held = 0;
    *out = (struct scan){0};
    run->measured = (struct shore__measured){.least = INFINITY, .loss = NAN};
    if (!buffer) return shore__out_of_memory(diag);
    for (bool more = true; more && out->steps < step;) {
        ssize_t n = pread(run->private->metrics_fd, buffer + held, LINE_BYTES_MOST - held, (off_t)(out->bytes + held));
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) {
            free(buffer);
            return fail_io(run, "cannot be read", diag);
        }
        held += (size_t)n;
        char *line = buffer, *end = NULL;
        while (more && out->steps < step && (end = memchr(line, '\n', held - (size_t)(line - buffer)))) {
            more = shore__line_step(line, (size_t)(end - line)) == out->steps + 1;
            if (!more) break;
            out->steps++;
            out->bytes += (size_t)(end - line) + 1;
            take_measured(run, out->steps, line, (size_t)(end - line));
            line = end + 1;
        }
        out->foreign = !more || (!end && line == buffer && held == LINE_BYTES_MOST);
        if (n == 0 || out->foreign) break;
        held -= (size_t)(line - buffer);
        memmove(buffer, line, held);
    }
    free(buffer);
    return 0;
}

static bool take_step(void *step, const char *line, size_t bytes) {
    *(uint64_t *)step = shore__line_step(line, bytes);
    return false;
}

uint64_t shore__metrics_last(const struct shore__run *run) {
    uint64_t step = 0;
    shore__run_last_lines(run, NAME, take_step, &step);
    return step;
}

/* Keeps a copy of a file that is about to lose lines for which no kill accounts. */
static int move_aside(struct shore__run *run, uint64_t good, struct shore_diag *diag) {
    char block[16384];
    const struct shore__path path = shore__path_in(run->path, NAME ".old");
    const char *old = path.text;
    unlink(old);
    int from = run->private->metrics_fd, to = open(old, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int rc = to < 0 ? fail_io(run, "cannot be copied to " NAME ".old", diag) : 0;
    char *text = NULL;
    ssize_t n = 0;
    for (uint64_t at = 0; rc == 0 && (n = pread(from, block, sizeof block, (off_t)at)) > 0; at += (uint64_t)n)
        rc = shore__write_at(to, block, (size_t)n, at, old, diag);
    if (rc == 0 && (n < 0 || fsync(to) < 0)) rc = fail_io(run, "cannot be copied to " NAME ".old", diag);
    if (to >= 0) close(to);
    if (rc == 0 && asprintf(&text,
                            "%s/" NAME " was changed or cut after step %" PRIu64
                            ", or a copy of the run was trained: the steps that are missing are marked as lost, and "
                            "what was there is kept in %s",
                            run->path, good, old) >= 0) {
        shore__run_remember(run, text);
        free(text);
    }
    return rc;
}

static int put_line(struct shore__run *run, const char *line, size_t bytes, struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    struct stat st;
    char *whole = NULL;
    if (fstat(p->metrics_fd, &st) == 0 && st.st_nlink == 0)
        return shore__fail(diag, -EIO,
                           "%s/" NAME
                           ": was deleted while it was in use; bring it back: otherwise its steps are marked as lost",
                           run->path);
    int n = asprintf(&whole, "%.*s\n", (int)bytes, line);
    if (n < 0) return shore__out_of_memory(diag);
    int rc = shore__write_at(p->metrics_fd, whole, (size_t)n, p->metrics_bytes, NAME, NULL);
    free(whole);
    if (rc == 0) {
        p->metrics_bytes += (uint64_t)n;
        take_measured(run, p->metrics_step + 1, line, bytes);
        return 0;
    }
    /* half a line would join with the next */
    if (ftruncate(p->metrics_fd, (off_t)p->metrics_bytes) < 0) rc = -errno;
    return shore__fail(diag, rc, "%s/" NAME ": the line of step %" PRIu64 " cannot be written: %s", run->path,
                       p->metrics_step + 1, strerror(-rc));
}

static void note_lost(struct shore__run *run) {
    char text[1024];
    snprintf(text, sizeof text, "%.900s/" NAME " is gone or empty: the steps until now are marked as lost in a new one",
             run->path);
    shore__run_remember(run, text);
}

static int put_lost(struct shore__run *run, uint64_t step, struct shore_diag *diag) {
    char line[96];
    int bytes = snprintf(line, sizeof line, "{\"step\": %" PRIu64 ", \"loss\": null, \"lost\": true}", step);
    return put_line(run, line, (size_t)bytes, diag);
}

/* Only a hint, so it is not synced; it never runs ahead of the commit. */
static void put_hint(struct shore__run *run, bool anew) {
    struct shore__run_private *p = run->private;
    char text[32];
    int bytes = snprintf(text, sizeof text, "%" PRIu64 "\n", p->metrics_step);
    if (p->hint_fd < 0 && shore__run_file(run, "committed", 0, &p->hint_fd, NULL) < 0) return;
    if (anew && ftruncate(p->hint_fd, 0) < 0) return;
    if (pwrite(p->hint_fd, text, (size_t)bytes, 0) == bytes) run->hint_step = p->metrics_step;
}

int shore__metrics_recover(struct shore__run *run, uint64_t step, const char *line, struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    size_t bytes = line ? strcspn(line, "\n") : 0;
    bool have_last = bytes > 0 && shore__line_step(line, bytes) == step;
    struct scan found = {0};
    struct stat st;
    if (p->metrics_fd >= 0 && fstat(p->metrics_fd, &st) == 0 && st.st_nlink == 0) {
        close(p->metrics_fd); /* it was deleted, and may have been brought back */
        p->metrics_fd = -1;
    }
    int rc = p->metrics_fd < 0 ? shore__run_file(run, NAME, O_APPEND, &p->metrics_fd, diag) : 0;
    if (rc == 0) rc = scan(run, step, &found, diag);
    if (rc < 0) return rc;
    if (fstat(p->metrics_fd, &st) < 0) return fail_io(run, "cannot be read", diag);
    bool gap = found.steps + (have_last ? 1 : 0) < step;
    if ((found.foreign || gap) && st.st_size > 0) rc = move_aside(run, found.steps, diag);
    if (gap && st.st_size == 0) note_lost(run);
    if (rc == 0 && (uint64_t)st.st_size != found.bytes && ftruncate(p->metrics_fd, (off_t)found.bytes) < 0)
        rc = fail_io(run, "cannot be cut back", diag);
    p->metrics_bytes = found.bytes;
    p->metrics_step = found.steps;
    while (rc == 0 && p->metrics_step < step) {
        bool last = p->metrics_step + 1 == step && have_last;
        rc = last ? put_line(run, line, bytes, diag) : put_lost(run, p->metrics_step + 1, diag);
        if (rc == 0) p->metrics_step++;
    }
    if (rc == 0 && fsync(p->metrics_fd) < 0) rc = fail_io(run, "cannot be made durable", diag);
    if (rc == 0) put_hint(run, true);
    if (rc == 0) shore__drives_cut(run, step);
    p->synced_ns = shore__now_ns();
    return rc;
}

int shore__metrics_append(struct shore__run *run, uint64_t step, const char *line, struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    if (p->metrics_fd < 0) {
        int rc = shore__metrics_recover(run, step - 1, NULL, diag);
        if (rc < 0) return rc;
    }
    if (step != p->metrics_step + 1)
        return shore__fail(diag, -EINVAL, "%s/" NAME ": step %" PRIu64 " does not follow step %" PRIu64, run->path,
                           step, p->metrics_step);
    int rc = put_line(run, line, strcspn(line, "\n"), diag);
    if (rc < 0) return rc;
    p->metrics_step = step;
    put_hint(run, false);
    /* after a power cut, at most the steps of the last second are marked as lost */
    uint64_t now = shore__now_ns();
    if (now - p->synced_ns < sync_every_ns) return 0;
    p->synced_ns = now;
    return fdatasync(p->metrics_fd) < 0 ? fail_io(run, "cannot be made durable", diag) : 0;
}

/* Makes the hint durable: an old hint beyond this step would say that the drives were put back from a copy. Where a
 * kill had cost the last line, the hint is one step behind, so that the next start measures again what that line
 * held. */
int shore__metrics_put_back(struct shore__run *run, uint64_t step, const char *metrics, struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    const struct shore__path path = shore__path_in(run->path, NAME);
    char text[32];
    struct scan lines = {0};
    int rc = 0;
    if (p->metrics_fd >= 0) close(p->metrics_fd);
    p->metrics_fd = -1;
    if (metrics) rc = shore__file_copy(metrics, path.text, diag);
    if (!metrics && unlink(path.text) < 0 && errno != ENOENT) rc = fail_io(run, "cannot be removed", diag);
    if (rc == 0 && metrics) rc = shore__run_file(run, NAME, O_APPEND, &p->metrics_fd, diag);
    if (rc == 0 && metrics) rc = scan(run, step, &lines, diag);
    if (p->metrics_fd >= 0) close(p->metrics_fd);
    p->metrics_fd = -1; /* opening it again recovers it */
    if (rc == 0 && p->hint_fd < 0) rc = shore__run_file(run, "committed", 0, &p->hint_fd, diag);
    if (rc < 0) return rc;
    uint64_t hint = lines.steps + 1 == step ? lines.steps : step;
    int bytes = snprintf(text, sizeof text, "%" PRIu64 "\n", hint);
    if (ftruncate(p->hint_fd, 0) < 0) rc = -errno;
    if (rc == 0) rc = shore__write_at(p->hint_fd, text, (size_t)bytes, 0, "committed", NULL);
    if (rc == 0 && fsync(p->hint_fd) < 0) rc = -errno;
    if (rc < 0) return shore__fail(diag, rc, "%s/committed: cannot be written: %s", run->path, strerror(-rc));
    run->hint_step = hint;
    return shore__directory_sync(run->path, diag);
}
