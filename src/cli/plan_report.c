/* What `longshore plan` prints: a table for people, and JSON. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "cli/outlook.h"

static double written_per_day(const struct shore__forecast *w) {
    return w->step_seconds > 0 ? (double)w->drive_write_bytes / w->step_seconds * SHORE__DAY_SECONDS : 0;
}

/* Days until the drive that wears fastest has written so much. */
static double days_until(const struct shore__forecast *w, uint64_t tbw_bytes) {
    double per_day = w->step_seconds > 0 ? (double)w->drive_write_most_bytes / w->step_seconds * SHORE__DAY_SECONDS : 0;
    return per_day > 0 ? (double)tbw_bytes / per_day : 0;
}

/* ---- for people -------------------------------------------------------------------------------------------------- */

static void row(const char *label, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void row(const char *label, const char *format, ...) {
    va_list args;
    va_start(args, format);
    printf("%-12s", label);
    vprintf(format, args);
    putchar('\n');
    va_end(args);
}

/* The same of a sentence, in lines of a terminal. */
static void sentence(const char *label, const char *text) {
    const size_t most = 66;
    for (; *text; label = "") {
        size_t n = strlen(text);
        if (n > most)
            for (n = most; n && text[n] != ' ';)
                n--;
        if (!n) n = strcspn(text, " ");
        row(label, "%.*s", (int)n, text);
        text += n + (text[n] == ' ');
    }
}

/* Prints parts of a row, two on a line. nth: how many there were. */
static void part(unsigned *nth, const char *name, const char *value) {
    printf(*nth % 2 ? "    %-20s%12s\n" : "            %-20s%12s", name, value);
    ++*nth;
}

static void end_parts(unsigned nth) {
    if (nth % 2) putchar('\n');
}

static const char *rate_text(double per_second, char *out, size_t bytes) {
    if (per_second > 0 && per_second < 0.001)
        snprintf(out, bytes, "less than 0.001");
    else if (per_second < 100)
        snprintf(out, bytes, "%.3g", per_second);
    else
        snprintf(out, bytes, "%s", shore__format_count((uint64_t)(per_second + 0.5)).text);
    return out;
}

static const char *const parts[SHORE__STEP_PARTS] = {"forward", "head", "backward", "commit"};

static void print_class(const struct shore__forecast *w, enum shore__memory_class class) {
    uint64_t most = 0;
    for (int part = 0; part < SHORE__STEP_PARTS; part++)
        if (w->part_bytes[part][class] > most) most = w->part_bytes[part][class];
    if (!most) return;
    printf("  %-12s", shore__memory_class_name(class));
    for (int part = 0; part < SHORE__STEP_PARTS; part++)
        printf("%14s", shore__format_size(w->part_bytes[part][class]).text);
    putchar('\n');
}

static void print_memory(const struct shore__plan_report *r) {
    const struct shore__outlook *o = r->outlook;
    const struct shore__forecast *w = &o->forecast;
    row("budget", "%s; at least %s; no faster from %s on", shore__format_size(w->budget_bytes).text,
        shore__format_size_up(w->minimum_bytes).text, shore__format_size_up(r->useful_bytes).text);
    if (w->budget_bytes < o->settings->memory_bytes)
        row("", "%s has no more memory that can be pinned", o->machine->name);
    row("memory", "%s at most", shore__format_size(w->peak_bytes).text);
    if (!o->facts.one_memory)
        row("", "%s of it on the GPU (which has %s), %s pinned",
            shore__format_size(w->place_bytes[SHORE_PLACE_DEVICE]).text,
            shore__format_size(o->machine->gpu_memory).text,
            shore__format_size(w->place_bytes[SHORE_PLACE_PINNED]).text);
    printf("%14s", "");
    for (int part = 0; part < SHORE__STEP_PARTS; part++)
        printf("%14s", parts[part]);
    putchar('\n');
    for (int c = 0; c < SHORE__MEMORY_CLASSES; c++)
        print_class(w, (enum shore__memory_class)c);
    row("activations", "%s kept, %s computed again, %s on drives", shore__format_size(w->kept_bytes).text,
        shore__format_size(w->recomputed_bytes).text, shore__format_size(w->offloaded_bytes).text);
}

static const char *const moves[SHORE__MOVED_CLASSES] = {"parameters", "activations", "updates"};

static void print_moved(const char *name, const struct shore__moved_bytes *moved) {
    printf("  %-12s%14s%14s%14s\n", name, shore__format_size(moved->link).text, shore__format_size(moved->read).text,
           shore__format_size(moved->written).text);
}

static void print_time(const struct shore__plan_report *r) {
    const struct shore__forecast *w = &r->outlook->forecast;
    char rate[48];
    unsigned nth = 0;
    row("a step", "%s, bound by %s", shore__format_seconds(w->step_seconds).text, shore_lane_bound(w->bound));
    for (int lane = 0; lane < SHORE_LANES; lane++)
        if (w->lane_seconds[lane] >= 0.0005)
            part(&nth, shore_lane_work((enum shore_lane)lane), shore__format_seconds(w->lane_seconds[lane]).text);
    end_parts(nth);
    row("tokens", "%s a second, %s a day", rate_text(w->tokens_per_second, rate, sizeof rate),
        shore__format_count((uint64_t)(w->tokens_per_second * SHORE__DAY_SECONDS)).text);
    row("moved", "  %14s%14s%14s", "over the link", "read", "written");
    for (int c = 0; c < SHORE__MOVED_CLASSES; c++)
        print_moved(moves[c], &w->moved[c]);
    print_moved("together", &(struct shore__moved_bytes){w->link_bytes, w->drive_read_bytes, w->drive_write_bytes});
    row("wear", "%s written a day", shore__format_size((uint64_t)written_per_day(w)).text);
    if (r->tbw_bytes)
        row("", "the drive that wears fastest lasts %s days",
            rate_text(days_until(w, r->tbw_bytes), rate, sizeof rate));
}

static void print_changes(const struct shore__plan_report *r) {
    const struct shore__forecast *w = &r->outlook->forecast;
    char rate[48];
    puts("\nWhat a change would buy, in tokens a second:");
    for (uint32_t i = 0; i < r->what_ifs; i++) {
        const struct shore__forecast *x = &r->what_if[i].forecast;
        printf("  %-40s%14s a step%9s%6.2fx\n", r->what_if[i].change, shore__format_seconds(x->step_seconds).text,
               rate_text(x->tokens_per_second, rate, sizeof rate),
               w->tokens_per_second > 0 ? x->tokens_per_second / w->tokens_per_second : 0);
    }
}

void shore__plan_print(const struct shore__plan_report *r) {
    const struct shore__outlook *o = r->outlook;
    const struct shore__settings *s = o->settings;
    char adapters[48] = "";
    if (o->lora) snprintf(adapters, sizeof adapters, "; adapters of rank %u are trained", o->lora);
    row("model", "%s: %s parameters%s", r->name, shore__format_count(o->model->parameters).text, adapters);
    row("batch", "%u x %s tokens", s->batch, shore__format_count(s->seq_len).text);
    char machine[600];
    snprintf(machine, sizeof machine, "%s%s", r->rates,
             !o->machine           ? "; 'longshore machine --drive PATH' measures them"
             : o->facts.one_memory ? ""
                                   : "; a step computes on its GPU, which train cannot do yet: "
                                     "'python -m longshore plan' says what the package takes");
    sentence("machine", machine);
    print_memory(r);
    row("disk", "%s on %zu drive%s", shore__format_size(o->forecast.disk_bytes).text, s->drives.count,
        s->drives.count == 1 ? "" : "s");
    print_time(r);
    print_changes(r);
}

/* ---- JSON -------------------------------------------------------------------------------------------------------- */

static json_t *bytes_json(uint64_t bytes) {
    return json_integer((json_int_t)bytes);
}

static json_t *classes_json(const uint64_t bytes[SHORE__MEMORY_CLASSES]) {
    json_t *o = json_object();
    for (int c = 0; c < SHORE__MEMORY_CLASSES; c++)
        json_object_set_new(o, shore__memory_class_name((enum shore__memory_class)c), bytes_json(bytes[c]));
    return o;
}

/* Lanes of one name count as the busier one. */
static json_t *lanes_json(const struct shore__forecast *w) {
    json_t *o = json_object();
    for (int lane = 0; lane < SHORE_LANES; lane++) {
        const char *name = shore_lane_name((enum shore_lane)lane);
        if (json_real_value(json_object_get(o, name)) <= w->lane_seconds[lane])
            json_object_set_new(o, name, json_real(w->lane_seconds[lane]));
    }
    return o;
}

static json_t *changes_json(const struct shore__plan_report *r) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < r->what_ifs; i++) {
        const struct shore__forecast *w = &r->what_if[i].forecast;
        json_array_append_new(list, json_pack("{s:s, s:f, s:f, s:I}", "change", r->what_if[i].change, "step_seconds",
                                              w->step_seconds, "tokens_per_second", w->tokens_per_second,
                                              "budget_bytes", (json_int_t)w->budget_bytes));
    }
    return list;
}

