/* A directory of safetensors from strangers: what opens must be readable to its last element.
 *
 * Input: one byte of choices, the method of quantisation among them, two bytes n, n bytes of an index or of a first
 * shard's header, the rest a file. */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/units.h"
#include "files/quantized.h"

#define CHOICE_LENGTH 1u /* put the true length of the header in front */
#define CHOICE_INDEX 2u
#define CHOICE_METHOD 28u /* three bits: which codes and scales to look for */
#define CHOICE_BLOCKS 32u /* config.json says how large blocks are */
#define ELEMS_MOST 65536u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static char directory[64];

static void remove_directory(void) {
    char command[96];
    snprintf(command, sizeof command, "rm -rf '%s'", directory);
    if (system(command) != 0) abort();
}

static void put_file(const char *name, const void *head, size_t head_bytes, const void *data, size_t bytes) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (fd < 0 || write(fd, head, head_bytes) != (ssize_t)head_bytes || write(fd, data, bytes) != (ssize_t)bytes)
        abort();
    close(fd);
}

static void drop_file(const char *name) {
    char path[128];
    snprintf(path, sizeof path, "%s/%s", directory, name);
    unlink(path);
}

static void read_all(unsigned choice) {
    struct shore__safetensors *st;
    struct shore_diag diag = {0};
    if (shore__safetensors_open(directory, &st, &diag) != 0) {
        if (!diag.text[0]) abort();
        return;
    }
    const uint32_t block = choice & CHOICE_BLOCKS ? 2 : 0;
    const struct shore__quantization q = {
        (choice & CHOICE_METHOD) / 4 % (SHORE__QUANT_BITSANDBYTES + 1), SHORE__ST_BF16, {block, block}};
    if (shore__quantized_resolve(st, &q, &diag) != 0) {
        if (!diag.text[0]) abort();
        shore__safetensors_close(st);
        return;
    }
    float *out = malloc(ELEMS_MOST * sizeof *out);
    for (uint32_t i = 0; out && i < st->ntensors; i++) {
        const struct shore__st_tensor *t = &st->tensors[i];
        uint64_t count = t->elems < ELEMS_MOST ? t->elems : ELEMS_MOST;
        int rc = shore__safetensors_read(st, t, t->elems - count, count, out, &diag);
        if (rc != 0 && t->type != SHORE__ST_OTHER) abort();
        if (shore__safetensors_read(st, t, t->elems, 1, out, &diag) == 0) abort();
        if (t->rank == 2 && t->elems <= ELEMS_MOST && t->shape[0] < ELEMS_MOST && t->shape[1] < ELEMS_MOST)
            (void)shore__safetensors_read_transposed(st, t, 0, t->shape[1], out, &diag);
        if (t->rank > 1 && t->shape[0]) {
            struct shore__st_tensor slice = shore__safetensors_slice(t, t->shape[0] - 1);
            count = slice.elems < ELEMS_MOST ? slice.elems : ELEMS_MOST;
            rc = shore__safetensors_read(st, &slice, slice.elems - count, count, out, &diag);
            if (rc != 0 && t->type != SHORE__ST_OTHER) abort();
        }
        if (shore__safetensors_find(st, t->name) != t) abort();
    }
    free(out);
    shore__safetensors_close(st);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    unsigned char length[8] = {0};
    if (!directory[0]) {
        strcpy(directory, "/tmp/shore-fuzz-XXXXXX");
        if (!mkdtemp(directory)) abort();
        atexit(remove_directory);
    }
    if (bytes < 3) return 0;
    unsigned choice = data[0];
    size_t first = shore__get_u16(data + 1);
    data += 3;
    bytes -= 3;
    if (first > bytes) first = bytes;
    shore__put_u64(length, first);
    if (choice & CHOICE_INDEX) {
        put_file("model.safetensors.index.json", "", 0, data, first);
        size_t rest = bytes - first, header = rest < 2 ? rest : shore__get_u16(data + first);
        if (rest >= 2) {
            first += 2;
            rest -= 2;
        }
        shore__put_u64(length, header < rest ? header : rest);
        put_file("a.safetensors", length, 8, data + first, rest);
    } else {
        put_file("model.safetensors", length, choice & CHOICE_LENGTH ? 8 : 0, data, bytes);
    }
    read_all(choice);
    drop_file("model.safetensors.index.json");
    drop_file("model.safetensors");
    drop_file("a.safetensors");
    return 0;
}
