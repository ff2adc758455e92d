#include "base/suggest.h"

#include <string.h>

enum { LONGEST = 64 };

/* Optimal string alignment: each insertion, deletion, change and swap of neighbours counts one. */
static size_t distance(const char *a, size_t na, const char *b, size_t nb) {
    size_t rows[3][LONGEST + 1];
    size_t *before = rows[0], *last = rows[1], *now = rows[2];
    for (size_t j = 0; j <= nb; j++)
        last[j] = before[j] = j;
    for (size_t i = 1; i <= na; i++) {
        now[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = last[j - 1] + (a[i - 1] != b[j - 1]);
            if (last[j] + 1 < best) best = last[j] + 1;
            if (now[j - 1] + 1 < best) best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] && before[j - 2] + 1 < best)
                best = before[j - 2] + 1;
            now[j] = best;
        }
        size_t *oldest = before;
        before = last;
        last = now;
        now = oldest;
    }
    return last[nb];
}

const char *shore__suggest(const char *word, const char *const *names, size_t count) {
    size_t n = strlen(word), best = n / 3 > 1 ? n / 3 + 1 : 2;
    const char *found = NULL;
    if (n == 0 || n > LONGEST) return NULL;
    for (size_t i = 0; i < count; i++) {
        size_t length = strlen(names[i]);
        if (length > LONGEST) continue;
        size_t d = distance(word, n, names[i], length);
        if (d < best) {
            best = d;
            found = names[i];
        }
    }
    return found;
}

bool shore__has_word(const char *words, const char *word) {
    size_t n = strlen(word);
    if (n == 0 || strchr(word, ' ')) return false;
    for (const char *at = words; (at = strstr(at, word)); at += n)
        if ((at == words || at[-1] == ' ') && (!at[n] || at[n] == ' ')) return true;
    return false;
}

bool shore__ends_with(const char *name, const char *end) {
    size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}
