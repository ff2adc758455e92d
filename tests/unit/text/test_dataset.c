#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>

#include "base/units.h"
#include "text/dataset.h"
#include "unit/text/scratch.h"

#ifndef SHORE_TEST_DATA
#error "SHORE_TEST_DATA is tests/data"
#endif

static int build(const char *const *files, size_t n, uint32_t vocab, struct shore__dataset_stats *stats,
                 struct shore_diag *diag) {
    struct shore__tokenizer *t;
    assert_int_equal(shore__tokenizer_bytes(&t), 0);
    const struct shore__reading how = {0};
    int rc = shore__dataset_build(files, n, &how, t, vocab, in_directory("tokens"), stats, diag);
    shore__tokenizer_close(t);
    return rc;
}

static void documents_need_an_end_of_text(void **state) {
    const char *files[] = {put_text("one", "a"), put_text("two", "b")};
    const struct shore__reading how = {0};
    struct shore__tokenizer *t;
    struct shore_diag diag = {0};
    (void)state;
    put_text("tokenizer.json", "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1},\"merges\":[]}}");
    assert_int_equal(shore__tokenizer_open(directory, &t, &diag), 0);
    assert_int_equal(shore__dataset_build(files, 1, &how, t, 2, in_directory("tokens"), NULL, &diag), 0);
    assert_int_equal(shore__dataset_build(files, 2, &how, t, 2, in_directory("tokens"), NULL, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "two: another document begins"));
    shore__tokenizer_close(t);
    unlink(in_directory("tokenizer.json"));
}

/* The token may lie across the edge of a block that is read. */
static void special_tokens_get_their_ids_if_asked(void **state) {
    static const char name[] = "<|endoftext|>";
    enum { BLOCK = 256 << 10, END = 0 };
    struct shore__tokenizer *t;
    struct shore__dataset_stats stats[2];
    struct shore_diag diag = {0};
    char *text = malloc(2 * BLOCK);
    assert_non_null(text);
    memset(text, '\n', 2 * BLOCK);
    memcpy(text + BLOCK - 5, name, strlen(name));
    const char *file = put_file("special", text, 2 * BLOCK);
    free(text);
    assert_int_equal(shore__tokenizer_open(SHORE_TEST_DATA "/tokenizers/gpt2", &t, &diag), 0);
    for (int parse = 0; parse < 2; parse++) {
        const struct shore__reading how = {.parse_special = parse};
        assert_int_equal(shore__dataset_build(&file, 1, &how, t, 420, in_directory("tokens"), &stats[parse], &diag), 0);
    }
    shore__tokenizer_close(t);
    struct shore__dataset *d;
    uint64_t found = 0;
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    for (uint64_t at = 0; at < stats[1].tokens; at++) {
        int32_t id;
        assert_int_equal(shore__dataset_read(d, at, 1, &id, &diag), 0);
        found += id == END;
    }
    assert_int_equal(found, 1);
    assert_true(stats[0].tokens > stats[1].tokens);
    shore__dataset_close(d);
    (void)state;
}

static void documents_are_joined_by_end_of_text(void **state) {
    const char *files[] = {put_text("a.txt", "\xEF\xBB\xBF"
                                             "ab"),
                           put_text("b.JSONL", "\xEF\xBB\xBF{\"text\":\"c\\u00e9\"}\n\n{\"x\":[{\"text\":"
                                               "1}],\"text\":\"d\"}\r\n")};
    struct shore__dataset_stats stats;
    struct shore_diag diag = {0};
    static const int32_t expected[] = {'a', 'b', 256, 'c', 0xC3, 0xA9, 256, 'd'};
    assert_int_equal(build(files, 2, 257, &stats, &diag), 0);
    assert_int_equal(stats.tokens, 8);
    assert_int_equal(stats.documents, 3);
    assert_int_equal(stats.text_bytes, 6);
    struct shore__dataset *d;
    int32_t got[11];
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    assert_int_equal(shore__dataset_read(d, 0, 8, got, &diag), 0);
    assert_memory_equal(got, expected, sizeof expected);
    assert_int_equal(shore__dataset_read(d, 6, 11, got, &diag), 0);
    for (int i = 0; i < 11; i++)
        assert_int_equal(got[i], expected[(6 + i) % 8]);
    shore__dataset_close(d);
}

