#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include "base/diag.h"
#include "files/atomic.h"
#include "files/json_stream.h"
#include "files/read_file.h"
#include "text/tokenizer_impl.h"
#include "text/vector.h"

#define FILE_LIMIT_BYTES (256u << 20)

/* Parts of tokenizer.json. A first pass reads the vocabulary and everything small; a second one reads merges and added
 * tokens, which need the vocabulary. So none of the three is ever held as a tree. */
enum part { IN_TREE, IN_MODEL, IN_VOCAB, IN_MERGES, IN_ADDED };

struct load {
    struct shore__tokenizer *t;
    struct shore__tokenizer_config *config;
    const char *path;
    bool second_pass, bare_vocab, in_model, had_vocab, had_merges, had_added;
    enum part part;
    struct shore__text key, pair;
    size_t pair_split;
    unsigned pair_count;
    char *name; /* of the member that the builder builds */
    struct shore__json_builder builder;
    json_t *document, *model;
};

static int put_token(struct load *x, const struct shore__json_event *e, struct shore_diag *diag) {
    char shown[96];
    uint64_t id;
    if (shore__json_event_u64(e, &id) != 0 || id >= SHORE__VOCAB_ID_LIMIT)
        return shore__fail(diag, SHORE_EINPUT, "%s: token \"%s\" has no whole number below %u as its id", x->path,
                           shore__escape(x->key.bytes, x->key.count, shown, sizeof shown), SHORE__VOCAB_ID_LIMIT);
    int rc = shore__vocab_add(&x->t->bpe.vocab, x->key.bytes, x->key.count, (uint32_t)id);
    if (rc == 0) return 0;
    return shore__fail(diag, rc, "%s: token \"%s\" stands twice, or another one has its id %llu", x->path,
                       shore__escape(x->key.bytes, x->key.count, shown, sizeof shown), (unsigned long long)id);
}

static int vocab_event(struct load *x, unsigned depth, const struct shore__json_event *e, struct shore_diag *diag) {
    if (e->depth == depth && e->kind == SHORE__JSON_KEY) {
        x->key.count = 0;
        return shore__text_append(&x->key, e->text, e->bytes) ? shore__out_of_memory(diag) : 0;
    }
    if (e->depth == depth && e->kind == SHORE__JSON_NUMBER) return put_token(x, e, diag);
    if (e->depth == depth && (e->kind == SHORE__JSON_OBJECT_OPEN || e->kind == SHORE__JSON_OBJECT_CLOSE)) return 0;
    const char *type = json_string_value(json_object_get(x->model, "type"));
    if (type && strcmp(type, "BPE") != 0)
        return shore__fail(diag, SHORE_EINPUT, "%s: a tokenizer of the kind \"%.32s\" is not supported", x->path, type);
    return shore__fail(diag, SHORE_EINPUT, "%s: the vocabulary does not map tokens to ids", x->path);
}

static int put_merge(struct load *x, const char *left, size_t left_bytes, const char *right, size_t right_bytes,
                     struct shore_diag *diag) {
    char a[64], b[64];
    int rc = shore__bpe_add_merge(&x->t->bpe, left, left_bytes, right, right_bytes);
    if (rc == 0) return 0;
    return shore__fail(diag, rc, "%s: the merge of \"%s\" and \"%s\" needs a token that is not in the vocabulary",
                       x->path, shore__escape(left, left_bytes, a, sizeof a),
                       shore__escape(right, right_bytes, b, sizeof b));
}

/* Adds a merge from "left right", with exactly one space. */
static int put_merge_line(struct load *x, const char *text, size_t bytes, struct shore_diag *diag) {
    char shown[96];
    const char *space = memchr(text, ' ', bytes);
    size_t left = space ? (size_t)(space - text) : 0;
    if (!space || memchr(space + 1, ' ', bytes - left - 1))
        return shore__fail(diag, SHORE_EINPUT, "%s: the merge \"%s\" is not two tokens with a space between", x->path,
                           shore__escape(text, bytes, shown, sizeof shown));
    return put_merge(x, text, left, space + 1, bytes - left - 1, diag);
}

