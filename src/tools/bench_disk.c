#include <errno.h>
#include <pthread.h>
#include <stdlib.h>

#include "base/thread.h"
#include "storage/rate.h"
#include "tools/bench.h"

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
    OPTION(SIZE, "size", size_bytes, "SIZE", "bytes that are read, and as many written, in a pass", .is.least = 1 << 24,
           .is.most = 1ull << 60),
    OPTION(WHOLE, "passes", passes, "N", "passes that are measured", .is.least = 1, .is.most = 10000),
    OPTION(SIZE, "chunk-size", chunk_bytes, "SIZE", "bytes of a chunk, in four parts", .is.least = 786432,
           .is.most = 1 << 30),
    OPTION(WHOLE, "buffers", buffers, "N", "chunks in flight", .is.least = 1, .is.most = 64),
    CHOICE("io", io, "auto|uring|threads|buffered", "how drives are read and written"),
    OPTION(FLAG, "overwrite", overwrite, NULL, "use a device although something is on it (it is lost)"),
    OPTION(FLAG, "json", json, NULL, "one JSON object on one line"),
    OPTION(FLAG, "quiet", quiet, NULL, "no progress"),
};

/* One drive, with its own thread. */
struct disk {
    const struct args *args;
    struct shore__rate rate;
    int rc;
    struct shore_diag diag;
};

static void *fill_both(void *ctx) {
    struct disk *d = ctx;
    d->rc = shore__rate_fill(&d->rate, &d->diag);
    return NULL;
}

static void *there_and_back(void *ctx) {
    struct disk *d = ctx;
    for (uint32_t i = 0; !d->rc && i < d->args->passes; i++)
        d->rc = shore__rate_pass(&d->rate, i % 2 == 0, &d->diag);
    return NULL;
}

/* Runs all drives at once. */
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
        moved += disks[i].rate.moved_bytes;
    double rate = (double)moved / seconds;
    const struct shore__rate *first = &disks[0].rate;
    if (a->json)
        return shore__cli_print_json(json_pack("{s:f,s:f,s:f,s:f,s:I,s:I,s:s,s:b,s:I}", "bytes_per_second", rate,
                                               "read_bytes_per_second", rate / 2, "write_bytes_per_second", rate / 2,
                                               "seconds", seconds, "bytes", (json_int_t)moved, "chunk_bytes",
                                               (json_int_t)first->chunk_bytes, "io", shore__io_backend(first->io),
                                               "direct", first->file.direct, "drives", (json_int_t)n));
    printf("%s/s read and written together (%s, %s, chunks of %s, %u in flight)\n",
           shore__format_size((uint64_t)rate).text, shore__io_backend(first->io),
           first->file.direct ? "direct" : "through the page cache", shore__format_size(first->chunk_bytes).text,
           a->buffers);
    return SHORE__EXIT_DONE;
}

static int run(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    struct shore__addresses places = {0};
    struct shore_diag diag = {0};
    shore__cli_catch_signals("longshore: stopping and removing the file\n");
    size_t n = a->drives.count, opened = 0;
    struct disk *disks = calloc(n, sizeof *disks);
    int rc = disks ? shore__bench_places(&a->drives, "disk", &places, &diag) : shore__out_of_memory(&diag);
    for (; !rc && opened < n; opened++) {
        struct shore__rate *r = &disks[opened].rate;
        const struct shore__address *at = places.item[opened];
        disks[opened].args = a;
        r->file.fd = -1;
        if (!at->kind->has_file)
            rc = shore__fail(&diag, SHORE_EUSAGE,
                             "%s: bench disk measures drives of this host that keep what is written",
                             a->drives.item[opened]);
        if (!rc)
            rc = shore__rate_open(r, at->path, a->size_bytes, a->chunk_bytes, a->buffers, a->io, a->overwrite, &diag);
        r->stop = shore__cli_stop_wanted;
    }
    bool working = !rc;
    double seconds = 0;
    if (!rc) {
        if (!a->quiet)
            shore__cli_say("writing %llu chunks on each drive first", (unsigned long long)disks[0].rate.nchunks * 2);
        together(disks, n, fill_both);
        for (size_t i = 0; i < n; i++)
            disks[i].rate.moved_bytes = 0;
        seconds = together(disks, n, there_and_back);
        for (size_t i = 0; !rc && i < n; i++) {
            rc = disks[i].rc;
            diag = disks[i].diag;
        }
    }
    int code = SHORE__EXIT_FAILED;
    if (rc != -ECANCELED)
        code = rc == 0   ? print(a, disks, n, seconds)
               : working ? shore__cli_fail_running(rc, &diag)
                         : shore__cli_fail(rc, &diag);
    struct shore__addresses made = {0};
    for (size_t i = 0; i < opened; i++) {
        if (disks[i].rate.file.fd >= 0 && disks[i].rate.file.path)
            shore__addresses_parse(&made, disks[i].rate.file.path, NULL);
        shore__rate_close(&disks[i].rate);
    }
    shore__bench_remove(&made);
    shore__addresses_free(&made);
    shore__addresses_free(&places);
    free(disks);
    return code;
}

const struct shore__command_line shore__bench_disk = {
    .command = "bench disk",
    .synopsis = "bench disk --drive PATH... [--size SIZE] [--json]",
    .about =
        "Measures what drives move when chunks are read from one half of a file and written to the other, read and\n"
        "write at once, in the pattern of UPDATE but without computing: the rate that UPDATE can reach.",
    SHORE__OPTIONS(options),
    SHORE__RUNS(run, struct args, .size_bytes = UINT64_C(1) << 30, .chunk_bytes = UINT64_C(3) << 20, .buffers = 5,
                .passes = 4),
};
