/* A client's session: greeting, opening its drive, and its end. */
#include "drive/serve/serve.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/diag.h"
#include "drive/address.h"
#include "drive/serve/serve_attach.h"
#include "drive/serve/serve_links.h"
#include "drive/serve/serve_pulse.h"
#include "drive/serve/serve_session.h"

#define SILENCE_MS_LEAST 200u
#define SILENCE_MS_MOST 600000u

/* ---- opening ----------------------------------------------------------------------------------------------------- */

static void tell(void *ctx, const char *text) {
    struct session *s = ctx;
    struct shore__frame note = {.type = SHORE__WIRE_NOTE, .body = text, .body_bytes = (uint32_t)strnlen(text, 1000)};
    if (s->pulse) shore__serve_pulse_send(s->pulse, &note); /* only opening has notes */
}

static int make_slots(struct session *s) {
    s->slots = calloc(s->plan.slots, sizeof *s->slots);
    if (!s->slots) return -ENOMEM;
    for (uint32_t i = 0; i < s->plan.slots; i++) {
        struct shore__serve_job *job = &s->slots[i];
        job->session = s;
        job->memory = shore__arena_alloc(NULL, s->plan.slot_bytes);
        if (!job->memory) return -ENOMEM;
        job->next = s->free_slots;
        s->free_slots = job;
    }
    return 0;
}

/* Plans for an existing volume. desc: the volume's; its extents and identity are gone once it is closed again. */
static int plan_existing(struct session *s, const struct shore__address *at, struct shore_diag *diag) {
    struct shore__volume volume;
    char *file = NULL;
    if (!at->kind->keeps) return 0; /* opening reports that nothing is kept */
    int rc = shore__volume_path(at->path, &file, diag);
    if (!rc) rc = shore__volume_peek(file, &volume, diag);
    if (rc == -ENOENT) rc = shore__fail(diag, SHORE_EMISSING, "%s is missing there: mount its drive", at->text);
    free(file);
    if (rc) return rc;
    rc = shore__serve_plan(s->options, at, &volume.desc, &s->config, &s->plan, diag);
    shore__volume_close(&volume);
    return rc;
}

static int open_drive(struct session *s, const struct shore__address *at, struct shore_diag *diag) {
    const struct shore__wire_open *o = &s->open;
    s->config = (struct shore__drive_config){
        .layout = o->layout,
        .optimizer = o->optimizer,
        .fp32_params = o->fp32_params,
        .read_only = o->mode == SHORE__WIRE_MODE_READ,
        .moments = o->moments,
        .io = o->io,
        .note = tell,
        .note_ctx = s,
    };
    memcpy(s->config.plane_bytes, o->plane_bytes, sizeof s->config.plane_bytes);
    bool make = o->mode == SHORE__WIRE_MODE_CREATE || o->mode == SHORE__WIRE_MODE_REPLACE;
    int rc =
        make ? shore__serve_plan(s->options, at, &o->desc, &s->config, &s->plan, diag) : plan_existing(s, at, diag);
    if (!rc && make)
        rc = shore__drive_create_at(&s->config, at, &o->desc, o->mode == SHORE__WIRE_MODE_REPLACE, &s->drive, diag);
    else if (!rc)
        rc = shore__drive_open_at(&s->config, at, &s->drive, diag);
    if (rc) return rc;
    /* a volume of another layout or optimizer would be written beyond its end */
    const struct shore__volume_desc *d = s->drive->desc;
    bool fits = d->plane_form == o->moments && memcmp(d->plane_bytes, o->plane_bytes, sizeof d->plane_bytes) == 0;
    for (uint32_t e = 0; fits && e < d->nextents; e++) {
        const struct shore__extent *x = &d->extents[e];
        fits = x->block < o->layout->nblocks && x->first + x->count <= o->layout->blocks[x->block].segments;
    }
    if (!fits)
        return shore__fail(diag, SHORE_EMISMATCH, "%s holds the state of another model or optimizer", s->drive->path);
    rc = make_slots(s);
    return rc ? shore__fail(diag, rc, "%s: out of memory for the server's slots", at->text) : 0;
}

