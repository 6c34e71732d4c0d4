"""The code that runs inside recorded Python programs, with a stand-in for the injection library."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.warm import commands
from tileprof.errors import UserError
from tileprof.record.cuda import recorded_run
from tileprof.record.cuda.installation import locate

LIBRARY = """
#include <stdio.h>
#include <stdlib.h>
static void say(const char* text) {
    FILE* out = fopen(getenv("SAID"), "a");
    fprintf(out, "{%s}\\n", text);
    fclose(out);
}
extern "C" void tileprof_event(const char* json) { say(json); }
extern "C" void tileprof_called(const char* json) { say(json); }
extern "C" int tileprof_marked() { return 1; }
extern "C" void tileprof_mark(const char* op, const char* module) {
    char text[1000];
    snprintf(text, sizeof text, "\\"e\\":\\"mark\\",\\"op\\":\\"%s\\",\\"module\\":\\"%s\\"", op, module);
    say(text);
}
extern "C" void tileprof_pause(int on) { say(on ? "\\"pause\\":1" : "\\"pause\\":0"); }
extern "C" void tileprof_capture(int on) { say(on ? "\\"capture\\":1" : "\\"capture\\":0"); }
static void (*listener)(int);
extern "C" void tileprof_listen(void (*f)(int)) { listener = f; }
extern "C" void fire(int change) { if (listener != nullptr) listener(change); }
extern "C" void tileprof_drain() { say("\\"drain\\":1"); }
"""

OPERATORS = {name: value for name, value in recorded_run.hook_variables().items() if name != "TILEPROF_HOOKS"}


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """Compile the stand-in for the injection library."""
    try:
        compiler = locate.host_compiler()
    except UserError as error:
        pytest.skip(str(error))
    folder = tmp_path_factory.mktemp("library")
    (folder / "l.cpp").write_text(LIBRARY)
    subprocess.run([compiler, "-shared", "-fPIC", folder / "l.cpp", "-o", folder / "l.so"], check=True)
    return folder / "l.so"


@pytest.fixture(scope="module")
def python_with_torch(tmp_path_factory):
    """Provide an interpreter that has imported PyTorch and what it imports at the first operator under a dispatch mode;
    the hooks run in it as if it had just done so.
    """
    pytest.importorskip("torch")
    with commands(tmp_path_factory.mktemp("warm"), ["torch", "torch._dynamo"]) as programs:
        yield programs.python


@pytest.fixture
def inside(tmp_path, library):
    """Run Python code as the recorder would. Return what the library was told, and the program's output."""
    message = tmp_path / "said"

    def run(code, python=sys.executable, **variables):
        environment = {
            **os.environ, "PYTHONPATH": str(recorded_run.INPROCESS), recorded_run.INJECTION: str(library),
            "SAID": str(message),
            "TILEPROF_RAW": str(tmp_path), "TILEPROF_PASS": "accesses", **OPERATORS, **variables,
        }  # fmt: skip
        script = tmp_path / "script.py"
        script.write_text(code)
        result = subprocess.run([python, script], env=environment, capture_output=True, text=True, check=False)
        assert result.returncode == 0, result.stderr
        rows = [json.loads(line) for line in message.read_text().splitlines()] if message.exists() else []
        return rows, result.stdout

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
    message, output = inside(code)
    assert [row["capture"] for row in message if "capture" in row] == [1, 0, 1, 0]
    assert output == "out\n"


def test_operators_carry_the_path_of_their_module(inside):
    pytest.importorskip("torch")
    code = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Sequential(torch.nn.ReLU()))
print(model(torch.ones(2, 4)).shape, torch.ones(1).add(1).item())
"""
    message, output = inside(code, TILEPROF_HOOKS="1")
    marks = {(row["op"], row["module"]) for row in message if row.get("e") == "mark"}
    assert {("aten::addmm", "0"), ("aten::relu", "1.0"), ("aten::add.Tensor", "")} <= marks
    assert output == "torch.Size([2, 4]) 2.0\n"


def test_without_names_tensors_lifetimes_and_captures_are_reported_and_nothing_sees_the_operators(
    inside, python_with_torch
):
    code = """
import os, torch
os.mkdir(os.path.join(os.environ["TILEPROF_RAW"], f"process-{os.getpid()}"))
history = []
torch.cuda.memory._record_memory_history = lambda **options: history.append(options["enabled"])
torch.cuda.memory._snapshot = lambda: {"segments": [], "device_traces": []}
while torch.cuda._queued_calls:
    torch.cuda._queued_calls.pop()[0]()
