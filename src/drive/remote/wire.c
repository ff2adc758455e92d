#include "drive/remote/wire.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/diag.h"
#include "base/fields.h"
#include "base/units.h"
#include "storage/hash.h"

#define FRAME_MAGIC 0x3157534Cu /* "LSW1" */
#define CHECK_BYTES 8u

/* A number, and the bytes of what follows. */
struct head {
    uint32_t what, bytes;
};
static const struct shore__field head_fields[] = {SHORE__FIELD(struct head, what, 4),
                                                  SHORE__FIELD(struct head, bytes, 4), SHORE__FIELDS_END};
#define HEAD_BYTES 8u

_Static_assert(sizeof SHORE__WIRE_MAGIC - 1 == SHORE__WIRE_MAGIC_BYTES, "the magic is all of it");
_Static_assert(SHORE__WIRE_OLDEST <= SHORE__WIRE_VERSION, "a build speaks its own version");
_Static_assert(SHORE__WIRE_FIELDS_BYTES + SHORE__WIRE_GROUPS_MOST * SHORE__WIRE_HYPER_BYTES <= SHORE__WIRE_BODY_BYTES,
               "all groups fit a request");
_Static_assert(SHORE__WIRE_FIELDS_BYTES + SHORE__METRICS_BYTES <= SHORE__WIRE_BODY_BYTES &&
                   SHORE__WIRE_BODY_BYTES + SHORE_BLOB_BYTES <= SHORE__WIRE_COMMIT_BYTES,
               "a blob fits behind metrics, and behind any tail");
_Static_assert(SHORE__WIRE_ANSWER_MOST + SHORE_BLOB_BYTES <= SHORE__WIRE_OPEN_BYTES &&
                   SHORE__WIRE_ANSWER_MOST + SHORE__WIRE_RECOVERY_BYTES <= SHORE__WIRE_OPEN_BYTES,
               "results fit an answer");

/* ---- greeting ---------------------------------------------------------------------------------------------------- */

void shore__wire_greeting_put(unsigned char out[SHORE__WIRE_GREETING_BYTES]) {
    memcpy(out, SHORE__WIRE_MAGIC, SHORE__WIRE_MAGIC_BYTES);
    shore__put_u32(out + 16, SHORE__WIRE_VERSION);
    shore__put_u32(out + 20, SHORE__WIRE_OLDEST);
}

int shore__wire_greeting_get(const unsigned char in[SHORE__WIRE_GREETING_BYTES], uint32_t *version,
                             struct shore_diag *diag) {
    uint32_t newest = shore__get_u32(in + 16), oldest = shore__get_u32(in + 20);
    if (memcmp(in, SHORE__WIRE_MAGIC, SHORE__WIRE_MAGIC_BYTES) != 0 || oldest > newest) {
        return shore__fail(diag, SHORE_EFORMAT, "what answers there is not a longshore drive server");
    }
    if (newest < SHORE__WIRE_OLDEST) {
        return shore__fail(diag, SHORE_EFORMAT,
                           "the longshore there is too old: it speaks versions up to %u of the protocol and this one "
                           "needs %u; install the same version on both hosts",
                           newest, SHORE__WIRE_OLDEST);
    }
    if (oldest > SHORE__WIRE_VERSION) {
        return shore__fail(diag, SHORE_EFORMAT,
                           "the longshore there is too new: it speaks versions from %u of the protocol on and this one "
                           "knows %u; install the same version on both hosts",
                           oldest, SHORE__WIRE_VERSION);
    }
    *version = newest < SHORE__WIRE_VERSION ? newest : SHORE__WIRE_VERSION;
    return 0;
}

/* ---- headers ----------------------------------------------------------------------------------------------------- */

static const struct shore__field header_fields[] = {
    SHORE__FIELD_FIXED(FRAME_MAGIC, 4),
    SHORE__FIELD(struct shore__wire_header, type, 2),
    SHORE__FIELD_FIXED(0, 2),
    SHORE__FIELD(struct shore__wire_header, sequence, 4),
    SHORE__FIELD(struct shore__wire_header, body_bytes, 4),
    SHORE__FIELD(struct shore__wire_header, id, 8),
    SHORE__FIELD(struct shore__wire_header, bulk_bytes, 8),
    SHORE__FIELDS_END,
};

