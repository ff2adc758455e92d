"""Each option of wrap() has its place in TrainingArguments and in DeepSpeed's configuration, or is said to have
none."""

import dataclasses
import inspect
import logging

import pytest

import longshore
import longshore.deepspeed as deepspeed
from longshore.integrations.deepspeed_config import SUPPORTED
from longshore.run.options import ARGUMENTS, SECTION
from models import gpt2, tokens

PLACED = {
    "storage": "bf16",
    "activations": "drives",
    "activation_room": "16MiB",
    "compress": "top50%",
    "compress_after": 1,
}
# Options that are not Longshore's own: (what says it in TrainingArguments, what says it in a configuration of
# DeepSpeed). None: nothing,
# wrap()'s default counts.
OTHERS = {
    "lr": ("learning_rate", "optimizer.params.lr"),
    "betas": ("adam_beta1 adam_beta2", "optimizer.params.betas"),
    "eps": ("adam_epsilon", "optimizer.params.eps"),
    "weight_decay": ("weight_decay", "optimizer.params.weight_decay"),
    "momentum": ("optim_args", "optimizer.params.momentum"),
    "clip": ("max_grad_norm", "gradient_clipping"),
    "optimizer": ("optim", "optimizer.type"),
    "groups": (None, None),  # create_optimizer() and initialize(model_parameters=) say it
    "on_nonfinite": (None, None),  # as in DeepSpeed, a step whose gradients are not finite is left out
    "layers": (None, None),
    "compile": ("torch_compile", None),  # the compile() of its engine does it
    "device": ("use_cpu", None),  # DS_ACCELERATOR says it, as in DeepSpeed
    "device_timeout": (None, None),
    "trains": (None, None),  # what they make trains
}


def test_every_option_is_in_the_list():
    assert sorted([*OTHERS, *SECTION]) == sorted(inspect.signature(longshore.wrap).parameters.keys() - {"model"})
    for option, said in [
        *((option, said) for option, (_, said) in OTHERS.items()),
        *((option, f"longshore.{option}") for option in SECTION),
    ]:
        where, _, key = (said or "").rpartition(".")
        assert said is None or where == "optimizer.params" or key in SUPPORTED[where], option


@pytest.mark.parametrize(
    "call, said",
    [
        (lambda: longshore.wrap(None, learning_rate=1e-3), "wrap: there is no argument learning_rate: here it is lr$"),
        (lambda: longshore.wrap(None, max_grad_norm=1.0), "max_grad_norm: here it is clip"),
        (lambda: longshore.wrap(None, adam_beta1=0.8), r"adam_beta1: here it is betas=\(BETA1, BETA2\)"),
        (lambda: longshore.wrap(None, gradient_accumulation_steps=4), "set engine.accumulate = N afterwards"),
        (lambda: longshore.wrap(None, wieght_decay=4), "wieght_decay: did you mean weight_decay[?]"),
        (lambda: longshore.wrap(None, quux=4), r"quux: help\(longshore.wrap\) has all"),
        (lambda: longshore.init("a", nvme_path="b"), "init: there is no argument nvme_path: here it is drives"),
        (
            lambda: longshore.resume("a", max_memory="8GiB"),
            "resume: there is no argument max_memory: here it is memory",
        ),
    ],
)
def test_names_of_other_libraries_are_answered(call, said):
    with pytest.raises(TypeError, match=said):
        call()


@pytest.mark.parametrize(
    "name, said",
    [
        ("adamw8bit", 'write optimizer="adamw", moments="8bit"'),
        ("paged_adamw_8bit", 'moments="8bit"'),
        ("adamw_torch", 'write optimizer="adamw"'),
        ("AdamW", "did you mean adamw[?]"),
        ("adagard", "did you mean adagrad[?]"),
        ("unheardof", "it is one of adamw, adam, sgd, adagrad"),
    ],
)
def test_optimizers_of_other_libraries_are_answered(name, said, tmp_path):
    with pytest.raises(ValueError, match=f"wrap: optimizer='{name}' is not supported: .*{said}"):
        longshore.wrap(gpt2(layers=1), run=tmp_path / "run", optimizer=name)


