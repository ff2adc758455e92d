"""Names of DeepSpeed: every one can be imported, and one that does nothing here says so where it is used."""

import argparse
import importlib
import os
import re
import subprocess
import sys
import typing

import pytest

import longshore
import longshore.deepspeed as deepspeed

NAMES = os.path.join(os.path.dirname(deepspeed.__file__), "..", "integrations", "deepspeed_names.txt")
USES = {  # what scripts do with a name: what the sentence says works instead
    ("moe.layer", "MoE", lambda kind: kind(hidden_size=8)): "experts of an ordinary nn.Module",
    ("moe.utils", "split_params_into_different_moe_groups_for_optimizer", lambda call: call([])): "experts of an "
    "ordinary nn.Module",
    ("pipe", "PipelineModule", lambda kind: kind(layers=[])): "engine.train_batch",
    ("runtime.pipe.topology", "ProcessTopology", lambda kind: kind([], [])): "engine.train_batch",
    ("", "PipelineModule", lambda kind: kind(layers=[])): "engine.train_batch",
    ("", "DeepSpeedConfig", lambda kind: kind({})): "deepspeed.initialize",
    ("runtime.zero.stage3", "DeepSpeedZeroOptimizer_Stage3", lambda kind: kind.step): "deepspeed.initialize",
    ("utils.groups", "_get_data_parallel_world_size", lambda call: call()): "get_world_size",
    ("utils.timer", "SynchronizedWallClockTimer", lambda kind: kind()): "wall_clock_breakdown",
    ("utils.timer", "FORWARD_GLOBAL_TIMER", lambda text: text + "x"): "wall_clock_breakdown",
    ("runtime.constants", "ROUTE_TRAIN", lambda text: text == "train"): "deepspeed.initialize",
    ("profiling.flops_profiler", "get_model_profile", lambda call: call(None)): "torch.profiler",
    ("monitor.monitor", "MonitorMaster", lambda kind: kind(None)): "csv_monitor",
    ("ops.lamb", "FusedLamb", lambda kind: kind([])): "AdamW",
    ("ops.lion", "DeepSpeedCPULion", lambda kind: kind([])): "AdamW",
    ("ops.op_builder", "AsyncIOBuilder", lambda kind: kind().load()): "no operator is compiled",
    ("ops.sparse_attention", "SparseSelfAttention", lambda kind: kind()): "scaled_dot_product_attention",
    ("inference.engine", "InferenceEngine", lambda kind: kind(None)): "generate",
    ("comm", "all_to_all_single", lambda call: call(None, None)): "torch.distributed has it",
    ("runtime.zero", "TiledLinear", lambda kind: kind(1, 1)): "deepspeed.initialize",
    ("elasticity", "compute_elastic_config", lambda call: call({}, "")): "sum_groups",
    ("git_version_info", "torch_info", lambda table: table["version"]): "docs/deepspeed.md",
}


@pytest.mark.parametrize("module, name, use", USES, ids=lambda part: part if isinstance(part, str) else None)
def test_a_name_says_so_where_it_is_used(module, name, use):
    found = getattr(importlib.import_module(f"longshore.deepspeed.{module}".rstrip(".")), name)
    full = ".".join(filter(None, ("deepspeed", module, name)))
    with pytest.raises(longshore.LongshoreError, match=f"^{full}.*: does nothing.*{USES[module, name, use]}"):
        use(found)


def test_classes_may_be_asked_for():
    from longshore.deepspeed.moe.layer import MoE

    assert deepspeed.moe.layer.MoE is MoE and not isinstance(3, MoE) and not issubclass(int, MoE) and MoE
    assert typing.Optional[MoE] and not hasattr(MoE, "something")
    own = type("Own", (MoE,), {"width": 3})
    assert own.width == 3
    with pytest.raises(longshore.LongshoreError, match="deepspeed.moe.layer.MoE"):
        own()


