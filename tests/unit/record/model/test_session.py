"""The operators that a session sees, and the buffers to which it binds the launches."""

import threading

import numpy as np
import pytest
import torch

import tileprof
from tileprof.analysis import build_graph


def _ops(trace):
    return list(trace.launches.op)


def _operands(trace, launch):
    """Return ``(buffer, offset)`` of each operand slot of a launch."""
    buffers, offsets = trace.operands_of(launch)
    return list(zip(buffers.tolist(), offsets.tolist(), strict=True))


def _written_operands(trace, launch):
    """Return the one ``(buffer, offset)`` that a launch writes to."""
    boxes = trace.footprint(int(trace.launches.footprint[launch])).boxes
    slots = set(boxes.operand[boxes.mode != 0].tolist())
    assert len(slots) == 1
    return _operands(trace, launch)[slots.pop()]


def test_views_and_allocations_launch_nothing(trace_of):
    def program():
        x = torch.empty(4, 6)
        x.t().reshape(-1).view(2, 12)[0, 3:].unsqueeze(0).expand(5, 9).detach().numel()
        torch.empty_like(x).transpose(0, 1)

    assert _ops(trace_of(program)) == ["aten::clone"]  # reshape of a transposed tensor copies


def test_an_in_place_operator_on_a_view_writes_into_the_same_buffer(trace_of):
    def program():
        x = torch.zeros(8, 8)
        x[2, 4:].add_(1.0)

    trace = trace_of(program)
    assert _ops(trace) == ["aten::zeros", "aten::add_.Tensor"]
    assert _written_operands(trace, 0)[0] == _written_operands(trace, 1)[0]
    assert _written_operands(trace, 1)[1] - _written_operands(trace, 0)[1] == (2 * 8 + 4) * 4


def test_out_arguments_are_bound_to_the_given_memory(trace_of):
    def program():
        whole = torch.empty(2, 5)
        torch.add(torch.ones(5), torch.ones(5), out=whole[1])
        whole.neg_()

    trace = trace_of(program)
    assert set(trace.launches.coverage) == {"exact"}
    add_launch, negated = (_ops(trace).index(op) for op in ("aten::add.out", "aten::neg_"))
    assert _written_operands(trace, add_launch) == (_written_operands(trace, negated)[0], 5 * 4)


def test_products_that_add_slices_wait_for_the_workspace_of_the_library(trace_of):
    def program():
        a, b, c, d = (torch.ones(*shape) for shape in ((64, 4096), (4096, 64), (32, 4096), (4096, 32)))
        a @ b
        c @ d

    trace = trace_of(program, tile=("gemm=32x32x32,split=4",))
    products = trace.launches.launch[trace.launches.op == "aten::mm"].tolist()
    assert len(products) == 4
    space = trace.buffers.buffer[trace.buffers.name == "workspace of cublas"].tolist()
    assert all(space[0] in dict(_operands(trace, launch)) for launch in products)
    pairs = build_graph(trace).pairs
    reading, writing = products[1], products[2]
    waits = pairs[(pairs.producer == reading) & (pairs.consumer == writing)]
    assert len(waits) == 1
    assert not waits.reuse_only.any()


def test_memory_that_was_given_back_is_another_buffer_at_the_same_address(trace_of):
    def program():
        x = torch.ones(1000)
        for _ in range(2):
            y = x * 2
            del y

    trace = trace_of(program)
    first, second = (_written_operands(trace, n)[0] for n in (1, 2))
    rows = trace.buffers.set_index("buffer")
    assert first != second
    assert rows.base[first] == rows.base[second]
    assert rows.freed_at[first] == 2 == rows.allocated_at[second]


def test_memory_that_autograd_holds_is_not_given_back(trace_of):
    def program():
        x = torch.ones(1000, requires_grad=True)
        y = x.exp()  # its result is saved for backward
        z = y * 3
        del y
        (z * 2).sum().backward()

    trace = trace_of(program)
    exp = _written_operands(trace, _ops(trace).index("aten::exp"))[0]
    assert trace.buffers.freed_at[exp] > _ops(trace).index("aten::sum")


