"""The rows of gpu.sh: each trains one shape with the package, beside it with plain PyTorch, and prints lines of JSON.

    python bench/gpu.py --list
    python bench/gpu.py drive-1b
    python bench/gpu.py --table DIRECTORY ROW...

A row's last line is its figure: {"name", "value", "limit", "most"}; the value is to be `limit` at least, or at most
where `most` is true. The other lines are what it was made of. Weights are random: no step's time depends on them.
DEVICE: a device of PyTorch's, by default the accelerator. SIZE=tiny: small shapes. DRIVE: a directory on the drive.
"""

import contextlib
import gc
import json
import os
import pathlib
import shutil
import statistics
import sys
import time
from unittest import mock

import torch
import transformers

GIB = 1 << 30
TINY = os.environ.get("SIZE") == "tiny"
DRIVE = os.environ.get("DRIVE", "runs/bench")
DEVICE = torch.device(os.environ.get("DEVICE") or torch.accelerator.current_accelerator() or "cpu")
RUN = os.path.join(DRIVE, "gpu-run")


def llama(hidden, inner, layers, heads, vocab=128256):
    return transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads // 4,
        max_position_embeddings=1 << 17,
        tie_word_embeddings=True,
    )


def shape(name):
    if TINY:
        if name == "gpt2-1.5b":
            return transformers.GPT2Config(
                vocab_size=512, n_layer=3, n_embd=64, n_head=4, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
            )
        return llama(64, 128, 3, 4, 512)
    return {
        "llama-1b": lambda: llama(2048, 8192, 16, 32),
        "llama-3b": lambda: llama(3072, 8192, 28, 24),
        "gpt2-1.5b": lambda: transformers.GPT2Config(
            n_layer=48, n_embd=1600, n_head=25, attn_pdrop=0, embd_pdrop=0, resid_pdrop=0
        ),
        "llama-60m": lambda: llama(512, 1376, 8, 8, 32000),
    }[name]()


def made(name, dtype=torch.bfloat16, checkpointing=False):
    """A model on the CPU with random weights, made quickly."""
    config = shape(name)
    config._attn_implementation = "sdpa"  # noqa: SLF001
    nothing = mock.Mock(return_value=None)
    with contextlib.ExitStack() as without:
        for of in (torch.nn.Linear, torch.nn.Embedding):
            without.enter_context(mock.patch.object(of, "reset_parameters", nothing))
        without.enter_context(mock.patch.object(torch.nn.init, "normal_", nothing))
        without.enter_context(
            mock.patch.object(transformers.PreTrainedModel, "init_weights", lambda m: m.tie_weights())
        )
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=dtype)
    some = torch.randn(1 << 20, generator=torch.Generator().manual_seed(1)).mul_(0.02).to(dtype)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 1:
                parameter.fill_(0 if name.endswith("bias") else 1)
                continue
            flat = parameter.view(-1)
            for first in range(0, flat.numel(), some.numel()):
                flat[first : first + some.numel()] = some[: flat.numel() - first]
    model.train()
    if checkpointing:
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return model


def batches_of(model, count, rows, length, device=None):
    length = length // 64 if TINY else length
    g = torch.Generator().manual_seed(5)
    ids = [torch.randint(model.config.vocab_size, (rows, length), generator=g) for _ in range(count)]
    return [{"input_ids": x, "labels": x, "use_cache": False} for x in (x.to(device or DEVICE) for x in ids)]


def wait():
    if DEVICE.type != "cpu":
        torch.accelerator.synchronize()


def peak(reset=False):
    """The most bytes of the device's memory since the last reset."""
    if DEVICE.type == "cpu":
        return 0
    most = torch.accelerator.max_memory_allocated()
    if reset:
        torch.accelerator.reset_peak_memory_stats()
    return most


def timed(step, times=3, warm=1):
    """Median seconds of a step."""
    for _ in range(warm):
        step()
    seconds = []
    for _ in range(times):
        wait()
        start = time.perf_counter()
        step()
        wait()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def say(**what):
    print(json.dumps({k: round(v, 6) if isinstance(v, float) else v for k, v in what.items()}), flush=True)


def figure(name, value, limit, most=False):
    say(name=name, value=value, limit=limit, most=most)


def loss_of(output, _batch):
    return output.loss


def free():
    gc.collect()
    if DEVICE.type != "cpu":
        torch.accelerator.empty_cache()
        peak(reset=True)


