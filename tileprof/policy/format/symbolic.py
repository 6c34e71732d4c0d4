"""Policies with one symbolic extent: a policy file for every token count of a model, within a guard.

The document holds a policy in which integers may be expressions of the symbol, ``{"size": "(tokens + 63) // 64"}``, and
in which the expressions of posts and waits may use it::

    {"tileprof_symbolic_policy": 1,
     "symbol": {"name": "tokens", "low": 1, "high": 4096, "multiple": 1, "recorded": 64}, "policy": {"tileprof_policy":
     1, "stages": [{"name": "up", "grid": [24, {"size": "(tokens + 63) // 64"}, 1]}, ...]}}

`SymbolicPolicy.at` gives the policy of one size. What the sizes of a guard have in common is proved elsewhere
(`tileprof.runtime.symbolic`); the document only says for which sizes it holds.
"""

from __future__ import annotations

import json
import re
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

from tileprof import __version__
from tileprof.policy.format.document import Policy, PolicyError, from_dict
from tileprof.policy.format.expression import ExpressionError, parse
from tileprof.policy.format.json_text import parsed, read_text

SYMBOLIC_VERSION: Final = 1
SYMBOLIC_KEY: Final = "tileprof_symbolic_policy"
SIZE: Final = "size"
"""The one key of an object that stands for an integer."""

MOST_SIZE: Final = 1 << 24
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,30}")
_RESERVED_NAMES: Final = frozenset({"x", "y", "z", "u", "v", "w", "min", "max", "step"})
_RANGE: Final = re.compile(r"\s*(\w+)\s*=\s*(\d{1,9})\s*\.\.\s*(\d{1,9})(?:\s+step\s+(\d{1,9}))?\s*")
_MOST_DEPTH: Final = 12


@dataclass(frozen=True, slots=True)
class Symbol:
    """An extent by name, and the guard: sizes from ``low`` to ``high`` that ``multiple`` divides."""

    name: str
    low: int
    high: int
    multiple: int = 1

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name in _RESERVED_NAMES:
            raise PolicyError(
                f"{self.name!r:.40} is not a name of a size: use lower-case letters, digits and _, but not "
                f"{', '.join(sorted(_RESERVED_NAMES))}"
            )
        numbers = (self.low, self.high, self.multiple)
        if any(type(n) is not int for n in numbers) or not 1 <= self.low <= self.high <= MOST_SIZE or self.multiple < 1:
            raise PolicyError(
                f"{self.name}={self.low!r:.40}..{self.high!r:.40} step {self.multiple!r:.40}: sizes are from 1 to "
                f"{MOST_SIZE:,}"
            )
        if self.low % self.multiple:
            raise PolicyError(f"{self.name}: the first size, {self.low}, is not a multiple of the step {self.multiple}")

    @classmethod
    def parse(cls, text: str) -> Symbol:
        """Parse ``tokens=1..4096`` or ``tokens=64..4096 step 64``; raises `PolicyError`."""
        match = _RANGE.fullmatch(text)
        if match is None:
            raise PolicyError(f"cannot read the range {text!r:.80}; write tokens=1..4096 or tokens=64..4096 step 64")
        name, low, high, step = match.groups()
        return cls(name, int(low), int(high), int(step or 1))

    def __str__(self) -> str:
        return f"{self.name} = {self.low}..{self.high}" + (f" step {self.multiple}" if self.multiple > 1 else "")

    def sizes(self) -> range:
        """Return all sizes of the guard."""
        return range(self.low, self.high + 1, self.multiple)

    def refusal(self, size: int) -> str | None:
        """Return why a size is not in the guard; None for one that is."""
        if not self.low <= size <= self.high:
            return f"{self.name} is {size}; the policy is for {self}"
        if size % self.multiple:
            return f"{self.name} is {size}, which {self.multiple} does not divide; the policy is for {self}"
        return None


