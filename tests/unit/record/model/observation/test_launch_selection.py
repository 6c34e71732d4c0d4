"""Which launches are kept: capture, skip and count, modules, initialisation; and fake tensors."""

import pandas as pd
import pytest
import torch

import tileprof


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 4, 3, padding=1)
        self.norm = torch.nn.BatchNorm2d(4)
        self.up = torch.nn.Linear(64, 16)
        self.down = torch.nn.Linear(16, 2)

    def forward(self, x):
        x = torch.relu(self.norm(self.conv(x)))
        return self.down(torch.nn.functional.gelu(self.up(x.flatten(1))))


def _train():
    net = Net()
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2):
        net(torch.ones(2, 3, 4, 4)).pow(2).mean().backward()
        optimiser.step()
        optimiser.zero_grad()


def test_fake_tensors_give_the_launches_operands_and_buffers_of_the_real_run(trace_of):
    real, fake = trace_of(_train), trace_of(_train, fake=True)
    assert len(real.launches) > 60
    for table in ("launches", "operands", "buffers", "tiles", "accesses"):
        pd.testing.assert_frame_equal(getattr(real, table), getattr(fake, table))
    assert any("fake tensors" in note for note in fake.manifest["notes"])


def test_initialisation_of_parameters_is_left_out_and_counted_unless_asked_for(trace_of):
    plain, full = trace_of(_train), trace_of(_train, initialisation=True)
    assert not plain.launches.op.str.contains("uniform_").any()
    assert full.launches.op.str.contains("uniform_").sum() == 6
    assert any("only initialise modules" in note for note in plain.manifest["notes"])
    assert len(full.launches) > len(plain.launches)


def test_conversions_of_a_module_before_it_runs_are_initialisation(trace_of):
    def program():
        net = Net().to(torch.bfloat16).to(memory_format=torch.channels_last)
        net(torch.ones(2, 3, 4, 4, dtype=torch.bfloat16))

    plain, full = trace_of(program), trace_of(program, initialisation=True)
    before = list(plain.launches.op).index("aten::convolution")
    assert not plain.launches.op.iloc[:before].str.contains("copy|clone").any()
    assert full.launches.op.str.contains("_to_copy").sum() >= 8
    weights = plain.buffers[plain.buffers.name.str.endswith("weight")]
    assert set(weights.dtype) == {"bfloat16"}
    assert set(weights.kind) == {"parameter"}


def test_conversions_of_a_module_that_ran_are_launches(trace_of):
    def program():
        net = torch.nn.Linear(8, 8)
        net(torch.ones(2, 8))
        net.half()(torch.ones(2, 8).half())

    assert trace_of(program).launches.op.str.contains("_to_copy").sum() >= 2


class _Scaled(torch.nn.Module):
    """A module that makes tensors before and after its base class is constructed, and in a function."""

    def __init__(self):
        before = torch.ones(64)
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(64)
        self.register_buffer("table", self.made(before))

    def made(self, x):
        return torch.arange(64.0).exp() * x

    def forward(self, x):
        return self.norm(x * self.table)


def test_what_a_constructor_computes_is_initialisation(trace_of):
    def program():
        model, x = _Scaled().eval(), torch.ones(8, 64)
        with torch.no_grad():
            model(x + 1)

    plain, full = trace_of(program), trace_of(program, initialisation=True)
    ops = [op.removeprefix("aten::").split(".")[0] for op in plain.launches["op"].astype(str)]
    assert ops[:3] == ["ones", "add", "mul"]
    assert set(ops[3:]) == {"native_batch_norm"}
    assert len(full.launches) > len(plain.launches) + 5


def test_a_note_says_that_a_recurrent_module_with_gradients_runs_by_cudnn_on_a_gpu(trace_of):
    gru, cell = torch.nn.GRU(8, 8).eval(), torch.nn.GRUCell(8, 8).eval()
    noted_trace, plain = (trace_of(lambda model=model: model(torch.ones(2, 8))) for model in (gru, cell))
    assert any("GRU was recorded step by step" in note for note in noted_trace.manifest["notes"])
    assert not any("cuDNN" in note for note in plain.manifest["notes"])


