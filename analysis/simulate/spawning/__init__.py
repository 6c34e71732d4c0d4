"""``spawn``: kernels whose threads may launch child grids, and who decides whether they do.

A workload is a sequence of parent kernels (*rounds*); each of their threads has some items of work, which it does one
after the other (*inline*) or hands to a child grid, one thread per item (CUDA dynamic parallelism). Threads of a warp
that launch do so together: the warp is stalled for ``launch_ns`` and ``another_ns`` per launch, more beside other
warps that launch (``crowd_ns``, at most ``crowded_ns``; ``submit_ns``), then all its grids arrive, or, with
``serve_ns``, are served one after the other with those of the whole GPU, and its other threads do their items. Parent
and child tiles share the GPU's blocks and threads, parents first, or children with ``children=1``; at most ``queues``
child grids are in execution, the others wait in order of arrival. A round ends when all its tiles have ended and all
child grids are complete: one after the other when they and those that their threads launched have ended
(``complete_ns``, ``first_ns``), and ``settle_ns`` after the last.

Children may launch, too (``first_child``): an item is then a thread with items of its own, which are asked about where
it runs. Threads of a warp that keep such items do them in step, depth first: an item of each at a time, as long
as the longest, and decide together where these have sites. A warp decides when the last of its threads with sites has
come there, ``base_ns`` or ``own_ns`` after its tile's start, and up to ``jitter_ns`` later, drawn with ``seed``.

Source: Tang et al., "Controlled Kernel Launch for Dynamic Parallelism in GPUs", HPCA 2017, doi:10.1109/HPCA.2017.14
(SPAWN). Its rule: launch where ``overhead + (tiles in the queue + own tiles) / throughput < items x time of a child
warp``, throughput and time being those of child tiles: all that ended over the time in which any ran, or, with
``window_ns`` (the paper has 1,024 cycles), the mean number that ran at a time in the last whole window, over the mean
time of all that ended. It is asked where the program as written would launch. What it does before the first child has
ended we do not know: see ``prior``, and ``untried``, the bound of spawn.cuh in the CUDA examples.

``stagger_ns``: parent tiles reach their launch sites one after the other. ``guess_ns``: the rule ``warp`` knows items'
times as spawn.cuh does, and guesses before: a warp's first thread that keeps its items counts them when all threads
that keep theirs have done so, and threads that do items with sites count them one by one.

``read_ns``: rules read as many of the controller's words as spawn.cuh, one after the other. All lie at one place that
serves one read in ``word_ns``, one update in ``update_ns`` and ``lane_ns`` for each thread that launches, in the order
in which they come, but for reads of ``near`` SMs. Threads of a warp decide by one reading; what they launch can be read
when it has come there. ``think_ns``: of the rule ``warp``, before its first read, for each
site. Without ``read_ns`` rules know all.

``ended=1`` reads windows as spawn.cuh does: throughput and time of a child tile are those of the last whole window in
which any ended, of six, else of all of time since the first began. `Spawns.together`: threads of a warp that do their
items inline slow each other. ``issue_ns``: the GPU does at most one item inline in this time (items without sites);
where more threads keep theirs, all come forward alike, as much slower as that takes. ``assumed_first_ns``,
``assumed_another_ns``: what rules take for the costs of launches.

The rule ``warp`` is ours. Threads of a warp wait for the slowest of them, so that to launch one thread's items gains
nothing while another keeps as many; and a child warp's time is more than an item's. It launches the largest of a warp's
sites, as many of them as make the later of the warp and its children end first, with an item's own time.

Left out: memory bandwidth of children (a child tile lasts as long on a full GPU as alone).

| rule | source | here | worth |
|---|---|---|---|
| throughput | windows of 1,024 cycles | all of time | +69.5, +82.0, 0% |
"""

from tileprof.analysis.simulate.spawning.options import Spawning
from tileprof.analysis.simulate.spawning.run_rules import PROGRAM, Ran, Spawned, compare, run, spawn, thresholds
from tileprof.analysis.simulate.spawning.state import ALWAYS, BY_WARP, FLAT, POLICIES, SPAWN, THRESHOLD
from tileprof.analysis.simulate.spawning.work import Spawns

__all__ = [
    "ALWAYS",
    "BY_WARP",
    "FLAT",
    "POLICIES",
    "PROGRAM",
    "SPAWN",
    "THRESHOLD",
    "Ran",
    "Spawned",
    "Spawning",
    "Spawns",
    "compare",
    "run",
    "spawn",
    "thresholds",
]
