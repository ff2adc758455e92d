"""Scripts for DeepSpeed: the surface, its configurations, its schedules, its launcher."""

import argparse
import json
import math
import os
import subprocess
import sys

import pytest
import torch

import longshore
import longshore.deepspeed as deepspeed
from longshore.integrations import deepspeed_config as configuration
from longshore.run import checkpoint
from models import gpt2, tokens


def said(tmp_path, **more):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": 2,
        "gradient_clipping": 1.0,
        "steps_per_print": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3, "warmup_num_steps": 4}},
        "zero_optimization": {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path / "nvme")},
            "offload_param": {"device": "nvme", "nvme_path": str(tmp_path / "nvme")},
        },
        **more,
    }


def made(tmp_path, seed, dropout=0.1, **more):
    torch.manual_seed(seed)
    model = gpt2(dropout=dropout)
    return deepspeed.initialize(model=model, model_parameters=model.parameters(), config=said(tmp_path, **more))[
        0
    ].train()


def loop(engine, batches):
    losses = []
    for batch in batches:
        loss = engine(**batch).loss
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    return losses


def test_a_loop_is_that_of_the_engine(tmp_path, seed):
    engine = made(tmp_path, seed)
    losses = loop(engine, tokens(8))
    assert (
        engine.global_steps == engine.engine.step_number == 4
        and engine.micro_steps == 8
        and engine.global_samples == 16
    )
    torch.manual_seed(seed)
    (tmp_path / "drive").mkdir()
    with longshore.wrap(
        gpt2(dropout=0.1), run=tmp_path / "run", drives=[tmp_path / "drive"], lr=1e-3, weight_decay=0.1, clip=1.0
    ) as plain:
        plain.train()
        plain.accumulate = 2
        scheduler = deepspeed.lr_schedules.WarmupLR(plain.optimizer, warmup_max_lr=1e-3, warmup_num_steps=4)
        for i, batch in enumerate(tokens(8)):
            loss = plain(**batch).loss
            plain.backward(loss)
            assert loss.item() == losses[i]
            if i % 2:
                result = plain.step()
                scheduler.step()
        assert plain.digest() == engine.engine.digest()
    assert engine.get_global_grad_norm() == result.grad_norm
    engine.destroy()


def test_train_batch_and_a_loader(tmp_path, seed):
    digests = []
    for n in range(2):
        torch.manual_seed(seed)
        model = gpt2(dropout=0.1)
        data = [{k: v[0] for k, v in b.items()} for b in tokens(16, batch=1)]
        engine, _, loader, scheduler = deepspeed.initialize(
            model=model, training_data=data, config=said(tmp_path / str(n))
        )
        assert len(loader) == 8 and engine.lr_scheduler is scheduler
        engine.train()
        if n:
            batches = iter(loader)
            for _ in range(4):
                assert engine.train_batch(batches).item() > 0
        else:
            loop(engine, loader)
        assert scheduler.last_batch_iteration == 3
        digests.append(engine.engine.digest())
        engine.destroy()
    assert digests[0] == digests[1]


def test_checkpoints_go_on_with_the_same_bits(tmp_path, seed):
    batches = tokens(12)
    engine = made(tmp_path, seed)
    loop(engine, batches[:4])
    assert engine.save_checkpoint(tmp_path / "out", client_state={"epoch": 3, "best": torch.tensor(1.5)})
    assert (tmp_path / "out" / "latest").read_text() == "global_step2"
    later = loop(engine, batches[4:])
    digest = engine.engine.digest()
    path, client = engine.load_checkpoint(tmp_path / "out")  # in the same process, after later steps
    assert (
        path.endswith("global_step2") and client == {"epoch": 3, "best": torch.tensor(1.5)} and engine.global_steps == 2
    )
    assert loop(engine, batches[4:]) == later and engine.engine.digest() == digest
    engine.destroy()
    again = made(tmp_path, seed + 1)  # another job, whose own run is not needed then
    own = again.engine._core.state.path
    again.load_checkpoint(tmp_path / "out")
    assert again.engine._core.state.path != own and not os.path.exists(os.path.join(own, "run.json"))
    assert loop(again, batches[4:]) == later and again.engine.digest() == digest
    again.destroy()


