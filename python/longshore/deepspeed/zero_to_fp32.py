"""deepspeed.utils.zero_to_fp32: turns a checkpoint into fp32 weights files, also while its run is trained.

python -m longshore.deepspeed.zero_to_fp32 CHECKPOINTS OUT --safe_serialization
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re

import torch

from .. import native
from ..drives.state import State
from ..errors import ExistsError, LongshoreError, MissingError
from ..integrations.deepspeed_resume import latest, write
from ..native import ffi, lib
from ..run import checkpoint, export, weights_files
from ..step import commit_blob


def _find(checkpoint_dir, tag):
    """The directory of the checkpoint with this tag, or of the latest one."""
    tag = latest(checkpoint_dir) if tag is None else tag
    if tag is None:
        raise MissingError(f"{checkpoint_dir}: has no file `latest`; give tag=, the name of a checkpoint in it")
    return os.path.join(checkpoint_dir, str(tag))


def _export(state, directory):
    how = native.new("struct shore_run_exporting", converted=True, dtype=lib.SHORE_DTYPE_FP32)
    native.call(lib.shore_run_export, state.run, native.path_bytes(directory), how, ffi.NULL)


def get_fp32_state_dict_from_zero_checkpoint(
    checkpoint_dir: str | os.PathLike,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
    lazy_mode: bool = False,
) -> dict[str, torch.Tensor]:
    """{name: fp32 tensor} of a checkpoint's parameters and buffers.

    tag: name of the checkpoint. Default: the one that the file `latest` names. The tensors are mapped from a file whose
    name is gone already, so they come into memory when they are read, and lazy_mode has no effect.
    """
    said = checkpoint.read(_find(checkpoint_dir, tag))
    with contextlib.closing(State.open(said["run"], read_only=True, snapshot=said["snapshot"])) as state:
        out = export.through_files(checkpoint_dir, lambda directory: _export(state, directory))
        for tensor in (tensor for block in state.layout.blocks for tensor in block.tensors):
            out.update(dict.fromkeys(tensor.names, out[tensor.name]))
            if exclude_frozen_parameters and not set(tensor.names).isdisjoint((state.program or {}).get("frozen", ())):
                for name in tensor.names:
                    del out[name]
        buffers = commit_blob.of(state).get("buffers", {})
        out.update({name: commit_blob.tensor_in(saved) for name, saved in buffers.items()})
        return out


def convert_zero_checkpoint_to_fp32_state_dict(
    checkpoint_dir: str | os.PathLike,
    output_dir: str | os.PathLike,
    max_shard_size: int | str | None = "5GB",
    safe_serialization: bool = False,
    tag: str | None = None,
    exclude_frozen_parameters: bool = False,
) -> None:
    """Writes a checkpoint's fp32 parameters as pytorch_model.bin, or model.safetensors if safe_serialization is set.

    max_shard_size: most bytes of a file, such as "5GB"; more makes shards with an index. None: one file.
    Raises ExistsError if output_dir has weights files already.
    """
    there = os.listdir(output_dir) if os.path.isdir(output_dir) else []
    there = [name for name in there if re.match(r"(pytorch_)?model[-.]", name)]
    if there:
        raise ExistsError(f"{os.path.join(output_dir, there[0])}: exists already; move it, or give another directory")
    most = None if max_shard_size is None else native.size(max_shard_size, "max_shard_size")
    values = get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag, exclude_frozen_parameters)
    os.makedirs(output_dir, exist_ok=True)
    named = ("model", ".safetensors") if safe_serialization else ("pytorch_model", ".bin")
    sizes = {name: value.nbytes for name, value in values.items()}
    files = weights_files.shards(sizes, most, *named)
    for file, names in files.items():
        write({name: values[name].clone() for name in names}, os.path.join(output_dir, file), safe_serialization)
    weights_files.write_index(output_dir, sizes, files, *named)


def load_state_dict_from_zero_checkpoint(
    model: torch.nn.Module, checkpoint_dir: str | os.PathLike, tag: str | None = None
) -> torch.nn.Module:
    """Gives a model the parameters of a checkpoint. A model on drives returns to the whole checkpoint, moments too."""
    handle = getattr(next(model.parameters(), None), "longshore", None)
    if handle is not None:
        checkpoint.load(handle.streams.core().engine, _find(checkpoint_dir, tag))
    else:
        model.load_state_dict(get_fp32_state_dict_from_zero_checkpoint(checkpoint_dir, tag), strict=False)
    return model


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m longshore.deepspeed.zero_to_fp32",
        description="Writes the fp32 parameters of a checkpoint for PyTorch.",
    )
    parser.add_argument("checkpoint_dir", help="directory with the checkpoint's directory and the file `latest`")
    parser.add_argument("output_dir")
    parser.add_argument("--max_shard_size", default="5GB", help="most bytes of a file")
    parser.add_argument(
        "--safe_serialization", action="store_true", help="model.safetensors instead of pytorch_model.bin"
    )
    parser.add_argument("-t", "--tag", help="name of the checkpoint; by default the one that `latest` names")
    parser.add_argument("--exclude_frozen_parameters", action="store_true")
    said = vars(parser.parse_args(argv))
    try:
        convert_zero_checkpoint_to_fp32_state_dict(**said)
    except (LongshoreError, OSError, ValueError) as e:
        parser.exit(1, f"{parser.prog}: {e}\n")


if __name__ == "__main__":
    main()
