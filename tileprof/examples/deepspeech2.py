"""Deep Speech 2 (Amodei et al., 2016) with random weights: convolutions over a spectrogram, then GRUs both ways.

Two 2-d convolutions with batch normalisation and a ReLU clipped at 20, a stack of bidirectional GRUs whose directions
are added, unrolled cell by cell, and a product to the letters. The directions of a layer do not depend on each other.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, forward, parser, positive, print_result, torch

nn = torch.nn

BINS, LETTERS, CHANNELS = 161, 29, 32
"""Frequencies of a frame (20 ms at 16 kHz), possible outputs of a step, and channels of the convolutions."""


class Bidirectional(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A layer of GRU cells, one forwards and one backwards in time; its output is their sum."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.GRUCell(inputs, hidden)
        self.backwards = nn.GRUCell(inputs, hidden)

    def forward(self, steps: list[Any]) -> list[Any]:
        """``[batch, inputs]`` for each step to ``[batch, hidden]`` for each step."""
        ahead = _unrolled(self.forwards, steps)
        back = _unrolled(self.backwards, steps[::-1])[::-1]
        return [a + b for a, b in zip(ahead, back, strict=True)]


def _unrolled(cell: Any, steps: list[Any]) -> list[Any]:
    states: list[Any] = []
    for step in steps:
        states.append(cell(step, states[-1] if states else None))
    return states


class DeepSpeech2(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The network of section 3 of the paper, without its sequence-wise normalisation of GRUs."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.convolutions = nn.Sequential(
            nn.Conv2d(1, CHANNELS, (41, 11), stride=(2, 2), padding=(20, 5), bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.Hardtanh(0, 20),
            nn.Conv2d(CHANNELS, CHANNELS, (21, 11), stride=(2, 1), padding=(10, 5), bias=False),
            nn.BatchNorm2d(CHANNELS),
            nn.Hardtanh(0, 20),
        )
        inputs = CHANNELS * (((BINS + 1) // 2 + 1) // 2)
        self.layers = nn.ModuleList(Bidirectional(hidden if n else inputs, hidden) for n in range(layers))
        self.letters = nn.Linear(hidden, LETTERS, bias=False)

    def forward(self, spectrogram: Any) -> Any:
        """``[batch, 1, bins, frames]`` to ``[batch, steps, letters]``; a step is two frames."""
        features = self.convolutions(spectrogram).flatten(1, 2)
        steps = list(features.unbind(2))
        for layer in self.layers:
            steps = layer(steps)
        return self.letters(torch.stack(steps, dim=1)).log_softmax(-1)


def main(argv: Sequence[str] | None = None) -> None:
    """Run the network as ``argv`` asks and print one line."""
    options = _options(argv)
    with building(options):
        model = DeepSpeech2(options.layers, options.hidden).eval()
        spectrogram = torch.randn(options.batch, 1, BINS, options.frames)
    print_result("deepspeech2", forward(model, spectrogram))


def _options(argv: Sequence[str] | None) -> Namespace:
    options = parser(__doc__, batch=4)
    options.add_argument("--layers", type=positive, default=5, help="bidirectional layers")
    options.add_argument("--hidden", type=positive, default=800, help="width of a GRU's state")
    options.add_argument("--frames", type=positive, default=32, help="frames of the spectrogram")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
