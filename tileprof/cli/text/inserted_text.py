"""Bloom filters that thread blocks filled, as text for a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

from tileprof.analysis.times_and_counts import duration
from tileprof.cli.text.console import plain

if TYPE_CHECKING:
    from rich.console import Console

    from tileprof.analysis.simulate.filters.inserted import InsertedReport

_MOST_KERNELS = 10


def print_inserted(report: InsertedReport, console: Console) -> None:
    """Print what the filters answer, and what filling them costs the blocks of each kernel."""
    a = report.answers
    console.print()
    console.print(
        Text(
            f"Bloom filters of {report.bits:,} bits, {report.hashes} hashes, granules of {report.granule} bytes, which "
            f"the blocks of {report.launches:,} launches filled ({a.full:,} of {a.filters:,} filters have all bits):"
        )
    )
    console.print(
        Text(
            f"  of {a.pairs:,} pairs of blocks within {report.window} launches {a.dependent:,} depend on each other; "
            f"the filters answer yes for {a.answered:,}: {a.false:,} falsely, of which {a.granular:,} share a granule; "
            f"{a.missed:,} missed. A block that asks with the ranges of its kernel's arguments gets yes {a.declared:,} "
            "times"
        )
    )
    if not report.filling:
        return
    table = Table("kernel", "launches", "a block runs", "filling filters", box=None, pad_edge=False)
    longest = sorted(report.filling, key=lambda f: -f.filling_ns * f.launches)[:_MOST_KERNELS]
    for f in longest:
        table.add_row(plain(f.kernel), f"{f.launches:,}", duration(f.plain_ns), duration(f.filling_ns))
    console.print(table)
