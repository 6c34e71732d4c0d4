"""Times of nsys and torch.profiler in a trace whose accesses are modelled."""

import errno
import gzip
import json
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from tileprof.cli.entry import main
from tileprof.devices import get
from tileprof.errors import UserError
from tileprof.record.times import attach_times, read_times
from tileprof.record.times.matching import bare_name, family, matched_kernels
from tileprof.trace import WRITE, Boxes, Footprint, Launch, TraceWriter, load

LAUNCHES = [
    ("gemm_fp32_128x128x8_4_nt_splitk8", "aten::addmm"),
    ("splitk_reduce", "aten::addmm"),
    ("vectorized_elementwise<gelu>", "aten::gelu"),
    ("rows<native_layer_norm>", "aten::native_layer_norm"),
]
KERNELS = [
    ("void cutlass::Kernel2<cutlass_80_simt_sgemm_128x32_8x5_tn_align1>(Params)", "aten::addmm"),
    ("void cublasLt::splitKreduce_kernel<32, 16, int, float>(cublasSplitKParams<float>)", "aten::addmm"),
    ("void at::native::vectorized_elementwise_kernel<4, at::native::GeluCUDAKernelImpl>(int)", "aten::gelu"),
    ("void at::native::(anonymous namespace)::vectorized_layer_norm_kernel<float>(int)", "aten::native_layer_norm"),
]
TOOK_NS = (5000, 1000, 2000, 3000)


@pytest.fixture
def trace(tmp_path: Path):
    """Four launches of one tile each, 1 us long and 1 us apart."""
    with TraceWriter(tmp_path / "m", recorder="model", command=["m.py"], device=get("H200")) as writer:
        buffer = writer.add_buffer(base=4096, bytes=64, kind="activation")
        boxes = Boxes.of(tile=[0], operand=[0], mode=[WRITE], offset=[0], length=[64])
        footprint = writer.add_footprint(Footprint(np.zeros((1, 3), np.int32), boxes, np.array([1000.0])))
        for n, (kernel, op) in enumerate(LAUNCHES):
            writer.add_launch(
                Launch(
                    footprint=footprint,
                    operands=((buffer, 0),),
                    kernel=kernel,
                    op=op,
                    grid=(1, 1, 1),
                    block=(32, 1, 1),
                    duration_ns=1000,
                    timing="modelled",
                    coverage="exact",
                    begin_ns=2000 * n,
                )
            )
    return load(writer.path)


def chrome(path: Path, kernels=KERNELS, repetitions: int = 1) -> Path:
    events = [{"ph": "M", "name": "process_name"}]
    at = 7_000_000.0
    for repetition in range(repetitions):
        for n, (name, op) in enumerate(kernels):
            number = {"External id": len(events)}
            took = TOOK_NS[n % 4] / 1e3 + repetition
            events.append({"ph": "X", "cat": "cpu_op", "name": op, "ts": at - 5, "dur": 2, "args": number})
            events.append({"ph": "X", "cat": "kernel", "name": name, "ts": at, "dur": took, "args": number})
            at += 10
    text = json.dumps({"traceEvents": events}).encode()
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


def nsys(path: Path, kernels=KERNELS) -> Path:
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("create table StringIds (id integer primary key, value text)")
        database.execute(
            'create table CUPTI_ACTIVITY_KIND_KERNEL (start integer, "end" integer, streamId integer, '
            "correlationId integer, demangledName integer, shortName integer)"
        )
        for n, (name, _) in enumerate(kernels):
            database.execute("insert into StringIds values (?, ?)", (n, name))
            row = (900_000 + 10_000 * n, 900_000 + 10_000 * n + TOOK_NS[n % 4], 7, n, n, None)
            database.execute("insert into CUPTI_ACTIVITY_KIND_KERNEL values (?, ?, ?, ?, ?, ?)", row)
    return path


@pytest.mark.parametrize("write", [chrome, nsys], ids=["torch.profiler", "nsys"])
def test_durations_and_begins_are_those_of_the_file(trace, tmp_path, write) -> None:
    times = read_times(write(tmp_path / "times"))
    attachment = attach_times(trace, times, tmp_path / "timed", source="times")
    timed_trace = load(attachment.path)
    assert (attachment.matched, attachment.launches, attachment.kernels, attachment.repetitions) == (4, 4, 4, 1)
    assert timed_trace.launches["duration_ns"].tolist() == list(TOOK_NS)
    assert timed_trace.launches["begin_ns"].tolist() == [0, 10_000, 20_000, 30_000]
    assert set(timed_trace.launches["timing"]) == {"measured"}
    assert timed_trace.accesses.equals(trace.accesses)
    assert any("times" in note for note in timed_trace.manifest["notes"])
    assert set(trace.launches["timing"]) == {"modelled"}


def test_repetitions_of_the_program_give_medians(trace, tmp_path) -> None:
    attachment = attach_times(
        trace, read_times(chrome(tmp_path / "p.json.gz", repetitions=3)), tmp_path / "timed", source="p"
    )
    assert attachment.repetitions == 3
    assert load(attachment.path).launches["duration_ns"].tolist() == [took + 1000 for took in TOOK_NS]


