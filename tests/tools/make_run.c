/* A program that makes runs of its own, on the public headers alone: of a few odd tensors, whose gradients follow from
 * the step. It is what tests try the commands on.
 *
 *     make_run RUN STEPS DRIVE...       makes RUN, or goes on with it until it is at STEPS
 *     make_run --parts N RUN STEPS VOLUME...    the same by N processes, each with a part of the volumes; it says their
 *                                       numbers ("rank 1 is PID")
 *     make_run --tensors RUN            the tensors of a run, whoever made it: a line for each
 *     make_run --export RUN DIR         writes them, as they are computed with
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "longshore/run.h"

static const struct shore_tensor_spec stem[] = {{"conv1.weight", 216, 0}, {"conv1.bias", 8, 0}};
static const struct shore_tensor_spec body[] = {
    {"conv.weight", 385, 0}, {"embed.weight", 300 * 257, 0}, {"frozen.weight", 99, 1}};
static const struct shore_tensor_spec rest[] = {{"temperature", 1, 0}, {"out.weight", 70000, 0}};
static const struct shore_block_spec blocks[] = {{"stem", stem, 2}, {"body.0", body, 3}, {"rest", rest, 2}};
static const char *const tied[] = {"lm_head.weight"};
static const struct shore_shape shapes[] = {
    {.name = "conv1.weight", .rank = 4, .dims = {8, 3, 3, 3}, .dtype = SHORE_DTYPE_BF16},
    {.name = "conv1.bias", .rank = 1, .dims = {8}, .dtype = SHORE_DTYPE_FP32},
    {.name = "conv.weight", .rank = 3, .dims = {5, 7, 11}, .dtype = SHORE_DTYPE_FP16},
    {.name = "embed.weight", .rank = 2, .dims = {300, 257}, .dtype = SHORE_DTYPE_BF16, .ntied = 1, .tied = tied},
    {.name = "frozen.weight", .rank = 2, .dims = {33, 3}, .dtype = SHORE_DTYPE_FP32},
    {.name = "temperature", .dtype = SHORE_DTYPE_FP32},
    {.name = "out.weight", .rank = 1, .dims = {70000}, .dtype = SHORE_DTYPE_BF16},
};
enum { BLOCKS = 3, TENSORS = sizeof shapes / sizeof *shapes };

static void note(void *ctx, const char *text) {
    fprintf(stderr, "make_run: %s\n", text);
}

/* In (-1, 1): a function of its arguments. */
static float value(uint64_t step, uint32_t block, uint64_t i) {
    uint64_t x = (step << 40) + ((uint64_t)block << 32) + i + 0x9E3779B97F4A7C15u;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
    x = (x ^ x >> 27) * 0x94D049BB133111EBu;
    return (float)((x ^ x >> 31) >> 40) / 8388608.0f - 1;
}

/* Gaps stay zero. */
static float *values(const struct shore_layout *layout, uint64_t step, uint32_t b) {
    const struct shore_layout_block *block = &layout->blocks[b];
    float *out = aligned_alloc(SHORE_BUFFER_ALIGN_BYTES, block->padded_elems * sizeof *out);
    if (!out) abort();
    memset(out, 0, block->padded_elems * sizeof *out);
    for (uint32_t t = 0; t < block->ntensors; t++)
        for (uint64_t i = 0; i < block->tensors[t].elems; i++)
            out[block->tensors[t].offset_elems + i] = value(step, b, i);
    return out;
}

/* ---- several processes ------------------------------------------------------------------------------------------- */

enum { RANKS_MOST = 8, DRIVES_MOST = 64, PART_BYTES = 1 << 16 };
struct message {
    size_t bytes;
    char of[PART_BYTES];
};
static struct {
    uint32_t rank, ranks; /* ranks 0: one process has it all */
    int fd[RANKS_MOST];   /* to the others; of all but rank 0, only the first */
    bool mine[DRIVES_MOST];
    struct message from[RANKS_MOST];
} self;

/* The work of io_uring interrupts both calls. */
static int take(int fd, struct message *m) {
    for (size_t at = 0; at < sizeof *m;) {
        ssize_t n = recv(fd, (char *)m + at, sizeof *m - at, MSG_WAITALL);
        if (n == 0 || (n < 0 && errno != EINTR)) return SHORE_ELINK;
        if (n > 0) at += (size_t)n;
    }
    return 0;
}

