/* Tokenizers: byte-level (ids 0-255 are the bytes, 256 is end-of-text), byte-level BPE (GPT-2, Llama 3, Qwen) and
 * SentencePiece-style BPE with byte fallback (Llama 2, Mistral), with the ids that the `tokenizers` library gives.
 */
#ifndef SHORE_TEXT_TOKENIZER_H
#define SHORE_TEXT_TOKENIZER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "longshore/error.h"

struct shore__tokenizer;

/* The byte-level tokenizer. */
#define SHORE__BYTES_VOCAB 257u
int shore__tokenizer_bytes(struct shore__tokenizer **out);
/* From a directory with tokenizer.json, or vocab.json and merges.txt (or encoder.json and vocab.bpe), and with what
 * tokenizer_config.json, special_tokens_map.json and added_tokens.json say of tokens, as AutoTokenizer takes them.
 * SHORE_EMISSING if there is none, SHORE_EINPUT if there is only a part of one, or its end of text cannot be resolved.
 * Memory stays a small multiple of the files; the JSON is read as a stream, never as a DOM. */
int shore__tokenizer_open(const char *directory, struct shore__tokenizer **out, struct shore_diag *diag);
/* From files that a run has kept, with the end of text that it began with; SHORE__END_OF_TEXT_UNRECORDED: what its
 * files give, and nothing is refused of what older versions let pass. */
#define SHORE__END_OF_TEXT_UNRECORDED INT64_MIN
int shore__tokenizer_reopen(const char *directory, int64_t end_of_text, struct shore__tokenizer **out,
                            struct shore_diag *diag);
void shore__tokenizer_close(struct shore__tokenizer *t);

/* Largest id + 1, added tokens included. */
uint32_t shore__tokenizer_vocab(const struct shore__tokenizer *t);
/* The same of what a model must have: without tokens that only have a part to play (padding and the like) and got
 * their ids behind all others for it, as transformers gives them. */
uint32_t shore__tokenizer_needed(const struct shore__tokenizer *t);
/* The id that joins documents; -1 if neither the tokenizer's files nor those of its model say one, and none of the
 * usual ones is there. */
int64_t shore__tokenizer_end_of_text(const struct shore__tokenizer *t);
/* A name for the run's identity: "bytes", or a kind and an XXH3 of the files. */
const char *shore__tokenizer_name(const struct shore__tokenizer *t);

/* Text to ids. Special tokens that appear as text are encoded as text unless special is true (then added tokens are
 * recognised as the `tokenizers` library does). No BOS or EOS is added. A growing vector, owned by the caller;
 * zero-initialise, free() ids. Invalid UTF-8 is replaced by U+FFFD as Python's errors="replace" does, except by the
 * byte-level tokenizer, which takes bytes as they are. */
struct shore__ids {
    uint32_t *ids;
    size_t count, capacity;
};
int shore__tokenizer_encode(struct shore__tokenizer *t, const char *text, size_t bytes, bool special,
                            struct shore__ids *out, struct shore_diag *diag);
/* The same for a text that comes in parts: feed it any number of times, then end it; the ids, appended to out, are
 * those of the whole. The encoder can then take the next text. Memory does not grow with the text, nor with a pretoken
 * of it, but with what may still be divided in several ways by what is to come; SHORE_EINPUT if that is above 96 MiB.
 * After an error only reset and close are left. An encoder borrows its tokenizer, which serves any number of them, in
 * any threads. */
struct shore__text;
struct shore__encoder;
int shore__encoder_open(const struct shore__tokenizer *t, bool special, struct shore__encoder **out);
int shore__encoder_feed(struct shore__encoder *e, const char *text, size_t bytes, struct shore__ids *out,
                        struct shore_diag *diag);
int shore__encoder_end(struct shore__encoder *e, struct shore__ids *out, struct shore_diag *diag);
/* Back to where open leaves it, after an error too. */
void shore__encoder_reset(struct shore__encoder *e);
/* All that decides what an encoder makes of the text to come; two in the same state make the same. 0, -ENOMEM, or
 * SHORE_EINPUT: too long to be compared. */
int shore__encoder_state(const struct shore__encoder *e, struct shore__text *out);
void shore__encoder_close(struct shore__encoder *e);

/* Appends ids to a growing byte vector; special tokens and ids without text give nothing, nor do those beyond the
 * vocabulary, which a model has where its own is rounded up. The space that SentencePiece-style tokenizers put before a
 * text is taken away where out is empty. */
struct shore__text {
    char *bytes;
    size_t count, capacity;
};
int shore__tokenizer_decode(struct shore__tokenizer *t, const uint32_t *ids, size_t count, struct shore__text *out);

/* What is kept of its directory: its files, and what says how to talk to its model. */
#define SHORE__TOKENIZER_FILES                                                                        \
    "vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", \
        "added_tokens.json", "tokenizer.model", "chat_template.jinja", "generation_config.json"
/* Copies them into another directory (export, runs). The byte-level one writes a tokenizer.json that the `tokenizers`
 * library loads with the same ids. */
int shore__tokenizer_save(const struct shore__tokenizer *t, const char *directory, struct shore_diag *diag);

#endif
