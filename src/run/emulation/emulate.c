#include "run/emulation/emulate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "files/json.h"
#include "machine/machine.h"

int shore__emulation_absolute(char **name, struct shore_diag *diag) {
    if (!*name || strcmp(*name, "none") == 0 || access(*name, F_OK) < 0) return 0;
    char *path = realpath(*name, NULL);
    if (!path) return shore__fail_errno(diag, *name, "cannot be resolved");
    if (!shore__json_holds(path)) {
        shore__fail(diag, SHORE_EUSAGE, "%s: is not UTF-8, so that run.json cannot record it: rename or copy it",
                    shore__shown(path).text);
        free(path);
        return SHORE_EUSAGE;
    }
    free(*name);
    *name = path;
    return 0;
}

int shore__emulation_open(const char *name, struct shore_machine **out, struct shore_diag *diag) {
    int rc = shore_machine_read(name, out, diag);
    if (rc) return rc;
    const struct shore_machine *m = *out;
    if (m->link[0] > 0 || m->link[1] > 0 || m->ndrives || m->forward_seconds > 0 || m->backward_seconds > 0 ||
        m->host_update > 0 || m->host_buffers || shore__rates_given(m->rate))
        return 0;
    shore_machine_free(*out);
    *out = NULL;
    return shore__fail(
        diag, SHORE_EINPUT,
        "%s: sets no limit: give \"link\", \"drives\", \"host-update\", or, of \"compute\", \"products\" or "
        "\"forward\" and \"backward\"",
        shore__shown(name).text);
}