static int give(int fd, const struct message *m) {
    for (size_t at = 0; at < sizeof *m;) {
        ssize_t n = send(fd, (const char *)m + at, sizeof *m - at, MSG_NOSIGNAL);
        if (n < 0 && errno != EINTR) return SHORE_ELINK;
        if (n > 0) at += (size_t)n;
    }
    return 0;
}

/* Waits for all, and gives what they have brought. */
static int meet(const void *bytes, size_t n) {
    struct message own = {.bytes = n};
    int rc = 0;
    if (n) memcpy(own.of, bytes, n);
    if (self.rank) {
        rc = give(self.fd[0], &own);
        for (uint32_t r = 0; !rc && r < self.ranks; r++)
            rc = take(self.fd[0], &self.from[r]);
        return rc;
    }
    self.from[0] = own;
    for (uint32_t r = 1; !rc && r < self.ranks; r++)
        rc = take(self.fd[r], &self.from[r]);
    for (uint32_t to = 1; to < self.ranks; to++)
        for (uint32_t r = 0; !rc && r < self.ranks; r++)
            rc = give(self.fd[to], &self.from[r]);
    return rc;
}

static int unite(struct shore_run *run, struct shore_diag *diag) {
    static char own[PART_BYTES];
    const void *parts[RANKS_MOST];
    size_t bytes[RANKS_MOST], n = sizeof own;
    int rc = shore_fleet_part(shore_run_fleet(run), own, &n, diag);
    if (!rc) rc = meet(own, n);
    for (uint32_t r = 0; r < self.ranks; r++) {
        parts[r] = self.from[r].of;
        bytes[r] = self.from[r].bytes;
    }
    if (!rc) rc = shore_run_unite(run, parts, bytes, self.ranks, diag);
    return rc ? rc : meet(NULL, 0); /* nobody commits before all are there */
}

/* Around what rank 0 does before or after the others: those who are second meet before it, the others after it. */
static int turn(bool others) {
    return self.ranks && (self.rank != 0) == others ? meet(NULL, 0) : 0;
}

static int digest_of(struct shore_run *run, uint64_t at, unsigned char digest[16], struct shore_diag *diag) {
    unsigned char sums[RANKS_MOST][16];
    if (!self.ranks) return shore_fleet_digest(shore_run_fleet(run), false, digest, diag);
    int rc = shore_fleet_leaf_sum(shore_run_fleet(run), false, sums[0], diag);
    if (!rc) rc = meet(sums[0], 16);
    for (uint32_t r = 0; r < self.ranks; r++)
        memcpy(sums[r], self.from[r].of, 16);
    shore_fleet_digest_of(at, sums, self.ranks, digest);
    return rc;
}

/* ---- making, going on -------------------------------------------------------------------------------------------- */

static int make(const char *path, const char *const *drives, uint32_t ndrives, struct shore_run **run,
                struct shore_diag *diag) {
    struct shore_layout *layout = NULL;
    struct shore_fleet_options options = {.size = sizeof options,
                                          .drives = drives,
                                          .ndrives = ndrives,
                                          .note = note,
                                          .mine = self.ranks ? self.mine : NULL};
    struct shore_run_making how = {.size = sizeof how,
                                   .fleet = &options,
                                   .program = "{\"name\": \"make_run\", \"lr\": 0.01}",
                                   .memory_bytes = UINT64_C(1) << 30,
                                   .keeps = self.ranks && self.rank == 0};
    int rc = shore_layout_make(blocks, BLOCKS, &layout);
    if (!rc) rc = turn(true);
    if (!rc) rc = shore_run_create(path, layout, shapes, TENSORS, &how, run, diag);
    if (!rc) rc = turn(false);
    if (!rc && self.ranks) rc = unite(*run, diag);
    for (uint32_t b = 0; !rc && b < BLOCKS; b++) {
        float *master = values(layout, 0, b);
        rc = shore_fleet_init_block(shore_run_fleet(*run), b, 0, layout->blocks[b].segments, master, NULL, NULL, diag);
        free(master);
    }
    if (!rc) rc = turn(false);
    if (!rc) rc = shore_run_seal(*run, 0, diag);
    if (!rc) rc = turn(true);
    shore_layout_free(layout);
    return rc;
}

