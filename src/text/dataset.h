/* Token data, built once into a file of the run and read with pread. It is never mapped, because mapped pages count as
 * resident. */
#ifndef SHORE_TEXT_DATASET_H
#define SHORE_TEXT_DATASET_H

#include "text/tokenizer.h"

struct shore__dataset_stats {
    uint64_t tokens, documents;
    uint64_t text_bytes; /* UTF-8 bytes behind the tokens; 0 if unknown (.bin) */
    uint64_t bad_rows;   /* skipped rows; counted while building, not when opening */
    uint64_t uncounted;  /* tokens that do not count in the loss; likewise */
};

typedef int (*shore__progress_fn)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
typedef void (*shore__note_fn)(void *ctx, const char *text); /* one sentence for the user */
/* Options for reading data; zeros are the defaults. */
struct shore__reading {
    bool parse_special;          /* special tokens in the text get their ids */
    unsigned threads;            /* threads that encode; 0: one per processor. Any number gives the same tokens */
    shore__progress_fn progress; /* may be NULL; returning nonzero cancels (-ECANCELED) */
    void *progress_ctx;
    shore__note_fn note; /* may be NULL */
    void *note_ctx;
    const char *text_field; /* the field of a record that holds its text; NULL: "text" */
    bool skip_bad_rows;     /* skips and counts bad rows; otherwise the first one is an error */
    bool all_count;         /* prompts count in the loss, too */
    uint32_t row_tokens;    /* each row is a sequence of so many tokens, cut or padded; 0: rows are joined */
    uint64_t memory_bytes;  /* the budget; 0: none */
    uint64_t *ends;         /* NULL, or what each name's tokens end at; then no end of text joins those of two names */
};
/* Tokenizes the named files, directories and patterns into path, a token file with a checked header. Accepts UTF-8
 * text; .jsonl, .ndjson and .json with records that have a text field; and llm.c's .bin (16-bit magic 20240520 and
 * 32-bit 20240801); each also as .gz or .zst. Joins documents (files, records) by end-of-text. Memory grows neither
 * with the files nor with a record. vocab: tokens from this on are refused. SHORE_EINPUT names the file and position,
 * and the line of a record. The file is written beside path and renamed. */
int shore__dataset_build(const char *const *names, size_t nnames, const struct shore__reading *how,
                         struct shore__tokenizer *tokenizer, uint32_t vocab, const char *path,
                         struct shore__dataset_stats *stats, struct shore_diag *diag);

struct shore__dataset;
/* Builds into a nameless file in a directory. It disappears when it is closed or the process ends. */
int shore__dataset_build_unnamed(const char *const *names, size_t nnames, const struct shore__reading *how,
                                 struct shore__tokenizer *tokenizer, uint32_t vocab, const char *directory,
                                 struct shore__dataset **out, struct shore_diag *diag);
/* Opens a token file and uses its tokens [first, first + count) (count 0: to the end). Checks length and header. */
int shore__dataset_open(const char *path, uint64_t first, uint64_t count, struct shore__dataset **out,
                        struct shore_diag *diag);
/* Uses an open file. The dataset owns fd from here on, even after an error. */
int shore__dataset_take(int fd, const char *name, uint64_t first, uint64_t count, struct shore__dataset **out,
                        struct shore_diag *diag);
void shore__dataset_close(struct shore__dataset *d);
uint64_t shore__dataset_tokens(const struct shore__dataset *d);
const struct shore__dataset_stats *shore__dataset_stats(const struct shore__dataset *d); /* of the whole file */
/* Mixes parts of the tokens in use, each of which is read around by itself: ends[i] is behind the last token of part i,
 * shares[i] its share of the sequences. They add up to SHORE__MIX_SHARES. */
#define SHORE__MIX_SHARES 1000u
int shore__dataset_mix(struct shore__dataset *d, const uint64_t *ends, const uint32_t *shares, size_t n,
                       struct shore_diag *diag);
/* Checksum and number of the tokens in use, for the run's identity. First compares all of the file with its own
 * checksum (SHORE_ECORRUPT). progress (NULL: none) counts bytes; nonzero from it stops with -ECANCELED. */
int shore__dataset_identity(struct shore__dataset *d, shore__progress_fn progress, void *ctx, uint64_t *hash,
                            struct shore_diag *diag);
/* Reads count tokens from position on as int32, wrapping at the end of all of them, or of the part of a mixture. */
int shore__dataset_read(struct shore__dataset *d, uint64_t position, size_t count, int32_t *out,
                        struct shore_diag *diag);
/* Reads the tokens behind each of these: what is predicted. -1: it does not count in the loss. */
int shore__dataset_targets(struct shore__dataset *d, uint64_t position, size_t count, int32_t *out,
                           struct shore_diag *diag);
/* Whether some of the file's tokens may not count in the loss. */
bool shore__dataset_marked(const struct shore__dataset *d);
/* Tokens of a sequence, if each row is one; 0: the rows are joined. */
uint32_t shore__dataset_row_tokens(const struct shore__dataset *d);
/* Number of tokens that a pass over the data predicts, or leaves out as not counting: all but the first, and with a row
 * a sequence all, because the first token of a row never counts. */
uint64_t shore__dataset_predicted(const struct shore__dataset *d);
/* Start of sequence `index` (0, 1, ... over all steps) of length T. Without shuffle: index * T modulo tokens. Shuffled:
 * T * permute(seed, e, n, index mod n) in epoch e = index / n of the n = max(1, tokens / T) whole sequences; in marked
 * data also of the one that goes on at their beginning. Of a mixture: the same within a part, whose turn follows from
 * seed and index. */
uint64_t shore__dataset_position(const struct shore__dataset *d, uint64_t index, size_t seq_len, bool shuffle,
                                 uint64_t seed);

#endif
