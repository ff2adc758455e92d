#include "text/dataset.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/diag.h"
#include "base/prng.h"
#include "base/units.h"
#include "files/atomic.h"
#include "text/token_file.h"

/* Tokens that are read around, and their share of a round. */
struct part {
    uint64_t first, count;
    uint32_t share, shares_before;
};

struct shore__dataset {
    int fd;
    char *path;
    struct shore__token_header header;
    struct shore__dataset_stats stats;
    uint64_t first, count;
    struct part *parts; /* of a mixture; or NULL */
    size_t nparts;
};

static int check_header(struct shore__dataset *d, struct shore_diag *diag) {
    unsigned char raw[SHORE__TOKEN_HEADER_BYTES];
    struct stat info;
    if (fstat(d->fd, &info) != 0) return shore__fail_errno(diag, d->path, "cannot stat it");
    int rc = shore__read_at(d->fd, raw, sizeof raw, 0, d->path, diag);
    if (rc) return rc;
    if (shore__token_header_get(raw, &d->header) != 0)
        return shore__fail(diag, SHORE_ECORRUPT, "%s: is not a token file of this version, or its header is damaged",
                           d->path);
    d->stats = (struct shore__dataset_stats){
        .tokens = d->header.tokens, .documents = d->header.documents, .text_bytes = d->header.text_bytes};
    uint64_t wanted = SHORE__TOKEN_HEADER_BYTES + shore__token_bytes(&d->header) + shore__mark_bytes(&d->header);
    if ((uint64_t)info.st_size != wanted)
        return shore__fail(diag, SHORE_ECORRUPT, "%s: has %lld bytes instead of %llu", d->path, (long long)info.st_size,
                           (unsigned long long)wanted);
    return 0;
}

int shore__dataset_take(int fd, const char *name, uint64_t first, uint64_t count, struct shore__dataset **out,
                        struct shore_diag *diag) {
    struct shore__dataset *d = calloc(1, sizeof *d);
    if (!d || !(d->path = strdup(name))) {
        free(d);
        close(fd);
        return shore__fail(diag, -ENOMEM, "%s: out of memory", name);
    }
    d->fd = fd;
    int rc = check_header(d, diag);
    uint64_t tokens = d->header.tokens;
    if (rc == 0 && (first >= tokens || count > tokens - first))
        rc = shore__fail(diag, SHORE_EINPUT, "%s: holds %llu tokens; %llu from position %llu on are not there", name,
                         (unsigned long long)tokens, (unsigned long long)count, (unsigned long long)first);
    if (rc) {
        shore__dataset_close(d);
        return rc;
    }
    d->first = first;
    d->count = count ? count : tokens - first;
    *out = d;
    return 0;
}

int shore__dataset_open(const char *path, uint64_t first, uint64_t count, struct shore__dataset **out,
                        struct shore_diag *diag) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), code = errno;
    if (fd >= 0) return shore__dataset_take(fd, path, first, count, out, diag);
    return shore__fail(diag, code == ENOENT ? SHORE_EMISSING : -code, "%s: cannot open it: %s", path, strerror(code));
}

void shore__dataset_close(struct shore__dataset *d) {
    if (!d) return;
    close(d->fd);
    free(d->parts);
    free(d->path);
    free(d);
}

uint64_t shore__dataset_tokens(const struct shore__dataset *d) {
    return d->count;
}

const struct shore__dataset_stats *shore__dataset_stats(const struct shore__dataset *d) {
    return &d->stats;
}

/* Adds what a block of the file, at byte `at`, has of bytes [from, to). */
static void add_part(XXH3_state_t *part, const unsigned char *block, uint64_t at, uint64_t n, uint64_t from,
                     uint64_t to) {
    uint64_t lo = from > at ? from : at, hi = to < at + n ? to : at + n;
    if (lo < hi) XXH3_64bits_update(part, block + (lo - at), hi - lo);
}