def test_one_array_seen_through_two_tensors_is_one_buffer(trace_of):
    array = np.zeros(100, np.float32)

    def program():
        one, two = torch.from_numpy(array), torch.from_numpy(array)
        one.add_(1)
        two.mul_(2)

    trace = trace_of(program)
    assert _written_operands(trace, 0) == _written_operands(trace, 1)
    assert set(trace.buffers.kind) == {"input"}


def test_a_resized_storage_is_a_new_buffer(trace_of):
    def program():
        x = torch.ones(10)
        x.untyped_storage().resize_(4000)
        x.mul_(2)

    trace = trace_of(program)
    assert list(trace.buffers.bytes) == [40, 4000]
    assert trace.buffers.freed_at[0] == 2  # after its contents were copied


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_statistics_of_norms_have_32_bits(trace_of, dtype):
    def program():
        x = torch.rand(6, 8, 4, 4, dtype=dtype, requires_grad=True)
        norms = torch.nn.BatchNorm2d(8, eps=1e-6).to(dtype), torch.nn.LayerNorm(4).to(dtype)
        norms[1](norms[0](x)).sum().backward()

    trace = trace_of(program)
    launches, operands = trace.launches, trace.operands
    forward = launches.index[launches.kernel == "rows<native_layer_norm>"][0]
    back = launches.index[launches.kernel == "rows<native_layer_norm_backward>"][0]
    mine, later = (set(operands[operands.launch == at].buffer) for at in (forward, back))
    statistics = trace.buffers[trace.buffers.buffer.isin(mine & later) & (trace.buffers.bytes == 6 * 8 * 4 * 4)]
    assert statistics.dtype.tolist() == ["float32"] * 2
    graph = build_graph(trace, granule=4)
    pattern = {(p.producer, p.consumer): p.pattern for p in graph.pairs[~graph.pairs.reuse_only].itertuples()}
    assert pattern[forward, back] == "one_to_one"
    sums = launches.index[launches.kernel == "channels<collect_statistics>"][0]
    transform = launches.index[launches.kernel == "channels<batch_norm_transform>"][0]
    assert pattern[sums, transform] in {"one_to_one", "one_to_many"}


def test_tensors_of_no_size_have_no_buffer_and_no_launch(trace_of):
    def program():
        x = torch.ones(0, 4)
        (x + 1).sum(1)
        torch.cat([x, torch.ones(2, 4)]).mul_(2)

    trace = trace_of(program)
    assert trace.buffers.bytes.min() > 0
    assert "aten::add.Tensor" not in _ops(trace)


def test_backward_operators_are_seen_with_the_module_of_their_forward(trace_of):
    net = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Tanh(), torch.nn.Linear(8, 2))

    def program():
        net(torch.ones(3, 4)).sum().backward()

    launches = trace_of(program).launches
    backward = launches[launches.launch > launches.index[launches.op == "aten::sum"][0]]
    assert backward.module[backward.op == "aten::tanh_backward"].tolist() == ["1"]
    assert {"0", "2"} == set(backward.module[backward.op.str.startswith("aten::mm")])


@pytest.mark.parametrize("activation", [torch.nn.functional.silu, torch.nn.functional.mish])
def test_gradients_of_activations_are_one_launch(trace_of, activation):
    def program():
        activation(torch.rand(10, requires_grad=True)).sum().backward()

    name = f"aten::{activation.__name__}"
    assert [op for op in _ops(trace_of(program)) if op.startswith(name)] == [name, f"{name}_backward"]


