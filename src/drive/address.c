#include "drive/address.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>

#include "base/diag.h"
#include "base/units.h"

#define SSH "ssh:"
#define UNIX "unix:"
#define SOCKET_BYTES sizeof((struct sockaddr_un *)0)->sun_path

const struct shore__kind *shore__kind_of(const char *text) {
    static const struct shore__kind file = {SHORE__KIND_FILE, .keeps = true, .has_file = true, .here = true},
                                    ram = {SHORE__KIND_RAM, .here = true}, null = {SHORE__KIND_NULL, .here = true},
                                    ssh = {SHORE__KIND_SSH, .keeps = true, .remote = true},
                                    local = {SHORE__KIND_UNIX, .keeps = true, .remote = true, .here = true};
    return strcmp(text, "ram:") == 0                   ? &ram
           : strcmp(text, "null:") == 0                ? &null
           : strncmp(text, SSH, sizeof SSH - 1) == 0   ? &ssh
           : strncmp(text, UNIX, sizeof UNIX - 1) == 0 ? &local
                                                       : &file;
}

void shore__address_free(struct shore__address *a) {
    free(a->text);
    free(a->host);
    free(a->port);
    free(a->socket);
    free(a->path);
    *a = (struct shore__address){0};
}

/* ---- parsing ----------------------------------------------------------------------------------------------------- */

/* ssh hands names to other programs, some of them shells: only what names are made of. */
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

static int parse_ssh(const char *text, const char *shown, struct shore__address *out, struct shore_diag *diag) {
    const char *at = text + sizeof SSH + 1,
               *path = strncmp(text, SSH "//", sizeof SSH + 1) == 0 ? strchr(at, '/') : NULL;
    if (!path)
        return shore__fail(diag, SHORE_EUSAGE, "%s: a drive on another host is ssh://[user@]host[:port]/abs/path",
                           shown);
    const char *user_end = memchr(at, '@', (size_t)(path - at)), *host = user_end ? user_end + 1 : at;
    const char *host_end = path, *port = NULL;
    if (*host == '[') { /* an address with colons of its own */
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
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: names no user and host that ssh can be given (letters, digits, '.', '-', '_', and no "
                           "'-' at the front)",
                           shown);
    if (port) {
        size_t digits = strspn(port, "0123456789");
        long number = strtol(port, NULL, 10);
        if (digits == 0 || port + digits != path || digits > 5 || number < 1 || number > 65535)
            return shore__fail(diag, SHORE_EUSAGE, "%s: the port is no number from 1 to 65535", shown);
        out->port = strndup(port, digits);
        if (!out->port) return -ENOMEM;
    }
    if (asprintf(&out->host, "%.*s%.*s", user_end ? (int)(user_end - at + 1) : 0, at, (int)(host_end - name), name) < 0)
        out->host = NULL;
    out->path = strdup(path);
    return out->host && out->path ? 0 : -ENOMEM;
}

static int parse_unix(const char *text, const char *shown, struct shore__address *out, struct shore_diag *diag) {
    const char *at = text + sizeof UNIX - 1, *colon = strchr(at, ':');
    size_t bytes = colon ? (size_t)(colon - at) : strlen(at);
    if (bytes == 0 || bytes >= SOCKET_BYTES)
        return shore__fail(diag, SHORE_EUSAGE,
                           "%s: a drive behind a socket is unix:SOCKET[:PATH], SOCKET of at most %u "
                           "characters",
                           shown, (unsigned)SOCKET_BYTES - 1);
    out->socket = strndup(at, bytes);
    out->path = strdup(colon ? colon + 1 : "");
    return out->socket && out->path ? 0 : -ENOMEM;
}

int shore__address_parse(const char *text, struct shore__address *out, struct shore_diag *diag) {
    char shown[300];
    *out = (struct shore__address){.kind = shore__kind_of(text), .text = strdup(text)};
    shore__escape(text, strlen(text), shown, sizeof shown);
    int rc = out->text ? 0 : -ENOMEM;
    if (!rc && out->kind->remote && !is_printable(text))
        rc = shore__fail(diag, SHORE_EUSAGE, "%s: a path with control characters", shown);
    if (!rc && out->kind->id == SHORE__KIND_SSH)
        rc = parse_ssh(text, shown, out, diag);
    else if (!rc && out->kind->id == SHORE__KIND_UNIX)
        rc = parse_unix(text, shown, out, diag);
    else if (!rc && !(out->path = strdup(out->kind->has_file ? text : "")))
        rc = -ENOMEM;
    if (rc == -ENOMEM) shore__fail(diag, rc, "out of memory");
    if (rc) shore__address_free(out);
    return rc;
}

/* ---- made of others ---------------------------------------------------------------------------------------------- */

static bool same_text(const char *a, const char *b) {
    return a && b ? strcmp(a, b) == 0 : a == b;
}

bool shore__address_shares_server(const char *a, const char *b) {
    struct shore__address one, other;
    if (!shore__kind_of(a)->remote || shore__kind_of(a) != shore__kind_of(b)) return false;
    bool parsed = !shore__address_parse(a, &one, NULL) & !shore__address_parse(b, &other, NULL);
    bool same = parsed && same_text(one.host, other.host) && same_text(one.port, other.port) &&
                same_text(one.socket, other.socket);
    shore__address_free(&one);
    shore__address_free(&other);
    return same;
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
    if (kind->has_file) return file_absolute(text);
    const char *socket = text + sizeof UNIX - 1;
    size_t n = kind->id == SHORE__KIND_UNIX ? strcspn(socket, ":") : 0;
    if (n == 0 || *socket == '/') return strdup(text);
    char *name = strndup(socket, n), *path = name ? file_absolute(name) : NULL, *out = NULL;
    if (path && asprintf(&out, UNIX "%s%s", path, socket + n) < 0) out = NULL;
    free(name);
    free(path);
    return out;
}

/* What stands between a server and a path on it. */
static const char *before_path(const char *text) {
    bool bare = shore__kind_of(text)->id == SHORE__KIND_UNIX && !strchr(text + sizeof UNIX - 1, ':');
    return bare ? ":" : "";
}

char *shore__address_in(const char *directory, const char *name) {
    char *text;
    const char *between = before_path(directory);
    return asprintf(&text, "%s%s%s", directory, *between ? between : "/", name) < 0 ? NULL : text;
}

char *shore__address_beside(const char *text, const char *path) {
    struct shore__address a;
    char *out = NULL;
    if (shore__address_parse(text, &a, NULL)) return NULL;
    if (asprintf(&out, "%.*s%s%s", (int)(strlen(text) - strlen(a.path)), text, before_path(text), path) < 0) out = NULL;
    shore__address_free(&a);
    return out;
}