static int merges_event(struct load *x, const struct shore__json_event *e, struct shore_diag *diag) {
    if (e->depth == 3 && e->kind == SHORE__JSON_STRING) return put_merge_line(x, e->text, e->bytes, diag);
    if (e->depth == 3 && (e->kind == SHORE__JSON_ARRAY_OPEN || e->kind == SHORE__JSON_ARRAY_CLOSE)) return 0;
    if (e->depth == 4 && e->kind == SHORE__JSON_ARRAY_OPEN) {
        x->pair.count = x->pair_count = 0;
        return 0;
    }
    if (e->depth == 4 && e->kind == SHORE__JSON_STRING && x->pair_count < 2) {
        if (x->pair_count++ == 0) x->pair_split = e->bytes;
        return shore__text_append(&x->pair, e->text, e->bytes) ? shore__out_of_memory(diag) : 0;
    }
    if (e->depth == 4 && e->kind == SHORE__JSON_ARRAY_CLOSE && x->pair_count == 2)
        return put_merge(x, x->pair.bytes, x->pair_split, x->pair.bytes + x->pair_split, x->pair.count - x->pair_split,
                         diag);
    return shore__fail(diag, SHORE_EINPUT, "%s: a merge is not a pair of tokens", x->path);
}

/* Handles a key of the document or of its model: its value goes to the vocabulary, the merges, or a tree. */
static int member_key(struct load *x, const struct shore__json_event *e, struct shore_diag *diag) {
    free(x->name);
    x->name = strndup(e->text, e->bytes);
    if (!x->name) return shore__out_of_memory(diag);
    bool again = !x->second_pass && json_object_get(x->in_model ? x->model : x->document, x->name);
    x->part = IN_TREE;
    if (!x->in_model && shore__json_event_is(e, "model")) {
        x->part = IN_MODEL;
        again = !x->second_pass && x->model;
    } else if (x->in_model && shore__json_event_is(e, "vocab")) {
        x->part = IN_VOCAB;
        again = !x->second_pass && x->had_vocab;
        x->had_vocab = true;
    } else if (x->in_model && shore__json_event_is(e, "merges")) {
        x->part = IN_MERGES;
        again = x->second_pass && x->had_merges;
        x->had_merges |= x->second_pass;
    } else if (!x->in_model && shore__json_event_is(e, "added_tokens")) {
        x->part = IN_ADDED;
        again = x->second_pass && x->had_added;
        x->had_added |= x->second_pass;
    }
    return again
               ? shore__fail(diag, SHORE_EINPUT, "%s: the key \"%s\" stands twice", x->path, shore__shown(x->name).text)
               : 0;
}

static int added_event(struct load *x, const struct shore__json_event *e, struct shore_diag *diag) {
    struct shore_diag why = {0};
    if (e->depth == 2 && (e->kind == SHORE__JSON_ARRAY_OPEN || e->kind == SHORE__JSON_ARRAY_CLOSE)) return 0;
    if (e->depth == 1 && e->kind == SHORE__JSON_NULL) return 0;
    if (e->depth == 1 || (e->depth == 2 && e->kind == SHORE__JSON_OBJECT_OPEN))
        return shore__fail(diag, SHORE_EINPUT, "%s: \"added_tokens\" takes a list", x->path);
    int rc = shore__json_builder_feed(&x->builder, e, &why);
    if (rc == 0 && !x->builder.done) return 0;
    if (rc == 0) rc = shore__tokenizer_add(x->t, x->builder.root, &why);
    shore__json_builder_fini(&x->builder);
    return rc ? shore__fail(diag, rc, "%s: %s", x->path, why.text) : 0;
}

static int tree_event(struct load *x, const struct shore__json_event *e, struct shore_diag *diag) {
    struct shore_diag why = {0};
    if (x->second_pass) return 0;
    int rc = shore__json_builder_feed(&x->builder, e, &why);
    if (rc) return shore__fail(diag, rc, "%s: %s", x->path, why.text);
    if (!x->builder.done) return 0;
    rc = json_object_set(x->in_model ? x->model : x->document, x->name, x->builder.root);
    shore__json_builder_fini(&x->builder);
    return rc ? shore__fail(diag, -ENOMEM, "%s: out of memory", x->path) : 0;
}

