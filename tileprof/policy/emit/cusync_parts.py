"""The pieces of a cuSync header: tile orders and policies, one struct each.

cuSync calls the methods of a consumer's policy with its own tile and the *producer's* grid, those of a producer's
policy with its own of both. Both kinds here hold the grid of their own stage as constants and ignore the argument.
Policies are copied into the kernel by value, so tables are device pointers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tileprof.errors import UserError
from tileprof.policy.format import Edge, Semaphores, Stage, WaitTable
from tileprof.policy.format.expression import Expression
from tileprof.policy.format.lowering import Waits
from tileprof.policy.format.tile_orders import ASCENDING, axes_of, places

MOST_NUMBERS = 1 << 20
"""Most numbers of a table in the header, for which a compiler takes seconds."""

_PER_LINE = 16


@dataclass(frozen=True, slots=True)
class Part:
    """A struct of the header, and the tables that its constructor takes the device addresses of."""

    name: str
    text: str
    tables: tuple[str, ...] = ()


HELPERS = """\
// Division towards minus infinity, for the expressions below.
CUSYNC_DEVICE_HOST long long floor_div(long long a, long long b) { return a / b - (a % b < 0); }
CUSYNC_DEVICE_HOST long long floor_mod(long long a, long long b) { return a - floor_div(a, b) * b; }
CUSYNC_DEVICE_HOST long long min(long long a, long long b) { return b < a ? b : a; }
CUSYNC_DEVICE_HOST long long max(long long a, long long b) { return a < b ? b : a; }
"""


def tile_order(name: str, stage: Stage) -> Part:
    """Return the part in which blocks take tiles ascending, or in the stage's own order."""
    axes = ASCENDING if stage.order is None else axes_of(stage.grid, stage.order)
    if axes is not None:
        first, second, third = axes[0], axes[1], axes[2]
        body = f"    return block.{first} + grid.{first} * (block.{second} + grid.{second} * block.{third});"
        tables = ""
    else:
        place = places(stage.order or ())
        _check_size(stage, stage.tiles)
        numbers = _numbers(place.tolist())
        tables = (
            f"static const uint32_t {name}_places[] = {{\n{numbers}}};\n"
            f"static __device__ const uint32_t {name}_device_places[] = {{\n{numbers}}};\n\n"
        )
        body = f"""\
    const uint32_t number = block.x + grid.x * (block.y + grid.y * block.z);
#ifdef __CUDA_ARCH__
    return {name}_device_places[number];
#else
    return {name}_places[number];
#endif"""
    text = f"""\
{tables}struct {name} : public cusync::GenericTileOrder<{name}> {{
  // The place of a tile in the order in which blocks take tiles.
  CUSYNC_DEVICE_HOST uint32_t blockIndex(const dim3& grid, const dim3& block) {{
{body}
  }}
  CUSYNC_DEVICE dim3 tileToBlock(const dim3& tile) {{ return tile; }}
}};
"""
    return Part(name, text)


def posts(name: str, stage: Stage, array: Semaphores) -> Part:
    """Return what a producer posts: 1, to the semaphore of the tile."""
    if isinstance(array.of[0], Expression):
        u, v, w = (e.cpp() for e in array.of if isinstance(e, Expression))
        index = f"{_coordinates(stage)}\n    return {_linear((u, v, w), array.grid)};"
        return Part(name, _policy(name, (), "return 0;", index, "return false;", "return 1;"))
    _check_size(stage, stage.tiles)
    table = (
        f"static const uint32_t {name}_of[] = {{\n{_numbers([int(n) for n in array.of if isinstance(n, int)])}}};\n\n"
    )
    index = f"return of[{_number(stage)}];"
    return Part(name, table + _policy(name, ("of",), "return 0;", index, "return false;", "return 1;"), (f"{name}_of",))


