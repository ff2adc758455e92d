/* config.json's quantization_config: how the files store the weights. */
#ifndef SHORE_MODEL_CONFIG_QUANTIZATION_H
#define SHORE_MODEL_CONFIG_QUANTIZATION_H

#include "files/quantized.h"
#include "model/config/keys.h"

/* Reads it, and the dtype to which weights are widened. Refuses by name what is not widened as transformers does. */
void shore__quantization_read(struct shore__keys *config, struct shore__quantization *out);

#endif
