"""Layers of recurrent networks inside a session: cuDNN's operator, its values and its launches."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from tests.unit.record.model.tiles import taint
from tests.unit.record.model.tiles.oracle import operand_of, run_model
from tests.unit.record.model.tiles.watch import check, describe
from tileprof.devices import get
from tileprof.record.model.observation.recurrent_layers import as_on_gpu

KINDS = [nn.LSTM, nn.GRU, nn.RNN]
FUSED = "aten::_cudnn_rnn"
RUN = taint._run
MIXED = {"num_layers": 2, "bidirectional": True, "batch_first": True}


def by_cells(name):
    raise AssertionError(name)


def flat(results):
    out, states = results
    return [out, *(states if isinstance(states, tuple) else [states])]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("options", [{}, {"bias": False}, MIXED])
@pytest.mark.parametrize("kind", KINDS)
def test_the_operator_has_the_values_of_pytorchs_own_path(kind, options, dtype):
    torch.manual_seed(0)
    layers, x = kind(5, 7, dtype=dtype, **options), torch.randn(3, 4, 5, dtype=dtype)
    with torch.no_grad():
        expected = flat(layers(x))
        with as_on_gpu(by_cells):
            actual = flat(layers(x))
    for one, other in zip(actual, expected, strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        torch.testing.assert_close(one, other, rtol=0.02, atol=0.02)
    assert actual[0].transpose(0, 1).is_contiguous() == bool(options.get("batch_first"))


class Perturbed(TorchDispatchMode):
    """Checks what tiles of the operator touch, and changes one number of each of its inputs."""

    attempts = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if func is torch.ops.aten._cudnn_rnn.default:
            call = describe(func, args, kwargs or {})
            for tensor in result:
                call.tensors += (operand_of(tensor, len(call.tensors)),)
            call.outputs = call.tensors[len(call.tensors) - len(result) :]
            kernels = run_model(call, get("H200"))
            check(call, kernels)
            without_chance = SimpleNamespace(tags=(), _schema=func._schema)  # it is tagged for its dropout
            with mock.patch.object(taint, "_run", lambda _, *rest: RUN(func, *rest)):
                random = np.random.default_rng(0)
                self.attempts += taint.check(without_chance, args, kwargs or {}, call, kernels, random)
        return result


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("units", [7, 200])
@pytest.mark.parametrize("options", [{}, {"bias": False}, MIXED])
@pytest.mark.parametrize("kind", KINDS)
def test_what_changes_with_an_input_was_read(kind, options, units, dtype):
    if units == 200 and not (options is MIXED and dtype is torch.float32 and kind is nn.GRU):
        return
    torch.manual_seed(0)
    layers, x = kind(5, units, dtype=dtype, **options), torch.randn(2, 3, 5, dtype=dtype)
    perturbed = Perturbed()
    with as_on_gpu(by_cells), torch.no_grad(), perturbed:
        layers(x)
    assert perturbed.attempts >= 2 + len(list(layers.parameters()))


@pytest.mark.parametrize(("kind", "dtype", "batch", "units", "expected"), [
    (nn.GRU, torch.float32, 4, 64, [("elementwise<contiguous>", 16), ("recurrent_bias", 16), ("recurrent_layer", 4)]),
    (nn.LSTM, torch.float32, 4, 64, [("elementwise<contiguous>", 16), ("recurrent_layer", 4)]),
    (nn.RNN, torch.float16, 4, 64, [("elementwise<contiguous>", 8), ("recurrent_layer", 4)]),
    (nn.LSTM, torch.float32, 32, 512, [("elementwise<contiguous>", 1024), *[("recurrent_cell", 64)] * 16]),
    (nn.GRU, torch.bfloat16, 4, 64, [("elementwise<contiguous>", 8), ("vectorized_elementwise<zero_>", 25),
                                     *[("memcpy<device to device>", 1)] * 4, *[("recurrent_cell", 1)] * 16]),
])  # fmt: skip
def test_launches_beside_products_are_those_recorded_on_an_h200(trace_of, kind, dtype, batch, units, expected):
    layers, x = kind(units, units, batch_first=True, dtype=dtype), torch.randn(batch, 16, units, dtype=dtype)
    hx = torch.zeros(1, batch, units, dtype=dtype)

    def program():
        with torch.no_grad():
            layers(x, (hx, hx) if kind is nn.LSTM else hx)

    trace = trace_of(program)
    launches = list(zip(trace.launches.kernel, trace.launches.grid_x, strict=True))
    assert [launch for launch in launches if not launch[0].startswith(("gemm", "splitk", "nvjet"))] == expected
    products = sum(name.startswith(("gemm", "nvjet")) for name, _ in launches)
    assert products == (1 if expected[-1][0] == "recurrent_layer" else 17)
    assert not trace.manifest["notes"]


@pytest.mark.parametrize("fake", [False, True])
def test_a_layer_is_one_operator_also_with_fake_tensors(trace_of, fake):
    def program():
        with torch.inference_mode():
            nn.GRU(8, 8)(torch.randn(3, 2, 8))

    assert FUSED in trace_of(program, fake=fake).launches.op.tolist()


def test_layers_with_gradients_packed_sequences_and_projections_are_recorded_cell_by_cell(trace_of):
    x = torch.randn(3, 2, 4)
    packed = nn.utils.rnn.pack_padded_sequence(x, [3, 2])
    with torch.no_grad():
        programs = [lambda: nn.LSTM(4, 6)(packed), lambda: nn.LSTM(4, 6, proj_size=3)(x)]
        traces = [trace_of(program) for program in programs]
    traces.append(trace_of(lambda: nn.LSTM(4, 6)(x)))
    for trace in traces:
        assert FUSED not in trace.launches.op.tolist()
        assert any("LSTM was recorded step by step" in note for note in trace.manifest["notes"])


def test_functions_are_put_back():
    before = torch._VF.lstm
    with as_on_gpu(by_cells):
        assert torch._VF.lstm is not before
    assert torch._VF.lstm is before
    assert not torch._C._dispatch_has_kernel_for_dispatch_key(FUSED, "CPU")


def test_layers_of_one_direction_follow_each_other_a_quarter_of_the_steps_behind(trace_of):
    layers, x, hx = (
        nn.LSTM(8, 8, num_layers=2, dtype=torch.bfloat16),
        torch.randn(8, 2, 8).bfloat16(),
        torch.zeros(2, 2, 8),
    )

    def program():
        with torch.no_grad():
            layers(x, (hx.bfloat16(), hx.bfloat16()))

    launches = trace_of(program).launches
    kernels = launches.kernel[launches.op == FUSED].tolist()
    of_wave = "".join("c" if kernel == "recurrent_cell" else "p" for kernel in kernels[1 + 8 :])
    chunk = "ppcpc"  # the product of two steps of the input, then these steps
    assert of_wave == chunk * 8
