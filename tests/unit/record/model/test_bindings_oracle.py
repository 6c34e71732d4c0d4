"""Random programs: the dependencies in the trace, compared with those of the bytes in real memory.

The oracle does not use storages, buffers or tile models. It asks every tensor for the addresses of its elements, while
the program keeps all memory alive, and remembers the last writer of each address.
"""

import numpy as np
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tileprof.analysis import build_graph


def _addresses(tensor):
    places = np.zeros(tuple(tensor.shape), np.int64)
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        shape = [1] * tensor.dim()
        shape[dim] = size
        places = places + (np.arange(size) * stride * tensor.element_size()).reshape(shape)
    return set((places + tensor.data_ptr()).ravel().tolist())


class Oracle(TorchDispatchMode):
    """Sees the same operators as the session, from above it, and notes who wrote what each of them reads."""

    def __init__(self):
        super().__init__()
        self.operators = 0
        self.writer_of = {}
        self.pairs = set()
        self.alive = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        self.alive.append(result)
        if func.is_view or func._schema.name in {
            "aten::empty",
            "aten::detach",
            "aten::lift_fresh",
            "aten::_unsafe_view",
        }:
            return result
        if not any(t.numel() for t in tree_leaves(result)):
            return result  # nothing to compute, so nothing is read
        overwrites = func._schema.name in {"aten::copy_", "aten::zero_", "aten::fill_"}
        inputs = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        for tensor in inputs[1:] if overwrites else inputs:
            self.pairs |= {(self.writer_of[a], self.operators) for a in _addresses(tensor) if a in self.writer_of}
        for tensor in tree_leaves(result):
            self.writer_of.update(dict.fromkeys(_addresses(tensor), self.operators))
        self.operators += 1
        return result


VIEWS = (
    lambda t: t.t(),
    lambda t: t[::2],
    lambda t: t[:, 1:],
    lambda t: t[-1:],
    lambda t: t.reshape(-1, 1) if t.is_contiguous() else t,
    lambda t: t.detach(),
    lambda t: t[:1].expand(3, t.shape[1]),
)
MAKERS = (
    lambda a, _: a * 2,
    lambda a, b: a.sum() + b,
    lambda a, b: torch.cat([a.reshape(-1), b.reshape(-1)]).reshape(1, -1),
    lambda a, b: torch.stack([a, a]).sum(0) if b is None else a.clone(),
    lambda a, b: a.reshape(-1, 1) @ b.reshape(1, -1)[:, :7],
    lambda a, _: a.softmax(-1),
    lambda a, _: a.t().contiguous(),
    lambda a, b: a.mean(0, keepdim=True) - b.amax(),
    lambda a, _: torch.nn.functional.layer_norm(a, (a.shape[-1],)),
)
CHANGERS = (
    lambda a, _: a.add_(1),
    lambda a, b: a.mul_(b.sum()),
    lambda a, b: a.copy_(b.mean().expand(a.shape)),
    lambda a, _: a.zero_(),
    lambda a, _: a.exp_(),
)


@st.composite
def _programs(draw):
    return draw(
        st.lists(
            st.tuples(st.sampled_from("vmc"), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99)),
            min_size=3,
            max_size=14,
        )
    )


def _run(steps):
    tensors = [torch.ones(4, 6), torch.empty(6, 5).fill_(2)]
    for kind, which, one, other in steps:
        a, b = tensors[one % len(tensors)], tensors[other % len(tensors)]
        if kind == "v":
            tensors.append(VIEWS[which % len(VIEWS)](a))
        elif kind == "m":
            tensors.append(MAKERS[which % len(MAKERS)](a, b))
        elif 0 not in a.stride():  # PyTorch refuses to write to repeated elements
            CHANGERS[which % len(CHANGERS)](a, b)


@given(_programs())
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_dependencies_between_operators_are_those_of_real_memory(trace_of, steps):
    oracle, launch_of = Oracle(), []

    def program(session):
        class Count(TorchDispatchMode):
            """Return the launches of each operator of the oracle."""

            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                before, actual = session.writer.launches, oracle.operators
                result = func(*args, **(kwargs or {}))
                launch_count = session.writer.launches - before
                assert not launch_count or oracle.operators > actual
                launch_of.extend([actual] * launch_count)
                return result

        with oracle, Count():
            _run(steps)

    trace = trace_of(program, pass_session=True)
    pairs = build_graph(trace).pairs
    raw = pairs[pairs.raw > 0]
    actual = {(launch_of[p], launch_of[c]) for p, c in zip(raw.producer, raw.consumer, strict=True)}
    assert {(p, c) for p, c in actual if p != c} == oracle.pairs
