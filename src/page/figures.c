/* Charts and bars. A plot stretches to the width that there is; its words are HTML, so that they keep their size. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/units.h"
#include "page/page.h"

#define WIDE 1000.0                  /* of a plot that stretches, in its own units, and its height */
enum { TICKS = 4, TICKS_DRAWN = 7 }; /* about so many of an axis; of a wide one */

/* ---- charts ------------------------------------------------------------------------------------------------------ */

struct axes {
    double x0, x1, y0, y1, tick;  /* tick: between lines of the grid, which begin at y0 */
    double left, top, wide, high; /* of the plot, in the units of its SVG */
};

static double mean_of(const struct shore__values *span) {
    return span->sum / (double)span->n;
}

/* The step in the middle of a span: the last span may not be full. */
static double middle(const struct shore__curve *c, uint32_t i) {
    return ((double)i + 0.5) * (double)c->steps_per_span - 0.5;
}

static double across(const struct axes *a, double step) {
    return a->left + (step - a->x0) / (a->x1 - a->x0) * a->wide;
}

static double up(const struct axes *a, double value) {
    return a->top + a->high - (value - a->y0) / (a->y1 - a->y0) * a->high;
}

/* 1, 2 or 5 times a power of ten. */
static double tick_of(double range, int ticks) {
    double power = pow(10, floor(log10(range / ticks))), times = range / ticks / power;
    return power * (times > 5 ? 10 : times > 2 ? 5 : times > 1 ? 2 : 1);
}

/* Of what the series reach. False: there is nothing to draw. */
static bool find_axes(const struct shore__series *s, size_t n, bool zero, struct axes *a) {
    *a = (struct axes){INFINITY, -INFINITY, zero ? 0 : INFINITY, -INFINITY, .wide = WIDE, .high = WIDE};
    for (size_t k = 0; k < n; k++) {
        for (uint32_t i = 0; i < s[k].curve->count; i++) {
            const struct shore__values *span = &s[k].curve->at[i];
            if (!span->n) continue;
            double mean = mean_of(span), least = s[k].band ? span->least : mean, most = s[k].band ? span->most : mean;
            a->x0 = fmin(a->x0, middle(s[k].curve, i));
            a->x1 = fmax(a->x1, middle(s[k].curve, i));
            a->y0 = fmin(a->y0, least);
            a->y1 = fmax(a->y1, most);
        }
    }
    if (!(a->x0 <= a->x1)) return false;
    if (a->x0 == a->x1) a->x0 -= 1, a->x1 += 1;
    double least = fmax(fabs(a->y1), fabs(a->y0)) * 1e-5 + 1e-12; /* of what can be told apart */
    if (a->y1 - a->y0 < least) a->y1 += 1e3 * least, a->y0 -= zero ? 0 : 1e3 * least;
    a->tick = tick_of(a->y1 - a->y0, TICKS);
    a->y0 = floor(a->y0 / a->tick) * a->tick;
    a->y1 = ceil(a->y1 / a->tick) * a->tick;
    return true;
}

/* With as many decimals as tell one from the next. */
static struct shore__written tick_text(double value, double tick) {
    int decimals = (int)-floor(log10(tick) + 1e-9);
    struct shore__written out;
    if (fabs(value) < tick / 2) value = 0;
    if (decimals < 1 || decimals > 7) return shore__format_number(value);
    snprintf(out.text, sizeof out.text, "%.*f", decimals, value);
    return out;
}

static void put_grid(struct shore__page *p, const struct axes *a) {
    shore__page_put(p, "<path class=\"grid\" d=\"");
    for (int i = 0; a->y0 + i * a->tick < a->y1 + a->tick / 2; i++)
        shore__page_put(p, "M%g %.1fH%g", a->left, up(a, a->y0 + i * a->tick), a->left + a->wide);
    shore__page_put(p, "\"/>");
}

