/* Runs every file of the given directories (or files) through a fuzz target, and a few inputs of its own: what was
 * found once stays found, without clang. */
#include <dirent.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

static void replay_file(const char *path) {
    FILE *file = fopen(path, "rb");
    struct stat st;
    if (!file || fstat(fileno(file), &st) != 0 || !S_ISREG(st.st_mode)) {
        if (file) fclose(file);
        return;
    }
    /* Exactly as large as the input, so that the sanitizers see a read past its end. */
    size_t bytes = (size_t)st.st_size;
    uint8_t *data = malloc(bytes ? bytes : 1);
    if (data && fread(data, 1, bytes, file) == bytes) LLVMFuzzerTestOneInput(data, bytes);
    free(data);
    fclose(file);
}

int main(int argc, char **argv) {
    LLVMFuzzerTestOneInput((const uint8_t *)"", 0);
    LLVMFuzzerTestOneInput((const uint8_t *)"\0", 1);
    unsigned files = 0;
    for (int i = 1; i < argc; i++) {
        DIR *directory = opendir(argv[i]);
        if (!directory) {
            replay_file(argv[i]);
            continue;
        }
        for (const struct dirent *entry; (entry = readdir(directory));) {
            char path[4096];
            if (snprintf(path, sizeof(path), "%s/%s", argv[i], entry->d_name) >= (int)sizeof(path)) continue;
            replay_file(path);
            files++;
        }
        closedir(directory);
    }
    printf("%u inputs\n", files);
    return 0;
}
