/* A page about runs: what metrics.jsonl and plan.json say, as HTML that needs nothing else.
 *
 * text.c: the page as it grows, escapes, values. curve.c: steps, thinned. told.c: a run's files, read. figures.c:
 * charts and bars. style.c: colours. lanes.c: a step that was traced. run_page.c: what is said of a run. together.c:
 * several runs. curves.c: their curves as a drawing. page.c: the API of report.h. */
#ifndef SHORE_PAGE_PAGE_H
#define SHORE_PAGE_PAGE_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/units.h"
#include "longshore/metrics.h"
#include "longshore/report.h"

/* ---- text.c ------------------------------------------------------------------------------------------------------ */

/* Memory that grows; text is always terminated once something was put. */
struct shore__page {
    char *text;
    size_t bytes, room;
    bool failed; /* out of memory */
};
/* As printf(); what strangers named goes through shore__page_say(). */
__attribute__((format(printf, 2, 3))) void shore__page_put(struct shore__page *p, const char *format, ...);
/* Any bytes as text of HTML, SVG or an attribute in double quotes: markup is escaped, and what is no text is U+FFFD. */
void shore__page_say(struct shore__page *p, const char *text);

/* A value for people. */
typedef struct shore__written shore__says(double value);
struct shore__written shore__say_bytes(double bytes);
struct shore__written shore__say_loss(double loss);
/* A cell of a table; what is not known, a dash. */
void shore__page_cell(struct shore__page *p, double value, shore__says *say);

/* ---- style.c ----------------------------------------------------------------------------------------------------- */

#define SHORE__PAGE_COLOURS 8 /* of series: k0 to k7 */
/* The style of a page, and of a drawing that is one SVG: colours in both schemes. What converts SVG knows no variables,
 * so that drawings have none. */
void shore__page_style(struct shore__page *p);
void shore__page_style_drawn(struct shore__page *p);

/* ---- curve.c ----------------------------------------------------------------------------------------------------- */

/* Values by step, in at most so many spans of equally many steps: a long run is a curve of the same size as a short
 * one. */
struct shore__values {
    double least, most, sum;
    uint64_t n;
};
struct shore__curve {
    struct shore__values *at;
    uint32_t room;           /* even */
    uint32_t count;          /* spans up to the last one with a value */
    uint64_t steps_per_span; /* span i: steps [i * this, (i + 1) * this) */
};
int shore__curve_init(struct shore__curve *c, uint32_t room);
void shore__curve_fini(struct shore__curve *c);
/* A value that is not finite, or beyond what a chart can show, adds nothing. */
void shore__curve_add(struct shore__curve *c, uint64_t step, double value);

/* ---- told.c ------------------------------------------------------------------------------------------------------ */

/* Numbers of a step, by the key that metrics.jsonl has them under. */
#define SHORE__TOLD_LIST(X)             \
    X(STEP_SECONDS, step_seconds)       \
    X(COMPUTE_SECONDS, compute_seconds) \
    X(WAIT_SECONDS, wait_seconds)       \
    X(COMMIT_SECONDS, commit_seconds)   \
    X(PACED_SECONDS, paced_seconds)     \
    X(TOKENS, tokens)                   \
    X(MFU, mfu)                         \
    X(LINK_BYTES, link_bytes)           \
    X(READ_BYTES, drive_read_bytes)     \
    X(WRITE_BYTES, drive_write_bytes)
enum shore__told_key {
#define SHORE__TOLD_ENUM(name, key) SHORE__TOLD_##name,
    SHORE__TOLD_LIST(SHORE__TOLD_ENUM)
#undef SHORE__TOLD_ENUM
        SHORE__TOLD
};
struct shore__told_step {
    double of[SHORE__TOLD], charges[SHORE_CHARGES];
    bool charged; /* it has charges */
};

enum { SHORE__TOLD_RECENT = 128 };
/* A run, as its directory tells. */
struct shore__told {
    const char *path, *name; /* name: its label, borrowed from path */
    char what[160];          /* of model */
    bool in_use;
    uint32_t drives;
    uint64_t steps_wanted, memory_bytes;              /* 0: not known */
    uint64_t steps;                                   /* the last one's number */
    uint64_t bad, lost, skipped, not_finite, replays; /* lines, and steps */
    double last_loss, val_loss, best_val_loss;        /* NaN: none */
    double seconds, written_bytes, tokens;            /* of all steps */
    double resident_bytes, gpu_bytes;                 /* the most */
    bool emulated;
    bool beside_imports; /* plans are of memory beside what a Python process has imported */
    bool of_engine;      /* memory_bytes is of what the package holds, and not of the process */
    struct shore__curve loss, val, tokens_rate, steps_rate;
    struct shore__told_step recent[SHORE__TOLD_RECENT];
    uint32_t timed;                /* steps seen that took time */
    struct shore__told_step usual; /* mean of the middle half of the recent ones, by their time */
    json_t *plan;                  /* NULL: none is kept */
    bool plan_damaged;
};
/* Reads a run's files. points: of a curve, at most. The caller frees it, whatever is returned. Errors: SHORE_EMISSING
 * (no run there), those of run.json, -EIO, -ENOMEM. */
