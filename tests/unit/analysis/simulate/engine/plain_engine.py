"""The discrete-event engine in plain Python over expanded edges: what `tileprof.analysis.simulate.engine.event_loop`
must equal.

Slow and meant to be read; the rules are those of `tileprof.analysis.simulate.engine.plan`.
"""

from __future__ import annotations

import heapq
import math

import numpy as np

from tileprof.analysis.bounds.problem import Problem
from tileprof.analysis.simulate.engine.clocks import FULL, Sharing, alone
from tileprof.analysis.simulate.engine.event_loop import Outcome, Room
from tileprof.analysis.simulate.engine.plan import GRID, INSIDE, READY, Plan
from tileprof.analysis.simulate.engine.state import (
    DECISION_ARRIVES,
    LANE_FREE,
    LAUNCH_OPENS,
    QUANTUM_ENDS,
    SERVER_FREE,
    TILE_KNOWS,
    WAIT_IS_OVER,
)


def run(p: Problem, plan: Plan, room: Room, sharing: Sharing | None = None) -> Outcome:
    """Run a plan as the compiled engine does."""
    return _Simulation(p, plan, room, sharing or alone(len(p.launch))).run()


class _Clock:
    """Counts work at a rate, from the time at which the rate is set."""

    def __init__(self) -> None:
        self.shown, self.at, self.rate = 0.0, 0.0, 1.0
        self.stops: dict[int, float] = {}  # by tile: the count at its end

    def shows(self, now: float) -> float:
        return self.shown + self.rate * (now - self.at)

    def run_at(self, rate: float, now: float) -> None:
        if rate != self.rate:
            self.shown, self.at, self.rate = self.shows(now), now, rate

    def start(self, tile: int, now: float, until: float) -> None:
        never_changed = self.rate == 1.0 and self.shown == self.at
        self.stops[tile] = until if never_changed else self.shows(now) + (until - now)

    def first(self) -> tuple[float, int]:
        """Return when the first tile stops, and which tile it is."""
        if not self.stops:
            return math.inf, 0
        shown_end, tile = min((shown, tile) for tile, shown in self.stops.items())
        return self.at + max(0.0, shown_end - self.shown) / self.rate, tile


