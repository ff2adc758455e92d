/* Files of a run that get a line a step, and are written in place. */
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/internal.h"

int shore__run_file(struct shore__run *run, const char *name, int flags, int *fd, struct shore_diag *diag) {
    const struct shore__path in = shore__path_in(run->path, name);
    const char *path = in.text;
    struct stat st;
    /* what is written in place would change a backup of hard links, too */
    bool shared = stat(path, &st) == 0 && S_ISREG(st.st_mode) && st.st_nlink > 1;
    int rc = shared ? shore__file_copy(path, path, diag) : 0;
    *fd = rc ? -1 : open(path, flags | O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    return rc || *fd >= 0 ? rc : shore__fail_errno(diag, path, "cannot be opened");
}

/* Lines of this program begin with the step; edited lines are parsed. */
uint64_t shore__line_step(const char *line, size_t bytes) {
    static const char start[] = "{\"step\":";
    json_error_t error;
    if (bytes > sizeof start && memcmp(line, start, sizeof start - 1) == 0 && line[bytes - 1] == '}') {
        uint64_t step = 0;
        const char *p = line + sizeof start - 1;
        while (*p == ' ')
            p++;
        while (*p >= '0' && *p <= '9' && step < UINT64_MAX / 16)
            step = step * 10 + (uint64_t)(*p++ - '0');
        if (*p == ',' || *p == '}') return step;
    }
    json_t *j = json_loadb(line, bytes, JSON_REJECT_DUPLICATES, &error);
    const json_t *step = json_object_get(j, "step");
    uint64_t n = json_is_integer(step) && json_integer_value(step) > 0 ? (uint64_t)json_integer_value(step) : 0;
    json_decref(j);
    return n;
}
