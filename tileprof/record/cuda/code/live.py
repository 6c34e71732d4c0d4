"""Which registers are read later, instruction by instruction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tileprof.record.cuda.code.flow import End, Kind
from tileprof.record.cuda.code.instructions import Instruction


def live_names(
    code: Sequence[Instruction],
    ends: Mapping[int, End],
    joins: Mapping[int, int],
    uses: Mapping[int, tuple[set[str], set[str]]],
) -> list[frozenset[str]]:
    """Return, per instruction, names whose values it or what follows may read.

    ``uses``: names that an instruction reads, and names that it gives new values. Returns may lead behind any call.
    """
    names = list(dict.fromkeys(name for reads, writes in uses.values() for name in (*reads, *writes)))
    bit = {name: 1 << n for n, name in enumerate(names)}
    reads = [sum(bit[name] for name in uses[n][0]) for n in range(len(code))]
    kept = [~sum(bit[name] for name in uses[n][1]) for n in range(len(code))]
    behind_calls = [n + 1 for n, end in ends.items() if end.kind is Kind.CALL]
    following: list[list[int]] = []
    for n in range(len(code)):
        end = ends.get(n)
        if n in joins:
            following.append([joins[n]])
        elif end is None or end.kind is Kind.SYNC:
            following.append([n + 1])
        else:
            always = not end.conditions
            places = [] if always else [n + 1]
            if end.kind is Kind.RETURN:
                places += behind_calls
            elif end.target >= 0:
                places.append(end.target)
            following.append(places)
    live = [0] * (len(code) + 1)
    changed = True
    while changed:
        changed = False
        for n in range(len(code) - 1, -1, -1):
            after = 0
            for m in following[n]:
                after |= live[m]
            now = reads[n] | (after & kept[n])
            if now != live[n]:
                live[n], changed = now, True
    cache: dict[int, frozenset[str]] = {}
    for bits in live:
        if bits not in cache:
            cache[bits] = frozenset(name for name in names if bits & bit[name])
    return [cache[bits] for bits in live]
