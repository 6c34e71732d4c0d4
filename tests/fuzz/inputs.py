"""Inputs that no recorder wrote: well-formed files, and operations on them that are aware of their structure.

An input is a base and a list of operations, both plain JSON, so that it fits on a line of the corpus and makes the same
files everywhere.
"""

from __future__ import annotations

import contextlib
import json
import random
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tests.fuzz.watch import BAIT, BAIT_MARK, make_bait
from tests.support.synthetic_graphs import write_mlp
from tileprof.devices import get
from tileprof.trace import load, schema

ROOT = Path(__file__).parents[2]

Operation = list[Any]
"""A verb and its arguments; see `apply`."""

NUMBERS = [0, 1, -1, 2, 7, 255, 65536, 2**31 - 1, 2**31, -(2**31), 2**53, 2**60, 2**62, 2**63 - 1, -(2**63)]
WIDE_NUMBERS = [10**40, -(10**40), 10**400, 1e300, 1e-300, "nan", "inf", "-inf", 0.5, -0.0]
TEXTS = [
    "", "x", "\x1b[31mred\x1b[0m", "\x1b]0;title\x07", "</script><script>alert(1)</script>",
    '"><img src=x onerror=alert(1)>',
    "*/ #error",
    'a"b\\', "line\nbreak", "\r\n", "\u202eevil\u202c", "\u2028", "=cmd()|' /C calc'!A0", "'; --",
    "../../etc/passwd", "/dev/zero", "{}",
    "[", f"{BAIT_MARK}/secret", f"{BAIT_MARK}/mlp.tileprof", f"{BAIT_MARK}/secret.cu", "../../bases/bait/secret.json",
    "../bait/secret", "../../../bases/bait", f"file://{BAIT_MARK}/secret",
    "%s%n", "${HOME}", "\ufeff", "\U0001f600" * 50, "k" * 20_000, "??/", 'R"(x)"', "\\N{DIGIT ONE}", "__VA_ARGS__",
    "operator new", "[" * 2000, "(" * 2000, '{"a":' * 2000,
]  # fmt: skip
WORDS = """tokens=128..512 step 128
images=1..8
gap>30%
time>1.5ms
launches>+0
list:slots=4
cusync:poll=2us
shared-roofline
co-residency-scaled:sensitivity=0.5
poll_ns=1:100:3
sms=10:20:2
0,1
1:2
xy
h\\.0
"""
"""Values of options, one per line."""
NAME_COLUMNS = [
    (table.name, column.name) for table in schema.TABLES.values() for column in table.columns if column.type == "string"
]
FOLDERS = ["missing", "a file", "empty", "twice", "stray", "nested", "linked", "unreadable"]
"""What happens to the folder of a table."""
EXPRESSIONS = [
    "tokens",
    "tokens // 0",
    "tokens * tokens",
    "min(x, tokens)",
    "x % -1",
    "9 ** 9",
    "(x)(y)",
    "x if y else z",
]
JSON_VALUES: list[Any] = [
    None, True, [], {}, "", [[]], {"a": 1}, {"size": "tokens"}, *NUMBERS, *WIDE_NUMBERS, *TEXTS, *EXPRESSIONS,
]  # fmt: skip

DEPENDENCIES = """tileprof dependencies 1
grid up 6 x 4
grid down 5 x 4 launch 2
grid out 3
dep down on up(0..5, y)
dep out on down(min(4, 2 * x)..min(4, 2 * x + 1), 0..3 step 2)
"""
CALL = {
    "operands": [
        {"argument": "mat1", "shape": [256, 256], "strides": [256, 1], "dtype": "float16"},
        {"argument": "mat2", "shape": [256, 1024], "strides": [1024, 1], "dtype": "float16"},
        {"argument": "out", "shape": [256, 1024], "strides": [1024, 1], "dtype": "float16"},
    ],
    "arguments": {"alpha": 1, "beta": 0},
}
TRACES = ("tiny", "mlp", "gemm_pair", "recording")
JSON_BASES = {
    "policy": "policy.json", "symbolic": "symbolic.json", "device": "device.json", "profile": "profile.json",
}  # fmt: skip
TEXT_BASES = {"dependencies": "dependencies.dep", "header": "policy.h", "words": "words.txt"}
DATABASE = "nsys"
"""The base that is an SQLite database."""
WEIGHTS = {
    "tiny": 5, "mlp": 2, "gemm_pair": 2, "recording": 5, "policy": 16, "symbolic": 10, "device": 14, "dependencies": 24,
    "header": 10, "words": 16, "profile": 8, "nsys": 4,
}  # fmt: skip
"""How often each base is drawn: the cheapest most often."""


