/* Time of programs whose time is known by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/prng.h"
#include "plan/simulate.h"
#include "seed.h"

/* Layers of 100 bytes that come through buffers, forward and backward; each gradient of 100 elements is updated behind
 * backward. */
enum { LAYERS = 8, BYTES = 100, TENSORS_MOST = 64 };

struct made {
    struct shore_program *program;
    struct shore__fate fate[TENSORS_MOST];
    uint32_t layer, pages, left, left_buffers, piece, piece_buffers;
};

/* Even keys are those of buffers. */
static uint32_t add(struct made *m, const char *name, uint32_t key, enum shore_way way, uint32_t group,
                    uint64_t count) {
    struct shore_tensor t = {.size = sizeof t, .name = name, .key = key, .group = group, .bytes = BYTES};
    t.buffers = key % 2 == 0;
    t.place = way == SHORE_WAY_HOST ? SHORE_PLACE_DEVICE : SHORE_PLACE_PLAIN;
    t.ways = t.buffers ? 0 : SHORE_WAY_KEEP | SHORE_WAY_AGAIN | SHORE_WAY_MOVE;
    uint32_t id = shore_program_tensor(m->program, &t);
    m->fate[id] = (struct shore__fate){.way = way, .count = count, .bytes = BYTES};
    return id;
}

/* Seconds of an operation of forward, and twice as many of backward. */
static struct made layers(double seconds) {
    struct made m = {.program = shore_program_new()};
    assert_non_null(m.program);
    for (uint32_t o = 0; o < 2 * LAYERS; o++) {
        struct shore_computing c = {.size = sizeof c, .seconds = o < LAYERS ? seconds : 2 * seconds};
        shore_program_operation(m.program, o < LAYERS ? "forward" : "backward");
        if (seconds > 0) shore_program_computes(m.program, o, &c);
    }
    m.pages = add(&m, "pages", 0, SHORE_WAY_KEEP, 1, 2);
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t id = add(&m, "layer", 1, SHORE_WAY_MOVE, 1, 1);
        if (!l) m.layer = id;
        shore_program_reads(m.program, l, id);
        shore_program_reads(m.program, 2 * LAYERS - 1 - l, id);
    }
    return m;
}

/* What forward leaves for backward. */
static void leaves(struct made *m, enum shore_way way) {
    m->left_buffers = add(m, "passing", 2, SHORE_WAY_KEEP, 2, 2);
    for (uint32_t l = 0; l < LAYERS; l++) {
        uint32_t id = add(m, "left", 3, way, 2, 1);
        if (!l) m->left = id;
        shore_program_makes(m->program, l, id);
        shore_program_reads(m->program, 2 * LAYERS - 1 - l, id);
        shore_program_frees(m->program, 2 * LAYERS - 1 - l, id);
    }
}

/* Gradients, and the work behind them: on so many drives. */
static void updates(struct made *m, uint64_t buffers, uint32_t ndrives) {
    m->piece_buffers = add(m, "buffers", 4, SHORE_WAY_KEEP, 3, buffers);
    for (uint32_t l = LAYERS; l--;) {
        uint32_t op = 2 * LAYERS - 1 - l, id = add(m, "piece", 5, SHORE_WAY_MOVE, 3, 1);
        if (l + 1 == LAYERS) m->piece = id;
        shore_program_makes(m->program, op, id);
        for (uint32_t d = 0; d < ndrives; d++)
            shore_program_costs(m->program, op, SHORE_LANE_DRIVE_UPDATE, d, 100 / ndrives);
        shore_program_changes(m->program, op, m->layer + l);
    }
}

static struct shore_plan_times times_on(const struct made *m, const struct shore_machine *machine, bool one_memory) {
    struct shore__simulation *s;
    struct shore_plan_times out, again;
    assert_int_equal(shore__simulation_open(m->program, machine, one_memory, &s, NULL), 0);
    shore__simulate(s, m->fate, &out);
    shore__simulate(s, m->fate, &again);
    assert_memory_equal(&out, &again, sizeof out);
    for (int l = 0; l < SHORE_LANES; l++)
        assert_true(out.lane_seconds[l] <= out.step_seconds);
    double began, ended, last = 0;
    for (uint32_t o = 0; o < 2 * LAYERS; o++) {
        shore__simulated(s, o, &began, &ended);
        assert_true(began >= last && ended >= began);
        last = ended;
    }
    shore__simulation_close(s);
    return out;
}

