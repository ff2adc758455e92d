/* A run in memory, its lock, and what a directory holds instead of a run. */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "run/directory/journal.h"
#include "run/internal.h"
#include "run/paths.h"
#include "storage/blockio.h"

int shore__run_alloc(const char *path, struct shore__run **out, struct shore_diag *diag) {
    struct shore__run *run = calloc(1, sizeof *run);
    if (run) {
        run->lock_fd = -1;
        run->path = strdup(path);
        /* a run is named by its path without slashes at the end */
        for (size_t n = run->path ? strlen(run->path) : 0; n > 1 && run->path[n - 1] == '/'; n--)
            run->path[n - 1] = '\0';
        run->word = run->path ? shore__shell_word(run->path) : NULL;
        run->changes = json_array();
        run->private = calloc(1, sizeof *run->private);
    }
    if (!run || !run->word || !run->changes || !run->private) {
        if (run) {
            free(run->path);
            free(run->word);
            json_decref(run->changes);
            free(run->private);
        }
        free(run);
        return shore__out_of_memory(diag);
    }
    shore__settings_defaults(&run->settings);
    run->generation = 1;
    run->private->metrics_fd = run->private->hint_fd = -1;
    *out = run;
    return 0;
}

int shore__run_in_use(const char *path, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EBUSY, "%s: another process works on this run; wait for it, or stop it", path);
}

int shore__run_lock(struct shore__run *run, struct shore_diag *diag) {
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    const uint64_t deadline = shore__now_ns() + (uint64_t)(SHORE__LOCK_SECONDS * 1e9);
    run->lock_fd = open(run->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (run->lock_fd < 0) return shore__fail_errno(diag, run->path, "the run's directory cannot be opened");
    while (flock(run->lock_fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK && errno != EINTR) return shore__fail_errno(diag, run->path, "cannot be locked");
        if (shore__now_ns() >= deadline) return shore__run_in_use(run->path, diag);
        nanosleep(&pause, NULL);
    }
    return 0;
}

bool shore__is_run(const char *path) {
    return shore__path_exists(path, "run.json");
}

struct shore__run *shore__run_peek(const char *path) {
    struct shore__run *run = NULL;
    if (!shore__is_run(path) || shore__run_alloc(path, &run, NULL) < 0) return NULL;
    if (shore__run_read(run, NULL) == 0) return run;
    shore__run_free(run);
    return NULL;
}

/* ---- directories without a run ----------------------------------------------------------------------------------- */

bool shore__run_is_unmade(const char *path) {
    return !shore__is_run(path) && (shore__path_exists(path, "making") || shore__directory_is_empty(path));
}

bool shore__run_is_half_replaced(const char *path) {
    bool between = shore__path_exists(path, "making/run.json") || shore__path_exists(path, "making/made.json") ||
                   shore__path_exists(path, "making/placed.json");
    return between && !shore__is_run(path);
}

int shore__run_refuse_contents(const struct shore__run *run, struct shore_diag *diag) {
    if (!run->contents) return 0;
    const char *name = shore__contents_maker(run->contents);
    return shore__fail(diag, SHORE_EUSAGE,
                       "%s: was made by %s: continue it there, or save it there as a Hugging Face directory, and give "
                       "that to longshore import",
                       run->path, shore__shown(name).text);
}

int shore__run_refuse_memory(const struct shore__run *run, struct shore_diag *diag) {
    for (size_t i = 0; i < run->settings.drives.count; i++)
        if (!run->settings.drives.item[i]->kind->keeps)
            return shore__fail(diag, SHORE_EMISSING,
                               "%s kept its state in memory (%s): the state ended with the process that made it",
                               run->path, run->settings.drives.text[i]);
    return 0;
}

static int say_unmade(const char *path, const char *shown, struct shore_diag *diag) {
    struct shore__journal journal = {0};
    char maker[160] = "";
    if (shore__journal_read(path, SHORE__MAKING, NULL, &journal, NULL) == 0 && journal.maker)
        shore__escape(journal.maker, strlen(journal.maker), maker, sizeof maker);
    shore__journal_free(&journal);
    if (maker[0])
        return shore__fail(diag, SHORE_EMISSING, "%s: was stopped while %s made it: make it again there", shown, maker);
    return shore__fail(diag, SHORE_EMISSING,
                       "%s: was stopped while it was being made: give the same train command again", shown);
}

int shore__not_a_run(const char *path, struct shore_diag *diag) {
    const struct shore__shown shown = shore__shown(path);
    if (shore__run_is_half_replaced(path))
        return shore__advise(diag,
                             shore__fail(diag, SHORE_EMISSING,
                                         "%s: a run that is no more, since overwriting it was stopped: make the new "
                                         "one again",
                                         shown.text),
                             SHORE_ADVICE_REMOVE_RUN, path);
    if (shore__path_exists(path, "making")) return say_unmade(path, shown.text, diag);
    if (shore__directory_is_empty(path))
        return shore__fail(
            diag, SHORE_EMISSING,
            "%s: is not a run, but empty: if making a run was stopped there, give the same train command again",
            shown.text);
    struct stat st;
    if (stat(path, &st) && errno == ENOENT)
        return shore__advise(
            diag, shore__fail(diag, SHORE_EMISSING, "%s: is not a run: there is nothing of that name", shown.text),
            SHORE_ADVICE_MAKE_RUN, path);
    if (stat(path, &st) == 0 && !S_ISDIR(st.st_mode))
        return shore__fail(diag, SHORE_EMISSING, "%s: is not a run, which is a directory", shown.text);
    if (access(path, X_OK) && errno == EACCES)
        return shore__fail(diag, -EACCES, "%s: cannot be looked into: %s", shown.text, strerror(errno));
    return shore__fail(diag, SHORE_EMISSING, "%s: is not a run: it has no run.json", shown.text);
}

void shore__note(shore__note_fn note, void *ctx, const char *format, ...) {
    char text[1400];
    va_list args;
    if (!note) return;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    note(ctx, text);
}

void shore__run_remember(void *ctx, const char *text) {
    struct shore__run *run = ctx;
    char *both = NULL;
    if (asprintf(&both, "%s%s%s", run->note ? run->note : "", run->note ? "; " : "", text) < 0) return;
    free(run->note);
    run->note = both;
}

void shore__run_forked(struct shore__run *run) {
    int *const held[] = {&run->private->metrics_fd, &run->private->hint_fd, &run->lock_fd};
    for (size_t i = 0; i < sizeof held / sizeof *held; i++) {
        if (*held[i] >= 0) close(*held[i]);
        *held[i] = -1;
    }
}

void shore__run_free(struct shore__run *run) {
    if (!run) return;
    struct shore__run_private *p = run->private;
    if (p->close_texts) p->close_texts(run);
    if (p->metrics_fd >= 0) close(p->metrics_fd);
    if (p->hint_fd >= 0) close(p->hint_fd);
    shore__worker_leave(run);
    if (run->lock_fd >= 0) close(run->lock_fd);
    shore__model_free(run->model);
    shore__contents_free(run->contents);
    shore__settings_free(&run->settings);
    shore__addresses_free(&p->moved);
    shore__strings_free(&p->created);
    shore__addresses_free(&p->fresh);
    json_decref(run->changes);
    free(p->tokenizer_name);
    free(p->home);
    shore__origin_free(&p->origin);
    free(p);
    free(run->change);
    free(run->note);
    free(run->no_data);
    free(run->path);
    free(run->word);
    free(run);
}
