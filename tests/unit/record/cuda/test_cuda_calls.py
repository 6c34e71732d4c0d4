"""Launches have the operator call that they belong to, and can be cut into the tiles of the runtime's kernels."""

import json

import pytest

from tests.unit.record.cuda.cuda_records import KERNEL, access, launch, process
from tileprof.cli.entry import main
from tileprof.devices import get
from tileprof.record.cuda.decode import Decoder
from tileprof.trace import TraceWriter, load, validate

H200 = get("H200")
M, WIDTH, HIDDEN = 64, 256, 512
PLACES = {"x": 0x100000, "w1": 0x200000, "b1": 0x300000, "h": 0x400000, "a": 0x500000, "w2": 0x600000, "y": 0x700000}
SHAPES = {
    "x": (M, WIDTH), "w1": (WIDTH, HIDDEN), "b1": (HIDDEN,), "h": (M, HIDDEN), "a": (M, HIDDEN), "w2": (HIDDEN, WIDTH),
    "y": (M, WIDTH),
}  # fmt: skip
"""The weights are transposed views, as `linear` passes them."""


def strides_of(name):
    shape = SHAPES[name]
    if len(shape) == 1:
        return [1]
    return [1, shape[0]] if name.startswith("w") else [shape[1], 1]


def size_of(name):
    elements = 1
    for n in SHAPES[name]:
        elements *= n
    return 2 * elements


def tensor(argument, name):
    write_bases = argument == "out"
    return [argument, PLACES[name], list(SHAPES[name]), strides_of(name), "float16", 2, write_bases, "cuda"]


def call_event(op, numbers, **tensors):
    places = {name: {"tensor": n} for n, name in enumerate(tensors) if name != "out"}
    rows = [tensor(argument, name) for argument, name in tensors.items()]
    return {"e": "called", "op": op, "arguments": places | numbers, "tensors": rows}


def operator(op, launches, call, module=""):
    return [{"e": "mark", "op": op, "module": module}, *launches, call, {"e": "mark", "op": "", "module": module}]


