/* Several processes share a run, and one of them is killed at a random instant: while they make it, open it, commit, or
 * make a snapshot. The same calls by any number of processes must then go on, at a step that all had, with the bits of
 * a run that one process has. */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/prng.h"
#include "fault/processes.h"
#include "run/paths.h"
#include "unit/run/parts.h"

#if defined(__SANITIZE_THREAD__)
enum { MAKINGS = 4, OVERWRITINGS = 3, TRAININGS = 6 };
#else
enum { MAKINGS = 12, OVERWRITINGS = 10, TRAININGS = 20 };
#endif
enum { VOLUMES = 4, RANKS_MOST = 4, STEPS_MOST = 400, A_ROUND = 6, MESSAGE_BYTES = PART_BYTES };

static uint64_t seed;
static struct {
    unsigned char digest[STEPS_MOST + 1][16]; /* of a run that one process has */
    uint64_t step;                            /* that a process has found */
} * shared;

/* ---- processes that meet ----------------------------------------------------------------------------------------- */

struct message {
    size_t bytes;
    char of[MESSAGE_BYTES];
};

/* In a process of the group. */
static struct {
    uint32_t rank, ranks;
    uint64_t steps; /* to go to; 0: only makes or opens the run */
    int fd;
    struct message from[RANKS_MOST];
} self;

/* Gives what all have brought; -ECONNRESET: one of them is gone. */
static int meet(const void *bytes, size_t n) {
    struct message own = {.bytes = n};
    if (n) memcpy(own.of, bytes, n);
    if (send(self.fd, &own, sizeof own, MSG_NOSIGNAL) != (ssize_t)sizeof own) return -ECONNRESET;
    for (uint32_t r = 0; r < self.ranks; r++)
        if (recv(self.fd, &self.from[r], sizeof own, MSG_WAITALL) != (ssize_t)sizeof own) return -ECONNRESET;
    return 0;
}

static void pass_on(const int *fd, uint32_t ranks, struct message *from) {
    for (uint32_t to = 0; to < ranks; to++)
        for (uint32_t r = 0; r < ranks; r++)
            (void)!send(fd[to], &from[r], sizeof from[r], MSG_NOSIGNAL);
}

/* Runs a group until all have ended, and kills one of them after so many microseconds. Returns whether all ended well.
 * When one is gone, the others are told, as torchrun and the package's own watch do. */
static bool group_ran(int (*work)(struct shore_diag *diag), uint32_t ranks, uint64_t steps, uint64_t kill_after,
                      uint32_t victim) {
    static struct message from[RANKS_MOST];
    int fd[RANKS_MOST];
    pid_t pid[RANKS_MOST];
    uint32_t came = 0, bits = 0;
    bool well = true, over = false, keeps = true;
    const uint64_t begun = microseconds();
    for (uint32_t r = 0; r < ranks; r++) {
        int pair[2];
        assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        fflush(stdout);
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0) {
            struct shore_diag diag = {0};
            for (uint32_t k = 0; k < r; k++)
                close(fd[k]);
            close(pair[0]);
            self.rank = r;
            self.ranks = ranks;
            self.steps = steps;
            self.fd = pair[1];
            int rc = work(&diag);
            if (rc < 0 && rc != -ECONNRESET) fprintf(stderr, "rank %u: %d: %s\n", r, rc, diag.text);
            _exit(rc == -ECONNRESET ? 2 : rc == SHORE_EUSAGE && r ? 3 : rc < 0 ? 1 : 0);
        }
        close(pair[1]);
        fd[r] = pair[0];
    }
    while (!over) {
        struct pollfd polls[RANKS_MOST];
        uint32_t ended = 0;
        for (uint32_t r = 0; r < ranks; r++)
            polls[r] = (struct pollfd){.fd = bits & 1u << r ? -1 : fd[r], .events = POLLIN};
        poll(polls, ranks, 1);
        if (kill_after && microseconds() - begun >= kill_after) {
            kill(pid[victim], SIGKILL);
            kill_after = 0;
        }
        for (uint32_t r = 0; r < ranks; r++) {
            if (!(polls[r].revents & (POLLIN | POLLHUP))) continue;
            if (recv(fd[r], &from[r], sizeof from[r], MSG_WAITALL) != (ssize_t)sizeof from[r]) {
                ended++;
                continue;
            }
            bits |= 1u << r;
            came++;
        }
        over = ended;
        if (came < ranks || over) continue;
        pass_on(fd, ranks, from);
        came = bits = 0;
    }
    for (uint32_t r = 0; r < ranks; r++)
        close(fd[r]);
    for (uint32_t r = 0; r < ranks; r++) {
        int status = finished(pid[r]);
        if (r == 0 && WIFSIGNALED(status)) keeps = false;
        /* a killed keeper may be missed by who joins next, before the message of its end */
        assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 3 && keeps);
        /* whoever ends of its own accord has an error of its own, or none */
        assert_false(WIFEXITED(status) && WEXITSTATUS(status) == 1);
        assert_false(WIFSIGNALED(status) && WTERMSIG(status) != SIGKILL);
        well = well && status == 0;
    }
    return well;
}

