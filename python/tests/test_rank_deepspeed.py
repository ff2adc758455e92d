"""DeepSpeed's API on two ranks: the bits of one process, checkpoints, weights, collective operations."""

import os

import torch

import longshore.deepspeed as deepspeed
from models import gpt2, tokens
from rank_processes import results

RANKS = 2


def engine_of(place, **more):
    """place: nvme_path, in which the job makes a directory."""
    config = {
        "train_micro_batch_size_per_gpu": 2,
        "gradient_accumulation_steps": RANKS // int(os.environ.get("WORLD_SIZE", "1")),
        "gradient_clipping": 0.5,
        "optimizer": {"type": "AdamW", "params": {"lr": 1e-2}},
        "zero_optimization": {
            "stage": 3,
            "stage3_gather_16bit_weights_on_model_save": True,
            "offload_optimizer": {"device": "nvme", "nvme_path": str(place)},
        },
        "longshore": {"memory": "64MiB", "sum_groups": RANKS, **more},
    }
    torch.manual_seed(7)
    return deepspeed.initialize(model=gpt2(layers=2), config=config)[0]


def trains(engine, first, steps):
    for batch in tokens(RANKS * (first + steps), length=6)[RANKS * first :][engine.global_rank :: engine.world_size]:
        engine.backward(engine(**batch).loss)
        engine.step()


def train(place):
    engine = engine_of(place)
    assert engine.train_batch_size() == 2 * RANKS and engine.world_size == int(os.environ.get("WORLD_SIZE", "1"))
    trains(engine, 0, 2)
    engine.save_checkpoint(place / "saved")
    trains(engine, 2, 1)
    digest = engine.engine.digest()
    engine.load_checkpoint(place / "saved")
    trains(engine, 2, 1)
    assert engine.engine.digest() == digest and engine.save_16bit_model(place / "weights")
    out = torch.ones(1) * engine.global_rank
    deepspeed.comm.all_reduce(out)
    engine.destroy()
    return digest, int(out), engine.global_samples


def test_two_ranks_have_the_bits_of_one_process(tmp_path):
    alone = train(tmp_path / "alone")
    assert alone[1:] == (0, 2 * RANKS * 3)
    for said in results(RANKS, train, tmp_path / "ranks"):
        assert said == (alone[0], 1, alone[2])
    weights = [torch.load(tmp_path / name / "weights" / "pytorch_model.bin") for name in ("alone", "ranks")]
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(value, weights[1][name]) for name, value in weights[0].items())
    assert len(list((tmp_path / "ranks").glob("longshore-*"))) == 1
