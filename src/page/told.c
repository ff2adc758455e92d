/* Reads what a run's directory tells, also while it trains: every line that can be read counts, and the others are
 * counted. */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/json.h"
#include "page/page.h"
#include "run/paths.h"
#include "run/run.h"

#define JUMP_MOST 1000000u /* steps: a line that leaves out more is damaged */
#define SECONDS_MOST 1e9

/* ---- a line ------------------------------------------------------------------------------------------------------ */

static void take_step(struct shore__told *t, const json_t *line, uint64_t step) {
    static const char *const keys[SHORE__TOLD] = {
#define KEY(name, key) #key,
        SHORE__TOLD_LIST(KEY)
#undef KEY
    };
    struct shore__told_step s = {0};
    const json_t *charges = json_object_get(line, "charges");
    for (int i = 0; i < SHORE__TOLD; i++)
        s.of[i] = shore__json_amount(line, keys[i]);
    for (int i = 0; i < SHORE_CHARGES; i++)
        s.charges[i] = shore__json_amount(charges, shore_charge_name((enum shore_charge)i));
    s.charged = json_is_object(charges);
    double seconds = s.of[SHORE__TOLD_STEP_SECONDS];
    t->written_bytes += s.of[SHORE__TOLD_WRITE_BYTES];
    t->tokens += s.of[SHORE__TOLD_TOKENS];
    if (!(seconds > 0) || seconds > SECONDS_MOST) return; /* a line from the drives' record has no times */
    t->seconds += seconds;
    t->recent[t->timed++ % SHORE__TOLD_RECENT] = s;
    shore__curve_add(&t->steps_rate, step, 1 / seconds);
    if (s.of[SHORE__TOLD_TOKENS] > 0) shore__curve_add(&t->tokens_rate, step, s.of[SHORE__TOLD_TOKENS] / seconds);
}

static void take_losses(struct shore__told *t, const json_t *line, uint64_t step) {
    const json_t *loss = json_object_get(line, "loss"), *val = json_object_get(line, "val_loss");
    if (json_is_number(loss)) t->last_loss = json_number_value(loss);
    t->not_finite += json_is_null(loss);
    shore__curve_add(&t->loss, step, json_is_number(loss) ? json_number_value(loss) : NAN);
    if (!json_is_number(val)) return;
    t->val_loss = json_number_value(val);
    if (!(t->best_val_loss <= t->val_loss)) t->best_val_loss = t->val_loss;
    shore__curve_add(&t->val, step, t->val_loss);
}

/* False: it is no line of metrics, or not a later step's. */
static bool take_line(struct shore__told *t, const char *text, size_t bytes) {
    json_t *line = json_loadb(text, bytes, 0, NULL);
    const json_t *number = json_object_get(line, "step");
    json_int_t given = json_is_integer(number) ? json_integer_value(number) : 0;
    bool good = given > 0 && (uint64_t)given > t->steps && (uint64_t)given - t->steps <= JUMP_MOST;
    uint64_t step = (uint64_t)given;
    if (good && json_is_true(json_object_get(line, "lost"))) {
        t->lost++;
    } else if (good) {
        double resident = shore__json_amount(line, "resident_bytes"), gpu = shore__json_amount(line, "gpu_bytes");
        if (resident > t->resident_bytes) t->resident_bytes = resident;
        if (gpu > t->gpu_bytes) t->gpu_bytes = gpu;
        t->emulated |= json_is_true(json_object_get(line, "emulated"));
        t->skipped += json_is_true(json_object_get(line, "skipped"));
        t->replays += shore__json_amount(line, "replays") > 0;
        take_losses(t, line, step);
        take_step(t, line, step);
    }
    if (good) t->steps = step;
    json_decref(line);
    return good;
}

size_t shore__told_take(struct shore__told *t, const char *text, size_t bytes) {
    const char *at = text, *end;
    for (; (end = memchr(at, '\n', bytes - (size_t)(at - text))); at = end + 1)
        t->bad += !take_line(t, at, (size_t)(end - at));
    return (size_t)(at - text);
}

/* ---- all lines --------------------------------------------------------------------------------------------------- */

int shore__told_begin(struct shore__told *t, uint32_t points) {
    *t = (struct shore__told){.last_loss = NAN, .val_loss = NAN, .best_val_loss = NAN};
    int rc = shore__curve_init(&t->loss, points);
    if (!rc) rc = shore__curve_init(&t->val, points);
    if (!rc) rc = shore__curve_init(&t->tokens_rate, points);
    return rc ? rc : shore__curve_init(&t->steps_rate, points);
}

