/* A run's data: tokenizes text, splits and opens the tokens, and compares them with what the run was made with. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "base/directory.h"
#include "base/units.h"
#include "files/atomic.h"
#include "run/internal.h"
#include "run/paths.h"

/* The file of the data, or of those to validate on. */
static const char *file_of(const struct shore__token_record *record, bool validation) {
    static const char *const names[2][2] = {{"tokens.bin", "tokens.2.bin"}, {"val.bin", "val.2.bin"}};
    return names[validation][record->second];
}

static void say_counting(struct shore__run *run, const struct shore__strings *files,
                         const struct shore__dataset_stats *s) {
    char text[512];
    if (!s->uncounted || run->settings.quiet) return;
    snprintf(text, sizeof text, "%.300s%s: %s of %s tokens count in the loss", files->item[0],
             files->count > 1 ? " and others" : "", shore__format_count(s->tokens - s->uncounted).text,
             shore__format_count(s->tokens).text);
    shore__run_remember(run, text);
}

static int tokenize(struct shore__run *run, const struct shore__strings *files, const char *directory, bool validation,
                    shore__progress_fn progress, void *ctx, struct shore__token_record *out, struct shore_diag *diag) {
    struct shore__dataset_stats stats = {0};
    struct shore__dataset *whole = NULL;
    const struct shore__path path = shore__path_in(directory, file_of(out, validation));
    const struct shore__settings *s = &run->settings;
    *out = (struct shore__token_record){.second = out->second};
    const struct shore__reading how = {
        .parse_special = s->parse_special,
        .threads = s->threads,
        .progress = progress,
        .progress_ctx = ctx,
        .note = shore__run_remember,
        .note_ctx = run,
        .text_field = s->text_field,
        .skip_bad_rows = s->skip_bad_rows,
        .all_count = s->all_count,
        .row_tokens = s->packs ? 0 : s->seq_len,
        .memory_bytes = s->memory_bytes,
        .ends = files == &s->data && s->mix.count ? out->ends : NULL,
    };
    if (how.row_tokens && run->model->arch.balance > 0)
        return shore__fail(
            diag, SHORE_EUSAGE,
            "--pack off pads, and the loss that balances the experts would count the padding: use --pack "
            "on, or a config.json with \"output_router_logits\": false");
    int rc = shore__dataset_build((const char *const *)files->item, files->count, &how, run->tokenizer,
                                  run->model->arch.vocab, path.text, &stats, diag);
    out->tokens = stats.tokens;
    out->documents = stats.documents;
    out->text_bytes = stats.text_bytes;
    out->bad_rows = stats.bad_rows;
    if (rc == 0) rc = shore__dataset_open(path.text, 0, 0, &whole, diag);
    if (rc == 0) rc = shore__dataset_identity(whole, NULL, NULL, &out->hash, diag);
    if (rc == 0 && out->tokens < 2)
        rc = shore__fail(diag, SHORE_EINPUT, "%s: is too short: training needs at least 2 tokens", files->item[0]);
    if (rc == 0) say_counting(run, files, &stats);
    shore__dataset_close(whole);
    return rc;
}

static int split(struct shore__run *run, struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    p->val_tokens = (uint64_t)((double)p->data.tokens * run->settings.val_share);
    if (!run->settings.packs) p->val_tokens -= p->val_tokens % run->settings.seq_len; /* whole rows */
    p->train_tokens = p->data.tokens - p->val_tokens;
    if (run->settings.val_share > 0 && (p->val_tokens < 2 || p->train_tokens < 2))
        return shore__fail(diag, SHORE_EUSAGE,
                           "--val-share %g of %" PRIu64 " tokens leaves too few to train or to validate on",
                           run->settings.val_share, p->data.tokens);
    if (p->val_data.tokens) p->val_tokens = p->val_data.tokens;
    return 0;
}