json_t *shore__plan_json(const struct shore__plan_report *r) {
    const struct shore__outlook *o = r->outlook;
    const struct shore__forecast *w = &o->forecast;
    json_t *over_step = json_object(), *moved = json_object(), *j = json_object();
    for (int c = 0; c < SHORE__MOVED_CLASSES; c++)
        json_object_set_new(moved, moves[c],
                            json_pack("{s:I, s:I, s:I}", "link", (json_int_t)w->moved[c].link, "read",
                                      (json_int_t)w->moved[c].read, "written", (json_int_t)w->moved[c].written));
    for (int part = 0; part < SHORE__STEP_PARTS; part++)
        json_object_set_new(over_step, parts[part], classes_json(w->part_bytes[part]));
    const struct {
        const char *key;
        uint64_t bytes;
    } sizes[] = {
        {"minimum_bytes", w->minimum_bytes},
        {"useful_bytes", r->useful_bytes},
        {"comfortable_bytes", w->comfortable_bytes},
        {"budget_bytes", w->budget_bytes},
        {"peak_bytes", w->peak_bytes},
        {"disk_bytes", w->disk_bytes},
        {"link_bytes", w->link_bytes},
        {"drive_read_bytes", w->drive_read_bytes},
        {"drive_write_bytes", w->drive_write_bytes},
        {"parameters", o->model->parameters},
        {"tokens", o->facts.batch.rows},
    };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        json_object_set_new(j, sizes[i].key, bytes_json(sizes[i].bytes));
    json_object_set_new(j, "rates", json_string(r->rates));
    json_object_set_new(j, "step_seconds", json_real(w->step_seconds));
    json_object_set_new(j, "tokens_per_second", json_real(w->tokens_per_second));
    json_object_set_new(j, "bound", json_string(shore_lane_name(w->bound)));
    json_object_set_new(j, "lanes", lanes_json(w));
    json_object_set_new(j, "memory", classes_json(w->memory_bytes));
    json_object_set_new(j, "memory_over_step", over_step);
    if (!o->facts.one_memory)
        json_object_set_new(j, "places",
                            json_pack("{s:I, s:I, s:I}", "gpu", (json_int_t)w->place_bytes[SHORE_PLACE_DEVICE],
                                      "pinned", (json_int_t)w->place_bytes[SHORE_PLACE_PINNED], "host",
                                      (json_int_t)w->place_bytes[SHORE_PLACE_PLAIN]));
    json_object_set_new(j, "activations",
                        json_pack("{s:I, s:I, s:I}", "kept", (json_int_t)w->kept_bytes, "recomputed",
                                  (json_int_t)w->recomputed_bytes, "offloaded", (json_int_t)w->offloaded_bytes));
    json_object_set_new(j, "moved", moved);
    json_object_set_new(j, "written_bytes_per_day", bytes_json((uint64_t)written_per_day(w)));
    if (r->tbw_bytes) json_object_set_new(j, "days_until_tbw", json_real(days_until(w, r->tbw_bytes)));
    json_object_set_new(j, "plan_seconds", json_real(w->plan_seconds));
    json_object_set_new(j, "what_if", changes_json(r));
    return j;
}

json_t *shore__outlook_json(const struct shore__outlook *o, const char *rates, struct shore_diag *diag) {
    struct shore__plan_report report = {.rates = rates};
    return shore__outlook_report(o, &report, diag) ? NULL : shore__plan_json(&report);
}
