"""The table of convolutions from slices of the harvest, and how well its entries predict one another.

``python tests/gpu/harvest/convolution_table.py DIR ... [-o FILE] [--check N]``: each DIR holds slices of one part.
Held-out cases do not enter the table; they go to ``tests/benchmarks/results/convolutions_held_out.json``.

``--captures DIR`` adds what was captured (`tileprof.harvest.convolutions.convolution_captures`) to the slices or,
without any, to the table that is there: entries without a time. Captures of another GPU with as many SMs count except
for windows of one tap in 16 bits, for which cuBLAS's choice depends on the GPU's memory. cuDNN must be installed
(`cudnn_engines`): each entry gets the engine that it names.
"""

import argparse
import json
from collections import Counter
from pathlib import Path

import numpy as np

from tileprof.devices import get
from tileprof.harvest.convolutions import convolution_captures
from tileprof.harvest.convolutions.convolution_cases import COLUMNS, Dtype, held_out
from tileprof.harvest.readable_names import readable
from tileprof.harvest.slices import slices
from tileprof.record.model.tables import read, write
from tileprof.record.model.tables.places import FOLDER
from tileprof.record.model.tiles.convolutions import (
    convolution_table,
    convolution_trees,
    cudnn_engines,
    launch_grids,
    launch_order,
)
from tileprof.record.model.tiles.convolutions.library_kernels import Role, parse_name
from tileprof.record.model.tiles.convolutions.problem import MeasuredLaunch

ROOT = Path(__file__).resolve().parents[3]
HELD_OUT_RESULTS = ROOT / "tests" / "benchmarks" / "results" / "convolutions_held_out.json"
MOST_LAUNCHES = 100
"""Most launches of a call in the table.

Calls with more (loops over groups, FFTs of large layers) are left to the rules.
"""
MOST_SLICES = 1023


def collection(folders):
    """Return all measured cases (launches as tuples by case), and the GPU and versions of the slices."""
    cases, about = {}, {}
    for folder in folders:
        about = json.loads((folder / "convolutions.json").read_text())
        for _, _, path in slices(folder, "convolutions"):
            with np.load(path) as file:
                columns = {name: file[name] for name in file.files}
            launches = [[] for _ in columns["cases"]]
            names = columns["names"].tolist()
            rows = zip(
                columns["case"].tolist(), columns["name"].tolist(), columns["grid"].tolist(),
                columns["block"].tolist(), columns["cluster"].tolist(), columns["registers"].tolist(),
                columns["shared_bytes"].tolist(), columns["ns"].tolist(), strict=True,
            )  # fmt: skip
            for case, name, grid, block, cluster, registers, shared, ns in rows:
                shape = (*block, *(max(1, n) for n in cluster), registers, shared)
                launches[case].append((names[name], shape, tuple(grid), ns))
            for case, error, some in zip(columns["cases"].tolist(), columns["error"], launches, strict=True):
                if not error and len(some) > 0:
                    cases[tuple(case)] = some
    return cases, about


def rows_of(table):
    """Return the cases of a table in the form of `collection`."""
    cases = {}
    for row, key in enumerate(map(tuple, table.keys.tolist())):
        launches = convolution_table.launches_of(table, row)
        cases[key] = [
            (one.name, (*one.block, *one.cluster, one.registers, one.shared_bytes), one.grid, one.ns)
            for one in launches
        ]
    return cases


def captured(folder, seed, cases, about):
    """Add captured cases that were not measured."""
    shape_of = {
        (name, shape[:6], shape[7]): shape
        for some in cases.values()
        for name, shape, _, _ in some
    }  # fmt: skip
    added = Counter()
    for path in sorted(folder.glob("captures-*.npz")):
        with np.load(path) as file:
            own = json.loads(str(file["about"]))
        assert all(own[name] == about[name] for name in ("sms", "torch", "cudnn", "cublas"))
        answers = convolution_captures.read(path, seed)
        short = readable(sorted({name for some in answers.launches for name, *_ in some}))
        plain = convolution_trees.is_plain(answers.cases) & (answers.cases[:, 1] >= Dtype.FP16)
        for case, some, by_memory in zip(map(tuple, answers.cases.tolist()), answers.launches, plain, strict=True):
            if case in cases or (by_memory and own["gpu"] != about["gpu"]):
                continue
            launches = []
            for name, shape, grid in some:
                # CUPTI reports registers as allocated, the driver as used
                allocated = shape_of.get((short[name], shape[:6], shape[7]), (*shape[:6], max(16, shape[6]), shape[7]))
                launches.append((short[name], allocated, grid, 0.0))
            cases[case] = launches
            added[own["gpu"]] += 1
    return added


def main_slices(launches, key):
    """Return the slices of k of the kernel of a call."""
    for name, (x, y, z, *cluster, registers, shared), grid, ns in launches:
        if parse_name(name).role == Role.PRODUCT:
            launch = MeasuredLaunch(name, grid, (x, y, z), tuple(cluster), registers, shared, ns)
            return min(MOST_SLICES, launch_grids.slices(launch, key))
    return 1


