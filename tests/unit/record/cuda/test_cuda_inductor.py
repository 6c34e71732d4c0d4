"""Generated modules of torch.compile name their calls: tested on text that Inductor writes for a GPU, and with a
stand-in for Inductor.
"""

import importlib.util
import sys
from types import SimpleNamespace

import pytest

from tileprof.record.cuda import recorded_run

WRAPPER = """\
# AOT ID: ['0_inference']
from math import inf
triton_poi_fused_add_0 = async_compile.triton('triton_poi_fused_add_0', '''
# Topologically Sorted Source Nodes: [x], Original ATen: [aten.add]
def triton_poi_fused_add_0(in_ptr0):
    return
''')

class Runner:
    def call(self, args):
        arg0_1, = args
        with device_guard(0):
            # Topologically Sorted Source Nodes: [linear], Original ATen: [aten.t, aten.addmm], Modules: [h.0.fc]
            extern_kernels.addmm(arg0_1, out=buf0)
            # Topologically Sorted Source Nodes: [x], Original ATen: [aten.add]
            stream0 = get_raw_stream(0)
            triton_poi_fused_add_0.run(buf0, stream=stream0)
            if buf0 is None:
                # Unsorted Source Nodes: [], Original ATen: []
                return (buf0, )
        return (buf0, )

runner = Runner()
call = runner.call
def get_args():
    return 1
"""


@pytest.fixture
def inductor():
    spec = importlib.util.spec_from_file_location("tileprof_inductor", recorded_run.INPROCESS / "tileprof_inductor.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["tileprof_inductor"] = module
    yield module
    del sys.modules["tileprof_inductor"]


def stand_ins(message):
    kernel = SimpleNamespace(run=lambda *_, stream: message.append("triton kernel"))
    return {
        "async_compile": SimpleNamespace(triton=lambda *_: kernel), "get_raw_stream": int, "buf0": 1,
        "extern_kernels": SimpleNamespace(addmm=lambda *_, out: message.append("addmm")),
        "device_guard": lambda _: __import__("contextlib").nullcontext(),
    }  # fmt: skip


def test_every_call_of_a_wrapper_says_its_operators_first_and_the_end_takes_them_back(inductor):
    messages = []
    inductor.say = lambda op, module: messages.append((op, module))
    names = stand_ins(messages)
    exec(compile(inductor.instrumented(WRAPPER), "wrapper.py", "exec"), names)
    assert names["call"]([0]) == (1,)
    addmm = [("aten::t+aten::addmm", "h.0.fc"), ("aten::addmm", "h.0.fc"), "addmm"]
    assert messages == [*addmm, ("aten::add", ""), "triton kernel", ("", "")]
    assert names["get_args"]() == 1


def test_a_module_without_calls_is_loaded_as_it_is(inductor):
    kernel = "# Source Nodes: [x], Original ATen: [aten.add]\ndef triton_poi_fused_add_0(in_ptr0):\n    return\n"
    assert inductor.instrumented(kernel) == kernel


def test_generated_modules_are_loaded_from_a_copy_that_names_its_calls(inductor, tmp_path):
    class PyCodeCache:
        @classmethod
        def load_by_key_path(cls, key, path, linemap=None):
            return cls.__name__, key, path, linemap

    wrapper, kernel = tmp_path / "cab.py", tmp_path / "kernel.py"
    wrapper.write_text(WRAPPER)
    kernel.write_text("x = 1\n")
    inductor.install(SimpleNamespace(PyCodeCache=PyCodeCache))
    loaded_module = PyCodeCache.load_by_key_path("cab", str(wrapper), linemap=[])
    assert loaded_module == ("PyCodeCache", "cab", str(tmp_path / "tileprof_cab.py"), [])
    assert "_tileprof_mark('aten::add', '')" in (tmp_path / "tileprof_cab.py").read_text()
    assert wrapper.read_text() == WRAPPER
    assert PyCodeCache.load_by_key_path("k", str(kernel))[2] == str(kernel)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cab.py", "kernel.py", "tileprof_cab.py"]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("L['self'].h[0].mlp", "h.0.mlp"),
        ("L['model']._modules['h'][3]", "h.3"),
        ("L['self']", ""),
        ("L['self']._orig_mod.h.0", "h.0"),
    ],
)
def test_paths_of_modules_are_those_of_named_modules(inductor, path, expected):
    assert inductor.module_path(path) == expected


