"""``tileprof run -- PROGRAM``: the program stays unchanged, its models are noticed, and measurements are printed."""

from __future__ import annotations

import csv
import sys
import threading

import pytest
import torch
from torch import nn

from tileprof.cli.entry import main
from tileprof.cli.running import run_program
from tileprof.errors import UserError
from tileprof.runtime.compile.racing.report import Report, announce
from tileprof.runtime.programs import calls, compare

PROGRAM = """
import sys, torch
from torch import nn
model = nn.Sequential(nn.Linear(8, 8), nn.ReLU()).eval()
with torch.no_grad():
    for _ in range(3):
        print(float(model(torch.ones(2, 8)).sum()) > -1)
sys.exit({code})
"""


@pytest.fixture(autouse=True)
def as_on_a_gpu(monkeypatch):
    monkeypatch.setattr(calls, "_on_gpu", lambda *_: True)
    monkeypatch.setattr(run_program, "_check_gpu", lambda: None)


class Cached(nn.Module):
    """A module that keeps its inputs in a cache that is an argument."""

    def forward(self, x, cache):
        cache.rows.append(x) if cache.store is None else cache.store.add_(x)
        cache.store = x.clone() if cache.store is None else cache.store
        return cache.store * 2


class Cache:
    def __init__(self) -> None:
        self.store, self.rows = None, []


def test_outermost_modules_without_gradients_are_noticed_with_copies_of_their_inputs() -> None:
    model, x = nn.Sequential(nn.Linear(8, 8), nn.ReLU()), torch.ones(2, 8)
    with calls.noticed() as matches:
        model(x)  # with gradients
        with torch.no_grad():
            model(x)
            model(x)
            x.zero_()
            model(x)
            model(torch.ones(3, 8))
    assert [(type(c.model).__name__, c.count) for c in matches] == [("Sequential", 3), ("Sequential", 1)]
    assert matches[0].name == "Sequential(2x8 float32)"
    assert torch.equal(matches[0].args[0], torch.ones(2, 8)), "as in the second call"


def test_what_torch_compile_wraps_counts_as_what_it_wraps_and_all_is_put_back() -> None:
    before, model = nn.Module.__call__, nn.Linear(8, 8)
    with calls.noticed() as matches, torch.no_grad():
        torch.compile(model, backend="eager")(torch.ones(2, 8))
    assert [c.model for c in matches] == [model]
    assert nn.Module.__call__ is before
    torch._dynamo.reset()


def test_threads_do_not_hide_each_others_models() -> None:
    model, entry_event, found_inside = nn.Linear(8, 8), threading.Event(), []

    class Waits(nn.Module):
        def forward(self, x):
            entry_event.set()
            thread.join()
            return x

    def work() -> None:
        entry_event.wait()
        with torch.no_grad():
            model(torch.ones(2, 8))

    thread = threading.Thread(target=work)
    with calls.noticed() as matches, torch.no_grad():
        thread.start()
        Waits()(torch.ones(2, 8))
    found_inside = {type(c.model).__name__ for c in matches}
    assert found_inside == {"Waits", "Linear"}


def test_tensors_are_found_inside_of_caches() -> None:
    cache = Cache()
    cache.store, cache.rows = torch.ones(2), [{"k": torch.zeros(3)}, cache]
    assert sorted(t.numel() for t in calls.tensors_in((cache, 3, "text"))) == [2, 3]


def measurement(call, times):
    """Run `compare` with simulated compilers and a simulated clock."""
    records = []

    def clock(works, restore):
        for work in works.values():
            restore()
            records.append(work())
        return dict(zip(works, times, strict=False)), True

    return compare.compare(call, clock), records


def test_what_a_call_changes_is_put_back_between_the_variants(monkeypatch) -> None:
    cache = Cache()
    cache.store = torch.ones(2, 2)
    monkeypatch.setattr(compare, "_compiled_model", lambda model, _: model)
    actual, observed_value = measurement(calls.Call(Cached(), (torch.ones(2, 2), cache), {}, 5), [3.0, 2.0, 1.0])
    assert all(torch.equal(s, torch.full((2, 2), 4.0)) for s in observed_value)
    assert torch.equal(cache.store, torch.ones(2, 2))
    assert actual.us == {"eager": 3.0, "inductor": 2.0, "tileprof": 1.0}
    assert actual.count == 5


def test_a_compiler_that_fails_costs_its_own_column_only(monkeypatch) -> None:
    def compiled(model, variant):
        if variant == "inductor":
            return lambda *_: (_ for _ in ()).throw(RuntimeError("no such kernel\nmore"))
        return model

    monkeypatch.setattr(compare, "_compiled_model", compiled)
    actual, _ = measurement(calls.Call(nn.Linear(4, 4), (torch.ones(2, 4),), {}), [3.0, 1.0])
    assert actual.failures == {"inductor": "RuntimeError: no such kernel"}
    assert set(actual.us) == {"eager", "tileprof"}
    assert any("inductor failed: RuntimeError: no such kernel" in s for s in run_program.sentences(actual))