def plain(name, batches, dtype=torch.bfloat16, optimizer=True, checkpointing=False, times=3):
    """(seconds of a step, peak bytes of the device) of PyTorch in the device's memory."""
    free()
    model = made(name, dtype, checkpointing).to(DEVICE)
    there = [{k: v.to(DEVICE) if torch.is_tensor(v) else v for k, v in b.items()} for b in batches(model)]
    adam = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=DEVICE.type == "cuda") if optimizer else None

    def step():
        for batch in there:
            (model(**batch).loss / len(there)).backward()
        if adam:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
        model.zero_grad(set_to_none=True)

    return timed(step, times), peak()


def wrapped(model, drives=None, **how):
    import longshore

    shutil.rmtree(RUN, ignore_errors=True)
    free()
    how.setdefault("clip", 1.0)
    return longshore.wrap(model, run=RUN, drives=drives or [DRIVE], lr=1e-4, device=DEVICE, **how)


def ours(name, batches, dtype=torch.bfloat16, checkpointing=False, times=3, warm=2, **how):
    """The same of the package, one step of all batches together."""
    engine = wrapped(made(name, dtype, checkpointing), **how)
    there = batches(engine.module)
    before = peak()
    seconds = timed(lambda: engine.train_batch(there, loss_of), times, warm)
    most = peak()
    say(shape=name, seconds=seconds, peak_gib=most / GIB, before_gib=before / GIB, plan=str(engine.memory()))
    engine.close()
    shutil.rmtree(RUN, ignore_errors=True)
    return seconds, most


def gpu(size):
    return {"gpu_memory": size} if DEVICE.type != "cpu" else {}


# ---- rows, in the order in which they are wanted


def drive_1b():
    """The slower of the GPU alone and of the drive alone, beside a step that has both."""

    def batches(rows, length):
        return lambda model: batches_of(model, 8, rows, length)

    memory = "64MiB" if TINY else "48GiB"
    step, _ = ours("llama-1b", batches(4, 2048), memory=memory)
    drive, _ = ours("llama-1b", batches(1, 64 if TINY else 16), memory=memory)
    alone, _ = plain("llama-1b", batches(4, 2048), optimizer=False)
    say(step=step, drive_alone=drive, gpu_alone=alone)
    figure(
        "1B shape on the drive, 32 x 2,048 tokens: max(GPU alone, drive alone) / step", max(alone, drive) / step, 0.9
    )


def ram_3b():
    def batches(model):
        return batches_of(model, 8, 4, 1024)

    drives = ["ram:"]
    alone, there = plain("llama-3b", batches)
    step, _ = ours("llama-3b", batches, drives=drives, memory="64MiB" if TINY else "24GiB")
    say(step=step, plain=alone, plain_gib=there / GIB)
    figure("3B shape in host memory, 8 x 4 x 1,024 tokens: speed / PyTorch in GPU memory", alone / step, 0.85)


def memory_3b():
    def batches(model):
        return batches_of(model, 1, 4, 1024)

    drives = ["ram:"]
    memory = "64MiB" if TINY else "16GiB"
    how = {} if TINY else gpu("4GiB")
    _, most = ours("llama-3b", batches, checkpointing=True, times=1, drives=drives, memory=memory, **how)
    figure("3B shape, 4 x 1,024 tokens: GiB of GPU memory", most / GIB, 4, most=True)


def activations_gpt2():
    def batches(model):
        return batches_of(model, 1, 8, 1024)

    how = {"memory": "256MiB" if TINY else "64GiB", "times": 2}
    limited = {} if TINY else gpu("10GiB")
    again, _ = ours("gpt2-1.5b", batches, checkpointing=True, **how)
    kind = "drives" if DEVICE.type == "cpu" else "host"
    moved, most = ours("gpt2-1.5b", batches, activations=kind, **how, **limited)
    say(checkpointing=again, moved=moved, peak_gib=most / GIB)
    figure("GPT-2 1.5B, 8 x 1,024 tokens, activations away: time / with checkpointing", moved / again, 1.0, most=True)


def long_1b():
    def batches(model):
        return batches_of(model, 1, 1, 1 << 17)

    kind = "drives" if DEVICE.type == "cpu" else "host"
    how = {"memory": "256MiB" if TINY else "64GiB", "activations": kind, **({} if TINY else gpu("16GiB"))}
    _, most = ours("llama-1b", batches, checkpointing=True, times=1, warm=1, **how)
    figure("1B shape, one sequence of 128k tokens: GiB of GPU memory", most / GIB, 16, most=True)