/* Of a header without its check, and of the body behind it. */
static uint64_t check_of(const unsigned char *header, const void *body, uint32_t body_bytes) {
    unsigned char hash[16];
    shore__hash128(header, SHORE__WIRE_HEADER_BYTES - CHECK_BYTES, 0, hash);
    if (body_bytes) shore__hash128(body, body_bytes, shore__get_u64(hash), hash);
    return shore__get_u64(hash);
}

void shore__wire_header_put(unsigned char out[SHORE__WIRE_HEADER_BYTES], const struct shore__wire_header *h,
                            const void *body) {
    unsigned char *check = shore__fields_put(out, header_fields, h);
    assert(check + CHECK_BYTES == out + SHORE__WIRE_HEADER_BYTES);
    shore__put_u64(check, check_of(out, body, h->body_bytes));
}

static bool type_fits(unsigned type, bool to_server) {
    if (type == SHORE__WIRE_ALIVE) return true;
    if (!to_server) return type == SHORE__WIRE_DONE || type == SHORE__WIRE_NOTE;
    return (type >= SHORE__WIRE_OPEN && type <= SHORE__WIRE_BLOB) || shore__wire_takes_slot(type);
}

static uint32_t body_most(unsigned type) {
    /* OPEN's answer describes the volume like OPEN itself */
    return type == SHORE__WIRE_OPEN || type == SHORE__WIRE_DONE ? SHORE__WIRE_OPEN_BYTES
           : type == SHORE__WIRE_COMMIT                         ? SHORE__WIRE_COMMIT_BYTES
                                                                : SHORE__WIRE_BODY_BYTES;
}

int shore__wire_header_get(const unsigned char in[SHORE__WIRE_HEADER_BYTES], bool to_server, uint32_t sequence,
                           struct shore__wire_header *out, struct shore_diag *diag) {
    *out = (struct shore__wire_header){0};
    if (!shore__fields_get(in, in + SHORE__WIRE_HEADER_BYTES, header_fields, out))
        return shore__fail(diag, SHORE_ELINK, "what came is not the beginning of a frame");
    if (!type_fits(out->type, to_server)) {
        return shore__fail(diag, SHORE_ELINK, "a frame of the unknown type %u came", out->type);
    }
    if (out->sequence != sequence) {
        return shore__fail(diag, SHORE_ELINK, "frame %u came where frame %u was due: replayed or out of order",
                           out->sequence, sequence);
    }
    bool has_bulk = to_server ? shore__wire_takes_slot(out->type) : out->type == SHORE__WIRE_DONE;
    if (out->body_bytes > body_most(out->type) || out->bulk_bytes > (has_bulk ? SHORE__WIRE_BULK_BYTES : 0)) {
        return shore__fail(diag, SHORE_ELINK, "a frame of type %u is too long: %u bytes and %llu of bulk", out->type,
                           out->body_bytes, (unsigned long long)out->bulk_bytes);
    }
    if (out->type == SHORE__WIRE_ALIVE && out->body_bytes) {
        return shore__fail(diag, SHORE_ELINK, "a sign of life with a body of %u bytes came", out->body_bytes);
    }
    return 0;
}

