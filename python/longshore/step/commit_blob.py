"""Packs and restores the blob that commits with a step: random states, schedulers, data position, small buffers.

The blob is zipped JSON of at most 64 KiB. A run may come from strangers, so nothing in it is executed.
"""

import base64
import ctypes
import json
import logging
import random
import sys
import zlib

import torch

from ..drives.buffer import Buffer
from ..errors import LongshoreError
from ..model import device, random_numbers
from ..model.blocks import persistent_buffers
from ..native import lib
from ..torch_internals import buffers_not_saved, buffers_of, loads
from . import param_groups

DTYPES = {str(d): d for d in vars(torch).values() if isinstance(d, torch.dtype)}


def _bytes(data):
    return base64.b64encode(data).decode()


def tensor_out(t):
    """A tensor as JSON."""
    t = t.detach().cpu().resolve_conj().resolve_neg().contiguous()
    data = ctypes.string_at(t.data_ptr(), t.nbytes) if t.numel() else b""
    return {"dtype": str(t.dtype), "shape": list(t.shape), "bytes": _bytes(data)}


def tensor_in(o):
    """A tensor from its JSON."""
    data = bytearray(base64.b64decode(o["bytes"]))
    dtype = DTYPES[o["dtype"]]
    flat = torch.frombuffer(data, dtype=dtype).clone() if data else torch.empty(0, dtype=dtype, device="cpu")
    return flat.view(o["shape"])


def plain(value, name):
    """The contents of a state_dict() as JSON, with marks for tuples, tensors, arrays and bytes."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, torch.Tensor):
        return {"__tensor__": tensor_out(value)}
    if isinstance(value, tuple):
        return {"__tuple__": [plain(v, name) for v in value]}
    if isinstance(value, list):
        return [plain(v, name) for v in value]
    if isinstance(value, dict):
        return {"__dict__": [[plain(k, name), plain(v, name)] for k, v in value.items()]}
    if isinstance(value, bytes):
        return {"__bytes__": _bytes(value)}
    array = type(value).__module__ == "numpy" and hasattr(value, "item")
    if array and not value.shape:
        return plain(value.item(), name)
    if array and value.dtype.kind in "biufcmMSU":
        return {"__array__": [value.dtype.str, list(value.shape), _bytes(value.tobytes())]}
    raise LongshoreError(f"{name}: its state holds a {type(value).__name__}, which cannot be kept with a step")


def back(value):
    """The contents of a state_dict() from the JSON that plain() made."""
    if isinstance(value, list):
        return [back(v) for v in value]
    if isinstance(value, dict):
        if "__tensor__" in value:
            return tensor_in(value["__tensor__"])
        if "__bytes__" in value:
            return base64.b64decode(value["__bytes__"])
        if "__array__" in value:
            import numpy

            dtype, shape, data = value["__array__"]
            return numpy.frombuffer(bytearray(base64.b64decode(data)), dtype=dtype).reshape(shape)
        if "__tuple__" in value:
            return tuple(back(v) for v in value["__tuple__"])
        return {back(k): back(v) for k, v in value["__dict__"]}
    return value


def random_states():
    """random_numbers.now(), as JSON."""
    state, (version, numbers, gauss), numpy, devices = random_numbers.now()
    out = {
        "python": [version, _bytes(b"".join(n.to_bytes(4, "little") for n in numbers)), gauss],
        "torch": tensor_out(state),
    }
    if devices:
        out["devices"] = {kind: [tensor_out(state) for state in states] for kind, states in devices.items()}
    if numpy is not None and numpy[0] == "MT19937":
        _, keys, pos, has_gauss, cached = numpy
        out["numpy"] = [_bytes(keys.astype("<u4").tobytes()), pos, has_gauss, cached]
    return out


def set_random_states(states):
    """Restores what random_states() returned."""
    version, numbers, gauss = states["python"]
    raw = base64.b64decode(numbers)
    random.setstate((version, tuple(int.from_bytes(raw[i : i + 4], "little") for i in range(0, len(raw), 4)), gauss))
    torch.set_rng_state(tensor_in(states["torch"]))
    device.set_random_states(
        {kind: [tensor_in(state) for state in each] for kind, each in states.get("devices", {}).items()}
    )
    if "numpy" in states:
        import numpy

        keys, pos, has_gauss, cached = states["numpy"]
        keys = numpy.frombuffer(base64.b64decode(keys), dtype="<u4")
        numpy.random.set_state(("MT19937", keys, pos, has_gauss, cached))
    random_numbers.forget()


def begin(core):
    """The first part of a blob, taken when the step is made and before the script draws the next batch."""
    behind = _behind(core.layout, core.cycle.lineage[1] + core.state.step + 1, core.cycle.counts)
    out = {"format": 1, "random": random_states(), "behind": behind, "followed": {}, "lineage": core.cycle.lineage}
    out.update({"ranks": core.ranks.size} if core.ranks.size > 1 else {})
    for name, thing in core.followed.items():
        if not _follows_the_step(thing):
            out["followed"][name] = plain(thing.state_dict(), name)
    made = _made_with(core.state).get("buffers", {})
    buffers = {name: tensor_out(b) for name, b in small_buffers(core.module, core.layout, core.streams.device).items()}
    return {**out, "buffers": {name: b for name, b in buffers.items() if b != made.get(name)}}


def of_start(model, layout, lineage, counts):
    """The blob of a new run as text. A run that is killed before its first step continues from it. lineage, counts: the
    engine's, if the optimizer continues with saved moments."""
    buffers = {name: tensor_out(b) for name, b in small_buffers(model, layout).items()}
    kept = {"buffers": buffers} if buffers else {}
    before = {"lineage": lineage, "behind": _behind(layout, lineage[1], counts)} if lineage else {}
    return _bytes(_pack({"format": 1, "random": random_states(), **before, **kept}))


