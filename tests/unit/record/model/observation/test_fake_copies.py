"""Deep copies under ``--fake``: layouts, flags and shared memory are those of the real program's."""

import copy

import pytest
import torch


def layouts(tensors):
    return [(t.shape, t.stride(), t.storage_offset(), t.requires_grad, t.grad is not None) for t in tensors]


def program(out):
    norm = torch.nn.BatchNorm1d(4)
    a = torch.rand(6, 4)
    leaf = torch.rand(3, requires_grad=True)
    leaf.grad = torch.rand(3)
    first, view, again, last, empty = copy.deepcopy([a, a[1:3].t(), a, leaf, torch.rand(0, 3)])
    first.add_(1)
    view.neg()
    copy.deepcopy(norm)(first)
    out.append(layouts([first, view, again, last, empty]))
    out.append(first is again)


def test_deep_copies_are_those_of_the_real_program(trace_of):
    real, fake = [], []
    trace_of(lambda: program(real))
    trace = trace_of(lambda: program(fake), fake=True)
    assert fake == real
    written, read = (list(trace.launches.op).index(op) for op in ("aten::add_.Tensor", "aten::neg"))
    assert {number for number, *_ in trace.operands_of(written)} & {number for number, *_ in trace.operands_of(read)}


def test_what_is_no_leaf_is_not_copied_either(trace_of):
    def run():
        with pytest.raises(RuntimeError, match="created explicitly"):
            copy.deepcopy(torch.rand(3, requires_grad=True) * 2)

    trace_of(run, fake=True)
