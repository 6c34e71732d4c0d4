"""One policy for a range of sizes: made from the policy of one size, and proved for every size of the range.

The symbol is the extent that all stages have along their rows: tokens of products, images of convolutions. In a stage's
operator it is the first size of ``a`` (``x``), ``out`` and ``residual``; tiles stay as they are, and grids grow.

**The proof is not a sample.** Which tiles of a product need which depends on the rows M only through the numbers of row
tiles of the stages. Row tile j of a consumer of tile height t needs the producer's (height s) row tiles j*t // s to
(min(M, (j + 1)*t) - 1) // s. Below the last j the minimum is (j + 1)*t, which M does not change; for the last it is M,
and (M - 1) // s is the number of the producer's last row tile. So sizes with the same numbers of row tiles have the
same relation between tiles, and the verifier decides one size of each class. Chains with convolutions, whose halos end
at images, are verified at every size.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any, Final

from tileprof.errors import UserError
from tileprof.policy.format import Options, Policy, to_dict
from tileprof.policy.format.symbolic import SIZE, Symbol, SymbolicPolicy
from tileprof.runtime.chain import Chain
from tileprof.runtime.executor.memory import Memory
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm

ROWS: Final = ("a", "x", "out", "residual")
"""Roles of operands whose first size is the symbol."""

MOST_CLASSES: Final = 512
MOST_WITH_IMAGES: Final = 128
"""Sizes that are verified, one by one."""

Tiled = Gemm | Conv2d


@dataclass(frozen=True, slots=True)
class Proof:
    """The decision. ``broken``: sizes for which a tile would continue too early; ``witness``: the first of these, in
    words.
    """

    policy: SymbolicPolicy
    sizes: int
    verified: int
    broken: tuple[range, ...]
    witness: str

    @property
    def holds(self) -> bool:
        return not self.broken


def for_sizes(
    policy: Policy, symbol: Symbol, say: Callable[[str], None] = lambda _: None
) -> tuple[Proof, Proof | None]:
    """Return the policy for a range of sizes with its proof; and the proof of the waits as they were, where these hold
    for some only.

    The waits of the policy are tried first, as they are; where they break, waits by rows of tiles. Raises `UserError`
    where the stages are not products or convolutions over the same rows.
    """
    operators = _operators(policy)
    templates = [_template(policy, operators, symbol, by_rows=by_rows) for by_rows in (False, True)]
    without_rows, by_rows = _proofs_of(templates, operators, say)
    return (without_rows, None) if without_rows.holds else (by_rows, without_rows)


def prove(policy: SymbolicPolicy, say: Callable[[str], None] = lambda _: None) -> Proof:
    """Return the proof of a symbolic policy from a file."""
    return _proofs_of([policy], _operators(policy.at()), say)[0]


def _operators(policy: Policy) -> list[Tiled]:
    operators: list[Tiled] = []
    for name, operator in zip((s.name for s in policy.stages), Chain.of_policy(policy).operators, strict=True):
        if isinstance(operator, Gemm) and (len(operator.a.shape) != 2 or operator.split_k > 1):
            raise UserError(f"stage {name} has a batch or split_k; sizes are for products of two matrices")
        if isinstance(operator, Conv2d) and operator.stride != 1:
            raise UserError(
                f"stage {name} is a convolution of stride {operator.stride}; sizes are for those of stride 1"
            )
        if not isinstance(operator, Gemm | Conv2d):
            raise UserError(
                f"stage {name} is {operator.NAME}; a policy for several sizes may have only products and convolutions"
            )
        operators.append(operator)
    rows = {operator.out.shape[0] for operator in operators}
    if len(rows) != 1:
        raise UserError(
            f"the stages have {', '.join(map(str, sorted(rows)))} rows; one extent is for stages of equal rows"
        )
    return operators


def _row_tiles(operator: Tiled, size: int) -> int:
    return -(-size * _per_size(operator) // operator.tile[0])


def _per_size(operator: Tiled) -> int:
    """Return rows of the tiling per unit of the symbol: pixels of an image."""
    return operator.out.shape[1] * operator.out.shape[2] if isinstance(operator, Conv2d) else 1


def _tiles_text(operator: Tiled, name: str) -> str:
    """Return the number of row tiles, as an expression of the symbol."""
    per, height = _per_size(operator), operator.tile[0]
    if per % height == 0:
        return f"{per // height}*{name}" if per > height else name
    return f"({name if per == 1 else f'{per}*{name}'} + {height - 1}) // {height}"


def _row_axis(operator: Tiled) -> int:
    return 1 if operator.rows_along == "y" else 0


def _template(policy: Policy, operators: Sequence[Tiled], symbol: Symbol, *, by_rows: bool) -> SymbolicPolicy:
    """Return the document with the symbol in it; ``by_rows``: semaphores per row tile, else the policy's own waits."""
    recorded, name = operators[0].out.shape[0], symbol.name
    ascending = tuple(replace(stage, order=None, launch=stage.launch) for stage in policy.stages)
    guard: dict[str, Any] = {
        key: policy.guard[key] for key in ("renamed", "epilogues", "architecture") if key in policy.guard
    }
    guard["symbolic_size"] = recorded
    plain = replace(policy, stages=ascending, options=Options(), guard=guard, prediction={}, notes=())
    document = to_dict(plain)
    document["guard"] = {**guard, "symbolic_size": {SIZE: name}}
    for stage, operator in zip(document["stages"], operators, strict=True):
        stage["grid"][_row_axis(operator)] = {SIZE: _tiles_text(operator, name)}
        operands = stage["operator"]["operands"]
        stage["operator"] = stage["operator"] | {
            "operands": {role: _with_size_name(role, v, name) for role, v in operands.items()}
        }
    for array in document["semaphores"]:
        operator = operators[array["producer"]]
        axis, rows = _row_axis(operator), _row_tiles(operator, recorded)
        if array["grid"][axis] == rows and rows > 1:
            array["grid"][axis] = {SIZE: _tiles_text(operator, name)}
    if by_rows:
        document |= _by_rows(document["edges"], operators, name)
    return SymbolicPolicy(symbol, recorded, document)


