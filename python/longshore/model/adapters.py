"""Adapters of peft: records them, puts them on a base model again, and saves them without the base."""

import json
import os
import sys

from .. import native, progress
from ..errors import AbsentParameterError, LongshoreError
from .absent import Absent


def base_of(model):
    """Returns the base model of a PeftModel; any other model itself."""
    peft = sys.modules.get("peft")
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


def record(model):
    """Returns the adapters' configuration as JSON values, for put_on(), or None if the model has none."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, dict) or not configs:
        return None
    active = getattr(model, "active_adapters", None)
    said = {name: config.to_dict() for name, config in configs.items()}
    return {
        "configs": json.loads(json.dumps(said, default=lambda v: sorted(v) if isinstance(v, set) else str(v))),
        "active": list(active() if callable(active) else active or []),
        "wrapped": base_of(model) is not model,
    }


def put_on(base, recorded):
    """Puts recorded adapters on a base that has no values yet. Adapters that peft would compute from the base get their
    values from the run."""
    import peft

    model = base
    for name, said in recorded["configs"].items():
        config = peft.PeftConfig.from_peft_type(**said)
        computed = {key: said[key] for key in ("init_lora_weights", "init_weights") if isinstance(said.get(key), str)}
        for key in computed:
            setattr(config, key, True)
        if not recorded["wrapped"]:
            model.add_adapter(config, adapter_name=name)
        elif model is base:
            model = peft.get_peft_model(base, config, adapter_name=name)
        else:
            model.add_adapter(name, config)
        for key, value in computed.items():
            setattr(config, key, value)
    if recorded["wrapped"] and len(recorded["active"]) == 1:
        model.set_adapter(recorded["active"][0])  # also for prompt adapters, which put nothing into the base
    elif recorded["wrapped"]:
        model.base_model.set_adapter(recorded["active"])
    else:
        model.set_adapter(recorded["active"])
    return model


def original_rows(model):
    """Returns {name: (module, adapter)} of buffers that state_dict() leaves out: where an adapter trains rows of a
    vocabulary, peft keeps the frozen originals in them."""
    found = [(name, m) for name, m in model.named_modules() if type(m).__name__ == "TrainableTokensLayer"]
    names = [(f"{name}.trainable_tokens_original", m) for name, m in found]
    return {f"{name}.{adapter}": (m, adapter) for name, m in names for adapter in m.trainable_tokens_original}


def fill_original_rows(model):
    """Fills original_rows() from the vocabulary, of a model that was made without values."""
    for module, adapter in original_rows(model).values():
        rows = module.get_base_layer().weight.detach()[module.token_indices[adapter]]
        module.trainable_tokens_original[adapter].copy_(rows)


def saved_alone(model):
    """Whether save() writes adapters without the base: for a PeftModel, and for transformers' add_adapter()."""
    pretrained = getattr(sys.modules.get("transformers"), "PreTrainedModel", ())
    injected = getattr(model, "_hf_peft_config_loaded", False) and isinstance(model, pretrained)
    return injected or base_of(model) is not model


def save(model, directory, dtype=None, most_bytes=None):
    """Writes all adapters of a model, as peft does. dtype: of floating-point tensors; None: unchanged. most_bytes: the
    largest size of a file."""
    values = tensors_of(model)
    if dtype is not None:
        values = {name: value.to(dtype) if value.is_floating_point() else value for name, value in values.items()}
    nbytes = sum(value.nbytes for value in values.values())
    if most_bytes is not None and nbytes > most_bytes:
        raise ValueError(
            f"save_pretrained: max_shard_size={most_bytes}: peft writes adapters as "
            f"one file, of {native.readable(nbytes)}; leave it out"
        )
    if base_of(model) is not model:
        model.save_pretrained(directory, state_dict=values)
    else:
        _save_injected(model, values, directory)


def _save_injected(model, values, directory):
    """Writes one active adapter into the directory, as transformers does, and others into subdirectories of their
    names."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import save_file

    first = model.active_adapters()[0] if len(model.active_adapters()) == 1 or len(model.peft_config) == 1 else None
    for name, config in model.peft_config.items():
        place = directory if name == first else os.path.join(directory, name)
        os.makedirs(place, exist_ok=True)
        tensors = get_peft_model_state_dict(model, state_dict=values, adapter_name=name)
        tensors = {f"base_model.model.{key}": value.contiguous() for key, value in tensors.items()}
        save_file(tensors, os.path.join(place, "adapter_model.safetensors"), metadata={"format": "pt"})
        config.save_pretrained(place)


def tensors_of(model):
    """Returns {name: value} of all tensors that peft saves with adapters, also frozen ones (a resized vocabulary) and
    buffers (projections). It fetches nothing else of the base."""
    names = names_of(model)
    return {name: value.detach() * 1 for name, value in model.state_dict(keep_vars=True).items() if name in names}


def names_of(model):
    """Returns the names of the parameters and buffers that peft saves with adapters. Warns about trained parameters
    that it does not save."""
    from peft import get_peft_model_state_dict

    there = model.state_dict(keep_vars=True)  # keep_vars: fetches nothing
    saved = set()
    for name in model.peft_config:
        saved |= {id(t) for t in get_peft_model_state_dict(model, state_dict=there, adapter_name=name).values()}
    prefix = getattr(getattr(model, "base_model", None), "prefix", None)
    # trained parameters of adapters: peft may save a smaller copy of one
    resized = {id(p) for name, p in model.named_parameters() if p.requires_grad and prefix and prefix in name}
    lost = [name for name, p in model.named_parameters() if p.requires_grad and id(p) not in saved | resized]
    if lost:
        progress.warn(
            f"{', '.join(lost[:4])}{' and more' if len(lost) > 4 else ''}: is trained, but belongs to no "
            "adapter, so peft does not save it; name it in modules_to_save of the adapter's configuration "
            "(the run keeps it)",
            stacklevel=4,
        )
    return {name for name, value in there.items() if id(value) in saved | resized}


def refuse_merging(model):
    """Makes peft's methods raise that would write into the base or replace modules, with what to do instead."""
    if base_of(model) is model:
        return

    def refusing(name):
        def refuse(*args, **kwargs):
            raise LongshoreError(
                f"{name}: the base lies on drives, and the run keeps the adapters apart; "
                "engine.save_pretrained(DIR) writes them, and PeftModel.from_pretrained(BASE, "
                "DIR).merge_and_unload() merges them, in memory"
            )

        return refuse

    for name in ("merge_and_unload", "merge_adapter", "unmerge_adapter", "unload"):
        if hasattr(model.base_model, name):
            setattr(model.base_model, name, refusing(name))
    allocate = getattr(model.base_model, "update_and_allocate", None)  # of AdaLoRA
    if allocate is not None:
        model.base_model.update_and_allocate = _allocating(model, allocate)


def _allocating(model, allocate):
    def update_and_allocate(*args, **kwargs):
        if any(isinstance(p, Absent) for n, p in model.named_parameters() if "lora_" in n):
            raise AbsentParameterError(
                "update_and_allocate: changes adapters; call it after step() and before zero_grad(), inside `with "
                "longshore.resident(adapters, write=True):`"
            )
        return allocate(*args, **kwargs)

    return update_and_allocate