def test_an_optimiser_step_is_no_initialisation(trace_of):
    launches = trace_of(_train).launches
    assert (launches.op == "aten::_foreach_add_.List").sum() >= 2


def test_only_captured_regions_are_kept(trace_of):
    def program():
        x = torch.ones(10).cos()
        with tileprof.capture():
            y = x.sin()
            with tileprof.capture():
                y = y.exp()
        y.tan()
        with tileprof.capture():
            y.neg()

    trace = trace_of(program)
    assert list(trace.launches.op) == ["aten::sin", "aten::exp", "aten::neg"]
    assert trace.launches.begin_ns[0] == 0
    assert list(trace.buffers.allocated_at) == [-1, 0, 1, 2]
    assert any("outside tileprof.capture()" in note for note in trace.manifest["notes"])


def test_capture_does_nothing_in_a_program_that_is_not_recorded():
    with tileprof.capture() as inputs:
        double = torch.ones(2) * 2
    assert inputs is None
    assert double.tolist() == [2.0, 2.0]


def test_skip_and_count_are_launches(trace_of):
    def program():
        x = torch.ones(10)
        for _ in range(6):
            x = x.cos()
        x.sin()

    trace = trace_of(program, skip=2, count=3)
    assert list(trace.launches.op) == ["aten::cos"] * 3
    assert any("left out" in note for note in trace.manifest["notes"])


def test_a_write_outside_the_window_keeps_the_buffer_and_its_address(trace_of):
    def program():
        x = torch.ones(1000)
        x.add_(1)
        y = x * 2
        y.cos()

    whole, window = trace_of(program), trace_of(program, skip=2, count=1)
    expected = whole.buffers.base[whole.operands_of(2)[0]].tolist()
    assert window.buffers.base[window.operands_of(0)[0]].tolist() == expected


def test_module_keeps_launches_whose_path_matches(trace_of):
    net = Net()
    launches = trace_of(lambda: net(torch.ones(2, 3, 4, 4)), module="^(up|down)$").launches
    assert set(launches.module) == {"up", "down"}


def test_backward_of_a_chosen_module_is_kept(trace_of):
    net = Net()
    launches = trace_of(lambda: net(torch.ones(2, 3, 4, 4)).sum().backward(), module="conv").launches
    assert list(launches.op.unique()) == ["aten::convolution", "aten::convolution_backward"]


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (lambda: torch.ones(1 << 17).sum().item(), "needs a value that was never computed"),
        (lambda: bool((torch.ones(1 << 17) > 0).all()), "needs a value that was never computed"),
        (lambda: torch.ones(1 << 17).nonzero(), "size depends on values"),
        (lambda: torch.ones(1 << 17).numpy(), "leaves PyTorch"),
        (lambda: [*torch.ones(1 << 17)[:2].tolist()], "needs a value"),
    ],
)
def test_what_cannot_run_fake_is_explained_with_its_line(trace_of, program, words):
    from tileprof.record.model.observation.fake import obstacle

    with pytest.raises(Exception) as error:  # noqa: PT011 - PyTorch's own, of several kinds
        trace_of(program, fake=True)
    sentence = obstacle(error.value)
    assert words in sentence
    assert f"{__file__}, line " in sentence


def test_an_error_of_the_program_is_no_obstacle():
    from tileprof.record.model.observation.fake import obstacle

    assert obstacle(RuntimeError("shapes do not match")) is None


def test_skip_and_count_start_anew_with_the_first_captured_region(trace_of):
    def program():
        x = torch.ones(10).cos().sin()
        with tileprof.capture():
            x.exp().tan().exp2()

    trace = trace_of(program, skip=1, count=1)
    assert trace.launches.op.tolist() == ["aten::tan"]
    assert any("outside tileprof.capture()" in note for note in trace.manifest["notes"])
    assert any("beyond --skip and --count" in note for note in trace.manifest["notes"])


