/* The drives of a fleet, as a description of a machine has them. */
#include <stdio.h>
#include <string.h>

#include "drive/address.h"
#include "machine/machine.h"

void shore__machine_device(const struct shore__whereabouts *lies, char *out, size_t bytes) {
    if (*lies->disk)
        snprintf(out, bytes, "%.*s", (int)bytes - 1, lies->disk);
    else
        snprintf(out, bytes, "%llu", (unsigned long long)lies->device_id);
}

void shore__machine_share(struct shore_machine *m) {
    for (uint32_t i = 0; i < m->ndrives; i++) {
        struct shore__machine_drive *d = &m->drive[i];
        d->shares = 0;
        for (uint32_t k = 0; k < i && *d->device && !d->shares; k++)
            if (strcmp(m->drive[k].device, d->device) == 0) d->shares = k + 1;
    }
}

void shore__machine_memory_drive(const struct shore_machine *m, struct shore__machine_drive *d) {
    d->mixed = m->memory_bandwidth;
    d->update = m->host_update;
    d->host_computes = true;
}

/* A file on a drive that was measured as one whose UPDATE something else computes has its rates, but UPDATE's. */
static void compute_there(const struct shore_machine *m, bool device, struct shore__machine_drive *d) {
    if (device != d->host_computes) return;
    d->host_computes = !device;
    d->update = device ? 0 : m->host_update;
}

/* The drive that a measured machine has on this one's device; NULL: unknown. */
static const struct shore__machine_drive *measured(const struct shore_machine *m, const char *text,
                                                   struct shore__whereabouts *lies) {
    char device[sizeof m->drive[0].device];
    bool files = shore__kind_of(text)->has_file && shore__whereabouts(shore__address_file(text), lies, NULL) == 0;
    if (files) shore__machine_device(lies, device, sizeof device);
    const struct shore__machine_drive *found = NULL;
    for (uint32_t i = 0; i < m->ndrives; i++) {
        const struct shore__machine_drive *d = &m->drive[i];
        if (strcmp(files ? d->device : d->path, files ? device : text) != 0) continue;
        if (!files || d->host_computes == (shore__kind_of(text)->id == SHORE__KIND_FILE)) return d;
        if (!found) found = d;
    }
    return found;
}

uint32_t shore__machine_take_drives(struct shore_machine *m, const char *const *drives, uint32_t n, bool in_order) {
    const struct shore_machine before = *m;
    bool by_device = before.measured && !in_order;
    uint32_t unknown = 0;
    m->ndrives = n < SHORE__MACHINE_DRIVES_MAX ? n : SHORE__MACHINE_DRIVES_MAX;
    for (uint32_t i = 0; i < m->ndrives; i++) {
        struct shore__whereabouts lies = {.free_bytes = 0};
        const struct shore__machine_drive *known =
            by_device ? measured(&before, drives[i], &lies) : shore__machine_drive(&before, i);
        const struct shore__kind *kind = shore__kind_of(drives[i]);
        bool memory = by_device && !kind->has_file && !kind->served;
        unknown += !known && !memory;
        m->drive[i] = known ? *known : shore__machine_assumed()->drive[0];
        if (memory) shore__machine_memory_drive(m, &m->drive[i]);
        if (known && !in_order && kind->has_file) compute_there(m, kind->id == SHORE__KIND_OPENCL, &m->drive[i]);
        if (!known && lies.device_id) shore__machine_device(&lies, m->drive[i].device, sizeof m->drive[i].device);
        if (by_device) m->drive[i].room = lies.free_bytes;
        if (!by_device && i >= before.ndrives) m->drive[i].device[0] = '\0'; /* like the last, on its own */
    }
    shore__machine_share(m);
    return unknown;
}
