/* Reads and writes safetensors as streams, in one file or sharded (model.safetensors.index.json). */
#ifndef SHORE_FILES_SAFETENSORS_H
#define SHORE_FILES_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

enum shore__st_type {
    SHORE__ST_F32,
    SHORE__ST_BF16,
    SHORE__ST_F16,
    SHORE__ST_E4M3, /* fp8 of torch.float8_e4m3fn */
    SHORE__ST_BYTE, /* BOOL and U8: masks and codes. From here on: never weights */
    SHORE__ST_I8,
    SHORE__ST_E8M0, /* powers of two: scales */
    SHORE__ST_OTHER
};

struct shore__safetensors;
/* How a quantised tensor is read: elements [first, first + count), in the order in which they are stored. */
struct shore__st_coding {
    int (*read)(const struct shore__safetensors *st, const struct shore__st_coding *coding, uint64_t first,
                uint64_t count, float *out, struct shore_diag *diag);
};

struct shore__st_tensor {
    char *name;
    enum shore__st_type type; /* quantised: the type that its values are rounded to */
    uint32_t rank;            /* 8 at most */
    uint64_t shape[8];
    uint64_t elems;
    /* private */
    bool indexed;  /* the index names this file for it */
    bool flipped;  /* stored with its last two dimensions exchanged */
    uint8_t bytes; /* of an element */
    uint32_t file;
    uint64_t offset;                       /* of the data in its file */
    uint64_t first;                        /* elements that are stored before it: it is a slice */
    const struct shore__st_coding *coding; /* NULL: it is stored as it is */
};

struct shore__safetensors {
    char *directory;
    uint32_t ntensors;
    struct shore__st_tensor *tensors; /* sorted by name */
    uint32_t nfiles;
    char **files;
    int *fds;
    struct shore__st_coding *codings; /* of the quantised tensors; one block, freed at close */
};

/* Opens model.safetensors, or the shards that model.safetensors.index.json names, or else every *.safetensors file of
 * the directory. Checks the headers completely: size, types, overflow, offsets, overlap, duplicates, and file lengths.
 * Where two shards hold a tensor, the index says which counts. Shard names must stay in the directory or below it;
 * links as in the Hugging Face cache are followed. */
int shore__safetensors_open(const char *directory, struct shore__safetensors **out, struct shore_diag *diag);
/* Opens one file of a directory; name NULL: as above. */
int shore__safetensors_open_file(const char *directory, const char *name, struct shore__safetensors **out,
                                 struct shore_diag *diag);
void shore__safetensors_close(struct shore__safetensors *st);
const struct shore__st_tensor *shore__safetensors_find(const struct shore__safetensors *st, const char *name);
/* Refuses a tensor (SHORE_EINPUT): the sentence begins with the file and the tensor's name. */
__attribute__((format(printf, 4, 5))) int shore__st_refuse(const struct shore__safetensors *st,
                                                           const struct shore__st_tensor *t, struct shore_diag *diag,
                                                           const char *format, ...);
/* Whether its elements are numbers that a weight may have. */
static inline bool shore__st_is_weight(const struct shore__st_tensor *t) {
    return t->type < SHORE__ST_BYTE;
}
/* Slice i of the first dimension, an expert of a 3-d tensor for example: a tensor of one dimension less, by value. It
 * borrows the name. */
struct shore__st_tensor shore__safetensors_slice(const struct shore__st_tensor *t, uint64_t i);
/* Reads elements [first, first + count) of a tensor as fp32, from any type but OTHER, with pread. */
int shore__safetensors_read(const struct shore__safetensors *st, const struct shore__st_tensor *t, uint64_t first,
                            uint64_t count, float *out, struct shore_diag *diag);
/* Reads columns [col, col + ncols) of a 2-d tensor [rows, cols], transposed: out [ncols, rows]. Reads each byte about
 * once, with memory for ncols * rows elements only. */
int shore__safetensors_read_transposed(const struct shore__safetensors *st, const struct shore__st_tensor *t,
                                       uint64_t col, uint64_t ncols, float *out, struct shore_diag *diag);

/* A writer: declare all tensors, put their data at any offset in any order, then finish. Shards have at most
 * shard_bytes (0: one file, model.safetensors), with tensors of wider types first. Files are written under temporary
 * names, synced, and renamed at finish. */
struct shore__st_writer;
struct shore__st_decl {
    const char *name;
    uint32_t rank;
    uint64_t shape[8];
    enum shore__st_type type; /* F32, BF16 or F16; OTHER: see named */
    const char *named;        /* for OTHER: the type's name in the format, for example "I64" */
};
int shore__st_writer_open(const char *directory, const struct shore__st_decl *tensors, uint32_t ntensors,
                          uint64_t shard_bytes, struct shore__st_writer **out, struct shore_diag *diag);
/* Puts fp32 elements, converted to the tensor's type (nearest even; too large for F16: infinity). */
int shore__st_writer_put(struct shore__st_writer *w, uint32_t tensor, uint64_t first, uint64_t count, const float *data,
                         struct shore_diag *diag);
/* Puts all bytes of a tensor of type OTHER. */
int shore__st_writer_put_bytes(struct shore__st_writer *w, uint32_t tensor, const void *data, struct shore_diag *diag);
int shore__st_writer_finish(struct shore__st_writer *w, struct shore_diag *diag); /* also closes */
/* Writes fp32 values as a type (F32, BF16, F16), as elements [first, first + count) of a tensor at this offset of a
 * file. */
int shore__st_write_values(int fd, enum shore__st_type type, const float *values, uint64_t first, uint64_t count,
                           uint64_t offset, const char *name, struct shore_diag *diag);
void shore__st_writer_abort(struct shore__st_writer *w); /* removes what was written */

#endif
