/* A process that makes a fleet is killed before each system call that changes a file, by a tracer: nothing else can be
 * seen of the instant of a kill. A program that was
 * written from the header alone goes on: opening says SHORE_EMISSING, and making it again works as it is, unless the
 * fleet was whole already. */
#include "conformance/drive_harness.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

/* Sanitizers make each start dear: some instants show as much there. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define STRIDE 5u
#else
#define STRIDE 1u
#endif

static char folder[] = "shore-kill-XXXXXX";
static char files[3][64];
static struct plain plain;

static const struct shore_tensor_spec small0[] = {{"a", 300, 0}};
static const struct shore_tensor_spec small1[] = {{"b", 66000, 1}, {"c", 90, 2}};
static const struct shore_tensor_spec small2[] = {{"d", 10, 0}};
static const struct shore_block_spec small_blocks[BLOCKS] = {
    {"first", small0, 1}, {"second", small1, 2}, {"third", small2, 1}};

/* What is there before: a directory and new files, unless a case puts something in their places. */
static const char *const drives[] = {folder, files[1], files[2]};

static struct shore_fleet_options options_for(uint32_t ndrives) {
    return (struct shore_fleet_options){.size = sizeof(struct shore_fleet_options),
                                        .drives = drives,
                                        .ndrives = ndrives,
                                        .optimizer = SHORE_SGD,
                                        .io = SHORE_IO_THREADS,
                                        .chunk_segments = 1,
                                        .ring_bytes = 1,
                                        .drive_speeds = ndrives == 1   ? "1"
                                                        : ndrives == 2 ? "1,1"
                                                                       : "1,1,1"};
}

static int setup(void **state) {
    (void)state;
    assert_non_null(mkdtemp(folder));
    snprintf(files[0], sizeof files[0], "%s/longshore.volume", folder);
    snprintf(files[1], sizeof files[1], "%s/b.volume", folder);
    snprintf(files[2], sizeof files[2], "%s/c.volume", folder);
    plain = (struct plain){.optimizer = SHORE_SGD, .planes = shore_optimizer_planes(SHORE_SGD, false)};
    assert_int_equal(shore_layout_make(small_blocks, BLOCKS, &plain.layout), 0);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        size_t bytes = plain.layout->blocks[b].padded_elems * 4;
        plain.master[b] = pages(bytes);
        plain.m[b] = pages(bytes);
        plain.v[b] = pages(bytes);
        fill(&plain.layout->blocks[b], plain.master[b], 1, b);
    }
    return 0;
}

static void remove_all(void) {
    for (int i = 0; i < 3; i++)
        unlink(files[i]);
}

static int teardown(void **state) {
    (void)state;
    plain_close(&plain);
    remove_all();
    return rmdir(folder);
}

/* Returns 0, or what went wrong. */
static int make(const struct shore_fleet_options *options, struct shore_diag *diag) {
    struct shore_fleet *f;
    int rc = shore_fleet_create(plain.layout, options, &f, diag);
    if (rc) return rc;
    rc = fleet_init(f, &plain, diag);
    shore_fleet_close(f);
    return rc;
}

static void child_makes(const struct shore_fleet_options *options) {
    struct shore_diag diag;
    ptrace(PTRACE_TRACEME, 0, NULL, NULL);
    raise(SIGSTOP);
    _exit(make(options, &diag) ? 1 : 0);
}

static bool changes_files(pid_t thread) {
    struct __ptrace_syscall_info info;
    if (ptrace(PTRACE_GET_SYSCALL_INFO, thread, (void *)sizeof info, &info) <= 0)
        fail_msg("no tracing: %s", strerror(errno));
    if (info.op != PTRACE_SYSCALL_INFO_ENTRY) return false;
    switch (info.entry.nr) {
    case SYS_openat:
        return info.entry.args[2] & O_CREAT;
    case SYS_pwrite64:
    case SYS_ftruncate:
    case SYS_fallocate:
    case SYS_unlinkat:
#ifdef SYS_unlink
    case SYS_unlink:
#endif
        return true;
    default:
        return false;
    }
}

/* Kills a making before the change, by any of its threads, that has this number. Whether it came so far. */
static bool make_until(const struct shore_fleet_options *options, unsigned instant) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) child_makes(options);
    int status, live = 1;
    assert_int_equal(waitpid(child, &status, 0), child);
    long traced = ptrace(PTRACE_SETOPTIONS, child, NULL,
                         (void *)(uintptr_t)(PTRACE_O_TRACESYSGOOD | PTRACE_O_TRACECLONE | PTRACE_O_EXITKILL));
    if (traced) fail_msg("no tracing: %s", strerror(errno));
    ptrace(PTRACE_SYSCALL, child, NULL, NULL);
    for (unsigned seen = 0; live;) {
        pid_t stopped = waitpid(-1, &status, __WALL);
        if (stopped < 0) break;
        if (!WIFSTOPPED(status)) {
            if (stopped == child) live = 0;
            continue;
        }
        if (WSTOPSIG(status) == (SIGTRAP | 0x80) && changes_files(stopped) && seen++ == instant) {
            kill(child, SIGKILL);
            while (waitpid(-1, &status, __WALL) > 0) {
            }
            return true;
        }
        ptrace(PTRACE_SYSCALL, stopped, NULL, NULL); /* its signals are those of tracing alone */
    }
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    return false;
}

