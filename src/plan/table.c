/* The figures of a plan as a table for people, in lines of a terminal. */
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "files/json.h"
#include "longshore/lane.h"
#include "longshore/plan.h"

#define TEXT_MOST 66 /* columns of a row's text, beside its label */

struct table {
    FILE *out;
    const json_t *figures;
};

static const char *string(const json_t *of, const char *key) {
    const char *found = json_string_value(json_object_get(of, key));
    return found ? found : "";
}

/* Sizes are values, which live as long as the statement. */
#define SIZE_OF(of, key) shore__format_size((uint64_t)shore__json_amount(of, key)).text
#define SIZE_UP(of, key) shore__format_size_up((uint64_t)shore__json_amount(of, key)).text

static struct shore__written readable(double value) {
    bool little = value > 0 && value < 0.001;
    return little ? (struct shore__written){"less than 0.001"} : shore__format_number(value);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

static void row(const struct table *t, const char *label, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static void row(const struct table *t, const char *label, const char *format, ...) {
    char *text = NULL;
    va_list args;
    va_start(args, format);
    int n = vasprintf(&text, format, args);
    va_end(args);
    if (n < 0) return;
    for (const char *at = text; *at || at == text; label = "") {
        size_t most = strlen(at);
        if (most > TEXT_MOST)
            for (most = TEXT_MOST; most && at[most] != ' ';)
                most--;
        if (!most) most = strcspn(at, " ");
        fprintf(t->out, "%-12s%.*s\n", label, (int)most, at);
        at += most + (at[most] == ' ');
        if (!*at) break;
    }
    free(text);
}

/* One object's values in columns, by the keys of the first. */
static void columns(const struct table *t, const char *label, const json_t *of, const json_t *keys) {
    const char *key;
    json_t *value;
    fprintf(t->out, "  %-12s", label);
    json_object_foreach((json_t *)keys, key, value) fprintf(t->out, "%14s", SIZE_OF(of, key));
    fputc('\n', t->out);
}

static void print_memory(const struct table *t) {
    const json_t *parts = json_object_get(t->figures, "memory_over_step"), *all = json_object_get(t->figures, "memory");
    json_t *one = parts ? NULL : json_pack("{s:O}", "", all), *bytes, *value;
    const char *part, *class;
    if (!parts) parts = one;
    if (!one) {
        fprintf(t->out, "%14s", "");
        json_object_foreach((json_t *)parts, part, bytes) fprintf(t->out, "%14s", part);
        fputc('\n', t->out);
    }
    json_object_foreach((json_t *)all, class, value) {
        bool any = false;
        json_object_foreach((json_t *)parts, part, bytes) any |= json_number_value(json_object_get(bytes, class)) > 0;
        if (!any) continue;
        fprintf(t->out, "  %-12s", class);
        json_object_foreach((json_t *)parts, part, bytes) fprintf(t->out, "%14s", SIZE_OF(bytes, class));
        fputc('\n', t->out);
    }
    json_decref(one);
}

static void print_budget(const struct table *t) {
    const json_t *f = t->figures, *places = json_object_get(f, "places"), *acts = json_object_get(f, "activations");
    row(t, "budget", "%s; at least %s; no faster from %s on", SIZE_OF(f, "budget_bytes"), SIZE_UP(f, "minimum_bytes"),
        SIZE_UP(f, "useful_bytes"));
    row(t, "memory", "%s at most", SIZE_OF(f, "peak_bytes"));
    if (places) row(t, "", "%s of it on the GPU, %s pinned", SIZE_OF(places, "gpu"), SIZE_OF(places, "pinned"));
    print_memory(t);
    row(t, "activations", "%s kept, %s computed again, %s on drives", SIZE_OF(acts, "kept"),
        SIZE_OF(acts, "recomputed"), SIZE_OF(acts, "offloaded"));
    row(t, "disk", "%s on %.0f drive%s", SIZE_OF(f, "disk_bytes"), shore__json_amount(f, "drives"),
        shore__json_amount(f, "drives") == 1 ? "" : "s");
}

static enum shore_lane lane_named(const char *name) {
    int lane = 0;
    while (lane < SHORE_LANES && strcmp(shore_lane_name((enum shore_lane)lane), name) != 0)
        lane++;
    return (enum shore_lane)lane;
}

static void print_time(const struct table *t) {
    const json_t *f = t->figures;
    const double tokens = shore__json_amount(f, "tokens_per_second");
    const char *name;
    json_t *seconds;
    unsigned nth = 0;
    row(t, "a step", "%s, bound by %s", shore__format_seconds(shore__json_amount(f, "step_seconds")).text,
        shore_lane_bound(lane_named(string(f, "bound"))));
    json_object_foreach(json_object_get(f, "lanes"), name, seconds) {
        if (json_number_value(seconds) < 0.0005) continue;
        fprintf(t->out, nth++ % 2 ? "    %-20s%12s\n" : "            %-20s%12s", shore_lane_work(lane_named(name)),
                shore__format_seconds(json_number_value(seconds)).text);
    }
    if (nth % 2) fputc('\n', t->out);
    row(t, "tokens", "%s a second, %s a day", readable(tokens).text, readable(tokens * SHORE__DAY_SECONDS).text);
}

static void print_moved(const struct table *t) {
    const json_t *f = t->figures;
    const char *class;
    json_t *bytes,
        *all = json_pack("{s:O, s:O, s:O}", "link", json_object_get(f, "link_bytes"), "read",
                         json_object_get(f, "drive_read_bytes"), "written", json_object_get(f, "drive_write_bytes"));
    fprintf(t->out, "%-14s%14s%14s%14s\n", "moved", "over the link", "read", "written");
    json_object_foreach(json_object_get(f, "moved"), class, bytes) columns(t, class, bytes, all);
    columns(t, "together", all, all);
    json_decref(all);
    row(t, "wear", "%s written a day", SIZE_OF(f, "written_bytes_per_day"));
    if (json_object_get(f, "days_until_tbw"))
        row(t, "", "the drive that wears fastest lasts %s days",
            readable(shore__json_amount(f, "days_until_tbw")).text);
}

static void print_changes(const struct table *t) {
    const double tokens = shore__json_amount(t->figures, "tokens_per_second");
    json_t *change;
    size_t i;
    fputs("\nWhat a change would buy, in tokens a second:\n", t->out);
    json_array_foreach(json_object_get(t->figures, "what_if"), i, change) {
        double then = shore__json_amount(change, "tokens_per_second");
        fprintf(t->out, "  %-40s%14s a step %8s%6.2fx\n", string(change, "change"),
                shore__format_seconds(shore__json_amount(change, "step_seconds")).text, readable(then).text,
                tokens > 0 ? then / tokens : 0);
    }
}

/* ---- all of it --------------------------------------------------------------------------------------------------- */

static void print(const struct table *t) {
    const json_t *f = t->figures;
    const uint64_t tokens = (uint64_t)shore__json_amount(f, "tokens"), batch = (uint64_t)shore__json_amount(f, "batch");
    json_t *note;
    size_t i;
    row(t, "model", "%s: %s parameters", string(f, "model"),
        shore__format_count((uint64_t)shore__json_amount(f, "parameters")).text);
    if (batch)
        row(t, "batch", "%llu x %s tokens", (unsigned long long)batch, shore__format_count(tokens / batch).text);
    else
        row(t, "batch", "%s tokens", shore__format_count(tokens).text);
    row(t, "machine", "%s", string(f, "rates"));
    print_budget(t);
    print_time(t);
    print_moved(t);
    json_array_foreach(json_object_get(f, "notes"), i, note)
        row(t, "note", "%s", json_string_value(note) ? json_string_value(note) : "");
    print_changes(t);
}

char *shore_plan_table(const char *figures) {
    char *text = NULL;
    size_t bytes;
    json_t *object = json_loads(figures, JSON_REJECT_DUPLICATES, NULL);
    struct table t = {.figures = object, .out = json_is_object(object) ? open_memstream(&text, &bytes) : NULL};
    if (t.out) print(&t);
    if (t.out && fclose(t.out)) {
        free(text);
        text = NULL;
    }
    json_decref(object);
    return text;
}
