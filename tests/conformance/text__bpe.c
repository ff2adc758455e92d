/* Byte-pair encoding of pretokens that come in parts against what defines it: the first of the pairs of the lowest rank
 * becomes one token, until there is none. With any list of merges, also such as no training makes. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <setjmp.h>

#include <cmocka.h>

#include "base/prng.h"
#include "seed.h"
#include "text/bpe.h"
#include "text/vector.h"

#define TEXT_BYTES 2500u

static uint64_t seed, draws;

static uint32_t draw(uint32_t below) {
    return (uint32_t)(shore__random_u64(seed, 0, draws++) % below);
}

/* Merges of random pairs, each of what is there already. shuffled: in a random order, so that one may come before what
 * makes its parts, and with several ways to a token. */
static void make_model(struct shore__bpe *b, unsigned letters, unsigned nmerges, unsigned longest, bool shuffled) {
    static char texts[512][64], pairs[512][2][64];
    unsigned ntexts = 0, npairs = 0;
    *b = (struct shore__bpe){.byte_level = true, .unknown = SHORE__VOCAB_NONE};
    for (; ntexts < letters; ntexts++) {
        snprintf(texts[ntexts], sizeof *texts, "%c", 'a' + (int)ntexts);
        assert_int_equal(shore__vocab_add(&b->vocab, texts[ntexts], 1, ntexts), 0);
    }
    for (unsigned i = 0; i < nmerges; i++) {
        const char *left = texts[draw(ntexts)], *right = texts[draw(ntexts)];
        char both[128];
        snprintf(both, sizeof both, "%s%s", left, right);
        if (strlen(both) > longest) continue;
        bool known = shore__vocab_find(&b->vocab, both, strlen(both)) != SHORE__VOCAB_NONE;
        if (known && !shuffled) continue;
        strcpy(pairs[npairs][0], left);
        strcpy(pairs[npairs++][1], right);
        if (known) continue;
        strcpy(texts[ntexts], both);
        assert_int_equal(shore__vocab_add(&b->vocab, both, strlen(both), ntexts), 0);
        ntexts++;
    }
    for (unsigned i = 0; i < npairs; i++) {
        unsigned other = shuffled ? i + draw(npairs - i) : i;
        char(*pair)[64] = pairs[other];
        assert_int_equal(shore__bpe_add_merge(b, pair[0], strlen(pair[0]), pair[1], strlen(pair[1])), 0);
        if (other != i) memcpy(pairs[other], pairs[i], sizeof *pairs);
    }
    assert_int_equal(shore__bpe_ready(b), 0);
}

/* Random letters, one letter, or a few of them again and again with a fault here and there. */
static void make_text(char *text, unsigned letters) {
    unsigned kind = draw(3), period = kind == 1 ? 1 : 2 + draw(9);
    for (unsigned i = 0; i < TEXT_BYTES; i++)
        text[i] = kind == 0 || i < period || draw(500) == 0 ? (char)('a' + draw(letters)) : text[i - period];
}

static size_t encode_plainly(const struct shore__bpe *b, const char *text, uint32_t *ids) {
    size_t n = TEXT_BYTES;
    for (size_t i = 0; i < n; i++)
        ids[i] = b->byte_ids[(unsigned char)text[i]];
    for (;;) {
        uint32_t rank = SHORE__VOCAB_NONE, result = 0;
        size_t best = 0;
        for (size_t i = 0; i + 1 < n; i++) {
            const struct shore__merge *m = shore__merges_at(&b->merges, ids[i], ids[i + 1]);
            if (m->result == SHORE__VOCAB_NONE || m->rank >= rank) continue;
            rank = m->rank;
            result = m->result;
            best = i;
        }
        if (rank == SHORE__VOCAB_NONE) return n;
        ids[best] = result;
        memmove(ids + best + 1, ids + best + 2, (n - best - 2) * sizeof *ids);
        n--;
    }
}

static void a_pretoken_in_parts_has_the_ids_of_the_whole(void **state) {
    static uint32_t expected[TEXT_BYTES];
    static char text[TEXT_BYTES];
    (void)state;
    unsigned settled = 0;
    for (unsigned round = 0; round < 60; round++) {
        struct shore__bpe b;
        struct shore__bpe_work w = {0};
        struct shore__ids ids = {0};
        unsigned letters = 1 + draw(4), longest = 2 + draw(30);
        make_model(&b, letters, 4 + draw(300), longest, draw(2));
        make_text(text, letters);
        size_t n = encode_plainly(&b, text, expected);
        w.window = longest + 8 + draw(200);
        for (size_t at = 0, part; at < sizeof text; at += part) {
            part = 1 + draw(2 * (uint32_t)longest);
            if (part > sizeof text - at) part = sizeof text - at;
            assert_int_equal(shore__bpe_feed(&b, &w, text + at, part, &ids), 0);
        }
        settled += ids.count > n / 2;
        assert_int_equal(shore__bpe_end(&b, &w, &ids), 0);
        assert_int_equal(ids.count, n);
        assert_memory_equal(ids.ids, expected, n * sizeof *expected);
        free(ids.ids);
        shore__bpe_work_fini(&w);
        shore__bpe_fini(&b);
    }
    /* the most in parts, indeed */
    assert_true(settled >= 40);
}

int main(void) {
    seed = test_seed();
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_pretoken_in_parts_has_the_ids_of_the_whole)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