torch.nn.Linear(4, 4)(torch.ones(2, 4))
try:
    torch.cuda.CUDAGraph.capture_begin(object())
except (AttributeError, TypeError):  # it is not a graph
    pass
print(history)
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="tensors")
    assert output == "['all']\n"
    assert [row["e"] for row in message if row.get("e") in {"mark", "called", "capturing"}] == ["capturing"]


def test_operators_say_how_they_were_called(inside, python_with_torch):
    code = """
import tileprof, tileprof_calls, torch
torch.cuda.profiler.start = torch.cuda.profiler.stop = lambda: None
tileprof_calls.DEVICES.add("cpu")
x, weight, bias = torch.ones(2, 4, 6)[:, 1:3, 2:], torch.ones(3, 4), torch.ones(3)
print(x.data_ptr(), weight.data_ptr(), bias.data_ptr())
with tileprof.capture():
    torch.nn.functional.linear(x.reshape(4, 4), weight, bias)
    torch.cat([weight, weight])
    x.mul_(2.0)
    torch.full((2,), float("inf"), dtype=torch.float64)
    torch.nn.functional.gelu(x, approximate="tanh")
    torch.add(x, x, alpha=0.1, out=torch.empty(0))
    x.sort(stable=True)
    torch._foreach_mul([x, bias], 3)
    x.transpose(0, 1)
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    x, weight, bias = map(int, output.split())
    calls = {row["op"]: row for row in message if row.get("e") == "called"}
    assert "aten::transpose.int" not in calls, "views launch nothing"
    product = calls["aten::addmm"]
    assert product["arguments"] == {
        "self": {"tensor": 0}, "mat1": {"tensor": 1}, "mat2": {"tensor": 2}, "beta": 1, "alpha": 1,
    }  # fmt: skip
    names = [tensor[0] for tensor in product["tensors"]]
    assert names == ["self", "mat1", "mat2", "out"]
    assert product["tensors"][0][1:] == [bias, [3], [1], "float32", 4, False, "cpu"]
    assert product["tensors"][2][1:4] == [weight, [4, 3], [1, 4]]
    cat_call = calls["aten::cat"]
    assert cat_call["arguments"] == {"tensors": [{"tensor": 0}, {"tensor": 1}], "dim": 0}
    scaled = calls["aten::mul_.Tensor"]
    assert [(t[0], t[1], t[6]) for t in scaled["tensors"] if t[1] == x] == [("self", x, True), ("out", x, True)]
    assert scaled["tensors"][0][3] == [24, 6, 1]
    full = {"size": [2], "layout": None, "pin_memory": False}
    assert calls["aten::full"]["arguments"] == full, "infinity is no JSON; types and devices are left out"
    assert calls["aten::gelu"]["arguments"] == {"self": {"tensor": 0}, "approximate": "tanh"}
    total = calls["aten::add.out"]
    assert total["arguments"]["alpha"] == 0.1
    assert [(t[0], t[2], t[6]) for t in total["tensors"][2:]] == [("out", [2, 2, 4], True)] * 2, "as it is afterwards"
    assert [t[0] for t in calls["aten::sort.stable"]["tensors"]] == ["self", "out", "out1"]
    assert [t[0] for t in calls["aten::_foreach_mul.Scalar"]["tensors"]] == ["self", "self", "out", "out1"]
    assert repr(calls["aten::_foreach_mul.Scalar"]["arguments"]["scalar"]) == "3"
    assert repr(calls["aten::mul_.Tensor"]["arguments"]["other"]) == "{'tensor': 1}"


def test_calls_in_eager_and_in_compiled_code_are_described_alike(inside, python_with_torch):
    """Callbacks describe those of eager code, Python those of compiled code."""
    code = """
