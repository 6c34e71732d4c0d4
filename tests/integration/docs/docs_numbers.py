"""Numbers in the text of a Markdown page: which results file each comes from, or why none does.

A section names the sources of its numbers in a comment, which no viewer shows, below its text::

    <!-- numbers
    results: costs {min(spawn.rows(rule="flat").us):.0f} to {max(spawn.rows(rule="flat").us):.0f} us per launch
    constants: 227 KB; 65,536
    paper: 1.29x
    measured: 7.4 us (tests/gpu/measuring/schedulers/measure_spawn.py, 2026-11-23)
    -->

- ``results`` is a piece of the section's text with expressions in the places of its numbers; ``docs_results --write``
  writes what they give. A space matches any white space. ``let NAME = EXPRESSION`` above shortens others.
- ``constants`` are limits of code or hardware, arguments, thresholds and aims: nothing measures them.
- ``paper`` are numbers that a publication reports.
- ``measured`` has no results file: the script that measured it, which must exist, and the day.

An expression begins with the name of a results file (``benchmarks.NAME`` where both folders have it) and goes on with
``.key``, ``["key"]`` or ``[0]``; ``[:]`` are all values. A key of a list is that of each entry, and ``(key=value)``
takes the entries with this value. Arithmetic and comparisons work on each number. Functions: see `FUNCTIONS`.
The format is one of Python, or ``word`` for a number in letters. Python's parser reads an expression, and only the
operations named here are carried out.
"""

from __future__ import annotations

import ast
import functools
import itertools
import json
import operator
import re
import statistics
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[3]
GPU, BENCHMARKS = ROOT / "tests/gpu/results", ROOT / "tests/benchmarks/results"
LETTERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
           "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen", "twenty")  # fmt: skip
REASONS = ("constants", "paper", "measured")


@functools.cache
def results(name: str, folder: Path = GPU) -> Any:
    """Return the content of a results file."""
    return json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))


# ---- expressions


def _numbers(value: Any) -> Any:
    return np.asarray(value, float) if isinstance(value, list) else value


def _named(entries: Mapping[str, Any], *words: str) -> list[Any]:
    def named(key: str) -> bool:
        return all((word.removeprefix("!") in key) != word.startswith("!") for word in words)

    return [value for key, value in entries.items() if named(key)]


def _flat(*values: Any) -> list[Any]:
    """Return the numbers and entries of nested lists and arrays, and the values of dictionaries in them."""
    parts: list[Any] = []
    for value in values:
        entries = value.values() if isinstance(value, dict) else value
        parts += _flat(*entries) if isinstance(value, dict | list | np.ndarray) else [value]
    return parts


def _table(rows: list[Mapping[str, Any]], row: str, column: str) -> dict[str, dict[str, Any]]:
    """Return rows by the value of one key and then by that of another."""
    table: dict[str, dict[str, Any]] = {}
    for each in rows:
        table.setdefault(each[row], {})[each[column]] = each
    return table


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "abs": lambda values: abs(_numbers(values)),
    "count": len,
    "first": lambda lists: [values[0] for values in lists],
    "flat": _flat,
    "joined": lambda *lists: [value for values in lists for value in values],
    "having": lambda rows, *keys: [row for row in rows if all(key in row for key in keys)],
    "max": lambda *values: float(np.max(values)),
    "mean": lambda values: float(np.mean(values)),
    "geometric_mean": lambda values: statistics.geometric_mean(map(float, values)),
    "median": lambda values: float(np.median(values)),
    "min": lambda *values: float(np.min(values)),
    "named": _named,
    "second": lambda lists: [values[1] for values in lists],
    "sum": lambda values: float(np.sum(values)),
    "table": _table,
    "third": lambda lists: [values[2] for values in lists],
    "where": lambda values, hold: [value for value, holds in zip(values, hold, strict=True) if holds],
}
"""``count`` and ``sum`` of a list (of a comparison: how many hold); ``first``, ``second`` and ``third``
of each of several lists; ``joined`` for one list of several; ``flat`` for all values in nested lists; ``named`` for the
values of a dictionary whose keys contain all words, and none that begins with ``!``; ``having`` for the rows that have
these keys; ``table(rows, "chain", "row")`` for rows by the value of one key and then of another; ``where(values,
comparison)`` for the values for which it holds."""

_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.USub: operator.neg,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
}