int shore__told_read(const char *path, uint32_t points, struct shore__told *out, struct shore_diag *diag);
void shore__told_free(struct shore__told *t);
/* Takes in lines of metrics.jsonl. Returns the bytes of those that are whole. */
size_t shore__told_take(struct shore__told *t, const char *text, size_t bytes);
/* Begins one without a run, for shore__told_take(); finds what is usual. */
int shore__told_begin(struct shore__told *t, uint32_t points);
void shore__told_end(struct shore__told *t);

/* ---- figures.c --------------------------------------------------------------------------------------------------- */

/* A line of a chart. */
struct shore__series {
    const struct shore__curve *curve;
    const char *name;
    uint32_t colour;
    bool band; /* with what its spans reach */
    bool dots; /* with a dot for each value: they are few */
};
/* about: unit and axis. zero: the axis begins there. */
void shore__figure_chart(struct shore__page *p, const char *title, const char *about, const struct shore__series *s,
                         size_t n, bool zero);
/* The same within an SVG, from a height on. Returns the height below it. */
double shore__figure_draw(struct shore__page *p, const char *title, const char *about, const struct shore__series *s,
                          size_t n, bool zero, double top);
#define SHORE__DRAWN_WIDE 960.0 /* and SHORE__DRAWN_HIGH what shore__figure_draw() adds to a height */
#define SHORE__DRAWN_HIGH 330.0
/* A part of a bar. style: a class of style.css. */
struct shore__bar_part {
    const char *name, *style;
    double value;
};
/* Parts beside one another, and what they are. whole: the width of the bar; mark: of it, drawn as a line; 0: none. */
void shore__figure_bar(struct shore__page *p, const struct shore__bar_part *parts, size_t n, double whole, double mark,
                       shore__says *say);
/* A stroke or, with a style, a square in the colour of what is named behind it. */
void shore__figure_key(struct shore__page *p, uint32_t colour, const char *style);
/* The style of what was charged; of what a later version charges, that of the rest. */
const char *shore__charge_style(uint32_t charge);

/* ---- together.c -------------------------------------------------------------------------------------------------- */

/* Reads so many runs, and gives each a name that no other has. The caller frees them, whatever is returned. Errors:
 * SHORE_EUSAGE (none, too many, or one twice), those of shore__told_read(). */
int shore__together_read(const char *const *runs, uint32_t n, struct shore__told **out, struct shore_diag *diag);
void shore__together_free(struct shore__told *t, uint32_t n);
uint32_t shore__together_colour(uint32_t run);
/* A chart with a series of each run. */
struct shore__chart {
    const char *title, *about;
    struct shore__series series[SHORE_REPORT_RUNS_MOST];
    bool zero;
};
#define SHORE__CHARTS 3
/* Losses, validation losses if there are any, and throughputs. Returns how many charts these are. */
uint32_t shore__together_charts(const struct shore__told *t, uint32_t n, struct shore__chart out[SHORE__CHARTS]);

/* ---- curves.c ---------------------------------------------------------------------------------------------------- */

/* Makes a drawing of the charts of so many runs: an SVG that needs nothing else. Ownership: *svg is the caller's, for
 * free(); NULL on failure. Errors: those of shore__together_read(). */
int shore__curves_make(const char *const *runs, uint32_t n, char **svg, size_t *bytes, struct shore_diag *diag);
/* Writes it, in place of nothing or of such a drawing. */
int shore__curves_save(const char *svg, size_t bytes, const char *path, struct shore_diag *diag);

/* page.c: writes a file, which is whole or not there, in place of nothing or of one of its kind. */
int shore__page_save(const char *text, size_t bytes, const char *path, bool (*is_kind)(const char *path),
                     const char *kind, struct shore_diag *diag);

/* ---- lanes.c ----------------------------------------------------------------------------------------------------- */

/* The lanes of the last step that was traced, if any was. */
void shore__page_lanes(struct shore__page *p, const char *run);

/* ---- run_page.c -------------------------------------------------------------------------------------------------- */

/* All that is said of one run. tbw_bytes: 0: not said. */
void shore__page_run(struct shore__page *p, const struct shore__told *t, double tbw_bytes);

#endif
