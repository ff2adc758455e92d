/* adapter_config.json: what is taken has a scale, or a sentence, for any module. */
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/exchange/adapter_config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const modules[] = {"model.layers.1.self_attn.q_proj", "transformer.h.0.attn.c_attn", "lm_head",
                                          ".1.2.", ""};
    struct shore__adapter_config config;
    struct shore_diag diag = {0};
    float scale;
    json_t *said = json_loadb((const char *)data, bytes, JSON_REJECT_DUPLICATES, NULL);
    int rc = json_is_object(said) ? shore__adapter_config_take(said, "x", &config, &diag) : SHORE_EINPUT;
    for (size_t i = 0; rc == 0 && i < sizeof modules / sizeof *modules; i++)
        for (uint64_t rank = 0; rank < 9; rank += 4) {
            int taken = shore__adapter_config_scale(&config, modules[i], rank, &scale, &diag);
            if (taken > 0 || (taken && !diag.text[0]) || (!taken && (!rank || !isfinite(scale)))) abort();
        }
    json_decref(said);
    return 0;
}