def make_bases(folder: Path) -> None:
    """Make well-formed traces, a policy, a device and dependencies, under the names in `BASES`."""
    write_mlp(folder / "tiny.tileprof", layers=1, tokens=128, hidden=128)
    write_mlp(folder / "mlp.tileprof", layers=2, tokens=256, hidden=256, call=json.dumps(CALL))
    shutil.copytree(ROOT / "tests/golden/gemm_pair.tileprof", folder / "gemm_pair.tileprof")
    from tileprof.cli.entry import main

    trace = str(folder / "mlp.tileprof")
    for form in ("json", "cusync"):
        assert main(["export", "--format", form, "--launches", "0,1", "-o", str(folder / form), trace]) == 0
    shutil.copy(folder / "json" / "policy.json", folder / "policy.json")
    assert main(["simulate", trace]) == 0, "and all schedulers are compiled now"
    (folder / "device.json").write_text(json.dumps(get("A100").to_dict()))
    (folder / "dependencies.dep").write_text(DEPENDENCIES)
    (folder / "words.txt").write_text(WORDS)
    _write_symbolic(folder)
    _write_recording(folder / "recording.tileprof")
    _write_profiles(folder)
    make_bait(folder)


def _write_symbolic(folder: Path) -> None:
    """Write the policy of the bases for a range of sizes; 256 is the size of the base."""
    policy = json.loads((folder / "policy.json").read_text())
    for stage in policy["stages"]:
        stage["grid"] = [{"size": f"{n} * tokens // 256"} if n == 2 else n for n in stage["grid"]]
    symbol = {"name": "tokens", "low": 128, "high": 512, "multiple": 128, "recorded": 256}
    result = {"tileprof_symbolic_policy": 1, "symbol": symbol, "notes": [], "policy": policy}
    (folder / "symbolic.json").write_text(json.dumps(result))


