/* Requests about a path without an open drive: what is there, how fast it is, and removing a volume of the client's. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/local/volume_remove.h"
#include "drive/probe/probe.h"
#include "drive/probe/speed.h"
#include "drive/serve/serve_attach.h"
#include "drive/serve/serve_pulse.h"

static int look(const struct shore__serve_options *o, const char *path, unsigned char **result, uint32_t *bytes,
                struct shore_diag *diag) {
    struct shore__probe probe = {0};
    struct shore__address *real = NULL;
    int rc = shore__serve_path(o, path, &real, diag);
    if (!rc) rc = shore__drive_probe(real, &probe, diag);
    if (!rc && !(*result = shore__probe_put(&probe, bytes))) rc = shore__fail(diag, -ENOMEM, "out of memory");
    shore__probe_free(&probe);
    free(real);
    return rc;
}

/* Removes a volume. The tail starts with 16 bytes that say which fleet's it must be. */
static int remove_volume(const struct shore__serve_options *o, const struct shore__wire_request *r, const char *path,
                         struct shore_diag *diag) {
    const uint64_t fleet_id[2] = {shore__get_u64(r->tail), shore__get_u64(r->tail + 8)};
    struct shore__address *real = NULL;
    int rc = shore__serve_path(o, path, &real, diag);
    if (!rc) rc = shore__volume_remove(real->text, fleet_id, r->era, r->flags & SHORE__WIRE_BEGUN, diag);
    free(real);
    return rc;
}

static int measure(const struct shore__serve_options *o, const char *path, unsigned char **result, uint32_t *bytes,
                   struct shore_diag *diag) {
    struct shore__address *real = NULL;
    char *file = NULL;
    uint64_t speed = 0;
    int rc = shore__serve_path(o, path, &real, diag);
    if (!rc && !real->kind->has_file)
        rc = shore__fail(diag, SHORE_EUSAGE, "%s cannot be measured: it is not a drive", path);
    if (!rc) rc = shore__volume_path(real->text, &file, diag);
    if (!rc && !shore__drive_device(file))
        rc = shore__fail(diag, SHORE_EUSAGE, "%s: is a device, and measuring would overwrite it", path);
    if (!rc) rc = shore__drive_measure(file, SHORE_IO_AUTO, &speed, diag);
    if (!rc && !(*result = malloc(8))) rc = shore__fail(diag, -ENOMEM, "out of memory");
    if (!rc) shore__put_u64(*result, speed);
    *bytes = rc ? 0 : 8;
    free(file);
    free(real);
    return rc;
}

static int path_of(const struct shore__wire_request *r, uint32_t skip, char **path, struct shore_diag *diag) {
    if (r->tail_bytes < skip || r->tail_bytes > 8192 || memchr(r->tail + skip, 0, r->tail_bytes - skip))
        return shore__fail(diag, -EINVAL, "this is not a path");
    *path = strndup((const char *)r->tail + skip, r->tail_bytes - skip);
    return *path ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
}

/* Works with signs of life: a volume may be large, and a drive slow. */
static int work_with_a_pulse(struct session *s, uint16_t type, const struct shore__wire_request *r,
                             unsigned char **result, uint32_t *bytes, struct shore_diag *diag) {
    struct serve_pulse pulse;
    char *path = NULL;
    int rc = path_of(r, type == SHORE__WIRE_REMOVE ? 16 : 0, &path, diag);
    if (!rc) rc = shore__serve_pulse_start(&pulse, s, diag);
    if (rc) {
        free(path);
        return rc;
    }
    if (type == SHORE__WIRE_REMOVE)
        rc = remove_volume(s->options, r, path, diag);
    else if (type == SHORE__WIRE_PROBE)
        rc = look(s->options, path, result, bytes, diag);
    else
        rc = measure(s->options, path, result, bytes, diag);
    shore__serve_pulse_stop(&pulse);
    free(path);
    return rc;
}

int shore__serve_probe(struct session *s, const struct shore__wire_header *h, const struct shore__wire_request *r,
                       struct shore_diag *diag) {
    struct shore_diag why = {0};
    unsigned char *result = NULL;
    uint32_t bytes = 0;
    bool link = h->type == SHORE__WIRE_MEASURE && r->kind == SHORE__WIRE_MEASURE_LINK;
    if (link && !h->id) return 0; /* more is to come */
    int rc = link ? 0 : work_with_a_pulse(s, h->type, r, &result, &bytes, &why);
    rc = shore__conn_answer(&s->links[0].conn, h->id, rc, &why, result, bytes, diag);
    free(result);
    return rc;
}
