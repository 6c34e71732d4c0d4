"""Attention inside a session: the kernels that a GPU would choose, and their values and gradients."""

import pytest
import torch
from torch.nn import functional

from tileprof.record.model.observation.attention_choice import Backend, as_on_gpu, backend

HOPPER, AMPERE = (9, 0), (8, 0)


def tensors(*, queries=6, keys=8, heads=(4, 4), width=8, dtype=torch.float32, grad=True):
    torch.manual_seed(0)
    shapes = (2, heads[0], queries, width), (2, heads[1], keys, width), (2, heads[1], keys, width)
    return [torch.randn(shape).to(dtype).requires_grad_(grad) for shape in shapes]


@pytest.mark.parametrize(
    ("options", "mask", "dropout", "capability", "expected"),
    [
        ({}, None, 0.1, HOPPER, Backend.EFFICIENT),
        ({"dtype": torch.float16}, None, 0.1, HOPPER, Backend.CUDNN),
        ({"dtype": torch.float16}, None, 0.1, AMPERE, Backend.FLASH),
        ({"dtype": torch.float16}, torch.zeros(6, 8), 0.1, AMPERE, Backend.EFFICIENT),
        ({"dtype": torch.float16}, torch.zeros(8, 6).T, 0.1, HOPPER, Backend.MATH),
        ({"dtype": torch.float16}, torch.zeros(6, 8, requires_grad=True), 0.1, HOPPER, Backend.EFFICIENT),
        ({"dtype": torch.float16, "queries": 1}, None, 0.1, HOPPER, Backend.FLASH),
        ({"dtype": torch.float16, "width": 12}, None, 0.1, HOPPER, Backend.FLASH),
        ({"dtype": torch.float64}, None, 0.1, HOPPER, Backend.MATH),
        ({"heads": (4, 2)}, None, 0.0, HOPPER, Backend.MATH),
    ],
)
def test_the_choice_is_that_of_pytorch_on_a_gpu(options, mask, dropout, capability, expected):
    query, key, value = tensors(**options)

    actual = backend(query, key, value, mask, dropout, False, enable_gqa=False, capability=capability)

    assert actual is expected


def test_grouped_queries_of_float32_are_written_out():
    query, key, value = tensors(heads=(4, 1))
    actual = [
        backend(q, k, v, None, 0.0, False, enable_gqa=True, capability=HOPPER)
        for q, k, v in ((query, key, value), (query.half(), key.half(), value.half()), (query, query, query))
    ]
    assert actual == [Backend.MATH, Backend.CUDNN, Backend.EFFICIENT]


def test_a_program_may_forbid_kernels():
    query, key, value = tensors(dtype=torch.float16)

    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.EFFICIENT_ATTENTION):
        actual = backend(query, key, value, None, 0.1, False, enable_gqa=False, capability=HOPPER)

    assert actual is Backend.EFFICIENT


@pytest.mark.parametrize(
    ("strides", "expected"),
    [((49 * 6, 49, 1), (336, 56, 1)), ((56 * 6, 56, 1), (336, 56, 1)), ((400, 64, 1), (400, 64, 1))],
)
def test_the_memory_efficient_kernel_takes_masks_whose_rows_begin_at_multiples_of_eight(strides, expected):
    mask = torch.randn(2000).as_strided((4, 6, 49), strides)
    query, key, value = tensors(keys=49)
    seen = []

    class Watch(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, _types, args=(), kwargs=None):
            if "efficient_attention" in str(func):
                seen.append(args[3])
            return func(*args, **(kwargs or {}))

    with as_on_gpu(HOPPER), Watch():
        functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.5)

    (bias,) = seen
    assert bias.shape == (2, 4, 6, 49)
    assert bias.stride() == (0, *expected)
    assert (bias.data_ptr() == mask.data_ptr()) == (strides == expected)
    assert torch.equal(bias[1], mask)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("kind", ["plain", "causal", "mask", "learnt mask"])
