"""Pushes to the Hub: the files that are uploaded have the weights, and nothing of the run."""

import os

import pytest
import torch
from safetensors.torch import load_file

import longshore
from test_loop import engine_for
from test_trainer import Sentences, arguments, model

transformers = pytest.importorskip("transformers")
huggingface_hub = pytest.importorskip("huggingface_hub")
COMMIT = "https://huggingface.co/me/x/commit/0"


@pytest.fixture
def uploads(monkeypatch, tmp_path):
    """[(where in the repository, {name of a file: its path in a copy})] of what would be uploaded."""
    from huggingface_hub import CommitInfo, HfApi, RepoUrl
    from huggingface_hub.utils import filter_repo_objects

    done = []

    def upload_folder(self, *, folder_path, path_in_repo=None, ignore_patterns=None, run_as_future=False, **others):
        there = [
            os.path.relpath(os.path.join(where, name), folder_path)
            for where, _, names in os.walk(folder_path)
            for name in names
        ]
        there = list(filter_repo_objects(there, ignore_patterns=ignore_patterns))
        weights = {}
        for name in there:
            if name.endswith(".safetensors"):
                weights.update(load_file(os.path.join(folder_path, name)))
        done.append((path_in_repo, sorted(there), weights))
        info = CommitInfo(commit_url=COMMIT, commit_message="", commit_description="", oid="0")
        if run_as_future:
            from concurrent.futures import Future

            future = Future()
            future.set_result(info)
            return future
        return info

    def create_commit(self, repo_id, operations, **others):
        names = {operation.path_in_repo: operation.path_or_fileobj for operation in operations}
        done.append(
            (
                None,
                sorted(names),
                {
                    k: v
                    for name, path in names.items()
                    if name.endswith(".safetensors")
                    for k, v in load_file(path).items()
                },
            )
        )
        return CommitInfo(commit_url=COMMIT, commit_message="", commit_description="", oid="0")

    monkeypatch.setattr(HfApi, "upload_folder", upload_folder)
    monkeypatch.setattr(HfApi, "create_commit", create_commit)
    monkeypatch.setattr(HfApi, "create_repo", lambda self, repo_id, **others: RepoUrl("https://huggingface.co/me/x"))
    monkeypatch.setattr(HfApi, "create_branch", lambda self, *args, **others: None)
    monkeypatch.setattr(HfApi, "hf_hub_download", _offline)
    for name in ("upload_folder", "create_repo", "create_commit", "create_branch"):  # bound when they were imported
        for module in ("transformers.trainer", "transformers.utils.hub", "huggingface_hub"):
            holder = __import__(module, fromlist=[name])
            if name in vars(holder):
                monkeypatch.setattr(holder, name, getattr(HfApi(), name))
    return done


def _offline(*args, **kwargs):
    raise huggingface_hub.errors.LocalEntryNotFoundError("offline")


def trainer(tmp_path, seed, **more):
    from longshore.transformers import Trainer, TrainingArguments

    args = arguments(TrainingArguments, tmp_path, hub_token="none", hub_model_id="me/x", **more)
    return Trainer(model(seed), args, train_dataset=Sentences(40))


@pytest.mark.parametrize("strategy", ["end", "every_save", "checkpoint", "all_checkpoints"])
def test_what_a_trainer_pushes_has_weights(strategy, tmp_path, seed, uploads):
    trained = trainer(tmp_path, seed, push_to_hub=True, hub_strategy=strategy)
    trained.args.save_strategy, trained.args.save_steps = transformers.trainer_utils.IntervalStrategy.STEPS, 3
    trained.train()
    during = len(uploads)
    assert during == {"end": 0, "every_save": 2, "checkpoint": 4, "all_checkpoints": 4}[strategy]
    trained.push_to_hub()
    assert len(uploads) == during + 1
    for where, names, weights in uploads:
        assert not [name for name in names if "volume" in name or name.startswith("run")], names
        assert "model.safetensors" in names and "config.json" in names and len(weights) == len(uploads[-1][2])
        if where:
            assert where in ("last-checkpoint", "checkpoint-3", "checkpoint-6")
    last = uploads[-1][2]
    for name, p in trained.model.named_parameters():
        assert torch.equal(last[name], p.detach() + 0)
    assert len(list((tmp_path / "out").glob("checkpoint-*/model.safetensors"))) == (0 if strategy == "end" else 2)
    trained.engine.close()


def test_an_engine_pushes_what_it_saves(tmp_path, seed, uploads):
    with engine_for(model(seed), tmp_path) as engine:
        engine.push_to_hub("me/x", token="none")
        engine.save_pretrained(tmp_path / "out")
        assert "save_pretrained" not in vars(engine.module)
    [(_, names, weights)] = uploads
    saved = load_file(tmp_path / "out" / "model.safetensors")
    assert weights.keys() == saved.keys() and all(torch.equal(weights[name], saved[name]) for name in saved)
    assert "lm_head.weight" not in weights  # it is tied
    with engine_for(torch.nn.Linear(4, 4), tmp_path, name="linear") as engine:
        with pytest.raises(AttributeError, match="push_to_hub"):
            engine.push_to_hub("me/x")


def test_overwritten_when_asked(tmp_path, seed):
    with engine_for(model(seed), tmp_path) as engine:
        engine.save_pretrained(tmp_path / "out", max_shard_size="100KB")
        (tmp_path / "out" / "mine.bin").write_text("mine")
        (tmp_path / "out" / "training_args.bin").write_text("mine")
        with pytest.raises(longshore.ExistsError, match="overwrite=True"):
            engine.save_pretrained(tmp_path / "out")
        engine.save_pretrained(tmp_path / "out", moments=True, overwrite=True)
        engine.save_pretrained(tmp_path / "out", moments=True, overwrite=True)
        assert {p.name for p in (tmp_path / "out").iterdir()} == {
            "model.safetensors",
            "config.json",
            "generation_config.json",
            "mine.bin",
            "training_args.bin",
            "optimizer",
        }
        engine.save_pretrained(tmp_path / "out", max_shard_size="100KB", overwrite=True)
        assert not (tmp_path / "out" / "optimizer").exists()  # moments of weights that are gone
        assert not (tmp_path / "out" / "model.safetensors").exists()
    loaded = transformers.GPT2LMHeadModel.from_pretrained(tmp_path / "out")
    assert loaded.num_parameters() == model(seed).num_parameters()
