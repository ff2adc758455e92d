/* Opens, closes and reconnects a remote drive. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/thread.h"
#include "drive/remote/remote_link.h"

static unsigned connections(const struct remote *r) {
    const char *text = getenv(SHORE__CONNECTIONS_VARIABLE);
    long n = text ? strtol(text, NULL, 10) : 0;
    if (!r->at) return 1;
    return n >= 1 && n <= (long)REMOTE_LINKS_MOST ? (unsigned)n : 1;
}

/* Sends one request and receives its answer, on a connection without threads. The answer's body is kept. */
static int ask(struct remote *r, struct shore__way *way, const struct shore__frame *frame, unsigned char **body,
               struct shore__wire_answer *a, struct shore_diag *why) {
    struct shore__wire_header h = {0};
    size_t room = 0;
    char text[1001];
    int rc = shore__conn_send(&way->conn, frame, why);
    shore__conn_expect(&way->conn);
    while (!rc) {
        rc = shore__conn_receive(&way->conn, false, &h, body, &room, why);
        if (!rc) rc = shore__conn_gets_on(&way->conn, &h, why);
        if (rc || h.type == SHORE__WIRE_DONE) break;
        if (h.type == SHORE__WIRE_NOTE && r->config.note && h.body_bytes < sizeof text) {
            shore__escape((const char *)*body, h.body_bytes, text, sizeof text);
            r->config.note(r->config.note_ctx, text);
        }
    }
    if (!rc) rc = shore__wire_answer_get(&h, *body, a, why);
    if (!rc && (h.id != frame->id || h.bulk_bytes))
        rc = shore__fail(why, SHORE_ELINK, "an answer came that belongs to no request");
    return rc;
}

static int explain(struct remote *r, struct shore__way *way, int rc, const struct shore_diag *why,
                   struct shore_diag *diag) {
    if (r->at && (rc == SHORE_ELINK || rc == SHORE_EFORMAT)) return shore__way_explain(r->at, way, rc, why, diag);
    return shore__fail_of(diag, rc, why, "%s: %.700s", r->drive.path, why->text);
}

/* Refuses a layout that the far side would only call malformed. */
static int check_groups(const struct remote *r, struct shore_diag *diag) {
    const struct shore_layout *layout = r->config.layout;
    for (uint32_t b = 0; b < layout->nblocks; b++) {
        for (uint32_t t = 0; t < layout->blocks[b].ntensors; t++) {
            const struct shore_layout_tensor *tensor = &layout->blocks[b].tensors[t];
            if (tensor->group >= SHORE__WIRE_GROUPS_MOST && tensor->group != SHORE_GROUP_RESTS)
                return shore__fail(diag, SHORE_EINPUT,
                                   "%s: a remote drive takes at most %u parameter groups, and tensor %.200s is in "
                                   "group %u: number the groups from 0, or use drives of this host",
                                   r->drive.path, SHORE__WIRE_GROUPS_MOST, tensor->name ? tensor->name : "",
                                   tensor->group);
        }
    }
    return 0;
}

/* Sends OPEN, and decodes the answer into *info. */
static int open_there(struct remote *r, struct shore__way *way, uint32_t mode, const struct shore__volume_desc *desc,
                      struct shore__wire_open *info, struct shore_diag *diag) {
    struct shore__wire_open o = {
        .path = r->at ? r->at->path : (char *)(uintptr_t) "ram:",
        .mode = mode,
        .layout = (struct shore_layout *)(uintptr_t)r->config.layout,
        .optimizer = r->config.optimizer,
        .moments = r->config.moments,
        .io = r->config.io,
        .fp32_params = r->config.fp32_params,
        .silence_ms = shore__conn_silence_ms(),
        .connections = connections(r),
        .has_desc = desc,
    };
    struct shore__frame frame = {.type = SHORE__WIRE_OPEN, .id = 1};
    struct shore__wire_answer a = {0};
    struct shore_diag why = {0};
    unsigned char *request = NULL, *body = NULL;
    if (desc) o.desc = *desc;
    memcpy(o.plane_bytes, r->config.plane_bytes, sizeof o.plane_bytes);
    int rc = check_groups(r, diag);
    if (rc) return rc;
    rc = shore__wire_open_put(&o, false, &request, &frame.body_bytes);
    if (rc) return shore__fail(diag, rc, "%s: the description of its state is too long to send", r->drive.path);
    frame.body = request;
    rc = ask(r, way, &frame, &body, &a, &why);
    if (!rc && !a.rc) rc = shore__wire_open_get(a.result, a.result_bytes, true, info, &why);
    if (rc)
        explain(r, way, rc, &why, diag);
    else if (a.rc)
        rc = shore__wire_answer_fail(&a, r->drive.path, diag);
    free(request);
    free(body);
    return rc;
}