/* As the header says it. Returns whether the making had been whole. */
static bool open_or_make(const struct shore_fleet_options *options, unsigned instant) {
    struct shore_fleet *f;
    struct shore_diag diag = {0};
    int rc = shore_fleet_open(plain.layout, options, &f, &diag);
    bool whole = rc == 0;
    if (whole) {
        shore_fleet_close(f);
    } else {
        if (rc != SHORE_EMISSING) fail_msg("killed at %u, open says %d: %s", instant, rc, diag.text);
        if (make(options, &diag)) fail_msg("killed at %u, made again: %s", instant, diag.text);
    }
    if (shore_fleet_open(plain.layout, options, &f, &diag)) fail_msg("killed at %u: %s", instant, diag.text);
    unsigned char digest[16], wanted[16];
    plain_digest(&plain, wanted);
    if (shore_fleet_digest(f, true, digest, &diag)) fail_msg("killed at %u: %s", instant, diag.text);
    assert_memory_equal(digest, wanted, 16);
    shore_fleet_close(f);
    return whole;
}

/* From an instant to the last; prepare: what is there before each making. */
static void kill_everywhere(const struct shore_fleet_options *options, void (*prepare)(uint32_t ndrives)) {
    unsigned instant = 0, made_again = 0;
    for (;; instant += STRIDE) {
        if (prepare) prepare(options->ndrives);
        bool killed = make_until(options, instant);
        made_again += !open_or_make(options, instant);
        remove_all();
        if (!killed) break;
    }
    print_message("%u drives: %u changes, made again %u times\n", options->ndrives, instant, made_again);
    assert_true(made_again * STRIDE > 5);
}

static void new_drives(void **state) {
    (void)state;
    for (uint32_t ndrives = 1; ndrives <= 3; ndrives++) {
        struct shore_fleet_options options = options_for(ndrives);
        kill_everywhere(&options, NULL);
    }
}

/* A file that stands for a device has its size already. */
static void put_blank_files(uint32_t ndrives) {
    for (uint32_t d = 0; d < ndrives; d++) {
        int fd = open(files[d], O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        assert_int_equal(ftruncate(fd, 64 << 20), 0);
        close(fd);
    }
}

static void blank_files(void **state) {
    (void)state;
    struct shore_fleet_options options = options_for(2);
    kill_everywhere(&options, put_blank_files);
}

/* Killed twice: what is half made is made again, and that half made. */
static void put_half_made(uint32_t ndrives) {
    static unsigned instant = 5;
    struct shore_fleet_options options = options_for(ndrives);
    if (!make_until(&options, instant)) remove_all(); /* it was whole */
    instant = (instant + 7) % 40;
}

static void half_made_drives(void **state) {
    (void)state;
    struct shore_fleet_options options = options_for(3);
    kill_everywhere(&options, put_half_made);
}

/* With overwrite, drives of a whole fleet are replaced one by one. Until the first of them is, that one is whole. */
static void put_whole_fleet(uint32_t ndrives) {
    struct shore_fleet_options options = options_for(ndrives);
    struct shore_diag diag;
    if (make(&options, &diag)) fail_msg("%s", diag.text);
}

static void overwritten_drives(void **state) {
    (void)state;
    struct shore_fleet_options options = options_for(2);
    options.overwrite = true;
    kill_everywhere(&options, put_whole_fleet);
    /* of more drives than the fleet had, in another order */
    const char *const turned[] = {files[2], files[1], folder};
    options = options_for(3);
    options.drives = turned;
    options.overwrite = true;
    for (unsigned instant = 0;; instant += STRIDE) {
        struct shore_fleet *f;
        struct shore_diag diag = {0};
        put_whole_fleet(2);
        bool killed = make_until(&options, instant);
        int rc = shore_fleet_open(plain.layout, &options, &f, &diag);
        if (rc == 0) shore_fleet_close(f);
        /* the third drive is the first that is made: it is missing, or was being made, until all are whole */
        if (rc && rc != SHORE_EMISSING) fail_msg("killed at %u, open says %d: %s", instant, rc, diag.text);
        if (rc && make(&options, &diag)) fail_msg("killed at %u: %s", instant, diag.text);
        open_or_make(&options, instant);
        remove_all();
        if (!killed) break;
    }
}

/* What is not ours, or another's finished volume, stays as it is, beside whatever a making has left. */
static void strangers_stay(void **state) {
    (void)state;
    struct shore_fleet_options options = options_for(2), one = options_for(1);
    const char *const second[] = {files[1]};
    one.drives = second;
    struct shore_fleet *f;
    struct shore_diag diag = {0};
    for (unsigned instant = 0; make_until(&options, instant); instant += 3) {
        unlink(files[1]);
        int fd = open(files[1], O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        assert_int_equal(pwrite(fd, "precious", 8, 100000), 8);
        close(fd);
        assert_int_equal(shore_fleet_create(plain.layout, &options, &f, &diag), SHORE_EEXISTS);
        /* or the first drive, which may be sealed by now: without the second one it is not known to be half made */
        if (!strstr(diag.text, files[1]) && !strstr(diag.text, files[0]))
            fail_msg("killed at %u: %s", instant, diag.text);
        char back[8] = "";
        fd = open(files[1], O_RDONLY | O_CLOEXEC);
        assert_int_equal(pread(fd, back, 8, 100000), 8);
        assert_memory_equal(back, "precious", 8);
        close(fd);
        unlink(files[1]);
        if (make(&one, &diag)) fail_msg("%s", diag.text);
        assert_int_equal(shore_fleet_create(plain.layout, &options, &f, &diag), SHORE_EEXISTS);
        open_or_make(&one, instant);
        remove_all();
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(new_drives),         cmocka_unit_test(blank_files),    cmocka_unit_test(half_made_drives),
        cmocka_unit_test(overwritten_drives), cmocka_unit_test(strangers_stay),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
