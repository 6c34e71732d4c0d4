"""When tensors of Python's data are copied to the GPU, and when one of their values is copied back."""

import numpy as np
import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensor


def launches(trace):
    """Return the operator and kernel of each launch."""
    return list(zip(trace.launches.op, trace.launches.kernel, strict=True))


IN = ("aten::_to_copy", "memcpy<host to device>")
OUT = ("aten::_local_scalar_dense", "memcpy<device to host>")


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("make", [
    lambda: torch.tensor([1.0, 2.0], device="cpu"),
    lambda: torch.as_tensor([1.0, 2.0], device=torch.device("cpu")),
    lambda: torch.as_tensor(np.array([1.0, 2.0]), device="cpu"),
    lambda: torch.tensor([1, 2]).to(torch.empty(1)),
])  # fmt: skip
def test_data_with_a_device_are_copied_from_the_host(trace_of, make, fake):
    assert launches(trace_of(make, fake=fake)) == [IN]


@pytest.mark.parametrize("make", [lambda: torch.tensor([1.0, 2.0]), lambda: torch.as_tensor(torch.empty(2))])
def test_data_without_a_device_stay_on_the_host_and_tensors_are_no_data(trace_of, make):
    assert launches(trace_of(make)) == []


def test_what_reads_the_copy_waits_for_it(trace_of):
    trace = trace_of(lambda: torch.tensor([1.0, 2.0], device="cpu").neg())
    assert trace.operands_of(0)[0][0] == trace.operands_of(1)[0][0]
    assert trace.buffers.allocated_at[trace.operands_of(0)[0][0]] == 0


def test_a_number_is_copied_to_the_host_unless_it_is_there_already(trace_of):
    trace = trace_of(lambda: (torch.ones(3).sum().item(), bool(torch.ones(1)), torch.tensor(4).item()))
    assert [one for one in launches(trace) if one[0] == OUT[0]] == [OUT, OUT]


@pytest.mark.parametrize("fake", [False, True])
@pytest.mark.parametrize("shape", [(3, 4), ()])
def test_a_list_is_one_copy_to_the_host_of_all_values(trace_of, fake, shape):
    lists = []

    def program():
        x = torch.ones(shape)
        x.add_(1)
        lists.append(x.tolist())
        x.add_(1)

    trace = trace_of(program, fake=fake)
    assert launches(trace)[2] == ("aten::_to_copy", "memcpy<device to host>")
    assert len(launches(trace)) == 4
    assert lists == [torch.full(shape, 2.0).tolist()]
    written = trace.operands_of(1)[0][0]
    assert trace.operands_of(2)[0].tolist() == [written]
    assert any(note.startswith("1 time the program read a value") for note in trace.manifest["notes"])


def test_lists_of_what_is_on_the_host_or_empty_copy_nothing(trace_of):
    def program():
        assert torch.tensor([1, 2]).tolist() == [1, 2]
        assert torch.empty(0).tolist() == []

    before = torch.Tensor.tolist, FakeTensor.tolist
    assert launches(trace_of(program)) == []
    assert (torch.Tensor.tolist, FakeTensor.tolist) == before
    assert "tolist" not in vars(torch.Tensor)


PUT = "aten::index_put_"


@pytest.mark.parametrize(
    ("value", "copied"), [(1.0, True), (lambda: torch.ones(()), False), (lambda: torch.ones(1), False)]
)
def test_a_number_that_is_put_at_indices_is_copied_from_the_host(trace_of, value, copied):
    def program():
        x, indices = torch.ones(5), torch.arange(3)
        x[indices] = value() if callable(value) else value

    trace = trace_of(program)
    number = launches(trace).index(next(one for one in launches(trace) if one[0] == PUT))
    assert (launches(trace)[number - 1] == IN) == copied
    if copied:
        assert trace.operands_of(number - 1)[0][0] in trace.operands_of(number)[0]


def test_a_number_that_is_put_under_a_mask_is_not_copied(trace_of):
    def program():
        x = torch.ones(5)
        x[x > 3] = 1.0

    assert IN not in launches(trace_of(program))


def test_constants_of_a_module_are_made_before_the_program_runs(trace_of):
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.tensor([2.0], device="cpu")

        def forward(self, x):
            return x * self.factor

    assert [op for op, _ in launches(trace_of(lambda: Scale()(torch.ones(4))))] == ["aten::ones", "aten::mul.Tensor"]


def test_step_counters_of_optimisers_stay_on_the_host(trace_of):
    def program():
        weight = torch.nn.Parameter(torch.ones(4))
        weight.grad = torch.ones(4)
        torch.optim.AdamW([weight]).step()

    recorded = launches(trace_of(program))
    assert not {IN, OUT} & set(recorded)
    operators = [op for op, _ in recorded]
    assert "aten::_foreach_addcdiv_.ScalarList" in operators
    assert "aten::_foreach_add_.Tensor" not in operators


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")
def test_scripted_functions_and_a_session_that_ended_find_the_functions_of_pytorch(trace_of):
    before = torch.tensor

    def program():
        def three(x: torch.Tensor) -> torch.Tensor:
            return x + torch.tensor([3.0])

        assert torch.jit.script(three)(torch.ones(1)).item() == 4.0

    assert launches(trace_of(program))
    assert torch.tensor is before
