/* Parts that do not make the fleet that is asked for: each case is said by the volume's name, in every part, and
 * nothing that is whole is touched. */
#include "conformance/drive_parts.h"

#include <errno.h>

#include "seed.h"

static unsigned char told[DRIVES][PART_BYTES];
static const void *const told_at[DRIVES] = {told[0], told[1], told[2], told[3]};
static size_t told_bytes[DRIVES];

static void says(const struct parts *p, const char *text) {
    if (!strstr(p->diag.text, text)) fail_msg("\"%s\" does not contain \"%s\"", p->diag.text, text);
}

static void copy_file(const char *from, const char *to) {
    char command[512];
    snprintf(command, sizeof command, "cp --sparse=always '%s' '%s'", from, to);
    assert_int_equal(system(command), 0);
}

static void open_alone(struct parts *p, uint32_t part) {
    struct shore_fleet_options options = part_options(p, part);
    must(&p->diag, shore_fleet_open(p->plain.layout, &options, &p->fleet[part], &p->diag));
}

static void tell(struct parts *p, uint32_t part, uint32_t as) {
    told_bytes[as] = PART_BYTES;
    must(&p->diag, shore_fleet_part(p->fleet[part], told[as], &told_bytes[as], &p->diag));
}

/* All parts are opened, and say what they are; the test changes that, and every part says the same. */
static void open_and_tell(struct parts *p) {
    for (uint32_t i = 0; i < p->nparts; i++) {
        open_alone(p, i);
        tell(p, i, i);
    }
}

static void all_refuse(struct parts *p, uint32_t nparts, int rc, const char *text) {
    for (uint32_t i = 0; i < p->nparts; i++) {
        int got = shore_fleet_unite(p->fleet[i], told_at, told_bytes, nparts, &p->diag);
        if (got != rc) fail_msg("part %u: %d instead of %d: %s", i, got, rc, p->diag.text);
        says(p, text);
    }
    parts_close(p);
}

/* Nothing has changed: all can be opened, and one process sees it as it was. */
static void is_whole(struct parts *p) {
    struct shore_fleet *whole;
    struct shore_fleet_options options = whole_options(&p->place);
    parts_open(p);
    parts_assert_state(p);
    parts_close(p);
    must(&p->diag, shore_fleet_open(p->plain.layout, &options, &whole, &p->diag));
    assert_digest(whole, &p->plain, true);
    shore_fleet_close(whole);
}

static void make_stepped(struct parts *p, uint32_t nparts) {
    parts_make(p, nparts);
    parts_step(p);
    parts_close(p);
}

static void a_part_that_is_missing_is_named(void **state) {
    struct parts p;
    make_stepped(&p, 2);
    open_and_tell(&p);
    parts_close(&p);
    open_alone(&p, 0);
    assert_int_equal(shore_fleet_unite(p.fleet[0], told_at, told_bytes, 1, &p.diag), SHORE_EMISMATCH);
    says(&p, "no process has ");
    says(&p, "/2.volume, drive 2 of the fleet's 4");
    parts_close(&p);
    is_whole(&p);
    /* a volume of it */
    char away[160];
    snprintf(away, sizeof away, "%s.away", p.place.path[3]);
    assert_int_equal(rename(p.place.path[3], away), 0);
    assert_int_equal(parts_try_open(&p), SHORE_EMISSING);
    says(&p, "/3.volume is missing");
    parts_close(&p);
    assert_int_equal(rename(away, p.place.path[3]), 0);
    is_whole(&p);
    parts_end(&p);
}

