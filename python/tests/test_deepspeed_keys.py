"""Each key of a configuration that is said to be honoured does what DeepSpeed says of it."""

import copy
import logging
import os

import pytest
import torch

import longshore
import longshore.deepspeed as deepspeed
from longshore.integrations import deepspeed_config as configuration, nvme_paths
from longshore.integrations.deepspeed_config import HINTS, SUPPORTED, settings
from longshore.step.param_groups import defaults_of
from models import gpt2, tokens

BASE = {
    "longshore": {"run": "/none/run"},
    "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
    "scheduler": {"type": "WarmupLR", "params": {}},
    "zero_optimization": {
        which: {"device": "none", "nvme_path": f"/{which}"} for which in ("offload_param", "offload_optimizer")
    },
    **{monitor: {"enabled": True} for monitor in ("tensorboard", "csv_monitor", "wandb")},
}
OTHER = {
    "train_batch_size": 8,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 3,
    "gradient_clipping": 0.5,
    "steps_per_print": 3,
    "wall_clock_breakdown": True,
    "dataloader_drop_last": True,
    "managed_gradient_accumulation": False,
    "longshore.run": "/other/run",
    "longshore.memory": "1GiB",
    "longshore.memory_of": "process",
    "longshore.max_writes_per_day": "1TB",
    "longshore.gpu_memory": "1GiB",
    "longshore.pinned_memory": "64MiB",
    "longshore.drives": ["/other"],
    "longshore.storage": "bf16",
    "longshore.moments": "8bit",
    "longshore.compress": 0.1,
    "longshore.compress_after": 10,
    "longshore.activations": "drives",
    "longshore.activation_room": "64MiB",
    "longshore.moments_from": "/other",
    "longshore.sum_groups": 4,
    "longshore.fused_loss": True,
    "longshore.rank_timeout": 60,
    "longshore.trace": 10,
    "longshore.resume": True,
    "longshore.overwrite": True,
    "longshore.layer_major": False,
    "optimizer.type": "SGD",
    "optimizer.params": {"lr": 1e-4},
    "scheduler.type": "WarmupDecayLR",
    "scheduler.params": {"warmup_num_steps": 3},
    "zero_optimization.stage": 3,
    "zero_optimization.stage3_gather_16bit_weights_on_model_save": True,
    "zero_optimization.stage3_gather_fp16_weights_on_model_save": True,
    "zero_optimization.gather_16bit_weights_on_model_save": True,
    "zero_optimization.offload_param.device": "nvme",
    "zero_optimization.offload_param.nvme_path": "/other",
    "zero_optimization.offload_optimizer.device": "nvme",
    "zero_optimization.offload_optimizer.nvme_path": "/other",
    "bf16.enabled": True,
    "bf16.auto_cast": True,
    "bfloat16.enabled": True,
    "bfloat16.auto_cast": True,
    "fp16.enabled": True,
    "fp16.auto_cast": True,
    "tensorboard.enabled": False,
    "tensorboard.output_path": "other",
    "tensorboard.job_name": "other",
    "csv_monitor.enabled": False,
    "csv_monitor.output_path": "other",
    "csv_monitor.job_name": "other",
    "wandb.enabled": False,
    "wandb.team": "other",
    "wandb.group": "other",
    "wandb.project": "other",
}
BESIDE = {"auto_cast": ("enabled", True), "nvme_path": ("device", "nvme")}  # what a key is of no use without


def put(config, path, value):
    *objects, key = path.split(".")
    for name in objects:
        config = config.setdefault(name, {})
    config[key] = value


def test_what_is_honoured_changes_something():
    inner = {**SUPPORTED, **HINTS}
    keys = {f"{where}.{key}" if where else key for where, keys in SUPPORTED.items() for key in keys}
    assert set(OTHER) == {key for key in keys if key.rpartition(".")[2] != "aio" and key not in inner}
    for path, value in OTHER.items():
        before = copy.deepcopy(BASE)
        where, _, key = path.rpartition(".")
        if key in BESIDE:
            put(before, f"{where}.{BESIDE[key][0]}", BESIDE[key][1])
        after = copy.deepcopy(before)
        put(after, path, value)
        assert settings(after) != settings(before), path