/* Hashes the file and the part in use in one pass, so that a flipped bit outside the part is noticed too. */
int shore__dataset_identity(struct shore__dataset *d, shore__progress_fn progress, void *ctx, uint64_t *hash,
                            struct shore_diag *diag) {
    enum { BLOCK = 256 << 10 };
    XXH3_state_t *whole = XXH3_createState(), *part = XXH3_createState();
    unsigned char *block = malloc(BLOCK), tail[16];
    uint64_t width = d->header.width, marks = shore__token_bytes(&d->header);
    uint64_t end = marks + shore__mark_bytes(&d->header), last = d->first + d->count;
    int rc = whole && part && block ? 0 : shore__fail(diag, -ENOMEM, "%s: out of memory", d->path);
    if (rc == 0) {
        XXH3_64bits_reset(whole);
        XXH3_64bits_reset(part);
    }
    for (uint64_t at = 0; rc == 0 && at < end; at += BLOCK) {
        uint64_t n = end - at < BLOCK ? end - at : BLOCK;
        rc = shore__read_at(d->fd, block, n, SHORE__TOKEN_HEADER_BYTES + at, d->path, diag);
        if (rc == 0 && progress && progress(ctx, at, end)) rc = -ECANCELED;
        if (rc) break;
        XXH3_64bits_update(whole, block, n);
        add_part(part, block, at, n, d->first * width, last * width);
        if (d->header.marked) add_part(part, block, at, n, marks + d->first / 8, marks + (last + 7) / 8);
    }
    if (rc == 0 && XXH3_64bits_digest(whole) != d->header.data_hash)
        rc = shore__fail(diag, SHORE_ECORRUPT, "%s: its tokens do not match their checksum", d->path);
    if (rc == 0) {
        shore__put_u32(tail, d->header.width);
        shore__put_u64(tail + 4, d->count);
        shore__put_u32(tail + 12, d->header.row_tokens);
        XXH3_64bits_update(part, tail, d->header.row_tokens ? 16 : 12);
        *hash = XXH3_64bits_digest(part);
    }
    XXH3_freeState(whole);
    XXH3_freeState(part);
    free(block);
    return rc;
}

/* What is read around from this position on. */
static struct part part_at(const struct shore__dataset *d, uint64_t position) {
    for (size_t i = 0; i < d->nparts; i++)
        if (position - d->parts[i].first < d->parts[i].count) return d->parts[i];
    return (struct part){.count = d->count};
}

static int read_tokens(struct shore__dataset *d, uint64_t at, size_t n, int32_t *out, struct shore_diag *diag) {
    /* 16-bit tokens are read into the far half of out, and widened forward */
    unsigned char *raw = (unsigned char *)out + n * (4 - d->header.width);
    int rc = shore__read_at(d->fd, raw, n * d->header.width, SHORE__TOKEN_HEADER_BYTES + at * d->header.width, d->path,
                            diag);
    for (size_t i = 0; rc == 0 && i < n; i++) {
        int32_t id = (int32_t)(d->header.width == 2 ? shore__get_u16(raw + 2 * i) : shore__get_u32(raw + 4 * i));
        memcpy(&out[i], &id, 4);
    }
    return rc;
}

/* Sets those of n tokens to -1 that do not count. */
static int leave_out(struct shore__dataset *d, uint64_t at, size_t n, int32_t *out, struct shore_diag *diag) {
    unsigned char marks[4096];
    uint64_t start = SHORE__TOKEN_HEADER_BYTES + shore__token_bytes(&d->header);
    for (size_t here; n > 0; n -= here, out += here, at += here) {
        here = sizeof marks * 8 - at % 8;
        if (here > n) here = n;
        int rc = shore__read_at(d->fd, marks, (at % 8 + here + 7) / 8, start + at / 8, d->path, diag);
        if (rc) return rc;
        for (size_t i = 0, bit = at % 8; i < here; i++, bit++)
            if (!(marks[bit / 8] >> bit % 8 & 1)) out[i] = -1;
    }
    return 0;
}

