/* What files, directories and patterns that are named as data give, and how what is wrong with them is said. */
#include <errno.h>
#include <sys/stat.h>
#include <zlib.h>
#include <zstd.h>

#include "unit/text/built_data.h"

static void make_directory(const char *name) {
    assert_int_equal(mkdir(in_directory(name), 0700), 0);
}

/* The data become these bytes; '|' stands where a document ends another. */
static void expect_with(const char *name, const struct shore__reading *how, const char *expected) {
    struct shore__dataset_stats stats;
    struct shore__dataset *d;
    struct shore_diag diag;
    int32_t ids[512];
    char got[513] = "";
    if (build(name, how, &stats, &diag)) fail_msg("%s", diag.text);
    assert_true(stats.tokens <= 512);
    assert_int_equal(shore__dataset_open(in_directory("tokens"), 0, 0, &d, &diag), 0);
    assert_int_equal(shore__dataset_read(d, 0, stats.tokens, ids, &diag), 0);
    shore__dataset_close(d);
    for (size_t i = 0; i < stats.tokens; i++)
        got[i] = ids[i] == 256 ? '|' : (char)ids[i];
    assert_string_equal(got, expected);
}

static void expect(const char *name, const char *expected) {
    const struct shore__reading how = {0};
    expect_with(name, &how, expected);
}

static void refuse_with(const char *name, const struct shore__reading *how, const char *part) {
    struct shore_diag diag;
    int rc = build(name, how, NULL, &diag);
    assert_true(rc < 0);
    if (!strstr(diag.text, part)) fail_msg("\"%s\" does not say \"%s\"", diag.text, part);
    assert_int_not_equal(access(in_directory("tokens.new"), F_OK), 0);
}

static void refuse(const char *name, const char *part) {
    const struct shore__reading how = {0};
    refuse_with(name, &how, part);
}

static void expect_note(const char *part) {
    if (!strstr(notes, part)) fail_msg("\"%s\" does not say \"%s\"", notes, part);
}

static size_t gzip(const void *from, size_t bytes, unsigned char *to, size_t room) {
    z_stream z = {0};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY), Z_OK);
    z.next_in = (unsigned char *)from;
    z.avail_in = (uInt)bytes;
    z.next_out = to;
    z.avail_out = (uInt)room;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    deflateEnd(&z);
    return z.total_out;
}

static void records_are_read_by_any_name(void **state) {
    static const char lines[] = "{\"text\": \"a\"}\n{\"n\": 1, \"text\": \"b\\n\"}\n\n{\"text\": \"c\"}";
    (void)state;
    expect(put_text("a.jsonl", lines), "a|b\n|c");
    expect(put_text("a.ndjson", lines), "a|b\n|c");
    expect(put_text("a.json", lines), "a|b\n|c");
    expect(put_text("a.JSON", "[{\"text\": \"a\"},{\"n\": 1, \"text\": \"b\\n\"},\n {\n \"text\": \"c\"} ]\n"),
           "a|b\n|c");
    expect(put_text("list.jsonl", "\xEF\xBB\xBF [{\"text\": \"a\"}]"), "a");
    expect(put_text("long.json", "{\n \"text\": \"a\",\n \"n\": [1,\n2]\n}\n{\n \"text\": \"b\"\n}"), "a|b");
    expect(put_text("one.json", "{\"text\":\"\\ud83d\\ude00\\u0041\\/\"}"), "\xF0\x9F\x98\x80"
                                                                            "A/");
}

static void what_is_not_used_may_be_anything(void **state) {
    (void)state;
    expect(put_text("a.jsonl",
                    "{\"x\": NaN, \"y\": [-Infinity, {\"text\": Infinity}], \"text\": \"a\", \"z\": -1.5e+7}\n"
                    "{\"\\u0074ext\": \"b\", \"x\": true, \"x\": null, \"y\": [[], {}, false, 0, 0.5, -0]}"),
           "a|b");
    refuse(put_text("a.jsonl", "{\"text\": NaN}"), "a.jsonl:1: \"text\" is not a string (byte 0)");
    refuse(put_text("a.jsonl", "{\"text\": \"a\"}\n {\"text\": \"a\", \"x\": Nan}"),
           "a.jsonl:2: not valid JSON: a word that is no value (byte 36)");
}

