#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json.h"
#include "text/bytechars.h"
#include "text/tokenizer_impl.h"
#include "text/utf8.h"

/* A tokenizer.json with the 256 byte characters and no merges: it divides a text into its bytes. */
static json_t *bytes_document(void) {
    json_t *vocab = json_object();
    for (unsigned b = 0; b < 256; b++) {
        char key[3];
        key[shore__utf8_put_short(key, shore__byte_char(b))] = 0;
        json_object_set_new(vocab, key, json_integer(b));
    }
    json_object_set_new(vocab, SHORE__BYTES_END_OF_TEXT_NAME, json_integer(SHORE__BYTES_END_OF_TEXT));
    json_t *added = json_pack("{s:i, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (int)SHORE__BYTES_END_OF_TEXT, "content",
                              SHORE__BYTES_END_OF_TEXT_NAME, "single_word", 0, "lstrip", 0, "rstrip", 0, "normalized",
                              0, "special", 1);
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 0,
                              "use_regex", 0);
    return json_pack(
        "{s:s, s:n, s:n, s:[o], s:n, s:O, s:n, s:o, s:{s:s, s:n, s:n, s:n, s:n, s:b, s:b, s:b, s:o, s:[]}}", "version",
        "1.0", "truncation", "padding", "added_tokens", added, "normalizer", "pre_tokenizer", level, "post_processor",
        "decoder", level, "model", "type", "BPE", "dropout", "unk_token", "continuing_subword_prefix",
        "end_of_word_suffix", "fuse_unk", 0, "byte_fallback", 0, "ignore_merges", 0, "vocab", vocab, "merges");
}

static int save_bytes(const char *directory, struct shore_diag *diag) {
    int rc = shore__json_write_in(directory, "tokenizer.json", bytes_document(), diag);
    if (rc) return rc;
    return shore__json_write_in(directory, "tokenizer_config.json",
                                /* without this, transformers adds token types, which no model of ours takes */
                                json_pack("{s:s, s:s, s:b, s:[s, s]}", "tokenizer_class", "PreTrainedTokenizerFast",
                                          "eos_token", SHORE__BYTES_END_OF_TEXT_NAME, "clean_up_tokenization_spaces", 0,
                                          "model_input_names", "input_ids", "attention_mask"),
                                diag);
}

static int copy_between(const char *from, const char *name, const char *to, const char *new_name,
                        struct shore_diag *diag) {
    if (!shore__path_exists(from, name)) return 0;
    return shore__file_copy(shore__path_in(from, name).text, shore__path_in(to, new_name).text, diag);
}

/* Names the tokenizer's class. For vocabulary and merges alone, transformers takes the tokenizer of the model's
 * architecture; but these are GPT-2's. */
static int name_class(const char *directory, struct shore_diag *diag) {
    if (shore__path_exists(directory, "tokenizer.json") || shore__path_exists(directory, "tokenizer_config.json"))
        return 0;
    return shore__json_write_in(directory, "tokenizer_config.json",
                                json_pack("{s:s}", "tokenizer_class", "GPT2Tokenizer"), diag);
}

int shore__tokenizer_save(const struct shore__tokenizer *t, const char *directory, struct shore_diag *diag) {
    static const char *const names[] = {SHORE__TOKENIZER_FILES};
    if (t->is_bytes) return save_bytes(directory, diag);
    /* transformers does not read the old names of GPT-2's files; where both exist, the new ones count */
    int rc = copy_between(t->directory, "encoder.json", directory, "vocab.json", diag);
    if (rc == 0) rc = copy_between(t->directory, "vocab.bpe", directory, "merges.txt", diag);
    for (size_t i = 0; rc == 0 && i < sizeof names / sizeof *names; i++)
        rc = copy_between(t->directory, names[i], directory, names[i], diag);
    return rc ? rc : name_class(directory, diag);
}
