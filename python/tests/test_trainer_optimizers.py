"""Which optimizer transformers' Trainer is told to take, by whatever way: with the losses of transformers', or refused
by name."""

import json
import os
import subprocess
import sys

import pytest
import torch

import longshore
from test_trainer import Sentences, arguments, losses, model, transformers

SGD = torch.optim.SGD, {"lr": 0.05, "momentum": 0.9}


class Says:
    @staticmethod
    def get_optimizer_cls_and_kwargs(args, model=None):
        return SGD


class Makes:
    """As scripts of old make theirs, and nothing else."""

    def create_optimizer(self, *args):
        decays = [p for p in self.model.parameters() if p.ndim > 1]
        self.optimizer = torch.optim.Adam(
            [
                {"params": decays, "lr": 3e-3, "weight_decay": 0.1},
                {"params": [p for p in self.model.parameters() if p.ndim == 1]},
            ],
            lr=1e-3,
            eps=1e-6,
        )
        return self.optimizer


class Changes:
    def create_optimizer(self, *args):
        optimizer = super().create_optimizer(*args)
        optimizer.param_groups[0]["lr"] *= 3
        return optimizer

    def get_decay_parameter_names(self, model):
        return [name for name, _ in model.named_parameters() if "wte" in name]


class Schedules:
    def create_scheduler(self, num_training_steps, optimizer=None):
        self.lr_scheduler = torch.optim.lr_scheduler.OneCycleLR(
            optimizer or self.optimizer, max_lr=1e-2, total_steps=num_training_steps + 1
        )
        return self.lr_scheduler


class MakesBoth:
    def create_optimizer_and_scheduler(self, num_training_steps):
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-3)
        self.lr_scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, 0.5)


def given(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    return {"optimizers": (optimizer, torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5))}


def that_has_made_steps(model):
    said = given(model)
    model(**{k: v[None] for k, v in Sentences(1)[0].items()}).loss.backward()
    said["optimizers"][0].step()
    said["optimizers"][0].zero_grad()
    return said


WAYS = {  # (what the Trainer's class is made of beside, arguments, what it is given)
    "optimizer_cls_and_kwargs": (None, {}, lambda model: {"optimizer_cls_and_kwargs": SGD}),
    "get_optimizer_cls_and_kwargs": (Says, {}, None),
    "create_optimizer": (Makes, {}, None),
    "create_optimizer that changes": (Changes, {}, None),
    "create_scheduler": (Schedules, {}, None),
    "create_optimizer_and_scheduler": (MakesBoth, {}, None),
    "optimizers": (None, {}, given),
    "optimizers that have made steps": (None, {}, that_has_made_steps),
    "optim": (None, {"optim": "adagrad", "adam_epsilon": 1e-3}, None),
    "adam_*": (None, {"adam_beta1": 0.5, "adam_beta2": 0.8, "adam_epsilon": 1e-4}, None),
}


def trained(ours, mixin, tmp_path, more, gives, seed):
    if ours:
        from longshore.transformers import Trainer, TrainingArguments

        said = {"run": str(tmp_path / "run"), "memory": "1GiB"}
    else:
        from transformers import Trainer, TrainingArguments

        said = {"use_cpu": True}
    args = arguments(TrainingArguments, tmp_path / f"ours {ours}", **more, **said)
    args.max_steps, args.max_grad_norm = 3, 0.5
    it, kind = model(seed, 0.0), type("Own", (mixin, Trainer), {}) if mixin else Trainer
    trainer = kind(it, args, train_dataset=Sentences(40), **(gives(it) if gives else {}))
    trainer.train()
    return trainer


@pytest.mark.parametrize("way", WAYS)
def test_the_losses_are_those_of_transformers(way, tmp_path, seed):
    expected, ours = (trained(ours, WAYS[way][0], tmp_path, *WAYS[way][1:], seed) for ours in (False, True))
    assert losses(ours) == pytest.approx(losses(expected), rel=1e-4)
    for (name, p), q in zip(ours.model.named_parameters(), expected.model.parameters()):
        if not name.endswith("c_attn.bias"):  # keys' gradients are rounding alone
            assert torch.allclose(p.detach() + 0, q, rtol=1e-3, atol=2e-5), name
    ours.engine.close()


class Edits(transformers.TrainerCallback):
    """Takes biases and norms out after the first step, and gives half of the others a group of their own."""

    def on_step_end(self, args, state, control, optimizer=None, **kwargs):
        if state.global_step == 1:
            first = optimizer.param_groups[0]
            optimizer.param_groups[1:] = [{**first, "params": first["params"][::2], "weight_decay": 0.5}]
            first["params"] = first["params"][1::2]