static void a_volume_that_two_parts_have_is_named(void **state) {
    struct parts p;
    make_stepped(&p, 2);
    open_and_tell(&p);
    memcpy(told[2], told[1], told_bytes[1]);
    told_bytes[2] = told_bytes[1];
    all_refuse(&p, 3, SHORE_EMISMATCH, "/2.volume is drive 2 of its fleet, and so is ");
    /* where files of other hosts look the same: each has a copy */
    char old[160];
    snprintf(old, sizeof old, "%s.copy", p.place.path[1]);
    copy_file(p.place.path[1], old);
    open_and_tell(&p);
    parts_close(&p);
    struct shore_fleet_options options = part_options(&p, 1);
    const bool mine[DRIVES] = {false, true, true, true};
    const char *paths[DRIVES] = {p.place.path[0], old, p.place.path[2], p.place.path[3]};
    options.drives = paths;
    options.mine = mine;
    must(&p.diag, shore_fleet_open(p.plain.layout, &options, &p.fleet[1], &p.diag));
    tell(&p, 1, 1);
    open_alone(&p, 0);
    all_refuse(&p, 2, SHORE_EMISMATCH, "two processes have it, or one is a copy of the other");
    unlink(old);
    /* on one host, it is in use */
    options = part_options(&p, 1);
    options.mine = mine;
    open_alone(&p, 0);
    assert_int_equal(shore_fleet_open(p.plain.layout, &options, &p.fleet[1], &p.diag), SHORE_EBUSY);
    says(&p, "/1.volume");
    parts_close(&p);
    is_whole(&p);
    parts_end(&p);
}

static void parts_of_other_fleets_are_named(void **state) {
    struct parts p, other;
    make_stepped(&p, 2);
    /* another fleet of the same run's paths */
    memset(&other, 0, sizeof other);
    place_open(&other.place, "ffff");
    plain_open(&other.plain, SHORE_ADAMW, false);
    other.nparts = 2;
    struct shore_fleet_options options = part_options(&other, 1);
    options.fleet_id[1]++;
    must(&p.diag, shore_fleet_create(p.plain.layout, &options, &other.fleet[1], &p.diag));
    open_and_tell(&p);
    tell(&other, 1, 1);
    shore_fleet_close(p.fleet[1]);
    p.fleet[1] = NULL;
    assert_int_equal(shore_fleet_unite(p.fleet[0], told_at, told_bytes, 2, &p.diag), SHORE_EMISMATCH);
    says(&p, "/2.volume belongs to another run");
    parts_close(&p);
    shore_fleet_close(other.fleet[1]);
    /* another placement: what stayed behind */
    options.fleet_id[1]--;
    options.generation = 2;
    options.overwrite = true;
    must(&p.diag, shore_fleet_create(p.plain.layout, &options, &other.fleet[1], &p.diag));
    tell(&other, 1, 1);
    open_alone(&p, 0);
    assert_int_equal(shore_fleet_unite(p.fleet[0], told_at, told_bytes, 2, &p.diag), SHORE_EMISMATCH);
    says(&p, "/2.volume has placement 2, and the others have placement 1");
    parts_close(&p);
    shore_fleet_close(other.fleet[1]);
    other.fleet[1] = NULL;
    /* other shares of the same fleet */
    options.generation = 1;
    options.drive_speeds = "9,1,1,1";
    must(&p.diag, shore_fleet_create(p.plain.layout, &options, &other.fleet[1], &p.diag));
    tell(&other, 1, 1);
    options = part_options(&other, 0);
    must(&p.diag, shore_fleet_create(p.plain.layout, &options, &other.fleet[0], &p.diag));
    tell(&other, 0, 0);
    for (uint32_t i = 0; i < 2; i++) {
        assert_int_equal(shore_fleet_unite(other.fleet[i], told_at, told_bytes, 2, &p.diag), SHORE_EMISMATCH);
        says(&p, "segments in the model");
    }
    /* one that makes a fleet, and one that goes on with it */
    open_alone(&p, 1);
    tell(&p, 1, 1);
    parts_close(&other);
    options = part_options(&other, 0);
    must(&p.diag, shore_fleet_create(p.plain.layout, &options, &other.fleet[0], &p.diag));
    tell(&other, 0, 0);
    assert_int_equal(shore_fleet_unite(other.fleet[0], told_at, told_bytes, 2, &p.diag), SHORE_EMISMATCH);
    says(&p, "holds the state of a run already, and this process makes a new one");
    assert_int_equal(shore_fleet_unite(p.fleet[1], told_at, told_bytes, 2, &p.diag), SHORE_ECORRUPT);
    says(&p, "both commit records are gone");
    parts_close(&p);
    is_whole(&p);
    parts_end(&other);
    parts_end(&p);
}