static int by_time(const void *a, const void *b) {
    const struct shore__told_step *x = a, *y = b;
    double s = x->of[SHORE__TOLD_STEP_SECONDS], u = y->of[SHORE__TOLD_STEP_SECONDS];
    return (s > u) - (s < u);
}

/* Means of steps between the quartiles: parts of them add up as those of one step do, and a pause counts for nothing.
 */
void shore__told_end(struct shore__told *t) {
    uint32_t all = t->timed < SHORE__TOLD_RECENT ? t->timed : SHORE__TOLD_RECENT, skip = all / 4, n = all - 2 * skip;
    qsort(t->recent, all, sizeof *t->recent, by_time);
    for (uint32_t i = skip; i < skip + n; i++) {
        const struct shore__told_step *s = &t->recent[i];
        for (int k = 0; k < SHORE__TOLD; k++)
            t->usual.of[k] += s->of[k] / n;
        for (int k = 0; k < SHORE_CHARGES; k++)
            t->usual.charges[k] += s->charges[k] / n;
        t->usual.charged |= s->charged;
    }
}

static int read_metrics(struct shore__told *t, struct shore_diag *diag) {
    const struct shore__path path = shore__path_in(t->path, "metrics.jsonl");
    char *buffer = malloc(SHORE__METRICS_LINE_MOST);
    int fd = open(path.text, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    size_t held = 0;
    ssize_t n = 1;
    int rc = !buffer                     ? shore__out_of_memory(diag)
             : fd < 0 && errno != ENOENT ? shore__fail_errno(diag, path.text, "cannot be read")
                                         : 0;
    while (!rc && fd >= 0 && n > 0) {
        n = read(fd, buffer + held, SHORE__METRICS_LINE_MOST - held);
        if (n < 0 && errno == EINTR) {
            n = 1;
            continue;
        }
        if (n < 0) rc = shore__fail_errno(diag, path.text, "cannot be read");
        held += n > 0 ? (size_t)n : 0;
        size_t taken = shore__told_take(t, buffer, held);
        if (!taken && held == SHORE__METRICS_LINE_MOST) taken = held; /* the rest of this line is counted as damaged */
        held -= taken;
        memmove(buffer, buffer + taken, held);
    } /* a last line without an end is being written */
    if (fd >= 0) close(fd);
    free(buffer);
    return rc;
}

static void describe(struct shore__told *t, const struct shore__run *run) {
    struct shore__worker worker;
    t->in_use = shore__run_worker(t->path, &worker);
    t->drives = (uint32_t)run->settings.drives.count;
    t->memory_bytes = run->settings.memory_bytes;
    if (run->model) {
        t->steps_wanted = run->settings.steps;
        snprintf(t->what, sizeof t->what, "%s, %s parameters", run->model->arch.model_type,
                 shore__format_count(run->model->parameters).text);
        if (run->model->trained < run->model->parameters)
            shore__append(t->what, sizeof t->what, ", of which %s are trained",
                          shore__format_count(run->model->trained).text);
        return;
    }
    t->beside_imports = shore__contents_of_package(run->contents);
    t->of_engine = !shore__contents_of_process(run->contents);
    const char *class = json_string_value(json_object_get(run->contents->program, "class"));
    const char *last = class ? strrchr(class, '.') : NULL;
    snprintf(t->what, sizeof t->what, "%.80s, %s parameters",
             last    ? last + 1
             : class ? class
                     : "a model of its own program",
             shore__format_count(run->layout->elems).text);
}

int shore__told_read(const char *path, uint32_t points, struct shore__told *t, struct shore_diag *diag) {
    struct shore__run *run = NULL;
    struct shore_diag why;
    int rc = shore__told_begin(t, points) ? shore__out_of_memory(diag) : 0;
    t->path = path;
    if (!rc) rc = shore__run_look_at_state(path, NULL, &run, diag);
    if (!rc) describe(t, run);
    shore__run_close(run);
    if (!rc) rc = read_metrics(t, diag);
    if (rc) return rc;
    shore__told_end(t);
    int missing =
        shore__json_read(shore__path_in(path, SHORE__RUN_PLAN).text, SHORE__RUN_PLAN_BYTES_MOST, &t->plan, &why);
    t->plan_damaged = missing && missing != SHORE_EMISSING;
    return 0;
}

void shore__told_free(struct shore__told *t) {
    shore__curve_fini(&t->loss);
    shore__curve_fini(&t->val);
    shore__curve_fini(&t->tokens_rate);
    shore__curve_fini(&t->steps_rate);
    json_decref(t->plan);
    t->plan = NULL;
}
