/* Which path stands for which kind of drive. */
#include <string.h>

#include "base/diag.h"
#include "drive/drive.h"
#include "drive/placement.h"
#include "drive/remote/remote.h"
#include "drive/remote/transport.h"

int shore__drive_create_at(const struct shore__drive_config *config, const char *path, const char *place,
                           const struct shore__volume_desc *desc, bool overwrite, struct shore__drive **out,
                           struct shore_diag *diag) {
    if (strcmp(path, "ram:") == 0) return shore__ram_create(config, desc, out, diag);
    if (strcmp(path, "null:") == 0) return shore__null_create(config, desc, out, diag);
    if (shore__path_is_remote(path)) return shore__remote_create(config, path, desc, overwrite, out, diag);
    return shore__local_create(config, place, desc, overwrite, out, diag);
}

int shore__drive_open_at(const struct shore__drive_config *config, const char *path, struct shore__drive **out,
                         struct shore_diag *diag) {
    if (shore__path_is_virtual(path))
        return shore__fail(diag, SHORE_EMISSING, "%s keeps nothing after its process has ended", path);
    if (shore__path_is_remote(path)) return shore__remote_open(config, path, out, diag);
    return shore__local_open(config, path, out, diag);
}