static void a_part_that_is_behind_is_named(void **state) {
    struct parts p;
    char old[160];
    make_stepped(&p, 2);
    for (uint32_t round = 0; round < 2; round++) {
        snprintf(old, sizeof old, "%s.old", p.place.path[3]);
        copy_file(p.place.path[3], old);
        /* one step behind, and an epoch; then two steps */
        parts_open(&p);
        parts_step(&p);
        if (round) parts_step(&p);
        parts_close(&p);
        char fresh[160];
        snprintf(fresh, sizeof fresh, "%s.fresh", p.place.path[3]);
        assert_int_equal(rename(p.place.path[3], fresh), 0);
        assert_int_equal(rename(old, p.place.path[3]), 0);
        open_and_tell(&p);
        all_refuse(&p, 2, SHORE_ESTALE, "/3.volume is at step ");
        assert_int_equal(rename(fresh, p.place.path[3]), 0);
        is_whole(&p);
    }
    /* all of it, behind what the run knows */
    struct shore_fleet_options options = part_options(&p, 0);
    options.hint_step = p.plain.step + 1;
    must(&p.diag, shore_fleet_open(p.plain.layout, &options, &p.fleet[0], &p.diag));
    open_alone(&p, 1);
    tell(&p, 0, 0);
    tell(&p, 1, 1);
    assert_int_equal(shore_fleet_unite(p.fleet[0], told_at, told_bytes, 2, &p.diag), SHORE_ESTALE);
    says(&p, "put back from an older copy");
    parts_close(&p);
    parts_end(&p);
}

/* Some parts have the step, others have not: all go on from the one before, whoever opens, and then make that step. */
static void a_kill_between_the_commits_of_parts_loses_that_step(void **state) {
    for (uint32_t ahead = 0; ahead < 3; ahead++) {
        struct parts p;
        make_stepped(&p, 3);
        parts_open(&p);
        for (uint32_t i = 0; i < p.nparts; i++)
            if (i == ahead || (ahead == 2 && i == 1))
                must(&p.diag, fleet_step(p.fleet[i], &p.plain, p.plain.step, &p.diag));
        parts_close(&p);
        if (ahead) p.nparts = 2;
        if (ahead != 1) parts_open(&p);
        if (ahead != 1) parts_assert_state(&p);
        if (ahead != 1) parts_step(&p);
        parts_close(&p);
        is_whole(&p);
        parts_end(&p);
    }
}

/* Some parts have written their epoch, others have not. */
static void a_kill_between_the_epochs_of_parts_loses_nothing(void **state) {
    struct parts p;
    make_stepped(&p, 2);
    for (uint32_t i = 0; i < 2; i++) {
        open_and_tell(&p);
        must(&p.diag, shore_fleet_unite(p.fleet[i], told_at, told_bytes, 2, &p.diag));
        parts_close(&p);
    }
    is_whole(&p);
    parts_open(&p);
    parts_step(&p);
    parts_close(&p);
    is_whole(&p);
    parts_end(&p);
}

