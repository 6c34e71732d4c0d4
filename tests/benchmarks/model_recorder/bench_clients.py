"""Programs of users, modelled here and recorded on an H200: `tests/golden/clients.py`, with which rules were
corrected, and with ``--held-out`` those of a list of `held_out.py`, which were not used for rules (but ``development``,
on which they are mended).

What was recorded is in `tests/golden/clients`: launches with the medians of their durations (NaN where PyTorch's
profiler saw no such launch: the recorder changes what PyTorch launches in some training steps), and pairs of launches
that truly depend, with their patterns (`tests/gpu/measuring/recorder/measure_clients.py` made them).
Launches are matched and pairs counted as
`bench_model_against_recorded.py` does. Durations: the median error of a modelled launch, and that of their sum.
Pairs with a launch that the GPU's recorder knows nothing of (it stands for all memory) are not facts: ``share`` is
without them, ``share_of_all`` with them.
As many bytes count as one address as in the recording, which says so (column ``granule``).
``--traces DIR`` keeps the modelled traces there and uses those that are there; ``-o`` writes the results; ``--sum``
lists what differs in all programs together. ``--page`` writes the table of docs/model-recorder.md from the results in
`tests/benchmarks/results` (`SETS`).
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
from bench_model_against_recorded import GOLDEN, Side, compare, counterparts, side

from tileprof.trace import load

sys.path.insert(0, str(Path(__file__).parents[1]))  # what all benchmarks share

from measuring import header, table

RECORDED = GOLDEN / "clients"
LISTS = {
    "first": "held_out.json",
    "second": "held_out_second.json",
    "third": "held_out_third.json",
    "fourth": "held_out_fourth.json",
    "fifth": "held_out_fifth.json",
    "sixth": "held_out_sixth.json",
    "seventh": "held_out_seventh.json",
    "development": "development.json",
    "development_second": "development_second.json",
}
SETS = {
    "clients": "programs of users",
    "held_out": "of a first draw",
    "held_out_second": "of a second draw",
    "held_out_third": "of a third draw",
    "held_out_fourth": "of a fourth draw",
    "held_out_fifth": "of a fifth draw",
    "held_out_sixth": "of a sixth draw",
    "held_out_seventh": "of a seventh draw, held out",
}
"""Results files, and what the page calls their programs."""
RECORDED_WITH = "2.11."
"""PyTorch's version on the GPU; programs that it compiles are modelled with the same one."""
ACTIVATIONS = {"aten::silu_", "aten::hardswish_"}
"""Those whose copies some older recordings name `aten::clone`."""
LIMIT_S = 900
RESULTS = Path(__file__).parents[1] / "results"
PAGE = GOLDEN.parents[1] / "docs" / "model-recorder.md"
BEGIN, END = "<!-- programs of users -->\n", "<!-- end of programs of users -->\n"


def recording(name):
    """The recorded `Side` of a program."""
    tables = [pd.read_parquet(RECORDED / f"{kind}.parquet", filters=[("program", "==", name)]) for kind in
              ("launches", "pairs")]  # fmt: skip
    launches, pairs = (t.reset_index(drop=True) for t in tables)
    launches["op"] = with_copies(launches.op.tolist())
    return Side(launches, {(r.producer, r.consumer): r.pattern for r in pairs.itertuples()})


def with_copies(ops):
    """Return operators as they are named since 2026-11-28: the copy of what an activation overwrites is part of it."""
    return [
        after if op == "aten::clone" and after in ACTIVATIONS else op
        for op, after in zip(ops, [*ops[1:], ""], strict=True)
    ]


def modelled(name, script, folder):
    """The program's trace by the model recorder, for an H200; None if it cannot be recorded."""
    path = Path(folder).resolve() / f"{name}.tileprof"
    if path.exists():
        return load(path)
    options = ("--recorder", "model", "--device", "H200", "--force", "-o", str(path))
    program = (sys.executable, str(GOLDEN / script), name, "cpu")
    command = (sys.executable, "-m", "tileprof.cli", "record", *options, "--", *program)
    # `-m` imports from the working directory first, and the checkout holds no whole package
    process = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if process.returncode:
        sys.stderr.write(f"{name} was not modelled: {process.stderr[-600:]}\n")
        return None
    return load(path)


def durations(mine, theirs):
    """The median relative error of matched launches, and the relative error of the sum (modelled against recorded).

    Launches without a known duration are in neither sum.
    """
    counterpart, _ = counterparts(mine.launches, theirs.launches)
    real = theirs.launches.duration_ns.to_numpy(float)
    errors = [
        abs(mine.launches.duration_ns[a] - real[b]) / real[b] for a, b in counterpart.items() if np.isfinite(real[b])
    ]
    unknown = [a for a, b in counterpart.items() if not np.isfinite(real[b])]
    modelled_ns = float(mine.launches.duration_ns.drop(unknown).sum())
    total = modelled_ns / np.nansum(real) - 1 if np.isfinite(real).any() else float("nan")
    return float(np.median(errors)) if errors else float("nan"), total


def without_conservative_pairs(mine, theirs):
    """Both sides without pairs of launches whose recording is conservative."""
    unknown = set(np.flatnonzero(theirs.launches.coverage.to_numpy() == "conservative").tolist())
    counterpart, _ = counterparts(mine.launches, theirs.launches)
    also = {a for a, b in counterpart.items() if b in unknown}
    pairs = [
        {ends: n for ends, n in side.pairs.items() if not some & set(ends)}
        for side, some in ((mine, also), (theirs, unknown))
    ]
    return Side(mine.launches, pairs[0]), Side(theirs.launches, pairs[1])


