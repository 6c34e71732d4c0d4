"""Policy format 1: stages, the semaphores that their tiles post, and what later stages await.

A tile of a grid ``(gx, gy, gz)`` has the number ``x + gx*(y + gy*z)``; so has a semaphore of a semaphore grid. A
producer tile posts (adds 1 to) one semaphore of each of its arrays when all its writes are visible; a consumer tile
continues when every semaphore that it awaits has reached its value. Worked example, a GEMM of 24 x 4 tiles whose
consumer
reads whole rows::

    {"tileprof_policy": 1,
     "stages": [{"name": "up", "grid": [24, 4, 1]}, {"name": "down", "grid": [48, 4, 1]}],
     "semaphores": [{"producer": 0, "grid": [1, 4, 1], "of": ["0", "y", "0"]}],
     "edges": [{"producer": 0, "consumer": 1, "hazards": ["RAW"], "kind": "row", "semaphores": 0,
                "waits": ["0", "y", "0"], "value": "24"}]}
"""

from __future__ import annotations

import html
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tileprof import __version__
from tileprof.errors import UserError
from tileprof.html_table import html_table
from tileprof.policy.format.expression import Expression, ExpressionError, parse
from tileprof.policy.format.json_text import parsed, read_text, schema_error, violation
from tileprof.policy.format.tile_orders import axes_of, axes_order

POLICY_VERSION: Final = 1
_MOST_TILES: Final = 50_000_000
"""Most tiles of a stage: posts and waits are worked out tile by tile."""
_MOST_SEMAPHORES: Final = 2**26
_SEMAPHORES_A_TILE: Final = 64  # a tile posts one of an array; more than a few times as many is a mistake
_MOST_ROWS: Final = 20
"""Most rows of a table that a notebook shows."""

_TILE = ("x", "y", "z")
_SEMAPHORE = ("u", "v", "w")


class PolicyError(UserError):
    """A file that is not a policy, one of another version, or one that contradicts itself."""


@dataclass(frozen=True, slots=True)
class Range:
    """Semaphore coordinates along one axis: ``low``, ``low + step``, ... up to ``high``, in the consumer's x, y, z."""

    low: Expression
    high: Expression
    step: int = 1

    @classmethod
    def parse(cls, text: str) -> Range:
        span, marker, step = text.partition(" step ")
        low, dots, high = span.partition("..")
        if marker and not (step.strip().isdecimal() and len(step) < 10 and int(step) > 0):
            raise PolicyError(f"{text[:80]!r}: the step is a number from 1 to 999999999")
        return cls(parse(low, _TILE), parse(high if dots else low, _TILE), int(step) if marker else 1)

    def __str__(self) -> str:
        if self.low == self.high:
            return self.low.text
        return f"{self.low.text}..{self.high.text}" + (f" step {self.step}" if self.step > 1 else "")


@dataclass(frozen=True, slots=True)
class Stage:
    """A kernel of the policy. ``order`` lists tile numbers as blocks take them; None is ascending. ``operator`` says
    what it computes (`tileprof.runtime.stages`); where it is empty, ``reason`` may say why.
    """

    name: str
    grid: tuple[int, int, int]
    launch: int | None = None
    kernel: str = ""
    op: str = ""
    module: str = ""
    order: tuple[int, ...] | None = None
    blocks_per_sm: int = 0
    operator: dict[str, Any] = field(default_factory=dict)
    reason: str = ""

    @property
    def tiles(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class Semaphores:
    """An array of semaphores; ``of`` gives the semaphore's coordinates from the producer tile's, or its number by
    tile.
    """

    producer: int
    grid: tuple[int, int, int]
    of: tuple[Expression, Expression, Expression] | tuple[int, ...]

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]


