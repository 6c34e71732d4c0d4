"""Autocast on the CPU inside a session: the operators and the types of CUDA's lists."""

import pytest
import torch

from tileprof.record.model.observation import autocast

F = torch.nn.functional
LISTS = (autocast.LOWER, autocast.FLOAT, autocast.FLOAT_RESULT, autocast.WIDEST)
NARROW, WIDE = torch.ones(4, 8, dtype=torch.bfloat16), torch.ones(8, 8)
CASES = {
    "softmax": (lambda: NARROW.softmax(-1), torch.float32),
    "softmax to a type": (lambda: NARROW.softmax(-1, dtype=torch.bfloat16), torch.bfloat16),
    "layer norm": (lambda: F.layer_norm(NARROW, (8,)), torch.float32),
    "sum over lines": (lambda: NARROW.sum(-1, keepdim=True), torch.float32),
    "norm": (lambda: torch.ops.aten.norm.Scalar(NARROW), torch.float32),
    "norm of lines": (lambda: torch.ops.aten.norm.ScalarOpt_dim(NARROW, 2, [1]), torch.float32),
    "double": (lambda: NARROW.double().exp(), torch.float64),
    "integers": (lambda: NARROW.long().sum(), torch.int64),
    "square": (lambda: NARROW**2, torch.float32),
    "product with a vector": (lambda: torch.mv(WIDE, WIDE[0]), torch.bfloat16),
    "product": (lambda: WIDE @ WIDE, torch.bfloat16),
    "padded convolution": (lambda: F.conv1d(WIDE[:, None], WIDE[:3, None, :3], padding="same"), torch.bfloat16),
    "widest of two": (lambda: torch.addcmul(NARROW, NARROW.float(), NARROW), torch.float32),
    "widest of one": (lambda: torch.addcmul(NARROW, NARROW, NARROW), torch.bfloat16),
    "not in a list": (NARROW.sigmoid, torch.bfloat16),
    "in the CPU's list alone": (lambda: F.adaptive_avg_pool3d(NARROW[None, None], 2), torch.bfloat16),
}


def kernels_for(key):
    names = torch._C._dispatch_get_all_op_names()
    has = torch._C._dispatch_has_kernel_for_dispatch_key
    return {n.removeprefix("aten::") for n in names if n.startswith("aten::") and has(n, key)}


def test_the_lists_are_those_that_pytorch_registers_for_cuda():
    of_cuda = {name for name in kernels_for("AutocastCUDA") if not name.startswith("cudnn_")}
    assert of_cuda == frozenset.union(*LISTS) | {"binary_cross_entropy"}
    assert sum(map(len, LISTS)) == len(frozenset.union(*LISTS))


@pytest.mark.parametrize("case", CASES)
def test_the_result_has_the_type_that_it_has_on_a_gpu(case):
    run, dtype = CASES[case]
    with autocast.as_on_gpu(), torch.autocast("cpu", torch.bfloat16):
        assert run().dtype == dtype


def test_cross_entropy_runs_its_softmax_in_the_type_of_its_input_and_its_loss_in_float():
    scores = NARROW.clone().requires_grad_()
    with autocast.as_on_gpu(), torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(scores, torch.zeros(4, dtype=torch.long))
    steps = [loss.grad_fn, loss.grad_fn.next_functions[0][0], loss.grad_fn.next_functions[0][0].next_functions[0][0]]
    assert [step.name() for step in steps] == ["NllLossBackward0", "ToCopyBackward0", "LogSoftmaxBackward0"]
    loss.backward()
    assert scores.grad.dtype == torch.bfloat16


def test_the_lists_of_the_cpu_are_back_afterwards():
    before = kernels_for("AutocastCPU")
    with autocast.as_on_gpu():
        pass
    assert kernels_for("AutocastCPU") == before
    with torch.autocast("cpu", torch.bfloat16):
        assert NARROW.softmax(-1).dtype == torch.bfloat16
