"""What fits a machine with a GPU, by calculation: prints a table of models for docs/gpu.md. Nothing is run.

    python bench/what_fits.py --gpu 24GiB --memory 64GiB --tokens 4096

Parameters are bfloat16, layers are checkpointed, and their inputs leave the GPU (activations="host" or "drives"). The
bytes of slots, pages and drives are those that wrap() plans; what PyTorch takes is estimated as estimate() says.
"""

import argparse
import tempfile
from unittest import mock

import torch
import transformers

from longshore import native
from longshore.drives.layout import Layout
from longshore.model import blocks as tree
from longshore.run import memory_plan, shared_budget

SHAPES = {  # vocabulary, width, inner width, layers, heads, key-value heads
    "Llama 1B": (128256, 2048, 8192, 16, 32, 8),
    "Llama 3B": (128256, 3072, 8192, 28, 24, 8),
    "Llama 8B": (128256, 4096, 14336, 32, 32, 8),
    "Qwen2.5 14B": (152064, 5120, 13824, 48, 40, 8),
    "Qwen2.5 32B": (152064, 5120, 27648, 64, 40, 8),
    "Llama 70B": (128256, 8192, 28672, 80, 64, 8),
    "Llama 405B": (128256, 16384, 53248, 126, 128, 8),
}
LORA_RANK = 16


def model_of(shape, lora):
    vocab, hidden, inner, layers, heads, groups = shape
    config = transformers.LlamaConfig(
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=groups,
        tie_word_embeddings=hidden < 4096,
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        if lora:
            import peft

            how = peft.LoraConfig(r=LORA_RANK, target_modules="all-linear", task_type="CAUSAL_LM")
            model = peft.get_peft_model(model, how, autocast_adapter_dtype=False)
    return model


def estimate(shape, tokens, lora):
    """Bytes that PyTorch takes on the GPU beside slots: what one layer's recomputed forward leaves for its backward,
    the logits with their gradient, and the gradient of the largest block."""
    vocab, hidden, inner, *_ = shape
    layer = tokens * (16 * hidden + 6 * inner) * 2
    logits = tokens * vocab * (2 + 4 + 4)
    matrix = 0 if lora else 2 * max(vocab * hidden, 2 * hidden * hidden + 3 * hidden * inner)
    return max(layer, logits) + matrix + tokens * hidden * 8


def planned(model, memory):
    """(bytes of the least slots, bytes of the least memory, bytes on the drives) of a model."""
    parts = tree.partition(model)
    tree.mark_rest(parts, model)
    layout = Layout(parts)
    how = {"optimizer": "adamw", "moments": "fp32", "storage": "bf16", "compute": "bf16", "activations": "drives"}
    with mock.patch.object(shared_budget, "within", lambda memory=None, least=0: memory or least):
        least = memory_plan.plan(layout, [tempfile.gettempdir()], memory, how, device=torch.device("cuda")).least_bytes
    slots = sum(max(map(layout.nbytes, side)) for side in layout.sides()) + layout.memory_bytes(0, layout.nbytes)
    # master, m and v twice, and a bf16 gradient's room; what is frozen once
    drives = sum(layout.elems(b) * (24 + 4 if block.trains else 4) for b, block in enumerate(layout.blocks))
    return slots, least, drives


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--gpu", default="24GiB", help="memory of the GPU, of which a tenth is left")
    p.add_argument("--memory", default="64GiB", help="of the machine, of which a quarter is left")
    p.add_argument("--tokens", type=int, default=4096, help="of one micro-batch")
    a = p.parse_args()
    gpu, memory = native.size(a.gpu) * 9 // 10, native.size(a.memory) * 3 // 4
    print(f"{a.tokens} tokens a micro-batch\n")
    print("| model | trains | GPU memory at least | memory at least | drives | fits |")
    print("|---|---|---:|---:|---:|---|")
    for name, shape in SHAPES.items():
        for lora in (False, True):
            slots, least, drives = planned(model_of(shape, lora), memory)
            there = slots + estimate(shape, a.tokens, lora)
            sizes = " | ".join(native.readable(size, up=True) for size in (there, least, drives))
            fits = "yes" if there <= gpu and least <= memory else "no"
            print(f"| {name} | {f'LoRA, rank {LORA_RANK}' if lora else 'all'} | {sizes} | {fits} |", flush=True)


if __name__ == "__main__":
    main()