/* A making that was cut off is made again by the same call, whichever parts had sealed. What was used stays. */
static void a_making_that_is_cut_off_is_made_again(void **state) {
    for (uint32_t sealed = 0; sealed <= 2; sealed++) {
        struct parts p;
        struct shore_fleet *f;
        parts_make(&p, 2);
        parts_close(&p);
        place_close(&p.place);
        plain_close(&p.plain);
        memset(&p, 0, sizeof p);
        place_open(&p.place, "ffff");
        plain_open(&p.plain, SHORE_ADAMW, false);
        p.nparts = 2;
        for (uint32_t again = 0; again < 2; again++) {
            for (uint32_t i = 0; i < p.nparts; i++) {
                struct shore_fleet_options options = part_options(&p, i);
                must(&p.diag, shore_fleet_create(p.plain.layout, &options, &p.fleet[i], &p.diag));
            }
            must(&p.diag, parts_unite(&p));
            for (uint32_t i = 0; i < (again ? 2 : sealed); i++)
                must(&p.diag, fleet_init(p.fleet[i], &p.plain, &p.diag));
            parts_close(&p);
            if (again || sealed == 2) continue;
            struct shore_fleet_options options = whole_options(&p.place);
            assert_int_equal(shore_fleet_open(p.plain.layout, &options, &f, &p.diag), SHORE_EMISSING);
            says(&p, "make it again");
            assert_int_equal(parts_try_open(&p), SHORE_EMISSING);
            says(&p, "make it again");
            parts_close(&p);
        }
        parts_open(&p);
        parts_step(&p);
        parts_close(&p);
        is_whole(&p);
        struct shore_fleet_options options = part_options(&p, 0);
        assert_int_equal(shore_fleet_create(p.plain.layout, &options, &f, &p.diag), SHORE_EEXISTS);
        is_whole(&p);
        parts_end(&p);
    }
}

static void what_cannot_be_a_part_is_refused(void **state) {
    struct parts p;
    struct shore_fleet *f;
    memset(&p, 0, sizeof p);
    place_open(&p.place, "fffr");
    plain_open(&p.plain, SHORE_ADAMW, false);
    p.nparts = 2;
    struct shore_fleet_options options = part_options(&p, 0);
    assert_int_equal(shore_fleet_create(p.plain.layout, &options, &f, &p.diag), SHORE_EUSAGE);
    says(&p, "ram: cannot be a drive of several processes");
    p.place.paths[3] = p.place.path[3];
    const bool apart[DRIVES] = {true, false, true, false};
    options.mine = apart;
    assert_int_equal(shore_fleet_create(p.plain.layout, &options, &f, &p.diag), SHORE_EUSAGE);
    says(&p, "the drives of a process follow each other");
    const uint64_t accept = 0;
    options = part_options(&p, 0);
    options.accept_step = &accept;
    assert_int_equal(shore_fleet_open(p.plain.layout, &options, &f, &p.diag), SHORE_EUSAGE);
    says(&p, "let one process open the whole fleet");
    options = part_options(&p, 0);
    memset(options.fleet_id, 0, sizeof options.fleet_id);
    assert_int_equal(shore_fleet_create(p.plain.layout, &options, &f, &p.diag), -EINVAL);
    says(&p, "fleet_id");
    assert_int_not_equal(access(p.place.path[0], F_OK), 0);
    plain_close(&p.plain);
    place_close(&p.place);

    make_stepped(&p, 2);
    options = part_options(&p, 0);
    const char *turned[DRIVES] = {p.place.path[1], p.place.path[0], p.place.path[2], p.place.path[3]};
    options.drives = turned;
    assert_int_equal(shore_fleet_open(p.plain.layout, &options, &f, &p.diag), SHORE_EMISMATCH);
    says(&p, "in the order of the fleet");
    parts_open(&p);
    unsigned char digest[16];
    assert_int_equal(shore_fleet_digest(p.fleet[0], false, digest, &p.diag), -EINVAL);
    says(&p, "shore_fleet_digest_of");
    assert_int_equal(shore_fleet_reconnect(p.fleet[0], &p.diag), -ENOTSUP);
    assert_int_equal(shore_fleet_unite(p.fleet[0], told_at, told_bytes, 2, &p.diag), -EINVAL);
    size_t bytes = 10;
    assert_int_equal(shore_fleet_part(p.fleet[0], told[0], &bytes, &p.diag), -ENOSPC);
    assert_true(bytes > 10 && bytes < PART_BYTES);
    parts_close(&p);
    options = whole_options(&p.place);
    must(&p.diag, shore_fleet_open(p.plain.layout, &options, &f, &p.diag));
    assert_int_equal(shore_fleet_part(f, told[0], &bytes, &p.diag), -EINVAL);
    assert_int_equal(shore_fleet_confirm(f, 1), 0);
    shore_fleet_close(f);
    parts_end(&p);
}

