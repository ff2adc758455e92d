/* tokenizer.json from strangers, and texts through it: in one part and byte by byte, with the same ids; what was
 * encoded decodes, and is found in spans of the text.
 *
 * Input: one byte of choices, two bytes n, n bytes of text, the rest tokenizer.json, or vocab.json and, behind a zero
 * byte, merges.txt; then, if it is chosen, behind the last zero byte a file that stands beside it. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/units.h"
#include "text/token_spans.h"
#include "text/tokenizer.h"

#define CHOICE_SPECIAL 1u
#define CHOICE_PAIR 2u
#define CHOICE_BESIDE 4u /* and two bits more: which */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char directory[64];

static void remove_directory(void) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    if (system(command) != 0) abort();
}

static void put_file(const char *name, const void *data, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data, bytes) != (ssize_t)bytes) abort();
    close(fd);
}

static void drop_file(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    unlink(path);
}

static int feed(struct shore__encoder *e, const char *text, size_t bytes, struct shore__ids *out, bool ends) {
    struct shore_diag diag = {0};
    int rc = shore__encoder_feed(e, text, bytes, out, &diag);
    return rc || !ends ? rc : shore__encoder_end(e, out, &diag);
}

/* An encoder that begins in the middle, and comes to the state of the one that began at the beginning, goes on as it.
 */
static void join_late(const struct shore__tokenizer *t, const char *text, size_t bytes, bool special) {
    struct shore__encoder *first, *late;
    struct shore__ids passed = {0}, expected = {0}, ids = {0};
    struct shore__text there = {0}, here = {0};
    size_t middle = bytes / 2, lead = middle < 16 ? middle : 16;
    if (shore__encoder_open(t, special, &first) != 0 || shore__encoder_open(t, special, &late) != 0) abort();
    int rc = feed(first, text, middle, &passed, false);
    if (rc == 0) rc = feed(late, text + middle - lead, lead, &passed, false);
    if (rc == 0) rc = shore__encoder_state(first, &there);
    if (rc == 0) rc = shore__encoder_state(late, &here);
    bool same = rc == 0 && there.count == here.count && !memcmp(there.bytes, here.bytes, here.count);
    if (same && feed(first, text + middle, bytes - middle, &expected, true) == 0 &&
        feed(late, text + middle, bytes - middle, &ids, true) == 0) {
        if (ids.count != expected.count) abort();
        if (ids.count && memcmp(ids.ids, expected.ids, ids.count * sizeof *ids.ids) != 0) abort();
    }
    /* and a reset one is as new */
    shore__encoder_reset(late);
    passed.count = ids.count = 0;
    if (feed(late, text, bytes, &ids, true) == 0 && rc == 0) {
        shore__encoder_reset(first);
        if (feed(first, text, bytes, &passed, true) != 0 || passed.count != ids.count) abort();
    }
    shore__encoder_close(first);
    shore__encoder_close(late);
    free(passed.ids);
    free(expected.ids);
    free(ids.ids);
    free(there.bytes);
    free(here.bytes);
}

/* What counts in one of two spans counts in a span of all. */
static void find_spans(struct shore__tokenizer *t, const char *text, size_t bytes, const struct shore__ids *ids) {
    struct shore__chat_span all = {0, bytes}, two[2] = {{bytes / 5, bytes / 2}, {bytes / 2 + 1, bytes - bytes / 4}};
    const struct shore__chat_text whole = {(char *)(uintptr_t)text, bytes, &all, 1},
                                  parts = {(char *)(uintptr_t)text, bytes, two, bytes > 8 ? 2 : 0};
    bool *in_all = calloc(ids->count + 1, 1), *in_parts = calloc(ids->count + 1, 1);
    struct shore_diag diag = {0};
    int rc = shore__token_spans(t, &whole, ids, in_all, &diag);
    if (rc != 0 && !diag.text[0]) abort();
    if (rc == 0 && shore__token_spans(t, &parts, ids, in_parts, &diag) == 0)
        for (size_t i = 0; i < ids->count; i++)
            if (in_parts[i] && !in_all[i]) abort();
    free(in_all);
    free(in_parts);
}

static void use(struct shore__tokenizer *t, const char *text, size_t bytes, bool special) {
    struct shore__ids whole = {0}, parts = {0};
    struct shore__text decoded = {0};
    struct shore_diag diag = {0};
    struct shore__encoder *e;
    int rc = shore__tokenizer_encode(t, text, bytes, special, &whole, &diag), again = 0;
    if (rc != 0 && !diag.text[0]) abort();
    if (shore__encoder_open(t, special, &e) != 0) abort();
    for (size_t i = 0; again == 0 && i < bytes; i++)
        again = shore__encoder_feed(e, text + i, 1, &parts, &diag);
    if (again == 0) again = shore__encoder_end(e, &parts, &diag);
    shore__encoder_close(e);
    if (rc == 0) find_spans(t, text, bytes, &whole);
    /* a pattern may reach its limit of work in one way only */
    if (rc == 0 && again == 0) {
        if (whole.count != parts.count) abort();
        if (whole.count && memcmp(whole.ids, parts.ids, whole.count * sizeof *whole.ids) != 0) abort();
        if (whole.count && shore__tokenizer_decode(t, whole.ids, whole.count, &decoded) != 0) abort();
    }
    free(whole.ids);
    free(parts.ids);
    free(decoded.bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct shore__tokenizer *t;
    struct shore_diag diag = {0};
    if (!directory[0]) {
        strcpy(directory, "/tmp/shore-fuzz-XXXXXX");
        if (!mkdtemp(directory)) abort();
        atexit(remove_directory);
    }
    if (bytes < 3) return 0;
    unsigned choice = data[0];
    size_t text_bytes = shore__get_u16(data + 1);
    data += 3;
    bytes -= 3;
    if (text_bytes > bytes) text_bytes = bytes;
    const uint8_t *files = data + text_bytes, *zero = memchr(files, 0, bytes - text_bytes);
    size_t file_bytes = bytes - text_bytes;
    static const char *const others[] = {"tokenizer_config.json", "special_tokens_map.json", "added_tokens.json",
                                         "config.json"};
    const char *beside = NULL;
    if (choice & CHOICE_BESIDE) {
        const uint8_t *last = memrchr(files, 0, file_bytes), *end = files + file_bytes;
        beside = last ? others[choice >> 3 & 3] : NULL;
        if (beside) put_file(beside, last + 1, (size_t)(end - last - 1));
        if (beside) file_bytes = (size_t)(last - files);
        if (zero == last) zero = NULL;
    }
    if (choice & CHOICE_PAIR) {
        size_t first = zero ? (size_t)(zero - files) : file_bytes;
        put_file("vocab.json", files, first);
        put_file("merges.txt", zero ? zero + 1 : files, zero ? file_bytes - first - 1 : 0);
    } else {
        put_file("tokenizer.json", files, file_bytes);
    }
    int rc = shore__tokenizer_open(directory, &t, &diag);
    if (rc == 0) {
        use(t, (const char *)data, text_bytes, choice & CHOICE_SPECIAL);
        join_late(t, (const char *)data, text_bytes, choice & CHOICE_SPECIAL);
        shore__tokenizer_close(t);
    } else if (!diag.text[0]) {
        abort();
    }
    drop_file("vocab.json");
    drop_file("merges.txt");
    drop_file("tokenizer.json");
    if (beside) drop_file(beside);
    return 0;
}
