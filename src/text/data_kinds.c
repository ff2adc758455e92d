#include <string.h>
#include <strings.h>

#include "files/unpack.h"
#include "text/data_files.h"

#define PANDAS(reader, in) \
    "python3 -c \"import pandas; pandas." reader "('" in "').to_json('OUT.jsonl', orient='records', lines=True)\""

#define PARQUET "is Parquet, which is not read; make JSONL of it: " PANDAS("read_parquet", "IN.parquet")
#define FEATHER "is an Arrow file, which is not read; make JSONL of it: " PANDAS("read_feather", "IN.arrow")
#define ARROW                                                                       \
    "is Arrow, which is not read; make JSONL of it: python3 -c \"import datasets; " \
    "datasets.load_dataset('arrow', data_files='IN.arrow', split='train').to_json('OUT.jsonl')\""
#define CSV \
    "is read as text, separators and all; to train on one column, make JSONL of it: " PANDAS("read_csv", "IN.csv")
#define ARCHIVE(how) "is an archive, which is not read; unpack it (" how ") and give the directory"
#define PACKED(how) "is packed in a format that is not read (gzip and zstd are); unpack it: " how

static const struct {
    const char *ending;
    enum shore__data_kind kind;
    const char *advice;
} endings[] = {
    {".txt", SHORE__DATA_TEXT, NULL},
    {".text", SHORE__DATA_TEXT, NULL},
    {".jsonl", SHORE__DATA_LINES, NULL},
    {".ndjson", SHORE__DATA_LINES, NULL},
    {".json", SHORE__DATA_JSON, NULL},
    {".bin", SHORE__DATA_TOKENS, NULL},
    {".parquet", SHORE__DATA_FOREIGN, PARQUET},
    {".feather", SHORE__DATA_FOREIGN, FEATHER},
    {".arrow", SHORE__DATA_FOREIGN, ARROW},
    {".zip", SHORE__DATA_FOREIGN, ARCHIVE("unzip")},
    {".7z", SHORE__DATA_FOREIGN, ARCHIVE("7z x")},
    {".rar", SHORE__DATA_FOREIGN, ARCHIVE("unrar x")},
    {".tar", SHORE__DATA_FOREIGN, ARCHIVE("tar -xf")},
    {".tgz", SHORE__DATA_FOREIGN, ARCHIVE("tar -xf")},
    {".xz", SHORE__DATA_FOREIGN, PACKED("xz -dk FILE")},
    {".bz2", SHORE__DATA_FOREIGN, PACKED("bzip2 -dk FILE")},
    {".lz4", SHORE__DATA_FOREIGN, PACKED("lz4 -d FILE")},
};

/* Whether a name has this ending and more than dots before it: ".txt" is a hidden file, not a text. */
static bool ends_in(const char *name, size_t bytes, const char *ending) {
    size_t n = strlen(ending);
    return bytes > n && !strncasecmp(name + bytes - n, ending, n);
}

enum shore__data_kind shore__data_kind_of(const char *path, const char **advice, bool *known) {
    size_t bytes = shore__unpack_name(path);
    if (advice) *advice = NULL;
    if (known) *known = true;
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        if (!ends_in(path, bytes, endings[i].ending)) continue;
        if (advice) *advice = endings[i].advice;
        return endings[i].kind;
    }
    bool table = ends_in(path, bytes, ".csv") || ends_in(path, bytes, ".tsv");
    if (advice && table) *advice = CSV;
    if (known) *known = false;
    return SHORE__DATA_TEXT;
}

const char *shore__data_foreign(const char *head, size_t bytes) {
    static const struct {
        size_t at, bytes;
        const char *magic, *advice;
    } magics[] = {
        {0, 5, "PAR1\x15", PARQUET}, /* the first byte of its first structure */
        {0, 8, "ARROW1\0\0", FEATHER},
        {0, 4, "\xFF\xFF\xFF\xFF", ARROW},
        {0, 4, "PK\3\4", ARCHIVE("unzip")},
        {0, 4, "PK\5\6", ARCHIVE("unzip")},
        {0, 6, "7z\xBC\xAF\x27\x1C", ARCHIVE("7z x")},
        {0, 6, "Rar!\x1A\7", ARCHIVE("unrar x")},
        {257, 5, "ustar", ARCHIVE("tar -xf")},
        {0, 6,
         "\xFD"
         "7zXZ\0",
         PACKED("xz -dk FILE")},
        {0, 4, "\4\x22\x4D\x18", PACKED("lz4 -d FILE")},
        {0, 2, "\x1F\x8B", "is packed twice; unpack it once (gzip -dk)"},
        {0, 4, "\x28\xB5\x2F\xFD", "is packed twice; unpack it once (zstd -d)"},
        {0, 5, "%PDF-", "is PDF, which is not read; make text of it (pdftotext)"},
        {0, 2, "\xFF\xFE", "is UTF-16 text; make UTF-8 of it (iconv -f UTF-16 -t UTF-8)"},
        {0, 2, "\xFE\xFF", "is UTF-16 text; make UTF-8 of it (iconv -f UTF-16 -t UTF-8)"},
    };
    for (size_t i = 0; i < sizeof magics / sizeof *magics; i++)
        if (bytes >= magics[i].at + magics[i].bytes && !memcmp(head + magics[i].at, magics[i].magic, magics[i].bytes))
            return magics[i].advice;
    /* "BZh" alone may start a text */
    bool bzip2 = bytes >= 10 && !memcmp(head, "BZh", 3) && !memcmp(head + 4, "1AY&SY", 6);
    return bzip2 ? PACKED("bzip2 -dk FILE") : NULL;
}
