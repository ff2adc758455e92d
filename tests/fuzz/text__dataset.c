/* Data from strangers: text, records, llm.c's files, all of them also packed, into a token file; and token files as
 * they are.
 *
 * Input: one byte of kind (the lowest two bits what it is, then the vocabulary, two of packing, whether bad rows are
 * skipped, whether prompts count, whether each row is a sequence), the rest a file. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "text/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char directory[64], source[128], tokens[128];

static void remove_directory(void) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    if (system(command) != 0) abort();
}

static void read_tokens(bool built, uint64_t expected) {
    struct shore__dataset *d;
    struct shore_diag diag = {0};
    int32_t ids[64], targets[64];
    uint64_t hash;
    int rc = shore__dataset_open(tokens, 0, 0, &d, &diag);
    if (rc != 0) {
        if (built || !diag.text[0]) abort();
        return;
    }
    if (built && shore__dataset_tokens(d) != expected) abort();
    if (shore__dataset_identity(d, NULL, NULL, &hash, &diag) != 0 && built) abort();
    for (uint64_t i = 0; i < 4; i++) {
        uint64_t at = shore__dataset_position(d, i, 16, i & 1, 7);
        if (at >= shore__dataset_tokens(d) || shore__dataset_read(d, at, 64, ids, &diag) != 0) abort();
        if (shore__dataset_targets(d, at, 64, targets, &diag) != 0) abort();
        for (int k = 0; k < 63; k++)
            if (targets[k] != -1 && targets[k] != ids[k + 1]) abort();
    }
    shore__dataset_close(d);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    static const char *const endings[] = {"a.txt", "a.jsonl", "a.bin", "tokens"};
    static const char *const packings[] = {"", ".gz", ".zst", ".json"};
    struct shore__dataset_stats stats = {0};
    struct shore_diag diag = {0};
    struct shore__tokenizer *t;
    if (!directory[0]) {
        strcpy(directory, "/tmp/shore-fuzz-XXXXXX");
        if (!mkdtemp(directory)) abort();
        snprintf(tokens, sizeof tokens, "%s/tokens", directory);
        atexit(remove_directory);
    }
    if (bytes < 1) return 0;
    unsigned kind = data[0] & 3;
    snprintf(source, sizeof source, "%s/%s%s", directory, endings[kind], kind == 3 ? "" : packings[data[0] >> 3 & 3]);
    int fd = open(source, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, data + 1, bytes - 1) != (ssize_t)(bytes - 1)) abort();
    close(fd);
    if (kind == 3) {
        read_tokens(false, 0);
        unlink(source);
        return 0;
    }
    const char *files[] = {source, source};
    if (shore__tokenizer_bytes(&t) != 0) abort();
    const struct shore__reading how = {.skip_bad_rows = data[0] & 32,
                                       .all_count = data[0] & 64,
                                       .row_tokens = data[0] & 128 ? 5 : 0,
                                       .memory_bytes = 64 << 20};
    int rc = shore__dataset_build(files, 2, &how, t, data[0] & 4 ? 257 : 100000, tokens, &stats, &diag);
    if (rc == 0)
        read_tokens(true, stats.tokens);
    else if (!diag.text[0])
        abort();
    shore__tokenizer_close(t);
    unlink(source);
    unlink(tokens);
    return 0;
}
