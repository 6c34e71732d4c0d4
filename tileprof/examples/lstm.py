"""LSTM with random weights, unrolled cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

from tileprof.examples.parts.common import torch
from tileprof.examples.parts.recurrent import run


def main(argv: Sequence[str] | None = None) -> None:
    """Run the LSTM as ``argv`` asks and print one line."""
    run("lstm", torch.nn.LSTMCell, __doc__, argv)


if __name__ == "__main__":
    main()
