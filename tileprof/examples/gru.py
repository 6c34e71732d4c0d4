"""GRU with random weights, unrolled cell by cell."""

from __future__ import annotations

from collections.abc import Sequence

from tileprof.examples.parts.common import torch
from tileprof.examples.parts.recurrent import run


def main(argv: Sequence[str] | None = None) -> None:
    """Run the GRU as ``argv`` asks and print one line."""
    run("gru", torch.nn.GRUCell, __doc__, argv)


if __name__ == "__main__":
    main()