def evaluate(text: str, names: Mapping[str, Any] | None = None) -> Any:
    """Return the value of an expression over results files. Raise ValueError for what the language does not have."""
    return _value(ast.parse(text.strip(), mode="eval").body, names or {})


def _value(node: ast.expr, names: Mapping[str, Any]) -> Any:
    match node:
        case ast.Constant(value=str() | int() | float()):
            return node.value
        case ast.Name():
            return _file(node.id, names)
        case ast.Attribute(value=ast.Name(id="benchmarks")):
            return results(node.attr, BENCHMARKS)
        case ast.Attribute():
            return _entry(_value(node.value, names), node.attr)
        case ast.Subscript(slice=ast.Slice()):
            inner = _value(node.value, names)
            limits = (node.slice.lower, node.slice.upper)
            low, high = (None if limit is None else _value(limit, names) for limit in limits)
            return list(inner.values() if isinstance(inner, dict) else inner)[low:high]
        case ast.Subscript():
            return _entry(_value(node.value, names), _value(node.slice, names))
        case ast.Call(func=ast.Name(id=name)) if name in FUNCTIONS and not node.keywords:
            return FUNCTIONS[name](*(_value(each, names) for each in node.args))
        case ast.Call(args=[]):
            wanted = {each.arg: _value(each.value, names) for each in node.keywords}
            entries = _value(node.func, names)
            rows = entries.values() if isinstance(entries, dict) else entries
            return [row for row in rows if all(row.get(key) == value for key, value in wanted.items())]
        case ast.UnaryOp(op=op) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_numbers(_value(node.operand, names)))
        case ast.BinOp(op=op) if type(op) in _OPERATORS:
            sides = (_numbers(_value(side, names)) for side in (node.left, node.right))
            return _OPERATORS[type(op)](*sides)
        case ast.Compare(ops=[op], comparators=[right]) if type(op) in _OPERATORS:
            return _OPERATORS[type(op)](_numbers(_value(node.left, names)), _numbers(_value(right, names)))
    message = f"an expression has no {type(node).__name__}: {ast.unparse(node)}"
    raise ValueError(message)


def _file(name: str, names: Mapping[str, Any]) -> Any:
    if name in names:
        return names[name]
    return results(name) if (GPU / f"{name}.json").exists() else results(name, BENCHMARKS)


def _entry(value: Any, key: Any) -> Any:
    if isinstance(value, list) and isinstance(key, str):
        return [entry[key] for entry in value]
    return value[key]


def formatted(value: Any, spec: str) -> str:
    """Return a number as the page has it; a list must have one entry."""
    if isinstance(value, list | np.ndarray):
        (value,) = value
    if spec == "word":
        return LETTERS[round(value)]
    if spec.endswith("d"):
        value = round(value)
    return format(value, spec)


# ---- comments


@dataclass(frozen=True)
class Figure:
    """A figure in sentences: every match of ``sentence`` in the text must have the ``values`` in its groups."""

    sentence: str
    values: tuple[str, ...]

    def matches(self, text: str, begin: int = 0, end: int | None = None) -> list[re.Match[str]]:
        """Return the matches in a text; a space in the sentence matches any white space."""
        pattern = re.compile(self.sentence.replace(" ", r"\s+"))
        return list(pattern.finditer(text, begin, len(text) if end is None else end))


@dataclass
class Section:
    """A part of a page between headings: where it begins and ends, its figures, and numbers with a reason each."""

    begin: int
    end: int
    figures: list[Figure] = field(default_factory=list)
    reasons: dict[str, list[str]] = field(default_factory=lambda: {reason: [] for reason in REASONS})
    sources: list[str] = field(default_factory=list)


_COMMENT = re.compile(r"^<!-- numbers\n(.*?)^-->", re.DOTALL | re.MULTILINE)
_PLACE = re.compile(r"\{((?:[^{}:\"']|\"[^\"]*\"|'[^']*'|\[:\]|\[\w*:\w*\])+):([^{}:]*)\}")