static void only_text_is_text(void **state) {
    enum { BLOCK = 256 << 10 };
    static const struct {
        const char *text, *why; /* NULL: it is one */
    } cases[] = {
        {"gr\xc3\xbc\xc3\x9f \xe9\xaf\xa8 \xf0\x9f\x98\x80.", NULL},
        {"cut off \xf0\x9f\x98", NULL},
        {"latin \xfc.", "is 0xfc"},
        {"overlong \xc0\xaf", "is 0xc0"},
        {"half a pair \xed\xa0\x80.", "is 0xed"},
        {"begun \xe9\xaf.", "is 0xe9"},
        {"begun \xe9\xaf\x01", "is 0xe9"},
        {"alone \x80", "is 0x80"},
    };
    static char large[BLOCK + 64];
    struct shore_diag diag;
    memset(large, 'x', sizeof large);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t bytes = strlen(cases[i].text);
        for (size_t at = BLOCK - bytes; at <= BLOCK; at++) { /* cut by the end of a block at each byte */
            memset(large + BLOCK - bytes, 'x', bytes);
            memcpy(large + at, cases[i].text, bytes);
            const char *file = put_file("large.txt", large, at + bytes);
            diag.text[0] = '\0';
            assert_int_equal(build(&file, 1, 257, NULL, &diag), cases[i].why ? SHORE_EINPUT : 0);
            if (cases[i].why) assert_non_null(strstr(diag.text, cases[i].why));
        }
    }
    const char *file = put_file("nul.txt", "ab\0c", 4);
    assert_int_equal(build(&file, 1, 257, NULL, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "nul.txt: is not UTF-8 text: byte 2 is 0x00; convert it"));
}

static const char *put_bin(const char *name, uint32_t magic, uint32_t version, uint32_t count, size_t data_bytes,
                           const void *data) {
    unsigned char raw[2048] = {0};
    shore__put_u32(raw, magic);
    shore__put_u32(raw + 4, version);
    shore__put_u32(raw + 8, count);
    memcpy(raw + 1024, data, data_bytes);
    return put_file(name, raw, 1024 + data_bytes);
}

static void llmc_files_are_read(void **state) {
    static const uint16_t narrow[] = {7, 65535, 256};
    static const uint32_t wide[] = {70000, 1};
    const char *files[] = {put_bin("a.bin", 20240520, 1, 3, 6, narrow), put_bin("b.bin", 20240801, 7, 2, 8, wide),
                           put_bin("c.bin", 20240520, 1, 1, 2, narrow)};
    static const int32_t expected[] = {7, 65535, 256, 70000, 1, 256, 7};
    struct shore__dataset_stats stats;
    struct shore_diag diag = {0};
    assert_int_equal(build(files, 3, 128000, &stats, &diag), 0);
    assert_int_equal(stats.tokens, 7);
    assert_int_equal(stats.text_bytes, 0);
    struct shore__dataset *d;
    int32_t got[7];
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    assert_int_equal(shore__dataset_read(d, 0, 7, got, &diag), 0);
    assert_memory_equal(got, expected, sizeof expected);
    shore__dataset_close(d);
}

static void expect_refusal(const char *file, uint32_t vocab, const char *part) {
    struct shore_diag diag = {0};
    struct shore__dataset_stats stats;
    assert_true(build(&file, 1, vocab, &stats, &diag) < 0);
    if (!strstr(diag.text, part)) fail_msg("\"%s\" does not say \"%s\"", diag.text, part);
    assert_int_not_equal(access(in_directory("tokens.new"), F_OK), 0);
    assert_int_not_equal(access(in_directory(".tokens.new.partial"), F_OK), 0);
}

static void lone_halves_of_pairs_are_replaced(void **state) {
    static const char text[] = "{\"text\":\"\\ud83d \\ude00\\ud83d\\ud83d\\uDE00\\ud83d\\u0041\\\\ud83d\\\\\"}\n"
                               "{\"text\":\"\\udbff\"}";
    static const char expected[] = "\xEF\xBF\xBD \xEF\xBF\xBD\xEF\xBF\xBD\xF0\x9F\x98\x80\xEF\xBF\xBD"
                                   "A\\ud83d\\";
    const char *file = put_text("halves.jsonl", text);
    struct shore__dataset_stats stats;
    struct shore_diag diag = {0};
    struct shore__dataset *d;
    int32_t got[64];
    (void)state;
    assert_int_equal(build(&file, 1, 257, &stats, &diag), 0);
    assert_int_equal(stats.tokens, strlen(expected) + 1 + 3);
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    assert_int_equal(shore__dataset_read(d, 0, stats.tokens, got, &diag), 0);
    for (size_t i = 0; i < strlen(expected); i++)
        assert_int_equal(got[i], (unsigned char)expected[i]);
    shore__dataset_close(d);
    expect_refusal(put_text("half.jsonl", "{\"text\":\"\\"), 257, "half.jsonl:1");
    expect_refusal(put_text("half.jsonl", "{\"text\":\"\\ud8"), 257, "half.jsonl:1");
    expect_refusal(put_text("half.jsonl", "{\"text\":\"\\ud83d\\ude0"), 257, "half.jsonl:1");
}

