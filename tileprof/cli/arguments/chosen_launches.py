"""Options by which a user chooses the launches of a verb: ``--launches``, ``--pair`` and ``--module``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from tileprof.errors import UserError
from tileprof.policy.synthesis.stage_choice import checked, of_module

if TYPE_CHECKING:
    from tileprof.analysis import TileGraph


def launches_of(options: Namespace, graph: TileGraph) -> list[int] | None:
    """Return the launches that the options name, in order; None where they name none. Raises `UserError`."""
    module = getattr(options, "module", None)
    choices = [o for o in (options.launches, options.pair, module) if o is not None]
    if len(choices) > 1:
        raise UserError("--launches, --pair and --module each say which launches: give one of them")
    if not choices:
        return None
    if module is not None:
        return of_module(graph, module)
    separator = ":" if options.pair is not None else ","
    words = choices[0].replace(" ", "").split(separator)
    if not all(word.isdecimal() and len(word) < 10 for word in words) or (options.pair is not None and len(words) != 2):
        example = "--pair 12:13" if options.pair is not None else "--launches 12,13"
        raise UserError(f"{choices[0]!r} names no launches; write {example}")
    launches = [int(word) for word in words]
    chosen = checked(graph, launches)
    if options.pair is not None and launches != chosen:
        first, second = launches
        what, other = ("twice", "") if first == second else ("before one that is issued earlier", f": {second}:{first}")
        raise UserError(
            f"--pair {first}:{second} names launch {first} {what}; a pair is a producer and a launch after it{other}"
        )
    return chosen
