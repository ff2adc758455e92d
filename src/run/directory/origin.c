/* The directory that a run or a making was written in: its path and its mark. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "run/standing.h"

char *shore__directory_mark(const char *directory) {
    struct statx st;
    struct stat plain;
    char *mark = NULL;
    if (stat(directory, &plain)) return NULL;
    /* a container may refuse statx() */
    if (statx(AT_FDCWD, directory, 0, STATX_INO | STATX_BTIME, &st)) st = (struct statx){.stx_ino = plain.st_ino};
    int n = st.stx_mask & STATX_BTIME ? asprintf(&mark, "%" PRIu64 "-%" PRId64 ".%09" PRIu32, (uint64_t)st.stx_ino,
                                                 (int64_t)st.stx_btime.tv_sec, (uint32_t)st.stx_btime.tv_nsec)
                                      : asprintf(&mark, "%" PRIu64, (uint64_t)st.stx_ino);
    return n < 0 ? NULL : mark;
}

bool shore__marks_agree(const char *a, const char *b) {
    size_t inode = a ? strcspn(a, "-") : 0;
    if (!a || !b || strncmp(a, b, inode) != 0) return false;
    const char *born_a = a + inode, *born_b = b + inode;
    return strcmp(born_a, born_b) == 0 || (*born_a == '-' && !*born_b) || (!*born_a && *born_b == '-');
}

void shore__origin_free(struct shore__origin *origin) {
    free(origin->home);
    free(origin->mark);
    *origin = (struct shore__origin){0};
}

int shore__origin_take(const char *path, struct shore__origin *origin, struct shore_diag *diag) {
    char *home = realpath(path, NULL);
    if (!home) return shore__fail_errno(diag, path, "cannot be resolved");
    shore__origin_free(origin);
    *origin = (struct shore__origin){home, shore__directory_mark(home)};
    return 0;
}

bool shore__origin_is_current(const char *path, const struct shore__origin *origin) {
    struct shore__origin now = {0};
    bool current = shore__origin_take(path, &now, NULL) || (origin->home && strcmp(origin->home, now.home) == 0 &&
                                                            (!now.mark || shore__marks_agree(origin->mark, now.mark)));
    shore__origin_free(&now);
    return current;
}
