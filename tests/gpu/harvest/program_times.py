"""Times of launches in programs: trees (`tileprof.record.model.among_others`), and entries of the table of operators.

``python program_times.py kernels DIR [NAME ...]`` models the programs whose durations were recorded
(`tests/golden/clients`) in this process, without a trace, and writes what their kernels do
and how long the tables without them say that these take: one file per program.
``python program_times.py profiles DIR`` writes the table of programs that were only timed, from their profiles.
``python program_times.py calls DIR RESIDENT ...`` does the same for the slices of `tileprof.harvest.resident`.
``python program_times.py judge DIR`` leaves each eighth of the programs out, sizes of one model together: the errors
of their launches and of their sums, as tables tell that have only the others. ``-o`` writes them as JSON.
``python program_times.py build DIR`` writes both tables (LightGBM 4.7), and ``... page`` the table of docs/harvest.md.
"""

import argparse
import gc
import json
import re
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import torch

from tileprof import devices
from tileprof.harvest.operators import registry
from tileprof.harvest.resident import CONVOLUTIONS, PRODUCTS
from tileprof.record import Options
from tileprof.record.model import among_others, duration, operator_times
from tileprof.record.model.tables import read
from tileprof.record.model.tables.places import FOLDER
from tileprof.record.model.tiles import load_all
from tileprof.trace.sources import TimeSource

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "golden"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks" / "model_recorder"))

from operator_table import Collector, build, earlier_rows, harvested, paired

from tests.support.in_order import matched_in_order

ROOT = Path(__file__).resolve().parents[3]
H200 = FOLDER / "h200"
OPERATORS, TREES = H200 / "operators-torch-2.11.npz", H200 / "among-others-torch-2.11.npz"
GOLDEN = ROOT / "tests" / "golden"
RECORDED = GOLDEN / "clients" / "launches.parquet"
TIMED = GOLDEN / "clients" / "timed.parquet"
PREFIX = 160
"""Letters that are kept of a profiled kernel's name."""
COMPILED = ("flex_attention", "static_decode", "triton_products")
"""Programs whose kernels are Triton's own: they are in no table."""
LISTS = (
    "first",
    "second",
    "third",
    "fourth",
    "fifth",
    "sixth",
    "development",
    "development_second",
    "development_timed",
)
HARVEST = "harvest"
WITHIN = 0.1
UNMEASURED = replace(devices.get("H200"), name="without tables")
RESULTS = ROOT / "tests" / "benchmarks" / "results" / "program_times.json"
PAGE = ROOT / "docs" / "harvest.md"
BEGIN, END = "<!-- programs left out -->\n", "<!-- end of programs left out -->\n"
DRAWS = {
    "first draw": GOLDEN / "held_out.json",
    "second draw": GOLDEN / "held_out_second.json",
    "third draw": GOLDEN / "held_out_third.json",
    "fourth draw": GOLDEN / "held_out_fourth.json",
    "fifth draw": GOLDEN / "held_out_fifth.json",
    "sixth draw": GOLDEN / "held_out_sixth.json",
    "development": GOLDEN / "development.json",
    "development, second pool": GOLDEN / "development_second.json",
    "only timed": GOLDEN / "development_timed.json",
}
COLUMNS = ("op", "kernel", "tiles", "duration_ns", "features", "launch_ns", "weights", "chain_ns")
GROWN = {
    "objective": "huber", "alpha": 0.1, "num_leaves": 48, "max_depth": 10, "min_data_in_leaf": 6, "learning_rate": 0.13,
    "feature_fraction": 0.6, "num_threads": 1, "deterministic": True, "seed": 1, "verbose": -1,
}  # fmt: skip
ROUNDS = 120
OF_SUM = 0.3, 4.0
"""Bounds of how much more or less a launch counts for its part of its program."""
PARTS = 8
"""Parts into which `judge` deals the families of programs."""


