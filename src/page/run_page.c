/* What the page says of one run. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "files/json.h"
#include "page/page.h"

static double planned(const struct shore__told *t, const char *key) {
    return shore__json_amount(t->plan, key);
}

static double usual(const struct shore__told *t, enum shore__told_key key) {
    return t->usual.of[key];
}

static struct shore__written say_times(double ratio) {
    struct shore__written out;
    snprintf(out.text, sizeof out.text, "%.2f", ratio);
    return out;
}

static struct shore__written say_share(double share) {
    struct shore__written out;
    snprintf(out.text, sizeof out.text, "%.*f %%", share < 0.1 ? 1 : 0, 100 * share);
    return out;
}

/* ---- the head ---------------------------------------------------------------------------------------------------- */

static void tile(struct shore__page *p, const char *name, double value, shore__says *say, const char *after) {
    if (value > 0 || value < 0)
        shore__page_put(p, "<li><span>%s</span><b>%s</b> %s</li>", name, say(value).text, after);
}

static void put_tiles(struct shore__page *p, const struct shore__told *t) {
    double seconds = usual(t, SHORE__TOLD_STEP_SECONDS), tokens = usual(t, SHORE__TOLD_TOKENS);
    shore__page_put(p, "<ul class=\"tiles\">");
    tile(p, "Loss", t->last_loss, shore__say_loss, "");
    tile(p, "Validation loss", t->val_loss, shore__say_loss, "");
    tile(p, "Best validation loss", t->best_val_loss < t->val_loss ? t->best_val_loss : 0, shore__say_loss, "");
    tile(p, "A step takes", seconds, shore__format_seconds, "");
    tile(p, "Throughput", seconds > 0 ? tokens / seconds : 0, shore__format_number, "tokens/s");
    tile(p, "MFU", usual(t, SHORE__TOLD_MFU), say_share, "of the rate of products");
    tile(p, "Memory, at most", t->resident_bytes, shore__say_bytes, "");
    tile(p, "GPU memory, at most", t->gpu_bytes, shore__say_bytes, "");
    tile(p, "Steps took", t->seconds, shore__format_seconds, "together");
    shore__page_put(p, "</ul>");
}

static void note(struct shore__page *p, uint64_t count, const char *one, const char *more) {
    if (count) shore__page_put(p, "<li>%s %s</li>", shore__format_count(count).text, count == 1 ? one : more);
}

