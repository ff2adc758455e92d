/* How fast drives are, for placement: measured once, when their volumes are made. */
#ifndef SHORE_DRIVE_PROBE_SPEED_H
#define SHORE_DRIVE_PROBE_SPEED_H

#include "drive/address.h"
#include "longshore/state.h"

/* Where a volume will be made. */
struct shore__site {
    const struct shore__address *at;
    const char *volume; /* its path here; NULL: a server or nobody has one */
    uint64_t device;    /* as its host numbers them; 0: it is one, or memory, or unknown */
};

/* speeds: bytes a second, read and written together, in the pattern of UPDATE; all 1 where nothing is to be measured:
 * fewer than two drives, all on one device, or one that only overwriting what is on it could measure (a block device).
 * A remote drive counts with what it does over there, or with the updates whose fp32 gradients its link carries, if
 * those are fewer. state_bytes: of a segment. Takes a temporary file beside each volume, and a fraction of a second for
 * each drive. Never fails: what cannot be measured is noted, and all are taken to be equal. */
void shore__sites_measure(const struct shore__site *sites, uint32_t nsites, size_t state_bytes,
                          const struct shore_fleet_options *options, uint64_t *speeds);
/* One of them. *link: what its connection carries, in bytes a second; 0: there is none. */
int shore__site_measure(const struct shore__site *site, enum shore_io io, size_t state_bytes, uint64_t *speed,
                        uint64_t *link, struct shore_diag *diag);
/* Whether all lie on one device, and so share its speed. Servers behind sockets are on this host. */
bool shore__sites_share_device(const struct shore__site *sites, uint32_t nsites);

/* One drive's speed, measured alone: bytes a second. path: of a volume; a temporary file beside it, without a
 * name. */
int shore__drive_measure(const char *path, enum shore_io io, uint64_t *speed, struct shore_diag *diag);

/* What else is seen on the way. Rates in bytes a second. */
struct shore__drive_rates {
    uint64_t write, read, update; /* alone, and together as UPDATE does; through the page cache unless direct */
    bool direct, shares_blocks;
    const char *backend;
};
/* With a file that has no name, beside path; stop: asked now and then, gives up with -ECANCELED. */
int shore__drive_rates_measure(const char *path, bool (*stop)(void), struct shore__drive_rates *out,
                               struct shore_diag *diag);

/* The value of --drive-speeds, one speed for each drive; speeds may be NULL: only the check. SHORE_EUSAGE. */
int shore__speeds_parse(const char *text, uint32_t ndrives, uint64_t *speeds, struct shore_diag *diag);

#endif
