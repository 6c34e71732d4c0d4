"""Training steps of small operators: seconds of processor time per step, printed as JSON; the first step is left out.

``mlp``: 64 samples through three layers, Adam. ``gru``: two layers over 50 time steps, forward and backward.
"""

import json
import sys
import time

import torch
from torch import nn


def mlp():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10))
    optimiser = torch.optim.Adam(model.parameters(), 1e-3)
    x, y = torch.randn(64, 64), torch.randint(0, 10, (64,))

    def step():
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()

    return step, 100


def gru():
    model, x = nn.GRU(64, 128, 2), torch.randn(50, 16, 64)

    def step():
        model.zero_grad()
        model(x)[0].square().mean().backward()

    return step, 5


def main():
    torch.set_num_threads(1)
    step, times = {"mlp": mlp, "gru": gru}[sys.argv[1]]()
    seconds = []
    for _ in range(times + 1):
        begin = time.process_time()
        step()
        seconds.append(time.process_time() - begin)
    print(json.dumps(seconds[1:]))


if __name__ == "__main__":
    main()
