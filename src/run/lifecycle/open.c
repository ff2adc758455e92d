/* Opens a run, after ending what was interrupted, and closes it. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "run/lifecycle/joining.h"
#include "run/lifecycle/making.h"
#include "run/lifecycle/mend.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"
#include "storage/volume.h"

static bool is_missing(const char *path) {
    struct stat st;
    return stat(path, &st) < 0 && errno == ENOENT;
}

/* Finds the address that run.json records for a moved drive. */
static int place_named(const struct shore__run *run, const struct shore__move *move, const char *shown,
                       struct shore__address **out, struct shore_diag *diag) {
    struct shore__address *named, *place = NULL;
    const char *name = move->to;
    if (!*name) return shore__fail(diag, SHORE_EUSAGE, "drive %s: where is it now? The path is missing", shown);
    int rc = shore__address_parse(name, &named, diag);
    if (rc == 0 && !named->kind->keeps)
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "drive %s: memory keeps no state between two processes; name a directory or a file", shown);
    if (rc == 0 && !(place = shore__drive_moved(run, run->settings.drives.text[move->drive], named)))
        rc = shore__fail(diag, -ENOMEM, "out of memory");
    char *volume = NULL; /* for a directory, the file in it */
    if (rc == 0 && place->kind->has_file && is_missing(place->path) && is_missing(named->path))
        rc = shore__fail(diag, SHORE_EMISSING, "drive %s: %s does not exist", shown, name);
    else if (rc == 0 && place->kind->has_file && shore__volume_path(place->path, &volume, NULL) == 0 &&
             is_missing(volume))
        rc =
            shore__fail(diag, SHORE_EMISSING, "drive %s: there is no volume in %s: %s is missing", shown, name, volume);
    free(volume);
    if (rc == 0) rc = shore__drive_absolute(place, out, diag);
    free(named);
    free(place);
    return rc;
}

static int put_moved(struct shore__run *run, const struct shore__move *move, const char *shown,
                     struct shore_diag *diag) {
    struct shore__address *now = NULL;
    int rc = place_named(run, move, shown, &now, diag);
    if (rc < 0) return rc;
    shore__addresses_put(&run->settings.drives, move->drive, now);
    return shore__addresses_add(&run->private->moved, shore__address_copy(now))
               ? shore__fail(diag, -ENOMEM, "out of memory")
               : 0;
}

/* Moves every volume that the word names. */
static int move_drives(struct shore__run *run, const char *word, struct shore_diag *diag) {
    const struct shore__addresses *drives = &run->settings.drives;
    struct shore__move move = shore__move_split(run, word, 0);
    const struct shore__shown shown = shore__shown(word);
    if (!move.to)
        return shore__fail(diag, SHORE_EUSAGE,
                           "drive %s: a run has its drives already; OLD=NEW says where one of them is now", shown.text);
    if (move.drive == drives->count)
        return shore__fail(diag, SHORE_EUSAGE, "drive %s: this run has no such drive; its first is %s", shown.text,
                           drives->count ? drives->text[0] : "none");
    struct shore__move *moves = calloc(drives->count, sizeof *moves);
    size_t n = 0;
    int rc = moves ? 0 : shore__out_of_memory(diag);
    /* all are found first: where the first one has gone, the word means others */
    for (; rc == 0 && move.drive < drives->count; move = shore__move_split(run, word, move.drive + 1))
        moves[n++] = move;
    for (size_t i = 0; rc == 0 && i < n; i++)
        rc = put_moved(run, &moves[i], shown.text, diag);
    free(moves);
    return rc;
}