static int update(struct shore_run *run, uint64_t base, uint32_t b, struct shore_diag *diag) {
    const struct shore_layout *layout = shore_run_layout(run);
    struct shore_hyper groups[2] = {{.lr = 0.01f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f}, {.frozen = 1}};
    float *gradient = values(layout, base + 1, b);
    struct shore_update request = {
        .size = sizeof request,
        .base_step = base,
        .attempt = shore_fleet_attempt(shore_run_fleet(run)),
        .block = b,
        .count = layout->blocks[b].segments,
        .gradient = gradient,
        .groups = groups,
        .ngroups = 2,
        .coefficient = 1,
    };
    struct shore_wait wait;
    shore_hyper_at_step(&groups[0], SHORE_ADAMW, base + 1);
    shore_wait_init(&wait);
    int rc = shore_fleet_update(shore_run_fleet(run), &request, shore_wait_completion(&wait));
    if (!rc) rc = shore_wait(&wait, diag);
    free(gradient);
    return rc;
}

static int step(struct shore_run *run, uint64_t base, struct shore_diag *diag) {
    char metrics[64];
    struct shore_commit commit = {.size = sizeof commit, .step = base + 1, .blob = &base, .blob_bytes = sizeof base};
    int rc = 0;
    for (uint32_t b = 0; !rc && b < shore_run_layout(run)->nblocks; b++)
        rc = update(run, base, b, diag);
    snprintf(metrics, sizeof metrics, "{\"loss\": %g}", 1.0 / (double)(base + 1));
    if (!rc) rc = shore_run_commit(run, &commit, metrics, diag);
    if (!rc) rc = shore_run_commit_wait(run, diag);
    if (!rc && self.ranks) rc = meet(NULL, 0);
    return rc ? rc : shore_run_confirm(run, base + 1, diag);
}

/* A server that was killed comes back within seconds, on a busy machine within minutes. */
static int connect_again(struct shore_run *run, struct shore_diag *diag) {
    const struct timespec pause = {.tv_nsec = 50 * 1000 * 1000};
    int rc = SHORE_ELINK;
    note(NULL, diag->text);
    for (int tries = 6000; tries && (rc == SHORE_ELINK || rc == SHORE_EBUSY || rc == SHORE_EMISSING); tries--) {
        nanosleep(&pause, NULL);
        rc = shore_run_reconnect(run, diag);
    }
    return rc;
}

/* Opens the run, or makes it where it is missing. */
static int enter(const char *path, const char *const *drives, uint32_t ndrives, struct shore_run **run,
                 struct shore_diag *diag) {
    const struct shore_run_opening how = {
        .size = sizeof how, .note = note, .mine = self.ranks ? self.mine : NULL, .keeps = self.ranks && self.rank == 0};
    bool makes = false;
    int rc = self.rank ? 0 : shore_run_open(path, &how, run, diag);
    if (rc == SHORE_EMISSING && ndrives) {
        makes = true;
        rc = 0;
    }
    if (!rc && self.ranks) rc = meet(&makes, sizeof makes);
    if (self.ranks) memcpy(&makes, self.from[0].of, sizeof makes);
    if (!rc && makes) return make(path, drives, ndrives, run, diag);
    if (!rc && self.rank) rc = shore_run_open(path, &how, run, diag);
    return !rc && self.ranks ? unite(*run, diag) : rc;
}

static int work(const char *path, uint64_t steps, const char *const *drives, uint32_t ndrives,
                struct shore_diag *diag) {
    struct shore_fleet_info info = {.size = sizeof info};
    struct shore_run *run = NULL;
    unsigned char digest[16];
    int rc = enter(path, drives, ndrives, &run, diag);
    if (!rc) shore_fleet_info(shore_run_fleet(run), &info);
    while (!rc && info.step < steps) {
        rc = step(run, info.step, diag);
        if (rc == SHORE_ELINK && !self.ranks) rc = connect_again(run, diag);
        shore_fleet_info(shore_run_fleet(run), &info);
    }
    if (!rc) rc = digest_of(run, info.step, digest, diag);
    if (!rc && !self.rank) {
        printf("step %" PRIu64 " digest ", info.step);
        for (int i = 0; i < 16; i++)
            printf("%02x", digest[i]);
        putchar('\n');
    }
    shore_run_close(run);
    return rc;
}

