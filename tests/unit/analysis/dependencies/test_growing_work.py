"""A program with other shapes at every step: the number of launch pairs that are analysed is bounded, and the report
says so.
"""

from __future__ import annotations

import numpy as np
import pytest

from tileprof.analysis import build_graph
from tileprof.analysis.dependencies import pairs, shadow
from tileprof.analysis.dependencies.blocks import Joins
from tileprof.analysis.dependencies.touched_bytes import access
from tileprof.analysis.reporting import gains
from tileprof.analysis.reporting.report import build_report
from tileprof.cli.entry import main
from tileprof.devices import get
from tileprof.trace import READ, WRITE, Boxes, Footprint, Launch, TraceWriter, load

STEPS, HEADS, ROW = 10, 4, 4096


@pytest.fixture
def decoding(tmp_path):
    """Write steps that each read the whole cache and add a row, so that each step forms a pair with each earlier
    one.
    """
    path = tmp_path / "decode.tileprof"
    writer = TraceWriter(path, recorder="model", command=["decode.py"], device=get("H200"))
    cache = writer.add_buffer(base=1 << 30, bytes=ROW * HEADS * STEPS, kind="activation")
    head = np.arange(HEADS)
    blocks = np.zeros((HEADS, 3), np.int32)
    blocks[:, 0] = head
    for step in range(STEPS):
        first = head * ROW * STEPS
        boxes = Boxes.of(
            tile=np.tile(head, 2), operand=0, mode=np.repeat([0, 1], HEADS),
            offset=np.concatenate([first, first + step * ROW]),
            length=np.repeat([max(step, 1) * ROW, ROW], HEADS),
        )  # fmt: skip
        writer.add_launch(
            Launch(
                footprint=writer.add_footprint(Footprint(blocks, boxes, np.full(HEADS, 1000.0))),
                operands=((cache, 0),),
                grid=(HEADS, 1, 1), block=(128, 1, 1), duration_ns=1500, timing="modelled", coverage="exact",
                blocks_per_sm=2, registers=64, shared_bytes=1024, begin_ns=3000 * step, kernel="attend",
                op="aten::attend",
            )
        )  # fmt: skip
    writer.close()
    return path


def test_pairs_beyond_the_limit_claim_to_save_nothing_and_the_nearest_are_bounded(decoding, monkeypatch, capsys):
    whole = build_report(build_graph(load(decoding))).pairs
    assert len(whole) == STEPS * (STEPS - 1) // 2
    assert whole["key"].nunique() > STEPS
    assert gains.NOT_COMPUTED not in set(whole["binding"])

    monkeypatch.setattr(gains, "MOST_ANSWERS", 6)
    some = build_report(build_graph(load(decoding))).pairs
    left_out = some["binding"] == gains.NOT_COMPUTED
    assert some.loc[~left_out, "key"].nunique() == 6
    assert some.loc[~left_out, "apart"].max() <= some.loc[left_out, "apart"].min()
    assert (some.loc[left_out, ["gain_ns", "overlap_ns", "early", "lead_ns"]] == 0).all(axis=None)
    assert some.loc[~left_out, "bound_ns"].tolist() == whole.loc[~left_out, "bound_ns"].tolist()
    assert some["key"].tolist() == whole["key"].tolist()

    assert main(["report", str(decoding)]) == 0
    assert "pairs of launches were not bounded, those farthest apart" in " ".join(capsys.readouterr().out.split())
    assert main(["report", "--json", str(decoding)]) == 0


def test_relations_beyond_the_limit_are_named_without_a_map(decoding, monkeypatch):
    whole = build_graph(load(decoding)).pairs
    monkeypatch.setattr(pairs, "MOST_MAPPED", 0)
    some = build_graph(load(decoding)).pairs
    assert (whole["map"] != "").any()
    assert (some["map"] == "").all()
    assert some["pattern"].tolist() == whole["pattern"].tolist()


def test_equal_bytes_elsewhere_in_a_buffer_are_joined_once_and_other_bytes_again():
    joins, places = Joins(), np.array([[0, 0, 0], [1, 0, 0]], np.int32)

    def join_count(writer_at, reader_at):
        writer, reader = (
            access(
                0, Footprint(places, Boxes.of(tile=[0, 1], operand=0, mode=mode, offset=[0, 16], length=16)), ((0, at),)
            )
            for mode, at in ((WRITE, writer_at), (READ, reader_at))
        )
        writer_shadow = shadow.step(shadow.EMPTY, writer).shadow
        relations = shadow.step(writer_shadow, reader, joins.block).relations
        assert [r.block.edges()[2].tolist() for r in relations] == [
            r.block.edges()[2].tolist() for r in shadow.step(writer_shadow, reader).relations
        ]
        return relations[0].block

    first = join_count(0, 0)
    assert join_count(64, 64) is first
    half = join_count(64, 72)
    assert half is not first
    assert half.bytes.tolist() == [8, 8, 8]
    assert join_count(0, 8) is half
