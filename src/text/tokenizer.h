/* Tokenizers, with the ids of the `tokenizers` library: byte-level (ids 0-255 are the bytes, 256 is end-of-text),
 * byte-level BPE (GPT-2, Llama 3, Qwen), and SentencePiece-style BPE with byte fallback (Llama 2, Mistral). */
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
/* Opens a tokenizer's directory: tokenizer.json, or vocab.json and merges.txt (or encoder.json and vocab.bpe). Also
 * applies what tokenizer_config.json, special_tokens_map.json and added_tokens.json say about tokens and rules, as
 * AutoTokenizer does. SHORE_EMISSING: there is no tokenizer. SHORE_EINPUT: only a part of one, or its end of text
 * cannot be resolved. Memory stays a small multiple of the files; the JSON is read as a stream, never as a DOM. */
int shore__tokenizer_open(const char *directory, struct shore__tokenizer **out, struct shore_diag *diag);
/* Opens the files that a run has kept, with the rules and the end of text that it began with. name: what it recorded of
 * shore__tokenizer_name(). SHORE__END_OF_TEXT_UNRECORDED: takes it
 * from the files, and accepts everything that older versions accepted. */
#define SHORE__END_OF_TEXT_UNRECORDED INT64_MIN
int shore__tokenizer_reopen(const char *directory, const char *name, int64_t end_of_text, struct shore__tokenizer **out,
                            struct shore_diag *diag);
void shore__tokenizer_close(struct shore__tokenizer *t);

/* Largest id + 1, added tokens included. */
uint32_t shore__tokenizer_vocab(const struct shore__tokenizer *t);
/* Vocabulary that a model must have: the largest id + 1 without tokens such as padding that were added only for their
 * role and have ids behind all others, as transformers assigns them. */
uint32_t shore__tokenizer_needed(const struct shore__tokenizer *t);
/* The id that joins documents; -1 if neither the tokenizer's files nor its model's name one, and no usual one
 * exists. */
int64_t shore__tokenizer_end_of_text(const struct shore__tokenizer *t);
/* A name for the run's identity: "bytes", or a kind, an XXH3 of the files, and the class of transformers that makes the
 * rules instead of tokenizer.json, if one does. */
const char *shore__tokenizer_name(const struct shore__tokenizer *t);

/* Encodes text. special: added tokens in the text get their ids, as in the `tokenizers` library; otherwise special
 * tokens are encoded as text. Adds no BOS or EOS. out: a growing vector of the caller's; zero-initialize it, free()
 * ids. U+FFFD replaces invalid UTF-8, as Python's errors="replace" does; only the byte-level tokenizer takes bytes as
 * they are. */
struct shore__ids {
    uint32_t *ids;
    size_t count, capacity;
};
int shore__tokenizer_encode(struct shore__tokenizer *t, const char *text, size_t bytes, bool special,
                            struct shore__ids *out, struct shore_diag *diag);
/* Encodes a text that comes in parts: feed it any number of times, then end it. The ids appended to out are those of
 * the whole text, and the encoder can take the next one. Memory does not grow with the text or a pretoken, only with
 * text that later text may still divide in several ways; SHORE_EINPUT if that exceeds 96 MiB. After an error, only
 * reset and close are allowed. An encoder borrows its tokenizer, which serves any number of encoders in any threads. */
struct shore__text;
struct shore__encoder;
int shore__encoder_open(const struct shore__tokenizer *t, bool special, struct shore__encoder **out);
int shore__encoder_feed(struct shore__encoder *e, const char *text, size_t bytes, struct shore__ids *out,
                        struct shore_diag *diag);
int shore__encoder_end(struct shore__encoder *e, struct shore__ids *out, struct shore_diag *diag);
/* Returns the encoder to its state after open, also after an error. */
void shore__encoder_reset(struct shore__encoder *e);
/* Writes the state that decides how an encoder continues: encoders with equal states continue equally. Returns 0,
 * -ENOMEM, or SHORE_EINPUT: the state is too long to compare. */
int shore__encoder_state(const struct shore__encoder *e, struct shore__text *out);
void shore__encoder_close(struct shore__encoder *e);

/* Decodes ids into a growing byte vector. Special tokens, ids without text, and ids beyond the vocabulary (of a model
 * that rounds it up) give nothing. Removes the space that SentencePiece-style tokenizers put before a text, if out is
 * empty. */
struct shore__text {
    char *bytes;
    size_t count, capacity;
};
int shore__tokenizer_decode(struct shore__tokenizer *t, const uint32_t *ids, size_t count, struct shore__text *out);

/* Files kept of a tokenizer's directory: its own, and those that say how to talk to its model. */
#define SHORE__TOKENIZER_FILES                                                                        \
    "vocab.json", "merges.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", \
        "added_tokens.json", "tokenizer.model", "chat_template.jinja", "chat_template.json", "generation_config.json"
/* Copies them into another directory (export, runs). The byte-level tokenizer writes a tokenizer.json that the
 * `tokenizers` library loads with the same ids. */
int shore__tokenizer_save(const struct shore__tokenizer *t, const char *directory, struct shore_diag *diag);

#endif
