/* Where an emulated machine's time goes: what drives count and reports show. */
#ifndef SHORE_BASE_BUSY_H
#define SHORE_BASE_BUSY_H

/* Seconds for which the parts of an emulated machine were busy: its processor, its host link, its drives (the busiest
 * of them), and --update host. */
struct shore__busy {
    double gpu, link, drive_read, drive_write, drive_mixed, drive_compute, host_update;
};

#endif
