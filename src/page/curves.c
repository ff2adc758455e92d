/* The charts of several runs as one drawing, which needs nothing else: for papers, slides and pages. */
#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "page/page.h"

#define BEGINNING "<!-- curves of Longshore's runs -->\n"
#define EDGE 20.0
#define ROW 22.0 /* of the legend */
enum { COLUMNS = 2 };

/* What a reader has to know of a run beside its curve. Returns out. */
static const char *state_of(const struct shore__told *t, char *out, size_t bytes) {
    out[0] = 0;
    if (!t->steps) shore__append(out, bytes, "no step yet");
    if (t->in_use) shore__append(out, bytes, "%sin use", *out ? ", " : "");
    if (t->bad) shore__append(out, bytes, "%sdamaged lines: %s", *out ? ", " : "", shore__format_count(t->bad).text);
    return out;
}

/* Each name has an SVG of its own, which cuts off what is too long. */
static void put_legend(struct shore__page *p, const struct shore__told *t, uint32_t n) {
    const double wide = (SHORE__DRAWN_WIDE - 2 * EDGE) / COLUMNS, gap = 10, of_state = 170;
    for (uint32_t i = 0; i < n; i++) {
        char state[96];
        uint32_t colour = shore__together_colour(i), row = i / COLUMNS;
        double left = EDGE + i % COLUMNS * wide, top = EDGE / 2 + row * ROW;
        state_of(&t[i], state, sizeof state);
        shore__page_put(p, "<svg x=\"%g\" y=\"%g\" width=\"%g\" height=\"%g\"><title>", left, top,
                        wide - gap - (*state ? of_state : 0), ROW);
        shore__page_say(p, t[i].path);
        shore__page_put(p, "</title><path class=\"line k%u d%u\" d=\"M2 11H26\"/><text x=\"36\" y=\"16\">",
                        colour % SHORE__PAGE_COLOURS, colour / SHORE__PAGE_COLOURS);
        shore__page_say(p, t[i].name);
        shore__page_put(p, "</text></svg>");
        if (*state)
            shore__page_put(p, "<text class=\"soft\" x=\"%g\" y=\"%g\" text-anchor=\"end\">%s</text>",
                            left + wide - gap, top + 16, state);
    }
}

static void put_drawing(struct shore__page *p, const struct shore__told *t, uint32_t n) {
    struct shore__chart charts[SHORE__CHARTS];
    uint32_t count = shore__together_charts(t, n, charts), rows = (n + COLUMNS - 1) / COLUMNS;
    double top = EDGE + rows * ROW, high = top + count * SHORE__DRAWN_HIGH + EDGE / 2;
    shore__page_put(p,
                    BEGINNING "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %g %g\" width=\"%g\" "
                              "height=\"%g\" role=\"img\" aria-label=\"Curves of runs\">",
                    SHORE__DRAWN_WIDE, high, SHORE__DRAWN_WIDE, high);
    shore__page_style_drawn(p);
    shore__page_put(p, "<rect class=\"card\" width=\"%g\" height=\"%g\"/>", SHORE__DRAWN_WIDE, high);
    put_legend(p, t, n);
    for (uint32_t i = 0; i < count; i++)
        top = shore__figure_draw(p, charts[i].title, charts[i].about, charts[i].series, n, charts[i].zero, top);
    shore__page_put(p, "</svg>\n");
}

int shore__curves_make(const char *const *runs, uint32_t n, char **svg, size_t *bytes, struct shore_diag *diag) {
    struct shore__page p = {0};
    struct shore__told *t = NULL;
    int rc = shore__together_read(runs, n, &t, diag);
    if (!rc) put_drawing(&p, t, n);
    if (!rc && p.failed) rc = shore__out_of_memory(diag);
    shore__together_free(t, n);
    if (rc) free(p.text);
    *svg = rc ? NULL : p.text;
    *bytes = p.bytes;
    return rc;
}

static bool is_drawing(const char *path) {
    return shore__file_begins(path, BEGINNING);
}

int shore__curves_save(const char *svg, size_t bytes, const char *path, struct shore_diag *diag) {
    return shore__page_save(svg, bytes, path, is_drawing, "drawing of curves", diag);
}
