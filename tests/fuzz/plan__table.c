/* Figures of a plan of any bytes: a table comes of any object, whose lines end. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "longshore/plan.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    char *figures = calloc(1, bytes + 1);
    if (!figures) abort();
    memcpy(figures, data, bytes);
    char *table = shore_plan_table(figures);
    if (table && (!strstr(table, "a step") || table[strlen(table) - 1] != '\n')) abort();
    free(table);
    free(figures);
    return 0;
}
