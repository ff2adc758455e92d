#include "report/clock.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "base/units.h"

struct shore__clock {
    struct shore__wait_watch watch; /* first member: a watch is cast to its clock */
    struct shore_fleet *fleet;
    _Atomic pthread_t thread; /* the one that steps */
    enum shore_charge charge;
    uint64_t since_ns; /* until then all time is charged */
    uint64_t charged_ns[SHORE_CHARGES];
};

static bool is_own(const struct shore__clock *c) {
    return pthread_equal(atomic_load_explicit(&c->thread, memory_order_relaxed), pthread_self());
}

/* Charges the time that is not charged yet, up to then. All charges come through here. */
static void charge_until(struct shore__clock *c, uint64_t then_ns, enum shore_charge charge) {
    if (then_ns <= c->since_ns) return;
    c->charged_ns[charge] += then_ns - c->since_ns;
    c->since_ns = then_ns;
}

static enum shore_charge charge_of(enum shore_lane lane) {
    switch (lane) {
    case SHORE_LANE_COMMIT:
        return SHORE_CHARGE_COMMIT;
    case SHORE_LANE_BUS_IN:
    case SHORE_LANE_BUS_OUT:
        return SHORE_CHARGE_BUS;
    case SHORE_LANE_LINK_IN:
    case SHORE_LANE_LINK_OUT:
        return SHORE_CHARGE_LINK;
    case SHORE_LANE_HOST_UPDATE:
        return SHORE_CHARGE_UPDATE;
    default:
        return SHORE_CHARGE_DRIVE;
    }
}

static void begins(struct shore__wait_watch *watch, uint64_t now_ns) {
    (void)watch;
    (void)now_ns;
}

static void ended(struct shore__wait_watch *watch, enum shore_lane lane, uint64_t since_ns, uint64_t now_ns) {
    struct shore__clock *c = (struct shore__clock *)watch;
    if (!is_own(c)) return;
    charge_until(c, since_ns, c->charge);
    charge_until(c, now_ns, charge_of(lane));
}

int shore__clock_open(struct shore_fleet *fleet, struct shore__clock **out) {
    struct shore__clock *c = *out = calloc(1, sizeof *c);
    if (!c) return -ENOMEM;
    c->watch = (struct shore__wait_watch){begins, ended};
    c->fleet = fleet;
    shore__clock_begin(c, shore__now_ns());
    shore__fleet_set_wait_watch(fleet, &c->watch);
    return 0;
}

void shore__clock_close(struct shore__clock *c) {
    if (c) shore__fleet_set_wait_watch(c->fleet, NULL);
    free(c);
}

void shore__clock_begin(struct shore__clock *c, uint64_t now_ns) {
    atomic_store_explicit(&c->thread, pthread_self(), memory_order_relaxed);
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
    if (!is_own(c)) return was;
    charge_until(c, shore__now_ns(), was);
    c->charge = charge;
    return was;
}
