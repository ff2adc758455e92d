/* Losses and gradients of the head against PyTorch's, with rows that count as nothing. */
#include "conformance/compute_cases.h"
#include "numeric/head_expected.h"

enum { SLICE = 4, CASES = sizeof expected / sizeof *expected };

#define CALL(op, ...) assert_int_equal(b->c->ops->op(b->c, NULL, __VA_ARGS__), 0)

static void near_to(const char *what, float got, double wanted) {
    if (!(fabs(got - wanted) <= 2e-6 * (1 + fabs(wanted)))) fail_msg("%s: %.9g instead of %.9g", what, got, wanted);
}

/* A slice's logits, by themselves. */
static shore__buf slice_of(const float *logits, size_t first, size_t n) {
    shore__buf slice = room((size_t)ROWS * n * 4, 0);
    for (size_t r = 0; r < ROWS; r++)
        memcpy(f32(slice) + r * n, logits + r * VOCAB + first, n * 4);
    return slice;
}

static void head_case(struct backend *b, size_t nth) {
    shore__buf targets = room(ROWS * 4, 0), max = room(ROWS * 4, 0), sum = room(ROWS * 4, 0);
    shore__buf target = room(ROWS * 4, 0), loss = room(ROWS * 4, 0);
    size_t counting = 0;
    double total = 0;
    for (size_t r = 0; r < ROWS; r++) {
        ((int32_t *)targets.handle)[r] = expected[nth].targets[r];
        counting += expected[nth].targets[r] >= 0;
        f32(max)[r] = -INFINITY;
        f32(sum)[r] = f32(target)[r] = 0;
    }
    for (size_t first = 0, n; first < VOCAB; first += n) {
        n = VOCAB - first < SLICE ? VOCAB - first : SLICE;
        shore__buf logits = slice_of(given, first, n);
        CALL(head_merge, max, sum, target, logits, targets, ROWS, n, first);
        drop(logits);
    }
    CALL(head_loss, loss, max, sum, target, targets, ROWS);
    for (size_t r = 0; r < ROWS; r++) {
        near_to("a loss", f32(loss)[r], expected[nth].loss[r]);
        total += f32(loss)[r];
    }
    near_to("the mean", (float)(total / (double)counting), expected[nth].mean);
    for (size_t first = 0, n; first < VOCAB; first += n) {
        n = VOCAB - first < SLICE ? VOCAB - first : SLICE;
        shore__buf logits = slice_of(given, first, n), dlogits = room((size_t)ROWS * n * 4, 0);
        CALL(head_dlogits, dlogits, logits, max, sum, targets, 1.0f / (float)counting, 0, ROWS, n, first);
        for (size_t i = 0; i < ROWS * n; i++)
            near_to("a gradient", f32(dlogits)[i], expected[nth].dlogits[i / n][first + i % n]);
        drop(logits), drop(dlogits);
    }
    drop(targets), drop(max), drop(sum), drop(target), drop(loss);
}

static void as_in_pytorch(void **state) {
    const struct shore__shapes shapes = {.unit_rows = ROWS, .seq_len = ROWS, .d_model = 8, .vocab_slice = SLICE};
    struct backend both[2] = {open_reference(SHORE__F32), open_tested(SHORE__F32, 1, &shapes)};
    for (size_t i = 0; i < 2 * CASES; i++)
        head_case(&both[i % 2], i / 2);
    close_backend(&both[0]), close_backend(&both[1]);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(as_in_pytorch)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
