/* The step times that Smart-Infinity (HPCA 2024, arXiv 2403.06664) published, by our simulation of a step: a quarter of
 * them calibrates constants that the paper does not give, and the others are predicted.
 *
 * The paper's step, as a program: forward; backward, whose gradients leave for the drives behind it; then the update,
 * group by group, for which the next forward waits. BASE updates on the host: all state crosses the link, and the
 * processor's work stands between reading and writing. The others update inside the drives: gradients cross the link,
 * and new parameters come back. Times were read from plots, to about a hundredth of their full scale. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "plan/simulate.h"

/* The paper's. */
#define READ_BACK 4         /* bytes of a new parameter that drives send */
#define KERNEL (8.2e9 / 16) /* elements a second of a drive's kernel, which reads 16 bytes of each */

/* Calibrated. */
static const struct gpu {
    const char *name;
    double forward, backward; /* seconds for a billion parameters, where nothing waits */
} gpus[] = {{"A5000", 0.163, 1.05}, {"A100", 0.11, 0.79}};
#define LINK 7.05e9      /* bytes a second to and from all drives; the paper measures about 8 */
#define BUS 10e9         /* of fp32 gradients from the GPU, for which backward waits */
#define OUTSIDE 2.38e9   /* of a drive that the host reads and writes */
#define INSIDE 1.92e9    /* of a drive whose accelerator does */
#define NO_HANDLER 0.93  /* of that, without the transfer handler */
#define UPDATES 0.53e9   /* elements a second on the host, with copies from and to buffers */
#define CHECK 0.54       /* seconds for a billion gradients between backward and update: NaN, norm */
#define CHECK_TOP_K 0.45 /* the same for those that top-k leaves */

enum mode { BASE, UPDATE, HANDLER, TOP_K };
static const char *const modes[] = {"BASE", "SmartUpdate", "+ handler", "+ top-k"};
enum { A5000, A100 };
enum { PARTS = 20 };

static const struct point {
    uint32_t gpu;
    double billions;
    enum mode mode;
    uint32_t drives;
    double share; /* of gradients' bytes that top-k sends */
    double seconds;
    bool calibrates;
} points[] = {
    {A5000, 4.0, BASE, 1, 1, 53.7, true},        {A5000, 4.0, BASE, 2, 1, 34.6, true},
    {A5000, 4.0, BASE, 4, 1, 24.1, true},        {A5000, 4.0, BASE, 6, 1, 23.8, false},
    {A5000, 4.0, BASE, 8, 1, 23.8, false},       {A5000, 4.0, BASE, 10, 1, 23.7, false},
    {A5000, 4.0, UPDATE, 6, 1, 19.1, true},      {A5000, 4.0, UPDATE, 10, 1, 15.6, false},
    {A5000, 4.0, HANDLER, 1, 1, 67.1, false},    {A5000, 4.0, HANDLER, 2, 1, 36.3, true},
    {A5000, 4.0, HANDLER, 4, 1, 21.1, false},    {A5000, 4.0, HANDLER, 6, 1, 18.4, false},
    {A5000, 4.0, HANDLER, 8, 1, 16.5, true},     {A5000, 4.0, HANDLER, 10, 1, 14.8, false},
    {A5000, 4.0, TOP_K, 1, .02, 60.3, true},     {A5000, 4.0, TOP_K, 2, .02, 33.1, false},
    {A5000, 4.0, TOP_K, 4, .02, 19.2, false},    {A5000, 4.0, TOP_K, 6, .02, 15.6, false},
    {A5000, 4.0, TOP_K, 8, .02, 14.3, false},    {A5000, 4.0, TOP_K, 10, .02, 12.2, true},
    {A5000, 4.0, TOP_K, 10, .10, 14.1, false},   {A5000, 4.0, TOP_K, 10, .05, 13.2, false},
    {A5000, 4.0, TOP_K, 10, .01, 12.5, false},   {A5000, 8.4, BASE, 10, 1, 48.8, false},
    {A5000, 8.4, UPDATE, 10, 1, 32.4, false},    {A5000, 8.4, HANDLER, 10, 1, 31.6, false},
    {A5000, 8.4, TOP_K, 10, .02, 26.3, false},   {A5000, 33.0, BASE, 10, 1, 188.8, false},
    {A5000, 33.0, HANDLER, 10, 1, 119.6, false}, {A5000, 33.0, TOP_K, 10, .02, 100.6, false},
    {A100, 4.0, BASE, 1, 1, 55.8, false},        {A100, 4.0, BASE, 2, 1, 36.5, false},
    {A100, 4.0, BASE, 4, 1, 24.6, true},         {A100, 4.0, BASE, 6, 1, 22.9, false},
    {A100, 4.0, BASE, 8, 1, 23.1, false},        {A100, 4.0, BASE, 10, 1, 22.5, false},
    {A100, 4.0, HANDLER, 1, 1, 69.8, false},     {A100, 4.0, HANDLER, 2, 1, 38.5, false},
    {A100, 4.0, HANDLER, 4, 1, 21.6, false},     {A100, 4.0, HANDLER, 6, 1, 17.5, false},
    {A100, 4.0, HANDLER, 8, 1, 14.6, false},     {A100, 4.0, HANDLER, 10, 1, 12.5, true},
    {A100, 4.0, TOP_K, 1, .02, 74.4, false},     {A100, 4.0, TOP_K, 2, .02, 40.4, false},
    {A100, 4.0, TOP_K, 4, .02, 21.1, false},     {A100, 4.0, TOP_K, 6, .02, 16.7, true},
    {A100, 4.0, TOP_K, 8, .02, 12.7, false},     {A100, 4.0, TOP_K, 10, .02, 10.6, true},
};