static void bad_input_is_named(void **state) {
    static const uint16_t narrow[] = {7, 8};
    expect_refusal(in_directory("nowhere.txt"), 257, "nowhere.txt");
    expect_refusal(put_text("empty.txt", ""), 257, "empty");
    expect_refusal(put_text("empty.jsonl", "\n\n"), 257, "empty");
    expect_refusal(put_text("x.jsonl", "{\"text\":\"a\"}\n{\"txt\":\"a\"}\n"), 257,
                   "x.jsonl:2: the row has no key \"text\"; its keys are \"txt\": --text-field");
    expect_refusal(put_text("x.jsonl", "{\"text\":\"a\"}\n{\"text\":\"a\",}\n"), 257,
                   "x.jsonl:2: not valid JSON: a key is missing (byte 25)");
    expect_refusal(put_text("x.jsonl", "{\"text\":\"a\"}\n\n{\"text\":\"a\"} b\n"), 257,
                   "x.jsonl:3: something follows");
    expect_refusal(put_text("x.jsonl", "{\"text\":7}"), 257, "not a string");
    expect_refusal(put_text("x.jsonl", "{\"text\":[]}"), 257, "not a string");
    expect_refusal(put_text("x.jsonl", "{\"text\":{}}"), 257, "not a string");
    expect_refusal(put_text("x.jsonl", "[\"text\"]"), 257, "not a JSON object");
    expect_refusal(put_text("x.jsonl", "{\"text\":\"a\",\"text\":\"b\"}"), 257, "twice");
    expect_refusal(put_text("x.jsonl", "{\"text\":\"a\"} {"), 257, "x.jsonl:1");
    expect_refusal(put_text("x.jsonl", "{\"text\":\"a"), 257, "x.jsonl:1");
    expect_refusal(put_text("a.txt", "z"), 100, "out of range");
    expect_refusal(put_bin("a.bin", 1, 1, 2, 4, narrow), 257, "magic");
    expect_refusal(put_bin("a.bin", 20240520, 3, 2, 4, narrow), 257, "version 3");
    expect_refusal(put_bin("a.bin", 20240520, 1, 3, 4, narrow), 257, "says 3 tokens");
    expect_refusal(put_bin("a.bin", 20240520, 1, 0, 0, narrow), 257, "empty");
    expect_refusal(put_text("short.bin", "abc"), 257, "short.bin");
}

static void deep_lines_are_named(void **state) {
    char line[1200] = "\n\n{\"a\":";
    memset(line + 7, '[', sizeof line - 8);
    (void)state;
    expect_refusal(put_text("x.jsonl", line), 257, "x.jsonl:3: not valid JSON: it is nested more than 1024 levels");
}

static void damage_is_noticed(void **state) {
    const char *file = put_text("a.txt", "hello world");
    struct shore__dataset_stats stats;
    struct shore_diag diag = {0};
    struct shore__dataset *d;
    uint64_t whole, part, again;
    assert_int_equal(build(&file, 1, 257, &stats, &diag), 0);
    const char *path = in_directory("tokens");
    assert_int_equal(shore__dataset_open(path, 0, 0, &d, &diag), 0);
    assert_int_equal(shore__dataset_identity(d, NULL, NULL, &whole, &diag), 0);
    shore__dataset_close(d);
    assert_int_equal(shore__dataset_open(path, 2, 5, &d, &diag), 0);
    assert_int_equal(shore__dataset_tokens(d), 5);
    assert_int_equal(shore__dataset_identity(d, NULL, NULL, &part, &diag), 0);
    assert_int_equal(shore__dataset_identity(d, NULL, NULL, &again, &diag), 0);
    assert_true(part == again && part != whole);
    shore__dataset_close(d);
    assert_int_equal(shore__dataset_open(path, 11, 0, &d, &diag), SHORE_EINPUT);
    assert_int_equal(shore__dataset_open(path, 3, 9, &d, &diag), SHORE_EINPUT);

    FILE *f = fopen(path, "r+b");
    fseek(f, 64 + 9, SEEK_SET);
    fputc(0x80, f);
    fclose(f);
    assert_int_equal(shore__dataset_open(path, 0, 3, &d, &diag), 0);
    assert_int_equal(shore__dataset_identity(d, NULL, NULL, &part, &diag), SHORE_ECORRUPT);
    shore__dataset_close(d);
    f = fopen(path, "r+b");
    fseek(f, 17, SEEK_SET);
    fputc(1, f);
    fclose(f);
    assert_int_equal(shore__dataset_open(path, 0, 0, &d, &diag), SHORE_ECORRUPT);
    assert_int_equal(truncate(path, 70), 0);
    assert_int_equal(shore__dataset_open(path, 0, 0, &d, &diag), SHORE_ECORRUPT);
    assert_int_equal(truncate(path, 20), 0);
    assert_true(shore__dataset_open(path, 0, 0, &d, &diag) < 0);
}

