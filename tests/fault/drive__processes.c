/* What eight processes make of a fleet is what one makes, to the byte of its records. And by up to eight, of which one
 * is killed at any instant, also while they make it, and the others a while later: the committed step is one that all
 * had, to the bit, for one process as for any number, and never older than what all knew to be confirmed. */
#include "conformance/drive_harness.h"

#include <errno.h>
#include <sys/mman.h>

#include "seed.h"

#define DRIVES 8u
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define KILLS 5u /* each start is dear there */
#else
#define KILLS 20u
#endif
#define PART_BYTES (64u * 1024u)

/* What processes tell each other; a program sends it over a network. */
struct between {
    uint64_t steps; /* at which they end; 0: they go on until they are killed */
    atomic_uint told, united, failed;
    atomic_uint done;                       /* things that any of them has done */
    atomic_uint_fast64_t committed[DRIVES]; /* by process */
    size_t bytes[DRIVES];
    unsigned char part[DRIVES][PART_BYTES];
};

static char folder[] = "/dev/shm/shore-processes-XXXXXX";
static struct place place;
static struct plain plain;
static struct between *between;
static uint64_t seed, drawn;

static uint64_t draw(uint64_t below) {
    return shore__random_u64(seed, 0, drawn++) % below;
}

static struct shore_fleet_options options_for(const bool *mine) {
    return (struct shore_fleet_options){.size = sizeof(struct shore_fleet_options),
                                        .drives = place.paths,
                                        .ndrives = DRIVES,
                                        .mine = mine,
                                        .io = SHORE_IO_THREADS,
                                        .drive_speeds = "1,1,1,1,1,1,1,1",
                                        .chunk_segments = 1,
                                        .ring_bytes = 1,
                                        .fleet_id = {54, 8}};
}

static void until(atomic_uint *count, unsigned all) {
    while (atomic_load(count) < all && !atomic_load(&between->failed))
        usleep(50);
}

static int did(int rc) {
    if (!rc) atomic_fetch_add(&between->done, 1);
    return rc;
}

static int unite(struct shore_fleet *f, uint32_t process, uint32_t processes, struct shore_diag *diag) {
    const void *parts[DRIVES];
    between->bytes[process] = PART_BYTES;
    int rc = shore_fleet_part(f, between->part[process], &between->bytes[process], diag);
    if (rc) return rc;
    atomic_fetch_add(&between->told, 1);
    until(&between->told, processes);
    for (uint32_t i = 0; i < processes; i++)
        parts[i] = between->part[i];
    return shore_fleet_unite(f, parts, between->bytes, processes, diag);
}

static int step(struct shore_fleet *f, uint32_t process, uint32_t processes, struct shore_diag *diag) {
    struct shore_fleet_info info = {.size = sizeof info};
    shore_fleet_info(f, &info);
    int rc = did(fleet_step(f, &plain, info.step, diag));
    if (rc) return rc;
    atomic_store(&between->committed[process], info.step + 1);
    for (uint32_t i = 0; i < processes; i++)
        while (atomic_load(&between->committed[i]) < info.step + 1)
            usleep(50);
    return did(shore_fleet_confirm(f, info.step + 1));
}

/* Never returns. It makes steps until it is killed, or until between->steps. */
static void work(uint32_t process, uint32_t processes, bool make) {
    struct shore_fleet *f;
    struct shore_diag diag = {0};
    bool mine[DRIVES];
    for (uint32_t d = 0; d < DRIVES; d++)
        mine[d] = d >= process * DRIVES / processes && d < (process + 1) * DRIVES / processes;
    struct shore_fleet_options options = options_for(mine);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    int rc = did(make ? shore_fleet_create(plain.layout, &options, &f, &diag)
                      : shore_fleet_open(plain.layout, &options, &f, &diag));
    if (!rc) rc = did(unite(f, process, processes, &diag));
    if (!rc && make) rc = did(fleet_init(f, &plain, &diag));
    if (!rc) atomic_fetch_add(&between->united, 1);
    if (!rc) until(&between->united, processes);
    while (!rc && (!between->steps || atomic_load(&between->committed[process]) < between->steps))
        rc = step(f, process, processes, &diag);
    if (!rc) {
        shore_fleet_close(f);
        _exit(0);
    }
    fprintf(stderr, "process %u of %u: %d: %s\n", process, processes, rc, diag.text);
    atomic_store(&between->failed, 1);
    _exit(1);
}

static void start(uint32_t processes, bool make, uint64_t steps, pid_t *pid) {
    memset(between, 0, sizeof *between);
    between->steps = steps;
    for (uint32_t i = 0; i < processes; i++) {
        pid[i] = fork();
        assert_true(pid[i] >= 0);
        if (pid[i] == 0) work(i, processes, make);
    }
}

static void wait_for(uint32_t processes, const pid_t *pid) {
    int status;
    for (uint32_t i = 0; i < processes; i++)
        assert_int_equal(waitpid(pid[i], &status, 0), pid[i]);
    assert_int_equal(atomic_load(&between->failed), 0);
}

