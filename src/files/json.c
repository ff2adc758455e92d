#include "files/json.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json_stream.h"

struct tree {
    struct shore__json_builder builder;
    const char *name;
};

static int grow(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    struct tree *t = ctx;
    struct shore_diag why = {0};
    if (!t->builder.root && e->kind != SHORE__JSON_OBJECT_OPEN)
        return shore__fail(diag, SHORE_EINPUT, "%s: holds JSON, but not an object in braces", t->name);
    /* readers of the tree expect strings to end at a zero */
    if (e->kind == SHORE__JSON_STRING && memchr(e->text, 0, e->bytes))
        return shore__fail(diag, SHORE_EINPUT, "%s: a string holds the character U+0000", t->name);
    int rc = shore__json_builder_feed(&t->builder, e, &why);
    return rc ? shore__fail(diag, rc, "%s: %s", t->name, why.text) : 0;
}

int shore__json_parse(const char *text, size_t bytes, const char *name, json_t **out, struct shore_diag *diag) {
    struct tree t = {.name = name};
    int rc = shore__json_stream_text(text, bytes, name, 1, grow, &t, diag);
    if (rc == 0) *out = json_incref(t.builder.root);
    shore__json_builder_fini(&t.builder);
    return rc;
}

int shore__json_read(const char *path, size_t limit_bytes, json_t **out, struct shore_diag *diag) {
    struct tree t = {.name = path};
    int rc = shore__json_stream_file(path, limit_bytes, grow, &t, diag);
    if (rc == 0) *out = json_incref(t.builder.root);
    shore__json_builder_fini(&t.builder);
    return rc;
}

bool shore__json_holds(const char *text) {
    json_t *string = json_string(text);
    json_decref(string);
    return string != NULL;
}

int shore__json_write(const char *path, const json_t *value, size_t indent, struct shore_diag *diag) {
    char *text = json_dumps(value, JSON_INDENT(indent > 31 ? 31 : indent));
    struct shore__atomic file;
    if (!text) return shore__fail(diag, -ENOMEM, "%s: no memory to write it", path);
    int rc = shore__atomic_open(path, &file, diag);
    if (rc == 0) {
        size_t bytes = strlen(text);
        rc = shore__write_at(file.fd, text, bytes, 0, path, diag);
        if (rc == 0) rc = shore__write_at(file.fd, "\n", 1, bytes, path, diag);
        if (rc == 0)
            rc = shore__atomic_commit(&file, diag);
        else
            shore__atomic_abort(&file);
    }
    free(text);
    return rc;
}

int shore__json_write_in(const char *directory, const char *name, json_t *value, struct shore_diag *diag) {
    int rc = value ? shore__json_write(shore__path_in(directory, name).text, value, 2, diag)
                   : shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
    json_decref(value);
    return rc;
}

double shore__json_amount(const json_t *object, const char *key) {
    double value = json_number_value(json_object_get(object, key));
    return value > 0 && value < 1e19 ? value : 0;
}
