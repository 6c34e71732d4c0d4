"""The rows of `tileprof.runtime.measuring.measure` for a reader: ``python -m tests.gpu.measuring.chains.chain_summary
OUT.json`` prints Markdown, every chain, losses too.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

Row = Mapping[str, Any]
Rows = Mapping[str, Row]

_KERNELS: Final = (
    ("persistent-stages", "persistent-pdl", "persistent", "persistent-unsynchronised"),
    ("graph", "pdl", "cusync", "unsynchronised"),
)
"""Stream order, programmatic launch, synchronised, without waits: of the persistent kernel, and of Triton's."""

_TORCH: Final = "PyTorch in a graph"
_COMPILED: Final = "torch.compile max-autotune"

_HEAD: Final = (
    "chain",
    "roof",
    "PyTorch",
    "stream order",
    "PDL",
    "synchronised",
    "no waits",
    "gain",
    "predicted",
    "PyTorch / sync.",
    "sync. / roof",
)


def by_chain(rows: Iterable[Row]) -> dict[str, dict[str, Row]]:
    """Return rows by chain and by name."""
    rows_of: dict[str, dict[str, Row]] = {}
    for row in rows:
        rows_of.setdefault(row["chain"], {})[row["row"]] = row
    return rows_of


def gain(chain: Rows) -> float | None:
    """Return what synchronisation gains over the same kernels in stream order, as a share of that."""
    stream, _, synchronised, _ = _of(chain)
    return None if stream is None or synchronised is None else 1 - synchronised["us"] / stream["us"]


def markdown(results: Mapping[str, Any]) -> str:
    """Return one table per kind of chain, each with its means below."""
    kinds: dict[str, dict[str, Rows]] = {}
    for name, chain in by_chain(results["rows"]).items():
        for rows in _by_kernel(chain):
            kinds.setdefault(_kind(name, rows), {})[name] = rows
    parts = [f"{kind}\n\n{_table(chains)}{_means(list(chains.values()))}" for kind, chains in kinds.items()]
    return "\n\n".join(parts) + "\n"


def _by_kernel(chain: Rows) -> list[Rows]:
    """Return the chain's rows with the persistent kernel's alone, and with Triton's alone, if it has both."""
    kernel_names = [name for names in _KERNELS for name in names]
    others = {name: row for name, row in chain.items() if name not in kernel_names}
    parts = [{n: chain[n] for n in names if n in chain} for names in _KERNELS]
    return [others | part for part in parts if part] or [chain]


def _kind(name: str, chain: Rows) -> str:
    kernel = "the persistent kernel" if "persistent" in chain else "Triton's kernels"
    return f"### {name.split(',', maxsplit=1)[0] if 'convolutions' not in name else 'Two 3x3 convolutions'}, {kernel}"


def _of(chain: Rows) -> tuple[Row | None, ...]:
    names = _KERNELS[0] if "persistent" in chain else _KERNELS[1]
    return tuple(chain.get(name) for name in names)


def _table(chains: Mapping[str, Rows]) -> str:
    more = any(_COMPILED in chain for chain in chains.values())
    head = [*_HEAD[:3], *(["torch.compile"] if more else []), *_HEAD[3:]]
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    for name, chain in chains.items():
        cells = _cells(name, chain)
        lines.append(f"| {' | '.join([*cells[:3], *([_us(chain.get(_COMPILED))] if more else []), *cells[3:]])} |")
    return "\n".join(lines)


def _cells(name: str, chain: Rows) -> list[str]:
    torch, kinds = chain.get(_TORCH), _of(chain)
    synchronised = kinds[2] or next(iter(chain.values()))
    share, expected = gain(chain), synchronised.get("predicted_gain")
    return [
        name,
        f"{synchronised['roof_us']:.1f}",
        _us(torch),
        *(_us(row) for row in kinds),
        "" if share is None else f"{100 * share:+.1f}%",
        "" if expected is None else f"{100 * expected:+.1f}%{'' if expected > 0 else ' *'}",
        f"{torch['us'] / synchronised['us']:.2f}" if torch else "",
        f"{synchronised['over_roof']:.2f}",
    ]


def _us(row: Row | None) -> str:
    if row is None:
        return ""
    if "us" not in row:
        return str(row["said"])
    wrong = row["correct"] is False and "unsynchronised" not in row["row"]
    return f"{row['us']:.1f}{' (wrong)' if wrong else ''}"


def _means(chains: Sequence[Rows]) -> str:
    """Return geometric means, where there is something to average."""
    ratios = [1 / (1 - share) for chain in chains if (share := gain(chain)) is not None]
    torch = [
        row["us"] / synchronised["us"]
        for chain in chains
        if (row := chain.get(_TORCH)) and (synchronised := _of(chain)[2])
    ]
    compiled = [
        row["us"] / synchronised["us"]
        for chain in chains
        if "us" in (row := chain.get(_COMPILED, {})) and (synchronised := _of(chain)[2])
    ]
    means = [
        f"{len(values)} {what}: {mean(values):.3f}x (geometric mean; {min(values):.2f} to {max(values):.2f})"
        for values, what in ((ratios, "gains"), (torch, "against PyTorch"), (compiled, "against torch.compile"))
        if len(values) > 1
    ]
    return "\n\n" + "; ".join(means) + "." if means else ""


def mean(values: Sequence[float]) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, values)) / len(values))


def main(arguments: Sequence[str]) -> None:
    """See the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.measuring.chains.chain_summary", description=__doc__)
    parser.add_argument(
        "rows", metavar="OUT.json", type=Path, help="rows that tileprof.runtime.measuring.measure wrote"
    )
    path = parser.parse_args(arguments).rows
    try:
        results = json.loads(path.read_text(encoding="utf-8"))
        table = markdown(results)
    except OSError as error:
        parser.error(f"cannot read {path}: {error.strerror}")
    except (ValueError, LookupError, TypeError):
        parser.error(f"{path} holds no rows of python -m tileprof.runtime.measuring.measure")
    sys.stdout.write(table)


if __name__ == "__main__":
    main(sys.argv[1:])
