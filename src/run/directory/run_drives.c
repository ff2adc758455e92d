/* drives.jsonl: what each drive did in a step, one line a step, beside metrics.jsonl. Lines may be missing. After a
 * kill, the last one may be torn, or beyond the committed step: the next start cuts it off. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "longshore/metrics.h"
#include "run/internal.h"

#define NAME "drives.jsonl"

char *shore__drives_line(struct shore__run *run, const struct shore_meter *meter) {
    bool paths = !run->private->drives_named;
    size_t bytes = (size_t)shore_meter_drives_line(meter, paths, NULL, 0) + 2;
    char *line = malloc(bytes);
    if (!line) return NULL;
    shore_meter_drives_line(meter, paths, line, bytes - 1);
    strcat(line, "\n");
    run->private->drives_named = true;
    return line;
}

int shore__drives_append(struct shore__run *run, const char *line, struct shore_diag *diag) {
    struct stat st;
    int fd, rc = shore__run_file(run, NAME, 0, &fd, diag);
    if (rc) return rc;
    if (fstat(fd, &st) < 0)
        rc = -errno;
    else if ((rc = shore__write_at(fd, line, strlen(line), (uint64_t)st.st_size, NAME, NULL)) < 0)
        if (ftruncate(fd, st.st_size) < 0) rc = -errno; /* half a line would join with the next */
    close(fd);
    return rc ? shore__fail(diag, rc, "%s/" NAME ": cannot be written: %s", run->path, strerror(-rc)) : 0;
}

/* Where the file ends without what is torn or beyond the step, as far as this much of its end tells. */
static off_t good_end(const char *tail, size_t bytes, off_t from, uint64_t step) {
    const char *stop = memrchr(tail, '\n', bytes);
    while (stop) {
        const char *before = memrchr(tail, '\n', (size_t)(stop - tail)), *line = before ? before + 1 : tail;
        uint64_t of = before || !from ? shore__line_step(line, (size_t)(stop - line)) : 0;
        if (of && of <= step) return from + (stop - tail) + 1;
        stop = before;
    }
    return from;
}

void shore__drives_cut(struct shore__run *run, uint64_t step) {
    const struct shore__path path = shore__path_in(run->path, NAME);
    struct stat st;
    int fd = -1;
    if (stat(path.text, &st) < 0 || shore__run_file(run, NAME, 0, &fd, NULL)) return;
    char *tail = malloc(SHORE__METRICS_LINE_MOST);
    off_t end = st.st_size;
    for (bool more = tail && end > 0; more;) {
        off_t from = end > SHORE__METRICS_LINE_MOST ? end - SHORE__METRICS_LINE_MOST : 0;
        ssize_t n = pread(fd, tail, (size_t)(end - from), from);
        if (n != end - from) break;
        end = good_end(tail, (size_t)n, from, step);
        more = end == from && end > 0;
    }
    int cut = end < st.st_size ? ftruncate(fd, end) : 0;
    (void)cut; /* a line too many is no reason to stop a run */
    free(tail);
    close(fd);
}
