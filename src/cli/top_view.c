#include "cli/top_view.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "files/json.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"

enum { LABEL = 14, BAR_MOST = 60, FIGURES = 19 };

/* ---- reading ----------------------------------------------------------------------------------------------------- */

static double number(const json_t *object, const char *key) {
    const json_t *value = json_object_get(object, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static void add_to_means(struct shore__top *top, const json_t *line) {
    const json_t *charges = json_object_get(line, "charges"), *busy = json_object_get(line, "busy");
    if (!json_is_object(charges) || !(number(line, "step_seconds") > 0)) return;
    double weight = 1.0 / ++top->steps;
    top->step_seconds += (number(line, "step_seconds") - top->step_seconds) * weight;
    top->tokens_per_second +=
        (shore__json_amount(line, "tokens") - top->tokens_per_second) * weight; /* tokens, until all are in */
    for (int i = 0; i < SHORE_CHARGES; i++)
        top->charge_seconds[i] += (shore__json_amount(charges, shore_charge_name(i)) - top->charge_seconds[i]) * weight;
    for (int i = 0; i < SHORE__BUSY_LANES; i++)
        top->busy_seconds[i] +=
            (shore__json_amount(busy, shore_lane_name(shore__busy_lanes[i])) - top->busy_seconds[i]) * weight;
}

static bool take_metrics(void *ctx, const char *text, size_t bytes) {
    struct shore__top *top = ctx;
    json_t *line = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_integer(json_object_get(line, "step"))) {
        top->damaged = true;
    } else {
        if (!top->line) top->line = json_incref(line);
        if (isnan(top->loss)) top->loss = number(line, "loss");
        if (isnan(top->val_loss)) top->val_loss = number(line, "val_loss");
        add_to_means(top, line);
    }
    json_decref(line);
    return top->steps < SHORE__TOP_STEPS;
}

static bool take_drives(void *ctx, const char *text, size_t bytes) {
    struct shore__top *top = ctx;
    json_t *line = json_loadb(text, bytes, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_array(json_object_get(line, "drives"))) top->drives = json_incref(line);
    json_decref(line);
    return !top->drives;
}

int shore__top_look(const char *path, struct shore__top *top, struct shore_diag *diag) {
    *top = (struct shore__top){.loss = NAN, .val_loss = NAN};
    int rc = shore__run_look_at_state(path, NULL, &top->run, diag);
    if (rc) return rc;
    top->in_use = shore__run_worker(path, &top->worker);
    shore__run_last_lines(top->run, "metrics.jsonl", take_metrics, top);
    shore__run_last_lines(top->run, "drives.jsonl", take_drives, top);
    shore__run_pulse(top->run, &top->pulse);
    if (top->steps) top->tokens_per_second /= top->step_seconds;
    if (shore__json_read(shore__path_in(path, SHORE__RUN_PLAN).text, SHORE__RUN_PLAN_BYTES_MOST, &top->plan, NULL))
        top->plan = NULL;
    return 0;
}

void shore__top_free(struct shore__top *top) {
    json_decref(top->line);
    json_decref(top->drives);
    json_decref(top->plan);
    shore__run_close(top->run);
}

/* ---- printing ---------------------------------------------------------------------------------------------------- */

/* What is printed to, and the room that is left. */
struct paper {
    FILE *out;
    const char *line_end;
    unsigned columns, rows, used; /* rows 0: any */
};

/* Prints a line, cut to the width. */
__attribute__((format(printf, 2, 3))) static void line(struct paper *p, const char *format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (p->rows && p->used + 1 >= p->rows) return; /* the last row would scroll */
    size_t bytes = 0;
    for (unsigned column = 0; text[bytes] && column < p->columns; column++)
        do
            bytes++;
        while (((unsigned char)text[bytes] & 0xC0) == 0x80); /* of one character */
    fprintf(p->out, "%.*s%s", (int)bytes, text, p->line_end);
    p->used++;
}

/* A label, a share as a bar, and figures behind it. */
static void bar(struct paper *p, const char *label, double share, const char *figures) {
    char cells[BAR_MOST + 1];
    unsigned width = p->columns > LABEL + FIGURES + 6 ? p->columns - LABEL - FIGURES - 2 : 4;
    if (width > BAR_MOST) width = BAR_MOST;
    share = share > 1 ? 1 : share > 0 ? share : 0;
    unsigned full = (unsigned)(share * width + 0.5);
    memset(cells, '.', width);
    memset(cells, '#', full);
    cells[width] = 0;
    line(p, "%-*.*s %s %s", LABEL, LABEL, label, cells, figures);
}

static void share_bar(struct paper *p, const char *label, double seconds, double of) {
    char figures[64];
    snprintf(figures, sizeof figures, "%3.0f %% %s", 100 * seconds / of, shore__format_seconds(seconds).text);
    bar(p, label, seconds / of, figures);
}

static void print_progress(struct paper *p, const struct shore__top *top) {
    const struct shore__run *run = top->run;
    const bool model = run->model;
    const uint64_t steps = model ? run->settings.steps : 0;
    char text[512] = "";
    shore__append(text, sizeof text, "step %llu", (unsigned long long)run->hint_step);
    if (model) shore__append(text, sizeof text, " of %llu", (unsigned long long)steps);
    if (top->in_use && top->worker.pid)
        shore__append(text, sizeof text, ", process %lld works on it", (long long)top->worker.pid);
    else
        shore__append(text, sizeof text, "%s",
                      top->in_use                        ? ", in use"
                      : model && run->hint_step >= steps ? ", finished"
                                                         : ", nobody works on it now");
    line(p, "%s", shore__shown(run->path).text);
    line(p, "%s", text);
    text[0] = 0;
    if (isfinite(top->loss)) shore__append(text, sizeof text, "loss %.4f  ", top->loss);
    if (isfinite(top->val_loss)) shore__append(text, sizeof text, "val %.4f  ", top->val_loss);
    if (isfinite(number(top->line, "lr"))) shore__append(text, sizeof text, "lr %.3g  ", number(top->line, "lr"));
    if (isfinite(number(top->line, "grad_norm")))
        shore__append(text, sizeof text, "norm %.3g", number(top->line, "grad_norm"));
    if (text[0]) line(p, "%s", text);
    text[0] = 0;
    if (top->pulse.step_seconds > 0)
        shore__append(text, sizeof text, "%s/step  ", shore__format_seconds(top->pulse.step_seconds).text);
    if (top->tokens_per_second > 0) shore__append(text, sizeof text, "%.0f tok/s  ", top->tokens_per_second);
    if (top->pulse.remaining_seconds > 0)
        shore__append(text, sizeof text, "ETA %s", shore__format_seconds(top->pulse.remaining_seconds).text);
    if (text[0]) line(p, "%s", text);
}

/* Why nothing is known of a step's time. No line is longer than 40 columns. */
static void print_nothing(struct paper *p, const struct shore__top *top) {
    if (!top->line && !top->damaged && !top->run->hint_step) {
        line(p, "no step has been made yet");
        return;
    }
    line(p, "where its time goes is not known:");
    line(p, "%s",
         top->line      ? "steps are an older version's, or lost"
         : top->damaged ? "metrics.jsonl is damaged at its end"
                        : "metrics.jsonl's end cannot be read");
}

/* Where there are not rows for all, the largest ones. */
static void print_charges(struct paper *p, const struct shore__top *top) {
    if (!top->steps) {
        print_nothing(p, top);
        return;
    }
    line(p, "%s", "");
    line(p, "a step's time, mean of %u: %s", top->steps, shore__format_seconds(top->step_seconds).text);
    const unsigned rows = !p->rows ? SHORE_CHARGES : p->rows > p->used + 1 ? p->rows - p->used - 1 : 0;
    for (int i = 0; i < SHORE_CHARGES; i++) {
        unsigned larger = 0;
        for (int k = 0; k < SHORE_CHARGES; k++)
            larger += top->charge_seconds[k] > top->charge_seconds[i];
        if (top->charge_seconds[i] > 0 && larger < rows)
            share_bar(p, shore_charge_name(i), top->charge_seconds[i], top->step_seconds);
    }
    if (top->damaged) line(p, "metrics.jsonl: damaged lines left out");
}

/* Lanes beside those of the drives, which are below. The emulated machine's are in the metrics. */
static void print_lanes(struct paper *p, const struct shore__top *top) {
    const json_t *planned = json_object_get(top->plan, "lanes");
    const double *charged = top->charge_seconds, of = shore__json_amount(top->plan, "step_seconds");
    bool emulated = json_is_object(json_object_get(top->line, "busy"));
    if (!top->steps) return;
    line(p, "%s", "");
    line(p, "lanes, busy%s", planned && of > 0 ? ", and by the plan" : "");
    for (int i = 0; i < SHORE__BUSY_LANES; i++) {
        enum shore_lane lane = shore__busy_lanes[i];
        const char *name = shore_lane_name(lane);
        double seconds = emulated                     ? top->busy_seconds[i]
                         : lane == SHORE_LANE_COMPUTE ? charged[SHORE_CHARGE_FORWARD] + charged[SHORE_CHARGE_AGAIN] +
                                                            charged[SHORE_CHARGE_BACKWARD]
                                                      : 0;
        char figures[64] = "";
        if (!(seconds > 0) && !(emulated && shore__json_amount(planned, name) > 0)) continue;
        shore__append(figures, sizeof figures, "%3.0f %%", 100 * seconds / top->step_seconds);
        if (of > 0) shore__append(figures, sizeof figures, ", %.0f %%", 100 * shore__json_amount(planned, name) / of);
        bar(p, name, seconds / top->step_seconds, figures);
    }
}

static void memory_bar(struct paper *p, const char *label, double bytes, double budget) {
    char figures[96];
    if (!(bytes > 0)) return;
    snprintf(figures, sizeof figures, "%3.0f %% of %s", 100 * bytes / budget,
             shore__format_size((uint64_t)budget).text);
    if (budget > 0)
        bar(p, label, bytes / budget, figures);
    else
        line(p, "%-*s %s", LABEL, label, shore__format_size((uint64_t)bytes).text);
}

static void print_memory(struct paper *p, const struct shore__top *top) {
    const json_t *places = json_object_get(top->plan, "places");
    double gpu = shore__json_amount(places, "gpu"), budget = shore__json_amount(top->plan, "budget_bytes");
    if (!(budget > 0)) budget = (double)top->run->settings.memory_bytes;
    if (!top->line) return;
    line(p, "%s", "");
    if (shore__contents_of_package(top->run->contents)) { /* whose budget bounds less than the process has */
        line(p, "%-*s %s, with imports", LABEL, "memory",
             shore__format_size((uint64_t)shore__json_amount(top->line, "resident_bytes")).text);
        line(p, "%-*s %s, %s", LABEL, "budget", shore__format_size((uint64_t)budget).text,
             shore__contents_of_process(top->run->contents) ? "beside imports" : "of the engine");
    } else
        memory_bar(p, "memory", shore__json_amount(top->line, "resident_bytes"), budget);
    memory_bar(p, "GPU memory", shore__json_amount(top->line, "gpu_bytes"), gpu);
}

static void print_drives(struct paper *p, const struct shore__top *top) {
    const json_t *drives = json_object_get(top->drives, "drives"), *drive;
    const struct shore__addresses *at = &top->run->settings.drives;
    size_t i, count = json_array_size(drives);
    const json_t *step = json_object_get(top->drives, "step");
    /* the newest line of metrics may be of another step */
    const double of = json_equal(step, json_object_get(top->line, "step"))
                          ? shore__json_amount(top->line, "step_seconds")
                          : top->pulse.step_seconds;
    if (!count || !(of > 0)) return;
    line(p, "%s", "");
    line(p, "drives, busy in step %lld", (long long)json_integer_value(step));
    json_array_foreach(drives, i, drive) {
        size_t place = (size_t)json_integer_value(json_object_get(drive, "drive"));
        const bool wide = p->columns >= 80;
        char figures[32], rates[96];
        if (p->rows && i + 1 < count && p->used + 5 > p->rows) {
            line(p, "and %zu more", count - i);
            return;
        }
        snprintf(rates, sizeof rates, "reads %s/s",
                 shore__format_size((uint64_t)(shore__json_amount(drive, "read_bytes") / of)).text);
        shore__append(rates, sizeof rates, ", writes %s/s",
                      shore__format_size((uint64_t)(shore__json_amount(drive, "write_bytes") / of)).text);
        snprintf(figures, sizeof figures, "%3.0f %%", 100 * shore__json_amount(drive, "busy_seconds") / of);
        char *name = place < at->count ? shore__drive_name(at->text[place], top->run->generation) : NULL;
        line(p, "%s%s%s", name ? shore__shown(name).text : "?", wide ? "  " : "", wide ? rates : "");
        free(name);
        if (!wide) line(p, "%s", rates);
        bar(p, "", shore__json_amount(drive, "busy_seconds") / of, figures);
    }
}

void shore__top_print(FILE *out, const struct shore__top *top, unsigned columns, unsigned rows, const char *line_end) {
    struct paper p = {out, line_end, columns < 20 ? 20 : columns, rows, 0};
    print_progress(&p, top);
    print_charges(&p, top);
    print_lanes(&p, top);
    print_memory(&p, top);
    print_drives(&p, top);
}