/* ---- what each of them does -------------------------------------------------------------------------------------- */

static int unite(struct shore_run *run, struct shore_diag *diag) {
    static char own[PART_BYTES];
    const void *parts[RANKS_MOST];
    size_t bytes[RANKS_MOST], n = sizeof own;
    int rc = shore_fleet_part(shore_run_fleet(run), own, &n, diag);
    if (rc == 0) rc = meet(own, n);
    for (uint32_t r = 0; r < self.ranks; r++) {
        parts[r] = self.from[r].of;
        bytes[r] = self.from[r].bytes;
    }
    if (rc == 0) rc = shore_run_unite(run, parts, bytes, self.ranks, diag);
    return rc ? rc : meet(NULL, 0);
}

/* The keeper goes first, and says which it was. */
static int enter(struct shore_run **run, bool *makes, struct shore_diag *diag) {
    const char *const *volumes = volumes_in("drive0", VOLUMES);
    int rc = 0;
    *makes = false;
    if (self.rank == 0) {
        rc = open_part("run", VOLUMES, 0, self.ranks, NULL, run, diag);
        *makes = rc == SHORE_EMISSING;
        if (*makes) rc = create_part("run", volumes, VOLUMES, 0, self.ranks, false, run, diag);
    }
    if (rc == 0) rc = meet(makes, sizeof *makes);
    if (rc < 0 || self.rank == 0) return rc;
    memcpy(makes, self.from[0].of, sizeof *makes);
    return *makes ? create_part("run", volumes, VOLUMES, self.rank, self.ranks, false, run, diag)
                  : open_part("run", VOLUMES, self.rank, self.ranks, NULL, run, diag);
}

static int enter_over(struct shore_run **run, struct shore_diag *diag) {
    const char *const *volumes = volumes_in("drive0", VOLUMES);
    int rc = self.rank ? meet(NULL, 0) : 0;
    if (rc == 0) rc = create_part("run", volumes, VOLUMES, self.rank, self.ranks, true, run, diag);
    return rc == 0 && self.rank == 0 ? meet(NULL, 0) : rc;
}

static int fill_and_seal(struct shore_run *run, struct shore_diag *diag) {
    int rc = fill_run(run, diag);
    if (rc == 0 && self.rank) rc = shore_run_seal(run, 0, diag);
    if (rc == 0) rc = meet(NULL, 0);
    if (rc == 0 && self.rank == 0) rc = shore_run_seal(run, 0, diag);
    return rc ? rc : meet(NULL, 0);
}

static int snapshot(struct shore_run *run, struct shore_diag *diag) {
    unsigned char sums[RANKS_MOST][16], digest[16];
    int rc = self.rank == 0 ? shore_run_snapshot_begin(run, NULL, diag) : 0;
    if (rc == 0) rc = meet(NULL, 0);
    if (rc == 0) rc = shore_run_snapshot_copy(run, NULL, diag);
    if (rc == 0) rc = shore_fleet_leaf_sum(shore_run_fleet(run), false, sums[0], diag);
    if (rc == 0) rc = meet(sums[0], 16);
    for (uint32_t r = 0; rc == 0 && r < self.ranks; r++)
        memcpy(sums[r], self.from[r].of, 16);
    shore_fleet_digest_of(step_of(run), sums, self.ranks, digest);
    if (rc == 0 && memcmp(digest, shared->digest[step_of(run)], 16) != 0) rc = -EILSEQ;
    int ended = shore_run_snapshot_end(run, NULL, 2, rc ? NULL : digest, diag);
    return rc ? rc : ended;
}

static int step(struct shore_run *run, struct shore_diag *diag) {
    int rc = begin_step(run, self.rank, diag);
    if (rc == 0) rc = shore_run_commit_wait(run, diag);
    if (rc == 0) rc = meet(NULL, 0);
    if (rc == 0) rc = shore_run_confirm(run, step_of(run), diag);
    return rc == 0 && step_of(run) % 3 == 0 ? snapshot(run, diag) : rc;
}

static int work(struct shore_diag *diag) {
    struct shore_run *run = NULL;
    bool makes = false;
    int rc = enter(&run, &makes, diag);
    if (rc == 0) rc = unite(run, diag);
    if (rc == 0 && makes) rc = fill_and_seal(run, diag);
    while (rc == 0 && step_of(run) < self.steps)
        rc = step(run, diag);
    shore_run_close(run);
    return rc;
}

