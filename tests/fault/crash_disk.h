/* Drives with a volatile write cache, in memory, and a power switch: for tests of what a cut leaves behind.
 *
 * Every operation of every queue goes here through the shim of blockio.h; the files themselves stay empty and only
 * carry the names, sizes and locks. A write is kept as pending until a flush that is submitted after the write was
 * handed back by shore__io_reap(); a flush that does not wait for a write does not cover it. One switch cuts all
 * drives, at the operation with number cut_at (writes and flushes of all drives, counted from 0). After that every
 * operation fails with -EIO until the power comes back.
 *
 * What was pending at the cut may have reached the medium or not, each write by itself, whole or torn at sectors of
 * 512 bytes. crash_disks_variants() says how many such states there are to try: every subset of whole writes where
 * they are few, and random torn ones. Usage:
 *
 *     struct crash_disks disks = {.cut_at = n};
 *     crash_disks_install(&disks);
 *     ... work until it fails, close everything; disks.off tells whether the cut was reached ...
 *     for (unsigned i = 0; i < crash_disks_variants(&disks, 64); i++) {
 *         crash_disks_power_on(&disks, i);
 *         ... open again, look, close; nothing of this is kept for the next variant ...
 *     }
 *     crash_disks_remove(&disks);
 *
 * crash_disks_settle() keeps the present variant and starts counting again, for a second cut on top of a first.
 * fail_at and fail_rc let one operation fail without cutting the power. Drives are told apart by path. */
#ifndef TESTS_FAULT_CRASH_DISK_H
#define TESTS_FAULT_CRASH_DISK_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "storage/blockio.h"

#define CRASH_SECTOR 512u
#define CRASH_PAGE 4096u
#define CRASH_DISKS_MOST 8u
#define CRASH_SUBSETS_MOST 5u /* all subsets of up to so many pending writes */

struct crash_write {
    const struct shore__io_op *op; /* until handed back */
    uint64_t offset;
    uint32_t bytes;
    unsigned char *data;
};

struct crash_disk {
    char *path;
    uint64_t bytes;
    unsigned char *durable, *seen; /* on the medium; what reads see */
    unsigned char *dirty;          /* pages in which the two differ */
    struct crash_write *pending;
    unsigned npending;
};

struct crash_disks {
    uint64_t cut_at;  /* UINT64_MAX: never */
    uint64_t fail_at; /* used if fail_rc is not 0 */
    int fail_rc;
    uint64_t operations; /* so far */
    bool off;            /* the power is gone */
    bool trying;         /* looking at a variant */
    struct crash_disk disk[CRASH_DISKS_MOST];
    unsigned ndisks;
};

static inline void *crash_must(void *p) {
    if (!p) abort();
    return p;
}

static inline struct crash_disk *crash_disk_find(struct crash_disks *d, const char *path, uint64_t bytes) {
    for (unsigned i = 0; i < d->ndisks; i++)
        if (strcmp(d->disk[i].path, path) == 0) return &d->disk[i];
    if (d->ndisks == CRASH_DISKS_MOST) abort();
    struct crash_disk *disk = &d->disk[d->ndisks++];
    *disk = (struct crash_disk){.path = crash_must(strdup(path)), .bytes = bytes};
    disk->durable = crash_must(calloc(1, bytes));
    disk->seen = crash_must(calloc(1, bytes));
    disk->dirty = crash_must(calloc(1, bytes / CRASH_PAGE + 1));
    return disk;
}

static inline void crash_mark(struct crash_disk *disk, uint64_t offset, uint32_t bytes) {
    memset(disk->dirty + offset / CRASH_PAGE, 1, (bytes + CRASH_PAGE - 1) / CRASH_PAGE);
}

static inline void crash_write(struct crash_disk *disk, const struct shore__io_op *op, bool keep) {
    memcpy(disk->seen + op->offset, op->buffer, op->bytes);
    crash_mark(disk, op->offset, op->bytes);
    if (!keep) return;
    disk->pending = crash_must(realloc(disk->pending, (disk->npending + 1) * sizeof *disk->pending));
    struct crash_write *w = &disk->pending[disk->npending++];
    *w = (struct crash_write){op, op->offset, op->bytes, crash_must(malloc(op->bytes))};
    memcpy(w->data, op->buffer, op->bytes);
}

static inline void crash_flush(struct crash_disk *disk) {
    unsigned left = 0;
    for (unsigned i = 0; i < disk->npending; i++) {
        struct crash_write *w = &disk->pending[i];
        if (w->op) {
            disk->pending[left++] = *w;
            continue;
        }
        memcpy(disk->durable + w->offset, w->data, w->bytes);
        free(w->data);
    }
    disk->npending = left;
}