def test_kernels_that_a_cpu_lacks_have_the_values_of_the_written_out_form(dtype, kind):
    query, key, value = tensors(queries=8, width=16, dtype=dtype)
    mask = torch.randn(4, 8, 8).to(dtype).requires_grad_(kind == "learnt mask") if "mask" in kind else None
    inputs = [query, key, value] + [mask] * (kind == "learnt mask")
    options = {"is_causal": kind == "causal", "attn_mask": mask}
    weights = torch.randn(2, 4, 8, 16)

    def results(dropout):
        out = functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, **options)
        return [out, *torch.autograd.grad((out * weights).sum(), inputs)]

    expected = results(0.0)
    with as_on_gpu(HOPPER):
        actual = results(1e-12)  # drops nothing, and takes the kernels with dropout

    for one, other in zip(actual, expected, strict=True):
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=2e-3, atol=4e-3)


def test_gradients_belong_to_the_values_that_dropout_left():
    query, key, value = tensors(dtype=torch.float32)
    value = value.detach().double().float().requires_grad_()
    direction = torch.randn_like(value)

    with as_on_gpu(HOPPER):
        out = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        gradient = torch.randn_like(out)
        (of_value,) = torch.autograd.grad(out, value, gradient)
        torch.manual_seed(7)
        first = functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5)
        torch.manual_seed(7)
        second = functional.scaled_dot_product_attention(query, key, value + direction, dropout_p=0.5)
        (again,) = torch.autograd.grad(first, value, gradient)

    assert of_value.shape == value.shape
    assert not torch.equal(of_value, again)  # another random draw gives another gradient
    # Linear in the values, with the same draw: the difference is the gradient along the direction.
    torch.testing.assert_close(((second - first) * gradient).sum(), (again * direction).sum(), rtol=1e-3, atol=1e-3)


def test_outside_of_a_session_pytorch_is_as_before():
    query, key, value = tensors(dtype=torch.float16)

    with as_on_gpu(HOPPER):
        pass

    operator = torch.ops.aten._scaled_dot_product_cudnn_attention.default
    with pytest.raises(NotImplementedError):
        operator(query.detach(), key.detach(), value.detach(), None, False)
    assert functional.scaled_dot_product_attention(query, key, value, dropout_p=0.5).shape == query.shape


def test_attention_with_dropout_is_one_operator_and_its_blocks_read_the_random_state(trace_of):
    query, key, value = tensors(dtype=torch.bfloat16, queries=32, keys=48, width=64)

    trace = trace_of(lambda: functional.scaled_dot_product_attention(query, key, value, dropout_p=0.1).sum().backward())

    launches = trace.launches
    assert launches.kernel.str.startswith("unpack_cudnn").tolist()[:3] == [True, False, False]
    forward = "aten::_scaled_dot_product_cudnn_attention"
    assert launches.op.tolist()[:3] == [forward] * 3
    assert launches.op.tolist()[-4:] == [f"{forward}_backward"] * 4
    pairs = {(r.producer, r.consumer) for r in trace.graph().pairs.itertuples()}
    state = {(0, 2), (0, len(launches) - 2)}  # the blocks of both passes
    assert state <= pairs
    assert {(1, 2), (len(launches) - 4, len(launches) - 2)} <= pairs  # and the counters that memsets clear


def test_a_mask_of_other_strides_is_written_out_and_dropout_keeps_its_mask(trace_of):
    query, key, value = tensors(dtype=torch.bfloat16, queries=32, keys=32, width=64)
    mask = torch.zeros(1, 4, 32, 32, dtype=torch.bfloat16).mT

    operators = trace_of(
        lambda: functional.scaled_dot_product_attention(query, key, value, mask, dropout_p=0.1)
    ).launches.op.tolist()
    inferred = trace_of(
        lambda: torch.inference_mode()(functional.scaled_dot_product_attention)(query, key, value, mask)
    ).launches.op.tolist()

    assert "aten::_safe_softmax" in operators
    assert operators.count("aten::native_dropout") == 1
    assert "aten::_safe_softmax" in inferred
    assert not any("scaled_dot_product" in name for name in inferred)


def test_the_product_of_a_softmax_and_its_gradient_is_a_kernel_of_its_own(trace_of):
    output = torch.rand(8, 300).softmax(-1)
    gradient = torch.rand(8, 300)

    trace = trace_of(lambda: torch._softmax_backward_data(gradient, output, -1, torch.float32))

    assert trace.launches.op.tolist() == ["aten::_softmax_backward_data"] * 2
    assert [(r.producer, r.consumer) for r in trace.graph().pairs.itertuples()] == [(0, 1)]