def test_checkpoints_that_are_not_there(tmp_path, seed):
    engine = made(tmp_path, seed)
    assert engine.load_checkpoint(tmp_path / "none") == (None, None)
    assert engine.load_checkpoint(tmp_path, tag="global_step9") == (None, None)
    (tmp_path / "theirs").mkdir()
    with pytest.raises(longshore.MissingError, match="is not a checkpoint of Longshore"):
        engine.load_checkpoint(tmp_path, tag="theirs")
    loop(engine, tokens(2))
    engine.save_checkpoint(tmp_path / "out", tag="a")
    first = checkpoint.snapshots_of(tmp_path / "out" / "a")[0]
    engine.save_checkpoint(tmp_path / "out", tag="a")  # again: the first snapshot goes
    assert checkpoint.snapshots_of(tmp_path / "out" / "a")[0] != first
    import shutil

    run, name = checkpoint.snapshots_of(tmp_path / "out" / "a")[0]
    assert os.path.exists(os.path.join(run, "snapshots", name + ".json"))
    assert not os.path.exists(os.path.join(run, "snapshots", first[1] + ".json"))
    shutil.rmtree(tmp_path / "out" / "a")  # as trainers delete theirs
    assert not os.path.exists(os.path.join(run, "snapshots", name + ".json"))
    engine.destroy()


def test_a_run_by_name(tmp_path, seed):
    named = {"longshore": {"run": str(tmp_path / "run")}}
    engine = made(tmp_path, seed, **named)
    loop(engine, tokens(4))
    engine.save_checkpoint(tmp_path / "out")
    with pytest.raises(longshore.BusyError, match="works on"):  # a second engine on one run
        made(tmp_path, seed, **named)
    engine.destroy()
    engine = made(tmp_path, seed, **named)
    with pytest.raises(longshore.ExistsError, match="load_checkpoint.*resume.*overwrite"):
        engine(**tokens(1)[0])
    engine.load_checkpoint(tmp_path / "out")
    loop(engine, tokens(2))
    assert engine.global_steps == 3
    engine.destroy()
    engine = made(tmp_path, seed, longshore={"run": str(tmp_path / "run"), "resume": True})
    assert engine.global_steps == 3 and engine.lr_scheduler.last_batch_iteration == 2
    engine.destroy()
    engine = made(tmp_path, seed, longshore={"run": str(tmp_path / "run"), "overwrite": True})
    assert engine.global_steps == 0
    engine.destroy()


def test_two_jobs_share_no_directory(tmp_path, seed):
    one, other = made(tmp_path, seed), made(tmp_path, seed)
    assert one.engine._core.state.path != other.engine._core.state.path
    assert os.path.dirname(one.engine._core.state.path) == str(tmp_path / "nvme")
    one.destroy()
    other.destroy()


def test_weights_that_are_saved(tmp_path, seed):
    engine = made(tmp_path, seed)
    assert engine.save_16bit_model(tmp_path / "a") is False
    engine.destroy()
    config = said(tmp_path)
    config["zero_optimization"]["stage3_gather_16bit_weights_on_model_save"] = True
    torch.manual_seed(seed)
    model = gpt2()
    whole = {k: v.clone() for k, v in model.state_dict().items()}
    engine = deepspeed.initialize(model=model, config=config)[0]
    assert engine.save_16bit_model(tmp_path / "a") is True
    engine.save_16bit_model(tmp_path / "a", "model.safetensors")
    from safetensors.torch import load_file

    for values in (torch.load(tmp_path / "a" / "pytorch_model.bin"), engine._zero3_consolidated_16bit_state_dict()):
        assert set(values) == set(whole) and all(torch.equal(values[k], whole[k]) for k in whole)
    assert all(torch.equal(v, whole[k]) for k, v in load_file(tmp_path / "a" / "model.safetensors").items())
    engine.destroy()


