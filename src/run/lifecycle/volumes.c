/* Names of a run's volumes, and whose they are. In a directory, each run's volume has its own name,
 * longshore-NAME-1a2b3c4d.volume, after the run's directory and fleet (older runs: longshore.volume). Where a run has
 * several there, as several processes do, each has a number: longshore-NAME-1a2b3c4d.rank1.volume. A drive that stays
 * in a new placement holds two volumes for a while, so the new one's name ends with .g2. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/diag.h"
#include "drive/probe/probe.h"
#include "run/lifecycle/volumes.h"
#include "run/paths.h"
#include "storage/format.h"

#define COMMON_NAME "longshore.volume"
#define OWN_BEGIN "longshore-"
#define OWN_END ".volume"
#define OWN_NUMBER ".rank"
enum { ID_DIGITS = 8, RUN_BYTES_MOST = 40 };

/* Length without a ".gN" at the end. */
static size_t plain_length(const char *path) {
    size_t n = strlen(path), digits = n;
    while (digits > 0 && path[digits - 1] >= '0' && path[digits - 1] <= '9')
        digits--;
    return digits < n && digits > 2 && path[digits - 1] == 'g' && path[digits - 2] == '.' ? digits - 2 : n;
}

/* Index of the slash before the last part of a path, or of the colon in the root of a server. */
static size_t before_name(const char *path, size_t n) {
    const bool served = shore__kind_of(path)->served;
    while (n > 0 && path[n - 1] != '/' && !(served && path[n - 1] == ':'))
        n--;
    return n ? n - 1 : 0;
}

static bool is_own_name(const char *name, size_t n) {
    const size_t begin = sizeof OWN_BEGIN - 1, end = sizeof OWN_END - 1, number = sizeof OWN_NUMBER - 1;
    if (n < begin + 2 + ID_DIGITS + end || strncmp(name, OWN_BEGIN, begin) != 0) return false;
    size_t left = n - end, digits = left;
    if (strncmp(name + left, OWN_END, end) != 0) return false;
    while (name[digits - 1] >= '0' && name[digits - 1] <= '9')
        digits--;
    if (digits < left && strncmp(name + digits - number, OWN_NUMBER, number) == 0) left = digits - number;
    const char *id = name + left - ID_DIGITS;
    return left >= begin + 2 + ID_DIGITS && id[-1] == '-' && strspn(id, "0123456789abcdef") >= ID_DIGITS;
}

/* Whether the first n characters end with a name that this program chose; then the drive is the directory. */
static bool is_in_directory(const char *path, size_t n) {
    size_t before = before_name(path, n);
    const char *name = path + before + 1;
    if (before == 0) return false;
    return is_own_name(name, n - before - 1) ||
           (n - before - 1 == sizeof COMMON_NAME - 1 && strncmp(name, COMMON_NAME, sizeof COMMON_NAME - 1) == 0);
}

char *shore__volume_own_name(const char *home, const uint64_t fleet_id[2], size_t number) {
    const char *slash = strrchr(home, '/'), *base = slash ? slash + 1 : home;
    char name[RUN_BYTES_MOST + 1], *out = NULL, numbered[32] = "";
    size_t n = 0;
    for (; base[n] && n < RUN_BYTES_MOST; n++) {
        bool plain = (base[n] >= '0' && base[n] <= '9') || (base[n] >= 'A' && base[n] <= 'Z') ||
                     (base[n] >= 'a' && base[n] <= 'z') || strchr("._-", base[n]);
        name[n] = '_';
        if (plain) name[n] = base[n];
    }
    name[n] = '\0';
    if (number) snprintf(numbered, sizeof numbered, OWN_NUMBER "%zu", number);
    if (asprintf(&out, OWN_BEGIN "%s-%0*x%s" OWN_END, n ? name : "run", ID_DIGITS, (unsigned)(fleet_id[0] >> 32),
                 numbered) < 0)
        return NULL;
    return out;
}

/* Length without the ".gN" that a volume of this generation was given. Users may name their own files like that: in a
 * user's name, only this very generation can be ours, and never the first. */
static size_t given_length(const char *path, uint64_t generation) {
    size_t n = plain_length(path);
    if (!path[n] || is_in_directory(path, n)) return n;
    bool ours = generation > 1 && strtoull(path + n + 2, NULL, 10) == generation;
    return ours ? n : strlen(path);
}