def test_comments_get_the_innermost_modules_of_the_nodes(inductor):
    def node(*paths):
        return SimpleNamespace(meta={"nn_module_stack": {str(i): (p, "Linear") for i, p in enumerate(paths)}})

    nodes = [node("L['self']", "L['self'].h[0].fc"), node("L['self']", "L['self'].ln"), SimpleNamespace(meta={})]
    utils = SimpleNamespace(
        get_kernel_metadata=lambda *_: ("# Original ATen: [aten.mm]", "more"), aggregate_origins=lambda _: nodes
    )
    inductor.remember_modules(utils)
    assert utils.get_kernel_metadata([], None) == ("# Original ATen: [aten.mm], Modules: [h.0.fc, ln]", "more")
    utils.aggregate_origins = None
    assert utils.get_kernel_metadata([], None) == ("# Original ATen: [aten.mm]", "more"), "another version of inductor"


COMPILED = """
class Runner:
    def call(self, args):
        # Topologically Sorted Source Nodes: [a], Original ATen: [aten.addmm], Modules: [up]
        extern_kernels.bias_addmm(b, x, w, alpha=1, beta=1, out=h)
        # Topologically Sorted Source Nodes: [a, c], Original ATen: [aten.addmm, aten.gelu], Activation: gelu_tanh
        triton_poi_fused_gelu_0.run(h, g, 64, stream=0)
        # Topologically Sorted Source Nodes: [a, c], Original ATen: [aten.addmm, aten.relu], Activation: relu
        triton_poi_fused_addmm_relu_1.run(g, b, 64, stream=0)
        # Topologically Sorted Source Nodes: [d], Original ATen: [aten.relu], Activation: relu
        triton_poi_fused_relu_2.run(g, 64, stream=0)
        return (extern_kernels.no_operator(g), )
call = Runner().call
"""


def test_extern_kernels_and_activations_say_how_they_were_called(inductor, monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(recorded_run.INPROCESS))
    import tileprof_calls

    monkeypatch.setattr(tileprof_calls, "DEVICES", {"cpu"})
    events, marks = [], []
    inductor.tell, inductor.say = events.append, lambda op, module: marks.append((op, module))
    x, w, b = torch.randn(4, 8), torch.randn(8, 16), torch.randn(16)
    h, g = torch.empty(4, 16), torch.empty(4, 16)
    kernel = SimpleNamespace(run=lambda *_, stream: stream)
    names = {
        "extern_kernels": SimpleNamespace(bias_addmm=torch.addmm, no_operator=lambda one: one), "x": x, "w": w, "b": b,
        "h": h,
        "g": g,
    } | dict.fromkeys(("triton_poi_fused_gelu_0", "triton_poi_fused_addmm_relu_1", "triton_poi_fused_relu_2"),
    kernel)  # fmt: skip
    exec(compile(inductor.instrumented(COMPILED), "wrapper.py", "exec"), names)
    assert names["call"]([])[0] is g
    assert [event["op"] for event in events] == ["aten::addmm", "aten::gelu", "aten::relu"], (
        "the bias is not an activation's"
    )
    assert torch.equal(h, torch.addmm(b, x, w))
    product, activation, in_place = events
    assert product["arguments"] == {
        "self": {"tensor": 0}, "mat1": {"tensor": 1}, "mat2": {"tensor": 2}, "beta": 1, "alpha": 1,
    }  # fmt: skip
    assert [row[:2] for row in product["tensors"]] == [
        ["self", b.data_ptr()], ["mat1", x.data_ptr()], ["mat2", w.data_ptr()], ["out", h.data_ptr()],
    ]  # fmt: skip
    assert activation["arguments"] == {"self": {"tensor": 0}, "approximate": "tanh"}
    assert [row[1] for row in in_place["tensors"]] == [g.data_ptr(), g.data_ptr()]
    assert marks[:2] == [("aten::addmm", "up"), ("aten::addmm", "up")]


@pytest.mark.parametrize(
    ("originals", "targets", "expected"),
    [
        (["aten.gelu.default", "aten.addmm.default"], ["aten.mul.Tensor", "aten.erf.default"], "gelu"),
        (["aten.gelu.default"], ["aten.mul.Tensor", "aten.tanh.default"], "gelu_tanh"),
        (["aten.gelu.default"], ["aten.mul.Tensor"], ""),
        (["aten.silu.default"], ["aten.sigmoid.default"], "silu"),
        (["aten.relu.default", "aten.add.Tensor"], ["aten.relu.default"], ""),
        (["aten.sin.default"], ["aten.sin.default"], ""),
    ],
)
def test_an_activation_is_what_a_kernel_computes_alone(inductor, originals, targets, expected):
    nodes = [SimpleNamespace(meta={"original_aten": one}, target="") for one in originals]
    nodes += [SimpleNamespace(meta={}, target=one) for one in targets]
    assert inductor.activation_of(nodes) == expected