static int send_opened(struct session *s, uint64_t id, int rc, const struct shore_diag *why, struct shore_diag *diag) {
    unsigned char *settings = NULL;
    uint32_t bytes = 0;
    int made = 0;
    if (!rc) {
        struct shore__drive *d = s->drive;
        char describe[512] = "";
        d->ops->describe(d, describe, sizeof describe);
        struct shore__wire_open o = {
            .path = (char *)(uintptr_t)d->path,
            .build = (char *)(uintptr_t)s->options->build,
            .has_desc = true,
            .desc = *d->desc,
            .caps = d->ops->caps | (d->ops->can_carry && d->ops->can_carry(d, NULL) ? 0 : SHORE__DRIVE_CARRIES),
            .describe = describe,
            .disk_bytes = d->disk_bytes,
            .slots = s->plan.slots,
            .span_segments = s->plan.span_segments,
            .slot_bytes = s->plan.slot_bytes,
            .has_recovery = true,
        };
        memcpy(o.token, s->open.token, sizeof o.token);
        made = d->ops->recovery(d, &o.recovery, diag);
        if (!made) made = shore__wire_open_put(&o, true, &settings, &bytes);
    }
    if (made) return shore__fail(diag, -ENOMEM, "out of memory");
    made = shore__conn_answer(&s->links[0].conn, id, rc, why, settings, bytes, diag);
    free(settings);
    return made;
}

/* Opens with signs of life, because it may take long: a volume may have to be written completely. */
static int open_with_a_pulse(struct session *s, struct shore_diag *diag) {
    struct serve_pulse pulse;
    struct shore__address *at = NULL;
    int rc = shore__serve_pulse_start(&pulse, s, diag);
    if (rc) return rc;
    s->pulse = &pulse;
    rc = shore__serve_path(s->options, s->open.path, &at, diag);
    if (!rc) rc = open_drive(s, at, diag);
    if (!rc && s->open.connections > 1) rc = shore__serve_attach_open(s, s->open.token, diag);
    free(at);
    s->pulse = NULL;
    shore__serve_pulse_stop(&pulse);
    return rc;
}

static int answer_open(struct session *s, const struct shore__wire_header *h, const unsigned char *body,
                       struct shore_diag *diag) {
    struct shore_diag why = {0};
    int rc = shore__wire_open_get(body, h->body_bytes, false, &s->open, &why);
    if (rc == SHORE_ELINK) return shore__fail_of(diag, rc, &why, "%s", why.text);
    if (!rc) {
        uint32_t silence = s->open.silence_ms;
        s->links[0].conn.silence_ms = silence < SILENCE_MS_LEAST  ? SILENCE_MS_LEAST
                                      : silence > SILENCE_MS_MOST ? SILENCE_MS_MOST
                                                                  : silence;
        rc = open_with_a_pulse(s, &why);
    }
    int sent = send_opened(s, h->id, rc, &why, diag);
    if (rc && s->drive) {
        s->drive->ops->close(s->drive);
        s->drive = NULL;
    }
    return sent ? sent : rc ? shore__fail_of(diag, rc, &why, "%s", why.text) : 0;
}

/* Handles requests before a drive is open. 1: the client is done. */
static int before_open(struct session *s, struct shore_diag *diag) {
    struct link *l = &s->links[0];
    struct shore__wire_header h;
    struct shore__wire_request r;
    unsigned char *body = NULL;
    size_t room = 0;
    int rc = 0;
    while (!rc && !s->drive) {
        rc = shore__conn_receive(&l->conn, true, &h, &body, &room, diag);
        if (rc) break;
        if (h.type == SHORE__WIRE_ALIVE) continue;
        if (h.type == SHORE__WIRE_OPEN) {
            rc = answer_open(s, &h, body, diag);
            continue;
        }
        rc = shore__wire_request_get(&h, body, &r, diag);
        if (rc) break;
        if (h.type == SHORE__WIRE_PROBE || h.type == SHORE__WIRE_REMOVE || h.type == SHORE__WIRE_MEASURE)
            rc = shore__serve_probe(s, &h, &r, diag);
        else if (h.type == SHORE__WIRE_ATTACH)
            rc = shore__serve_attach_to(&l->conn, &h, &r, diag);
        else if (h.type == SHORE__WIRE_CLOSE)
            rc = 1;
        else
            rc = shore__fail(diag, SHORE_ELINK, "a request of type %u came before a drive was open", h.type);
    }
    free(body);
    return rc;
}

