/* UPDATE's arithmetic alone: AdamW elements a second on one thread, on chunks that stay in L2: for each version with
 * fp32 moments, and with 8-bit ones. Usage: near_update [SECONDS for each version, default 0.5] */
#include <stdio.h>
#include <stdlib.h>

#include "base/prng.h"
#include "base/units.h"
#include "near/moments.h"

enum { ELEMS = 32768 }; /* 12 bytes of state twice, 4 of gradient, 2 of parameters: 960 KiB */

static uint16_t hi[2][ELEMS], lo[2][ELEMS], params[ELEMS];
static float m[2][ELEMS], v[2][ELEMS], gradient[ELEMS];
static unsigned char m_code[2][ELEMS], v_code[2][ELEMS];
static float m_absmax[2][ELEMS / SHORE__MOMENT_BLOCK_ELEMS], v_absmax[2][ELEMS / SHORE__MOMENT_BLOCK_ELEMS];

static void update(const struct shore__near_version *version, const struct shore_hyper *h, size_t a, size_t b) {
    if (version) {
        struct shore__planes in = {hi[a], lo[a], m[a], v[a]}, out = {hi[b], lo[b], m[b], v[b]};
        shore__near_update_with(version, SHORE_ADAMW, h, 1.0f, &in, &out, gradient, params, false, ELEMS);
    } else {
        struct shore__planes8 in = {hi[a], lo[a], {m_code[a], m_absmax[a]}, {v_code[a], v_absmax[a]}};
        struct shore__planes8 out = {hi[b], lo[b], {m_code[b], m_absmax[b]}, {v_code[b], v_absmax[b]}};
        shore__near_update8(SHORE_ADAMW, h, 1.0f, &in, &out, gradient, params, false, ELEMS);
    }
}

/* version NULL: 8-bit moments, with the best */
static void measure(const struct shore__near_version *version, const struct shore_hyper *h, double limit) {
    uint64_t begin = shore__now_ns(), rounds = 0;
    double seconds;
    do {
        update(version, h, rounds & 1, 1 - (rounds & 1));
        rounds++;
        seconds = (double)(shore__now_ns() - begin) * 1e-9;
    } while (seconds < limit);
    double rate = (double)rounds * ELEMS / seconds;
    printf("%-7s %.2f G elements/s, %.1f GB/s of state\n", version ? version->name : "8bit", rate * 1e-9,
           rate * (version ? 24e-9 : 12e-9));
}

int main(int argc, char **argv) {
    double limit = argc > 1 ? atof(argv[1]) : 0.5;
    struct shore_hyper h = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    shore_hyper_at_step(&h, SHORE_ADAMW, 10);
    for (size_t i = 0; i < ELEMS; i++) {
        gradient[i] = shore__random_normal(1, 0, i);
        v[0][i] = v[1][i] = 1.0f;
    }
    for (const struct shore__near_version *version = shore__near_versions(); version->name; version++)
        if (version->usable()) measure(version, &h, limit);
    measure(NULL, &h, limit);
    return 0;
}
