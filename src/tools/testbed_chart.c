#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/diag.h"
#include "tools/testbed.h"

#define WIDTH 860
#define HEIGHT 500
#define LEFT 70
#define RIGHT 250 /* the legend */
#define TOP 64
#define BOTTOM 62
#define POINTS_MOST 64u
#define LINES_MOST 12

struct series {
    const char *label, *colour, *dash; /* dash NULL: a solid line */
    bool hollow;
    size_t n;
    double x[POINTS_MOST], y[POINTS_MOST];
};

/* Smart-Infinity, GPT-2 4.0B, A5000, read from its plots (about 1 % of full scale). */
static const struct series smart_infinity[] = {
    {"paper: BASE", "#777777", "5 4", true, 6, {1, 2, 4, 6, 8, 10}, {1, 1.55, 2.23, 2.25, 2.26, 2.27}},
    {"paper: SmartUpdate", "#9467bd", "5 4", true, 6, {1, 2, 4, 6, 8, 10}, {.80, 1.48, 2.55, 2.92, 3.25, 3.64}},
    {"paper: with top-k", "#8c564b", "5 4", true, 6, {1, 2, 4, 6, 8, 10}, {.89, 1.62, 2.80, 3.45, 3.75, 4.42}},
};

#define PUBLISHED (sizeof smart_infinity / sizeof smart_infinity[0])

static const struct series ours[SHORE__TESTBED_MODES] = {
    [SHORE__TESTBED_BASE] = {"update on the host (BASE)", "#333333", NULL, false, 0, {0}, {0}},
    [SHORE__TESTBED_LOSSLESS] = {"lossless", "#1f77b4", NULL, false, 0, {0}, {0}},
    [SHORE__TESTBED_STATE8] = {"8-bit moments", "#2ca02c", NULL, false, 0, {0}, {0}},
    [SHORE__TESTBED_TOP1] = {"top 1 % of gradients", "#e6820e", NULL, false, 0, {0}, {0}},
};

/* Writes text as XML; it has no controls any more. */
static void put_text(FILE *out, const char *text) {
    for (; *text; text++) {
        if (*text == '<')
            fputs("&lt;", out);
        else if (*text == '&')
            fputs("&amp;", out);
        else
            fputc(*text, out);
    }
}

struct chart {
    FILE *out;
    double most_x, most_y;
    int legend; /* entries so far */
};

static double x_of(const struct chart *c, double x) {
    return LEFT + (WIDTH - LEFT - RIGHT) * x / c->most_x;
}
static double y_of(const struct chart *c, double y) {
    return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * y / c->most_y;
}

static void marker(const struct chart *c, const struct series *s, double x, double y) {
    if (s->hollow)
        fprintf(c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4\" fill=\"#fff\" stroke=\"%s\" stroke-width=\"1.5\"/>\n",
                x, y, s->colour);
    else
        fprintf(c->out, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"4.5\" fill=\"%s\"/>\n", x, y, s->colour);
}

static void stroke(const struct chart *c, const struct series *s) {
    fprintf(c->out, " fill=\"none\" stroke=\"%s\" stroke-width=\"%s\"", s->colour, s->hollow ? "1.5" : "2.5");
    if (s->dash) fprintf(c->out, " stroke-dasharray=\"%s\"", s->dash);
    fputs("/>\n", c->out);
}

static void draw_series(struct chart *c, const struct series *s) {
    if (!s->n) return;
    fputs("<polyline points=\"", c->out);
    for (size_t i = 0; i < s->n; i++)
        fprintf(c->out, "%s%.1f,%.1f", i ? " " : "", x_of(c, s->x[i]), y_of(c, s->y[i]));
    fputc('"', c->out);
    stroke(c, s);
    for (size_t i = 0; i < s->n; i++)
        marker(c, s, x_of(c, s->x[i]), y_of(c, s->y[i]));
    double x = WIDTH - RIGHT + 24, y = TOP + 14 + 24 * c->legend++;
    fprintf(c->out, "<line x1=\"%.1f\" y1=\"%.1f\" x2=\"%.1f\" y2=\"%.1f\"", x, y, x + 32, y);
    stroke(c, s);
    marker(c, s, x + 16, y);
    fprintf(c->out, "<text x=\"%.1f\" y=\"%.1f\">%s</text>\n", x + 42, y + 4, s->label);
}

static void make_room(struct chart *c, const struct series *s) {
    for (size_t i = 0; i < s->n; i++) {
        c->most_x = fmax(c->most_x, s->x[i]);
        c->most_y = fmax(c->most_y, s->y[i]);
    }
}