/* Adds a connection to the open drive. */
static int attach(struct remote *r, const unsigned char token[16], struct shore_diag *diag) {
    static const struct shore__frame alive = {.type = SHORE__WIRE_ALIVE};
    struct remote_link *l = &r->links[r->nlinks];
    unsigned char request[SHORE__WIRE_FIELDS_BYTES + 16], *body = NULL;
    struct shore__wire_request fields = {.type = SHORE__WIRE_ATTACH, .tail_bytes = 16};
    struct shore__frame frame = {.type = SHORE__WIRE_ATTACH, .id = 1, .body = request, .body_bytes = sizeof request};
    struct shore__wire_answer a = {0};
    struct shore_diag why = {0};
    /* each login may take a while, and the existing connections have no threads yet */
    for (unsigned i = 0; i < r->nlinks; i++)
        shore__conn_send(&r->links[i].way.conn, &alive, &why);
    int rc = shore__way_open(r->at, &l->way, diag);
    if (rc) return rc;
    r->nlinks++;
    shore__wire_request_put(request, &fields);
    memcpy(request + SHORE__WIRE_FIELDS_BYTES, token, 16);
    rc = ask(r, &l->way, &frame, &body, &a, &why);
    if (!rc && a.rc) rc = shore__wire_answer_fail(&a, NULL, &why);
    free(body);
    return rc ? explain(r, &l->way, rc, &why, diag) : 0;
}

/* Opens the drive on the first connection. On failure, nothing is left of it. */
static int begin(struct remote *r, uint32_t mode, const struct shore__volume_desc *desc, struct shore_diag *diag) {
    struct shore__wire_open info = {0};
    r->nlinks = 1;
    int rc = open_there(r, &r->links[0].way, mode, desc, &info, diag);
    if (!rc) {
        bool same = !r->info.has_desc ||
                    (memcmp(r->info.desc.volume_id, info.desc.volume_id, sizeof info.desc.volume_id) == 0 &&
                     r->info.desc.generation == info.desc.generation && r->info.desc.segments == info.desc.segments);
        if (!same) {
            rc =
                shore__fail(diag, SHORE_EMISMATCH,
                            "%s: another volume is there now than before the connection broke; put the run's own back, "
                            "and resume",
                            r->drive.path);
            shore__wire_open_free(&info);
        } else if (r->info.has_desc) {
            /* callers may hold pointers to the old info, which stays */
            r->info.slots = info.slots;
            r->info.slot_bytes = info.slot_bytes;
            r->info.span_segments = info.span_segments;
            memcpy(r->info.token, info.token, sizeof info.token);
            shore__wire_open_free(&info);
        } else {
            r->info = info;
        }
    }
    for (unsigned i = 1, n = connections(r); !rc && i < n; i++)
        rc = attach(r, r->info.token, diag);
    if (!rc) {
        r->nslots = r->info.slots;
        r->broken = false;
        rc = shore__remote_start(r);
        if (rc) shore__fail(diag, rc, "%s: its threads cannot be started: %s", r->drive.path, shore_error_text(rc));
    }
    if (rc) shore__remote_stop(r);
    return rc;
}

