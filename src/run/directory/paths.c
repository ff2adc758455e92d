#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/diag.h"
#include "drive/address.h"
#include "files/atomic.h"
#include "files/json.h"
#include "run/paths.h"

const char *const shore__run_files[] = {SHORE__RUN_FILES, NULL};

void shore__remove_in(const char *directory, const char *name) {
    shore__atomic_remove(shore__path_in(directory, name).text);
}

int shore__file_sync(const char *path, struct shore_diag *diag) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    int code = fd < 0 || fsync(fd) < 0 ? errno : 0;
    if (fd >= 0) close(fd);
    return code ? shore__fail(diag, -code, "%s: cannot be made durable: %s", path, strerror(code)) : 0;
}

bool shore__directory_is_empty(const char *path) {
    DIR *directory = opendir(path);
    const struct dirent *entry = NULL;
    bool empty = directory != NULL;
    while (empty && (entry = readdir(directory)))
        empty = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
    if (directory) closedir(directory);
    return empty;
}

bool shore__name_matches(const char *name, const char *const *patterns) {
    for (; *patterns; patterns++)
        if (fnmatch(*patterns, name, 0) == 0) return true;
    return false;
}

void shore__directory_remove(const char *path, const char *const *patterns) {
    DIR *directory = opendir(path);
    const struct dirent *entry = NULL;
    while (directory && (entry = readdir(directory)))
        if (shore__name_matches(entry->d_name, patterns)) unlinkat(dirfd(directory), entry->d_name, 0);
    if (directory) closedir(directory);
    rmdir(path);
}

char *shore__directory_stranger(const char *path, const char *const *patterns) {
    DIR *directory = opendir(path);
    const struct dirent *entry = NULL;
    char *stranger = NULL;
    while (directory && !stranger && (entry = readdir(directory))) {
        bool itself = strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0;
        if (!itself && !shore__name_matches(entry->d_name, patterns)) stranger = shore__path_join(path, entry->d_name);
    }
    if (directory) closedir(directory);
    return stranger;
}

int shore__drive_absolute(const struct shore__address *drive, struct shore__address **out, struct shore_diag *diag) {
    char *path = shore__address_absolute(drive->text);
    int rc = 0;
    *out = NULL;
    if (!path)
        return shore__fail(
            diag, SHORE_EUSAGE,
            "%s: does not exist, and neither does its directory: mount the drive, or mkdir -p the directory",
            shore__shown(drive->text).text);
    if (shore__json_holds(path))
        rc = shore__address_parse(path, out, diag);
    else
        rc =
            shore__fail(diag, SHORE_EUSAGE, "%s: is not UTF-8, so that run.json cannot record it: rename the directory",
                        shore__shown(path).text);
    free(path);
    return rc;
}

void shore__fleet_id_text(const uint64_t id[2], char out[33]) {
    snprintf(out, 33, "%016" PRIx64 "%016" PRIx64, id[0], id[1]);
}

bool shore__fleet_id_parse(const char *text, uint64_t id[2]) {
    if (!text || strlen(text) != 32 || text[strspn(text, "0123456789abcdef")] != '\0') return false;
    return sscanf(text, "%16" SCNx64 "%16" SCNx64, &id[0], &id[1]) == 2;
}

/* The resolved path. A drive that is gone keeps its name, taken from the directory where it was given. */
static char *real_name(const char *path) {
    char *real = realpath(path, NULL);
    return real ? real : shore__address_absolute(path);
}

bool shore__same_path(const char *a, const char *b) {
    if (strcmp(a, b) == 0) return true;
    char *real_a = real_name(a), *real_b = real_name(b);
    const char *left = real_a ? real_a : a, *right = real_b ? real_b : b;
    bool same = strcmp(left, right) == 0;
    free(real_a);
    free(real_b);
    return same;
}

int shore__files_copy(const char *from, const char *to, struct shore_diag *diag) {
    DIR *directory = opendir(from);
    struct dirent *entry = NULL;
    int rc = 0;
    if (!directory) return shore__fail_errno(diag, from, "cannot be read");
    while (rc == 0 && (entry = readdir(directory))) {
        if (strcmp(entry->d_name, "metrics.jsonl") != 0 && strncmp(entry->d_name, "residual-", 9) != 0) continue;
        rc = shore__file_copy(shore__path_in(from, entry->d_name).text, shore__path_in(to, entry->d_name).text, diag);
    }
    closedir(directory);
    return rc;
}
