"""The decoder's source compiles for every kind of shape, without spilling registers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.runtime.decoder_shapes import SMALL
from tileprof import building
from tileprof.errors import UserError
from tileprof.runtime.decode.decoder_build import KERNEL
from tileprof.runtime.persistent.kernel_source import COMPILER_OUTPUT, CUBIN
from tileprof.runtime.persistent.source import SHARED_BYTES

SHAPES = {
    "one sequence": SMALL,
    "eight sequences, a mask": replace(SMALL, batch=8, masked=-65504.0),
    "biases, ragged pieces, float16": replace(
        SMALL, batch=2, hidden=896, intermediate=4864, heads=14, biased=True, dtype="float16", masked=float("-inf")
    ),
    "eight sequences, biases, a mask": replace(
        SMALL, batch=8, hidden=896, intermediate=4864, heads=14, biased=True, dtype="float16", masked=float("-inf")
    ),
    "norms of heads": replace(
        SMALL, batch=2, hidden=1024, intermediate=3072, heads=16, kv_heads=8, head_dim=128, head_norms=True
    ),
}


def compiler_missing() -> bool:
    try:
        building.nvcc("A test compiles the decoder")
    except UserError:
        return True
    return False


@pytest.mark.skipif(compiler_missing(), reason="needs nvcc")
@pytest.mark.parametrize(
    "name", [*(pytest.param(name, marks=pytest.mark.nightly) for name in list(SHAPES)[:3]), *list(SHAPES)[3:]]
)
def test_the_kernel_compiles(name, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEPROF_CACHE", str(tmp_path))
    folder = KERNEL.compiled(SHAPES[name].header(132))
    assert (folder / CUBIN).stat().st_size > 10_000
    spill_lines = [
        int(line.split(" bytes spill stores")[0].split()[-1])
        for line in (folder / COMPILER_OUTPUT).read_text().splitlines()
        if "spill stores" in line
    ]
    assert max(spill_lines) < 128


@pytest.mark.parametrize("name", SHAPES)
def test_the_ring_leaves_room_for_the_sums(name):
    shape = SHAPES[name]
    shape.check()
    assert 6 <= shape.slots <= 13
    assert shape.slots * 8 * (2048 + 64) < SHARED_BYTES


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"batch": 9}, "9 sequences"),
        ({"head_dim": 80}, "heads of 80 columns"),
        ({"hidden": 5120}, "a hidden size of 5120"),
        ({"hidden": 136}, "a hidden size of 136"),
        ({"heads": 16, "kv_heads": 1}, "at most 8 may share keys"),
        ({"vocabulary": 97}, "a vocabulary of 97"),
        ({"intermediate": 520}, "an intermediate size of 520"),
        ({"layers": 400}, "400 layers"),
    ],
)
def test_a_shape_that_is_not_taken_is_refused_with_a_sentence(changes, sentence):
    with pytest.raises(UserError, match=sentence):
        replace(SMALL, **changes).check()
