"""Optimizer classes beside torch.optim's: those that ask for a variant, those that make no state, and those that torch
lacks.

An optimizer that torch.optim lacks is a torch.optim.Optimizer whose __init__() has its numbers and their defaults. It
needs no step(), because the engine makes the steps."""

import torch


class AdamW8bit(torch.optim.AdamW):
    """Asks for the engine's AdamW with 8-bit moments."""


class EmptyAdagrad(torch.optim.Adagrad):
    """torch.optim's Adagrad without its sums, which it would make in memory for all parameters at once."""

    def __init__(self, params, **numbers):
        one = torch.optim.Adagrad([torch.nn.Parameter(torch.empty(0, device="cpu"))], **numbers)
        torch.optim.Optimizer.__init__(self, params, one.defaults)
