/* Queues and files: whole transfers on every backend, locks, and what is refused before anything is made. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/units.h"
#include "storage/io_internal.h"

#define SPAN 65536u
#define SPANS 24u
#define DEPTH 5u

static char folder[] = "/var/tmp/shore-blockio-XXXXXX";
static char path[128];
static unsigned char *memory;
static const enum shore_io kinds[] = {SHORE_IO_AUTO, SHORE_IO_THREADS, SHORE_IO_BUFFERED};

static int begin(void **state) {
    (void)state;
    if (!mkdtemp(folder)) return -1;
    snprintf(path, sizeof path, "%s/f.volume", folder);
    return posix_memalign((void **)&memory, SHORE__IO_ALIGN, SPAN * SPANS);
}

static int end(void **state) {
    (void)state;
    free(memory);
    unlink(path);
    return rmdir(folder);
}

static int clean(void **state) {
    (void)state;
    shore__io_set_shim(NULL, NULL);
    shore__io_set_done_hook(NULL, NULL);
    unlink(path);
    return 0;
}

static int create_file(const char *at, uint64_t bytes, enum shore_io io, bool overwrite, struct shore__file *file,
                       struct shore_diag *diag) {
    return shore__file_create(at, bytes, NULL, 0, io, overwrite, NULL, NULL, file, diag);
}

static void create(struct shore__file *file, enum shore_io io) {
    struct shore_diag diag = {0};
    if (create_file(path, SPAN * SPANS, io, false, file, &diag)) fail_msg("%s", diag.text);
}

static struct shore__io *queue(const struct shore__file *file, enum shore_io io) {
    struct shore_diag diag = {0};
    struct shore__io *q = NULL;
    struct shore__buffer_range fixed = {memory, SPAN * SPANS / 2}; /* so that half of the operations are not */
    if (shore__io_open(file, io, DEPTH, &fixed, 1, &q, &diag)) fail_msg("%s", diag.text);
    return q;
}

static void run_all(struct shore__io *io, enum shore__io_kind kind) {
    struct shore__io_op ops[SPANS], *done[DEPTH];
    unsigned sent = 0, finished = 0;
    while (finished < SPANS) {
        while (sent < SPANS && shore__io_in_flight(io) < DEPTH) {
            unsigned span = sent * 7 % SPANS; /* out of order; 7 and 24 share no divisor */
            ops[sent] = (struct shore__io_op){
                .kind = kind, .buffer = memory + span * SPAN, .offset = (uint64_t)span * SPAN, .bytes = SPAN};
            assert_int_equal(shore__io_submit(io, &ops[sent]), 0);
            sent++;
        }
        unsigned n = shore__io_reap(io, done, DEPTH, 1);
        assert_true(n >= 1);
        for (unsigned i = 0; i < n; i++)
            assert_int_equal(done[i]->rc, 0);
        finished += n;
    }
}

static void fill(unsigned salt) {
    for (size_t i = 0; i < SPAN * SPANS; i++)
        memory[i] = (unsigned char)(i * 2654435761u >> 13 ^ salt);
}

static void write_and_read_back(enum shore_io kind) {
    struct shore__file file;
    create(&file, kind);
    struct shore__io *io = queue(&file, kind);
    fill(kind);
    run_all(io, SHORE__IO_WRITE);
    assert_int_equal(shore__io_do(io, SHORE__IO_FLUSH, NULL, 0, 0), 0);
    unsigned char *copy = malloc(SPAN * SPANS);
    memcpy(copy, memory, SPAN * SPANS);
    memset(memory, 0, SPAN * SPANS);
    run_all(io, SHORE__IO_READ);
    assert_memory_equal(memory, copy, SPAN * SPANS);
    free(copy);
    shore__io_close(io);
    shore__file_close(&file);
    unlink(path);
}

static void bytes_come_back(void **state) {
    (void)state;
    for (unsigned i = 0; i < 3; i++)
        write_and_read_back(kinds[i]);
}

static int cut_in_half(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    (void)file;
    (void)op;
    ++*(unsigned *)ctx;
    return SHORE__IO_SHORT;
}

static void short_transfers_go_on(void **state) {
    (void)state;
    unsigned seen = 0;
    shore__io_set_shim(cut_in_half, &seen);
    for (unsigned i = 0; i < 3; i++)
        write_and_read_back(kinds[i]);
    assert_int_equal(seen, 3 * (2 * SPANS + 1));
}

static int fail_third(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    (void)file;
    (void)op;
    return ++*(unsigned *)ctx == 3 ? -EIO : 0;
}