static struct shore_plan_times times(const struct made *m, const struct shore_machine *machine) {
    return times_on(m, machine, true);
}

static void is(double got, double wanted) {
    if (fabs(got - wanted) > 1e-9 * (1 + wanted)) fail_msg("%.9f seconds, not %.9f", got, wanted);
}

static void computing_bounds_a_step(void **state) {
    struct made m = layers(1);
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.read = 200}};
    struct shore_plan_times t = times(&m, &machine);
    is(t.step_seconds, 3 * LAYERS);
    is(t.lane_seconds[SHORE_LANE_COMPUTE], 3 * LAYERS);
    /* the last two that came are still there at both ends */
    assert_int_equal(t.drive_read_bytes, (2 * LAYERS - 4) * BYTES);
    is(t.lane_seconds[SHORE_LANE_DRIVE_READ], (LAYERS - 2));
    assert_int_equal(t.bound, SHORE_LANE_COMPUTE);
    shore_program_free(m.program);
}

static void reading_bounds_a_step(void **state) {
    struct made m = layers(0.1);
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.read = 50}};
    struct shore_plan_times t = times(&m, &machine);
    /* With two buffers the drive reads all the time, apart from where backward begins and ends: there it waits until
     * the second-last of the layers has been computed with. */
    is(t.lane_seconds[SHORE_LANE_DRIVE_READ], (2 * LAYERS - 4) * 2);
    assert_true(t.step_seconds < t.lane_seconds[SHORE_LANE_DRIVE_READ] + 2);
    assert_int_equal(t.bound, SHORE_LANE_DRIVE_READ);
    m.fate[m.pages].count = 1; /* each read and each computing in turn */
    t = times(&m, &machine);
    is(t.step_seconds, (2 * LAYERS - 2) * 2 + LAYERS * 0.3);
    m.fate[m.pages].count = LAYERS;
    t = times(&m, &machine);
    is(t.step_seconds, LAYERS * 0.3);
    assert_int_equal(t.drive_read_bytes, 0);
    shore_program_free(m.program);
}

static void reads_and_writes_share_the_mixed_rate(void **state) {
    struct made m = layers(0.5);
    leaves(&m, SHORE_WAY_MOVE);
    m.fate[m.pages].count = LAYERS;
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.read = 100, .write = 100}};
    struct shore_plan_times t = times(&m, &machine);
    assert_int_equal(t.drive_write_bytes, LAYERS * BYTES);
    assert_int_equal(t.drive_read_bytes, (LAYERS - 2) * BYTES); /* the last two are still there */
    assert_int_equal(t.moved_bytes, LAYERS * BYTES);
    /* forward waits for a buffer, backward computes as long as it reads, and waits half a second for the last write */
    is(t.step_seconds, 2 * 0.5 + (LAYERS - 2) * 1 + LAYERS * 1 + 0.5);
    double apart = t.step_seconds;
    machine.drive[0].mixed = 50;
    t = times(&m, &machine);
    is(t.lane_seconds[SHORE_LANE_DRIVE_MIXED], (2 * LAYERS - 2) * 2);
    assert_true(t.step_seconds > apart);
    shore_program_costs(m.program, 0, SHORE_LANE_DRIVE_MIXED, 0, 100); /* which is not told apart */
    is(times(&m, &machine).lane_seconds[SHORE_LANE_DRIVE_MIXED], (2 * LAYERS - 2) * 2 + 2);
    shore_program_free(m.program);
}