static struct remote *remote_new(const struct shore__drive_config *config, const struct shore__address *at,
                                 struct shore_diag *diag) {
    const char *uri = at ? at->text : "remote:";
    struct remote *r = calloc(1, sizeof *r);
    if (!r) {
        shore__fail(diag, -ENOMEM, "%s: out of memory", uri);
        return NULL;
    }
    r->at = at;
    r->drive.path = uri;
    r->drive.ops = &shore__remote_ops;
    r->drive.desc = &r->info.desc;
    r->config = *config;
    shore__busy_init(&r->link_busy);
    pthread_mutex_init(&r->lock, NULL);
    shore__cond_init(&r->due);
    pthread_cond_init(&r->idle, NULL);
    return r;
}

/* rc: the result so far. */
static int finish_opening(struct remote *r, int rc, uint32_t mode, const struct shore__volume_desc *desc,
                          struct shore__drive **out, struct shore_diag *diag) {
    if (!rc) rc = begin(r, mode, desc, diag);
    if (rc) {
        r->drive.ops->close(&r->drive);
        return rc;
    }
    r->drive.disk_bytes = r->info.disk_bytes;
    r->describe = r->info.describe;
    r->info.describe = NULL;
    if (!r->describe) r->describe = strdup("");
    *out = &r->drive;
    return 0;
}

static int open_at(const struct shore__drive_config *config, const struct shore__address *at, uint32_t mode,
                   const struct shore__volume_desc *desc, struct shore__drive **out, struct shore_diag *diag) {
    struct remote *r = remote_new(config, at, diag);
    if (!r) return -ENOMEM;
    int rc = shore__way_open(at, &r->links[0].way, diag);
    return finish_opening(r, rc, mode, desc, out, diag);
}

static uint32_t mode_of_opening(const struct shore__drive_config *config) {
    return config->read_only ? SHORE__WIRE_MODE_READ : SHORE__WIRE_MODE_OPEN;
}

int shore__remote_create(const struct shore__drive_config *config, const struct shore__address *at,
                         const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                         struct shore_diag *diag) {
    return open_at(config, at, overwrite ? SHORE__WIRE_MODE_REPLACE : SHORE__WIRE_MODE_CREATE, desc, out, diag);
}

int shore__remote_open(const struct shore__drive_config *config, const struct shore__address *at,
                       struct shore__drive **out, struct shore_diag *diag) {
    return open_at(config, at, mode_of_opening(config), NULL, out, diag);
}

int shore__remote_create_over(const struct shore__drive_config *config, int in, int out_fd,
                              const struct shore__volume_desc *desc, struct shore__drive **out,
                              struct shore_diag *diag) {
    struct remote *r = remote_new(config, NULL, diag);
    if (!r) return -ENOMEM;
    struct shore__way *way = &r->links[0].way;
    int rc = shore__conn_init(&way->conn, in, out_fd, -1);
    if (rc)
        shore__fail(diag, rc, "cannot connect: %s", shore_error_text(rc));
    else
        rc = shore__conn_greeting(&way->conn, &way->version, diag);
    if (rc) shore__conn_fini(&way->conn);
    return finish_opening(r, rc, SHORE__WIRE_MODE_CREATE, desc, out, diag);
}

int shore__remote_reconnect(struct shore__drive *d, struct shore_diag *diag) {
    struct remote *r = (struct remote *)d;
    if (!r->at) return shore__fail(diag, SHORE_EMISSING, "%s: it cannot be reconnected", r->drive.path);
    shore__remote_stop(r);
    /* the new server counts from zero */
    shore__wire_ledger_add(&r->far_before, &r->far);
    r->far = (struct shore_ledger){0};
    int rc = shore__way_open(r->at, &r->links[0].way, diag);
    return rc ? rc : begin(r, mode_of_opening(&r->config), NULL, diag);
}
