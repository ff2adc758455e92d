"""transformers' Trainer, DeepSpeed's API and the examples on the device of standin.py, in a process of their own.
python on_standin_surfaces.py DIRECTORY; writes JSON: {name: what came of it}."""

import contextlib
import io
import json
import logging
import os
import pathlib
import runpy
import sys
from unittest import mock

import standin

os.environ["ACCELERATE_TORCH_DEVICE"] = standin.NAME  # Accelerate does not know it
standin.make()

import torch  # noqa: E402

import longshore  # noqa: E402
import longshore.deepspeed as deepspeed  # noqa: E402
import models  # noqa: E402
from longshore.run.engine_surface import core_of  # noqa: E402
from longshore.transformers import Trainer, TrainingArguments  # noqa: E402
from test_examples import EXAMPLES, prepared, qwen2  # noqa: E402
from test_trainer import Sentences, arguments, losses  # noqa: E402

BENCH = pathlib.Path(__file__).parents[2] / "bench" / "gpu.py"


def a_model():
    torch.manual_seed(5)
    out = models.gpt2(dropout=0.0)
    out.set_attn_implementation("eager")  # what is fused has other bits on other devices
    return out


def by_trainer(path, **more):
    os.mkdir(path)
    told = {"evaluated": [], "losses": []}
    for steps in (4, 6):
        args = arguments(TrainingArguments, path, run=str(path / "run"), eval_strategy="steps", eval_steps=3, **more)
        args.max_steps, args.num_train_epochs = steps, 1
        trainer = Trainer(a_model(), args, train_dataset=Sentences(40), eval_dataset=Sentences(6, 4))
        told["before"] = trainer.evaluate()["eval_loss"]
        trainer.train(resume_from_checkpoint=steps > 4)
        told["evaluated"] += [line["eval_loss"] for line in trainer.state.log_history if "eval_loss" in line]
        told["losses"] += losses(trainer)
        told["device"], told["digest"] = str(trainer.engine.device), trainer.engine.digest()
        told["gpu_memory"] = core_of(trainer.engine).how.get("gpu_memory")
        trainer.save_model(str(path / "saved"))
        trainer.engine.close()
    return told


def by_deepspeed(path):
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {"stage": 3},
        "longshore": {"run": str(path), "memory": "1GiB"},
    }
    engine, *_ = deepspeed.initialize(model=a_model(), config=config)
    log, lost = io.StringIO(), None
    shows = logging.StreamHandler(log)
    logging.getLogger("longshore").addHandler(shows)
    logging.getLogger("longshore").setLevel(logging.INFO)
    try:
        engine(**models.tokens(1)[0])
    except longshore.LongshoreError as failure:
        lost = str(failure)
    for batch in models.tokens(3):
        loss = engine(**{key: value.to(engine.device) for key, value in batch.items()}).loss
        engine.backward(loss)
        engine.step()
    told = {"loss": float(loss), "device": str(engine.device), "name": deepspeed.get_accelerator().device_name()}
    told["digest"] = engine.engine.digest()
    told.update(lost=lost, log=log.getvalue(), shown=repr(engine.engine))
    logging.getLogger("longshore").removeHandler(shows)
    engine.engine.close()
    return told


def by_example(name, *words):
    """An example runs as it is."""
    said = io.StringIO()
    with mock.patch.object(sys, "argv", [name, *map(str, words)]), contextlib.redirect_stdout(said):
        runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return said.getvalue().splitlines()


def by_bench(directory, row):
    """A row of bench/gpu.py, with tiny shapes."""
    said = io.StringIO()
    how = {"SIZE": "tiny", "DEVICE": standin.NAME, "DRIVE": str(directory)}
    with mock.patch.object(sys, "argv", ["gpu.py", row]), mock.patch.dict(os.environ, how):
        with contextlib.redirect_stdout(said):
            runpy.run_path(str(BENCH), run_name="__main__")
    return [json.loads(line) for line in said.getvalue().splitlines()]


def main(directory):
    told = {"trainer there": by_trainer(directory / "there", gpu_memory="1GiB")}
    told["trainer here"] = by_trainer(directory / "here", use_cpu=True)
    told["deepspeed there"] = by_deepspeed(directory / "ds-there")
    with mock.patch.dict(os.environ, DS_ACCELERATOR="cpu"):
        told["deepspeed here"] = by_deepspeed(directory / "ds-here")
    told["any module"] = by_example("any_module.py", directory / "any")
    model = qwen2()
    (directory / "e").mkdir()
    _, made, text = prepared(directory / "e", model)
    how = [made, text, "--run", directory / "loop", "--steps", 3, "--seq-len", 16, "--batch", 2]
    told["plain loop"] = by_example("plain_loop.py", *how)
    told["plain loop goes on"] = by_example("plain_loop.py", "--run", directory / "loop", "--steps", 5)
    lora = [made, text, directory / "adapters", "--run", directory / "lora", "--steps", 2, "--seq-len", 16]
    told["lora"] = by_example("lora.py", *lora)
    distill = [made, made, text, directory / "student", "--run", directory / "distill", "--steps", 2, "--seq-len", 16]
    told["distill"] = by_example("distill.py", *distill)
    told["bench"] = {row: by_bench(directory, row) for row in ("losses", "memory-3b", "long-1b")}
    (directory / "told.json").write_text(json.dumps(told))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]))