@dataclass(frozen=True, slots=True)
class SymbolicPolicy:
    """A policy document with a symbol. ``recorded`` is the size that it was made from; ``notes`` say what was
    proved.
    """

    symbol: Symbol
    recorded: int
    document: dict[str, Any]
    notes: tuple[str, ...] = field(default=())

    def at(self, size: int | None = None) -> Policy:
        """Return the policy of one size, None: the recorded one; raises `PolicyError` for one outside the guard."""
        number = self.recorded if size is None else size
        if (reason := self.symbol.refusal(number)) is not None:
            raise PolicyError(reason)
        try:
            return from_dict(_instance(self.document, self.symbol.name, number))
        except ExpressionError as error:
            raise PolicyError(str(error)) from None

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            SYMBOLIC_KEY: SYMBOLIC_VERSION,
            "created_by": f"tileprof {__version__}",
            "symbol": {**asdict(self.symbol), "recorded": self.recorded},
            "notes": list(self.notes),
            "policy": self.document,
        }


def is_symbolic(value: Any) -> bool:
    """Return whether parsed JSON is a symbolic policy."""
    return isinstance(value, dict) and SYMBOLIC_KEY in value


def symbolic_from_dict(value: Any) -> SymbolicPolicy:
    """Return a symbolic policy from parsed JSON; raises `PolicyError` with what is wrong. The policy of the recorded
    size is checked.
    """
    version = value[SYMBOLIC_KEY]
    if version != SYMBOLIC_VERSION or isinstance(version, bool):
        raise PolicyError(
            f"symbolic policy format {version!r:.40}; this tileprof ({__version__}) reads format {SYMBOLIC_VERSION}"
        )
    fields, document, notes = value.get("symbol"), value.get("policy"), value.get("notes", [])
    if not isinstance(fields, dict) or set(fields) != {"name", "low", "high", "multiple", "recorded"}:
        raise PolicyError("at $.symbol: an object of name, low, high, multiple and recorded")
    if not isinstance(document, dict) or not isinstance(fields["name"], str) or type(fields["recorded"]) is not int:
        raise PolicyError("at $.policy: an object, and at $.symbol: a name and whole numbers")
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        raise PolicyError("at $.notes: a list of sentences")
    symbol = Symbol(fields["name"], fields["low"], fields["high"], fields["multiple"])
    policy = SymbolicPolicy(symbol, fields["recorded"], document, tuple(notes))
    policy.at()
    return policy


def load_symbolic(path: Path | str) -> SymbolicPolicy | None:
    """Return the symbolic policy in a file; None where the file holds something else, which `load_policy` judges.

    Raises `PolicyError` for a symbolic policy that cannot be read.
    """
    try:
        value = parsed(read_text(Path(path)))
    except (OSError, ValueError):
        return None
    if not is_symbolic(value):
        return None
    try:
        return symbolic_from_dict(value)
    except (PolicyError, ExpressionError) as error:
        raise PolicyError(f"{path}: {error}") from None


def text_of(policy: SymbolicPolicy) -> str:
    """Return the file."""
    return json.dumps(policy.to_dict(), indent=1) + "\n"


def _instance(value: Any, name: str, size: int, depth: int = 0) -> Any:
    """Return parsed JSON with the symbol replaced by a number: in objects of `SIZE`, and in strings of posts
    and waits.
    """
    if depth > _MOST_DEPTH:
        raise PolicyError("lists and objects are nested too deeply")
    if isinstance(value, dict):
        if set(value) == {SIZE} and isinstance(value[SIZE], str):
            return int(parse(value[SIZE], (name,))({name: np.array([size], np.int64)})[0])
        replaced = {key: _instance(one, name, size, depth + 1) for key, one in value.items()}
        for key in ("of", "waits", "value"):
            if key in replaced:
                replaced[key] = _with_number(replaced[key], name, size)
        return replaced
    return [_instance(one, name, size, depth + 1) for one in value] if isinstance(value, list) else value


def _with_number(value: Any, name: str, size: int) -> Any:
    if isinstance(value, str):
        return re.sub(rf"\b{name}\b", str(size), value)
    return [_with_number(one, name, size) for one in value] if isinstance(value, list) else value