def test_remaining_operators_are_listed_with_their_share_of_the_time(monkeypatch) -> None:
    def compiled(model, variant):
        if variant == "tileprof":
            report = Report(winner="a decoder")
            report.inductor_operators.update(["addmm", "softmax", "softmax"])
            announce(report)
        return model

    monkeypatch.setattr(compare, "_compiled_model", compiled)
    monkeypatch.setattr(compare, "_shares", lambda _: {"addmm": 0.75, "softmax": 0.05, "relu": 0.2})
    actual, _ = measurement(calls.Call(nn.Linear(4, 4), (torch.ones(2, 4),), {}), [3.0, 2.0, 1.0])
    message = run_program.sentences(actual)
    assert message[0] == "in kernels of tileprof: a decoder"
    assert message[1] == "not taken: addmm (1, 75% of eager PyTorch's time), softmax (2, 5% of eager PyTorch's time)"


def test_the_shares_of_operators_add_up() -> None:
    actual = compare._shares(lambda: torch.randn(64, 64) @ torch.randn(64, 64))
    assert sum(actual.values()) == pytest.approx(1)
    assert actual["mm"] > 0


@pytest.fixture
def main_restored(monkeypatch):
    """The state that a program changes when it runs in this process."""
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(threading, "excepthook", threading.excepthook)
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])


def test_stdout_and_exit_code_are_the_programs_and_the_table_goes_to_stderr(
    tmp_path, monkeypatch, capsys, main_restored
) -> None:
    (tmp_path / "infer.py").write_text(PROGRAM.format(code=0))
    row = compare.Comparison("Sequential(2x8 float32)", 3, us={"eager": 30.0, "inductor": 20.0, "tileprof": 10.0})
    monkeypatch.setattr(compare, "compare", lambda _, **_options: row)
    with pytest.raises(SystemExit) as stop:
        main(["run", "--csv", str(tmp_path / "rows.csv"), "--", str(tmp_path / "infer.py")])
    assert stop.value.code == 0
    out, err = capsys.readouterr()
    assert out == "True\n" * 3
    assert "2.00x" in err
    assert "nothing runs in kernels of tileprof" in err
    with (tmp_path / "rows.csv").open() as file:
        (csv_row,) = csv.DictReader(file)
    assert (csv_row["calls"], csv_row["tileprof_us"]) == ("3", "10.0")


def test_a_model_that_is_called_once_is_measured_with_the_inputs_of_that_call(
    tmp_path, monkeypatch, main_restored
) -> None:
    (tmp_path / "infer.py").write_text(PROGRAM.format(code=0).replace("range(3)", "range(1)"))
    rows = []

    def measuring(call, **_options):
        inputs = call.args
        with torch.no_grad():
            call.model(*inputs)
        rows.append((call.count, call.args is inputs))
        return compare.Comparison(call.name, call.count)

    monkeypatch.setattr(compare, "compare", measuring)
    with pytest.raises(SystemExit):
        main(["run", "--", str(tmp_path / "infer.py")])
    assert rows == [(1, True)], "what measuring calls is not noted"


def test_a_program_that_fails_is_not_measured(tmp_path, capsys, main_restored) -> None:
    (tmp_path / "infer.py").write_text(PROGRAM.format(code=3))
    with pytest.raises(SystemExit) as stop:
        main(["run", "--", sys.executable, str(tmp_path / "infer.py")])
    assert stop.value.code == 3
    assert "exit code 3: nothing is measured" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["policy.json", "--", "x.py"], "a policy does not go with a program"),
        (["--json", "--", "x.py"], "stdout is the program's, --csv FILE keeps the rows"),
        (["--models", "0", "--", "x.py"], "--models 0: give a number from 1"),
        (["--", "nowhere.py"], "no such program: nowhere.py"),
        ([], "give a policy file, or a program after --"),
    ],
)
def test_refusals_come_before_anything_runs(words, message, capsys) -> None:
    assert main(["run", *words]) == 2
    assert message in capsys.readouterr().err


def test_without_a_gpu_nothing_runs(monkeypatch) -> None:
    monkeypatch.undo()
    with pytest.raises(UserError, match="no GPU here"):
        run_program._check_gpu()


def test_a_call_that_makes_its_cache_cannot_be_repeated_and_says_so() -> None:
    with pytest.raises(UserError, match="makes tensors that later calls go on with"):
        measurement(calls.Call(Cached(), (torch.ones(2), Cache()), {}), (1.0, 2.0, 3.0))
