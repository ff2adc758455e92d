#include "base/diag.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A message is too long because of a path: leave out the middle, which tells least. */
static void keep_both_ends(const char *text, size_t bytes, char *out, size_t out_bytes) {
    static const char dots[] = "...";
    size_t head = (out_bytes - sizeof dots) / 2, tail = bytes - (out_bytes - sizeof dots - head);
    while (head > 0 && (text[head] & 0xC0) == 0x80) /* no part of a character */
        head--;
    while (tail < bytes && (text[tail] & 0xC0) == 0x80)
        tail++;
    memcpy(out, text, head);
    memcpy(out + head, dots, sizeof dots - 1);
    memcpy(out + head + sizeof dots - 1, text + tail, bytes - tail + 1);
}

enum { DOTS_ROOM = 8 };

static void put(const char *text, char *out, size_t out_bytes) {
    size_t bytes = strlen(text);
    if (bytes < out_bytes)
        memcpy(out, text, bytes + 1);
    else if (out_bytes > DOTS_ROOM)
        keep_both_ends(text, bytes, out, out_bytes);
    else if (out_bytes)
        *out = '\0';
}

static void say(struct shore_diag *diag, const char *format, va_list args) {
    int saved = errno;
    char whole[3 * PATH_MAX] = "";
    vsnprintf(whole, sizeof whole, format, args);
    put(whole, diag->text, sizeof diag->text);
    errno = saved;
}

int shore__fail(struct shore_diag *diag, int code, const char *format, ...) {
    if (!diag) return code;
    va_list args;
    va_start(args, format);
    say(diag, format, args);
    va_end(args);
    return shore__advise(diag, code, SHORE_ADVICE_NONE, NULL);
}

int shore__fail_of(struct shore_diag *diag, int code, const struct shore_diag *why, const char *format, ...) {
    if (!diag) return code;
    va_list args;
    va_start(args, format);
    say(diag, format, args);
    va_end(args);
    return why == diag ? code : shore__advise(diag, code, why ? why->advice : SHORE_ADVICE_NONE, why ? why->of : NULL);
}

int shore__advise(struct shore_diag *diag, int code, enum shore_advice advice, const char *of) {
    if (!diag) return code;
    diag->advice = advice;
    put(of ? of : "", diag->of, sizeof diag->of);
    return code;
}

static const char *const own_words[SHORE_ADVICE_COUNT] = {
#define SHORE_ADVICE_WORDS(name, number, words) [name] = words,
    SHORE_ADVICE_LIST(SHORE_ADVICE_WORDS)
#undef SHORE_ADVICE_WORDS
};

const char *shore_diag_say(const struct shore_diag *diag, const char *const *words, char *out, size_t out_bytes) {
    char whole[2 * sizeof *diag];
    int advice = diag->advice > 0 && diag->advice < SHORE_ADVICE_COUNT ? diag->advice : SHORE_ADVICE_NONE;
    const char *said = words && words[advice] ? words[advice] : own_words[advice];
    const char *at = said ? strstr(said, "{}") : NULL;
    if (at)
        snprintf(whole, sizeof whole, "%s; %.*s%s%s", diag->text, (int)(at - said), said, diag->of, at + 2);
    else
        snprintf(whole, sizeof whole, "%s%s%s", diag->text, said ? "; " : "", said ? said : "");
    put(whole, out, out_bytes);
    return out;
}

const char *shore__said_of(const struct shore_diag *diag, const char *name) {
    size_t n = strlen(name);
    return strncmp(diag->text, name, n) == 0 && strncmp(diag->text + n, ": ", 2) == 0 ? diag->text + n + 2 : diag->text;
}

/* Length of the well-formed UTF-8 sequence at s, or 0. Overlong forms, surrogates and values above U+10FFFF are not
 * well-formed (Unicode 15, table 3-7). */
static size_t utf8_sequence(const unsigned char *s, size_t bytes, uint32_t *code) {
    if (s[0] < 0x80) {
        *code = s[0];
        return 1;
    }
    size_t n = s[0] >= 0xF0 ? 4 : s[0] >= 0xE0 ? 3 : 2;
    if (s[0] < 0xC2 || s[0] > 0xF4 || n > bytes) return 0;
    uint32_t c = s[0] & (0x7Fu >> n);
    for (size_t i = 1; i < n; i++) {
        if ((s[i] & 0xC0) != 0x80) return 0;
        c = c << 6 | (s[i] & 0x3F);
    }
    if ((n == 3 && c < 0x800) || (n == 4 && c < 0x10000) || c > 0x10FFFF || (c >= 0xD800 && c <= 0xDFFF)) return 0;
    *code = c;
    return n;
}