char *shore__drive_name(const char *recorded, uint64_t generation) {
    struct stat st;
    if (stat(shore__address_file(recorded), &st) == 0 && S_ISDIR(st.st_mode))
        return strdup(recorded); /* the user's name, whatever it is */
    size_t n = given_length(recorded, generation);
    return strndup(recorded, is_in_directory(recorded, n) ? before_name(recorded, n) : n);
}

bool shore__drive_is_named(const char *recorded, uint64_t generation, const char *name) {
    size_t n = plain_length(name), before = before_name(name, n);
    bool volume = before && is_own_name(name + before + 1, n - before - 1); /* one of several, perhaps */
    if (shore__same_path(recorded, name)) return true;
    char *drive = volume ? strndup(recorded, plain_length(recorded)) : shore__drive_name(recorded, generation);
    char *named = volume ? strndup(name, n) : shore__drive_name(name, 0);
    bool same = drive && named && shore__same_path(drive, named);
    free(drive);
    free(named);
    return same;
}

size_t shore__drive_find(const struct shore__addresses *drives, uint64_t generation, const char *name, size_t from) {
    size_t i = 0;
    while (i < drives->count && !shore__same_path(drives->text[i], name))
        i++;
    if (i < drives->count) return from <= i ? i : drives->count;
    for (i = from; i < drives->count && !shore__drive_is_named(drives->text[i], generation, name);)
        i++;
    return i;
}

struct shore__move shore__move_split(const struct shore__run *run, const char *word, size_t from) {
    const struct shore__addresses *drives = &run->settings.drives;
    struct shore__move move = {.drive = drives->count};
    bool named = false;
    for (const char *at = strchr(word, '='); at && !named; at = strchr(at + 1, '=')) {
        char *old = strndup(word, (size_t)(at - word));
        named = old && shore__drive_find(drives, run->generation, old, 0) < drives->count;
        if (old) move = (struct shore__move){shore__drive_find(drives, run->generation, old, from), at + 1};
        free(old);
    }
    return move;
}

int shore__spot_of(const struct shore__address *drive, struct shore__spot *out, struct shore_diag *diag) {
    struct shore__probe probe = {.path = NULL};
    struct stat st;
    *out = (struct shore__spot){0};
    /* here, without the look at the lock, which takes a while if somebody has it */
    int rc = drive->kind->has_file ? shore__volume_path(drive->path, &probe.path, diag)
                                   : shore__drive_probe(drive, &probe, diag);
    if (rc == 0 && drive->kind->has_file) rc = shore__drive_examine(probe.path, &st, &probe.exists, diag);
    if (rc == 0) {
        out->exists = probe.exists;
        out->is_device = probe.exists && drive->kind->has_file ? S_ISBLK(st.st_mode) : probe.is_device;
        out->volume = shore__address_beside(drive, probe.path);
    }
    shore__probe_free(&probe);
    if (rc) return rc;
    return out->volume ? 0 : shore__fail(diag, -ENOMEM, "%s: its volume cannot be named", drive->text);
}

struct shore__address *shore__part_beside(const struct shore__address *volume, const struct shore__address *part) {
    const char *slash = strrchr(volume->text, '/'), *name = strrchr(part->text, '/');
    return slash && name ? shore__address_named(volume, (size_t)(slash - volume->text), name) : NULL;
}

static bool is_at(const struct shore__address *at) {
    struct shore__spot spot = {0};
    bool is = at && shore__spot_of(at, &spot, NULL) == 0 && spot.exists;
    free(spot.volume);
    return is;
}

/* Whether something has that name. A server that cannot be asked says so itself when the volume is made. */
static bool is_taken(const struct shore__address *at) {
    struct stat st;
    return at->kind->served ? is_at(at) : lstat(at->path, &st) == 0;
}

struct shore__address *shore__volume_next(const struct shore__address *volume, uint64_t generation) {
    size_t plain = given_length(volume->text, generation - 1);
    for (;; generation++) {
        char ending[24];
        snprintf(ending, sizeof ending, ".g%llu", (unsigned long long)generation);
        struct shore__address *next = shore__address_named(volume, plain, ending);
        if (!next || !is_taken(next)) return next; /* another run's volume may have had that name first */
        free(next);
    }
}

