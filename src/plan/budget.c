#include "plan/budget.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/diag.h"
#include "base/limits.h"
#include "base/units.h"

#define MIB (UINT64_C(1) << 20)

/* To measure these numbers: compare the peak of resident memory, less the arena, of trainings that differ in one
 * argument. */
uint64_t shore__reserve_bytes(uint32_t blocks, uint32_t tokens, uint32_t threads, uint32_t ndrives) {
    /* Code and data of all libraries, mostly oneDNN's; the tokenizer; the operands that AVX2's products pack.
     * bench/results/avx2.md says how much of it was seen in use. */
    const uint64_t libraries = 56 * MIB;
    const uint64_t thread = MIB + MIB / 2; /* stack in use, malloc arena, oneDNN's code */
    const uint64_t drive = 2 * MIB;        /* threads, queue */
    const uint64_t block = 32 * 1024;      /* descriptions of tensors, requests */
    const uint64_t token = 128;            /* of a tokenizer, above tokens_within: up to there `libraries` is enough */
    const uint32_t tokens_within = 256 * 1024;
    uint64_t more = tokens > tokens_within ? tokens - tokens_within : 0;
    return libraries + more * token + threads * thread + ndrives * drive + blocks * block;
}

uint64_t shore__reserve_measured_bytes(uint64_t resident) {
    const uint64_t libraries = 40 * MIB, whole = 8 * MIB;
    return (resident + libraries + whole - 1) / whole * whole;
}

int shore__budget_too_little(uint64_t asked, const char *memory, const char *what, uint64_t minimum,
                             struct shore_diag *diag) {
    const uint64_t nobodys = 100000; /* bytes: such a small number was meant in another unit */
    char a[48] = "", doubt[96] = "";
    if (asked && asked < nobodys) {
        snprintf(a, sizeof a, "%" PRIu64 " bytes of", asked);
        snprintf(doubt, sizeof doubt, "; did you mean %" PRIu64 "%s?", asked, asked < 100 ? "GiB" : "MiB");
    } else if (asked) {
        snprintf(a, sizeof a, "%s of", shore__format_size(asked).text);
    }
    return shore__fail(diag, SHORE_EBUDGET, "%s %s is too little for %s: minimum %s%s", asked ? a : "the", memory, what,
                       shore__format_size_up(minimum).text, doubt);
}

int shore__budget_of(uint64_t machine, uint64_t asked, uint64_t minimum, uint64_t comfortable, uint64_t *budget,
                     struct shore_diag *diag) {
    char least[64] = "";
    if (asked == 0) {
        asked = machine / 2;
        if (comfortable && asked > comfortable) asked = comfortable;
        if (asked < minimum) asked = minimum;
    }
    if (asked < minimum) return shore__budget_too_little(asked, "memory", "this model", minimum, diag);
    if (machine && asked > machine) {
        if (minimum) snprintf(least, sizeof least, " (minimum %s)", shore__format_size_up(minimum).text);
        return shore__fail(diag, SHORE_EBUDGET, "a budget of %s is more than the memory of this machine, %s%s",
                           shore__format_size_up(asked).text, shore__format_size(machine).text, least);
    }
    *budget = asked;
    return 0;
}

int shore_budget(uint64_t asked, uint64_t minimum, uint64_t comfortable, uint64_t *budget, struct shore_diag *diag) {
    return shore__budget_of(shore__machine_memory_bytes(), asked, minimum, comfortable, budget, diag);
}

int shore__budget_measured(uint64_t asked, uint64_t needed, struct shore_diag *diag) {
    uint64_t budget;
    return shore_budget(asked, asked < needed ? needed + SHORE__RESIDENT_VARIES_BYTES : needed, 0, &budget, diag);
}
