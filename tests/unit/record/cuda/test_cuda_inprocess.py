"""What runs inside recorded Python programs, with a stand-in for the injection library."""

import json
import os
import subprocess
import sys

import pytest

from tileprof.errors import UserError
from tileprof.record.cuda import locate, program

LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
static void say(const char* text) {
    FILE* out = fopen(getenv("SAID"), "a");
    fprintf(out, "{%s}\\n", text);
    fclose(out);
}
extern "C" void tileprof_event(const char* json) { say(json); }
extern "C" void tileprof_capture(int on) { say(on ? "\\"capture\\":1" : "\\"capture\\":0"); }
"""


@pytest.fixture
def inside(tmp_path):
    """Run Python code as the recorder would; what the library was told, and the program's output."""
    try:
        compiler = locate.host_compiler()
    except UserError as error:
        pytest.skip(str(error))
    source, library, said = tmp_path / "l.cpp", tmp_path / "l.so", tmp_path / "said"
    source.write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", source, "-o", library], check=True)

    def run(code, **variables):
        environment = {
            **os.environ, "PYTHONPATH": str(program.INPROCESS), program.INJECTION: str(library), "SAID": str(said),
            "TILEPROF_RAW": str(tmp_path), "TILEPROF_PASS": "accesses", **variables,
        }  # fmt: skip
        script = tmp_path / "script.py"
        script.write_text(code)
        done = subprocess.run([sys.executable, script], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        rows = [json.loads(line) for line in said.read_text().splitlines()] if said.exists() else []
        return rows, done.stdout

    return run


def test_captured_regions_reach_the_library_once_however_they_nest(inside):
    code = """
import tileprof
with tileprof.capture():
    with tileprof.capture():
        pass
try:
    with tileprof.capture():
        raise KeyError
except KeyError:
    print("out")
"""
    said, output = inside(code)
    assert [row["capture"] for row in said] == [1, 0, 1, 0]
    assert output == "out\n"


def test_operators_carry_the_path_of_their_module(inside):
    pytest.importorskip("torch")
    code = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU()))
print(model(torch.ones(2, 4)).shape, torch.ones(1).add(1).item())
"""
    said, output = inside(code, TILEPROF_HOOKS="1")
    marks = {(row["op"], row["module"]) for row in said if row["e"] == "mark"}
    assert {("aten::addmm", "0"), ("aten::relu", "1.0"), ("aten::add.Tensor", "")} <= marks
    assert output == "torch.Size([2, 4]) 2.0\n"


def test_a_program_that_compiles_is_left_alone_from_then_on(inside):
    pytest.importorskip("torch")
    code = """
import torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack as depth
assert depth() == 1
f = torch.compile(lambda x: x + 1, backend="eager")
assert depth() == 0
print(f(torch.ones(1)).item())
"""
    said, output = inside(code, TILEPROF_HOOKS="1")
    assert output == "2.0\n"
    assert [row["text"] for row in said if row["e"] == "complaint"] == [
        "torch.compile is used: launches carry no operator and module names"
    ]


def test_a_sitecustomize_that_is_hidden_still_runs(inside, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.theirs = 1\n")
    path = os.pathsep.join([str(program.INPROCESS), str(folder)])
    assert inside("import sys\nprint(sys.theirs)", PYTHONPATH=path)[1] == "1\n"


def test_a_time_pass_without_cupti_says_so_and_runs_the_program(inside, tmp_path):
    (tmp_path / "cupti.py").write_text("raise ImportError('no CUPTI')\n")
    path = os.pathsep.join([str(program.INPROCESS), str(tmp_path)])
    code = "import glob, os\nprint(open(glob.glob(os.environ['TILEPROF_RAW'] + '/process-*/failed.txt')[0]).read())"
    output = inside(code, PYTHONPATH=path, TILEPROF_TIME="1")[1]
    assert output == "ImportError: no CUPTI\n"
