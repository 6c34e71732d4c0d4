"""Plans of convolutional networks: tiles wait for all that they read, and an incomplete plan is refused."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.support.runtime.networks import image, parameters, small
from tileprof.errors import UserError
from tileprof.runtime.convnet.network import INPUT, Convolution, Maximum, Network, computed, windowed
from tileprof.runtime.convnet.plan import Plan, plan_network, verify
from tileprof.runtime.convnet.tiling import candidates, k_blocks
from tileprof.runtime.convnet.weights import copied, laid_out


def elements_read(network: Network, number: int, rows: slice, images: slice) -> dict[int, np.ndarray]:
    """Return the elements of its source that a part of a layer depends on: those with a gradient by PyTorch."""
    layer = network.layers[number]
    assert isinstance(layer, Convolution | Maximum)
    n, height, width, channels = layer.reads
    x = torch.zeros(n, channels, height, width, requires_grad=True)
    size = layer.size if isinstance(layer, Convolution) else (layer.size, layer.size)
    kernel = torch.ones(1, channels, *size)
    out = torch.nn.functional.conv2d(x, kernel, stride=layer.stride, padding=layer.padding)
    out[images, :, rows].sum().backward()
    return {layer.source: x.grad.permute(0, 2, 3, 1).numpy() != 0}


@pytest.mark.parametrize(("images", "blocks"), [(1, 5), (2, 3), (3, 132)])
def test_tiles_wait_for_all_who_write_what_they_read(images: int, blocks: int) -> None:
    network = small(images)
    plan = plan_network(network, blocks)
    verify(plan)
    posters: dict[tuple[int, int, int], set[int]] = {}
    for number, at, y, _, _, _, _, post, *_ in plan.tasks.tolist():
        tiling = plan.tilings[number]
        for one in range(at, at + tiling.images):
            for row in range(y, y + tiling.rows):
                posters.setdefault((number, one, row), set()).add(post)
    check_count = 0
    for number, at, y, _, _, begin, end, *_ in plan.tasks.tolist():
        layer, tiling = network.layers[number], plan.tilings[number]
        if not isinstance(layer, Convolution | Maximum) or layer.source in {INPUT, 0}:
            continue
        if layer.reads != network.layers[layer.source].shape:
            continue
        semaphores = set(plan.waits[begin:end, 0].tolist())
        read = elements_read(network, number, slice(y, y + tiling.rows), slice(at, at + tiling.images))
        for source, mask in read.items():
            for one, row in {(int(i), int(r)) for i, r in np.argwhere(mask.any((2, 3)))}:
                assert posters[source, one, row] <= semaphores
                check_count += 1
    assert check_count > 50


def broken_plan(plan: Plan, kind: str) -> Plan:
    tasks, waits = plan.tasks.copy(), plan.waits.copy()
    begin, end = tasks[tasks[:, 6] > tasks[:, 5]][0, 5:7]
    if kind == "wait":
        waits[begin:end] = waits[-1]
    elif kind == "count":
        waits[begin, 1] -= 1
    elif kind == "tile":
        tasks[-1] = tasks[-2]
    elif kind == "post":
        tasks[0, 7] += 1
    elif kind == "order":
        head = next(h for h, e in plan.heads.tolist() if e - h > 1)
        tasks[[head, head + 1]] = tasks[[head + 1, head]]
    return replace(plan, tasks=tasks, waits=waits)


@pytest.mark.parametrize("kind", ["wait", "count", "tile", "post", "order"])
def test_a_plan_that_lacks_something_is_refused(kind: str) -> None:
    plan = plan_network(small(1), 5)
    verify(plan)
    with pytest.raises(UserError):
        verify(broken_plan(plan, kind))


def test_rows_whose_tiles_post_two_semaphores_are_awaited_on_both() -> None:
    """One of the tiles of a row posts a semaphore of its own, which no tile awaits; the others' counts are right."""
    plan = plan_network(small(1), 5)
    tasks, waits = plan.tasks.copy(), plan.waits.copy()
    shared = next(s for s in waits[:, 0].tolist() if (tasks[:, 7] == s).sum() > 1)
    tasks[np.flatnonzero(tasks[:, 7] == shared)[-1], 7] = plan.semaphores
    waits[waits[:, 0] == shared, 1] -= 1
    with pytest.raises(UserError, match="does not wait for all of it"):
        verify(replace(plan, tasks=tasks, waits=waits))


def in_parts(blocks: int) -> Plan:
    """Choose tiles of as many parts as possible."""
    network = small(1)
    tilings = list(plan_network(network, blocks).tilings)
    for number, layer in enumerate(network.layers):
        if isinstance(layer, Convolution):
            tilings[number] = max(candidates(network, layer), key=lambda tiling: tiling.parts)
    return plan_network(network, blocks, tuple(tilings))


