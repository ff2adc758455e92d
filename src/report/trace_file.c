#include "report/trace_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "files/json.h"
#include "files/read_file.h"
#include "storage/hash.h"

#define MAGIC "LSTRACE\n"
#define VERSION 1u
#define FRAME 0x4e415053u /* "SPAN" */

_Static_assert(sizeof(struct shore__work_span) == 32, "spans lie in the file as they do in memory");

static void put_hash(const void *data, size_t bytes, uint64_t seed, unsigned char *out) {
    unsigned char hash[16];
    shore__hash128(data, bytes, seed, hash);
    memcpy(out, hash, 8);
}

static bool hash_is(const void *data, size_t bytes, uint64_t seed, const unsigned char *expected) {
    unsigned char hash[8];
    put_hash(data, bytes, seed, hash);
    return memcmp(hash, expected, 8) == 0;
}

void shore__trace_start(const char *head, size_t head_bytes, unsigned char out[SHORE__TRACE_START_BYTES]) {
    memset(out, 0, SHORE__TRACE_START_BYTES);
    memcpy(out, MAGIC, 8);
    shore__put_u32(out + 8, VERSION);
    shore__put_u32(out + 12, (uint32_t)head_bytes);
    put_hash(head, head_bytes, 0, out + 16);
}

static uint64_t frame_seed(const unsigned char *frame) {
    return shore__get_u64(frame + 8) ^ shore__get_u64(frame + 16) << 32;
}

void shore__trace_frame(const struct shore__recorded *spans, unsigned char out[SHORE__TRACE_FRAME_BYTES]) {
    memset(out, 0, SHORE__TRACE_FRAME_BYTES);
    shore__put_u32(out, FRAME);
    shore__put_u32(out + 8, spans->count);
    shore__put_u32(out + 12, spans->steps);
    shore__put_u64(out + 16, spans->lost);
    put_hash(spans->spans, spans->count * sizeof *spans->spans, frame_seed(out), out + 24);
}

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static int damaged(const char *name, const char *what, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EINPUT, "%s: is damaged: %s; the next start with --trace N records it anew", name,
                       what);
}

static size_t names(const json_t *head, const char *key) {
    const json_t *list = json_object_get(head, key), *item;
    size_t i;
    json_array_foreach(list, i, item) if (!json_is_string(item)) return 0;
    return json_array_size(list);
}

static int read_head(const unsigned char *data, size_t bytes, const char *name, struct shore__trace_read *out,
                     struct shore_diag *diag) {
    if (bytes < SHORE__TRACE_START_BYTES || memcmp(data, MAGIC, 8) != 0)
        return shore__fail(diag, SHORE_EFORMAT, "%s: is no trace", name);
    if (shore__get_u32(data + 8) != VERSION)
        return shore__fail(diag, SHORE_EFORMAT, "%s: is a trace of format %u, and this program knows %u", name,
                           shore__get_u32(data + 8), VERSION);
    size_t head = shore__get_u32(data + 12);
    const char *text = (const char *)data + SHORE__TRACE_START_BYTES;
    if (head > bytes - SHORE__TRACE_START_BYTES || !hash_is(text, head, 0, data + 16))
        return damaged(name, "its head does not match its checksum", diag);
    int rc = shore__json_parse(text, head, name, &out->head, diag);
    if (rc) return rc;
    bool whole = names(out->head, "lanes") && names(out->head, "charges") && names(out->head, "drives");
    return whole ? 0 : damaged(name, "its head lacks names", diag);
}

static bool is_sound(const struct shore__work_span *s, const size_t limits[SHORE__SPAN_KINDS], size_t ndrives) {
    return s->kind < SHORE__SPAN_KINDS && s->what < limits[s->kind] && s->begin_ns <= s->end_ns &&
           (s->drive < ndrives || s->drive == SHORE__NO_DRIVE);
}

