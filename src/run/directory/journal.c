#include "run/directory/journal.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/paths.h"

/* What a journal must hold. */
enum { FLEET = 1, FROM = 2, TO = 4, NEW = 8, OLD = 16, NAME = 32 };

static const struct {
    const char *name; /* %s: the snapshot's */
    unsigned needs;
    const char *damaged;
} kinds[] = {
    [SHORE__MAKING] = {"making/plan.json", FLEET, "; remove the directory making, with what is in it"},
    [SHORE__MOVING] = {"moving.json", FROM | TO | NEW | OLD, ", and says what to do with volumes; put it back"},
    [SHORE__ROLLING_BACK] = {"rollback.json", FROM | NAME, ", and says where the state is; put it back"},
    [SHORE__SNAPSHOT] = {"snapshots/%s.partial", FLEET | NEW, ", and says which files are to go; put it back"},
};

struct name {
    char text[128];
};
static struct name name_of(enum shore__change what, const char *snapshot) {
    struct name name;
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(name.text, sizeof name.text, kinds[what].name, snapshot);
#pragma GCC diagnostic pop
    return name;
}

int shore__json_read_in(const char *directory, const char *name, json_t **out, struct shore_diag *diag) {
    *out = NULL;
    if (!shore__path_exists(directory, name)) return SHORE_EMISSING;
    return shore__json_read(shore__path_in(directory, name).text, SHORE__RUN_JSON_BYTES_MOST, out, diag);
}

bool shore__journal_is_there(const char *run_path, enum shore__change what, const char *snapshot) {
    return shore__path_exists(run_path, name_of(what, snapshot).text);
}

void shore__journal_free(struct shore__journal *j) {
    for (size_t i = 0; i < j->nleft; i++)
        free(j->left[i].at);
    shore__addresses_free(&j->new);
    shore__addresses_free(&j->old);
    shore__addresses_free(&j->drives);
    shore__origin_free(&j->origin);
    free(j->fresh);
    free(j->left);
    free(j->snapshot);
    free(j->maker);
    *j = (struct shore__journal){0};
}

int shore__journal_leave(struct shore__journal *j, struct shore__left volume) {
    struct shore__left *grown = volume.at ? realloc(j->left, (j->nleft + 1) * sizeof *grown) : NULL;
    if (grown) {
        j->left = grown;
        grown[j->nleft++] = volume;
    } else {
        free(volume.at);
    }
    return grown ? 0 : -ENOMEM;
}

/* ---- its form ---------------------------------------------------------------------------------------------------- */

static const json_t *of(const json_t *j, const char *key, const char *older) {
    const json_t *value = json_object_get(j, key);
    return value ? value : json_object_get(j, older);
}

static const char *text_of(const json_t *j, const char *key) {
    return json_string_value(json_object_get(j, key));
}

static char *copy_of(const json_t *j, const char *key) {
    const char *text = text_of(j, key);
    return text ? strdup(text) : NULL;
}

static int volumes_from(const json_t *new, const json_t *left, struct shore__journal *out) {
    const json_t *item = NULL;
    size_t i = 0;
    int rc = 0;
    out->fresh = calloc(json_array_size(new) + 1, sizeof *out->fresh);
    if (!out->fresh) return -ENOMEM;
    json_array_foreach((json_t *)(uintptr_t) new, i, item) {
        const char *path = json_is_string(item) ? json_string_value(item) : text_of(item, "path");
        if (!rc) rc = path ? shore__addresses_parse(&out->new, path, NULL) : -EINVAL;
        out->fresh[i] = json_is_true(json_object_get(item, "fresh"));
    }
    json_array_foreach((json_t *)(uintptr_t)left, i, item) {
        const char *path = text_of(item, "path");
        const json_t *generation = json_object_get(item, "generation");
        struct shore__left volume = {NULL, (uint64_t)json_integer_value(generation),
                                     json_is_true(json_object_get(item, "undone")),
                                     json_is_true(json_object_get(item, "begun"))};
        if (!rc) rc = path && json_is_integer(generation) ? shore__address_parse(path, &volume.at, NULL) : -EINVAL;
        if (!rc) rc = shore__journal_leave(out, volume);
    }
    return rc;
}

/* Older versions had a form for each kind, and so has the description of a snapshot that is being removed: `volumes`,
 * paths alone, and `generation`. */