static void drives_divide_the_work(void **state) {
    struct made m = layers(0.1);
    struct shore_machine machine = {.ndrives = 2, .drive = {{.read = 50}, {.read = 50}}};
    struct shore_plan_times t = times(&m, &machine);
    is(t.lane_seconds[SHORE_LANE_DRIVE_READ], 2 * LAYERS - 4);
    machine.drive[1].shares = 1; /* one device: no faster than one */
    t = times(&m, &machine);
    is(t.lane_seconds[SHORE_LANE_DRIVE_READ], (2 * LAYERS - 4) * 2);
    /* a link that both share, and a drive that takes three quarters of the work */
    machine.drive[1].shares = 0;
    machine.link[0] = 40;
    machine.link_shared = true;
    t = times(&m, &machine);
    assert_int_equal(t.bound, SHORE_LANE_LINK_IN);
    is(t.lane_seconds[SHORE_LANE_LINK_IN], (2 * LAYERS - 4) * 2.5);
    machine.link[0] = 0;
    shore_program_costs(m.program, 0, SHORE_LANE_DRIVE_READ, 0, 25);
    shore_program_costs(m.program, 0, SHORE_LANE_DRIVE_READ, 1, 75);
    t = times(&m, &machine);
    is(t.lane_seconds[SHORE_LANE_DRIVE_READ], (2 * LAYERS - 4) * 1.5 + 1.5);
    shore_program_free(m.program);
}

static void a_gradient_waits_for_its_buffer(void **state) {
    struct made m = layers(1);
    updates(&m, 1, 1);
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    /* an update takes as long as backward: with one buffer they take turns, with two they overlap */
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.update = 50}};
    struct shore_plan_times t = times(&m, &machine);
    is(t.step_seconds, LAYERS + LAYERS * 2 + LAYERS * 2);
    m.fate[m.piece_buffers].count = 2;
    t = times(&m, &machine);
    /* the first layer waits for its update, the last one */
    is(t.step_seconds, LAYERS + LAYERS * 2 + 2);
    /* two drives update it in half the time */
    shore_program_free(m.program);
    m = layers(1);
    updates(&m, 1, 2);
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    t = times(&m, &machine);
    is(t.step_seconds, LAYERS + LAYERS * 2 + LAYERS * 1);
    shore_program_free(m.program);
}

/* Four seconds of update for each gradient, and two of backward between them: all eight are half done when backward
 * ends. The first layer's is done four seconds later, and one more every two seconds, each before its forward. */
static void updates_that_are_needed_first_go_first(void **state) {
    struct made m = layers(1);
    updates(&m, LAYERS, 1);
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.update = 25}};
    struct shore_plan_times t = times(&m, &machine);
    is(t.lane_seconds[SHORE_LANE_DRIVE_UPDATE], LAYERS * 4);
    is(t.step_seconds, 4 + (LAYERS - 1) * 2 + 1 + LAYERS * 2);
    shore_program_free(m.program);
}

static void a_commit_overlaps_forward(void **state) {
    struct made m = layers(1);
    updates(&m, 2, 1);
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.update = 50, .flush_seconds = 5}};
    is(times(&m, &machine).step_seconds, LAYERS + LAYERS * 2 + 2);
    machine.drive[0].flush_seconds = LAYERS + 3; /* 3 longer than forward */
    is(times(&m, &machine).step_seconds, LAYERS + LAYERS * 2 + 2 + 3);
    shore_program_free(m.program);
}

static void updates_share_the_cores(void **state) {
    struct made m = layers(1);
    updates(&m, LAYERS, 1);
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    /* One second of one of two cores for each gradient: half a second of both. All but the last overlap backward. */
    struct shore_machine machine = {.cores = 2, .ndrives = 1, .drive[0] = {.update = 100, .host_computes = true}};
    is(times(&m, &machine).step_seconds, LAYERS + LAYERS * 2 + (LAYERS - 1) * 0.5 + 1);
    machine.drive[0].host_computes = false;
    is(times(&m, &machine).step_seconds, LAYERS + LAYERS * 2 + 1);
    shore_program_free(m.program);
    /* One core for two drives, of which one is without work: what it takes is done all the same. */
    m = layers(1);
    updates(&m, LAYERS, 1);
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    shore_program_costs(m.program, 0, SHORE_LANE_DRIVE_READ, 1, 1);
    machine = (struct shore_machine){
        .cores = 1, .ndrives = 2, .drive = {{.update = 100, .host_computes = true}, {.host_computes = true}}};
    double step = times(&m, &machine).step_seconds;
    assert_true(step > LAYERS * 3 && step <= LAYERS * 3 + LAYERS * 2);
    shore_program_free(m.program);
}

