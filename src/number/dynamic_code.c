/* Computes the code exactly: each number is one quotient of integers, rounded to fp32 once. (PyTorch rounds between the
 * operations, which gives a last bit that depends on the processor.) */
#include "number/dynamic_code.h"

#include <math.h>
#include <pthread.h>

#define DECADES 7
#define BINADES 32 /* up to [1, 2); the first starts at 0 */

/* Both are below 2^53, so double holds them, and rounding it to fp32 meets no tie. */
static float quotient(int64_t of, int64_t by) {
    return (float)((double)of / (double)by);
}

/* Finds, for each binade, the number of bounds below it and the bound inside it. */
static void find_binades(struct shore__dynamic_code *c) {
    for (int i = 0; i < BINADES; i++) {
        float low = i ? ldexpf(1.0f, i + 1 - BINADES) : -1.0f, high = ldexpf(1.0f, i + 2 - BINADES);
        c->inside[i] = INFINITY;
        for (int d = 0; d < DECADES; d++) {
            c->below[i] += c->bound[d] < low;
            if (c->bound[d] >= low && c->bound[d] < high) c->inside[i] = c->bound[d];
        }
    }
}

/* Decade d holds the centres of n equal parts of [0.1, 1] / ten, where ten = 10^(6 - d). A bound is the middle between
 * the last value of a decade and the first of the next, which has twice as many; or between the last of all and 1. */
static void make(struct shore__dynamic_code *c, bool is_signed) {
    int32_t count = 0; /* codes above 0 so far */
    int64_t ten = 1000000;
    c->zero = is_signed ? 127 : 0;
    c->bound[0] = is_signed ? quotient(11, 40 * ten) : 0.0f; /* unsigned: values above 0 do not become 0 */
    for (int d = 0; d < DECADES; d++, ten /= 10) {
        const int64_t n = INT64_C(1) << (is_signed ? d : d + 1);
        c->scale[d + 1] = quotient(10 * n * ten, 9);
        c->shift[d + 1] = quotient(9 * (count + 1) - n, 9);
        c->bound[d + 1] = d + 1 < DECADES ? quotient(10 * n + 9, 10 * n * ten) : quotient(40 * n - 9, 40 * n);
        for (int64_t k = 0; k < n; k++) {
            float centre = quotient(2 * n + 18 * k + 9, 20 * n * ten);
            c->value[c->zero + ++count] = centre;
            if (is_signed) c->value[c->zero - count] = -centre;
        }
        c->cap[d + 1] = count;
    }
    c->value[255] = 1.0f;
    find_binades(c);
}

static struct shore__dynamic_code codes[2];

static void make_both(void) {
    make(&codes[0], false);
    make(&codes[1], true);
}

const struct shore__dynamic_code *shore__dynamic_code(bool is_signed) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, make_both);
    return &codes[is_signed];
}
