/* Chooses the tokenizer for a model and its data, and describes it for the user. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"
#include "base/units.h"
#include "files/hub.h"
#include "run/internal.h"

static int open_bytes(struct shore__tokenizer **out, struct shore_diag *diag) {
    int rc = shore__tokenizer_bytes(out);
    return rc < 0 ? shore__fail(diag, rc, "out of memory") : 0;
}

static int open_tokenizer(const struct shore__settings *s, struct shore__tokenizer **out, struct shore_diag *diag) {
    struct stat st;
    bool bytes = s->tokenizer && strcmp(s->tokenizer, SHORE__BYTES) == 0;
    int gone = s->tokenizer && !bytes ? shore__hub_refuse("tokenizer", s->tokenizer, SHORE__HUB_MODEL, diag) : 0;
    if (!gone && s->model) gone = shore__hub_refuse("model", s->model, SHORE__HUB_MODEL, diag);
    if (gone) return gone;
    const char *named = s->tokenizer && !bytes ? s->tokenizer : s->model;
    if (named && stat(named, &st))
        return shore__fail(diag, SHORE_EMISSING, "%s: there is no such directory: %s", named, strerror(errno));
    if (bytes) return open_bytes(out, diag);
    if (s->tokenizer) {
        int rc = shore__tokenizer_open(s->tokenizer, out, diag);
        int other = rc == SHORE_EMISSING ? shore__refuse_cache(s->tokenizer, diag) : 0;
        return other ? other : rc;
    }
    const char *beside = s->model                                                    ? s->model
                         : s->init && stat(s->init, &st) == 0 && S_ISDIR(st.st_mode) ? s->init
                                                                                     : NULL;
    int rc = s->model ? shore__refuse_no_model(s->model, diag) : 0;
    if (rc < 0) return rc;
    rc = beside ? shore__tokenizer_open(beside, out, diag) : SHORE_EMISSING;
    if (rc != SHORE_EMISSING) return rc;
    if (s->model && !shore__settings_tokens_alone(s))
        return shore__advise(diag,
                             shore__fail(diag, SHORE_EINPUT,
                                         "%s: has no tokenizer: neither tokenizer.json, nor vocab.json and merges.txt, "
                                         "nor encoder.json and vocab.bpe",
                                         s->model),
                             SHORE_ADVICE_TOKENIZER, NULL);
    return open_bytes(out, diag);
}

void shore__run_close_texts(struct shore__run *run) {
    shore__dataset_close(run->train);
    shore__dataset_close(run->val);
    shore__tokenizer_close(run->tokenizer);
    run->train = run->val = NULL;
    run->tokenizer = NULL;
}

int shore__run_tokenizer(struct shore__run *run, struct shore_diag *diag) {
    const char *name = run->private->tokenizer_name;
    run->private->close_texts = shore__run_close_texts;
    if (run->tokenizer) return 0;
    if (strcmp(name, SHORE__BYTES) == 0) {
        int rc = shore__tokenizer_bytes(&run->tokenizer);
        return rc < 0 ? shore__fail(diag, rc, "out of memory") : 0;
    }
    int rc = shore__tokenizer_reopen(run->path, name, run->private->end_of_text, &run->tokenizer, diag);
    if (rc == 0 && strcmp(shore__tokenizer_name(run->tokenizer), name) != 0) {
        shore__tokenizer_close(run->tokenizer);
        run->tokenizer = NULL;
        rc = shore__fail(diag, SHORE_EMISMATCH, "%s: its tokenizer is not the one this run was made with: put it back",
                         run->path);
    }
    return rc;
}

int shore__run_tokenizer_of(const struct shore__settings *s, struct shore__tokenizer **out, struct shore_diag *diag) {
    int rc = open_tokenizer(s, out, diag);
    if (rc < 0 || !s->parse_special || strcmp(shore__tokenizer_name(*out), SHORE__BYTES) != 0) return rc;
    shore__tokenizer_close(*out);
    *out = NULL;
    return shore__fail(
        diag, SHORE_EUSAGE,
        "--special-tokens parse: without a tokenizer, a text has no special tokens; name a tokenizer's directory");
}

static bool stands_in(const struct shore__settings *s, const char *name) {
    return !s->tokenizer && strcmp(name, SHORE__BYTES) == 0 && shore__settings_tokens_alone(s);
}

bool shore__run_without_tokenizer(const struct shore__run *run) {
    return stands_in(&run->settings, run->private->tokenizer_name);
}

static const char *describe(const struct shore__settings *s, const char *name, uint32_t used, uint32_t vocab, char *out,
                            size_t bytes) {
    if (strcmp(name, SHORE__BYTES) == 0) used = SHORE__BYTES_VOCAB;
    if (used > vocab) used = vocab;
    if (stands_in(s, name))
        snprintf(out, bytes, "none, since the data are token files: a text is taken and shown as bytes");
    else if (used)
        snprintf(out, bytes, "%s (%s of %s ids used)", name, shore__format_count(used).text,
                 shore__format_count(vocab).text);
    else
        snprintf(out, bytes, "%s", name);
    return out;
}

const char *shore__tokenizer_text(const struct shore__settings *s, const struct shore__tokenizer *tokenizer,
                                  const struct shore__model *m, char *out, size_t bytes) {
    return describe(s, shore__tokenizer_name(tokenizer), shore__tokenizer_vocab(tokenizer), m->arch.vocab, out, bytes);
}

const char *shore__run_tokenizer_text(const struct shore__run *run, char *out, size_t bytes) {
    uint32_t used = run->tokenizer ? shore__tokenizer_vocab(run->tokenizer) : 0;
    return describe(&run->settings, run->private->tokenizer_name, used, run->model->arch.vocab, out, bytes);
}