static void what_is_left_is_kept_or_moved(void **state) {
    struct made m = layers(1);
    leaves(&m, SHORE_WAY_KEEP);
    m.fate[m.pages].count = LAYERS;
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.read = 100, .write = 100}};
    struct shore_plan_times t = times(&m, &machine);
    is(t.step_seconds, LAYERS * 3);
    assert_int_equal(t.kept_bytes, LAYERS * BYTES);
    m.fate[m.left].way = SHORE_WAY_MOVE;
    t = times(&m, &machine);
    is(t.step_seconds, LAYERS * 3); /* hidden */
    assert_int_equal(t.kept_bytes, (LAYERS - 1) * BYTES);
    assert_int_equal(t.moved_bytes, BYTES);
    shore_program_free(m.program);
}

/* A device with memory of its own: pages of the host are copied to two buffers there. */
static void copies_to_a_device_overlap(void **state) {
    struct made m = layers(0.1);
    uint32_t there[2];
    for (int i = 0; i < 2; i++) {
        struct shore_tensor t = {.size = sizeof t, .name = "there", .key = 8, .index = (uint32_t)i, .group = 1};
        t.buffers = t.there = true;
        there[i] = shore_program_tensor(m.program, &t);
        m.fate[there[i]] = (struct shore__fate){.way = SHORE_WAY_KEEP, .count = 1};
    }
    /* reading and copying take a second each, and go on beside each other */
    struct shore_machine machine = {.bus_in = 100, .ndrives = 1, .drive[0] = {.read = 100}};
    struct shore_plan_times t = times_on(&m, &machine, false);
    is(t.lane_seconds[SHORE_LANE_BUS_IN], 2 * LAYERS - 4);
    is(t.lane_seconds[SHORE_LANE_DRIVE_READ], 2 * LAYERS - 4);
    /* at both ends, the device's buffers are in use for so long */
    is(t.step_seconds, 2 * LAYERS - 4 + 0.3 + 0.3);
    /* what stays on the host is copied for each use, and there is no drive to wait for */
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    t = times_on(&m, &machine, false);
    is(t.lane_seconds[SHORE_LANE_BUS_IN], 2 * LAYERS - 4);
    is(t.lane_seconds[SHORE_LANE_DRIVE_READ], 0);
    shore_program_free(m.program);
}

/* The same with slots of a group of their own, as the package has them: they are copies, and come from no drive. */
static void slots_are_copies_of_pages(void **state) {
    struct made m = layers(0.1);
    uint32_t slots = add(&m, "slots", 8, SHORE_WAY_KEEP, 9, 2);
    for (uint32_t l = 0; l < LAYERS; l++) {
        struct shore_tensor t = {.size = sizeof t, .name = "slot", .key = 9, .group = 9, .bytes = BYTES};
        t.ways = SHORE_WAY_MOVE;
        t.place = SHORE_PLACE_DEVICE;
        uint32_t id = shore_program_tensor(m.program, &t);
        m.fate[id] = (struct shore__fate){.way = SHORE_WAY_MOVE, .count = 1, .bytes = BYTES};
        shore_program_reads(m.program, l, id);
        shore_program_reads(m.program, 2 * LAYERS - 1 - l, id);
    }
    struct shore_machine machine = {.bus_in = 100, .ndrives = 1, .drive[0] = {.read = 100}};
    struct shore_plan_times t = times_on(&m, &machine, false);
    is(t.lane_seconds[SHORE_LANE_BUS_IN], 2 * LAYERS - 4);
    assert_true(t.lane_seconds[SHORE_LANE_DRIVE_READ] <= 2 * LAYERS - 4);
    /* at both ends, the device's buffers are in use for so long */
    is(t.step_seconds, 2 * LAYERS - 4 + 0.3 + 0.3);
    m.fate[slots].count = LAYERS;
    t = times_on(&m, &machine, false);
    is(t.step_seconds, LAYERS * 0.3);
    shore_program_free(m.program);
}

