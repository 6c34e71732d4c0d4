"""The launches that the model recorder gives convolutions, against what an H200 launched for held-out calls.

The calls are drawn, with a fixed seed, from models that the harvest excludes (``convolution_held_out.csv`` names them);
what the GPU launched is in ``tests/benchmarks/results/convolutions_held_out.json``. Layers that held-out models share
with others may be in the table. ``--weights N`` judges by measured calls of weights (channels, groups, window, stride)
that were drawn before trees were grown, and of which no entry helps. No GPU is needed. ``--write`` renews the tables in
docs/model-recorder.md.
"""

import argparse
import json
import re
import sys
from collections import Counter
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from unittest import mock

import numpy as np

from tileprof.devices import get
from tileprof.harvest.convolutions import convolution_ranker
from tileprof.record.model import among_others, duration
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.convolutions import convolution_table, cudnn_engines, measured_launches
from tileprof.record.model.tiles.convolutions.conv_kernels import Window
from tileprof.record.model.tiles.convolutions.conv_weight_kernels import WeightGradient
from tileprof.record.model.tiles.convolutions.convolution_key import COLUMNS, Layout, Pass
from tileprof.record.model.tiles.convolutions.library_kernels import Role, parse_name
from tileprof.record.model.tiles.convolutions.problem import Problem, operand_sizes
from tileprof.record.model.tiles.convolutions.windows import Axis
from tileprof.record.model.tiles.products import library_heuristic
from tileprof.trace.sources import ShapeSource

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import ROOT, header, table

RESULTS = ROOT / "tests" / "benchmarks" / "results" / "convolutions_held_out.json"
DOCS = ROOT / "docs" / "model-recorder.md"
MARKS = "<!-- held-out convolutions -->", "<!-- end of held-out convolutions -->"
WEIGHTS_MARKS = "<!-- held-out weights -->", "<!-- end of held-out weights -->"
H200 = get("H200")
TYPES = ("float32", "float32", "float16", "bfloat16")


def operand(shape, key, ref):
    """A dense operand in the layout of the call."""
    order = (0, 2, 3, 4, 1) if key[2] == Layout.CHANNELS_LAST else range(5)
    strides, run = [0] * 5, 1
    for dim in reversed(tuple(order)):
        strides[dim], run = run, run * shape[dim]
    return Operand(tuple(shape), tuple(strides), TYPES[key[1]], 4 if key[1] < 2 else 2, ref=ref)


