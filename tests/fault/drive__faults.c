/* What goes wrong with the drives of a fleet: each has its own message, nothing wrong is used, and the last committed
 * step is still there. */
#include "conformance/drive_harness.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>

#include "base/arena.h"
#include "storage/format.h"

#define STEPS 4u

struct fault {
    struct place place;
    struct plain plain;
    struct shore_fleet_options options;
    struct shore_fleet *fleet;
    struct shore_diag diag;
    char note[1024];
};

static void keep_note(void *ctx, const char *text) {
    struct fault *t = ctx;
    snprintf(t->note, sizeof t->note, "%s", text);
}

static void must(struct fault *t, int rc) {
    if (rc) fail_msg("%d: %s", rc, t->diag.text);
}

static void says(struct fault *t, const char *text) {
    if (!strstr(t->diag.text, text)) fail_msg("\"%s\" does not contain \"%s\"", t->diag.text, text);
}

static void start(struct fault *t, const char *kinds) {
    memset(t, 0, sizeof *t);
    place_open(&t->place, kinds);
    plain_open(&t->plain, SHORE_ADAMW, false);
    t->options = (struct shore_fleet_options){.size = sizeof(struct shore_fleet_options),
                                              .drives = t->place.paths,
                                              .ndrives = t->place.ndrives,
                                              .spill = true,
                                              .io = SHORE_IO_THREADS,
                                              .note = keep_note,
                                              .note_ctx = t};
    must(t, shore_fleet_create(t->plain.layout, &t->options, &t->fleet, &t->diag));
    must(t, fleet_init(t->fleet, &t->plain, &t->diag));
}

static void step(struct fault *t) {
    must(t, fleet_step(t->fleet, &t->plain, t->plain.step, &t->diag));
    plain_step(&t->plain, 1);
}

static void stop(struct fault *t) {
    shore_fleet_close(t->fleet);
    t->fleet = NULL;
}

static int open_again(struct fault *t) {
    stop(t);
    return shore_fleet_open(t->plain.layout, &t->options, &t->fleet, &t->diag);
}

static void finish(struct fault *t) {
    shore__io_set_shim(NULL, NULL);
    stop(t);
    plain_close(&t->plain);
    place_close(&t->place);
}