uint64_t shore__run_hint(const struct shore__run *run) {
    char text[32] = "", *end = NULL;
    int fd = open(shore__path_in(run->path, "committed").text, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd >= 0 ? pread(fd, text, sizeof text - 1, 0) : 0;
    if (fd >= 0) close(fd);
    uint64_t step = n > 0 && text[0] >= '0' && text[0] <= '9' ? strtoull(text, &end, 10) : 0;
    /* a torn line could name any step; the metrics follow the commit as the hint does */
    return end && *end == '\n' ? step : shore__metrics_last(run);
}

/* Beside the process that keeps it, which has ended what was interrupted. */
static int join(struct shore__run *run, struct shore_diag *diag) {
    int rc = shore__run_ask_keeper(run->path, diag);
    return rc == 0 && shore__run_blocks_readers(run->path) ? shore__run_in_use(run->path, diag) : rc;
}

enum purpose { TO_WORK, TO_LOOK, TO_JOIN, TO_ROLL_BACK, TO_REMOVE };

static int open_run(const char *path, bool for_writing, const struct shore__strings *moved, enum purpose purpose,
                    struct shore__run **out, struct shore_diag *diag) {
    const bool whole = purpose != TO_REMOVE, mend = purpose == TO_WORK || purpose == TO_LOOK;
    struct shore__run *run = NULL;
    int rc = purpose != TO_JOIN && shore__run_is_half_replaced(path) ? shore__run_recall(path, diag) : 0;
    if (rc == 0 && !shore__is_run(path)) rc = shore__not_a_run(path, diag);
    if (rc == 0) rc = shore__run_alloc(path, &run, diag);
    if (rc < 0) return rc;
    /* whoever opens the run next first undoes or finishes what was interrupted */
    struct shore__worker worker; /* the process at work, which ends the interruption itself */
    const bool looks_on = purpose == TO_LOOK && shore__run_worker(run->path, &worker);
    if (purpose == TO_JOIN)
        rc = join(run, diag);
    else if (for_writing || (whole && !looks_on && shore__run_blocks_readers(run->path)))
        rc = shore__run_lock(run, diag);
    if (rc == 0) rc = shore__run_read(run, diag);
    /* changes interrupted when the run was copied are the original run's, which may have finished them by now */
    enum shore__standing standing = rc == 0 ? shore__run_standing(run) : SHORE__RUN_ITSELF;
    bool copy = standing >= SHORE__RUN_ELSEWHERE;
    if (copy && for_writing && whole && shore__run_interrupted(run->path))
        rc = shore__run_refuse_copy(run, SHORE__RUN_ELSEWHERE, diag);
    /* records a renamed run, or one older than marks, without being told; if that fails, the next start does it */
    if (rc == 0 && for_writing && whole && standing == SHORE__RUN_ITSELF &&
        !shore__origin_is_current(run->path, &run->private->origin))
        shore__run_write(run, NULL);
    for (size_t i = 0; rc == 0 && moved && i < moved->count; i++)
        rc = move_drives(run, moved->item[i], diag);
    if (rc == 0 && for_writing && whole) shore__run_say_standing(run);
    if (rc < 0) {
        shore__run_close(run);
        return rc;
    }
    if (for_writing && whole && !copy) shore__making_settle(run, shore__run_remember, run);
    run->hint_step = shore__run_hint(run);
    /* the previous holder of the lock may have finished it, or left it */
    if (whole && run->lock_fd >= 0 && !copy) rc = shore__run_mend(run, mend, diag);
    if (rc < 0) {
        shore__run_close(run);
        return rc;
    }
    if (!for_writing && run->lock_fd >= 0) {
        close(run->lock_fd);
        run->lock_fd = -1;
    }
    if (for_writing && whole) shore__worker_sign(run);
    *out = run;
    return 0;
}

int shore__run_open_state(const char *path, bool for_writing, const struct shore__strings *moved,
                          struct shore__run **out, struct shore_diag *diag) {
    return open_run(path, for_writing, moved, TO_WORK, out, diag);
}

int shore__run_look_at_state(const char *path, const struct shore__strings *moved, struct shore__run **out,
                             struct shore_diag *diag) {
    return open_run(path, false, moved, TO_LOOK, out, diag);
}

int shore__run_join(const char *path, const struct shore__strings *moved, struct shore__run **out,
                    struct shore_diag *diag) {
    int rc = open_run(path, false, moved, TO_JOIN, out, diag);
    if (rc == 0) (*out)->joins = true;
    return rc;
}

int shore__run_open_to_roll_back(const char *path, struct shore__run **out, struct shore_diag *diag) {
    return open_run(path, true, NULL, TO_ROLL_BACK, out, diag);
}

int shore__run_open_alone(const char *path, struct shore__run **out, struct shore_diag *diag) {
    return open_run(path, true, NULL, TO_REMOVE, out, diag);
}

void shore__run_close(struct shore__run *run) {
    if (run && run->making) shore__run_undo(run);
    shore__run_free(run);
}
