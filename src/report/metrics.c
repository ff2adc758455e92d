#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "base/sized.h"
#include "report/line.h"
#include "report/report.h"

const enum shore_lane shore__busy_lanes[SHORE__BUSY_LANES] = {
    SHORE_LANE_COMPUTE,     SHORE_LANE_LINK_IN,      SHORE_LANE_DRIVE_READ, SHORE_LANE_DRIVE_WRITE,
    SHORE_LANE_DRIVE_MIXED, SHORE_LANE_DRIVE_UPDATE, SHORE_LANE_HOST_UPDATE};

const char *shore_charge_name(enum shore_charge charge) {
#define NAME(charge, name) name,
    static const char *const names[SHORE_CHARGES] = {SHORE_CHARGE_LIST(NAME)};
#undef NAME
    assert((unsigned)charge < SHORE_CHARGES);
    return names[charge];
}

/* JSON cannot express values that are not finite. */
static void append_number(struct shore__line *line, const char *key, double value) {
    if (isfinite(value))
        shore__line_add(line, ",\"%s\":%.9g", key, value);
    else
        shore__line_add(line, ",\"%s\":null", key);
}

static void append_count(struct shore__line *line, const char *key, uint64_t value) {
    shore__line_add(line, ",\"%s\":%llu", key, (unsigned long long)value);
}

/* Counters of a ledger that a key adds. */
struct sum {
    const char *key;
    size_t of[4]; /* 0: none */
};
#define AT(member) offsetof(struct shore_ledger, member)
static const struct sum link_sums[] = {
    {"link_gradients", {AT(link_in_gradients), AT(link_out_gradients)}},
    {"link_compressed", {AT(link_in_compressed)}},
    {"link_parameters", {AT(link_out_params)}},
    {"link_activations", {AT(link_activations)}},
    {"link_state", {AT(link_in_state), AT(link_out_state)}},
    {"link_control", {AT(link_control)}},
};
static const struct sum drive_sums[] = {
    {"drive_read_bytes", {AT(drive_read_state), AT(drive_read_fetch), AT(drive_read_spill), AT(drive_read_scratch)}},
    {"drive_write_bytes",
     {AT(drive_write_state), AT(drive_write_spill), AT(drive_write_scratch), AT(drive_write_commit)}},
};

static uint64_t total(const struct shore_ledger *l, const struct sum *sum) {
    uint64_t bytes = 0;
    for (int i = 0; i < 4 && sum->of[i]; i++)
        bytes += *(const uint64_t *)(const void *)((const char *)l + sum->of[i]);
    return bytes;
}

static void append_bytes(struct shore__line *line, const struct shore_ledger *l) {
    uint64_t link = 0;
    for (size_t i = 0; i < sizeof link_sums / sizeof link_sums[0]; i++)
        link += total(l, &link_sums[i]);
    append_count(line, "link_bytes", link);
    for (size_t i = 0; i < sizeof link_sums / sizeof link_sums[0]; i++)
        append_count(line, link_sums[i].key, total(l, &link_sums[i]));
    for (size_t i = 0; i < sizeof drive_sums / sizeof drive_sums[0]; i++)
        append_count(line, drive_sums[i].key, total(l, &drive_sums[i]));
}

/* An object of seconds. */
static void append_seconds(struct shore__line *line, int i, const char *name, double seconds) {
    shore__line_add(line, "%c\"%s\":%.9g", i ? ',' : '{', name, seconds);
}

int shore_metrics_line(const struct shore_step_report *given, char *out, size_t bytes) {
    struct shore_step_report r;
    struct shore__line line = {out, 0, bytes};
    int rc = shore__sized_in(&r, sizeof r, given, "shore_step_report", NULL);
    if (rc) return rc;
    shore__line_add(&line, "{\"step\":%llu", (unsigned long long)r.step);
    append_number(&line, "loss", r.loss);
    if (!isnan(r.val_loss)) append_number(&line, "val_loss", r.val_loss);
    append_number(&line, "grad_norm", r.grad_norm);
    append_number(&line, "lr", r.lr);
    if (!isnan(r.dropped_energy)) append_number(&line, "dropped_energy", r.dropped_energy);
    if (r.tokens) append_count(&line, "tokens", r.tokens);
    if (r.uncounted_tokens) append_count(&line, "counted_tokens", r.tokens - r.uncounted_tokens);
    if (r.mfu > 0) append_number(&line, "mfu", r.mfu);
    append_number(&line, "step_seconds", r.step_seconds);
    append_number(&line, "compute_seconds", r.compute_seconds);
    append_number(&line, "wait_seconds", r.wait_seconds);
    append_number(&line, "commit_seconds", r.commit_seconds);
    if (r.paced_seconds > 0) append_number(&line, "paced_seconds", r.paced_seconds);
    shore__line_add(&line, ",\"charges\":");
    for (int i = 0; i < SHORE_CHARGES; i++)
        append_seconds(&line, i, shore_charge_name(i), r.charge_seconds[i]);
    shore__line_add(&line, "}");
    append_count(&line, "replays", r.replays);
    append_bytes(&line, &r.ledger);
    append_count(&line, "resident_bytes", r.resident_bytes);
    shore__line_add(&line, ",\"speculated\":%s", r.speculated ? "true" : "false");
    if (r.emulated) {
        shore__line_add(&line, ",\"emulated\":true,\"busy\":");
        for (int i = 0; i < SHORE__BUSY_LANES; i++)
            append_seconds(&line, i, shore_lane_name(shore__busy_lanes[i]), r.busy_seconds[shore__busy_lanes[i]]);
        shore__line_add(&line, "}");
    }
    if (r.skipped) shore__line_add(&line, ",\"skipped\":true");
    shore__line_add(&line, "}");
    return (int)line.used;
}
