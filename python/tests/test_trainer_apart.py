"""Trainers that do something between the micro-batches of a step have transformers' numbers: these are computed one
after the other."""

import functools
import json
import logging
import os
import subprocess
import sys

import pytest
import torch

import longshore
from models import gpt2
from test_trainer import Sentences, arguments

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def masked(inputs, n):
    labels = inputs["labels"].clone()
    labels[:, :n] = -100
    return {**inputs, "labels": labels}


def changes_inputs(base):
    class Changes(base):
        def training_step(self, model, inputs, *more):
            return super().training_step(model, masked(inputs, 3), *more)

    return Changes


def changes_inputs_in_place(base):
    class InPlace(base):
        def training_step(self, model, inputs, *more):
            inputs["labels"][:, :3] = -100
            return super().training_step(model, inputs, *more)

    return InPlace


def counts(base):
    class Counts(base):
        n = 0

        def _prepare_inputs(self, inputs):
            return super()._prepare_inputs(masked(inputs, self.n % 2 * 3))

        def training_step(self, *args):
            out = super().training_step(*args)
            self.n += 1
            return out

    return Counts


def keeps(base):
    class Keeps(base):
        def compute_loss(self, model, inputs, **more):
            self.weight = inputs["labels"].float().mean() / 64
            return model(**inputs).loss * (1 + self.weight)

    return Keeps


def decorated(base):
    class Decorated(base):
        n = 0

        @torch.autocast("cpu", enabled=False)
        def compute_loss(self, model, inputs, **more):
            self.n += 1
            n = self.n
            return model(**inputs).loss * (1 + (n == self.n) * n)

    return Decorated


def samples_of_its_own(base):
    class Samples(base):
        def get_batch_samples(self, *args):
            samples, items = super().get_batch_samples(*args)
            return [masked(sample, 2) for sample in samples], items

    return Samples


def of_two_bases(base):
    class Theirs(transformers.Trainer):
        def training_step(self, model, inputs, *more):
            return super().training_step(model, masked(inputs, 4), *more)

    return type("Both", (base, Theirs), {}) if base is not transformers.Trainer else Theirs


def loss_func(base):
    seen = []

    def compute_loss_func(outputs, labels, num_items_in_batch=None):
        seen.append(labels)
        return outputs.logits.square().mean() * len(seen) / 10

    return functools.partial(base, compute_loss_func=compute_loss_func)


def callback(base):
    class Between(transformers.TrainerCallback):
        def on_substep_end(self, args, state, control, model=None, **kwargs):
            model.transformer.ln_f.eps = 1.0 if model.transformer.ln_f.eps < 1 else 1e-5

    return functools.partial(base, callbacks=[Between()])


def method_of_the_instance(base):
    def make(*args, **kwargs):
        trainer, n = base(*args, **kwargs), []

        def compute_loss(model, inputs, **more):
            n.append(1)
            return model(**inputs).loss * len(n)

        trainer.compute_loss = compute_loss
        return trainer

    return make


def hooked_model(base):
    def make(model, *args, **kwargs):
        n = []
        model.transformer.h[1].register_forward_hook(lambda module, args, out: n.append(1))
        model.transformer.ln_f.register_forward_hook(lambda module, args, out: out * (1 + len(n) % 5))
        return base(model, *args, **kwargs)

    return make


def own_model(base):
    class Own(torch.nn.Module):
        def __init__(self, inner):
            super().__init__()
            self.inner, self.n = inner, 0

        def forward(self, input_ids, labels):
            self.n += 1
            return {"loss": self.inner(input_ids, labels=labels).loss * self.n}

    return lambda model, *args, **kwargs: base(Own(model), *args, **kwargs)


APART = {
    "Changes.training_step()": changes_inputs,
    "InPlace.training_step()": changes_inputs_in_place,
    "Counts.training_step()": counts,
    "Keeps.compute_loss()": keeps,
    "Decorated.compute_loss()": decorated,
    "Samples.get_batch_samples()": samples_of_its_own,
    "Theirs.training_step()": of_two_bases,
    "compute_loss_func": loss_func,
    "Between.on_substep_end()": callback,
    "Trainer.compute_loss()": method_of_the_instance,
    "a hook of transformer.h.1": hooked_model,
    "Own, a Own": own_model,
}


def told(how, base, kind, place, seed, data=None, **more):
    """The losses and norms that a Trainer logs."""
    torch.manual_seed(seed)
    args = arguments(kind, place, **more)
    args.max_steps, args.learning_rate = 3, 1e-2
    trainer = how(base)(gpt2(), args, train_dataset=Sentences(40) if data is None else data)
    trainer.train()
    told = [[line["loss"], line["grad_norm"]] for line in trainer.state.log_history if "loss" in line]
    if base is not transformers.Trainer:
        trainer.engine.close()
    return told, trainer


