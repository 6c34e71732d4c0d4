"""The model recorder against an H200: the programs of the golden traces, modelled here and recorded there. The
recorder's rules were corrected with all of them: on those of `programs.py` first, on those of `later.py` when these had
shown how far the rules held.

Launches are matched in issue order by operator and by what they are (a kernel, a memset, a copy). It counts the pairs
of launches that truly depend on each other (not by reuse of memory alone; as many bytes count as one address as in the
recording) in both graphs, and those of them with the same pattern. Tile shapes are compared operator by operator. No
GPU is needed.
"""

import argparse
import re
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from tileprof.analysis import build_graph
from tileprof.trace import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header, table, tileprof

sys.path.insert(0, str(ROOT))  # helpers of the tests; behind the package, whose folder here is no whole package

from tests.support.in_order import matched_in_order

GOLDEN = ROOT / "tests" / "golden"
SETS = ((GOLDEN / "programs.py", GOLDEN), (GOLDEN / "later.py", GOLDEN / "later"))
"""Programs, and the folder of their recorded traces."""
WITHOUT_COUNTERPART = {
    "gpt2_graph": "under capture the program builds the attention mask that it leaves out elsewhere, and there are no "
    "graphs without a GPU",
}


_MATCH = 1000
"""A match outweighs any number of equal tiles in a program."""


@dataclass
class Agreement:
    """How the graphs of one program compare; ``different`` counts what differs, by a sentence."""

    name: str
    launches: tuple[int, int]
    same_tiles: int
    matches: int
    pairs: tuple[int, int]
    both: int
    same_pattern: int
    different: Counter = field(default_factory=Counter)

    def row(self):
        tiles = f"{self.same_tiles} of {self.matches}"
        return (
            self.name, f"{self.launches[0]} / {self.launches[1]}", tiles, f"{self.pairs[0]} / {self.pairs[1]}",
            f"{self.both}", f"{self.same_pattern} ({self.share():.0%})",
        )  # fmt: skip

    def share(self):
        """Return the share of the pairs in either graph that both have with the same pattern."""
        either = sum(self.pairs) - self.both
        return self.same_pattern / either if either else 1.0


def kind(op, kernel):
    """Return what launches are matched by: their operator, whichever library stands behind it and whether or not it
    works in place, and what they are. PyTorch adds gradients and biases in place, but not under a dispatch mode as the
    model recorder's.
    """
    what = next((w for w in ("memset", "memcpy") if kernel.startswith(w)), "kernel")
    if kernel in ("scan_init", "compact_init") or re.search(r"Device(Scan|Compact)InitKernel", kernel):
        what = "start of a scan"
    if kernel.startswith("triton_") and "_fused_" in kernel:
        shape = "pointwise" if kernel.startswith("triton_poi") else "template" if "_tem_" in kernel else "reduction"
        return f"fused {shape}", what  # numbers and operators in names differ between versions of Inductor
    if "host to device" in kernel:
        return "copy from the host", what  # PyTorch's profiler has no operator for the copies of `torch.tensor`
    op = op.rpartition("+")[2]  # beside a library's kernel the code of torch.compile names what it was made of
    op = re.sub(r"_(?=\.|$)", "", op).replace("aten::_index_put_impl", "aten::index_put")
    op = re.sub(r"aten::(native|cudnn|_batch_norm)\w*batch_norm\w*", "batch norm", op)
    return re.sub(r"aten::_scaled_dot_product\w+", "attention", op), what


def tiles_of(launches, i):
    """A launch's grid in tiles, x, y, z, without the order of its axes: libraries number them as they like."""
    row = launches.iloc[i]
    return int(row.tiles), str(row.kernel)


@dataclass
class Side:
    """A program as one recorder saw it: a row per launch, and the pattern of each pair that truly depends."""

    launches: pd.DataFrame
    pairs: dict[tuple[int, int], str]


def side(trace, granule=1):
    """The `Side` of a trace; ``granule`` bytes count as one address."""
    graph = build_graph(trace, granule=granule)
    true = graph.pairs[~graph.pairs.reuse_only]
    return Side(graph.launches, {(r.producer, r.consumer): r.pattern for r in true.itertuples()})


def counterparts(modelled, recordings):
    """Launches of the recording by launches of the model, and both lists of keys: as many as can be matched in order.
    If several matchings are that long, the one with the most equal numbers of tiles.
    """
    keys = [[kind(o, k) for o, k in zip(f.op, f.kernel, strict=True)] for f in (modelled, recordings)]
    numbers = {key: n for n, key in enumerate(dict.fromkeys(keys[0] + keys[1]))}
    mine, theirs = (np.array([numbers[k] for k in some]) for some in keys)
    tiles = [f.tiles.to_numpy() for f in (modelled, recordings)]
    worth = (mine[:, None] == theirs) * (_MATCH + (tiles[0][:, None] == tiles[1]))
    return dict(matched_in_order(worth)), keys


