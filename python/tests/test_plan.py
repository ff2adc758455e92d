"""longshore.plan(): what a run will take, before it begins."""

import json
import re
import subprocess
import sys

import pytest
import torch
from torch import nn
from transformers import GPT2Config, GPT2LMHeadModel

import longshore
import models
from longshore import native
from longshore.run import machine as machines, planning
from test_trace import ConvNet

MIB = 1 << 20
MACHINE = {
    "name": "rack",
    "host": {"memory": 64 << 30},
    "drives": [{"read": 2e9, "write": 1e9}] * 2,
    "compute": {"products": {"fp32": 1e12, "rows": {"fp32": 5e10}}},
}
WITH_GPU = {**MACHINE, "gpu": {"memory": 8 << 30, "pinned": 4 << 30}, "bus": {"in": 1e10, "out": 1e10}}
CHANGES = 7


@pytest.fixture(autouse=True)
def assumed(monkeypatch):
    monkeypatch.setenv("LONGSHORE_MACHINE", "none")


def tokens():
    return models.tokens(1)[0]


def config_of(directory):
    models.llama().config.save_pretrained(directory)
    return directory


def unwrapped(found):
    """The table's words."""
    return " ".join(str(found).split())


def test_a_plan_has_the_keys_of_the_programs_and_adds_up():
    found = longshore.plan(models.gpt2(), tokens(), memory="64MiB")
    sums = ("step_seconds", "tokens_per_second", "minimum_bytes", "useful_bytes", "peak_bytes", "disk_bytes")
    moved = ("link_bytes", "drive_read_bytes", "drive_write_bytes", "written_bytes_per_day", "plan_seconds")
    for key in (*sums, *moved):
        assert found[key] >= 0, key
    assert found["budget_bytes"] == 64 * MIB and found["tokens"] == 24
    assert sum(found["memory"].values()) == found["peak_bytes"] and found["memory"]["process"] > 0
    assert set(found["activations"]) == {"kept", "recomputed", "offloaded"}
    assert found["bound"] in found["lanes"] and max(found["lanes"].values()) <= found["step_seconds"] * (1 + 1e-9)
    assert len(found["what_if"]) == len({change["change"] for change in found["what_if"]}) == CHANGES
    assert all(change["step_seconds"] > 0 for change in found["what_if"])
    assert found["minimum_bytes"] <= found["useful_bytes"]
    assert "assumed" in found["rates"] and found["rates"] in unwrapped(found)
    assert json.loads(json.dumps(found)) == found
    assert "e+0" not in str(found)
    assert max(map(len, str(found).splitlines())) <= 80


def test_the_table_reads_as_the_programs():
    found = longshore.plan(models.gpt2(), tokens(), machine=MACHINE, memory="64MiB", tbw="1GB")
    slow = type(found)({**found, "step_seconds": 3661.0, "bound": "drive_mixed", "tokens_per_second": 1e-5})
    text = str(slow)
    assert "a step      1 h 1 min, bound by the drives\n" in text and "  activations " in text
    assert "less than 0.001 a second" in text and "lasts less than 0.001 days" in text
    assert "gpu" not in text and "drive_" not in text
    assert all(line.endswith("x") for line in text.split("a second:\n")[1].splitlines())


def test_every_lane_has_words():
    assert len(native.LANES) == native.lib.SHORE_LANES
    for words in zip(*native.LANES):
        assert all(words) and "_" not in "".join(words[1:]) or words[0] == "gpu"
    told = {0.0004: "0 ms", 0.3: "300 ms", 1.25: "1.2 s", 70.0: "1 min 10 s", 7260.0: "2 h 1 min", 90000.0: "1 d 1 h"}
    assert {value: native.seconds(value) for value in told} == told


def test_wrap_takes_the_minimum_and_refuses_a_mebibyte_less(tmp_path):
    model = models.gpt2()
    least = longshore.plan(model, tokens())["minimum_bytes"]
    with pytest.raises(longshore.BudgetError):
        longshore.plan(model, tokens(), memory=least - MIB)
    with pytest.raises(longshore.BudgetError):
        longshore.wrap(model, run=tmp_path / "a", memory=least - MIB)
    longshore.plan(model, tokens(), memory=least)
    longshore.wrap(model, run=tmp_path / "a", memory=least).close()