def test_parameters_in_full(tmp_path, seed):
    with deepspeed.zero.Init(config_dict_or_path=said(tmp_path)):
        torch.manual_seed(seed)
        model = gpt2()
    torch.manual_seed(seed)
    plain = gpt2()
    engine = deepspeed.initialize(model=model, config=said(tmp_path))[0]
    p = model.transformer.h[0].mlp.c_fc.weight
    with deepspeed.zero.GatheredParameters([p, None]):
        assert torch.equal(p.detach(), plain.transformer.h[0].mlp.c_fc.weight)
    with deepspeed.zero.GatheredParameters(p, modifier_rank=0), torch.no_grad():
        p.fill_(0.5)
    assert torch.equal(deepspeed.utils.safe_get_full_fp32_param(p), torch.full(p.shape, 0.5))
    assert deepspeed.utils.safe_get_full_grad(p) is None
    engine.backward(engine(**tokens(1)[0]).loss)
    assert deepspeed.utils.safe_get_full_grad(p).abs().sum() > 0
    with deepspeed.zero.GatheredParameters(list(model.parameters())):
        assert sum(float(q.detach().sum()) for q in model.parameters()) != 0
    with pytest.raises(longshore.LongshoreError, match="bf16.enabled"):
        engine.half()
    assert engine.to("cpu") is engine
    engine.destroy()


@pytest.mark.parametrize("optimizer", ["AdamW", "Adam", "SGD", "cpu", "callable"])
def test_optimizers_that_are_given(tmp_path, seed, optimizer):
    torch.manual_seed(seed)
    model = gpt2()
    import copy

    plain = copy.deepcopy(model)
    classes = {"AdamW": torch.optim.AdamW, "Adam": torch.optim.Adam, "SGD": torch.optim.SGD}
    kind = classes.get(optimizer, torch.optim.AdamW)

    def groups(m):
        return [
            {"params": [p for p in m.parameters() if p.dim() > 1], "weight_decay": 0.1},
            {"params": [p for p in m.parameters() if p.dim() <= 1], "lr": 1e-2},
        ]

    given = (
        kind(groups(model), lr=1e-3)
        if optimizer in classes
        else deepspeed.ops.DeepSpeedCPUAdam(groups(model), lr=1e-3, weight_decay=1e-2)
        if optimizer == "cpu"
        else lambda ps: kind(groups(model), lr=1e-3)
    )
    reference = kind(groups(plain), lr=1e-3)
    config = said(tmp_path, gradient_accumulation_steps=1)
    del config["optimizer"], config["scheduler"]
    engine = deepspeed.initialize(model=model, optimizer=given, config=config)[0]
    for batch in tokens(3):
        loss, expected = engine(**batch).loss, plain(**batch).loss
        engine.backward(loss)
        engine.step()
        expected.backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        reference.step()
        reference.zero_grad()
        assert abs(loss.item() - expected.item()) <= 2e-6 * expected.item()
    engine.destroy()


@pytest.mark.parametrize("through", ["itself", "another of the same groups"])
def test_a_scheduler_that_only_the_optimizer_knows(tmp_path, seed, through):
    """As transformers and Accelerate have it, where the configuration names no scheduler: they step it, and look at
    both."""
    model = gpt2(layers=1)
    known = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(known, lambda step: step / 4)
    given = known if through == "itself" else deepspeed.ops.DeepSpeedCPUAdam(known.param_groups)
    config = said(tmp_path, gradient_accumulation_steps=1)
    del config["optimizer"], config["scheduler"]
    engine, optimizer, _, _ = deepspeed.initialize(model=model, optimizer=given, config=config)
    before = [p.detach().clone() for p in engine.module.parameters()]
    for step in range(4):
        assert (
            engine.get_lr() == [known.param_groups[0]["lr"]] == [optimizer.param_groups[0]["lr"]] == [1e-2 * step / 4]
        )
        engine.backward(engine(**tokens(1)[0]).loss)
        engine.step()
        scheduler.step()
        if step == 0:
            assert all(torch.equal(p, q) for p, q in zip(engine.module.parameters(), before))
            engine.save_checkpoint(tmp_path / "checkpoints")
    assert not any(torch.equal(p, q) for p, q in zip(engine.module.parameters(), before))
    engine.load_checkpoint(tmp_path / "checkpoints")
    assert engine.get_lr() == [known.param_groups[0]["lr"]] == [1e-2 / 4]
    engine.destroy()