/* Whether a frame is torn: a kill came while it was written, or power was cut before its bytes were. */
static bool is_torn(const unsigned char *frame, size_t left) {
    if (left < SHORE__TRACE_FRAME_BYTES || shore__get_u32(frame) == 0) return true;
    return shore__get_u32(frame) == FRAME &&
           shore__get_u32(frame + 8) > (left - SHORE__TRACE_FRAME_BYTES) / sizeof(struct shore__work_span);
}

static int read_frame(const unsigned char *frame, size_t left, const char *name, struct shore__trace_read *out,
                      struct shore_diag *diag) {
    const size_t count = shore__get_u32(frame + 8), span_bytes = sizeof *out->spans;
    const size_t ndrives = json_array_size(json_object_get(out->head, "drives"));
    const size_t limits[SHORE__SPAN_KINDS] = {
        [SHORE__SPAN_LANE] = json_array_size(json_object_get(out->head, "lanes")),
        [SHORE__SPAN_CHARGE] = json_array_size(json_object_get(out->head, "charges")),
        [SHORE__SPAN_STEP] = 1,
    };
    if (shore__get_u32(frame) != FRAME ||
        !hash_is(frame + SHORE__TRACE_FRAME_BYTES, count * span_bytes, frame_seed(frame), frame + 24))
        return damaged(name, "spans do not match their checksum", diag);
    memcpy(out->spans + out->count, frame + SHORE__TRACE_FRAME_BYTES, count * span_bytes);
    for (size_t i = 0; i < count; i++)
        if (!is_sound(&out->spans[out->count + i], limits, ndrives)) return damaged(name, "a span is of nothing", diag);
    out->count += count;
    out->lost += shore__get_u64(frame + 16);
    return 0;
}

/* Leaves out what lies before the last steps that are kept. */
static void keep_last(struct shore__trace_read *out) {
    const json_int_t keep = json_integer_value(json_object_get(out->head, "steps"));
    size_t kept = 0;
    out->begin_ns = UINT64_MAX;
    for (size_t i = out->count; i-- > 0 && (out->steps < (uint64_t)keep || keep <= 0);)
        if (out->spans[i].kind == SHORE__SPAN_STEP) {
            out->steps++;
            if (out->spans[i].begin_ns < out->begin_ns) out->begin_ns = out->spans[i].begin_ns;
        }
    for (size_t i = 0; i < out->count; i++)
        if (out->spans[i].end_ns > out->begin_ns || out->spans[i].begin_ns >= out->begin_ns)
            out->spans[kept++] = out->spans[i];
    out->count = kept;
}

int shore__trace_parse(const unsigned char *data, size_t bytes, const char *name, struct shore__trace_read *out,
                       struct shore_diag *diag) {
    *out = (struct shore__trace_read){0};
    int rc = read_head(data, bytes, name, out, diag);
    if (!rc && !(out->spans = calloc(1, bytes))) rc = shore__out_of_memory(diag);
    size_t at = rc ? bytes : SHORE__TRACE_START_BYTES + shore__get_u32(data + 12);
    while (!rc && !is_torn(data + at, bytes - at)) {
        rc = read_frame(data + at, bytes - at, name, out, diag);
        at += SHORE__TRACE_FRAME_BYTES + shore__get_u32(data + at + 8) * sizeof *out->spans;
    }
    if (!rc) keep_last(out);
    if (rc) shore__trace_free(out);
    return rc;
}

int shore__trace_load(const char *run, size_t limit_bytes, struct shore__trace_read *out, struct shore_diag *diag) {
    const struct shore__path path = shore__path_in(run, SHORE__TRACE_FILE);
    char *data = NULL;
    size_t bytes;
    *out = (struct shore__trace_read){0};
    int rc = shore__file_read(path.text, limit_bytes, &data, &bytes, diag);
    if (!rc) rc = shore__trace_parse((const unsigned char *)data, bytes, path.text, out, diag);
    free(data);
    return rc;
}

const char *shore__trace_name(const struct shore__trace_read *t, const char *list, size_t i) {
    return json_string_value(json_array_get(json_object_get(t->head, list), i));
}

void shore__trace_free(struct shore__trace_read *read) {
    json_decref(read->head);
    free(read->spans);
    *read = (struct shore__trace_read){0};
}