def touches(number, reads, writes, blocks=2):
    """Return a launch whose blocks each read all of ``reads`` and write a part of ``writes``."""
    matches = []
    for name in reads:
        windows = range(PLACES[name] // 1024, (PLACES[name] + size_of(name) + 1023) // 1024)
        matches += [access(number, b, w, read=0xFFFFFFFF) for b in range(blocks) for w in windows]
    for name in writes:
        windows = range(PLACES[name] // 1024, (PLACES[name] + size_of(name) + 1023) // 1024)
        matches += [access(number, i * blocks // len(windows), w, write=0xFFFFFFFF) for i, w in enumerate(windows)]
    return matches


ADDMM = call_event("aten::addmm", {"beta": 1, "alpha": 1}, self="b1", mat1="x", mat2="w1", out="h")
GELU = call_event("aten::gelu", {"approximate": "none"}, self="h", out="a")
MM = call_event("aten::mm", {}, self="a", mat2="w2", out="y")

PROGRAM = [
    *(
            {"e": "alloc", "address": PLACES[n], "bytes": -(-size_of(n) // 1024) * 1024, "device": 0, "flags": 0}
            for n in PLACES
        ),
    KERNEL,
    *operator("aten::addmm", [launch(1), launch(2)], ADDMM, "up"),
    *operator("aten::gelu", [launch(3)], GELU, "act"),
    *operator("aten::mm", [launch(4)], MM, "down"),
]  # fmt: skip
ENTRIES = [
    *touches(1, ["x", "w1"], ["h"]),
    *touches(2, ["h", "b1"], ["h"]),
    *touches(3, ["h"], ["a"]),
    *touches(4, ["a", "w2"], ["y"]),
]


@pytest.fixture
def recording(tmp_path):
    name = tmp_path / "mlp.tileprof"
    with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
        Decoder(process(tmp_path, PROGRAM, ENTRIES), writer, H200).run()
    trace = load(name)
    assert validate(trace) == []
    return trace


def test_launches_of_one_call_share_a_number_and_say_what_their_operands_are(recording):
    calls = [json.loads(text) for text in recording.launches["call"]]
    assert [call["number"] for call in calls] == [0, 0, 1, 2]
    assert sorted(o["argument"] for o in calls[0]["operands"]) == ["mat1", "mat2", "out"]
    assert sorted(o["argument"] for o in calls[1]["operands"]) == ["out", "self"]
    assert calls[0]["arguments"] == {"beta": 1, "alpha": 1}
    [weight] = [o for o in calls[0]["operands"] if o["argument"] == "mat2"]
    assert (weight["shape"], weight["strides"], weight["dtype"]) == ([WIDTH, HIDDEN], [1, WIDTH], "float16")
    bases = recording.buffers["base"].tolist()
    for call in calls:
        assert all(bases[t["buffer"]] + t["offset"] in PLACES.values() for t in call["tensors"])


def test_an_operand_begins_where_its_tensor_does_even_if_only_its_end_is_touched(tmp_path):
    name = tmp_path / "t.tileprof"
    entries = [access(3, 0, PLACES["h"] // 1024 + 4, read=1), access(3, 0, PLACES["a"] // 1024 + 4, write=1)]
    with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
        Decoder(process(tmp_path, PROGRAM, entries), writer, H200).run()
    trace = load(name)
    assert trace.operands_of(2)[1].tolist() == [0, 0]
    assert trace.accesses["offset"].tolist() == [4096, 4096]


def test_two_tensors_in_one_buffer_leave_the_slots_undescribed(tmp_path):
    name = tmp_path / "t.tileprof"
    halves = [tensor("self", "h"), tensor("other", "h"), tensor("out", "a")]
    halves[1][1] += 64
    call = {"e": "called", "op": "aten::add.Tensor", "arguments": {"self": {"tensor": 0}}, "tensors": halves}
    events = [*PROGRAM[: len(PLACES) + 1], *operator("aten::add.Tensor", [launch(3)], call)]
    with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
        Decoder(process(tmp_path, events, touches(3, ["h"], ["a"])), writer, H200).run()
    [text] = load(name).launches["call"]
    assert json.loads(text)["operands"] == []
    assert len(json.loads(text)["tensors"]) == 3


def test_a_call_under_another_mark_belongs_to_no_launch(tmp_path):
    name = tmp_path / "t.tileprof"
    events = [*PROGRAM[: len(PLACES) + 1], *operator("aten::relu", [launch(3)], GELU)]
    with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
        Decoder(process(tmp_path, events, touches(3, ["h"], ["a"])), writer, H200).run()
    assert load(name).launches["call"].tolist() == [""]


def test_operators_are_cut_into_the_tiles_of_the_models_kernels(recording, tmp_path):
    pytest.importorskip("torch")
    from tileprof.record.model.recut_gpu_recording import recut

    result = recut(recording, tmp_path / "again.tileprof")
    trace = load(result.path)
    assert validate(trace) == []
    assert result.operators == 3
    assert trace.launches["op"].tolist() == ["aten::addmm"] * len(result.launches[0]) + ["aten::gelu", "aten::mm"]
    assert result.launches[0] == result.launches[1]
    assert trace.launches["kernel"].str.startswith(("gemm_", "splitk_", "vectorized_")).all()
    assert trace.launches["module"].tolist()[-2:] == ["act", "down"]
    recorded_ns = recording.launches["duration_ns"]
    assert trace.launches["duration_ns"].iloc[-2] == pytest.approx(recorded_ns.iloc[2], abs=1)
    write_bases = trace.buffers["base"].iloc[trace.operands_of(len(trace.launches) - 1)[0]].tolist()
    assert set(write_bases) >= {PLACES["a"], PLACES["w2"], PLACES["y"]}


def test_launches_without_a_call_stay_as_they_were_recorded(tmp_path):
    pytest.importorskip("torch")
    from tileprof.record.model.recut_gpu_recording import recut

    name = tmp_path / "t.tileprof"
    events = [*PROGRAM[: len(PLACES) + 1], launch(1), *operator("aten::gelu", [launch(3)], GELU), launch(4)]
    entries = [*touches(1, ["x"], ["h"]), *touches(3, ["h"], ["a"]), *touches(4, ["a"], ["y"])]
    with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
        Decoder(process(tmp_path, events, entries), writer, H200).run()
    before = load(name)
    result = recut(before, tmp_path / "again.tileprof")
    after = load(result.path)
    assert [len(result.launches[n]) for n in range(3)] == [1, 1, 1]
    for launch_number in (0, 2):
        pair = before, after
        one, two = (t.footprint(int(t.launches.footprint[launch_number])).boxes for t in pair)
        assert all((getattr(one, c) == getattr(two, c)).all() for c in ("tile", "offset", "length", "mode"))
        assert before.launches.kernel[launch_number] == after.launches.kernel[launch_number]


def test_memory_that_comes_and_goes_between_two_launches_is_kept(tmp_path):
    """torch.compile does this: it tries kernels on tensors of their own."""
    pytest.importorskip("torch")
    from tileprof.record.model.recut_gpu_recording import recut

    short = {"address": 0x900000, "bytes": 4096, "device": 0, "flags": 0}
    events = [*PROGRAM[:-6], {"e": "alloc", **short}, {"e": "free", **short}, *PROGRAM[-6:]]
    name = tmp_path / "t.tileprof"
    with TraceWriter(name, recorder="cuda", command=["x"], device=H200, granule=32, force=True) as writer:
        Decoder(process(tmp_path, events, ENTRIES), writer, H200).run()
    before = load(name).buffers
    assert (before["allocated_at"] == before["freed_at"]).sum() == 1
    result = load(recut(load(name), tmp_path / "again.tileprof").path)
    assert validate(result) == []
    again = result.buffers
    assert (again["allocated_at"] == again["freed_at"]).sum() == 1


@pytest.mark.parametrize("fuse", [[], ["--fuse"]], ids=["one by one", "fused"])
def test_a_policy_made_from_a_recording_names_operators_and_verifies_against_it(recording, tmp_path, capsys, fuse):
    pytest.importorskip("torch")
    out = tmp_path / "out"
    selection = "0,3" if fuse else "0,2,3"
    assert (
        main(["export", "--format", "json", "-o", str(out), "--launches", selection, *fuse, str(recording.path)]) == 0
    )
    assert "not those of the recorded kernels" in capsys.readouterr().err
    policy = json.loads((out / "policy.json").read_text())
    kinds = [stage["operator"]["name"] for stage in policy["stages"]]
    assert kinds == (["gemm", "gemm"] if fuse else ["gemm", "pointwise", "gemm"])
    assert main(["verify", *fuse, str(out / "policy.json"), str(recording.path)]) == 0
    assert "all waited for" in capsys.readouterr().out


def test_the_pair_by_default_has_operators(recording, tmp_path, capsys):
    pytest.importorskip("torch")
    out = tmp_path / "out"
    assert main(["export", "-o", str(out), str(recording.path)]) == 0
    output = capsys.readouterr().err
    assert "Launches 0 (up), 2 (down): of the products that need each other" in output
    assert "Launch 1 becomes an epilogue" in output
    policy = json.loads((out / "policy.json").read_text())
    assert [stage["operator"]["parameters"].get("epilogue") for stage in policy["stages"]] == ["gelu", None]
    tiles = [stage["operator"]["parameters"]["tile"] for stage in policy["stages"]]
    assert tiles != [[64, 64], [64, 64]], "the runtime's model has chosen"
    assert main(["verify", str(out / "policy.json"), str(recording.path)]) == 0, "cut into the policy's own tiles"
    assert main(["run", "--delayed", "4", str(out / "policy.json")]) == 0