def build(cases, about, path):
    """Write the table."""
    keys = sorted(case for case, some in cases.items() if len(some) <= MOST_LAUNCHES)
    kernels, sequences, engines = {}, {}, {}
    sequence, grids, times, slices, engine = [], [], [], [], []
    for key in keys:
        launches = launch_order.by_group(cases[key], key[5])
        slices.append(main_slices(launches, key))
        kinds = tuple(kernels.setdefault((name, shape), len(kernels)) for name, shape, _, _ in launches)
        sequence.append(sequences.setdefault(kinds, len(sequences)))
        grids += [grid for *_, grid, _ in launches]
        times += [round(convolution_table.TIME_SCALE * np.log(max(1.0, ns))) for *_, ns in launches]
        engine.append(engines.setdefault(cudnn_engines.engine(key, about), len(engines)))
    assert len(engines) > 1, "cuDNN is not installed"
    short = readable(sorted({name for name, _ in kernels}))
    lists = list(sequences)
    small = np.uint16 if len(kernels) < 1 << 16 else np.int32
    columns = {
        "sequence": np.array(sequence, np.uint16 if len(lists) < 1 << 16 else np.int32),
        "first": np.cumsum([0, *map(len, lists)]).astype(np.int32),
        "kernel": np.array([k for some in lists for k in some], small),
        "grid": np.array(grids, np.int32), "time": np.array(times, np.uint16),
        "slices": np.array(slices, np.uint16),
        "engine": np.array(engine, np.uint16), "engines": np.array(list(engines)),
        "name": np.array([short[name] for name, _ in kernels], np.str_),
        "shape": np.array([shape for _, shape in kernels], np.int32),
    }  # fmt: skip
    origin = {
        name: about[name] for name in ("gpu", "architecture", "sms", "torch", "cuda", "cudnn", "cublas", "device")
    }
    version = about["cudnn"]
    origin |= {"library": "cudnn", "version": f"{version // 10000}.{version // 100 % 100}"}
    write(path, origin, COLUMNS, np.array(keys, np.int64), columns)


def thin(path, most):
    """Keep ``most`` entries without a time in a table, drawn with a seed, and as few as possible with the same engine,
    kernels and slices.
    """
    table = read(path)
    begin = np.r_[0, np.cumsum(np.diff(table.columns["first"].astype(int))[table.columns["sequence"]])]
    timed = np.maximum.reduceat(table.columns["time"], begin[:-1]) > 0
    alike, keys = convolution_trees.lists(table).alike[table.columns["sequence"]], table.keys
    kind = [keys[:, 0], np.minimum(keys[:, 1], Dtype.FP16), keys[:, 2], table.columns["engine"], alike]
    _, group = np.unique(np.column_stack([*kind, table.columns["slices"]]), axis=0, return_inverse=True)
    draw = np.random.default_rng(1)
    place, group_counts = np.zeros(len(table), int), Counter()
    for row in draw.permutation(len(table)).tolist():
        if not timed[row]:
            place[row] = group_counts[group[row]]
            group_counts[group[row]] += 1
    last = next(n for n in range(1, len(table)) if n > place.max() or (~timed & (place < n)).sum() >= most)
    keep = timed | (place < last - 1)
    more = np.flatnonzero(~timed & (place == last - 1))
    keep[draw.permutation(more)[: max(0, most - int((keep & ~timed).sum()))]] = True
    cases = rows_of(table)
    build({tuple(key): cases[tuple(key)] for key in keys[keep].tolist()}, table.about, path)


def roles(launches):
    return tuple(parse_name(one.name).role for one in launches)


def check(path, count):
    """Print how often an entry's nearest other entry launches the same kernels."""
    table = read(path)
    device = get(table.about["gpu"].removeprefix("NVIDIA "))
    rows = np.random.default_rng(0).permutation(len(table))[:count]
    same = Counter()
    for row in rows.tolist():
        key = tuple(table.keys[row].tolist())
        own = convolution_table.entry_of(table, key, device)
        other = convolution_table.entry_of(table, key, device, without=np.arange(len(table)) == row)
        what = f"pass {key[0]}"
        same[what, "all"] += 1
        if other is None:
            same[what, "none"] += 1
            continue
        alike = roles(own.launches) == roles(other.launches)
        same[what, "roles"] += alike
        same[what, "tiles"] += alike and all(
            parse_name(one.name).tile == parse_name(two.name).tile
            for one, two in zip(own.launches, other.launches, strict=True)
        )
    for (what, kind), number in sorted(same.items()):
        print(what, kind, number, f"{number / same[what, 'all']:.0%}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "h200" / "convolutions-cudnn-9.19.npz")
    parser.add_argument("--captures", type=Path, nargs="*", default=[], metavar="DIR")
    parser.add_argument("--seed", type=int, nargs="*", default=[], help="of each folder of captures")
    parser.add_argument("--device", type=Path, help="what cuDNN says of the GPU, for a table that lacks it")
    parser.add_argument("--most", type=int, default=0, metavar="N", help="entries without a time, at most")
    parser.add_argument("--check", type=int, default=0, metavar="N", help="leave N entries out, one by one")
    options = parser.parse_args()
    if options.folders:
        cases, about = collection(options.folders)
        held_out_cases = {tuple(row) for row in held_out().tolist()}
        results = [
            {"case": list(case), "launches": [[name, list(grid), ns] for name, _, grid, ns in cases[case]]}
            for case in map(tuple, held_out().tolist())
            if case in cases
        ]
        HELD_OUT_RESULTS.write_text(
            json.dumps({"gpu": about["gpu"], "torch": about["torch"], "cudnn": about["cudnn"], "calls": results})
        )
        remaining = {case: some for case, some in cases.items() if case not in held_out_cases}
        print(f"{len(remaining):,} cases, {len(results)} held out")
    elif options.captures:
        table = read(options.output)
        remaining, about = rows_of(table), table.about
    if options.folders or options.captures:
        if options.device:
            about["device"] = cudnn_engines.described(json.loads(options.device.read_text()))
        for folder, seed in zip(options.captures, options.seed, strict=True):
            print(f"{folder}: {dict(captured(folder, seed, remaining, about))} added")
        build(remaining, about, options.output)
        if options.most:
            thin(options.output, options.most)
        print(f"{len(read(options.output)):,} entries, {options.output.stat().st_size:,} bytes")
    if options.check:
        check(options.output, options.check)


if __name__ == "__main__":
    main()