import json, tileprof, tileprof_calls, torch
torch.cuda.profiler.start = torch.cuda.profiler.stop = lambda: None
tileprof_calls.DEVICES.add("cpu")
aten, x, weight = torch.ops.aten, torch.ones(2, 4, 6)[:, 1:3, 2:], torch.ones(3, 4)
calls = (
    (aten.addmm.default, (torch.ones(3), weight[:, :3], weight[:, 1:].T.contiguous()[:, :3]), {"beta": 0.5}),
    (aten.cat.default, ([weight, weight.half()], 1), {}),
    (aten.gelu_.default, (x,), {"approximate": "tanh"}),
    (aten.sort.stable, (x,), {"stable": True}),
    (aten._foreach_mul.Scalar, ([x, weight], 3), {}),
    (aten.index.Tensor, (x, [None, torch.tensor([0, 1])]), {}),
    (aten.convolution.default, (x, x, None, [1], [0], [1], False, [0], 1), {}),
    (aten.clamp.default, (x,), {"min": 1e-30}),
    (aten.add.out, (weight, weight), {"alpha": 2, "out": torch.ones(3, 4)}),
    (aten.native_dropout.default, (x, 0.1, None), {}),
    (aten.sum.dim_IntList, (x.bool(), [0, -1]), {"keepdim": True}),
    (aten.mul.Tensor, (x.to_sparse(), x), {}),
    (aten.exp.default, (x[:0],), {}),
)
for operator, arguments, options in calls:
    with tileprof.capture():
        result = operator(*arguments, **options)
    event = tileprof_calls.described(torch, operator, arguments, options, result)
    print(json.dumps(event))
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    expected = [event for line in output.splitlines() if (event := json.loads(line)) is not None]
    assert len(expected) == 12, "a sparse tensor has no address"
    assert [row for row in message if row.get("e") == "called"] == expected


def test_in_inference_mode_the_parts_of_a_composite_operator_are_named_not_the_whole(inside, python_with_torch):
    code = """
import torch
model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Conv2d(1, 1, 1, bias=False))
with torch.inference_mode():
    print(model[0](torch.ones(2, 4)).shape, model[1](torch.ones(1, 1, 2, 2)).shape)
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    assert output == "torch.Size([2, 4]) torch.Size([1, 1, 2, 2])\n"
    marks = {row["op"] for row in message if row.get("e") == "mark"}
    assert {"aten::addmm", "aten::convolution"} <= marks
    assert not {"aten::linear", "aten::conv2d"} & marks


def test_operators_on_the_host_alone_say_nothing_of_their_arguments(inside, python_with_torch):
    output, _ = inside("import torch\ntorch.ones(3) + 1", python=python_with_torch, TILEPROF_HOOKS="1")
    assert not [row for row in output if row.get("e") == "called"]


def test_what_is_launched_after_an_operator_has_returned_does_not_carry_its_name(inside, python_with_torch):
    """Launches of other threads and of Triton kernels end it."""
    output, _ = inside(
        "import torch\ntry:\n    torch.ones(2).view(3)\nexcept RuntimeError:\n    pass",
        python=python_with_torch,
        TILEPROF_HOOKS="1",
    )
    marks = [row["op"] for row in output if row.get("e") == "mark"]
    assert marks[-2:] == ["aten::view", ""]
    assert all(marks[::2])
    assert not any(marks[1::2])


PROGRAM = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix = torch.nn.Embedding(8, 6), torch.nn.TransformerEncoderLayer(6, 2, 8, batch_first=True)
        self.gru = torch.nn.GRU(6, 6)
    def forward(self, x):
        y = self.embed(x) + self.embed(x.flip(0))
        y = torch.utils.checkpoint.checkpoint(self.mix, y, use_reentrant=False)
        y = self.gru(y)[0]
        return y[x > 2].quantile(0.5) + y.square().mean() + y[:, x[0]].std() + y[0].sum()
net = Net()
optimizer = torch.optim.SGD(net.parameters(), 0.1, momentum=0.9, foreach=True)
"""


def test_a_training_step_calls_the_same_operators_on_the_same_sizes_as_without_hooks(inside, python_with_torch):
    """An independent profile says so: in-place forms, gradients that accumulate, checks of values. Under a dispatch
    mode they differ.
    """
    code = f"""{PROGRAM}
def step():
    with torch.autocast("cpu", torch.bfloat16):
        loss = net(torch.tensor([[0, 1, 1], [3, 4, 5]]))
    loss.backward()
    optimizer.step()
step()
with torch.profiler.profile(record_shapes=True) as profile:
    step()
for event in profile.events():
    if event.name.startswith("aten::"):
        print(event.name, event.input_shapes)
"""
    plain, plain_output = inside(code, python=python_with_torch)
    named, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    assert output == plain_output
    assert "aten::add_ " in output
    assert not [row for row in plain if row.get("e") == "mark"]
    assert not [row for row in named if row.get("e") == "complaint"]
    ops = [row["op"] for row in named if row.get("e") == "mark" and row["op"]]
    assert {"aten::embedding_dense_backward", "aten::add_.Tensor", "aten::_foreach_add_.List", "aten::sort"} <= set(ops)
    assert not {"aten::linear", "aten::quantile"} & set(ops)


