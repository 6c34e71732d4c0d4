"""The table of operators' durations from slices of the harvest of operators.

``python tests/gpu/harvest/operator_table.py DIR ... [-o FILE] [--only NAME ...]``: each harvested call runs here, on
the CPU, under the model recorder. The kernels that it models are paired with the launches of the GPU in order: as many
as have the same kind and the same number of tiles. Pairs are entries; of a call with another number of kernels only
those with as many tiles, and none where the recorder models kernels that were not launched. With ``--only`` entries of
these operators join those of the table that is there. Slices of the harvest of attention give entries of its kernels,
in the place of those that the table has; held-out calls give none, and are written to HELD_OUT instead, by which
`tests/benchmarks/model_recorder/bench_operator_times.py` judges the table. Entries of programs stay
(`program_times.py`).
"""

import argparse
import json
import sys
import tempfile
import time
from collections import Counter, defaultdict
from functools import partial
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[3]))  # helpers of the tests

from tests.support.in_order import matched_in_order
from tileprof import devices
from tileprof.harvest import attention, operators
from tileprof.harvest.operators import registry
from tileprof.harvest.products.product_cases import Dtype
from tileprof.harvest.slices import slices
from tileprof.record import Options
from tileprof.record.model import duration, operator_times
from tileprof.record.model.session import Session
from tileprof.record.model.tables import read, write
from tileprof.record.model.tables.places import FOLDER
from tileprof.record.model.tiles import load_all

HELD_OUT = Path(__file__).with_name("held_out_attention_h200.csv")
IN_PROGRAMS = 1.07
"""How much longer a kernel takes in a program than in the harvest: the median of 2,404 launches."""
TYPES = {Dtype.FP32: torch.float32, Dtype.FP16: torch.float16, Dtype.BF16: torch.bfloat16}


class Collector(Session):
    """A session that keeps the kernels of calls instead of writing them."""

    kernels: list

    def _launch(self, op, kernel_plans, tensors, places, inputs, path, texts=None, call=None):
        del op, tensors, places, inputs, path, texts, call
        self.kernels += [one.kernel for one in kernel_plans]


def harvested(folders, family):
    """Yield each case that ran: the case, and its launches ``(name, tiles, ns)``."""
    for path in (path for folder in folders for _, _, path in slices(folder, family)):
        with np.load(path) as file:
            columns = {name: file[name] for name in file.files}
        launches = [[] for _ in columns["cases"]]
        names = columns["names"].tolist()
        for case, name, grid, ns in zip(
            columns["case"].tolist(), columns["name"].tolist(), columns["grid"].tolist(), columns["ns"].tolist(),
            strict=True,
        ):  # fmt: skip
            launches[case].append((names[name], int(np.prod(grid)), ns))
        for case, error, some in zip(columns["cases"].tolist(), columns["error"].tolist(), launches, strict=True):
            if not error and some:
                yield tuple(case), some


def kind(name):
    return next((w for w in ("memset", "memcpy") if w in name.lower()), "kernel")


def paired(kernels, launches):
    """Return pairs ``(kernel, launch)`` in order, as many as possible; pairs with equal numbers of tiles count more."""
    worth = np.array([
        [(kind(k.name) == kind(name)) * (2 + (k.footprint.tiles == tiles)) for name, tiles, _ in launches]
        for k in kernels
    ]).reshape(len(kernels), len(launches))  # fmt: skip
    return [(kernels[i], launches[j]) for i, j in matched_in_order(worth)]


def operator_calls(folders, only, session):
    """Yield name, maker of the call, and launches of each harvested operator, or of those that are named."""
    registry.DEVICE = "cpu"
    for (number, dtype, *sizes), launches in sorted(harvested(folders, "operators")):
        name, build, *_ = operators.OPERATORS[number]
        if not only or name in only:
            yield name, partial(build, torch, TYPES[Dtype(dtype)], *sizes), launches


def attention_calls(folders, _only, session):
    """Yield the same of harvested attention; tensors are fake."""
    family = attention.Attention()
    held_out = set(map(tuple, attention.held_out().tolist()))

    def first(case):
        return family.repetitions(case)[0]

    with session.fake_mode:
        family.use(torch, torch.empty(attention.POOL, dtype=torch.float16))
    for case, launches in harvested(folders, "attention"):
        yield HELD_OUT.stem if case in held_out else "attention", partial(first, case), launches


