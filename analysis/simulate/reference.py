"""The discrete-event engine in plain Python over expanded edges: what `tileprof.analysis.simulate.engine` must equal.

Slow and meant to be read; the rules are those of `tileprof.analysis.simulate.plan`.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from tileprof.analysis.bounds.problem import Problem
from tileprof.analysis.simulate.engine import Outcome, Room
from tileprof.analysis.simulate.plan import GRID, INSIDE, READY, Plan


def run(p: Problem, plan: Plan, room: Room) -> Outcome:
    """Run a plan; as the compiled engine does."""
    return _Simulation(p, plan, room).run()


class _Simulation:
    def __init__(self, p: Problem, plan: Plan, room: Room) -> None:
        self.plan, self.room = plan, room
        self.launches, self.tiles = len(p.launch), p.tiles
        self.launch_of = [i for i in range(self.launches) for _ in range(p.tile_base[i], p.tile_base[i + 1])]
        self.members = [range(p.tile_base[i], p.tile_base[i + 1]) for i in range(self.launches)]
        self.life = [
            float(p.ns[p.ns_at[i] + t - p.tile_base[i]] + plan.overhead_ns[i]) for t, i in enumerate(self.launch_of)
        ]
        self.parents: list[dict[int, float]] = [{} for _ in range(self.tiles)]  # parent: earliest need
        self.children: list[set[int]] = [set() for _ in range(self.tiles)]
        self.entries = [0] * self.tiles  # parents, counted once a link
        for parent, child, first in _edges(p):
            self.entries[child] += 1
            if plan.gate[self.launch_of[child]] in (READY, INSIDE):
                known = self.parents[child].get(parent, 1.0)
                self.parents[child][parent] = min(known, first)
                self.children[parent].add(child)
        self.begin, self.end = [math.inf] * self.tiles, [math.inf] * self.tiles
        self.over = [False] * self.tiles
        self.sm = [-1] * self.tiles
        self.placed: dict[int, list[int]] = {}
        self.free = [list(map(int, room.capacity)) for _ in range(room.sms)]
        self.open_ns, self.grid_end = [math.inf] * self.launches, [math.inf] * self.launches
        self.gates: list[set[object]] = [set() for _ in range(self.launches)]
        for i in range(self.launches):
            for kind, at, waiting in (("after", plan.after_at, plan.after), ("started", plan.started_at, plan.started)):
                for launch in waiting[at[i] : at[i + 1]]:
                    self.gates[int(launch)].add((kind, i))
            if plan.window:
                self.gates[i].add("window")
        self.entered = self.under_way = self.left = 0
        self.known = 0 if plan.nodes.resident else self.tiles
        self.resident = self.spilled = 0
        self.noted: dict[int, bool] = {}  # tile outside the nodes: whether there was room to note it
        self.queue: list[int] = []
        self.server_free = [0.0] * plan.deciding.servers
        self.deciding_ns = 0.0
        self.decided: set[int] = set()
        self.scheduled: set[int] = set()
        self.events: list[tuple[float, int]] = []
        self.ready: list[tuple[int, int]] = []
        self.now = 0.0

    def run(self) -> Outcome:
        while True:
            self.enter_and_open()
            if not (self.events and self.events[0][0] == self.now):
                self.serve()
                if self.events and self.events[0][0] == self.now:
                    continue
                self.dispatch()
                if self.openable():
                    continue
            if not self.events:
                break
            self.now, item = heapq.heappop(self.events)
            if item >= 3 * self.tiles + self.launches:
                pass  # a server is free
            elif item >= 2 * self.tiles + self.launches:
                self.decision_arrives(item - 2 * self.tiles - self.launches)
            elif item >= self.tiles + self.launches:
                self.tile_knows(item - self.tiles - self.launches)
            elif item >= self.tiles:
                self.launch_opens(item - self.tiles)
            else:
                self.tile_ends(item)
        return Outcome(
            np.array(self.begin),
            np.array(self.end),
            np.array(self.sm, np.int32),
            np.array(self.open_ns),
            sum(self.over),
            self.deciding_ns,
            self.spilled,
        )

    def openable(self) -> list[int]:
        return [i for i in range(self.launches) if not self.gates[i] and i not in self.scheduled]

    def enter_and_open(self) -> None:
        while self.known < self.tiles and self.resident < self.plan.nodes.resident:
            self.known += 1
            self.resident += 1
            if self.open_ns[self.launch_of[self.known - 1]] < math.inf:
                self.activate(self.known - 1)
        while self.entered < self.launches and self.under_way < self.plan.window:
            self.gates[self.entered].discard("window")
            self.entered += 1
            self.under_way += 1
        for i in self.openable():
            self.scheduled.add(i)
            heapq.heappush(self.events, (max(self.now + self.plan.gap_ns[i], self.plan.issue_ns[i]), self.tiles + i))

    def launch_opens(self, launch: int) -> None:
        self.open_ns[launch] = self.now
        for t in self.members[launch]:
            if t < self.known:
                self.activate(t)
        if not self.members[launch]:
            self.launch_ends(launch)

    def activate(self, tile: int) -> None:
        if self.plan.gate[self.launch_of[tile]] != READY:
            self.make_ready(tile)
            return
        if self.plan.deciding.ahead and self.is_decided_about(tile):
            self.queue.append(tile)
        if self.waits_for_nothing(tile):
            self.waits_are_over(tile)

    def is_decided_about(self, tile: int) -> bool:
        ready_gated = self.plan.gate[self.launch_of[tile]] == READY
        return ready_gated and self.plan.deciding.servers > 0 and not self.is_alone(tile)

    def is_alone(self, tile: int) -> bool:
        return 1 <= self.entries[tile] <= self.plan.deciding.bypass

    def waits_for_nothing(self, tile: int) -> bool:
        if self.plan.deciding.ahead and self.is_decided_about(tile) and tile not in self.decided:
            return False
        return all(self.over[q] for q in self.parents[tile])

    def knows(self, tile: int) -> float:
        """When the last of its ended parents' signals arrives."""
        later = self.plan.deciding.bypass_ns if self.is_alone(tile) else self.plan.signal_ns[self.launch_of[tile]]
        if not self.noted.get(tile, True):
            later += self.plan.nodes.spill_ns
        return max((float(self.end[q] + later) for q in self.parents[tile]), default=0.0)

    def waits_are_over(self, tile: int) -> None:
        undecided = not self.plan.deciding.ahead and self.is_decided_about(tile)
        if self.knows(tile) <= self.now and not undecided:
            self.make_ready(tile)
        else:
            when = max(self.knows(tile), self.now)
            heapq.heappush(self.events, (when, self.tiles + self.launches + tile))

    def tile_knows(self, tile: int) -> None:
        if not self.plan.deciding.ahead and self.is_decided_about(tile):
            self.queue.append(tile)
        else:
            self.make_ready(tile)

    def serve(self) -> None:
        d = self.plan.deciding
        for k in range(d.servers):
            while self.queue and self.server_free[k] <= self.now:
                taken, self.queue = self.queue[: d.batch], self.queue[d.batch :]
                done = self.now + len(taken) * d.decide_ns + d.commit_ns
                for tile in taken:
                    arrives = done + d.deliver_ns
                    heapq.heappush(self.events, (arrives, 2 * self.tiles + self.launches + tile))
                self.server_free[k] = done
                self.deciding_ns += done - self.now
                if done > self.now:
                    heapq.heappush(self.events, (done, 3 * self.tiles + self.launches + k))

    def decision_arrives(self, tile: int) -> None:
        self.decided.add(tile)
        if not self.plan.deciding.ahead:
            self.make_ready(tile)
        elif self.waits_for_nothing(tile):
            self.waits_are_over(tile)

    def note_children(self, tile: int) -> None:
        """Children that the scheduler does not know of yet are noted together, or not at all."""
        new = [c for c in self.children[tile] if c >= self.known and c not in self.noted]
        pending = sum(fits for c, fits in self.noted.items() if c >= self.known)
        fits = pending + len(new) <= self.plan.nodes.pending
        self.noted.update(dict.fromkeys(new, fits))
        self.spilled += 0 if fits else len(new)

    def make_ready(self, tile: int) -> None:
        heapq.heappush(self.ready, (int(self.plan.rank[self.launch_of[tile]]), tile))

    def dispatch(self) -> None:
        while self.ready:
            tile = self.ready[0][1]
            launch = self.launch_of[tile]
            places = self.place(launch)
            if places is None:
                return
            heapq.heappop(self.ready)
            self.placed[tile], self.sm[tile], self.begin[tile] = places, places[0], self.now
            self.try_to_end(tile)
            if all(self.begin[t] < math.inf for t in self.members[launch]):
                for gates in self.gates:
                    gates.discard(("started", launch))

    def place(self, launch: int) -> list[int] | None:
        need = [int(x) for x in self.room.demand[launch]]
        places: list[int] = []
        for _ in range(int(self.room.cluster[launch])):
            fitting = [sm for sm, free in enumerate(self.free) if all(f >= d for f, d in zip(free, need, strict=True))]
            if not fitting:
                for sm in places:
                    self.give(sm, need)
                return None
            best = max(fitting, key=lambda sm: (self.free[sm][0], -sm))
            self.give(best, [-d for d in need])
            places.append(best)
        return places

    def give(self, sm: int, amount: list[int]) -> None:
        self.free[sm] = [f + a for f, a in zip(self.free[sm], amount, strict=True)]

    def try_to_end(self, tile: int) -> None:
        """Schedule the end of a running tile if all that it waits for has ended."""
        launch, life, plan = self.launch_of[tile], self.life[tile], self.plan
        end = self.begin[tile] + life
        if plan.gate[launch] == INSIDE:
            if not all(self.over[q] for q in self.parents[tile]):
                return
            waits = [
                self.end[q] + plan.signal_ns[launch] + (1.0 - first) * life for q, first in self.parents[tile].items()
            ]
            end = max([end, *waits])
        if plan.gate[launch] == GRID and plan.waits_for[launch] >= 0:
            awaited = self.grid_end[plan.waits_for[launch]]
            if awaited == math.inf:
                return
            end = max(end, awaited + plan.signal_ns[launch] + (1.0 - plan.prologue[launch]) * life)
        self.end[tile] = end
        heapq.heappush(self.events, (end, tile))

    def tile_ends(self, tile: int) -> None:
        launch = self.launch_of[tile]
        self.over[tile] = True
        for sm in self.placed.pop(tile):
            self.give(sm, [int(x) for x in self.room.demand[launch]])
        if all(self.over[t] for t in self.members[launch]):
            self.launch_ends(launch)
        if self.plan.nodes.resident:
            self.resident -= 1
            self.note_children(tile)
        for child in sorted(self.children[tile]):
            if not self.waits_for_nothing(child):
                continue
            gate, is_open = self.plan.gate[self.launch_of[child]], self.open_ns[self.launch_of[child]] < math.inf
            if gate == INSIDE and self.begin[child] < math.inf:
                self.try_to_end(child)
            elif gate == READY and is_open and child < self.known:
                self.waits_are_over(child)

    def launch_ends(self, launch: int) -> None:
        self.grid_end[launch] = self.now
        while self.plan.in_order and self.left < self.launches and self.grid_end[self.left] < math.inf:
            self.left += 1
        self.under_way = self.entered - self.left if self.plan.in_order else self.under_way - 1
        for gates in self.gates:
            gates.discard(("after", launch))
        for c in range(self.launches):
            if self.plan.gate[c] == GRID and self.plan.waits_for[c] == launch:
                for t in self.members[c]:
                    if self.begin[t] < math.inf:
                        self.try_to_end(t)


def _edges(p: Problem) -> list[tuple[int, int, float]]:
    """(parent, child, first) of every edge."""
    edges = []
    for link in range(len(p.producer)):
        r, producer, consumer = p.relation[link], p.producer[link], p.consumer[link]
        for t in range(p.tile_base[consumer + 1] - p.tile_base[consumer]):
            k = p.set_of[p.tile_at[r] + t]
            if k >= 0:
                for e in range(p.indptr[p.set_at[r] + k], p.indptr[p.set_at[r] + k + 1]):
                    entry = p.entry_at[r] + e
                    parent, child = p.tile_base[producer] + p.parent[entry], p.tile_base[consumer] + t
                    edges.append((int(parent), int(child), float(p.first[entry])))
    return edges
