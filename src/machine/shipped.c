/* Descriptions that come with the library: the files of machines/, which CMake makes texts of C. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "files/json.h"
#include "machine/machine.h"

static const struct {
    const char *name, *text;
} shipped[] = {
#include "machine/shipped.inc"
};
enum { SHIPPED = sizeof shipped / sizeof shipped[0], FILE_BYTES_MOST = 1 << 20 };

const char *shore_machine_shipped(uint32_t number) {
    return number < SHIPPED ? shipped[number].name : NULL;
}

int shore_machine_read(const char *name, struct shore_machine **out, struct shore_diag *diag) {
    char list[256] = "";
    json_t *json;
    *out = NULL;
    for (size_t i = 0; i < SHIPPED; i++) {
        if (strcmp(name, shipped[i].name) == 0)
            return shore_machine_parse(shipped[i].text, strlen(shipped[i].text), name, out, diag);
        shore__append(list, sizeof list, "%s%s", i ? ", " : "", shipped[i].name);
    }
    if (access(name, F_OK) != 0)
        return shore__fail(diag, SHORE_EUSAGE, "%s is not a file that describes a machine, nor one of %s",
                           shore__shown(name).text, list);
    int rc = shore__json_read(name, FILE_BYTES_MOST, &json, diag);
    return rc ? rc : shore__machine_from_json(json, name, out, diag);
}