/* Reads count tokens that lie `behind` a position. targets: those that do not count are -1. */
static int read_around(struct shore__dataset *d, uint64_t position, uint64_t behind, bool targets, size_t count,
                       int32_t *out, struct shore_diag *diag) {
    struct part p = part_at(d, position % d->count);
    uint64_t from = (position % d->count - p.first + behind) % p.count;
    int rc = 0;
    for (size_t n; rc == 0 && count > 0; count -= n, out += n, from = 0) {
        n = count < p.count - from ? count : (size_t)(p.count - from);
        rc = read_tokens(d, d->first + p.first + from, n, out, diag);
        if (rc == 0 && targets && d->header.marked) rc = leave_out(d, d->first + p.first + from, n, out, diag);
    }
    return rc;
}

int shore__dataset_read(struct shore__dataset *d, uint64_t position, size_t count, int32_t *out,
                        struct shore_diag *diag) {
    return read_around(d, position, 0, false, count, out, diag);
}

int shore__dataset_targets(struct shore__dataset *d, uint64_t position, size_t count, int32_t *out,
                           struct shore_diag *diag) {
    return read_around(d, position, 1, true, count, out, diag);
}

bool shore__dataset_marked(const struct shore__dataset *d) {
    return d->header.marked;
}

uint32_t shore__dataset_row_tokens(const struct shore__dataset *d) {
    return d->header.row_tokens;
}

uint64_t shore__dataset_predicted(const struct shore__dataset *d) {
    return d->header.row_tokens ? d->count : d->count - 1;
}

/* ---- order ------------------------------------------------------------------------------------------------------- */

/* Sequences of a mixture come in rounds. Each has as many of a part as its share says, in an order of its own. */
#define ROUND SHORE__MIX_SHARES

int shore__dataset_mix(struct shore__dataset *d, const uint64_t *ends, const uint32_t *shares, size_t n,
                       struct shore_diag *diag) {
    uint64_t first = 0;
    uint32_t before = 0;
    if (!(d->parts = calloc(n, sizeof *d->parts))) return shore__out_of_memory(diag);
    for (d->nparts = 0; d->nparts < n; d->nparts++) {
        uint64_t end = ends[d->nparts];
        if (end <= first || end > d->count)
            return shore__fail(diag, SHORE_EMISMATCH, "%s: is not the mixture that its run was made with", d->path);
        d->parts[d->nparts] = (struct part){first, end - first, shares[d->nparts], before};
        first = end;
        before += shares[d->nparts];
    }
    assert(before == ROUND);
    return 0;
}

static const struct part *part_of_slot(const struct shore__dataset *d, uint64_t slot) {
    const struct part *p = d->parts;
    while (slot - p->shares_before >= p->share)
        p++;
    return p;
}

/* The part of a sequence. *index becomes its number among those of the part. */
static const struct part *choose(const struct shore__dataset *d, uint64_t seed, uint64_t *index) {
    uint64_t round = *index / ROUND, turn = *index % ROUND, earlier = 0;
    const struct part *p = part_of_slot(d, shore__permute(seed, round, ROUND, turn));
    for (uint64_t i = 0; i < turn; i++)
        earlier += part_of_slot(d, shore__permute(seed, round, ROUND, i)) == p;
    *index = round * p->share + earlier;
    return p;
}

uint64_t shore__dataset_position(const struct shore__dataset *d, uint64_t index, size_t seq_len, bool shuffle,
                                 uint64_t seed) {
    const struct part whole = {.count = d->count}, *p = d->parts ? choose(d, seed, &index) : &whole;
    if (!shuffle) return p->first + (uint64_t)((unsigned __int128)index * seq_len % p->count);
    uint64_t sequences = p->count / seq_len;
    /* where a part counts, what is behind the last whole sequence may be much of it */
    if (sequences == 0 || (d->header.marked && p->count % seq_len)) sequences++;
    return p->first + seq_len * shore__permute(seed, index / sequences, sequences, index % sequences) % p->count;
}
