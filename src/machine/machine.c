#include "machine/machine.h"

#include <math.h>
#include <stdlib.h>

/* Until a machine is measured: a processor of some cores, and one fast drive. */
#define OPERATIONS_PER_SECOND 400e9
#define ROW_BYTES_PER_SECOND 20e9
#define CALLS_PER_SECOND 200e3
#define DRIVE_BYTES_PER_SECOND 2e9

#define ANY_ROWS(rate) \
    { .at = {{0, rate}}, .n = 1 }

const struct shore_machine *shore__machine_assumed(void) {
    static const struct shore_machine assumed = {
        .name = "assumed",
        .scale = 1,
        .rate[SHORE_WORK_PRODUCT][SHORE_PRECISION_FP32] = ANY_ROWS(OPERATIONS_PER_SECOND),
        .rate[SHORE_WORK_ROWS][SHORE_PRECISION_FP32] = ANY_ROWS(ROW_BYTES_PER_SECOND),
        .rate[SHORE_WORK_CALLS][SHORE_PRECISION_FP32] = ANY_ROWS(CALLS_PER_SECOND),
        .ndrives = 1,
        .drive = {{.mixed = DRIVE_BYTES_PER_SECOND, .host_computes = true}},
    };
    return &assumed;
}

static double at_rows(const struct shore__rates *r, uint64_t rows) {
    uint32_t i = 1;
    if (!rows) rows = UINT64_MAX;
    if (r->n == 1 || rows <= r->at[0].rows) return r->at[0].per_second;
    while (i < r->n && r->at[i].rows < rows)
        i++;
    if (i == r->n) return r->at[i - 1].per_second;
    const struct shore__rate_at *a = &r->at[i - 1], *b = &r->at[i];
    double share = log2((double)rows / a->rows) / log2((double)b->rows / a->rows);
    return a->per_second + (b->per_second - a->per_second) * share;
}

/* Kinds whose rates resemble a kind's, from the nearest on; SHORE_WORKS ends the list. */
static const unsigned char kinds[SHORE_WORKS][SHORE_WORKS] = {
    [SHORE_WORK_PRODUCT] = {SHORE_WORK_PRODUCT, SHORE_WORK_PRODUCT_INPUT, SHORE_WORK_PRODUCT_WEIGHT, SHORE_WORKS},
    [SHORE_WORK_PRODUCT_INPUT] = {SHORE_WORK_PRODUCT_INPUT, SHORE_WORK_PRODUCT, SHORE_WORK_PRODUCT_WEIGHT, SHORE_WORKS},
    [SHORE_WORK_PRODUCT_WEIGHT] = {SHORE_WORK_PRODUCT_WEIGHT, SHORE_WORK_PRODUCT, SHORE_WORK_PRODUCT_INPUT,
                                   SHORE_WORKS},
    [SHORE_WORK_ATTENTION] = {SHORE_WORK_ATTENTION, SHORE_WORK_ATTENTION_BACKWARD, SHORE_WORK_PRODUCT, SHORE_WORKS},
    [SHORE_WORK_ATTENTION_BACKWARD] = {SHORE_WORK_ATTENTION_BACKWARD, SHORE_WORK_ATTENTION, SHORE_WORK_PRODUCT,
                                       SHORE_WORKS},
    [SHORE_WORK_ROWS] = {SHORE_WORK_ROWS, SHORE_WORKS},
    [SHORE_WORK_FUNCTIONS] = {SHORE_WORK_FUNCTIONS, SHORE_WORK_ROWS, SHORE_WORKS},
    [SHORE_WORK_CALLS] = {SHORE_WORK_CALLS, SHORE_WORKS},
};
/* The same of precisions. */
static const unsigned char precisions[SHORE_PRECISIONS][SHORE_PRECISIONS] = {
    [SHORE_PRECISION_FP32] = {SHORE_PRECISION_FP32, SHORE_PRECISION_TF32, SHORE_PRECISION_BF16, SHORE_PRECISION_FP16,
                              SHORE_PRECISION_FP8},
    [SHORE_PRECISION_BF16] = {SHORE_PRECISION_BF16, SHORE_PRECISION_FP16, SHORE_PRECISION_TF32, SHORE_PRECISION_FP8,
                              SHORE_PRECISION_FP32},
    [SHORE_PRECISION_FP16] = {SHORE_PRECISION_FP16, SHORE_PRECISION_BF16, SHORE_PRECISION_TF32, SHORE_PRECISION_FP8,
                              SHORE_PRECISION_FP32},
    [SHORE_PRECISION_TF32] = {SHORE_PRECISION_TF32, SHORE_PRECISION_FP32, SHORE_PRECISION_BF16, SHORE_PRECISION_FP16,
                              SHORE_PRECISION_FP8},
    [SHORE_PRECISION_FP8] = {SHORE_PRECISION_FP8, SHORE_PRECISION_BF16, SHORE_PRECISION_FP16, SHORE_PRECISION_TF32,
                             SHORE_PRECISION_FP32},
};

