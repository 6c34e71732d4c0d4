"""Small programs of a few boxes, for tests of Bloom filters."""

from hypothesis import strategies as st

from tests.support.synthetic_graphs import footprint, trace
from tileprof.trace.footprint import ATOMIC, READ, WRITE, Boxes


def program(launches):
    """Launches of tiles of 10 ns, the last of each 100; a tile is a list of (buffer, mode, offset, length, count,
    stride); buffers are 4 kB apart.
    """
    footprints, rows, operands = {}, [], []
    for i, tiles in enumerate(launches):
        boxes = [
            Boxes.of(tile=t, operand=b, mode=m, offset=o, length=n, count_0=c, stride_0=s)
            for t, some in enumerate(tiles)
            for b, m, o, n, c, s in some
        ]
        footprints[i] = footprint(len(tiles), Boxes.concat(boxes), [10.0] * (len(tiles) - 1) + [100.0])
        rows.append({"footprint": i, "timing": "modelled", "block_x": 256})
        operands += [{"launch": i, "operand": b, "buffer": b, "offset": 0} for b in (0, 1)]
    buffers = [{"buffer": b, "base": 4096 * (b + 1), "bytes": 4096} for b in (0, 1)]
    return trace(rows, footprints, operands=operands, buffers=buffers)


boxes = st.tuples(
    st.integers(0, 1), st.sampled_from([READ, WRITE, ATOMIC]), st.integers(0, 200), st.integers(1, 40),
    st.integers(1, 3), st.integers(40, 90)
)  # fmt: skip
programs = st.lists(st.lists(st.lists(boxes, max_size=2), min_size=1, max_size=5), min_size=2, max_size=4)


def conflict(one, other):
    """Whether two tiles touch a byte that either writes, byte by byte."""

    def touches(tile, modes):
        return {(b, o + i * s + k) for b, m, o, n, c, s in tile if m in modes for i in range(c) for k in range(n)}

    write_sets = touches(one, (WRITE, ATOMIC)), touches(other, (WRITE, ATOMIC))
    every = touches(one, (READ, WRITE, ATOMIC)), touches(other, (READ, WRITE, ATOMIC))
    return bool(write_sets[0] & every[1] or every[0] & write_sets[1])