/* ---- a session --------------------------------------------------------------------------------------------------- */

/* Ends a session, once all readers except the first were told to stop. */
static void finish(struct session *s) {
    shore__serve_attach_close(s);
    for (unsigned i = 1; i < s->nlinks; i++)
        if (s->links[i].reads) pthread_join(s->links[i].reader, NULL);
    if (s->drive) {
        if (s->has_controls) shore__lane_stop(&s->controls);
        s->drive->ops->discard(s->drive, UINT64_MAX); /* queued requests that nobody waits for need not run */
        s->drive->ops->close(s->drive);
        s->drive = NULL;
    }
    if (s->leave) shore__serve_answer(s->leave);
    for (unsigned i = 0; i < s->nlinks; i++)
        shore__serve_link_stop(&s->links[i]);
}

static int serve_client(struct session *s, struct shore_diag *diag) {
    struct link *l = &s->links[0];
    int rc = shore__conn_greet(&l->conn, diag);
    if (!rc) rc = before_open(s, diag);
    if (rc) {
        rc = shore__serve_end_code(l, rc);
        return rc == SHORE_ELINK ? 1 : rc; /* a client without an open drive may leave without a word */
    }
    rc = shore__lane_start(&s->controls, "shore-control", shore__serve_controls, s);
    s->has_controls = !rc;
    if (!rc) rc = shore__serve_link_start(l, false);
    if (!rc) rc = shore__serve_attach_start(s);
    if (rc)
        shore__fail(diag, rc, "the server's threads cannot be started: %s", shore_error_text(rc));
    else
        rc = shore__serve_read(l, diag);
    shore__serve_end(l, rc, diag);
    pthread_mutex_lock(&s->lock);
    rc = s->why_rc;
    *diag = s->why;
    pthread_mutex_unlock(&s->lock);
    return rc;
}

static void explain(const struct session *s, int rc, struct shore_diag *diag) {
    struct shore_diag why = *diag;
    const char *path = s->drive ? s->drive->path : "no drive was open yet";
    if (rc == SHORE_ELINK) shore__fail(diag, rc, "%s: the client is gone: %.500s", path, why.text);
    if (rc == -EPROTO)
        shore__fail(diag, rc, "%s: the client broke the protocol (%.500s): install the same version on both hosts",
                    path, why.text);
}

int shore__serve(int in, int out, const struct shore__serve_options *options, struct shore_diag *diag) {
    struct session *s = calloc(1, sizeof *s);
    int rc = s ? 0 : -ENOMEM;
    if (rc) return shore__fail(diag, rc, "out of memory");
    s->options = options;
    s->attach = -1;
    pthread_mutex_init(&s->lock, NULL);
    pthread_cond_init(&s->freed, NULL);
    s->links[0].session = s;
    s->nlinks = 1;
    rc = shore__conn_init(&s->links[0].conn, in, out, -1);
    if (rc)
        shore__fail(diag, rc, "the connection cannot be used: %s", shore_error_text(rc));
    else
        rc = serve_client(s, diag);
    explain(s, rc, diag);
    finish(s);
    for (unsigned i = 0; i < s->nlinks; i++)
        shore__conn_fini(&s->links[i].conn);
    for (uint32_t i = 0; s->slots && i < s->plan.slots; i++) {
        shore__arena_free(NULL, s->slots[i].memory);
        free(s->slots[i].body);
        free(s->slots[i].groups);
        free(s->slots[i].offsets);
        free(s->slots[i].items);
    }
    free(s->slots);
    shore__wire_open_free(&s->open);
    pthread_cond_destroy(&s->freed);
    pthread_mutex_destroy(&s->lock);
    free(s);
    return rc == 1 ? 0 : rc;
}
