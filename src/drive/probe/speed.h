/* Measures the speed of drives, for placement, once when their volumes are made. */
#ifndef SHORE_DRIVE_PROBE_SPEED_H
#define SHORE_DRIVE_PROBE_SPEED_H

#include "drive/address.h"
#include "longshore/state.h"

/* A place for a volume. */
struct shore__site {
    const struct shore__address *at;
    const char *volume; /* its path here; NULL: it is behind a server, or in memory */
    uint64_t device;    /* as its host numbers them; 0: it is a device itself, or memory, or unknown */
};

/* speeds: bytes per second, read and written together, in the pattern of UPDATE. All are 1 if there is nothing to
 * measure: fewer than two drives, all on one device, or one that could be measured only by overwriting it (a block
 * device). A remote drive counts with its rate on the far side or, if that is less, with the updates whose fp32
 * gradients its link carries. state_bytes: of a segment. Takes a temporary file beside each volume, and a fraction of a
 * second per drive. Never fails: drives that cannot be measured are noted, and all count as equal. */
void shore__sites_measure(const struct shore__site *sites, uint32_t nsites, size_t state_bytes,
                          const struct shore_fleet_options *options, uint64_t *speeds);
/* Measures one. *link: its connection's rate in bytes per second; 0: there is none. */
int shore__site_measure(const struct shore__site *site, enum shore_io io, size_t state_bytes, uint64_t *speed,
                        uint64_t *link, struct shore_diag *diag);
/* Whether all lie on one device and share its speed. Servers behind sockets are on this host. */
bool shore__sites_share_device(const struct shore__site *sites, uint32_t nsites);

/* Speed of one drive, measured alone, in bytes per second. path: a volume's; uses a nameless temporary file beside
 * it. */
int shore__drive_measure(const char *path, enum shore_io io, uint64_t *speed, struct shore_diag *diag);

/* Other figures of the measurement. Rates in bytes per second. */
struct shore__drive_rates {
    uint64_t write, read, update; /* alone, and together as in UPDATE; through the page cache unless direct */
    uint64_t update_least;        /* the same with the least buffers; 0: it was not measured */
    double flush_seconds;         /* after a write of 4 KiB */
    bool direct, shares_blocks;
    const char *backend;
};
/* Uses a nameless file beside path: of 96 MiB, once; if seconds are given, then of a size that takes about so long, for
 * each of the rates. segment_seconds: UPDATE's computing of a segment, on the thread that moves them. stop: called now
 * and then; nonzero gives up with -ECANCELED. */
int shore__drive_rates_measure(const char *path, double seconds, double segment_seconds, bool (*stop)(void),
                               struct shore__drive_rates *out, struct shore_diag *diag);

/* Parses --drive-speeds, one speed per drive. speeds may be NULL: only checks. SHORE_EUSAGE. */
int shore__speeds_parse(const char *text, uint32_t ndrives, uint64_t *speeds, struct shore_diag *diag);

#endif