def losses():
    """The largest relative difference of 20 losses in fp32, with deterministic algorithms."""
    torch.use_deterministic_algorithms(True)
    torch.backends.cuda.matmul.allow_tf32 = False
    names = ["llama-60m"]
    worst = 0.0
    for name in names:
        model = made(name, torch.float32).to(DEVICE)
        batches = batches_of(model, 20, 2, 512)
        adam = torch.optim.AdamW(model.parameters(), lr=1e-4, betas=(0.9, 0.999), weight_decay=0.01)
        theirs = []
        for batch in batches:
            loss = model(**batch).loss
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            adam.step()
            adam.zero_grad()
            theirs.append(loss.item())
        del model, adam
        engine = wrapped(made(name, torch.float32), memory="1GiB", betas=(0.9, 0.999), weight_decay=0.01)
        for batch, there in zip(batches, theirs):
            here = engine.train_batch([batch], loss_of).loss
            worst = max(worst, abs(here - there) / abs(there))
        engine.close()
    figure("loss against plain PyTorch, fp32, 20 steps: relative difference", worst, 2e-6, most=True)


def deepspeed(name, offload, batches, count, rows):
    """Seconds of a step of DeepSpeed's ZeRO-3, set up as its documentation says."""
    import deepspeed as theirs

    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT="29533")
    where = {"device": offload, "pin_memory": True}
    if offload == "nvme":
        where["nvme_path"] = os.path.join(DRIVE, "deepspeed")
    model = made(name)
    engine, *_ = theirs.initialize(
        model=model,
        model_parameters=model.parameters(),
        config={
            "train_micro_batch_size_per_gpu": rows,
            "gradient_accumulation_steps": count,
            "bf16": {"enabled": True},
            "gradient_clipping": 1.0,
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}},
            "zero_optimization": {
                "stage": 3,
                "overlap_comm": True,
                "contiguous_gradients": True,
                "offload_optimizer": where,
                "offload_param": where,
            },
        },
    )
    there = batches(engine.module)

    def step():
        for batch in there:
            engine.backward(engine(**batch).loss)
            engine.step()

    return timed(step, times=1)


def deepspeed_3b():
    def batches(model):
        return batches_of(model, 8, 4, 1024)

    theirs = deepspeed("llama-3b", "cpu", batches, 8, 4)
    free()
    step, _ = ours("llama-3b", batches, drives=["ram:"], memory="24GiB")
    say(step=step, deepspeed=theirs)
    figure("3B shape, 8 x 4 x 1,024 tokens: speed / DeepSpeed ZeRO-3 with CPU offload", theirs / step, 3)


def deepspeed_gpt2():
    def batches(model):
        return batches_of(model, 1, 8, 1024)

    theirs = deepspeed("gpt2-1.5b", "nvme", batches, 1, 8)
    free()
    step, _ = ours("gpt2-1.5b", batches, memory="48GiB")
    say(step=step, deepspeed=theirs)
    figure("GPT-2 1.5B on the drive, 8 x 1,024 tokens: speed / DeepSpeed ZeRO-3 NVMe", theirs / step, 2)


ROWS = {
    "losses": losses,
    "drive-1b": drive_1b,
    "ram-3b": ram_3b,
    "memory-3b": memory_3b,
    "activations-gpt2": activations_gpt2,
    "long-1b": long_1b,
    "deepspeed-3b": deepspeed_3b,
    "deepspeed-gpt2": deepspeed_gpt2,
}


def table(directory, rows):
    device = DEVICE.type if DEVICE.type == "cpu" else f"{torch.get_device_module(DEVICE).get_device_name()}"
    print(f"# {device}, PyTorch {torch.__version__}, {os.cpu_count()} processors" + (", tiny shapes" if TINY else ""))
    for row in rows:
        why, found = pathlib.Path(directory, f"{row}.why"), {}
        written = pathlib.Path(directory, f"{row}.json")
        for line in written.read_text().splitlines() if written.exists() else ():
            found = json.loads(line)
        if why.exists() or "limit" not in found:
            print(f"{row:18} {why.read_text().strip() if why.exists() else 'failed: no figure'}")
            continue
        good = found["value"] <= found["limit"] if found["most"] else found["value"] >= found["limit"]
        bound = f"at {'most' if found['most'] else 'least'} {found['limit']:g}"
        print(f"{row:18} {found['value']:10.4g}  ({bound})  {'ok' if good else 'MISSED'}  {found['name']}")


if __name__ == "__main__":
    if sys.argv[1:] == ["--list"]:
        print("\n".join(ROWS))
    elif sys.argv[1:2] == ["--table"]:
        table(sys.argv[2], sys.argv[3:])
    elif len(sys.argv) == 2 and sys.argv[1] in ROWS:
        ROWS[sys.argv[1]]()
    else:
        sys.exit(__doc__)
