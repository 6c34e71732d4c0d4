"""The messages of the doctor."""

import argparse
import json

import pytest

from tileprof import record
from tileprof.cli.verbs import doctor as verb
from tileprof.cli.verbs import record as record_verb
from tileprof.errors import UserError
from tileprof.record import cuda
from tileprof.record.cuda import doctor, recorded_run
from tileprof.record.cuda.installation import gpu, locate


@pytest.mark.parametrize(("needs", "code"), [(True, 1), (False, 0)])
def test_the_doctor_fails_only_for_what_recording_needs(monkeypatch, capsys, needs, code):
    actual = [
        doctor.Check("driver", ok=True, result="13.0"),
        doctor.Check("CUPTI", ok=False, result="Type: pip", needed=needs),
    ]
    monkeypatch.setattr(doctor, "checks", lambda: actual)
    assert verb.run(argparse.Namespace(json=False)) == code
    out = capsys.readouterr().out
    assert ("FAIL" if needs else "lost") + "  CUPTI   Type: pip" in out
    assert verb.run(argparse.Namespace(json=True)) == code
    assert json.loads(capsys.readouterr().out)["able"] == (code == 0)


def test_the_doctor_names_the_disassembler_or_what_to_type(monkeypatch, tmp_path):
    def lines_of():
        return next(check for check in doctor.checks() if check.name.startswith("disassembler"))

    monkeypatch.setattr(locate, "nvdisasm", lambda: tmp_path / "nvdisasm")
    assert lines_of() == doctor.Check("disassembler (fewer patches)", True, str(tmp_path / "nvdisasm"), needed=False)
    monkeypatch.setattr(locate, "nvdisasm", lambda: None)
    assert not lines_of().ok
    assert "nvidia-cuda-nvdisasm" in lines_of().result


def test_a_disassembler_is_found_where_triton_or_a_toolkit_puts_it(monkeypatch, tmp_path):
    for variable in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path / "none"))
    monkeypatch.setattr("sys.path", [str(tmp_path / "site")])
    places = [tmp_path / "site" / "triton" / "backends" / "nvidia" / "bin", tmp_path / "cuda" / "bin", tmp_path / "bin"]
    for place in places:
        place.mkdir(parents=True)
        (place / "nvdisasm").touch(mode=0o755)
    monkeypatch.setattr(locate.os, "access", lambda path, _: tmp_path in path.parents and path.is_file())
    assert locate.nvdisasm() == places[0] / "nvdisasm"
    monkeypatch.setenv("CUDA_HOME", str(tmp_path / "cuda"))
    assert locate.nvdisasm() == places[1] / "nvdisasm"
    monkeypatch.setattr(locate.shutil, "which", lambda _: str(places[2] / "nvdisasm"))
    assert locate.nvdisasm() == places[2] / "nvdisasm"
    monkeypatch.setattr(locate.os, "access", lambda *_: False)
    assert locate.nvdisasm() is None


def test_a_machine_without_a_gpu_records_models_without_a_word(monkeypatch):
    def no_driver():
        raise UserError("no driver")

    monkeypatch.setattr(gpu, "driver", no_driver)
    assert cuda.missing() == "no driver"
    assert record.automatic() == record.Choice("model", "")


def test_a_machine_that_has_everything_records_real_kernels(monkeypatch, tmp_path):
    monkeypatch.setattr(gpu, "gpus", lambda: [gpu.Gpu("NVIDIA H200", "sm_90", "13.0")])
    for name in ("sanitizer", "nvcc", "cuda_include", "host_compiler"):
        monkeypatch.setattr(locate, name, lambda: tmp_path)
    monkeypatch.delenv(recorded_run.INJECTION, raising=False)
    assert record.automatic().name == "cuda"
    monkeypatch.setenv(recorded_run.INJECTION, "/other/tool.so")
    assert record.automatic().name == "model"
    assert "already set to /other/tool.so" in record.automatic().why


def test_options_of_the_model_choose_it_and_otherwise_the_choice_is_printed(monkeypatch, capsys):
    monkeypatch.setattr(record_verb, "automatic", lambda: record.Choice("cuda", "this machine has it all"))
    parser = argparse.ArgumentParser()
    record_verb.prepare(parser)
    for option in ("--fake", "--device=L4", "--tile=gemm=64x64x64"):
        assert record_verb._chosen_recorder(parser.parse_args([option, "x.py"])) == "model"
    assert capsys.readouterr().err == ""
    assert record_verb._chosen_recorder(parser.parse_args(["--passes=time", "x.py"])) == "cuda"
    assert capsys.readouterr().err == "tileprof: --recorder cuda, as this machine has it all\n"
