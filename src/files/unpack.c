#include "files/unpack.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>
#include <zstd_errors.h>

#include "base/diag.h"
#include "base/units.h"

#define BLOCK_BYTES (256u << 10)
#define WAIT_MS 100 /* between two checks whether to give up */
#define GZIP_WINDOW (16 + MAX_WBITS)

enum packing { PLAIN, GZIP, ZSTD };

struct shore__unpack {
    const char *path;
    int fd;
    shore__wait_fn wait;
    void *wait_ctx;
    enum packing packing;
    unsigned char *in;
    size_t count, used; /* in `in` */
    uint64_t read_bytes;
    bool within; /* inside an archive's member or frame */
    z_stream gzip;
    ZSTD_DStream *zstd;
    uint64_t window_bytes;
};

static const char *const packing_names[] = {[PLAIN] = "not packed", [GZIP] = "gzip", [ZSTD] = "Zstandard"};

static enum packing packing_of_name(const char *path, size_t *bytes) {
    static const struct {
        const char *ending;
        enum packing packing;
    } endings[] = {{".gz", GZIP}, {".zst", ZSTD}, {".zstd", ZSTD}};
    size_t n = strlen(path);
    *bytes = n;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        size_t m = strlen(endings[i].ending);
        if (n <= m || strcasecmp(path + n - m, endings[i].ending) != 0) continue;
        *bytes = n - m;
        return endings[i].packing;
    }
    return PLAIN;
}

size_t shore__unpack_name(const char *path) {
    size_t bytes;
    packing_of_name(path, &bytes);
    return bytes;
}

static enum packing packing_of_bytes(const unsigned char *s, size_t bytes) {
    if (bytes >= 2 && s[0] == 0x1F && s[1] == 0x8B) return GZIP;
    if (bytes < 4) return PLAIN;
    uint32_t magic = shore__get_u32(s);
    bool skippable = (magic & ZSTD_MAGIC_SKIPPABLE_MASK) == ZSTD_MAGIC_SKIPPABLE_START; /* pzstd starts with one */
    return magic == ZSTD_MAGICNUMBER || skippable ? ZSTD : PLAIN;
}

static int fill(struct shore__unpack *u, struct shore_diag *diag) {
    u->count = u->used = 0;
    while (u->count < BLOCK_BYTES) {
        struct pollfd ready = {.fd = u->fd, .events = POLLIN};
        if (poll(&ready, 1, WAIT_MS) <= 0) {
            int rc = u->wait ? u->wait(u->wait_ctx, diag) : 0;
            if (rc) return rc;
            continue;
        }
        ssize_t n = read(u->fd, u->in + u->count, BLOCK_BYTES - u->count);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        if (n < 0) return shore__fail_errno(diag, u->path, "cannot read it");
        if (n == 0) break;
        u->count += (size_t)n;
    }
    u->read_bytes += u->count;
    return 0;
}

/* Checks that name and bytes agree on the compression. */
static int check_packing(const struct shore__unpack *u, enum packing named, struct shore_diag *diag) {
    if (u->packing == named) return 0;
    if (named)
        return shore__fail(diag, SHORE_EINPUT, "%s: is %s, not %s as its name says: rename it", u->path,
                           u->count ? packing_names[u->packing] : "empty", packing_names[named]);
    return shore__fail(
        diag, SHORE_EINPUT,
        "%s: is packed by %s, but its name does not say so: end it in %s (as in data.jsonl%s), or unpack it", u->path,
        packing_names[u->packing], u->packing == GZIP ? ".gz" : ".zst", u->packing == GZIP ? ".gz" : ".zst");
}

static int open_packing(struct shore__unpack *u, struct shore_diag *diag) {
    if (u->packing == GZIP && inflateInit2(&u->gzip, GZIP_WINDOW) != Z_OK)
        return shore__fail(diag, -ENOMEM, "%s: out of memory", u->path);
    if (u->packing != ZSTD) return 0;
    u->zstd = ZSTD_createDStream();
    if (!u->zstd) return shore__fail(diag, -ENOMEM, "%s: out of memory", u->path);
    if (!u->window_bytes) return 0;
    int most = 63 - __builtin_clzll(u->window_bytes), least = ZSTD_dParam_getBounds(ZSTD_d_windowLogMax).lowerBound;
    ZSTD_DCtx_setParameter(u->zstd, ZSTD_d_windowLogMax, most < least ? least : most > 27 ? 27 : most);
    return 0;
}

int shore__unpack_open(const char *path, uint64_t window_bytes, shore__wait_fn wait, void *wait_ctx,
                       struct shore__unpack **out, struct shore_diag *diag) {
    struct shore__unpack *u = calloc(1, sizeof *u);
    struct stat info;
    size_t name_bytes;
    if (!u) return shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    *u = (struct shore__unpack){
        .path = path, .wait = wait, .wait_ctx = wait_ctx, .window_bytes = window_bytes, .in = malloc(BLOCK_BYTES)};
    /* non-blocking, so that a pipe without a writer cannot hold us */
    u->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    int code = errno, rc = 0;
    if (u->fd < 0)
        rc = shore__fail(diag, code == ENOENT ? SHORE_EMISSING : -code, "%s: cannot open it: %s", path, strerror(code));
    else if (!u->in)
        rc = shore__fail(diag, -ENOMEM, "%s: out of memory", path);
    else if (fstat(u->fd, &info) != 0)
        rc = shore__fail_errno(diag, path, "cannot stat it");
    else if (S_ISCHR(info.st_mode))
        rc = shore__fail(diag, SHORE_EINPUT, "%s: is a device; give a file with text, or a pipe", path);
    if (rc == 0) rc = fill(u, diag);
    if (rc == 0) {
        u->packing = packing_of_bytes(u->in, u->count);
        rc = check_packing(u, packing_of_name(path, &name_bytes), diag);
    }
    if (rc == 0) rc = open_packing(u, diag);
    if (rc)
        shore__unpack_close(u);
    else
        *out = u;
    return rc;
}