class Lion(torch.optim.Optimizer):
    def __init__(self, params):
        super().__init__(params, {})


def test_what_is_refused_by_name(tmp_path, seed):
    def refused(match, change):
        config = json.loads(json.dumps(said(tmp_path)))
        change(config)
        with pytest.raises(deepspeed.ConfigError, match=match):
            configuration.hyper(configuration.settings(config).optimizer)

    refused("gradient_cliping.*did you mean gradient_clipping", lambda c: c.update(gradient_cliping=1))
    refused(r"zero_optimization\.stge.*did you mean stage", lambda c: c["zero_optimization"].update(stge=3))
    refused(
        r"offload_param\.nvme_pth.*did you mean nvme_path",
        lambda c: c["zero_optimization"]["offload_param"].update(nvme_pth="x"),
    )
    refused(
        r"device: 'nvm' is not one of none.*did you mean nvme",
        lambda c: c["zero_optimization"]["offload_param"].update(device="nvm"),
    )
    refused("optimizer.type: 'Lamb'", lambda c: c.update(optimizer={"type": "Lamb"}))
    refused("weight_decy.*did you mean weight_decay", lambda c: c["optimizer"]["params"].update(weight_decy=1))
    refused("tensor_parallel.*not supported", lambda c: c.update(tensor_parallel={"autotp_size": 2}))
    refused("zero_quantized_weights.*ZeRO", lambda c: c["zero_optimization"].update(zero_quantized_weights=True))
    refused("train_batch_size: 7 is not", lambda c: c.update(train_batch_size=7))
    refused("gradient_clipping: must be a number of at least 0, and is 'a'", lambda c: c.update(gradient_clipping="a"))
    refused("bf16.enabled: 1 must be true or false", lambda c: c.update(bf16={"enabled": 1}))
    refused("bf16: must be an object", lambda c: c.update(bf16=True))
    refused(r"aio\.blok_size.*did you mean block_size", lambda c: c.update(aio={"blok_size": 1}))
    refused("comet.*tensorboard", lambda c: c.update(comet={"enabled": True}))
    refused("zeropp_loco_param.*ZeRO", lambda c: c["zero_optimization"].update(zeropp_loco_param={"err_beta": 0.8}))
    refused("steps_per_print", lambda c: c.update(steps_per_print="often"))
    refused("where is the state to live", lambda c: c.update(zero_optimization={"stage": 3}))
    for harmless in (
        {"tensor_parallel": {"autotp_size": 1}},
        {"amp": {"enabled": False}},
        {"aio": {"thread_count": 4, "block_size": 1 << 20}},
        {"train_batch_size": 4},
        {"train_batch_size": "auto"},
        {"bf16": {"enabled": "auto"}},
        {"flops_profiler": {"enabled": True}},
        {"compile": {"deepcompile": False, "passes": []}},
        {"data_types": {"grad_accum_dtype": "fp32"}},
        {"checkpoint": {"tag_validation": "Warn", "parallel_write": {"pipeline_stage": False}}},
    ):
        assert configuration.settings(said(tmp_path, **harmless)).accumulate == 2
    inside = said(tmp_path)
    inside["zero_optimization"]["aio"] = {"thread_count": 4}
    assert configuration.settings(inside).stage == 3
    with pytest.raises(longshore.BudgetError, match="minimum"):
        deepspeed.initialize(model=gpt2(), config=said(tmp_path, longshore={"memory": "1KiB"}))
    assert not os.listdir(tmp_path / "nvme")
    with pytest.raises(longshore.LongshoreError, match="Lion.*AdamW, Adam, SGD"):
        model = gpt2()
        deepspeed.initialize(model=model, optimizer=Lion(model.parameters()), config=said(tmp_path))
    with pytest.raises(deepspeed.ConfigError, match="WarmupLr.*did you mean WarmupLR"):
        deepspeed.initialize(model=gpt2(), config=said(tmp_path, scheduler={"type": "WarmupLr"}))
    (tmp_path / "twice.json").write_text('{"bf16": {}, "bf16": {}}')
    with pytest.raises(deepspeed.ConfigError, match="bf16 is there twice"):
        deepspeed.initialize(model=gpt2(), config=str(tmp_path / "twice.json"))
    with pytest.raises(deepspeed.ConfigError, match="no file"):
        deepspeed.initialize(model=gpt2(), config=str(tmp_path / "none.json"))
    model = gpt2()
    first, *_ = deepspeed.initialize(model=model, config=said(tmp_path))
    with pytest.raises(longshore.LongshoreError, match=r"GPT2LMHeadModel has an engine already.*eval_on_start=True"):
        deepspeed.initialize(model=model, config=said(tmp_path))
    first.engine.close()


