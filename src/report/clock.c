#include "report/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"
#include "drive/recorder.h"

struct shore__clock {
    struct shore__wait_watch watch; /* first member: a watch is cast to its clock */
    struct shore_fleet *fleet;
    _Atomic pthread_t thread; /* the one that steps */
    enum shore_charge charge;
    uint64_t since_ns; /* until then all time is charged */
    uint64_t charged_ns[SHORE_CHARGES];
    uint32_t ndrives;
    uint64_t waits_ns;                                  /* when the last wait began */
    uint64_t (*then)[SHORE_LANES], (*now)[SHORE_LANES]; /* [ndrives]: what lanes had worked by then, and by its end */
};

bool shore__clock_is_mine(const struct shore__clock *c) {
    return pthread_equal(atomic_load_explicit(&c->thread, memory_order_relaxed), pthread_self());
}

/* Charges the time that is not charged yet, up to then. All charges come through here. */
static void charge_until(struct shore__clock *c, uint64_t then_ns, enum shore_charge charge) {
    if (then_ns <= c->since_ns) return;
    c->charged_ns[charge] += then_ns - c->since_ns;
    shore__recorder_charged(shore__fleet_recorder(c->fleet), charge, c->since_ns, then_ns);
    c->since_ns = then_ns;
}

/* The longest work of these lanes of a drive during the wait. */
static uint64_t most_worked(const struct shore__clock *c, enum shore_lane first, enum shore_lane last) {
    uint64_t most = 0;
    for (uint32_t d = 0; d < c->ndrives; d++)
        for (int lane = (int)first; lane <= (int)last; lane++)
            if (c->now[d][lane] - c->then[d][lane] > most) most = c->now[d][lane] - c->then[d][lane];
    return most;
}

/* What held up a wait for drives: whichever worked longer during it, the link or a drive. What a drive does is known of
 * emulated ones alone; of others, it is what the link leaves. */
static enum shore_charge held_up(struct shore__clock *c, uint64_t since_ns, uint64_t now_ns) {
    if (c->waits_ns != since_ns || !shore__fleet_worked(c->fleet, c->now)) return SHORE_CHARGE_DRIVE;
    uint64_t link = most_worked(c, SHORE_LANE_LINK_IN, SHORE_LANE_LINK_OUT);
    uint64_t drive = most_worked(c, SHORE_LANE_DRIVE_READ, SHORE_LANE_DRIVE_UPDATE);
    if (!drive && link < now_ns - since_ns) drive = now_ns - since_ns - link;
    return link > drive ? SHORE_CHARGE_LINK : SHORE_CHARGE_DRIVE;
}

static enum shore_charge charge_of(struct shore__clock *c, enum shore_lane lane, uint64_t since_ns, uint64_t now_ns) {
    switch (lane) {
    case SHORE_LANE_COMMIT:
        return SHORE_CHARGE_COMMIT;
    case SHORE_LANE_BUS_IN:
    case SHORE_LANE_BUS_OUT:
        return SHORE_CHARGE_BUS;
    case SHORE_LANE_HOST_UPDATE:
        return SHORE_CHARGE_UPDATE;
    default:
        return held_up(c, since_ns, now_ns);
    }
}

static void begins(struct shore__wait_watch *watch, uint64_t now_ns) {
    struct shore__clock *c = (struct shore__clock *)watch;
    if (!shore__clock_is_mine(c)) return;
    c->waits_ns = now_ns;
    shore__fleet_worked(c->fleet, c->then);
}

static void ended(struct shore__wait_watch *watch, enum shore_lane lane, uint64_t since_ns, uint64_t now_ns) {
    struct shore__clock *c = (struct shore__clock *)watch;
    if (!shore__clock_is_mine(c)) return;
    charge_until(c, since_ns, c->charge);
    charge_until(c, now_ns, charge_of(c, lane, since_ns, now_ns));
}

static void over(struct shore__wait_watch *watch) {
    ((struct shore__clock *)watch)->fleet = NULL;
}

int shore__clock_open(struct shore_fleet *fleet, struct shore__clock **out) {
    struct shore__clock *c = *out = calloc(1, sizeof *c);
    uint32_t ndrives = shore__fleet_info(fleet).ndrives;
    if (c) c->then = calloc(2 * ndrives, sizeof *c->then);
    if (!c || !c->then) {
        free(c);
        *out = NULL;
        return -ENOMEM;
    }
    c->watch = (struct shore__wait_watch){begins, ended, over};
    c->fleet = fleet;
    c->ndrives = ndrives;
    c->now = c->then + ndrives;
    shore__clock_begin(c, shore__now_ns());
    shore__fleet_set_wait_watch(fleet, &c->watch);
    return 0;
}

void shore__clock_close(struct shore__clock *c) {
    if (!c) return;
    if (c->fleet) shore__fleet_set_wait_watch(c->fleet, NULL);
    free(c->then);
    free(c);
}

void shore__clock_take(struct shore__clock *c) {
    atomic_store_explicit(&c->thread, pthread_self(), memory_order_relaxed);
}

void shore__clock_begin(struct shore__clock *c, uint64_t now_ns) {
    shore__clock_take(c);
    c->charge = SHORE_CHARGE_BETWEEN;
    c->since_ns = now_ns;
    memset(c->charged_ns, 0, sizeof c->charged_ns);
}

void shore__clock_end(struct shore__clock *c, uint64_t now_ns, double seconds[SHORE_CHARGES]) {
    enum shore_charge charge = c->charge;
    charge_until(c, now_ns, charge);
    for (int i = 0; i < SHORE_CHARGES; i++)
        seconds[i] = (double)c->charged_ns[i] * 1e-9;
    shore__clock_begin(c, now_ns);
    c->charge = charge;
}

enum shore_charge shore__clock_charge(struct shore__clock *c, enum shore_charge charge) {
    enum shore_charge was = c->charge;
    if (!shore__clock_is_mine(c)) return was;
    charge_until(c, shore__now_ns(), was);
    c->charge = charge;
    return was;
}
