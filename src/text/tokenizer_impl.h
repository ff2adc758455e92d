/* Description of a tokenizer, which loading makes and encoding follows. The files of the tokenizer share it. */
#ifndef SHORE_TEXT_TOKENIZER_IMPL_H
#define SHORE_TEXT_TOKENIZER_IMPL_H

#include <jansson.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/pattern.h"
#include "text/tokenizer.h"

#define SHORE__BYTES_END_OF_TEXT 256u
#define SHORE__BYTES_END_OF_TEXT_NAME "<|endoftext|>"
#define SHORE__STEP_LIMIT 8
#define SHORE__SPACE_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

enum shore__step_kind {
    SHORE__STEP_NFC,
    SHORE__STEP_NFD,
    SHORE__STEP_NFKC,
    SHORE__STEP_NFKD,
    SHORE__STEP_LOWERCASE,
    SHORE__STEP_STRIP_ACCENTS,
    SHORE__STEP_STRIP,
    SHORE__STEP_PREPEND,
    SHORE__STEP_REPLACE,
};
struct shore__step { /* a step of normalizing */
    enum shore__step_kind kind;
    char *to;                       /* the text to prepend, or the replacement */
    struct shore__pattern *pattern; /* of the text to replace */
    bool left, right;               /* ends to strip */
};

enum shore__behavior {
    SHORE__ISOLATED,
    SHORE__REMOVED,
    SHORE__MERGED_WITH_PREVIOUS,
    SHORE__MERGED_WITH_NEXT,
    SHORE__CONTIGUOUS,
};
struct shore__stage {               /* a stage that divides the pretokens of the previous one */
    struct shore__pattern *pattern; /* NULL: does not divide */
    char *text;                     /* of the pattern, as its file has it */
    enum shore__behavior behavior;
    bool invert, prefix_space;
};

struct shore__added_rule { /* of an added token */
    bool special, normalized, lstrip, rstrip, single_word;
};

enum shore__prepend { SHORE__PREPEND_NEVER, SHORE__PREPEND_FIRST, SHORE__PREPEND_ALWAYS };

struct shore__tokenizer {
    /* the byte-level tokenizer: of the fields below, it has only vocab, needed, end_of_text, name, directory */
    bool is_bytes;
    uint32_t vocab, needed;
    int64_t end_of_text;
    char name[64];
    char *directory; /* where its files are; NULL for the built-in byte-level one */

    struct shore__bpe bpe;
    struct shore__step steps[SHORE__STEP_LIMIT];
    unsigned nsteps;
    struct shore__added_set raw, normalized; /* found before and after normalizing */
    struct shore__vocab added;               /* all added tokens, as written */
    struct shore__added_rule *added_rules;   /* by id, up to added.nids */
    uint32_t nrules;
    bool space_marks; /* Metaspace: spaces become marks, and one is prepended */
    enum shore__prepend prepend;
    struct shore__stage stages[SHORE__STEP_LIMIT];
    unsigned nstages;
    bool strip_first_space;                /* when decoding */
    uint32_t beginning[SHORE__STEP_LIMIT]; /* before a text that stands alone, such as BOS */
    unsigned nbeginning;
    bool templated; /* tokenizer.json says what is put around a text */
    int64_t behind; /* id of the special token behind it; -1: none */
    /* tokens do not have the spaces at their ends, except for one that was put before a text */
    bool trims, trims_after_prefix;
};

/* Reads tokenizer.json, except for vocabulary, merges and added tokens. Refuses by name what is not supported. */
int shore__tokenizer_rules(struct shore__tokenizer *t, const json_t *document, struct shore_diag *diag);
/* Refuses values of the wrong type, also inside parts of such a document. */
int shore__tokenizer_check_types(const json_t *value, struct shore_diag *diag);
/* A boolean of an object; otherwise: the default. */
bool shore__tokenizer_flag(const json_t *object, const char *key, bool otherwise);
/* Forgets them. */
void shore__tokenizer_drop_rules(struct shore__tokenizer *t);
/* GPT-2's rules, for vocab.json and merges.txt, which state none. */
int shore__tokenizer_gpt2_rules(struct shore__tokenizer *t, bool prefix_space, struct shore_diag *diag);

