"""The code that runs inside recorded Python programs, with a stand-in for the injection library."""

import json
import os
import subprocess
import sys
import time
from types import SimpleNamespace

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
extern "C" void tileprof_pause(int on) { say(on ? "\\"pause\\":1" : "\\"pause\\":0"); }
extern "C" void tileprof_capture(int on) { say(on ? "\\"capture\\":1" : "\\"capture\\":0"); }
static void (*listener)(int);
extern "C" void tileprof_listen(void (*f)(int)) { listener = f; }
extern "C" void fire(int change) { if (listener != nullptr) listener(change); }
extern "C" void tileprof_drain() { say("\\"drain\\":1"); }
"""


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
            "TILEPROF_RAW": str(tmp_path), "TILEPROF_PASS": "accesses", **variables,
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


def test_without_names_tensors_lifetimes_and_captures_are_reported_and_no_mode_sees_the_operators(
    inside, python_with_torch
):
    code = """
import os, torch
os.mkdir(os.path.join(os.environ["TILEPROF_RAW"], f"process-{os.getpid()}"))
from torch.utils._python_dispatch import _get_current_dispatch_mode
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
print(history, _get_current_dispatch_mode())
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="tensors")
    assert output == "['all'] None\n"
    assert [row["e"] for row in message if row.get("e") in {"mark", "called", "capturing"}] == ["capturing"]


def test_operators_say_how_they_were_called(inside, python_with_torch):
    code = """
import tileprof_calls, torch
tileprof_calls.DEVICES.add("cpu")
x, weight, bias = torch.ones(2, 4, 6)[:, 1:3, 2:], torch.ones(3, 4), torch.ones(3)
print(x.data_ptr(), weight.data_ptr(), bias.data_ptr())
torch.nn.functional.linear(x.reshape(4, 4), weight, bias)
torch.cat([weight, weight])
x.mul_(2.0)
torch.full((2,), float("inf"))
x.view(2, 2, 2, 2) if x.is_contiguous() else x.transpose(0, 1)
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
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
    assert "fill_value" not in calls["aten::full"]["arguments"], "infinity is no JSON"


def test_dynamo_is_kept_out_of_the_hooks_and_not_imported_for_that(inside, python_with_torch):
    """Importing it takes seconds. Here a stand-in is imported, in an interpreter that seems to have no Dynamo."""
    code = """
import importlib.machinery, sys, types
for name in [n for n in sys.modules if n.startswith("torch._dynamo")]:
    del sys.modules[name]
import torch

class Stand:
    def create_module(self, spec):
        return types.ModuleType(spec.name)
    def exec_module(self, module):
        module.disable = lambda function, *_, **__: print("disabled", function.__name__) or function
    def find_spec(self, name, path, target=None):
        return importlib.machinery.ModuleSpec(name, self) if name == "torch._dynamo" else None

import tileprof_regions
tileprof_regions.tell(active=True)
x = torch.ones(2)
print("torch._dynamo" in sys.modules)
sys.meta_path.insert(1, Stand())  # behind the hooks
import torch._dynamo
x = x * 3
"""
    events, output = inside(code, python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    assert output.splitlines() == ["False", "disabled __torch_dispatch__"]
    assert [e["op"] for e in events if e.get("e") == "mark" and e["op"]] == ["aten::ones", "aten::mul.Tensor"]


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


def test_functions_that_ask_for_dispatch_modes_see_none_and_are_themselves_again_afterwards(inside, python_with_torch):
    """With a mode, quantile skips its check of q, and ctc_loss refuses lengths on the CPU for tensors on a GPU."""
    code = """
import tileprof, torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack as depth
def median(x: torch.Tensor):
    return torch.quantile(x, 0.5)
before = torch.quantile, vars(torch.Tensor).get("quantile"), torch.ctc_loss
torch.cuda.profiler.start = torch.cuda.profiler.stop = lambda: None
with tileprof.capture():
    for quantile in (torch.quantile, torch.Tensor.nanquantile):
        try:
            quantile(torch.arange(5.0), torch.tensor([2.0]))
        except RuntimeError as error:
            print("range [0, 1]" in str(error))
    given = torch.zeros(4, 1, 3), torch.tensor([[1, 2]]), torch.tensor([4]), torch.tensor([2])
    loss = torch.nn.functional.ctc_loss(*given)
    print(depth(), torch.jit.script(median)(torch.arange(5.0)).item())
