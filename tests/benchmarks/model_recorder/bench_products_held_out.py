"""How right the model recorder is about products that were not harvested: tile, cluster, split-k, and time.

The held-out products (`tests/gpu/harvest/held_out_products.csv`) were drawn before anything was harvested, from models
that are in no other list, and run once on the GPU (`tests/gpu/harvest/held_out_products_h200.csv`); no table has them.
Its column ``twin`` says whether the same product with a matrix to add, or without, which gets the same kernels, was
ever captured, and whether nets have learnt from that capture.

    python tests/benchmarks/model_recorder/bench_products_held_out.py [OPTION]

without an option as installed, and with

    --without-library   as if nvidia-matmul-heuristics were not there
    --rules             tileprof's rules alone
    --leave-one-out 2000  entries of the table, each by the others
    --write   to results/products_held_out.json
    --page    that file into docs/harvest.md
"""

import argparse
import csv
import json
import random
from collections import defaultdict
from pathlib import Path
from statistics import median

from tileprof import devices
from tileprof.record.model import tables
from tileprof.record.model.tables.product_entries import recipe_of, time_ns
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.products import gemm_kernel_choice, library_heuristic
from tileprof.record.model.tiles.products.gemm_kernels import Product, kernels
from tileprof.record.model.tiles.products.problem import BF16, FP8, FP16, FP32, TF32, Problem

PAGE = Path(__file__).parents[3] / "docs" / "harvest.md"
BEGIN, END = "<!-- held-out products -->", "<!-- end of held-out products -->"
WRITTEN = Path(__file__).parents[1] / "results" / "products_held_out.json"
LAYOUTS = {0: "rows, rows", 1: "rows, columns", 2: "columns, rows", 3: "columns, columns"}
OPS = dict(enumerate(("mm", "addmm", "addmm with a matrix", "bmm", "baddbmm", "grouped", "scaled")))
RESULTS = Path(__file__).parents[2] / "gpu" / "harvest" / "held_out_products_h200.csv"
TYPES = {FP32: "fp32", TF32: "tf32", FP16: "fp16", BF16: "bf16", FP8: "fp8"}
DTYPES = {FP32: ("float32", 4), TF32: ("float32", 4), FP16: ("float16", 2), BF16: ("bfloat16", 2)}


def real(row):
    """(tile, cluster, split), time of the main kernel and of all, of a measured row."""
    shape = tuple(int(row[name]) for name in ("tile_m", "tile_n", "cluster_m", "cluster_n", "split"))
    return shape, float(row["main_ns"]), float(row["main_ns"]) + float(row["rest_ns"])


def shape_of(tile):
    return (tile.m, tile.n, *tile.cluster, tile.split)


def product(problem):
    """The operands of a problem, as the recorder sees them."""
    dtype, size = DTYPES[problem.dtype]

    def operand(rows, columns, column, ref):
        strides = (1, rows) if column else (columns, 1)
        return Operand((problem.batch, rows, columns), (rows * columns, *strides), dtype, size, ref=ref)

    a = operand(problem.m, problem.k, problem.column_a, 0)
    return Product(a, operand(problem.k, problem.n, problem.column_b, 1), operand(problem.m, problem.n, 0, 2))


def by_recorder(problem, device):
    """Return what the recorder says of a problem: shape, source, modelled time of all launches."""
    from tileprof.record.model import duration

    launches = kernels(product(problem), device, op=problem.op, tf32=problem.dtype == TF32)
    ns = sum(duration.model(kernel, device).launch_ns for kernel in launches)
    return launches, ns


def judge(cases, device, *, rules, with_times):
    """One row per case: type, source, whether the kernel is right, relative error of the time."""
    rows = []
    for problem, row, without in cases:
        shape, _, total = real(row)
        table = None if rules else tables.table("products", device)
        choice = gemm_kernel_choice.measured(problem, table, device, exact=not without) if table is not None else None
        if choice is None:
            dtype, size = DTYPES[problem.dtype]
            rate = (
                "tf32" if problem.dtype == TF32 else {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]
            )
            facts = {"itemsize": size, "out_itemsize": size, "rate": rate, "device": device}
            choice = gemm_kernel_choice.choose(None, (problem.m, problem.n, problem.k), problem.batch, **facts)
        error = None
        if with_times:
            ns = choice.main_ns + choice.rest_ns if choice.main_ns else by_recorder(problem, device)[1]
            error = abs(ns / total - 1)
        layout = LAYOUTS[2 * problem.column_a + problem.column_b]
        right = shape_of(choice.tile) == shape
        facts = TYPES[problem.dtype], str(choice.source), right, error, row["kind"], OPS[problem.op], layout
        rows.append((*facts, row.get("twin", "")))
    return rows


