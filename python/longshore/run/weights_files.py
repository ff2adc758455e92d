"""Names and sizes of weights files that are split, and small files beside them that are written whole or not at all."""

import json
import os


def read(path):
    """Returns the contents of a JSON file."""
    with open(path, encoding="utf-8") as f:
        return json.load(f)


def write_json(path, value):
    """Writes a value as JSON, as write() does."""
    write(path, json.dumps(value, indent=2, sort_keys=True))


def write(path, text):
    """Writes a text durably, and replaces an older file at once."""
    with open(path + ".partial", "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fsync(f.fileno())
    os.replace(path + ".partial", path)


def shards(sizes, most_bytes, stem, end):
    """{file: names of its tensors}. sizes: {name: bytes}; most_bytes: of a file, or None."""
    out, used = [[]], 0
    for name, nbytes in sizes.items():
        if most_bytes is not None and out[-1] and used + nbytes > most_bytes:
            out.append([])
            used = 0
        out[-1].append(name)
        used += nbytes
    of = len(out)
    return {stem + (f"-{n:05}-of-{of:05}" if of > 1 else "") + end: names for n, names in enumerate(out, 1)}


def write_index(directory, sizes, files, stem, end):
    """Writes the index of several files, as shards() returns them. One file needs none."""
    if len(files) > 1:
        said = {
            "metadata": {"total_size": sum(sizes.values())},
            "weight_map": {name: file for file, names in files.items() for name in names},
        }
        write_json(os.path.join(directory, f"{stem}{end}.index.json"), said)
