"""Names the weights file that cannot be read: libraries say what is wrong, but often not with which file."""

import contextlib
import json
import os
import zipfile

from torch import nn

from ..errors import LongshoreError

_INDEX = (".safetensors.index.json", ".bin.index.json")


def of(path):
    """What is wrong with a weights file or an index, as text. None if nothing shows without reading all of it."""
    try:
        if path.endswith(_INDEX):
            weight_map(path)
        elif path.endswith(".safetensors"):
            shapes_in(path)
        elif not is_old(path):
            if not zipfile.is_zipfile(path):
                return "it is not what torch.save() writes"
            with zipfile.ZipFile(path) as z:
                for name in z.namelist():
                    if name.endswith("/data.pkl"):
                        z.read(name)
    except Exception as why:  # of safetensors, zipfile, json and the system
        return getattr(why, "strerror", None) or str(why)
    return None


def is_old(path):
    """Whether a file is of PyTorch's older form, which cannot be mapped."""
    with open(path, "rb") as f:
        return f.read(1) == b"\x80"


def weight_map(path):
    """{tensor: file} of an index file."""
    with open(path, encoding="utf-8") as f:
        said = json.load(f)
    files = said.get("weight_map") if isinstance(said, dict) else None
    if not isinstance(files, dict) or not all(isinstance(file, str) for file in files.values()):
        raise ValueError('it has no "weight_map" that names the file of each tensor')
    return files


def shapes_in(path):
    """{name: shape} of a safetensors file."""
    from safetensors import safe_open

    with safe_open(path, "pt") as f:
        return {name: f.get_slice(name).get_shape() for name in f.keys()}


@contextlib.contextmanager
def named():
    """A context that raises LongshoreError with the file's name if a weights file makes its body fail."""
    try:
        yield
    except Exception as failure:
        said = None if isinstance(failure, LongshoreError) else _of_what_was_read(failure)
        if said is None:
            raise
        raise LongshoreError(said) from failure


def _is_weights(path):
    of_torch = path.endswith(".bin") and os.path.basename(path).startswith("pytorch_model")
    return of_torch or path.endswith((".safetensors", *_INDEX))


def _of_what_was_read(failure):
    """What is wrong with a weights file that a frame of the exception's traceback has in a variable, or None."""
    files, models, trace = {}, [], failure.__traceback__
    while trace is not None:
        for value in list(trace.tb_frame.f_locals.values()):
            if isinstance(value, nn.Module):
                models.append(value)
            for path in value if isinstance(value, (list, tuple)) else [value]:
                if isinstance(path, (str, os.PathLike)) and _is_weights(os.fspath(path)):
                    files[os.fspath(path)] = None
        trace = trace.tb_next
    files = [path for path in files if os.path.exists(path)]
    for path in files:
        why = of(path)
        if why is not None:
            return f"{path}: is damaged, or was not copied as a whole: {why}; get it again"
    if "mismatch" in str(failure):
        for path in files:
            for name, there, here in _of_other_shapes(path, models):
                return (
                    f"{path}: {name} is of shape {list(there)} there, and {list(here)} in the model: use the "
                    "configuration that belongs to these weights, or load with ignore_mismatched_sizes=True, "
                    "which initializes it anew"
                )
    return None


def _of_other_shapes(path, models):
    """Yields (name, shape in the file, shape in the model) where the two differ."""
    for name, there in shapes_in(path).items() if path.endswith(".safetensors") else ():
        for model in models:
            parameters = dict(model.named_parameters(remove_duplicate=False))
            p = parameters.get(name, parameters.get(f"{getattr(model, 'base_model_prefix', '')}.{name}"))
            if p is not None and list(p.shape) != list(there):
                yield name, there, p.shape