def test_heads_of_odd_widths_are_padded_for_flash_attention(trace_of):
    def program():
        query, key, value = tensors(width=12, dtype=torch.float16, grad=False)
        return functional.scaled_dot_product_attention(query, key, value)

    launches = trace_of(program).launches
    operators = launches.op.tolist()
    assert operators.count("aten::constant_pad_nd") == 2 * 3, "zeros and a copy each"
    assert "aten::_scaled_dot_product_flash_attention" in operators
    query, key, value = tensors(width=12, dtype=torch.float16, grad=False)
    expected = functional.scaled_dot_product_attention(query, key, value)
    with as_on_gpu(HOPPER):
        actual = functional.scaled_dot_product_attention(query, key, value)
    torch.testing.assert_close(actual, expected, rtol=2e-3, atol=4e-3)


@pytest.mark.parametrize("keys", [48, 49])
def test_masks_of_odd_rows_are_padded_where_the_cpu_has_a_kernel_for_them(trace_of, keys):
    query, mask = torch.randn(2, 2, keys, 32), torch.randn(1, 1, keys, keys)
    found = []
    trace = trace_of(lambda: found.append(functional.scaled_dot_product_attention(query, query, query, mask)))
    operators = list(trace.launches.op)
    assert operators.count("aten::constant_pad_nd") == 2 * (keys % 8 != 0), "zeros and a copy"
    assert sum(op.startswith("aten::_scaled_dot_product") for op in operators) == 1
    weights = (query @ query.mT / 32**0.5 + mask).softmax(-1)
    assert torch.allclose(found[0], weights @ query, atol=1e-4)
    written = trace.operands_of(len(operators) - 2)[0]
    assert keys % 8 == 0 or set(written) & set(trace.operands_of(len(operators) - 1)[0])


@pytest.mark.parametrize("grad", [False, True])
def test_results_of_the_memory_efficient_kernel_have_heads_beside_each_other(trace_of, grad):
    query, key, value = tensors(dtype=torch.float32, grad=grad)
    assert query.is_contiguous()
    results = []

    def program():
        out = functional.scaled_dot_product_attention(query, key, value)
        results.append(out)
        return out.transpose(1, 2).contiguous()

    operators = list(trace_of(program).launches.op)
    assert operators == ["aten::_scaled_dot_product_efficient_attention"]
    assert results[0].transpose(1, 2).is_contiguous()
    expected = (query @ key.mT / query.shape[-1] ** 0.5).softmax(-1) @ value
    torch.testing.assert_close(results[0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("heads_first", [False, True])
def test_gradients_of_cudnns_attention_lie_like_its_inputs(trace_of, heads_first):
    """A CPU's gradients have heads beside each other; those of keys that were made contiguous are copied on a GPU."""
    shape = (2, 4, 6, 8) if heads_first else (2, 6, 4, 8)
    source = torch.randn(shape).half().requires_grad_()

    def program():
        key = source if heads_first else source.transpose(1, 2)
        functional.scaled_dot_product_attention(key, key, key).float().square().sum().backward()

    trace_of(program)
    gradient = source.grad
    assert gradient.is_contiguous()
    ops = list(trace_of(program).launches.op)
    assert any(op == "aten::_scaled_dot_product_cudnn_attention_backward" for op in ops) == heads_first


def test_gradients_of_memory_efficient_attention_say_what_is_inferred(trace_of):
    query, key, value = tensors(dtype=torch.float32, queries=8, keys=8, width=16)
    query.requires_grad_()

    trace = trace_of(lambda: functional.scaled_dot_product_attention(query, key, value).sum().backward())

    [(coverage, note)] = {
        (row.coverage, row.note) for row in trace.launches.itertuples() if row.kernel.startswith("attention_backward")
    }
    assert coverage == "inferred"
    assert "gradient of the queries" in note


def test_workspaces_of_a_softmax_in_double_precision_hold_its_results(trace_of):
    query, key, value = tensors(dtype=torch.float64, queries=8, keys=8, width=16)
    mask = torch.ones(8, 8, dtype=torch.bool)

    trace = trace_of(lambda: functional.scaled_dot_product_attention(query, key, value, mask))

    assert "aten::_safe_softmax" in set(trace.launches.op)  # and the trace is valid
