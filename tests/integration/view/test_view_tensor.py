"""What a tile reads and writes, drawn on the tensor's own axes, in a real browser."""

import numpy as np
import pytest

from tests.support.small_programs import Program
from tileprof.analysis import build_graph
from tileprof.analysis.reporting.report import build_report
from tileprof.trace import load
from tileprof.trace.footprint import READ, WRITE, Boxes, Footprint
from tileprof.viz import page

CHANNELS, ROWS, COLUMNS, ITEM = 8, 12, 16, 2
SHAPE = (1, CHANNELS, ROWS, COLUMNS)
STRIDES = {
    "contiguous": (CHANNELS * ROWS * COLUMNS, ROWS * COLUMNS, COLUMNS, 1),
    "channels last": (CHANNELS * ROWS * COLUMNS, 1, COLUMNS * CHANNELS, CHANNELS),
}
BYTES = CHANNELS * ROWS * COLUMNS * ITEM
READY = "() => tileprof.picture.cells !== null && tileprof.picture.ranges.length > 0"
NEAR = "() => tileprof.picture.near.length > 0"


def grid(tiles):
    at = np.arange(tiles)
    return np.stack([at, 0 * at, 0 * at], axis=1).astype(np.int32)


def line(tiles):
    """Each tile writes the next piece of memory."""
    at, piece = np.arange(tiles), BYTES // tiles
    return Footprint(grid(tiles), Boxes.of(tile=at, operand=0, mode=WRITE, offset=at * piece, length=piece))


def halo(strides):
    """Tile i reads rows 3i - 1 to 3i + 3 of every channel, if these rows exist, and writes rows 3i to 3i + 2."""
    at = np.arange(ROWS // 3)
    first, last = np.maximum(3 * at - 1, 0), np.minimum(3 * at + 4, ROWS)
    _, channel, row, column = (s * ITEM for s in strides)
    boxes = []
    for operand, mode, low, high in ((0, READ, first, last), (1, WRITE, 3 * at, 3 * at + 3)):
        box = {"tile": at, "operand": operand, "mode": mode, "offset": low * row}
        if channel == ITEM:  # whole rows of pixels are contiguous
            boxes.append(Boxes.of(**box, length=(high - low) * row))
        else:
            boxes.append(
                Boxes.of(
                    **box, length=COLUMNS * column, count_0=high - low, stride_0=row, count_1=CHANNELS, stride_1=channel
                )
            )
    return Footprint(grid(len(at)), Boxes.concat(boxes))


@pytest.fixture(scope="module")
def graph(tmp_path_factory):
    program = Program(tmp_path_factory.mktemp("tensor") / "t")
    for name, strides in STRIDES.items():
        tensor = {"bytes": BYTES, "kind": "activation", "dtype": "float16", "shape": SHAPE, "strides": strides}
        buffers = []
        for _ in range(2):
            buffers.append(program.writer.add_buffer(base=program.end, **tensor))
            program.end += BYTES
        program.launch("line", line(6), buffers[:1], op="aten::relu", duration=1_000)
        program.launch(f"halo {name}", halo(strides), buffers, op="aten::convolution", duration=1_000)
    return build_graph(load(program.writer.close()))


@pytest.fixture(scope="module")
def page_file(graph, tmp_path_factory):
    path = tmp_path_factory.mktemp("pages") / "page.html"
    path.write_text(page(graph, build_report(graph)), encoding="utf-8")
    return path


def drawing(view):
    """Return the elements in the ranges of the picture, as an array of the tensor's shape."""
    cells = np.zeros(SHAPE, int)
    for (a, b), (c, d), (e, f), (g, h) in view.ask("() => tileprof.picture.ranges"):
        cells[a:b, c:d, e:f, g:h] += 1
    return cells


@pytest.mark.parametrize(("launch", "strides"), [(1, "contiguous"), (3, "channels last")])
def test_a_tile_is_drawn_where_it_reads(tab, graph, launch, strides):
    view = tab(f"#pair={launch - 1},{launch}&tile={launch},1&view=tensor")
    view.until(READY)
    expected = np.zeros(SHAPE, int)
    expected[:, :, 2:7] = 1
    np.testing.assert_array_equal(drawing(view), expected)
    assert view.ask("() => tileprof.picture.axes") == [2, 3]
    cells = np.array(view.ask("() => Array.from(tileprof.picture.cells.share)")).reshape(ROWS, COLUMNS)
    np.testing.assert_allclose(cells, expected[0, 0])
    colours = view.pixels("tensor", [(8.5, 4.5), (8.5, 9.5)])
    assert (colours[0] != colours[1]).any()
    assert "all 8" in view.page.inner_text("#tensor-axes")


def test_the_tiles_that_wrote_it_are_outlined(tab, graph):
    view = tab("#pair=0,1&tile=1,1&view=tensor")
    view.until(NEAR)
    edges = graph.edges
    here = edges[(edges["consumer_launch"] == 1) & (edges["consumer_tile"] == 1)]
    near = view.ask("() => tileprof.picture.near.map((n) => [n.launch, n.tile])")
    assert sorted(map(tuple, near)) == sorted(zip(here["producer_launch"], here["producer_tile"], strict=True))
    tooltip = view.tip("tensor", "() => [8.5, 4.5]")
    assert "[:, :, 4, 8]" in tooltip
    assert "reads 100% of the 8 elements" in tooltip
    assert "written by tile" in tooltip


def test_another_tensor_tile_and_axis_are_a_choice_away(tab):
    view = tab("#pair=0,1&tile=1,1&view=tensor")
    view.until(READY)
    view.page.select_option('#tensor-choice select[aria-label="Axis down"]', "1")
    view.until("() => tileprof.picture.axes[0] === 1 && tileprof.picture.cells")
    cells = np.array(view.ask("() => Array.from(tileprof.picture.cells.share)"))
    np.testing.assert_allclose(cells, 5 / 12, rtol=1e-6)
    uses = view.ask(
        "() => [...document.querySelectorAll('#tensor-choice select[aria-label=Tensor] option')].map((o) => o.text)"
    )
    assert [u.split()[0] for u in uses] == ["reads", "writes"]
    view.page.select_option('#tensor-choice select[aria-label="Tensor"]', index=1)
    view.until("() => tileprof.picture.bit === 2 && tileprof.picture.cells")
    expected = np.zeros(SHAPE, int)
    expected[:, :, 3:6] = 1
    np.testing.assert_array_equal(drawing(view), expected)
    view.page.fill('#tensor-choice input[aria-label="Tile"]', "3")
    view.page.keyboard.press("Tab")
    view.until("() => tileprof.picture.tile === 3 && tileprof.picture.cells")
    assert view.hash().startswith("#pair=0,1&tile=1,3")
    view.click("tensor", "() => [8.5, 0.5]")
    view.until("() => tileprof.picture.tile === 0")
