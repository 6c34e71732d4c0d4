"""How right the model recorder is about products that nobody harvested: tile, cluster, split-k, and time.

The held-out products (`tests/gpu/harvest/held_out_products.csv`) were drawn before anything was harvested, from models
that are in no other list, and run once on the GPU (`tests/gpu/harvest/held_out_products_h200.csv`); no table has them.

    python tests/benchmarks/bench_products_held_out.py                     as installed
    python tests/benchmarks/bench_products_held_out.py --without-library   as if nvidia-matmul-heuristics were not there
    python tests/benchmarks/bench_products_held_out.py --rules             tileprof's rules alone
    python tests/benchmarks/bench_products_held_out.py --write   to results/products_held_out.json
    python tests/benchmarks/bench_products_held_out.py --page    that file, and the report of
        tileprof.harvest.product_ranker (results/product_ranker.json), into docs/harvest.md
"""

import argparse
import csv
import json
from collections import defaultdict
from pathlib import Path
from statistics import median

from tileprof import devices
from tileprof.record.model import tables
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.products import gemm_choice, library_heuristic
from tileprof.record.model.tiles.products.gemm_kernels import Product, kernels
from tileprof.record.model.tiles.products.problem import BF16, FP8, FP16, FP32, TF32, Problem

PAGE = Path(__file__).parents[2] / "docs" / "harvest.md"
WRITTEN = Path(__file__).parent / "results" / "products_held_out.json"
TRAINED = Path(__file__).parent / "results" / "product_ranker.json"
LAYOUTS = {0: "rows, rows", 1: "rows, columns", 2: "columns, rows", 3: "columns, columns"}
OPS = dict(enumerate(("mm", "addmm", "addmm with a matrix", "bmm", "baddbmm", "grouped", "scaled")))
RESULTS = Path(__file__).parents[1] / "gpu" / "harvest" / "held_out_products_h200.csv"
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
    for problem, row in cases:
        shape, _, total = real(row)
        table = None if rules else tables.table("products", device)
        choice = gemm_choice.measured(problem, table, device) if table is not None else None
        if choice is None:
            dtype, size = DTYPES[problem.dtype]
            rate = (
                "tf32" if problem.dtype == TF32 else {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}[dtype]
            )
            facts = {"itemsize": size, "out_itemsize": size, "rate": rate, "device": device}
            choice = gemm_choice.choose(None, (problem.m, problem.n, problem.k), problem.batch, **facts)
        error = None
        if with_times:
            ns = choice.main_ns + choice.rest_ns if choice.main_ns else by_recorder(problem, device)[1]
            error = abs(ns / total - 1)
        layout = LAYOUTS[2 * problem.column_a + problem.column_b]
        right = shape_of(choice.tile) == shape
        rows.append((TYPES[problem.dtype], str(choice.source), right, error, row["kind"], OPS[problem.op], layout))
    return rows


def table_rows(rows):
    for column, name in ((0, "type"), (1, "source"), (4, "kernel"), (5, "call"), (6, "layout")):
        groups = defaultdict(list)
        for row in rows:
            groups[row[column]].append(row)
        for key, some in sorted(groups.items()):
            yield (name, key, len(some), *figures(some))
    yield ("all", "", len(rows), *figures(rows))


def figures(rows):
    errors = [row[3] for row in rows if row[3] is not None]
    return sum(row[2] for row in rows) / len(rows), median(errors) if errors else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rules", action="store_true")
    parser.add_argument("--without-library", action="store_true")
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
    rows = judge(held_out(), device, rules=options.rules, with_times=not options.no_times)
    for name, key, count, right, error in table_rows(rows):
        print(f"{name:<7} {key:<18} {count:>5} {right:>7.1%} right  {error:>6.1%} median error of the time")


def held_out():
    """The held-out products and what ran for them."""
    names = ("op", "dtype", "column_a", "column_b", "batch", "m", "n", "k")
    with RESULTS.open(newline="") as file:
        return [(Problem(*(int(row[n]) for n in names)), row) for row in csv.DictReader(file)]


def write(device, *, timed):
    """Write the figures without the library, and with it where it is installed."""
    asked = library_heuristic.proposals
    installed = bool(asked(Problem(0, BF16, 0, 1, 1, 1024, 1024, 1024), device))
    results = {}
    for name, proposals in (("with the library", asked if installed else None), ("without the library", lambda *_: [])):
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
    """Put the tables of the written results into the page."""
    results = json.loads(WRITTEN.read_text())
    columns = [name for name in ("without the library", "with the library") if name in results]
    by_row = {name: {(row["by"], row["of"]): row for row in results[name]} for name in columns}
    lines = [
        f"| | products | {' | '.join(columns)} | median error of the time |",
        "|---|---|" + "---|" * len(columns) + "---|",
    ]
    for (by, of), row in by_row[columns[0]].items():
        if by == "source":
            continue
        shares = " | ".join(f"{by_row[name][by, of]['right']:.1%}" for name in columns)
        lines.append(f"| {by} {of} | {row['products']} | {shares} | {row['error_of_time']:.1%} |")
    groups = json.loads(TRAINED.read_text())["groups"]
    layers = ["| types | call | type | products | right | among the candidates |", "|---|---|---|---|---|---|"]
    curve = ["| types | problems to learn from | shown | right |", "|---|---|---|---|"]
    for group in groups:
        types = ", ".join(group["types"])
        layers += [
            f"| {types} | {row['call']} | {row['type']} | {row['problems']:,} | {row['right']:.1%} "
            f"| {row['among candidates']:.1%} |"
            for row in group["left out"]
        ]
        curve += [
            f"| {types} | {row['problems']:,} | {row['shown']:,} | {row['right']:.1%} |"
            for row in group["curve"]
            if not row["sieve"]
        ]
    page = PAGE.read_text()
    for name, table in (("held-out products", lines), ("layers left out", layers), ("learning curve", curve)):
        before, begin, rest = page.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition(f"<!-- end of {name} -->")
        assert begin, f"{PAGE.name} has no place for {name}"
        assert end, f"{PAGE.name} has no end of {name}"
        page = before + begin + "\n".join(table) + "\n" + end + after
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