static inline int crash_shim(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    struct crash_disks *d = ctx;
    struct crash_disk *disk = crash_disk_find(d, file->path, file->size_bytes);
    if (d->off) return -EIO;
    if (op->kind == SHORE__IO_READ) {
        memcpy(op->buffer, disk->seen + op->offset, op->bytes);
        return SHORE__IO_DONE;
    }
    if (d->trying) {
        if (op->kind == SHORE__IO_WRITE) crash_write(disk, op, false);
        return SHORE__IO_DONE;
    }
    uint64_t number = d->operations++;
    if (d->fail_rc && number == d->fail_at) return d->fail_rc;
    if (op->kind == SHORE__IO_WRITE) crash_write(disk, op, true);
    if (number >= d->cut_at) {
        d->off = true;
        return -EIO;
    }
    if (op->kind == SHORE__IO_FLUSH) crash_flush(disk);
    return SHORE__IO_DONE;
}

static inline void crash_done(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    struct crash_disks *d = ctx;
    struct crash_disk *disk = crash_disk_find(d, file->path, file->size_bytes);
    for (unsigned i = 0; i < disk->npending && op->rc == 0; i++)
        if (disk->pending[i].op == op) disk->pending[i].op = NULL;
}

static inline void crash_disks_install(struct crash_disks *d) {
    shore__io_set_shim(crash_shim, d);
    shore__io_set_done_hook(crash_done, d);
}

static inline unsigned crash_pending(const struct crash_disks *d) {
    unsigned n = 0;
    for (unsigned i = 0; i < d->ndisks; i++)
        n += d->disk[i].npending;
    return n;
}

/* All subsets of few pending writes and then random ones, torn or not; `most` at most. */
static inline unsigned crash_disks_variants(const struct crash_disks *d, unsigned most) {
    unsigned n = crash_pending(d);
    unsigned subsets = n <= CRASH_SUBSETS_MOST ? 1u << n : 0;
    unsigned all = n == 0 ? 1 : subsets + 8 * (n < 8 ? n : 8) + 2;
    return all < most ? all : most;
}

static inline uint64_t crash_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static inline void crash_apply(struct crash_disk *disk, const struct crash_write *w, unsigned how, uint64_t *random) {
    uint32_t sectors = w->bytes / CRASH_SECTOR;
    uint32_t prefix = (uint32_t)(crash_random(random) % sectors);
    uint64_t mask = crash_random(random);
    crash_mark(disk, w->offset, w->bytes);
    for (uint32_t s = 0; s < sectors; s++) {
        bool there = how == 1 || (how == 2 && s < prefix) || (how == 3 && (mask >> s % 64 & 1));
        if (there) memcpy(disk->seen + w->offset + s * CRASH_SECTOR, w->data + s * CRASH_SECTOR, CRASH_SECTOR);
    }
}

/* The state number `variant` after the cut: nothing arrived (0), everything (1), subsets, then random torn ones. */
static inline void crash_disks_power_on(struct crash_disks *d, unsigned variant) {
    unsigned n = crash_pending(d), at = 0;
    unsigned subsets = n <= CRASH_SUBSETS_MOST ? 1u << n : 2;
    uint64_t random = 0x9E3779B97F4A7C15u * (variant + 1) ^ d->cut_at * 0xBF58476D1CE4E5B9u;
    if (random == 0) random = 1;
    d->off = false;
    d->trying = true;
    for (unsigned i = 0; i < d->ndisks; i++) {
        struct crash_disk *disk = &d->disk[i];
        for (uint64_t page = 0; page < disk->bytes / CRASH_PAGE; page++) {
            if (!disk->dirty[page]) continue;
            memcpy(disk->seen + page * CRASH_PAGE, disk->durable + page * CRASH_PAGE, CRASH_PAGE);
            disk->dirty[page] = 0;
        }
        for (unsigned k = 0; k < disk->npending; k++, at++) {
            unsigned how = variant == 0        ? 0
                           : variant == 1      ? 1
                           : variant < subsets ? (~variant >> at & 1)
                                               : (unsigned)(crash_random(&random) >> 20) % 4;
            crash_apply(disk, &disk->pending[k], how, &random);
        }
        /* Making a volume that fails takes its file away again; after a power loss it would be there. */
        int fd = open(disk->path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0 || ftruncate(fd, (off_t)disk->bytes)) abort();
        close(fd);
    }
}

static inline void crash_drop_pending(struct crash_disk *disk) {
    for (unsigned k = 0; k < disk->npending; k++)
        free(disk->pending[k].data);
    free(disk->pending);
    disk->pending = NULL;
    disk->npending = 0;
}

static inline void crash_disks_settle(struct crash_disks *d) {
    for (unsigned i = 0; i < d->ndisks; i++) {
        struct crash_disk *disk = &d->disk[i];
        crash_drop_pending(disk);
        memcpy(disk->durable, disk->seen, disk->bytes);
        memset(disk->dirty, 0, disk->bytes / CRASH_PAGE + 1);
    }
    d->trying = d->off = false;
    d->operations = 0;
}

static inline void crash_disks_remove(struct crash_disks *d) {
    shore__io_set_shim(NULL, NULL);
    shore__io_set_done_hook(NULL, NULL);
    for (unsigned i = 0; i < d->ndisks; i++) {
        struct crash_disk *disk = &d->disk[i];
        crash_drop_pending(disk);
        unlink(disk->path);
        free(disk->path);
        free(disk->durable);
        free(disk->seen);
        free(disk->dirty);
    }
    *d = (struct crash_disks){.cut_at = UINT64_MAX};
}

#endif
