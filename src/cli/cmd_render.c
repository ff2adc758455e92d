#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "files/hub.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct args {
    bool json;
};

static const struct shore__option options[] = {
    SHORE__OPTION(struct args, FLAG, "json", json, NULL,
                  "one JSON object per sequence: row, text, counts (pairs of bytes in it: begin, end)"),
};

static int print_json(const struct shore__chat_text *t, uint64_t row) {
    json_t *counts = json_array();
    for (size_t i = 0; i < t->ncounts; i++)
        json_array_append_new(counts,
                              json_pack("[I, I]", (json_int_t)t->counts[i].begin, (json_int_t)t->counts[i].end));
    return shore__cli_print_json(json_pack("{s:I, s:o, s:o}", "row", (json_int_t)row, "text",
                                           json_stringn(t->text, t->bytes), "counts", counts));
}

/* Prints a sequence, with brackets around what counts. */
static void print_text(const struct shore__chat_text *t, uint64_t row) {
    size_t at = 0;
    printf("row %llu%s\n", (unsigned long long)row, t->ncounts ? "" : ": nothing in it counts");
    for (size_t i = 0; i < t->ncounts; i++) {
        shore__cli_put_text(stdout, t->text + at, t->counts[i].begin - at);
        fputs("\xE2\x9F\xA6", stdout);
        shore__cli_put_text(stdout, t->text + t->counts[i].begin, t->counts[i].end - t->counts[i].begin);
        fputs("\xE2\x9F\xA7", stdout);
        at = t->counts[i].end;
    }
    shore__cli_put_text(stdout, t->text + at, t->bytes - at);
    puts("\n");
}

static int render_row(struct shore__chat *chat, const char *line, size_t bytes, uint64_t n, bool json,
                      struct shore_diag *diag) {
    struct shore__chat_text *texts = NULL;
    size_t count = 0;
    json_error_t why;
    json_t *row = json_loadb(line, bytes, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why);
    int rc = row ? shore__chat_render(chat, row, false, &texts, &count, diag)
                 : shore__fail(diag, SHORE_EINPUT, "is no JSON: %s", why.text);
    for (size_t i = 0; rc == 0 && i < count; i++)
        if (json)
            print_json(&texts[i], n);
        else
            print_text(&texts[i], n);
    shore__chat_texts_free(texts, count);
    json_decref(row);
    return rc;
}

static int render_file(struct shore__chat *chat, const char *path, bool json, struct shore_diag *diag) {
    FILE *f = fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    struct shore_diag why = {0};
    int rc = f ? 0 : shore__fail_errno(diag, path, "cannot be opened");
    for (uint64_t n = 1; rc == 0 && (bytes = getline(&line, &room, f)) > 0; n++) {
        if (strspn(line, " \t\r\n") == (size_t)bytes) continue;
        rc = render_row(chat, line, (size_t)bytes, n, json, &why);
        if (rc) shore__fail(diag, rc, "%s:%llu: %s", path, (unsigned long long)n, why.text);
    }
    if (rc == 0 && ferror(f)) rc = shore__fail_errno(diag, path, "cannot be read");
    if (f) fclose(f);
    free(line);
    return rc;
}

static int render(const struct shore__parsed *parsed, void *args) {
    const struct args *a = args;
    const char *directory = parsed->positional[0], *rows = parsed->positional[1];
    struct shore__tokenizer *tokenizer = NULL;
    struct shore__chat *chat = NULL;
    struct shore_diag diag = {0};
    int rc = rows ? shore__hub_refuse("", directory, SHORE__HUB_MODEL, &diag)
                  : shore__fail(&diag, SHORE_EUSAGE, "which rows? longshore render MODEL FILE");
    if (!rc) rc = shore__tokenizer_open(directory, &tokenizer, &diag);
    if (!rc) rc = shore__chat_open(tokenizer, NULL, NULL, &chat, &diag);
    if (!rc) rc = render_file(chat, rows, a->json, &diag);
    shore__chat_close(chat);
    shore__tokenizer_close(tokenizer);
    return rc ? shore__cli_fail(rc, &diag) : SHORE__EXIT_DONE;
}

const struct shore__command_line shore__cli_render = {
    .command = "render",
    .synopsis = "render MODEL FILE",
    .about = "Shows rows of messages as the model's chat template writes them, with \xE2\x9F\xA6 and \xE2\x9F\xA7 "
             "around what\n"
             "counts in the loss. MODEL: a Hugging Face directory, or a run. FILE: a JSON row on each line.",
    SHORE__OPTIONS(options),
    .positional = 2,
    .missing = "which model? longshore render MODEL FILE",
    SHORE__RUNS(render, struct args, .json = false),
};
