"""Memory that activations take in a step of a PyTorch model, and its time, plain or with activations on drives; prints
one line of JSON.

    python bench/pytorch_activations.py --model bert --with plain
    python bench/pytorch_activations.py --model bert --with drives --run /mnt/nvme/run

peak_mib: the most that tensors' storages, made in forward and backward, take together with the pool that activations
pass through; without gradients of parameters, which both keep. It is taken in a step of its own; seconds and processor
(of all threads) are of steps that nobody watches. went_mib: what left memory, a step.
"""

import argparse
import json
import os
import shutil
import statistics
import time
import weakref

import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MODELS = {  # configuration, class, what it is given beside the labels
    "gpt": (lambda: transformers.GPT2Config(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0), transformers.GPT2LMHeadModel),
    "bert": (
        lambda: transformers.BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0),
        transformers.BertForMaskedLM,
    ),
    # t5-small's shape
    "t5": (
        lambda: transformers.T5Config(dropout_rate=0, decoder_start_token_id=0),
        transformers.T5ForConditionalGeneration,
    ),
    "llama": (
        lambda: transformers.LlamaConfig(
            vocab_size=32000, hidden_size=768, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=12
        ),
        transformers.LlamaForCausalLM,
    ),
}


class Tracked(TorchDispatchMode):
    """Bytes of the storages that operations have made and that are still there."""

    def __init__(self, gradients):
        super().__init__()
        self.gradients = gradients
        self.now = self.most = 0
        self.known = weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor) and t.device.type == "cpu" and t.layout == torch.strided:
                self._see(t.untyped_storage())
        self.most = max(self.most, self.now - self.gradients())
        return out

    def _see(self, storage):
        if storage in self.known:
            return
        self.known.add(storage)
        self.now += storage.nbytes()
        weakref.finalize(storage, self._gone, storage.nbytes())

    def _gone(self, nbytes):
        self.now -= nbytes


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=MODELS, default="gpt")
    p.add_argument("--with", dest="how", choices=["plain", "memory", "drives", "auto"], default="drives")
    p.add_argument("--precision", choices=["fp32", "bf16"], default="fp32")
    p.add_argument("--memory", default="4GiB")
    p.add_argument("--run", default="build/bench-run")
    p.add_argument("--batch", type=int, default=8)
    p.add_argument("--seq-len", type=int, default=512)
    p.add_argument("--steps", type=int, default=3)
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    make_config, model_class = MODELS[a.model]
    config = make_config()
    model = model_class(config).to(torch.bfloat16 if a.precision == "bf16" else torch.float32).train()
    engine = None
    if a.how != "plain":
        import longshore
        from longshore.run.engine_surface import core_of

        shutil.rmtree(a.run, ignore_errors=True)
        engine = longshore.wrap(model, run=a.run, memory=a.memory, activations=a.how)
    x = torch.randint(2, config.vocab_size, (a.batch, a.seq_len))
    batch = (
        {"input_ids": x, "labels": x}
        if a.model in ("t5", "bert")
        else {"input_ids": x, "labels": x, "use_cache": False}
    )

    def step():
        loss = model(**batch).loss
        if engine is None:
            loss.backward()
            model.zero_grad(set_to_none=True)
        else:
            engine.backward(loss, last=False)
            engine.drop_gradients()

    held = {}

    def gradients():
        return sum(held.values()) if engine is None else core_of(engine).gradients.held_bytes

    seconds, processor = [], []
    for _ in range(a.steps + 1):
        start, cpu = time.perf_counter(), time.process_time()
        step()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - cpu)
    store = core_of(engine).streams.activations if engine is not None else None
    went = store.counts.taken_bytes if store else 0
    if engine is None:
        for q in model.parameters():
            q.register_post_accumulate_grad_hook(lambda q: held.__setitem__(id(q), q.grad.nbytes))
    with Tracked(gradients) as tracked:
        step()
    print(
        json.dumps(
            {
                "with": a.how,
                "model": a.model,
                "precision": a.precision,
                "threads": a.threads,
                "peak_mib": round((tracked.most + (store.pool_bytes if store else 0)) / 2**20, 1),
                "median": round(statistics.median(seconds[1:]), 3),
                "seconds": [round(s, 3) for s in seconds[1:]],
                "processor": round(statistics.median(processor[1:]), 3),
                "went_mib": round((store.counts.taken_bytes - went) / 2**20, 1) if store else 0,
                "pool_mib": round(store.pool_bytes / 2**20, 1) if store else 0,
                "torch": torch.__version__,
            }
        ),
        flush=True,
    )
    if engine is not None:
        engine.close()
        shutil.rmtree(a.run, ignore_errors=True)


main()