class Programs(Collector):
    """A session that keeps operators, kernels and modelled durations of launches."""

    def _launch(self, op, kernel_plans, tensors, places, inputs, path, texts=None, call=None):
        del tensors, places, inputs, path, texts, call
        self.kernels += [(op, one) for one in kernel_plans]


def session(folder, name, fake):
    """A session for one program, started but not active."""
    options = Options(program=(name,), output=folder / f"{name}.tileprof", force=True, fake=fake)
    one = Programs(options, devices.get("H200"), [name])
    one.kernels = []
    one.start()
    one.active = False
    return one


def row(op, plan, weights=0.0):
    """What is kept of a launch; see `COLUMNS`. ``weights`` in sizes of L2; ``chain_ns`` is the time without tables of a
    kernel whose accesses follow one another, or 0.
    """
    kernel = plan.kernel
    tile_bytes, distinct = duration.traffic(kernel)
    of = operator_times.features(kernel, float(tile_bytes.sum()), distinct)
    chain_ns = duration.model(kernel, UNMEASURED).launch_ns if kernel.chain_ns else 0
    return op, kernel.name, plan.tiles, plan.duration.launch_ns, of, kernel.launch_ns, weights, chain_ns


def recorded():
    """Launches with durations, by program."""
    by_name = {name: some.reset_index(drop=True) for name, some in pd.read_parquet(RECORDED).groupby("program")}
    return {n: t for n, t in by_name.items() if t.duration_ns.notna().any() and n not in COMPILED}


def timed():
    """The profiles of programs that were only timed, by program."""
    profiles = pd.read_parquet(TIMED) if TIMED.exists() else pd.DataFrame({"program": []})
    return {name: some.reset_index(drop=True) for name, some in profiles.groupby("program")}


def write_profiles(folder):
    """Write the profiles of timed programs (`measure_clients.py --times`) as one table, and print their sums."""
    rows = []
    for path in sorted(folder.glob("*.times.json")):
        for r in json.loads(path.read_text()):
            tiles = int(np.prod(r["grid"])) if r["grid"] else 1
            rows.append((path.name.removesuffix(".times.json"), "", r["kernel"][:PREFIX], tiles, r["us"] * 1000))
    table = pd.DataFrame(rows, columns=["program", "op", "kernel", "tiles", "duration_ns"])
    table.to_parquet(TIMED, compression="zstd", index=False)
    print(f"{table.program.nunique()} programs, {len(table):,} launches; {TIMED.stat().st_size:,} bytes")


def write_kernels(folder, names):
    """Model programs and write their kernels."""
    sys.argv = ["held_out.py", "", "cpu"]
    import clients
    import held_out

    load_all()
    makers = {f.__name__: f for f in clients.NAMES} | {e["name"]: held_out.program(e) for e in held_out.entries(*LISTS)}
    for name in names or recorded() | timed():
        path = folder / f"{name}.parquet"
        if path.exists():
            continue
        one = session(folder, name, fake=False)
        try:
            with torch.set_grad_enabled(name.endswith("_step")):
                torch.manual_seed(0)
                run = makers[name]()
                one.active = True
                if name.endswith("_step"):
                    run()  # the first step makes the optimiser's state
                    one.kernels = []
                run()
            one.active = False
            weights = one.buffers.weight_bytes / one.device.l2_bytes
            rows = [row(op, plan, weights) for op, plan in one.kernels]
            sentence = one.failure or f"{len(rows)} launches"
            if one.failure is None:
                pd.DataFrame(rows, columns=list(COLUMNS)).to_parquet(path, index=False)
        except Exception as error:  # noqa: BLE001 - a library may lack a model
            sentence = f"{type(error).__name__}: {error}"[:200]
        one.active = False
        one.stop()
        del one
        gc.collect()
        sys.stdout.write(f"{name}: {sentence}\n")
        sys.stdout.flush()


