/* Rows of which a part counts in the loss: their tokens, which of them count, and what is said of bad ones. */
#include "unit/text/built_data.h"

/* Builds from a file of that name with this text. */
static int build_of(const char *name, const char *text, const struct shore__reading *how, struct shore_diag *diag) {
    return build(put_text(name, text), how, NULL, diag);
}

/* The tokens, '|' for the end of text; and behind each the '#' of one that counts. */
static void expect_part(uint64_t first, uint64_t count, const char *expected) {
    struct shore__dataset *d;
    struct shore_diag diag;
    int32_t ids[512], targets[512];
    char got[1025] = "", *at = got;
    uint64_t hash;
    assert_int_equal(shore__dataset_open(in_directory("tokens"), first, count, &d, &diag), 0);
    size_t n = (size_t)shore__dataset_tokens(d);
    assert_true(n <= 512);
    assert_int_equal(shore__dataset_read(d, 0, n, ids, &diag), 0);
    assert_int_equal(shore__dataset_targets(d, n - 1, n, targets, &diag),
                     0); /* from the first one on, around the end */
    assert_int_equal(shore__dataset_identity(d, NULL, NULL, &hash, &diag), 0);
    shore__dataset_close(d);
    for (size_t i = 0; i < n; i++) {
        *at++ = ids[i] == 256 ? '|' : (char)ids[i];
        assert_true(targets[i] == ids[i] || targets[i] == -1);
        if (targets[i] >= 0) *at++ = '#';
    }
    *at = 0;
    assert_string_equal(got, expected);
}

static void expect(const char *text, const struct shore__reading *how, const char *expected) {
    struct shore_diag diag;
    if (build_of("a.jsonl", text, how, &diag)) fail_msg("%s", diag.text);
    expect_part(0, 0, expected);
}

static void refuse(const char *text, const char *part) {
    const struct shore__reading how = {0};
    struct shore_diag diag;
    assert_int_equal(build_of("a.jsonl", text, &how, &diag), SHORE_EINPUT);
    if (!strstr(diag.text, part)) fail_msg("\"%s\" does not say \"%s\"", diag.text, part);
    if (!strstr(diag.text, "a.jsonl:1: ")) fail_msg("\"%s\" does not say where", diag.text);
}

#define ROWS "{\"prompt\": \"ab\", \"completion\": \"cd\"}\n{\"id\": 7, \"completion\": \"f\", \"prompt\": \"e\"}\n"
static const struct shore__reading plain = {0}, all = {.all_count = true}, five = {.row_tokens = 5},
                                   twenty = {.row_tokens = 20}, four = {.row_tokens = 4},
                                   all_of_five = {.all_count = true, .row_tokens = 5};

static void completions_and_their_ends_count(void **state) {
    expect(ROWS, &plain, "abc#d#|#ef#|#");
    expect("["
           "{\"prompt\": \"ab\", \"completion\": \"cd\"}, {\"prompt\": \"\", \"completion\": \"f\"}]",
           &plain, "abc#d#|#f#|#");
}

static void all_tokens_count_where_that_is_asked_for(void **state) {
    expect(ROWS, &all, "a#b#c#d#|#e#f#|#"); /* and the file is as of text */
    struct shore_diag diag;
    unsigned char header[16];
    FILE *f = fopen(in_directory("tokens"), "r");
    assert_int_equal(fread(header, 1, 16, f), 16);
    fclose(f);
    assert_int_equal(header[8], 1);
    assert_int_equal(build_of("b.jsonl", ROWS, &plain, &diag), 0);
    f = fopen(in_directory("tokens"), "r");
    assert_int_equal(fread(header, 1, 16, f), 16);
    fclose(f);
    assert_int_equal(header[8], 2);
}

static void a_row_is_a_sequence_without_packing(void **state) {
    expect(ROWS, &five, "abc#d#|#ef#|#||");
    assert_string_equal(notes, "");
    assert_int_equal(build_of("a.jsonl", ROWS, &twenty, &(struct shore_diag){0}), 0);
    assert_string_equal(
        notes, "the longest row has 5 tokens, and each is padded to 20: a smaller --seq-len takes less time\n");
    expect(ROWS, &all_of_five, "ab#c#d#|#ef#|#||"); /* nothing predicts the first one */
    expect(ROWS, &four, "abc#d#ef#|#|");
    assert_non_null(strstr(notes, "1 row is longer than 4 tokens and cut there, the first: "));
    assert_non_null(strstr(notes, "a.jsonl:1\n"));
    expect("{\"text\": \"xyz\"}\n" ROWS, &five, "xy#z#|#|abc#d#|#ef#|#||");
    struct shore_diag diag;
    assert_int_equal(build_of("a.txt", "text", &five, &diag), SHORE_EUSAGE);
    assert_non_null(strstr(diag.text, "a.txt: has no rows"));
}

