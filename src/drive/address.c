#include "drive/address.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/diag.h"

#define SSH "ssh:"
#define UNIX "unix:"
#define OPENCL "opencl:"
#define SOCKET_BYTES sizeof((struct sockaddr_un *)0)->sun_path

const struct shore__kind *shore__kind_of(const char *text) {
    static const struct shore__kind file = {SHORE__KIND_FILE, .keeps = true, .has_file = true, .here = true},
                                    opencl = {SHORE__KIND_OPENCL, .keeps = true, .has_file = true, .here = true},
                                    ram = {SHORE__KIND_RAM, .here = true}, null = {SHORE__KIND_NULL, .here = true},
                                    ssh = {SHORE__KIND_SSH, .keeps = true, .served = true, .away = true},
                                    local = {SHORE__KIND_UNIX, .keeps = true, .served = true, .away = true,
                                             .here = true};
    return strcmp(text, "ram:") == 0                       ? &ram
           : strcmp(text, "null:") == 0                    ? &null
           : strncmp(text, SSH, sizeof SSH - 1) == 0       ? &ssh
           : strncmp(text, UNIX, sizeof UNIX - 1) == 0     ? &local
           : strncmp(text, OPENCL, sizeof OPENCL - 1) == 0 ? &opencl
                                                           : &file;
}

bool shore__kinds_have(const char *const *texts, uint32_t count, enum shore__kind_id id) {
    for (uint32_t i = 0; i < count; i++)
        if (shore__kind_of(texts[i])->id == id) return true;
    return false;
}