def write_calls(folder, slices_of):
    """Model harvested calls and write their kernels, with the measured time in the column ``duration_ns``."""
    load_all()
    registry.DEVICE = "cpu"
    one = session(folder, "calls", fake=True)
    rows, failed = [], 0
    with one.fake_mode:
        PRODUCTS.use(torch, "cpu")
        CONVOLUTIONS.use(torch, "cpu")
    for family in (PRODUCTS, CONVOLUTIONS):
        for number, (case, launches) in enumerate(harvested(slices_of, family.name)):
            one.active = False
            if number % 500 == 0:
                sys.stderr.write(f"{family.name}: {number} calls, {len(rows)} launches\n")
            try:
                call = family.calls(case)[0]  # runs once, unseen
                one.active, one.kernels = True, []
                call()
            except Exception:  # noqa: BLE001 - what a CPU lacks is left out
                failed += 1
                continue
            ops = {id(plan.kernel): (op, plan) for op, plan in one.kernels}
            pairs = paired([plan.kernel for _, plan in one.kernels], launches)
            if len(pairs) == len(launches) == len(one.kernels):
                for kernel, (_, tiles, ns) in pairs:
                    op, plan = ops[id(kernel)]
                    if tiles == kernel.footprint.tiles or min(tiles, kernel.footprint.tiles) == 0:
                        rows.append((*row(op, plan)[:3], ns, *row(op, plan)[4:]))
            one._plans.clear()
    one.active = False
    one.stop()
    pd.DataFrame(rows, columns=list(COLUMNS)).to_parquet(folder / f"{HARVEST}.parquet", index=False)
    print(f"{len(rows):,} launches; {failed} calls failed")


def launches_of(folder):
    """All modelled launches of programs with what was recorded (``real``; NaN without counterpart, or with another grid
    in ``alike`` False), and recorded ones without counterpart as rows without kernel. Modelled launches whose
    counterpart has no known time are left out.
    """
    from bench_clients import counterparts

    frames, pairs = [], set()
    for name, theirs in recorded().items():
        path = folder / f"{name}.parquet"
        if path.exists():
            mine = pd.read_parquet(path)
            counterpart, _ = counterparts(mine, theirs)
            pairs |= {(outline(mine.kernel[i]), outline(theirs.kernel[j])) for i, j in counterpart.items()}
            frames.append(joined(mine, theirs, counterpart).assign(program=name))
    for name, theirs in timed().items():
        path = folder / f"{name}.parquet"
        if path.exists():
            mine = pd.read_parquet(path)
            frames.append(joined(mine, theirs, alike(mine, theirs, pairs)).assign(program=name))
    return pd.concat(frames, ignore_index=True)


def joined(mine, theirs, counterpart):
    """The launches of one program; see `launches_of`."""
    real, tiles = theirs.duration_ns.to_numpy(float), theirs.tiles.to_numpy()
    mine["real"] = [real[counterpart[i]] if i in counterpart else np.nan for i in range(len(mine))]
    mine["alike"] = [i in counterpart and tiles[counterpart[i]] == mine.tiles[i] for i in range(len(mine))]
    rest = sorted(set(range(len(real))) - set(counterpart.values()))
    mine = mine.drop([i for i, j in counterpart.items() if np.isnan(real[j])])
    missing = pd.DataFrame({"op": theirs.op[rest], "real": real[rest], "duration_ns": 0.0, "alike": False})
    return pd.concat([mine, missing], ignore_index=True)


def alike(mine, theirs, pairs):
    """Launches of a profile, which has no operators, by launches of the model: as many as can be matched in order, of
    kernels that recorded programs had for each other.
    """
    names = [[outline(k) for k in some.kernel] for some in (mine, theirs)]
    known = {other: {a for a, b in pairs if b == other} for other in set(names[1])}
    numbers = {name: n for n, name in enumerate(dict.fromkeys(names[0]))}
    of_each = np.array([numbers[name] for name in names[0]], int)
    columns = {other: np.isin(of_each, [numbers[a] for a in some if a in numbers]) for other, some in known.items()}
    worth = np.column_stack([columns[other] for other in names[1]]).astype(np.int64)
    return dict(matched_in_order(worth * (1 + 2 * (mine.tiles.to_numpy()[:, None] == theirs.tiles.to_numpy()))))


