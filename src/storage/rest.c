#include "storage/rest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "storage/hash.h"
#include "storage/room.h"
#include "storage/volume_internal.h"

static int no_memory(const char *path, struct shore_diag *diag) {
    return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
}

/* ---- made -------------------------------------------------------------------------------------------------------- */

bool shore__rest_is_there(const struct shore__volume *v) {
    for (uint32_t e = 0; e < v->desc.nextents; e++)
        if (shore__extent_rests(&v->desc, &v->desc.extents[e])) return true;
    return false;
}

void shore__rest_key(const struct shore__volume *v, unsigned slot, unsigned char key[SHORE__REST_KEY_BYTES]) {
    uint64_t seed = v->desc.generation << 32 ^ v->desc.drive;
    memset(key, 0, SHORE__REST_KEY_BYTES);
    for (uint32_t e = 0; e < v->desc.nextents; e++) {
        const struct shore__extent *extent = &v->desc.extents[e];
        unsigned char both[2 * SHORE__REST_KEY_BYTES];
        if (!shore__extent_rests(&v->desc, extent)) continue;
        memcpy(both, key, SHORE__REST_KEY_BYTES);
        shore__hash128(&v->table[slot][extent->local], extent->count * sizeof **v->table, seed ^ extent->local,
                       both + SHORE__REST_KEY_BYTES);
        shore__hash128(both, sizeof both, 0, key);
    }
}

bool shore__rest_is_made(const struct shore__volume *v, const struct shore__volume *snapshot) {
    struct shore__volume rest;
    char *path = shore__rest_path(snapshot, false);
    bool there = path && shore__volume_peek(path, &rest, NULL) == 0;
    free(path);
    if (!there) return false;
    const struct shore__volume_desc *a = &v->desc, *b = &rest.desc;
    bool same = memcmp(a->fleet_id, b->fleet_id, sizeof a->fleet_id) == 0 && a->drive == b->drive &&
                a->generation == b->generation && a->segments == b->segments && a->nextents == b->nextents &&
                memcmp(a->extents, b->extents, a->nextents * sizeof *a->extents) == 0 &&
                memcmp(a->plane_bytes, b->plane_bytes, sizeof a->plane_bytes) == 0 &&
                b->identity_bytes == SHORE__REST_KEY_BYTES &&
                memcmp(b->identity, snapshot->desc.rest_key, SHORE__REST_KEY_BYTES) == 0;
    shore__volume_close(&rest);
    return same;
}

int shore__rest_create(const struct shore__volume *snapshot, struct shore__volume *out, struct shore_diag *diag) {
    struct shore__volume_desc desc = snapshot->desc;
    char *begun = shore__rest_path(snapshot, true);
    if (!begun) return no_memory(snapshot->file.path, diag);
    unlink(begun); /* left by a process that was killed */
    desc.apart = false;
    desc.identity = snapshot->desc.rest_key;
    desc.identity_bytes = SHORE__REST_KEY_BYTES;
    int rc = shore__volume_create_part(begun, &desc, SHORE__ROOM_REST, SHORE_IO_THREADS, out, diag);
    free(begun);
    return rc;
}

int shore__rest_name(const struct shore__volume *snapshot, struct shore_diag *diag) {
    char *from = shore__rest_path(snapshot, true), *to = shore__rest_path(snapshot, false);
    int rc = from && to ? 0 : no_memory(snapshot->file.path, diag);
    if (!rc && rename(from, to)) rc = shore__fail_errno(diag, from, "cannot be put in its place");
    free(from);
    free(to);
    return rc;
}

/* ---- removed ----------------------------------------------------------------------------------------------------- */

/* Reads either copy of a header. DAMAGED: also if the file cannot be read. */
static enum shore__parse read_header(int directory, const char *name, struct shore__header *out) {
    static const off_t copies[] = {SHORE__HEADER_A_OFFSET, SHORE__HEADER_B_OFFSET};
    enum shore__parse found = SHORE__PARSE_EMPTY;
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return errno == ENOENT ? SHORE__PARSE_EMPTY : SHORE__PARSE_DAMAGED;
    for (int i = 0; i < 2 && found != SHORE__PARSE_OK; i++) {
        unsigned char page[SHORE__PAGE_BYTES] = {0};
        ssize_t n = pread(fd, page, sizeof page, copies[i]);
        enum shore__parse parse = n >= 0            ? shore__header_parse(page, out)
                                  : errno == EISDIR ? SHORE__PARSE_FOREIGN
                                                    : SHORE__PARSE_DAMAGED;
        if (i == 0 || parse == SHORE__PARSE_OK || found == SHORE__PARSE_EMPTY) found = parse;
    }
    close(fd);
    return found;
}

static bool is_of(const struct shore__header *header, const uint64_t fleet_id[2]) {
    return memcmp(header->desc.fleet_id, fleet_id, sizeof header->desc.fleet_id) == 0;
}

/* Whether a snapshot, finished or not, names the file with this key. A damaged one may. */
static bool is_named(DIR *d, const uint64_t fleet_id[2], uint64_t key) {
    struct shore__header header;
    rewinddir(d);
    for (const struct dirent *entry; (entry = readdir(d));) {
        if (!strstr(entry->d_name, ".snapshot-")) continue;
        enum shore__parse parse = read_header(dirfd(d), entry->d_name, &header);
        if (parse == SHORE__PARSE_DAMAGED || parse == SHORE__PARSE_VERSION) return true;
        if (parse == SHORE__PARSE_OK && header.desc.apart && is_of(&header, fleet_id) &&
            shore__get_u64(header.desc.rest_key) == key)
            return true;
    }
    return false;
}

/* Whether a file belongs to this fleet. One without a whole header was begun by a process that was killed. */
static bool is_own(DIR *d, const char *name, const uint64_t fleet_id[2]) {
    struct shore__header header;
    enum shore__parse parse = read_header(dirfd(d), name, &header);
    return parse == SHORE__PARSE_OK ? is_of(&header, fleet_id)
                                    : parse == SHORE__PARSE_EMPTY || parse == SHORE__PARSE_DAMAGED;
}

int shore__rest_sweep(const char *path, const uint64_t fleet_id[2], struct shore_diag *diag) {
    size_t n = shore__rest_directory_bytes(path);
    char *directory = n ? strndup(path, n) : strdup("."), *name = NULL;
    DIR *d = directory ? opendir(directory) : NULL, *others = directory ? opendir(directory) : NULL;
    int rc = directory ? 0 : no_memory(path, diag);
    for (const struct dirent *entry; !rc && d && others && (entry = readdir(d));) {
        uint64_t key;
        if (!shore__rest_is_name(entry->d_name, fleet_id, &key) || !is_own(d, entry->d_name, fleet_id) ||
            is_named(others, fleet_id, key))
            continue;
        if (asprintf(&name, "%.*s%s", (int)n, path, entry->d_name) < 0) name = NULL;
        if (!name) rc = no_memory(path, diag);
        if (name && unlink(name) && errno != ENOENT) rc = shore__fail_errno(diag, name, "cannot be removed");
        free(name);
    }
    if (d) closedir(d);
    if (others) closedir(others);
    free(directory);
    return rc;
}