def _write_profiles(folder: Path) -> None:
    """Write times of the products of ``mlp``, as torch.profiler and nsys write them."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name"}]
    with closing(sqlite3.connect(folder / "nsys.sqlite")) as database, database:
        database.execute("create table StringIds (id integer primary key, value text)")
        database.execute(
            'create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, "end" integer, streamId integer, '
            "correlationId integer, demangledName integer, shortName integer)"
        )
        for n in range(4):
            kernel, place = f"void cutlass::gemm_kernel<{n}>(Params)", {"External id": n}
            events += [
                {"ph": "X", "cat": "cpu_op", "name": "aten::addmm", "ts": 10.0 * n, "dur": 2, "args": place},
                {"ph": "X", "cat": "kernel", "name": kernel, "ts": 10.0 * n + 5, "dur": 3.5, "args": place},
            ]
            database.execute("insert into StringIds values (?, ?)", (n, kernel))
            row = (10_000 * n, 10_000 * n + 3500, 7, n, n, None)
            database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?)", row)
    (folder / "profile.json").write_text(json.dumps({"traceEvents": events}))


def _write_recording(path: Path) -> None:
    """Write a trace as the CUDA recorder does: launches say how, and on which tensors, their operators were called."""
    write_mlp(path, layers=1, tokens=128, hidden=128, device="H200", op="aten::mm")
    trace = load(path)
    bound = [trace.operands_of(launch)[0].tolist() for launch in range(len(trace.launches))]
    calls = []
    for number, (buffers, (inner, columns)) in enumerate(zip(bound, ((128, 512), (512, 128)), strict=True)):
        shapes = {"self": [128, inner], "mat2": [inner, columns], "out": [128, columns]}
        tensors = [
            {
                "argument": name, "shape": shape, "strides": [shape[1], 1], "dtype": "float16", "buffer": buffer,
                "offset": 0, "written": name == "out",
            }
            for (name, shape), buffer in zip(shapes.items(), buffers, strict=True)
        ]  # fmt: skip
        operands = [{key: t[key] for key in ("argument", "shape", "strides", "dtype")} for t in tensors]
        places = {"self": {"tensor": 0}, "mat2": {"tensor": 1}}
        calls.append({"operands": operands, "arguments": {}, "number": number, "tensors": tensors, "places": places})
    file = path / "launches" / "000000.parquet"
    table = pq.read_table(file, partitioning=None)
    at = table.schema.get_field_index("call")
    texts = pa.array([json.dumps(call) for call in calls], pa.string())
    pq.write_table(table.set_column(at, pa.field("call", pa.string()), texts), file)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps(manifest | {"recorder": "cuda"}))


def path_of(folder: Path, base: str) -> Path:
    if base == "header" and (folder / "cusync").exists():  # the bases' folder
        return folder / "cusync" / "policy.h"
    names = {**JSON_BASES, **TEXT_BASES, DATABASE: "nsys.sqlite"}
    return folder / (f"{base}.tileprof" if base in TRACES else names[base])


def make(bases: Path, folder: Path, base: str, operations: list[Operation]) -> Path:
    """Write the input as files in ``folder``. Return the path to give to a verb."""
    source, target = path_of(bases, base), path_of(folder, base)
    operations = json.loads(json.dumps(operations).replace(BAIT_MARK, str(bases / BAIT)))
    if base == DATABASE:
        shutil.copy(source, target)
        for operation in operations:
            _change_database(target, operation)
    elif base in TRACES:
        shutil.copytree(source, target)
        for operation in operations:
            _change_trace(target, operation)
    elif base in TEXT_BASES:
        if base == "header":
            shutil.copytree(source.parent, folder, dirs_exist_ok=True)
        text = source.read_text()
        for operation in operations:
            text = _change_text(text, operation)
        target.write_bytes(text.encode("utf-8", "surrogatepass"))
    else:
        value = json.loads(source.read_text())
        for kind, *rest in operations:
            if kind == "raw":
                target.write_text(rest[0])
                return target
            value = _set(value, *rest)
        target.write_text(_json_text(value))
    return target


def draw(dice: random.Random, bases: Path) -> tuple[str, list[Operation]]:
    """Draw a random input."""
    base = dice.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
    count = dice.choice([1, 1, 1, 2, 3])
    if base in TRACES:
        return base, [_draw_trace(dice, bases, base) for _ in range(count)]
    if base in TEXT_BASES:
        changes = [_draw_text(dice) for _ in range(count)]
        return base, ([["pick", dice.randrange(60), ""], *changes] if base == "words" else changes)
    if base == DATABASE:
        return base, [_draw_database(dice) for _ in range(count)]
    if dice.random() < 0.03:
        return base, [["raw", dice.choice(["", "[" * 100_000, "nul", "\ufeff{}", "[]", '{"a":1,"a":2}', "1" * 5000])]]
    value = json.loads(path_of(bases, base).read_text())
    return base, [["set", _draw_place(dice, value), dice.choice(JSON_VALUES)] for _ in range(count)]


def _json_text(value: Any) -> str:
    """Return JSON in which the words nan, inf and -inf alone stand for the numbers, as in files from other programs."""
    text = json.dumps(value)
    for word, number in (('"nan"', "NaN"), ('"inf"', "Infinity"), ('"-inf"', "-Infinity")):
        text = text.replace(word, number)
    return text


# ---- values in JSON


def _draw_place(dice: random.Random, value: Any) -> list[Any]:
    place: list[Any] = []
    while isinstance(value, dict | list) and value and (not place or dice.random() < 0.9):
        key = dice.choice(list(value)) if isinstance(value, dict) else dice.randrange(len(value))
        place.append(key)
        value = value[key]
    return place


def _set(value: Any, place: list[Any], new: Any) -> Any:
    if not place:
        return new
    at = value
    try:
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = new
    except (TypeError, KeyError, IndexError):
        pass  # an earlier operation removed this place
    return value


# ---- text


def _draw_text(dice: random.Random) -> Operation:
    words = [
        *TEXTS,
        *(str(n) for n in NUMBERS),
        str(10**40),
        "x",
        "y..x",
        "grid",
        "dep",
        "step 0",
        "(((",
        "x // 0",
        "x % 0",
        "-9**99",
    ]
    kind = dice.choice(["word", "word", "word", "line", "insert"])
    return [kind, dice.randrange(60), dice.choice(words)]


def _change_text(text: str, operation: Operation) -> str:
    kind, place, word = operation
    if kind == "pick":
        return text.split("\n")[place % text.count("\n")]
    if kind == "insert":
        return text[: place * 3] + word + text[place * 3 :]
    separator = "\n" if kind == "line" else " "
    parts = text.split(separator)
    parts[place % len(parts)] = word
    return separator.join(parts)


# ---- databases


def _draw_database(dice: random.Random) -> Operation:
    kind = dice.choice(["cell", "cell", "cell", "column", "drop", "cut", "noise"])
    if kind in ("cut", "noise"):
        return [kind, "", dice.randrange(1_000_000), dice.randrange(256)]
    kernels = ["start", "end", "streamId", "correlationId", "demangledName", "shortName"]
    table, columns = dice.choice([("CUPTI_ACTIVITY_KIND_KERNEL", kernels), ("StringIds", ["id", "value"])])
    value = dice.choice([None, 0.5, -1.5, 1e300, *NUMBERS, *TEXTS])
    return [kind, table, dice.choice(columns), dice.randrange(4), value]


def _change_database(path: Path, operation: Operation) -> None:
    kind, table, *rest = operation
    if kind in ("cut", "noise"):
        _change_bytes(path, kind, *rest)
        return
    column, row, value = rest
    with contextlib.suppress(sqlite3.Error), closing(sqlite3.connect(path)) as database, database:
        if kind == "drop":
            database.execute(f'drop table "{table}"')
        else:
            where = "" if kind == "column" else f" where rowid = (select rowid from {table} limit 1 offset {row})"
            database.execute(f'update "{table}" set "{column}" = ?{where}', (value,))


def _change_bytes(path: Path, kind: str, place: int, value: int) -> None:
    data = bytearray(path.read_bytes())
    if data and kind == "cut":
        del data[place % len(data) :]
    elif data:
        data[place % len(data)] = value
    path.write_bytes(data)


# ---- traces


def _draw_trace(dice: random.Random, bases: Path, base: str) -> Operation:
    kind = dice.choice(
        ["cell"] * 10
        + ["column", "column", "manifest", "manifest", "name", "name"]
        + ["rows", "cast", "drop", "cut", "noise", "link", "folder"]
        + ["call"] * (20 if base == "recording" else 1)
    )
    table = dice.choice(list(schema.TABLES.values()))
    column = dice.choice(table.columns)
    manifest = json.loads((path_of(bases, base) / "manifest.json").read_text())
    match kind:
        case "cell" | "column":
            return [kind, table.name, column.name, dice.randrange(1000), _draw_cell(dice, column.type)]
        case "manifest":
            return [kind, _draw_place(dice, manifest), dice.choice(JSON_VALUES)]
        case "name":
            table, column = dice.choice(NAME_COLUMNS)
            return ["column" if dice.random() < 0.5 else "cell", table, column, dice.randrange(1000), draw_name(dice)]
        case "folder":
            return [kind, table.name, dice.choice(FOLDERS)]
        case "call":
            launches = pq.read_table(path_of(bases, base) / "launches", partitioning=None)
            text = launches["call"].to_pylist()[-1] if "call" in launches.column_names else ""
            document = json.loads(text or json.dumps(CALL))
            result = _set(document, _draw_place(dice, document), dice.choice(JSON_VALUES))
            return ["cell", "launches", "call", dice.randrange(4), json.dumps(result)]
        case "rows":
            return [
                kind,
                table.name,
                dice.choice(["reversed", "doubled", "empty", "first", "shuffled"]),
                dice.randrange(1000),
            ]
        case "cast":
            return [kind, table.name, column.name, dice.choice(["int64", "int32", "float64", "string", "bool"])]
        case "drop":
            return [kind, table.name, dice.choice([column.name, ""])]
        case _:
            return [kind, table.name, dice.randrange(1_000_000), dice.randrange(256)]


def draw_name(dice: random.Random) -> str:
    """Draw a word that a file may hold: pieces of code for other tools, and characters from all of Unicode."""
    pieces = [
        dice.choice(TEXTS)[:200]
        if dice.random() < 0.5
        else chr(dice.choice([dice.randrange(0x80), dice.randrange(0xD800)]))
        for _ in range(dice.randrange(1, 8))
    ]
    return "".join(pieces)


def _draw_cell(dice: random.Random, type_: str) -> Any:
    if type_.startswith("int"):
        most = 2 ** (int(type_[3:]) - 1)
        return dice.choice(
            [n for n in NUMBERS if -most <= n < most] + [dice.randrange(1, 2000), 8 * dice.randrange(4096)]
        )
    if type_.startswith("float"):
        return dice.choice(
            [0.0, 1.0, -1.0, 0.25, 1e300 if type_ == "float64" else 1e30, 9e18, 1e-30, "nan", "inf", "-inf"]
        )
    if type_ == "list<int64>":
        return dice.choice([[], [1], [0, 0], [2**62] * 3, [-1], [1] * 100, [2**63 - 1]])
    return dice.choice([*TEXTS, "read", "write", "atomic", "aten::mm", "gemm"])


def _change_trace(folder: Path, operation: Operation) -> None:
    kind, *rest = operation
    if kind == "manifest":
        path = folder / "manifest.json"
        path.write_text(_json_text(_set(json.loads(path.read_text()), *rest)))
        return
    if kind == "folder":
        _change_folder(folder, folder / rest[0], rest[1])
        return
    path = folder / rest[0] / "000000.parquet"
    if path.is_symlink() or not path.is_file() or not path.stat().st_size:
        return  # an earlier operation left nothing to change
    if kind in ("cut", "noise"):
        _change_bytes(path, kind, *rest[1:])
    elif kind == "link":
        bait = folder.parents[2] / "bases" / BAIT / "mlp.tileprof" / rest[0] / "000000.parquet"
        targets = ["/dev/zero", "/dev/null", str(folder), "000000.parquet", "../manifest.json", "/nowhere", str(bait)]
        target = targets[rest[1] % len(targets)]
        path.unlink()
        path.symlink_to(target)
    else:
        _change_table(path, kind, rest)


def _change_folder(trace: Path, folder: Path, change: str) -> None:
    part = folder / "000000.parquet"
    if folder.is_symlink() or not part.is_file() or part.is_symlink():
        return  # an earlier operation left nothing to change
    match change:
        case "missing" | "a file" | "linked":
            shutil.rmtree(folder)
            if change == "a file":
                folder.write_bytes(b"PAR1")
            elif change == "linked":
                folder.symlink_to(trace.parent)
        case "empty":
            part.unlink()
        case "twice":
            shutil.copy(part, folder / "000001.parquet")
        case "stray":
            (folder / "\x1b[31mstray.parquet").write_text("<script>alert(1)</script>")
        case "nested":
            part.unlink()
            part.mkdir()
        case _:
            part.chmod(0)


def _change_table(path: Path, kind: str, rest: list[Any]) -> None:
    try:
        result = _changed_table(pq.read_table(path, partitioning=None), kind, rest[1:])
    except (OSError, pa.ArrowException, UnicodeDecodeError):
        return  # an earlier operation broke it
    if result is not None:
        pq.write_table(result, path)


def _changed_table(table: pa.Table, kind: str, rest: list[Any]) -> pa.Table | None:
    if kind == "drop":
        return table.drop_columns(rest[0]) if rest[0] in table.column_names else table.slice(0, 0)
    if kind == "rows":
        order = np.arange(table.num_rows)
        orders = {
            "reversed": order[::-1], "doubled": np.concatenate([order, order]), "empty": order[:0],
            "first": order[: 1 + rest[1] % 5],
            "shuffled": np.random.default_rng(rest[1]).permutation(order),
        }  # fmt: skip
        return table.take(pa.array(orders[rest[0]]))
    at = table.schema.get_field_index(rest[0])
    if at < 0 or not table.num_rows:
        return None
    field = table.schema.field(at)
    try:
        if kind == "cast":
            return table.set_column(at, rest[0], table.column(at).cast(rest[1]))
        values = table.column(at).to_pylist()
        word = rest[2]
        number = float(word) if word in ("nan", "inf", "-inf") and pa.types.is_floating(field.type) else word
        for row in range(len(values)) if kind == "column" else [rest[1] % len(values)]:
            values[row] = number
        plain = pa.string() if pa.types.is_dictionary(field.type) else field.type
        return table.set_column(at, pa.field(rest[0], plain), pa.array(values, plain))
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None  # this column does not hold such a value