static void rows_in_which_nothing_counts_are_left_out(void **state) {
    const struct shore__reading two = {.row_tokens = 2};
    expect("{\"prompt\": \"a\", \"completion\": \"b\"}\n{\"prompt\": \"abcd\", \"completion\": \"e\"}\n", &two, "ab#");
    assert_non_null(strstr(notes, "1 row is left out, having nothing that counts in the loss, the first: "));
    assert_non_null(strstr(notes, "a.jsonl:2\n"));
    struct shore_diag diag; /* where no row is left, the error says so */
    assert_int_equal(build_of("a.jsonl", "{\"prompt\": \"abcd\", \"completion\": \"e\"}\n", &two, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "not one token is in it; 1 row is left out, having nothing that counts"));
}

static void texts_and_rows_are_joined(void **state) {
    expect("{\"text\": \"x\"}\n" ROWS "{\"text\": \"y\"}\n{\"text\": \"z\"}\n", &plain, "x#|#abc#d#|#ef#|#y#|#z#");
    expect("{\"text\": \"x\", \"prompt\": \"a\", \"completion\": \"b\"}\n", &plain, "x#");
    assert_non_null(strstr(notes, "a.jsonl: has rows with a text, and with messages, a prompt"));
    expect("{\"chosen\": \"a\", \"rejected\": \"b\", \"text\": \"x\"}\n", &plain, "x#");
    assert_non_null(strstr(notes, "or other answers beside it; the text is read"));
    const struct shore__reading prompts = {.text_field = "prompt"};
    expect(ROWS, &prompts, "a#b#|#e#");
}

#define UNUSED "\"x\": [{\"a\": [1]}, -Infinity], \"y\" : NaN ,\"z\": 123456789012345678901234567890, \"w\": 1e999"

/* What a row has beside may be anything that Python writes; what is null counts as left out. */
static void what_is_not_used_is_passed_over(void **state) {
    expect("{" UNUSED ", \"prompt\": \"ab\", \"v\": \"\", \"completion\": \"cd\"}\n", &plain, "abc#d#|#");
    expect("[{\"completion\": \"cd\", \"prompt\": \"ab\", " UNUSED "}]", &plain, "abc#d#|#");
    expect("{\"prompt\": \"ab\", \"completion\": \"cd\", \"text\": null, \"messages\": null, \"chosen\": null}\n",
           &plain, "abc#d#|#");
    expect("{\"text\" : null, \"prompt\": \"ab\", \"completion\": \"cd\"}\n", &plain, "abc#d#|#");
    refuse("{\"prompt\": null, \"completion\": \"b\"}\n", "the row has a \"completion\" but no \"prompt\"");
    refuse("{\"messages\": null, \"text\": null}\n", "all of the row that could be read is null");
    refuse("{\"text\": null, \"x\": \"a\"}\n", "\"text\" is null");
    refuse("{\"prompt\": \"a\", \"completion\": \"b\", \"tools\": NaN}\n", "not valid JSON");
    /* wherever a block ends */
    for (int i = 0; i < 64; i++) {
        char *text = malloc((256u << 10) + 512);
        int n = sprintf(text, "{\"x\": \"");
        int fill = (256 << 10) - 80 + i;
        memset(text + n, '-', (size_t)fill);
        strcpy(text + n + fill,
               "\", \"prompt\": \"ab\", \"y\": [NaN], \"completion\": \"cd\", \"text\": null, \"z\": {}}\n");
        expect(text, &plain, "abc#d#|#");
        free(text);
    }
}

static void parts_have_marks_of_their_own(void **state) {
    struct shore_diag diag;
    assert_int_equal(build_of("a.jsonl", ROWS ROWS, &plain, &diag), 0);
    expect_part(3, 6, "d#|#ef#|#a");
    expect_part(9, 7, "bc#d#|#ef#|#");
}

