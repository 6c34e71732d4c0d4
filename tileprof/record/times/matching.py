"""Matches measured kernels to launches of a trace: by name, operator and family, in the order of both."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from tileprof.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

_SAME_NAME, _SAME_BOTH, _SAME_FAMILY, _SAME_OPERATOR, _SKIPPED = 12, 11, 8, 6, 1
"""Points for a match, and what a measured kernel between two matches costs: fewer than any match gains, so that a
short run of unknown kernels is passed over, and an alignment does not spread over several iterations of the program."""

_MOST_CELLS: Final = 60_000_000
"""Launches times kernels that are aligned: 120 MB of scores."""

_FAMILIES: Final = (
    ("split-k reduction", r"split_?k_?reduce|splitkreduce"),
    ("attention", r"flash|fmha|attention|sdpa"),
    ("convolution", r"conv|fprop|dgrad|wgrad|winograd"),
    ("product", r"gemm|gemv|nvjet|cutlass|xmma|matmul"),
    ("softmax", r"softmax"),
    ("norm", r"norm"),
    ("scan", r"scan|cumsum"),
    ("concatenation", r"catarray|\bcat\b"),
    ("index", r"index|gather|scatter|embedding"),
    ("random", r"random|distribution|dropout"),
    ("pool", r"pool"),
    ("reduction", r"reduce|reduction"),
    ("elementwise", r"elementwise|pointwise|multi_tensor|copy|fill"),
)


def family(name: str) -> str:
    """Return the kind of kernel that a name stands for, of a library or of a tile model; the bare name where none
    fits.
    """
    lower = name.lower()
    return next((kind for kind, pattern in _FAMILIES if re.search(pattern, lower)), bare_name(name))


def bare_name(name: str) -> str:
    """Return a demangled name without return type, namespaces, template arguments and parameters."""
    characters, depth = [], 0
    for character in name.replace("(anonymous namespace)::", ""):
        depth -= character in ">)"
        if depth == 0 and character not in "<>()":
            characters.append(character)
        depth += character in "<("
        if character == "(" and depth == 1:
            break
    words = "".join(characters).split()
    return words[-1].rpartition("::")[2] if words else ""


def matched_kernels(launches: Sequence[tuple[str, str]], kernels: Sequence[tuple[str, str]]) -> list[NDArray[np.int64]]:
    """Return for each repetition of the program in ``kernels`` the kernel of each launch, ``[launches]``, -1 for none.

    Both are pairs of kernel name and operator. Where the launches fit one by one more than once, there are as many
    arrays; otherwise one, the alignment of most points. Raises `UserError` where that would take too much memory.
    """
    codes: dict[tuple[str, ...], int] = {}

    def coded(keys: list[tuple[str, ...]]) -> NDArray[np.int64]:
        return np.array([codes.setdefault(key, len(codes)) if key[1] else -1 for key in keys], np.int64)

    launch_keys, kernel_keys = (_Keys(*map(coded, _keys(side))) for side in (launches, kernels))
    return _repetitions(launch_keys, kernel_keys) or [_best_matches(launch_keys, kernel_keys)]


class _Keys:
    """Names, operators and families of one side, as numbers; -1 for what is not known."""

    def __init__(self, name: NDArray[np.int64], op: NDArray[np.int64], kind: NDArray[np.int64]) -> None:
        self.name, self.op, self.kind = name, op, kind

    def __len__(self) -> int:
        return len(self.name)

    def points(self, launch: int, kernels: _Keys) -> NDArray[np.int32]:
        """Return ``[kernels]`` points of one launch of ours against a slice of the other side."""
        kind = kernels.kind == self.kind[launch]
        operator = (kernels.op == self.op[launch]) & (kernels.op >= 0)
        same = kernels.name == self.name[launch]
        points = np.where(operator, np.where(kind, _SAME_BOTH, _SAME_OPERATOR), np.where(kind, _SAME_FAMILY, 0))
        return np.where(same, _SAME_NAME, points).astype(np.int32)


def _keys(side: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, ...]], ...]:
    names = {name: (("name", bare_name(name)), ("family", family(name))) for name in {name for name, _ in side}}
    return (
        [names[name][0] for name, _ in side],
        [("op", op.removeprefix("aten::").partition(".")[0]) for _, op in side],
        [names[name][1] for name, _ in side],
    )


def _repetitions(launch_keys: _Keys, kernel_keys: _Keys) -> list[NDArray[np.int64]]:
    """Return every place where the launches' families follow each other without a gap, one behind the other."""
    count = len(launch_keys)
    if not count:
        return []
    fits = np.ones(max(len(kernel_keys) - count + 1, 0), bool)
    for n in range(count):
        fits &= kernel_keys.kind[n : n + len(fits)] == launch_keys.kind[n]
        if not fits.any():
            return []
    places, end = [], 0
    for at in np.flatnonzero(fits).tolist():
        if at >= end:
            places.append(np.arange(at, at + count))
            end = at + count
    return places


def _best_matches(launch_keys: _Keys, kernel_keys: _Keys) -> NDArray[np.int64]:
    rows, columns = len(launch_keys), len(kernel_keys)
    if (rows + 1) * (columns + 1) > _MOST_CELLS:
        raise UserError(
            f"{rows:,} launches and {columns:,} kernels do not follow each other one by one and are too many to align; "
            "profile one iteration of the program that was recorded"
        )
    slope = np.arange(columns + 1, dtype=np.int32) * _SKIPPED
    score = np.zeros((rows + 1, columns + 1), np.int32)
    for n in range(rows):
        points = launch_keys.points(n, kernel_keys)
        best = score[n].copy()
        best[1:] = np.maximum(best[1:], np.where(points > 0, score[n, :-1] + points, 0))
        score[n + 1] = np.maximum.accumulate(best + slope) - slope
    matches = np.full(rows, -1, np.int64)
    row, column = rows, int(score[rows].argmax())
    while row and column:
        gained = int(launch_keys.points(row - 1, _one(kernel_keys, column - 1))[0])
        here = score[row, column]
        if gained and here == score[row - 1, column - 1] + gained:
            row, column = row - 1, column - 1
            matches[row] = column
        elif here == score[row - 1, column]:
            row -= 1
        else:
            column -= 1
    return matches


def _one(keys: _Keys, at: int) -> _Keys:
    return _Keys(keys.name[at : at + 1], keys.op[at : at + 1], keys.kind[at : at + 1])