/* Starts processes, and kills one at some instant, then all. With `stepped` each has made a step by then. */
static void work_until_killed(uint32_t processes, bool make, bool stepped) {
    pid_t pid[DRIVES] = {0};
    start(processes, make, 0, pid);
    /* by what they have done, and by time from there: the machine may be slow. Each makes or opens, unites, begins and
     * steps, and goes on when all have stepped: four things at most before its second step */
    until(&between->done, (stepped ? 4 * processes : 0) + (unsigned)draw((make ? 4 : 12) * processes));
    usleep((useconds_t)draw(2000));
    const pid_t first = pid[draw(processes)];
    assert_true(first > 0);
    kill(first, SIGKILL);
    usleep((useconds_t)draw(5000));
    for (uint32_t i = 0; i < processes; i++)
        kill(pid[i], SIGKILL);
    wait_for(processes, pid);
}

/* What one process finds. Returns whether there is a whole state. */
static bool look(uint32_t processes, bool make) {
    struct shore_fleet *f;
    struct shore_diag diag = {0};
    struct shore_fleet_options options = options_for(NULL);
    struct shore_fleet_info info = {.size = sizeof info};
    uint64_t least = UINT64_MAX, most = 0;
    char metrics[64] = "", said[64];
    uint32_t bytes = sizeof metrics;
    for (uint32_t i = 0; i < processes; i++) {
        uint64_t step = atomic_load(&between->committed[i]);
        if (step < least) least = step;
        if (step > most) most = step;
    }
    int rc = shore_fleet_open(plain.layout, &options, &f, &diag);
    if (rc == SHORE_EMISSING && make && !most) return false;
    if (rc) fail_msg("%d: %s", rc, diag.text);
    shore_fleet_info(f, &info);
    assert_true(info.step >= least && info.step >= plain.step && (!most || info.step <= most + 1));
    while (plain.step < info.step)
        plain_step(&plain, 1);
    assert_digest(f, &plain, true);
    assert_int_equal(shore_fleet_metrics(f, metrics, &bytes), 0);
    snprintf(said, sizeof said, "step %llu", (unsigned long long)info.step);
    if (info.step) assert_string_equal(metrics, said);
    if (draw(3) == 0) { /* it goes on alone */
        if (fleet_step(f, &plain, plain.step, &diag)) fail_msg("%s", diag.text);
        plain_step(&plain, 1);
        assert_digest(f, &plain, true);
    }
    shore_fleet_close(f);
    return true;
}

static int set_up(void **state) {
    between = mmap(NULL, sizeof *between, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (between == MAP_FAILED || !mkdtemp(folder) || chdir(folder)) return -1;
    place_open(&place, "ffffffff");
    plain_open(&plain, SHORE_ADAMW, false);
    return 0;
}

static int tear_down(void **state) {
    int rc = 0;
    plain_close(&plain);
    place_close(&place);
    rc = munmap(between, sizeof *between) || chdir("/") || rmdir(folder);
    memset(folder + strlen(folder) - 6, 'X', 6);
    return rc;
}

static void assert_ok(int rc, const struct shore_diag *diag) {
    if (rc) fail_msg("%d: %s", rc, diag->text);
}

static void eight_processes_make_what_one_makes(void **state) {
    struct place one;
    struct shore_fleet *f;
    struct shore_diag diag = {0};
    struct shore_fleet_options options = options_for(NULL);
    pid_t pid[DRIVES] = {0};
    start(DRIVES, true, 3, pid); /* before this process has threads */
    wait_for(DRIVES, pid);
    place_open(&one, "ffffffff");
    options.drives = one.paths;
    assert_ok(shore_fleet_create(plain.layout, &options, &f, &diag), &diag);
    assert_ok(fleet_init(f, &plain, &diag), &diag);
    for (; plain.step < 3; plain_step(&plain, 1))
        assert_ok(fleet_step(f, &plain, plain.step, &diag), &diag);
    assert_digest(f, &plain, true);
    shore_fleet_close(f);
    assert_same_records(&place, &one);
    options.drives = place.paths;
    assert_ok(shore_fleet_open(plain.layout, &options, &f, &diag), &diag);
    assert_digest(f, &plain, true);
    shore_fleet_close(f);
    place_close(&one);
}

static void any_process_is_killed_at_any_instant(void **state) {
    static const uint32_t counts[] = {8, 8, 4, 2, 3, 1};
    unsigned cut_off = 0;
    seed = test_seed();
    for (unsigned kills = 0, make = true; kills < 2 * KILLS; kills++) {
        const bool making = kills < KILLS;
        const uint32_t processes = making ? 1 + (uint32_t)draw(DRIVES) : make ? DRIVES : counts[draw(6)];
        if (making && !make) { /* another one */
            place_unlink(&place);
            plain_close(&plain);
            plain_open(&plain, SHORE_ADAMW, false);
            make = true;
        }
        work_until_killed(processes, make, kills + 1 == 2 * KILLS);
        make = !look(processes, make);
        cut_off += make;
    }
    print_message("%u kills, %u of a making, step %llu\n", 2 * KILLS, cut_off, (unsigned long long)plain.step);
    assert_true(plain.step > 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(eight_processes_make_what_one_makes, set_up, tear_down),
        cmocka_unit_test_setup_teardown(any_process_is_killed_at_any_instant, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