def waits(name: str, stage: Stage, array: Semaphores, edge: Edge, lowered: Waits) -> Part:
    """Return what a consumer awaits. Where a tile awaits several semaphores, `wait_function` calls cuSync once for
    each: the number of the wait comes in ``tile.z``, above the stage's own z.
    """
    if isinstance(edge.waits, WaitTable):
        return _wait_table(name, stage, lowered) if most_waits(lowered) <= 1 else _wait_lists(name, stage, lowered)
    if most_waits(lowered) > 1:
        return _wait_ranges(name, stage, array, edge)
    u, v, w = (span.low.cpp() for span in edge.waits)
    index = f"{_coordinates(stage)}\n    return {_linear((u, v, w), array.grid)};"
    assert isinstance(edge.value, Expression), "a range of waits has an expression for its value"
    value = f"{_coordinates(stage)}\n    {_semaphore_scope((u, v, w))}\n    return {edge.value.cpp()};"
    if not edge.value.names():
        value = f"return {edge.value.cpp()};"
    full = bool((np.diff(lowered.indptr) == 1).all())
    some = "return true;" if full else _condition(stage, edge)
    return Part(name, _policy(name, (), value, index, some, "return 0;"))


def _condition(stage: Stage, edge: Edge) -> str:
    assert not isinstance(edge.waits, WaitTable)
    spans = " && ".join(f"{span.low.cpp()} <= {span.high.cpp()}" for span in edge.waits)
    return f"{_coordinates(stage)}\n    return {spans};"


def _wait_table(name: str, stage: Stage, lowered: Waits) -> Part:
    _check_size(stage, stage.tiles)
    waiting = np.diff(lowered.indptr) == 1
    semaphore, value = np.zeros(stage.tiles, np.int64), np.zeros(stage.tiles, np.int64)
    semaphore[waiting], value[waiting] = lowered.semaphore, lowered.value
    tables = "".join(
        f"static const uint32_t {name}_{what}[] = {{\n{_numbers(column.tolist())}}};\n\n"
        for what, column in (("semaphore", semaphore), ("value", value))
    )
    at = _number(stage)
    text = _policy(
        name,
        ("semaphore", "value"),
        f"return value[{at}];",
        f"return semaphore[{at}];",
        f"return value[{at}] > 0;",
        "return 0;",
    )
    return Part(name, tables + text, (f"{name}_semaphore", f"{name}_value"))


def most_waits(lowered: Waits) -> int:
    """Return the semaphores that a tile awaits, at most."""
    return int(np.diff(lowered.indptr).max(initial=0))


def wait_function(name: str, stage: Stage, most: int) -> str:
    """Return what a kernel calls in place of ``stage.wait(tile)``."""
    if most <= 1:
        body = "  stage.wait(tile);"
    else:
        body = f"""\
  for (uint32_t k = 0; k < {most}u; ++k) {{
    dim3 numbered(tile.x, tile.y, tile.z + {stage.grid[2]}u * k);
    stage.wait(numbered, 0, false);
  }}
  __syncthreads();"""
    return f"""\
// Waits for everything that a tile of the stage needs; all threads of the block call it.
template <typename Stage>
__device__ void wait_as_{name}(Stage& stage, dim3 tile) {{
{body}
}}
"""


def _wait_ranges(name: str, stage: Stage, array: Semaphores, edge: Edge) -> Part:
    assert not isinstance(edge.waits, WaitTable)
    assert isinstance(edge.value, Expression), "a range of waits has an expression for its value"
    counts, texts, before = [], [], "k"
    for axis, span in zip("uvw", edge.waits, strict=True):
        text = span.low.cpp()
        if span.low != span.high:
            width = f"{span.high.cpp()} - {span.low.cpp()}"
            counts.append((axis, width if span.step == 1 else f"floor_div({width}, {span.step})"))
            text += f" + {before} % {axis}_count" + (f" * {span.step}" if span.step > 1 else "")
            before = f"{before} / {axis}_count"
        texts.append(text)
    sizes = "".join(f"const long long {axis}_count = max(0, {count} + 1);\n    " for axis, count in counts)
    at = f"{_coordinates(stage, numbered=True)}\n    {sizes}"
    place = _semaphore_scope((texts[0], texts[1], texts[2]))
    value = f"{at}{place}\n    return {edge.value.cpp()};" if edge.value.names() else f"return {edge.value.cpp()};"
    index = f"{at}{place}\n    return {_linear(('u', 'v', 'w'), array.grid)};"
    some = f"{at}return k < {' * '.join(f'{axis}_count' for axis, _ in counts)};"
    return Part(name, _policy(name, (), value, index, some, "return 0;"))