def test_what_a_step_moves_is_what_metrics_count(tmp_path):
    """At the least memory, which can be divided in one way only. With more, the measured second step may divide it
    otherwise than the plan did, as fast as the machine computes just then."""

    def make():
        return nn.Sequential(*(nn.Linear(512, 512, bias=False) for _ in range(8)))

    memory = longshore.plan(make(), (torch.randn(4, 512),))["minimum_bytes"]
    found = longshore.plan(make(), (torch.randn(4, 512),), memory=memory)
    engine = longshore.wrap(make(), run=tmp_path / "run", memory=memory, lr=1e-4)
    for _ in range(4):
        engine.backward(engine(torch.randn(4, 512)).sum())
        engine.step()
    engine.close()
    told = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    for key in ("drive_read_bytes", "drive_write_bytes", "link_bytes"):
        assert found[key] == pytest.approx(told[key], rel=0.01), key


def test_the_model_lies_on_the_meta_device_or_has_values_or_is_a_configuration(tmp_path):
    def figures(found):
        return {k: v for k, v in found.items() if k not in ("plan_seconds", "model")}

    model, batch = models.llama(), (2, 12)
    with torch.device("meta"):
        there = models.llama()
    expected = figures(longshore.plan(model, batch))
    for other in (there, model.config, config_of(tmp_path), str(tmp_path)):
        assert figures(longshore.plan(other, batch)) == expected
    assert not model.config.tie_word_embeddings and expected["parameters"] == sum(p.numel() for p in model.parameters())


def test_what_is_stored_as_bf16_is_fetched_as_bf16():
    how = {"machine": MACHINE, "memory": "10MiB"}
    whole, half = (longshore.plan(models.llama(), (2, 12), storage=dtype, **how) for dtype in ("fp32", "bf16"))
    for key in ("drive_read_bytes", "link_bytes"):
        assert half[key] < whole[key], key


def test_activations_on_drives_are_written_and_read():
    how = {"machine": MACHINE, "memory": "256MiB"}
    kept = longshore.plan(models.llama(), (8, 12), **how)
    away = longshore.plan(models.llama(), (8, 12), activations="drives", **how)
    saved = kept["activations"]["kept"]
    assert (away["activations"]["kept"], away["activations"]["offloaded"]) == (0, saved) and saved > 0
    assert away["drive_write_bytes"] - kept["drive_write_bytes"] == pytest.approx(saved, rel=0.05)
    assert away["drive_read_bytes"] - kept["drive_read_bytes"] == pytest.approx(saved, rel=0.05)
    assert away["memory"]["workspace"] + away["memory"]["logits"] > 0
    assert away["memory"]["activations"] - native.size("32MiB") < kept["memory"]["activations"]


def test_a_loss_in_slices_has_no_whole_logits():
    plain, sliced = (longshore.plan(models.llama(), (8, 64), fused_loss=fused) for fused in (False, True))
    assert plain["memory"]["logits"] > 0 and sliced["memory"]["logits"] == 0
    assert sliced["process_minimum_bytes"] <= plain["process_minimum_bytes"]


def test_any_module_with_an_example_batch():
    for batch in ((torch.randn(4, 3, 16, 16),), torch.randn(4, 3, 16, 16), {"x": torch.randn(4, 3, 16, 16)}):
        found = longshore.plan(ConvNet(), batch, loss_fn=lambda output: output.square().mean())
        assert found["tokens"] == 4 and found["memory"]["logits"] == 0


def test_a_machines_memory_and_drives_count(tmp_path):
    path = tmp_path / "rack.json"
    path.write_text(json.dumps(MACHINE))
    found = longshore.plan(models.gpt2(), tokens(), machine=path)
    assert found["budget_bytes"] == 32 << 30 and str(path) in found["rates"]
    assert "one more drive, 3" in [change["change"] for change in found["what_if"]]
    assert longshore.plan(models.gpt2(), tokens(), machine=MACHINE, memory="2TiB")["budget_bytes"] == 2 << 40
    slow = {**MACHINE, "compute": {"products": {"fp32": 1e7}}}
    assert longshore.plan(models.gpt2(), tokens(), machine=slow)["step_seconds"] > 4 * found["step_seconds"]


