#include "text/data_files.h"

#include <errno.h>
#include <fts.h>
#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/hub.h"

#define NAMED_MOST 6 /* names in a note */
#define ENDINGS ".txt, .text, .jsonl, .ndjson, .json and .bin, each also with .gz or .zst"

/* Names for a message. */
struct names {
    char text[600];
    size_t count;
};

struct find {
    struct shore__data_files *out;
    size_t name; /* that stands for the files being found */
    shore__note_fn note;
    void *note_ctx;
    struct names taken, left; /* of the current directory or pattern */
    const char *advice;       /* for the first file left out */
};

static void name(struct names *n, const char *path) {
    char shown[120];
    size_t used = strlen(n->text), room = sizeof n->text - used;
    if (n->count++ < NAMED_MOST)
        snprintf(n->text + used, room, "%s%s", used ? ", " : "",
                 shore__escape(path, strlen(path), shown, sizeof shown));
    else if (n->count == NAMED_MOST + 1)
        snprintf(n->text + used, room, ", ...");
}

static int take(struct find *f, const char *path, struct shore_diag *diag) {
    struct shore__data_files *out = f->out;
    struct stat info;
    if (stat(path, &info) != 0) {
        int code = errno;
        return shore__fail(diag, code == ENOENT ? SHORE_EMISSING : -code, "%s: cannot read it: %s", path,
                           strerror(code));
    }
    struct shore__data_file *grown = realloc(out->file, (out->count + 1) * sizeof *grown);
    if (grown) out->file = grown;
    char *copy = strdup(path);
    if (!grown || !copy) {
        free(copy);
        return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    }
    out->file[out->count++] = (struct shore__data_file){copy, (uint64_t)info.st_size, f->name};
    out->total_bytes += (uint64_t)info.st_size;
    return 0;
}

/* Whether the directory is a run: training on a directory may write its run into it. */
static bool is_run(const char *directory) {
    return shore__path_exists(directory, "run.json") || shore__path_exists(directory, "making");
}

/* Whether a file describes a data set of Hugging Face. */
static bool is_description(const char *path) {
    static const char *const names[] = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"};
    const char *slash = strrchr(path, '/'), *last = slash ? slash + 1 : path;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (!strcmp(last, names[i])) return true;
    return false;
}

static int take_entry(struct find *f, const char *path, struct shore_diag *diag) {
    const char *advice;
    bool known;
    enum shore__data_kind kind = shore__data_kind_of(path, &advice, &known);
    if (known && !is_description(path) && kind != SHORE__DATA_FOREIGN) {
        name(&f->taken, path);
        return take(f, path, diag);
    }
    name(&f->left, path);
    if (kind == SHORE__DATA_FOREIGN && !f->advice) f->advice = advice;
    return 0;
}

static int by_name(const FTSENT **a, const FTSENT **b) {
    return strcmp((*a)->fts_name, (*b)->fts_name);
}

static int visit(struct find *f, FTS *tree, FTSENT *entry, struct shore_diag *diag) {
    bool hidden = entry->fts_level > 0 && entry->fts_name[0] == '.';
    switch (entry->fts_info) {
    case FTS_D:
        if (!hidden && !is_run(entry->fts_path)) return 0;
        if (!hidden) name(&f->left, entry->fts_path);
        fts_set(tree, entry, FTS_SKIP);
        return 0;
    case FTS_DP:
        return 0;
    case FTS_F:
    case FTS_SLNONE: /* a link to nothing: opening it reports the error */
        return hidden ? 0 : take_entry(f, entry->fts_path, diag);
    case FTS_DC:
        return shore__fail(diag, SHORE_EINPUT, "%s: is a link to a directory above it: remove it", entry->fts_path);
    case FTS_DNR:
    case FTS_ERR:
    case FTS_NS:
        return hidden ? 0
                      : shore__fail(diag, -entry->fts_errno, "%s: cannot be looked into: %s", entry->fts_path,
                                    strerror(entry->fts_errno));
    default: /* pipes, sockets, devices */
        if (!hidden) name(&f->left, entry->fts_path);
        return 0;
    }
}

static int take_directory(struct find *f, const char *path, struct shore_diag *diag) {
    char *root = strdup(path);
    if (!root) return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    for (size_t n = strlen(root); n > 1 && root[n - 1] == '/'; n--)
        root[n - 1] = '\0';
    char *const roots[] = {root, NULL};
    FTS *tree = fts_open(roots, FTS_LOGICAL | FTS_NOCHDIR, by_name);
    FTSENT *entry;
    int rc = tree ? 0 : shore__fail_errno(diag, path, "cannot be looked into");
    errno = 0;
    while (rc == 0 && (entry = fts_read(tree))) {
        rc = visit(f, tree, entry, diag);
        errno = 0;
    }
    if (rc == 0 && errno) rc = shore__fail_errno(diag, path, "cannot be read");
    if (tree) fts_close(tree);
    free(root);
    return rc;
}

