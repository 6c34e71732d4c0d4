"""A policy as one C++ header for cuSync, and a program that runs it.

The interface is that of github.com/parasailteam/cusync: ``CuStage<TileOrder, InputPolicy, OutputPolicy, Opts>``. None
of its shipped policies is used: they take element offsets as its kernels pass them, and ``RowSync::isSync`` asks for
``tile.z == 1``, which kernels that reorder loads on sm_80 never pass, so that they never wait.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tileprof import __version__
from tileprof.errors import UserError
from tileprof.policy.emit.cusync_example import example
from tileprof.policy.emit.cusync_parts import HELPERS, Part, most_waits, posts, tile_order, wait_function, waits
from tileprof.policy.emit.express import Expressed, express
from tileprof.policy.emit.names import comment, identifiers
from tileprof.policy.format import Policy, Stage
from tileprof.policy.format.lowering import Waits, lower
from tileprof.policy.synthesis.optimisations import rows_on_sm_80

HEADER, EXAMPLE = "policy.h", "example.cu"

_SHOWN = 4
"""Tiles whose waits the comment spells out, for each edge."""


@dataclass(frozen=True, slots=True)
class _Parts:
    """The structs of one stage; policies are None where the stage does not wait, or no stage waits for it."""

    name: str
    order: Part
    waits: Part | None
    posts: Part | None
    options: str
    wait: str


def cusync_files(
    policy: Policy, *, several: bool = False, blocked: Callable[[Policy], tuple[str, ...]] | None = None
) -> tuple[dict[str, str], Expressed]:
    """Return texts by file name, and what had to be over-synchronised; raises `UserError` where cuSync cannot express
    the policy.

    ``several``: the header may call cuSync's ``wait`` several times per tile. ``blocked`` says of a policy why its
    waiting blocks could keep out the blocks that they wait for: more blocks may wait once the policy is
    over-synchronised, and then there is a wait kernel.
    """
    expressed = express(policy, several=several)
    reasons = () if policy.options.wait_kernel or blocked is None else blocked(expressed.inside())
    if reasons:
        options = replace(
            policy.options, wait_kernel=True, reasons={**policy.options.reasons, "wait_kernel": reasons[0]}
        )
        expressed = replace(expressed, policy=replace(expressed.policy, options=options))
    lowered = {(w.edge.producer, w.edge.consumer): w for w in lower(expressed.policy)}
    names = identifiers([stage.name for stage in expressed.policy.stages])
    stages = [_stage(expressed, lowered, number, name) for number, name in enumerate(names)]
    if not any(part.waits for part in stages):
        raise UserError("no stage of this policy waits inside its kernel: there is nothing for cuSync to do")
    header = "\n".join(
        [_comment(expressed, names, lowered), _opening(), *map(_structs, stages), _wiring(expressed, stages)]
    )
    most = [_most(expressed, lowered, number) for number in range(len(names))]
    return {HEADER: header, EXAMPLE: example(expressed, names, most)}, expressed


def _stage(expressed: Expressed, lowered: Mapping[tuple[int, int], Waits], number: int, name: str) -> _Parts:
    stage = expressed.policy.stages[number]
    into, out = expressed.edge_into(number), expressed.edge_from(number)
    array_in = expressed.policy.semaphores[into.semaphores] if into else None
    array_out = expressed.policy.semaphores[out.semaphores] if out else None
    single = bool(out) and bool((lowered[out.producer, out.consumer].posts <= 1).all()) if out else False
    return _Parts(
        name,
        tile_order(f"{name}Order", stage),
        waits(f"{name}Waits", stage, array_in, into, lowered[into.producer, number]) if into and array_in else None,
        posts(f"{name}Posts", stage, array_out) if array_out else None,
        _options(expressed.policy, stage, single=single, waits=into is not None),
        wait_function(name, stage, _most(expressed, lowered, number)) if into else "",
    )


def _most(expressed: Expressed, lowered: Mapping[tuple[int, int], Waits], number: int) -> int:
    into = expressed.edge_into(number)
    return most_waits(lowered[into.producer, number]) if into else 0


def _options(policy: Policy, stage: Stage, *, single: bool, waits: bool) -> str:
    reorders = waits and policy.options.reordered_loads and not _never_waits(policy)
    option_names = [
        ("NoAtomicAdd", single),
        ("AvoidWaitKernel", not policy.options.wait_kernel),
        ("AvoidCustomOrder", stage.order is None and not policy.options.custom_order),
        ("ReorderTileLoads", reorders),
    ]
    names = [f"cusync::{name}" for name, enabled in option_names if enabled]
    return " | ".join(names) or "cusync::NoOptimization"


def _never_waits(policy: Policy) -> bool:
    return rows_on_sm_80(policy, str(policy.guard.get("architecture", "")))


def _optimisations(policy: Policy) -> list[str]:
    """Return what the comment says of the optimisations, with the reasons that the policy gives."""
    options = policy.options
    words = {
        "wait_kernel": "a wait kernel" if options.wait_kernel else "no wait kernel",
        "custom_order": "tiles in a fixed order" if options.custom_order else "tiles in the hardware's order",
        "reordered_loads": "loads that depend on nothing before the wait"
        if options.reordered_loads
        else "loads in order",
    }
    reasons = dict(options.reasons)
    if options.reordered_loads and _never_waits(policy):
        words["reordered_loads"] = "loads in order, although the policy asks for reordered ones"
        reasons["reordered_loads"] = "on sm_80 cuSync's kernels never wait for a row once loads are reordered"
    return [f"{text}{f': {reasons[name]}' if name in reasons else ''}" for name, text in words.items()]


def _opening() -> str:
    return f"""\