/* Adds the added tokens of tokenizer.json, one per call, after the rules. */
int shore__tokenizer_add(struct shore__tokenizer *t, const json_t *token, struct shore_diag *diag);
/* Adds a token listed beside tokenizer.json. A known token gets the rule; another one also gets the next id, as in
 * transformers. id: the id that its file states, or -1; a different id is refused. */
int shore__tokenizer_add_more(struct shore__tokenizer *t, const char *content, size_t bytes, int64_t id,
                              struct shore__added_rule rule, struct shore_diag *diag);
/* Call it after the last added token. */
int shore__tokenizer_added_ready(struct shore__tokenizer *t, struct shore_diag *diag);
/* The rule that a token's JSON object states. */
struct shore__added_rule shore__added_rule_of(const json_t *token, bool special);
/* Id of an added token or of one in the vocabulary; SHORE__VOCAB_NONE: there is none. */
uint32_t shore__tokenizer_id(const struct shore__tokenizer *t, const char *text, size_t bytes);

/* What files call the tokens that have a role, in the order in which transformers adds them. */
#define SHORE__TOKEN_ROLES "bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"
/* The string of text or {"content": text}; NULL: it is neither. */
json_t *shore__token_text(json_t *token);

/* Facts about tokens from the files beside tokenizer.json, as save_pretrained writes them now and in older versions. */
struct shore__tokenizer_config {
    const char *directory;
    json_t *kept;         /* tokenizer_class and what it takes, tokens by role, extra_special_tokens, chat_template */
    const char *recorded; /* the tokenizer's name in a run, or NULL */
    bool plain_roles;     /* special tokens have no other rule, whatever a file says */
    json_t *config;       /* config.json */
    bool has_decoder;     /* tokenizer_config.json lists the added tokens; then no other file counts */
    struct shore__listed_token {
        char *content;
        size_t bytes;
        int64_t id;
        struct shore__added_rule rule;
    } * listed;
    size_t nlisted;
    bool lenient; /* for an older run: skips what it cannot use, as older versions did */
};
int shore__tokenizer_config_read(const char *directory, struct shore__tokenizer_config *out, struct shore_diag *diag);
/* Adds the tokens that tokenizer.json does not have. */
int shore__tokenizer_config_apply(struct shore__tokenizer_config *c, struct shore__tokenizer *t,
                                  struct shore_diag *diag);
/* Replaces the rules of tokenizer.json, and adds its name to the tokenizer's, if transformers' class makes them itself.
 */
int shore__tokenizer_by_class(struct shore__tokenizer_config *c, struct shore__tokenizer *t, struct shore_diag *diag);
/* Sets the end of text. */
int shore__tokenizer_config_end_of_text(const struct shore__tokenizer_config *c, struct shore__tokenizer *t,
                                        struct shore_diag *diag);
void shore__tokenizer_config_fini(struct shore__tokenizer_config *c);

/* Normalizes a text that comes in parts. Each step passes text on as soon as later text cannot change it. Set t,
 * matcher (NULL: no step has a pattern), sink and ctx; zero-initialize the rest. After an end it takes the next
 * text. */
struct shore__normalizing {
    const struct shore__tokenizer *t;
    struct shore__matcher *matcher;
    int (*sink)(void *ctx, const char *text, size_t bytes);
    void *ctx;
    struct {
        bool begun;
        int before; /* the byte before the held text */
        struct shore__text held, out;
    } at[SHORE__STEP_LIMIT]; /* all the state that decides how text goes on */
};
int shore__normalizing_feed(struct shore__normalizing *n, const char *text, size_t bytes, struct shore_diag *diag);
int shore__normalizing_end(struct shore__normalizing *n, struct shore_diag *diag);
void shore__normalizing_reset(struct shore__normalizing *n);
void shore__normalizing_fini(struct shore__normalizing *n);
/* Normalizes a whole text, and appends the result. */
int shore__normalize(const struct shore__tokenizer *t, const char *text, size_t bytes, struct shore__text *out,
                     struct shore_diag *diag);

#endif
