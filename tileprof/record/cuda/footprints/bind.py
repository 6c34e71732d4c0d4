"""Boxes at absolute addresses to a footprint: relative to operands, in an order that repeated layers share."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tileprof.arrays import I64
from tileprof.arrays.boxes import runs as runs_of
from tileprof.record.cuda.footprints import runs
from tileprof.record.cuda.footprints.lifetimes import Leaves, Lifetimes
from tileprof.record.cuda.footprints.runs import Runs, Strided
from tileprof.record.cuda.records.tiles import Times
from tileprof.trace import Boxes


@dataclass(frozen=True, slots=True)
class Bound:
    """The boxes of a launch relative to its operands, what the operands are bound to, and a hash of the geometry."""

    boxes: Boxes
    operands: tuple[tuple[int, int], ...]
    signature: bytes


def from_runs(addressed: Runs, lifetimes: Lifetimes, overhang: int = 0) -> Strided:
    """Return runs as boxes, none of which leaves its buffer.

    Up to ``overhang`` bytes past the end of a buffer that belong to none are cut off; more of them become a buffer.
    """
    whole, leaves = addressed, _leaves_at(addressed.start, lifetimes)
    while True:
        addressed = runs.cut(whole, leaves.edges)
        piece = leaves.find(addressed.start)
        buffer = leaves.buffer[piece]
        beside = (buffer < 0) & (addressed.end - addressed.start > overhang)
        if not beside.any():
            break
        lifetimes.adopt(addressed.start[beside])
        leaves = lifetimes.leaves()
    inside = buffer >= 0
    addressed = Runs(addressed.tile[inside], addressed.start[inside], addressed.end[inside], addressed.first[inside])
    return runs.boxes(addressed, piece[inside])  # not by buffer, which may lie at several addresses


def within_buffers(strided: Strided, lifetimes: Lifetimes, overhang: int = 0) -> Strided:
    """Return the same bytes; boxes that leave their buffer are taken apart, as in `from_runs`."""
    leaves = _leaves_at(strided.address, lifetimes)
    piece = leaves.find(strided.address)
    end = strided.address + strided.length + ((strided.count - 1) * strided.stride).sum(axis=1)
    fits = end <= np.append(leaves.edges, np.iinfo(np.int64).max)[piece + 1]
    if fits.all():
        return strided
    apart = from_runs(expanded(take(strided, ~fits)), lifetimes, overhang)
    return join([take(strided, fits), apart])


def take(boxes: Strided, rows: I64 | NDArray[np.bool_]) -> Strided:
    """Return some of the boxes."""
    return Strided(
        boxes.tile[rows],
        boxes.address[rows],
        boxes.length[rows],
        boxes.count[rows],
        boxes.stride[rows],
        boxes.first[rows],
    )


def join(parts: list[Strided]) -> Strided:
    """Return all boxes of the parts, in order."""
    columns = ("tile", "address", "length", "count", "stride", "first")
    return Strided(*(np.concatenate([getattr(p, c) for p in parts]) for c in columns))


def bind(parts: list[tuple[int, Strided]], times: Times, lifetimes: Lifetimes, origins: Sequence[int] = ()) -> Bound:
    """Return boxes with their modes as a footprint's boxes.

    An operand begins at the first byte touched, or at the last of ``origins`` (addresses of tensors) before it in its
    buffer.

    Operand slots are ordered by a hash of what is done to them, relative to the first byte touched: two launches of
    the same kernel on other buffers then agree, and where two operands have equal hashes their order does not matter.
    """
    parts = [(mode, boxes) for mode, boxes in parts if len(boxes)]
    if not parts:
        empty: list[int] = []
        return Bound(Boxes.of(tile=empty, operand=empty, mode=empty, offset=empty, length=empty), (), b"")
    boxes = join([b for _, b in parts])
    mode = np.concatenate([np.full(len(b), m) for m, b in parts])
    leaves = _leaves_at(boxes.address, lifetimes)
    piece = leaves.find(boxes.address)
    buffer, place = leaves.buffer[piece], boxes.address - leaves.base[piece]
    order = np.lexsort((boxes.stride[:, 0], boxes.length, place, boxes.tile, mode, buffer))
    boxes, mode, buffer, place = take(boxes, order), mode[order], buffer[order], place[order]
    heads = np.flatnonzero(np.append(True, buffer[1:] != buffer[:-1]))
    ends = np.append(heads[1:], len(buffer))
    origin = _origins(buffer[heads], np.minimum.reduceat(place, heads), leaves, origins)
    operand_of_row = np.repeat(np.arange(len(heads)), ends - heads)
    offset = place - origin[operand_of_row]
    columns = np.column_stack([boxes.tile, mode, offset, boxes.length, boxes.count, boxes.stride]).astype("<i8")
    hashes = [
        hashlib.blake2b(columns[a:b].tobytes(), digest_size=16).digest() for a, b in zip(heads, ends, strict=True)
    ]
    slots = sorted(range(len(heads)), key=hashes.__getitem__)
    slot_of = np.empty(len(heads), np.int64)
    slot_of[slots] = np.arange(len(heads))
    out = Boxes.of(
        tile=boxes.tile, operand=slot_of[operand_of_row], mode=mode, offset=offset, length=boxes.length,
        count_0=boxes.count[:, 0], stride_0=boxes.stride[:, 0], count_1=boxes.count[:, 1],
        stride_1=boxes.stride[:, 1], first=_fractions(boxes, times),
    )  # fmt: skip
    operands = tuple((int(buffer[heads[s]]), int(origin[s])) for s in slots)
    return Bound(out, operands, b"".join(hashes[s] for s in slots))


def _origins(buffer: I64, touched: I64, leaves: Leaves, addresses: Sequence[int]) -> I64:
    """Return where operands begin in their buffers: at the last of ``addresses`` that is not behind
    ``touched``, or there.
    """
    begin = np.full(len(touched), -1, np.int64)
    at = np.array(addresses, np.int64)
    piece = leaves.find(at)
    for number, place in zip(leaves.buffer[piece].tolist(), (at - leaves.base[piece]).tolist(), strict=True):
        in_buffer = (buffer == number) & (place <= touched)
        begin[in_buffer] = np.maximum(begin[in_buffer], place)
    return np.where(begin >= 0, begin, touched)


def _fractions(boxes: Strided, times: Times) -> NDArray[np.float64]:
    """Return when in its tile's life each box is first touched. Entries hold the low 32 bits of the clock, -1:
    unknown.
    """
    begin, end = times.begin[boxes.tile], times.end[boxes.tile]
    timed = times.has_times[boxes.tile] & (boxes.first >= 0)
    since = (boxes.first - (begin & 0xFFFFFFFF)) & 0xFFFFFFFF
    with np.errstate(divide="ignore", invalid="ignore"):
        fraction = since / np.maximum(end - begin, 1)
    # A block may be seen to touch memory before its entry was noted: warps race. That wraps around.
    fraction[fraction > 1 << 20] = 0.0
    return np.where(timed, np.clip(fraction, 0.0, 1.0), np.nan)


def _leaves_at(address: I64, lifetimes: Lifetimes) -> Leaves:
    leaves = lifetimes.leaves()
    if len(leaves.edges):
        unowned = leaves.buffer[leaves.find(address)] < 0
        unowned |= leaves.find(address) < 0
    else:
        unowned = np.ones(len(address), bool)
    if unowned.any():
        lifetimes.adopt(address[unowned])
        leaves = lifetimes.leaves()
    return leaves


def expanded(boxes: Strided) -> Runs:
    """Return every run of the boxes, by tile and start."""
    count, stride = boxes.count, boxes.stride
    row, start = runs_of(boxes.address, count[:, 0], stride[:, 0], count[:, 1], stride[:, 1])
    order = np.lexsort((start, boxes.tile[row]))
    row, start = row[order], start[order]
    return Runs(boxes.tile[row], start, start + boxes.length[row], boxes.first[row])
