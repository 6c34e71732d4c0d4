"""Programs recorded on a GPU run there: by the verb, by pipelines, for a range of sizes, and under torch.compile.

A kernel without an operator is one for `Synchroniser`, and bad input runs nothing.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys

import pytest
import torch

if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
    pytest.skip("needs a GPU of compute capability 9.0", allow_module_level=True)

from tests.gpu.measuring.models.five_programs import BEGIN, END, PROGRAMS
from tests.gpu.runtime.chains import replays
from tileprof.policy.format.symbolic import load_symbolic
from tileprof.runtime.compile.racing.report import reports
from tileprof.runtime.pipeline import FellBackWarning, Pipeline
from tileprof.runtime.policy_on_gpu import GpuPipeline
from tileprof.trace import load

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:TensorFloat32"),
]

KERNELS = """
import torch, triton, triton.language as tl

@triton.jit
def scale(x, y, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at))

x = torch.arange(1 << 20, dtype=torch.float32, device="cuda")
y, z = torch.empty_like(x), torch.empty_like(x)
scale[(1024,)](x, y, BLOCK=1024)
scale[(1024,)](y, z, BLOCK=1024)
print(z.sum().item())
"""


def tileprof(folder, *words):
    return subprocess.run(
        [sys.executable, "-P", "-m", "tileprof", *words], cwd=folder, capture_output=True, text=True, timeout=250,
        check=False,
    )  # fmt: skip


def policy_of(folder, program, kernel=None):
    """Record, export and verify in a folder; with ``kernel``, its launches are the stages."""
    (folder / "infer.py").write_text(program)
    result = tileprof(folder, "record", "--", sys.executable, "infer.py")
    assert result.returncode == 0, result.stdout + result.stderr
    launches = load(folder / "infer.tileprof").launches
    launch_numbers = launches.index[launches["kernel"] == kernel].tolist()
    selection = ["--launches", ",".join(map(str, launch_numbers))] if kernel else []
    for words in (["export", *selection, "infer.tileprof"], ["verify", "infer-json/policy.json", "infer.tileprof"]):
        result = tileprof(folder, *words)
        assert result.returncode == 0, result.stdout + result.stderr
        if words[0] == "export":
            assert (result.stdout + result.stderr).count("Modelled") == 1
    return folder


@pytest.fixture(scope="module", params=["perceptron", "convolutions"])
def recorded_program(request, tmp_path_factory):
    """Provide the name of a program, and the folder of its recording and policy."""
    folder = tmp_path_factory.mktemp(request.param)
    return request.param, policy_of(folder, BEGIN + PROGRAMS[request.param] + END)


def network(name):
    """Return the program's model and input."""
    names = {"torch": torch}
    exec(BEGIN + PROGRAMS[name], names)
    return names["net"], names["x"]


def close(value, expected):
    return bool((value.double() - expected.double()).norm() < 3e-3 * expected.double().norm())


def test_the_verb_runs_it(recorded_program):
    result = tileprof(recorded_program[1], "run", "infer-json/policy.json")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "under persistent" in result.stdout
    assert "20 runs, the same bits in each" in result.stdout


def test_pipelines_compute_what_pytorch_does(recorded_program):
    file = recorded_program[1] / "infer-json/policy.json"
    pipeline = GpuPipeline.from_policy(file, schedule="auto")
    inputs = pipeline.example()
    out, expected = pipeline(**inputs), pipeline.reference(inputs)[next(iter(pipeline.outputs))]
    pipeline.check()
    assert pipeline.scheduler.persistent
    assert close(out, expected)
    on_cpu = Pipeline.from_policy(file)(**{name: tensor.cpu() for name, tensor in inputs.items()})
    assert close(on_cpu.cuda(), expected)


def test_torch_compile_takes_the_file(recorded_program):
    torch._dynamo.reset()
    net, x = network(recorded_program[0])
    options = {"use": "always", "policies": [recorded_program[1] / "infer-json/policy.json"]}
    with torch.no_grad(), reports() as matches:
        out = torch.compile(net, backend="tileprof", options=options)(x)
        assert close(out, net(x))
    assert [name for report in matches for name in report.region_counts] == ["a chain of 2 stages by a policy file"]