def _wait_lists(name: str, stage: Stage, lowered: Waits) -> Part:
    _check_size(stage, stage.tiles + len(lowered.semaphore))
    columns = {"begin": lowered.indptr, "semaphore": lowered.semaphore, "value": lowered.value}
    tables = "".join(
        f"static const uint32_t {name}_{what}[] = {{\n{_numbers(column.tolist())}}};\n\n"
        for what, column in columns.items()
    )
    gx, gy, gz = stage.grid
    at = f"const uint32_t t = tile.x + {gx}u * (tile.y + {gy}u * (tile.z % {gz}u)), k = tile.z / {gz}u;"
    text = _policy(
        name,
        tuple(columns),
        f"{at}\n    return value[begin[t] + k];",
        f"{at}\n    return semaphore[begin[t] + k];",
        f"{at}\n    return begin[t] + k < begin[t + 1];",
        "return 0;",
    )
    return Part(name, tables + text, tuple(f"{name}_{what}" for what in columns))


def _policy(name: str, tables: Sequence[str], value: str, index: str, some: str, post: str) -> str:
    members = "".join(f"  const uint32_t* {table};\n" for table in tables)
    initial = ", ".join(f"{table}(nullptr)" for table in tables)
    constructors = f"  CUSYNC_DEVICE_HOST {name}(){' : ' + initial if initial else ''} {{}}\n"
    if tables:
        parameters = ", ".join(f"const uint32_t* {table}_" for table in tables)
        initial = ", ".join(f"{table}({table}_)" for table in tables)
        constructors += f"  explicit {name}({parameters}) : {initial} {{}}\n"
    methods = "".join(
        f"  CUSYNC_DEVICE {result} {method}(const dim3& tile, const dim3& grid) {{\n    {body}\n  }}\n"
        for result, method, body in (
            ("uint32_t", "waitValue", value),
            ("uint32_t", "tileIndex", index),
            ("bool", "isSync", some),
            ("uint32_t", "postValue", post),
        )
    )
    return f"struct {name} {{\n{members}{constructors}{methods}}};\n"


def _coordinates(stage: Stage, *, numbered: bool = False) -> str:
    gz = stage.grid[2]
    z = (f"tile.z % {gz}u" if gz > 1 else "0") if numbered else "tile.z"
    number = f", k = tile.z / {gz}u" if numbered else ""
    unused = ", ".join(f"(void){name}" for name in ("x", "y", "z"))
    return f"const long long x = tile.x, y = tile.y, z = {z}{number};\n    {unused};"


def _semaphore_scope(texts: tuple[str, str, str]) -> str:
    names = ", ".join(f"{axis} = {text}" for axis, text in zip("uvw", texts, strict=True))
    return f"const long long {names};\n    (void)u, (void)v, (void)w;"


def _linear(texts: tuple[str, str, str], grid: tuple[int, int, int]) -> str:
    """Return the number of a place in a grid; axes of one place are left out."""
    terms, stride = [], 1
    for text, size in zip(texts, grid, strict=True):
        if size > 1:
            terms.append(text if stride == 1 else f"{stride}LL * {text}")
        stride *= size
    return " + ".join(terms) or "0"


def _number(stage: Stage) -> str:
    gx, gy, _ = stage.grid
    return f"tile.x + {gx}u * (tile.y + {gy}u * tile.z)"


def _numbers(values: Sequence[int]) -> str:
    lines = (values[n : n + _PER_LINE] for n in range(0, len(values), _PER_LINE))
    return "".join(f"  {', '.join(map(str, line))},\n" for line in lines)


def _check_size(stage: Stage, count: int) -> None:
    if count > MOST_NUMBERS:
        raise UserError(
            f"{stage.name} has {count:,} tiles and its waits fit no expression; a header holds tables of "
            f"{MOST_NUMBERS:,} numbers: "
            "export the policy as json"
        )
