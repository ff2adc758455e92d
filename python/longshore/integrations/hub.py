"""Pushes to the Hub: weights are streamed into the files that are uploaded, and the run's own files stay here."""

import contextlib
import copy
import functools
import os

import transformers.trainer

from ..errors import LongshoreError


@contextlib.contextmanager
def without_run(run, directory):
    """A context in which transformers' Trainer does not upload a run that lies in the directory that it uploads."""
    inside = os.path.relpath(os.path.realpath(run), os.path.realpath(directory))
    left_out = ["*.volume*", ".longshore-*", *([] if inside.startswith("..") else [f"{inside}/*"])]
    module = transformers.trainer
    name = next((name for name in ("hf_api", "upload_folder") if hasattr(module, name)), None)
    if name is None:
        raise LongshoreError(
            "push_to_hub: this version of transformers is not known here; use engine.push_to_hub(REPOSITORY)"
        )
    original = getattr(module, name)

    def leaving_out(upload):
        @functools.wraps(upload)
        def call(*args, **kwargs):
            given = kwargs.get("ignore_patterns") or []
            return upload(
                *args, **{**kwargs, "ignore_patterns": [*([given] if isinstance(given, str) else given), *left_out]}
            )

        return call

    def api():
        found = copy.copy(original())
        found.upload_folder = leaving_out(found.upload_folder)
        return found

    setattr(module, name, api if name == "hf_api" else leaving_out(original))
    try:
        yield
    finally:
        setattr(module, name, original)
