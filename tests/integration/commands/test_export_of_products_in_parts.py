"""Products that a library computes with several launches (a fill, slices that are added up) are one stage each."""

import json

import pytest
import torch

import tileprof
from tileprof.cli.entry import main
from tileprof.record.model.recut_gpu_recording import recut


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """Write a trace of two dependent products of two launches each."""

    def record(shape, dtype, *, tile=(), bias=True):
        rows, wide, deep = shape
        path = tmp_path_factory.mktemp("products") / "pair.tileprof"
        with tileprof.record(path, fake=True, tile=tile):
            a, b, c = (torch.empty(*s, dtype=dtype) for s in ((rows, deep), (wide, deep), (wide, wide)))
            added = torch.empty(wide, dtype=dtype) if bias else None
            torch.nn.functional.linear(torch.nn.functional.linear(a, b, added), c, added)
        return path

    return record


def exported(trace, folder, *options):
    assert main(["export", "-o", str(folder), "--force", *options, str(trace)]) == 0
    return json.loads((folder / "policy.json").read_text())


@pytest.mark.parametrize("form", ["json", "cusync"])
def test_slices_that_are_added_up_are_one_stage(recorded, tmp_path, form, capsys):
    trace = recorded((64, 256, 512), torch.float16, tile=("gemm=64x64x64,split=4",), bias=False)
    assert len(tileprof.load(trace).launches) == 4

    policy = exported(trace, tmp_path, "--format", form)

    assert [s["operator"]["name"] for s in policy["stages"]] == ["gemm", "gemm"]
    assert policy["stages"][0]["operator"]["operands"]["out"] == policy["stages"][1]["operator"]["operands"]["a"]
    assert main(["verify", str(tmp_path / "policy.json"), str(trace)]) == 0
    assert main(["run", str(tmp_path / "policy.json")]) == 0
    assert "wrong" not in capsys.readouterr().err


def test_a_fill_before_a_product_is_no_stage_of_its_own(recorded, tmp_path):
    trace = recorded((4096, 4096, 4096), torch.float16)
    assert tileprof.load(trace).launches.kernel.str.startswith("memset").tolist() == [True, False, True, False]

    policy = exported(trace, tmp_path)

    assert [s["operator"]["name"] for s in policy["stages"]] == ["gemm", "gemm"]
    assert main(["verify", str(tmp_path / "policy.json"), str(trace)]) == 0


def test_recorded_numbers_of_launches_name_the_stages_of_their_operators(recorded, tmp_path):
    trace = recorded((64, 256, 512), torch.float16, tile=("gemm=64x64x64,split=4",), bias=False)

    by_main = exported(trace, tmp_path, "--launches", "0,2")
    by_sums = exported(trace, tmp_path, "--launches", "1,3")

    assert by_main["stages"] == by_sums["stages"]


def test_a_recording_that_ends_within_a_product_keeps_its_launches_as_they_are(recorded, tmp_path):
    trace = tileprof.load(recorded((64, 256, 512), torch.float16, tile=("gemm=64x64x64,split=4",), bias=False))
    texts = [json.loads(text) for text in trace.launches.call]
    assert [bool(text["tensors"]) for text in texts] == [False, True, False, True]
    trace.launches["call"] = [json.dumps(text | {"tensors": [], "places": {}}) for text in texts]

    actual = recut(trace, tmp_path / "recut.tileprof")

    assert actual.operators == 0
    assert tileprof.load(actual.path).launches.kernel.tolist() == trace.launches.kernel.tolist()