static int on_event(void *ctx, const struct shore__json_event *e, struct shore_diag *diag) {
    struct load *x = ctx;
    unsigned level = x->in_model ? 2 : 1; /* of the keys to inspect */
    if (e->depth == 0 || (e->depth == 1 && e->kind == SHORE__JSON_ARRAY_OPEN))
        return shore__fail(diag, SHORE_EINPUT, "%s: is not a JSON object", x->path);
    if (x->bare_vocab) return vocab_event(x, 1, e, diag);
    if (e->depth == 1 && (e->kind == SHORE__JSON_OBJECT_OPEN || e->kind == SHORE__JSON_OBJECT_CLOSE)) return 0;
    if (x->in_model && e->depth == 2 && e->kind == SHORE__JSON_OBJECT_CLOSE) {
        x->in_model = false;
        return 0;
    }
    if (e->depth == level && e->kind == SHORE__JSON_KEY) return member_key(x, e, diag);
    switch (x->part) {
    case IN_MODEL:
        if (e->kind != SHORE__JSON_OBJECT_OPEN)
            return shore__fail(diag, SHORE_EINPUT, "%s: \"model\" is not an object", x->path);
        x->in_model = true;
        x->part = IN_TREE;
        if (!x->second_pass && !(x->model = json_object())) return shore__out_of_memory(diag);
        return 0;
    case IN_VOCAB:
        return x->second_pass ? 0 : vocab_event(x, 3, e, diag);
    case IN_MERGES:
        return x->second_pass ? merges_event(x, e, diag) : 0;
    case IN_ADDED:
        return x->second_pass ? added_event(x, e, diag) : 0;
    default:
        return tree_event(x, e, diag);
    }
}

static int load_document(struct load *x, struct shore_diag *diag) {
    struct shore_diag why = {0};
    x->document = json_object();
    if (!x->document) return shore__fail(diag, -ENOMEM, "%s: out of memory", x->path);
    int rc = shore__json_stream_file(x->path, FILE_LIMIT_BYTES, on_event, x, diag);
    if (rc) return rc;
    if (!x->model) return shore__fail(diag, SHORE_EINPUT, "%s: has no \"model\"", x->path);
    json_object_set(x->document, "model", x->model);
    rc = shore__tokenizer_rules(x->t, x->document, &why);
    if (rc) return shore__fail(diag, rc, "%s: %s", x->path, why.text);
    if (x->t->bpe.vocab.count == 0) return shore__fail(diag, SHORE_EINPUT, "%s: its vocabulary is empty", x->path);
    x->second_pass = true;
    x->part = IN_TREE;
    rc = shore__json_stream_file(x->path, FILE_LIMIT_BYTES, on_event, x, diag);
    if (rc == 0 && !x->had_merges) rc = shore__fail(diag, SHORE_EINPUT, "%s: its model has no merges", x->path);
    return rc;
}

/* Loads merges.txt: a comment, then one merge per line. */
static int load_merges(struct load *x, const char *path, struct shore_diag *diag) {
    char *text;
    size_t bytes;
    int rc = shore__file_read(path, FILE_LIMIT_BYTES, &text, &bytes, diag);
    if (rc) return rc;
    x->path = path;
    for (const char *line = text, *behind = text + bytes, *end; rc == 0 && line < behind; line = end + 1) {
        end = memchr(line, '\n', (size_t)(behind - line));
        if (!end) end = behind;
        size_t n = (size_t)(end - line);
        while (n > 0 && line[n - 1] == '\r')
            n--;
        if (n == 0 || (n >= 8 && !memcmp(line, "#version", 8))) continue;
        rc = n > 65536 ? shore__fail(diag, SHORE_EINPUT, "%s: has a line of more than 65,536 bytes", path)
                       : put_merge_line(x, line, n, diag);
    }
    free(text);
    return rc;
}

static int hash_file(XXH3_state_t *state, const char *path, struct shore_diag *diag) {
    char block[16384];
    ssize_t n;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return shore__fail_errno(diag, path, "cannot open it");
    while ((n = read(fd, block, sizeof block)) > 0)
        XXH3_64bits_update(state, block, (size_t)n);
    close(fd);
    return n < 0 ? shore__fail(diag, -EIO, "%s: cannot read it", path) : 0;
}