print(torch.equal(loss, torch.nn.functional.ctc_loss(*given)))
print(before == (torch.quantile, vars(torch.Tensor).get("quantile"), torch.ctc_loss))
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    assert output.split() == ["True", "True", "1", "2.0", "True", "True"]
    marks = [row["op"] for row in message if row.get("e") == "mark"]
    assert {"aten::quantile", "aten::nanquantile", "aten::ctc_loss"} <= set(marks)
    assert "aten::_ctc_loss" not in marks


def test_a_backward_pass_under_hooks_is_reported_once(inside, python_with_torch):
    code = """
import torch
x = torch.ones(2, requires_grad=True)
for _ in range(2):
    x.exp().sum().backward()
"""
    output, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    assert [row["text"].partition(",")[0] for row in output if row.get("e") == "complaint"] == [
        "a backward pass ran under the hooks that name operators"
    ]
    assert "aten::mul.Tensor" in [row["op"] for row in output if row.get("e") == "mark"]


def test_a_program_that_compiles_is_left_alone_from_then_on(inside, python_with_torch):
    code = """
import torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack as depth
assert depth() == 1
f = torch.compile(lambda x: x + 1, backend="eager")
assert depth() == 0
print(f(torch.ones(1)).item())
"""
    message, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1")
    assert output == "2.0\n"
    assert [row["text"] for row in message if row.get("e") == "complaint"] == [
        "torch.compile is used: launches outside compiled code carry no operator and module names from then on"
    ]


def test_operators_are_looked_at_only_inside_regions_where_only_those_are_recorded(inside, python_with_torch):
    code = """
import tileprof, torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack as depth
torch.cuda.profiler.start = torch.cuda.profiler.stop = lambda: None
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.ReLU(), torch.nn.Sigmoid()
    def forward(self, x):
        x = self.a(x)
        assert depth() == 0
        with tileprof.capture():
            assert depth() == 1
            x = self.b(x)
        assert depth() == 0
        return x.tanh()
Net()(torch.ones(2))
"""
    output, _ = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    marks = [(row["op"], row["module"]) for row in output if row.get("e") == "mark"]
    assert marks == [("aten::sigmoid", "b"), ("", "b"), ("", "")]


def test_operators_are_looked_at_inside_nvtx_ranges_and_regions_of_the_program_do_not_matter_beside_them(
    inside, python_with_torch
):
    """One thread was started by Python, the other was not."""
    code = """
import ctypes, os, threading, tileprof, torch
from torch.utils._python_dispatch import _len_torch_dispatch_stack as depth
fire = ctypes.CDLL(os.environ["CUDA_INJECTION64_PATH"]).fire
x = torch.ones(2)
fire(1); fire(1); x.sigmoid(); fire(-1)
print(depth(), end=" ")
thread = threading.Thread(target=fire, args=(1,)); thread.start(); thread.join()
fire(-1); x.relu(); fire(-1)
print(depth(), end=" ")
with tileprof.capture():
    x.tanh()
fire(1); x.exp(); fire(-1)
print(depth())
"""
    message, output = inside(
        code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_NVTX="x", TILEPROF_CAPTURE="1"
    )
    marks = [row["op"] for row in message if row.get("e") == "mark"]
    assert marks == ["aten::sigmoid", "", "aten::relu", "", "", "aten::exp", "", ""]
    assert output == "1 0 0\n"
    assert not [row for row in message if "capture" in row]


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
from torch.utils._python_dispatch import _len_torch_dispatch_stack as depth
torch.cuda.cudart = lambda: type("C", (), {"cudaProfilerStart": int, "cudaProfilerStop": int})
torch.cuda.profiler.check_error = lambda _: None
torch.cuda.profiler.cudart = torch.cuda.cudart
with torch.cuda.profiler.profile():
    print(depth())
