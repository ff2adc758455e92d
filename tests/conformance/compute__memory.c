/* Memory, transfers, streams and events: one suite for every backend, and for one whose memory is not the host's. */
#include "conformance/compute_away.h"
#include "conformance/compute_cases.h"

enum { N = 3000 };
static const char *const devices[] = {"cpu", "reference", "away"};

static struct shore__compute *open_device(const char *device) {
    const struct shore__compute_options options = {.device = device, .fp32 = true, .threads = 2};
    struct shore__compute_description d;
    struct shore__compute *c;
    assert_int_equal(shore__compute_describe(&options, NULL, &d, NULL), 0);
    assert_int_equal(shore__compute_open(&options, &c, NULL), 0);
    assert_int_equal(c->one_memory, d.one_memory);
    assert_int_equal(c->one_memory, strcmp(device, "away") != 0);
    return c;
}
#define DO(call) assert_int_equal(c->ops->call, 0)
#define FOR_EACH_DEVICE(c)                                                       \
    for (size_t device = 0; device < sizeof devices / sizeof *devices; device++) \
        for (struct shore__compute *c = open_device(devices[device]); c; c->ops->close(c), c = NULL)

static void spans(void **state) {
    FOR_EACH_DEVICE(c) {
        struct shore__span s[SHORE_PLACES];
        for (int k = 0; k < SHORE_PLACES; k++) {
            DO(alloc(c, (enum shore_place)k, 5000, &s[k], NULL));
            bool here = k != SHORE_PLACE_DEVICE, there = k == SHORE_PLACE_DEVICE;
            assert_int_equal(s[k].host != NULL, here || c->one_memory);
            assert_int_equal(!shore__buf_is_none(s[k].device), there || c->one_memory);
            assert_int_equal((uintptr_t)s[k].host % 4096, 0);
            assert_int_equal(s[k].device.handle % 4096, 0);
            for (size_t i = 0; s[k].host && i < 5000; i++)
                assert_int_equal(((char *)s[k].host)[i], 0);
        }
        for (int k = 0; k < SHORE_PLACES; k++)
            c->ops->free(c, &s[k]);
    }
}

/* There, squared by a product on one stream, added to itself on another that follows, and back. */
static void transfers(void **state) {
    FOR_EACH_DEVICE(c) {
        struct shore__span here, there;
        struct shore__stream *s[2];
        struct shore_diag diag = {0};
        DO(alloc(c, SHORE_PLACE_PINNED, N * 8, &here, NULL));
        DO(alloc(c, SHORE_PLACE_DEVICE, N * 8, &there, NULL));
        for (int i = 0; i < 2; i++)
            DO(stream_open(c, &s[i], NULL));
        float *in = here.host, *out = in + N;
        for (int turn = 0; turn < 20; turn++) {
            shore__buf a = there.device, b = shore__at(a, (size_t)N * 4);
            for (int i = 0; i < N; i++)
                in[i] = (float)(turn + i);
            assert_int_equal(shore__put(c, s[0], a, in, (size_t)N * 4), 0);
            DO(fill(c, s[0], b, 0.5f, N));
            struct shore_event filled = shore__record(c, s[0]);
            assert_int_equal(c->device.follow(c->device.ctx, s[1], filled), 0);
            DO(add(c, s[1], b, a, b, N));
            DO(zero(c, s[1], b, 4));
            assert_int_equal(shore__get(c, s[1], out, b, (size_t)N * 4), 0);
            assert_int_equal(shore__sync(c, s[1], &diag), 0);
            for (int i = 0; i < N; i++)
                assert_true(out[i] == (i ? (float)(turn + i) + 0.5f : 0));
            assert_true(shore_device_passed(&c->device, filled));
            assert_int_equal(shore_device_wait(&c->device, filled, &diag), 0);
        }
        for (int i = 0; i < 2; i++)
            c->ops->stream_close(c, s[i]);
        c->ops->free(c, &here), c->ops->free(c, &there);
    }
}

/* bf16 that was put into the upper half of its place, and is widened there. */
static void widening(void **state) {
    FOR_EACH_DEVICE(c) {
        struct shore__span here, there;
        struct shore__stream *s;
        DO(alloc(c, SHORE_PLACE_PINNED, N * 6, &here, NULL));
        DO(alloc(c, SHORE_PLACE_DEVICE, N * 4, &there, NULL));
        DO(stream_open(c, &s, NULL));
        uint16_t *in = here.host;
        float *out = (float *)(in + N);
        for (int i = 0; i < N; i++)
            in[i] = shore__f32_to_bf16((float)(i % 256));
        shore__buf upper = shore__at(there.device, (size_t)N * 2);
        assert_int_equal(shore__put(c, s, upper, in, (size_t)N * 2), 0);
        assert_int_equal(c->device.widen(c->device.ctx, s, there.device.handle, upper.handle, N), 0);
        assert_int_equal(shore__get(c, s, out, there.device, (size_t)N * 4), 0);
        assert_int_equal(shore__sync(c, s, NULL), 0);
        for (int i = 0; i < N; i++)
            assert_true(out[i] == (float)(i % 256));
        c->ops->stream_close(c, s);
        c->ops->free(c, &here), c->ops->free(c, &there);
    }
}

/* Memory that both sides see is copied nowhere. */
static void one_place(void **state) {
    FOR_EACH_DEVICE(c) {
        struct shore__span span;
        struct shore__stream *s;
        if (!c->one_memory) continue;
        DO(alloc(c, SHORE_PLACE_DEVICE, 4, &span, NULL));
        DO(stream_open(c, &s, NULL));
        *(float *)span.host = 3;
        assert_int_equal(shore__put(c, s, span.device, span.host, 4), 0);
        DO(add(c, s, span.device, span.device, span.device, 1));
        assert_int_equal(shore__get(c, s, span.host, span.device, 4), 0);
        assert_int_equal(shore__sync(c, s, NULL), 0);
        assert_true(*(float *)span.host == 6);
        c->ops->stream_close(c, s);
        c->ops->free(c, &span);
    }
}

/* What goes wrong long after the call has returned is said to who waits; the host's memory is no tensor. */
static void late_errors(void **state) {
    struct shore__compute *c = open_device("away");
    struct shore__span span, there;
    struct shore__stream *s;
    struct shore_diag diag = {0};
    DO(alloc(c, SHORE_PLACE_PINNED, 4096, &span, NULL));
    DO(alloc(c, SHORE_PLACE_DEVICE, 4096, &there, NULL));
    DO(stream_open(c, &s, NULL));
    DO(zero(c, s, there.device, 4096));
    struct shore_event good = shore__record(c, s);
    assert_int_equal(shore_device_wait(&c->device, good, &diag), 0);
    DO(zero(c, s, (shore__buf){(uintptr_t)span.host}, 4096));
    assert_int_equal(shore__get(c, s, span.host, there.device, 4096), 0);
    assert_int_equal(shore__sync(c, s, &diag), -EFAULT);
    assert_true(diag.text[0] != 0);
    c->ops->stream_close(c, s);
    c->ops->free(c, &span), c->ops->free(c, &there);
    c->ops->close(c);
}

int main(void) {
    shore__compute_register(&away_backend);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spans),     cmocka_unit_test(transfers),   cmocka_unit_test(widening),
        cmocka_unit_test(one_place), cmocka_unit_test(late_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
