/* A meter: a step's seconds, the part spent waiting, the bytes moved, and the drive that held it up. */
#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "drive/counters.h"
#include "drive/recorder.h"
#include "report/clock.h"
#include "report/line.h"
#include "report/report.h"

/* What a drive has done. */
struct done {
    uint64_t read_bytes, written_bytes, busy_ns;
};

struct shore_meter {
    struct shore_fleet *fleet;
    struct shore__clock *clock;
    /* when the step began */
    uint64_t start_ns;
    struct shore_ledger ledger;
    struct shore__slowness slowness; /* has no drives where they own too few segments to tell */
    uint64_t *busy_ns;               /* by drive */
    uint32_t ndrives;
    struct done *done, *step_done; /* [ndrives]: so far when the step began; in the step that ended last */
    uint64_t step;                 /* that one; 0: none */
};

/* Drives that own only a few segments differ in their shares by rounding alone. */
static int watch_drives(struct shore_meter *m) {
    enum { SEGMENTS_LEAST = 8 };
    const struct shore_fleet_info info = shore__fleet_info(m->fleet);
    for (uint32_t d = 0; d < info.ndrives; d++)
        if (shore_fleet_drive_segments(m->fleet, d) < SEGMENTS_LEAST) return 0;
    m->busy_ns = calloc(info.ndrives, sizeof *m->busy_ns);
    return m->busy_ns ? shore__slowness_init(&m->slowness, info.ndrives) : -ENOMEM;
}

int shore_meter_open(struct shore_fleet *fleet, struct shore_meter **out, struct shore_diag *diag) {
    struct shore_meter *m = *out = calloc(1, sizeof *m);
    int rc = m ? 0 : -ENOMEM;
    if (!rc) m->fleet = fleet;
    if (!rc) m->ndrives = shore__fleet_info(fleet).ndrives;
    if (!rc && !(m->done = calloc(2 * m->ndrives, sizeof *m->done))) rc = -ENOMEM;
    if (!rc) m->step_done = m->done + m->ndrives;
    if (!rc) rc = watch_drives(m);
    if (!rc) rc = shore__clock_open(fleet, &m->clock);
    if (!rc) return 0;
    shore_meter_close(m);
    *out = NULL;
    return shore__fail(diag, rc, "out of memory for metrics");
}

void shore_meter_close(struct shore_meter *m) {
    if (!m) return;
    shore__clock_close(m->clock);
    shore__slowness_fini(&m->slowness);
    free(m->busy_ns);
    free(m->done);
    free(m);
}

/* Notes what each drive has done until now; ends: and what it has done in the step. */
static void count_drives(struct shore_meter *m, bool ends) {
    for (uint32_t d = 0; d < m->ndrives; d++) {
        const struct done was = m->done[d], now = {shore__fleet_read(m->fleet, d), shore__fleet_written(m->fleet, d),
                                                   shore_fleet_drive_busy_ns(m->fleet, d)};
        m->done[d] = now;
        if (ends)
            m->step_done[d] = (struct done){now.read_bytes - was.read_bytes, now.written_bytes - was.written_bytes,
                                            now.busy_ns - was.busy_ns};
    }
}

/* What is counted from here on belongs to the next step. */
static void take_stock(struct shore_meter *m) {
    m->ledger.size = sizeof m->ledger;
    shore_fleet_ledger(m->fleet, &m->ledger);
    m->start_ns = shore__now_ns();
}

void shore_meter_begin(struct shore_meter *m) {
    count_drives(m, false);
    take_stock(m);
    shore__clock_begin(m->clock, m->start_ns);
}

enum shore_charge shore_meter_charge(struct shore_meter *m, enum shore_charge charge) {
    return m ? shore__clock_charge(m->clock, charge) : SHORE_CHARGE_BETWEEN;
}

enum shore_charge shore_meter_turn(struct shore_meter *m, enum shore_charge charge) {
    if (m) shore__clock_take(m->clock);
    return shore_meter_charge(m, charge);
}

int shore_meter_wait(struct shore_meter *m, enum shore_lane lane, struct shore_wait *wait, struct shore_diag *diag) {
    bool counts = m && shore__clock_is_mine(m->clock);
    return counts ? shore__fleet_wait(m->fleet, lane, wait, diag) : shore_wait(wait, diag);
}

static void find_slow_drive(struct shore_meter *m, struct shore_step_report *r) {
    for (uint32_t d = 0; d < m->slowness.ndrives; d++)
        m->busy_ns[d] = shore_fleet_drive_busy_ns(m->fleet, d);
    int slow = shore__slowness_step(&m->slowness, m->busy_ns, r->step_seconds, &r->slow_factor);
    r->slow_drive = slow < 0 ? NULL : shore_fleet_drive_path(m->fleet, (uint32_t)slow);
}

int shore_meter_end(struct shore_meter *m, struct shore_step_report *r) {
    if (r->size != sizeof *r) return -EINVAL;
    struct shore_ledger was = m->ledger;
    uint64_t start_ns = m->start_ns, waited_ns = 0, peak;
    count_drives(m, true);
    take_stock(m);
    shore__clock_end(m->clock, m->start_ns, r->charge_seconds);
    m->step = r->step;
    shore__recorder_stepped(shore__fleet_recorder(m->fleet), r->step, start_ns, m->start_ns);
    r->ledger = m->ledger;
    for (size_t i = 1; i < SHORE__COUNTERS; i++)
        *shore__counter(&r->ledger, i) -= *shore__counter(&was, i);
    for (int lane = 0; lane < SHORE_LANES; lane++)
        waited_ns += r->ledger.waited_ns[lane];
    shore__resident_bytes(&r->resident_bytes, &peak);
    r->step_seconds = (double)(m->start_ns - start_ns) * 1e-9;
    r->commit_seconds = (double)r->ledger.waited_ns[SHORE_LANE_COMMIT] * 1e-9;
    r->wait_seconds = (double)waited_ns * 1e-9 - r->commit_seconds;
    r->compute_seconds = r->step_seconds - r->wait_seconds - r->commit_seconds - r->paced_seconds;
    if (r->compute_seconds < 0) r->compute_seconds = 0; /* several threads waited */
    if (m->slowness.ndrives) find_slow_drive(m, r);
    return 0;
}

int shore_meter_drives_line(const struct shore_meter *m, bool paths, char *out, size_t bytes) {
    struct shore__line line = {out, 0, bytes};
    if (!m->step) {
        shore__line_add(&line, "{}");
        return (int)line.used;
    }
    shore__line_add(&line, "{\"step\":%llu,\"drives\":[", (unsigned long long)m->step);
    bool more = false;
    for (uint32_t d = 0; d < m->ndrives; d++) {
        if (!shore__fleet_owns(m->fleet, d)) continue;
        const struct done *done = &m->step_done[d];
        shore__line_add(&line, "%s{\"drive\":%u,\"read_bytes\":%llu,\"write_bytes\":%llu,\"busy_seconds\":%.9g",
                        more ? "," : "", d, (unsigned long long)done->read_bytes,
                        (unsigned long long)done->written_bytes, (double)done->busy_ns * 1e-9);
        if (paths) shore__line_add_text(&line, ",\"path\":", shore_fleet_drive_path(m->fleet, d));
        shore__line_add(&line, "}");
        more = true;
    }
    shore__line_add(&line, "]}");
    return (int)line.used;
}