static int overwrite(struct shore_diag *diag) {
    struct shore_run *run = NULL;
    int rc = enter_over(&run, diag);
    if (rc == 0) rc = unite(run, diag);
    if (rc == 0) rc = fill_and_seal(run, diag);
    shore_run_close(run);
    return rc;
}

/* ---- what others see of it --------------------------------------------------------------------------------------- */

static int steps_alone(struct shore_diag *diag) {
    struct shore_run *run = NULL;
    const struct shore_fleet_options options = fleet_of_program(two_drives, 1);
    int rc = begin_run("alone", &options, &run, diag);
    if (rc == 0) rc = shore_run_seal(run, 0, diag);
    for (uint64_t s = 0; rc == 0 && s <= STEPS_MOST; s++) {
        rc = shore_fleet_digest(shore_run_fleet(run), false, shared->digest[s], diag);
        if (rc == 0 && s < STEPS_MOST) rc = begin_step(run, self.rank, diag);
        if (rc == 0) rc = shore_run_commit_wait(run, diag);
    }
    shore_run_close(run);
    return rc ? rc : shore_run_remove("alone", NULL, diag);
}

static uint64_t number_in(const char *path) {
    FILE *f = fopen(path, "r");
    unsigned long long n = 0;
    if (f && fscanf(f, "%llu", &n) != 1) n = 0;
    if (f) fclose(f);
    return n;
}

static uint64_t lines_of_metrics(bool *good) {
    char line[256];
    uint64_t n = 0;
    FILE *f = fopen("run/metrics.jsonl", "r");
    *good = true;
    while (f && fgets(line, sizeof line, f)) {
        char want[64];
        n++;
        snprintf(want, sizeof want, "{\"step\":%u,\"loss\":%u}\n", (unsigned)n, (unsigned)n);
        *good = *good && strcmp(line, want) == 0;
    }
    if (f) fclose(f);
    return n;
}

static int look_at(const char *name, struct shore_diag *diag) {
    const struct shore_run_opening how = {.size = sizeof how, .read_only = true, .snapshot = name};
    struct shore_run *run = NULL;
    unsigned char digest[16];
    int rc = shore_run_open("run", &how, &run, diag);
    if (rc == 0) rc = shore_fleet_digest(shore_run_fleet(run), true, digest, diag);
    uint64_t step = rc ? 0 : step_of(run);
    if (rc == 0 && memcmp(digest, shared->digest[step], 16) != 0)
        rc = (snprintf(diag->text, sizeof diag->text, "other bits at step %d", (int)step), -EILSEQ);
    if (rc == 0 && !name) shared->step = step;
    shore_run_close(run);
    return rc;
}

static void look_at_it(void *rc, const struct shore_snapshot *s) {
    struct shore_diag diag = {0};
    if (*(int *)rc == 0) *(int *)rc = look_at(s->name, &diag);
    if (*(int *)rc) fprintf(stderr, "snapshot %s: %s\n", s->name, diag.text);
}

/* Before anybody opens it for writing: one process sees one run, at a step that all have. */
static int look(struct shore_diag *diag) {
    int rc = look_at(NULL, diag), of_snapshots = 0;
    bool good = true;
    uint64_t lines = lines_of_metrics(&good), hint = number_in("run/committed");
    if (rc == 0 && (lines > shared->step || hint > shared->step || !good))
        rc = (snprintf(diag->text, sizeof diag->text, "step %d, %d lines, hint %d", (int)shared->step, (int)lines,
                       (int)hint),
              -EILSEQ);
    if (rc == 0) rc = shore_run_snapshots("run", look_at_it, &of_snapshots, diag);
    return rc ? rc : of_snapshots;
}

/* One process goes on with it, as a whole. */
static int go_on_alone(struct shore_diag *diag) {
    struct shore_run *run = NULL;
    int rc = shore_run_open("run", NULL, &run, diag);
    if (rc == 0) rc = begin_step(run, self.rank, diag);
    if (rc == 0) rc = shore_run_commit_wait(run, diag);
    shore_run_close(run);
    return rc;
}

static int take_away(struct shore_diag *diag) {
    return shore_run_remove("run", NULL, diag);
}

static bool is_whole(void) {
    return shore__is_run("run") || shore__run_is_half_replaced("run");
}

static void is_gone(void) {
    assert_false(exists("run") || has_volume("drive0"));
}

static double unit(uint64_t i, uint64_t k) {
    return shore__random_unit(seed, i, k);
}

/* ---- */

