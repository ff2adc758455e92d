/* Any text of --lora: a rank, an alpha and targets that lie in it, or a refusal. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/lora.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size) {
    struct shore_diag diag = {0};
    struct shore__lora_text o;
    char *text = malloc(size + 1);
    assert(text);
    memcpy(text, data, size);
    text[size] = 0;
    int rc = shore__lora_read(text, &o, &diag);
    assert(rc == 0 || (rc == SHORE_EUSAGE && diag.text[0]));
    if (rc == 0) assert(o.lora.rank >= 1 && o.lora.rank <= SHORE__LORA_RANK_MOST && isfinite(o.lora.alpha));
    for (size_t i = 0; rc == 0 && i < o.lora.ntargets; i++)
        assert(o.lora.targets[i][0] && !strchr(o.lora.targets[i], ','));
    shore__lora_free(&o);
    free(text);
    return 0;
}
