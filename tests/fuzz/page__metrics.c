/* metrics.jsonl of any bytes, and plan.json: a page comes of them, without markup of theirs. */
#include <stdlib.h>
#include <string.h>

#include "page/page.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes) {
    struct shore__told *t = calloc(1, sizeof *t);
    struct shore__page p = {0};
    if (!t || shore__told_begin(t, 64)) abort();
    t->path = t->name = "a";
    size_t taken = shore__told_take(t, (const char *)data, bytes);
    if (taken > bytes) abort();
    shore__told_end(t);
    t->plan = json_loadb((const char *)data + taken, bytes - taken, 0, NULL); /* the last line */
    shore__page_run(&p, t, 6e14);
    if (p.failed || !p.text || strlen(p.text) != p.bytes || strstr(p.text, "<script")) abort();
    if (p.bytes > 200000 + 8 * bytes) abort();
    free(p.text);
    shore__told_free(t);
    free(t);
    return 0;
}
