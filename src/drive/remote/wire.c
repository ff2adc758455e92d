#include "drive/remote/wire.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "storage/hash.h"

#define FRAME_MAGIC 0x3157534Cu /* "LSW1" */

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

static uint64_t check_of(const unsigned char header[SHORE__WIRE_HEADER_BYTES], const void *body, uint32_t body_bytes) {
    unsigned char hash[16];
    shore__hash128(header, 32, 0, hash);
    if (body_bytes) shore__hash128(body, body_bytes, shore__get_u64(hash), hash);
    return shore__get_u64(hash);
}

void shore__wire_header_put(unsigned char out[SHORE__WIRE_HEADER_BYTES], const struct shore__wire_header *h,
                            const void *body) {
    shore__put_u32(out, FRAME_MAGIC);
    shore__put_u16(out + 4, h->type);
    shore__put_u16(out + 6, 0);
    shore__put_u32(out + 8, h->sequence);
    shore__put_u32(out + 12, h->body_bytes);
    shore__put_u64(out + 16, h->id);
    shore__put_u64(out + 24, h->bulk_bytes);
    shore__put_u64(out + 32, check_of(out, body, h->body_bytes));
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
    *out = (struct shore__wire_header){
        .type = shore__get_u16(in + 4),
        .sequence = shore__get_u32(in + 8),
        .body_bytes = shore__get_u32(in + 12),
        .id = shore__get_u64(in + 16),
        .bulk_bytes = shore__get_u64(in + 24),
    };
    if (shore__get_u32(in) != FRAME_MAGIC || shore__get_u16(in + 6)) {
        return shore__fail(diag, SHORE_ELINK, "what came is not the beginning of a frame");
    }
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

int shore__wire_check(const unsigned char header[SHORE__WIRE_HEADER_BYTES], const void *body, struct shore_diag *diag) {
    if (shore__get_u64(header + 32) == check_of(header, body, shore__get_u32(header + 12))) return 0;
    return shore__fail(diag, SHORE_ELINK, "a frame came damaged");
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

void shore__wire_request_put(unsigned char out[SHORE__WIRE_FIELDS_BYTES], const struct shore__wire_request *r) {
    uint32_t coefficient;
    memcpy(&coefficient, &r->coefficient, sizeof coefficient);
    memset(out, 0, SHORE__WIRE_FIELDS_BYTES);
    shore__put_u64(out, r->step);
    shore__put_u64(out + 8, r->era);
    shore__put_u64(out + 16, r->start);
    shore__put_u64(out + 24, r->bytes);
    shore__put_u32(out + 32, r->block);
    shore__put_u32(out + 36, r->segment);
    shore__put_u32(out + 40, r->count);
    shore__put_u32(out + 44, r->kind);
    shore__put_u32(out + 48, r->order);
    shore__put_u32(out + 52, r->flags);
    shore__put_u32(out + 56, coefficient);
    shore__put_u32(out + 60, r->ngroups);
    shore__put_u32(out + 64, r->tail_bytes);
}

static int bad(struct shore_diag *diag, const struct shore__wire_header *h, const char *what) {
    return shore__fail(diag, SHORE_ELINK, "a request of type %u came that %s", h->type, what);
}

int shore__wire_request_get(const struct shore__wire_header *h, const unsigned char *body,
                            struct shore__wire_request *out, struct shore_diag *diag) {
    if (h->body_bytes < SHORE__WIRE_FIELDS_BYTES) return bad(diag, h, "is too short");
    uint32_t coefficient = shore__get_u32(body + 56);
    *out = (struct shore__wire_request){
        .type = h->type,
        .step = shore__get_u64(body),
        .era = shore__get_u64(body + 8),
        .start = shore__get_u64(body + 16),
        .bytes = shore__get_u64(body + 24),
        .block = shore__get_u32(body + 32),
        .segment = shore__get_u32(body + 36),
        .count = shore__get_u32(body + 40),
        .kind = shore__get_u32(body + 44),
        .order = shore__get_u32(body + 48),
        .flags = shore__get_u32(body + 52),
        .ngroups = shore__get_u32(body + 60),
        .tail = body + SHORE__WIRE_FIELDS_BYTES,
        .tail_bytes = shore__get_u32(body + 64),
    };
    memcpy(&out->coefficient, &coefficient, sizeof coefficient);
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
        if (out->kind >= SHORE__FUNCTIONS) return bad(diag, h, "calls an unknown function");
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
    };
}

static void put_f32(unsigned char *out, float v) {
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    shore__put_u32(out, bits);
}

static float get_f32(const unsigned char *in) {
    uint32_t bits = shore__get_u32(in);
    float v;
    memcpy(&v, &bits, sizeof v);
    return v;
}

void shore__wire_hyper_put(unsigned char out[SHORE__WIRE_HYPER_BYTES], const struct shore_hyper *h) {
    put_f32(out, h->lr);
    put_f32(out + 4, h->beta1);
    put_f32(out + 8, h->beta2);
    put_f32(out + 12, h->eps);
    put_f32(out + 16, h->weight_decay);
    put_f32(out + 20, h->momentum);
    put_f32(out + 24, h->step_size);
    put_f32(out + 28, h->inv_sqrt_bias2);
    shore__put_u32(out + 32, h->first_step);
    shore__put_u32(out + 36, h->frozen);
}

void shore__wire_hyper_get(const unsigned char in[SHORE__WIRE_HYPER_BYTES], struct shore_hyper *out) {
    *out = (struct shore_hyper){
        .lr = get_f32(in),
        .beta1 = get_f32(in + 4),
        .beta2 = get_f32(in + 8),
        .eps = get_f32(in + 12),
        .weight_decay = get_f32(in + 16),
        .momentum = get_f32(in + 20),
        .step_size = get_f32(in + 24),
        .inv_sqrt_bias2 = get_f32(in + 28),
        .first_step = shore__get_u32(in + 32),
        .frozen = shore__get_u32(in + 36),
    };
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

uint32_t shore__wire_answer_put(unsigned char *out, int rc, const struct shore_diag *diag) {
    uint32_t text_bytes = rc ? (uint32_t)strlen(diag->text) : 0, of_bytes;
    assert(rc <= 0 && rc >= -0xFFFF && text_bytes < sizeof diag->text);
    unsigned char *at = out + SHORE__WIRE_ANSWER_BYTES + text_bytes;
    shore__put_u32(out, (uint32_t)-rc);
    shore__put_u32(out + 4, text_bytes);
    if (text_bytes) memcpy(out + SHORE__WIRE_ANSWER_BYTES, diag->text, text_bytes);
    if (!rc || !diag->advice) return (uint32_t)(at - out);
    of_bytes = (uint32_t)strlen(diag->of);
    shore__put_u32(at, (uint32_t)diag->advice);
    shore__put_u32(at + 4, of_bytes);
    memcpy(at + 8, diag->of, of_bytes);
    return (uint32_t)(at - out) + 8 + of_bytes;
}

/* Older servers send no advice. */
static bool advice_get(struct shore__wire_answer *a) {
    if (!a->rc || !a->result_bytes) return true;
    if (a->result_bytes < 8) return false;
    uint32_t advice = shore__get_u32(a->result);
    a->of_bytes = shore__get_u32(a->result + 4);
    a->of = (const char *)a->result + 8;
    a->advice = advice < SHORE_ADVICE_COUNT ? (int)advice : SHORE_ADVICE_NONE;
    return a->of_bytes <= a->result_bytes - 8;
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
    if (h->body_bytes < SHORE__WIRE_ANSWER_BYTES) return shore__fail(diag, SHORE_ELINK, "an answer came cut off");
    uint32_t code = shore__get_u32(body), text_bytes = shore__get_u32(body + 4);
    uint32_t left = h->body_bytes - SHORE__WIRE_ANSWER_BYTES;
    if (code > 0xFFFF || text_bytes > left || text_bytes >= sizeof diag->text) {
        return shore__fail(diag, SHORE_ELINK, "an answer came with invalid fields");
    }
    *out = (struct shore__wire_answer){
        .rc = -(int)code,
        .text = (const char *)body + SHORE__WIRE_ANSWER_BYTES,
        .text_bytes = text_bytes,
        .result = body + SHORE__WIRE_ANSWER_BYTES + text_bytes,
        .result_bytes = left - text_bytes,
    };
    if (out->rc && h->bulk_bytes) {
        return shore__fail(diag, SHORE_ELINK, "an answer came with both an error and data");
    }
    return advice_get(out) ? 0 : shore__fail(diag, SHORE_ELINK, "an answer came with invalid fields");
}

#define LEDGER_FIELDS(X) \
    X(drive_read_state)  \
    X(drive_write_state) \
    X(drive_read_fetch)  \
    X(drive_read_spill)  \
    X(drive_write_spill) \
    X(drive_read_scratch) X(drive_write_scratch) X(drive_write_commit) X(update_io_wait_ns) X(update_compute_ns)

void shore__wire_ledger_put(unsigned char out[SHORE__WIRE_LEDGER_BYTES], const struct shore_ledger *l) {
    unsigned char *at = out + 4;
    shore__put_u32(out, 10);
#define PUT(field) shore__put_u64(at, l->field), at += 8;
    LEDGER_FIELDS(PUT)
#undef PUT
    assert(at == out + SHORE__WIRE_LEDGER_BYTES);
}

void shore__wire_ledger_add(struct shore_ledger *to, const struct shore_ledger *from) {
#define ADD(field) to->field += from->field;
    LEDGER_FIELDS(ADD)
#undef ADD
}

bool shore__wire_ledger_get(const unsigned char *in, uint32_t bytes, struct shore_ledger *add_to) {
    if (bytes < SHORE__WIRE_LEDGER_BYTES || shore__get_u32(in) != 10) return false;
    const unsigned char *at = in + 4;
#define GET(field) add_to->field += shore__get_u64(at), at += 8;
    LEDGER_FIELDS(GET)
#undef GET
    return true;
}

/* ---- recovery ---------------------------------------------------------------------------------------------------- */

static unsigned char *put_record(unsigned char *at, const struct shore__record *r) {
    shore__put_u64(at, r->sequence);
    shore__put_u64(at + 8, r->epoch);
    at += 16;
    for (int s = 0; s < 2; s++) {
        shore__put_u64(at, r->slot[s].step);
        memcpy(at + 8, r->slot[s].table_hash, 16);
        at += 24;
    }
    shore__put_u32(at, r->active);
    assert(r->active < 2 && r->metrics_bytes <= SHORE__METRICS_BYTES);
    shore__put_u32(at + 4, r->metrics_bytes);
    memcpy(at + 8, r->metrics, r->metrics_bytes);
    return at + 8 + r->metrics_bytes;
}

/* NULL: it is cut off, or no record. */
static const unsigned char *get_record(const unsigned char *at, const unsigned char *end, struct shore__record *r) {
    if (!at || end - at < 72) return NULL;
    r->sequence = shore__get_u64(at);
    r->epoch = shore__get_u64(at + 8);
    at += 16;
    for (int s = 0; s < 2; s++) {
        r->slot[s].step = shore__get_u64(at);
        memcpy(r->slot[s].table_hash, at + 8, 16);
        at += 24;
    }
    r->active = shore__get_u32(at);
    r->metrics_bytes = shore__get_u32(at + 4);
    at += 8;
    if (r->active > 1 || r->metrics_bytes > SHORE__METRICS_BYTES || (size_t)(end - at) < r->metrics_bytes) return NULL;
    memcpy(r->metrics, at, r->metrics_bytes);
    return at + r->metrics_bytes;
}

uint32_t shore__wire_recovery_put(unsigned char out[SHORE__WIRE_RECOVERY_BYTES],
                                  const struct shore__drive_recovery *r) {
    uint32_t text_bytes = (uint32_t)strnlen(r->damage.text, sizeof r->damage.text - 1);
    unsigned char *at = out + 8;
    shore__put_u32(out, (r->valid ? 1u : 0) | (r->older_valid ? 2u : 0) | (r->damaged_record ? 4u : 0));
    shore__put_u32(out + 4, text_bytes);
    memcpy(at, r->damage.text, text_bytes);
    at += text_bytes;
    if (r->valid) at = put_record(at, &r->record);
    if (r->older_valid) at = put_record(at, &r->older);
    assert(at <= out + SHORE__WIRE_RECOVERY_BYTES);
    return (uint32_t)(at - out);
}

bool shore__wire_recovery_get(const unsigned char *in, uint32_t bytes, struct shore__drive_recovery *out) {
    memset(out, 0, sizeof *out);
    if (bytes < 8) return false;
    uint32_t flags = shore__get_u32(in), text_bytes = shore__get_u32(in + 4);
    if (flags > 7 || text_bytes >= sizeof out->damage.text || text_bytes > bytes - 8) return false;
    const unsigned char *at = in + 8, *end = in + bytes;
    memcpy(out->damage.text, at, text_bytes);
    at += text_bytes;
    out->valid = flags & 1;
    out->older_valid = flags & 2;
    out->damaged_record = flags & 4;
    if (out->valid) at = get_record(at, end, &out->record);
    if (out->older_valid) at = get_record(at, end, &out->older);
    return at == end;
}