static void a_failure_belongs_to_its_operation(void **state) {
    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        struct shore__file file;
        unsigned seen = 0;
        create(&file, kinds[k]);
        shore__io_set_shim(fail_third, &seen);
        struct shore__io *io = queue(&file, kinds[k]);
        struct shore__io_op ops[DEPTH + 1] = {{0}}, *done[DEPTH];
        for (unsigned i = 0; i <= DEPTH; i++) {
            ops[i] = (struct shore__io_op){
                .kind = SHORE__IO_WRITE, .buffer = memory, .offset = (uint64_t)i * SPAN, .bytes = SPAN};
            assert_int_equal(shore__io_submit(io, &ops[i]), i < DEPTH ? 0 : -EBUSY);
        }
        assert_int_equal(shore__io_reap(io, done, DEPTH, DEPTH), DEPTH);
        for (unsigned i = 0; i < DEPTH; i++)
            assert_int_equal(ops[i].rc, i == 2 ? -EIO : 0);
        assert_int_equal(shore__io_reap(io, done, DEPTH, 1), 0);
        shore__io_close(io);
        shore__file_close(&file);
        clean(NULL);
    }
}

static bool is_ring(int fd) {
    char name[64], target[64] = "";
    snprintf(name, sizeof name, "/proc/self/fd/%d", fd);
    return readlink(name, target, sizeof target - 1) > 0 && strstr(target, "io_uring");
}

/* Nobody waits for ever for what a ring does not give back. */
static void a_ring_that_fails_gives_everything_back(void **state) {
    (void)state;
    struct shore_diag diag = {0};
    struct shore__io *io;
    struct shore__io_op ops[3], *done[3];
    int ends[2], ring = 0, other = open("/dev/null", O_RDONLY | O_CLOEXEC);
    assert_int_equal(pipe(ends), 0); /* what nobody writes stays under way */
    struct shore__file file = {.fd = ends[0], .path = path, .size_bytes = SPAN};
    if (shore__io_open(&file, SHORE_IO_URING, 3, NULL, 0, &io, &diag)) skip();
    while (ring < 1024 && !is_ring(ring))
        ring++;
    for (int i = 0; i < 3; i++)
        ops[i] = (struct shore__io_op){.kind = SHORE__IO_READ, .buffer = memory + i * SPAN, .bytes = SPAN};
    assert_int_equal(shore__io_submit(io, &ops[0]), 0);
    assert_int_equal(shore__io_submit(io, &ops[1]), 0);
    assert_int_equal(dup2(other, ring), ring);
    assert_int_equal(shore__io_reap(io, done, 3, 1), 2);
    assert_true(ops[0].rc < 0 && ops[1].rc < 0);
    assert_true(shore__io_submit(io, &ops[2]) < 0);
    assert_int_equal(shore__io_in_flight(io), 0);
    shore__io_close(io);
    close(other);
    close(ends[0]);
    close(ends[1]);
}

static void impossible_operations_are_refused(void **state) {
    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        struct shore__file file;
        create(&file, kinds[k]);
        struct shore__io *io = queue(&file, kinds[k]);
        assert_int_equal(shore__io_do(io, SHORE__IO_READ, memory + 1, 0, SPAN), -EINVAL);
        assert_int_equal(shore__io_do(io, SHORE__IO_READ, memory, 512, SPAN), -EINVAL);
        assert_int_equal(shore__io_do(io, SHORE__IO_READ, memory, 0, 0), -EINVAL);
        assert_int_equal(shore__io_do(io, SHORE__IO_WRITE, memory, SPAN * SPANS, 4096), -EINVAL);
        assert_int_equal(truncate(path, SPAN + 4096), 0); /* cut while it is open */
        assert_int_equal(shore__io_do(io, SHORE__IO_READ, memory, SPAN, SPAN), -EIO);
        shore__io_close(io);
        shore__file_close(&file);
        clean(NULL);
    }
}

