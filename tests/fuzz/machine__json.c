/* Descriptions of machines: what is taken is written and taken again as the same. */
#include <stdlib.h>
#include <string.h>

#include "machine/machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct shore_diag diag = {0};
    struct shore_machine *m, *again;
    if (shore_machine_parse((const char *)data, bytes, "x", &m, &diag)) return 0;
    for (int kind = 0; kind < SHORE_WORKS; kind++)
        for (int p = 0; p < SHORE_PRECISIONS; p++)
            if (!(shore__machine_seconds(m, kind, p, 100, 1) > 0)) abort();
    char *first = shore_machine_json(m);
    if (!first || shore_machine_parse(first, strlen(first), "x", &again, &diag)) abort();
    char *second = shore_machine_json(again);
    struct shore_machine *third;
    if (!second || shore_machine_parse(second, strlen(second), "x", &third, &diag)) abort();
    if (strcmp(again->name, third->name) || again->ndrives != third->ndrives) abort();
    free(first);
    free(second);
    shore_machine_free(m);
    shore_machine_free(again);
    shore_machine_free(third);
    return 0;
}
