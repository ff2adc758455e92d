/* Reads tensors that are stored as codes and scales. files/quantized.h finds them. */
#ifndef SHORE_FILES_CODED_H
#define SHORE_FILES_CODED_H

#include "files/safetensors.h"

/* Where a tensor is stored. */
struct shore__stored {
    enum shore__st_type type;
    uint8_t bytes; /* of an element */
    uint32_t file;
    uint64_t offset, elems;
};

/* What 4-bit codes stand for. One for all tensors of a directory. */
struct shore__maps {
    float numbers[16];
    float nested[256]; /* codes of scales */
};

struct shore__coding {
    struct shore__st_coding base;
    enum shore__st_type dtype;     /* of the numbers that come out, in fp32: they are rounded to it */
    enum shore__st_type quantized; /* they are rounded to it first */
    struct shore__stored codes, scales;
    /* Bytes: a scale for each block of rows and columns of each matrix. */
    uint64_t rows, cols, block_rows, block_cols;
    float factor; /* what is multiplied in last */
    /* 4 bits: a scale for each `block` codes in turn. */
    bool high_first;              /* which half of a byte comes first */
    uint32_t block, nested_block; /* nested_block: scales are codes too; 0: they are not */
    const struct shore__maps *maps;
    struct shore__stored nested; /* scales of scales */
    float nested_offset;
};

struct shore__stored shore__stored_of(const struct shore__st_tensor *t);
/* For base.read. */
int shore__coded_bytes(const struct shore__safetensors *st, const struct shore__st_coding *coding, uint64_t first,
                       uint64_t count, float *out, struct shore_diag *diag);
int shore__coded_4bit(const struct shore__safetensors *st, const struct shore__st_coding *coding, uint64_t first,
                      uint64_t count, float *out, struct shore_diag *diag);

#endif