static struct shore_machine machine_of(const struct point *p) {
    struct shore_machine m = {.ndrives = p->drives, .link_shared = true, .link = {LINK, LINK}};
    double mixed = p->mode == BASE ? OUTSIDE : p->mode == UPDATE ? INSIDE * NO_HANDLER : INSIDE;
    for (uint32_t d = 0; d < p->drives; d++)
        m.drive[d] = (struct shore__machine_drive){.mixed = mixed, .update = KERNEL};
    return m;
}

/* A step as it is described: its program, and what becomes of its tensors. */
struct step {
    const struct point *of;
    struct shore_program *program;
    struct shore__fate fate[2 * PARTS + 1];
    double part; /* elements */
};

static uint32_t operation(struct step *s, double seconds) {
    struct shore_computing c = {.size = sizeof c, .seconds = seconds};
    uint32_t op = shore_program_operation(s->program, "operation");
    shore_program_computes(s->program, op, &c);
    return op;
}

static void link_moves(struct step *s, uint32_t op, enum shore_lane lane, double bytes) {
    shore_program_costs(s->program, op, lane, 0, (uint64_t)bytes);
}

/* All drives, each its part. */
static void drives_move(struct step *s, uint32_t op, enum shore_lane lane, double work) {
    for (uint32_t d = 0; d < s->of->drives; d++)
        shore_program_costs(s->program, op, lane, d, (uint64_t)(work / s->of->drives));
}

static uint32_t tensor(struct step *s, struct shore_tensor t, enum shore_way way, uint64_t count) {
    t.size = sizeof t;
    t.name = "part";
    uint32_t id = shore_program_tensor(s->program, &t);
    s->fate[id] = (struct shore__fate){.way = way, .count = count, .bytes = t.bytes};
    return id;
}

/* BASE: state comes to the host, is updated, and goes back. */
static void update_on_host(struct step *s, uint32_t op) {
    const struct shore_tensor state = {.ways = SHORE_WAY_MOVE, .group = 2, .bytes = (uint64_t)(16 * s->part)};
    shore_program_reads(s->program, op, tensor(s, state, SHORE_WAY_MOVE, 1));
    link_moves(s, op, SHORE_LANE_LINK_IN, 12 * s->part);
    drives_move(s, op, SHORE_LANE_DRIVE_WRITE, 12 * s->part);
}

