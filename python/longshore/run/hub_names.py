"""Gives exported weights the names and shapes that they have on the Hub, as transformers' own save_pretrained() does.

transformers renames, fuses and splits weights when it loads them: it fuses the experts of a layer, for example. Its
save_pretrained() reverts that for the whole model at once. Here it is reverted layer by layer, from a mapped file.
"""

import itertools
import json
import os
import re
import sys

import torch

from ..errors import LongshoreError
from ..progress import Progress
from .weights_files import shards, write_index


def reverting(model):
    """transformers' function from {name: tensor} of a model to those of its files, or None if it has none."""
    library = sys.modules.get("transformers")
    if library is None or not isinstance(model, library.PreTrainedModel):
        return None
    try:
        from transformers.core_model_loading import revert_weight_conversion
    except ImportError:  # before transformers 5
        return _renaming(model)
    return lambda tensors: revert_weight_conversion(model, dict(tensors))


def _renaming(model):
    from transformers.modeling_utils import VLMS

    mapping = getattr(model, "_checkpoint_conversion_mapping", None)
    if not mapping or not any(name in kind.__name__.lower() for kind in type(model).__mro__[:-1] for name in VLMS):
        return None

    def original(name):
        for there, pattern in mapping.items():
            name, found = re.subn(pattern, re.sub(r"\(.*\)", "", there.lstrip("^")), name)
            if found:
                break
        return name

    return lambda tensors: {original(name): tensor for name, tensor in tensors.items()}


def rewrite(model, directory, load, short_names, most_bytes):
    """Writes the safetensors files of a directory again under the names of the Hub, where they are others.

    load: yields (name, tensor) of a file, mapped. short_names: safetensors' names of dtypes. most_bytes: the largest
    size of a file, or None.
    """
    revert = reverting(model)
    if revert is None:
        return
    files = [os.path.join(directory, name) for name in os.listdir(directory) if ".safetensors" in name]
    tensors = {name: tensor for path in files if path.endswith(".safetensors") for name, tensor in load(path)}
    shapes = {name: torch.empty_like(tensor, device="meta") for name, tensor in tensors.items()}
    try:
        wanted = revert(shapes)
        if _same(wanted, shapes):
            return
        groups = _groups(revert, shapes, wanted)
    except (RuntimeError, ValueError, KeyError, IndexError, AttributeError, NotImplementedError) as why:
        raise LongshoreError(
            f"save_pretrained: transformers cannot give {type(model).__name__} the names of the Hub "
            f"({why}); zero_to_fp32 and engine.state_dict() give the weights under the model's own "
            "names"
        ) from why
    for path in files:
        os.remove(path)
    _write(directory, groups, tensors, revert, short_names, most_bytes)


def _same(some, others):
    return {n: t.shape for n, t in some.items()} == {n: t.shape for n, t in others.items()}


def _groups(revert, shapes, wanted):
    """[(names that are reverted together, {name: shape} of what they become)], the smallest that give the same."""
    groups, left, there = [], dict(shapes), set()
    for key in (lambda name: re.match(r".*?(\.\d+\.|$)", name).group(), lambda name: name, lambda name: ""):
        together: dict = {}
        for name in left:
            together.setdefault(key(name), []).append(name)
        for names in together.values():
            made = _made(revert, {name: shapes[name] for name in names})
            if made and there.isdisjoint(made) and _same(made, {n: wanted[n] for n in made if n in wanted}):
                groups.append((names, made))
                there.update(made)
                for name in names:
                    del left[name]
    if left or there != set(wanted):
        raise ValueError(f"{', '.join(sorted(left or set(wanted) - there)[:3])} cannot be told apart")
    return groups


def _made(revert, shapes):
    try:
        return revert(shapes)
    except (RuntimeError, ValueError, KeyError, IndexError):
        return None  # it needs further tensors


def _write(directory, groups, tensors, revert, short_names, most_bytes):
    """Writes model.safetensors or its shards, a group at a time."""
    made = {name: t for _, of_group in groups for name, t in of_group.items()}
    sizes = {name: t.numel() * t.element_size() for name, t in made.items()}
    files = shards(sizes, most_bytes, "model", ".safetensors")
    reverted = ((revert({n: tensors[n] for n in sources}), names) for sources, names in groups)
    values = (values[name] for values, names in reverted for name in names)
    with Progress("saving under the names of the Hub", sum(sizes.values())) as shown:
        for file, names in files.items():
            ends = list(itertools.accumulate((sizes[name] for name in names), initial=0))
            said: dict = {"__metadata__": {"format": "pt"}}
            for name, first, last in zip(names, ends, ends[1:]):
                dtype, shape = short_names[made[name].dtype], list(made[name].shape)
                said[name] = {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}
            with open(os.path.join(directory, file), "wb") as f:
                header = json.dumps(said).encode()
                header += b" " * (-len(header) % 8)
                f.write(len(header).to_bytes(8, "little") + header)
                for value in itertools.islice(values, len(names)):
                    f.write(value.contiguous().flatten().view(torch.uint8).numpy())
                    shown.add(value.nbytes)
                f.flush()
                os.fsync(f.fileno())
    write_index(directory, sizes, files, "model", ".safetensors")
