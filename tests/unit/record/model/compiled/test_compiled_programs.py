"""Programs under torch.compile: the trace has fused launches, and results keep the program's own values."""

import pytest
import torch

pytest.importorskip("triton")

F = torch.nn.functional


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.linear = torch.nn.LayerNorm(64), torch.nn.Linear(64, 64)

    def forward(self, x):
        return F.gelu(self.linear(self.norm(x))) + x


@pytest.fixture(autouse=True)
def _fresh():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def _kernels(trace):
    return trace.launches["kernel"].tolist()


def test_a_compiled_function_is_recorded_as_inductor_fuses_it(trace_of):
    results = []

    def program():
        with torch.no_grad():
            block, x = Block(), torch.randn(8, 64)
            results.append((torch.compile(block)(x), block(x)))

    trace = trace_of(program, initialisation=True)
    fused = [k for k in _kernels(trace) if k.startswith("triton_")]
    assert [k.rpartition("_")[0] for k in fused] == [
        "triton_per_fused_native_layer_norm",
        "triton_poi_fused_add_addmm_gelu",
    ]
    assert torch.equal(*results[0])
    assert (trace.launches["coverage"] == "exact").all()
    ops = trace.launches.loc[trace.launches["kernel"].isin(fused), "op"].tolist()
    assert ops == ["aten::native_layer_norm", "aten::addmm+aten::gelu+aten::add"]


def test_dependencies_cross_between_compiled_code_and_the_rest(trace_of):
    from tileprof.analysis import build_graph

    def program():
        with torch.no_grad():
            x = torch.randn(64, 64) * 2
            y = torch.compile(lambda a: a.relu() + 1)(x)
            y.mul_(3)

    trace = trace_of(program)
    kernels = _kernels(trace)
    [fused] = [n for n, k in enumerate(kernels) if k.startswith("triton_poi")]
    pairs = build_graph(trace).pairs
    true = {(p.producer, p.consumer) for p in pairs.itertuples() if not p.reuse_only}
    assert (fused - 1, fused) in true
    assert (fused, fused + 1) in true


def test_training_computes_what_it_computes_without_the_compiler(trace_of):
    def train(compiled):
        torch.manual_seed(0)
        block, x = Block(), torch.randn(8, 64, requires_grad=True)
        function = torch.compile(block) if compiled else block
        for _ in range(2):
            function(x).square().sum().backward()
        return [x.grad, *(p.grad for p in block.parameters())]

    results = []
    trace = trace_of(lambda: results.extend(zip(train(compiled=True), train(compiled=False), strict=True)))
    assert all(torch.equal(a, b) for a, b in results)
    assert any("backward" in k for k in _kernels(trace) if k.startswith("triton_"))
    assert not any("lower" in note for note in trace.manifest["notes"] if "could not" in note)


def test_a_graph_break_and_dynamic_shapes_are_recorded(trace_of):
    calls = []

    def broken(x):
        y = x.softmax(-1)
        calls.append(y.shape)
        torch._dynamo.graph_break()
        return y * y + 1

    def program():
        with torch.no_grad():
            function = torch.compile(broken, dynamic=True)
            for rows in (20, 36):
                x = torch.randn(rows, 70)
                torch.testing.assert_close(function(x), x.softmax(-1).square() + 1)

    trace = trace_of(program)
    fused = trace.launches[trace.launches["kernel"].str.startswith("triton_")]
    assert len(fused) >= 4
    assert (fused["coverage"] == "exact").all()
    assert len(calls) == 2


def test_results_lie_where_the_lowered_program_left_them(trace_of):
    results = []

    def program():
        with torch.no_grad():
            x = torch.randn(4, 6)
            function = torch.compile(lambda a: (a[1:] * 2, (a + 1).t(), a))
            results.append((function(x), (x[1:] * 2, (x + 1).t(), x)))

    trace_of(program)
    actual, want = results[0]
    assert all(torch.equal(a, b) and a.shape == b.shape for a, b in zip(actual, want, strict=True))
    assert actual[2].data_ptr() == want[2].data_ptr()


def test_fake_programs_are_lowered_too(trace_of):
    def program():
        with torch.no_grad():
            torch.compile(Block())(torch.randn(8, 64))

    trace = trace_of(program, fake=True)
    assert sum(k.startswith("triton_") for k in _kernels(trace)) == 2


def test_another_backend_is_recorded_operator_by_operator_and_a_note_says_so(trace_of):
    def program():
        with torch.no_grad():
            torch.compile(lambda a: a.relu() + 1, backend="eager")(torch.randn(8, 64))

    trace = trace_of(program)
    assert not any(k.startswith("triton_") for k in _kernels(trace))
    assert any("its backend is 'eager'" in note for note in trace.manifest["notes"])