def problem_of(key):
    """The call of a key, in three spatial dimensions."""
    first, second, out = (operand(shape, key, ref) for ref, shape in enumerate(operand_sizes(key)))
    stride, padding, dilation = (key[i : i + 3] for i in (15, 18, 21))
    transposed = bool(key[4])
    gathers_back = transposed if key[0] == Pass.FORWARD else not transposed
    weight = out if key[0] == Pass.WEIGHT_GRADIENT else second
    large = second if key[0] == Pass.WEIGHT_GRADIENT else first
    settings = zip(large.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    if key[0] == Pass.WEIGHT_GRADIENT:
        axes = tuple(Axis(*some) for some in settings)
        return Problem(key, WeightGradient(out, first, second, axes, key[5]), (first, second), out)
    axes = tuple(Axis(*some, gathers_back) for some in settings)
    return Problem(key, Window(out, first, second, axes, key[5], transposed=gathers_back), (first, second), out)


def family(name):
    """Return what must agree of a kernel: what it does, its tile, and whose it is, whatever the type."""
    kernel = parse_name(name)
    library = re.search(r"nvjet|cublas|cutlass|sm\d+_xmma_\w+?gemm|sgemm|conv_depthwise2d_\w+|\w+2d_\w+", name)
    words = library[0] if library and kernel.role in (Role.PRODUCT, Role.OTHER, Role.DIRECT, Role.WEIGHTS) else ""
    return int(kernel.role), kernel.tile, words


def compare(key, launches, entry):
    """How one call's launches agree with those of the GPU: source, booleans, and errors of times."""
    row = {"key": key, "source": "rule", "launches": False, "kernels": False, "right": False, "times": []}
    if entry is None:
        return row
    modelled = measured_launches.kernels(problem_of(key), entry, H200)
    if key[5] > 1:  # groups run on several streams: the order of launches is another one each time
        launches = sorted(launches, key=lambda one: (family(one[0]), tuple(one[1])))
        modelled = sorted(modelled, key=lambda kernel: (family(kernel.name), kernel.grid))
    row["source"] = str(entry.source)
    row["launches"] = [parse_name(k.name).role for k in modelled] == [parse_name(one[0]).role for one in launches]
    row["kernels"] = [family(k.name) for k in modelled] == [family(one[0]) for one in launches]
    row["right"] = row["kernels"] and all(
        (kernel.grid == tuple(grid) or not min(grid)) and (not cluster or cluster == kernel.cluster)
        for kernel, (_, grid, cluster, _) in zip(modelled, launches, strict=True)
    )
    as_harvested = [duration.model(kernel, H200, weight_bytes=1 << 40).launch_ns for kernel in modelled]
    alone = [ns / among_others.COLD for ns in as_harvested]
    total = sum(alone)
    row["call"] = abs(total / sum(ns for *_, ns in launches) - 1)
    if row["launches"]:
        row["times"] = [abs(own / ns - 1) for own, (*_, ns) in zip(alone, launches, strict=True)]
    return row


def held_out_models(table_of_h200, trees):
    """Compare the calls of held-out models."""
    for call in json.loads(RESULTS.read_text())["calls"]:
        key = tuple(call["case"])
        entry = convolution_table.entry_of(table_of_h200, key, H200, trees=trees)
        yield compare(key, [(name, grid, (), ns) for name, grid, ns in call["launches"]], entry)


def held_out_weights(table_of_h200, trees, count):
    """Compare calls of weights that trees were not grown with; no entry of the same weight may help."""
    number = convolution_ranker.weights(table_of_h200.keys)
    test_rows = np.flatnonzero(convolution_ranker.held_out(table_of_h200.keys))
    for row in np.random.default_rng(0).permutation(test_rows)[:count].tolist():
        key = tuple(table_of_h200.keys[row].tolist())
        own = convolution_table.entry_of(table_of_h200, key, H200)
        entry = convolution_table.entry_of(table_of_h200, key, H200, trees=trees, without=number == number[row])
        yield compare(key, [(one.name, one.grid, one.cluster, one.ns) for one in own.launches], entry)


@contextmanager
def without_libraries():
    """Leave cuDNN's heuristics and NVIDIA's library of products out, as if they were not installed."""
    with (
        mock.patch.object(cudnn_engines, "engine", return_value=""),
        mock.patch.object(library_heuristic, "proposals", return_value=[]),
    ):
        yield


def both(judge):
    """Calls as they are judged without NVIDIA's libraries, each with whether it is right with them (None: not
    installed).
    """
    with without_libraries():
        rows = list(judge())
    installed = cudnn_engines.engine(SAMPLE, convolution_table.tables.table(convolution_table.FAMILY, H200).about)
    more = [row["right"] for row in judge()] if installed else [None] * len(rows)
    return [row | {"with libraries": right} for row, right in zip(rows, more, strict=True)]


def summary(rows):
    """Lines of the table: by source and by kind of call, and all."""
    inside = convolution_ranker.kinds(np.array([row["key"] for row in rows], np.int64))
    groups = [(f"{source}", [r for r in rows if r["source"] == source]) for source in ("rule", *map(str, ShapeSource))]
    groups += [(name, [r for r, is_one in zip(rows, kind, strict=True) if is_one]) for name, kind in inside.items()]
    groups += [("all", rows)]
    for name, some in groups[1:]:
        if some:
            columns = [what for what in ("launches", "kernels", "right", "with libraries") if some[0][what] is not None]
            share = [f"{sum(r[what] for r in some) / len(some):.0%}" for what in columns] + [""] * (4 - len(columns))
            errors = [t for r in some for t in r["times"]]
            calls = [r["call"] for r in some if "call" in r]
            yield (
                name, f"{len(some)}", *share, f"{median(errors):.0%}" if errors else "",
                f"{median(calls):.0%}" if calls else "",
            )  # fmt: skip


SAMPLE = (0, 2, 1, 2, 0, 1, 8, 64, 64, 1, 56, 56, 1, 3, 3, 1, 1, 1, 0, 1, 1, 1, 1, 1, 0, 0, 0)
"""A call that cuDNN knows."""
COLUMN_NAMES = (
    "calls", "number", "same launches", "and kernels, tiles", "and grids, clusters", "the same with NVIDIA's libraries",
    "median error of a launch's time", "of a call's time",
)  # fmt: skip
WEIGHTS_RESULTS = ROOT / "tests" / "benchmarks" / "results" / "convolutions_held_out_weights.json"


def written(marks, lines):
    """Renew a table in docs/model-recorder.md."""
    text = DOCS.read_text()
    begin, end = (text.index(mark) for mark in marks)
    table_lines = ["| " + " | ".join(line) + " |" for line in (COLUMN_NAMES, ["---"] * len(COLUMN_NAMES), *lines)]
    DOCS.write_text(text[: begin + len(marks[0])] + "\n" + "\n".join(table_lines) + "\n" + text[end:])


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--list", action="store_true", help="list calls that differ")
    parser.add_argument("--weights", type=int, default=0, metavar="N", help="N calls of held-out weights, too")
    parser.add_argument("--nearest", action="store_true", help="without trees: the nearest entry")
    parser.add_argument("--write", action="store_true", help="renew the tables in docs/model-recorder.md")
    options = parser.parse_args()
    header("Held-out convolutions against an H200")
    table_of_h200 = convolution_table.tables.table(convolution_table.FAMILY, H200)
    trees = None if options.nearest else convolution_table.tables.table(convolution_table.RANKER, H200)
    if options.write and not cudnn_engines.engine(SAMPLE, table_of_h200.about):
        raise SystemExit("install nvidia-cudnn-cu13 of the table's version and nvidia-matmul-heuristics first")
    rows = both(partial(held_out_models, table_of_h200, trees))
    lines = list(summary(rows))
    table(COLUMN_NAMES, lines)
    print(dict(Counter(row["source"] for row in rows)), f"{len(table_of_h200):,} entries")
    if options.list:
        for row in rows:
            if not row["right"]:
                print(dict(zip(COLUMNS, row["key"], strict=True)), {n: row[n] for n in ("launches", "kernels")})
    if options.write:
        written(MARKS, lines)
    if options.weights:
        lines = list(summary(both(partial(held_out_weights, table_of_h200, trees, options.weights))))
        table(COLUMN_NAMES, lines)
        if options.write:
            about = {"entries": len(table_of_h200), **{k: table_of_h200.about[k] for k in ("gpu", "torch", "version")}}
            WEIGHTS_RESULTS.write_text(json.dumps({"about": about, "columns": COLUMN_NAMES, "rows": lines}, indent=1))
            written(WEIGHTS_MARKS, lines)


if __name__ == "__main__":
    main()