def test_an_accelerator_of_a_machine_has_a_budget_of_its_own():
    found = longshore.plan(models.llama(), tokens(), machine=WITH_GPU)
    assert found["lanes"]["bus_in"] + found["lanes"]["bus_out"] > 0
    with pytest.raises(longshore.BudgetError, match="gpu_memory=.*minimum"):
        longshore.plan(models.llama(), tokens(), machine=WITH_GPU, gpu_memory="100KiB")
    on_cpu = longshore.plan(models.llama(), tokens(), machine=WITH_GPU, device="cpu")
    assert on_cpu["lanes"]["bus_in"] == 0


def test_what_changes_buy():
    slow = {**MACHINE, "compute": {"products": {"fp32": 1e9}}}
    batch, how = (8, 12), {"machine": slow, "memory": "64MiB"}
    found = longshore.plan(models.llama(), batch, **how)
    buys = {change["change"].split(",")[0]: change for change in found["what_if"]}
    assert buys["twice the memory"]["budget_bytes"] == 128 * MIB
    assert buys["a batch twice as large"]["step_seconds"] > found["step_seconds"]
    assert buys["LoRA of rank 16"]["step_seconds"] < found["step_seconds"]
    small = longshore.plan(models.llama(), batch, moments="8bit", compress=0.01, **how)
    assert len(small["what_if"]) == CHANGES - 2
    assert small["disk_bytes"] < found["disk_bytes"]


def test_several_models_share_a_budget():
    policy, reference = models.llama(), models.llama().requires_grad_(False)
    found = longshore.plan([policy, reference], (2, 12), memory="64MiB")
    alone = longshore.plan(policy, (2, 12), memory="32MiB")
    assert found["budget_bytes"] <= 64 * MIB and len(found["models"]) == 2
    assert alone["step_seconds"] < found["step_seconds"] < 1.8 * alone["step_seconds"]  # which computes forward alone
    assert found["minimum_bytes"] == sum(part["minimum_bytes"] for part in found["models"])
    assert len(found["what_if"]) >= 5
    assert sum(found["memory"].values()) == found["peak_bytes"]
    assert found["memory"]["process"] == alone["memory"]["process"]  # which they share
    twice = longshore.plan([policy, policy], (2, 12), machine=MACHINE, memory="64MiB", max_writes_per_day="2TB")
    assert twice["bound"] == "max_writes_per_day"
    assert twice["written_bytes_per_day"] == pytest.approx(2e12, rel=1e-3)
    with pytest.raises(longshore.BudgetError, match="LlamaForCausalLM and LlamaForCausalLM together: minimum"):
        longshore.plan([policy, reference], (2, 12), memory=found["minimum_bytes"] - 1)


def test_what_cannot_be_traced_is_planned_from_its_blocks_and_said():
    found = longshore.plan(models.Reads(), torch.randn(4, 8))
    assert len(found["notes"]) == 1 and "planned from its blocks" in found["notes"][0]
    assert found["notes"][0] in unwrapped(found) and found["step_seconds"] > 0


BEYOND = r"^with PyTorch's part a step needs \S+ GiB, and the machine has 1\.00 GiB: "


def test_a_step_that_needs_more_than_the_machines_memory_is_said(tmp_path, capsys):
    """With what helps, which it does."""
    machine, batch = {**MACHINE, "host": {"memory": 1 << 30}}, (16, 512)
    model = models.llama(hidden_size=256, intermediate_size=688, num_hidden_layers=6, max_position_embeddings=512)

    def planned(batch=batch, machine=machine, **how):
        return longshore.plan(model, batch, machine=machine, **{"memory": "512MiB", **how})

    (note,) = (found := planned())["notes"]
    assert re.search(BEYOND + 'memory_of="process", gradient checkpointing or a smaller batch helps$', note)
    assert found["peak_bytes"] > 1 << 30 and note in unwrapped(found)
    assert not (helped := planned(memory_of="process"))["notes"] and helped["peak_bytes"] <= 1 << 30
    (note,) = planned((14, 512), memory="1GiB")["notes"]
    less = re.search(BEYOND + "memory=([^,]+), memory_of=", note)[1]
    assert not planned((14, 512), memory=less)["notes"]
    assert not planned(machine={**WITH_GPU, **machine})["notes"]  # there it is a device's memory
    model.config.save_pretrained(tmp_path)
    (tmp_path / "rack.json").write_text(json.dumps(machine))
    flags = ["--batch", "16", "--seq-len", "512", "--memory", "512MiB", "--machine", str(tmp_path / "rack.json")]
    assert planning.main([str(tmp_path), *flags]) == 0
    assert '--memory-of "process"' in " ".join(capsys.readouterr().out.split())