def test_defaults_are_those_of_deepspeed(tmp_path):
    plain = settings({"longshore": {"run": "/none"}})
    assert (plain.clip, plain.accumulate, plain.micro_batch, plain.stage) == (1.0, 1, 1, 0)
    assert (plain.dtype, plain.managed) == ("fp32", True)
    assert settings({"longshore": {"run": "/none"}, "gradient_clipping": 0}).clip == 0
    for kind, params, expected in (
        ("AdamW", {}, {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.0}),
        ("Adam", {"adam_w_mode": False}, {"optimizer": "adam", "lr": 1e-3, "weight_decay": 0.0}),
        ("AdamW", {"torch_adam": True}, {"optimizer": "adamw", "lr": 1e-3, "weight_decay": 0.01}),
        ("Adagrad", {}, {"optimizer": "adagrad", "lr": 1e-2, "weight_decay": 0.0, "eps": 1e-10}),
        ("SGD", {"lr": 1, "momentum": 0.9}, {"optimizer": "sgd", "lr": 1, "weight_decay": 0.0, "momentum": 0.9}),
    ):
        numbers = configuration.hyper({"type": kind, "params": params})
        assert expected.items() <= {**defaults_of(expected["optimizer"]), **numbers}.items()
    with pytest.raises(
        deepspeed.ConfigError, match="zero_optimization.stage: must be a whole number from 0 to 3, and is 4"
    ):
        settings({"longshore": {"run": "/none"}, "zero_optimization": {"stage": 4}})
    with pytest.raises(deepspeed.ConfigError, match="bf16.enabled and fp16.enabled"):
        settings({"longshore": {"run": "/none"}, "bf16": {"enabled": True}, "fp16": {"enabled": True}})


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_auto_cast(tmp_path, seed, precision):
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(2)])
    config = {
        "longshore": {"run": str(tmp_path / "run")},
        "optimizer": {"type": "Adam"},
        precision: {"enabled": True, "auto_cast": True},
    }
    engine = deepspeed.initialize(model=model, config=config)[0]
    engine.backward(engine(torch.randn(2, 8)).float().square().mean())
    engine.step()
    assert engine.global_steps == 1
    engine.destroy()


def test_what_is_printed(tmp_path, seed, caplog):
    config = {
        "longshore": {"run": str(tmp_path / "run")},
        "steps_per_print": 2,
        "wall_clock_breakdown": True,
        "dataloader_drop_last": True,
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "SGD", "params": {"lr": 0.5, "momentum": 0.25}},
    }
    data = [{k: v[0] for k, v in b.items()} for b in tokens(5, batch=1)]
    with caplog.at_level(logging.INFO, "longshore"):
        engine, _, loader, _ = deepspeed.initialize(model=gpt2(layers=2), training_data=data, config=config)
        assert len(loader) == 2
        for batch in [*loader, *loader]:
            engine.backward(engine(**batch).loss)
            engine.step()
        engine.destroy()
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("step=")]
    assert [line.split(",")[0] for line in said] == ["step=2", "step=4"]
    assert all("lr=[0.5], mom=[0.25], norm=" in line and "forward" in line and "backward" in line for line in said)


@pytest.mark.parametrize(
    "path, value, said",
    [
        ("optimizer.params", [1], "optimizer.params: must be an object, and is"),
        ("optimizer.params.lr", "1e-3", "optimizer.params.lr must be 0 or more, and is '1e-3'"),
        ("optimizer.params.lr", -1, "optimizer.params.lr must be 0 or more, and is -1"),
        ("optimizer.params.lr", float("nan"), "optimizer.params.lr must be 0 or more, and is nan"),
        ("optimizer.params.eps", None, "optimizer.params.eps must be 0 or more, and is None"),
        ("optimizer.params.betas", [0.9], "optimizer.params.betas must be two numbers from 0 to below 1, and is .0.9."),
        ("scheduler.params", [1], "scheduler.params: must be an object"),
        ("scheduler.params.warmup_min_lr", "0", "scheduler.params.warmup_min_lr: '0' is a text, and must be a number"),
        (
            "scheduler.type",
            "ReduceLROnPlatau",
            "scheduler.type: 'ReduceLROnPlatau' is not supported; .*mean ReduceLROnPlateau",
        ),
        ("scheduler.type", "LRScheduler", "scheduler.type: 'LRScheduler' is not supported"),
        (
            "zero_optimization.offload_param",
            {"device": "nvme", "nvme_path": 3},
            "zero_optimization.offload_param.nvme_path: 3 is not a text",
        ),
        ("longshore.run", 3, "longshore.run: 3 is not a text"),
        ("longshore.drives", [3], "longshore.drives: .3. must be a text or a list of texts"),
        ("longshore.rank_timeout", "long", "longshore.rank_timeout: must be a number of at least 1, and is 'long'"),
        ("csv_monitor", {"enabled": True, "output_path": 3}, "csv_monitor.output_path: 3 is not a text"),
    ],
)
def test_values_that_are_none_are_named_and_leave_nothing(tmp_path, seed, path, value, said):
    config = {
        "zero_optimization": {"offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path / "nvme")}},
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2}},
    }
    put(config, path, value)
    with pytest.raises(deepspeed.ConfigError, match=said):
        deepspeed.initialize(model=gpt2(layers=1), config=config)
    assert not list(tmp_path.glob("nvme/*"))


