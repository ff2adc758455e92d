/* With LONGSHORE_PLAIN set, a traced program computes with the reference of src/compute, in one thread, over functions
 * that follow from IEEE arithmetic alone: the bits of a run are then the same on every processor, with every libm.
 */
#include <math.h>
#include <stdlib.h>

#include "compute/compute.h"

static bool plain;
__attribute__((constructor)) static void look(void) {
    plain = getenv("LONGSHORE_PLAIN") != NULL;
}

#define WRAP(type, name, ...)        \
    type __real_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__); \
    type __wrap_##name(__VA_ARGS__)

static struct shore__compute_options of_reference(const struct shore__compute_options *given) {
    struct shore__compute_options o = *given;
    o.device = "reference";
    return o;
}

WRAP(int, shore__compute_describe, const struct shore__compute_options *options, const struct shore__shapes *shapes,
     struct shore__compute_description *out, struct shore_diag *diag) {
    struct shore__compute_options o = of_reference(options);
    return __real_shore__compute_describe(plain ? &o : options, shapes, out, diag);
}

WRAP(int, shore__compute_open, const struct shore__compute_options *options, struct shore__compute **out,
     struct shore_diag *diag) {
    struct shore__compute_options o = of_reference(options);
    return __real_shore__compute_open(plain ? &o : options, out, diag);
}

/* ---- functions: no table, no fused operation; a few units in the last place of a double -------------------------- */

static const double ln2_high = 0x1.62e42fefa3800p-1, ln2_low = 0x1.ef35793c76730p-45;

static double plain_exp(double x) {
    if (isnan(x)) return x;
    if (x > 710) return INFINITY;
    if (x < -746) return 0;
    double n = floor(x / (ln2_high + ln2_low) + 0.5), r = (x - n * ln2_high) - n * ln2_low, sum = 1;
    for (int i = 18; i > 0; i--)
        sum = 1 + sum * r / i;
    return ldexp(sum, (int)n);
}

static double plain_log(double x) {
    if (isnan(x) || x < 0) return NAN;
    if (x == 0) return -INFINITY;
    if (isinf(x)) return x;
    int n;
    double m = frexp(x, &n), sum = 0;
    if (m < 0.70710678118654752) {
        m *= 2;
        n--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s;
    for (int i = 41; i > 0; i -= 2)
        sum = sum * s2 + 1.0 / i;
    return n * ln2_high + (n * ln2_low + 2 * s * sum);
}

/* Of angles that are no larger than a few thousand. */
static void plain_sincos(double x, double *sine, double *cosine) {
    const double high = 0x1.921fb54400000p+0, low = 0x1.0b4611a626331p-34; /* of half pi */
    double n = floor(x / (high + low) + 0.5), r = (x - n * high) - n * low, r2 = r * r, s = 1, c = 1;
    for (int i = 26; i > 0; i -= 2) {
        s = 1 - s * r2 / (i * (i + 1));
        c = 1 - c * r2 / (i * (i - 1));
    }
    s *= r;
    switch ((int)n & 3) {
    case 0:
        *sine = s, *cosine = c;
        return;
    case 1:
        *sine = c, *cosine = -s;
        return;
    case 2:
        *sine = -s, *cosine = -c;
        return;
    default:
        *sine = -c, *cosine = s;
        return;
    }
}

WRAP(double, exp, double x) {
    return plain ? plain_exp(x) : __real_exp(x);
}
WRAP(double, log, double x) {
    return plain ? plain_log(x) : __real_log(x);
}
WRAP(float, logf, float x) {
    return plain ? (float)plain_log(x) : __real_logf(x);
}
WRAP(float, powf, float x, float y) {
    return plain ? (float)plain_exp((double)y * plain_log(x)) : __real_powf(x, y);
}
WRAP(double, tanh, double x) {
    if (!plain) return __real_tanh(x);
    double e = plain_exp(-2 * fabs(x));
    return copysign((1 - e) / (1 + e), x);
}
WRAP(double, cos, double x) {
    double s, c;
    if (!plain) return __real_cos(x);
    plain_sincos(x, &s, &c);
    return c;
}
WRAP(void, sincosf, float x, float *sine, float *cosine) {
    double s, c;
    if (!plain) {
        __real_sincosf(x, sine, cosine);
        return;
    }
    plain_sincos(x, &s, &c);
    *sine = (float)s;
    *cosine = (float)c;
}
