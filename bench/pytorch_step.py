"""Times a training step of a PyTorch model, plain in memory or with its state on drives, and prints one line of JSON.

    python bench/pytorch_step.py --model gpt2-124m --with plain --precision fp32
    python bench/pytorch_step.py --model qwen2.5-0.5b --with longshore --memory 2GiB --storage bf16 --run /mnt/nvme/run

seconds: of each step after the first ones (--warm). processor: seconds of all threads, a step. resident_mib: the
largest resident size above what importing torch and transformers takes. fetched_mib: of parameters, a step. Weights are
random: no step's time depends on them.
"""

import argparse
import json
import os
import shutil
import statistics
import time

import torch
import transformers


def resident_mib(key="VmRSS"):
    with open("/proc/self/status", encoding="ascii") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key + ":")) / 1024


SHAPES = {
    "gpt2-124m": lambda: transformers.GPT2Config(attn_pdrop=0, embd_pdrop=0, resid_pdrop=0),
    "qwen2.5-0.5b": lambda: transformers.Qwen2Config(
        vocab_size=151936,
        hidden_size=896,
        intermediate_size=4864,
        num_hidden_layers=24,
        num_attention_heads=14,
        num_key_value_heads=2,
        max_position_embeddings=32768,
        rope_theta=1e6,
        tie_word_embeddings=True,
    ),
    "llama-60m": lambda: transformers.LlamaConfig(
        vocab_size=32000,
        hidden_size=512,
        intermediate_size=1376,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=8,
        max_position_embeddings=2048,
    ),
}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--model", choices=SHAPES, default="gpt2-124m")
    p.add_argument("--with", dest="engine", choices=["plain", "longshore"], default="longshore")
    p.add_argument(
        "--precision",
        choices=["fp32", "bf16", "autocast"],
        default="fp32",
        help="of the parameters; autocast: fp32 ones, bf16 products",
    )
    p.add_argument("--storage", choices=["fp32", "bf16"])
    p.add_argument("--memory")
    p.add_argument("--run", default="build/bench-run")
    p.add_argument("--drive", action="append")
    p.add_argument("--batch", type=int, default=4)
    p.add_argument("--seq-len", type=int, default=1024)
    p.add_argument("--accumulate", type=int, default=1)
    p.add_argument("--layer-major", action="store_true")
    p.add_argument("--checkpointing", action="store_true")
    p.add_argument("--compile", action="store_true", help="each layer, with inductor")
    p.add_argument("--activations", default="memory")
    p.add_argument("--passes", action="store_true", help="forward and backward alone, without the step")
    p.add_argument("--clip", type=float, default=1.0)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--warm", type=int, default=2, help="steps before those that are timed")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--profile", help="writes a profile of Python's functions there")
    a = p.parse_args()
    torch.set_num_threads(a.threads)
    torch.manual_seed(0)
    before = resident_mib()
    config = SHAPES[a.model]()
    config._attn_implementation = "sdpa"  # noqa: SLF001
    dtype = torch.bfloat16 if a.precision == "bf16" else torch.float32
    model_class = transformers.AutoModelForCausalLM

    if a.engine == "plain":
        model = model_class.from_config(config, dtype=dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
        for layer in (model.transformer.h if a.model.startswith("gpt2") else model.model.layers) if a.compile else ():
            layer.compile()
    else:
        import longshore
        from longshore.run.engine_surface import core_of

        shutil.rmtree(a.run, ignore_errors=True)
        with longshore.init(a.run, drives=a.drive, memory=a.memory):
            model = model_class.from_config(config, dtype=dtype)
        engine = longshore.wrap(
            model, lr=1e-4, clip=a.clip, storage=a.storage, activations=a.activations, compile=a.compile
        )
    model.train()
    if a.checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    x = torch.randint(0, config.vocab_size, (a.batch, a.seq_len))
    batches = [{"input_ids": x, "labels": x, "use_cache": False}] * a.accumulate

    def loss_of(output, _):
        return output.loss

    def step():
        if a.engine == "longshore" and a.layer_major:
            engine.train_batch(batches, loss_of)
            return
        for batch in batches:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=a.precision == "autocast"):
                loss = model(**batch).loss
            if a.passes:
                loss.backward() if a.engine == "plain" else engine.backward(loss, last=False)
            elif a.engine == "plain":
                (loss / a.accumulate).backward()
            else:
                engine.backward(loss)
        if a.passes:
            optimizer.zero_grad(set_to_none=True) if a.engine == "plain" else engine.drop_gradients()
        elif a.engine == "plain":
            torch.nn.utils.clip_grad_norm_(model.parameters(), a.clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        else:
            engine.step()

    if a.engine == "longshore":
        engine.accumulate = a.accumulate if not a.layer_major else 1
    for _ in range(a.warm):
        step()
    fetched = engine.fetched_bytes if a.engine == "longshore" else 0
    if a.profile:
        import cProfile

        profile = cProfile.Profile()
        profile.enable()
    seconds, processor = [], []
    for _ in range(a.steps):
        start, cpu = time.perf_counter(), time.process_time()
        step()
        seconds.append(time.perf_counter() - start)
        processor.append(time.process_time() - cpu)
    if a.profile:
        profile.disable()
        profile.dump_stats(a.profile)
    out = {
        "with": a.engine,
        "model": a.model,
        "precision": a.precision,
        "tokens": a.batch * a.seq_len * a.accumulate,
        "threads": a.threads,
        "median": round(statistics.median(seconds), 3),
        "seconds": [round(s, 3) for s in seconds],
        "processor": round(statistics.median(processor), 3),
        "resident_mib": round(resident_mib("VmHWM") - before),
        "torch": torch.__version__,
    }
    if a.engine == "longshore":
        out.update(
            storage=core_of(engine).how["storage"],
            memory=a.memory,
            slots=core_of(engine).streams.slots,
            fetched_mib=round((engine.fetched_bytes - fetched) / a.steps / 2**20, 1),
            layer_major=a.layer_major,
        )
        engine.close()
        shutil.rmtree(a.run, ignore_errors=True)
    print(json.dumps(out), flush=True)


main()
