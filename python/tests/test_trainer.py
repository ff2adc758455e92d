"""transformers' Trainer: by one changed import, and unchanged with --deepspeed under the launcher."""

import dataclasses
import json
import os
import subprocess
import sys

import pytest
import torch

import longshore
from models import VOCAB, gpt2

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


class Sentences(torch.utils.data.Dataset):
    def __init__(self, n, seed=3):
        g = torch.Generator().manual_seed(seed)
        self.rows = torch.randint(1, VOCAB, (n, 10), generator=g)
        self.lengths = torch.randint(4, 10, (n,), generator=g)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        labels = self.rows[i].clone()
        labels[self.lengths[i] :] = -100  # micro-batches count differently
        return {"input_ids": self.rows[i], "labels": labels}


def arguments(kind, tmp_path, **more):
    return kind(
        output_dir=str(tmp_path / "out"),
        per_device_train_batch_size=2,
        gradient_accumulation_steps=3,
        max_steps=6,
        learning_rate=1e-3,
        weight_decay=0.1,
        warmup_steps=2,
        logging_steps=1,
        report_to=[],
        seed=11,
        disable_tqdm=True,
        save_strategy="no",
        dataloader_num_workers=0,
        **more,
    )


def model(seed, dropout=0.1):
    torch.manual_seed(seed)
    return gpt2(dropout=dropout)


def losses(trainer):
    return [line["loss"] for line in trainer.state.log_history if "loss" in line]


def test_arguments_are_refused_by_another_trainer(tmp_path, seed):
    """transformers' own reads none of run, memory and bf16, and trained in memory without a word."""
    from longshore.transformers import TrainingArguments

    args = arguments(TrainingArguments, tmp_path, run=str(tmp_path / "run"), bf16=True)
    with pytest.raises(longshore.LongshoreError, match="transformers' own Trainer would read neither run= "):
        transformers.Trainer(model(seed), args, train_dataset=Sentences(40)).train()