/* Whether a character could mislead a terminal or a reader: controls, line separators, directions, characters without
 * width. */
static bool is_misleading(uint32_t c) {
    return c < 0x20 || (c >= 0x7F && c <= 0x9F) || c == 0xAD || c == 0x61C || (c >= 0x200B && c <= 0x200F) ||
           (c >= 0x2028 && c <= 0x202E) || (c >= 0x2060 && c <= 0x206F) || c == 0xFEFF ||
           (c >= 0xFFF9 && c <= 0xFFFB) || (c >= 0xE0000 && c <= 0xE007F);
}

/* Writes the escaped form of the character at s into unit. Returns the number of bytes of s it covers. quotes: also
 * escapes quotes and backslashes. */
static size_t escape_unit(const unsigned char *s, size_t bytes, bool quotes, char unit[16]) {
    uint32_t c = 0;
    size_t n = utf8_sequence(s, bytes, &c);
    if (n == 0) {
        snprintf(unit, 16, "\\x%02x", s[0]);
        return 1;
    }
    if (c == '\n' || c == '\t' || c == '\r') {
        snprintf(unit, 16, "\\%c", c == '\n' ? 'n' : c == '\t' ? 't' : 'r');
    } else if (quotes && (c == '"' || c == '\'' || c == '\\')) {
        snprintf(unit, 16, "\\%c", (char)c);
    } else if (is_misleading(c)) {
        snprintf(unit, 16, c < 0x80 ? "\\x%02x" : "\\u{%x}", (unsigned)c);
    } else {
        memcpy(unit, s, n);
        unit[n] = '\0';
    }
    return n;
}

static const char *escape(const char *name, size_t name_bytes, bool quotes, char *out, size_t out_bytes) {
    static const char dots[] = "...";
    if (out_bytes == 0) return out;
    size_t room = out_bytes - 1, used = 0, cut = 0;
    for (size_t i = 0; i < name_bytes;) {
        char unit[16];
        i += escape_unit((const unsigned char *)name + i, name_bytes - i, quotes, unit);
        size_t n = strlen(unit);
        if (used + n > room) {
            size_t tail = room - cut < sizeof dots - 1 ? room - cut : sizeof dots - 1;
            memcpy(out + cut, dots, tail);
            used = cut + tail;
            break;
        }
        memcpy(out + used, unit, n);
        used += n;
        if (used + sizeof dots - 1 <= room) cut = used;
    }
    out[used] = '\0';
    return out;
}

const char *shore__escape(const char *name, size_t name_bytes, char *out, size_t out_bytes) {
    return escape(name, name_bytes, true, out, out_bytes);
}

int shore__fail_errno(struct shore_diag *diag, const char *path, const char *what) {
    int code = -errno;
    return shore__fail(diag, code, "%s: %s: %s", path, what, shore_error_text(code));
}

void shore__append(char *text, size_t bytes, const char *format, ...) {
    size_t used = strlen(text);
    va_list args;
    va_start(args, format);
    vsnprintf(text + used, bytes - used, format, args);
    va_end(args);
}

struct shore__shown shore__shown(const char *name) {
    struct shore__shown shown;
    shore__escape(name, strlen(name), shown.text, sizeof shown.text);
    return shown;
}

const char *shore__printable(const char *text, size_t text_bytes, char *out, size_t out_bytes) {
    return escape(text, text_bytes, false, out, out_bytes);
}

struct shore__shape_text shore__shape_text(uint32_t rank, const uint64_t *dims) {
    struct shore__shape_text shape = {"["};
    for (uint32_t i = 0; i < rank; i++)
        shore__append(shape.text, sizeof shape.text, "%s%" PRIu64, i ? ", " : "", dims[i]);
    shore__append(shape.text, sizeof shape.text, "]");
    return shape;
}

char *shore__shell_word(const char *text) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789/._-+,:@%=";
    if (*text && text[strspn(text, plain)] == '\0') return strdup(text);
    char *word = malloc(4 * strlen(text) + 3), *end = word;
    if (!word) return NULL;
    *end++ = '\'';
    for (; *text; text++) {
        if (*text == '\'') /* ends the quotes, and starts new ones behind it */
            end = stpcpy(end, "'\\''");
        else
            *end++ = *text;
    }
    *end++ = '\'';
    *end = '\0';
    return word;
}