/* drawn: as text of the SVG, and not as HTML over a plot that stretches. */
static void put_ticks(struct shore__page *p, const struct axes *a, bool drawn) {
    double step = fmax(tick_of(a->x1 - a->x0, drawn ? TICKS_DRAWN : TICKS), 1), first = ceil(a->x0 / step) * step;
    for (int i = 0; a->y0 + i * a->tick < a->y1 + a->tick / 2; i++) {
        double value = a->y0 + i * a->tick;
        const struct shore__written text = tick_text(value, a->tick);
        if (drawn)
            shore__page_put(p, "<text class=\"soft\" x=\"%g\" y=\"%.1f\" text-anchor=\"end\">%s</text>", a->left - 8,
                            up(a, value) + 4, text.text);
        else
            shore__page_put(p, "<span class=\"y\" style=\"top:%.1f%%\">%s</span>", up(a, value) / WIDE * 100,
                            text.text);
    }
    for (int i = 0; first + i * step <= a->x1; i++) {
        double at = first + i * step, where = across(a, at);
        const struct shore__written text = shore__format_count((uint64_t)fmax(at, 0));
        bool end = where > a->left + 0.92 * a->wide;
        if (drawn)
            shore__page_put(p, "<text class=\"soft\" x=\"%.1f\" y=\"%g\" text-anchor=\"%s\">%s</text>",
                            end ? fmin(where + 8, a->left + a->wide) : where, a->top + a->high + 20,
                            end ? "end" : "middle", text.text);
        else
            shore__page_put(p, "<span class=\"x%s\" style=\"left:%.1f%%\">%s</span>", end ? " end" : "",
                            where / WIDE * 100, text.text);
    }
}

static void put_band(struct shore__page *p, const struct axes *a, const struct shore__series *s) {
    const struct shore__curve *c = s->curve;
    char command = 'M';
    shore__page_put(p, "<path class=\"band k%u\" d=\"", s->colour);
    for (uint32_t i = 0; i < c->count; i++)
        if (c->at[i].n)
            shore__page_put(p, "%c%.1f %.1f", command, across(a, middle(c, i)), up(a, c->at[i].most)), command = 'L';
    for (uint32_t i = c->count; i-- > 0;)
        if (c->at[i].n) shore__page_put(p, "L%.1f %.1f", across(a, middle(c, i)), up(a, c->at[i].least));
    shore__page_put(p, "Z\"/>");
}

/* A dot is a line without length, with a round end: it stays round, however the plot is stretched. Without dots, a
 * value that has no neighbour is one. */
static void put_line(struct shore__page *p, const struct axes *a, const struct shore__series *s, bool dots) {
    const struct shore__curve *c = s->curve;
    bool goes_on = false;
    shore__page_put(p, "<path class=\"%s k%u d%u\" d=\"", dots ? "dots" : "line", s->colour % 8,
                    dots ? 0 : s->colour / 8);
    for (uint32_t i = 0; i < c->count; i++) {
        bool alone = !(i && c->at[i - 1].n) && !(i + 1 < c->count && c->at[i + 1].n);
        if (c->at[i].n && (!dots || s->dots || alone)) {
            shore__page_put(p, "%c%.1f %.1f%s", goes_on && !dots ? 'L' : 'M', across(a, middle(c, i)),
                            up(a, mean_of(&c->at[i])), dots ? "h0" : "");
            goes_on = true;
        } else {
            goes_on &= s->dots; /* few values are joined; a step without one among many is a gap */
        }
    }
    shore__page_put(p, "\"/>");
}

void shore__figure_key(struct shore__page *p, uint32_t colour, const char *style) {
    if (style)
        shore__page_put(
            p, "<svg class=\"key\" viewBox=\"0 0 10 10\"><rect class=\"%s\" width=\"10\" height=\"10\"/></svg>", style);
    else
        shore__page_put(p,
                        "<svg class=\"key\" viewBox=\"0 0 24 10\"><path class=\"line k%u d%u\" d=\"M0 5H24\"/></svg>",
                        colour % 8, colour / 8);
}

static void put_legend(struct shore__page *p, const struct shore__series *s, size_t n) {
    shore__page_put(p, "<ul class=\"legend\">");
    for (size_t k = 0; k < n; k++) {
        shore__page_put(p, "<li>");
        shore__figure_key(p, s[k].colour, NULL);
        shore__page_say(p, s[k].name);
        shore__page_put(p, "</li>");
    }
    shore__page_put(p, "</ul>");
}