static void a_closed_queue_has_written_everything(void **state) {
    (void)state;
    for (unsigned k = 0; k < 3; k++) {
        struct shore__file file;
        create(&file, kinds[k]);
        struct shore__io *io = queue(&file, kinds[k]);
        fill(99);
        struct shore__io_op ops[DEPTH];
        for (unsigned i = 0; i < DEPTH; i++) {
            ops[i] = (struct shore__io_op){
                .kind = SHORE__IO_WRITE, .buffer = memory + i * SPAN, .offset = (uint64_t)i * SPAN, .bytes = SPAN};
            assert_int_equal(shore__io_submit(io, &ops[i]), 0);
        }
        shore__io_close(io);
        shore__file_close(&file);
        unsigned char *back = malloc(SPAN * DEPTH);
        int fd = open(path, O_RDONLY);
        assert_int_equal(read(fd, back, SPAN * DEPTH), SPAN * DEPTH);
        assert_memory_equal(back, memory, SPAN * DEPTH);
        close(fd);
        free(back);
        clean(NULL);
    }
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

static void what_exists_is_not_replaced_unasked(void **state) {
    (void)state;
    struct shore__file file;
    struct shore_diag diag = {0};
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    close(fd);
    create(&file, SHORE_IO_AUTO); /* an empty file holds nothing that could be lost */
    assert_false(file.made);
    shore__file_close(&file);
    fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, memory, SPAN * SPANS), SPAN * SPANS); /* in the page cache now */
    close(fd);
    create(&file, SHORE_IO_AUTO); /* nor does one that is only preallocated */
    struct stat st;
    assert_int_equal(fstat(file.fd, &st), 0);
    assert_true((uint64_t)st.st_blocks * 512 >= SPAN * SPANS);
    struct shore__io *io = queue(&file, SHORE_IO_AUTO);
    fill(1);
    assert_int_equal(shore__io_do(io, SHORE__IO_WRITE, memory, 0, SPAN), 0);
    shore__io_close(io);
    shore__file_close(&file);
    assert_int_equal(create_file(path, SPAN, SHORE_IO_AUTO, false, &file, &diag), SHORE_EEXISTS);
    assert_non_null(strstr(diag.text, path));

    assert_int_equal(create_file(path, 2 * SPAN, SHORE_IO_AUTO, true, &file, &diag), 0);
    assert_true(file.size_bytes == 2 * SPAN);
    io = queue(&file, SHORE_IO_AUTO);
    assert_int_equal(shore__io_do(io, SHORE__IO_READ, memory, 0, SPAN), 0);
    for (unsigned i = 0; i < SPAN; i++)
        assert_int_equal(memory[i], 0);
    shore__io_close(io);
    shore__file_close(&file);
}

static void too_little_space_makes_nothing(void **state) {
    (void)state;
    struct shore__file file;
    struct shore_diag diag = {0};
    assert_int_equal(create_file(path, 1ull << 55, SHORE_IO_AUTO, false, &file, &diag), -ENOSPC);
    assert_non_null(strstr(diag.text, "needs 3"));
    assert_non_null(strstr(diag.text, "has "));
    assert_int_equal(access(path, F_OK), -1);
    /* What would be overwritten stays, too. */
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(write(fd, "precious", 8), 8);
    close(fd);
    assert_int_equal(create_file(path, 1ull << 55, SHORE_IO_AUTO, true, &file, &diag), -ENOSPC);
    char there[16];
    fd = open(path, O_RDONLY);
    assert_int_equal(read(fd, there, sizeof there), 8);
    assert_memory_equal(there, "precious", 8);
    close(fd);
}

static void other_kinds_of_files_are_refused(void **state) {
    (void)state;
    struct shore__file file;
    struct shore_diag diag = {0};
    assert_int_equal(shore__file_open(folder, SHORE_IO_AUTO, 0, &file, &diag), SHORE_EINPUT);
    assert_int_equal(shore__file_open("/dev/null", SHORE_IO_AUTO, 0, &file, &diag), SHORE_EINPUT);
    assert_int_equal(create_file("/dev/null", SPAN, SHORE_IO_AUTO, true, &file, &diag), SHORE_EINPUT);
    assert_int_equal(shore__file_open(path, SHORE_IO_AUTO, 0, &file, &diag), -ENOENT);
    assert_non_null(strstr(diag.text, path));
    assert_int_equal(create_file("/nowhere/at/all", SPAN, SHORE_IO_AUTO, false, &file, &diag), -ENOENT);
    assert_non_null(strstr(diag.text, "/nowhere/at/all"));
}

static int go; /* closed: tells the child that holds the lock to end */
static int calls;

/* The moment at which somebody waits for that lock; no time passes for him. */
static uint64_t clock_of_who_waits(void) {
    if (++calls == 3) close(go);
    return 1;
}

static pid_t hold(void) {
    int ready[2], tell[2];
    assert_int_equal(pipe(ready), 0);
    assert_int_equal(pipe(tell), 0);
    pid_t pid = fork();
    if (pid == 0) {
        char byte;
        int fd = open(path, O_RDWR);
        close(tell[1]);
        if (flock(fd, LOCK_EX) || write(ready[1], "r", 1) != 1) _exit(1);
        while (read(tell[0], &byte, 1) > 0)
            ;
        _exit(0);
    }
    char byte;
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
    close(tell[0]);
    go = tell[1];
    return pid;
}

