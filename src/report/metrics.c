#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>

#include "report/report.h"

const enum shore_lane shore__busy_lanes[SHORE__BUSY_LANES] = {
    SHORE_LANE_COMPUTE,     SHORE_LANE_LINK_IN,      SHORE_LANE_DRIVE_READ, SHORE_LANE_DRIVE_WRITE,
    SHORE_LANE_DRIVE_MIXED, SHORE_LANE_DRIVE_UPDATE, SHORE_LANE_HOST_UPDATE};

struct line {
    char *out;
    size_t used, capacity;
    bool full;
};

__attribute__((format(printf, 2, 3))) static void append(struct line *line, const char *format, ...) {
    if (line->full) return;
    va_list args;
    va_start(args, format);
    int n = vsnprintf(line->out + line->used, line->capacity - line->used, format, args);
    va_end(args);
    if (n < 0 || (size_t)n >= line->capacity - line->used)
        line->full = true;
    else
        line->used += (size_t)n;
}

/* JSON cannot express values that are not finite. */
static void append_number(struct line *line, const char *key, double value) {
    if (isfinite(value))
        append(line, ",\"%s\":%.9g", key, value);
    else
        append(line, ",\"%s\":null", key);
}

static void append_count(struct line *line, const char *key, uint64_t value) {
    append(line, ",\"%s\":%llu", key, (unsigned long long)value);
}

int shore__metrics_line(const struct shore__step_report *report, char *out, size_t bytes) {
    struct line line = {out, 0, bytes, bytes == 0};
    append(&line, "{\"step\":%llu", (unsigned long long)report->step);
    append_number(&line, "loss", report->loss);
    if (!isnan(report->val_loss)) append_number(&line, "val_loss", report->val_loss);
    append_number(&line, "grad_norm", report->grad_norm);
    append_number(&line, "lr", report->lr);
    if (!isnan(report->dropped_energy)) append_number(&line, "dropped_energy", report->dropped_energy);
    append_count(&line, "tokens", report->tokens);
    append_number(&line, "step_seconds", report->step_seconds);
    append_number(&line, "compute_seconds", report->compute_seconds);
    append_number(&line, "wait_seconds", report->wait_seconds);
    append_number(&line, "commit_seconds", report->commit_seconds);
    append_count(&line, "replays", report->replays);
    const struct shore__link_bytes *l = &report->link;
    append_count(&line, "link_bytes",
                 l->gradients + l->compressed + l->parameters + l->activations + l->state + l->control);
    append_count(&line, "link_gradients", l->gradients);
    append_count(&line, "link_compressed", l->compressed);
    append_count(&line, "link_parameters", l->parameters);
    append_count(&line, "link_activations", l->activations);
    append_count(&line, "link_state", l->state);
    append_count(&line, "link_control", l->control);
    append_count(&line, "drive_read_bytes", report->drive_read_bytes);
    append_count(&line, "drive_write_bytes", report->drive_write_bytes);
    append_count(&line, "resident_bytes", report->resident_bytes);
    append(&line, ",\"speculated\":%s", report->speculated ? "true" : "false");
    if (report->emulated) {
        append(&line, ",\"emulated\":true,\"busy\":");
        for (int i = 0; i < SHORE__BUSY_LANES; i++)
            append(&line, "%c\"%s\":%.9g", i ? ',' : '{', shore_lane_name(shore__busy_lanes[i]),
                   report->busy.seconds[shore__busy_lanes[i]]);
        append(&line, "}");
    }
    if (report->skipped) append(&line, ",\"skipped\":true");
    append(&line, "}");
    return line.full ? -ENOSPC : (int)line.used;
}
