#include "storage/io_internal.h"

#include <blkid/blkid.h>
#include <errno.h>
#include <string.h>

#include "base/diag.h"

int shore__device_check(const struct shore__file *file, struct shore_diag *diag) {
    blkid_probe probe = blkid_new_probe();
    if (!probe) return shore__fail(diag, -ENOMEM, "%s: out of memory", file->path);
    int found = blkid_probe_set_device(probe, file->fd, 0, 0);
    if (found == 0) {
        blkid_probe_enable_superblocks(probe, 1);
        blkid_probe_set_superblocks_flags(probe, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_USAGE);
        blkid_probe_enable_partitions(probe, 1);
        found = blkid_do_safeprobe(probe); /* 1: nothing, 0: one signature, -2: several, -1: failed */
    }
    const char *type = NULL;
    int rc = 0;
    if (found == 0 || found == -2) {
        char name[64] = "a signature";
        if (blkid_probe_lookup_value(probe, "TYPE", &type, NULL) == 0 ||
            blkid_probe_lookup_value(probe, "PTTYPE", &type, NULL) == 0)
            shore__escape(type, strlen(type), name, sizeof name);
        rc = shore__fail(diag, SHORE_EEXISTS,
                         "%s: the device is not empty (%s found on it); if nothing on it is needed, wipe it",
                         file->path, name);
        shore__advise(diag, rc, SHORE_ADVICE_OVERWRITE, NULL);
    } else if (found != 1) {
        rc = shore__fail(diag, -EIO, "%s: the device could not be searched for signatures of file systems", file->path);
    }
    blkid_free_probe(probe);
    return rc;
}