int shore__wire_check(const unsigned char header[SHORE__WIRE_HEADER_BYTES], const struct shore__wire_header *h,
                      const void *body, struct shore_diag *diag) {
    uint64_t check = shore__get_u64(header + SHORE__WIRE_HEADER_BYTES - CHECK_BYTES);
    return check == check_of(header, body, h->body_bytes) ? 0 : shore__fail(diag, SHORE_ELINK, "a frame came damaged");
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static const struct shore__field request_fields[] = {
    SHORE__FIELD(struct shore__wire_request, step, 8),
    SHORE__FIELD(struct shore__wire_request, era, 8),
    SHORE__FIELD(struct shore__wire_request, start, 8),
    SHORE__FIELD(struct shore__wire_request, bytes, 8),
    SHORE__FIELD(struct shore__wire_request, block, 4),
    SHORE__FIELD(struct shore__wire_request, segment, 4),
    SHORE__FIELD(struct shore__wire_request, count, 4),
    SHORE__FIELD(struct shore__wire_request, kind, 4),
    SHORE__FIELD(struct shore__wire_request, order, 4),
    SHORE__FIELD(struct shore__wire_request, flags, 4),
    SHORE__FIELD(struct shore__wire_request, coefficient, 4),
    SHORE__FIELD(struct shore__wire_request, ngroups, 4),
    SHORE__FIELD(struct shore__wire_request, tail_bytes, 4),
    SHORE__FIELD(struct shore__wire_request, out_bytes, 8),
    SHORE__FIELD_SPARE(4),
    SHORE__FIELDS_END,
};

void shore__wire_request_put(unsigned char out[SHORE__WIRE_FIELDS_BYTES], const struct shore__wire_request *r) {
    const unsigned char *end = shore__fields_put(out, request_fields, r);
    assert(end == out + SHORE__WIRE_FIELDS_BYTES);
}

static int bad(struct shore_diag *diag, const struct shore__wire_header *h, const char *what) {
    return shore__fail(diag, SHORE_ELINK, "a request of type %u came that %s", h->type, what);
}

int shore__wire_request_get(const struct shore__wire_header *h, const unsigned char *body,
                            struct shore__wire_request *out, struct shore_diag *diag) {
    *out = (struct shore__wire_request){.type = h->type};
    out->tail = shore__fields_get(body, body + h->body_bytes, request_fields, out);
    if (!out->tail) return bad(diag, h, "is too short");
    if (out->tail_bytes != h->body_bytes - SHORE__WIRE_FIELDS_BYTES)
        return bad(diag, h, "has a tail of another length");
    if (out->ngroups > SHORE__WIRE_GROUPS_MOST || out->ngroups * SHORE__WIRE_HYPER_BYTES > out->tail_bytes) {
        return bad(diag, h, "has more parameter groups than fit");
    }
    if (out->count > UINT32_MAX - out->segment) return bad(diag, h, "reaches beyond its block");
    switch (h->type) {
    case SHORE__WIRE_COMMIT:
        if (out->bytes > SHORE_BLOB_BYTES || out->bytes > out->tail_bytes) return bad(diag, h, "has too large a blob");
        if (out->tail_bytes - out->bytes > SHORE__METRICS_BYTES) return bad(diag, h, "has too many metrics");
        if (out->kind > SHORE_COMMIT_RESTORED) return bad(diag, h, "commits in an unknown way");
        break;
    case SHORE__WIRE_FETCH:
        if (h->bulk_bytes) return bad(diag, h, "has bulk that is not allowed");
        break;
    case SHORE__WIRE_CALL:
        if (!shore__function(out->kind)) return bad(diag, h, "calls an unknown function");
        if (out->tail_bytes > SHORE__ARGUMENT_BYTES) return bad(diag, h, "has too long an argument");
        if (out->out_bytes > SHORE__WIRE_BULK_BYTES) return bad(diag, h, "asks for too much");
        out->in_bytes = h->bulk_bytes;
        break;
    default:
        break;
    }
    return 0;
}

void shore__wire_call_put(struct shore__wire_request *r, const struct shore__call *c) {
    *r = (struct shore__wire_request){
        .type = SHORE__WIRE_CALL,
        .kind = c->function,
        .order = c->form,
        .block = c->block,
        .segment = c->segment,
        .count = c->count,
        .start = c->start,
        .bytes = c->bytes,
        .step = c->step,
        .era = c->attempt,
        .in_bytes = c->in_bytes,
        .out_bytes = c->out_bytes,
    };
}

struct shore__call shore__wire_call_get(const struct shore__wire_request *r) {
    return (struct shore__call){
        .function = r->kind,
        .form = r->order,
        .block = r->block,
        .segment = r->segment,
        .count = r->count,
        .start = r->start,
        .bytes = r->bytes,
        .step = r->step,
        .attempt = r->era,
        .argument = r->tail,
        .argument_bytes = r->tail_bytes,
        .in_bytes = r->in_bytes,
        .out_bytes = r->out_bytes,
    };
}

static const struct shore__field hyper_fields[] = {
    SHORE__FIELD(struct shore_hyper, lr, 4),
    SHORE__FIELD(struct shore_hyper, beta1, 4),
    SHORE__FIELD(struct shore_hyper, beta2, 4),
    SHORE__FIELD(struct shore_hyper, eps, 4),
    SHORE__FIELD(struct shore_hyper, weight_decay, 4),
    SHORE__FIELD(struct shore_hyper, momentum, 4),
    SHORE__FIELD(struct shore_hyper, step_size, 4),
    SHORE__FIELD(struct shore_hyper, inv_sqrt_bias2, 4),
    SHORE__FIELD(struct shore_hyper, first_step, 4),
    SHORE__FIELD(struct shore_hyper, frozen, 4),
    SHORE__FIELDS_END,
};

void shore__wire_hyper_put(unsigned char out[SHORE__WIRE_HYPER_BYTES], const struct shore_hyper *h) {
    const unsigned char *end = shore__fields_put(out, hyper_fields, h);
    assert(end == out + SHORE__WIRE_HYPER_BYTES);
}

void shore__wire_hyper_get(const unsigned char in[SHORE__WIRE_HYPER_BYTES], struct shore_hyper *out) {
    shore__fields_get(in, in + SHORE__WIRE_HYPER_BYTES, hyper_fields, out);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

/* A head with its text. */
static unsigned char *text_put(unsigned char *at, uint32_t what, const char *text) {
    const struct head head = {what, (uint32_t)strlen(text)};
    return (unsigned char *)mempcpy(shore__fields_put(at, head_fields, &head), text, head.bytes);
}

/* Where it ends; NULL: it is cut off. */
static const unsigned char *text_get(const unsigned char *at, const unsigned char *end, struct head *head,
                                     const char **text) {
    at = shore__fields_get(at, end, head_fields, head);
    *text = (const char *)at;
    return at && head->bytes <= (size_t)(end - at) ? at + head->bytes : NULL;
}

uint32_t shore__wire_answer_put(unsigned char *out, int rc, const struct shore_diag *diag) {
    assert(rc <= 0 && rc >= -0xFFFF);
    unsigned char *at = text_put(out, (uint32_t)-rc, rc ? diag->text : "");
    if (rc && diag->advice) at = text_put(at, (uint32_t)diag->advice, diag->of);
    return (uint32_t)(at - out);
}

/* Older servers send no advice. */
static bool advice_get(struct shore__wire_answer *a) {
    struct head head;
    if (!a->rc || !a->result_bytes) return true;
    if (!text_get(a->result, a->result + a->result_bytes, &head, &a->of)) return false;
    a->of_bytes = head.bytes;
    a->advice = head.what < SHORE_ADVICE_COUNT ? (int)head.what : SHORE_ADVICE_NONE;
    return true;
}

int shore__wire_answer_fail(const struct shore__wire_answer *a, const char *whose, struct shore_diag *diag) {
    char of[sizeof diag->of];
    snprintf(of, sizeof of, "%.*s", (int)(a->of_bytes < sizeof of ? a->of_bytes : 0), a->of ? a->of : "");
    shore__fail(diag, a->rc, "%s%s%.*s", whose ? whose : "", whose ? ": " : "",
                (int)(a->text_bytes < 700 ? a->text_bytes : 700), a->text);
    return shore__advise(diag, a->rc, (enum shore_advice)a->advice, of);
}

int shore__wire_answer_get(const struct shore__wire_header *h, const unsigned char *body,
                           struct shore__wire_answer *out, struct shore_diag *diag) {
    const unsigned char *end = body + h->body_bytes;
    struct head head;
    if (h->body_bytes < HEAD_BYTES) return shore__fail(diag, SHORE_ELINK, "an answer came cut off");
    *out = (struct shore__wire_answer){0};
    out->result = text_get(body, end, &head, &out->text);
    if (!out->result || head.what > 0xFFFF || head.bytes >= sizeof diag->text)
        return shore__fail(diag, SHORE_ELINK, "an answer came with invalid fields");
    out->rc = -(int)head.what;
    out->text_bytes = head.bytes;
    out->result_bytes = (uint32_t)(end - out->result);
    if (out->rc && h->bulk_bytes) {
        return shore__fail(diag, SHORE_ELINK, "an answer came with both an error and data");
    }
    return advice_get(out) ? 0 : shore__fail(diag, SHORE_ELINK, "an answer came with invalid fields");
}

static const struct shore__field ledger_fields[] = {
    SHORE__FIELD_FIXED(10, 4),
    SHORE__FIELD(struct shore_ledger, drive_read_state, 8),
    SHORE__FIELD(struct shore_ledger, drive_write_state, 8),
    SHORE__FIELD(struct shore_ledger, drive_read_fetch, 8),
    SHORE__FIELD(struct shore_ledger, drive_read_spill, 8),
    SHORE__FIELD(struct shore_ledger, drive_write_spill, 8),
    SHORE__FIELD(struct shore_ledger, drive_read_scratch, 8),
    SHORE__FIELD(struct shore_ledger, drive_write_scratch, 8),
    SHORE__FIELD(struct shore_ledger, drive_write_commit, 8),
    SHORE__FIELD(struct shore_ledger, update_io_wait_ns, 8),
    SHORE__FIELD(struct shore_ledger, update_compute_ns, 8),
    SHORE__FIELDS_END,
};

void shore__wire_ledger_put(unsigned char out[SHORE__WIRE_LEDGER_BYTES], const struct shore_ledger *l) {
    const unsigned char *end = shore__fields_put(out, ledger_fields, l);
    assert(end == out + SHORE__WIRE_LEDGER_BYTES);
}

void shore__wire_ledger_add(struct shore_ledger *to, const struct shore_ledger *from) {
    for (const struct shore__field *f = ledger_fields + 1; f->bytes; f++)
        *(uint64_t *)(void *)((char *)to + f->at) += *(const uint64_t *)(const void *)((const char *)from + f->at);
}

bool shore__wire_ledger_get(const unsigned char *in, uint32_t bytes, struct shore_ledger *add_to) {
    struct shore_ledger l;
    if (!shore__fields_get(in, in + bytes, ledger_fields, &l)) return false;
    shore__wire_ledger_add(add_to, &l);
    return true;
}

/* ---- recovery ---------------------------------------------------------------------------------------------------- */

static const struct shore__field record_fields[] = {
    SHORE__FIELD(struct shore__record, sequence, 8),
    SHORE__FIELD(struct shore__record, epoch, 8),
    SHORE__FIELD(struct shore__record, slot[0].step, 8),
    SHORE__FIELD_ARRAY(struct shore__record, slot[0].table_hash),
    SHORE__FIELD(struct shore__record, slot[1].step, 8),
    SHORE__FIELD_ARRAY(struct shore__record, slot[1].table_hash),
    SHORE__FIELD(struct shore__record, active, 4),
    SHORE__FIELD(struct shore__record, metrics_bytes, 4),
    SHORE__FIELDS_END,
};

static unsigned char *put_record(unsigned char *at, const struct shore__record *r) {
    assert(r->active < 2 && r->metrics_bytes <= SHORE__METRICS_BYTES);
    return (unsigned char *)mempcpy(shore__fields_put(at, record_fields, r), r->metrics, r->metrics_bytes);
}

/* NULL: it is cut off, or no record. */
static const unsigned char *get_record(const unsigned char *at, const unsigned char *end, struct shore__record *r) {
    at = shore__fields_get(at, end, record_fields, r);
    if (!at || r->active > 1 || r->metrics_bytes > SHORE__METRICS_BYTES || (size_t)(end - at) < r->metrics_bytes)
        return NULL;
    memcpy(r->metrics, at, r->metrics_bytes);
    return at + r->metrics_bytes;
}

uint32_t shore__wire_recovery_put(unsigned char out[SHORE__WIRE_RECOVERY_BYTES],
                                  const struct shore__drive_recovery *r) {
    uint32_t flags = (r->valid ? 1u : 0) | (r->older_valid ? 2u : 0) | (r->damaged_record ? 4u : 0);
    unsigned char *at = text_put(out, flags, r->damage.text);
    if (r->valid) at = put_record(at, &r->record);
    if (r->older_valid) at = put_record(at, &r->older);
    return (uint32_t)(at - out);
}

bool shore__wire_recovery_get(const unsigned char *in, uint32_t bytes, struct shore__drive_recovery *out) {
    const unsigned char *end = in + bytes;
    struct head head;
    const char *text;
    memset(out, 0, sizeof *out);
    const unsigned char *at = text_get(in, end, &head, &text);
    if (!at || head.what > 7 || head.bytes >= sizeof out->damage.text) return false;
    memcpy(out->damage.text, text, head.bytes);
    out->valid = head.what & 1;
    out->older_valid = head.what & 2;
    out->damaged_record = head.what & 4;
    if (out->valid) at = get_record(at, end, &out->record);
    if (out->older_valid) at = get_record(at, end, &out->older);
    return at == end;
}