static void put_plot(struct shore__page *p, const struct axes *a, const struct shore__series *s, size_t n) {
    put_grid(p, a);
    for (size_t k = 0; k < n; k++)
        if (s[k].band && s[k].curve->steps_per_span > 1) put_band(p, a, &s[k]);
    for (size_t k = 0; k < n; k++) {
        put_line(p, a, &s[k], false);
        put_line(p, a, &s[k], true);
    }
}

#define NONE "None was measured."

void shore__figure_chart(struct shore__page *p, const char *title, const char *about, const struct shore__series *s,
                         size_t n, bool zero) {
    struct axes a;
    shore__page_put(p, "<figure><figcaption><b>%s</b> %s</figcaption>", title, about);
    if (!find_axes(s, n, zero, &a)) {
        shore__page_put(p, "<p class=\"none\">" NONE "</p></figure>");
        return;
    }
    shore__page_put(
        p,
        "<div class=\"plot\"><svg viewBox=\"0 0 %g %g\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"%s\">",
        WIDE, WIDE, title);
    put_plot(p, &a, s, n);
    shore__page_put(p, "</svg>");
    put_ticks(p, &a, false);
    shore__page_put(p, "</div>");
    if (n > 1) put_legend(p, s, n);
    shore__page_put(p, "</figure>");
}

double shore__figure_draw(struct shore__page *p, const char *title, const char *about, const struct shore__series *s,
                          size_t n, bool zero, double top) {
    const double left = 68, right = 24, above = 44, below = 36;
    struct axes a;
    bool some = find_axes(s, n, zero, &a);
    a.left = left, a.wide = SHORE__DRAWN_WIDE - left - right;
    a.top = top + above, a.high = SHORE__DRAWN_HIGH - above - below;
    shore__page_put(p,
                    "<text class=\"title\" x=\"%g\" y=\"%g\">%s<tspan class=\"soft\" dx=\"8\" font-size=\"13\" "
                    "font-weight=\"normal\">%s</tspan></text>",
                    20.0, top + 26, title, some ? about : NONE);
    if (some) put_plot(p, &a, s, n), put_ticks(p, &a, true);
    return top + SHORE__DRAWN_HIGH;
}

/* ---- bars -------------------------------------------------------------------------------------------------------- */

const char *shore__charge_style(uint32_t charge) {
    static const char *const styles[SHORE_CHARGES] = {"g1", "k0", "k1", "k2", "k3", "k4", "k5", "k6", "k7"};
    return charge < SHORE_CHARGES ? styles[charge] : "g2";
}

void shore__figure_bar(struct shore__page *p, const struct shore__bar_part *parts, size_t n, double whole, double mark,
                       shore__says *say) {
    double at = 0;
    shore__page_put(p,
                    "<div class=\"bar\"><svg viewBox=\"0 0 %g 10\" preserveAspectRatio=\"none\"><path class=\"rail\" "
                    "d=\"M0 0H%gV10H0Z\"/>",
                    WIDE, WIDE);
    for (size_t i = 0; i < n; i++) {
        if (!(parts[i].value > 0)) continue;
        shore__page_put(p, "<rect class=\"%s\" x=\"%.2f\" width=\"%.2f\" height=\"10\"><title>%s, %s</title></rect>",
                        parts[i].style, at / whole * WIDE, parts[i].value / whole * WIDE, parts[i].name,
                        say(parts[i].value).text);
        at += parts[i].value;
    }
    if (mark > 0) shore__page_put(p, "<path class=\"mark\" d=\"M%.2f 0V10\"/>", mark / whole * WIDE);
    shore__page_put(p, "</svg></div><ul class=\"legend parts\">");
    for (size_t i = 0; i < n; i++) {
        if (!(parts[i].value > 0)) continue;
        shore__page_put(p, "<li>");
        shore__figure_key(p, 0, parts[i].style);
        shore__page_put(p, "%s <b>%s</b> <i>%.*f %%</i></li>", parts[i].name, say(parts[i].value).text,
                        parts[i].value < at / 100 ? 1 : 0, 100 * parts[i].value / at);
    }
    shore__page_put(p, "</ul>");
}