static int name_after(struct shore__tokenizer *t, const char *path, const char *second, struct shore_diag *diag) {
    XXH3_state_t *state = XXH3_createState();
    if (!state) return shore__out_of_memory(diag);
    XXH3_64bits_reset(state);
    int rc = hash_file(state, path, diag);
    if (rc == 0 && second) rc = hash_file(state, second, diag);
    snprintf(t->name, sizeof t->name, "%s-bpe-%016llx", t->bpe.byte_level ? "byte-level" : "sentencepiece",
             (unsigned long long)XXH3_64bits_digest(state));
    XXH3_freeState(state);
    return rc;
}

/* Whether these are the files that the byte-level tokenizer saves. */
static bool is_bytes(const struct shore__tokenizer *t) {
    if (!t->bpe.byte_level || t->nstages || t->nsteps || t->bpe.merges.count || t->vocab != 257) return false;
    for (unsigned i = 0; i < 256; i++)
        if (t->bpe.byte_ids[i] != i) return false;
    return t->raw.count == 1 && t->normalized.count == 0 && t->end_of_text == SHORE__BYTES_END_OF_TEXT;
}

/* Refuses pairs of files other than GPT-2's: vocab.json and merges.txt do not say how to divide the text, and only
 * GPT-2's way is certain. */
static int refuse_other_than_gpt2(struct shore__tokenizer_config *c, struct shore_diag *diag) {
    const char *class = json_string_value(json_object_get(c->kept, "tokenizer_class")),
               *family = json_string_value(json_object_get(c->config, "model_type"));
    if (!class && family && !strcmp(family, "qwen2")) class = "Qwen2Tokenizer";
    if (class && strncmp(class, "GPT2Tokenizer", 13) != 0)
        return shore__fail(
            diag, SHORE_EINPUT,
            "%s: vocab.json and merges.txt are enough for GPT2Tokenizer only; for %s a tokenizer.json is "
            "needed",
            c->directory, shore__shown(class).text);
    return 0;
}

/* GPT-2's class uses this token as beginning, end and unknown token, unless told otherwise. */
static void mark_gpt2s_own(struct load *x) {
    static const char name[] = "<|endoftext|>";
    json_t *kept = x->config->kept;
    bool told =
        json_object_get(kept, "bos_token") && json_object_get(kept, "eos_token") && json_object_get(kept, "unk_token");
    if (!told && shore__tokenizer_id(x->t, name, strlen(name)) != SHORE__VOCAB_NONE)
        json_object_set_new(kept, "usual_token", json_string(name));
}

static int load_pair(struct load *x, const char *directory, const char *vocab_name, const char *merges_name,
                     struct shore_diag *diag) {
    const struct shore__path vocab = shore__path_in(directory, vocab_name);
    const struct shore__path merges = shore__path_in(directory, merges_name);
    x->path = vocab.text;
    x->bare_vocab = true;
    int rc = shore__json_stream_file(vocab.text, FILE_LIMIT_BYTES, on_event, x, diag);
    if (rc == 0) rc = refuse_other_than_gpt2(x->config, diag);
    if (rc == 0)
        rc =
            shore__tokenizer_gpt2_rules(x->t, json_is_true(json_object_get(x->config->kept, "add_prefix_space")), diag);
    if (rc == 0) mark_gpt2s_own(x);
    if (rc == 0) rc = load_merges(x, merges.text, diag);
    x->path = NULL;
    return rc ? rc : name_after(x->t, vocab.text, merges.text, diag);
}

/* Says what is missing: a directory without a tokenizer must not be confused with one that has half of it. */
static int no_tokenizer(const char *directory, struct shore_diag *diag) {
    static const struct {
        const char *there, *missing, *remedy;
    } halves[] = {
        {"tokenizer.json", "the file that it links to", "fetch that"},
        {"vocab.json", "merges.txt", "put that beside it"},
        {"merges.txt", "vocab.json", "put that beside it"},
        {"encoder.json", "vocab.bpe", "put that beside it"},
        {"vocab.bpe", "encoder.json", "put that beside it"},
        {"tokenizer.model", "tokenizer.json", "convert it to that"},
        {"tokenizer_config.json", "tokenizer.json", "put that beside it"},
    };
    for (size_t i = 0; i < sizeof halves / sizeof *halves; i++) {
        struct stat info;
        const struct shore__path path = shore__path_in(directory, halves[i].there);
        bool there = lstat(path.text, &info) == 0;
        size_t why = there && stat(path.text, &info) != 0 ? 0 : i; /* other names may also be links to nothing */
        if (there)
            return shore__fail(diag, SHORE_EINPUT,
                               "%s: has %s, but not %s: %s (train and import also take --tokenizer DIR)", directory,
                               halves[i].there, halves[why].missing, halves[why].remedy);
    }
    return shore__fail(diag, SHORE_EMISSING,
                       "%s: has no tokenizer: neither tokenizer.json nor vocab.json and merges.txt", directory);
}