static void broken_rows_are_told_apart(void **state) {
    static const struct {
        const char *text, *why;
    } cases[] = {
        {"{\"text\": \"a\"", "the line ends within the row (byte 12)"},
        {"{\"text\": \"a", "the line ends within a string"},
        {"{\"text\": \"a\tb\"}", "a string with a control character"},
        {"{\"text\": \"a\\x\"}", "a wrong escape"},
        {"{\"text\": \"\\u12g4\"}", "a wrong escape"},
        {"{\"text\": \"\xFF\"}", "a byte that is not UTF-8 (byte 10)"},
        {"{\"text\": \"\xE2\x82\"}", "a byte that is not UTF-8 (byte 12)"},
        {"{\"text\": \"\xED\xA0\x80\"}", "a byte that is not UTF-8 (byte 11)"},
        {"{\"text\": \"a\" \"b\": 1}", "a comma or '}' is missing"},
        {"{\"text\" \"a\"}", "a colon is missing"},
        {"{\"text\": }", "a value is missing"},
        {"{\"x\": [1 2], \"text\": \"a\"}", "a comma or ']' is missing"},
        {"{\"x\": 01, \"text\": \"a\"}", "a number that is none"},
        {"{\"x\": 1., \"text\": \"a\"}", "a number that is none"},
        {"{\"x\": -, \"text\": \"a\"}", "a number that is none"},
        {"{\"x\": 1e, \"text\": \"a\"}", "a number that is none"},
        {"{\"x\": 1, text: \"a\"}", "a key is missing"},
        {"{\"text\": \"a\"} {}", "something follows the row"},
        {"hello", "is not a JSON object"},
        {"5", "is not a JSON object"},
        {"{}", "the row has no key \"text\"; it has none"},
        {"{\"a\": {\"text\": \"x\"}, \"b\": 1}", "its keys are \"a\", \"b\": --text-field NAME"},
        {"{\"text\": \"a\", \"text\": \"b\"}", "\"text\" stands twice"},
    };
    char text[128], list[160];
    const struct shore__reading skip = {.skip_bad_rows = true};
    struct shore__dataset_stats stats;
    struct shore_diag diag;
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        refuse(put_text("x.jsonl", cases[i].text), cases[i].why);
        snprintf(text, sizeof text, "{\"text\": \"1\"}\n%s\n{\"text\": \"2\"}\n", cases[i].text);
        refuse(put_text("x.jsonl", text), "x.jsonl:2: ");
        expect_with(put_text("x.jsonl", text), &skip, "1|2");
        assert_int_equal(build(in_directory("x.jsonl"), &skip, &stats, &diag), 0);
        assert_int_equal(stats.bad_rows, 1);
        assert_int_equal(stats.documents, 2);
        expect_note("1 of 3 rows bad and skipped, the first: ");
        expect_note("x.jsonl:2: ");
        snprintf(list, sizeof list, "[{\"text\": \"1\"},\n%s]", cases[i].text);
        refuse(put_text("x.json", list), "x.json:2: row 2: ");
    }
}

static void a_list_is_read_on_only_where_it_can_be(void **state) {
    const struct shore__reading skip = {.skip_bad_rows = true};
    (void)state;
    expect_with(
        put_text("a.json", "[{\"text\":\"a\"}, 5, {\"x\":1}, [\"text\"], {\"text\":{\"text\":1}}, {\"text\":\"b\"}]"),
        &skip, "a|b");
    expect_note("4 of 6 rows bad");
    refuse_with(put_text("a.json", "[{\"text\":\"a\"}, {\"text\":\"b\"x}, {\"text\":\"c\"}]"), &skip,
                "row 2: not valid JSON: a comma or '}' is missing (byte 26); in a list, the next row");
    refuse(put_text("a.json", "[{\"text\":\"a\"}, "), "the file ends within the list");
    refuse(put_text("a.json", "[{\"text\":\"a\"},]"), "row 2");
    refuse(put_text("a.json", "[{\"text\":\"a\"} {}]"), "a comma or ']' is missing behind the row");
    refuse(put_text("a.json", "[{\"text\":\"a\"}] []"), "something follows the list");
    refuse(put_text("a.json", "["), "a.json:1: ");
    refuse(put_text("a.json", "[]"), "empty");
}

static void the_field_can_be_named(void **state) {
    const struct shore__reading how = {.text_field = "content"};
    (void)state;
    expect_with(put_text("a.jsonl", "{\"text\": 1, \"content\": \"a\"}\n{\"content\": \"b\"}"), &how, "a|b");
    refuse_with(put_text("a.jsonl", "{\"text\": \"a\"}"), &how, "no key \"content\"; its keys are \"text\"");
}