#pragma once

#include <cstdint>
#include <stdexcept>

#include <cusync/cusync.h>

namespace tileprof_policy {{

{HELPERS}"""


def _structs(part: _Parts) -> str:
    inner = ", ".join(
        [
            part.order.name,
            part.waits.name if part.waits else "cusync::NoSync",
            part.posts.name if part.posts else "cusync::NoSync",
            part.options,
        ]
    )
    texts = [p.text for p in (part.order, part.waits, part.posts) if p]
    return "\n".join(
        [*texts, f"using {part.name}Stage = cusync::CuStage<{inner}>;\n", *([part.wait] if part.wait else [])]
    )


def _wiring(expressed: Expressed, parts: list[_Parts]) -> str:
    members = "".join(map(_members, range(len(parts)), parts))
    initialisers = ",\n".join(_initial(n, expressed.policy.stages[n], part) for n, part in enumerate(parts))
    pairs = [
        (e.producer, e.consumer) for e in expressed.policy.edges if (e.producer, e.consumer) not in expressed.events
    ]
    wired = "".join(f"    check(cusync::CuSync::setProducerConsumerPair(stage_{p}, stage_{c}));\n" for p, c in pairs)
    before = "".join(_before(expressed, n, part) for n, part in enumerate(parts))
    checks = "".join(f"  cusync::check(stages.stage_{n});\n" for n in range(len(parts)))
    steps = "".join(f"  stages.stage_{n}.incrementIter();\n" for n in range(len(parts)))
    return f"""\
inline void check(cusync::CuSyncError error) {{
  if (error != cusync::CuSyncSuccess) throw std::runtime_error("cuSync refused a call");
}}

// Copies a table to the device, for as long as the process lives.
inline const uint32_t* on_device(const uint32_t* table, size_t bytes) {{
  void* copy = nullptr;
  if (cudaMalloc(&copy, bytes) != cudaSuccess || cudaMemcpy(copy, table, bytes, cudaMemcpyHostToDevice) != cudaSuccess)
    throw std::runtime_error("no device memory for a table of the policy");
  return static_cast<const uint32_t*>(copy);
}}

// All stages in launch order, with the policies that they carry. Give each its own stream.
struct Stages {{
{members}
  Stages()
      : {initialisers.lstrip()} {{
{wired}  }}
}};

// Call before launching the stage, with its stream: the launch then cannot take the place of the blocks that it waits
// for.
{before}
// Call after all stages have been launched, before the next round. Under cuSync the round is an argument of the
// kernels, so a captured CUDA graph cannot be replayed: it would wait for the round that it was captured in. tileprof's
// runtime counts rounds on the device, and there this does nothing.
inline void next_round(Stages& stages) {{
{steps}}}

#ifdef TILEPROF_SYNC
// tileprof's runtime bounds every wait. Call after a synchronisation: throws where one gave up, with its stage, tile
// and semaphore.
inline void check_waits(const Stages& stages) {{
{checks}}}
#endif

}}  // namespace tileprof_policy
"""


def _members(number: int, part: _Parts) -> str:
    waits_name = part.waits.name if part.waits else "cusync::NoSync"
    posts_name = part.posts.name if part.posts else "cusync::NoSync"
    return f"  {waits_name} waits_{number};\n  {posts_name} posts_{number};\n  {part.name}Stage stage_{number};\n"


def _initial(number: int, stage: Stage, part: _Parts) -> str:
    tables = [
        ", ".join(f"on_device({table}, sizeof {table})" for table in (policy.tables if policy else ()))
        for policy in (part.waits, part.posts)
    ]
    grid = ", ".join(map(str, stage.grid))
    return (
        f"        waits_{number}({tables[0]}),\n        posts_{number}({tables[1]}),\n"
        f"        stage_{number}(dim3({grid}), dim3(1, 1, 1), waits_{number}, posts_{number})"
    )


def _before(expressed: Expressed, number: int, part: _Parts) -> str:
    into = expressed.edge_into(number)
    producers = [p for p, c in expressed.events if c == number]
    events = "".join(f", cudaEvent_t end_of_stage_{p}" for p in producers)
    body = "".join(
        f'  if (cudaStreamWaitEvent(stream, end_of_stage_{p}, 0) != cudaSuccess) throw std::runtime_error("no '
        'event");\n'
        for p in producers
    )
    if into and expressed.policy.options.wait_kernel:
        body += f"  check(stages.stage_{into.producer}.invokeWaitKernel(stream));\n"
    unused = "" if body else "  (void)stages, (void)stream;\n"
    return f"inline void before_{part.name}(Stages& stages, cudaStream_t stream{events}) {{\n{body or unused}}}\n"


def _comment(expressed: Expressed, names: list[str], lowered: Mapping[tuple[int, int], Waits]) -> str:
    policy = expressed.policy
    lines = [
        f"A policy for cuSync, written by tileprof {__version__} (https://github.com/parasailteam/cusync).",
        "",
        "Stages",
    ]
    for number, (stage, name) in enumerate(zip(policy.stages, names, strict=True)):
        launch = "" if stage.launch is None else f", launch {stage.launch}"
        lines.append(
            f"  {number} {name}: {_by(stage.grid)} tiles{launch}; {comment(stage.name)}; {comment(stage.kernel)}"
        )
    lines += ["", "Waits"]
    for edge in policy.edges:
        consumer, producer = names[edge.consumer], names[edge.producer]
        if (edge.producer, edge.consumer) in expressed.events:
            lines.append(f"  {consumer} is launched after the end of {producer} (an event)")
            continue
        lines.append(f"  {consumer} on {producer}: {comment(edge.reason) or edge.kind}")
        lines += _shown_waits(policy.stages[edge.consumer], lowered[edge.producer, edge.consumer])
    lines += ["", "Optimisations"]
    lines += [f"  {comment(part)}" for reason in _optimisations(policy) for part in _wrapped_lines(reason)]
    lines += ["", "What cuSync cannot express and this header over-synchronises"]
    lines += [f"  {comment(part)}" for reason in expressed.reasons for part in _wrapped_lines(reason)] or ["  nothing"]
    lines += [
        "",
        "How to use it",
        "  A kernel takes its tile from stage.tile(shared), waits with wait_as_NAME(stage, tile) before it touches",
        "  what another stage writes, and ends with stage.post(tile). Tiles are numbered in tiles, as here, not in",
        "  elements, as the kernels that cuSync ships pass them. example.cu runs these waits without the arithmetic.",
        "  The waits hold for the shapes that were recorded. With tileprof's own runtime, which bounds and names every",
        "  wait: nvcc -I DIR, where `python -m tileprof.runtime.include_path` prints DIR. With cuSync: its include",
        "  path, and compile src/cusync.cu too; its waits are not bounded, so that a tile that is never posted hangs",
        "  the GPU.",
    ]
    return "".join(f"// {line}".rstrip() + "\n" for line in lines)


def _shown_waits(stage: Stage, waits: Waits) -> list[str]:
    gx, gy, _ = stage.grid
    lines = []
    waiting = np.flatnonzero(np.diff(waits.indptr))
    for tile in waiting[:_SHOWN].tolist():
        rows = range(int(waits.indptr[tile]), int(waits.indptr[tile + 1]))
        wait_texts = [
            f"{waits.semaphore[w]} at {waits.value[w]} of {waits.posts[waits.semaphore[w]]} posts" for w in rows
        ]
        more = f", and {len(wait_texts) - _SHOWN} more" if len(wait_texts) > _SHOWN else ""
        place = f"({tile % gx}, {tile // gx % gy}, {tile // (gx * gy)})"
        lines.append(f"    tile {place} awaits semaphore {', '.join(wait_texts[:_SHOWN])}{more}")
    if len(waiting) > _SHOWN:
        lines.append(f"    and so on, {len(waiting) - _SHOWN} more tiles")
    if len(waiting) < stage.tiles:
        lines.append(f"    {stage.tiles - len(waiting)} tiles await nothing")
    return lines


def _wrapped_lines(text: str) -> list[str]:
    words, lines = text.split(), [""]
    for word in words:
        if len(lines[-1]) + len(word) > 100:
            lines.append(" ")
        lines[-1] = f"{lines[-1]} {word}".strip() if lines[-1].strip() else word
    return lines


def _by(grid: tuple[int, int, int]) -> str:
    return " x ".join(map(str, grid))