static int load_files(struct load *x, const char *directory, struct shore_diag *diag) {
    static const char *const pairs[][2] = {{"vocab.json", "merges.txt"}, {"encoder.json", "vocab.bpe"}};
    const struct shore__path path = shore__path_in(directory, "tokenizer.json");
    x->path = path.text;
    int rc = load_document(x, diag);
    x->path = NULL;
    if (rc == 0) rc = name_after(x->t, path.text, NULL, diag);
    if (rc == 0) rc = shore__tokenizer_by_class(x->config, x->t, diag);
    for (size_t i = 0; rc == SHORE_EMISSING && i < 2; i++)
        rc = load_pair(x, directory, pairs[i][0], pairs[i][1], diag);
    return rc == SHORE_EMISSING ? no_tokenizer(directory, diag) : rc;
}

/* Finishes loading, from the vocabulary, the added tokens, and the files beside them. end_of_text NULL: it is to be
 * found. */
static int finish(struct load *x, const int64_t *end_of_text, struct shore_diag *diag) {
    struct shore__tokenizer *t = x->t;
    t->needed = t->bpe.vocab.nids > t->added.nids ? t->bpe.vocab.nids : t->added.nids;
    int rc = shore__tokenizer_config_apply(x->config, t, diag);
    if (x->config->lenient && rc == SHORE_EINPUT) rc = 0;
    if (rc == 0) rc = shore__tokenizer_added_ready(t, diag);
    if (rc == 0 && shore__bpe_ready(&t->bpe) != 0) rc = shore__fail(diag, -ENOMEM, "%s: out of memory", t->directory);
    t->vocab = t->bpe.vocab.nids > t->added.nids ? t->bpe.vocab.nids : t->added.nids;
    if (rc == 0 && !end_of_text) rc = shore__tokenizer_config_end_of_text(x->config, t, diag);
    if (rc) return rc;
    if (end_of_text) t->end_of_text = *end_of_text < t->vocab ? *end_of_text : -1;
    if (t->end_of_text >= t->needed) t->needed = (uint32_t)t->end_of_text + 1;
    if (is_bytes(t)) {
        t->is_bytes = true;
        strcpy(t->name, "bytes");
    }
    return 0;
}

static int open_tokenizer(const char *directory, const char *recorded, bool lenient, const int64_t *end_of_text,
                          struct shore__tokenizer **out, struct shore_diag *diag) {
    struct shore__tokenizer_config config = {.recorded = recorded, .lenient = lenient};
    struct load x = {.config = &config};
    struct shore__tokenizer *t = x.t = calloc(1, sizeof *t);
    if (!t || !(t->directory = strdup(directory))) {
        free(t);
        return shore__fail(diag, -ENOMEM, "%s: out of memory", directory);
    }
    t->behind = -1;
    int rc = shore__tokenizer_config_read(directory, &config, diag);
    if (lenient && rc == SHORE_EINPUT) rc = 0;
    if (rc == 0) rc = load_files(&x, directory, diag);
    if (rc == 0) rc = finish(&x, end_of_text, diag);
    shore__tokenizer_config_fini(&config);
    shore__json_builder_fini(&x.builder);
    json_decref(x.document);
    json_decref(x.model);
    free(x.name);
    free(x.key.bytes);
    free(x.pair.bytes);
    if (rc) {
        shore__tokenizer_close(t);
        return rc;
    }
    *out = t;
    return 0;
}

int shore__tokenizer_open(const char *directory, struct shore__tokenizer **out, struct shore_diag *diag) {
    return open_tokenizer(directory, NULL, false, NULL, out, diag);
}

int shore__tokenizer_reopen(const char *directory, const char *name, int64_t end_of_text, struct shore__tokenizer **out,
                            struct shore_diag *diag) {
    bool recorded = end_of_text != SHORE__END_OF_TEXT_UNRECORDED;
    return open_tokenizer(directory, name, !recorded, recorded ? &end_of_text : NULL, out, diag);
}