def test_module_paths_are_those_of_the_outermost_module(trace_of):
    class Block(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.fc = torch.nn.Linear(4, 4)

        def forward(self, x):
            return self.fc(x).relu()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.h = torch.nn.ModuleList([Block(), Block()])

        def forward(self, x):
            return self.h[1](self.h[0](x)) * 2

    model = Model()

    def program():
        model(torch.ones(2, 4)).neg()
        model.h[1](torch.ones(2, 4))

    trace = trace_of(program)
    launches = trace.launches
    assert set(launches.module[launches.op == "aten::addmm"]) == {"h.0.fc", "h.1.fc"}
    assert launches.module[launches.op == "aten::relu"].tolist() == ["h.0", "h.1", "h.1"]
    assert launches.module[launches.op == "aten::mul.Tensor"].tolist() == ["Model"]
    assert launches.module[launches.op == "aten::neg"].tolist() == [""]
    assert {"h.0.fc.weight", "h.0.fc.bias", "h.1.fc.weight", "h.1.fc.bias"} == set(
        trace.buffers.name[trace.buffers.kind == "parameter"]
    )


def test_names_survive_deep_copies_and_tied_weights(trace_of):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    model.layers[1].linear2.weight = model.layers[0].linear2.weight

    def program():
        with torch.no_grad():
            model(torch.ones(1, 3, 8))

    trace = trace_of(program)
    assert {"layers.0.linear1", "layers.1.linear1"} <= set(trace.launches.module)
    names = set(trace.buffers.name)
    assert "layers.0.linear2.weight" in names
    assert "layers.1.linear2.weight" not in names


def test_fused_encoder_layers_are_taken_apart_and_the_switch_is_put_back(trace_of):
    layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    x = torch.randn(1, 3, 8)
    with torch.no_grad():
        expected, actual = layer(x), []
        trace = trace_of(lambda: actual.append(layer(x)))
    torch.testing.assert_close(actual[0], expected)
    assert not any("transformer_encoder" in op or "native_multi_head" in op for op in _ops(trace))
    assert torch.backends.mha.get_fastpath_enabled()


def test_an_lstm_with_gradients_is_recorded_cell_by_cell(trace_of):
    lstm, x, actual = torch.nn.LSTM(4, 6), torch.randn(3, 1, 4), []
    expected = lstm(x)[0]
    trace = trace_of(lambda: actual.append(lstm(x)[0]))
    torch.testing.assert_close(actual[0], expected)
    assert _ops(trace).count("aten::sigmoid_") == 3 * 3
    assert "LSTM was recorded step by step" in " ".join(trace.manifest["notes"])


def test_a_checkpoint_runs_its_modules_again_under_their_names(trace_of):
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Tanh())
    x = torch.ones(2, 4, requires_grad=True)

    def program():
        torch.utils.checkpoint.checkpoint(net, x, use_reentrant=False).sum().backward()

    launches = trace_of(program).launches
    assert launches.module[launches.op == "aten::tanh"].tolist() == ["1", "1"]
    assert launches.module[launches.op == "aten::tanh_backward"].tolist() == ["1"]