def test_what_is_there_is_the_same_under_each_name():
    assert deepspeed.runtime.engine.DeepSpeedEngine is deepspeed.DeepSpeedEngine
    adam = deepspeed.ops.adam
    assert adam.cpu_adam.DeepSpeedCPUAdam is adam.DeepSpeedCPUAdam is deepspeed.ops.DeepSpeedCPUAdam
    assert deepspeed.runtime.zero.partition_parameters.ZeroParamStatus is deepspeed.zero.ZeroParamStatus
    assert deepspeed.runtime.lr_schedules.WarmupLR is deepspeed.lr_schedules.WarmupLR
    assert deepspeed.runtime.zero.config.ZeroStageEnum.weights == 3
    assert deepspeed.runtime.zero.offload_config.OffloadDeviceEnum.nvme == "nvme"
    assert deepspeed.git_version_info.version == deepspeed.__version__


def test_what_is_misspelt_is_none():
    with pytest.raises(ModuleNotFoundError, match="deepspeed.mo: DeepSpeed .* did you mean deepspeed.moe"):
        importlib.import_module("longshore.deepspeed.mo.layer")
    with pytest.raises(ImportError, match="MoEE"):
        from longshore.deepspeed.moe.layer import MoEE  # noqa: F401
    with pytest.raises(AttributeError, match="has no attribute 'initialise'; did you mean initialize"):
        deepspeed.initialise
    assert not hasattr(deepspeed.zero, "GatherdParameters")


SCRIPT = """
import importlib, sys
import deepspeed, deepspeed.ops.adam, deepspeed.runtime.zero.stage_1_and_2 as stage
from deepspeed.utils import groups, logger
from deepspeed.runtime.utils import clip_grad_norm_, see_memory_usage
for line in open(sys.argv[1], encoding="utf-8"):
    module, *names = line.split()
    there = importlib.import_module("deepspeed" if module == "." else f"deepspeed.{module}")
    assert all(hasattr(there, name) for name in names if name != "*"), module
assert "deepspeed.runtime.zero.stage3" in sys.modules and groups is deepspeed.utils.groups
try:
    import deepspeed.pipeline
except ImportError as e:
    print(e)
deepspeed.moe.layer.MoE(8)
"""


def test_every_name_is_imported_under_the_launcher(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, "-m", "longshore.deepspeed", "train.py", NAMES], cwd=tmp_path, capture_output=True, text=True
    )
    assert "deepspeed.pipeline: DeepSpeed" in done.stdout and "did you mean deepspeed.pipe" in done.stdout, done.stderr
    assert done.returncode == 1 and "deepspeed.moe.layer.MoE: does nothing under Longshore" in done.stderr


@pytest.mark.parametrize(
    "arguments, why",
    [
        (["nothere.py"], "nothere.py: does not exist"),
        (["."], r"\.: is a directory without a __main__.py"),
        (
            ["--deepspeed", "ds.json", "train.py"],
            "--deepspeed: is not an option of this launcher; give the script's options after SCRIPT",
        ),
        (["--num_gpus", "2", "train.py"], "torchrun starts ranks"),
    ],
)
def test_what_cannot_be_run_is_said_in_a_sentence(tmp_path, monkeypatch, capsys, arguments, why):
    from longshore.deepspeed import __main__ as launcher

    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as end:
        launcher.main(arguments)
    assert end.value.code == 2 and re.search(why, capsys.readouterr().err)


def test_a_module_that_is_not_there_is_said(tmp_path, monkeypatch, capsys):
    from longshore.deepspeed import __main__ as launcher

    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "lacking_one.py").write_text("")
    (tmp_path / "lacks").mkdir()
    (tmp_path / "lacks" / "__init__.py").write_text("import lacking_two")
    for name in ("lacking_none", "lacking_one.part"):
        with pytest.raises(SystemExit):
            launcher._refuse_module(argparse.ArgumentParser(), name)
        assert f"-m {name}: there is no such module" in capsys.readouterr().err
    launcher._refuse_module(argparse.ArgumentParser(), "lacking_one")
    with pytest.raises(ModuleNotFoundError, match="lacking_two"):
        launcher._refuse_module(argparse.ArgumentParser(), "lacks.part")
