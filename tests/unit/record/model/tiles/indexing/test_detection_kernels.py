"""torchvision's kernels for detectors, compared with their algorithms written as loops (torchvision is not needed)."""

import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.record.model.tiles.oracle import bytes_of, operand_of
from tests.unit.record.model.tiles.reach import H200, by_tile
from tileprof.record.model.tile_model import REGISTRY, Call
from tileprof.record.model.tiles import load_all
from tileprof.trace.footprint import READ, WRITE


def call_with(op, out, **arguments):
    """Return a call as the recorder describes it: tensors by name, then its result."""
    load_all()
    tensors = [v for v in arguments.values() if isinstance(v, torch.Tensor)] + [out]
    operands = [operand_of(t, ref) for ref, t in enumerate(tensors)]
    described = iter(operands)
    named_arguments = {n: next(described) if isinstance(v, torch.Tensor) else v for n, v in arguments.items()}
    return Call(op, named_arguments, (operands[-1],), tuple(operands), lambda operand: tensors[operand.ref])


def kept_boxes(boxes, scores, limit):
    """Return the numbers of the boxes that no better box overlaps by more than ``limit``, best first."""
    boxes_so_far = []
    for i in scores.argsort(descending=True, stable=True).tolist():
        if all(overlap(boxes[i], boxes[k]) <= limit for k in boxes_so_far):
            boxes_so_far.append(i)
    return torch.tensor(boxes_so_far)


def overlap(a, b):
    sides = (torch.minimum(a[2:], b[2:]) - torch.maximum(a[:2], b[:2])).clamp(min=0)
    area = [float((x[2:] - x[:2]).prod()) for x in (a, b)]
    shared = float(sides.prod())
    return shared / (sum(area) - shared)


def boxes_of(count):
    torch.manual_seed(count)
    corner = torch.rand(count, 2) * 50
    return torch.cat([corner, corner + 5 + torch.rand(count, 2) * 20], 1)