static void a_making_is_made_again(void **state) {
    uint64_t begun = microseconds();
    assert_true(group_ran(work, 3, 0, 0, 0));
    const uint64_t taken = microseconds() - begun;
    assert_int_equal(finished(start(look)), 0);
    assert_int_equal(finished(start(take_away)), 0);
    is_gone();
    for (uint64_t i = 0; i < MAKINGS; i++) {
        for (uint64_t k = 0; k <= i % 3 && !is_whole(); k++) { /* killed up to three times in a row */
            uint32_t ranks = 2 + (uint32_t)(unit(i, 10 * k) * 3);
            group_ran(work, ranks, 0, 1 + (uint64_t)(unit(i, 10 * k + 1) * 1.2 * (double)taken),
                      (uint32_t)(unit(i, 10 * k + 2) * ranks));
        }
        bool left = exists("run");
        /* every fourth one is removed as it is */
        if (i % 4 && !is_whole()) assert_true(group_ran(work, 2 + i % 3, 0, 0, 0));
        if (is_whole()) {
            assert_true(group_ran(work, 1 + i % 3, 2, 0, 0));
            assert_int_equal(finished(start(look)), 0);
            assert_int_equal(shared->step, 2);
            assert_false(exists("run/making"));
            left = true;
        }
        clear_away(take_away, left);
        is_gone();
    }
}

static void an_overwritten_run_is_old_or_new(void **state) {
    uint64_t old = 0, new = 0;
    assert_true(group_ran(work, 3, 2, 0, 0));
    const uint64_t begun = microseconds();
    assert_true(group_ran(overwrite, 3, 0, 0, 0));
    const uint64_t taken = microseconds() - begun;
    for (uint64_t i = 0; i < OVERWRITINGS; i++) {
        assert_true(group_ran(work, 2 + i % 2, 2, 0, 0));
        uint32_t ranks = 2 + (uint32_t)(unit(i, 100) * 3);
        group_ran(overwrite, ranks, 0, 1 + (uint64_t)(unit(i, 101) * 1.2 * (double)taken),
                  (uint32_t)(unit(i, 102) * ranks));
        assert_int_equal(finished(start(look)), 0);
        assert_true(shared->step == 2 || shared->step == 0);
        *(shared->step ? &old : &new) += 1;
        assert_true(group_ran(work, 3, shared->step + 1, 0, 0));
        assert_false(exists("run/making"));
        if (i % 4 == 3) assert_true(group_ran(overwrite, 2, 0, 0, 0)); /* and then as it was asked for */
        if (exists("run")) assert_int_equal(finished(start(take_away)), 0);
        assert_int_equal(rmdir("drive0"), 0); /* nothing is left of either */
        assert_int_equal(mkdir("drive0", 0755), 0);
    }
    printf("%d old, %d new\n", (int)old, (int)new);
}

static void a_step_that_all_have_is_gone_on_with(void **state) {
    uint64_t kills = 0, steps = 0, begun = microseconds();
    assert_true(group_ran(work, 3, A_ROUND, 0, 0));
    const uint64_t taken = microseconds() - begun;
    for (uint64_t i = 0; i < TRAININGS; i++) {
        assert_int_equal(finished(start(look)), 0);
        assert_true(shared->step >= steps); /* what was committed stays */
        steps = shared->step;
        if (i % 8 == 5) {
            assert_int_equal(finished(start(go_on_alone)), 0);
            steps++;
        }
        uint32_t ranks = 2 + (uint32_t)(unit(i, 0) * 3);
        kills += !group_ran(work, ranks, steps + A_ROUND, 1 + (uint64_t)(unit(i, 1) * 1.2 * (double)taken),
                            (uint32_t)(unit(i, 2) * ranks));
    }
    assert_true(kills > 0);
    assert_true(group_ran(work, 4, steps + A_ROUND + 2, 0, 0));
    assert_int_equal(finished(start(look)), 0);
    assert_int_equal(shared->step, steps + A_ROUND + 2);
    bool good;
    assert_int_equal(lines_of_metrics(&good), shared->step);
    assert_true(good);
    assert_int_equal(finished(start(take_away)), 0);
    is_gone();
    assert_int_equal(rmdir("drive0"), 0); /* no part of a snapshot either */
    assert_int_equal(mkdir("drive0", 0755), 0);
}

static int group_open(void **state) {
    if (scratch_open(state) < 0) return -1;
    seed = getenv("SEED") ? strtoull(getenv("SEED"), NULL, 10) : microseconds();
    printf("SEED=%llu\n", (unsigned long long)seed);
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED || mkdir("drive0", 0755) || mkdir("drive1", 0755)) return -1;
    return finished(start(steps_alone));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_making_is_made_again),
        cmocka_unit_test(an_overwritten_run_is_old_or_new),
        cmocka_unit_test(a_step_that_all_have_is_gone_on_with),
    };
    return cmocka_run_group_tests(tests, group_open, scratch_close);
}