@pytest.mark.parametrize(
    "words, expected",
    [
        ("--deepspeed ds.json text", ("ds.json", "text")),
        ("--deepspeed text", (True, "text")),
        ("text --deepspeed", (True, "text")),
        ("--deepspeed --deepspeed_config ds.json text", (True, "text")),
        ("--deepspeed=ds.json text", ("ds.json", "text")),
        ("text", (False, "text")),
    ],
)
def test_what_follows_deepspeed_is_the_scripts(words, expected):
    parser = argparse.ArgumentParser()
    parser.add_argument("data")
    said = deepspeed.add_config_arguments(parser).parse_args(words.split())
    assert (said.deepspeed, said.data) == expected


def test_steps_when_they_are_called_for_and_half_precision(tmp_path, seed):
    torch.manual_seed(seed)
    model = torch.nn.Sequential(*[torch.nn.Linear(8, 8) for _ in range(2)])
    config = said(tmp_path, managed_gradient_accumulation=False, fp16={"enabled": True})
    engine = deepspeed.initialize(model=model, config=config)[0]
    for n in (1, 3):
        for _ in range(n):
            engine.backward(engine(torch.randn(2, 8).half()).float().square().mean())
        engine.step()
    assert engine.global_steps == 2 and engine.global_samples == 8
    engine.destroy()


@pytest.mark.parametrize(
    "batch, expected",
    [
        ((8, 2, None), (2, 4)),
        ((8, None, 4), (2, 4)),
        ((None, 2, 4), (2, 4)),
        ((8, None, None), (8, 1)),
        ((None, 2, None), (2, 1)),
        ((None, None, 4), (1, 4)),
    ],
)
def test_batch_sizes(tmp_path, batch, expected):
    config = said(tmp_path)
    names = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    for name, value in zip(names, batch):
        config.pop(name, None)
        if value is not None:
            config[name] = value
    settings = configuration.settings(config)
    assert (settings.micro_batch, settings.accumulate) == expected


def optimizer():
    return torch.optim.AdamW([torch.nn.Parameter(torch.zeros(1))], lr=0.5)


def rates(scheduler, n):
    out = []
    for _ in range(n):
        scheduler.step()
        out.append(scheduler.get_last_lr()[0])
    return out


