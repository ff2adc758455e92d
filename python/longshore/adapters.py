"""Adapters of peft: how a model that has them is made again, and saved without the base that it stands on."""

import json
import sys

import torch

from .errors import LongshoreError


def base_of(model):
    """The model under peft's; the model itself, where there is none."""
    peft = sys.modules.get("peft")
    return model.get_base_model() if peft is not None and isinstance(model, peft.PeftModel) else model


def record(model):
    """What makes the adapters again, as JSON holds it; None: the model has none."""
    configs = getattr(model, "peft_config", None)
    if not isinstance(configs, dict) or not configs:
        return None
    active = getattr(model, "active_adapters", None)
    said = {name: config.to_dict() for name, config in configs.items()}
    return {"configs": json.loads(json.dumps(said, default=lambda v: sorted(v) if isinstance(v, set) else str(v))),
            "active": list(active() if callable(active) else active or []), "wrapped": base_of(model) is not model}


def put_on(base, recorded):
    """Puts adapters on a base without values. Those that are computed from it come with the run's."""
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
        model.set_adapter(recorded["active"][0])  # also of prompts, which put nothing into the base
    elif recorded["wrapped"]:
        model.base_model.set_adapter(recorded["active"])
    else:
        model.set_adapter(recorded["active"])
    return model


def tensors_of(model):
    """{name: value} of what peft saves of all adapters: the base is not fetched."""
    from peft import get_peft_model_state_dict

    shapes = {name: torch.empty(p.shape, dtype=p.dtype, device="meta") for name, p in model.named_parameters(remove_duplicate=False)}
    shapes.update({name: b.to("meta") for name, b in model.named_buffers(remove_duplicate=False)})
    saved = set()
    for name in model.peft_config:
        saved |= {id(t) for t in get_peft_model_state_dict(model, state_dict=shapes, adapter_name=name).values()}
    values = {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}
    return {name: values[name].detach() * 1 for name, shape in shapes.items() if id(shape) in saved}


def refuse_merging(model):
    """What would write into the base, or replace modules, says what to do instead."""
    if base_of(model) is model:
        return

    def refusing(name):
        def refuse(*args, **kwargs):
            raise LongshoreError(f"{name}: the base lies on drives, and the run keeps the adapters apart; engine.save_pretrained(DIR) "
                                 "writes them, and PeftModel.from_pretrained(BASE, DIR).merge_and_unload() merges them, in memory")
        return refuse

    for name in ("merge_and_unload", "merge_adapter", "unmerge_adapter", "unload"):
        if hasattr(model.base_model, name):
            setattr(model.base_model, name, refusing(name))
