"""Makes src/text/unicode_table.h: where the `tokenizers` library and utf8proc are of different Unicode versions.

    python3 tests/text/make_unicode.py        (needs: pip install tokenizers, libutf8proc2; made with 0.23.3 and 2.8.0)

The library's composing and its marks are years older than its letters. A character that either does not know has no
decomposition, class or case there.
"""

import ctypes
import os

from tokenizers import normalizers

HEADER = os.path.join(os.path.dirname(__file__), "..", "..", "src", "text", "unicode_table.h")
FORMS = [(normalizers.NFD(), 2 | 16), (normalizers.NFKD(), 2 | 16 | 4), (normalizers.NFC(), 2 | 8),
         (normalizers.NFKC(), 2 | 8 | 4)]  # UTF8PROC_STABLE, DECOMPOSE, COMPOSE, COMPAT
lib = ctypes.CDLL("libutf8proc.so.2")
lib.utf8proc_map.restype = ctypes.c_ssize_t
lib.utf8proc_tolower.restype = ctypes.c_int32


def mapped(text, options):
    out = ctypes.POINTER(ctypes.c_char)()
    raw = text.encode()
    n = lib.utf8proc_map(raw, ctypes.c_ssize_t(len(raw)), ctypes.byref(out), options)
    return ctypes.string_at(out, n).decode()


def form_differs(char):
    return FORMS[0][0].normalize_str(char) != mapped(char, FORMS[0][1])


def ranges(codes):
    out = []
    for c in sorted(set(codes)):
        if out and out[-1][1] + 1 == c:
            out[-1][1] = c
        else:
            out.append([c, c])
    return out


def main():
    lower, accents = normalizers.Lowercase(), normalizers.StripAccents()
    other, marks, letters = [], [], []
    for c in range(1, 0x110000):
        if 0xD800 <= c < 0xE000:
            continue
        char = chr(c)
        # alone, and how it is put in order among marks of the lowest and a high class
        if any(form.normalize_str(text) != mapped(text, options) for form, options in FORMS
               for text in (char, f"a\u0345{char}", f"a{char}\u0334")):
            other.append(c)
            other.extend(ord(second) for second in mapped(char, FORMS[0][1])[1:] if form_differs(char))
        if (accents.normalize_str("x" + char) == "x") != (lib.utf8proc_category(c) in (6, 7, 8)):
            marks.append(c)
        small = lower.normalize_str(char)
        if c != 0x130 and ord(small) != lib.utf8proc_tolower(c):
            letters.append((c, ord(small)))
    cases = []
    for c, small in letters:
        if cases and cases[-1][1] + 1 == c and cases[-1][2] == small - c:
            cases[-1][1] = c
        else:
            cases.append([c, c, small - c])
    with open(HEADER, "w") as f:
        f.write("/* Made by tests/text/make_unicode.py: where the tokenizers library's Unicode is another than utf8proc's. */\n"
                "#ifndef SHORE_TEXT_UNICODE_TABLE_H\n#define SHORE_TEXT_UNICODE_TABLE_H\n\n#include <stdint.h>\n")
        for name, what, rows in (
                ("uncomposed", "characters that have no decomposition, class or composition there", ranges(other)),
                ("other_marks", "marks that are none there, and the other way round", ranges(marks)),
                ("other_cases", "capitals from, to, and how far away their small letters are", cases)):
            kind = "int32_t shore__" if name == "other_cases" else "uint32_t shore__"
            f.write(f"\n/* {what} */\nstatic const {kind}{name}[][{len(rows[0])}] = {{\n")
            line = "   "
            for row in rows:
                item = " {" + ", ".join(hex(x) if i < 2 else str(x) for i, x in enumerate(row)) + "},"
                if len(line) + len(item) > 118:
                    f.write(line + "\n")
                    line = "   "
                line += item
            f.write(line + "\n};\n")
        f.write("\n#endif\n")


main()
