"""Exported headers on the bundled runtime: they compile, and only headers whose policy is beside them are run."""

from __future__ import annotations

import runpy
import shutil
import subprocess
from pathlib import Path

import pytest

from tileprof.cli.entry import main
from tileprof.errors import UserError
from tileprof.policy.format import load_policy
from tileprof.policy.synthesis.dependency_file import parse_dependencies
from tileprof.runtime.exported_header import check_exported
from tileprof.runtime.include_path import INCLUDE

EXAMPLES = INCLUDE.parents[1] / "examples" / "cuda"
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="no nvcc on the PATH")

DEPENDENCIES = {
    "rows": "grid up 6 x 4\ngrid down 5 x 4\ndep down on up(0..5, y)",
    "halo": "grid up 9 x 2\ngrid down 9 x 2\ndep down on up(max(0, x - 1)..min(8, x + 1), 0..1)",
    "table": "grid up 7\ngrid down 9\ndep down on up((5*x) % 7)\ndep down on up((3*x + 2) % 7)",
    "join": "grid a 4 x 2\ngrid b 4 x 2\ngrid c 4 x 2\ngrid d 3\n"
    "dep b on a(3 - x, y)\ndep c on a(x, y)\ndep c on b(x // 2, y)\ndep d on c(x, 0..1)",
}


def exported(folder: Path, name: str, *options: str) -> Path:
    (folder / "chain.dep").write_text("tileprof dependencies 1\n" + DEPENDENCIES[name])
    out = folder / "out"
    assert main(["export", "--format", "cusync", "-o", str(out), *options, str(folder / "chain.dep")]) == 0
    return out / "policy.h"


@pytest.mark.parametrize("options", [(), ("--several-waits",)])
@pytest.mark.parametrize("name", DEPENDENCIES)
def test_what_was_exported_is_recognised(tmp_path: Path, name: str, options: tuple[str, ...]) -> None:
    header = exported(tmp_path, name, *options)
    assert check_exported(header) == load_policy(header.parent / "policy.json")


@pytest.mark.parametrize("file", ["policy.h", "example.cu"])
def test_a_file_that_was_changed_by_hand_is_refused(tmp_path: Path, file: str) -> None:
    header = exported(tmp_path, "rows")
    path = header.parent / file
    text = path.read_text()
    changed_text = (
        text.replace("return 6;", "return 5;") if file == "policy.h" else text.replace("rounds = 3", "rounds = 4")
    )
    assert changed_text != text
    path.write_text(changed_text)
    with pytest.raises(UserError, match="changed by hand"):
        check_exported(header)


def test_another_policy_beside_the_header_is_refused(tmp_path: Path) -> None:
    header = exported(tmp_path, "rows")
    policy = parse_dependencies("tileprof dependencies 1\n" + DEPENDENCIES["halo"]).policy()
    policy.save(header.parent / "policy.json", force=True)
    with pytest.raises(UserError, match="Nothing was run"):
        check_exported(header)


def test_a_comment_may_be_changed(tmp_path: Path) -> None:
    header = exported(tmp_path, "rows")
    header.write_text("// reviewed\n\n" + header.read_text())
    assert check_exported(header) == load_policy(header.parent / "policy.json")


def test_a_folder_without_an_export_and_a_machine_without_a_gpu_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["run", str(tmp_path / "policy.h")]) == 2
    assert "does not hold what `tileprof export --format cusync` writes" in capsys.readouterr().err
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert main(["run", str(exported(tmp_path, "rows"))]) == 2
    assert "there is no GPU here" in capsys.readouterr().err
    assert main(["run", "--compare", str(tmp_path / "out" / "policy.h")]) == 2
    assert "a header runs alone" in capsys.readouterr().err


@needs_nvcc
@pytest.mark.parametrize("name", ["halo", "join"])
def test_an_exported_example_compiles_against_the_bundled_runtime(tmp_path: Path, name: str) -> None:
    header = exported(tmp_path, name, "--several-waits")
    assert len(machine_code(header.parent, header.parent / "example.cu", "-arch=sm_75")) > 0


@needs_nvcc
@pytest.mark.parametrize("name", ["products", "convolutions"])
def test_the_examples_in_cuda_compile(tmp_path: Path, name: str) -> None:
    words = ["export", "--format", "cusync", "--several-waits", "-o", str(tmp_path / "made")]
    assert main([*words, str(EXAMPLES / f"{name}.dep")]) == 0
    assert len(machine_code(tmp_path / "made", EXAMPLES / f"{name}.cu", "-arch=sm_90")) > 0


def machine_code(folder: Path, source: Path, *options: str) -> bytes:
    """Return what nvcc makes of a source for a GPU. It reads the host's code too, and refuses what is wrong or warned
    of there; the host's compiler, which takes longer than all else, reads `test_emit_cusync`'s files. Nothing is
    optimised, since the code never runs: two thirds of the time.
    """
    result = subprocess.run(
        ["nvcc", "-std=c++17", "-Werror", "all-warnings", "-Xcompiler", "-Wall", "-I", INCLUDE, "-I", folder, source,
         "-Xcicc", "-O0", "-Xptxas", "-O0", "-cubin", "-o", folder / "made.cubin", *options],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    return (folder / "made.cubin").read_bytes()


def test_the_table_on_the_page_is_that_of_the_results() -> None:
    root = INCLUDE.parents[2]
    script = root / "tests" / "gpu" / "cusync" / "measure_exported_headers.py"
    results = root / "tests" / "gpu" / "results" / "exported_headers.json"
    table = runpy.run_path(str(script))["table"](results)
    assert table in (root / "docs" / "exported-headers.md").read_text()