PART, COUNTER, PLACE = 8, 9, 10


@pytest.mark.parametrize(("word", "from_other", "message"), [
    (PART, True, "missing"), (COUNTER, False, "do not meet"), (PLACE, False, "do not meet"), (COUNTER, True, "share"),
    (PLACE, True, "share"),
])  # fmt: skip
def test_parts_that_do_not_add_up_are_refused(word: int, from_other: bool, message: str) -> None:
    """A part has the word of the layer's next tile, or all parts of a tile have that of the tile before."""
    plan = in_parts(5)
    verify(plan)
    tasks = plan.tasks.copy()
    number = next(n for n, tiling in enumerate(plan.tilings) if tiling.parts > 1)
    of_layer = np.flatnonzero(tasks[:, 0] == number)
    of_tile = of_layer[tasks[of_layer, PLACE] == 1]
    if word == PART:
        tasks[of_tile[0], PART] = tasks[of_tile[1], PART]
    else:
        tasks[of_tile if from_other else of_tile[:1], word] -= 1
    with pytest.raises(UserError, match=message):
        verify(replace(plan, tasks=tasks))


def test_every_tile_of_parts_posts_for_each_part() -> None:
    plan = in_parts(5)
    post_counts = np.bincount(plan.tasks[:, 7], minlength=plan.semaphores)
    for band in plan.bands:
        assert (post_counts[band.first : band.first + band.count] == band.posts).all()
    assert max(tiling.parts for tiling in plan.tilings) > 1


@pytest.mark.parametrize("last", [True, False], ids=["channels last", "channels first"])
def test_weights_are_where_the_parameters_lie_unless_they_lie_otherwise(last: bool) -> None:
    """Check `copied` for tensors with and without memory."""
    network, inputs = small(1, flattened=True), parameters()
    lie = torch.channels_last if last else torch.contiguous_format
    inputs = [p.contiguous(memory_format=lie) if p.dim() == 4 else p for p in inputs]
    shared = []
    for layer, tiling in zip(network.layers, plan_network(network, 5).tilings, strict=True):
        if not isinstance(layer, Convolution):
            continue
        weight = inputs[layer.weight]
        result = laid_out(network, layer, tiling, inputs)
        shared.append(result.weights.data_ptr() == weight.data_ptr())
        assert shared[-1] is not copied(network, layer, weight.to("meta"))
        wide = weight.shape[2:].numel() > 1
        assert shared[-1] is (not windowed(network, layer) and (last or not wide))
        if not windowed(network, layer):
            assert torch.equal(result.weights, weight.reshape(*weight.shape[:2], -1).transpose(1, 2))
        assert len(result.ends) == -(-len(weight) // tiling.width) * tiling.width
    assert set(shared) == {True, False}


def test_weights_at_an_odd_address_or_of_another_dtype_are_copied() -> None:
    network, inputs = small(1), parameters()
    layer, tiling = network.layers[7], plan_network(network, 5).tilings[7]
    assert isinstance(layer, Convolution)
    odd = torch.zeros(inputs[10].numel() + 1, dtype=torch.float16)[1:].view(inputs[10].shape).copy_(inputs[10])
    for weight in (odd, inputs[10].float()):
        result = laid_out(network, layer, tiling, [*inputs[:10], weight])
        assert result.weights.data_ptr() != weight.data_ptr()
        assert result.weights.data_ptr() % 16 == 0
        assert torch.equal(result.weights[:, 0], inputs[10].flatten(1))


def test_every_convolution_has_tiles() -> None:
    """Among them are stages that read windows in pairs of rows, or stages whose k the warpgroups share."""
    network = small(2)
    for layer in network.layers:
        if isinstance(layer, Convolution):
            assert k_blocks(network, layer) > 0
            assert {tiling.deep for tiling in candidates(network, layer)} >= {not windowed(network, layer)}


def test_a_network_with_batch_norms_is_pytorchs() -> None:
    """Scales and biases of batch norms, compared with PyTorch's own batch norm."""
    inputs = parameters()
    network = small(2)
    x = image(2)
    conv = torch.nn.functional.conv2d(x.float(), inputs[0].float(), stride=2, padding=3)
    scale, shift, mean, variance = (p.float() for p in inputs[1:5])
    normed = torch.nn.functional.batch_norm(conv, mean, variance, scale, shift, eps=1e-5).relu()
    out = computed(network, x, inputs)[1].permute(0, 3, 1, 2).float()
    assert float((out - normed).norm() / normed.norm()) < 2e-3