static void a_lock_is_waited_for_and_respected(void **state) {
    (void)state;
    struct shore__file file;
    struct shore_diag diag = {0};
    create(&file, SHORE_IO_AUTO);
    shore__file_close(&file);
    pid_t pid = hold();
    assert_int_equal(shore__file_open(path, SHORE_IO_AUTO, 0.1, &file, &diag), SHORE_EBUSY);
    assert_non_null(strstr(diag.text, path));
    assert_int_equal(create_file(path, SPAN, SHORE_IO_AUTO, true, &file, &diag), SHORE_EBUSY);
    calls = 0;
    shore__set_clock(clock_of_who_waits);
    assert_int_equal(shore__file_open(path, SHORE_IO_AUTO, 5, &file, &diag), 0);
    shore__set_clock(NULL);
    assert_true(calls >= 3);
    struct shore__file second;
    assert_int_equal(shore__file_open(path, SHORE_IO_AUTO, 0, &second, &diag), SHORE_EBUSY);
    shore__file_close(&file);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
}

/* ---- where io_uring is refused ----------------------------------------------------------------------------------- */

static void refuse_io_uring(void) {
    struct sock_filter program[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, 425 /* io_uring_setup */, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog filter = {4, program};
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter)) _exit(9);
}

static void limit_locked_memory(rlim_t bytes) {
    struct rlimit limit = {bytes, bytes};
    struct __user_cap_header_struct header = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct nothing[2] = {{0, 0, 0}, {0, 0, 0}};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) || syscall(SYS_capset, &header, nothing)) _exit(9);
}

/* Enough for a ring, not for the buffers. */
static void little_locked_memory(void) {
    limit_locked_memory(256 * 1024);
}
static void no_locked_memory(void) {
    limit_locked_memory(0);
}

