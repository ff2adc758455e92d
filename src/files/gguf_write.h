/* Writes GGUF (version 3): metadata, then tensors, whose elements come in any order. The file is whole or absent. */
#ifndef SHORE_FILES_GGUF_WRITE_H
#define SHORE_FILES_GGUF_WRITE_H

#include <stdbool.h>

#include "files/safetensors.h"

struct shore__gguf;
enum shore__gguf_kind {
    SHORE__GGUF_U32 = 4,
    SHORE__GGUF_I32,
    SHORE__GGUF_F32,
    SHORE__GGUF_BOOL,
    SHORE__GGUF_TEXT,
};

/* Refuses a path that something has already. Nothing is written before shore__gguf_begin(). */
int shore__gguf_open(const char *path, struct shore__gguf **out, struct shore_diag *diag);

/* Metadata. Memory that is short is reported by shore__gguf_begin(). */
void shore__gguf_u32(struct shore__gguf *g, const char *key, uint32_t value);
void shore__gguf_f32(struct shore__gguf *g, const char *key, float value);
void shore__gguf_bool(struct shore__gguf *g, const char *key, bool value);
void shore__gguf_text(struct shore__gguf *g, const char *key, const char *text);
/* Begins a list of so many items; each follows. */
void shore__gguf_list(struct shore__gguf *g, const char *key, enum shore__gguf_kind of, uint64_t count);
void shore__gguf_item_text(struct shore__gguf *g, const char *text, size_t bytes);
void shore__gguf_item_i32(struct shore__gguf *g, int32_t value);
void shore__gguf_item_f32(struct shore__gguf *g, float value);
void shore__gguf_item_bool(struct shore__gguf *g, bool value);

/* Declares a tensor, with its dimensions as PyTorch has them (GGUF has them the other way round). type: F32, F16 or
 * BF16. Returns its number, from 0 on; they lie in this order. */
uint32_t shore__gguf_tensor(struct shore__gguf *g, const char *name, uint32_t rank, const uint64_t *dims,
                            enum shore__st_type type);

/* Takes the room of the file, and writes all but the tensors. */
int shore__gguf_begin(struct shore__gguf *g, struct shore_diag *diag);
/* Puts fp32 elements, converted to the tensor's type. */
int shore__gguf_put(struct shore__gguf *g, uint32_t tensor, uint64_t first, uint64_t count, const float *values,
                    struct shore_diag *diag);
/* Syncs and renames; also closes. Refuses tensors that have not got all of their elements. Durable: on return. */
int shore__gguf_finish(struct shore__gguf *g, struct shore_diag *diag);
void shore__gguf_abort(struct shore__gguf *g); /* removes what was written; NULL is allowed */

#endif