static void say(const struct find *f, const char *what, size_t count) {
    char text[1500];
    if (!f->note) return;
    snprintf(text, sizeof text, "%.200s: %zu file%s read: %s", what, count, count == 1 ? " is" : "s are",
             f->taken.text);
    f->note(f->note_ctx, text);
    if (!f->left.count) return;
    snprintf(text, sizeof text, "%.200s: not read, since the names do not end as those of data do (" ENDINGS "): %s",
             what, f->left.text);
    f->note(f->note_ctx, text);
}

/* Refuses a name without any readable file. */
static int refuse_empty(const struct find *f, const char *path, struct shore_diag *diag) {
    if (!f->left.count)
        return shore__fail(diag, SHORE_EINPUT, "%s: is a directory without data: files whose names end in " ENDINGS,
                           path);
    return shore__fail(diag, SHORE_EINPUT, "%s: nothing in it is read by its name (" ENDINGS " are); there is %s%s%s",
                       path, f->left.text, f->advice ? ", which " : "; give files of text themselves, or '*'",
                       f->advice ? f->advice : "");
}

static bool is_directory(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static int take_matches(struct find *f, const char *pattern, const glob_t *found, struct shore_diag *diag) {
    int rc = 0;
    for (size_t i = 0; rc == 0 && i < found->gl_pathc; i++) {
        const char *path = found->gl_pathv[i];
        if (is_directory(path)) {
            rc = take_directory(f, path, diag);
        } else {
            name(&f->taken, path);
            rc = take(f, path, diag);
        }
    }
    return rc;
}

static int compare(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Ignores a missing path, which matches nothing. One that cannot be read might match. */
static int on_glob_error(const char *path, int code) {
    return code != ENOENT && code != ENOTDIR;
}

static int take_pattern(struct find *f, const char *pattern, struct shore_diag *diag) {
    glob_t found = {0};
    if (strstr(pattern, "**"))
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: \"**\" is not supported: give the directory, which is read with everything below it",
                           pattern);
    int status = glob(pattern, GLOB_BRACE | GLOB_NOSORT, on_glob_error, &found), rc;
    if (status == GLOB_NOMATCH)
        rc = shore__fail(diag, SHORE_EMISSING, "%s: no file matches it", pattern);
    else if (status)
        rc = shore__fail(diag, status == GLOB_NOSPACE ? -ENOMEM : -EACCES, "%s: directories on its way cannot be read",
                         pattern);
    else {
        qsort(found.gl_pathv, found.gl_pathc, sizeof *found.gl_pathv, compare);
        rc = take_matches(f, pattern, &found, diag);
    }
    globfree(&found);
    return rc;
}

static int find_one(struct find *f, const char *path, struct shore_diag *diag) {
    struct stat info;
    size_t before = f->out->count;
    bool directory = is_directory(path), pattern = lstat(path, &info) != 0 && strpbrk(path, "*?[");
    f->taken = f->left = (struct names){0};
    f->advice = NULL;
    if (!directory && !pattern) return take(f, path, diag);
    int rc = directory ? take_directory(f, path, diag) : take_pattern(f, path, diag);
    if (rc) return rc;
    if (f->out->count == before) return refuse_empty(f, path, diag);
    say(f, path, f->out->count - before);
    return 0;
}

int shore__data_files_find(const char *const *names, size_t count, shore__note_fn note, void *note_ctx,
                           struct shore__data_files *out, struct shore_diag *diag) {
    struct find f = {.out = out, .note = note, .note_ctx = note_ctx};
    int rc = 0;
    *out = (struct shore__data_files){0};
    for (size_t i = 0; rc == 0 && i < count; i++) {
        f.name = i;
        rc = shore__hub_refuse("", names[i], SHORE__HUB_DATA, diag);
        if (!rc) rc = find_one(&f, names[i], diag);
    }
    if (rc) shore__data_files_free(out);
    return rc;
}

void shore__data_files_free(struct shore__data_files *files) {
    for (size_t i = 0; i < files->count; i++)
        free(files->file[i].path);
    free(files->file);
    *files = (struct shore__data_files){0};
}