def result(name, script, folder):
    """A program's comparison, as it is written; and what differs."""
    trace = modelled(name, script, folder)
    theirs = recording(name)
    if trace is None:
        row = {
            "program": name, "launches": [0, len(theirs.launches)], "pairs": [0, len(theirs.pairs)], "both": 0,
            "same_pattern": 0, "share": 0.0, "share_of_all": 0.0, "equal_tiles": [0, 0], "duration_error": None,
            "sum_error": None,
        }  # fmt: skip
        return row, {}
    mine = side(trace, int(theirs.launches.granule.iloc[0]))
    agreement, of_all = compare(name, *without_conservative_pairs(mine, theirs)), compare(name, mine, theirs)
    median, total = durations(mine, theirs)
    row = {
        "program": name, "launches": list(agreement.launches), "pairs": list(agreement.pairs), "both": agreement.both,
        "same_pattern": agreement.same_pattern, "share": round(agreement.share(), 4),
        "share_of_all": round(of_all.share(), 4),
        "equal_tiles": [agreement.same_tiles, agreement.matches], "duration_error": round(median, 4),
        "sum_error": round(total, 4), "torch": trace.manifest["libraries"]["torch"].partition("+")[0],
    }  # fmt: skip
    return row, agreement.different


def rows(results):
    for r in results:
        share, same = r["share"], f"{r['same_pattern']}"
        errors = [f"{r[k]:.0%}" if r[k] is not None else "" for k in ("duration_error", "sum_error")]
        yield (
            r["program"], "{} / {}".format(*r["launches"]), "{} of {}".format(*r["equal_tiles"]),
            "{} / {}".format(*r["pairs"]), f"{r['both']}", f"{same} ({share:.0%})", *errors,
        )  # fmt: skip


def in_all(results):
    """The share over all programs."""
    either = sum(sum(r["pairs"]) - r["both"] for r in results)
    return sum(r["same_pattern"] for r in results) / max(1, either)


def programs(held_out):
    """Names that were recorded, in order, and their script; ``held_out`` names a list of `held_out.py`."""
    lists = {name: json.loads((GOLDEN / path).read_text()) for name, path in LISTS.items()}
    recordings = pd.read_parquet(RECORDED / "launches.parquet", columns=["program"]).program.unique()
    if held_out:
        return judgement(lists[held_out], recordings), "held_out.py"
    return sorted(set(recordings) - {e["name"] for entries in lists.values() for e in entries}), "clients.py"


def judgement(drawn, recordings):
    """Return the drawn programs to be judged of each library; one that could not be recorded is replaced."""
    entries = [e for e in drawn if e["name"] in recordings]
    numbers = Counter(e["library"] for e in drawn if not e["reserve"])
    return [e["name"] for library, n in numbers.items() for e in [e for e in entries if e["library"] == library][:n]]


def page():
    """Write the results of all sets into the documentation."""
    lines = [
        "| program | launches modelled / recorded | share | of all pairs | median error of a duration | of their sum |",
        "|---|---|---|---|---|---|",
    ]
    for name, title in SETS.items():
        path = RESULTS / f"{name}.json"
        if not path.exists():
            continue
        some = json.loads(path.read_text())
        aim = "95%" if name == "clients" else "90%"
        matches = sum(r["share"] >= float(aim[:-1]) / 100 for r in some)
        for r in sorted(some, key=lambda r: -r["share"]):
            errors = ["" if r[k] is None or np.isnan(r[k]) else f"{r[k]:.0%}" for k in ("duration_error", "sum_error")]
            version = " (PyTorch 2.11)" if r.get("torch", "").startswith(RECORDED_WITH) else ""
            lines.append(f"| {r['program']}{version} | {r['launches'][0]} / {r['launches'][1]} | {r['share']:.0%} | "
                         f"{r['share_of_all']:.0%} | {errors[0]} | {errors[1]} |")  # fmt: skip
        lines.append(
            f"| **all {len(some)} {title}**, {matches} of them at least {aim} | | **{in_all(some):.0%}** | | | |"
        )
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text(before + BEGIN + "\n".join(lines) + "\n" + END + after)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="programs (default: all)")
    parser.add_argument("--held-out", choices=LISTS, help="those of a list that were not used for rules")
    parser.add_argument("--list", action="store_true", help="list what differs")
    parser.add_argument("--sum", action="store_true", help="list what differs in all programs together")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="keep the modelled traces there, and use them")
    parser.add_argument("-o", "--output", type=Path, metavar="FILE", help="write the results as JSON")
    parser.add_argument("--page", action="store_true", help="write the page from the results files")
    options = parser.parse_args()
    if options.page:
        page()
        return
    header("The model recorder against recordings of users' programs on an H200")
    names, script = programs(options.held_out)
    results, different = [], {}
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            if not options.names or name in options.names:
                row, different[name] = result(name, script, options.traces or folder)
                results.append(row)
                if options.output:  # the results are kept if this is ended
                    options.output.write_text(json.dumps(results, indent=1) + "\n")
                sys.stderr.write(f"{name}: {row['share']:.0%}\n")
    columns = (
        "program", "launches model / recorded", "equal tiles", "true pairs model / recorded", "in both", "same pattern",
        "median error of a duration", "error of their sum",
    )  # fmt: skip
    table(columns, list(rows(results)))
    print(f"all: {in_all(results):.1%} of the pairs that either graph has are in both with the same pattern")
    if options.sum:
        sums, having = Counter(), Counter()
        for texts in different.values():
            sums.update(texts)
            having.update(texts.keys())
        table(("times", "programs", "what differs"), [(n, having[text], text) for text, n in sums.most_common()])
    if options.list:
        for name, texts in different.items():
            print(f"\n{name}")
            for text, times in texts.most_common() if texts else ():
                print(f"  {times} x {text}")


if __name__ == "__main__":
    main()