def sections(text: str) -> Iterator[Section]:
    """Yield the sections of a page, from heading to heading of the first two levels. Raise ValueError for a line of a
    comment that cannot be read.
    """
    plain = re.sub(r"^```.*?^```", lambda block: "\0" * len(block.group()), text, flags=re.DOTALL | re.MULTILINE)
    starts = [0, *(m.start() for m in re.finditer(r"^##? ", plain, re.MULTILINE)), len(text)]
    for begin, end in itertools.pairwise(starts):
        section = Section(begin, end)
        for comment in _COMMENT.finditer(text, begin, end):
            names: dict[str, Any] = {}
            for line in comment.group(1).replace("\n  ", " ").splitlines():
                try:
                    _read(line, section, names)
                except (ValueError, KeyError, IndexError, TypeError, SyntaxError, OSError) as error:
                    message = f"{error!r} in a comment of numbers: {line}"
                    raise ValueError(message) from error
        yield section


def _read(line: str, section: Section, names: dict[str, Any]) -> None:
    kind, _, rest = line.partition(": ")
    if line.startswith("let "):
        name, _, expression = line.removeprefix("let ").partition(" = ")
        names[name] = evaluate(expression, names)
    elif kind == "results":
        section.figures.append(figure(rest, names))
    elif kind in REASONS:
        numbers, _, source = rest.partition(" (")
        section.reasons[kind] += [number.strip() for number in numbers.split(";")]
        if kind == "measured":
            section.sources.append(source.rstrip(")"))
    else:
        message = f"it begins with none of let, results, {', '.join(REASONS)}"
        raise ValueError(message)


def figure(template: str, names: Mapping[str, Any]) -> Figure:
    """Return the figure of a piece of text with expressions in braces."""
    pieces, values, at = [], [], 0
    for place in _PLACE.finditer(template):
        shape = "([a-z]+)" if place.group(2) == "word" else r"([-+]?\d(?:[\d,.]*\d)?%?)"
        pieces += [re.escape(template[at : place.start()]), shape]
        values.append(formatted(evaluate(place.group(1), names), place.group(2)))
        at = place.end()
    if not values or "{" in template[at:]:
        message = f"cannot read the expressions of {template!r}"
        raise ValueError(message)
    return Figure("".join([*pieces, re.escape(template[at:])]).replace(r"\ ", " "), tuple(values))


# ---- the other numbers

_UNITS = r"us|ms|ns|s|min|%|[kMG]B|TFLOP/s|times|points"
NUMBER = re.compile(
    rf"(?<![\w.#/-])[-+]?\d[\d,.]*(?: to [-+]?\d[\d,.]*)?(?:\s?(?:{_UNITS})\b|x\b|%)"
    r"|(?<![\w.#/-])\d{1,3}(?:,\d{3})+"
)
"""A measured number: with a unit, or so large that it has commas."""


def unexplained(text: str, everywhere: list[Figure]) -> Iterator[tuple[int, str]]:
    """Yield line and number of measured numbers in prose and tables that no figure writes and no comment explains.

    Tables between marks, what ``docs_examples`` executes and code are left out. ``everywhere`` are figures of all
    pages. A number that a comment explains and the section does not have is yielded too, with ``not here: ``.
    """
    covered = [range(m.start(), m.end()) for m in re.finditer(r"<!-- (.+?) -->.*?<!-- end of \1 -->", text, re.DOTALL)]
    covered += [range(m.start(), m.end()) for m in re.finditer(r"^```.*?^```", text, re.DOTALL | re.MULTILINE)]
    covered += [range(m.start(), m.end()) for m in re.finditer(r"`[^`\n]*`|\]\([^)\n]*\)", text)]
    covered += [range(m.start(), m.end()) for m in _COMMENT.finditer(text)]
    covered += [span for each in everywhere for match in each.matches(text) for span in _spans(match)]
    for section in sections(text):
        places = [match for each in section.figures for match in each.matches(text, section.begin, section.end)]
        spans = covered + [span for match in places for span in _spans(match)]
        explained = {" ".join(number.split()) for numbers in section.reasons.values() for number in numbers}
        here = set()
        for match in NUMBER.finditer(text, section.begin, section.end):
            digits = re.compile(r"\d[\d,.]*").finditer(text, match.start(), match.end())
            if all(any(each.start() in span for span in spans) for each in digits):
                continue
            number = " ".join(match.group().split())
            here.add(number)
            if number not in explained:
                yield text.count("\n", 0, match.start()) + 1, number
        line = text.count("\n", 0, section.begin) + 1
        yield from ((line, f"not here: {number}") for number in sorted(explained - here))


def _spans(match: re.Match[str]) -> list[range]:
    return [range(*match.span(group)) for group in range(1, len(match.groups()) + 1)]
