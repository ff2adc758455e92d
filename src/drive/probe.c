#include "drive/probe.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/placement.h"
#include "drive/speed.h"
#include "drive/transport.h"
#include "drive/wire_open.h"

/* ---- here -------------------------------------------------------------------------------------------------------- */

static int look_into(struct shore__probe *p, struct shore_diag *diag) {
    struct shore__volume v;
    if (shore__volume_peek(p->path, &v, &p->trouble)) return 0;
    p->is_volume = true;
    p->size_bytes = v.size_bytes;
    shore__volume_recovery(&v, &p->recovery);
    p->desc = v.desc;
    p->desc.extents = NULL;
    p->desc.identity = malloc((size_t)v.desc.identity_bytes + 1);
    if (p->desc.identity) memcpy((void *)p->desc.identity, v.desc.identity, v.desc.identity_bytes);
    shore__volume_close(&v);
    return p->desc.identity ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
}

static int look(const char *path, struct shore__probe *p, struct shore_diag *diag) {
    struct stat st;
    int rc = shore__volume_path(path, &p->path, diag);
    if (rc) return rc;
    p->capacity_bytes = shore__drive_capacity_bytes(path);
    p->device = shore__drive_device(p->path);
    p->exists = stat(p->path, &st) == 0;
    if (!p->exists) return 0;
    p->is_device = S_ISBLK(st.st_mode);
    int fd = open(p->path, O_RDONLY | O_CLOEXEC);
    if (fd >= 0) {
        p->busy = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
        close(fd);
    }
    rc = look_into(p, diag);
    if (rc) shore__probe_free(p);
    return rc;
}

/* ---- on the wire ------------------------------------------------------------------------------------------------- */

#define FIXED_BYTES (48u + SHORE__WIRE_VOLUME_BYTES)
enum { THERE = 1, VOLUME = 2, IN_USE = 8, DEVICE = 16 };

unsigned char *shore__probe_put(const struct shore__probe *p, uint32_t *bytes) {
    unsigned char recovery[SHORE__WIRE_RECOVERY_BYTES];
    const struct {
        const void *data;
        uint32_t bytes;
    } parts[] = {{p->path, p->path ? (uint32_t)strlen(p->path) : 0},
                 {p->desc.identity, p->desc.identity_bytes},
                 {recovery, p->is_volume ? shore__wire_recovery_put(recovery, &p->recovery) : 0},
                 {p->trouble.text, (uint32_t)strlen(p->trouble.text)}};
    *bytes = FIXED_BYTES + parts[0].bytes + parts[1].bytes + parts[2].bytes + parts[3].bytes;
    unsigned char *out = malloc(*bytes), *at = out;
    if (!out) return NULL;
    shore__put_u32(at, (p->exists ? THERE : 0u) | (p->is_volume ? VOLUME : 0u) | (p->busy ? IN_USE : 0u) |
                           (p->is_device ? DEVICE : 0u));
    shore__put_u64(at + 4, p->capacity_bytes);
    shore__put_u64(at + 12, p->device);
    shore__put_u64(at + 20, p->size_bytes);
    shore__put_u32(at + 28, p->desc.nextents);
    for (int i = 0; i < 4; i++)
        shore__put_u32(at + 32 + 4 * i, parts[i].bytes);
    shore__wire_volume_put(at + 48, &p->desc);
    at += FIXED_BYTES;
    for (int i = 0; i < 4; at += parts[i++].bytes)
        if (parts[i].bytes) memcpy(at, parts[i].data, parts[i].bytes);
    return out;
}

bool shore__probe_get(const unsigned char *in, uint32_t bytes, struct shore__probe *out) {
    const unsigned char *part[4];
    uint32_t part_bytes[4];
    *out = (struct shore__probe){0};
    if (bytes < FIXED_BYTES) return false;
    uint32_t flags = shore__get_u32(in), left = bytes - FIXED_BYTES;
    for (int i = 0; i < 4; i++) {
        part_bytes[i] = shore__get_u32(in + 32 + 4 * i);
        part[i] = in + bytes - left;
        if (part_bytes[i] > left) return false;
        left -= part_bytes[i];
    }
    if (left || memchr(part[0], 0, part_bytes[0]) || part_bytes[1] > SHORE__IDENTITY_BYTES ||
        part_bytes[3] >= sizeof out->trouble.text || memchr(part[3], 0, part_bytes[3]))
        return false;
    out->exists = flags & THERE;
    out->is_volume = flags & VOLUME;
    out->busy = flags & IN_USE;
    out->is_device = flags & DEVICE;
    out->capacity_bytes = shore__get_u64(in + 4);
    out->device = shore__get_u64(in + 12);
    out->size_bytes = shore__get_u64(in + 20);
    if (out->is_volume && (!shore__wire_volume_get(in + 48, &out->desc) ||
                           !shore__wire_recovery_get(part[2], part_bytes[2], &out->recovery)))
        return false;
    out->desc.nextents = shore__get_u32(in + 28);
    memcpy(out->trouble.text, part[3], part_bytes[3]);
    out->path = strndup((const char *)part[0], part_bytes[0]);
    out->desc.identity_bytes = part_bytes[1];
    out->desc.identity = malloc((size_t)part_bytes[1] + 1);
    if (!out->path || !out->desc.identity) {
        shore__probe_free(out);
        return false;
    }
    memcpy((void *)out->desc.identity, part[1], part_bytes[1]);
    return true;
}