@dataclass(frozen=True, slots=True)
class WaitTable:
    """Consumer tile ``t`` awaits ``semaphore[indptr[t]:indptr[t+1]]``."""

    indptr: tuple[int, ...]
    semaphore: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Edge:
    """The waits of one stage's tiles for another stage; ``reason`` explains their kind."""

    producer: int
    consumer: int
    hazards: tuple[str, ...]
    kind: str
    semaphores: int
    waits: tuple[Range, Range, Range] | WaitTable
    value: Expression | tuple[int, ...]
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Options:
    """The three optimisations of cuSync (section IV-B): a wait kernel, no custom order and loads in order are always
    right.

    ``reasons``: why each is as it is, by name (`tileprof.policy.synthesis.optimisations`).
    """

    wait_kernel: bool = True
    custom_order: bool = False
    reordered_loads: bool = False
    reasons: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Policy:
    """A whole policy. ``guard`` says for what it was verified, ``prediction`` what a model expects of it."""

    stages: tuple[Stage, ...]
    semaphores: tuple[Semaphores, ...]
    edges: tuple[Edge, ...]
    options: Options = field(default_factory=Options)
    guard: dict[str, Any] = field(default_factory=dict)
    prediction: dict[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        tiles = sum(stage.tiles for stage in self.stages)
        semaphores = sum(array.count for array in self.semaphores)
        kinds = ", ".join(dict.fromkeys(edge.kind for edge in self.edges)) or "none"
        return f"<Policy: {len(self.stages):,} stages, {tiles:,} tiles, {semaphores:,} semaphores, waits: {kinds}>"

    def _repr_html_(self) -> str:
        """Return stages and waits, for notebooks."""
        names = [stage.name for stage in self.stages]
        stages = [(s.name, s.op, s.module, " x ".join(map(str, s.grid))) for s in self.stages]
        waits = [(names[e.consumer], names[e.producer], e.kind, ", ".join(e.hazards)) for e in self.edges]
        return (
            f"<p>{html.escape(repr(self))}</p>{_table(('stage', 'operator', 'module', 'grid'), stages)}"
            f"{_table(('consumer', 'waits for', 'pattern', 'hazards'), waits)}"
        )

    def save(self, path: Path | str, *, force: bool = False) -> None:
        """Write the JSON file, whole or not at all; raises `UserError` where it exists and ``force`` is not given."""
        target = Path(path)
        if target.exists() and not force:
            raise UserError(f"will not overwrite {target} without --force")
        partial = target.with_name(f".{target.name}.{os.getpid()}")
        try:
            with partial.open("w", encoding="utf-8") as file:
                json.dump(to_dict(self), file, indent=1)
                file.write("\n")
            partial.replace(target)
        except OSError as error:
            raise UserError(f"could not write {target}: {error.strerror or error}") from error
        finally:
            partial.unlink(missing_ok=True)


def _table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    more = f"<p>and {len(rows) - _MOST_ROWS:,} more</p>" if len(rows) > _MOST_ROWS else ""
    return f"{html_table([head, *rows[:_MOST_ROWS]])}{more}"


def load_policy(path: Path | str) -> Policy:
    """Read a policy file; raises `PolicyError` naming the file and what is wrong with it."""
    try:
        return from_dict(parsed(read_text(Path(path))))
    except IsADirectoryError:
        more = (
            f" and seems to be a trace; `tileprof export {path}` makes policies of one"
            if (Path(path) / "manifest.json").exists()
            else f" of an export; name {Path(path) / 'policy.json'}"
            if (Path(path) / "policy.json").exists()
            else ""
        )
        raise PolicyError(f"{path} is a folder{more}; a policy is a JSON file") from None
    except OSError as error:
        raise PolicyError(f"cannot read {path}: {error.strerror}") from None
    except ValueError as error:  # not UTF-8, not JSON, nested too deeply, or a number of thousands of digits
        raise PolicyError(f"{path} is not a policy, which is JSON: {error}") from None
    except UserError as error:
        raise PolicyError(f"{path}: {error}") from None


def from_dict(value: Any) -> Policy:
    """Return a policy from parsed JSON; raises `PolicyError` with the place that is wrong."""
    version = value.get("tileprof_policy") if isinstance(value, dict) else None
    if isinstance(value, dict) and "tileprof_symbolic_policy" in value:
        raise PolicyError(
            "this is a policy for a range of sizes: say for which, for example --at 64, or load it as one"
        )
    if isinstance(version, int) and version != POLICY_VERSION:
        raise PolicyError(f"policy format {version}; this tileprof ({__version__}) reads format {POLICY_VERSION}")
    error = schema_error(value)
    if error is not None:
        raise PolicyError(violation(error))
    try:
        policy = _policy(value)
    except ExpressionError as error:
        raise PolicyError(str(error)) from None
    _check(policy)
    return policy


def _policy(value: dict[str, Any]) -> Policy:
    return Policy(
        stages=tuple(_stage(s) for s in value["stages"]),
        semaphores=tuple(_semaphores(s) for s in value["semaphores"]),
        edges=tuple(_edge(e) for e in value["edges"]),
        options=Options(**value.get("options", {})),
        guard=value.get("guard", {}),
        prediction=value.get("prediction", {}),
        notes=tuple(value.get("notes", ())),
    )


def to_dict(policy: Policy) -> dict[str, Any]:
    """Return the JSON form; `from_dict` gives an equal policy back."""
    return {
        "tileprof_policy": POLICY_VERSION,
        "created_by": f"tileprof {__version__}",
        "stages": [_plain(s) for s in policy.stages],
        "semaphores": [
            {"producer": s.producer, "grid": list(s.grid), "of": [_text(e) for e in s.of]} for s in policy.semaphores
        ],
        "edges": [_plain_edge(e) for e in policy.edges],
        "options": {name: getattr(policy.options, name) for name in Options.__slots__},
        "guard": policy.guard,
        "prediction": policy.prediction,
        "notes": list(policy.notes),
    }


def _text(value: Expression | int) -> str | int:
    return value.text if isinstance(value, Expression) else value


def _plain(stage: Stage) -> dict[str, Any]:
    plain: dict[str, Any] = {name: getattr(stage, name) for name in Stage.__slots__ if getattr(stage, name) is not None}
    plain["grid"] = list(stage.grid)
    if stage.order is not None:
        plain["order"] = axes_of(stage.grid, stage.order) or list(stage.order)
    return plain


def _plain_edge(edge: Edge) -> dict[str, Any]:
    if isinstance(edge.waits, WaitTable):
        waits: Any = {"indptr": list(edge.waits.indptr), "semaphore": list(edge.waits.semaphore)}
    else:
        waits = [str(r) for r in edge.waits]
    value = edge.value.text if isinstance(edge.value, Expression) else list(edge.value)
    return {
        "producer": edge.producer, "consumer": edge.consumer, "hazards": list(edge.hazards), "kind": edge.kind,
        "semaphores": edge.semaphores, "waits": waits, "value": value,
    } | ({"reason": edge.reason} if edge.reason else {})  # fmt: skip


def _stage(value: dict[str, Any]) -> Stage:
    fields = dict(value, grid=tuple(value["grid"]))
    if "order" in value:
        order = value["order"]
        fields["order"] = axes_order(fields["grid"], order) if isinstance(order, str) else tuple(order)
    return Stage(**fields)


def _semaphores(value: dict[str, Any]) -> Semaphores:
    of = value["of"]
    if of and isinstance(of[0], str):
        x, y, z = (parse(text, _TILE) for text in of)
        return Semaphores(value["producer"], tuple(value["grid"]), (x, y, z))
    return Semaphores(value["producer"], tuple(value["grid"]), tuple(of))


def _edge(value: dict[str, Any]) -> Edge:
    waits: tuple[Range, Range, Range] | WaitTable
    if isinstance(value["waits"], dict):
        waits = WaitTable(tuple(value["waits"]["indptr"]), tuple(value["waits"]["semaphore"]))
    else:
        x, y, z = (Range.parse(text) for text in value["waits"])
        waits = (x, y, z)
    text = value["value"]
    wait_value = parse(text, _TILE + _SEMAPHORE) if isinstance(text, str) else tuple(text)
    fields = {name: value[name] for name in ("producer", "consumer", "kind", "semaphores")}
    return Edge(
        **fields,
        hazards=tuple(value["hazards"]),
        waits=waits,
        value=wait_value,
        reason=value.get("reason", ""),
    )


def _check(policy: Policy) -> None:
    """Check what the schema cannot express: numbers that refer to each other."""
    stages = len(policy.stages)
    for number, stage in enumerate(policy.stages):
        if stage.tiles > _MOST_TILES:
            raise PolicyError(f"stage {number} ({stage.name}) has {stage.tiles:,} tiles; at most {_MOST_TILES:,}")
        if stage.order is not None and sorted(stage.order) != list(range(stage.tiles)):
            raise PolicyError(
                f"the order of stage {number} ({stage.name}) does not list each of its {stage.tiles} tiles once"
            )
    for number, array in enumerate(policy.semaphores):
        if array.producer >= stages:
            raise PolicyError(f"semaphores {number} belong to stage {array.producer}; there are {stages} stages")
        tiles = policy.stages[array.producer].tiles
        most = min(_SEMAPHORES_A_TILE * tiles, _MOST_SEMAPHORES)
        if array.count > most:
            raise PolicyError(
                f"semaphores {number} are {array.count:,}; for {tiles:,} tiles that post, at most {most:,}"
            )
        if array.of and isinstance(array.of[0], int) and len(array.of) != tiles:
            raise PolicyError(f"semaphores {number} list {len(array.of)} tiles; stage {array.producer} has {tiles}")
    for number, edge in enumerate(policy.edges):
        _check_edge(policy, number, edge)


def _check_edge(policy: Policy, number: int, edge: Edge) -> None:
    if edge.semaphores >= len(policy.semaphores):
        raise PolicyError(f"edge {number} uses semaphores {edge.semaphores}; there are {len(policy.semaphores)} arrays")
    if not edge.producer < edge.consumer < len(policy.stages):
        raise PolicyError(
            f"edge {number} goes from stage {edge.producer} to {edge.consumer}; stages run in order and there are "
            f"{len(policy.stages)}"
        )
    if policy.semaphores[edge.semaphores].producer != edge.producer:
        raise PolicyError(
            f"edge {number} awaits stage {edge.producer} on semaphores that stage "
            f"{policy.semaphores[edge.semaphores].producer} posts"
        )
    if isinstance(edge.waits, WaitTable):
        tiles = policy.stages[edge.consumer].tiles
        indptr = edge.waits.indptr
        if (
            len(indptr) != tiles + 1
            or indptr[0] != 0
            or list(indptr) != sorted(indptr)
            or indptr[-1] != len(edge.waits.semaphore)
        ):
            raise PolicyError(
                f"the wait table of edge {number} is no CSR over the {tiles} tiles of stage {edge.consumer}"
            )
        if isinstance(edge.value, tuple) and len(edge.value) != len(edge.waits.semaphore):
            raise PolicyError(f"edge {number} has {len(edge.waits.semaphore)} waits and {len(edge.value)} values")
    elif isinstance(edge.value, tuple):
        raise PolicyError(f"edge {number} lists values without listing waits")
