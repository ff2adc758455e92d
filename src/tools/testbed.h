/* Rows that `bench testbed` measures, and their chart. */
#ifndef SHORE_TOOLS_TESTBED_H
#define SHORE_TOOLS_TESTBED_H

#include <stdbool.h>

#include "run/emulation/tempo.h"

enum shore__testbed_mode {
    SHORE__TESTBED_BASE,     /* --update host */
    SHORE__TESTBED_LOSSLESS, /* fp32 state and gradients */
    SHORE__TESTBED_STATE8,   /* 8-bit moments */
    SHORE__TESTBED_TOP1,     /* 1 % of the gradients */
    SHORE__TESTBED_MODES
};

struct shore__testbed_row {
    enum shore__testbed_mode mode;
    uint32_t drives;
    double link_share;   /* of the testbed's link */
    double step_seconds; /* 0: not measured */
    double over_base1;   /* speed relative to BASE with one drive; 0: not measured */
    double over_base;    /* speed relative to BASE with as many drives and the same link */
    struct shore__busy busy;
    const char *bound;
};

/* Names of modes, as in --modes. */
extern const char *const shore__testbed_modes[SHORE__TESTBED_MODES];

#define SHORE__TESTBED_ROWS_MOST 64u
/* Makes the rows that --modes and --drives (NULL: all) ask for, in order; and with link_share below 1, those of a
 * narrower link, if the machine limits its link. SHORE_EUSAGE names the flag. */
int shore__testbed_rows(const char *modes, const char *drives, double link_share, bool link_divides,
                        struct shore__testbed_row *rows, size_t *nrows, struct shore_diag *diag);

/* Draws a line chart as SVG: speed relative to BASE with one drive, by number of drives, next to the paper's. paper:
 * the testbed's name; others have no published points. gpu_speed: the speed of computing alone; 0: unknown. */
int shore__testbed_draw(const char *path, const char *testbed, double scale, double gpu_speed,
                        const struct shore__testbed_row *rows, size_t nrows, struct shore_diag *diag);

#endif