def test_without_triton_operators_are_recorded_and_a_note_says_what_to_install(trace_of, monkeypatch):
    from tileprof.record.model.compiled import entry

    monkeypatch.setattr(entry, "find_spec", lambda _: None)

    def program():
        with torch.no_grad():
            torch.compile(lambda a: a.relu() + 1)(torch.randn(8, 64))

    trace = trace_of(program)
    assert [k for k in _kernels(trace) if "relu" in k]
    assert any("pip install triton" in note for note in trace.manifest["notes"])


def test_a_graph_that_inductor_refuses_is_recorded_operator_by_operator(trace_of, monkeypatch):
    from tileprof.record.model.compiled import backend

    def refused(*_):
        raise RuntimeError("no lowering for this")

    monkeypatch.setattr(backend, "lower", refused)
    results = []

    def program():
        with torch.no_grad():
            x = torch.randn(8, 64)
            results.append((torch.compile(lambda a: a.relu() + 1)(x), x.relu() + 1))

    trace = trace_of(program)
    assert torch.equal(*results[0])
    assert any("no lowering for this" in note for note in trace.manifest["notes"])
    assert sum("relu" in k for k in _kernels(trace)) == 2


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
def test_layers_compiled_one_by_one_and_a_compiled_optimizer_are_recorded(trace_of):
    def program():
        layers = torch.nn.ModuleList(_Layer(kind()) for kind in _ACTIVATIONS)
        for layer in layers:
            layer.compile()
        optimizer = torch.optim.Adam(layers.parameters())
        step = torch.compile(optimizer.step)
        x = torch.randn(4, 16)
        for layer in layers:
            x = layer(x)
        x.sum().backward()
        step()

    trace = trace_of(program)
    fused = [k for k in _kernels(trace) if k.startswith("triton_")]
    assert sum(k.startswith("triton_for_fused") for k in fused) >= 1
    assert sum(k.startswith("triton_poi_fused") for k in fused) >= len(_ACTIVATIONS)
    assert not any("could not be lowered" in note for note in trace.manifest["notes"])


class _Layer(torch.nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.linear, self.activation = torch.nn.Linear(16, 16), activation

    def forward(self, x):
        return self.activation(self.linear(x))


_ACTIVATIONS = (
    torch.nn.ReLU, torch.nn.GELU, torch.nn.SiLU,
)  # fmt: skip


def test_a_choice_that_inductor_would_measure_is_made_by_rule_and_a_note_says_so(trace_of):
    def program():
        with torch.no_grad():
            a, b = torch.randn(128, 64).half(), torch.randn(64, 256).half()
            function = torch.compile(lambda a, b: (a @ b).relu(), mode="max-autotune-no-cudagraphs")
            torch.testing.assert_close(function(a, b), (a @ b).relu())

    trace = trace_of(program)
    assert any("Inductor would choose by measuring" in note for note in trace.manifest["notes"])
    assert "aten::mm" in trace.launches["op"].tolist()


def test_attention_with_dropout_stays_in_one_piece_as_on_a_gpu(trace_of):
    results = []

    def program():
        q, k, v = (torch.randn(1, 2, 32, 64, dtype=torch.bfloat16, requires_grad=True) for _ in range(3))
        function = torch.compile(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.1))
        results.append(function(q, k, v))
        results[0].sum().backward()
        results.append(q.grad)

    trace = trace_of(program)
    ops = trace.launches["op"].tolist()
    assert "aten::_scaled_dot_product_cudnn_attention" in ops
    assert "aten::_scaled_dot_product_cudnn_attention_backward" in ops
    assert not {"aten::bmm", "aten::mm"} & set(ops)
    assert results[0].shape == (1, 2, 32, 64)
    assert torch.isfinite(results[1]).all()


@pytest.mark.parametrize("channels_last", [False, True])
def test_convolutions_lie_as_the_code_around_them_takes_them_to_lie(trace_of, channels_last):
    results = []

    def program():
        layout = torch.channels_last if channels_last else torch.contiguous_format
        network = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3), torch.nn.ReLU(), torch.nn.Conv2d(32, 8, 1)).eval()
        network, line = network.to(memory_format=layout), torch.nn.Conv1d(8, 4, 3)
        x = torch.randn(2, 16, 12, 12).to(memory_format=layout)

        def function(x):
            return line(network(x).flatten(2)) * 2

        with torch.no_grad():
            results.append((torch.compile(function)(x), function(x)))

    trace = trace_of(program, initialisation=True)
    assert torch.equal(*results[0])
    assert not any("could not be lowered" in note for note in trace.manifest["notes"])
    assert trace.launches["op"].tolist().count("aten::convolution") >= 3


def test_a_result_in_another_layout_than_the_code_takes_it_to_have_is_refused():
    from tileprof.record.model.compiled import wrapper

    wrapper._assert_layout(torch.empty(4, 1, 6), (4, 1, 6), (6, 77, 1))
    with pytest.raises(ValueError, match="has layout"):
        wrapper._assert_layout(torch.empty(4, 6), (4, 6), (1, 4))