def saved(tmp_path):
    """A directory with moments of two steps."""
    with longshore.wrap(gpt2(layers=2), run=tmp_path / "before", lr=1e-3, weight_decay=0.0) as engine:
        for batch in tokens(2):
            engine.backward(engine(**batch).loss)
            engine.step()
        engine.save_pretrained(tmp_path / "saved", moments=True)
    return str(tmp_path / "saved")


def took_all(engine):
    how = engine._core.how
    assert (how["storage"], how["activations"], how["compress"], how["compress_after"]) == ("bf16", "drives", 0.5, 1)
    assert engine._core.state.scratch_bytes == 16 << 20
    counts = {
        n
        for block, had in zip(engine._core.layout.blocks, engine._core.cycle.counts)
        for t, n in zip(block.tensors, had)
        if t.trains
    }
    assert counts == {2 + engine.step_number}


def test_deepspeed_takes_them(tmp_path, seed, caplog):
    config = {
        "optimizer": {"type": "AdamW"},
        "longshore": {"run": str(tmp_path / "run"), "moments_from": saved(tmp_path), **PLACED},
    }
    engine = deepspeed.initialize(model=gpt2(layers=2), config=config)[0]
    took_all(engine.engine)
    for batch in tokens(2):
        engine.backward(engine(**batch).loss)
        engine.step()
    took_all(engine.engine)
    engine.destroy()
    config["longshore"].update(resume=True, compress="top10%", activations="memory")
    with caplog.at_level(logging.WARNING, "longshore"):
        engine = deepspeed.initialize(model=gpt2(layers=2), config=config)[0]
    took_all(engine.engine)
    engine.destroy()
    said = [r.getMessage() for r in caplog.records if "continues as it was made" in r.getMessage()]
    assert (
        said
        and "activations drives, and not memory; compress 0.5, and not top10%" in said[0]
        and "storage" not in said[0]
    )


def test_a_trainer_takes_them(tmp_path, seed, caplog):
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    from longshore.transformers import Trainer, TrainingArguments
    from test_trainer import Sentences, arguments

    fields = {f.name for f in dataclasses.fields(TrainingArguments)}
    assert {name for said, _ in OTHERS.values() if said for name in said.split()} | {"optim", "overwrite_run"} <= fields
    assert set(ARGUMENTS) <= fields - {f.name for f in dataclasses.fields(transformers.TrainingArguments)}

    def trainer(model=None, out="out", steps=2, **more):
        args = arguments(
            TrainingArguments,
            tmp_path,
            run=str(tmp_path / f"{out}-run"),
            moments_from=str(tmp_path / "saved"),
            **{**PLACED, **more},
        )
        args.max_steps, args.save_strategy, args.save_steps, args.output_dir = steps, "steps", 2, str(tmp_path / out)
        return Trainer(model or gpt2(layers=2), args, train_dataset=Sentences(40))

    saved(tmp_path)
    ours = trainer()
    ours.train()
    took_all(ours.engine)
    with pytest.raises(
        longshore.LongshoreError,
        match="second training .*compress_after 1, and not 3; moments_from, and its moments begin anew",
    ):
        trainer(ours.model, out="other", compress_after=3).train()
    ours.engine.close()
    ours = trainer(steps=4, storage="fp32")
    with caplog.at_level(logging.WARNING, "longshore"):
        ours.train(resume_from_checkpoint=True)
    took_all(ours.engine)
    ours.engine.close()
    assert [r.getMessage().partition(": ")[2] for r in caplog.records if "continues as" in r.getMessage()] == [
        "continues as it was made: storage bf16, and not fp32"
    ]
