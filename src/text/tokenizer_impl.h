/* What the parts of the tokenizer share: the description that loading makes and encoding follows.
 */
#ifndef SHORE_TEXT_TOKENIZER_IMPL_H
#define SHORE_TEXT_TOKENIZER_IMPL_H

#include <jansson.h>

#include "text/added.h"
#include "text/bpe.h"
#include "text/pattern.h"
#include "text/tokenizer.h"

#define SHORE__BYTES_END_OF_TEXT 256u
#define SHORE__STEP_LIMIT 8
#define SHORE__SPACE_MARK "\xE2\x96\x81" /* U+2581, SentencePiece's space */

enum shore__step_kind { SHORE__STEP_NFC, SHORE__STEP_PREPEND, SHORE__STEP_REPLACE };
struct shore__step { /* of normalizing */
    enum shore__step_kind kind;
    char *from, *to; /* from: one character */
};

enum shore__behavior {
    SHORE__ISOLATED,
    SHORE__REMOVED,
    SHORE__MERGED_WITH_PREVIOUS,
    SHORE__MERGED_WITH_NEXT,
    SHORE__CONTIGUOUS,
};
struct shore__stage {               /* of dividing into pieces; each divides the pieces of the one before */
    struct shore__pattern *pattern; /* NULL: does not divide */
    enum shore__behavior behavior;
    bool invert, prefix_space;
};

enum shore__prepend { SHORE__PREPEND_NEVER, SHORE__PREPEND_FIRST, SHORE__PREPEND_ALWAYS };

struct shore__tokenizer {
    bool is_bytes; /* the byte-level tokenizer: nothing below but vocab, end_of_text, name, directory */
    uint32_t vocab;
    int64_t end_of_text;
    char name[64];
    char *directory; /* where its files are; NULL for the built-in byte-level one */

    struct shore__bpe bpe;
    struct shore__step steps[SHORE__STEP_LIMIT];
    unsigned nsteps;
    struct shore__added_set raw, normalized; /* looked for before and after normalizing */
    struct shore__vocab added;               /* all of them, as they are written */
    bool *added_special;                     /* by id, up to added.nids */
    bool space_marks;                        /* Metaspace: spaces become marks, and one is prepended */
    enum shore__prepend prepend;
    struct shore__stage stages[SHORE__STEP_LIMIT];
    unsigned nstages;
    bool strip_first_space; /* when decoding */
};

/* What tokenizer.json says besides the model's vocabulary and merges, and its added tokens. Refuses by name what is not
 * supported. */
int shore__tokenizer_rules(struct shore__tokenizer *t, const json_t *document, struct shore_diag *diag);
/* Then the added tokens, one after the other, and that these were all. */
int shore__tokenizer_add(struct shore__tokenizer *t, const json_t *token, struct shore_diag *diag);
int shore__tokenizer_added_ready(struct shore__tokenizer *t, struct shore_diag *diag);
/* GPT-2's rules, for vocab.json and merges.txt, which state none. */
int shore__tokenizer_gpt2_rules(struct shore__tokenizer *t, struct shore_diag *diag);
/* All steps of normalizing on a text by itself; appends. */
int shore__normalize(const struct shore__tokenizer *t, const char *text, size_t bytes, struct shore__text *out);
/* Canonical composition (NFC); appends. */
int shore__compose(const char *text, size_t bytes, struct shore__text *out);
/* The steps but NFC. first: this is the beginning of a text. work is scratch. */
int shore__normalize_rest(const struct shore__tokenizer *t, bool first, struct shore__text *text,
                          struct shore__text *work);

#endif
