/* compare_safetensors A B [LIMIT]: every tensor of directory A must be in B. Prints the largest absolute difference and
 * where it is; exit 1 if it is above LIMIT (default 0) or a tensor is missing, misshapen or not a number. GPT-2's names
 * count with and without "transformer.".
 * compare_safetensors --sum A: the number of tensors and elements. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "files/safetensors.h"

#define SPAN ((uint64_t)65536)

static struct shore_diag diag;

static struct shore__safetensors *open_or_die(const char *directory) {
    struct shore__safetensors *st;
    if (shore__safetensors_open(directory, &st, &diag) == 0) return st;
    fprintf(stderr, "%s: %s\n", directory, diag.text);
    exit(2);
}

static const float *read_or_die(const struct shore__safetensors *st, const struct shore__st_tensor *t, uint64_t first,
                                uint64_t count, float *out) {
    if (shore__safetensors_read(st, t, first, count, out, &diag) == 0) return out;
    fprintf(stderr, "%s: %s\n", t->name, diag.text);
    exit(2);
}

static double largest_difference(const struct shore__safetensors *a, const struct shore__st_tensor *ta,
                                 const struct shore__safetensors *b, const struct shore__st_tensor *tb) {
    static float left[SPAN], right[SPAN];
    double largest = 0;
    for (uint64_t first = 0; first < ta->elems; first += SPAN) {
        uint64_t count = ta->elems - first < SPAN ? ta->elems - first : SPAN;
        read_or_die(a, ta, first, count, left);
        read_or_die(b, tb, first, count, right);
        for (uint64_t i = 0; i < count; i++) {
            double difference = fabs((double)left[i] - (double)right[i]);
            if (isnan(difference)) return INFINITY;
            if (difference > largest) largest = difference;
        }
    }
    return largest;
}

static const struct shore__st_tensor *find(const struct shore__safetensors *st, const char *name) {
    static const char prefix[] = "transformer.";
    const struct shore__st_tensor *found = shore__safetensors_find(st, name);
    if (found) return found;
    if (strncmp(name, prefix, sizeof(prefix) - 1) == 0) return shore__safetensors_find(st, name + sizeof(prefix) - 1);
    char longer[512];
    if (snprintf(longer, sizeof(longer), "%s%s", prefix, name) >= (int)sizeof(longer)) return NULL;
    return shore__safetensors_find(st, longer);
}

int main(int argc, char **argv) {
    if (argc < 3 || argc > 4) return fprintf(stderr, "usage: compare_safetensors A B [LIMIT]\n"), 2;
    if (strcmp(argv[1], "--sum") == 0) {
        struct shore__safetensors *st = open_or_die(argv[2]);
        uint64_t elems = 0;
        for (uint32_t i = 0; i < st->ntensors; i++)
            elems += st->tensors[i].elems;
        printf("tensors %u elements %llu\n", st->ntensors, (unsigned long long)elems);
        shore__safetensors_close(st);
        return 0;
    }
    double limit = argc == 4 ? strtod(argv[3], NULL) : 0, largest = 0;
    const char *where = "nowhere";
    int bad = 0;
    struct shore__safetensors *a = open_or_die(argv[1]), *b = open_or_die(argv[2]);
    for (uint32_t i = 0; i < a->ntensors; i++) {
        const struct shore__st_tensor *ta = &a->tensors[i], *tb = find(b, ta->name);
        if (!tb) {
            printf("%s is not in %s\n", ta->name, argv[2]);
            bad = 1;
        } else if (ta->rank != tb->rank || memcmp(ta->shape, tb->shape, ta->rank * sizeof(ta->shape[0])) != 0) {
            printf("%s has another shape\n", ta->name);
            bad = 1;
        } else {
            double difference = largest_difference(a, ta, b, tb);
            if (difference > largest) {
                largest = difference;
                where = ta->name;
            }
        }
    }
    printf("largest difference %.3g (%s), limit %.3g\n", largest, where, limit);
    shore__safetensors_close(a);
    shore__safetensors_close(b);
    return bad || largest > limit;
}
