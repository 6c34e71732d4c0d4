"""The controller's words in memory: when warps that decide read them, and when others see what a warp has launched."""

from __future__ import annotations

from tileprof.analysis.bounds.compiled import apart
from tileprof.analysis.simulate.spawning.launches import later, random_share
from tileprof.analysis.simulate.spawning.state import (
    BY_WARP,
    COMES,
    DECIDES,
    LINE,
    OWN_ITEMS,
    QUEUED,
    READS,
    SAMPLES,
    SEEN,
    SHOWS,
    SMS,
    SPAWN,
    UPDATES,
    VISIBLE,
    WINDOWS,
    Costs,
    State,
    Work,
)


@apart
def looks(w: Work, o: Costs, z: State, now: float, first: int) -> bool:
    """Return whether the warp of thread ``first`` has read the controller's words and may decide; else let it read."""
    if z.words[first] < 0:
        z.words[first] = 0
        z.c[SEEN] = z.looked[first]
        return True
    sites, worth_asking = _asked(w, z, first)
    asked = sites if w.policy == BY_WARP else worth_asking
    z.words[first] = _words(w, o, z, now) if asked > 0 else 0
    if z.words[first] == 0:
        z.c[SEEN] = z.c[QUEUED]
        return True
    think_ns = sites * o.think_ns if w.policy == BY_WARP else 0.0
    later(w, o, z, READS, first, now + think_ns + _way_ns(o, z, first))
    return False


@apart
def _asked(w: Work, z: State, first: int) -> tuple[int, int]:
    """Return how many sites threads of a warp have come to, and how many of these a rule for threads asks about."""
    sites = worth_asking = 0
    if z.parts[first] == 0:
        for t in range(first, z.stop[first]):
            sites += w.items[t] > 0
            worth_asking += w.items[t] > 0 and w.items[t] >= w.threshold
        return sites, worth_asking
    t = z.site[first]
    while t >= 0:
        sites += 1
        worth_asking += w.items[t] >= w.threshold
        t = z.peer[t]
    return sites, worth_asking


@apart
def _way_ns(o: Costs, z: State, first: int) -> float:
    """Return how long a read of a warp is on its way to the controller's words, or back: these lie in one of the two
    halves of the L2, drawn with the seed. Which GPCs of an H200 are near to the same half was measured.
    """
    group = z.group[z.slot[first]]
    side = int(1 <= group <= 3 or group == 7)
    return (o.read_ns + (o.far_ns if side == int(random_share(o.seed, 0) * 2) else 0.0)) / 2


@apart
def _words(w: Work, o: Costs, z: State, now: float) -> int:
    """Return how many words a rule reads one after the other, as spawn.cuh does: the windows from the last one on until
    one has ended children, what it holds, or all of time's, and how many children wait; before, of the rule for warps,
    what items take.
    """
    if w.policy < SPAWN or o.read_ns <= 0:
        return 0
    words = 1
    current = int(now // o.window_ns) if o.ended > 0 else 0
    while words < WINDOWS - 2 and not (current >= words and z.window[(current - words) % WINDOWS] == current - words):
        words += 1
    return words + 2 + (0 if w.policy == SPAWN else 1 if z.ns[OWN_ITEMS] == 0 else 2)


@apart
def reads(w: Work, o: Costs, z: State, now: float, first: int) -> None:
    """A warp's read comes to the controller's words, which serve one at a time, those of near SMs first."""
    wait = max(0.0, z.ns[LINE] - now)
    z.ns[LINE] = now + wait + o.word_ns
    if z.slot[first] % SMS < o.near:
        wait = 0.0
    z.words[first] -= 1
    if z.words[first] > 0:
        later(w, o, z, READS, first, now + wait + o.word_ns + 2 * _way_ns(o, z, first))
    else:
        later(w, o, z, SAMPLES, first, now + wait + o.word_ns)


@apart
def samples(w: Work, o: Costs, z: State, now: float, first: int) -> None:
    """A warp has read how many children wait, and will decide."""
    z.looked[first], z.words[first] = z.c[VISIBLE], -1
    weigh_ns = o.weigh_ns if w.policy == BY_WARP else 0.0
    later(w, o, z, DECIDES if z.parts[first] == 0 else COMES, first, now + _way_ns(o, z, first) + weigh_ns)


@apart
def will_update(w: Work, o: Costs, z: State, now: float, first: int, launches: int, tiles: int) -> None:
    """Let others read what a warp has launched, when that has come to the controller's words."""
    if o.read_ns <= 0 or w.policy < SPAWN:
        z.c[VISIBLE] += tiles
        return
    z.adds[first] += tiles
    if launches > 0:
        z.lanes_of[first] = launches
        later(w, o, z, UPDATES, first, now + o.read_ns)
    else:
        z.ns[LINE] = max(z.ns[LINE], now + o.read_ns / 2) + o.update_ns


@apart
def updates(w: Work, o: Costs, z: State, now: float, first: int) -> None:
    """What a warp has launched comes to the controller's words, which serve it after what came before."""
    z.ns[LINE] = max(z.ns[LINE], now) + o.update_ns + z.lanes_of[first] * o.lane_ns
    later(w, o, z, SHOWS, first, z.ns[LINE])


@apart
def shows(z: State, first: int) -> None:
    """What a warp has launched can be read from now on."""
    z.c[VISIBLE] += z.adds[first]
    z.adds[first] = 0