def of(state):
    """The committed step's blob, completed with the buffers that have not changed since the run was made: that of this
    rank, or the first rank's where as many ranks did not make the step, or this one has no drive. All ranks call it."""
    made, packed = _made_with(state), [_unpack(blob) for blob in state.meet("the state of each rank", state.blob())]
    starts = (state.program or {}).get("starts", ())
    first = next(filter(None, packed), {})  # of those that have drives
    mine = packed[state.rank] if first.get("ranks", 1) == len(packed) else {}
    if not first and len(starts) == len(packed):  # no step was made
        mine = {**made, "random": _unpack(base64.b64decode(starts[state.rank]))["random"]}
    packed = mine or first or made
    return {**packed, "buffers": {**made.get("buffers", {}), **packed.get("buffers", {})}}


def take_own(core, blob):
    """Takes what a rank has of its own from a blob: random states, and states of followed objects."""
    saved = _unpack(blob)
    core.cycle.position = {**core.cycle.position, "followed": saved["followed"]}
    for name, thing in core.followed.items():
        restore_followed(saved, name, thing)
    set_random_states(saved["random"])


def _made_with(state):
    if state.made_with is None:
        state.made_with = _unpack(base64.b64decode((state.program or {}).get("position", "")))
    return state.made_with


def _unpack(blob):
    return json.loads(zlib.decompress(blob)) if blob else {}


def _pack(out):
    return zlib.compress(json.dumps(out).encode(), 1)


def _behind(layout, steps, counts):
    """How many updates each trained tensor has missed, in the order of the blocks; [] if none missed any.

    The list has no names, because thousands of experts may miss updates.
    """
    pairs = [pair for block, ns in zip(layout.blocks, counts) for pair in zip(block.tensors, ns)]
    behind = [steps - count for tensor, count in pairs if tensor.trains]
    return behind if any(behind) else []


def _follows_the_step(thing):
    """Whether the script steps an object after the engine's step: a scheduler of any class, but not a data loader."""
    return getattr(thing, "follows_the_step", hasattr(thing, "optimizer"))


def finish(core, out):
    """The bytes of a blob that begin() began, with schedulers and groups as they are when the engine is used again."""
    out["groups"] = param_groups.saved(core.optimizer)
    for name, thing in core.followed.items():
        if _follows_the_step(thing):
            out["followed"][name] = plain(thing.state_dict(), name)
    blob = _pack(out)
    if len(blob) > lib.SHORE_BLOB_BYTES:
        parts = {**out, **{f"buffer {name}": b["bytes"] for name, b in out["buffers"].items()}}
        del parts["buffers"]
        sizes = sorted(((len(json.dumps(v)), k) for k, v in parts.items()), key=lambda size: -size[0])
        raise LongshoreError(
            f"what commits with a step takes {len(blob)} bytes, and {lib.SHORE_BLOB_BYTES} is the most: "
            f"{', '.join(f'{k} {n}' for n, k in sizes[:8])}; use register_buffer(..., persistent=False) for buffers "
            "that need not be kept"
        )
    return blob


def small_buffers(model, layout, there=None):
    """{name: buffer} of the persistent buffers that commit in the blob; the others are in blocks. there: the Device."""
    stored = {t.name for block in layout.blocks if block.buffers for t in block.tensors}
    return device.to_host({n: b.detach() for n, b in persistent_buffers(model).items() if n not in stored}, there)


def store_buffers(core):
    """Begins to write the buffers in blocks into the next step. Returns whether there are any."""
    layout, buffers = core.layout, dict(core.module.named_buffers())
    names = {tensor.name for block in layout.blocks if block.buffers for tensor in block.tensors}
    buffers = device.to_host({n: b.detach() for n, b in buffers.items() if n in names}, core.streams.device)
    for number, block in enumerate(layout.blocks):
        if block.buffers:
            value = Buffer(layout.elems(number) * 4)
            for tensor, at in zip(block.tensors, layout.offsets[number]):
                b = buffers.get(tensor.name)
                if b is None or tuple(b.shape) != tensor.shape or b.dtype != tensor.dtype:
                    now = "gone" if b is None else f"{list(b.shape)} {b.dtype}"
                    raise LongshoreError(
                        f"{tensor.name}: this buffer was {list(tensor.shape)} {tensor.dtype} at "
                        f"wrap(), is {now}, and is too large to change: give it its last shape before "
                        "wrap(), or register_buffer(..., persistent=False)"
                    )
                value.view(torch.float32)[at : at + tensor.elems] = b.reshape(-1)
            core.state.begin_store(number, value)
    return any(block.buffers for block in layout.blocks)


