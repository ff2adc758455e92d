/* Runs beside one another: their names, their colours, and the charts of all of them. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "page/page.h"

static const char *last_part(const char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        n--;
    while (n > 0 && path[n - 1] != '/')
        n--;
    return path + n;
}

/* The directory's name, or the path as it was given where two have one name. */
static void name_runs(struct shore__told *t, uint32_t n) {
    for (uint32_t i = 0; i < n; i++) {
        t[i].name = last_part(t[i].path);
        for (uint32_t k = 0; k < n; k++)
            if (k != i && strcmp(last_part(t[k].path), last_part(t[i].path)) == 0) t[i].name = t[i].path;
    }
}

static int refuse_twice(const struct shore__told *t, uint32_t n, struct shore_diag *diag) {
    struct stat a, b;
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < i; k++)
            if (stat(t[i].path, &a) == 0 && stat(t[k].path, &b) == 0 && a.st_dev == b.st_dev && a.st_ino == b.st_ino)
                return shore__fail(diag, SHORE_EUSAGE, "%s: is given twice", t[i].path);
    return 0;
}

int shore__together_read(const char *const *runs, uint32_t n, struct shore__told **out, struct shore_diag *diag) {
    enum { POINTS = 600, POINTS_LEAST = 64 }; /* of a curve */
    uint32_t points = n ? POINTS * 4 / (n + 3) / 2 * 2 : 0;
    *out = NULL;
    if (!n || n > SHORE_REPORT_RUNS_MOST)
        return shore__fail(diag, SHORE_EUSAGE, "1 to %u runs are shown beside one another, and these are %u",
                           SHORE_REPORT_RUNS_MOST, n);
    struct shore__told *t = *out = calloc(n, sizeof *t);
    int rc = t ? 0 : shore__out_of_memory(diag);
    for (uint32_t i = 0; !rc && i < n; i++)
        rc = shore__told_read(runs[i], points < POINTS_LEAST ? POINTS_LEAST : points, &t[i], diag);
    if (!rc) rc = refuse_twice(t, n, diag);
    if (!rc) name_runs(t, n);
    return rc;
}

void shore__together_free(struct shore__told *t, uint32_t n) {
    for (uint32_t i = 0; t && i < n; i++)
        shore__told_free(&t[i]);
    free(t);
}

/* Neighbours differ most. */
uint32_t shore__together_colour(uint32_t run) {
    static const uint32_t order[SHORE__PAGE_COLOURS] = {0, 6, 2, 4, 5, 1, 7, 3};
    return run / SHORE__PAGE_COLOURS * SHORE__PAGE_COLOURS + order[run % SHORE__PAGE_COLOURS];
}

/* Throughputs of tokens are compared where each run counts tokens. */
uint32_t shore__together_charts(const struct shore__told *t, uint32_t n, struct shore__chart out[SHORE__CHARTS]) {
    bool tokens = true, validated = false;
    for (uint32_t i = 0; i < n; i++) {
        tokens &= t[i].tokens_rate.count > 0 || !t[i].timed;
        validated |= t[i].val.count > 0;
    }
    uint32_t count = 0;
    struct shore__chart *loss = &out[count++], *val = validated ? &out[count++] : NULL, *rate = &out[count++];
    *loss = (struct shore__chart){.title = "Loss", .about = "nats a token, by step"};
    if (val) *val = (struct shore__chart){.title = "Validation loss", .about = "nats a token, by step"};
    *rate = (struct shore__chart){
        .title = "Throughput", .about = tokens ? "tokens a second, by step" : "steps a second, by step", .zero = true};
    for (uint32_t i = 0; i < n; i++) {
        const struct shore__curve *rates = tokens ? &t[i].tokens_rate : &t[i].steps_rate;
        uint32_t colour = shore__together_colour(i);
        loss->series[i] = (struct shore__series){.curve = &t[i].loss, .name = t[i].name, .colour = colour};
        if (val) val->series[i] = (struct shore__series){&t[i].val, t[i].name, colour, .dots = true};
        rate->series[i] = (struct shore__series){.curve = rates, .name = t[i].name, .colour = colour};
    }
    return count;
}