def test_schedules():
    s = deepspeed.lr_schedules
    assert rates(s.WarmupLR(optimizer(), 0.0, 1.0, 4, "linear"), 6) == [0.0, 0.25, 0.5, 0.75, 1.0, 1.0]
    logarithmic = rates(s.WarmupLR(optimizer(), 0.1, 1.0, 10), 12)
    assert (
        logarithmic[0] == 0.1
        and math.isclose(logarithmic[4], 0.1 + 0.9 * math.log(5) / math.log(10))
        and logarithmic[11] == 1.0
    )
    decays = rates(s.WarmupDecayLR(optimizer(), 8, 0.0, 1.0, 4, "linear"), 9)
    assert decays == [0.0, 0.25, 0.5, 0.75, 1.0, 0.75, 0.5, 0.25, 0.0]
    cosine = rates(s.WarmupCosineLR(optimizer(), 8, 0.0, 4, 0.1, "linear"), 9)
    assert (
        cosine[:4] == [0.0, 0.125, 0.25, 0.375]
        and math.isclose(cosine[5], 0.5 * (0.1 + 0.9 * 0.5))
        and math.isclose(cosine[8], 0.05)
    )
    assert rates(s.LRRangeTest(optimizer(), 0.1, 2, 1.0, True), 5) == [
        0.1,
        0.2,
        0.2,
        0.30000000000000004,
        0.30000000000000004,
    ]
    cycle = s.OneCycle(optimizer(), 0.0, 1.0, decay_lr_rate=1.0, cycle_first_step_size=2, decay_step_size=1)
    went = rates(cycle, 7)
    assert went[:4] == [0.5, 1.0, 0.5, 0.0] or went[:3] == [0.5, 1.0, 0.5]
    assert cycle.optimizer.param_groups[0]["betas"][1] == 0.99
    with pytest.raises(ValueError, match="warmup_num_steps=0"):
        s.WarmupLR(optimizer(), warmup_num_steps=0)
    again = s.WarmupDecayLR(optimizer(), 8, 0.0, 1.0, 4, "linear")
    again.load_state_dict({"last_batch_iteration": 5})
    assert again.optimizer.param_groups[0]["lr"] == 0.75 and again.get_last_lr() == [0.75]


SCRIPT = """
import argparse, sys, torch, importlib.metadata
sys.path.insert(0, {tests!r})
import deepspeed
from deepspeed.runtime.lr_schedules import WarmupLR
from deepspeed.ops.adam import DeepSpeedCPUAdam
from deepspeed.accelerator import get_accelerator
from models import gpt2, tokens
assert importlib.metadata.version("deepspeed") >= "0.18.2"
parser = deepspeed.add_config_arguments(argparse.ArgumentParser())
args = parser.parse_args()
deepspeed.init_distributed()
assert torch.distributed.get_rank() == 0 and deepspeed.comm.get_world_size() == 1
torch.manual_seed(5)
with deepspeed.zero.Init(config_dict_or_path=args.deepspeed_config or args.deepspeed):
    model = gpt2()
engine, optimizer, _, scheduler = deepspeed.initialize(args, model=model, model_parameters=model.parameters())
for batch in tokens(4):
    engine.backward(engine(**batch).loss)
    engine.step()
print("DIGEST", engine.engine.digest(), engine.global_steps)
try:
    import deepspeed.mo.layer
except ModuleNotFoundError as e:
    print(e)
"""


def test_the_launcher(tmp_path, seed):
    (tmp_path / "ds.json").write_text(json.dumps(said(tmp_path)))
    (tmp_path / "train.py").write_text(SCRIPT.format(tests=os.path.dirname(__file__)))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    digests = set()
    for option in ("--deepspeed", "--deepspeed_config"):
        launchers = ["--num_accelerators=1", "-H", "hosts", "--no_local_rank", "-q", "--bind_core_list", "0"]
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "longshore.deepspeed",
                *launchers,
                str(tmp_path / "train.py"),
                option,
                str(tmp_path / "ds.json"),
            ],
            capture_output=True,
            text=True,
            env=env,
        )
        assert done.returncode == 0, done.stderr
        assert "deepspeed.mo: DeepSpeed" in done.stdout
        assert "step=2, skipped=0" in done.stderr
        digests.add(done.stdout.split("DIGEST ")[1].split()[0])
    assert len(digests) == 1
    for options, why in (
        (["--num_gpus", "2"], "torchrun starts ranks"),
        (["--autotuning", "run"], "memory is planned"),
        (["--no_python"], "by itself"),
    ):
        command = [sys.executable, "-m", "longshore.deepspeed", *options, str(tmp_path / "train.py")]
        refused = subprocess.run(command, capture_output=True, text=True, env=env)
        assert refused.returncode == 2 and why in refused.stderr