def test_backward_of_a_custom_function_belongs_to_the_module_that_called_it(trace_of):
    class Sine(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x.sin()

        @staticmethod
        def backward(ctx, gradient):
            return gradient * ctx.saved_tensors[0].cos()

    class Layer(torch.nn.Module):
        def forward(self, x):
            return Sine.apply(x)

    net = torch.nn.Sequential(torch.nn.Linear(4, 4), Layer())
    launches = trace_of(lambda: net(torch.ones(2, 4)).sum().backward()).launches
    assert launches.module[launches.op == "aten::cos"].tolist() == ["1"]


def test_operators_inside_function_transforms_are_seen(trace_of):
    def program():
        torch.func.vmap(lambda a: a.tan())(torch.ones(2, 3))
        torch.func.grad(lambda a: a.exp().sum())(torch.ones(3))

    assert {"aten::tan", "aten::exp"} <= set(_ops(trace_of(program)))


def test_inference_mode_shows_the_same_launches_as_no_grad(trace_of):
    net, x = torch.nn.Linear(8, 8), torch.ones(2, 3, 8)

    def program(mode):
        with mode():
            net(x).softmax(-1)

    one, two = (trace_of(lambda m=m: program(m)) for m in (torch.no_grad, torch.inference_mode))
    assert list(one.launches.kernel) == list(two.launches.kernel)


@pytest.mark.parametrize("fake", [False, True])
def test_operators_of_other_threads_are_seen(trace_of, fake):
    def work():
        torch.ones(5).cos()

    def program():
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert _ops(trace_of(program, fake=fake)).count("aten::cos") == 3


def test_equal_calls_share_a_footprint_and_others_do_not(trace_of):
    def program():
        for size in (1000, 1000, 1001):
            torch.ones(size).cos()

    launches = trace_of(program).launches
    prints = launches.footprint[launches.op == "aten::cos"].tolist()
    assert prints[0] == prints[1] != prints[2]


def test_an_operator_without_a_model_is_conservative_named_and_whole(trace_of):
    library = torch.library.Library("tileprof_test", "FRAGMENT")
    library.define("mystery(Tensor x, Tensor(a!) y) -> Tensor")
    library.impl("mystery", lambda x, y: y.add_(1).sum() + x.t().contiguous(), "CPU")

    def program():
        x, y = torch.ones(6, 4), torch.ones(3)
        torch.ops.tileprof_test.mystery(x[:, :2], y)

    trace = trace_of(program)
    launch = _ops(trace).index("tileprof_test::mystery")
    row = trace.launches.loc[launch]
    boxes = trace.footprint(row.footprint).boxes
    assert row.coverage == "conservative"
    assert "mystery has no tile model" in " ".join(trace.manifest["notes"])
    bytes_by_launch = {}
    for n in range(len(boxes)):
        run, inner, outer = int(boxes.length[n]), int(boxes.count_0[n]), int(boxes.count_1[n])
        bytes_by_launch[(int(boxes.operand[n]), int(boxes.mode[n]))] = run * inner * outer
    assert bytes_by_launch == {(0, 0): 6 * 2 * 4, (1, 0): 12, (1, 1): 12, (2, 1): 2 * 6 * 4}


def test_a_failing_tile_model_costs_exactness_only(trace_of, capsys, monkeypatch):
    from tileprof.record.model import tile_model

    def broken(call, device):
        raise ZeroDivisionError("in the model")

    monkeypatch.setitem(tile_model.REGISTRY, "aten::cos", tile_model.Entry(broken))
    trace = trace_of(lambda: torch.ones(5).cos().sin())
    assert list(trace.launches.coverage[-2:]) == ["conservative", "exact"]
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_a_failing_recorder_never_reaches_the_program(tmp_path, capsys, monkeypatch):
    from tileprof import devices
    from tileprof.record import Options
    from tileprof.record.model.session import Session

    session = Session(Options(("x",), tmp_path / "t.tileprof"), devices.get("H200"), ["x"])
    monkeypatch.setattr(session, "_launch", lambda *_: 1 / 0)
    session.start()
    try:
        assert torch.ones(3).cos().sum() > 0
    finally:
        session.stop()
    assert "ZeroDivisionError" in session.failure
    assert capsys.readouterr().err.count("recording stopped") == 1
    session.writer.abandon(session.failure)
    assert not tileprof.load(tmp_path / "t.tileprof.partial").complete


@pytest.mark.parametrize("vectorised", [False, True])
def test_modules_inside_function_transforms_are_recorded_with_their_names(trace_of, vectorised):
    from torch.func import functional_call, grad, vmap

    network = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1))

    def loss(parameters, x):
        return functional_call(network, parameters, (x,)).pow(2).mean()

    def program():
        parameters = {name: p.detach() for name, p in network.named_parameters()}
        if vectorised:
            vmap(grad(loss), in_dims=(None, 0))(parameters, torch.rand(5, 4, 8))
        else:
            grad(loss)(parameters, torch.rand(4, 8))

    trace = trace_of(program)
    beside = trace.launches.kernel.isin(["memset", "splitk_reduce", "gemm_epilogue", "elementwise<copy_>"])
    products = [op for op in trace.launches.op[~beside] if op in {"aten::addmm", "aten::mm", "aten::bmm"}]
    assert len(products) == 5, "two forward, one for the hidden gradient, two for weights"
    assert {"0", "2"} <= set(trace.launches.module)
    assert {"0.weight", "2.weight"} <= set(trace.buffers.name)


