/* Quantised weights: tensors of codes and scales become the tensors that they stand for, with the numbers to which
 * transformers dequantises them. */
#ifndef SHORE_FILES_QUANTIZED_H
#define SHORE_FILES_QUANTIZED_H

#include "files/safetensors.h"

enum shore__quant_method {
    SHORE__QUANT_NONE,
    SHORE__QUANT_FP8,          /* NAME of fp8 codes, NAME_scale_inv: a scale for each block of rows and columns */
    SHORE__QUANT_COMPRESSED,   /* compressed-tensors that are not packed: codes of 8 bits, NAME_scale */
    SHORE__QUANT_MXFP4,        /* NAME_blocks, NAME_scales: 32 codes of 4 bits share a power of two */
    SHORE__QUANT_BITSANDBYTES, /* 4 bits: nf4 or fp4, as NAME.quant_state... describes it; 8 bits: .weight and .SCB */
};

/* What config.json says of the files. */
struct shore__quantization {
    enum shore__quant_method method;
    enum shore__st_type dtype; /* the model's: numbers are rounded to it */
    uint32_t block[2];         /* codes of 8 bits: rows and columns of a block; 0: not said */
};

/* Puts the tensors that codes and scales stand for in their place. They are read as others are, in pieces. Errors
 * (SHORE_EINPUT) name the file and the tensor. */
int shore__quantized_resolve(struct shore__safetensors *st, const struct shore__quantization *q,
                             struct shore_diag *diag);

#endif
