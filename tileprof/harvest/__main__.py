"""``python -m tileprof.harvest FAMILY -o DIR``: see the package."""

from __future__ import annotations

import sys
from argparse import ArgumentParser
from importlib import import_module
from pathlib import Path
from typing import Final

from tileprof.errors import UserError
from tileprof.harvest.slices import harvest

FAMILIES: Final = {
    "attention": ("tileprof.harvest.attention", "FAMILY"),
    "convolutions": ("tileprof.harvest.convolutions.convolution_calls", "FAMILY"),
    "products": ("tileprof.harvest.products.product_calls", "FAMILY"),
    "operators": ("tileprof.harvest.operators", "FAMILY"),
    "resident_convolutions": ("tileprof.harvest.resident", "CONVOLUTIONS"),
    "resident_products": ("tileprof.harvest.resident", "PRODUCTS"),
}
"""Modules of families, and their names in them; modules are loaded when they are asked for."""


def _part(text: str) -> tuple[int, int]:
    part, parts = map(int, text.split("/"))
    if not 0 <= part < parts:
        raise ValueError(text)
    return part, parts


def main(words: list[str] | None = None) -> int:
    """Harvest; 0 when every case is there, 3 when time ran out before, 2 when nothing was measured."""
    parser = ArgumentParser("python -m tileprof.harvest", description="measure which kernels this GPU's libraries run")
    parser.add_argument("family", choices=FAMILIES)
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR", help="folder for slices")
    parser.add_argument("--seconds", type=float, default=540, help="seconds after which it ends (default: %(default)s)")
    parser.add_argument(
        "--part",
        type=_part,
        default=(0, 1),
        metavar="K/N",
        help="every N-th case from the K-th one on, for N processes",
    )
    parser.add_argument(
        "--turn", type=Path, metavar="FILE", help="processes with the same FILE time in turn (they prepare together)"
    )
    options = parser.parse_args(words)
    try:
        module, name = FAMILIES[options.family]
        family = getattr(import_module(module), name)
        complete = harvest(family, options.output, options.seconds, part=options.part, turn=options.turn)
    except UserError as error:
        sys.stderr.write(f"tileprof.harvest: {error}\n")
        return error.exit_code
    sys.stderr.write("all cases are there\n" if complete else "time is up: the same command goes on\n")
    return 0 if complete else 3


if __name__ == "__main__":
    sys.exit(main())