void shore__probe_free(struct shore__probe *p) {
    free(p->path);
    free((void *)p->desc.identity);
    *p = (struct shore__probe){0};
}

/* ---- there ------------------------------------------------------------------------------------------------------- */

/* One request before any drive is open. prefix: of the tail, before the path. */
static int ask(const char *uri, struct shore__wire_request r, const unsigned char *prefix, uint32_t prefix_bytes,
               struct shore__probe *probe, struct shore_diag *diag) {
    struct shore__place place;
    struct shore__way way;
    struct shore__wire_header h;
    struct shore__wire_answer a;
    struct shore_diag why = {""};
    unsigned char *body = NULL;
    size_t room = 0;
    int rc = shore__place_parse(uri, &place, diag);
    if (rc) return rc;
    rc = shore__way_open(uri, &place, &way, diag);
    if (rc) {
        shore__place_free(&place);
        return rc;
    }
    uint32_t path_bytes = (uint32_t)strlen(place.path);
    unsigned char *request = malloc(SHORE__WIRE_FIELDS_BYTES + prefix_bytes + path_bytes);
    if (!request) {
        rc = shore__fail(&why, -ENOMEM, "out of memory");
    } else {
        r.tail_bytes = prefix_bytes + path_bytes;
        shore__wire_request_put(request, &r);
        if (prefix_bytes) memcpy(request + SHORE__WIRE_FIELDS_BYTES, prefix, prefix_bytes);
        memcpy(request + SHORE__WIRE_FIELDS_BYTES + prefix_bytes, place.path, path_bytes);
        struct shore__frame frame = {.type = r.type,
                                     .id = 1,
                                     .body = request,
                                     .body_bytes = SHORE__WIRE_FIELDS_BYTES + prefix_bytes + path_bytes};
        rc = shore__conn_send(&way.conn, &frame, &why);
    }
    do {
        if (!rc) rc = shore__conn_receive(&way.conn, false, &h, &body, &room, &why);
    } while (!rc && h.type != SHORE__WIRE_DONE);
    if (!rc) rc = shore__wire_answer_get(&h, body, &a, &why);
    if (rc) {
        rc = shore__way_explain(uri, &place, &way, rc, &why, diag);
    } else if (a.rc) {
        rc = shore__fail(diag, a.rc, "%s: %.*s", uri, (int)(a.text_bytes < 700 ? a.text_bytes : 700), a.text);
    } else if (probe && !shore__probe_get(a.result, a.result_bytes, probe)) {
        rc = shore__fail(diag, SHORE_ELINK, "%s: its answer cannot be understood", uri);
    }
    free(request);
    free(body);
    shore__way_close(&way);
    shore__place_free(&place);
    return rc;
}

int shore__drive_probe(const char *path, struct shore__probe *out, struct shore_diag *diag) {
    *out = (struct shore__probe){0};
    if (!shore__path_is_remote(path)) return look(path, out, diag);
    return ask(path, (struct shore__wire_request){.type = SHORE__WIRE_PROBE}, NULL, 0, out, diag);
}

int shore__remote_remove(const char *uri, const uint64_t fleet_id[2], uint64_t generation, bool begun,
                         struct shore_diag *diag) {
    struct shore__wire_request r = {
        .type = SHORE__WIRE_REMOVE, .era = generation, .flags = begun ? SHORE__WIRE_BEGUN : 0};
    unsigned char id[16];
    shore__put_u64(id, fleet_id[0]);
    shore__put_u64(id + 8, fleet_id[1]);
    return ask(uri, r, id, sizeof id, NULL, diag);
}