/* Longer than any buffer, and cut at every place by the ends of blocks. */
static void a_row_may_be_long(void **state) {
    enum { BYTES = 3 << 20 };
    char *text = malloc(BYTES + 64);
    const struct shore__reading stop = {0}, skip = {.skip_bad_rows = true};
    struct shore__dataset_stats stats;
    struct shore_diag diag;
    (void)state;
    assert_non_null(text);
    size_t at = (size_t)sprintf(text, "{\"text\": \"");
    while (at < BYTES)
        at += (size_t)sprintf(text + at, "\\u00e9\xC3\xA9");
    uint64_t chars = (at - 10) / 8 * 2;
    strcpy(text + at, "\"}\n{\"text\": \"b\"}");
    put_file("a.jsonl", text, at + 16);
    assert_int_equal(build(in_directory("a.jsonl"), &stop, &stats, &diag), 0);
    assert_int_equal(stats.tokens, 2 * chars + 2);
    assert_int_equal(build(in_directory("a.jsonl"), &skip, &stats, &diag), 0);
    assert_int_equal(stats.tokens, 2 * chars + 2);
    text[at] = '\n'; /* the long row is cut off, and leaves nothing */
    put_file("a.jsonl", text, at + 16);
    assert_int_equal(build(in_directory("a.jsonl"), &skip, &stats, &diag), 0);
    assert_int_equal(stats.tokens, 1);
    assert_int_equal(stats.bad_rows, 2);
    free(text);
}

static void text_that_looks_like_records_is_said(void **state) {
    (void)state;
    expect(put_text("a.txt", "{\"text\": \"a\"}\n"), "{\"text\": \"a\"}\n");
    expect_note("a.txt: looks like records of JSON, and is read as text");
    expect(put_text("a.txt", " [ {\"id\": 1} ]"), " [ {\"id\": 1} ]");
    expect_note("looks like records");
    expect(put_text("a.csv", "a,b\n"), "a,b\n");
    expect_note("a.csv: is read as text, separators and all");
    make_directory("many");
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "many/%d.txt", i);
        put_text(name, "{\"x\": 1}");
    }
    expect(in_directory("many"), "{\"x\": 1}|{\"x\": 1}|{\"x\": 1}");
    expect_note("many/0.txt (and 2 like it): looks like records");
    static const char *const others[] = {"[1] See {there}.", "{\"so\" he said}", "{", "[Chapter]", "\"{\"", ""};
    for (size_t i = 0; i + 1 < sizeof others / sizeof *others; i++) {
        expect(put_text("a.txt", others[i]), others[i]);
        assert_string_equal(notes, "");
    }
}

static void archives_are_unpacked_as_they_are_read(void **state) {
    static const char lines[] = "{\"text\": \"a\"}\n{\"text\": \"b\"}\n{\"text\": \"c\"}";
    unsigned char packed[512], both[1024];
    (void)state;
    size_t n = gzip(lines, sizeof lines - 1, packed, sizeof packed);
    expect(put_file("a.jsonl.gz", packed, n), "a|b|c");
    size_t m = gzip(lines, 20, both, sizeof both); /* members, and the zeros of a tape */
    m += gzip(lines + 20, sizeof lines - 21, both + m, sizeof both - m);
    memset(both + m, 0, 40);
    expect(put_file("a.JSONL.GZ", both, m + 40), "a|b|c");
    refuse(put_file("a.jsonl.gz", packed, n - 3), "a.jsonl.gz: is cut off");
    refuse(put_file("a.jsonl.gz", packed, 12), "is cut off");
    memcpy(both + m, "xyz", 3);
    refuse(put_file("a.jsonl.gz", both, m + 3), "is damaged near byte");
    memcpy(both, packed, n);
    both[n - 6] ^= 1; /* of its checksum */
    refuse(put_file("a.jsonl.gz", both, n), "is damaged near byte");
    refuse(put_file("a.jsonl", packed, n), "is packed by gzip, but its name does not say so: end it in .gz");
    refuse(put_text("a.txt.gz", "plain"), "is not packed, not gzip as its name says");
    refuse(put_text("a.txt.gz", ""), "is empty, not gzip");
    refuse(put_file("a.txt.zst", packed, n), "is gzip, not Zstandard as its name says");
    size_t again = gzip(packed, n, both, sizeof both);
    refuse(put_file("a.jsonl.gz.gz", both, again), "is packed twice");
    expect(put_file("a.gz", packed, n), lines); /* text, as any name */
}