def entries(folders, log, calls, only=()):
    """Return rows ``(kernel, *features, ns)`` of all cases, or of those of some operators, by the name of the call."""
    load_all()
    device = devices.get("H200")
    rows, failed, unpaired = defaultdict(list), Counter(), Counter()
    with tempfile.TemporaryDirectory() as temporary:
        output = Path(temporary) / "table.tileprof"
        options = Options(program=("table",), output=output, fake=calls is attention_calls)
        session = Collector(options, device, ["table"])
        session.kernels = []
        session.start()
        session.active = False
        for case_number, (name, make, launches) in enumerate(calls(folders, only, session)):
            session.active = False
            torch.manual_seed(0)
            try:
                call = make()
                session.active, session.kernels = True, []
                call()
            except Exception as error:  # noqa: BLE001 - whatever the CPU lacks: the case is left out
                failed[f"{name}: {type(error).__name__}"] += 1
                continue
            if session.failure is not None:
                raise SystemExit(session.failure)
            pairs = paired(session.kernels, launches)
            if len(pairs) != len(launches):
                unpaired[name] += 1
            alike = len(session.kernels) == len(launches)
            for kernel, (_, tiles, ns) in pairs if len(session.kernels) <= len(launches) else ():
                if not alike and tiles != kernel.footprint.tiles:
                    continue
                if calls is attention_calls and "attention" not in kernel.name:
                    continue
                tile_bytes, distinct = duration.traffic(kernel)
                of = operator_times.features(kernel, float(tile_bytes.sum()), distinct)
                rows[name].append((kernel.name, *of, ns * IN_PROGRAMS))
            session.kernels = []
            session._plans.clear()
            if case_number % 500 == 0:
                log(f"{case_number} cases, {sum(map(len, rows.values()))} launches, {time.process_time():.0f} s")
        session.active = False
        session.stop()
    for what, counts in (("failed", failed), ("without a pair for each launch", unpaired)):
        log(f"{what}: {', '.join(f'{n} {name}' for name, n in counts.most_common(40))}")
    return rows


def build(rows, about, path, of_programs=()):
    """Write the table; of entries with equal keys, the median, and those of programs before harvested ones."""
    names = sorted({row[0] for row in (*rows, *of_programs)})
    number = {name: n for n, name in enumerate(names)}
    medians, flags = {}, {}
    for some, flag in ((rows, 0), (of_programs, 1)):
        times = {}
        for name, *more, ns in some:
            if ns > 0:
                times.setdefault((number[name], *more), []).append(ns)
        medians |= {key: np.median(ns) for key, ns in times.items()}
        flags |= dict.fromkeys(times, flag)
    keys = sorted(medians)
    columns = {
        "name": np.array(names, np.str_),
        "time": np.array([round(operator_times.TIME_SCALE * np.log(max(1.0, medians[k]))) for k in keys], np.uint16),
        "in_program": np.array([flags[k] for k in keys], np.uint8),
    }
    version = ".".join(about["torch"].split(".")[:2])
    origin = {name: about[name] for name in ("gpu", "architecture", "sms", "torch", "cuda", "cudnn", "cublas")}
    origin |= {"library": "torch", "version": version}
    write(path, origin, ("kernel", *operator_times.FEATURES), np.array(keys, np.int64), columns)
    return len(keys)


def earlier_rows(path, *, in_program=0):
    """Return the rows of a table that is there: the harvested ones, or those of programs."""
    table = read(path)
    names, times = table.columns["name"].tolist(), np.exp(table.columns["time"] / operator_times.TIME_SCALE)
    of_kind = table.columns["in_program"] == in_program
    return [
        (names[kernel], *more, ns)
        for (kernel, *more), ns in zip(table.keys[of_kind].tolist(), times[of_kind].tolist(), strict=True)
    ]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR")
    parser.add_argument("-o", "--output", type=Path, default=FOLDER / "h200" / "operators-torch-2.11.npz")
    parser.add_argument("--only", nargs="+", default=(), metavar="NAME", help="operators whose entries are added")
    options = parser.parse_args()

    def log(text):
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()

    family = "attention" if (options.folders[0] / "attention.json").exists() else "operators"
    about = json.loads((options.folders[0] / f"{family}.json").read_text())
    by_name = entries(options.folders, log, attention_calls if family == "attention" else operator_calls, options.only)
    held_out = by_name.pop(HELD_OUT.stem, [])
    rows = [row for some in by_name.values() for row in some]
    if family == "attention":
        rows += [row for row in earlier_rows(options.output) if "attention" not in row[0]]
        lines = (",".join(map(str, row)) for row in [("kernel", *operator_times.FEATURES, "ns"), *held_out])
        HELD_OUT.write_text("\n".join(lines) + "\n")
    elif options.only:
        rows += earlier_rows(options.output)
    count = build(rows, about, options.output, earlier_rows(options.output, in_program=1))
    print(f"{len(rows):,} launches, {count:,} entries; {options.output.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