static void copy_file(const char *from, const char *to) {
    char command[512];
    snprintf(command, sizeof command, "cp --sparse=always '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

static void flip(const char *path, uint64_t offset) {
    unsigned char byte;
    int fd = open(path, O_RDWR);
    assert_true(fd >= 0);
    assert_int_equal(pread(fd, &byte, 1, (off_t)offset), 1);
    byte ^= 0x10;
    assert_int_equal(pwrite(fd, &byte, 1, (off_t)offset), 1);
    assert_int_equal(fsync(fd), 0);
    close(fd);
}

/* ---- operations that fail ---- */

struct failing {
    enum shore__io_kind kind;
    int after, rc; /* of this kind, counted down; -1: never */
};

static int fail_one(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    struct failing *f = ctx;
    if (op->kind != f->kind || f->after < 0 || f->after--) return SHORE__IO_PASS;
    return f->rc;
}

static void a_failed_transfer_fails_its_attempt_only(void **state) {
    static const enum shore__io_kind kinds[] = {SHORE__IO_READ, SHORE__IO_WRITE};
    struct failing failing = {.rc = -EIO, .after = -1};
    struct fault t;
    shore__io_set_shim(fail_one, &failing);
    start(&t, "ff");
    for (int k = 0; k < 2; k++) {
        for (int after = 0; after < 14; after += 4) {
            struct step_how how = {.coefficient = 1};
            failing.kind = kinds[k];
            failing.after = after;
            assert_int_equal(fleet_updates(t.fleet, &t.plain, t.plain.step, &how, &t.diag), -EIO);
            says(&t, ".volume");
            says(&t, k ? "writing" : "reading");
            says(&t, "at offset");
            assert_int_equal(failing.after, -1);
            assert_int_equal(fleet_commit(t.fleet, t.plain.step, false, &t.diag), -EIO);
            shore_fleet_discard(t.fleet);
            assert_digest(t.fleet, &t.plain, true);
        }
        step(&t);
        assert_digest(t.fleet, &t.plain, true);
    }
    finish(&t);
}

static void a_full_disk_is_named(void **state) {
    struct failing failing = {.kind = SHORE__IO_WRITE, .rc = -ENOSPC, .after = -1};
    struct step_how how = {.coefficient = 1};
    struct fault t;
    shore__io_set_shim(fail_one, &failing);
    start(&t, "f");
    failing.after = 0; /* a write of bf16 parameters */
    assert_int_equal(fleet_updates(t.fleet, &t.plain, 0, &how, &t.diag), -ENOSPC);
    says(&t, "No space left");
    /* who reads what it should have written hears of the disk, not of damage */
    static _Alignas(SHORE_BUFFER_ALIGN_BYTES) unsigned char params[64 * SHORE_SEGMENT_ELEMS * 2];
    unsigned failed = 0;
    for (uint32_t b = 0; b < t.plain.layout->nblocks; b++) {
        struct shore_wait wait;
        shore_wait_init(&wait);
        assert_true(t.plain.layout->blocks[b].segments <= 64);
        must(&t, shore_fleet_fetch(t.fleet, 1, b, 0, t.plain.layout->blocks[b].segments, SHORE_FETCH_BF16, params,
                                   shore_wait_completion(&wait)));
        int rc = shore_wait(&wait, &t.diag);
        if (!rc) continue;
        failed++;
        assert_int_equal(rc, -ENOSPC);
        says(&t, "No space left");
    }
    assert_true(failed > 0);
    finish(&t);
}

static void a_failed_flush_is_final(void **state) {
    for (int after = 0; after < 4; after++) {
        struct failing failing = {.kind = SHORE__IO_FLUSH, .rc = -EIO, .after = -1};
        struct step_how how = {.coefficient = 1};
        struct fault t;
        shore__io_set_shim(fail_one, &failing);
        start(&t, "ff");
        step(&t);
        must(&t, fleet_updates(t.fleet, &t.plain, 1, &how, &t.diag));
        failing.after = after;
        assert_int_equal(fleet_commit(t.fleet, 1, false, &t.diag), -EIO);
        says(&t, "flush");
        assert_int_equal(fleet_commit(t.fleet, 1, false, &t.diag), -EIO);
        assert_int_equal(fleet_updates(t.fleet, &t.plain, 1, &how, &t.diag), -EIO);
        must(&t, open_again(&t));
        struct shore_fleet_info info = {.size = sizeof info};
        shore_fleet_info(t.fleet, &info);
        assert_in_range(info.step, 1, 2);
        if (info.step == 2) plain_step(&t.plain, 1);
        assert_digest(t.fleet, &t.plain, true);
        step(&t);
        assert_digest(t.fleet, &t.plain, true);
        finish(&t);
    }
}

/* Lost one count in some 300,000 commits. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define COMMITS 20000u
#else
#define COMMITS 1000000u
#endif
#define UPDATERS 4u

struct updater {
    struct fault *t;
    atomic_bool over;
};

static void *update_on_and_on(void *ctx) {
    struct updater *u = ctx;
    const struct plain *p = &u->t->plain;
    struct shore_hyper groups[GROUPS];
    struct shore_update update = {.size = sizeof update,
                                  .base_step = 1,
                                  .attempt = shore_fleet_attempt(u->t->fleet),
                                  .count = p->layout->blocks[0].segments,
                                  .gradient = pages(p->layout->blocks[0].padded_elems * 4),
                                  .coefficient = 1,
                                  .groups = groups,
                                  .ngroups = GROUPS};
    hypers(p, 2, groups);
    while (!atomic_load(&u->over)) {
        struct shore_wait wait;
        shore_wait_init(&wait);
        if (shore_fleet_update(u->t->fleet, &update, shore_wait_completion(&wait)) == 0) shore_wait(&wait, NULL);
    }
    free((void *)(uintptr_t)update.gradient);
    return NULL;
}

static void note_that_it_came(void *ctx, int rc, const struct shore_diag *diag) {
    atomic_store((atomic_int *)ctx, rc);
}

/* A commit waits for the updates that are under way, and must go on knowing how many those are. */
static void a_broken_fleet_answers_every_commit(void **state) {
    struct failing failing = {.kind = SHORE__IO_FLUSH, .rc = -EIO, .after = -1};
    struct step_how how = {.coefficient = 1};
    struct fault t;
    struct updater updater = {.t = &t};
    pthread_t threads[UPDATERS];
    shore__io_set_shim(fail_one, &failing);
    start(&t, "ff");
    step(&t);
    must(&t, fleet_updates(t.fleet, &t.plain, 1, &how, &t.diag));
    failing.after = 0;
    assert_int_equal(fleet_commit(t.fleet, 1, false, &t.diag), -EIO);
    for (unsigned i = 0; i < UPDATERS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, update_on_and_on, &updater), 0);
    for (uint32_t i = 0; i < COMMITS; i++) {
        atomic_int came;
        atomic_init(&came, 0);
        must(&t, shore_fleet_commit(t.fleet, 1, false, NULL, 0, (struct shore_completion){note_that_it_came, &came}));
        uint64_t deadline = shore__now_ns() + 10 * UINT64_C(1000000000);
        while (!atomic_load(&came) && shore__now_ns() < deadline)
            sched_yield();
        assert_int_equal(atomic_load(&came), -EIO);
    }
    atomic_store(&updater.over, true);
    for (unsigned i = 0; i < UPDATERS; i++)
        pthread_join(threads[i], NULL);
    finish(&t);
}

/* ---- stored bytes that changed ---- */

/* Where a plane of the committed slot's first segment lies in a volume, and its newest record. */
static uint64_t offset_of_plane(struct fault *t, uint32_t drive, enum shore_plane plane, uint64_t *record_offset) {
    struct shore__volume v;
    must(t, shore__volume_peek(t->place.path[drive], &v, &t->diag));
    uint64_t offset = shore__volume_plane_offset(&v, v.record.active, plane, 0);
    if (record_offset) *record_offset = SHORE__RECORD_OFFSET + (v.record.sequence & 1) * SHORE__RECORD_STRIDE;
    shore__volume_close(&v);
    return offset;
}

static void a_flipped_bit_is_never_used(void **state) {
    static const enum shore_fetch_kind kinds[] = {SHORE_FETCH_BF16, SHORE_FETCH_MASTER, SHORE_FETCH_M, SHORE_FETCH_V};
    struct fault t;
    start(&t, "ff");
    step(&t);
    for (int plane = 0; plane < SHORE_PLANE_R; plane++) {
        struct step_how how = {.coefficient = 1};
        struct shore_wait wait;
        unsigned char digest[16];
        float *dst = pages(SHORE_SEGMENT_ELEMS * 4);
        stop(&t);
        uint64_t offset = offset_of_plane(&t, 0, plane, NULL);
        flip(t.place.path[0], offset + 77);
        must(&t, open_again(&t));
        assert_int_equal(shore_fleet_digest(t.fleet, true, digest, &t.diag), SHORE_ECORRUPT);
        says(&t, t.place.directory);
        says(&t, "segment 0");
        shore_wait_init(&wait);
        must(&t, shore_fleet_fetch(t.fleet, 1, 0, 0, 1, kinds[plane], dst, shore_wait_completion(&wait)));
        bool joined = plane == SHORE_PLANE_LO;
        assert_int_equal(shore_wait(&wait, &t.diag), SHORE_ECORRUPT);
        if (joined) says(&t, "plane lo");
        assert_int_equal(fleet_updates(t.fleet, &t.plain, 1, &how, &t.diag), SHORE_ECORRUPT);
        assert_int_equal(fleet_commit(t.fleet, 1, false, &t.diag), SHORE_ECORRUPT);
        stop(&t);
        flip(t.place.path[0], offset + 77);
        must(&t, open_again(&t));
        assert_digest(t.fleet, &t.plain, true);
        free(dst);
    }
    finish(&t);
}

/* Changes what is read of spilled gradients. */
static int flip_reads_of_spill(void *ctx, const struct shore__file *file, const struct shore__io_op *op) {
    const struct shore__volume *v = ctx;
    if (op->kind != SHORE__IO_READ || op->offset < v->at.spill || op->offset >= v->at.scratch) return SHORE__IO_PASS;
    if (pread(file->fd, op->buffer, op->bytes, (off_t)op->offset) != (ssize_t)op->bytes) return -EIO;
    ((unsigned char *)op->buffer)[5] ^= 1;
    return SHORE__IO_DONE;
}

static void a_flipped_bit_of_a_spilled_gradient_is_never_used(void **state) {
    struct step_how how = {.coefficient = 1, .spill = true};
    struct shore__volume v;
    struct fault t;
    start(&t, "f");
    must(&t, shore__volume_peek(t.place.path[0], &v, &t.diag));
    shore__io_set_shim(flip_reads_of_spill, &v);
    assert_int_equal(fleet_updates(t.fleet, &t.plain, 0, &how, &t.diag), SHORE_ECORRUPT);
    says(&t, "spilled gradient");
    shore__io_set_shim(NULL, NULL);
    shore_fleet_discard(t.fleet);
    must(&t, fleet_updates(t.fleet, &t.plain, 0, &how, &t.diag));
    must(&t, fleet_commit(t.fleet, 0, false, &t.diag));
    plain_step(&t.plain, 1);
    assert_digest(t.fleet, &t.plain, true);
    shore__volume_close(&v);
    finish(&t);
}

/* Of the first drive, where `step` was committed. */
static void lose_newest_record(struct fault *t, uint64_t step) {
    uint64_t record;
    stop(t);
    offset_of_plane(t, 0, SHORE_PLANE_HI, &record);
    flip(t->place.path[0], record + 100);
    t->options.hint_step = step;
}

static void a_damaged_record_explains_an_older_step(void **state) {
    for (uint32_t ndrives = 1; ndrives <= 2; ndrives++) {
        struct fault t;
        start(&t, ndrives == 1 ? "f" : "ff");
        step(&t);
        shore_fleet_close(t.fleet);
        t.fleet = NULL;
        must(&t, shore_fleet_open(t.plain.layout, &t.options, &t.fleet, &t.diag));
        step(&t);
        must(&t, fleet_step(t.fleet, &t.plain, 2, &t.diag));
        lose_newest_record(&t, 3);
        assert_int_equal(open_again(&t), SHORE_ESTALE);
        says(&t, "--accept-step 2");
        says(&t, "commit record at offset");
        t.options.accept_step = &(uint64_t){1};
        assert_int_equal(open_again(&t), SHORE_ESTALE);
        t.options.accept_step = &(uint64_t){2};
        must(&t, open_again(&t));
        assert_non_null(strstr(t.note, "commit record"));
        assert_digest(t.fleet, &t.plain, true);
        t.options.accept_step = NULL;
        step(&t);
        must(&t, open_again(&t));
        assert_digest(t.fleet, &t.plain, true);
        finish(&t);
    }
}

/* Zeros in both places are a making that was interrupted only where nothing says that it was not: what the caller has
 * seen committed, or another drive. */
static void lost_records_are_no_unfinished_making(void **state) {
    static const unsigned char zeros[SHORE__PAGE_BYTES];
    for (uint32_t ndrives = 1; ndrives <= 2; ndrives++) {
        struct fault t;
        start(&t, ndrives == 1 ? "f" : "ff");
        step(&t);
        stop(&t);
        int fd = open(t.place.path[0], O_WRONLY);
        for (unsigned place = 0; place < 2; place++) {
            off_t at = SHORE__RECORD_OFFSET + place * SHORE__RECORD_STRIDE;
            assert_int_equal(pwrite(fd, zeros, sizeof zeros, at), sizeof zeros);
        }
        close(fd);
        if (ndrives == 1) t.options.hint_step = 1;
        assert_int_equal(open_again(&t), SHORE_ECORRUPT);
        says(&t, "both commit records are gone");
        says(&t, t.place.path[0]);
        finish(&t);
    }
}

/* Step 0 can be accepted like any other. */
static void step_0_is_accepted(void **state) {
    struct fault t;
    start(&t, "f");
    step(&t);
    lose_newest_record(&t, 1);
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    says(&t, "--accept-step 0");
    t.options.accept_step = &(uint64_t){0};
    must(&t, open_again(&t));
    finish(&t);
}

/* The slot of the step before was being overwritten when the newest record was lost: then nothing whole is left. */
static void a_half_overwritten_step_is_not_accepted(void **state) {
    struct step_how how = {.coefficient = 1};
    struct fault t;
    start(&t, "f");
    step(&t);
    step(&t);
    must(&t, fleet_updates(t.fleet, &t.plain, 2, &how, &t.diag));
    lose_newest_record(&t, 2);
    t.options.accept_step = &(uint64_t){1};
    assert_int_equal(open_again(&t), SHORE_ECORRUPT);
    says(&t, "block");
    /* and trying has changed nothing */
    t.options.accept_step = NULL;
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    says(&t, "commit record at offset");
    finish(&t);
}

/* A byte of a plane of the newest step, in the drive's own slot of it. */
static void damage_newest(struct fault *t, uint32_t drive, enum shore_plane plane) {
    struct shore__volume v;
    must(t, shore__volume_peek(t->place.path[drive], &v, &t->diag));
    flip(t->place.path[drive], shore__volume_plane_offset(&v, v.record.active, plane, 0) + 99);
    shore__volume_close(&v);
}

/* Any plane, on any drive, also after starts that have met the damage and raised the epoch. */
static void the_step_before_a_damaged_one_is_accepted(void **state) {
    static const enum shore_plane planes[] = {SHORE_PLANE_HI, SHORE_PLANE_LO, SHORE_PLANE_M, SHORE_PLANE_V};
    for (uint32_t p = 0; p < 4; p++) {
        for (uint32_t ndrives = 1; ndrives <= 2; ndrives++) {
            struct fault t;
            start(&t, ndrives == 1 ? "f" : "ff");
            step(&t);
            step(&t);
            must(&t, open_again(&t));
            must(&t, fleet_step(t.fleet, &t.plain, 2, &t.diag));
            stop(&t);
            damage_newest(&t, ndrives - 1, planes[p]);
            t.options.hint_step = 3;
            must(&t, open_again(&t));
            must(&t, open_again(&t));
            t.options.accept_step = &(uint64_t){1};
            assert_int_equal(open_again(&t), SHORE_ESTALE);
            says(&t, "holds it no more");
            t.options.accept_step = &(uint64_t){2};
            t.options.read_only = true;
            must(&t, open_again(&t));
            t.options.read_only = false;
            must(&t, open_again(&t));
            assert_non_null(strstr(t.note, "step 3 is given up for step 2"));
            assert_non_null(strstr(t.note, ndrives == 1 ? "0.volume: block" : "1.volume: block"));
            assert_digest(t.fleet, &t.plain, true);
            t.options.accept_step = NULL;
            t.options.hint_step = 2;
            must(&t, open_again(&t));
            assert_digest(t.fleet, &t.plain, true);
            step(&t);
            must(&t, open_again(&t));
            assert_digest(t.fleet, &t.plain, true);
            finish(&t);
        }
    }
}

/* Neither what is whole nor what is not takes the place of the newest step. */
static void a_step_before_is_not_accepted_without_need(void **state) {
    struct step_how how = {.coefficient = 1};
    struct fault t;
    start(&t, "ff");
    step(&t);
    step(&t);
    t.options.hint_step = 2;
    t.options.accept_step = &(uint64_t){1};
    assert_int_equal(open_again(&t), SHORE_EUSAGE);
    says(&t, "step 2 is whole on every drive");
    t.options.accept_step = NULL;
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    /* the other slots have been written to since */
    must(&t, fleet_updates(t.fleet, &t.plain, 2, &how, &t.diag));
    stop(&t);
    damage_newest(&t, 1, SHORE_PLANE_V);
    t.options.accept_step = &(uint64_t){1};
    assert_int_equal(open_again(&t), SHORE_ECORRUPT);
    says(&t, "step 1 cannot be accepted, since it is not whole either");
    finish(&t);
}

/* ---- drives that do not fit ---- */

static void a_missing_drive_is_named(void **state) {
    struct fault t;
    char away[160];
    start(&t, "ff");
    step(&t);
    stop(&t);
    snprintf(away, sizeof away, "%s.away", t.place.path[1]);
    assert_int_equal(rename(t.place.path[1], away), 0);
    assert_int_equal(open_again(&t), SHORE_EMISSING);
    says(&t, "/1.volume is missing");
    /* where it is now, and the other one not at all */
    t.place.paths[1] = away;
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    stop(&t);
    t.options.ndrives = 1;
    assert_int_equal(open_again(&t), SHORE_EMISMATCH);
    says(&t, "one of 2 drives");
    unlink(away);
    finish(&t);
}

static void a_drive_from_a_copy_is_stale(void **state) {
    struct fault t;
    char old[160], fresh[160];
    start(&t, "ff");
    snprintf(old, sizeof old, "%s.old", t.place.path[1]);
    snprintf(fresh, sizeof fresh, "%s.fresh", t.place.path[1]);
    step(&t);
    stop(&t);
    copy_file(t.place.path[1], old);
    /* one step behind, and an epoch */
    must(&t, open_again(&t));
    step(&t);
    stop(&t);
    copy_file(t.place.path[1], fresh);
    copy_file(old, t.place.path[1]);
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    says(&t, "/1.volume is at step 1");
    copy_file(fresh, t.place.path[1]);
    /* two steps behind */
    must(&t, open_again(&t));
    step(&t);
    stop(&t);
    copy_file(t.place.path[1], fresh);
    copy_file(old, t.place.path[1]);
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    copy_file(fresh, t.place.path[1]);
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    unlink(old);
    unlink(fresh);
    finish(&t);
}

static void a_fleet_from_a_copy_is_older_than_its_hint(void **state) {
    struct fault t;
    char old[160];
    start(&t, "f");
    snprintf(old, sizeof old, "%s.old", t.place.path[0]);
    step(&t);
    stop(&t);
    copy_file(t.place.path[0], old);
    assert_int_equal(rename(old, t.place.path[0]), 0);
    t.options.hint_step = 2;
    assert_int_equal(open_again(&t), SHORE_ESTALE);
    says(&t, "older");
    t.options.hint_step = 1;
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

static void a_drive_in_use_is_refused(void **state) {
    struct fault t;
    struct shore_fleet *other;
    start(&t, "f");
    assert_int_equal(shore_fleet_open(t.plain.layout, &t.options, &other, &t.diag), SHORE_EBUSY);
    says(&t, "in use");
    t.options.overwrite = true;
    assert_int_equal(shore_fleet_create(t.plain.layout, &t.options, &other, &t.diag), SHORE_EBUSY);
    step(&t);
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

static void drives_of_two_fleets_do_not_mix(void **state) {
    struct fault a, b;
    start(&a, "ff");
    start(&b, "ff");
    step(&a);
    stop(&a);
    stop(&b);
    a.place.paths[1] = b.place.path[1];
    assert_int_equal(open_again(&a), SHORE_EMISMATCH);
    says(&a, "another fleet");
    a.place.paths[1] = a.place.path[1];
    a.options.fleet_id[0] = 5;
    assert_int_equal(open_again(&a), SHORE_EMISMATCH);
    says(&a, "another run");
    a.options.fleet_id[0] = 0;
    a.options.optimizer = SHORE_SGD;
    assert_int_equal(open_again(&a), SHORE_EMISMATCH);
    says(&a, "another optimizer");
    a.options.optimizer = SHORE_ADAMW;
    struct shore_layout *other;
    assert_int_equal(shore_layout_make(harness_blocks, 2, &other), 0);
    assert_int_equal(shore_fleet_open(other, &a.options, &a.fleet, &a.diag), SHORE_EMISMATCH);
    shore_layout_free(other);
    must(&a, open_again(&a));
    assert_digest(a.fleet, &a.plain, true);
    finish(&a);
    finish(&b);
}

/* ---- making ---- */

static void nothing_is_replaced_unasked(void **state) {
    struct fault t;
    struct shore_fleet *other;
    start(&t, "ff");
    step(&t);
    stop(&t);
    assert_int_equal(shore_fleet_create(t.plain.layout, &t.options, &other, &t.diag), SHORE_EEXISTS);
    says(&t, "--overwrite");
    must(&t, open_again(&t));
    assert_digest(t.fleet, &t.plain, true);
    stop(&t);
    /* a drive that is there stops the making of one that is not */
    char fresh[160];
    snprintf(fresh, sizeof fresh, "%s/fresh.volume", t.place.directory);
    const char *paths[] = {fresh, t.place.path[0]};
    t.options.drives = paths;
    assert_int_equal(shore_fleet_create(t.plain.layout, &t.options, &other, &t.diag), SHORE_EEXISTS);
    assert_int_not_equal(access(fresh, F_OK), 0);
    t.options.overwrite = true;
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    unlink(fresh);
    finish(&t);
}

static void a_fleet_that_memory_is_short_for_leaves_nothing(void **state) {
    struct fault t;
    start(&t, "ff");
    stop(&t);
    unlink(t.place.path[0]);
    unlink(t.place.path[1]);
    uint64_t least = shore_fleet_memory_least_bytes(t.plain.layout, &t.options);
    must(&t, shore__arena_open(least - (1u << 20), &t.options.arena, &t.diag));
    assert_int_equal(shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag), -ENOMEM);
    says(&t, t.place.path[1]);
    assert_int_not_equal(access(t.place.path[0], F_OK), 0);
    assert_int_not_equal(access(t.place.path[1], F_OK), 0);
    shore_arena_close(t.options.arena);
    must(&t, shore__arena_open(least, &t.options.arena, &t.diag));
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    stop(&t);
    shore_arena_close(t.options.arena);
    finish(&t);
}

static void an_unfinished_fleet_is_made_again(void **state) {
    struct fault t;
    start(&t, "f");
    stop(&t);
    unlink(t.place.path[0]);
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    unsigned char digest[16];
    must(&t, shore_fleet_init_block(t.fleet, 0, 0, 1, t.plain.master[0], NULL, NULL, &t.diag));
    assert_int_equal(shore_fleet_seal(t.fleet, 0, &t.diag), -EINVAL);
    says(&t, "initial state");
    assert_int_equal(open_again(&t), SHORE_EMISSING);
    says(&t, "make it again");
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    must(&t, fleet_init(t.fleet, &t.plain, &t.diag));
    must(&t, shore_fleet_digest(t.fleet, false, digest, &t.diag));
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

/* Cut off, made again with other shares, and cut off before its second drive: nothing of that is in the way. */
static void a_making_that_is_cut_off_twice_is_made_again(void **state) {
    static const char *const speeds[] = {"1,1", "3,1"};
    struct fault t;
    char first[200];
    start(&t, "ff");
    stop(&t);
    snprintf(first, sizeof first, "%s/first", t.place.directory);
    unlink(t.place.path[0]);
    unlink(t.place.path[1]);
    for (int i = 0; i < 2; i++) {
        t.options.drive_speeds = speeds[i];
        must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
        stop(&t);
        if (i == 0) copy_file(t.place.path[1], first);
    }
    copy_file(first, t.place.path[1]);
    unlink(first);
    assert_int_equal(open_again(&t), SHORE_EMISSING);
    says(&t, "make it again");
    must(&t, shore_fleet_create(t.plain.layout, &t.options, &t.fleet, &t.diag));
    must(&t, fleet_init(t.fleet, &t.plain, &t.diag));
    must(&t, open_again(&t));
    step(&t);
    assert_digest(t.fleet, &t.plain, true);
    finish(&t);
}

/* What would make every step one that changes nothing is refused in a sentence, and the attempt can go on without it.
 */
static void what_is_left_out_of_an_update_is_named(void **state) {
    static const struct {
        const char *word;
        float coefficient;
        bool with_hyper, frozen;
    } cases[] = {{"coefficient", 0, true, false}, {"shore_hyper_at_step", 1, false, false}, {NULL, 1, false, true}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct fault t;
        struct shore_hyper groups[GROUPS];
        struct shore_wait wait;
        start(&t, "f");
        for (uint32_t g = 0; g < GROUPS; g++) {
            groups[g] = (struct shore_hyper){.lr = 0.1f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f};
            groups[g].frozen = cases[i].frozen;
            if (cases[i].with_hyper) shore_hyper_at_step(&groups[g], t.options.optimizer, 1);
        }
        float *gradient = pages(t.plain.layout->blocks[0].padded_elems * 4);
        struct shore_update update = {.size = sizeof update,
                                      .attempt = shore_fleet_attempt(t.fleet),
                                      .count = t.plain.layout->blocks[0].segments,
                                      .gradient = gradient,
                                      .coefficient = cases[i].coefficient,
                                      .groups = groups,
                                      .ngroups = GROUPS};
        shore_wait_init(&wait);
        assert_int_equal(shore_fleet_update(t.fleet, &update, shore_wait_completion(&wait)), 0);
        assert_int_equal(shore_wait(&wait, &t.diag), cases[i].word ? -EINVAL : 0);
        if (cases[i].word) says(&t, cases[i].word);
        free(gradient);
        shore_fleet_discard(t.fleet);
        step(&t);
        assert_digest(t.fleet, &t.plain, true);
        finish(&t);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_left_out_of_an_update_is_named),
        cmocka_unit_test(a_failed_transfer_fails_its_attempt_only),
        cmocka_unit_test(a_full_disk_is_named),
        cmocka_unit_test(a_failed_flush_is_final),
        cmocka_unit_test(a_broken_fleet_answers_every_commit),
        cmocka_unit_test(a_flipped_bit_is_never_used),
        cmocka_unit_test(a_flipped_bit_of_a_spilled_gradient_is_never_used),
        cmocka_unit_test(a_damaged_record_explains_an_older_step),
        cmocka_unit_test(lost_records_are_no_unfinished_making),
        cmocka_unit_test(step_0_is_accepted),
        cmocka_unit_test(a_half_overwritten_step_is_not_accepted),
        cmocka_unit_test(the_step_before_a_damaged_one_is_accepted),
        cmocka_unit_test(a_step_before_is_not_accepted_without_need),
        cmocka_unit_test(a_missing_drive_is_named),
        cmocka_unit_test(a_drive_from_a_copy_is_stale),
        cmocka_unit_test(a_fleet_from_a_copy_is_older_than_its_hint),
        cmocka_unit_test(a_drive_in_use_is_refused),
        cmocka_unit_test(drives_of_two_fleets_do_not_mix),
        cmocka_unit_test(nothing_is_replaced_unasked),
        cmocka_unit_test(a_fleet_that_memory_is_short_for_leaves_nothing),
        cmocka_unit_test(an_unfinished_fleet_is_made_again),
        cmocka_unit_test(a_making_that_is_cut_off_twice_is_made_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
