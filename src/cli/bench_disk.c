#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/thread.h"
#include "cli/bench.h"
#include "storage/blockio.h"

/* A chunk of AdamW's state is read as planes of 2, 2, 4 and 4 bytes an element, and written the same. */
#define PLANES 4u
#define ELEM_BYTES 12u
static const uint32_t plane_bytes[PLANES] = {2, 2, 4, 4};

struct args {
    struct shore__strings drives;
    uint64_t size_bytes, chunk_bytes;
    uint32_t buffers, passes;
    enum shore_io io;
    bool overwrite, json, quiet;
};

#define OPTION(...) SHORE__OPTION(struct args, __VA_ARGS__)
#define CHOICE(...) SHORE__CHOICE(struct args, __VA_ARGS__)
static const struct shore__option options[] = {
    OPTION(LIST, "drive", drives, "PATH...", "directories or devices; a temporary file on each"),
    OPTION(SIZE, "size", size_bytes, "SIZE", "bytes that are read, and as many written, in a pass", .least = 1 << 24),
    OPTION(U32, "passes", passes, "N", "passes that are measured", .least = 1, .most = 10000),
    OPTION(SIZE, "chunk-size", chunk_bytes, "SIZE", "bytes of a chunk, in four pieces", .least = 786432),
    OPTION(U32, "buffers", buffers, "N", "chunks in flight", .least = 1, .most = 64),
    CHOICE("io", io, "auto|uring|threads|buffered", "how drives are read and written"),
    OPTION(FLAG, "overwrite", overwrite, NULL, "use a device although something is on it (it is lost)"),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line"),
    OPTION(FLAG, "quiet", quiet, NULL, "no progress"),
};

static const struct shore__command_line line = {
    .command = "bench disk",
    .synopsis = "bench disk --drive PATH... [--size SIZE] [--json]",
    .about =
        "Measures what drives move when chunks are read from one half of a file and written to the other, read and\n"
        "write at once, in the pattern of UPDATE but without computing: the rate that UPDATE can reach.",
    .options = options,
    .noptions = sizeof options / sizeof options[0],
};

/* One drive, worked on by its own thread. */
struct disk {
    const struct args *args;
    const char *path;
    struct shore__file file;
    struct shore__io *io;
    unsigned char *memory;
    uint32_t chunk_bytes;
    uint64_t nchunks;
    struct shore__io_op *ops; /* of each buffer: PLANES */
    struct buffer {
        uint64_t chunk;
        unsigned left; /* operations in flight */
        bool writing;
    } * buffers;
    uint64_t moved;
    int rc;
    struct shore_diag diag;
};

/* Planes lie apart in each half, as in a volume. */
static uint64_t offset_of(const struct disk *d, bool second_half, unsigned plane, uint64_t chunk) {
    uint64_t at = second_half ? d->nchunks * d->chunk_bytes : 0;
    for (unsigned p = 0; p < plane; p++)
        at += d->nchunks * (d->chunk_bytes / ELEM_BYTES * plane_bytes[p]);
    return at + chunk * (d->chunk_bytes / ELEM_BYTES * plane_bytes[plane]);
}

static int start(struct disk *d, uint32_t buffer, uint64_t chunk, bool write, bool second_half) {
    struct buffer *b = &d->buffers[buffer];
    *b = (struct buffer){.chunk = chunk, .left = PLANES, .writing = write};
    unsigned char *at = d->memory + (uint64_t)buffer * d->chunk_bytes;
    for (unsigned p = 0; p < PLANES; p++) {
        struct shore__io_op *op = &d->ops[buffer * PLANES + p];
        *op = (struct shore__io_op){
            .kind = write ? SHORE__IO_WRITE : SHORE__IO_READ,
            .buffer = at,
            .offset = offset_of(d, second_half, p, chunk),
            .bytes = d->chunk_bytes / ELEM_BYTES * plane_bytes[p],
            .user = b,
        };
        at += op->bytes;
        int rc = shore__io_submit(d->io, op);
        if (rc) return shore__fail(&d->diag, rc, "%s: %s", d->path, shore_error_text(rc));
    }
    return 0;
}

