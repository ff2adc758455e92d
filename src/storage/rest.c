#include "storage/rest.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "storage/hash.h"
#include "storage/room.h"
#include "storage/volume_internal.h"

#define ENDING ".rest"
#define BEGUN ENDING ".partial"
enum { KEY_BYTES = 16 };

static char *named(const char *path, const char *ending) {
    char *name = NULL;
    return asprintf(&name, "%s%s", path, ending) < 0 ? NULL : name;
}

static int no_memory(const char *path, struct shore_diag *diag) {
    return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
}

bool shore__rest_is_there(const struct shore__volume *v) {
    for (uint32_t e = 0; e < v->desc.nextents; e++)
        if (shore__extent_rests(&v->desc, &v->desc.extents[e])) return true;
    return false;
}

void shore__rest_key(const struct shore__volume *v, unsigned slot, unsigned char key[KEY_BYTES]) {
    uint64_t seed = 0;
    memset(key, 0, KEY_BYTES);
    for (uint32_t e = 0; e < v->desc.nextents; e++) {
        const struct shore__extent *extent = &v->desc.extents[e];
        if (!shore__extent_rests(&v->desc, extent)) continue;
        unsigned char sum[KEY_BYTES];
        shore__hash128(&v->table[slot][extent->local], extent->count * sizeof **v->table, seed, sum);
        shore__hash128(sum, sizeof sum, seed ^ extent->local, sum);
        memcpy(&seed, sum, sizeof seed);
        for (unsigned i = 0; i < KEY_BYTES; i++)
            key[i] ^= sum[i];
    }
}

/* ---- made ---------------------------------------------------------------------------------------------------------
 */

static bool holds(const char *path, const struct shore__volume *v, const unsigned char *key) {
    struct shore__volume other;
    if (shore__volume_peek(path, &other, NULL)) return false;
    const struct shore__volume_desc *a = &v->desc, *b = &other.desc;
    bool same = memcmp(a->fleet_id, b->fleet_id, sizeof a->fleet_id) == 0 && a->drive == b->drive &&
                a->generation == b->generation && a->segments == b->segments && a->nextents == b->nextents &&
                memcmp(a->extents, b->extents, a->nextents * sizeof *a->extents) == 0 &&
                memcmp(a->plane_bytes, b->plane_bytes, sizeof a->plane_bytes) == 0 && b->identity_bytes == KEY_BYTES &&
                memcmp(b->identity, key, KEY_BYTES) == 0 && !other.record_valid;
    shore__volume_close(&other);
    return same;
}

static bool is_rest_of_a_snapshot(const char *name) {
    size_t n = strlen(name), tail = sizeof ENDING - 1;
    return n > tail && strcmp(name + n - tail, ENDING) == 0 && strstr(name, ".snapshot-");
}

int shore__rest_link(const struct shore__volume *v, const unsigned char key[16], const char *path,
                     struct shore_diag *diag) {
    const char *slash = strrchr(path, '/');
    char *directory = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup("./");
    char *to = named(path, ENDING);
    DIR *d = directory && to ? opendir(directory) : NULL;
    int rc = directory && to ? 1 : no_memory(path, diag);
    for (const struct dirent *entry; rc == 1 && d && (entry = readdir(d));) {
        char *from = is_rest_of_a_snapshot(entry->d_name) ? named(directory, entry->d_name) : NULL;
        if (from && holds(from, v, key) && link(from, to) == 0) rc = 0;
        free(from);
    }
    if (d) closedir(d);
    free(directory);
    free(to);
    return rc;
}

int shore__rest_create(const struct shore__volume *v, const unsigned char key[16], const char *path,
                       struct shore__volume *out, struct shore_diag *diag) {
    struct shore__volume_desc desc = v->desc;
    char *begun = named(path, BEGUN);
    if (!begun) return no_memory(path, diag);
    desc.spill = false;
    desc.scratch_bytes = 0;
    desc.identity = key;
    desc.identity_bytes = KEY_BYTES;
    int rc = shore__volume_create_part(begun, &desc, SHORE__ROOM_REST, SHORE_IO_THREADS, out, diag);
    free(begun);
    return rc;
}

int shore__rest_name(const char *path, struct shore_diag *diag) {
    char *from = named(path, BEGUN), *to = named(path, ENDING);
    int rc = from && to ? 0 : no_memory(path, diag);
    if (!rc && rename(from, to))
        rc = shore__fail(diag, -errno, "%s: cannot be put in its place: %s", from, shore_error_text(-errno));
    free(from);
    free(to);
    return rc;
}

/* ---- read, removed ------------------------------------------------------------------------------------------------
 */

int shore__rest_open(struct shore__volume *snapshot, enum shore_io io, struct shore_diag *diag) {
    struct shore__file *rest = calloc(1, sizeof *rest);
    char *path = named(snapshot->file.path, ENDING);
    int rc = rest && path ? shore__file_open_to_read(path, io, SHORE__LOCK_SECONDS, rest, diag)
                          : no_memory(snapshot->file.path, diag);
    if (rc == -ENOENT)
        rc = shore__fail(diag, SHORE_EMISSING,
                         "%s is missing, which holds the frozen blocks of the snapshot %s: put it back", path,
                         snapshot->file.path);
    if (!rc && rest->size_bytes < snapshot->size_bytes) {
        rc = shore__fail(
            diag, SHORE_ECORRUPT,
            "%s: cut off: it has %llu bytes, and the snapshot %s needs %llu; put the file back from a copy", path,
            (unsigned long long)rest->size_bytes, snapshot->file.path, (unsigned long long)snapshot->size_bytes);
        shore__file_close(rest);
    }
    free(path);
    if (rc) {
        free(rest);
        return rc;
    }
    snapshot->file.rest = rest;
    snapshot->file.rest_from = snapshot->at.plane[1][0];
    return 0;
}

/* begun: without a header, too. */
static int remove_own(const char *snapshot, const char *ending, const uint64_t fleet_id[2], bool begun,
                      struct shore_diag *diag) {
    unsigned char page[SHORE__PAGE_BYTES] = {0};
    struct shore__header header;
    char *path = named(snapshot, ending);
    if (!path) return no_memory(snapshot, diag);
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    bool read = fd >= 0 && pread(fd, page, sizeof page, 0) >= 0;
    if (fd >= 0) close(fd);
    enum shore__parse parse = read ? shore__header_parse(page, &header) : SHORE__PARSE_FOREIGN;
    bool own = parse == SHORE__PARSE_OK && memcmp(header.desc.fleet_id, fleet_id, sizeof header.desc.fleet_id) == 0;
    own |= begun && (parse == SHORE__PARSE_EMPTY || parse == SHORE__PARSE_DAMAGED);
    if (own && unlink(path))
        rc = shore__fail(diag, -errno, "%s: cannot be removed: %s", path, shore_error_text(-errno));
    free(path);
    return rc;
}

int shore__rest_remove(const char *snapshot, const uint64_t fleet_id[2], struct shore_diag *diag) {
    int rc = remove_own(snapshot, ENDING, fleet_id, false, diag);
    return rc ? rc : remove_own(snapshot, BEGUN, fleet_id, true, diag);
}
