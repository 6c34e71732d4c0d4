"""``tileprof run`` on a GPU: policies for another GPU are refused before anything runs, and times come with a
verdict.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.support.runtime.chains import mlp
from tileprof.cli.entry import main
from tileprof.cli.running import run_gpu
from tileprof.errors import UserError
from tileprof.policy.format import Options, Policy, Stage

torch = pytest.importorskip("torch")

POLICY = Policy(
    (Stage("a", (1, 1, 1)), Stage("b", (1, 1, 1))), (), (), guard={"architecture": "sm_90", "device": "H200"}
)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: "NVIDIA H100 PCIe")


@pytest.mark.usefixtures("gpu")
def test_a_policy_for_another_architecture_is_refused_and_nothing_is_run() -> None:
    run_gpu.check_device(POLICY)
    with pytest.raises(UserError, match=r"verified for 'sm_80', and this GPU is sm_90: .*Nothing was run"):
        run_gpu.check_device(replace(POLICY, guard={"architecture": "sm_80"}))


@pytest.mark.usefixtures("gpu")
def test_a_policy_that_relies_on_what_resides_is_for_one_device() -> None:
    alone = replace(POLICY, options=Options(wait_kernel=False))
    with pytest.raises(UserError, match=r"resides on 'H200', and this GPU is H100"):
        run_gpu.check_device(alone)
    run_gpu.check_device(replace(alone, guard={}))


def test_without_a_gpu_a_policy_for_any_is_executed(monkeypatch: pytest.MonkeyPatch, tmp_path, capsys) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    path = tmp_path / "policy.json"
    policy = mlp().policy()
    replace(policy, guard={**policy.guard, "architecture": "sm_80"}).save(path)
    assert main(["run", str(path)]) == 0
    assert "found neither race nor deadlock" in capsys.readouterr().out


@pytest.mark.usefixtures("gpu")
@pytest.mark.parametrize("more", [[], ["--compare"]])
def test_the_verb_refuses_with_exit_code_2(tmp_path, capsys, more) -> None:
    path = tmp_path / "policy.json"
    replace(POLICY, guard={"architecture": "sm_80"}).save(path)
    assert main(["run", *more, str(path)]) == 2
    output = capsys.readouterr()
    assert "Nothing was run" in output.err
    assert not output.out


def comparison_of(**us: float):
    rows = [
        {"row": name.replace("_", "-"), "us": value, "correct": True} for name, value in us.items() if name != "torch"
    ]
    rows.append({"row": "PyTorch in a graph", "us": us["torch"], "correct": True})
    numbers = [{"output": "y", "relative_error": 1e-4, "agrees": True}]
    return {
        "scheduler": "persistent", "reason": "as asked", "device": "H200", "runs": 20, "same_in_every_run": True,
        "numbers": numbers,
        "times": rows,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("us", "verdict"),
    [
        ({"persistent_stages": 29.0, "persistent": 25.0, "torch": 28.0}, "The policy is the fastest of these."),
        (
            {"persistent_stages": 24.0, "persistent": 25.0, "torch": 28.0},
            "Stream order is faster here: this policy does not pay",
        ),
        (
            {"persistent_stages": 29.0, "persistent": 25.0, "torch": 20.0},
            "PyTorch is faster here: this policy does not pay",
        ),
    ],
)  # fmt: skip
def test_times_end_with_a_verdict(us, verdict) -> None:
    message = "\n".join(run_gpu.sentences(comparison_of(**us)))
    assert verdict in message
    assert f"{us['persistent']:.1f} us" in message