def test_one_file_serves_a_range_of_sizes(recorded_program):
    name, folder = recorded_program
    word, sizes = {"perceptron": ("tokens=1..512", (1, 77, 200, 512)), "convolutions": ("images=1..8", (1, 3, 8))}[name]
    result = tileprof(folder, "export", "-o", "sized", "--for", word, "infer.tileprof")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "Proved" in result.stderr
    symbolic = load_symbolic(folder / "sized/policy.json")
    pipeline = GpuPipeline.from_policy(folder / "sized/policy.json", schedule="persistent")
    for size in sizes:
        policy = symbolic.at(size)
        inputs = GpuPipeline(policy, schedule="persistent").example()
        out = pipeline(**inputs)
        one = pipeline.at(size)
        one.check()
        assert one.scheduler.name == "persistent"
        assert close(out, one.reference(inputs)[next(iter(one.outputs))])
        assert replays.wrong_replays(policy, replays=1000, schedule="persistent", order="persistent-stages") == 0
    beyond = {k: torch.cat([v] * 2) if v.shape[0] == sizes[-1] and v.dim() > 1 else v for k, v in inputs.items()}
    with pytest.warns(FellBackWarning, match="the policy is for"):
        pipeline(**beyond)


def test_bad_input_is_a_sentence_and_nothing_runs(recorded_program, tmp_path):
    text = (recorded_program[1] / "infer-json/policy.json").read_text()
    other = json.loads(text)
    other["guard"]["architecture"] = "sm_80"
    (tmp_path / "device.json").write_text(json.dumps(other))
    (tmp_path / "shape.json").write_text(re.sub(r'"tile": \[\s*\d+', '"tile": [\n 16', text, count=1))
    for name, message in (("device.json", "Nothing was run"), ("shape.json", "has a grid of")):
        result = tileprof(tmp_path, "run", name)
        assert result.returncode == 2, result.stdout + result.stderr
        assert message in result.stderr
        assert not result.stdout
    exported = tileprof(
        recorded_program[1], "export", "--format", "cusync", "--force", "-o", str(tmp_path / "h"), "infer.tileprof"
    )
    assert exported.returncode == 0, exported.stderr
    outcome = tileprof(tmp_path, "run", "h/policy.h")
    assert outcome.returncode == 0, outcome.stdout + outcome.stderr
    assert "no tile went on" in outcome.stdout
    header = tmp_path / "h/policy.h"
    header.write_text(header.read_text().replace("return", "return 0 *", 1))
    result = tileprof(tmp_path, "run", "h/policy.h")
    assert result.returncode == 2
    assert "was changed by hand" in result.stderr


def test_a_kernel_without_an_operator_is_one_for_the_synchroniser(tmp_path):
    policy_of(tmp_path, KERNELS, "scale")
    result = tileprof(tmp_path, "run", "infer-json/policy.json")
    assert result.returncode == 2, result.stdout + result.stderr
    assert "tile = enter(sync, tl.program_id(0))" in result.stderr
    assert "leave(sync, tile)" in result.stderr
    own = KERNELS.replace("def scale(x, y,", "def scale(x, y, sync,")
    own = own.replace("    at = tl.program_id(0) *", "    tile = enter(sync, tl.program_id(0))\n    at = tile *")
    own = own.replace("tl.load(x + at))", "tl.load(x + at))\n    leave(sync, tile)")
    own = own.replace("\nx = torch", '\nfrom tileprof.runtime.synchroniser import Synchroniser, enter, leave\n'
                      'stages = Synchroniser.from_policy("infer-json/policy.json")\nx = torch')  # fmt: skip
    own = own.replace("](x, y, BLOCK", "](x, y, stages[0], BLOCK").replace("](y, z, BLOCK", "](y, z, stages[1], BLOCK")
    own = own.replace("BLOCK=1024)\nscale", "BLOCK=1024, **stages.launch(0))\nscale")
    own = own.replace("BLOCK=1024)\nprint", "BLOCK=1024, **stages.launch(1))\nstages.check()\nprint")
    (tmp_path / "own.py").write_text(own)
    out = [
        subprocess.run([sys.executable, name], cwd=tmp_path, capture_output=True, text=True, check=False)
        for name in ("infer.py", "own.py")
    ]
    assert out[1].returncode == 0, out[1].stderr
    assert out[0].stdout == out[1].stdout