bool shore__rates_given(const struct shore__rates rates[SHORE_WORKS][SHORE_PRECISIONS]) {
    for (int kind = 0; kind < SHORE_WORKS; kind++)
        for (int p = 0; p < SHORE_PRECISIONS; p++)
            if (rates[kind][p].n) return true;
    return false;
}

double shore__machine_rate(const struct shore_machine *machine, enum shore_work_kind kind,
                           enum shore_precision precision, uint64_t rows) {
    if (!machine) machine = shore__machine_assumed();
    for (int p = 0; p < SHORE_PRECISIONS; p++)
        for (int k = 0; k < SHORE_WORKS && kinds[kind][k] < SHORE_WORKS; k++) {
            const struct shore__rates *r = &machine->rate[kinds[kind][k]][precisions[precision][p]];
            if (r->n) return at_rows(r, rows);
        }
    if ((kind == SHORE_WORK_ROWS || kind == SHORE_WORK_FUNCTIONS) && machine->memory_bandwidth > 0)
        return machine->memory_bandwidth;
    return shore__machine_rate(NULL, kind, precision, rows);
}

double shore__machine_peak(const struct shore_machine *machine, enum shore_precision precision) {
    double peak = 0;
    for (int kind = 0; machine && kind <= SHORE_WORK_PRODUCT_WEIGHT; kind++) {
        const struct shore__rates *r = &machine->rate[kind][precision];
        for (uint32_t i = 0; i < r->n; i++)
            peak = fmax(peak, r->at[i].per_second);
    }
    return peak;
}

double shore__machine_seconds(const struct shore_machine *machine, enum shore_work_kind kind,
                              enum shore_precision precision, uint64_t rows, uint64_t work) {
    return (double)work / shore__machine_rate(machine, kind, precision, rows);
}

const struct shore__machine_drive *shore__machine_drive(const struct shore_machine *machine, uint32_t drive) {
    if (!machine->ndrives) return NULL;
    return &machine->drive[drive < machine->ndrives ? drive : machine->ndrives - 1];
}

void shore_machine_free(struct shore_machine *machine) {
    free(machine);
}

#define SPEED_MOST UINT64_C(1000000000000) /* the most that --drive-speeds takes */

uint64_t shore__machine_update_speed(const struct shore__machine_drive *d) {
    double seconds = 0; /* for a byte read, computed and written */
    const double rates[4] = {d->read, d->write, d->mixed / 2, d->update * 12};
    for (int i = 0; i < 4; i++)
        if (rates[i] > 0 && 1 / rates[i] > seconds) seconds = 1 / rates[i];
    return seconds * (double)SPEED_MOST > 2 ? 1 + (uint64_t)(2 / seconds) : SPEED_MOST;
}

void shore__machine_slow_drive(struct shore__machine_drive *drive, double factor) {
    drive->read /= factor;
    drive->write /= factor;
    drive->mixed /= factor;
    drive->mixed_least /= factor;
}

void shore__machine_slow_computing(struct shore_machine *machine, double factor) {
    for (int kind = 0; kind < SHORE_WORKS; kind++)
        for (int p = 0; p < SHORE_PRECISIONS; p++)
            for (uint32_t i = 0; i < machine->rate[kind][p].n; i++)
                machine->rate[kind][p].at[i].per_second /= factor;
    machine->forward_seconds *= factor;
    machine->backward_seconds *= factor;
}

void shore__machine_take_step(struct shore_machine *machine, uint64_t step) {
    for (uint32_t d = 0; d < machine->ndrives; d++) {
        struct shore__machine_drive *drive = &machine->drive[d];
        if (!drive->slower_after || step <= drive->slower_after) continue;
        shore__machine_slow_drive(drive, drive->slower_by);
        drive->slower_after = 0;
    }
}
