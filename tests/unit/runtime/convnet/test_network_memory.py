"""Layers that reuse memory: an oracle by elements agrees with the waits of plans and with the refusals of `verify`."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest

from tests.support.runtime.networks import pooling, small
from tileprof.errors import UserError
from tileprof.runtime.convnet.memory import layer_bytes
from tileprof.runtime.convnet.network import Average, Convolution, Network
from tileprof.runtime.convnet.plan import Plan, Tile, plan_network, reads, verify
from tileprof.runtime.convnet.tiling import candidates


def deep(images: int) -> Network:
    """Return blocks of three convolutions, the second of which reads the rows above and below, at two sizes of
    pixels.
    """
    wide, narrow, half = (images, 12, 12, 128), (images, 12, 12, 64), (images, 6, 6, 128)
    layers: list[Convolution | Average] = [Convolution(-1, (images, 12, 12, 64), narrow, 0)]
    layers.append(Convolution(0, narrow, wide, 1))
    for _ in range(3):
        last = len(layers) - 1
        layers.append(Convolution(last, wide, narrow, 2, relu=True))
        layers.append(Convolution(last + 1, narrow, narrow, 3, size=(3, 3), padding=1, relu=True))
        layers.append(Convolution(last + 2, narrow, wide, 4, residual=last, relu=True))
    for _ in range(2):
        last = len(layers) - 1
        shape = layers[-1].shape
        layers.append(Convolution(last, shape, half, 5, size=(3, 3), stride=shape[1] // 6, padding=1))
        layers.append(Convolution(last + 1, half, half, 6, size=(3, 3), padding=1))
    layers.append(Average(len(layers) - 1, half, (images, 1, 1, 128)))
    return Network(tuple(layers))


GROUP = 8
"""Elements per group: no tile has a part of a group."""


def groups(plan: Plan, number: int, images: tuple[int, int], rows: tuple[int, int], *more: slice) -> np.ndarray:
    """Return the places in memory, in groups of elements, of a part of a layer's results."""
    layer = plan.network.layers[number]
    first, size = plan.offsets[number] // 2, layer_bytes(layer) // 2
    if isinstance(layer, Convolution) and layer.flat:  # channels lie in front of pixels
        n, height, width, channels = layer.shape
        places = np.arange(first, first + size).reshape(n, channels, height, width).transpose(0, 2, 3, 1)
    else:
        places = np.arange(first, first + size).reshape(layer.shape)
    return np.unique(places[(slice(*images), slice(*rows), *more)] // GROUP)


def ready(plan: Plan) -> np.ndarray | None:
    """Return in row n the tasks that have ended before task n begins, in any order, or None if some task never
    begins.
    """
    tasks, count = plan.tasks.tolist(), len(plan.tasks)
    posters: dict[int, list[int]] = {}
    for n, task in enumerate(tasks):
        posters.setdefault(task[7], []).append(n)
    before = np.zeros((count, count), bool)
    for n in sorted(range(count), key=lambda n: tasks[n][0]):
        for semaphore, posts in plan.waits[tasks[n][5] : tasks[n][6]].tolist():
            theirs = posters.get(semaphore, [])
            if len(theirs) < posts or any(tasks[p][0] >= tasks[n][0] for p in theirs):
                return None
            if len(theirs) == posts:
                before[n, theirs] = True
                before[n] |= before[theirs].any(axis=0)
    return before


def conflicts(plan: Plan) -> np.ndarray | None:
    """Return a matrix that is True if the row's task must end before the column's begins: it belongs to an earlier
    layer, and one of them writes what the other reads or writes.

    None if a layer between overwrites what a layer reads.
    """
    network, layers, last = plan.network, plan.network.layers, len(plan.network.layers) - 1
    count, size = len(plan.tasks), plan.memory_bytes // 2 // GROUP
    reading, writing = np.zeros((2, count, size), np.float32)
    by_layer = np.zeros((len(layers), size), bool)
    of_layers: list[tuple[int, int, np.ndarray]] = []
    for n, (number, image, y, x, column, *_) in enumerate(plan.tasks.tolist()):
        layer, tiling = layers[number], plan.tilings[number]
        own = (image, image + tiling.images), (y, y + tiling.rows)
        inside = slice(x, x + tiling.columns), slice(column * tiling.width, (column + 1) * tiling.width)
        for read in reads(network, tiling, Tile(number, image, y, x, column)):
            if isinstance(layer, Convolution) and read.layer == layer.residual != layer.source:
                places = groups(plan, read.layer, *own, *inside)
            else:
                places = groups(plan, read.layer, read.images, read.rows)
            reading[n, places] = 1
            of_layers.append((number, read.layer, places))
        if number < last:
            places = groups(plan, number, *own, *inside)
            writing[n, places] = 1
            by_layer[number, places] = True
    if any(by_layer[source + 1 : number, places].any() for number, source, places in of_layers):
        return None
    owner = plan.tasks[:, 0]
    touching = reading + writing
    return ((writing @ touching.T + touching @ writing.T) > 0) & (owner[:, None] < owner[None, :])


def harmful(plan: Plan, needs: np.ndarray | None) -> bool:
    before = ready(plan)
    return before is None or needs is None or bool((needs & ~before.T).any())


def is_refused(plan: Plan) -> bool:
    try:
        verify(plan)
    except UserError:
        return True
    return False


def fine(network: Network, blocks: int) -> Plan:
    """Choose tiles of as few rows as possible."""
    tilings = list(plan_network(network, blocks).tilings)
    for number, layer in enumerate(network.layers):
        if isinstance(layer, Convolution):
            tilings[number] = min(candidates(network, layer), key=lambda t: (t.rows, t.images, t.parts, -t.width))
    return plan_network(network, blocks, tuple(tilings))


PLANS = {
    "small": lambda: plan_network(small(1), 5),
    "two images": lambda: plan_network(small(2, flattened=True), 3),
    "pooling": lambda: fine(pooling(1), 7),
    "fine": lambda: fine(small(2), 7),
    "deep": lambda: fine(deep(1), 9),
}


@pytest.mark.parametrize("name", PLANS)
def test_no_tile_overwrites_what_another_still_uses(name: str) -> None:
    plan = PLANS[name]()
    verify(plan)
    assert not harmful(plan, conflicts(plan))
    assert plan.memory_bytes < plan_network(plan.network, len(plan.heads), plan.tilings, reuse=False).memory_bytes


def test_some_plan_awaits_more_than_what_its_tiles_read() -> None:
    """Otherwise the added waits would not be tested here."""
    plan = PLANS["fine"]()
    own = plan_network(plan.network, len(plan.heads), plan.tilings, reuse=False)
    assert len(plan.waits) > len(own.waits)


@pytest.mark.parametrize("waits_dropped", [30, pytest.param(100, marks=pytest.mark.nightly)])
@pytest.mark.parametrize("name", ["fine", "deep"])
def test_each_harmful_mutant_is_refused(name: str, waits_dropped: int) -> None:
    """Drop waits one by one, and move layers to addresses of others."""
    plan, dice = PLANS[name](), random.Random(0)
    needs, actual = conflicts(plan), []
    for number in dice.sample(range(len(plan.waits)), min(waits_dropped, len(plan.waits))):
        begin, end = next((b, e) for b, e in plan.tasks[:, 5:7].tolist() if b <= number < e)
        waits = plan.waits.copy()
        waits[number] = waits[begin if number > begin else end - 1]
        mutant = replace(plan, waits=waits)
        actual.append((harmful(mutant, needs), is_refused(mutant)))
    for number in range(1, len(plan.offsets) - 1):
        offsets = (*plan.offsets[:number], plan.offsets[dice.randrange(number)], *plan.offsets[number + 1 :])
        mutant = replace(plan, offsets=offsets, memory_bytes=2 * plan.memory_bytes)
        actual.append((harmful(mutant, conflicts(mutant)), is_refused(mutant)))
    assert actual.count((True, False)) == 0
    assert actual.count((True, True)) > 20


def test_a_layer_that_leaves_the_memory_is_refused() -> None:
    plan = PLANS["small"]()
    with pytest.raises(UserError, match="leaves"):
        verify(replace(plan, memory_bytes=plan.memory_bytes - 4096))
