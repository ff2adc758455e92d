/* The text of --lora. */
#ifndef SHORE_RUN_LORA_H
#define SHORE_RUN_LORA_H

#include "model/adapters.h"

#define SHORE__LORA_RANK_MOST 65536u
#define SHORE__LORA_TARGETS_MOST 64u

struct shore__lora_text {
    struct shore__lora lora; /* points to this */
    bool all;
    char *text;
    const char *targets[SHORE__LORA_TARGETS_MOST];
};

/* Reads it: r (8), alpha (8), target (all-linear), rslora (off), as PEFT has them; a number alone is r. The caller
 * frees it, whatever is returned, and does not move it before. SHORE_EUSAGE, -ENOMEM. */
int shore__lora_read(const char *text, struct shore__lora_text *out, struct shore_diag *diag);
void shore__lora_free(struct shore__lora_text *text);

#endif