int shore__run_tokenize(struct shore__run *run, const char *directory, shore__progress_fn progress, void *ctx,
                        struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    const struct shore__settings *s = &run->settings;
    int rc = 0;
    /* an import may have no data */
    if (s->data.count) rc = tokenize(run, &s->data, directory, false, progress, ctx, &p->data, diag);
    if (rc == 0 && s->val_data.count)
        rc = tokenize(run, &s->val_data, directory, true, progress, ctx, &p->val_data, diag);
    return rc ? rc : split(run, diag);
}

/* Checks the file's length first: failing to open a part would hide that it is another file. */
static int open_tokens(const char *directory, const char *name, uint64_t first, uint64_t count,
                       const struct shore__token_record *record, struct shore__dataset **out, struct shore_diag *diag) {
    struct shore__dataset *whole = NULL;
    const struct shore__path path = shore__path_in(directory, name);
    int rc = shore__dataset_open(path.text, 0, 0, &whole, diag);
    if (rc == 0 && shore__dataset_stats(whole)->tokens != record->tokens)
        rc =
            shore__fail(diag, SHORE_EMISMATCH,
                        "%s: holds %" PRIu64 " tokens, but this run was made with %" PRIu64 ": put the run's file back",
                        path.text, shore__dataset_stats(whole)->tokens, record->tokens);
    shore__dataset_close(whole);
    return rc ? rc : shore__dataset_open(path.text, first, count, out, diag);
}

int shore__run_open_data(struct shore__run *run, const char *directory, struct shore_diag *diag) {
    const struct shore__run_private *p = run->private;
    struct shore__dataset *train = NULL, *val = NULL;
    uint32_t shares[SHORE__MIX_MOST];
    int rc = p->data.tokens
                 ? open_tokens(directory, file_of(&p->data, false), 0, p->train_tokens, &p->data, &train, diag)
                 : 0;
    if (rc == 0 && run->settings.mix.count) rc = shore__settings_mix(&run->settings, shares, diag);
    if (rc == 0 && run->settings.mix.count)
        rc = shore__dataset_mix(train, p->data.ends, shares, run->settings.mix.count, diag);
    if (rc == 0 && p->val_data.tokens)
        rc = open_tokens(directory, file_of(&p->val_data, true), 0, 0, &p->val_data, &val, diag);
    else if (rc == 0 && p->val_tokens)
        rc = open_tokens(directory, file_of(&p->data, false), p->train_tokens, p->val_tokens, &p->data, &val, diag);
    if (rc < 0) {
        shore__dataset_close(train);
        return rc;
    }
    shore__dataset_close(run->train);
    shore__dataset_close(run->val);
    run->train = train;
    run->val = val;
    run->private->close_texts = shore__run_close_texts;
    return 0;
}

/* Opens the run's data, too, and keeps what is wrong with it for later. */
static int with_data(struct shore__run *run, struct shore__run **out, struct shore_diag *diag) {
    struct shore_diag why;
    run->no_data_rc = shore__run_open_data(run, run->path, &why);
    if (run->no_data_rc && !(run->no_data = strdup(why.text))) {
        shore__run_close(run);
        return shore__out_of_memory(diag);
    }
    *out = run;
    return 0;
}

int shore__run_open(const char *path, bool for_writing, const struct shore__strings *moved, struct shore__run **out,
                    struct shore_diag *diag) {
    struct shore__run *run;
    int rc = shore__run_open_state(path, for_writing, moved, &run, diag);
    return rc ? rc : with_data(run, out, diag);
}

int shore__run_look(const char *path, const struct shore__strings *moved, struct shore__run **out,
                    struct shore_diag *diag) {
    struct shore__run *run;
    int rc = shore__run_look_at_state(path, moved, &run, diag);
    return rc ? rc : with_data(run, out, diag);
}

uint64_t shore__run_bad_rows(const struct shore__run *run) {
    return run->private->data.bad_rows + run->private->val_data.bad_rows;
}