def test_the_numbers_are_those_of_transformers(tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    data = Sentences(40)
    plain = transformers.Trainer(
        model(seed, 0.0),
        arguments(transformers.TrainingArguments, tmp_path / "plain", use_cpu=True),
        train_dataset=data,
    )
    plain.train()
    digests = []
    for layer_major in (True, False):
        here = tmp_path / str(layer_major)
        ours = Trainer(
            model(seed, 0.0),
            arguments(TrainingArguments, here, run=str(here / "run"), memory="1GiB", layer_major=layer_major),
            train_dataset=data,
        )
        ours.train()
        for line, expected in zip(ours.state.log_history, plain.state.log_history):
            for key in ("loss", "grad_norm", "learning_rate", "epoch"):
                if key in expected:
                    assert line[key] == pytest.approx(expected[key], rel=1e-4), key
        digests.append(ours.engine.digest())
        ours.engine.close()
    assert digests[0] == digests[1]


def test_checkpoints_evaluation_and_resume(tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    def trainer(name, at, steps=6, **more):
        args = arguments(TrainingArguments, tmp_path / name, run=str(tmp_path / name / "run"), **more)
        args.save_strategy = args.eval_strategy = transformers_strategy("steps")
        args.save_steps = args.eval_steps = 2
        args.save_total_limit = 2
        args.max_steps = steps
        return Trainer(model(at), args, train_dataset=Sentences(40), eval_dataset=Sentences(6, 4))

    from transformers.trainer_utils import IntervalStrategy as transformers_strategy

    whole = trainer("whole", seed)
    whole.train()
    expected, digest = losses(whole), whole.engine.digest()
    assert len([1 for line in whole.state.log_history if "eval_loss" in line]) == 3
    out = tmp_path / "whole" / "out"
    assert sorted(d.name for d in out.iterdir() if d.name.startswith("checkpoint")) == ["checkpoint-4", "checkpoint-6"]
    snapshots = [s for s in os.listdir(tmp_path / "whole" / "run" / "snapshots") if s.endswith(".json")]
    assert len(snapshots) == 2 and not list(out.glob("checkpoint-*/model.safetensors"))
    whole.save_model()
    from transformers import GPT2LMHeadModel

    loaded = GPT2LMHeadModel.from_pretrained(out)
    assert torch.equal(loaded.lm_head.weight, whole.model.transformer.wte.weight.detach() + 0)
    whole.engine.close()
    again = trainer("whole", seed + 1)  # as another process would
    again.train(resume_from_checkpoint=str(out / "checkpoint-4"))
    assert losses(again) == expected and again.engine.digest() == digest
    again.engine.close()
    refused = trainer("whole", seed)
    with pytest.raises(longshore.ExistsError, match="holds a run"):
        refused.train()


def test_resumed_with_other_arguments(tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    told = []
    for kind, arguments_kind in ((transformers.Trainer, transformers.TrainingArguments), (Trainer, TrainingArguments)):
        here = tmp_path / kind.__module__
        more = {"use_cpu": True} if kind is transformers.Trainer else {"run": str(here / "run")}
        for steps, norm, accumulate in ((2, 1.0, 3), (5, 0.01, 2)):
            args = arguments(arguments_kind, here, adam_epsilon=1e-2, max_grad_norm=norm, **more)
            args.save_strategy, args.max_steps = transformers.trainer_utils.IntervalStrategy.STEPS, steps
            args.save_steps, args.gradient_accumulation_steps = 2, accumulate
            trainer = kind(model(seed, 0.0), args, train_dataset=Sentences(40))
            trainer.train(resume_from_checkpoint=steps > 2)
            if kind is Trainer:
                trainer.engine.close()
        told.append(losses(trainer))
    assert told[1] == pytest.approx(told[0], rel=2e-5)
    args.optim = "adagrad"
    with pytest.raises(longshore.LongshoreError, match="its optimizer is adamw, and not adagrad"):
        Trainer(model(seed, 0.0), args, train_dataset=Sentences(40)).train(resume_from_checkpoint=True)


def test_best_model_bf16_and_what_is_refused(tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    args = TrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=4,
        eval_strategy="steps",
        eval_steps=2,
        save_steps=2,
        report_to=[],
        bf16=True,
        load_best_model_at_end=True,
        disable_tqdm=True,
        learning_rate=0.5,
        optim="sgd",
        max_grad_norm=0,
    )
    trainer = Trainer(model(seed, 0.0), args, train_dataset=Sentences(40), eval_dataset=Sentences(6, 4))
    trainer.train()
    evaluated = {line["step"]: line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line}
    assert trainer.evaluate()["eval_loss"] == pytest.approx(min(evaluated.values()), rel=1e-6)
    assert trainer.model.transformer.wte.weight.dtype == torch.bfloat16
    trainer.engine.close()
    with pytest.raises(longshore.LongshoreError, match="fp16.*bf16=True"):
        TrainingArguments(output_dir=str(tmp_path), fp16=True)
    with pytest.raises(longshore.LongshoreError, match="optim: lion"):
        Trainer(
            model(seed),
            TrainingArguments(output_dir=str(tmp_path / "x"), optim="lion_8bit", report_to=[]),
            train_dataset=Sentences(4),
        ).train()


class Seen(transformers.TrainerCallback):
    """What a callback is told, and sees of the model."""

    def __init__(self):
        self.steps, self.norms = [], []

    def on_step_end(self, args, state, control, model=None, **kwargs):
        self.steps.append(state.global_step)
        self.norms.append(float(model.transformer.ln_f.weight.detach().norm()))


def by_length():
    names = {f.name for f in dataclasses.fields(transformers.TrainingArguments)}
    return {"group_by_length": True} if "group_by_length" in names else {"train_sampling_strategy": "group_by_length"}


def test_metrics_callbacks_smoothing_and_lengths_are_those_of_transformers(tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    def right(predictions):
        logits, labels = predictions
        return {"right": float((logits[:, :-1].argmax(-1) == labels[:, 1:]).mean())}

    told = []
    for kind, arguments_kind, more in (
        (transformers.Trainer, transformers.TrainingArguments, {"use_cpu": True}),
        (Trainer, TrainingArguments, {"run": str(tmp_path / "run"), "memory": "1GiB"}),
    ):
        args = arguments(
            arguments_kind,
            tmp_path / kind.__module__,
            label_smoothing_factor=0.1,
            eval_strategy="steps",
            eval_steps=3,
            **by_length(),
            **more,
        )
        seen = Seen()
        trainer = kind(
            model(seed, 0.0),
            args,
            train_dataset=Sentences(40),
            eval_dataset=Sentences(6, 4),
            compute_metrics=right,
            callbacks=[seen],
        )
        trainer.train()
        metrics = trainer.evaluate()
        told.append((losses(trainer), [metrics["eval_loss"], metrics["eval_right"]], seen.steps, seen.norms))
    trainer.engine.close()
    assert told[0][2] == told[1][2] == [1, 2, 3, 4, 5, 6]
    for theirs, ours in zip(told[0][:2] + told[0][3:], told[1][:2] + told[1][3:]):
        assert ours == pytest.approx(theirs, rel=1e-4)


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
import transformers
from longshore.transformers import Trainer, TrainingArguments
from test_trainer import Sentences, arguments, model
class Kill(transformers.TrainerCallback):
    def on_step_end(self, args, state, control, **kwargs):
        if state.global_step == 5:
            os.kill(os.getpid(), 9)
from pathlib import Path
args = arguments(TrainingArguments, Path({path!r}), run={path!r} + "/run")
args.save_strategy = transformers.trainer_utils.IntervalStrategy.STEPS
args.save_steps = 2
Trainer(model({seed}), args, train_dataset=Sentences(40), callbacks=[Kill()]).train()
"""


def test_resumed_after_a_kill(tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    script = KILLED.format(tests=os.path.dirname(__file__), path=str(tmp_path / "killed"), seed=seed)
    assert subprocess.run([sys.executable, "-c", script], env=env).returncode == -9
    told = []
    for name in ("whole", "killed"):
        args = arguments(TrainingArguments, tmp_path / name, run=str(tmp_path / name / "run"))
        trainer = Trainer(model(seed), args, train_dataset=Sentences(40))
        trainer.train(resume_from_checkpoint=name == "killed")  # the last checkpoint that is there
        told.append((losses(trainer), trainer.engine.digest()))
        trainer.engine.close()
    assert told[0] == told[1]


SCRIPT = """
import sys, json
sys.path.insert(0, {tests!r})
import torch
from transformers import HfArgumentParser, Trainer, TrainingArguments, AutoModelForCausalLM
from test_trainer import Sentences, losses
args, = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses()
from safetensors.torch import load_file
model, stored = AutoModelForCausalLM.from_pretrained("start"), load_file("start/model.safetensors")
assert all(torch.equal(p.detach(), stored[n]) for n, p in model.named_parameters())
trainer = Trainer(model, args, train_dataset=Sentences(40), eval_dataset=Sentences(6, 4))
trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
assert len(trainer._longshore_losses) == 3  # layer by layer
assert trainer.deepspeed.bfloat16_enabled() is args.bf16
print("RESULT", json.dumps([losses(trainer), trainer.deepspeed.engine.digest()]))
trainer.save_model()
"""


def test_unchanged_with_deepspeed(tmp_path, seed):
    ds = {
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "bf16": {"enabled": "auto"},
        "optimizer": {
            "type": "AdamW",
            "params": {"lr": "auto", "betas": "auto", "eps": "auto", "weight_decay": "auto"},
        },
        "zero_optimization": {
            "stage": 3,
            "reduce_bucket_size": "auto",
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": {"device": "nvme", "nvme_path": str(tmp_path / "nvme")},
            "offload_param": {"device": "nvme", "nvme_path": str(tmp_path / "nvme")},
        },
    }
    (tmp_path / "ds.json").write_text(json.dumps(ds))
    model(seed).save_pretrained(tmp_path / "start")
    (tmp_path / "train.py").write_text(SCRIPT.format(tests=os.path.dirname(__file__)))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}

    def run(*more):
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "longshore.deepspeed",
                "train.py",
                "--deepspeed",
                "ds.json",
                "--output_dir",
                "out",
                "--per_device_train_batch_size",
                "2",
                "--gradient_accumulation_steps",
                "3",
                "--max_steps",
                "6",
                "--save_steps",
                "2",
                "--save_total_limit",
                "2",
                "--eval_strategy",
                "steps",
                "--eval_steps",
                "3",
                "--logging_steps",
                "1",
                "--report_to",
                "none",
                "--learning_rate",
                "1e-3",
                "--seed",
                "11",
                *more,
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env=env,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return json.loads(done.stdout.split("RESULT ")[1].splitlines()[0])

    whole = run()
    assert sorted(p.name for p in (tmp_path / "out").glob("checkpoint-*")) == ["checkpoint-4", "checkpoint-6"]
    again = run("--resume_from_checkpoint", "out/checkpoint-4")
    assert again == whole
    half = run("--bf16", "True", "--output_dir", "half")
    assert half != whole and half[0] == pytest.approx(whole[0], rel=1e-2)
    from transformers import GPT2LMHeadModel

    assert GPT2LMHeadModel.from_pretrained(tmp_path / "out").num_parameters() > 0