def test_the_programs_own_modes_and_transformations_are_looked_through(inside, python_with_torch):
    """A mode or a transformation that takes an operator apart leaves the parts."""
    code = """
import torch
from torch.utils._python_dispatch import TorchDispatchMode
class Halves(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return torch.neg(function(*args, **(kwargs or {})))
x = torch.ones(2, 2)
with Halves():
    x.exp()
torch.vmap(torch.mv, (None, 0))(x, x)
torch.func.grad(lambda y: y.sin().sum())(x)
with torch.autocast("cpu", torch.bfloat16):
    torch.mm(x, x)
"""
    message, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    marks = [row["op"] for row in message if row.get("e") == "mark" and row["op"]]
    views = {"aten::detach", "aten::t", "aten::transpose.int", "aten::permute", "aten::view", "aten::expand"}
    assert [op for op in marks if op not in views] == [
        "aten::ones", "aten::exp", "aten::neg", "aten::mm", "aten::sin", "aten::sum", "aten::ones_like", "aten::cos",
        "aten::mul.Tensor", "aten::_to_copy", "aten::_to_copy", "aten::mm",
    ]  # fmt: skip


def test_operators_of_threads_that_autograd_starts_carry_names_and_the_modules_that_run_again_there(
    inside, python_with_torch
):
    code = """
import torch
from torch.utils.checkpoint import checkpoint
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Sequential(torch.nn.Tanh()))
loss = checkpoint(net[1], net[0](torch.ones(1, 2)), use_reentrant=True).sum()
try:
    net[0](torch.ones(3))
except RuntimeError as error:
    print("shapes" in str(error))
torch.ones(1).sin()
loss.backward()
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    marks = [(row["op"], row["module"]) for row in message if row.get("e") == "mark" and row["op"]]
    assert output == "True\n"
    assert ("aten::sin", "") in marks, "the module that failed has been left"
    assert marks.count(("aten::tanh", "0")) == 2, "again in the backward pass"
    assert ("aten::tanh_backward", "") in marks


def test_operators_of_the_programs_own_threads_carry_names_and_modules(inside, python_with_torch):
    code = """
import threading, torch
net = torch.nn.Sequential(torch.nn.Tanh())
def run():
    net(torch.ones(1)).exp()
thread = threading.Thread(target=run); thread.start(); thread.join()
"""
    message, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    marks = [(row["op"], row["module"]) for row in message if row.get("e") == "mark" and row["op"]]
    assert marks == [("aten::ones", ""), ("aten::tanh", "0"), ("aten::exp", "")]


def test_a_program_without_a_compiler_runs_without_operators_names_and_is_told_why(inside, tmp_path):
    pytest.importorskip("torch")
    code = "import torch\nprint(torch.nn.ReLU()(torch.ones(1)).item())"
    message, output = inside(code, TILEPROF_HOOKS="1", TILEPROF_OPERATORS=str(tmp_path / "new"), CXX="none", PATH="")
    assert output == "1.0\n"
    texts = [row["text"] for row in message if row.get("e") == "complaint"]
    assert [text.partition(". ")[0] for text in texts] == ["operators carry no names: No C++ compiler was found"]


def test_hooks_on_modules_are_gone_when_a_program_compiles_and_operators_are_named(inside, python_with_torch):
    code = """
import torch
from torch.nn.modules import module
assert module._global_forward_pre_hooks and module._global_forward_hooks
f = torch.compile(lambda x: x + 1, backend="eager")
assert not module._global_forward_pre_hooks and not module._global_forward_hooks
print(f(torch.ones(1)).item())
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    assert output == "2.0\n"
    assert "aten::add.Tensor" in [row["op"] for row in message if row.get("e") == "mark"]
    assert [row["text"] for row in message if row.get("e") == "complaint"] == [
        "torch.compile is used: launches outside compiled code carry no module names from then on"
    ]


def test_operators_that_compiled_code_calls_do_not_take_its_names(inside, python_with_torch):
    code = """
import tileprof_inductor, torch
x = torch.ones(2)
tileprof_inductor.mark("aten::relu+aten::sin", "m")
x.exp()
tileprof_inductor.mark("", "")
x.cos()
"""
    message, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    assert [row["op"] for row in message if row.get("e") == "mark" and row["op"]][1:] == [
        "aten::relu+aten::sin", "aten::cos",
    ]  # fmt: skip