/* Cut off anywhere, or with a byte that is another: refused, or taken for what it says. */
static void malformed_parts_are_refused(void **state) {
    struct parts p;
    const uint64_t seed = test_seed();
    make_stepped(&p, 2);
    parts_open(&p);
    parts_close(&p);
    open_and_tell(&p);
    parts_close(&p);
    for (uint32_t i = 0; i < 60; i++) {
        const size_t bytes = told_bytes[1];
        const size_t at = shore__random_u64(seed, 0, i) % bytes;
        const unsigned char was = told[1][at];
        if (i % 2)
            told[1][at] ^= (unsigned char)(1u << shore__random_u64(seed, 1, i) % 8);
        else
            told_bytes[1] = at;
        open_alone(&p, 0);
        int rc = shore_fleet_unite(p.fleet[0], told_at, told_bytes, 2, &p.diag);
        if (i % 2 == 0) assert_true(rc == -EINVAL || rc == SHORE_EMISMATCH);
        parts_close(&p);
        told[1][at] = was;
        told_bytes[1] = bytes;
    }
    parts_end(&p);
}

/* A part takes the memory of its own drives, and with the least of it the whole makes the same bits. */
static void a_part_takes_memory_for_its_own_drives(void **state) {
    struct parts p;
    make_stepped(&p, 2);
    struct shore_fleet_options options = whole_options(&p.place);
    const uint64_t whole = shore_fleet_memory_least_bytes(p.plain.layout, &options);
    struct shore_arena *arena[2];
    for (uint32_t i = 0; i < 2; i++) {
        options = part_options(&p, i);
        const uint64_t least = shore_fleet_memory_least_bytes(p.plain.layout, &options);
        assert_true(least < whole);
        must(&p.diag, shore_arena_open(least - (1u << 20), 0, &arena[i], &p.diag));
        options.arena = arena[i];
        assert_int_equal(shore_fleet_open(p.plain.layout, &options, &p.fleet[i], &p.diag), -ENOMEM);
        shore_arena_close(arena[i]);
        must(&p.diag, shore_arena_open(least, 0, &arena[i], &p.diag));
        options.arena = arena[i];
        must(&p.diag, shore_fleet_open(p.plain.layout, &options, &p.fleet[i], &p.diag));
    }
    must(&p.diag, parts_unite(&p));
    parts_step(&p);
    parts_assert_state(&p);
    const bool none[DRIVES] = {false};
    options = whole_options(&p.place);
    options.mine = none;
    assert_int_equal(shore_fleet_memory_bytes(p.plain.layout, &options), 0);
    parts_end(&p);
    shore_arena_close(arena[0]);
    shore_arena_close(arena[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_part_that_is_missing_is_named),
        cmocka_unit_test(a_volume_that_two_parts_have_is_named),
        cmocka_unit_test(parts_of_other_fleets_are_named),
        cmocka_unit_test(a_part_that_is_behind_is_named),
        cmocka_unit_test(a_kill_between_the_commits_of_parts_loses_that_step),
        cmocka_unit_test(a_kill_between_the_epochs_of_parts_loses_nothing),
        cmocka_unit_test(a_making_that_is_cut_off_is_made_again),
        cmocka_unit_test(what_cannot_be_a_part_is_refused),
        cmocka_unit_test(malformed_parts_are_refused),
        cmocka_unit_test(a_part_takes_memory_for_its_own_drives),
    };
    return cmocka_run_group_tests(tests, parts_go_to_memory, parts_come_back);
}