const char *shore__address_file(const char *text) {
    return shore__kind_of(text)->id == SHORE__KIND_OPENCL ? text + sizeof OPENCL - 1 : text;
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

/* Allows only characters of names, because ssh passes names to other programs, some of them shells. */
static bool is_name(const char *text, size_t bytes, const char *more) {
    if (bytes == 0 || text[0] == '-') return false;
    for (size_t i = 0; i < bytes; i++) {
        char c = text[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
                     c == '-' || c == '_';
        if (!plain && (c == 0 || !strchr(more, c))) return false;
    }
    return true;
}

static bool is_printable(const char *text) {
    for (; *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) return false;
    return true;
}

/* A text of its own. */
static char *cut(char **room, const char *text, size_t bytes) {
    char *out = memcpy(*room, text, bytes);
    out[bytes] = '\0';
    *room += bytes + 1;
    return out;
}

static int parse_ssh(struct shore__address *out, char *room, const char *shown, struct shore_diag *diag) {
    char *at = out->text + sizeof SSH + 1,
         *path = strncmp(out->text, SSH "//", sizeof SSH + 1) == 0 ? strchr(at, '/') : NULL;
    if (!path)
        return shore__fail(diag, SHORE_EUSAGE, "%s: a drive on another host is ssh://[user@]host[:port]/abs/path",
                           shown);
    const char *user_end = memchr(at, '@', (size_t)(path - at)), *host = user_end ? user_end + 1 : at;
    const char *host_end = path, *port = NULL;
    if (*host == '[') { /* an address that contains colons */
        host_end = memchr(host, ']', (size_t)(path - host));
        if (host_end && host_end[1] == ':') port = host_end + 2;
        if (host_end && host_end[1] != ':' && host_end + 1 != path) host_end = NULL;
    } else {
        const char *colon = memchr(host, ':', (size_t)(path - host));
        if (colon) {
            host_end = colon;
            port = colon + 1;
        }
    }
    bool v6 = *host == '[';
    const char *name = v6 ? host + 1 : host;
    bool good = host_end && is_name(name, (size_t)(host_end - name), v6 ? ":%" : "");
    if (good && user_end) good = is_name(at, (size_t)(user_end - at), "+$");
    if (!good)
        return shore__fail(
            diag, SHORE_EUSAGE,
            "%s: a user and a host consist of letters, digits, '.', '-' and '_', and do not begin with '-'", shown);
    if (port) {
        size_t digits = strspn(port, "0123456789");
        long number = strtol(port, NULL, 10);
        if (digits == 0 || port + digits != path || digits > 5 || number < 1 || number > 65535)
            return shore__fail(diag, SHORE_EUSAGE, "%s: the port is not a number from 1 to 65535", shown);
        out->port = cut(&room, port, digits);
    }
    out->path = path;
    out->host = cut(&room, at, user_end ? (size_t)(user_end - at + 1) : 0);
    room--;
    cut(&room, name, (size_t)(host_end - name));
    return 0;
}

static int parse_unix(struct shore__address *out, char *room, const char *shown, struct shore_diag *diag) {
    char *at = out->text + sizeof UNIX - 1, *colon = strchr(at, ':');
    size_t bytes = colon ? (size_t)(colon - at) : strlen(at);
    if (bytes == 0 || bytes >= SOCKET_BYTES)
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: a drive behind a socket is unix:SOCKET[:PATH], SOCKET of at most %u "
                           "characters",
                           shown, (unsigned)SOCKET_BYTES - 1);
    out->socket = cut(&room, at, bytes);
    if (colon) out->path = colon + 1;
    return 0;
}

int shore__address_parse(const char *text, struct shore__address **out, struct shore_diag *diag) {
    char shown[300];
    size_t bytes = strlen(text) + 1;
    struct shore__address *a = calloc(1, sizeof *a + 2 * bytes); /* the text, and the parts cut out of it */
    *out = NULL;
    if (!a) return shore__fail(diag, -ENOMEM, "out of memory");
    char *room = memcpy(a + 1, text, bytes);
    *a = (struct shore__address){.kind = shore__kind_of(text), .text = room};
    a->path = a->kind->has_file ? room + (shore__address_file(text) - text) : room + bytes - 1;
    shore__escape(text, bytes - 1, shown, sizeof shown);
    int rc = 0;
    if (a->kind->id == SHORE__KIND_OPENCL && (!*a->path || shore__kind_of(a->path)->id != SHORE__KIND_FILE))
        rc = shore__fail(diag, SHORE_EUSAGE,
                         "%s: where is its storage? opencl:PATH names a directory, a file or a device of this host",
                         shown);
    else if (a->kind->served && !is_printable(text))
        rc = shore__fail(diag, SHORE_EUSAGE, "%s: the path has control characters", shown);
    else if (a->kind->served)
        rc = (a->kind->id == SHORE__KIND_SSH ? parse_ssh : parse_unix)(a, room + bytes, shown, diag);
    if (rc)
        free(a);
    else
        *out = a;
    return rc;
}

/* ---- made of others ---------------------------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool shore__address_shares_server(const struct shore__address *a, const struct shore__address *b) {
    return a->kind->served && a->kind == b->kind && same_text(a->host, b->host) && same_text(a->port, b->port) &&
           same_text(a->socket, b->socket);
}

static char *file_absolute(const char *file) {
    struct stat st;
    bool there = stat(file, &st) == 0;
    if (there && !S_ISBLK(st.st_mode)) return realpath(file, NULL);
    const char *slash = strrchr(file, '/');
    const char *name = slash ? slash + 1 : file;
    char *directory = slash == file ? strdup("/") : slash ? strndup(file, (size_t)(slash - file)) : strdup(".");
    char *real = directory ? realpath(directory, NULL) : NULL, *path = NULL;
    if (real && *name && asprintf(&path, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name) < 0) path = NULL;
    free(directory);
    free(real);
    return path;
}

char *shore__address_absolute(const char *text) {
    const struct shore__kind *kind = shore__kind_of(text);
    if (kind->id == SHORE__KIND_FILE) return file_absolute(text);
    if (kind->has_file) {
        char *file = file_absolute(shore__address_file(text)), *whole = NULL;
        if (file && asprintf(&whole, OPENCL "%s", file) < 0) whole = NULL;
        free(file);
        return whole;
    }
    const char *socket = text + sizeof UNIX - 1;
    size_t n = kind->id == SHORE__KIND_UNIX ? strcspn(socket, ":") : 0;
    if (n == 0 || *socket == '/') return strdup(text);
    char *name = strndup(socket, n), *path = name ? file_absolute(name) : NULL, *out = NULL;
    if (path && asprintf(&out, UNIX "%s%s", path, socket + n) < 0) out = NULL;
    free(name);
    free(path);
    return out;
}

__attribute__((format(printf, 1, 2))) static struct shore__address *make(const char *format, ...) {
    struct shore__address *a = NULL;
    char *text = NULL;
    va_list args;
    va_start(args, format);
    if (vasprintf(&text, format, args) < 0) text = NULL;
    va_end(args);
    if (text) shore__address_parse(text, &a, NULL);
    free(text);
    return a;
}

struct shore__address *shore__address_copy(const struct shore__address *a) {
    return make("%s", a->text);
}

struct shore__address *shore__address_named(const struct shore__address *a, size_t kept, const char *ending) {
    return make("%.*s%s", (int)kept, a->text, ending);
}

/* The separator between a server and a path on it. */
static const char *before_path(const struct shore__address *a) {
    return a->socket && !*a->path && a->text[strlen(a->text) - 1] != ':' ? ":" : "";
}

struct shore__address *shore__address_in(const struct shore__address *directory, const char *name) {
    const char *between = before_path(directory);
    return make("%s%s%s", directory->text, *between ? between : "/", name);
}

struct shore__address *shore__address_beside(const struct shore__address *a, const char *path) {
    return make("%.*s%s%s", (int)(strlen(a->text) - strlen(a->path)), a->text, before_path(a), path);
}

/* ---- lists ------------------------------------------------------------------------------------------------------- */

int shore__addresses_add(struct shore__addresses *list, struct shore__address *at) {
    struct shore__address **items = at ? realloc(list->item, (list->count + 1) * sizeof *items) : NULL;
    if (items) list->item = items;
    const char **texts = items ? realloc(list->text, (list->count + 1) * sizeof *texts) : NULL;
    if (texts) list->text = texts;
    if (!texts) {
        free(at);
        return -ENOMEM;
    }
    items[list->count] = at;
    texts[list->count++] = at->text;
    return 0;
}

int shore__addresses_parse(struct shore__addresses *list, const char *text, struct shore_diag *diag) {
    struct shore__address *at;
    int rc = shore__address_parse(text, &at, diag);
    if (!rc && shore__addresses_add(list, at)) rc = shore__fail(diag, -ENOMEM, "out of memory");
    return rc;
}

int shore__addresses_copy(const struct shore__addresses *from, struct shore__addresses *out) {
    int rc = 0;
    for (size_t i = 0; !rc && i < from->count; i++)
        rc = shore__addresses_add(out, shore__address_copy(from->item[i]));
    return rc;
}

void shore__addresses_put(struct shore__addresses *list, size_t i, struct shore__address *at) {
    free(list->item[i]);
    list->item[i] = at;
    list->text[i] = at->text;
}

bool shore__addresses_away(const struct shore__addresses *list) {
    for (size_t i = 0; i < list->count; i++)
        if (list->item[i]->kind->away) return true;
    return false;
}

bool shore__addresses_have(const struct shore__addresses *list, const char *text) {
    for (size_t i = 0; i < list->count; i++)
        if (strcmp(list->text[i], text) == 0) return true;
    return false;
}

void shore__addresses_free(struct shore__addresses *list) {
    for (size_t i = 0; i < list->count; i++)
        free(list->item[i]);
    free(list->item);
    free(list->text);
    *list = (struct shore__addresses){0};
}