def outline(kernel):
    """What the names of kernels of one kind have in common: no parameters, folders and numbers."""
    words = kernel.partition("<")[0].partition("(Device")[0].split()
    return re.sub(
        r"\d+", "#", words[-1].rpartition("::")[2] if words[0] == "void" else kernel.partition("<")[0]
    ).lower()


def seen_of(frame):
    """What trees see of launches."""
    columns = zip(frame.kernel, frame.features, frame.launch_ns, frame.weights, strict=True)
    return np.array([among_others.seen(*words) for words in columns])


def grown(frame):
    """Grow the trees from launches of libraries with a time in the harvest and one in a program. Launches that are a
    large part of their program count more.
    """
    import lightgbm

    target = np.clip(np.log(frame.real.to_numpy(float) / frame.launch_ns.to_numpy(float)), -1, 1)
    repeated = frame.groupby(["program", "kernel", frame.features.map(tuple)]).real.transform("size")
    share = frame.real / frame.groupby("program").real.transform("sum")
    of_sum = (
        np.sqrt(share / share[frame.program != HARVEST].median()).clip(*OF_SUM).where(frame.program != HARVEST, 1.0)
    )
    data = lightgbm.Dataset(seen_of(frame), target, weight=of_sum / np.sqrt(repeated))
    return lightgbm.train(GROWN, data, ROUNDS)


def library(frame):
    """The launches that trees are grown from."""
    return frame[(frame.launch_ns > 0) & (frame.real > 0) & frame.kernel.notna()]


def own_entries(frame):
    """Rows ``(kernel, *features, ns)`` of PyTorch's own kernels in programs."""
    own = frame[~(frame.launch_ns > 0) & (frame.real > 0) & frame.kernel.notna() & frame.alike]
    return [(k, *f, ns) for k, f, ns in zip(own.kernel, own.features, own.real, strict=True)]


def table_of(rows, of_programs, about, folder):
    """The table of operators of some rows, as it is read."""
    path = folder / "operators.npz"
    build(rows, about, path, of_programs)
    return read(path)


def predicted(frame, trees, operators):
    """Modelled ns of each launch by these tables; what they do not know keeps its time."""
    ns = frame.duration_ns.to_numpy(float).copy()
    of_library = np.flatnonzero(frame.kernel.notna() & (frame.launch_ns > 0))
    if len(of_library):
        logarithms = trees.predict(seen_of(frame.iloc[of_library]))
        ns[of_library] = frame.launch_ns.to_numpy()[of_library] * np.exp(np.clip(logarithms, -np.log(2), np.log(2)))
    times = {}
    for i in np.flatnonzero(frame.kernel.notna() & ~(frame.launch_ns > 0)):
        key = frame.kernel[i], tuple(frame.features[i])
        if key not in times:
            times[key] = operator_times.looked_up(operators, *key)
        if times[key] is not None:
            unsure = times[key][1] is TimeSource.INTERPOLATED and frame.chain_ns[i] > 0
            ns[i] = frame.chain_ns[i] if unsure else times[key][0]
    return ns


def family(name):
    """What sizes of one model have in common: they are left out together."""
    return re.sub(r"^(timm|torchvision|transformers|torch_geometric)_(tf_|legacy_)?([a-z]+).*", r"\3", name)


def errors(frame, ns):
    """Median relative error of launches with a counterpart, and of the sum."""
    both = np.isfinite(frame.real) & frame.kernel.notna()
    return float(np.median(np.abs(ns[both] / frame.real[both] - 1))), float(ns.sum() / frame.real.sum() - 1)