static int from_json(const json_t *j, enum shore__change what, struct shore__journal *out) {
    const json_t *from = of(j, "from", "generation"), *to = json_object_get(j, "to");
    const json_t *new = of(j, "new", "volumes"), *old = json_object_get(j, "old");
    const json_t *drives = json_object_get(j, "drives");
    const char *name = text_of(j, "snapshot");
    out->from = (uint64_t)json_integer_value(from);
    out->to = (uint64_t)json_integer_value(to);
    out->committed = json_is_true(json_object_get(j, "committed"));
    out->snapshot = copy_of(j, "snapshot");
    out->maker = copy_of(j, "maker");
    out->origin = (struct shore__origin){copy_of(j, "home"), copy_of(j, "directory")};
    unsigned has = (shore__fleet_id_parse(text_of(j, "fleet"), out->fleet_id) ? FLEET : 0) |
                   (json_is_integer(from) ? FROM : 0) | (json_is_integer(to) ? TO : 0) |
                   (json_is_array(new) ? NEW : 0) | (json_is_array(old) ? OLD : 0) | (name ? NAME : 0);
    int rc = (new && !json_is_array(new)) || (kinds[what].needs & ~has) ? -EINVAL : 0;
    if (!rc && old) rc = shore__addresses_from_json(old, &out->old);
    if (!rc && drives) rc = shore__addresses_from_json(drives, &out->drives);
    return rc ? rc : volumes_from(new, json_object_get(j, "left"), out);
}

static json_t *to_json(const struct shore__journal *in, const struct shore__origin *origin) {
    char fleet[33];
    json_t *new = json_array(), *left = json_array();
    for (size_t i = 0; i < in->nleft; i++)
        json_array_append_new(left, json_pack("{s:s, s:I, s:b, s:b}", "path", in->left[i].at->text, "generation",
                                              (json_int_t)in->left[i].generation, "undone", in->left[i].undone, "begun",
                                              in->left[i].begun));
    for (size_t i = 0; i < in->new.count; i++)
        json_array_append_new(
            new, json_pack("{s:s, s:b}", "path", in->new.text[i], "fresh", in->fresh ? in->fresh[i] : false));
    shore__fleet_id_text(in->fleet_id, fleet);
    /* no home: it is not in UTF-8 */
    return json_pack("{s:s, s:I, s:I, s:o, s:o, s:o, s:s*, s:b, s:s*, s:o*, s:s*, s:o*}", "fleet", fleet, "from",
                     (json_int_t)in->from, "to", (json_int_t)in->to, "new", new, "old",
                     shore__texts_to_json(in->old.text, in->old.count), "left", left, "snapshot", in->snapshot,
                     "committed", in->committed, "maker", in->maker, "home",
                     origin->home ? json_string(origin->home) : NULL, "directory", origin->mark, "drives",
                     in->drives.count ? shore__texts_to_json(in->drives.text, in->drives.count) : NULL);
}

/* Whether a later start reads the same from it. */
static bool reads_back(const json_t *j, enum shore__change what, const struct shore__journal *in) {
    struct shore__journal back = {0};
    int rc = from_json(j, what, &back);
    bool lists = (back.new.count == in->new.count) && (back.old.count == in->old.count) && (back.nleft == in->nleft) &&
                 (back.drives.count == in->drives.count);
    bool same = !rc && lists && back.from == in->from && back.to == in->to &&
                memcmp(back.fleet_id, in->fleet_id, sizeof back.fleet_id) == 0;
    shore__journal_free(&back);
    return rc == -ENOMEM || same;
}

/* ---- on disk ----------------------------------------------------------------------------------------------------- */

int shore__journal_read(const char *run_path, enum shore__change what, const char *snapshot, struct shore__journal *out,
                        struct shore_diag *diag) {
    json_t *j = NULL;
    const struct name name = name_of(what, snapshot);
    *out = (struct shore__journal){0};
    int rc = shore__json_read_in(run_path, name.text, &j, diag);
    if (!rc && from_json(j, what, out)) {
        rc = shore__fail(diag, SHORE_EINPUT, "%s/%s: has been changed by hand%s", run_path, name.text,
                         kinds[what].damaged);
        shore__journal_free(out);
    }
    json_decref(j);
    return rc;
}

int shore__journal_write(const char *run_path, enum shore__change what, const char *snapshot,
                         const struct shore__journal *in, struct shore_diag *diag) {
    struct shore__origin origin = {0};
    int rc = what == SHORE__MAKING ? shore__origin_take(run_path, &origin, diag) : 0;
    json_t *j = rc ? NULL : to_json(in, &origin);
    assert(!j || reads_back(j, what, in));
    if (!rc) rc = shore__json_write_in(run_path, name_of(what, snapshot).text, j, diag);
    shore__origin_free(&origin);
    return rc;
}

int shore__journal_clear(const char *run_path, enum shore__change what, const char *snapshot, struct shore_diag *diag) {
    const struct name name = name_of(what, snapshot);
    const struct shore__path path = shore__path_in(run_path, name.text);
    shore__atomic_remove(path.text);
    if (unlink(path.text) < 0 && errno != ENOENT) return shore__fail_errno(diag, path.text, "cannot be removed");
    return shore__parent_sync(path.text, diag);
}
