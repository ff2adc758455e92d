#include "files/hub.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/diag.h"

#define WORD_BYTES_MOST 96u

static bool is_letter_or_digit(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* Length of the hub word at the start of text; 0: there is none. */
static size_t word_of(const char *text) {
    size_t n = 0;
    if (!is_letter_or_digit(text[0])) return 0;
    while (is_letter_or_digit(text[n]) || (text[n] && strchr("._-", text[n])))
        n++;
    return n <= WORD_BYTES_MOST ? n : 0;
}

/* Length of "OWNER/NAME" at the start of text. */
static size_t name_of(const char *text) {
    size_t owner = word_of(text), name = owner && text[owner] == '/' ? word_of(text + owner + 1) : 0;
    return name ? owner + 1 + name : 0;
}

/* The part of an address behind the hub's; NULL: it is no hub's address. */
static const char *in_hub(const char *address, enum shore__hub_kind *kind) {
    static const char *const hubs[] = {"https://huggingface.co/", "http://huggingface.co/", "https://hf.co/", "hf://"};
    for (size_t i = 0; i < sizeof hubs / sizeof *hubs; i++) {
        size_t n = strlen(hubs[i]);
        if (strncmp(address, hubs[i], n) != 0) continue;
        bool data = strncmp(address + n, "datasets/", 9) == 0;
        if (data) *kind = SHORE__HUB_DATA;
        return address + n + (data ? 9 : 0);
    }
    return NULL;
}

static bool directory_is_there(const char *path, size_t bytes) {
    char owner[WORD_BYTES_MOST + 1];
    struct stat st;
    snprintf(owner, sizeof owner, "%.*s", (int)bytes, path);
    return stat(owner, &st) == 0;
}

/* Length of a hub's name, or 0. Names that mean this machine are none: "models/llama" if there is a directory models,
 * "book.txt". */
static size_t looks_like_a_name(const char *path, enum shore__hub_kind kind) {
    size_t owner = word_of(path), name = name_of(path);
    if (kind == SHORE__HUB_MODEL && owner && !path[owner]) return owner;
    if (!name || path[name] || directory_is_there(path, owner)) return 0;
    return kind == SHORE__HUB_DATA && strchr(path + owner, '.') ? 0 : name;
}

int shore__hub_refuse(const char *flag, const char *path, enum shore__hub_kind kind, struct shore_diag *diag) {
    struct stat st;
    const char *space = *flag ? " " : "", *what = kind == SHORE__HUB_MODEL ? "DIR" : "FILE...", *name = path;
    bool is_address = strstr(path, "://") != NULL;
    if (stat(path, &st) == 0 || (errno != ENOENT && errno != ENOTDIR)) return 0;
    if (is_address) name = in_hub(path, &kind);
    size_t bytes = !name ? 0 : is_address ? name_of(name) : looks_like_a_name(path, kind);
    const struct shore__shown shown = shore__shown(path);
    if (bytes)
        return shore__fail(diag, SHORE_EMISSING,
                           "%s%s%s: there is none here; Longshore does not download: 'hf download %s%.*s --local-dir "
                           "DIR' gets it, if that is its name at Hugging Face; then name %s",
                           flag, space, shown.text, kind == SHORE__HUB_DATA ? "--repo-type dataset " : "", (int)bytes,
                           name, what);
    if (is_address)
        return shore__fail(diag, SHORE_EMISSING,
                           "%s%s%s: Longshore does not download: fetch it first (curl -LO), then name %s", flag, space,
                           shown.text, what);
    return 0;
}