def judge(folder, output):
    """Leave each part of the families of programs out; print and write the errors."""
    frame, harvest = launches_of(folder), harvest_of(folder)
    base, about = earlier_rows(OPERATORS), read(OPERATORS).about
    families = sorted(frame.program.map(family).unique())
    results = []
    for part in range(PARTS):
        away = frame.program.map(family).isin(families[part::PARTS])
        trees = grown(library(pd.concat([frame[~away], harvest], ignore_index=True)))
        operators = table_of(base, own_entries(frame[~away]), about, folder)
        for name in sorted(frame.program[away].unique()):
            own = frame[frame.program == name].reset_index(drop=True)
            launch, total = errors(own, predicted(own, trees, operators))
            results.append({
                "program": name, "launches": int(own.kernel.notna().sum()), "duration_error": round(launch, 4),
                "sum_error": round(total, 4),
            })  # fmt: skip
            print(name, f"{launch:.1%} {total:.1%}", flush=True)
    launch, total = (np.abs([r[k] for r in results]) for k in ("duration_error", "sum_error"))
    print(f"sums within {WITHIN:.0%} in {(total <= WITHIN).sum()} of {len(total)}, their median error "
          f"{np.median(total):.1%}; median error of a launch {np.median(launch):.1%}")  # fmt: skip
    if output:
        output.write_text(json.dumps(results, indent=1) + "\n")


def page():
    """Write the table of docs/harvest.md from the results of `judge`."""
    results = json.loads(RESULTS.read_text())
    names = {name: {e["name"] for e in json.loads(path.read_text())} for name, path in DRAWS.items()}
    drawn = set().union(*names.values())
    groups = {name: [r for r in results if r["program"] in some] for name, some in names.items()}
    groups = {"programs of users": [r for r in results if r["program"] not in drawn]} | groups | {"all": results}
    lines = [
        "| programs | number | sums within 10% | median error of a sum | of a launch |",
        "|---|---|---|---|---|",
    ]
    for group, rows in groups.items():
        launch, total = (np.abs([r[k] for r in rows]) for k in ("duration_error", "sum_error"))
        cells = f"{(total <= WITHIN).sum()} | {np.median(total):.1%} | {np.median(launch):.1%}"
        lines.append(f"| {group} | {len(rows)} | {cells} |")
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + rest.partition(END)[2])


def harvest_of(folder):
    """The launches that `write_calls` wrote, as those of one program."""
    paths = sorted(folder.glob(f"{HARVEST}*.parquet"))
    frames = [pd.read_parquet(path).rename(columns={"duration_ns": "real"}) for path in paths]
    return pd.concat(frames, ignore_index=True).assign(program=HARVEST, duration_ns=0.0, alike=True)


def build_tables(folder):
    """Write both tables from all programs and the harvest."""
    from tileprof.harvest.grown_trees import of_lightgbm, write_trees

    frame, about = launches_of(folder), read(OPERATORS).about
    trees = grown(library(pd.concat([frame, harvest_of(folder)], ignore_index=True)))
    made = "python tests/gpu/harvest/program_times.py build"
    size = write_trees(TREES, about, {0: of_lightgbm(trees)}, made)
    count = build(earlier_rows(OPERATORS), about, OPERATORS, own_entries(frame))
    print(f"trees: {size:,} bytes; operators: {count:,} entries, {OPERATORS.stat().st_size:,} bytes")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("kernels", "profiles", "calls", "judge", "build", "page"))
    parser.add_argument("folder", type=Path, metavar="DIR", nargs="?", help="for all but `page`")
    parser.add_argument("more", nargs="*", metavar="NAME | RESIDENT", help="programs, or folders of slices")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write what `judge` found as JSON")
    options = parser.parse_args()
    if options.what == "page":
        page()
        return
    if options.folder is None:
        parser.error(f"{options.what} needs a folder")
    options.folder.mkdir(parents=True, exist_ok=True)
    act = {
        "kernels": partial(write_kernels, options.folder, options.more),
        "profiles": partial(write_profiles, options.folder),
        "calls": partial(write_calls, options.folder, list(map(Path, options.more))),
        "judge": partial(judge, options.folder, options.output),
        "build": partial(build_tables, options.folder),
    }  # fmt: skip
    act[options.what]()


if __name__ == "__main__":
    main()