class StopsAfterTwo(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == 2


def test_a_callback_edits_the_groups(tmp_path, seed):
    """A run that goes on from a checkpoint has them as they were."""
    from longshore.transformers import Trainer, TrainingArguments

    gives = dict(callbacks=[Edits()])
    expected, ours = (trained(ours, None, tmp_path / "whole", {}, lambda model: gives, seed) for ours in (False, True))
    assert losses(ours) == pytest.approx(losses(expected), rel=1e-4)
    assert [len(group["params"]) for group in ours.engine.optimizer.param_groups] == [
        len(group["params"]) for group in expected.optimizer.param_groups
    ]
    ours.engine.close()
    args = arguments(TrainingArguments, tmp_path, run=str(tmp_path / "run"), memory="1GiB")
    args.save_strategy, args.save_steps = transformers.trainer_utils.IntervalStrategy.STEPS, 2
    args.max_steps, args.max_grad_norm = 3, 0.5
    for more in ([StopsAfterTwo()], []):
        part = Trainer(model(seed, 0.0), args, train_dataset=Sentences(40), callbacks=[Edits(), *more])
        part.train(resume_from_checkpoint=not more)
        part.engine.close()
    assert part.state.global_step == 3 and losses(part) == pytest.approx(losses(ours), rel=1e-6)


def refused(said, tmp_path, seed, mixin=None, more=(), gives=None):
    with pytest.raises(longshore.LongshoreError, match=said):
        trained(True, mixin, tmp_path, dict(more), gives, seed)
    assert not (tmp_path / "run").exists()


def test_what_optim_args_say_is_taken_or_refused(tmp_path, seed):
    for optim, said in (("sgd", "momentum=0.9, weight_decay=0.01"), ("adagrad", "eps=1e-3")):
        more, here = {"optim": optim, "optim_args": said}, tmp_path / optim
        asked = arguments(transformers.TrainingArguments, here, use_cpu=True, **more)
        # transformers 4 does not look at them
        if len(transformers.Trainer.get_optimizer_cls_and_kwargs(asked)[1]) == 1:
            refused(f"optim_args: {said.partition('=')[0]} has no effect", here, seed, more=more)
            continue
        ours = trained(True, None, here, more, None, seed)
        assert losses(ours) == pytest.approx(losses(trained(False, None, here, more, None, seed)), rel=1e-4)
        ours.engine.close()
    refused(
        "optim_args: momentum has no effect with optim=adamw_torch", tmp_path, seed, more={"optim_args": "momentum=0.9"}
    )


def test_what_the_engine_does_not_have_is_refused_by_name(tmp_path, seed):
    class Takes:
        def create_optimizer(self, *args):
            self.optimizer = torch.optim.RMSprop(self.model.parameters())
            return self.optimizer

    refused("RMSprop is not supported; torch.optim's AdamW, Adam, SGD and Adagrad", tmp_path, seed, Takes)
    refused(
        "SGD: nesterov=True",
        tmp_path,
        seed,
        gives=lambda model: {"optimizer_cls_and_kwargs": (torch.optim.SGD, {**SGD[1], "nesterov": True})},
    )
    refused(
        "AdamW: amsgrad=True",
        tmp_path,
        seed,
        gives=lambda model: {"optimizers": (torch.optim.AdamW(model.parameters(), amsgrad=True), None)},
    )
    refused("optim_target_modules: is for GaLore", tmp_path, seed, more={"optim_target_modules": "all-linear"})
    refused("optim: adafactor is not supported", tmp_path, seed, more={"optim": "adafactor"})
    refused(
        "Adafactor is not supported",
        tmp_path,
        seed,
        gives=lambda model: {
            "optimizer_cls_and_kwargs": (
                transformers.Adafactor,
                {"lr": 1e-3, "relative_step": False, "scale_parameter": False},
            )
        },
    )


def test_moments_of_8_bits_by_name(tmp_path, seed):
    ours = trained(True, None, tmp_path, {"optim": "adamw_bnb_8bit"}, None, seed)
    assert ours.engine._core.how["moments"] == "8bit" and ours.engine._core.how["optimizer"] == "adamw"
    ours.engine.close()


class Fewer:
    def create_optimizer(self, *args):
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        return self.optimizer


def test_a_run_goes_on_with_its_own_groups(tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    args = arguments(TrainingArguments, tmp_path, run=str(tmp_path / "run"))
    args.save_strategy, args.save_steps, args.max_steps = transformers.trainer_utils.IntervalStrategy.STEPS, 2, 2
    first = Trainer(model(seed), args, train_dataset=Sentences(40))
    first.train()
    first.engine.close()
    args.max_steps = 3
    with pytest.raises(
        longshore.LongshoreError, match="its parameter groups are not those of the AdamW: 2 of .*make the same groups"
    ):
        own = type("Own", (Fewer, Trainer), {})
        own(model(seed), args, train_dataset=Sentences(40)).train(resume_from_checkpoint=True)


SCRIPT = """
import json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
import longshore, transformers
from test_trainer import Sentences, arguments, losses, model
ds = {{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
      "zero_allow_untested_optimizer": True,
      "zero_optimization": {{"stage": 3, "offload_optimizer": {{"device": "nvme", "nvme_path": {path!r}}}}}}}
told = []
def trained(optim):
    args = arguments(transformers.TrainingArguments, Path({path!r}), use_cpu=True, deepspeed=ds, optim=optim)
    args.max_steps, args.max_grad_norm = 3, 0.5
    trainer = transformers.Trainer(model({seed}, 0.0), args, train_dataset=Sentences(40))
    trainer.train()
    return trainer
def refused(what):
    try:
        what()
    except longshore.LongshoreError as said:
        told.append(str(said))
trainer = trained("sgd")
told.append(losses(trainer))
refused(trainer.train)
refused(lambda: trained("adafactor"))
print("RESULT", json.dumps(told))
"""


def test_under_deepspeed_the_optimizer_is_the_one_that_was_asked_for(tmp_path, seed):
    """Accelerate makes an Adam of all of them there."""
    (tmp_path / "train.py").write_text(SCRIPT.format(tests=os.path.dirname(__file__), path=str(tmp_path), seed=seed))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-m", "longshore.deepspeed", "train.py"], cwd=tmp_path, capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr[-4000:]
    told, again, other = json.loads(done.stdout.split("RESULT ")[1].splitlines()[0])
    assert told == pytest.approx(losses(trained(False, None, tmp_path, {"optim": "sgd"}, None, seed)), rel=1e-4)
    assert "the engine is closed, for example by a second train() of its Trainer; call save_model" in again
    assert other.startswith("optimizer: Adafactor is not supported")


@pytest.mark.parametrize("more", [{}, {"bf16": True}], ids=str)
def test_a_second_trainer_of_the_model_trains_on(more, tmp_path, seed):
    """In a run of its own, with the losses of transformers'; the first Trainer's run stays."""
    from longshore.transformers import Trainer, TrainingArguments

    told = []
    for kind in (transformers.Trainer, Trainer):
        ours, it, out, digests = kind is Trainer, model(seed, 0.0), [], []
        if more.get("bf16") and not ours:
            it.to(torch.bfloat16)
        for stage in (0, 1, 2):
            where = {"run": str(tmp_path / f"run{stage}"), "memory": "1GiB"} if ours else {"use_cpu": True}
            args = arguments(
                TrainingArguments if ours else transformers.TrainingArguments,
                tmp_path / f"{ours}{stage}",
                **where,
                **(more if ours else {k: v for k, v in more.items() if k != "bf16"}),
            )
            args.max_steps, args.learning_rate, args.weight_decay = 2, 1e-3 * (stage + 1), 0.1 * stage
            trainer = kind(it, args, train_dataset=Sentences(40, 3 + stage))
            trainer.train()
            out += losses(trainer)
            digests += [trainer.engine.digest()] if ours else []
        told.append(out)
    assert told[1] == pytest.approx(told[0], rel=2e-2 if more.get("bf16") else 1e-4)
    values = [p.detach() + 0 for p in it.parameters()]
    args.run = str(tmp_path / "run2")
    with pytest.raises(longshore.LongshoreError, match="another run= or output_dir, or save the model .*save_model"):
        Trainer(it, args, train_dataset=Sentences(40)).train()
    args.run, args.optim = str(tmp_path / "run3"), "adagrad"
    with pytest.raises(
        longshore.LongshoreError, match="is asked for adagrad with .*give the next Trainer from_pretrained"
    ):
        Trainer(it, args, train_dataset=Sentences(40)).train()
    trainer.engine.close()
    for stage, digest in enumerate(digests):
        with longshore.resume(tmp_path / f"run{stage}") as engine:
            assert engine.digest() == digest
            if stage == 2:
                assert engine.step_number == 2 and engine.optimizer.param_groups[0]["weight_decay"] == 0.2
                assert all(torch.equal(p.detach() + 0, q) for p, q in zip(engine.module.parameters(), values))
