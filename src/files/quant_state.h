/* The description of a 4-bit tensor that bitsandbytes stores beside it, as JSON. */
#ifndef SHORE_FILES_QUANT_STATE_H
#define SHORE_FILES_QUANT_STATE_H

#include "files/safetensors.h"

struct shore__quant_state {
    uint32_t rank; /* of the tensor that the codes stand for; 8 at most */
    uint64_t shape[8], elems;
    uint32_t blocksize;        /* elements that share a scale: even */
    uint32_t nested_blocksize; /* scales that share a scale; 0: they are stored as they are */
    float nested_offset;
    enum shore__st_type dtype; /* of the numbers that come out: F32, BF16 or F16 */
};

/* type: "nf4" or "fp4", as the tensor's name has it. name: of the tensor, for messages. Errors: SHORE_EINPUT. */
int shore__quant_state_parse(const char *text, size_t bytes, const char *type, const char *name,
                             struct shore__quant_state *out, struct shore_diag *diag);

#endif
