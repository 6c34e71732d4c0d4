"""Operators with writes that their schema does not mention, reads for an empty result, or kernels for unusual
layouts.
"""

import pytest
import torch
import torch.distributed as dist

from tileprof.analysis import build_graph


def raw(trace):
    """Return the operator names of every pair with a true dependency through data."""
    pairs = build_graph(trace).pairs
    ops = trace.launches.op.str.removeprefix("aten::").str.split(".").str[0].tolist()
    return {(ops[p], ops[c]) for p, c, edges in pairs[["producer", "consumer", "raw"]].itertuples(index=False) if edges}


@pytest.fixture
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore")
def test_collectives_write_although_their_schemas_say_nothing(trace_of, one_process):
    def program():
        reduced = torch.ones(4).exp()
        dist.all_reduce(reduced)
        reduced.sin()
        part, whole = torch.ones(4).tan(), [torch.empty(4)]
        dist.all_gather(whole, part)
        whole[0].cos()

    trace = trace_of(program)
    edges = raw(trace)
    assert {("exp", "c10d::allreduce_"), ("c10d::allreduce_", "sin")} <= edges
    assert {("tan", "c10d::allgather_"), ("c10d::allgather_", "cos")} <= edges
    own = trace.launches[trace.launches.op.str.startswith("c10d")]
    assert set(own.coverage) == {"conservative"}


def test_the_slopes_of_rrelu_reach_its_backward_pass(trace_of):
    def program():
        x = torch.ones(8).requires_grad_()
        torch.nn.functional.rrelu(x.exp(), training=True).sum().backward()

    assert ("rrelu_with_noise", "rrelu_with_noise_backward") in raw(trace_of(program))


def test_a_search_without_a_match_reads_the_whole_input(trace_of):
    def program():
        x = torch.zeros(8).sin()
        x.nonzero()
        x.add_(1)

    trace = trace_of(program)
    pairs = build_graph(trace).pairs.set_index(["producer", "consumer"])
    ops = trace.launches.op.tolist()
    reader, writer = ops.index("aten::nonzero"), ops.index("aten::add_.Tensor")
    assert pairs.loc[(reader, writer), "war"] > 0


@pytest.mark.filterwarnings("ignore")
def test_sparse_and_nested_tensors_work_as_without_recording(trace_of):
    def program():
        sparse = torch.sparse_coo_tensor([[0, 1], [1, 0]], torch.ones(2), (2, 2))
        assert sparse.coalesce().is_coalesced()
        assert sparse.t().shape == (2, 2)
        assert sparse[0].shape == (2,)
        nested = torch.nested.nested_tensor([torch.ones(2, 4), torch.ones(3, 4)])
        assert [tuple(t.shape) for t in nested.unbind()] == [(2, 4), (3, 4)]
        assert torch.sparse_csr_tensor([0, 1], [0], [1.0], (1, 1)).t().shape == (1, 1)

    assert trace_of(program).complete