static void draw_axes(const struct chart *c, const double *ticks, size_t nticks) {
    double step = 1;
    for (int i = 0; c->most_y / step > LINES_MOST; i++)
        step *= i % 3 == 1 ? 2.5 : 2; /* 1, 2, 5, 10 */
    for (int i = 0; i * step <= c->most_y; i++) {
        double y = i * step;
        fprintf(c->out,
                "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"%s\"/>\n"
                "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%.0f</text>\n",
                LEFT, y_of(c, y), WIDTH - RIGHT, y_of(c, y), y > 0 ? "#e4e4e4" : "#444", LEFT - 8, y_of(c, y) + 4, y);
    }
    fprintf(c->out, "<line x1=\"%d\" y1=\"%d\" x2=\"%d\" y2=\"%d\" stroke=\"#444\"/>\n", LEFT, TOP, LEFT,
            HEIGHT - BOTTOM);
    for (size_t i = 0; i < nticks; i++)
        fprintf(c->out,
                "<line x1=\"%.1f\" y1=\"%d\" x2=\"%.1f\" y2=\"%d\" stroke=\"#444\"/>\n"
                "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%g</text>\n",
                x_of(c, ticks[i]), HEIGHT - BOTTOM, x_of(c, ticks[i]), HEIGHT - BOTTOM + 5, x_of(c, ticks[i]),
                HEIGHT - BOTTOM + 20, ticks[i]);
    fprintf(c->out, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">drives</text>\n", (LEFT + WIDTH - RIGHT) / 2,
            HEIGHT - 20);
    fprintf(c->out,
            "<text transform=\"translate(22 %d) rotate(-90)\" text-anchor=\"middle\">speed over BASE with one "
            "drive</text>\n",
            (TOP + HEIGHT - BOTTOM) / 2);
}

static void draw_limit(const struct chart *c, double speed) {
    if (!(speed > 0) || speed > c->most_y) return;
    fprintf(c->out,
            "<line x1=\"%d\" y1=\"%.1f\" x2=\"%d\" y2=\"%.1f\" stroke=\"#c33\" stroke-dasharray=\"2 4\"/>\n"
            "<text x=\"%d\" y=\"%.1f\" fill=\"#c33\">computing alone</text>\n",
            LEFT, y_of(c, speed), WIDTH - RIGHT, y_of(c, speed), LEFT + 10, y_of(c, speed) - 6);
}

static void collect(struct series *series, double *ticks, size_t *nticks, const struct shore__testbed_row *rows,
                    size_t nrows) {
    memcpy(series, ours, sizeof ours);
    for (size_t i = 0; i < nrows; i++) {
        const struct shore__testbed_row *r = &rows[i];
        struct series *s = &series[r->mode];
        if (r->link_share != 1 || !(r->over_base1 > 0) || s->n == POINTS_MOST) continue;
        s->x[s->n] = r->drives;
        s->y[s->n++] = r->over_base1;
        size_t k = 0;
        while (k < *nticks && ticks[k] != r->drives)
            k++;
        if (k == *nticks && k < POINTS_MOST) ticks[(*nticks)++] = r->drives;
    }
}

int shore__testbed_draw(const char *path, const char *testbed, double scale, double gpu_speed,
                        const struct shore__testbed_row *rows, size_t nrows, struct shore_diag *diag) {
    struct series series[SHORE__TESTBED_MODES];
    double ticks[POINTS_MOST];
    size_t nticks = 0;
    bool published = strcmp(testbed, "smart-infinity") == 0;
    collect(series, ticks, &nticks, rows, nrows);
    struct chart c = {.out = fopen(path, "w"), .most_x = 1};
    if (!c.out) return shore__fail(diag, -errno, "%s: cannot be written: %s", path, strerror(errno));
    for (int m = 0; m < SHORE__TESTBED_MODES; m++)
        make_room(&c, &series[m]);
    for (size_t i = 0; published && i < PUBLISHED; i++)
        make_room(&c, &smart_infinity[i]);
    c.most_x *= 1.05;
    /* farther away, it would flatten the other curves */
    if (gpu_speed < 2 * c.most_y) c.most_y = fmax(c.most_y, gpu_speed);
    c.most_y = ceil(c.most_y * 1.04);

    fprintf(c.out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%d\" height=\"%d\" viewBox=\"0 0 %d %d\" "
            "font-family=\"Helvetica, Arial, sans-serif\" font-size=\"13\" fill=\"#222\">\n"
            "<rect width=\"%d\" height=\"%d\" fill=\"#fff\"/>\n",
            WIDTH, HEIGHT, WIDTH, HEIGHT, WIDTH, HEIGHT);
    fprintf(c.out, "<text x=\"%d\" y=\"26\" font-size=\"17\" font-weight=\"bold\">Emulated testbed ", LEFT);
    put_text(c.out, testbed);
    fprintf(c.out, "%s</text>\n", published ? ": GPT-2 4.0B, A5000" : "");
    fprintf(c.out, "<text x=\"%d\" y=\"46\" fill=\"#555\">rates and model divided by %g, times kept</text>\n", LEFT,
            scale);
    draw_axes(&c, ticks, nticks);
    draw_limit(&c, gpu_speed);
    for (size_t i = 0; published && i < PUBLISHED; i++)
        draw_series(&c, &smart_infinity[i]);
    for (int m = 0; m < SHORE__TESTBED_MODES; m++)
        draw_series(&c, &series[m]);
    fputs("</svg>\n", c.out);
    bool bad = ferror(c.out);
    if (fclose(c.out) || bad) return shore__fail(diag, -EIO, "%s: cannot be written", path);
    return 0;
}
