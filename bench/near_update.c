/* UPDATE's arithmetic alone: AdamW elements a second on one thread, for each version, on chunks that stay in L2.
 * Usage: near_update [SECONDS for each version, default 0.5] */
#include <stdio.h>
#include <stdlib.h>

#include "base/prng.h"
#include "base/units.h"
#include "near/update.h"

enum { ELEMS = 32768 }; /* 12 bytes of state twice, 4 of gradient, 2 of parameters: 960 KiB */

int main(int argc, char **argv) {
    double limit = argc > 1 ? atof(argv[1]) : 0.5;
    static uint16_t hi[2][ELEMS], lo[2][ELEMS], params[ELEMS];
    static float m[2][ELEMS], v[2][ELEMS], gradient[ELEMS];
    struct shore_hyper h = {.lr = 1e-4f, .beta1 = 0.9f, .beta2 = 0.95f, .eps = 1e-8f, .weight_decay = 0.1f};
    shore_hyper_at_step(&h, SHORE_ADAMW, 10);
    for (size_t i = 0; i < ELEMS; i++) {
        gradient[i] = shore__random_normal(1, 0, i);
        v[0][i] = v[1][i] = 1.0f;
    }
    for (const struct shore__near_version *version = shore__near_versions(); version->name; version++) {
        if (!version->usable) continue;
        uint64_t begin = shore__now_ns(), rounds = 0;
        double seconds;
        do {
            size_t a = rounds & 1, b = a ^ 1;
            struct shore__planes in = {hi[a], lo[a], m[a], v[a]}, out = {hi[b], lo[b], m[b], v[b]};
            version->update(SHORE_ADAMW, &h, 1.0f, &in, &out, gradient, params, false, ELEMS);
            rounds++;
            seconds = (double)(shore__now_ns() - begin) * 1e-9;
        } while (seconds < limit);
        double rate = (double)rounds * ELEMS / seconds;
        printf("%-7s %.2f G elements/s, %.1f GB/s of state\n", version->name, rate * 1e-9, rate * 24e-9);
    }
    return 0;
}