def compare(name, modelled, recordings):
    """The `Agreement` of two `Side`s of one program."""
    frames = [modelled.launches, recordings.launches]
    counterpart, keys = counterparts(*frames)
    pairs = [modelled.pairs, recordings.pairs]
    pair_counts = {(counterpart.get(p, f"m{p}"), counterpart.get(c, f"m{c}")): n for (p, c), n in pairs[0].items()}
    both = pair_counts.keys() & pairs[1].keys()
    different = Counter()
    same_tiles = 0
    for mine, theirs in counterpart.items():
        ours, real = tiles_of(frames[0], mine), tiles_of(frames[1], theirs)
        same_tiles += ours[0] == real[0]
        if ours[0] != real[0]:
            different[
                f"{keys[1][theirs][0]}: {ours[0]} tiles modelled ({ours[1][:60]}), {real[0]} recorded ({real[1][:60]})"
            ] += 1
    for side, frame, matches in (
        ("model", frames[0], counterpart.keys()),
        ("recording", frames[1], counterpart.values()),
    ):
        for i in set(range(len(frame))) - set(matches):
            different[f"only in the {side}: {frame.kernel[i][:60]} of {frame.op[i]}"] += 1
    for p, c in sorted(both):
        if pair_counts[p, c] != pairs[1][p, c]:
            ops = f"{keys[1][p][0]} to {keys[1][c][0]}"
            different[f"{ops}: {pair_counts[p, c]} modelled, {pairs[1][p, c]} recorded"] += 1
    for side, only in (("model", pair_counts.keys() - both), ("recording", pairs[1].keys() - both)):
        for p, c in only:
            ends = [keys[1][e][0] if not isinstance(e, str) else keys[0][int(e[1:])][0] for e in (p, c)]
            different[f"only the {side} has a dependency {ends[0]} to {ends[1]}"] += 1
    return Agreement(
        name, (len(frames[0]), len(frames[1])), same_tiles, len(counterpart), (len(pair_counts), len(pairs[1])),
        len(both),
        sum(pair_counts[p] == pairs[1][p] for p in both), different,
    )  # fmt: skip


def model(programs, name, folder):
    """The program's trace by the model recorder, for an H200."""
    path = Path(folder) / f"{name}.tileprof"
    options = ("--recorder", "model", "--device", "H200", "--force", "-o", str(path))
    tileprof("record", *options, "--", sys.executable, str(programs), name, "cpu")
    return load(path)


def of_set(programs, recordings, names):
    """The agreements of a set's programs; they are printed."""
    actual, skips = [], []
    with tempfile.TemporaryDirectory() as folder:
        for path in sorted(recordings.glob("*.tileprof")):
            name = path.name.removesuffix(".tileprof")
            if names and name not in names:
                continue
            if name in WITHOUT_COUNTERPART:
                skips.append((name, WITHOUT_COUNTERPART[name]))
                continue
            theirs = load(path)
            mine = side(model(programs, name, folder), int(theirs.manifest.get("granule", 1)))
            actual.append(compare(name, mine, side(theirs)))
    if not actual:
        return []
    print(f"{programs.name}\n")
    columns = (
        "program",
        "launches model / recorded",
        "equal tiles",
        "true pairs model / recorded",
        "in both",
        "same pattern",
    )
    table(columns, [agreement.row() for agreement in actual])
    both, same = sum(a.both for a in actual), sum(a.same_pattern for a in actual)
    either, true = sum(sum(a.pairs) - a.both for a in actual), sum(a.pairs[1] for a in actual)
    print(f"all: {same} of {either} pairs that either graph has are in both with the same pattern "
          f"({same / max(1, either):.0%}); "
          f"of the {both} in both, {same / max(1, both):.0%}; of {true} recorded pairs {both} are modelled "
          f"({both / max(1, true):.0%})\n")  # fmt: skip
    for name, why in skips:
        print(f"{name} is not compared: {why}")
    return actual


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs (default: all)")
    parser.add_argument("--list", action="store_true", help="list what differs")
    options = parser.parse_args()
    header("The model recorder against recordings on an H200")
    actual = [agreement for where in SETS for agreement in of_set(*where, options.names)]
    if options.list:
        for agreement in actual:
            print(f"\n{agreement.name}")
            for text, times in agreement.different.most_common():
                print(f"  {times} x {text}")


if __name__ == "__main__":
    main()
