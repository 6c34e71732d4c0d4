"""Google's neural machine translation (GNMT; Wu et al., 2016) with random weights, unrolled cell by cell.

An encoder of LSTMs, the first both ways and residual from the third on; a decoder of LSTMs whose first one asks an
attention over the encoder's states, and whose every layer gets the answer. The target is given, as in training.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, forward, parser, positive, print_result, torch

nn = torch.nn

FIRST_RESIDUAL = 2
"""The first layer that adds its input to its output: the third (section 3.1 of the paper)."""


def unrolled(cell: Any, steps: list[Any]) -> list[Any]:
    """Return the outputs of an LSTM cell for each step."""
    state, outputs = None, []
    for step in steps:
        state = cell(step, state)
        outputs.append(state[0])
    return outputs


class Encoder(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """``layers`` LSTMs; the first one reads both ways."""

    def __init__(self, layers: int, hidden: int) -> None:
        super().__init__()
        self.forwards = nn.LSTMCell(hidden, hidden)
        self.backwards = nn.LSTMCell(hidden, hidden)
        self.above = nn.ModuleList(nn.LSTMCell(hidden if n else 2 * hidden, hidden) for n in range(layers - 1))

    def forward(self, steps: list[Any]) -> list[Any]:
        """``[batch, hidden]`` for each word to as much."""
        ahead, back = unrolled(self.forwards, steps), unrolled(self.backwards, steps[::-1])[::-1]
        steps = [torch.cat(pair, dim=1) for pair in zip(ahead, back, strict=True)]
        for level, cell in enumerate(self.above, start=1):
            outputs = unrolled(cell, steps)
            residual = level >= FIRST_RESIDUAL
            steps = [a + b for a, b in zip(outputs, steps, strict=True)] if residual else outputs
        return steps


class Attention(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """The weighted mean of the encoder's states, by a small network (Bahdanau et al., 2015)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.score = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Any, keys: Any, states: Any) -> Any:
        """``[batch, hidden]``, and twice ``[batch, words, hidden]``, to ``[batch, hidden]``."""
        weights = self.score(torch.tanh(self.query(query).unsqueeze(1) + keys)).softmax(1)
        return (weights * states).sum(1)


class Gnmt(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Embeddings, encoder, attention, decoder, and the product to the vocabulary."""

    def __init__(self, layers: int, hidden: int, vocabulary: int) -> None:
        super().__init__()
        self.source = nn.Embedding(vocabulary, hidden)
        self.target = nn.Embedding(vocabulary, hidden)
        self.encoder = Encoder(layers, hidden)
        self.keys = nn.Linear(hidden, hidden, bias=False)
        self.attention = Attention(hidden)
        self.decoder = nn.ModuleList(nn.LSTMCell(2 * hidden, hidden) for _ in range(layers))
        self.words = nn.Linear(hidden, vocabulary)

    def forward(self, source: Any, target: Any) -> Any:
        """``[batch, words]`` twice to ``[batch, words, vocabulary]``."""
        states = torch.stack(self.encoder(list(self.source(source).unbind(1))), dim=1)
        keys = self.keys(states)
        context, outputs = torch.zeros_like(states[:, 0]), []
        memory: list[Any] = [None] * len(self.decoder)
        for word in self.target(target).unbind(1):
            value = word
            for level, cell in enumerate(self.decoder):
                memory[level] = cell(torch.cat([value, context], dim=1), memory[level])
                value = memory[level][0] + value if level >= FIRST_RESIDUAL else memory[level][0]
                if level == 0:
                    context = self.attention(value, keys, states)
            outputs.append(value)
        return self.words(torch.stack(outputs, dim=1))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the network as ``argv`` asks and print one line."""
    options = _options(argv)
    with building(options):
        model = Gnmt(options.layers, options.hidden, options.vocabulary).eval()
        source, target = (torch.randint(options.vocabulary, (options.batch, options.words)) for _ in range(2))
    print_result("gnmt", forward(model, source, target))


def _options(argv: Sequence[str] | None) -> Namespace:
    options = parser(__doc__, batch=4)
    options.add_argument("--layers", type=positive, default=8, help="LSTMs of the encoder, and of the decoder")
    options.add_argument("--hidden", type=positive, default=1024, help="width of states and embeddings")
    options.add_argument("--words", type=positive, default=8, help="words of a sentence")
    options.add_argument("--vocabulary", type=positive, default=32000, help="pieces of words")
    return options.parse_args(argv)


if __name__ == "__main__":
    main()