print(depth())
"""
    _, output = inside(code, python=python_with_torch, TILEPROF_HOOKS="1", TILEPROF_CAPTURE="0")
    assert output == "1\n0\n"


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


# ---- in this process, with a stand-in for PyTorch


@pytest.fixture
def modules(monkeypatch):
    """Provide the modules that run inside programs."""
    monkeypatch.syspath_prepend(recorded_run.INPROCESS)
    import tileprof_allocator
    import tileprof_torch

    return SimpleNamespace(allocator=tileprof_allocator, torch=tileprof_torch)


class Memory:
    """An allocator with two blocks, one of them in use; its history has the events while it was recorded."""

    def __init__(self, refuses=""):
        self.refuses, self.history, self.calls = refuses, None, []

    def _record_memory_history(self, *, enabled, **_):
        if self.refuses:
            raise RuntimeError(self.refuses)
        self.history = [] if enabled else None
        self.calls.append(enabled)

    def happen(self, action, address, size):
        if self.history is not None:
            self.history.append({"action": action, "addr": address, "size": size, "time_us": int(time.time() * 1e6)})

    def _snapshot(self):
        blocks = [{"size": 512, "state": "active_allocated"}, {"size": 1024, "state": "inactive"}]
        return {"segments": [{"address": 4096, "blocks": blocks}], "device_traces": [self.history or []]}


def history(modules, tmp_path, memory):
    messages = []
    cuda = SimpleNamespace(memory=memory, _lazy_call=lambda action: action())
    return modules.allocator.History(SimpleNamespace(cuda=cuda), str(tmp_path), messages.append), messages


def test_each_region_begins_with_what_is_allocated_and_nothing_is_kept_between(modules, tmp_path):
    memory = Memory()
    history_json, message = history(modules, tmp_path, memory)
    for address in (100, 200):
        memory.happen("alloc", 1, 1)
        history_json.region(active=True)
        memory.happen("alloc", address, 10)
        memory.happen("free_requested", address, 10)
        history_json.region(active=False)
    history_json.write()
    rows = json.loads((tmp_path / "allocator.json").read_text())
    live = ["live", [[4096, 512]], 0]
    assert [row[:3] for row in rows] == [live, ["alloc", 100, 10], live, ["alloc", 200, 10]]
    assert message == []


def test_a_history_that_is_kept_to_the_end_is_written_and_not_ended(modules, tmp_path):
    """PyTorch warns if the main thread ends what another one began."""
    memory = Memory()
    rows, _ = history(modules, tmp_path, memory)
    rows.from_the_start()
    memory.happen("alloc", 100, 10)
    rows.write()
    assert [row[0] for row in json.loads((tmp_path / "allocator.json").read_text())] == ["live", "alloc"]
    assert memory.calls == ["all"]


def test_an_allocator_without_a_history_is_reported_once_and_ends_nothing(modules, tmp_path):
    rows, message = history(modules, tmp_path, Memory("cudaMallocAsync does not yet support recordHistory"))
    rows.from_the_start()
    rows.region(active=True)
    rows.write()
    assert len(message) == 1
    assert "cudaMallocAsync does not yet support" in message[0]


@pytest.mark.parametrize("fails", [False, True])
def test_a_graph_that_is_made_outside_of_regions_is_looked_at(modules, fails):
    lookups = []

    class Graph:
        def capture_begin(self):
            lookups.append("begin")
            if fails:
                raise RuntimeError

        def capture_end(self):
            lookups.append("end")

    hooks = object.__new__(modules.torch._Hooks)
    hooks.looking = hooks.for_a_graph = False
    hooks.torch = SimpleNamespace(cuda=SimpleNamespace(CUDAGraph=Graph))

    def region(active):
        hooks.looking, hooks.for_a_graph = active, False
        lookups.append(active)

    hooks.region = region
    hooks.say = lambda **event: lookups.append(event["e"])
    hooks.follow_graphs(SimpleNamespace(region=lookups.append))
    if fails:
        with pytest.raises(RuntimeError):
            Graph().capture_begin()
        assert lookups == [True, True, "capturing", "begin", False, False]
        return
    Graph().capture_begin()
    Graph().capture_end()
    assert lookups == [True, True, "capturing", "begin", "end", False, False]
    lookups.clear()
    hooks.looking = True  # inside a region nothing changes
    Graph().capture_begin()
    Graph().capture_end()
    assert lookups == ["capturing", "begin", "end"]


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