REFUSED = {
    "an operation": (lambda: nn.Sequential(nn.Linear(8, 8)), lambda: torch.randn(4, 5), "reduction dim|cannot be mult"),
    "a module": (
        models.gpt2,
        lambda: {name: torch.zeros(2, n, dtype=torch.long) for name, n in (("input_ids", 4), ("labels", 7))},
        r"batch_size \(8\)",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_a_batch_that_the_model_refuses_is_one_sentence(what, caplog, capfd):
    make, batch, why = REFUSED[what]
    with pytest.raises(ValueError, match=rf"^longshore\.plan: \w+ refuses this batch: [^\n]*({why})[^\n]*$"):
        longshore.plan(make(), batch())
    assert "Traceback" not in caplog.text + "".join(capfd.readouterr())


@pytest.mark.parametrize("storage", ["fp32", "bf16"])
def test_the_bytes_on_the_link_are_those_of_metrics(storage, tmp_path):
    for make, n in ((models.gpt2, 0), (lambda: models.llama(hidden_size=128, intermediate_size=344), 1)):
        least = longshore.plan(make(), tokens(), storage=storage)["minimum_bytes"]
        found = longshore.plan(make(), tokens(), storage=storage, memory=least, drives=1)
        how = {"memory": least, "storage": storage, "clip": 0, "fused_loss": None}
        with longshore.wrap(make(), run=tmp_path / f"run{n}", **how) as engine:
            for _ in range(3):
                engine.backward(engine(**tokens()).loss)
                engine.step()
        step = json.loads((tmp_path / f"run{n}" / "metrics.jsonl").read_text().splitlines()[-1])
        assert found["link_bytes"] == pytest.approx(step["link_bytes"] - step["link_control"], rel=0.02)
        assert found["drive_write_bytes"] == pytest.approx(step["drive_write_bytes"], rel=0.01)


def test_what_values_decide_is_said():
    model = models.deepseek()
    found = longshore.plan(model, (2, 12))
    assert all("the plan is for one case of" in note for note in found["notes"])


BAD = {
    "no directory with a config.json": lambda: longshore.plan("nowhere"),
    "int is no nn.Module": lambda: longshore.plan(5),
    "needs an example batch": lambda: longshore.plan(nn.Linear(4, 4)),
    "both numbers are whole, and 1 or more": lambda: longshore.plan(models.gpt2(), (0, 4)),
    "loss_fn=3; it is a function": lambda: longshore.plan(models.gpt2(), loss_fn=3),
    "batch=(2.5, 4)": lambda: longshore.plan(models.gpt2(), (2.5, 4)),
    "positions": lambda: longshore.plan(models.gpt2(), (1, 1 << 30)),
    "batch='x'; it is an example batch": lambda: longshore.plan(models.gpt2(), "x"),
    "takes no colour=": lambda: longshore.plan(models.gpt2(), colour="red"),
    "fused_loss=True is for a model of transformers": lambda: longshore.plan(
        nn.Linear(4, 4), torch.randn(2, 4), fused_loss=True
    ),
    "drives=0": lambda: longshore.plan(models.gpt2(), drives=0),
    'moments must be "fp32" or "8bit"': lambda: longshore.plan(models.gpt2(), moments="7bit"),
    "is not a size": lambda: longshore.plan(models.gpt2(), memory="much"),
    "gpu_memory= is for a model that computes on an accelerator": lambda: longshore.plan(
        models.gpt2(), device="cpu", gpu_memory="1GiB"
    ),
    'did you mean "drives"': lambda: longshore.plan(models.gpt2(), machine={"drivs": []}),
    "an empty list": lambda: longshore.plan([]),
    "tbw='600'; give what a drive is rated to write": lambda: longshore.plan(models.gpt2(), tbw="600"),
    "is more than": lambda: longshore.plan(models.gpt2(), memory="900TiB"),
}


@pytest.mark.parametrize("said", BAD)
def test_bad_input_is_one_clear_sentence(said):
    with pytest.raises((ValueError, TypeError, longshore.LongshoreError)) as failure:
        BAD[said]()
    assert said in str(failure.value) and "\n" not in str(failure.value)


def test_the_command_prints_what_the_function_returns(tmp_path, capsys):
    config_of(tmp_path)
    given = [str(tmp_path / "config.json"), "--batch", "2", "--seq-len", "12", "--memory", "64MiB", "--tbw", "1TB"]
    assert planning.main([*given, "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    expected = longshore.plan(tmp_path, (2, 12), memory="64MiB", tbw="1TB")
    assert {k: v for k, v in told.items() if k != "plan_seconds"} == {
        k: v for k, v in expected.items() if k != "plan_seconds"
    }
    assert planning.main(given) == 0
    assert "What a change would buy" in capsys.readouterr().out
    assert planning.main([*given[:-4], "--memory", "1MiB"]) == 2
    assert "minimum" in capsys.readouterr().err
    assert planning.main([str(tmp_path / "nowhere")]) == 2
    assert capsys.readouterr().err.count("plan:") == 1


def test_the_command_has_flags_for_what_a_script_does_to_its_model(tmp_path, capsys):
    config_of(tmp_path)
    given = [str(tmp_path), "--batch", "4", "--seq-len", "32", "--json"]

    def told(*flags):
        assert planning.main([*given, *flags]) == 0
        return json.loads(capsys.readouterr().out)

    plain, again = told(), told("--gradient-checkpointing")
    assert again["memory"]["activations"] < plain["memory"]["activations"]
    adapters = told("--lora", "4")
    assert adapters["drive_write_bytes"] < plain["drive_write_bytes"]
    assert adapters["parameters"] > plain["parameters"]
    assert told("--memory-of", "process", "--memory", "1GiB")["engine_minimum_bytes"] == plain["minimum_bytes"]
    refused = {
        "--lora 0": "--lora 0; it is the rank of adapters, 1 or more",
        "--lora 9999": "--lora 9999; a rank is at most the width of the layers' matrices",
        "--memory much": "--memory 'much' is not a size",
        "--memory-of x": '--memory-of must be "engine" or "process"',
        "--device cpu --gpu-memory 1GB": "plan: --gpu-memory is for a model that computes on an accelerator",
    }
    for flags, said in refused.items():
        assert planning.main([*given, *flags.split()]) == 2
        assert said in capsys.readouterr().err


def test_a_model_that_cannot_be_made_on_the_meta_device_is_one_sentence(monkeypatch):
    def make(self, config):
        raise RuntimeError("reads its weights\nand more")

    model = models.llama()
    monkeypatch.setattr(type(model), "__init__", make)
    with pytest.raises(ValueError, match=r"cannot be made on the meta device \(reads its weights\): make it yourself"):
        longshore.plan(model.config)


def test_python_m_longshore_plan(tmp_path):
    config_of(tmp_path)
    command = [sys.executable, "-m", "longshore", "plan", str(tmp_path), "--seq-len", "8", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=models.HANGS_SECONDS, check=True)
    assert json.loads(done.stdout)["tokens"] == 8


def test_a_large_model_is_planned_on_the_meta_device():
    from transformers import LlamaConfig

    shape = {"hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64}
    config = LlamaConfig(**shape, num_key_value_heads=8, vocab_size=128256, max_position_embeddings=8192)
    found = longshore.plan(config, (16, 2048), machine=MACHINE)
    assert found["parameters"] > 70e9 and found["minimum_bytes"] < found["budget_bytes"]
    assert found["disk_bytes"] > 12 * found["parameters"]
    assert native.readable(found["disk_bytes"]) in str(found)


def test_what_backward_frees_stays_beside_the_gradients_of_a_large_embedding():
    config = GPT2Config(vocab_size=32768, n_positions=512, n_embd=256, n_layer=8, n_head=4)
    with torch.device("meta"):
        model = GPT2LMHeadModel(config)
    case = planning._case(model, (1, 64), machines.of(MACHINE), None, None, {"fused_loss": False})
    layers = sum(unit.saved_bytes for unit in case.trace.units if unit.layer)
    gradients = 2 * 4 * 32768 * 256  # of the head and of the lookups, which are the same tensor's
    assert layers > 16 * MIB and sum(case.beside().values()) >= layers + gradients