@pytest.mark.parametrize("count", [1, 64, 150])
def test_suppression_sorts_compares_groups_walks_the_mask_and_selects(count):
    boxes, scores = boxes_of(count), torch.rand(count)
    call = call_with("torchvision::nms", kept_boxes(boxes, scores, 0.5), dets=boxes, scores=scores, iou_threshold=0.5)

    kernels = REGISTRY["torchvision::nms"].model(call, H200)

    compare = next(k for k in kernels if k.name == "nms")
    groups = -(-count // 64)
    assert compare.grid == (groups, groups, 1)
    ordered, mask = compare.operands
    for y in range(groups):
        for x in range(groups):
            tile = y * groups + x
            reads = bytes_of(compare.footprint, tile, 0, READ)
            writes = bytes_of(compare.footprint, tile, 1, WRITE)
            rows = [r for group in {x, y} for r in range(64 * group, min(64 * group + 64, count))] if y <= x else []
            own = range(64 * y, min(64 * y + 64, count)) if y <= x else ()
            assert reads == {16 * r + b for r in rows for b in range(16)}
            assert writes == {8 * (r * groups + x) + b for r in own for b in range(8)}
    gather = next(k for k in kernels if "index_select" in k.name)
    assert ordered in gather.operands
    walk = next(k for k in kernels if k.name == "gather_keep_from_mask")
    assert mask in walk.operands
    kept = set(call.value(call.outputs[0]).tolist())
    places = {place for place, box in enumerate(scores.argsort(descending=True, stable=True).tolist()) if box in kept}
    assert bytes_of(walk.footprint, 0, 1, WRITE) == places
    assert bytes_of(walk.footprint, 0, 1, READ) == set()
    assert kernels[-1].name == "index<masked_select>"
    assert kernels[-1].coverage == "exact"
    assert any(by_tile(kernels[-1], call.outputs[0], WRITE))


def test_the_byte_of_a_box_that_may_not_be_kept_may_stay_zero():
    boxes, scores = boxes_of(70), torch.rand(70)
    call = call_with("torchvision::nms", kept_boxes(boxes, scores, 0.5), dets=boxes, scores=scores, iou_threshold=0.5)
    kernels = REGISTRY["torchvision::nms"].model(replace(call, value=lambda _: None), H200)
    walk = next(k for k in kernels if k.name == "gather_keep_from_mask")
    for mode in (READ, WRITE):
        assert bytes_of(walk.footprint, 0, 1, mode) == set(range(70))


def test_nothing_is_launched_without_boxes():
    call = call_with(
        "torchvision::nms", torch.zeros(0, dtype=torch.int64), dets=torch.zeros(0, 4), scores=torch.zeros(0),
        iou_threshold=0.5,
    )  # fmt: skip
    assert REGISTRY["torchvision::nms"].model(call, H200) == []


def points(start, length, bins, samples):
    """Return the positions of an axis that each bin reads."""
    step = length / bins
    return [[start + p * step + (i + 0.5) * step / samples for i in range(samples)] for p in range(bins)]


def neighbours(at, size):
    """Return the elements that an interpolation at a point reads."""
    if at < -1 or at > size:
        return set()
    low = min(int(max(at, 0)), size - 1)
    return {low, min(low + 1, size - 1)}


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(*[st.floats(-20, 60, width=32)] * 4), min_size=1, max_size=4),
    st.sampled_from([(7, 7), (1, 3), (4, 2)]),
    st.sampled_from([0.25, 1.0]),
    st.integers(1, 3),
    st.booleans(),
)
def test_regions_are_read_where_their_bins_lie(corners, bins, scale, samples, aligned):
    torch.manual_seed(0)
    source = torch.zeros(2, 3, 9, 11)
    rois = torch.tensor([[i % 2, *c] for i, c in enumerate(corners)], dtype=torch.float32)
    out = torch.zeros(len(rois), 3, *bins)
    call = call_with(
        "torchvision::roi_align", out, input=source, rois=rois, spatial_scale=scale, pooled_height=bins[0],
        pooled_width=bins[1], sampling_ratio=samples, aligned=aligned,
    )  # fmt: skip

    *_, kernel = REGISTRY["torchvision::roi_align"].model(call, H200)

    reads = by_tile(kernel, call["input"], READ)
    assert kernel.grid == (math.ceil(out.numel() / 512), 1, 1)
    for k, roi in enumerate(rois.tolist()):
        shift = 0.5 if aligned else 0.0
        left, top, right, bottom = (v * scale - shift for v in roi[1:])
        height, width = (n if aligned else max(n, 1.0) for n in (bottom - top, right - left))
        rows = [set().union(*(neighbours(p, 9) for p in ps)) for ps in points(top, height, bins[0], samples)]
        columns = [set().union(*(neighbours(p, 11) for p in ps)) for ps in points(left, width, bins[1], samples)]
        for c in range(3):
            for y in range(bins[0]):
                for x in range(bins[1]):
                    tile = int(((k * 3 + c) * bins[0] + y) * bins[1] + x) // 512
                    expected = {((k % 2 * 3 + c) * 9 + i) * 11 + j for i in rows[y] for j in columns[x]}
                    assert expected <= set(reads[tile])


def test_blocks_of_a_large_result_take_several_turns_and_write_everything_once():
    source, rois, out = torch.zeros(1, 256, 5, 5), torch.zeros(200, 5), torch.zeros(200, 256, 7, 7)
    call = call_with(
        "torchvision::roi_align", out, input=source, rois=rois, spatial_scale=1.0, pooled_height=7, pooled_width=7,
        sampling_ratio=2, aligned=False,
    )  # fmt: skip

    *_, kernel = REGISTRY["torchvision::roi_align"].model(call, H200)

    boxes = kernel.footprint.boxes
    written = boxes.mode == WRITE
    size = boxes.length[written] * boxes.count_0[written] * boxes.count_1[written]
    assert kernel.grid == (4096, 1, 1)
    assert int(size.sum()) == 4 * out.numel()