static void put_notes(struct shore__page *p, const struct shore__told *t) {
    shore__page_put(p, "<ul class=\"notes\">");
    note(p, t->bad, "line of metrics.jsonl is damaged, and left out.",
         "lines of metrics.jsonl are damaged, and left out.");
    note(p, t->lost, "step's line is lost.", "steps' lines are lost.");
    note(p, t->skipped, "step was skipped: a gradient was not finite.",
         "steps were skipped: a gradient was not finite.");
    note(p, t->not_finite > t->skipped ? t->not_finite - t->skipped : 0, "step has no loss.", "steps have no loss.");
    note(p, t->replays, "step was computed again, since the guess about clipping failed.",
         "steps were computed again, since the guess about clipping failed.");
    if (t->emulated) shore__page_put(p, "<li>Times are an emulated machine's.</li>");
    if (t->plan_damaged) shore__page_put(p, "<li>plan.json cannot be read.</li>");
    shore__page_put(p, "</ul>");
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

static void put_step(struct shore__page *p, const struct shore__told *t) {
    double seconds = usual(t, SHORE__TOLD_STEP_SECONDS), rest = seconds;
    struct shore__bar_part parts[SHORE_CHARGES + 4];
    size_t n = 0;
    uint32_t of = t->timed < SHORE__TOLD_RECENT ? t->timed : SHORE__TOLD_RECENT;
    shore__page_put(p,
                    "<section><h3>Where a step's time goes</h3><p>A step takes %s: the mean of %s, without "
                    "the quickest and the slowest quarter.</p>",
                    shore__format_seconds(seconds).text,
                    of == 1                   ? "one step"
                    : of < SHORE__TOLD_RECENT ? "all steps"
                                              : "the last 128 steps");
    for (int i = 0; t->usual.charged && i < SHORE_CHARGES; i++)
        parts[n++] = (struct shore__bar_part){shore_charge_name((enum shore_charge)i), shore__charge_style((uint32_t)i),
                                              t->usual.charges[i]};
    if (!t->usual.charged) {
        parts[n++] = (struct shore__bar_part){"computing", "k0", usual(t, SHORE__TOLD_COMPUTE_SECONDS)};
        parts[n++] = (struct shore__bar_part){"waiting for drives", "k6", usual(t, SHORE__TOLD_WAIT_SECONDS)};
        parts[n++] = (struct shore__bar_part){"commit", "k7", usual(t, SHORE__TOLD_COMMIT_SECONDS)};
        parts[n++] = (struct shore__bar_part){"held back", "k4", usual(t, SHORE__TOLD_PACED_SECONDS)};
    }
    for (size_t i = 0; i < n; i++)
        rest -= parts[i].value;
    if (rest > seconds / 1000) parts[n++] = (struct shore__bar_part){"charged to nothing", "g2", rest};
    shore__figure_bar(p, parts, n, seconds, 0, shore__format_seconds);
    if (!t->usual.charged)
        shore__page_put(p, "<p class=\"none\">An older version wrote these metrics, which says no more.</p>");
    shore__page_put(p, "</section>");
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

static void put_memory(struct shore__page *p, const struct shore__told *t) {
    static const char *const styles[] = {"k0", "k1", "k2", "k3", "k6", "k5", "k4", "k7", "g1", "g2"};
    struct shore__bar_part parts[sizeof styles / sizeof *styles];
    const char *name;
    const json_t *bytes;
    size_t n = 0;
    double budget = planned(t, "budget_bytes"), peak = planned(t, "peak_bytes"), sum = 0;
    if (!budget) budget = (double)t->memory_bytes;
    json_object_foreach((json_t *)json_object_get(t->plan, "memory"), name, bytes) {
        double value = json_number_value(bytes);
        if (!(value > 0) || value > 1e30 || n == sizeof parts / sizeof *parts ||
            strspn(name, "abcdefghijklmnopqrstuvwxyz_") != strlen(name))
            continue;
        parts[n] = (struct shore__bar_part){name, styles[n], value};
        sum += parts[n++].value;
    }
    double whole = fmax(fmax(t->beside_imports ? 0 : budget, sum), t->beside_imports ? 0 : t->resident_bytes);
    shore__page_put(p, "<section><h3>Memory</h3><p>The process had %s at most%s",
                    shore__say_bytes(t->resident_bytes).text,
                    t->beside_imports ? ", with what Python and PyTorch take once they are imported" : "");
    if (peak)
        shore__page_put(p, "; by plan, %s%s", shore__say_bytes(peak).text, t->beside_imports ? " beside that" : "");
    if (budget)
        shore__page_put(p, "; the budget%s is %s", t->of_engine ? " of what Longshore holds" : "",
                        shore__say_bytes(budget).text);
    shore__page_put(p, ".</p>");
    if (n) {
        shore__page_put(p, "<p class=\"caption\">By plan, when a step needs most%s%s</p>",
                        t->beside_imports || whole > budget ? "." : ", in a bar as wide as the budget.",
                        t->beside_imports ? "" : " The line is what the process had.");
        shore__figure_bar(p, parts, n, whole, t->beside_imports ? 0 : t->resident_bytes, shore__say_bytes);
    }
    shore__page_put(p, "</section>");
}

/* ---- bytes ------------------------------------------------------------------------------------------------------- */

static void put_bytes(struct shore__page *p, const struct shore__told *t, double tbw_bytes) {
    static const struct {
        const char *name;
        enum shore__told_key key;
    } rows[] = {{"over the link", SHORE__TOLD_LINK_BYTES},
                {"read by drives", SHORE__TOLD_READ_BYTES},
                {"written by drives", SHORE__TOLD_WRITE_BYTES}};
    double steps_a_day = SHORE__DAY_SECONDS / usual(t, SHORE__TOLD_STEP_SECONDS);
    double written = usual(t, SHORE__TOLD_WRITE_BYTES) * steps_a_day;
    shore__page_put(p, "<section><h3>Bytes and wear</h3><table><thead><tr><th></th><th>a step</th><th>a "
                       "second</th><th>a day</th></tr></thead>");
    for (size_t i = 0; i < 3; i++) {
        double bytes = usual(t, rows[i].key);
        shore__page_put(p, "<tr><th>%s</th><td>%s</td><td>%s</td><td>%s</td></tr>", rows[i].name,
                        shore__say_bytes(bytes).text, shore__say_bytes(bytes * steps_a_day / SHORE__DAY_SECONDS).text,
                        shore__say_bytes(bytes * steps_a_day).text);
    }
    shore__page_put(p, "</table><p>The run has written %s to %u drive%s so far.",
                    shore__say_bytes(t->written_bytes).text, t->drives, t->drives == 1 ? "" : "s");
    if (tbw_bytes > 0 && written > 0)
        shore__page_put(p, " At this pace, a drive%s that is rated to write %s lasts <b>%s</b> days.",
                        t->drives > 1 ? " with an equal share" : "", shore__say_bytes(tbw_bytes).text,
                        shore__format_number(tbw_bytes * (t->drives ? t->drives : 1) / written).text);
    shore__page_put(p, "</p></section>");
}

/* ---- plan and truth ---------------------------------------------------------------------------------------------- */

static void compare(struct shore__page *p, const char *name, double plan, double truth, shore__says *say) {
    if (!(plan > 0) && !(truth > 0)) return;
    shore__page_put(p, "<tr><th>%s</th><td>%s</td><td>%s</td>", name, say(plan).text, say(truth).text);
    shore__page_cell(p, plan > 0 ? truth / plan : 0, say_times);
    shore__page_put(p, "</tr>");
}

/* Work of a lane beside what the step was charged for it. */
static void put_lanes(struct shore__page *p, const struct shore__told *t) {
    static const struct {
        const char *name;
        enum shore_lane first, last;
        enum shore_charge from, to;
    } rows[] = {
        {"computing", SHORE_LANE_COMPUTE, SHORE_LANE_COMPUTE, SHORE_CHARGE_FORWARD, SHORE_CHARGE_BACKWARD},
        {"updates on the host", SHORE_LANE_HOST_UPDATE, SHORE_LANE_HOST_UPDATE, SHORE_CHARGE_UPDATE,
         SHORE_CHARGE_UPDATE},
        {"copies to and from the GPU", SHORE_LANE_BUS_IN, SHORE_LANE_BUS_OUT, SHORE_CHARGE_BUS, SHORE_CHARGE_BUS},
        {"the link", SHORE_LANE_LINK_IN, SHORE_LANE_LINK_OUT, SHORE_CHARGE_LINK, SHORE_CHARGE_LINK},
        {"the drives", SHORE_LANE_DRIVE_READ, SHORE_LANE_DRIVE_UPDATE, SHORE_CHARGE_DRIVE, SHORE_CHARGE_DRIVE},
        {"commit", SHORE_LANE_COMMIT, SHORE_LANE_COMMIT, SHORE_CHARGE_COMMIT, SHORE_CHARGE_COMMIT},
    };
    const json_t *lanes = json_object_get(t->plan, "lanes");
    if (!lanes || !t->usual.charged) return;
    shore__page_put(p, "<table><thead><tr><th>lane</th><th>works, by plan</th><th>took of the step</th></tr></thead>");
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        double work = 0, took = 0;
        for (enum shore_lane lane = rows[i].first; lane <= rows[i].last; lane++)
            work = fmax(work, shore__json_amount(lanes, shore_lane_name(lane)));
        for (enum shore_charge charge = rows[i].from; charge <= rows[i].to; charge++)
            took += t->usual.charges[charge];
        if (!(work > 0) && !(took > 0)) continue;
        shore__page_put(p, "<tr><th>");
        shore__figure_key(p, 0, shore__charge_style(rows[i].from));
        shore__page_put(p, "%s</th><td>%s</td><td>%s</td></tr>", rows[i].name, shore__format_seconds(work).text,
                        shore__format_seconds(took).text);
    }
    shore__page_put(
        p, "</table><p class=\"none\">Lanes work at the same time: a step waits for what the others do not hide.</p>");
}

static void put_plan(struct shore__page *p, const struct shore__told *t) {
    if (!t->plan) return;
    double seconds = usual(t, SHORE__TOLD_STEP_SECONDS);
    const char *rates = json_string_value(json_object_get(t->plan, "rates"));
    shore__page_put(p, "<section><h3>Plan and truth</h3>");
    if (rates) shore__page_put(p, "<p>The plan is made of "), shore__page_say(p, rates), shore__page_put(p, ".</p>");
    shore__page_put(p, "<table><thead><tr><th></th><th>plan</th><th>truth</th><th>truth / plan</th></tr></thead>");
    compare(p, "a step", planned(t, "step_seconds"), seconds, shore__format_seconds);
    compare(p, "tokens a second", planned(t, "tokens_per_second"),
            seconds > 0 ? usual(t, SHORE__TOLD_TOKENS) / seconds : 0, shore__format_number);
    if (!t->beside_imports)
        compare(p, "memory, at most", planned(t, "peak_bytes"), t->resident_bytes, shore__say_bytes);
    compare(p, "over the link", planned(t, "link_bytes"), usual(t, SHORE__TOLD_LINK_BYTES), shore__say_bytes);
    compare(p, "read by drives", planned(t, "drive_read_bytes"), usual(t, SHORE__TOLD_READ_BYTES), shore__say_bytes);
    compare(p, "written by drives", planned(t, "drive_write_bytes"), usual(t, SHORE__TOLD_WRITE_BYTES),
            shore__say_bytes);
    shore__page_put(p, "</table>");
    put_lanes(p, t);
    shore__page_put(p, "</section>");
}

/* ---- what to buy ------------------------------------------------------------------------------------------------- */

#define WORTH 1.02 /* times the tokens a second: less is within what a plan can tell */
enum { CHANGES_MOST = 32 };

static double rate_of(const json_t *change) {
    return shore__json_amount(change, "tokens_per_second");
}

static int by_rate(const void *a, const void *b) {
    double x = rate_of(*(const json_t *const *)a), y = rate_of(*(const json_t *const *)b);
    return (x < y) - (x > y);
}

static void put_changes(struct shore__page *p, const struct shore__told *t) {
    const json_t *list = json_object_get(t->plan, "what_if"), *sorted[CHANGES_MOST];
    double now = planned(t, "tokens_per_second");
    size_t n = 0, best = 0;
    for (size_t i = 0; i < json_array_size(list) && n < CHANGES_MOST; i++)
        if (json_is_string(json_object_get(json_array_get(list, i), "change"))) sorted[n++] = json_array_get(list, i);
    if (!n || !(now > 0)) return;
    qsort(sorted, n, sizeof *sorted, by_rate);
    shore__page_put(p, "<section><h3>What to buy</h3><ul class=\"buy\">");
    for (; best < n && rate_of(sorted[best]) >= WORTH * now; best++) {
        shore__page_put(p, "<li><b>%.2f×</b> With ", rate_of(sorted[best]) / now);
        shore__page_say(p, json_string_value(json_object_get(sorted[best], "change")));
        shore__page_put(p, ", a step takes %s, and training makes %s tokens a second.</li>",
                        shore__format_seconds(shore__json_amount(sorted[best], "step_seconds")).text,
                        shore__format_number(rate_of(sorted[best])).text);
    }
    shore__page_put(p, "</ul><p>By plan, ");
    if (!best) shore__page_put(p, "no change makes it faster");
    if (best < n) shore__page_put(p, "%s", best ? "these would not make it faster: " : ", neither ");
    for (size_t i = best; i < n; i++) {
        if (i > best) shore__page_put(p, "; ");
        shore__page_say(p, json_string_value(json_object_get(sorted[i], "change")));
    }
    shore__page_put(p, "%s</p></section>", best == n ? "these are all changes that were planned." : ".");
}

/* ---- together ---------------------------------------------------------------------------------------------------- */

void shore__page_run(struct shore__page *p, const struct shore__told *t, double tbw_bytes) {
    const struct shore__series losses[] = {{&t->loss, "training", 0, .band = true},
                                           {&t->val, "validation", 6, .dots = true}};
    bool tokens = t->tokens_rate.count > 0;
    const struct shore__series rate = {tokens ? &t->tokens_rate : &t->steps_rate, "throughput", 0, .band = true};
    put_tiles(p, t);
    put_notes(p, t);
    if (!t->steps) {
        shore__page_put(p, "<p class=\"none\">No step has been made yet.</p>");
        return;
    }
    shore__page_put(p, "<div class=\"pair\">");
    shore__figure_chart(p, "Loss", "nats a token, by step", losses, t->val.count ? 2 : 1, false);
    shore__figure_chart(p, "Throughput", tokens ? "tokens a second, by step" : "steps a second, by step", &rate, 1,
                        true);
    shore__page_put(p, "</div>");
    if (t->timed) {
        put_step(p, t);
        shore__page_lanes(p, t->path);
        shore__page_put(p, "<div class=\"pair\">");
        put_memory(p, t);
        put_bytes(p, t, tbw_bytes);
        shore__page_put(p, "</div><div class=\"pair\">");
        put_plan(p, t);
        put_changes(p, t);
        shore__page_put(p, "</div>");
    }
}
