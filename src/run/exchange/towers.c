#include "run/exchange/towers.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "files/safetensors.h"

struct shore__towers {
    struct shore__safetensors *files;
    struct map {
        void *at;
        size_t bytes;
    } * maps; /* one for each file */
    struct shore_extra *extras;
    uint32_t n;
};

void shore__towers_close(struct shore__towers *t) {
    if (!t) return;
    for (uint32_t i = 0; t->maps && i < t->files->nfiles; i++)
        if (t->maps[i].bytes) munmap(t->maps[i].at, t->maps[i].bytes);
    shore__safetensors_close(t->files);
    free(t->maps);
    free(t->extras);
    free(t);
}

const struct shore_extra *shore__towers_extras(const struct shore__towers *t, uint32_t *n) {
    *n = t->n;
    return t->extras;
}

static int map_files(struct shore__towers *t, struct shore_diag *diag) {
    for (uint32_t i = 0; i < t->files->nfiles; i++) {
        struct stat st;
        if (fstat(t->files->fds[i], &st) < 0) return shore__fail_errno(diag, t->files->files[i], "cannot be read");
        void *at = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, t->files->fds[i], 0);
        if (at == MAP_FAILED) return shore__fail_errno(diag, t->files->files[i], "cannot be mapped");
        t->maps[i] = (struct map){at, (size_t)st.st_size};
    }
    return 0;
}

static int add(struct shore__towers *t, const struct shore__st_tensor *tensor, struct shore_diag *diag) {
    static const char *const names[] = {"F32", "BF16", "F16", "F8_E4M3"};
    if (!shore__st_is_weight(tensor) || tensor->coding || tensor->rank > SHORE_RANK_MOST)
        return shore__fail(diag, SHORE_EINPUT,
                           "%s: the tensor %s, which the text does not use, has a type that an export does not write: "
                           "it writes F32, BF16, F16 and F8_E4M3",
                           shore__shown(t->files->directory).text, shore__shown(tensor->name).text);
    struct shore_extra *x = &t->extras[t->n++];
    *x = (struct shore_extra){
        tensor->name, names[tensor->type], tensor->rank, {0}, (const char *)t->maps[tensor->file].at + tensor->offset};
    memcpy(x->dims, tensor->shape, tensor->rank * sizeof *x->dims);
    return 0;
}

int shore__towers_open(const char *directory, const struct shore__model *m, struct shore__towers **out,
                       struct shore_diag *diag) {
    struct shore__towers *t = calloc(1, sizeof *t);
    int rc = t ? 0 : shore__out_of_memory(diag);
    if (rc == 0 && !directory)
        rc = shore__fail(diag, SHORE_EINPUT,
                         "the run is the text of a %s model that was made without weights: what the model has beside "
                         "the text is nowhere",
                         m->arch.wrapper);
    if (rc == 0 && access(directory, R_OK) < 0)
        rc = shore__fail(diag, SHORE_EINPUT,
                         "%s: the run was made of this directory, which has what the model has beside its text, and it "
                         "cannot be read: %s; put it back for the export",
                         shore__shown(directory).text, strerror(errno));
    if (rc == 0) rc = shore__safetensors_open(directory, &t->files, diag);
    if (rc == 0) {
        t->maps = calloc(t->files->nfiles + 1u, sizeof *t->maps);
        t->extras = calloc(t->files->ntensors + 1u, sizeof *t->extras);
        rc = t->maps && t->extras ? map_files(t, diag) : shore__out_of_memory(diag);
    }
    for (uint32_t i = 0; rc == 0 && i < t->files->ntensors; i++) {
        const char *name = t->files->tensors[i].name;
        bool text = strstr(name, SHORE__TEXT_PREFIX) || strcmp(name, "lm_head.weight") == 0;
        if (!text) rc = add(t, &t->files->tensors[i], diag);
    }
    if (rc == 0)
        *out = t;
    else
        shore__towers_close(t);
    return rc;
}