static int damaged(const struct shore__unpack *u, const char *why, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EINPUT, "%s: is damaged near byte %llu of the archive: %s", u->path,
                       (unsigned long long)(u->read_bytes - u->count + u->used), why);
}

/* Starts the next member, if there is one. Zeros may fill the rest of a tape's block, as gzip allows. */
static int next_member(struct shore__unpack *u, struct shore_diag *diag) {
    while (u->used < u->count && u->in[u->used] == 0)
        u->used++;
    if (u->used == u->count) return 0;
    if (u->in[u->used] != 0x1F) return damaged(u, "something that is not gzip follows its end", diag);
    if (inflateReset(&u->gzip) != Z_OK) return damaged(u, "it cannot be read on", diag);
    u->within = true;
    return 0;
}

static int inflate_some(struct shore__unpack *u, char *block, size_t bytes, size_t *got, struct shore_diag *diag) {
    if (!u->within) {
        int rc = next_member(u, diag);
        if (rc || !u->within) return rc;
    }
    u->gzip.next_in = u->in + u->used;
    u->gzip.avail_in = (uInt)(u->count - u->used);
    u->gzip.next_out = (unsigned char *)block + *got;
    u->gzip.avail_out = (uInt)(bytes - *got);
    int status = inflate(&u->gzip, Z_NO_FLUSH);
    u->used = u->count - u->gzip.avail_in;
    *got = bytes - u->gzip.avail_out;
    if (status == Z_STREAM_END) u->within = false;
    if (status == Z_MEM_ERROR) return shore__fail(diag, -ENOMEM, "%s: out of memory", u->path);
    bool fine = status == Z_OK || status == Z_STREAM_END || status == Z_BUF_ERROR;
    return fine ? 0 : damaged(u, u->gzip.msg ? u->gzip.msg : "it is not gzip any more", diag);
}

static int refuse_window(const struct shore__unpack *u, struct shore_diag *diag) {
    return shore__fail(diag, SHORE_EINPUT,
                       "%s: unpacking it needs a larger window than the memory has room for: give more memory, or pack "
                       "it again with a smaller window (zstd -dc --long=31 FILE | zstd -o NEW)",
                       u->path);
}

static int decompress_some(struct shore__unpack *u, char *block, size_t bytes, size_t *got, struct shore_diag *diag) {
    ZSTD_inBuffer in = {u->in, u->count, u->used};
    ZSTD_outBuffer out = {block, bytes, *got};
    size_t status = ZSTD_decompressStream(u->zstd, &out, &in);
    /* without input, it asks for the start of a next frame, even if there is none */
    if (!ZSTD_isError(status) && (in.pos != u->used || out.pos != *got)) u->within = status != 0;
    u->used = in.pos;
    *got = out.pos;
    if (!ZSTD_isError(status)) return 0;
    switch (ZSTD_getErrorCode(status)) {
    case ZSTD_error_memory_allocation:
        return shore__fail(diag, -ENOMEM, "%s: out of memory", u->path);
    case ZSTD_error_frameParameter_windowTooLarge:
        return refuse_window(u, diag);
    default:
        return damaged(u, ZSTD_getErrorName(status), diag);
    }
}

static void copy_some(struct shore__unpack *u, char *block, size_t bytes, size_t *got) {
    size_t n = u->count - u->used < bytes - *got ? u->count - u->used : bytes - *got;
    memcpy(block + *got, u->in + u->used, n);
    u->used += n;
    *got += n;
}

int shore__unpack_read(struct shore__unpack *u, char *block, size_t bytes, size_t *got, struct shore_diag *diag) {
    *got = 0;
    while (*got < bytes) {
        size_t before = *got;
        int rc = 0;
        if (u->used == u->count && u->count) rc = fill(u, diag);
        if (rc) return rc;
        bool at_end = u->count == 0;
        if (u->packing == PLAIN)
            copy_some(u, block, bytes, got);
        else if (u->packing == GZIP)
            rc = inflate_some(u, block, bytes, got, diag);
        else
            rc = decompress_some(u, block, bytes, got, diag);
        if (rc) return rc;
        if (!at_end || *got > before) continue;
        if (!u->within) return 0;
        return shore__fail(diag, SHORE_EINPUT, "%s: is cut off at byte %llu, inside the archive; get it again", u->path,
                           (unsigned long long)u->read_bytes);
    }
    return 0;
}

uint64_t shore__unpack_done(const struct shore__unpack *u) {
    return u->read_bytes - u->count + u->used;
}

bool shore__unpack_packed(const struct shore__unpack *u) {
    return u->packing != PLAIN;
}

void shore__unpack_close(struct shore__unpack *u) {
    if (!u) return;
    if (u->packing == GZIP) inflateEnd(&u->gzip);
    ZSTD_freeDStream(u->zstd);
    if (u->fd >= 0) close(u->fd);
    free(u->in);
    free(u);
}
