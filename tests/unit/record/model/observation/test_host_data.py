"""When tensors of Python's data are copied to the GPU, and when one of their values is copied back."""

import pickle

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


COPY_OUT = ("aten::_to_copy", "memcpy<device to host>")


def behind_a_module(work):
    """Return a program that calls a module and then works with what it returned."""
    module, x = torch.nn.Linear(8, 8), torch.randn(4, 8)

    def program():
        with torch.no_grad():
            work(module(x))

    return program


@pytest.mark.parametrize("fake", [False, True])
def test_what_is_computed_from_a_copy_to_the_host_alone_makes_no_launch(trace_of, fake):
    def work(y):
        ends = (y.cpu() * 2).cumsum(0)
        ends.add_(1)
        first = torch.zeros(1, 8)  # its device is that of the copy
        return torch.cat([first, ends]).tolist() if not fake else torch.cat([first, ends])

    def program():
        with torch.no_grad():
            work(torch.nn.Linear(8, 8)(torch.randn(4, 8)))

    ops = launches(trace_of(program, fake=fake))[-2:]
    assert ops == [COPY_OUT, ("aten::zeros", "vectorized_elementwise<zeros>")]


def test_a_copy_on_the_host_is_memory_of_its_own(trace_of):
    seen = []

    def work(y):
        copy = y.cpu()
        copy.zero_()
        seen.append((y.clone(), copy))

    trace_of(behind_a_module(work))
    [(y, copy)] = seen
    assert y.any()
    assert not copy.any()


def test_what_comes_back_from_the_host_is_copied_once(trace_of):
    def work(y):
        order = y.cpu().argsort(1)
        y.gather(1, order)
        y.gather(1, order)

    copies = [kernel for _, kernel in launches(trace_of(behind_a_module(work))) if kernel.startswith("memcpy")]
    assert copies == ["memcpy<device to host>", "memcpy<host to device>"]


def test_inputs_of_a_program_that_asks_for_the_cpu_stay_on_the_gpu(trace_of):
    assert COPY_OUT not in launches(trace_of(lambda: torch.randn(8).cpu().neg()))


@pytest.mark.parametrize("make", [lambda: torch.tensor([1, 2]), lambda: torch.from_numpy(np.array([1, 2]))])
@pytest.mark.parametrize("device", ["cpu", torch.device("cpu")])
def test_moving_data_to_a_device_copies_them_once(trace_of, make, device):
    def program():
        data = make().to(device)
        data.to(device)

    assert launches(trace_of(program)) == [IN]


def test_the_cpu_of_an_installed_library_is_the_host(trace_of, tmp_path, monkeypatch):
    (tmp_path / "some_library-1.0.dist-info").mkdir()
    (tmp_path / "some_library.py").write_text(
        "import torch\n\n\ndef work(y):\n    data = torch.tensor([1, 2], device='cpu').neg()\n    y.to('cpu').neg()\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import some_library

    found = launches(trace_of(behind_a_module(some_library.work)))
    assert found[-1] == COPY_OUT
    assert not any(op == "aten::neg" for op, _ in found)


def test_methods_are_put_back(trace_of):
    trace_of(lambda: None)
    assert not {"to", "cpu"} & vars(torch.Tensor).keys()


@pytest.mark.parametrize("put", [
    lambda x, mask: x.__setitem__(mask, 2.0),
    lambda x, mask: x.masked_fill_(mask, torch.tensor(2.0)),
    lambda x, _: x.__setitem__(slice(4, 8), 2.0),
])  # fmt: skip
def test_a_number_that_fills_is_read_on_the_host(trace_of, put):
    x = torch.zeros(600)
    mask = x == 0
    trace = trace_of(lambda: put(x, mask))
    assert [kernel.partition("<")[0] for _, kernel in launches(trace)] == ["vectorized_elementwise"]
    assert all(trace.buffers.bytes[buffer] >= 600 for buffer in trace.operands_of(0)[0]), "no number is read"


@pytest.mark.parametrize("indices", [lambda: [-1, 0], lambda: torch.tensor([1, 2])])
def test_a_list_of_indices_is_copied_from_the_host(trace_of, indices):
    x = torch.zeros(3, 600)

    def program():
        chosen = indices()
        return x[chosen], x[:, chosen]

    copies = [kernel for _, kernel in launches(trace_of(program)) if kernel.startswith("memcpy<host")]
    assert len(copies) == (2 if isinstance(indices(), list) else 1)


def test_indices_that_the_gpu_computed_are_not_copied(trace_of):
    x, chosen = torch.zeros(3, 600), torch.arange(2)
    assert not any(kernel.startswith("memcpy") for _, kernel in launches(trace_of(lambda: x[chosen])))


def test_device_contexts_still_decide_where_data_become_tensors(trace_of):
    devices = []

    def program():
        with torch.device("meta"):
            devices.extend([torch.tensor([1.0]).device.type, torch.as_tensor([1.0]).device.type])

    torch.utils._device._device_constructors.cache_clear()  # as in a process that has just begun
    trace_of(program)
    with torch.device("meta"):
        devices.append(torch.tensor([1.0]).device.type)
    assert devices == ["meta"] * 3


def test_data_and_copies_inside_transforms_of_functions(trace_of):
    lists = []

    def loss(x):
        lists.append(x.tolist())
        return (x.cpu() * x.to("cpu") * torch.tensor([1.0, 2.0], device="cpu")).sum()

    def program():
        torch.nn.Identity()(torch.ones(1))
        lists.append(torch.func.grad(loss)(torch.ones(2)).tolist())
        lists.append(torch.func.vmap(lambda x: x.cpu() + x.to("cpu"))(torch.ones(3)).tolist())

    trace = trace_of(program)
    assert lists == [[1.0, 1.0], [2.0, 4.0], [2.0, 2.0, 2.0]]
    assert IN in launches(trace)


def test_wrapped_functions_can_be_pickled(trace_of):
    functions = []

    def program():
        functions.extend([torch.tensor, torch.Tensor.to, torch.Tensor.cpu, torch.Tensor.tolist])
        functions.append(pickle.loads(pickle.dumps(functions)))

    trace_of(program)
    assert functions[4] == functions[:4]