def test_optimiser_steps_are_planned_once_whatever_their_bias_corrections(trace_of, monkeypatch):
    from tileprof.record.model.calls import launch_plans

    network = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 8))
    optimiser = torch.optim.Adam(network.parameters())
    plan_calls, plan = [], launch_plans.plan

    def counted(operator, *rest, **options):
        plan_calls.append(operator.name)
        return plan(operator, *rest, **options)

    monkeypatch.setattr(launch_plans, "plan", counted)

    def program():
        for _ in range(5):
            optimiser.zero_grad()
            network(torch.ones(3, 8)).square().mean().backward()
            optimiser.step()
            plan_calls.append("step")

    trace = trace_of(program)
    steps = " ".join(plan_calls).split("step")
    assert "_foreach_addcdiv_" in steps[0]
    assert not steps[3].split(), "all layouts are known after the second step"
    ops = trace.launches["op"].astype(str)
    assert ops.str.contains("_foreach_addcdiv_").sum() == 5


def test_a_number_that_changes_is_in_the_call_and_not_in_the_plan(trace_of):
    import json

    trace = trace_of(lambda: [torch.ones(4).mul(number) for number in (2.0, 3.0)])
    calls = [json.loads(text) for text, op in zip(trace.launches.call, trace.launches.op, strict=True) if "mul" in op]
    assert [call["arguments"]["other"] for call in calls] == [2.0, 3.0]
    rows = trace.launches[trace.launches.op.astype(str).str.contains("mul")]
    assert rows.footprint.nunique() == rows.fingerprint.nunique() == 1


def test_tensor_subclasses_are_seen_through(trace_of):
    from torch.testing._internal.two_tensor import TwoTensor

    trace = trace_of(lambda: TwoTensor(torch.ones(4), torch.ones(4)).cos())
    assert _ops(trace).count("aten::cos") == 2


def test_sparse_tensors_are_bound_to_their_components(trace_of):
    def program():
        sparse = torch.sparse_coo_tensor(torch.tensor([[0, 1], [1, 0]]), torch.ones(2), (2, 2), check_invariants=True)
        torch.sparse.mm(sparse, torch.ones(2, 2))

    trace = trace_of(program)
    assert set(trace.launches.coverage) == {"exact", "conservative"}


def test_data_dependent_models_see_values_as_they_were_before_the_call(trace_of, monkeypatch):
    from tileprof.record.model import tile_model

    records = []

    def model(c, device):
        records.append([c.value(o) for o in c.tensors])
        return []

    monkeypatch.setitem(tile_model.REGISTRY, "aten::index_add_", tile_model.Entry(model, data_dependent=True))
    index = torch.tensor([1, 0])
    trace_of(lambda: torch.zeros(2, dtype=torch.int64).index_add_(0, index, torch.tensor([5, 6])))
    assert [t.tolist() for t in records[0][:3]] == [[0, 0], [1, 0], [5, 6]]


@pytest.mark.parametrize("fake", [False, True])
def test_durations_and_begins_follow_each_other(trace_of, fake):
    def program():
        (torch.ones(100_000) * 2).sum()

    launches = trace_of(program, fake=fake).launches
    assert (launches.duration_ns > 0).all()
    assert (launches.begin_ns[1:].to_numpy() >= (launches.begin_ns + launches.duration_ns)[:-1].to_numpy()).all()


def test_parameters_without_a_shape_yet_are_named_once_they_have_one(trace_of):
    def program():
        module = torch.nn.Sequential(torch.nn.LazyLinear(3))
        module(torch.ones(2, 4))
        module(torch.ones(2, 4))

    trace = trace_of(program)
    assert set(trace.buffers.name[trace.buffers.kind == "parameter"]) == {"0.weight", "0.bias"}