static void what_leaves_for_the_host_takes_the_bus(void **state) {
    struct made m = layers(1);
    leaves(&m, SHORE_WAY_HOST);
    m.fate[m.pages].count = LAYERS;
    struct shore_machine machine = {.bus_in = 50, .bus_out = 50, .ndrives = 1, .drive[0] = {.read = 1, .write = 1}};
    struct shore_plan_times t = times_on(&m, &machine, false);
    is(t.lane_seconds[SHORE_LANE_BUS_OUT], 2 * LAYERS);
    is(t.lane_seconds[SHORE_LANE_BUS_IN], 2 * (LAYERS - 2));
    assert_int_equal(t.drive_write_bytes, 0);
    assert_int_equal(t.bound, SHORE_LANE_COMPUTE);
    machine.bus_both = 40;
    t = times_on(&m, &machine, false);
    is(t.lane_seconds[SHORE_LANE_BUS_IN], 2.5 * (2 * LAYERS - 2));
    shore_program_free(m.program);
}

static void an_update_sends_what_stays(void **state) {
    struct made m = layers(1);
    updates(&m, 2, 1);
    struct shore_machine machine = {.link = {100, 100}, .ndrives = 1};
    struct shore_plan_times t = times(&m, &machine);
    is(t.lane_seconds[SHORE_LANE_LINK_OUT],
       2 * LAYERS - 2); /* comes twice, but for what is still there and was not updated since */
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    t = times(&m, &machine);
    is(t.lane_seconds[SHORE_LANE_LINK_OUT], LAYERS);
    assert_int_equal(t.link_bytes, LAYERS * BYTES);
    is(t.step_seconds, LAYERS * 3 + 1); /* the first layer's comes last */
    machine.bus_in = 50;                /* to pages of the host, and not to a device */
    is(times_on(&m, &machine, false).lane_seconds[SHORE_LANE_BUS_IN], 0);
    shore_program_free(m.program);
}

static void memory_saves_work(void **state) {
    struct made m = layers(1);
    updates(&m, LAYERS, 1);
    for (uint32_t l = 0; l < LAYERS; l++)
        m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    struct shore_tensor t = {.size = sizeof t, .name = "saving", .key = 11, .full_bytes = 100};
    t.saves_lane = SHORE_LANE_DRIVE_UPDATE;
    t.saves = LAYERS;
    uint32_t saving = shore_program_tensor(m.program, &t);
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.update = 50}};
    m.fate[saving] = (struct shore__fate){.way = SHORE_WAY_KEEP, .count = 1, .bytes = 0};
    is(times(&m, &machine).lane_seconds[SHORE_LANE_DRIVE_UPDATE], LAYERS * 2);
    m.fate[saving].bytes = 50; /* a half */
    is(times(&m, &machine).lane_seconds[SHORE_LANE_DRIVE_UPDATE], LAYERS);
    is(times(&m, &machine).step_seconds, LAYERS * 3 + 1);
    shore_program_free(m.program);
}

/* Nothing is read for an operation that has no work. */
static void what_is_rare_takes_no_time(void **state) {
    struct made m = layers(1);
    uint32_t rare = shore_program_operation(m.program, "between");
    m.fate[m.pages].count = 1;
    struct shore_machine machine = {.ndrives = 1, .drive[0] = {.read = 100}};
    double without = times(&m, &machine).step_seconds;
    for (uint32_t l = 0; l < LAYERS; l++)
        shore_program_reads(m.program, rare, m.layer + l);
    is(times(&m, &machine).step_seconds, without);
    shore_program_free(m.program);
}

/* ---- at random ---- */