def test_a_launch_without_a_kernel_keeps_its_modelled_duration_and_says_so(trace, tmp_path) -> None:
    kernels = [KERNELS[0], ("void someone_elses_kernel<3>(float*)", ""), *KERNELS[2:]]
    attachment = attach_times(trace, read_times(nsys(tmp_path / "n", kernels)), tmp_path / "timed", source="n")
    launches = load(attachment.path).launches
    assert launches["timing"].tolist() == ["measured", "modelled", "measured", "measured"]
    assert launches["duration_ns"].tolist() == [5000, 1000, 2000, 3000]
    assert launches["begin_ns"].tolist() == [0, 5000, 21_000, 31_000]
    assert "duration is modelled" in launches["note"][1]
    assert not launches["note"][0]


def test_an_alignment_stays_within_one_iteration_of_the_program() -> None:
    ours = [("a", ""), ("missing", ""), ("b", ""), ("c", "")]
    theirs = [("other", "")] * 30 + [("a", ""), ("b", ""), ("c", "")] + [("other", "")] * 30 + [("missing", "")]
    (matches,) = matched_kernels(ours, theirs)
    assert matches.tolist() == [30, -1, 31, 32]


def test_an_operator_distinguishes_kernels_of_one_family() -> None:
    ours = [("vectorized<gelu>", "aten::gelu"), ("vectorized<add>", "aten::add.Tensor")]
    theirs = [("triton_poi_1", "aten::gelu"), ("triton_poi_2", "aten::mul"), ("triton_poi_3", "aten::add")]
    (matches,) = matched_kernels(ours, theirs)
    assert matches.tolist() == [0, 2]


def test_names_lose_what_differs_between_builds() -> None:
    assert bare_name("void at::native::vectorized_elementwise_kernel<4, f(int)::{lambda()#1}>(int, char*)") == (
        "vectorized_elementwise_kernel"
    )
    assert bare_name("void (anonymous namespace)::softmax_warp_forward<float, 10>(float*)") == "softmax_warp_forward"
    assert family("nvjet_hsh_128x256_64x4_2x1_v_bz_TNT") == family("gemm_fp16_128x128") == "product"
    assert family("void cublasLt::splitKreduce_kernel<32>(int)") == family("splitk_reduce") != "product"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "neither an SQLite export of nsys nor a Chrome trace"),
        (b"{}", "no list traceEvents"),
        (b'{"traceEvents": []}', "names no kernel"),
        (b'{"traceEvents": [{"cat": "kernel", "name": "k", "ts": 1}]}', "a kernel has no name, ts or dur"),
        (b"SQLite format 3\0 and no more", "not an SQLite export of nsys"),
        (b"\x1f\x8b broken", "neither an SQLite export of nsys nor a Chrome trace"),
    ],
)
def test_files_that_are_neither_are_refused_in_a_sentence(tmp_path, content, message) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_times(tmp_path / "x")


def test_a_file_of_another_program_is_refused_and_leaves_nothing(trace, tmp_path) -> None:
    other = chrome(tmp_path / "p.json", [("void strange_kernel(int)", "")])
    with pytest.raises(UserError, match="matches a launch"):
        attach_times(trace, read_times(other), tmp_path / "timed", source="p.json")
    assert not list(tmp_path.glob("timed*"))


def test_a_full_disk_is_reported_in_one_sentence_and_leaves_nothing(trace, tmp_path, monkeypatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    times = read_times(chrome(tmp_path / "times"))
    monkeypatch.setattr(shutil, "copy2", full)
    with pytest.raises(UserError, match=r"^the disk is full while writing .*timed"):
        attach_times(trace, times, tmp_path / "timed", source="times")
    assert not list(tmp_path.glob("timed*"))


def test_the_verb_writes_a_trace_that_says_what_matched(trace, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = chrome(tmp_path / "p.json", repetitions=2)
    assert main(["times", str(trace.path), str(file), "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert (facts["trace"], facts["matched"], facts["repetitions"]) == ("m-timed.tileprof", 4, 2)
    assert main(["times", str(trace.path), str(file)]) == 2
    assert "will not overwrite" in capsys.readouterr().err
    assert main(["times", str(trace.path), str(file), "-o", str(trace.path), "--force"]) == 2
    assert "is the trace that is read" in capsys.readouterr().err


def test_a_database_that_is_no_text_or_has_no_end_is_refused_in_bounded_time(tmp_path, monkeypatch) -> None:
    path = nsys(tmp_path / "times.sqlite")
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("update StringIds set value = cast(x'f4ff' as text) where id = 0")
    assert read_times(path).names[0] == "\ufffd\ufffd"
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("drop table CUPTI_ACTIVITY_KIND_KERNEL")
        database.execute(
            'create view CUPTI_ACTIVITY_KIND_KERNEL as with recursive n(start, "end", demangledName, shortName) as '
            "(select 1, 2, 0, 0 union all select start + 1, 2, 0, 0 from n) select * from n"
        )
    monkeypatch.setattr("tileprof.record.times.sources._MOST_STEPS", 3_000_000)
    with pytest.raises(UserError, match="interrupted"):
        read_times(path)
    assert [file.name for file in tmp_path.iterdir()] == ["times.sqlite"]
