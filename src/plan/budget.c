#include "plan/budget.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/diag.h"
#include "base/limits.h"
#include "base/units.h"

#define MIB (UINT64_C(1) << 20)

/* To measure these numbers: bench/predict.sh prints what a training takes beside its plan. With bf16 kernels it
 * was 13.4 to 15.1 MiB in 90 trainings of small models; bench/results/ has other processors. */
#define LIBRARIES (12 * MIB + 3 * MIB / 4) /* code and data of all libraries, mostly oneDNN's */
#define THREAD (MIB / 4)                   /* stack in use, malloc arena, oneDNN's code */
#define DRIVE (MIB / 2)                    /* threads, queue */
#define BLOCK (32 * 1024u)                 /* descriptions of tensors, requests */
#define TOKEN 128u                         /* of a tokenizer */
#define OPENCL (70 * MIB)                  /* PoCL's code and data */
/* Of what products may allocate, a third is in use at a time. */
/* A kernel may back the top of a stack, or the end of a heap, with a huge page, and libraries differ. */
#define LIBRARIES_MOST (20 * MIB)
#define THREAD_MOST (2 * MIB)
#define DRIVE_MOST (4 * MIB)
#define OPENCL_MOST (216 * MIB) /* where it compiles */

static uint64_t process(const struct shore__process *p, uint64_t libraries, uint64_t thread, uint64_t drive) {
    return libraries + p->threads * thread + p->ndrives * drive + (uint64_t)p->blocks * BLOCK +
           (uint64_t)p->tokens * TOKEN + p->trace_bytes;
}

uint64_t shore__process_bytes(const struct shore__process *p) {
    return process(p, LIBRARIES + (p->opencl ? OPENCL : 0), THREAD, DRIVE) + p->heap_bytes / 3;
}

uint64_t shore__reserve_bytes(const struct shore__process *p) {
    return process(p, LIBRARIES_MOST + (p->opencl ? OPENCL_MOST : 0), THREAD_MOST, DRIVE_MOST) + p->heap_bytes;
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

int shore__budget_of(const char *name, uint64_t machine, uint64_t asked, uint64_t minimum, uint64_t comfortable,
                     uint64_t *budget, struct shore_diag *diag) {
    char least[64] = "";
    if (asked == 0) {
        asked = machine / 2;
        if (comfortable && asked > comfortable) asked = comfortable;
        if (asked < minimum) asked = minimum;
    }
    if (asked < minimum) return shore__budget_too_little(asked, "memory", "this model", minimum, diag);
    if (machine && asked > machine) {
        if (minimum) snprintf(least, sizeof least, " (minimum %s)", shore__format_size_up(minimum).text);
        return shore__fail(diag, SHORE_EBUDGET, "a budget of %s is more than the memory of %s, %s%s",
                           shore__format_size_up(asked).text, name, shore__format_size(machine).text, least);
    }
    *budget = asked;
    return 0;
}

int shore_budget(uint64_t asked, uint64_t minimum, uint64_t comfortable, uint64_t *budget, struct shore_diag *diag) {
    return shore__budget_of("this machine", shore__machine_memory_bytes(), asked, minimum, comfortable, budget, diag);
}

int shore__budget_measured(uint64_t asked, uint64_t needed, struct shore_diag *diag) {
    uint64_t budget;
    return shore_budget(asked, asked < needed ? needed + SHORE__RESIDENT_VARIES_BYTES : needed, 0, &budget, diag);
}
