/* Lanes, slots and waits. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdlib.h>

#include "drive/lane.h"

struct job {
    struct shore__job job;
    int number;
};

struct log {
    struct shore__lane lane;
    pthread_mutex_t gate; /* held: the thread does not begin */
    int order[64], n;
};

static void *run(void *ctx) {
    struct log *log = ctx;
    struct shore__job *job;
    pthread_mutex_lock(&log->gate);
    pthread_mutex_unlock(&log->gate);
    while ((job = shore__lane_pop(&log->lane, true))) {
        log->order[log->n++] = ((struct job *)job)->number;
        free(job);
        shore__lane_finished(&log->lane);
    }
    return NULL;
}

static void push(struct log *log, uint32_t order, int number) {
    struct job *job = calloc(1, sizeof *job);
    job->job.order = order;
    job->number = number;
    shore__lane_push(&log->lane, &job->job);
}

static void lower_orders_run_first_then_arrival(void **state) {
    static const int want[] = {3, 6, 1, 5, 0, 2, 7, 4};
    struct log log = {.gate = PTHREAD_MUTEX_INITIALIZER};
    pthread_mutex_lock(&log.gate);
    assert_int_equal(shore__lane_start(&log.lane, "test", run, &log), 0);
    push(&log, 7, 0);
    push(&log, 5, 1);
    push(&log, 7, 2);
    push(&log, 1, 3);
    push(&log, UINT32_MAX, 4);
    push(&log, 5, 5);
    push(&log, 1, 6);
    push(&log, 7, 7);
    pthread_mutex_unlock(&log.gate);
    shore__lane_drain(&log.lane);
    assert_int_equal(log.n, 8);
    assert_memory_equal(log.order, want, sizeof want);
    push(&log, 0, 8);
    shore__lane_stop(&log.lane);
    assert_int_equal(log.n, 9);
    shore__lane_stop(&log.lane);
}

/* Takes a job, pushes another of order 1, and swaps them: the number of what comes. */
static int swap_for_urgent(struct log *log, int number) {
    struct shore__job *job = shore__lane_pop(&log->lane, false);
    assert_ptr_equal(shore__lane_swap(&log->lane, job), job); /* none is more urgent */
    push(log, 1, number);
    struct job *urgent = (struct job *)shore__lane_swap(&log->lane, job);
    int got = urgent->number;
    free(urgent);
    shore__lane_finished(&log->lane);
    return got;
}

static void what_is_more_urgent_is_taken_instead(void **state) {
    static const int want[] = {0, 2, 1, 4};
    struct log log = {.gate = PTHREAD_MUTEX_INITIALIZER};
    pthread_mutex_lock(&log.gate);
    assert_int_equal(shore__lane_start(&log.lane, "test", run, &log), 0);
    push(&log, 5, 0);
    assert_int_equal(swap_for_urgent(&log, 7), 7); /* put back as the only one */
    push(&log, 9, 1);
    push(&log, 5, 2);
    assert_int_equal(swap_for_urgent(&log, 8), 8); /* before its like, and what is less urgent */
    push(&log, 9, 4);
    pthread_mutex_unlock(&log.gate);
    shore__lane_stop(&log.lane);
    assert_int_equal(log.n, 4);
    assert_memory_equal(log.order, want, sizeof want);
}

static void slots_follow_the_steps(void **state) {
    struct shore__slots s;
    shore__slots_init(&s);
    assert_int_equal(shore__slots_find(&s, 0), -1);
    assert_int_equal(shore__slots_write(&s, 0, 0), SHORE_ESTALE);
    shore__slots_set(&s, 1, 7);
    assert_int_equal(shore__slots_find(&s, 7), 1);
    assert_int_equal(shore__slots_find(&s, 8), -1);
    assert_int_equal(shore__slots_find(&s, UINT64_MAX), -1);
    assert_int_equal(shore__slots_write(&s, 8, 0), SHORE_ESTALE);
    assert_int_equal(shore__slots_write(&s, 7, 1), SHORE_EDISCARDED);
    assert_int_equal(shore__slots_write(&s, 7, 0), 1);
    assert_int_equal(shore__slots_find(&s, 8), 0);
    shore__slots_discard(&s, 1);
    assert_int_equal(shore__slots_find(&s, 8), -1);
    assert_int_equal(shore__slots_write(&s, 7, 0), SHORE_EDISCARDED);
    assert_int_equal(shore__slots_write(&s, 7, 1), 1);
    shore__slots_commit(&s, 8, false);
    assert_int_equal(shore__slots_active(&s, NULL), 0);
    assert_int_equal(shore__slots_find(&s, 7), 1);
    shore__slots_commit(&s, 9, true);
    uint64_t step;
    assert_int_equal(shore__slots_active(&s, &step), 0);
    assert_int_equal(step, 9);
    assert_int_equal(shore__slots_find(&s, 7), -1);
    pthread_mutex_destroy(&s.mutex);
}

static void a_wait_carries_the_result(void **state) {
    struct shore_wait w;
    struct shore_diag diag = {.text = "a sentence"}, got = {0};
    shore_wait_init(&w);
    assert_false(shore_wait_is_done(&w));
    struct shore_completion done = shore_wait_completion(&w);
    done.fn(done.ctx, SHORE_ECORRUPT, &diag);
    assert_true(shore_wait_is_done(&w));
    assert_int_equal(shore_wait(&w, &got), SHORE_ECORRUPT);
    assert_string_equal(got.text, "a sentence");
}

static void a_drive_without_segments_commits(void **state) {
    struct shore__slots slots;
    uint64_t step;
    (void)state;
    shore__slots_init(&slots);
    shore__slots_set(&slots, 1, 5);
    shore__slots_commit(&slots, 6, false);
    assert_int_equal(shore__slots_active(&slots, &step), 0);
    assert_int_equal(step, 6);
    assert_int_equal(shore__slots_find(&slots, 5), 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_drive_without_segments_commits),
        cmocka_unit_test(lower_orders_run_first_then_arrival),
        cmocka_unit_test(what_is_more_urgent_is_taken_instead),
        cmocka_unit_test(slots_follow_the_steps),
        cmocka_unit_test(a_wait_carries_the_result),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
