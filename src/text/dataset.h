/* Token data: built once into a file of the run, then read with pread (never mapped: mapped pages count as resident).
 */
#ifndef SHORE_TEXT_DATASET_H
#define SHORE_TEXT_DATASET_H

#include "text/tokenizer.h"

struct shore__dataset_stats {
    uint64_t tokens, documents;
    uint64_t text_bytes; /* UTF-8 bytes behind the tokens; 0 if unknown (.bin) */
    uint64_t bad_rows;   /* that were skipped; known of what is built, not of what is opened */
};

typedef int (*shore__progress_fn)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
typedef void (*shore__note_fn)(void *ctx, const char *text); /* one sentence for the user */
/* How data are read; zeros are the defaults. */
struct shore__reading {
    bool parse_special;          /* special tokens in the text get their ids */
    unsigned threads;            /* that encode, with the same tokens for every number; 0: all of the machine */
    shore__progress_fn progress; /* may be NULL; returning nonzero cancels (-ECANCELED) */
    void *progress_ctx;
    shore__note_fn note; /* may be NULL */
    void *note_ctx;
    const char *text_field; /* of a record, with its text; NULL: "text" */
    bool skip_bad_rows;     /* and count them; otherwise the first is an error */
    uint64_t memory_bytes;  /* the budget; 0: none */
};
/* Tokenizes what the names mean (files, directories, patterns) into path, a token file with a checked header. Files are
 * UTF-8 text; .jsonl, .ndjson and .json with records, whose text is a field; llm.c's .bin (16-bit magic 20240520 and
 * 32-bit 20240801); each also with .gz or .zst. Documents (files, records) are joined by end-of-text. Streams: memory
 * grows neither with the files nor with a record. vocab: tokens from this on are refused. SHORE_EINPUT names file and
 * position, of records also the line. The file is written beside path and renamed. */
int shore__dataset_build(const char *const *names, size_t nnames, const struct shore__reading *how,
                         struct shore__tokenizer *tokenizer, uint32_t vocab, const char *path,
                         struct shore__dataset_stats *stats, struct shore_diag *diag);

struct shore__dataset;
/* The same into a file in a directory that nobody else sees, and that is gone when it is closed, or this process is. */
int shore__dataset_build_unnamed(const char *const *names, size_t nnames, const struct shore__reading *how,
                                 struct shore__tokenizer *tokenizer, uint32_t vocab, const char *directory,
                                 struct shore__dataset **out, struct shore_diag *diag);
/* Opens a token file and uses its tokens [first, first + count) (count 0: to the end). Checks length and header. */
int shore__dataset_open(const char *path, uint64_t first, uint64_t count, struct shore__dataset **out,
                        struct shore_diag *diag);
/* One that is open; fd is the dataset's from here on, also after an error. */
int shore__dataset_take(int fd, const char *name, uint64_t first, uint64_t count, struct shore__dataset **out,
                        struct shore_diag *diag);
void shore__dataset_close(struct shore__dataset *d);
uint64_t shore__dataset_tokens(const struct shore__dataset *d);
const struct shore__dataset_stats *shore__dataset_stats(const struct shore__dataset *d); /* of the whole file */
/* Checksum of the tokens in use and their number, for the run's identity, once all of the file have been compared with
 * the file's own (SHORE_ECORRUPT). progress (NULL: none) in bytes; nonzero stops with -ECANCELED. */
int shore__dataset_identity(struct shore__dataset *d, shore__progress_fn progress, void *ctx, uint64_t *hash,
                            struct shore_diag *diag);
/* Tokens at position, position + 1, ... count of them, wrapping at the end, as int32. */
int shore__dataset_read(struct shore__dataset *d, uint64_t position, size_t count, int32_t *out,
                        struct shore_diag *diag);
/* Start of sequence number `index` (0, 1, ... over all steps) of length T: index * T modulo tokens without shuffle;
 * shuffled: epoch e = index / n of the n = max(1, tokens / T) whole sequences, at T * permute(seed, e, n, index mod n).
 */
uint64_t shore__dataset_position(const struct shore__dataset *d, uint64_t index, size_t seq_len, bool shuffle,
                                 uint64_t seed);

/* Bits per byte of a bigram model of bytes with add-one smoothing, trained on the bytes of one text and measured on
 * another (what the demo is compared with). Decodes the tokens. */
int shore__bigram_bits_per_byte(struct shore__dataset *train, struct shore__dataset *val,
                                struct shore__tokenizer *tokenizer, double *bits_per_byte, struct shore_diag *diag);

#endif
