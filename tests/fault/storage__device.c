/* Block devices: what is on one is not destroyed. Needs root and loop devices; skipped without. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "storage/format.h"

#define DEVICE_BYTES (4u << 20)

static char image[] = "/var/tmp/shore-device-XXXXXX";
static char device[64];
static const struct shore__extent extents[] = {{0, 0, 1, 0}};
static struct shore__volume_desc desc = {.fleet_id = {1, 2},
                                         .volume_id = {3, 4},
                                         .ndrives = 1,
                                         .plane_bytes = {SHORE_SEGMENT_ELEMS * 2},
                                         .nextents = 1,
                                         .segments = 1,
                                         .extents = extents};

static int begin(void **state) {
    (void)state;
    char command[128];
    int fd = mkstemp(image);
    if (fd < 0 || ftruncate(fd, DEVICE_BYTES)) return -1;
    close(fd);
    snprintf(command, sizeof command, "losetup -f --show %s 2>/dev/null", image);
    FILE *out = geteuid() == 0 ? popen(command, "r") : NULL;
    if (!out) return 0;
    if (!fgets(device, sizeof device, out)) device[0] = '\0';
    device[strcspn(device, "\n")] = '\0';
    pclose(out);
    return 0;
}

static int end(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "losetup -d %s", device);
    int rc = device[0] ? system(command) : 0;
    unlink(image);
    return rc;
}

static int create(bool overwrite, struct shore_diag *diag) {
    struct shore__volume v;
    int rc = shore__volume_create(device, &desc, SHORE_IO_AUTO, overwrite, NULL, &v, diag);
    if (rc == 0) {
        assert_true(v.file.is_device);
        shore__volume_close(&v);
    }
    return rc;
}

static void put(uint64_t offset, const void *bytes, size_t count) {
    int fd = open(device, O_RDWR);
    assert_int_equal(pwrite(fd, bytes, count, (off_t)offset), (ssize_t)count);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

static void wipe(void) {
    char *zeros = calloc(1, DEVICE_BYTES);
    put(0, zeros, DEVICE_BYTES);
    free(zeros);
}

static void seal(void) {
    struct shore__volume v;
    struct shore__io *io;
    struct shore__record next = {.epoch = 1};
    next.slot[1].step = SHORE__STEP_NONE;
    assert_int_equal(shore__volume_open(device, SHORE_IO_AUTO, NULL, &v, NULL), 0);
    assert_int_equal(shore__io_open(&v.file, SHORE_IO_AUTO, 1, NULL, 0, &io, NULL), 0);
    assert_int_equal(shore__volume_commit(&v, io, &next, 0, NULL, NULL), 0);
    shore__io_close(io);
    shore__volume_close(&v);
}

/* What libblkid knows as swap space. */
static void make_swap(void) {
    unsigned char page[SHORE__PAGE_BYTES] = {0};
    page[1024] = 1;
    page[1028] = 255;
    memcpy(page + 4086, "SWAPSPACE2", 10);
    put(0, page, sizeof page);
}

static void an_empty_device_takes_a_volume(void **state) {
    (void)state;
    struct shore_diag diag = {0};
    if (!device[0]) skip();
    wipe();
    if (create(false, &diag)) fail_msg("%s", diag.text);
    assert_int_equal(create(false, &diag), 0); /* never sealed */
    seal();
    assert_int_equal(create(false, &diag), SHORE_EEXISTS);
    assert_int_equal(create(true, &diag), 0);
    struct shore__volume v;
    assert_int_equal(shore__volume_open(device, SHORE_IO_AUTO, NULL, &v, &diag), 0);
    assert_false(v.record_valid || v.damaged_record); /* the old record is gone */
    struct shore__volume second;
    assert_int_equal(shore__volume_open(device, SHORE_IO_AUTO, NULL, &second, &diag), SHORE_EBUSY); /* O_EXCL */
    shore__volume_close(&v);
    desc.scratch_bytes = DEVICE_BYTES;
    assert_int_equal(create(true, &diag), -ENOSPC);
    assert_non_null(strstr(diag.text, "has 4.00 MiB"));
    desc.scratch_bytes = 0;
}

static void readers_share_a_device(void **state) {
    (void)state;
    struct shore_diag diag = {0};
    struct shore__volume a, b, writer;
    if (!device[0]) skip();
    assert_int_equal(create(true, &diag), 0);
    seal();
    assert_int_equal(shore__volume_open_to_read(device, SHORE_IO_AUTO, NULL, &a, &diag), 0);
    if (shore__volume_open_to_read(device, SHORE_IO_AUTO, NULL, &b, &diag)) fail_msg("%s", diag.text);
    assert_int_equal(shore__volume_open(device, SHORE_IO_AUTO, NULL, &writer, &diag), SHORE_EBUSY);
    shore__volume_close(&a);
    shore__volume_close(&b);
    assert_int_equal(shore__volume_open(device, SHORE_IO_AUTO, NULL, &writer, &diag), 0);
    assert_int_equal(shore__volume_open_to_read(device, SHORE_IO_AUTO, NULL, &a, &diag), SHORE_EBUSY);
    shore__volume_close(&writer);
}

/* By a process that was killed, until its last write has ended. */
static void a_claimed_device_is_waited_for(void **state) {
    (void)state;
    struct shore_diag diag = {0};
    struct shore__volume v;
    int ready[2];
    char byte;
    if (!device[0]) skip();
    assert_int_equal(create(true, &diag), 0);
    assert_int_equal(pipe(ready), 0);
    pid_t pid = fork();
    if (pid == 0) {
        if (open(device, O_RDWR | O_EXCL) < 0 || write(ready[1], "r", 1) != 1) _exit(1);
        usleep(300 * 1000);
        _exit(0);
    }
    assert_int_equal(read(ready[0], &byte, 1), 1);
    if (shore__volume_open(device, SHORE_IO_AUTO, NULL, &v, &diag)) fail_msg("%s", diag.text);
    shore__volume_close(&v);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(ready[0]);
    close(ready[1]);
}

static void a_signature_is_respected(void **state) {
    (void)state;
    struct shore_diag diag = {0};
    if (!device[0]) skip();
    wipe();
    make_swap();
    assert_int_equal(create(false, &diag), SHORE_EEXISTS);
    assert_non_null(strstr(diag.text, "not empty"));
    assert_int_equal(create(true, &diag), 0);
}

/* Somebody makes something else of the device; the volume's second header is still there. */
static void a_reused_device_is_left_alone(void **state) {
    (void)state;
    struct shore_diag diag = {0};
    struct shore__volume v;
    if (!device[0]) skip();
    for (unsigned sealed = 0; sealed < 2; sealed++) {
        wipe();
        assert_int_equal(create(false, &diag), 0);
        if (sealed) seal();
        make_swap();
        assert_int_equal(shore__volume_open(device, SHORE_IO_AUTO, NULL, &v, &diag), SHORE_EFORMAT);
        assert_non_null(strstr(diag.text, "something else has overwritten"));
        assert_int_equal(create(false, &diag), SHORE_EEXISTS);
        unsigned char page[SHORE__PAGE_BYTES];
        int fd = open(device, O_RDONLY);
        assert_int_equal(read(fd, page, sizeof page), sizeof page);
        close(fd);
        assert_memory_equal(page + 4086, "SWAPSPACE2", 10);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_device_takes_a_volume), cmocka_unit_test(readers_share_a_device),
        cmocka_unit_test(a_claimed_device_is_waited_for), cmocka_unit_test(a_signature_is_respected),
        cmocka_unit_test(a_reused_device_is_left_alone),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