static void zstandard_is_unpacked_as_it_is_read(void **state) {
    static const char lines[] = "[{\"text\": \"a\"},{\"text\": \"b\"},{\"text\": \"c\"}]";
    static const unsigned char skipped[] = {0x50, 0x2A, 0x4D, 0x18, 4, 0, 0, 0, 1, 2, 3, 4};
    unsigned char packed[1024];
    (void)state;
    size_t n = sizeof skipped;
    memcpy(packed, skipped, n);
    n += ZSTD_compress(packed + n, 512, lines, 20, 3);
    n += ZSTD_compress(packed + n, 300, lines + 20, sizeof lines - 21, 3);
    expect(put_file("a.json.zst", packed, n), "a|b|c");
    expect(put_file("a.json.zstd", packed, n), "a|b|c");
    refuse(put_file("a.json.zst", packed, n - 2), "a.json.zst: is cut off");
    packed[n] = 'x';
    refuse(put_file("a.json.zst", packed, n + 1), "is damaged near byte");
    memcpy(packed + n, "xyzwxyzw", 8);
    refuse(put_file("a.json.zst", packed, n + 8), "is damaged near byte");
    refuse(put_file("a.json", packed, n), "is packed by Zstandard");
}

/* A window is memory that the budget has to have. */
static void a_large_window_needs_its_memory(void **state) {
    enum { BYTES = 40 << 20 };
    const struct shore__reading small = {.memory_bytes = 64 << 20}, large = {.memory_bytes = UINT64_C(512) << 20};
    struct shore_diag diag;
    struct shore__dataset_stats stats;
    char *text = malloc(BYTES);
    (void)state;
    assert_non_null(text);
    memset(text, 'a', BYTES);
    ZSTD_CCtx *c = ZSTD_createCCtx();
    ZSTD_CCtx_setParameter(c, ZSTD_c_windowLog, 26);
    ZSTD_CCtx_setParameter(c, ZSTD_c_contentSizeFlag, 0);
    size_t room = ZSTD_compressBound(BYTES);
    char *packed = malloc(room);
    assert_non_null(packed);
    ZSTD_inBuffer in = {text, BYTES, 0};
    ZSTD_outBuffer out = {packed, room, 0};
    while (in.pos < in.size) /* in parts, so that its size is not known, which would make the window as small */
        assert_false(ZSTD_isError(ZSTD_compressStream2(c, &out, &in, ZSTD_e_continue)));
    while (ZSTD_compressStream2(c, &out, &in, ZSTD_e_end) != 0) {
    }
    put_file("a.txt.zst", packed, out.pos);
    ZSTD_freeCCtx(c);
    free(packed);
    free(text);
    assert_int_equal(build(in_directory("a.txt.zst"), &small, &stats, &diag), SHORE_EINPUT);
    assert_non_null(strstr(diag.text, "a.txt.zst: unpacking it needs a larger window than the memory has room for"));
    assert_int_equal(build(in_directory("a.txt.zst"), &large, &stats, &diag), 0);
    assert_int_equal(stats.tokens, BYTES);
}

