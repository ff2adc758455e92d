/* Tells whether a directory is the run that its volumes belong to, or a copy of that run: both name the same volumes.
 * So run.json and the plan of a making record the directory that they were written in: its path, and a mark that
 * renaming keeps and no copy has. */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "run/directory/journal.h"
#include "run/paths.h"

static bool same_directory(const char *a, const char *b) {
    struct stat here, there;
    /* one directory may be mounted twice */
    return stat(a, &here) == 0 && stat(b, &there) == 0 && here.st_dev == there.st_dev && here.st_ino == there.st_ino;
}

static bool have_a_drive_in_common(const struct shore__addresses *a, const struct shore__addresses *b) {
    for (size_t i = 0; i < a->count; i++)
        for (size_t j = 0; j < b->count; j++)
            if (shore__same_path(a->text[i], b->text[j])) return true;
    return false;
}

/* Relation of another directory to a fleet. OWNS: it has the fleet, with other drives; UNKNOWN: its run cannot be
 * read. */
enum relation { NONE, OWNS, SHARES, UNKNOWN };

static enum relation relation_of(const char *path, const uint64_t fleet_id[2], const struct shore__addresses *drives,
                                 bool *marked) {
    struct shore__journal journal = {0};
    struct shore__run *run = shore__run_peek(path);
    enum relation relation = !run && shore__is_run(path) ? UNKNOWN : NONE;
    char *mark = shore__directory_mark(path);
    if (run && memcmp(run->fleet_id, fleet_id, sizeof run->fleet_id) == 0) {
        relation = !drives || have_a_drive_in_common(&run->settings.drives, drives) ? SHARES : OWNS;
        *marked = shore__marks_agree(mark, run->private->origin.mark);
    } else if (shore__journal_read(path, SHORE__MAKING, NULL, &journal, NULL) == 0 &&
               memcmp(journal.fleet_id, fleet_id, sizeof journal.fleet_id) == 0) {
        relation = SHARES;
        *marked = shore__marks_agree(mark, journal.origin.mark);
    }
    shore__journal_free(&journal);
    shore__run_free(run);
    free(mark);
    return relation;
}

/* Finds by its mark a directory that was renamed within its parent directory. */
static char *find_marked(const char *beside, const char *mark, const uint64_t fleet_id[2]) {
    char *parent = strdup(beside), *found = NULL;
    char *slash = parent ? strrchr(parent, '/') : NULL;
    if (slash) slash[slash == parent] = '\0';
    DIR *directory = slash ? opendir(parent) : NULL;
    const struct dirent *entry = NULL;
    struct stat st;
    while (directory && !found && (entry = readdir(directory))) {
        if (fstatat(dirfd(directory), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) || !S_ISDIR(st.st_mode) ||
            (uint64_t)st.st_ino != strtoull(mark, NULL, 10))
            continue;
        const struct shore__path path = shore__path_in(parent, entry->d_name);
        char *own = shore__directory_mark(path.text);
        bool marked = false;
        if (shore__marks_agree(own, mark) && relation_of(path.text, fleet_id, NULL, &marked) == SHARES)
            found = strdup(path.text);
        free(own);
    }
    if (directory) closedir(directory);
    free(parent);
    return found;
}

enum shore__standing shore__standing_of(const char *path, const struct shore__origin *origin,
                                        const uint64_t fleet_id[2], const struct shore__addresses *drives,
                                        char **original) {
    char *mark = shore__directory_mark(path), *real = realpath(path, NULL);
    bool at_home = !origin->home || same_directory(path, origin->home), home_marked = false;
    bool marked = shore__marks_agree(mark, origin->mark);
    enum relation home = at_home ? NONE : relation_of(origin->home, fleet_id, drives, &home_marked);
    enum shore__standing standing = SHORE__RUN_ITSELF;
    *original = NULL;
    if (marked ? home == SHARES && home_marked : home == SHARES || home == UNKNOWN) {
        standing = SHORE__RUN_COPY; /* marked: its file system was cloned as a whole */
        *original = strdup(origin->home);
    } else if (!marked && home != OWNS && !(at_home && !origin->mark)) {
        if (origin->mark && origin->home) *original = find_marked(origin->home, origin->mark, fleet_id);
        if (origin->mark && real && !*original) *original = find_marked(real, origin->mark, fleet_id);
        standing = *original ? SHORE__RUN_COPY : at_home ? SHORE__RUN_PUT_BACK : SHORE__RUN_ELSEWHERE;
    }
    free(mark);
    free(real);
    return standing;
}

static int refuse(const char *path, enum shore__standing standing, const struct shore__origin *origin,
                  const char *original, struct shore_diag *diag) {
    if (standing == SHORE__RUN_COPY)
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: is a copy of the run %s, whose volumes they are: do this with that one, or delete the "
                           "copy's directory alone",
                           path, original ? original : "from which it was made");
    if (standing == SHORE__RUN_PUT_BACK)
        shore__fail(
            diag, SHORE_EUSAGE,
            "%s: is not marked as the directory that was made there: it was put back, is a copy of a run that "
            "is elsewhere now, or its file system numbers directories anew; a copy's directory is deleted alone",
            path);
    else
        shore__fail(diag, SHORE_EUSAGE,
                    "%s: was made as %s, and nothing tells whether it was moved here from another file system or is a "
                    "copy of a run that is elsewhere now; a copy's directory is deleted alone",
                    path, origin->home);
    return shore__advise(diag, SHORE_EUSAGE, SHORE_ADVICE_NOT_A_COPY, path);
}

enum shore__standing shore__run_standing(const struct shore__run *run) {
    char *original;
    enum shore__standing standing =
        shore__standing_of(run->path, &run->private->origin, run->fleet_id, &run->settings.drives, &original);
    free(original);
    return standing;
}

int shore__run_refuse_copy(const struct shore__run *run, enum shore__standing from, struct shore_diag *diag) {
    char *original;
    const struct shore__origin *origin = &run->private->origin;
    enum shore__standing standing =
        shore__standing_of(run->path, origin, run->fleet_id, &run->settings.drives, &original);
    int rc = standing < from ? 0 : refuse(run->path, standing, origin, original, diag);
    free(original);
    return rc;
}

int shore__making_refuse_copy(const char *run_path, const struct shore__journal *journal, struct shore_diag *diag) {
    char *original;
    enum shore__standing standing = shore__standing_of(run_path, &journal->origin, journal->fleet_id, NULL, &original);
    int rc = standing == SHORE__RUN_ITSELF ? 0 : refuse(run_path, standing, &journal->origin, original, diag);
    free(original);
    return rc;
}

/* Notes that the run is a copy without drives of its own, or may be one. */
void shore__run_say_standing(struct shore__run *run) {
    char *original, *text = NULL;
    const struct shore__origin *origin = &run->private->origin;
    enum shore__standing standing =
        shore__standing_of(run->path, origin, run->fleet_id, &run->settings.drives, &original);
    int n = standing == SHORE__RUN_COPY
                ? asprintf(&text,
                           "%s is a copy of the run %s and has its volumes: what is done here is done to that run, "
                           "whose metrics will miss the steps",
                           run->path, original)
            : standing == SHORE__RUN_ELSEWHERE
                ? asprintf(&text,
                           "%s was made as %s: if it is a copy, what is done here is done to the volumes of the run, "
                           "whose metrics will miss the steps; if it is the run itself, say once that it is not a copy",
                           run->path, origin->home)
                : 0;
    if (n > 0) shore__run_remember(run, text);
    free(text);
    free(original);
}