def test_operators_are_looked_at_only_inside_regions_where_only_those_are_recorded(inside, python_with_torch):
    code = """
import tileprof, torch
torch.cuda.profiler.start = torch.cuda.profiler.stop = lambda: None
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.ReLU(), torch.nn.Sigmoid()
    def forward(self, x):
        x = self.a(x)
        with tileprof.capture():
            x = self.b(x).cos()
        return x.tanh()
Net()(torch.ones(2))
"""
    output, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    marks = [(row["op"], row["module"]) for row in output if row.get("e") == "mark"]
    assert marks == [("aten::sigmoid", "b"), ("", "b"), ("aten::cos", ""), ("", ""), ("", "")]


def test_operators_are_looked_at_inside_nvtx_ranges_and_regions_of_the_program_do_not_matter_beside_them(
    inside, python_with_torch
):
    """One thread was started by Python, the other was not."""
    code = """
import ctypes, os, threading, tileprof, torch
fire = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).fire
x = torch.ones(2)
fire(1); fire(1); x.sigmoid(); fire(-1)
thread = threading.Thread(target=fire, args=(1,)); thread.start(); thread.join()
fire(-1); x.relu(); fire(-1)
with tileprof.capture():
    x.tanh()
fire(1); x.exp(); fire(-1)
"""
    message, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_NVTX="x", TILEPROF_CAPTURE="1")
    marks = [row["op"] for row in message if row.get("e") == "mark"]
    assert marks == ["aten::sigmoid", "", "aten::relu", "", "", "aten::exp", "", ""]
    assert not [row for row in message if "capture" in row]


EMITTER = """
#include <ATen/record_function.h>
#include <string.h>
static void (*fire)(int);
static at::CallbackHandle handle;
static void change(const at::RecordFunction& call, int by) { if (strcmp(call.name(), "aten::floor") == 0) fire(by); }
extern "C" void emit(void (*f)(int)) {
    fire = f;
    handle = at::addThreadLocalCallback(at::RecordFunctionCallback(
        [](const at::RecordFunction& call) { change(call, 1); return std::unique_ptr<at::ObserverContext>(); },
        [](const at::RecordFunction& call, at::ObserverContext*) { change(call, -1); }));
}
extern "C" void stop() { at::removeCallback(handle); }
"""


def test_an_operator_whose_own_range_begins_what_is_recorded_has_its_name(inside, python_with_torch, tmp_path):
    """A callback opens the range, as those of ``emit_nvtx`` do, which need CUDA."""
    torch = pytest.importorskip("torch")
    (tmp_path / "emitter.cpp").write_text(EMITTER)
    package = Path(torch.__file__).parent
    flags = ["-std=c++20", "-DNDEBUG", "-w", "-shared", "-fPIC", f"-I{package / 'include'}", f"-L{package / 'lib'}"]
    files = [tmp_path / "emitter.cpp", "-o", tmp_path / "emitter.so", "-ltorch_cpu", "-lc10"]
    subprocess.run([locate.host_compiler(), *flags, *files], check=True)
    code = f"""
import ctypes, os, torch
from torch.autograd import profiler
fire = ctypes.cast(ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).fire, ctypes.c_void_p)
emitter = ctypes.CDLL({str(tmp_path / "emitter.so")!r})
torch.cuda.synchronize = lambda: None
profiler._enable_profiler = lambda *_: emitter.emit(fire)
profiler._disable_profiler = emitter.stop
x = torch.ones(2)
for _ in range(2):
    with profiler.emit_nvtx():
        x.neg()
        with profiler.emit_nvtx(enabled=False):
            x.ceil()
        x.floor()
    x.floor()
"""
    message, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_NVTX="x", TILEPROF_CAPTURE="1")
    assert [row["op"] for row in message if row.get("e") == "mark"] == ["aten::floor", "", ""] * 2


def test_regions_around_nvtx_ranges_say_where_operators_are_looked_at(inside, python_with_torch):
    code = """
import tileprof, torch
x = torch.ones(2).relu()
with tileprof.capture():
    x.tanh()
"""
    output, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_NVTX="x", TILEPROF_CAPTURE="0")
    assert [row["op"] for row in output if row.get("e") == "mark"] == ["aten::tanh", "", ""]
    assert [row["capture"] for row in output if "capture" in row] == [1, 0]


