"""Every tile model against PyTorch itself: perturb one input element of OpInfo's samples, compare what changes.

Samples are small, so tiles are made small, too: every model cuts its work into ranges a 128th as long as a GPU's, and
products, convolutions and attention have tiles of two or three elements. Deterministic: seeds are fixed.
"""

from __future__ import annotations

import pytest
import torch

from tests.unit.record.model.tiles import checked_operators, watch
from tests.unit.record.model.tiles.operator_samples import PARTS, all_operators, tiny_tiles, tried_operators
from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, by_tile, elements
from tileprof.record.model.tile_model import REGISTRY
from tileprof.record.model.tiles import load_all
from tileprof.record.model.tiles.foundations import sketch
from tileprof.record.model.tiles.indexing import compact
from tileprof.record.model.tiles.reductions import look_back, scan
from tileprof.trace.footprint import READ


@pytest.fixture(scope="module")
def operators():
    with all_operators() as database:
        yield database


@pytest.fixture
def small_tiles(monkeypatch):
    with tiny_tiles(monkeypatch):
        yield


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("part", range(PARTS))
def test_no_tile_model_forgets_an_input(operators, small_tiles, part):
    attempts, checked, wrong = tried_operators(operators[part::PARTS])
    assert attempts > 50
    assert not wrong, "\n".join(wrong)
    assert checked <= set(checked_operators.listed()), checked_operators.HOW


LOOKS_BACK = {
    "cumsum": lambda x, _: torch.cumsum(x, 0),
    "cumsum_": lambda x, _: x.cumsum_(0),
    "cumprod": lambda x, _: torch.cumprod(x, 0),
    "cummax": lambda x, _: torch.cummax(x, 0),
    "logcumsumexp": lambda x, _: torch.logcumsumexp(x, 0),
    "masked_select": torch.masked_select,
    "index": lambda x, mask: x[mask],
    "nonzero": lambda _, mask: torch.nonzero(mask),
    "where": lambda _, mask: torch.where(mask),
    "argwhere": lambda _, mask: torch.argwhere(mask),
    "repeat_interleave": lambda x, mask: torch.repeat_interleave(x, 1 + mask.long()),
}


@pytest.mark.parametrize("name", LOOKS_BACK)
def test_a_block_of_one_pass_needs_all_earlier_input(name):
    torch.manual_seed(0)
    x = torch.rand(5000)
    assert perturb(lambda: LOOKS_BACK[name](x.clone(), x > 0.5), times=3)


def perturb(function, *, times):
    """Run ``function`` with another element perturbed each time; return how many were."""
    watched_calls = watch.Watch(taints=True)
    with watched_calls:
        for _ in range(times):
            function()
            watched_calls._checked_calls.clear()
    return watched_calls.attempts


@pytest.mark.parametrize("name", ["cumsum", "nonzero", "where", "repeat_interleave"])
def test_the_oracle_objects_where_earlier_input_is_forgotten(name, monkeypatch):
    for module in (scan, compact):
        monkeypatch.setattr(module, "look_back", lambda *_: None)
    whole = sketch.Sketch.whole

    def without_states(kernel, operand, *rest):
        if not getattr(operand, "workspace", 0):
            whole(kernel, operand, *rest)

    monkeypatch.setattr(sketch.Sketch, "whole", without_states)
    torch.manual_seed(0)
    x = torch.rand(5000)
    with pytest.raises(AssertionError, match="which no tile read"):
        perturb(lambda: LOOKS_BACK[name](x.clone(), x > 0.5), times=5)


@pytest.mark.parametrize(("op", "chunk"), [("cumsum", 2048), ("nonzero", 4224)])
def test_what_a_block_waits_for_is_inferred_and_moves_no_bytes(op, chunk):
    x = torch.rand(10_000)
    call = call_of("aten::cumsum", x, 0) if op == "cumsum" else call_of("aten::nonzero", x > 0.5)
    kernel = run_model(call, H200)[-1]
    assert kernel.coverage == "inferred"
    assert kernel.note == look_back.LOOK_BACK
    [slot] = kernel.awaited
    assert kernel.operands[slot].ref == call["self"].ref
    own = by_tile(kernel, call["self"])
    full = 10_000 // chunk
    assert [len(e) for e in own] == [chunk] * full + [10_000 - full * chunk]
    b = kernel.footprint.boxes
    for tile in range(kernel.footprint.tiles):
        before = b.length[(b.tile == tile) & (b.operand == slot)]
        assert before.sum() == tile * chunk * call["self"].itemsize


def test_many_blocks_share_the_longest_prefix_of_their_group():
    call = call_of("aten::cumsum", torch.zeros(2048 * 1000), 0)
    kernel = run_model(call, H200)[-1]
    b = kernel.footprint.boxes
    [slot] = kernel.awaited
    rows = b.operand == slot
    assert len(set(b.length[rows])) <= look_back.GROUPS
    assert (b.length[rows] >= b.tile[rows].astype(int) * 2048 * 4).all()
    assert b.length[rows].max() <= 2048 * 999 * 4


def test_every_block_of_a_grouped_product_reads_what_a_block_made_of_the_ends_of_groups():
    a, b = torch.zeros(64, 16, dtype=torch.bfloat16), torch.zeros(3, 16, 24, dtype=torch.bfloat16)
    call = call_of("aten::_grouped_mm", a, b, torch.tensor([8, 24, 64], dtype=torch.int32))
    prepare, kernel = run_model(call, H200)
    assert elements(prepare, call["offs"], 0, READ) == [0, 1, 2]
    [groups] = set(prepare.operands) & set(kernel.operands)
    slot = kernel.operands.index(groups)
    read = kernel.footprint.boxes.operand == slot
    assert sorted(kernel.footprint.boxes.tile[read].tolist()) == list(range(kernel.footprint.tiles))
    assert set(kernel.footprint.boxes.length[read].tolist()) == {groups.bytes}


def test_every_tile_model_is_checked_against_pytorch_or_has_a_reason():
    load_all()
    checked, others = set(checked_operators.listed()), set(checked_operators.UNCHECKED)
    assert not checked & others
    assert checked | others == set(REGISTRY), (
        f"without: {sorted(set(REGISTRY) - checked - others)}; gone: {sorted((checked | others) - set(REGISTRY))}; "
        f"{checked_operators.HOW}"
    )


def test_the_page_lists_the_models_that_are_checked_against_pytorch():
    load_all()
    page = (checked_operators.ROOT / checked_operators.PAGE).read_text()
    assert checked_operators.table() in page, checked_operators.HOW