def test_what_is_no_configuration_is_named(tmp_path, seed):
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe")
    (tmp_path / "comma.json").write_text('{"a": 1,}')
    for config, said in (
        (3, "must be a dict or the path of a JSON file, and not 3"),
        (tmp_path, "cannot be read as the configuration of DeepSpeed"),
        (tmp_path / "binary.json", "binary.json: cannot be read"),
        (tmp_path / "comma.json", "comma.json: is not JSON"),
        (
            {"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": str(tmp_path / "comma.json")}}},
            "nvme_path: .*comma.json: a directory",
        ),
    ):
        with pytest.raises(deepspeed.ConfigError, match=said):
            deepspeed.initialize(model=gpt2(layers=1), config=config)
    with pytest.raises(ValueError, match="lr_scheduler is a scheduler"):
        deepspeed.initialize(model=gpt2(layers=1), config={"longshore": {"run": str(tmp_path / "run")}}, lr_scheduler=3)
    assert not (tmp_path / "run").exists()


def test_keys_that_are_paths_and_a_second_model(tmp_path, seed):
    """As TRL has them for its reference model."""
    config = {
        "zero_optimization": {"stage": 3},
        "zero_optimization.reduce_bucket_size": 9,
        "zero_optimization.stage": 2,
    }
    config["longshore.run"] = str(tmp_path / "run")
    assert settings(config) == settings(
        {"zero_optimization": {"stage": 3}, "longshore": {"run": str(tmp_path / "run")}}
    )
    for wrong, said in (
        ({"zero_optimization.stag": 3}, "zero_optimization.stag: is not a key"),
        ({"bf16": 3, "bf16.enabled": True}, "bf16: must be an object"),
    ):
        with pytest.raises(deepspeed.ConfigError, match=said):
            settings({**config, **wrong})
    engine = deepspeed.initialize(model=gpt2(layers=1), config=config)[0]
    with pytest.raises(longshore.BusyError, match="longshore.run: .*nvme_path gives each a directory"):
        deepspeed.initialize(model=gpt2(layers=1), config=config)
    engine.destroy()


def test_what_the_scheduler_is_told(tmp_path, seed):
    config = {
        "longshore": {"run": str(tmp_path / "run")},
        "optimizer": {"type": "Adam", "params": {"lr": 1e-3}},
        "scheduler": {"type": "ReduceLROnPlateau", "params": {"patience": 0, "factor": 0.5}},
    }
    engine = deepspeed.initialize(model=gpt2(layers=1), config=config)[0]
    for metric in (1.0, 2.0):
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step(lr_kwargs={"metrics": metric})
    assert engine.get_lr() == [5e-4]
    with pytest.raises(AttributeError, match="neither the engine nor its model, a GPT2.*, has tput_timer"):
        engine.tput_timer
    engine.destroy()


def test_what_nobody_has_filled_in_is_said(tmp_path, seed, caplog):
    config = {
        "longshore": {"run": str(tmp_path / "run")},
        "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": "auto", "warmup_num_steps": 0}},
        "zero_optimization": {"reduce_bucket_size": "auto"},
    }
    engine = deepspeed.initialize(model=gpt2(layers=1), config=config)[0]
    assert engine.lr_scheduler.warmup_num_steps == 2
    engine.destroy()
    assert "defaults are used for optimizer.params.lr, scheduler.params.warmup_max_lr" in caplog.text
    assert "warmup_num_steps: 0 becomes 2 steps" in caplog.text


def test_several_ranks_make_one_directory(tmp_path, monkeypatch):
    made, makedirs = tmp_path / "ranks", os.makedirs

    def later(path):
        makedirs(path)  # by another rank
        makedirs(path)

    monkeypatch.setattr(os, "makedirs", later)
    nvme_paths.make(made)
    assert made.is_dir()
