/* Creates the fleet of a new run beside the run that it overwrites, or in its place where there is no room for both. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "base/units.h"
#include "drive/fleet/fleet.h"
#include "run/lifecycle/making.h"
#include "storage/blockio.h"

enum { DESCRIPTORS_PER_DRIVE = 8, DESCRIPTORS_MORE = 16 };

/* Whether this process may open the files of a fleet. */
static int ask_descriptors(size_t drives, struct shore_diag *diag) {
    const size_t wanted = drives * DESCRIPTORS_PER_DRIVE + DESCRIPTORS_MORE;
    int *fd = calloc(wanted, sizeof *fd), rc = fd ? 0 : shore__out_of_memory(diag);
    size_t n = 0;
    while (rc == 0 && n < wanted)
        if ((fd[n] = open("/", O_RDONLY | O_DIRECTORY | O_CLOEXEC)) >= 0)
            n++;
        else
            rc = shore__fail(diag, -errno, "this process may open too few files: %s", strerror(errno));
    while (n > 0)
        close(fd[--n]);
    free(fd);
    return rc;
}

static int ask_file_size(uint64_t bytes, const char *path, struct shore_diag *diag) {
    struct rlimit most;
    if (getrlimit(RLIMIT_FSIZE, &most) || most.rlim_cur == RLIM_INFINITY || most.rlim_cur >= bytes) return 0;
    return shore__fail(diag, -EFBIG, "%s: needs a file of up to %s, and this process may write files of %s (ulimit -f)",
                       path, shore__format_size(bytes).text, shore__format_size((uint64_t)most.rlim_cur).text);
}

/* Asks what would fail once the old run has gone. */
static int ask_first(const struct shore__run *run, const struct shore_fleet_options *o, uint64_t bytes,
                     shore__making_check_fn check, void *ctx, struct shore_diag *diag) {
    int code = o->io == SHORE_IO_URING ? shore__io_uring_try() : 0;
    int rc = code ? shore__fail(diag, code, "io_uring is refused here (%s)", shore_error_text(code)) : 0;
    if (rc) shore__advise(diag, rc, SHORE_ADVICE_THREADS, NULL);
    if (rc == 0) rc = ask_descriptors(run->settings.drives.count, diag);
    if (rc == 0 && !run->private->replaces) rc = ask_file_size(bytes, run->settings.drives.text[0], diag);
    return rc == 0 && check ? check(ctx, diag) : rc;
}

/* Says which run goes, and lets it go. */
static int let_go(struct shore__run *run, const struct shore__run *old, const struct shore_fleet_options *o,
                  struct shore_diag *diag) {
    shore__note(o->note, o->note_ctx,
                "%s: the drives have no room for two runs: the run that is there, at step %" PRIu64
                ", goes before the new one is made",
                run->path, shore__run_hint(run));
    int rc = shore__making_retire(run, diag);
    if (rc == 0) rc = shore__directory_sync(run->path, diag);
    if (rc == 0) shore__run_drop(old, o->note, o->note_ctx);
    return rc;
}

int shore__making_create(struct shore__run *run, struct shore_fleet_options *options, shore__making_check_fn check,
                         void *ctx, struct shore_fleet **out, struct shore_diag *diag) {
    const struct shore__addresses *drives = &run->settings.drives;
    struct shore_diag why = {0};
    int rc = -ENOSPC;
    shore__run_new_fleet(run, options);
    options->generation = run->generation;
    if (!run->private->replaces) rc = shore_fleet_create(run->layout, options, out, &why);
    struct shore__run *old = rc == -ENOSPC ? shore__run_before(run->path) : NULL;
    const uint64_t bytes = shore__fleet_disk_bytes(run->layout, options, shore__fleet_takes_whole(options));
    if (rc == 0) return 0;
    if (old && options->mine) {
        rc = shore__fail(diag, rc, "%s%sthe run that is there has to go first, and several processes cannot do that",
                         why.text, *why.text ? "; " : "");
        shore__run_free(old);
        return shore__advise(diag, rc, SHORE_ADVICE_REMOVE_RUN, run->path);
    }
    if (!old || (!run->private->replaces && shore__making_room(run->path, drives) < bytes)) {
        shore__run_free(old);
        return shore__fail_of(diag, rc, &why, "%s", why.text);
    }
    rc = ask_first(run, options, bytes, check, ctx, diag);
    if (rc == 0) rc = let_go(run, old, options, diag);
    if (rc == 0) rc = shore_fleet_create(run->layout, options, out, diag);
    shore__run_free(old);
    return rc;
}