static void update_in_drives(struct step *s, uint32_t op) {
    drives_move(s, op, SHORE_LANE_DRIVE_READ, 16 * s->part); /* top-k's gradients are made dense in there */
    drives_move(s, op, SHORE_LANE_DRIVE_UPDATE, s->part);
    drives_move(s, op, SHORE_LANE_DRIVE_WRITE, 12 * s->part);
}

static void describe(struct step *s) {
    const struct point *of = s->of;
    const struct gpu *gpu = &gpus[of->gpu];
    bool host = of->mode == BASE;
    double sent = 4 * s->part * of->share, check = of->mode == TOP_K ? CHECK_TOP_K : CHECK;
    uint32_t forward = operation(s, gpu->forward * of->billions);
    for (int i = 0; i < PARTS; i++) {
        uint32_t op = operation(s, gpu->backward * of->billions / PARTS + sent / BUS);
        link_moves(s, op, SHORE_LANE_LINK_IN, sent);
        drives_move(s, op, SHORE_LANE_DRIVE_WRITE, sent);
    }
    operation(s, check * of->billions);
    for (int i = 0; i < PARTS; i++) {
        /* new parameters: they stay in the host's memory, and the next forward waits for all of them */
        struct shore_tensor t = {.ways = SHORE_WAY_KEEP | SHORE_WAY_MOVE, .group = 1};
        t.bytes = host ? 1 : (uint64_t)(READ_BACK * s->part);
        uint32_t op = operation(s, host ? s->part / UPDATES : 1e-6), parameters = tensor(s, t, SHORE_WAY_KEEP, 1);
        shore_program_reads(s->program, forward, parameters);
        shore_program_changes(s->program, op, parameters);
        (host ? update_on_host : update_in_drives)(s, op);
    }
    if (host) tensor(s, (struct shore_tensor){.buffers = true, .group = 2, .bytes = 1}, SHORE_WAY_KEEP, 2);
}

static double simulated(const struct point *of) {
    struct step s = {.of = of, .program = shore_program_new(), .part = of->billions * 1e9 / PARTS};
    struct shore_machine m = machine_of(of);
    struct shore__simulation *simulation;
    struct shore_plan_times times = {.size = sizeof times};
    assert_non_null(s.program);
    describe(&s);
    assert_int_equal(shore__simulation_open(s.program, &m, false, &simulation, NULL), 0);
    shore__simulate(simulation, s.fate, &times);
    shore__simulation_close(simulation);
    shore_program_free(s.program);
    return times.step_seconds;
}

static void published_step_times(void **state) {
    uint32_t calibrate = 0, predicted = 0, within = 0;
    double worst = 0;
    print_message("GPU    model  drives              top-k  published  simulated\n");
    for (size_t i = 0; i < sizeof points / sizeof *points; i++) {
        const struct point *p = &points[i];
        double seconds = simulated(p), off = seconds / p->seconds - 1;
        print_message("%-6s %4.1fB  %2u %-12s  %7.0f %%  %7.1f s  %7.1f s  %+5.1f %%%s\n", gpus[p->gpu].name,
                      p->billions, p->drives, modes[p->mode], p->share * 100, p->seconds, seconds, off * 100,
                      p->calibrates ? ", calibrates" : "");
        calibrate += p->calibrates;
        if (p->calibrates) continue;
        predicted++;
        within += fabs(off) <= 0.1;
        worst = fmax(worst, fabs(off));
    }
    print_message("%u calibrate; of %u predicted ones, %u are within 10 %%, the worst is off by %.1f %%\n", calibrate,
                  predicted, within, worst * 100);
    assert_true(4 * calibrate <= calibrate + predicted);
    assert_true(within >= 31 && worst < 0.15);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(published_step_times)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