static void positions_cover_each_epoch_once(void **state) {
    const char *file = put_text("a.txt", "0123456789012345678901234");
    struct shore__dataset_stats stats;
    struct shore_diag diag = {0};
    struct shore__dataset *d;
    assert_int_equal(build(&file, 1, 257, &stats, &diag), 0);
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    assert_int_equal(shore__dataset_position(d, 7, 4, false, 1), 28 % 25);
    for (uint64_t epoch = 0; epoch < 3; epoch++) {
        unsigned seen = 0;
        for (uint64_t i = 0; i < 6; i++)
            seen |= 1u << shore__dataset_position(d, epoch * 6 + i, 4, true, 9) / 4;
        assert_int_equal(seen, 63);
    }
    assert_int_equal(shore__dataset_position(d, 5, 100, true, 1), 0);
    shore__dataset_close(d);
}

static int cancel(void *ctx, uint64_t done, uint64_t total) {
    assert_true(done <= total);
    return 1;
}

static int cancel_the_third_time(void *ctx, uint64_t done, uint64_t total) {
    int *times = ctx;
    return ++*times == 3;
}

/* Who writes to a pipe while its reader waits: opens it, says a word, and later the rest. */
struct writer {
    const char *pipe;
    int times, fd;
};

static int write_while_waited_for(void *ctx, uint64_t done, uint64_t total) {
    struct writer *w = ctx;
    w->times++;
    if (w->times == 3) {
        w->fd = open(w->pipe, O_WRONLY | O_NONBLOCK);
        assert_int_equal(write(w->fd, "slow", 4), 4);
    } else if (w->times == 6) {
        assert_int_equal(write(w->fd, "ly", 2), 2);
        close(w->fd);
    }
    return 0;
}

static void a_pipe_is_waited_for(void **state) {
    const char *file = in_directory("pipe"), *endless = "/dev/zero";
    struct shore__tokenizer *t;
    struct shore__dataset_stats stats;
    struct shore_diag diag = {0};
    struct writer writer = {.pipe = file};
    int times = 0;
    assert_int_equal(mkfifo(file, 0600), 0);
    assert_int_equal(shore__tokenizer_bytes(&t), 0);
    struct shore__reading how = {.progress = cancel_the_third_time, .progress_ctx = &times};
    assert_int_equal(shore__dataset_build(&file, 1, &how, t, 257, in_directory("tokens"), &stats, &diag), -ECANCELED);
    how = (struct shore__reading){.progress = write_while_waited_for, .progress_ctx = &writer};
    assert_int_equal(shore__dataset_build(&file, 1, &how, t, 257, in_directory("tokens"), &stats, &diag), 0);
    assert_true(writer.times >= 6);
    assert_int_equal(stats.tokens, 6);
    shore__tokenizer_close(t);
    assert_int_equal(build(&endless, 1, 257, &stats, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "/dev/zero: is a device"));
}

static void building_can_be_cancelled(void **state) {
    const char *file = put_text("a.txt", "abc");
    struct shore__tokenizer *t;
    struct shore_diag diag = {0};
    assert_int_equal(shore__tokenizer_bytes(&t), 0);
    const struct shore__reading how = {.progress = cancel};
    assert_int_equal(shore__dataset_build(&file, 1, &how, t, 257, in_directory("cancelled"), NULL, &diag), -ECANCELED);
    assert_int_not_equal(access(in_directory("cancelled"), F_OK), 0);
    assert_int_not_equal(access(in_directory(".cancelled.partial"), F_OK), 0);
    shore__tokenizer_close(t);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(documents_are_joined_by_end_of_text),
        cmocka_unit_test(documents_need_an_end_of_text),
        cmocka_unit_test(special_tokens_get_their_ids_if_asked),
        cmocka_unit_test(only_text_is_text),
        cmocka_unit_test(llmc_files_are_read),
        cmocka_unit_test(lone_halves_of_pairs_are_replaced),
        cmocka_unit_test(bad_input_is_named),
        cmocka_unit_test(deep_lines_are_named),
        cmocka_unit_test(damage_is_noticed),
        cmocka_unit_test(positions_cover_each_epoch_once),
        cmocka_unit_test(building_can_be_cancelled),
        cmocka_unit_test(a_pipe_is_waited_for),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