static void strangers_are_told_what_to_do(void **state) {
    static const struct {
        const char *name, *bytes, *why;
        size_t count;
    } cases[] = {
        {"a.parquet", "x", "read_parquet('IN.parquet').to_json('OUT.jsonl', orient='records', lines=True)", 1},
        {"a.txt", "PAR1\x15", "is Parquet", 5},
        {"a.feather", "x", "read_feather", 1},
        {"a.json", "ARROW1\0\0", "is an Arrow file", 8},
        {"a.arrow", "x", "datasets.load_dataset('arrow'", 1},
        {"a.jsonl.xz", "x", "xz -dk", 1},
        {"a.txt",
         "\xFD"
         "7zXZ\0",
         "xz -dk", 6},
        {"a.txt.bz2", "x", "bzip2 -dk", 1},
        {"a.jsonl", "BZh91AY&SY", "bzip2 -dk", 10},
        {"a.zip", "x", "unzip", 1},
        {"a.txt", "PK\3\4", "unzip", 4},
        {"a.tar.gz", "x", "tar -xf", 1},
        {"a.tgz", "x", "tar -xf", 1},
        {"a.txt", "\xFF\xFEh\0", "iconv -f UTF-16", 4},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        refuse(put_file(cases[i].name, cases[i].bytes, cases[i].count), cases[i].why);
    expect(put_text("a.txt", "PAR1S, BZh, %PDF"), "PAR1S, BZh, %PDF");
}

static void directories_are_read_by_name(void **state) {
    (void)state;
    make_directory("d");
    make_directory("d/sub");
    make_directory("d/.git");
    make_directory("d/run");
    refuse(in_directory("d"), "is a directory without data: files whose names end in .txt, ");
    put_text("d/x.parquet", "x");
    put_text("d/dataset_info.json", "{\"features\": {}}");
    refuse(in_directory("d"), "which is Parquet, which is not read; make JSONL of it");
    put_text("d/b.txt", "b");
    put_text("d/a.jsonl", "{\"text\": \"a\"}");
    put_text("d/README.md", "r");
    put_text("d/.hidden.txt", "h");
    put_text("d/.git/c.txt", "g");
    put_text("d/sub/c.json", "[{\"text\": \"c\"}]");
    put_text("d/run/run.json", "{}");
    put_text("d/run/tokens.bin", "x");
    expect(in_directory("d"), "a|b|c");
    expect_note("3 files are read: ");
    expect_note("not read, since the names do not end as those of data do");
    expect_note("d/README.md");
    expect_note("d/run, ");
    expect_note("d/x.parquet");
    assert_null(strstr(notes, "hidden"));
    assert_null(strstr(notes, ".git"));
    expect(in_directory("d/"), "a|b|c");
    expect(in_directory("d/*.txt"), "b");
    expect_note("d/*.txt: 1 file is read: ");
    expect(in_directory("d/[ab]*"), "a|b");
    expect(in_directory("d/s*"), "c");
    expect(in_directory("d/{sub/c.json,b.txt}*"), "b|c");
    expect(in_directory("d/*.md"), "r");
    refuse(in_directory("d/*.csv"), "no file matches it");
    refuse(in_directory("e/*.txt"), "no file matches it");
    refuse(in_directory("d/**/*.txt"), "give the directory");
    put_text("d/[1].txt", "1");
    expect(in_directory("d/[1].txt"), "1"); /* a name, since there is a file of it */
    assert_int_equal(symlink("nowhere", in_directory("d/link.txt")), 0);
    refuse(in_directory("d"), "d/link.txt: cannot read it");
}

static int keep_done(void *ctx, uint64_t done, uint64_t total) {
    uint64_t *last = ctx;
    assert_true(done <= total && done >= last[0]);
    last[0] = done;
    last[1] = total;
    return 0;
}

static void progress_comes_to_its_end(void **state) {
    static const char line[] = "{\"text\": \"abcdefghij\"}\n";
    static char lines[40000 * (sizeof line - 1)];
    unsigned char packed[1 << 16];
    uint64_t last[2] = {0, 0};
    const struct shore__reading how = {.progress = keep_done, .progress_ctx = last};
    struct shore__dataset_stats stats;
    struct shore_diag diag;
    (void)state;
    for (size_t i = 0; i < 40000; i++)
        memcpy(lines + i * (sizeof line - 1), line, sizeof line - 1);
    size_t n = gzip(lines, sizeof lines, packed, sizeof packed);
    put_file("a.jsonl.gz", packed, n);
    assert_int_equal(build(in_directory("a.jsonl.gz"), &how, &stats, &diag), 0);
    assert_int_equal(stats.documents, 40000);
    assert_int_equal(last[1], n);
    assert_int_equal(last[0], n);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(records_are_read_by_any_name),
        cmocka_unit_test(what_is_not_used_may_be_anything),
        cmocka_unit_test(broken_rows_are_told_apart),
        cmocka_unit_test(a_list_is_read_on_only_where_it_can_be),
        cmocka_unit_test(the_field_can_be_named),
        cmocka_unit_test(a_row_may_be_long),
        cmocka_unit_test(text_that_looks_like_records_is_said),
        cmocka_unit_test(archives_are_unpacked_as_they_are_read),
        cmocka_unit_test(zstandard_is_unpacked_as_it_is_read),
        cmocka_unit_test(a_large_window_needs_its_memory),
        cmocka_unit_test(strangers_are_told_what_to_do),
        cmocka_unit_test(directories_are_read_by_name),
        cmocka_unit_test(progress_comes_to_its_end),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
