#include "drive/probe.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/transport.h"

#define FIXED_BYTES 36u

unsigned char *shore__probe_put(const struct shore__probe *p, uint32_t *bytes) {
    uint32_t path_bytes = p->path ? (uint32_t)strlen(p->path) : 0;
    unsigned char *out = malloc(FIXED_BYTES + (size_t)path_bytes + p->identity_bytes);
    if (!out) return NULL;
    *bytes = FIXED_BYTES + path_bytes + p->identity_bytes;
    shore__put_u32(out, (p->exists ? 1u : 0) | (p->is_volume ? 2u : 0) | (p->sealed ? 4u : 0) | (p->busy ? 8u : 0) |
                            (p->is_device ? 16u : 0));
    shore__put_u64(out + 4, p->fleet_id[0]);
    shore__put_u64(out + 12, p->fleet_id[1]);
    shore__put_u64(out + 20, p->capacity_bytes);
    shore__put_u32(out + 28, path_bytes);
    shore__put_u32(out + 32, p->identity_bytes);
    if (path_bytes) memcpy(out + FIXED_BYTES, p->path, path_bytes);
    if (p->identity_bytes) memcpy(out + FIXED_BYTES + path_bytes, p->identity, p->identity_bytes);
    return out;
}

bool shore__probe_get(const unsigned char *in, uint32_t bytes, struct shore__probe *out) {
    *out = (struct shore__probe){0};
    if (bytes < FIXED_BYTES) return false;
    uint32_t flags = shore__get_u32(in), path_bytes = shore__get_u32(in + 28), identity_bytes = shore__get_u32(in + 32);
    if (path_bytes > bytes - FIXED_BYTES || identity_bytes != bytes - FIXED_BYTES - path_bytes ||
        identity_bytes > SHORE__IDENTITY_BYTES || memchr(in + FIXED_BYTES, 0, path_bytes))
        return false;
    out->exists = flags & 1;
    out->is_volume = flags & 2;
    out->sealed = flags & 4;
    out->busy = flags & 8;
    out->is_device = flags & 16;
    out->fleet_id[0] = shore__get_u64(in + 4);
    out->fleet_id[1] = shore__get_u64(in + 12);
    out->capacity_bytes = shore__get_u64(in + 20);
    out->path = strndup((const char *)in + FIXED_BYTES, path_bytes);
    out->identity_bytes = identity_bytes;
    out->identity = malloc((size_t)identity_bytes + 1);
    if (!out->path || !out->identity) {
        shore__probe_free(out);
        return false;
    }
    memcpy(out->identity, in + FIXED_BYTES + path_bytes, identity_bytes);
    return true;
}

void shore__probe_free(struct shore__probe *p) {
    free(p->path);
    free(p->identity);
    *p = (struct shore__probe){0};
}

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

int shore__remote_probe(const char *uri, struct shore__probe *out, struct shore_diag *diag) {
    *out = (struct shore__probe){0};
    return ask(uri, (struct shore__wire_request){.type = SHORE__WIRE_PROBE}, NULL, 0, out, diag);
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