/* All chunks once: read from one half, written to the other; or only written. */
static int pass(struct disk *d, bool fill, bool to_second_half) {
    uint64_t next = 0, finished = 0;
    uint32_t nbuffers = d->args->buffers;
    for (uint32_t i = 0; i < nbuffers && next < d->nchunks; i++) {
        int rc = start(d, i, next++, fill, fill == to_second_half);
        if (rc) return rc;
    }
    while (finished < d->nchunks) {
        struct shore__io_op *done[PLANES];
        unsigned n = (unsigned)shore__io_reap(d->io, done, PLANES, 1);
        for (unsigned i = 0; i < n; i++) {
            if (done[i]->rc)
                return shore__fail(&d->diag, done[i]->rc, "%s: %s at offset %llu failed: %s", d->path,
                                   done[i]->kind == SHORE__IO_READ ? "reading" : "writing",
                                   (unsigned long long)done[i]->offset, shore_error_text(done[i]->rc));
            d->moved += done[i]->bytes;
            struct buffer *b = done[i]->user;
            if (--b->left) continue;
            uint32_t index = (uint32_t)(b - d->buffers);
            int rc = 0;
            if (!b->writing) {
                rc = start(d, index, b->chunk, true, to_second_half);
            } else {
                finished++;
                if (next < d->nchunks) rc = start(d, index, next++, fill, fill == to_second_half);
            }
            if (rc) return rc;
        }
        if (shore__cli_stop_wanted()) return shore__fail(&d->diag, -ECANCELED, "stopped");
    }
    return shore__io_do(d->io, SHORE__IO_FLUSH, NULL, 0, 0);
}

static int open_disk(struct disk *d) {
    uint64_t piece = ELEM_BYTES * SHORE_SEGMENT_ELEMS;
    d->chunk_bytes = (uint32_t)(d->args->chunk_bytes / piece * piece);
    d->nchunks = d->args->size_bytes / d->chunk_bytes;
    if (!d->nchunks) d->nchunks = 1;
    uint64_t memory = (uint64_t)d->args->buffers * d->chunk_bytes;
    d->memory = shore__arena_alloc(NULL, memory);
    d->ops = calloc((size_t)d->args->buffers * PLANES, sizeof *d->ops);
    d->buffers = calloc(d->args->buffers, sizeof *d->buffers);
    if (!d->memory || !d->ops || !d->buffers) return shore__fail(&d->diag, -ENOMEM, "out of memory");
    for (uint64_t i = 0; i < memory; i++)
        d->memory[i] = (unsigned char)(i * 2654435761u >> 13); /* drives may compress zeros */
    int rc = shore__file_create(d->path, 2 * d->nchunks * d->chunk_bytes, d->args->io, d->args->overwrite, &d->file,
                                &d->diag);
    if (rc) return rc;
    struct shore__buffer_range range = {d->memory, memory};
    rc = shore__io_open(&d->file, d->args->io, d->args->buffers * PLANES, &range, 1, &d->io, &d->diag);
    return rc;
}

static void *fill_both(void *ctx) {
    struct disk *d = ctx;
    d->rc = pass(d, true, false);
    if (!d->rc) d->rc = pass(d, true, true);
    return NULL;
}

static void *there_and_back(void *ctx) {
    struct disk *d = ctx;
    for (uint32_t i = 0; !d->rc && i < d->args->passes; i++)
        d->rc = pass(d, false, i % 2 == 0);
    return NULL;
}

