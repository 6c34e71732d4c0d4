"""``tileprof simulate workload:NAME``: child grids of a synthetic program, launched or not."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from typing import TYPE_CHECKING, Any

from tileprof.errors import UserError

if TYPE_CHECKING:
    from tileprof.analysis.simulate.spawning import Spawned, Spawning, Spawns

PREFIX = "workload:"
SCHEMA, VERSION = "tileprof spawns", 1


def run(options: Namespace) -> int:
    """Compare rules on the workload that ``workload:NAME[:scale=…,seed=…]`` names; the scheduler is
    ``spawn[:key=value,…]``.

    Raises `UserError` for options that need a trace, and for other schedulers.
    """
    for value, flag in (
        (options.sweep, "--sweep"),
        (options.advice, "--advice"),
        (options.device, "--device"),
        (options.sms, "--sms"),
    ):
        if value:
            raise UserError(f"{flag} needs a trace; workloads of spawn events take --scheduler spawn:key=value,…")
    from tileprof.analysis.simulate.spawning import Spawning, compare  # noqa: PLC0415 - heavy, and not needed for --help

    if len(options.scheduler) > 1:
        raise UserError("give one --scheduler spawn:key=value,…: the rules are compared with each other anyway")
    rules = _spawning((options.scheduler or ["spawn"])[0], Spawning)
    work = _workload(options.trace)
    results = compare(work, rules)
    if options.json:
        answer = {
            "schema": SCHEMA,
            "version": VERSION,
            "workload": options.trace,
            "threads": len(work.items),
            "items": int(work.items.sum()),
            "rounds": len(work.round_at) - 1,
            "rules": [f.to_json() for f in results],
        }
        json.dump(answer, sys.stdout, indent=1, allow_nan=False)
        print()
    else:
        _print(work, results)
    return 0


def _spawning(text: str, kind: type[Spawning]) -> Spawning:
    from tileprof.analysis.simulate.scheduler import close, key_values, plain_key  # noqa: PLC0415 - heavy

    name, options = key_values(text)
    if name != "spawn":
        raise UserError(
            f"a workload of spawn events has one scheduler, spawn, not {name!r}; record a program for the others"
        )
    is_int = {f.name: f.type == "int" for f in kind.__dataclass_fields__.values()}
    values: dict[str, Any] = {}
    for key, value in options.items():
        plain, number = plain_key("scheduler spawn", key, value, is_int)
        if plain not in is_int:
            raise UserError(f"scheduler spawn has no option {key!r}{close(key, is_int)}; it has {', '.join(is_int)}")
        values[plain] = _number(f"scheduler spawn: {plain}", number, whole=is_int[plain])
    return kind(**values)


SCALES = range(4, 18)
"""Scales of workloads. At the largest a breadth-first search takes half a minute and 1 GB."""


def _workload(text: str) -> Spawns:
    from tileprof.analysis.simulate.scheduler import close  # noqa: PLC0415 - heavy
    from tileprof.analysis.workloads import SPAWNS  # noqa: PLC0415 - heavy

    name, _, options = text.removeprefix(PREFIX).partition(":")
    if name not in SPAWNS:
        plain, comma, rest = name.partition(",")
        if comma and plain in SPAWNS:
            raise UserError(f"{text}: options of a workload follow a colon; write {PREFIX}{plain}:{rest or 'scale=14'}")
        raise UserError(f"there is no workload {name!r}{close(name, SPAWNS)}; there are {', '.join(SPAWNS)}")
    settings = {"scale": "14", "seed": "0"}
    keys_so_far: set[str] = set()
    for part in filter(None, options.split(",")):
        key, equals, value = part.partition("=")
        if not equals:
            raise UserError(f"{text}: {part!r} is not key=value; write {PREFIX}{name}:scale=14,seed=0")
        if key not in settings:
            raise UserError(f"{text}: a workload takes scale and seed, not {key!r}{close(key, settings)}")
        if key in keys_so_far:
            raise UserError(f"{text}: {key} is given twice; give it once")
        keys_so_far.add(key)
        settings[key] = value
    scale, seed = (int(_number(f"{text}: {key}", value, whole=True)) for key, value in settings.items())
    if scale not in SCALES:
        raise UserError(
            f"{text}: scale is {scale}, expected {SCALES.start} to {SCALES.stop - 1} (the binary logarithm of the "
            "number of vertices, rows, cells or points)"
        )
    if seed < 0:
        raise UserError(f"{text}: seed is {seed}, expected at least 0")
    return SPAWNS[name](scale=scale, seed=seed)


def _number(what: str, text: str, *, whole: bool) -> float:
    try:
        return int(text) if whole else float(text)
    except ValueError:
        raise UserError(f"{what}={text} is not a{' whole' if whole else ''} number") from None


def _print(work: Spawns, results: list[Spawned]) -> None:
    from rich.table import Table  # noqa: PLC0415 - heavy, and not needed for --help
    from rich.text import Text  # noqa: PLC0415 - as above

    from tileprof.analysis.times_and_counts import counted, duration  # noqa: PLC0415 - as above
    from tileprof.cli.text.console import plain  # noqa: PLC0415 - as above
    from tileprof.cli.text.guidance_text import percent  # noqa: PLC0415 - as above
    from tileprof.cli.text.simulate_text import print_table, wide_terminal  # noqa: PLC0415 - as above

    console = wide_terminal()
    table = Table(box=None, pad_edge=False)
    for name in ("rule", "time", "over flat", "launched", "inline", "estimate off by"):
        table.add_column(name, justify="left" if name == "rule" else "right", no_wrap=True)
    for f in results:
        gain = f"{results[0].time_ns / f.time_ns:.2f}x" if f.time_ns else "-"
        error = percent(f.estimate_error) if f.estimate_error == f.estimate_error else "-"  # NaN is not itself
        table.add_row(*map(Text, (f.policy, duration(f.time_ns), gain, f"{f.launched:,}", f"{f.inlined:,}", error)))
    print_table(console, table)
    sentence = (
        f"{plain(work.name)}: {counted(len(work.round_at) - 1, 'round')} of {counted(len(work.items), 'thread')} with "
        f"{counted(int(work.items.sum()), 'item')}. program launches from {counted(work.threshold, 'item')}; "
        "threshold is the best static one. estimate: of the queue model, against what then "
        "happened. Costs that were not given are a K20c's, see tileprof.analysis.simulate.spawning."
    )
    console.print(Text(sentence, style="dim"))
