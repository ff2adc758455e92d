#!/usr/bin/env python3
"""A network that is no language model: a small residual CNN learns which quarter of an image is bright, state on a
drive.

    python examples/python/any_module.py runs/cnn
"""

import sys

import torch
from torch import nn
from torch.nn import functional as F

import longshore


class Residual(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.convolution = nn.Conv2d(width, width, 3, padding=1)
        self.norm = nn.BatchNorm2d(width)

    def forward(self, x):
        return x + F.relu(self.norm(self.convolution(x)))


class Network(nn.Module):
    def __init__(self, width=16, depth=4):
        super().__init__()
        self.stem = nn.Conv2d(1, width, 3, padding=1)
        self.layers = nn.ModuleList(Residual(width) for _ in range(depth))  # each is a block of its own
        self.head = nn.Linear(width * 16, 4)

    def forward(self, x):
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(F.adaptive_avg_pool2d(x, 4).flatten(1))


def images(step, n=32):
    generator = torch.Generator().manual_seed(step)
    x, y = torch.randn(n, 1, 16, 16, generator=generator), torch.randint(0, 4, (n,), generator=generator)
    for i, quarter in enumerate(y.tolist()):
        x[i, 0, quarter // 2 * 8 : quarter // 2 * 8 + 8, quarter % 2 * 8 : quarter % 2 * 8 + 8] += 1
    return x, y


def main(run):
    torch.manual_seed(0)
    with longshore.wrap(Network(), run=run, lr=3e-3, weight_decay=0.01) as engine:
        for step in range(30):
            x, y = (t.to(engine.device) for t in images(step))
            loss = F.cross_entropy(engine(x), y)
            engine.backward(loss)
            result = engine.step()
            if result.step % 10 == 0:
                print(f"step {result.step} loss {result.loss:.4f}")
        engine.eval()
        x, y = (t.to(engine.device) for t in images(1000, 256))
        with torch.no_grad():
            print(f"right: {(engine(x).argmax(1) == y).float().mean():.0%}")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: any_module.py RUN")
    main(sys.argv[1])
