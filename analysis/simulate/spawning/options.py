"""Options of a launching program: the costs of launches, and the GPU."""

from __future__ import annotations

from dataclasses import dataclass, field

from tileprof.analysis.simulate.scheduler import LONGEST_NS, MOST_COUNTED, short
from tileprof.errors import UserError


@dataclass(frozen=True, slots=True)
class Spawning:
    """Costs of launching, and the GPU. Times in nanoseconds.

    The defaults are a K20c, whose launches were measured for GPGPU-Sim (``-cdp_latency``: 20,000 cycles for a warp that
    launches and 1,700 more for each of its launches, with the call for the parameter buffer; here at 706 MHz): 13 SMs
    of at most 16 blocks and 2,048 threads. Parents of 256 and children of 32 threads are those of dragon_li, the
    benchmarks of Wang and Yalamanchili (IISWC 2014). ``gap_ns`` is assumed. An H200's were measured (docs/spawn.md;
    `H200` in tests/benchmarks/spawn/bench_spawn.py).
    """

    slots: int = field(default=13 * 16, metadata={"meaning": "blocks that the GPU holds", "least": 1})
    resident: int = field(default=13 * 2048, metadata={"meaning": "threads that the GPU holds", "least": 1})
    parent: int = field(default=256, metadata={"meaning": "threads of a parent tile", "least": 1})
    child: int = field(default=32, metadata={"meaning": "threads of a child tile", "least": 1})
    warp: int = field(default=32, metadata={"meaning": "threads that launch together", "least": 1})
    launch_ns: float = field(default=28_300.0, metadata={"meaning": "for a warp to launch at all", "least": 0})
    assumed_first_ns: float = field(
        default=0.0, metadata={"meaning": "launch_ns as rules know it, 0: as it is", "least": 0}
    )
    another_ns: float = field(default=2_400.0, metadata={"meaning": "more for each of its launches", "least": 0})
    assumed_another_ns: float = field(
        default=0.0, metadata={"meaning": "another_ns as rules know it, 0: as it is", "least": 0}
    )
    serve_ns: float = field(
        default=0.0, metadata={"meaning": "for each launch of the whole GPU, one after the other", "least": 0}
    )
    crowd_ns: float = field(
        default=0.0, metadata={"meaning": "more for each launch by each other warp that launches", "least": 0}
    )
    crowded_ns: float = field(
        default=0.0, metadata={"meaning": "the most that a launch takes by others that launch", "least": 0}
    )
    submit_ns: float = field(
        default=0.0,
        metadata={"meaning": "of the whole GPU for each launch, while the warps that launch stand still", "least": 0},
    )
    complete_ns: float = field(
        default=0.0,
        metadata={
            "meaning": "of the whole GPU for each child grid that has ended, until its parent may end",
            "least": 0,
        },
    )
    first_ns: float = field(
        default=0.0,
        metadata={"meaning": "more for each of the first grids of a round, one for each queue up to 32", "least": 0},
    )
    settle_ns: float = field(
        default=0.0, metadata={"meaning": "of a round with launches after its last grid has ended", "least": 0}
    )
    window_ns: float = field(
        default=0.0, metadata={"meaning": "of time over which children are counted, 0: all of it", "least": 0}
    )
    ended: int = field(
        default=0,
        metadata={
            "meaning": "1: count children that ended in the last whole window with any, as spawn.cuh does, with window",
            "least": 0,
            "most": 1,
        },
    )
    queues: int = field(default=32, metadata={"meaning": "child grids in execution at a time", "least": 1})
    issue_ns: float = field(
        default=0.0,
        metadata={"meaning": "of the whole GPU for one more item that threads do inline, 0: no limit", "least": 0},
    )
    gap_ns: float = field(default=7_000.0, metadata={"meaning": "between rounds", "least": 0})
    prior: int = field(
        default=1,
        metadata={
            "meaning": "until a child tile has ended, 0: launch, 1: assume the throughput of a GPU full of children",
            "least": 0,
            "most": 1,
        },
    )
    children: int = field(
        default=0,
        metadata={"meaning": "1: child tiles start before parent tiles that wait", "least": 0, "most": 1},
    )
    read_ns: float = field(
        default=0.0,
        metadata={
            "meaning": "for a warp that decides to read one of the controller's words, 0: it knows all",
            "least": 0,
        },
    )
    think_ns: float = field(
        default=0.0,
        metadata={"meaning": "for the rule warp, before it reads, for each site of a warp, with read", "least": 0},
    )
    weigh_ns: float = field(
        default=0.0, metadata={"meaning": "for the rule warp to decide when it has read, with read", "least": 0}
    )
    word_ns: float = field(
        default=0.0, metadata={"meaning": "of the controller's words for each read of the whole GPU", "least": 0}
    )
    update_ns: float = field(
        default=0.0, metadata={"meaning": "of the controller's words for each update by a warp", "least": 0}
    )
    lane_ns: float = field(
        default=0.0, metadata={"meaning": "more for each thread whose launch is an update", "least": 0}
    )
    far_ns: float = field(
        default=0.0,
        metadata={"meaning": "more for a read by SMs on the other side of the L2 than the words", "least": 0},
    )
    near: int = field(
        default=0,
        metadata={"meaning": "SMs of 132 that do not wait for reads of other SMs", "least": 0, "most": 132},
    )
    stagger_ns: float = field(
        default=0.0,
        metadata={"meaning": "between two parent tiles whose threads reach their launch sites", "least": 0},
    )
    jitter_ns: float = field(
        default=0.0,
        metadata={
            "meaning": "the most by which a warp comes late to its launch sites, drawn evenly with seed",
            "least": 0,
        },
    )
    seed: int = field(default=0, metadata={"meaning": "of jitter", "least": 0})
    guess_ns: float = field(
        default=0.0,
        metadata={"meaning": "of an item for the rule warp until one was done inline; 0: items' own times", "least": 0},
    )
    untried: int = field(
        default=MOST_COUNTED,
        metadata={"meaning": "child tiles that are launched until one has ended, with prior=0", "least": 0},
    )

    def __post_init__(self) -> None:
        for f in self.__dataclass_fields__.values():
            value = getattr(self, f.name)
            most = f.metadata.get("most", LONGEST_NS if f.name.endswith("_ns") else MOST_COUNTED)
            if not f.metadata["least"] <= value <= most:
                raise UserError(
                    f"spawn: {f.name} is {short(value)}, expected at least {f.metadata['least']} and at most "
                    f"{short(most)} ({f.metadata['meaning']})"
                )
        if self.ended and not self.window_ns:
            raise UserError("spawn: ended=1 counts children by windows; give window as well, such as window=65us")
        if self.resident < max(self.parent, self.child):
            raise UserError(
                f"spawn: resident is {self.resident}, fewer threads than a tile has ({max(self.parent, self.child)}); "
                "no tile could start"
            )