/* This process becomes one of several: rank 0, which waits for the others at its end. */
static int work_in_parts(uint32_t ranks, const char *path, uint64_t steps, const char *const *volumes, uint32_t n,
                         struct shore_diag *diag) {
    if (ranks < 1 || ranks > RANKS_MOST || n > DRIVES_MOST) return -EINVAL;
    self.ranks = ranks;
    for (uint32_t r = 1; r < ranks && !self.rank; r++) {
        int pair[2];
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair)) return -errno;
        pid_t pid = fork();
        if (pid < 0) return -errno;
        close(pair[pid ? 1 : 0]);
        if (pid) printf("rank %u is %d\n", r, (int)pid), fflush(stdout);
        for (uint32_t k = 1; !pid && k < r; k++)
            close(self.fd[k]);
        if (!pid) self.rank = r;
        self.fd[pid ? r : 0] = pair[pid ? 0 : 1];
    }
    const struct shore_run_opening record = {.size = sizeof record, .read_only = true, .without_drives = true};
    struct shore_run *run = NULL;
    if (!n && !shore_run_open(path, &record, &run, diag))
        while (shore_run_drive(run, n))
            n++;
    shore_run_close(run);
    for (uint32_t v = self.rank * n / ranks; v < (self.rank + 1) * n / ranks; v++)
        self.mine[v] = true;
    int rc = work(path, steps, volumes, n, diag);
    for (uint32_t r = 0; r < RANKS_MOST; r++)
        if (self.fd[r]) close(self.fd[r]); /* whoever waits for this process hears that it is gone */
    while (!self.rank && wait(NULL) > 0)
        ;
    return rc;
}

static int list(const char *path, struct shore_diag *diag) {
    const struct shore_run_opening how = {.size = sizeof how, .read_only = true};
    struct shore_run *run = NULL;
    uint32_t count = 0;
    int rc = shore_run_open(path, &how, &run, diag);
    if (rc) return rc;
    const struct shore_shape *s = shore_run_shapes(run, &count);
    for (uint32_t i = 0; i < count; i++) {
        printf("%s", s[i].name);
        for (uint32_t d = 0; d < s[i].rank; d++)
            printf(" %" PRIu64, s[i].dims[d]);
        printf("%s", s[i].transposed ? " transposed" : "");
        for (uint32_t k = 0; k < s[i].ntied; k++)
            printf(" = %s", s[i].tied[k]);
        putchar('\n');
    }
    shore_run_close(run);
    return 0;
}

static int export(const char *path, const char *directory, struct shore_diag *diag) {
    const struct shore_run_opening how = {.size = sizeof how, .read_only = true};
    struct shore_run *run = NULL;
    int rc = shore_run_open(path, &how, &run, diag);
    if (!rc) rc = shore_run_export(run, directory, NULL, NULL, diag);
    shore_run_close(run);
    return rc;
}

int main(int argc, char **argv) {
    struct shore_diag diag = {0};
    int rc;
    if (argc == 3 && strcmp(argv[1], "--tensors") == 0) {
        rc = list(argv[2], &diag);
    } else if (argc == 4 && strcmp(argv[1], "--export") == 0) {
        rc = export(argv[2], argv[3], &diag);
    } else if (argc >= 5 && strcmp(argv[1], "--parts") == 0) {
        rc = work_in_parts((uint32_t)atoi(argv[2]), argv[3], strtoull(argv[4], NULL, 10), (const char *const *)argv + 5,
                           (uint32_t)argc - 5, &diag);
    } else if (argc >= 3) {
        rc = work(argv[1], strtoull(argv[2], NULL, 10), (const char *const *)argv + 3, (uint32_t)argc - 3, &diag);
    } else {
        fprintf(stderr, "usage: make_run [--parts N] RUN STEPS DRIVE..., --tensors RUN, or --export RUN DIR\n");
        return 2;
    }
    if (rc) fprintf(stderr, "make_run: %s\n", diag.text[0] ? diag.text : shore_error_text(rc));
    return rc ? 1 : 0;
}
