"""Builders of small traces.

A `layer` reads the input and writes an activation; two launches share a footprint.
"""

import shutil

import numpy as np
import pytest

from tileprof import devices
from tileprof.trace import READ, WRITE, Boxes, Footprint, Launch, TraceWriter, load

TILES = 4
TILE_BYTES = 256


def build_footprint(tiles=TILES, *, length=TILE_BYTES):
    """Return a footprint in which tile i reads run i of operand 0 and writes run i of operand 1."""
    tile = np.arange(tiles)
    block = np.zeros((tiles, 3), np.int32)
    block[:, 0] = tile
    boxes = Boxes.of(
        tile=np.repeat(tile, 2),
        operand=np.tile([0, 1], tiles),
        mode=np.tile([READ, WRITE], tiles),
        offset=np.repeat(tile * length, 2),
        length=length,
        first=np.tile([0.0, 0.5], tiles),
        last=np.tile([0.25, 1.0], tiles),
    )
    return Footprint(block, boxes)


def build_launch(footprint, buffers, **changed):
    values = {
        "footprint": footprint,
        "operands": tuple((b, 0) for b in buffers),
        "kernel": "copy",
        "grid": (TILES, 1, 1),
        "block": (128, 1, 1),
        "duration_ns": 1000,
        "timing": "modelled",
        "coverage": "exact",
    }
    return Launch(**{**values, **changed})


def record_layers(writer, layers=3):
    """Write a chain of copies; each layer has a footprint of its own, used twice, and old activations are freed."""
    size = TILES * TILE_BYTES
    last = writer.add_buffer(base=0, bytes=size, kind="input", name="x", before_start=True)
    for layer in range(layers):
        number = writer.add_footprint(build_footprint())
        for half in range(2):
            new = writer.add_buffer(base=size * (1 + (2 * layer + half) % 2), bytes=size, kind="activation")
            launch = writer.add_launch(build_launch(number, (last, new), module=f"layers.{layer}"))
            writer.add_times(launch, range(TILES), range(TILES), [0] * TILES, [500] * TILES)
            if last:
                writer.free_buffer(last)
            last = new


@pytest.fixture
def footprint():
    return build_footprint


@pytest.fixture
def launch():
    return build_launch


@pytest.fixture
def layers():
    return record_layers


@pytest.fixture
def writer(tmp_path):
    """Provide a factory of writers into the test's folder."""

    def make(name="run", **options):
        values = {"recorder": "test", "command": ["infer.py"], "device": devices.get("H200")}
        return TraceWriter(tmp_path / name, **{**values, **options})

    return make


@pytest.fixture(scope="session")
def three_layers(tmp_path_factory):
    """Record three layers; return the trace, of which tests get copies."""
    path = tmp_path_factory.mktemp("layers") / "run"
    trace_writer = TraceWriter(path, recorder="test", command=["infer.py"], device=devices.get("H200"))
    record_layers(trace_writer)
    return trace_writer.close()


@pytest.fixture
def whole_trace(three_layers, tmp_path):
    """Provide a whole trace of three layers, loaded."""
    return load(shutil.copytree(three_layers, tmp_path / three_layers.name))