static int check_tokens(const struct shore__run *run, const char *name, const struct shore__token_record *record,
                        shore__progress_fn progress, void *ctx, struct shore_diag *diag) {
    struct shore__dataset *whole = NULL;
    uint64_t hash = 0;
    int rc = open_tokens(run->path, name, 0, 0, record, &whole, diag);
    if (rc == 0) rc = shore__dataset_identity(whole, progress, ctx, &hash, diag);
    if (rc == SHORE_ECORRUPT && diag)
        shore__fail_of(diag, rc, diag, "%s; a new run on the same text makes the same file: put it here", diag->text);
    if (rc == 0 && hash != record->hash)
        rc = shore__fail(diag, SHORE_EMISMATCH, "%s/%s: is not the data that this run was made with: put it back",
                         run->path, name);
    shore__dataset_close(whole);
    return rc;
}

int shore__run_check_data(struct shore__run *run, bool val_alone, shore__progress_fn progress, void *ctx,
                          struct shore_diag *diag) {
    const struct shore__run_private *p = run->private;
    bool needed = p->data.tokens && !(val_alone && p->val_data.tokens); /* without val.bin, tokens.bin holds both */
    int rc = needed ? check_tokens(run, file_of(&p->data, false), &p->data, progress, ctx, diag) : 0;
    if (rc == 0 && p->val_data.tokens)
        rc = check_tokens(run, file_of(&p->val_data, true), &p->val_data, progress, ctx, diag);
    return rc;
}

static int sync_file(const struct shore__run *run, const struct shore__token_record *record, bool validation,
                     struct shore_diag *diag) {
    const struct shore__path path = shore__path_in(run->path, file_of(record, validation));
    return record->tokens ? shore__file_sync(path.text, diag) : 0;
}

/* Durable; the caller records it. */
static int sync_and_open(struct shore__run *run, struct shore_diag *diag) {
    int rc = sync_file(run, &run->private->data, false, diag);
    if (rc == 0) rc = sync_file(run, &run->private->val_data, true, diag);
    if (rc == 0) rc = shore__directory_sync(run->path, diag);
    return rc ? rc : shore__run_open_data(run, run->path, diag);
}

int shore__run_take_data(struct shore__run *run, shore__progress_fn progress, void *ctx, struct shore_diag *diag) {
    int rc = shore__run_tokenizer(run, diag);
    if (rc == 0) rc = shore__run_tokenize(run, run->path, progress, ctx, diag);
    if (rc == 0) rc = sync_and_open(run, diag);
    if (rc == 0) shore__settings_fit(&run->settings, run->model, run->private->train_tokens);
    if (rc == 0) rc = shore__run_write(run, diag);
    if (rc < 0) { /* run.json does not name them */
        unlink(shore__path_in(run->path, file_of(&run->private->data, false)).text);
        unlink(shore__path_in(run->path, file_of(&run->private->val_data, true)).text);
    }
    return rc;
}

int shore__run_replace_data(struct shore__run *run, bool validation, shore__progress_fn progress, void *ctx,
                            struct shore_diag *diag) {
    struct shore__run_private *p = run->private;
    const struct shore__settings *s = &run->settings;
    int rc = shore__run_tokenizer(run, diag);
    p->data.second = !p->data.second;
    if (rc == 0) rc = tokenize(run, &s->data, run->path, false, progress, ctx, &p->data, diag);
    if (!s->val_data.count) p->val_data = (struct shore__token_record){0};
    if (validation) p->val_data.second = p->val_data.tokens > 0 && !p->val_data.second;
    if (rc == 0 && validation) rc = tokenize(run, &s->val_data, run->path, true, progress, ctx, &p->val_data, diag);
    if (rc == 0) rc = split(run, diag);
    if (rc == 0) rc = sync_and_open(run, diag);
    if (rc == 0) run->data_from = SHORE__FROM_NEXT;
    if (rc == 0 && (validation || s->val_share > 0)) run->val_from = SHORE__FROM_NEXT;
    return rc;
}

void shore__run_remove_old_data(const struct shore__run *run) {
    const struct shore__token_record *records[] = {&run->private->data, &run->private->val_data};
    for (int i = 0; i < 4; i++) {
        const struct shore__token_record *now = records[i / 2], one = {.second = i % 2};
        bool in_use = now->tokens ? now->second == one.second : i < 2;
        if (!in_use) unlink(shore__path_in(run->path, file_of(&one, i / 2)).text);
    }
}