def _with_size_name(role: str, view: dict[str, Any], name: str) -> dict[str, Any]:
    return {**view, "shape": [{SIZE: name}, *view["shape"][1:]]} if role in ROWS else view


def _by_rows(edges: Sequence[dict[str, Any]], operators: Sequence[Tiled], name: str) -> dict[str, Any]:
    """Return semaphores, one per row tile of the producer, and edges that await those that a consumer's row tile
    reads.
    """
    semaphores: dict[int, dict[str, Any]] = {}
    row_edges = []
    for edge in edges:
        producer, consumer = operators[edge["producer"]], operators[edge["consumer"]]
        rows, columns = _tiles_text(producer, name), -(-producer.out.shape[-1] // producer.tile[1])
        row = "xy"[_row_axis(producer)]
        semaphores.setdefault(
            edge["producer"], {"producer": edge["producer"], "grid": [{SIZE: rows}, 1, 1], "of": [row, "0", "0"]}
        )
        waits = [_span(producer, consumer, rows), "0", "0"]
        number = list(semaphores).index(edge["producer"])
        reason = f"a semaphore per row of {columns} tiles, for every size"
        row_edges.append(
            {**edge, "reason": reason, "kind": "interval", "semaphores": number, "waits": waits, "value": str(columns)}
        )
    return {"semaphores": list(semaphores.values()), "edges": row_edges}


def _span(producer: Tiled, consumer: Tiled, rows: str) -> str:
    """Return the row tiles of the producer that a row tile of the consumer reads, as ``low..high`` of its
    coordinate.
    """
    here, height, other = "xy"[_row_axis(consumer)], consumer.tile[0], producer.tile[0]
    reach = 0
    if isinstance(consumer, Conv2d):  # pixels before and behind its own: rows of the halo, and columns
        reach = consumer.padding * (producer.out.shape[2] + 1)
    if not reach and height == other:
        return here
    low = f"({height}*{here} - {reach}) // {other}" if reach else f"{height}*{here} // {other}"
    high = f"({height}*{here} + {height - 1 + reach}) // {other}"
    low = f"max(0, {low})" if reach else low
    return f"{low}..min(({rows}) - 1, {high})"


def _classes(symbol: Symbol, operators: Sequence[Tiled]) -> Iterator[tuple[int, ...]]:
    """Yield sizes that have the same relation between tiles, together."""
    if any(isinstance(operator, Conv2d) for operator in operators):
        yield from ((size,) for size in symbol.sizes())
        return
    for _, sizes in groupby(symbol.sizes(), key=lambda size: tuple(_row_tiles(o, size) for o in operators)):
        yield tuple(sizes)


def _proofs_of(
    policies: Sequence[SymbolicPolicy], operators: Sequence[Tiled], say: Callable[[str], None]
) -> list[Proof]:
    """Return the proofs of policies that differ in their waits alone."""
    symbol = policies[0].symbol
    classes = list(_classes(symbol, operators))
    most = MOST_WITH_IMAGES if any(isinstance(operator, Conv2d) for operator in operators) else MOST_CLASSES
    if len(classes) > most:
        raise UserError(
            f"{symbol} are {len(classes):,} sizes that differ in how their tiles depend on each other, and at most "
            f"{most} are "
            "decided: give a smaller range, or a step"
        )
    broken: list[list[range]] = [[] for _ in policies]
    witness = [""] * len(policies)
    for number, sizes in enumerate(classes):
        say(f"verifying {symbol.name} = {sizes[0]} to {sizes[-1]}, {number + 1} of {len(classes)}")
        chain = Chain.of_policy(policies[0].at(sizes[0]))
        memory = chain.memory()
        for place, policy in enumerate(policies):
            reason = _missing(policy, sizes[0], chain, memory)
            if reason:
                broken[place].append(range(sizes[0], sizes[-1] + 1, symbol.multiple))
                witness[place] = witness[place] or f"{symbol.name} = {sizes[0]}: {reason}"
    note = f"verified at {len(classes)} sizes, which decide all {len(symbol.sizes()):,} of {symbol}"
    return [
        Proof(replace(p, notes=() if b else (note,)), len(symbol.sizes()), len(classes), tuple(b), w)
        for p, b, w in zip(policies, broken, witness, strict=True)
    ]


def _missing(policy: SymbolicPolicy, size: int, chain: Chain, memory: Memory) -> str:
    """Return a dependency that the policy of a size does not wait for, in words; empty where it waits for all."""
    try:
        policy_at = policy.at(size)
        verdict = chain.verify(policy_at, memory)
    except UserError as error:
        return str(error)
    if verdict.sound:
        return ""
    if verdict.missing.empty:
        return verdict.never[0]
    row = verdict.missing.iloc[0]
    tiles = [
        f"tile {chain.operators[int(row[which])].place(int(row[f'{which}_tile']))} of "
        f"{policy_at.stages[int(row[which])].name}"
        for which in ("consumer", "producer")
    ]
    return f"{tiles[0]} reads what {tiles[1]} writes, and does not wait for it"


def spans_text(ranges: Sequence[range]) -> str:
    """Return sizes as a reader writes them: ``65..4096``."""
    joined: list[tuple[int, int]] = []
    for one in ranges:
        first, last = one[0], one[-1]
        if joined and joined[-1][1] + one.step >= first:
            joined[-1] = joined[-1][0], last
        else:
            joined.append((first, last))
    return ", ".join(str(a) if a == b else f"{a}..{b}" for a, b in joined)