def _converted():
    net = Net().half().to(memory_format=torch.channels_last)
    with torch.no_grad(), tileprof.capture():
        net.eval()(torch.ones(2, 3, 4, 4).half())
    net.float()


def test_modules_convert_their_fake_parameters_as_real_ones(trace_of):
    real, fake = trace_of(_converted), trace_of(_converted, fake=True)
    assert set(fake.buffers[fake.buffers.kind == "parameter"].dtype) == {"float16"}
    for table in ("launches", "operands", "tiles", "accesses"):
        pd.testing.assert_frame_equal(getattr(real, table), getattr(fake, table))
    what = ["bytes", "kind", "name", "dtype", "shape", "strides"]  # not for where, whose parameters have another order
    pd.testing.assert_frame_equal(real.buffers[what], fake.buffers[what])


def test_a_conversion_leaves_pytorch_as_it_was(trace_of):
    snapshot = vars(torch.utils)["weakref"]
    trace_of(_converted, fake=True)
    assert vars(torch.utils)["weakref"] is snapshot


def _initialised():
    weight = torch.nn.Parameter(torch.empty(64, 64))
    torch.nn.init.trunc_normal_(weight, std=0.02)
    rates = [rate.item() for rate in torch.linspace(0, 0.3, 4)]
    assert rates == pytest.approx([0, 0.1, 0.2, 0.3])
    torch.nn.functional.linear(torch.randn(3, 64), weight)


def _loaded():
    from torch.utils.data import DataLoader, TensorDataset

    inputs, labels = torch.randn(16, 8), torch.randint(0, 3, (16,))
    network, actual = torch.nn.Linear(8, 3), []
    for x, y in DataLoader(TensorDataset(inputs, labels), batch_size=4, shuffle=True):
        torch.nn.functional.cross_entropy(network(x), y).backward()
        actual += x[:, 0].tolist()
    assert sorted(actual) == sorted(inputs[:, 0].tolist()), "every sample once"


def _sparse():
    places, values = torch.tensor([[0, 1, 1], [2, 0, 2]]), torch.tensor([3.0, 4.0, 5.0])
    torch.sparse.mm(torch.sparse_coo_tensor(places, values, (2, 3), check_invariants=False), torch.randn(3, 4))


def _seeded():
    generator = torch.Generator()
    generator.manual_seed(int(torch.empty((), dtype=torch.int64).random_().item()))
    assert sorted(torch.randperm(8, generator=generator).tolist()) == list(range(8))
    mask = torch.ones(4, 4).triu(1).bool()
    assert mask.sum().item() == 6
    mask[0, 1] = False
    assert int(mask.sum()) == 5, "written to, it is computed again"


@pytest.mark.parametrize("program", [_initialised, _loaded, _sparse, _seeded])
def test_small_tensors_made_of_constants_have_values_though_fake(trace_of, program):
    trace = trace_of(program, fake=True)
    assert trace.complete


def test_a_seeded_program_draws_the_same_small_tensors_fake_and_real(trace_of):
    draws = []
    for fake in (False, True):
        trace_of(lambda: draws.append((torch.randn(3).tolist(), torch.randint(0, 9, (4,)).tolist())), fake=fake)
    assert draws[0] == draws[1]


def test_what_a_library_cannot_do_with_fake_tensors_names_its_line_and_the_users(trace_of):
    from tileprof.record.model.observation.fake import obstacle

    def program():
        lengths = torch.tensor([5, 3, 2])
        torch.nn.utils.rnn.pack_padded_sequence(torch.nn.Linear(8, 8)(torch.randn(3, 5, 8)), lengths, batch_first=True)

    with pytest.raises(RuntimeError) as error:
        trace_of(program, fake=True)
    message = obstacle(error.value)
    assert "test_launch_selection.py, line" in message
    assert "rnn.py, line" in message
    assert "pack_padded_sequence(torch.nn.Linear" in message