enum { CASES = 500 };
static uint64_t seed, stream, draws;

static uint32_t pick(uint32_t first, uint32_t last) {
    return first + (uint32_t)(shore__random_u64(seed, stream, draws++) % (last - first + 1));
}
static double any_limit(void) {
    return pick(0, 3) ? pick(20, 2000) : 0;
}

static struct made random_program(void) {
    struct made m = layers(pick(1, 40) * 0.1);
    m.fate[m.pages].count = pick(1, 4);
    for (uint32_t l = 0; l < LAYERS; l++)
        if (!pick(0, 2)) m.fate[m.layer + l].way = SHORE_WAY_KEEP;
    if (pick(0, 1)) {
        leaves(&m, SHORE_WAY_MOVE);
        m.fate[m.left_buffers].count = pick(1, 4);
        for (uint32_t l = 0; l < LAYERS; l++)
            m.fate[m.left + l].way = (enum shore_way)(1u << pick(0, 2));
    }
    if (pick(0, 1)) updates(&m, pick(1, LAYERS), pick(1, 3));
    return m;
}

static struct shore_machine random_machine(void) {
    struct shore_machine m = {.cores = pick(0, 8), .ndrives = pick(1, 3), .link_shared = pick(0, 1)};
    m.link[0] = any_limit();
    m.link[1] = any_limit();
    for (uint32_t d = 0; d < m.ndrives; d++)
        m.drive[d] = (struct shore__machine_drive){.read = any_limit(),
                                                   .write = any_limit(),
                                                   .mixed = any_limit(),
                                                   .update = any_limit(),
                                                   .flush_seconds = pick(0, 20),
                                                   .host_computes = pick(0, 1)};
    return m;
}

/* One of the rates, if there is a limit. */
static double *any_rate(struct shore_machine *m) {
    struct shore__machine_drive *d = &m->drive[pick(0, m->ndrives - 1)];
    double *const rates[] = {&m->link[0], &m->link[1], &d->read, &d->write, &d->mixed, &d->update};
    return rates[pick(0, 5)];
}

static void more_rate_is_not_slower(void **state) {
    uint32_t faster = 0, slower = 0;
    for (stream = 0; stream < CASES; stream++) {
        draws = 0;
        struct made m = random_program();
        struct shore_machine machine = random_machine();
        double before = times(&m, &machine).step_seconds, *rate = any_rate(&machine);
        *rate = pick(0, 1) ? *rate * pick(2, 9) : 0;
        double after = times(&m, &machine).step_seconds;
        if (after > before * 1.5)
            fail_msg("SEED=%" PRIu64 ": case %" PRIu64 ": %.9f seconds, and %.9f with a higher rate", seed, stream,
                     before, after);
        slower += after > before * 1.02; /* what overtakes may delay another */
        faster += after < before * (1 - 1e-9);
        shore_program_free(m.program);
    }
    assert_true(slower <= CASES / 100);
    assert_true(faster > CASES / 50); /* where another lane does not bound the step */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(computing_bounds_a_step),
        cmocka_unit_test(reading_bounds_a_step),
        cmocka_unit_test(reads_and_writes_share_the_mixed_rate),
        cmocka_unit_test(drives_divide_the_work),
        cmocka_unit_test(a_gradient_waits_for_its_buffer),
        cmocka_unit_test(updates_that_are_needed_first_go_first),
        cmocka_unit_test(a_commit_overlaps_forward),
        cmocka_unit_test(updates_share_the_cores),
        cmocka_unit_test(what_is_left_is_kept_or_moved),
        cmocka_unit_test(copies_to_a_device_overlap),
        cmocka_unit_test(slots_are_copies_of_pages),
        cmocka_unit_test(what_leaves_for_the_host_takes_the_bus),
        cmocka_unit_test(an_update_sends_what_stays),
        cmocka_unit_test(memory_saves_work),
        cmocka_unit_test(what_is_rare_takes_no_time),
        cmocka_unit_test(more_rate_is_not_slower),
    };
    seed = test_seed();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
