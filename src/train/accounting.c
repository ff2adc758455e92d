#include "train/accounting.h"

#include <errno.h>
#include <stdlib.h>

#include "base/diag.h"
#include "base/units.h"
#include "run/emulation/tempo.h"

struct accounting {
    struct shore_fleet *fleet;
    struct shore__tempo *tempo;
    /* at the start of the step */
    uint64_t start_ns;
    struct shore_ledger ledger;
    struct shore__busy busy;
    struct shore__slowness slowness; /* has no drives where they own too few segments to tell */
    uint64_t *busy_ns;               /* by drive */
};

/* Drives that own only a few segments differ in their shares by rounding alone. */
static int watch_drives(struct accounting *a) {
    enum { SEGMENTS_LEAST = 8 };
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(a->fleet, &info);
    for (uint32_t d = 0; d < info.ndrives; d++)
        if (shore_fleet_drive_segments(a->fleet, d) < SEGMENTS_LEAST) return 0;
    a->busy_ns = calloc(info.ndrives, sizeof *a->busy_ns);
    return a->busy_ns ? shore__slowness_init(&a->slowness, info.ndrives) : -ENOMEM;
}

int shore__accounting_open(struct shore_fleet *fleet, struct shore__tempo *tempo, struct accounting **out,
                           struct shore_diag *diag) {
    struct accounting *a = *out = calloc(1, sizeof *a);
    if (!a) return shore__fail(diag, -ENOMEM, "out of memory for the trainer");
    a->fleet = fleet;
    a->tempo = tempo;
    int rc = watch_drives(a);
    return rc ? shore__fail(diag, rc, "out of memory for the trainer") : 0;
}

void shore__accounting_close(struct accounting *a) {
    if (!a) return;
    shore__slowness_fini(&a->slowness);
    free(a->busy_ns);
    free(a);
}

void shore__accounting_begin(struct accounting *a, struct waits *waits) {
    a->ledger.size = sizeof a->ledger;
    shore_fleet_ledger(a->fleet, &a->ledger);
    if (a->tempo) shore__tempo_busy(a->tempo, &a->busy);
    *waits = (struct waits){0};
    a->start_ns = shore__now_ns();
}

double shore__accounting_seconds(const struct accounting *a) {
    return (double)(shore__now_ns() - a->start_ns) * 1e-9;
}

static void report_bytes(const struct accounting *a, const struct shore_ledger *now, struct shore__step_report *r) {
    const struct shore_ledger *was = &a->ledger;
#define SINCE(field) (now->field - was->field)
    r->link = (struct shore__link_bytes){
        .gradients = SINCE(link_in_gradients) + SINCE(link_out_gradients),
        .compressed = SINCE(link_in_compressed),
        .parameters = SINCE(link_out_params),
        .activations = SINCE(link_activations),
        .state = SINCE(link_in_state) + SINCE(link_out_state),
        .control = SINCE(link_control),
    };
    r->drive_read_bytes =
        SINCE(drive_read_state) + SINCE(drive_read_fetch) + SINCE(drive_read_spill) + SINCE(drive_read_scratch);
    r->drive_write_bytes =
        SINCE(drive_write_state) + SINCE(drive_write_spill) + SINCE(drive_write_scratch) + SINCE(drive_write_commit);
#undef SINCE
}

static void find_slow_drive(struct accounting *a, struct shore__step_report *r) {
    for (uint32_t d = 0; d < a->slowness.ndrives; d++)
        a->busy_ns[d] = shore_fleet_drive_busy_ns(a->fleet, d);
    int slow = shore__slowness_step(&a->slowness, a->busy_ns, r->step_seconds, &r->slow_factor);
    r->slow_drive = slow < 0 ? NULL : shore_fleet_drive_path(a->fleet, (uint32_t)slow);
}

static void report_emulation(struct accounting *a, struct shore__step_report *r) {
    struct shore__busy now;
    shore__tempo_busy(a->tempo, &now);
    r->emulated = true;
    for (int i = 0; i < SHORE_LANES; i++)
        r->busy.seconds[i] = now.seconds[i] - a->busy.seconds[i];
    a->busy = now;
}

void shore__accounting_end(struct accounting *a, struct waits *waits, struct shore__step_report *r) {
    struct shore_ledger now = {.size = sizeof now};
    uint64_t peak, end = shore__now_ns();
    shore_fleet_ledger(a->fleet, &now);
    shore__resident_bytes(&r->resident_bytes, &peak);
    report_bytes(a, &now, r);
    r->step_seconds = (double)(end - a->start_ns) * 1e-9;
    r->wait_seconds = (double)waits->drives_ns * 1e-9;
    r->commit_seconds = (double)waits->commit_ns * 1e-9;
    r->compute_seconds = r->step_seconds - r->wait_seconds - r->commit_seconds;
    if (a->slowness.ndrives) find_slow_drive(a, r);
    if (a->tempo) report_emulation(a, r);
    a->ledger = now;
    a->start_ns = end;
    *waits = (struct waits){0};
}