def restore_buffers(core, position, state):
    """Puts a blob's buffers, and those in blocks, into the model."""
    layout, saved = core.layout, position.get("buffers", {})
    stored = [(number, block) for number, block in enumerate(layout.blocks) if block.buffers]
    put = putting(core.module, {*saved, *(tensor.name for _, block in stored for tensor in block.tensors)})
    for number, block in stored:
        whole = state.masters(number)
        value = whole.view(torch.float32)
        for tensor, at in zip(block.tensors, layout.offsets[number]):
            put(tensor.name, value[at : at + tensor.elems].view(tensor.shape).to(tensor.dtype))
    for name, value in saved.items():
        put(name, tensor_in(value))


def _named(model):
    """The buffers and the modules of a model under each of their names."""
    return dict(model.named_buffers(remove_duplicate=False)), dict(model.named_modules(remove_duplicate=False))


def putting(model, names):
    """Returns put(name, value), which gives a buffer a value of any shape and dtype.

    names: all names that will be put. A buffer with only one of them stays the same object if it can. Otherwise every
    module that shares it gets the new one.
    """
    there, modules = _named(model)
    same = {}
    for name, b in there.items():
        same.setdefault(id(b), []).append(name)

    @torch.no_grad()
    def put(name, value):
        b = there.get(name)
        value = value.clone() if b is None else value.to(b.device, copy=True)
        aliases = [other for other in same.get(id(b), ()) if other not in names]
        if b is None or b.dtype != value.dtype or len(aliases) + 1 < len(same[id(b)]):
            for full in (name, *aliases):
                owner, _, last = full.rpartition(".")
                modules[owner].register_buffer(last, value, last not in buffers_not_saved(modules[owner]))
        elif b.shape == value.shape:
            b.copy_(value)
        else:
            b.data = value

    return put


def unfit_buffers(model, saved, state):
    """One phrase for each buffer of the model given to resume() that does not fit the run.

    A buffer fits if it has the size of the run's start, or if its module loads other sizes, as observers do.
    saved: the result of of().
    """
    buffers, modules = _named(model)
    made, wrong = _made_with(state).get("buffers", {}), []
    for name, b in saved.get("buffers", {}).items():
        owner, _, last = name.rpartition(".")
        there, module = buffers.get(name), modules.get(owner)
        if module is None or there is None and name in made and last not in buffers_of(module):
            wrong.append(f"{name} is missing")
        elif there is not None and list(there.shape) not in (b["shape"], made.get(name, b)["shape"]):
            if not loads(module, last, tensor_in(b)):
                wrong.append(f"{name} is {list(there.shape)} and was {b['shape']}")
    return wrong


def restore_followed(position, name, thing):
    """Gives a followed object its state from a blob, if the blob has one."""
    saved = position.get("followed", {}).get(name)
    if saved is not None:
        thing.load_state_dict(back(saved))


def restore_groups(position, optimizer):
    """Gives the optimizer's groups their numbers and parameters from a blob."""
    if "groups" in position:
        param_groups.restore(optimizer, position["groups"])


def _first_seed(state):
    """The run's seed.

    An older run.json rounds seeds of 2**63 and more. PyTorch's saved state begins with the exact one.
    """
    seed = state.program["engine"]["seed"]
    if isinstance(seed, int):
        return seed
    states = _made_with(state).get("random")
    exact = int.from_bytes(base64.b64decode(states["torch"]["bytes"])[:8], sys.byteorder) if states else 0
    if float(exact) == seed:
        return exact
    logging.getLogger("longshore").warning(
        "%s: run.json has rounded the seed to %r: from now on, dropout draws other numbers", state.path, seed
    )
    return min(int(seed), 2**64 - 1)


def restore(core, saved, state, at=None):
    """Gives the engine the contents of a blob. saved: the result of of(state). at: the step of the engine's own run
    that continues from there; by default the same one."""
    seed, before = saved.get("lineage") or [_first_seed(state), 0]
    made = before + state.step
    behind, by_name = iter(saved.get("behind", [])), saved.get("counts", {})  # older blobs have counts instead
    missed = [[next(behind, 0) if t.trains else 0 for t in block.tensors] for block in core.layout.blocks]
    counts = [
        [by_name.get(t.name, made - n) for t, n in zip(block.tensors, missing)]
        for block, missing in zip(core.layout.blocks, missed)
    ]
    core.cycle.go_on_from(saved, [seed, made - (state.step if at is None else at)], counts)
    for name, thing in core.followed.items():
        restore_followed(saved, name, thing)
    restore_groups(saved, core.optimizer)
    restore_buffers(core, saved, state)
    if "random" in saved and core.trains:
        set_random_states(saved["random"])
