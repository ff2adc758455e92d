/* RUN/residual-host: the part of the gradients that compression has left out so far, if the host keeps it.
 *
 *     bytes 0-7     "LSRESID1"
 *     bytes 8-15    the step whose state it belongs to
 *     bytes 16-31   the fleet
 *     bytes 32-47   the digest of that state
 *     bytes 48-55   segments of the model, without blocks that rest
 *     bytes 56-63   0
 *     then          XXH3-128 of each segment, seeded with its number; of all bytes before, seeded with 0
 *     then          from the next multiple of 4,096 on, the segments: 65,536 bf16 each, in order of the blocks
 *
 * Numbers are little-endian. A file that does not belong to the committed state, down to its digest, is not used.
 * So a file left from an earlier stop does no harm. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/atomic.h"
#include "number/norm.h"
#include "run/run.h"
#include "storage/volume.h"

#define NAME "residual-host"
#define HEADER_BYTES 64u
#define SEGMENT_BYTES ((size_t)SHORE_SEGMENT_ELEMS * 2)

static const char magic[8] = {'L', 'S', 'R', 'E', 'S', 'I', 'D', '1'};

static size_t head_bytes(uint64_t segments) {
    return HEADER_BYTES + (segments + 1) * sizeof(struct shore__leaf);
}

static uint64_t data_offset(uint64_t segments) {
    return (head_bytes(segments) + 4095) / 4096 * 4096;
}

static struct shore__leaf *leaves_of(unsigned char *head) {
    return (struct shore__leaf *)(void *)(head + HEADER_BYTES);
}

static void fill_header(unsigned char *head, const struct shore__run *run, uint64_t step,
                        const unsigned char digest[16], uint64_t segments) {
    memset(head, 0, HEADER_BYTES);
    memcpy(head, magic, sizeof magic);
    shore__put_u64(head + 8, step);
    shore__put_u64(head + 16, run->fleet_id[0]);
    shore__put_u64(head + 24, run->fleet_id[1]);
    memcpy(head + 32, digest, 16);
    shore__put_u64(head + 48, segments);
}

/* Whether the file already belongs to this state. Removes one of another state: it is of no use, and its room may be
 * needed. */
static bool is_there(const char *path, const unsigned char wanted[HEADER_BYTES]) {
    unsigned char found[HEADER_BYTES];
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return false;
    bool same = shore__read_at(fd, found, sizeof found, 0, path, NULL) == 0 && !memcmp(found, wanted, sizeof found);
    close(fd);
    if (!same) unlink(path);
    return same;
}

static int write_file(const char *path, unsigned char *head, uint64_t segments, const uint16_t *residual,
                      struct shore_diag *diag) {
    struct shore__atomic file = {0};
    int rc = shore__atomic_open(path, &file, diag);
    for (uint64_t s = 0; !rc && s < segments; s++) {
        const uint16_t *from = residual + s * SHORE_SEGMENT_ELEMS;
        shore__leaf_make(from, SEGMENT_BYTES, s, &leaves_of(head)[s]);
        rc = shore__write_at(file.fd, from, SEGMENT_BYTES, data_offset(segments) + s * SEGMENT_BYTES, path, diag);
    }
    if (!rc) {
        shore__leaf_make(head, head_bytes(segments) - sizeof(struct shore__leaf), 0, &leaves_of(head)[segments]);
        rc = shore__write_at(file.fd, head, head_bytes(segments), 0, path, diag);
    }
    if (!rc) rc = shore__atomic_commit(&file, diag);
    shore__atomic_abort(&file);
    return rc;
}

int shore__residual_save(struct shore__run *run, uint64_t step, const unsigned char digest[16],
                         const uint16_t *residual, struct shore_diag *diag) {
    uint64_t segments = shore__trained_before(run->layout, run->layout->nblocks);
    const struct shore__path path = shore__path_in(run->path, NAME);
    unsigned char *head = malloc(head_bytes(segments));
    int rc = head ? 0 : shore__out_of_memory(diag);
    if (!rc) fill_header(head, run, step, digest, segments);
    if (!rc && !is_there(path.text, head)) rc = write_file(path.text, head, segments, residual, diag);
    free(head);
    return rc;
}

static int read_segments(int fd, const char *path, const unsigned char *head, uint64_t segments, uint16_t *residual,
                         struct shore_diag *diag) {
    const struct shore__leaf *leaves = leaves_of((unsigned char *)(uintptr_t)head);
    for (uint64_t s = 0; s < segments; s++) {
        struct shore__leaf leaf;
        uint16_t *to = residual + s * SHORE_SEGMENT_ELEMS;
        uint64_t offset = data_offset(segments) + s * SEGMENT_BYTES;
        int rc = shore__read_at(fd, to, SEGMENT_BYTES, offset, path, diag);
        if (rc) return rc;
        shore__leaf_make(to, SEGMENT_BYTES, s, &leaf);
        if (memcmp(&leaf, &leaves[s], sizeof leaf) != 0)
            return shore__fail(diag, SHORE_ECORRUPT,
                               "%s: is damaged at offset %llu; remove it to continue without the gradients that "
                               "compression had left out",
                               path, (unsigned long long)offset);
    }
    return 0;
}

int shore__residual_load(struct shore__run *run, uint64_t step, const unsigned char digest[16], uint16_t *residual,
                         bool *found, struct shore_diag *diag) {
    uint64_t segments = shore__trained_before(run->layout, run->layout->nblocks);
    unsigned char wanted[HEADER_BYTES], *head = malloc(head_bytes(segments));
    const struct shore__path in = shore__path_in(run->path, NAME);
    const char *path = in.text;
    int rc = head ? 0 : shore__out_of_memory(diag), fd = -1;
    struct shore__leaf leaf;
    *found = false;
    if (!rc && (fd = open(path, O_RDONLY | O_CLOEXEC)) < 0 && errno != ENOENT)
        rc = shore__fail_errno(diag, path, "cannot be opened");
    if (!rc && fd >= 0) {
        fill_header(wanted, run, step, digest, segments);
        rc = shore__read_at(fd, head, HEADER_BYTES, 0, path, diag);
        *found = !rc && memcmp(head, wanted, HEADER_BYTES) == 0;
    }
    if (*found) {
        rc = shore__read_at(fd, head, head_bytes(segments), 0, path, diag);
        shore__leaf_make(head, head_bytes(segments) - sizeof leaf, 0, &leaf);
        if (!rc && memcmp(&leaf, &leaves_of(head)[segments], sizeof leaf) != 0)
            rc = shore__fail(
                diag, SHORE_ECORRUPT,
                "%s: is damaged at offset 0; remove it to continue without the gradients that compression had left out",
                path);
        if (!rc) rc = read_segments(fd, path, head, segments, residual, diag);
    }
    if (fd >= 0) close(fd);
    free(head);
    return rc;
}
