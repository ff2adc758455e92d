"""The page about runs that `longshore report` writes, for a notebook and for a file."""

from __future__ import annotations

import html
import os

from .. import native
from ..native import ffi, lib


class Report:
    """A page of HTML about runs. A notebook shows it; save() writes it.

    html: its text. runs: the directories of the runs."""

    def __init__(self, runs: list, text: str):
        self.runs, self.html = runs, text

    def save(self, path: str | os.PathLike = "report.html") -> str:
        """Writes the page to a file, whole or not at all, and returns the file's name.

        Args:
            path: the file. Only a report is replaced.

        Raises: ExistsError if something else has this name.
        """
        name, data = native.path_bytes(path), self.html.encode()
        native.call(lib.shore_report_save, data, len(data), name)
        return os.fspath(path)

    def __repr__(self) -> str:
        return (
            f"<Report of {', '.join(self.runs)}: {native.readable(len(self.html.encode()))} of HTML, which a notebook "
            "shows and .save('report.html') writes>"
        )

    def _repr_html_(self) -> str:
        """The page in a frame, so that its styles and the notebook's stay apart."""
        return f'<iframe srcdoc="{html.escape(self.html)}" style="width:100%;height:900px;border:0"></iframe>'


def report(runs, tbw=None) -> Report:
    """The Report of runs, the first one first. tbw: what a drive may write in its life."""
    paths = [os.fspath(run) for run in runs]
    names = [ffi.new("char[]", native.path_bytes(path)) for path in paths]
    how = native.new("struct shore_report_options", tbw_bytes=0 if tbw is None else native.size(tbw, "tbw"))
    text, nbytes = ffi.new("char **"), ffi.new("size_t *")
    native.call(lib.shore_report_html, ffi.new("char *[]", names), len(names), how, text, nbytes)
    page = ffi.gc(text[0], lib.free)
    return Report(
        [path.decode("utf-8", "replace") if isinstance(path, bytes) else path for path in paths],
        ffi.buffer(page, nbytes[0])[:].decode(),
    )