/* Marks of more than one block, beginning behind text. */
static void many_marks(void **state) {
    enum { TEXT = 70001, ROWS_OF = 5000 };
    struct shore_diag diag;
    struct shore__dataset *d;
    char *text = malloc(TEXT + 64 + ROWS_OF * 48), *at = text + sprintf(text, "{\"text\": \"");
    memset(at, 'x', TEXT);
    at += TEXT;
    at += sprintf(at, "\"}\n");
    for (int i = 0; i < ROWS_OF; i++)
        at += sprintf(at, "{\"prompt\": \"%d\", \"completion\": \"abcdefg\"}\n", i);
    assert_int_equal(build_of("a.jsonl", text, &plain, &diag), 0);
    free(text);
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    size_t n = (size_t)shore__dataset_tokens(d), seen = 0;
    int32_t *ids = malloc(n * 4), *targets = malloc(n * 4);
    assert_int_equal(shore__dataset_read(d, 0, n, ids, &diag), 0);
    assert_int_equal(shore__dataset_targets(d, n - 1, n, targets, &diag), 0);
    for (size_t i = 0; i < n; i++) {
        bool counts = i <= TEXT || ids[i] >= 'a';
        assert_int_equal(targets[i], counts ? ids[i] : -1);
        seen += !counts;
    }
    assert_true(seen > ROWS_OF);
    free(ids);
    free(targets);
    shore__dataset_close(d);
}

static void shuffled_sequences_leave_nothing_out(void **state) {
    struct shore_diag diag;
    struct shore__dataset *d;
    assert_int_equal(build_of("a.jsonl", ROWS, &plain, &diag), 0);
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    for (int epoch = 0; epoch < 3; epoch++) {
        unsigned seen = 0;
        for (int i = 0; i < 2; i++) /* 8 tokens: 0 to 4, and from 5 on around the end */
            seen |= 1u << shore__dataset_position(d, epoch * 2 + i, 5, true, 9);
        assert_int_equal(seen, 1 << 0 | 1 << 5);
    }
    shore__dataset_close(d);
}

static void bad_rows(void **state) {
    refuse("{\"prompt\": \"a\"}\n", "the row has a \"prompt\" but no \"completion\"");
    refuse("{\"completion\": \"a\"}\n", "the row has a \"completion\" but no \"prompt\"");
    refuse("{\"prompt\": \"a\", \"completion\": \"\"}\n", "\"completion\" is empty");
    refuse("{\"prompt\": \"a\", \"completion\": 7}\n", "neither both strings nor both lists");
    refuse("{\"prompt\": [], \"completion\": \"a\"}\n", "neither both strings nor both lists");
    refuse("{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"c\"}\n", "\"chosen\"");
    refuse("{\"conversations\": [{\"from\": \"human\", \"value\": \"hi\"}]}\n", "ShareGPT");
    refuse("{\"prompt\": \"a\", \"prompt\": \"b\", \"completion\": \"c\"}\n", "duplicate");
    const struct shore__reading skip = {.skip_bad_rows = true};
    expect("{\"prompt\": \"a\", \"completion\": \"\"}\n" ROWS, &skip, "abc#d#|#ef#|#");
    assert_non_null(strstr(notes, "1 of 3 rows bad and skipped, the first: "));
    const struct shore__reading small = {.memory_bytes = 1 << 20};
    char *text = malloc((2u << 20) + 64);
    size_t n = (size_t)sprintf(text, "{\"prompt\": \"a\", \"completion\": \"");
    memset(text + n, 'x', 2u << 20);
    strcpy(text + n + (2u << 20), "\"}\n");
    struct shore_diag diag;
    assert_int_equal(build_of("a.jsonl", text, &small, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "the row is longer than 1.00 MiB"));
    free(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(completions_and_their_ends_count),
        cmocka_unit_test(all_tokens_count_where_that_is_asked_for),
        cmocka_unit_test(a_row_is_a_sequence_without_packing),
        cmocka_unit_test(rows_in_which_nothing_counts_are_left_out),
        cmocka_unit_test(texts_and_rows_are_joined),
        cmocka_unit_test(what_is_not_used_is_passed_over),
        cmocka_unit_test(parts_have_marks_of_their_own),
        cmocka_unit_test(many_marks),
        cmocka_unit_test(shuffled_sequences_leave_nothing_out),
        cmocka_unit_test(bad_rows),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