def test_a_program_that_profiles_itself_on_the_gpu_gets_one_warning(inside, python_with_torch):
    code = """
import os, torch
from types import SimpleNamespace
profiler = torch.autograd.profiler
follow, real = profiler._prepare_profiler, torch._C._autograd._prepare_profiler
assert follow is not real and follow.__closure__
import tileprof_profiler
stand_in = SimpleNamespace(_prepare_profiler=lambda *given, **named: (given, named))
tileprof_profiler.follow(stand_in)
for names in (("CPU",), ("CPU", "CUDA"), ("CPU", "CUDA")):
    activities = [SimpleNamespace(name=name) for name in names]
    prepared = stand_in._prepare_profiler("config", activities, activity_filter=3)
    assert prepared == (("config", activities), {"activity_filter": 3})
    print(os.path.exists(os.environ["SAID"]), end=" ")
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as mine:
    torch.ones(2).sin()
print(any(event.key == "aten::sin" for event in mine.key_averages()))
"""
    message, output = inside(code, python=python_with_torch)
    assert output == "False True True True\n"
    assert [row["e"] for row in message if "e" in row] == ["complaint"]


def test_the_profilers_start_and_stop_are_regions_too(inside, python_with_torch):
    code = """
import torch
torch.cuda.cudart = lambda: type("C", (), {"cudaProfilerStart": int, "cudaProfilerStop": int})
torch.cuda.profiler.check_error = lambda _: None
torch.cuda.profiler.cudart = torch.cuda.cudart
x = torch.ones(2)
with torch.cuda.profiler.profile():
    x.exp()
x.sin()
"""
    message, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    assert [row["op"] for row in message if row.get("e") == "mark"] == ["aten::exp", "", ""]


def test_what_is_on_the_device_is_copied_when_python_ends_after_the_programs_own_handlers(inside):
    message, output = inside("import atexit\natexit.register(print, 'mine')")
    assert message == [{"drain": 1}]
    assert output == "mine\n"


def test_a_sitecustomize_that_is_hidden_still_runs(inside, tmp_path):
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text("import sys\nsys.theirs = 1\n")
    path = os.pathsep.join([str(recorded_run.INPROCESS), str(folder)])
    assert inside("import sys\nprint(sys.theirs)", PYTHONPATH=path)[1] == "1\n"


def test_a_time_pass_without_cupti_says_so_and_runs_the_program(inside, tmp_path):
    (tmp_path / "cupti.py").write_text("raise ImportError('no CUPTI')\n")
    path = os.pathsep.join([str(recorded_run.INPROCESS), str(tmp_path)])
    code = "import glob, os\nprint(open(glob.glob(os.environ['TILEPROF_RAW'] + '/process-*/failed.txt')[0]).read())"
    output = inside(code, PYTHONPATH=path, TILEPROF_TIME="1")[1]
    assert output == "ImportError: no CUPTI\n"


def test_parameters_of_a_compiled_module_are_named_when_it_is_compiled_and_when_a_region_begins(
    inside, python_with_torch
):
    code = """
import torch, tileprof
torch.nn.Parameter.is_cuda = True  # as far as the hooks can see
model = torch.compile(torch.nn.Linear(4, 4), backend="eager")
print("compiled")
with tileprof.capture():
    pass
"""
    output, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    assert [row["name"] for row in output if row.get("e") == "describe"] == ["weight", "bias"] * 2


def test_parameters_of_modules_that_a_compiled_function_uses_are_named(inside, python_with_torch):
    """It finds modules in its closure, its script and the object of its method, and later ones when a region begins."""
    code = """
import torch, tileprof
torch.nn.Parameter.is_cuda = True  # as far as the hooks can see
def closed():
    model = torch.nn.Linear(4, 4, bias=False)
    return torch.compile(lambda x: model(x), backend="eager")
@torch.compile(backend="eager")
def uses_a_global(x):
    return later(x)
run = closed()
whole = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False))
method = torch.compile(whole.forward, backend="eager")
len_ = torch.compile(len, backend="eager")
print("compiled")
later = torch.nn.Sequential(torch.nn.ReLU(), torch.nn.Linear(4, 4, bias=False))
with tileprof.capture():
    pass
"""
    output, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    names = [row["name"] for row in output if row.get("e") == "describe"]
    assert names[:2] == ["weight", "0.weight"]
    assert sorted(names[2:]) == ["0.weight", "1.weight", "weight"]