/* Runs one write and read in a child after `restrict_child`; returns its exit status, 0 for the given backend. */
static int in_child(void (*restrict_child)(void), const char *backend) {
    pid_t pid = fork();
    if (pid == 0) {
        struct shore__file file;
        struct shore__io *io = NULL;
        struct shore__buffer_range fixed = {memory, SPAN * SPANS};
        if (shore__file_open(path, SHORE_IO_AUTO, 0, &file, NULL)) _exit(1);
        restrict_child();
        bool refused = shore__io_open(&file, SHORE_IO_URING, DEPTH, &fixed, 1, &io, NULL) < 0;
        if (!refused) shore__io_close(io);
        if (refused != (strcmp(backend, "threads") == 0)) _exit(2);
        if (shore__io_open(&file, SHORE_IO_AUTO, DEPTH, &fixed, 1, &io, NULL)) _exit(3);
        if (strcmp(shore__io_backend(io), backend) != 0) _exit(4);
        fill(5);
        if (shore__io_do(io, SHORE__IO_WRITE, memory, 0, SPAN)) _exit(5);
        if (shore__io_do(io, SHORE__IO_READ, memory + SPAN, 0, SPAN)) _exit(6);
        if (memcmp(memory, memory + SPAN, SPAN) != 0) _exit(7);
        shore__io_close(io);
        shore__file_close(&file);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void refusals_of_the_kernel_are_worked_around(void **state) {
    (void)state;
    struct shore__file file;
    struct shore__io *io = NULL;
    create(&file, SHORE_IO_AUTO);
    bool has_uring = shore__io_open(&file, SHORE_IO_URING, 1, NULL, 0, &io, NULL) == 0;
    if (has_uring) shore__io_close(io);
    shore__file_close(&file);
    assert_int_equal(in_child(refuse_io_uring, "threads"), 0);
    if (!has_uring) return;
    assert_int_equal(in_child(little_locked_memory, "uring"), 0);
    int status = in_child(no_locked_memory, "threads");
    assert_true(status == 0 || status == 2); /* 2: a kernel that does not count rings as locked memory */
}

/* A name without a suffix is that of a directory that was not made, or of a drive that is not mounted. */
static void a_new_file_has_a_suffix(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int rc;
    } cases[] = {{"state.volume", 0},      {"disk.g1", 0},
                 {"there/none", 0}, /* its directory is missing, which others say */
                 {"nvme0", SHORE_EUSAGE},  {".hidden", SHORE_EUSAGE},
                 {"dot.", SHORE_EUSAGE},   {"dir.d/", SHORE_EUSAGE},
                 {"nvme0/", SHORE_EUSAGE}, {"", 0}};
    struct shore_diag diag;
    char name[200];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(name, sizeof name, "%s/%s", folder, cases[i].name);
        int rc = shore__file_may_be_made(name, &diag);
        if (rc != cases[i].rc) fail_msg("%s: %d", name, rc);
        if (rc) assert_non_null(strstr(diag.text, name));
    }
    snprintf(name, sizeof name, "%s/nvme0", folder);
    struct shore__file file;
    assert_int_equal(create_file(name, SPAN, SHORE_IO_AUTO, true, &file, &diag), SHORE_EUSAGE);
    assert_non_null(strstr(diag.text, "mkdir"));
    assert_int_equal(access(name, F_OK), -1);
    assert_int_equal(shore__file_may_be_made("/dev/longshore-none", &diag), SHORE_EMISSING);
    assert_int_equal(shore__file_may_be_made("/dev/null", &diag), SHORE_EINPUT);
    assert_int_equal(symlink("nothing.volume", name), 0);
    assert_int_equal(shore__file_may_be_made(name, &diag), SHORE_EEXISTS);
    assert_int_equal(create_file(name, SPAN, SHORE_IO_AUTO, true, &file, &diag), SHORE_EEXISTS);
    unlink(name);
    if (geteuid()) { /* root may write anywhere */
        assert_int_equal(mkdir(name, 0500), 0);
        assert_int_equal(shore__file_may_be_made(name, &diag), -EACCES);
        rmdir(name);
    }
    /* what is there is taken as it is */
    int fd = open(name, O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    close(fd);
    assert_int_equal(create_file(name, SPAN, SHORE_IO_AUTO, false, &file, &diag), 0);
    shore__file_close(&file);
    unlink(name);
}

static uint64_t now;

static uint64_t test_clock(void) {
    return now;
}

static void nothing_comes_back_before_its_instant(void **state) {
    (void)state;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        struct shore__file file;
        create(&file, kinds[k]);
        struct shore__io *io = queue(&file, kinds[k]);
        struct shore__io_op *done[DEPTH];
        struct shore__io_op later = {.kind = SHORE__IO_WRITE, .buffer = memory, .bytes = SPAN, .not_before_ns = 2000};
        struct shore__io_op at_once = {.kind = SHORE__IO_READ, .buffer = memory + SPAN, .offset = SPAN, .bytes = SPAN};
        struct shore__io_op pause = {.kind = SHORE__IO_PAUSE, .not_before_ns = 1000};
        now = 500;
        shore__set_clock(test_clock);
        assert_int_equal(shore__io_submit(io, &later), 0);
        assert_int_equal(shore__io_submit(io, &at_once), 0);
        assert_int_equal(shore__io_submit(io, &pause), 0);
        assert_int_equal(shore__io_reap(io, done, DEPTH, 1), 1);
        assert_ptr_equal(done[0], &at_once);
        assert_int_equal(shore__io_reap(io, done, DEPTH, 0), 0);
        now = 1000;
        assert_int_equal(shore__io_reap(io, done, DEPTH, 1), 1);
        assert_ptr_equal(done[0], &pause);
        assert_int_equal(shore__io_in_flight(io), 1);
        now = 1500; /* an instant far away is not waited for */
        later.not_before_ns = UINT64_C(1) << 40;
        assert_int_equal(shore__io_reap(io, done, DEPTH, 1), 0);
        now = later.not_before_ns;
        assert_int_equal(shore__io_reap(io, done, DEPTH, 1), 1);
        assert_int_equal(later.rc, 0);
        shore__set_clock(NULL);
        shore__io_close(io);
        shore__file_close(&file);
        unlink(path);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_new_file_has_a_suffix),
        cmocka_unit_test_teardown(bytes_come_back, clean),
        cmocka_unit_test_teardown(short_transfers_go_on, clean),
        cmocka_unit_test_teardown(a_failure_belongs_to_its_operation, clean),
        cmocka_unit_test_teardown(a_ring_that_fails_gives_everything_back, clean),
        cmocka_unit_test_teardown(impossible_operations_are_refused, clean),
        cmocka_unit_test_teardown(a_closed_queue_has_written_everything, clean),
        cmocka_unit_test_teardown(what_exists_is_not_replaced_unasked, clean),
        cmocka_unit_test_teardown(too_little_space_makes_nothing, clean),
        cmocka_unit_test_teardown(other_kinds_of_files_are_refused, clean),
        cmocka_unit_test_teardown(a_lock_is_waited_for_and_respected, clean),
        cmocka_unit_test_teardown(nothing_comes_back_before_its_instant, clean),
        cmocka_unit_test_teardown(refusals_of_the_kernel_are_worked_around, clean),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
