/* Colours, in a light and a dark scheme, and the style sheets: style.css of a page, plot.css of what is drawn in both.
 */
#include <stdio.h>

#include "page/page.h"

static const char page_css[] =
#include "page/style.inc"
    ;
static const char plot_css[] =
#include "page/plot.inc"
    ;

enum colour { BACK, CARD, INK, SOFT, RULE, K0, G1 = K0 + SHORE__PAGE_COLOURS, G2, COLOURS };
static const struct {
    const char *name, *of[2]; /* light, dark */
} colours[COLOURS] = {
    [BACK] = {"back", {"#fff", "#12161d"}},
    [CARD] = {"card", {"#f6f7f9", "#1b212b"}},
    [INK] = {"ink", {"#1c2330", "#e6e9ef"}},
    [SOFT] = {"soft", {"#5d6778", "#9aa5b6"}},
    [RULE] = {"line", {"#d9dee6", "#313a48"}},
    [K0] = {"k0", {"#0072b2", "#4aa8e8"}},
    {"k1", {"#56b4e9", "#9bd7ff"}},
    {"k2", {"#009e73", "#27c498"}},
    {"k3", {"#c9a800", "#f0e442"}},
    {"k4", {"#cc79a7", "#e59bc4"}},
    {"k5", {"#e69f00", "#f2b134"}},
    {"k6", {"#d55e00", "#ff7f3a"}},
    {"k7", {"#3b3b6d", "#a9a9f5"}},
    [G1] = {"g1", {"#8a94a6", "#7d8899"}},
    [G2] = {"g2", {"#b9c0cc", "#566074"}},
};

#define DARK "@media (prefers-color-scheme: dark) {"

void shore__page_style(struct shore__page *p) {
    shore__page_put(p, "<style>");
    for (int dark = 0; dark < 2; dark++) {
        shore__page_put(p, "%s:root { color-scheme: light dark;", dark ? DARK : "");
        for (int i = 0; i < COLOURS; i++)
            shore__page_put(p, " --%s: %s;", colours[i].name, colours[i].of[dark]);
        shore__page_put(p, "}%s\n", dark ? "}" : "");
    }
    shore__page_put(p, "%s%s</style>", plot_css, page_css);
}

void shore__page_style_drawn(struct shore__page *p) {
    static const struct {
        const char *selector, *property;
        enum colour colour;
    } rules[] = {{".card", "fill", CARD}, {"text", "fill", INK}, {".soft", "fill", SOFT}, {".grid", "stroke", RULE}};
    shore__page_put(p,
                    "<style>text { font: 13px system-ui, -apple-system, \"Segoe UI\", Roboto, sans-serif; } "
                    "text.title { font-size: 16px; font-weight: bold; }\n%s",
                    plot_css);
    for (int dark = 0; dark < 2; dark++) {
        shore__page_put(p, "%s", dark ? DARK : "");
        for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
            shore__page_put(p, " %s { %s: %s; }", rules[i].selector, rules[i].property,
                            colours[rules[i].colour].of[dark]);
        for (int i = K0; i < G1; i++)
            shore__page_put(p, " .%s { stroke: %s; }", colours[i].name, colours[i].of[dark]);
        shore__page_put(p, "%s\n", dark ? " }" : "");
    }
    shore__page_put(p, "</style>");
}