@pytest.mark.parametrize("name", APART)
def test_one_after_the_other(name, tmp_path, seed, caplog):
    from longshore.transformers import Trainer, TrainingArguments

    expected, _ = told(
        APART[name], transformers.Trainer, transformers.TrainingArguments, tmp_path / "plain", seed, use_cpu=True
    )
    with caplog.at_level(logging.INFO, "longshore"):
        got, trainer = told(
            APART[name], Trainer, TrainingArguments, tmp_path, seed, run=str(tmp_path / "run"), memory="1GiB"
        )
    assert sum(got, []) == pytest.approx(sum(expected, []), rel=1e-4)
    said = [r.getMessage() for r in caplog.records if "one after the other" in r.getMessage()]
    assert len(said) == 1 and said[0].startswith(name) and not hasattr(trainer, "_longshore_losses")


def test_what_is_transformers_own_goes_together(tmp_path, seed, caplog):
    from longshore.transformers import Trainer, TrainingArguments

    def of_their_own(base):
        class Own(base):
            def log(self, *args):
                super().log(*args)

        return Own

    with caplog.at_level(logging.INFO, "longshore"):
        _, trainer = told(
            of_their_own,
            Trainer,
            TrainingArguments,
            tmp_path,
            seed,
            run=str(tmp_path / "run"),
            memory="1GiB",
            label_smoothing_factor=0.1,
        )
    assert len(trainer._longshore_losses) == 3 and "one after the other" not in caplog.text


def test_insisting(tmp_path, seed):
    """On what computes a loss, it is right where that keeps nothing; what training_step() does to inputs cannot be had
    together."""
    from longshore.transformers import Trainer, TrainingArguments

    def plain(base):
        return type(
            "Plain",
            (base,),
            {
                "compute_loss": lambda self, model, inputs, **more: model(**inputs).loss * 2,
                "training_step": lambda self, *args: base.training_step(self, *args),
            },
        )

    expected, _ = told(
        plain, transformers.Trainer, transformers.TrainingArguments, tmp_path / "plain", seed, use_cpu=True
    )
    got, trainer = told(
        plain, Trainer, TrainingArguments, tmp_path, seed, run=str(tmp_path / "run"), memory="1GiB", layer_major=True
    )
    assert sum(got, []) == pytest.approx(sum(expected, []), rel=1e-4) and len(trainer._longshore_losses) == 3
    for n, how in enumerate((changes_inputs, changes_inputs_in_place, samples_of_its_own)):
        with pytest.raises(longshore.LongshoreError, match="layer_major=True: .*training_step.. got other inputs"):
            told(
                how,
                Trainer,
                TrainingArguments,
                tmp_path,
                seed,
                run=str(tmp_path / f"run{n}"),
                memory="1GiB",
                layer_major=True,
            )


class Stream(torch.utils.data.IterableDataset):
    """Of an epoch that ends within a step: 10 sentences, 5 micro-batches."""

    def __iter__(self):
        return iter([Sentences(10)[i] for i in range(10)])


@pytest.mark.parametrize("how", [lambda base: base, keeps], ids=["together", "apart"])
def test_a_remainder_of_streamed_data(how, tmp_path, seed):
    from longshore.transformers import Trainer, TrainingArguments

    expected, _ = told(
        how, transformers.Trainer, transformers.TrainingArguments, tmp_path / "plain", seed, Stream(), use_cpu=True
    )
    got, _ = told(how, Trainer, TrainingArguments, tmp_path, seed, Stream(), run=str(tmp_path / "run"), memory="1GiB")
    assert len(expected) == 3 and sum(got, []) == pytest.approx(sum(expected, []), rel=1e-4)


def plain_trainer(base):
    return base


SCRIPT = """
import json, sys
sys.path.insert(0, {tests!r})
import transformers, test_trainer_apart as apart
from pathlib import Path
ds = {{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto", "gradient_clipping": "auto",
      "zero_optimization": {{
    "stage": 3, "offload_optimizer": {{"device": "nvme", "nvme_path": "nvme"}}}}}}
out, together = {{}}, {{}}
for name, data in apart.DEEPSPEED.items():
    how = getattr(apart, name)
    out[name], trainer = apart.told(how, transformers.Trainer, transformers.TrainingArguments, Path(name), {seed},
                                    apart.Stream() if data else None, deepspeed=ds)
    together[name] = hasattr(trainer, "_longshore_losses")
print("RESULT", json.dumps([out, together]))
"""
# and whether the data are streamed
DEEPSPEED = {"plain_trainer": False, "keeps": True, "counts": False, "changes_inputs": False}


def test_with_deepspeed(tmp_path, seed):
    (tmp_path / "train.py").write_text(SCRIPT.format(tests=os.path.dirname(__file__), seed=seed))
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [sys.executable, "-m", "longshore.deepspeed", "train.py"], cwd=tmp_path, capture_output=True, text=True, env=env
    )
    assert done.returncode == 0, done.stderr[-4000:]
    out, together = json.loads(done.stdout.split("RESULT ")[1].splitlines()[0])
    assert together == {name: name == "plain_trainer" for name in DEEPSPEED}
    for name, streamed in DEEPSPEED.items():
        expected, _ = told(
            globals()[name],
            transformers.Trainer,
            transformers.TrainingArguments,
            tmp_path / name,
            seed,
            Stream() if streamed else None,
            use_cpu=True,
        )
        assert [line[0] for line in out[name]] == pytest.approx([line[0] for line in expected], rel=1e-4), name
