/* What a server makes of any bytes: the first says what they are taken for. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "base/units.h"
#include "drive/remote/wire_open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void open_body(const uint8_t *data, size_t size) {
    struct shore__wire_open o;
    struct shore_diag diag;
    unsigned char *again = NULL;
    uint32_t bytes;
    if (shore__wire_open_get(data, (uint32_t)size, false, &o, &diag)) return;
    /* what was understood can be said again, and is understood in the same way */
    if (shore__wire_open_put(&o, false, &again, &bytes) == 0) {
        struct shore__wire_open twice;
        if (shore__wire_open_get(again, bytes, false, &twice, &diag)) abort();
        if (strcmp(twice.path, o.path) != 0 || twice.layout->segments != o.layout->segments) abort();
        shore__wire_open_free(&twice);
    }
    free(again);
    shore__wire_open_free(&o);
}

/* A function of this program: it looks at every byte of its argument, as those of the table do. */
static int made_up_check(const struct shore__call *call, const struct shore__volume_desc *desc,
                         struct shore_diag *diag) {
    unsigned sum = 0;
    for (uint32_t i = 0; i < call->argument_bytes; i++)
        sum += ((const unsigned char *)call->argument)[i];
    return sum % 2 || call->in_bytes > call->bytes ? shore__fail(diag, -EINVAL, "an odd argument") : 0;
}

static int made_up_run(struct shore__reach *reach, const struct shore__call *call, struct shore_diag *diag) {
    return 0;
}

static const struct shore__function made_up = {.name = "MADE_UP",
                                               .over = SHORE__OVER_SCRATCH,
                                               .cuttable = true,
                                               .repeats = true,
                                               .check = made_up_check,
                                               .run = made_up_run};

static const struct shore__extent extent = {.block = 1, .first = 2, .count = 4};
static const struct shore__volume_desc drive = {
    .nextents = 1, .extents = &extent, .segments = 4, .scratch_bytes = 1 << 20, .spill = true};

/* Its parts are the whole, and say the same again. What a drive takes lies on it. */
static void called(const struct shore__wire_request *r) {
    struct shore__call call = shore__wire_call_get(r);
    uint64_t units = shore__call_units(&call), half = units / 2;
    struct shore__wire_request again;
    struct shore_diag diag;
    shore__wire_call_put(&again, &call);
    if (again.kind != r->kind || again.order != r->order || again.start != r->start || again.bytes != r->bytes ||
        again.block != r->block || again.segment != r->segment || again.count != r->count || again.step != r->step ||
        again.era != r->era || again.in_bytes != r->in_bytes || again.out_bytes != r->out_bytes)
        abort();
    if (call.argument_bytes > SHORE__ARGUMENT_BYTES || call.in_bytes > SHORE__WIRE_BULK_BYTES ||
        call.out_bytes > SHORE__WIRE_BULK_BYTES)
        abort();
    struct shore__call first = shore__call_part(&call, 0, half), rest = shore__call_part(&call, half, units - half);
    if (shore__call_units(&first) + shore__call_units(&rest) != units ||
        (units && shore__call_in_bytes(&first) + shore__call_in_bytes(&rest) != shore__call_in_bytes(&call)))
        abort();
    if (shore__call_check(&call, &drive, &diag)) return;
    switch (shore__function(call.function)->over) {
    case SHORE__OVER_SEGMENTS:
        if (call.block != 1 || call.segment < 2 || call.segment + call.count > 6 || call.count == 0) abort();
        break;
    case SHORE__OVER_SCRATCH:
        if (call.bytes == 0 || call.start + call.bytes > drive.scratch_bytes || call.start > call.start + call.bytes)
            abort();
        break;
    default:
        break;
    }
}

static void frame(const uint8_t *data, size_t size) {
    struct shore__wire_header h;
    struct shore__wire_request r;
    struct shore_diag diag;
    if (size < SHORE__WIRE_HEADER_BYTES) return;
    size_t left = size - SHORE__WIRE_HEADER_BYTES;
    if (shore__wire_header_get(data, true, shore__get_u32(data + 8), &h, &diag)) return;
    if (h.body_bytes > left) return;
    shore__wire_check(data, &h, data + SHORE__WIRE_HEADER_BYTES, &diag);
    if (h.type == SHORE__WIRE_OPEN) {
        open_body(data + SHORE__WIRE_HEADER_BYTES, h.body_bytes);
        return;
    }
    if (shore__wire_request_get(&h, data + SHORE__WIRE_HEADER_BYTES, &r, &diag)) return;
    uint64_t sum = 0;
    for (uint32_t i = 0; i < r.tail_bytes; i++)
        sum += r.tail[i];
    for (uint32_t g = 0; g < r.ngroups; g++) {
        struct shore_hyper hyper;
        shore__wire_hyper_get(r.tail + (size_t)g * SHORE__WIRE_HYPER_BYTES, &hyper);
        sum += hyper.frozen;
    }
    if (sum == UINT64_MAX) abort();
    if (h.type == SHORE__WIRE_CALL) called(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (!shore__function(SHORE__FUNCTIONS_ADDED)) shore__function_add(&made_up);
    if (size < 1) return 0;
    if (data[0] & 1)
        open_body(data + 1, size - 1);
    else
        frame(data + 1, size - 1);
    return 0;
}
