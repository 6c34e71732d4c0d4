"""The harvest of PyTorch's own operators: its list, and the operators that it calls."""

from collections import Counter
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from tileprof.harvest import operators
from tileprof.harvest.__main__ import main
from tileprof.harvest.operators import registry
from tileprof.harvest.products.product_cases import Dtype


class _Calls(TorchDispatchMode):
    """Return the names of the operators that PyTorch dispatches."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(function.name())
        return function(*args, **(kwargs or {}))


def test_no_operator_is_listed_twice_and_the_list_is_the_same_each_time():
    names = Counter(name for name, *_ in operators.OPERATORS)
    assert max(names.values()) == 1
    cases = operators.FAMILY.cases()
    assert np.array_equal(cases, operators.FAMILY.cases())
    assert len(np.unique(cases, axis=0)) == len(cases)


@pytest.mark.parametrize(
    ("name", "build", "types", "sizes"), operators.OPERATORS, ids=[o[0] for o in operators.OPERATORS]
)
def test_each_operator_runs_at_its_smallest_sizes(name, build, types, sizes, monkeypatch):
    monkeypatch.setattr(registry, "DEVICE", "cpu")
    sizes = [s for s in sizes if min(s[:2]) > 1] if name.startswith("var") else sizes  # one number has no variance
    if name in {"nms", "roi_align"} and find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    dtype = {Dtype.FP32: torch.float32, Dtype.FP16: torch.float16, Dtype.BF16: torch.bfloat16}[types[0]]
    second = sizes[len(sizes) // 3]
    for a, b, c in {sizes[0], second if np.prod([max(s, 1) for s in second]) < 1e5 else sizes[0]}:
        step = build(torch, dtype, a, b, c)
        with _Calls() as calls:
            result = step()
        # a copy of a contiguous tensor, or of one on the CPU, dispatches nothing and returns its input
        assert calls.names or isinstance(result, torch.Tensor), "a step that computes nothing would be timed"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_harvest_without_a_gpu_ends_in_a_sentence(tmp_path, capsys):
    assert main(["operators", "-o", str(tmp_path)]) == 2
    assert "needs an NVIDIA GPU" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
