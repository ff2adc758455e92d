/* The trainings of `bench testbed`. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "tools/testbed.h"

#define NUMBERS_MOST 12u

const char *const shore__testbed_modes[SHORE__TESTBED_MODES] = {"base", "lossless", "state8", "top1"};

static int parse_modes(const char *text, bool *wanted, struct shore_diag *diag) {
    char *copy = strdup(text ? text : "base,lossless,state8,top1"), *rest = NULL;
    int rc = copy ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
    for (char *word = copy ? strtok_r(copy, ",", &rest) : NULL; !rc && word; word = strtok_r(NULL, ",", &rest)) {
        int m = 0;
        while (m < SHORE__TESTBED_MODES && strcmp(word, shore__testbed_modes[m]) != 0)
            m++;
        if (m == SHORE__TESTBED_MODES)
            rc = shore__fail(diag, SHORE_EUSAGE, "--modes takes base, lossless, state8 and top1, not '%s'", word);
        else
            wanted[m] = true;
    }
    free(copy);
    return rc;
}

static int by_number(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

static int parse_drives(const char *text, uint32_t *numbers, size_t *n, struct shore_diag *diag) {
    const char *at = text ? text : "1,2,4,6,8,10";
    for (*n = 0; *n < NUMBERS_MOST;) {
        char *end;
        unsigned long value = strtoul(at, &end, 10);
        if (end == at || *at < '0' || *at > '9' || value < 1 || value > SHORE__EMULATED_DRIVES_MAX) break;
        numbers[(*n)++] = (uint32_t)value;
        at = end;
        if (!*at) {
            qsort(numbers, *n, sizeof *numbers, by_number);
            return 0;
        }
        if (*at++ != ',') break;
    }
    return shore__fail(diag, SHORE_EUSAGE, "--drives takes up to %u numbers from 1 to %u, such as 1,2,4, not '%s'",
                       NUMBERS_MOST, SHORE__EMULATED_DRIVES_MAX, text);
}

int shore__testbed_rows(const char *modes, const char *drives, double link_share, bool link_divides,
                        struct shore__testbed_row *rows, size_t *nrows, struct shore_diag *diag) {
    bool wanted[SHORE__TESTBED_MODES] = {false};
    uint32_t numbers[NUMBERS_MOST];
    size_t n, count = 0;
    int rc = parse_modes(modes, wanted, diag);
    if (!rc) rc = parse_drives(drives, numbers, &n, diag);
    if (!rc && !(link_share >= 0 && link_share <= 1))
        rc = shore__fail(diag, SHORE_EUSAGE, "--link-share takes a share from 0 to 1");
    if (rc) return rc;
    for (int m = 0; m < SHORE__TESTBED_MODES; m++)
        for (size_t i = 0; wanted[m] && i < n; i++)
            if (!i || numbers[i] != numbers[i - 1])
                rows[count++] =
                    (struct shore__testbed_row){.mode = m, .drives = numbers[i], .link_share = 1, .bound = ""};
    bool both = wanted[SHORE__TESTBED_LOSSLESS] && wanted[SHORE__TESTBED_TOP1];
    for (int m = SHORE__TESTBED_LOSSLESS;
         both && link_divides && link_share > 0 && link_share < 1 && m < SHORE__TESTBED_MODES; m++)
        if (m != SHORE__TESTBED_STATE8)
            rows[count++] =
                (struct shore__testbed_row){.mode = m, .drives = numbers[n - 1], .link_share = link_share, .bound = ""};
    *nrows = count;
    return 0;
}