bool shore__volume_is_placed(const struct shore__address *at, const uint64_t fleet_id[2], uint64_t generation,
                             uint32_t *drive) {
    struct shore__probe probe;
    if (shore__drive_probe(at, &probe, NULL)) return false;
    bool is = shore__probe_is_of(&probe, fleet_id) && probe.desc.generation == generation;
    if (drive) *drive = probe.desc.drive;
    shore__probe_free(&probe);
    return is;
}

struct shore__address *shore__drive_moved(const struct shore__run *run, const char *recorded,
                                          const struct shore__address *place) {
    size_t plain = plain_length(recorded);
    const char *name = recorded + before_name(recorded, strlen(recorded)) + 1, *given = recorded + plain;
    bool has_name = *given || is_in_directory(recorded, plain);
    struct shore__address *inside = has_name ? shore__address_in(place, name) : NULL;
    struct shore__address *beside = *given ? shore__address_named(place, strlen(place->text), given) : NULL;
    struct shore__address *found;
    /* an interrupted change of drives may have left the old volume beside the new one */
    if (is_at(inside))
        found = inside;
    else if (is_at(beside) && !shore__volume_is_placed(place, run->fleet_id, run->generation, NULL))
        found = beside;
    else
        found = inside && !is_at(place) ? inside : shore__address_copy(place);
    if (found != inside) free(inside);
    if (found != beside) free(beside);
    return found;
}

/* ---- owners ------------------------------------------------------------------------------------------------------ */

static enum shore__owner owner_of(const char *volume, const uint64_t fleet_id[2], struct shore_diag *diag) {
    unsigned char page[SHORE__PAGE_BYTES] = {0};
    struct shore__header header;
    /* non-blocking, so that a fifo of this name cannot block us */
    int fd = open(volume, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t n = fd < 0 ? -1 : pread(fd, page, sizeof page, 0);
    int code = errno;
    if (fd >= 0) close(fd);
    if (n < 0) {
        shore__fail(diag, -code, "%s: cannot be read: %s", volume, strerror(code));
        return SHORE__ANOTHERS;
    }
    enum shore__parse parse = shore__header_parse(page, &header);
    if (parse == SHORE__PARSE_OK && memcmp(header.desc.fleet_id, fleet_id, sizeof header.desc.fleet_id) == 0)
        return SHORE__OURS;
    shore__fail(diag, SHORE_EMISMATCH, "%s: is not a volume of this run", volume);
    return parse == SHORE__PARSE_EMPTY || parse == SHORE__PARSE_DAMAGED ? SHORE__BEGUN : SHORE__ANOTHERS;
}

bool shore__volume_is_of(const char *volume, const uint64_t fleet_id[2], bool begun, struct shore_diag *diag) {
    struct stat st;
    enum shore__owner owner = owner_of(volume, fleet_id, diag);
    return owner == SHORE__OURS || (owner == SHORE__BEGUN && begun && stat(volume, &st) == 0 && S_ISREG(st.st_mode));
}

int shore__volume_owner(const struct shore__address *drive, bool to_make, const uint64_t fleet_id[2],
                        struct shore__address **volume, bool *exists, enum shore__owner *owner,
                        struct shore_diag *diag) {
    struct shore__probe probe;
    struct stat st;
    *owner = SHORE__BEGUN;
    if (!drive->kind->served) {
        char *path;
        int rc = shore__volume_path(drive->path, &path, diag);
        if (rc < 0) return rc;
        rc = shore__drive_examine(path, &st, exists, diag);
        if (*exists) *owner = owner_of(path, fleet_id, NULL);
        if (rc == 0 && volume && !(*volume = shore__address_beside(drive, path))) rc = shore__out_of_memory(diag);
        free(path);
        return rc;
    }
    int rc = shore__drive_probe(drive, &probe, diag);
    if (rc < 0) return rc;
    *exists = probe.exists;
    if (probe.is_volume) *owner = shore__probe_is_of(&probe, fleet_id) ? SHORE__OURS : SHORE__ANOTHERS;
    if (to_make) rc = shore__probe_may_be_made(drive, &probe, diag);
    shore__probe_free(&probe);
    if (rc < 0 || !volume) return rc;
    *volume = shore__address_copy(drive);
    return *volume ? 0 : shore__fail(diag, -ENOMEM, "out of memory");
}

bool shore__volume_is(const struct shore__address *drive, const uint64_t fleet_id[2], enum shore__owner whose) {
    bool exists = false;
    enum shore__owner owner;
    return shore__volume_owner(drive, false, fleet_id, NULL, &exists, &owner, NULL) == 0 && exists && owner == whose;
}
