#!/usr/bin/env python3
"""Expected losses and gradients of the head: what PyTorch's cross_entropy makes of logits and targets of which some
are ignored, as a header for tests/numeric/compute__head.c.

    pip install torch
    python3 tests/numeric/make_head.py | clang-format >tests/numeric/head_expected.h
"""
import torch
import torch.nn.functional as F

ROWS, VOCAB = 5, 7
CASES = [[3, -1, 6, 0, -1], [5, 2, 0, 6, 4], [-1, -1, -1, 4, -1]]


def numbers(tensor):
    return "{" + ", ".join(f"{value:.9g}" for value in tensor.flatten().tolist()) + "}"


torch.manual_seed(7)
logits = (4 * torch.randn(ROWS, VOCAB)).requires_grad_()
print(f"/* Made by tests/numeric/make_head.py with PyTorch {torch.__version__.split('+')[0]}. */")
print(f"enum {{ ROWS = {ROWS}, VOCAB = {VOCAB} }};")
print(f"static const float given[ROWS * VOCAB] = {numbers(logits)};")
print("static const struct {\n    int32_t targets[ROWS];\n    float mean, loss[ROWS], dlogits[ROWS][VOCAB];\n} expected[] = {")
for targets in CASES:
    index = torch.tensor(targets)
    each = F.cross_entropy(logits, index, ignore_index=-1, reduction="none")
    mean = F.cross_entropy(logits, index, ignore_index=-1)
    gradient, = torch.autograd.grad(mean, logits)
    print(f"    {{{numbers(index)}, {mean.item():.9g}, {numbers(each)}, {{{', '.join(map(numbers, gradient))}}}}},")
print("};")
