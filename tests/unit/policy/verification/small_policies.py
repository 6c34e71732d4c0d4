"""Random policies of few tiles, and an oracle that runs everything that can run without a given tile."""

from __future__ import annotations

from hypothesis import strategies as st

from tests.support.policies.graphs import Relation
from tileprof.policy.format import Policy, from_dict
from tileprof.policy.format.lowering import lower

Grid = tuple[int, int, int]


def runs_without(policy: Policy, absent: tuple[int, int]) -> set[tuple[int, int]]:
    """Return every (stage, tile) that can run if the tile ``absent`` never does."""
    edge_waits = lower(policy)
    ended_tasks: set[tuple[int, int]] = set()
    any_change = True
    while any_change:
        any_change = False
        post_counts = [
            {
                s: sum((w.edge.producer, t) in ended_tasks for t, of in enumerate(w.of) if of == s)
                for s in set(w.semaphore.tolist())
            }
            for w in edge_waits
        ]
        for stage, description in enumerate(policy.stages):
            for tile in range(description.tiles):
                if (stage, tile) in ended_tasks or (stage, tile) == absent:
                    continue
                ready = all(
                    post_counts[n][int(w.semaphore[k])] >= w.value[k]
                    for n, w in enumerate(edge_waits) if w.edge.consumer == stage
                    for k in range(w.indptr[tile], w.indptr[tile + 1])
                )  # fmt: skip
                if ready:
                    ended_tasks.add((stage, tile))
                    any_change = True
    return ended_tasks


@st.composite
def cases(draw: st.DrawFn) -> tuple[Policy, list[Grid], Relation]:
    grids = [(draw(st.integers(1, 3)), draw(st.integers(1, 2)), 1) for _ in range(draw(st.integers(2, 4)))]
    tiles = [x * y for x, y, _ in grids]
    semaphores, edges, relation = [], [], {}
    for consumer in range(1, len(grids)):
        for producer in range(consumer):
            pairs = st.tuples(st.integers(0, tiles[producer] - 1), st.integers(0, tiles[consumer] - 1))
            relation[producer, consumer] = draw(st.sets(pairs, max_size=4))
            if not draw(st.booleans()):
                continue
            count = draw(st.integers(1, tiles[producer]))
            of = [draw(st.integers(0, count - 1)) for _ in range(tiles[producer])]
            semaphores.append({"producer": producer, "grid": [count, 1, 1], "of": of})
            waits = [sorted(draw(st.sets(st.integers(0, count - 1), max_size=count))) for _ in range(tiles[consumer])]
            flat = [s for w in waits for s in w]
            # a value that can be reached: all posts, or fewer
            values = [max(0, of.count(s) - draw(st.sampled_from([0, 0, 0, 1]))) for s in flat]
            indptr = [sum(len(w) for w in waits[:t]) for t in range(tiles[consumer] + 1)]
            edges.append({
                "producer": producer, "consumer": consumer, "hazards": ["RAW"], "kind": "table",
                "semaphores": len(semaphores) - 1, "waits": {"indptr": indptr, "semaphore": flat}, "value": values,
            })  # fmt: skip
    stages = [{"name": f"s{n}", "grid": list(g), "launch": n} for n, g in enumerate(grids)]
    return (
        from_dict({"tileprof_policy": 1, "stages": stages, "semaphores": semaphores, "edges": edges}),
        grids,
        relation,
    )