def table_rows(rows):
    for column, name in ((0, "type"), (1, "source"), (4, "kernel"), (5, "call"), (6, "layout")):
        groups = defaultdict(list)
        for row in rows:
            groups[row[column]].append(row)
        for key, some in sorted(groups.items()):
            yield (name, key, len(some), *figures(some))
    for key, twins in (("a learnt twin", ("none", "captured")), ("a captured twin", ("none",))):
        some = [row for row in rows if row[7] in twins]
        if some:
            yield ("without", key, len(some), *figures(some))
    yield ("all", "", len(rows), *figures(rows))


def figures(rows):
    errors = [row[3] for row in rows if row[3] is not None]
    return sum(row[2] for row in rows) / len(rows), median(errors) if errors else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--without-library", action="store_true")
    parser.add_argument("--leave-one-out", type=int, default=0, metavar="N")
    parser.add_argument("--no-times", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    device = devices.get("H200")
    if options.page:
        write_page()
        return
    if options.write:
        write(device, timed=not options.no_times)
        return
    if options.without_library:
        library_heuristic.proposals = lambda *_: []
    cases = left_out(options.leave_one_out, device) if options.leave_one_out else held_out()
    rows = judge(cases, device, rules=options.rules, with_times=not options.no_times)
    for name, key, count, right, error in table_rows(rows):
        print(f"{name:<7} {key:<18} {count:>5} {right:>7.1%} right  {error:>6.1%} median error of the time")


def held_out():
    """The held-out products and what ran for them."""
    names = ("op", "dtype", "column_a", "column_b", "batch", "m", "n", "k")
    with RESULTS.open(newline="") as file:
        return [(Problem(*(int(row[n]) for n in names)), row, False) for row in csv.DictReader(file)]


def left_out(count, device):
    """Measured entries of the table, whose times the others tell; the nets have learnt from all of them."""
    table = tables.table("products", device)
    cases = []
    measured = [row for row in range(len(table)) if table.columns["main_time"][row]]
    for entry in random.Random(0).sample(measured, count):
        recipe, key = recipe_of(table, entry), table.keys[entry].tolist()
        names = ("tile_m", "tile_n", "cluster_m", "cluster_n", "split")
        shape = dict(zip(names, (recipe.m, recipe.n, *recipe.cluster, recipe.split), strict=True))
        times = {f"{name}_ns": time_ns(int(table.columns[f"{name}_time"][entry])) for name in ("main", "rest")}
        if key[1] in DTYPES:
            cases.append((Problem(*key), shape | times | {"kind": recipe.kind}, True))
    return cases


def write(device, *, timed):
    """Write the figures with the library, where it is installed, and without it."""
    with_library = library_heuristic.proposals
    installed = bool(with_library(Problem(0, BF16, 0, 1, 1, 1024, 1024, 1024), device))
    results = {}
    for name, proposals in (
        ("with the library", with_library if installed else None),
        ("without the library", lambda *_: []),
    ):
        if proposals is None:
            continue
        library_heuristic.proposals = proposals
        rows = table_rows(judge(held_out(), device, rules=False, with_times=timed))
        results[name] = [
            {"by": by, "of": of, "products": count, "right": round(right, 4), "error_of_time": round(error, 4)}
            for by, of, count, right, error in rows
        ]
    WRITTEN.write_text(json.dumps(results, indent=1) + "\n")


def write_page():
    """Put the table of the written results into the page."""
    results = json.loads(WRITTEN.read_text())
    columns = ("without the library", "with the library")
    by_row = {name: {(row["by"], row["of"]): row for row in results.get(name, [])} for name in columns}
    lines = [
        f"| | products | {' | '.join(columns)} | median error of the time |",
        "|---|---|---|---|---|",
    ]
    for (by, of), row in by_row[columns[0]].items():
        if by == "source":
            continue
        cells = [by_row[name].get((by, of)) for name in columns]
        shares = " | ".join(f"{cell['right']:.1%}" if cell else "" for cell in cells)
        lines.append(f"| {by} {of} | {row['products']} | {shares} | {row['error_of_time']:.1%} |")
    before, _, rest = PAGE.read_text().partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n" + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


if __name__ == "__main__":
    main()
