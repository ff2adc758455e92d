/* What a client makes of any bytes: the first says what they are taken for. */
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "drive/probe/probe.h"
#include "drive/remote/wire_open.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void opened(const uint8_t *data, size_t size) {
    struct shore__wire_open o;
    struct shore_diag diag;
    if (shore__wire_open_get(data, (uint32_t)size, true, &o, &diag) == 0) shore__wire_open_free(&o);
}

static void answer(const uint8_t *data, size_t size) {
    struct shore__wire_header h;
    struct shore__wire_answer a;
    struct shore_diag diag;
    if (size < SHORE__WIRE_HEADER_BYTES) return;
    size_t left = size - SHORE__WIRE_HEADER_BYTES;
    if (shore__wire_header_get(data, false, shore__get_u32(data + 8), &h, &diag)) return;
    if (h.body_bytes > left || h.type != SHORE__WIRE_DONE) return;
    if (shore__wire_answer_get(&h, data + SHORE__WIRE_HEADER_BYTES, &a, &diag)) return;
    if (a.rc > 0 || (a.rc && h.bulk_bytes)) abort();
    uint64_t sum = 0;
    for (uint32_t i = 0; i < a.text_bytes; i++)
        sum += (unsigned char)a.text[i];
    for (uint32_t i = 0; i < a.of_bytes; i++)
        sum += (unsigned char)a.of[i];
    for (uint32_t i = 0; i < a.result_bytes; i++)
        sum += a.result[i];
    if (sum == UINT64_MAX || (a.rc && shore__wire_answer_fail(&a, "drive", &diag) != a.rc)) abort();
    opened(a.result, a.result_bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct shore__drive_recovery recovery;
    struct shore_ledger ledger = {0};
    struct shore__probe probe;
    struct shore_diag diag;
    uint32_t version;
    if (size < 1) return 0;
    const uint8_t *at = data + 1;
    uint32_t bytes = (uint32_t)(size - 1);
    switch (data[0] % 6) {
    case 0:
        answer(at, bytes);
        break;
    case 1:
        opened(at, bytes);
        break;
    case 2:
        if (shore__wire_recovery_get(at, bytes, &recovery) &&
            (recovery.record.metrics_bytes > SHORE__METRICS_BYTES || recovery.record.active > 1))
            abort();
        break;
    case 3:
        shore__wire_ledger_get(at, bytes, &ledger);
        break;
    case 4:
        if (shore__probe_get(at, bytes, &probe)) shore__probe_free(&probe);
        break;
    default:
        if (bytes >= SHORE__WIRE_GREETING_BYTES) shore__wire_greeting_get(at, &version, &diag);
        break;
    }
    return 0;
}