/* All drives at once. */
static double together(struct disk *disks, size_t n, void *(*work)(void *)) {
    pthread_t *threads = calloc(n, sizeof *threads);
    size_t started = 0;
    uint64_t start_ns = shore__now_ns();
    for (; threads && started < n; started++) {
        int rc = shore__thread_start(&threads[started], "bench disk", work, &disks[started]);
        if (!rc) continue;
        disks[started].rc =
            shore__fail(&disks[started].diag, rc, "a thread cannot be started: %s", shore_error_text(rc));
        break;
    }
    for (size_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (!threads) disks[0].rc = shore__fail(&disks[0].diag, -ENOMEM, "out of memory");
    free(threads);
    return (double)(shore__now_ns() - start_ns) * 1e-9;
}

static int print(const struct args *a, const struct disk *disks, size_t n, double seconds) {
    uint64_t moved = 0;
    for (size_t i = 0; i < n; i++)
        moved += disks[i].moved;
    double rate = (double)moved / seconds;
    if (a->json)
        return shore__cli_print_json(json_pack("{s:f,s:f,s:f,s:f,s:I,s:I,s:s,s:b,s:I}", "bytes_per_second", rate,
                                               "read_bytes_per_second", rate / 2, "write_bytes_per_second", rate / 2,
                                               "seconds", seconds, "bytes", (json_int_t)moved, "chunk_bytes",
                                               (json_int_t)disks[0].chunk_bytes, "io", shore__io_backend(disks[0].io),
                                               "direct", disks[0].file.direct, "drives", (json_int_t)n));
    char text[32], chunk[32];
    printf("%s/s read and written together (%s, %s, chunks of %s, %u in flight)\n",
           shore__format_size((uint64_t)rate, text, sizeof text), shore__io_backend(disks[0].io),
           disks[0].file.direct ? "direct" : "through the page cache",
           shore__format_size(disks[0].chunk_bytes, chunk, sizeof chunk), a->buffers);
    return SHORE__EXIT_DONE;
}

static int run(const struct args *a) {
    struct shore__strings places = {0};
    struct shore_diag diag = {{0}};
    shore__cli_catch_signals("\nlongshore: stopping and removing the file\n");
    size_t n = a->drives.count, opened = 0;
    struct disk *disks = calloc(n, sizeof *disks);
    int rc =
        disks ? shore__bench_places(&a->drives, "disk", &places, &diag) : shore__fail(&diag, -ENOMEM, "out of memory");
    for (; !rc && opened < n; opened++) {
        disks[opened] = (struct disk){.args = a, .path = places.item[opened], .file = {.fd = -1}};
        rc = open_disk(&disks[opened]);
        if (rc) diag = disks[opened].diag;
    }
    bool working = !rc;
    double seconds = 0;
    if (!rc) {
        if (!a->quiet)
            shore__cli_say("writing %llu chunks on each drive first", (unsigned long long)disks[0].nchunks * 2);
        together(disks, n, fill_both);
        for (size_t i = 0; i < n; i++)
            disks[i].moved = 0;
        seconds = together(disks, n, there_and_back);
        for (size_t i = 0; !rc && i < n; i++) {
            rc = disks[i].rc;
            diag = disks[i].diag;
        }
    }
    int code = SHORE__EXIT_DONE;
    if (rc != -ECANCELED)
        code = rc == 0   ? print(a, disks, n, seconds)
               : working ? shore__cli_fail_running(rc, &diag)
                         : shore__cli_fail(rc, &diag);
    struct shore__strings made = {0};
    for (size_t i = 0; i < opened; i++) {
        if (disks[i].io) shore__io_close(disks[i].io);
        if (disks[i].file.fd >= 0 && disks[i].file.path) {
            shore__strings_add(&made, disks[i].file.path);
            shore__file_close(&disks[i].file);
        }
        shore__arena_free(NULL, disks[i].memory);
        free(disks[i].ops);
        free(disks[i].buffers);
    }
    shore__bench_remove(&made);
    shore__strings_free(&made);
    shore__strings_free(&places);
    free(disks);
    return code;
}

int shore__bench_disk(int argc, char **argv) {
    struct args a = {.size_bytes = UINT64_C(1) << 30, .chunk_bytes = UINT64_C(3) << 20, .buffers = 5, .passes = 4};
    struct shore__parsed parsed;
    struct shore_diag diag = {{0}};
    int code = SHORE__EXIT_DONE;
    int rc = shore__options_parse(&line, argc, argv, &a, &parsed, &diag);
    if (!rc && !parsed.help && !a.drives.count)
        rc = shore__fail(&diag, SHORE_EUSAGE, "which drive? Give --drive DIR, a directory on it");
    if (rc)
        code = shore__cli_fail(rc, &diag);
    else if (parsed.help)
        shore__options_help(&line, &a);
    else
        code = run(&a);
    shore__strings_free(&a.drives);
    return code;
}