class _Simulation:
    def __init__(self, p: Problem, plan: Plan, room: Room, sharing: Sharing) -> None:
        self.plan, self.room, self.sharing = plan, room, sharing
        self.clocks = [_Clock() for _ in range(max(1, sharing.clocks))]
        self.part: set[int] = set()  # tiles that work up to their first wait
        self.late: dict[int, float] = {}
        self.done: dict[int, float] = {}  # work of that part
        self.until: dict[int, float] = {}  # tile whose last wait is not over: when it will end at rate 1
        self.parked: list[list[int]] = [[] for _ in range(len(p.launch))]  # ready, but as many tiles run as may
        self.working_ns = 0.0
        self.triggered: dict[int, float] = {}
        self.launches, self.tiles = len(p.launch), p.tiles
        self.launch_of = [i for i in range(self.launches) for _ in range(p.tile_base[i], p.tile_base[i + 1])]
        self.members = [range(p.tile_base[i], p.tile_base[i + 1]) for i in range(self.launches)]
        self.life = [
            float(p.ns[p.ns_at[i] + t - p.tile_base[i]] + plan.overhead_ns[i]) for t, i in enumerate(self.launch_of)
        ]
        self.parents: list[dict[int, float]] = [{} for _ in range(self.tiles)]  # by parent: earliest need
        self.children: list[set[int]] = [set() for _ in range(self.tiles)]
        self.entries = [0] * self.tiles  # number of parents, counted once per link
        for parent, child, first in _edges(p):
            self.entries[child] += 1
            if plan.gate[self.launch_of[child]] in (READY, INSIDE):
                share = self.parents[child].get(parent, 1.0)
                self.parents[child][parent] = min(share, first)
                self.children[parent].add(child)
        self.begin, self.end = [math.inf] * self.tiles, [math.inf] * self.tiles
        self.over = [False] * self.tiles
        self.sm = [-1] * self.tiles
        self.placed: dict[int, list[int]] = {}  # by running tile: SMs of its blocks
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
        self.noted: dict[int, bool] = {}  # by tile that is not among the nodes: whether there was room to note it
        self.queue: list[int] = []
        self.server_free = [0.0] * plan.deciding.servers
        self.deciding_ns = 0.0
        self.queue_left = [
            [i for i in range(self.launches) if plan.queue[i] == q] for q in range(max(plan.queue, default=-1) + 1)
        ]
        self.mapped: list[int] = []
        self.next_in = self.next_out = self.idle = self.swaps = 0
        self.decided: set[int] = set()
        self.scheduled: set[int] = set()
        self.events: list[tuple[float, int, int]] = []
        self.launched: set[int] = set()
        self.in_lanes, self.for_lane = 0, []
        self.launcher_free = self.launching_ns = 0.0
        self.ready: list[tuple[int, int]] = []
        self.now = 0.0

    def run(self) -> Outcome:
        for _ in range(self.plan.queues.mapped):
            self.map_next()
        self.begin_quantum()
        while True:
            self.enter_and_open()
            self.set_rates()
            if not self.more_now():
                self.serve()
                if self.more_now():
                    continue
                self.dispatch()
                if self.openable():
                    continue
                self.set_rates()
            stops, tile = min(clock.first() for clock in self.clocks)
            if stops < math.inf and not (self.events and self.events[0][0] < stops):
                self.now = stops
                self.tile_stops(tile)
                continue
            if not self.events:
                break
            self.now, kind, number = heapq.heappop(self.events)
            if kind == WAIT_IS_OVER:
                self.work(number, self.until[number])
            elif kind == QUANTUM_ENDS:
                self.quantum_ends()
            elif kind == LANE_FREE:
                self.in_lanes -= 1
                if self.for_lane:
                    heapq.heappush(self.events, (self.now, LAUNCH_OPENS, heapq.heappop(self.for_lane)))
            elif kind == DECISION_ARRIVES:
                self.decision_arrives(number)
            elif kind == TILE_KNOWS:
                self.tile_knows(number)
            elif kind == LAUNCH_OPENS and self.has_its_turn(number):
                self.launch_opens(number)
        return Outcome(
            np.array(self.begin),
            np.array(self.end),
            np.array(self.sm, np.int32),
            np.array(self.open_ns),
            sum(self.over),
            self.deciding_ns,
            self.spilled,
            self.swaps,
            self.working_ns,
            self.launching_ns,
        )

    def has_its_turn(self, launch: int) -> bool:
        if launch in self.launched:
            return True
        if self.plan.lanes and self.in_lanes == self.plan.lanes:
            heapq.heappush(self.for_lane, launch)
            return False
        self.in_lanes += 1
        self.launched.add(launch)
        turn = max(self.now, self.launcher_free) if self.plan.period_ns else self.now
        self.launcher_free = turn + self.plan.period_ns
        self.launching_ns += turn - self.now
        if turn > self.now:
            heapq.heappush(self.events, (turn, LAUNCH_OPENS, launch))
        return turn == self.now

    def more_now(self) -> bool:
        next_stop = min(clock.first()[0] for clock in self.clocks)
        return next_stop == self.now or bool(self.events and self.events[0][0] == self.now)

    def set_rates(self) -> None:
        """Set the speed at a load; a higher load is slower."""
        for number, clock in enumerate(self.clocks[: self.sharing.clocks]):
            rate = FULL / max(FULL, self.sharing.base + self.load_on(number))
            clock.run_at(rate, self.now)

    def load_on(self, number: int) -> int:
        """Return the load that working tiles put on an SM, or the highest load on one of a set of resources."""
        working = [tile for clock in self.clocks for tile in clock.stops]
        loads = self.sharing.loads
        if self.sharing.by_sm:
            return sum(int(loads[self.launch_of[t], 0]) for t in working for sm in self.placed[t] if sm == number)
        resources = [r for r in range(loads.shape[1]) if number >> r & 1]
        return max((sum(int(loads[self.launch_of[t], r]) for t in working) for r in resources), default=0)

    def clock_of(self, tile: int) -> _Clock:
        if not self.sharing.clocks:
            return self.clocks[0]
        if self.sharing.by_sm:
            return self.clocks[self.sm[tile]]
        loads = self.sharing.loads[self.launch_of[tile]]
        return self.clocks[sum(1 << r for r, load in enumerate(loads) if load > 0)]

    def openable(self) -> list[int]:
        free = [i for i in range(self.launches) if not self.gates[i] and i not in self.scheduled]
        return [i for i in free if not self.plan.queues.mapped or self.plan.queue[i] in self.mapped]

    def under_way_in(self, queue: int) -> bool:
        return any(i in self.scheduled for i in self.queue_left[queue])

    def outside(self) -> list[int]:
        """Return the queues that could be mapped, the next one first."""
        count = len(self.queue_left)
        waiting = [q for q in range(count) if self.queue_left[q] and q not in self.mapped]
        waiting.sort(key=lambda q: (q - self.next_in) % count)
        return sorted(waiting, key=self.urgency) if self.plan.queues.by_priority else waiting

    def urgency(self, queue: int) -> int:
        return int(self.plan.urgency[self.queue_left[queue][0]])

    def map_next(self) -> None:
        for queue in self.outside()[:1]:
            self.mapped.append(queue)
            self.next_in = (queue + 1) % len(self.queue_left)

    def begin_quantum(self) -> None:
        if self.plan.queues.mapped and self.idle <= len(self.queue_left) and self.outside():
            heapq.heappush(self.events, (self.now + self.plan.queues.quantum_ns, QUANTUM_ENDS, 0))

    def quantum_ends(self) -> None:
        count, by_priority = len(self.queue_left), self.plan.queues.by_priority
        works = any(clock.stops for clock in self.clocks)
        self.idle = 0 if works or self.events else self.idle + 1
        idle = sorted((q for q in self.mapped if not self.under_way_in(q)), key=lambda q: (q - self.next_out) % count)
        if by_priority:
            idle.sort(key=self.urgency, reverse=True)
        outside = self.outside()
        if idle and outside and not (by_priority and self.urgency(outside[0]) > self.urgency(idle[0])):
            self.mapped.remove(idle[0])
            self.next_out = (idle[0] + 1) % count
            self.swaps += 1
            self.map_next()
        self.begin_quantum()

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
            self.idle = 0
            may_open = max(self.now, self.held_until(i)) + self.plan.gap_ns[i]
            opens = max(may_open, self.plan.issue_ns[i])
            self.launching_ns += opens - may_open
            heapq.heappush(self.events, (opens, LAUNCH_OPENS, i))

    def held_until(self, launch: int) -> float:
        awaited_launches = [i for i in range(self.launches) if launch in self.starting(i)]
        return max((self.triggered[t] for i in awaited_launches for t in self.members[i]), default=0.0)

    def starting(self, launch: int) -> list[int]:
        """Return the launches that wait until all tiles of a launch have begun."""
        at = self.plan.started_at
        return [int(i) for i in self.plan.started[at[launch] : at[launch + 1]]]

    def triggers(self, tile: int, when: float) -> None:
        self.triggered[tile] = when
        launch = self.launch_of[tile]
        if all(t in self.triggered for t in self.members[launch]):
            for i in self.starting(launch):
                self.gates[i].discard(("started", launch))

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
        """Return the time at which the last signal of its ended parents arrives."""
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
            heapq.heappush(self.events, (when, TILE_KNOWS, tile))

    def tile_knows(self, tile: int) -> None:
        if not self.plan.deciding.ahead and self.is_decided_about(tile):
            self.queue.append(tile)
        else:
            self.make_ready(tile)

    def serve(self) -> None:
        d = self.plan.deciding
        for k in range(d.servers):
            while self.queue and self.server_free[k] <= self.now:
                batch, self.queue = self.queue[: d.batch], self.queue[d.batch :]
                end_ns = self.now + len(batch) * d.decide_ns + d.commit_ns
                for tile in batch:
                    arrives = end_ns + d.deliver_ns
                    heapq.heappush(self.events, (arrives, DECISION_ARRIVES, tile))
                self.server_free[k] = end_ns
                self.deciding_ns += end_ns - self.now
                if end_ns > self.now:
                    heapq.heappush(self.events, (end_ns, SERVER_FREE, k))

    def decision_arrives(self, tile: int) -> None:
        self.decided.add(tile)
        if not self.plan.deciding.ahead:
            self.make_ready(tile)
        elif self.waits_for_nothing(tile):
            self.waits_are_over(tile)

    def note_children(self, tile: int) -> None:
        """Note the children that the scheduler does not know yet, all together or none."""
        new = [c for c in self.children[tile] if c >= self.known and c not in self.noted]
        pending = sum(fits for c, fits in self.noted.items() if c >= self.known)
        fits = pending + len(new) <= self.plan.nodes.pending
        self.noted.update(dict.fromkeys(new, fits))
        self.spilled += 0 if fits else len(new)

    def make_ready(self, tile: int) -> None:
        heapq.heappush(self.ready, (int(self.plan.rank[self.launch_of[tile]]), tile))

    def dispatch(self) -> None:
        no_room: list[int] = []  # tiles that a greedy plan passes over
        while self.ready:
            tile = self.ready[0][1]
            launch = self.launch_of[tile]
            if sum(t in self.placed for t in self.members[launch]) >= self.room.at_most[launch]:
                heapq.heappush(self.parked[launch], heapq.heappop(self.ready)[1])
                continue
            places = self.place(launch)
            if places is None:
                if not self.plan.greedy:
                    return
                no_room.append(heapq.heappop(self.ready)[1])
                continue
            heapq.heappop(self.ready)
            self.placed[tile], self.sm[tile], self.begin[tile] = places, places[0], self.now
            self.try_to_end(tile)
            if self.plan.trigger[launch] == 0:
                self.triggers(tile, self.now)
        for tile in no_room:
            self.make_ready(tile)

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
        if tile in self.part:
            return  # scheduled again when this part ends
        end = self.begin[tile] + self.late.get(tile, 0.0) + life
        waits = self.waits_inside(tile)
        last_ns, rest = max(waits, default=(0.0, 0.0))
        if last_ns > end:
            share = self.first_wait(tile)
            if self.sharing.clocks and share > 0 and tile not in self.late:
                self.work_before_waiting(tile, share)
                return
        if last_ns == math.inf:
            return
        resumes = max(self.now, last_ns - rest) if last_ns > end else self.now
        end = max(end, last_ns)
        if plan.trigger[launch] > 0:
            self.triggers(tile, end - (1.0 - plan.trigger[launch]) * life)
        if not self.sharing.clocks:
            self.work(tile, end)
            return
        self.working_ns += max(0.0, life - self.done.get(tile, 0.0) - (end - resumes))
        if resumes > self.now:  # no work, and no load on others until then
            self.until[tile] = end
            heapq.heappush(self.events, (resumes, WAIT_IS_OVER, tile))
        else:
            self.work(tile, end)

    def waits_inside(self, tile: int) -> list[tuple[float, float]]:
        """Return, for each thing that a running tile waits for, when the tile can end (infinite if that has not ended),
        and its work after the wait.
        """
        launch, life, plan = self.launch_of[tile], self.life[tile], self.plan
        signal_ns = float(plan.signal_ns[launch])
        if plan.gate[launch] == INSIDE:
            needs = [(self.end[q] if self.over[q] else math.inf, first) for q, first in self.parents[tile].items()]
        elif plan.gate[launch] == GRID and plan.waits_for[launch] >= 0:
            needs = [(self.grid_end[plan.waits_for[launch]], float(plan.prologue[launch]))]
        else:
            needs = []
        return [(float(end + signal_ns + (1.0 - first) * life), (1.0 - first) * life) for end, first in needs]

    def first_wait(self, tile: int) -> float:
        """Return the share of its work that a tile does before it waits."""
        launch = self.launch_of[tile]
        if self.plan.gate[launch] == GRID:
            return float(self.plan.prologue[launch])
        return min(self.parents[tile].values())

    def work(self, tile: int, until: float) -> None:
        self.clock_of(tile).start(tile, self.now, until)
        self.working_ns -= self.now if self.sharing.clocks else 0.0

    def work_before_waiting(self, tile: int, share: float) -> None:
        self.part.add(tile)
        self.done[tile] = share * self.life[tile]
        self.late[tile] = self.now + self.done[tile]
        self.work(tile, self.late[tile])

    def tile_stops(self, tile: int) -> None:
        del self.clock_of(tile).stops[tile]
        self.working_ns += self.now if self.sharing.clocks else 0.0
        if tile in self.part:
            self.part.remove(tile)
            self.late[tile] = max(0.0, self.now - self.late[tile])
            self.try_to_end(tile)
            return
        self.end[tile] = self.now
        self.tile_ends(tile)

    def tile_ends(self, tile: int) -> None:
        launch = self.launch_of[tile]
        self.over[tile] = True
        for sm in self.placed.pop(tile):
            self.give(sm, [int(x) for x in self.room.demand[launch]])
        if self.parked[launch]:
            self.make_ready(heapq.heappop(self.parked[launch]))
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
        if self.plan.lanes:
            heapq.heappush(self.events, (self.now + self.plan.lane_ns, LANE_FREE, launch))
        if self.plan.queues.mapped:
            queue = int(self.plan.queue[launch])
            self.queue_left[queue].remove(launch)
            if not self.queue_left[queue]:
                self.mapped.remove(queue)
                self.map_next()
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
    """Return (parent, child, first) of every edge."""
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
