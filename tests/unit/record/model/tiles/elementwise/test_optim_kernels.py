"""Multi-tensor kernels: chunks of all tensors, packed as PyTorch packs them."""

import pytest
import torch

from tests.unit.record.model.tiles.oracle import call_of, run_model
from tests.unit.record.model.tiles.reach import H200, elements, positions
from tileprof.record.model.tile_model import Operand
from tileprof.record.model.tiles.elementwise import multi_tensor
from tileprof.trace.footprint import READ, WRITE


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch):
    monkeypatch.setattr(multi_tensor, "CHUNK", 64)


def write_elements(kernels, operand):
    """Return the elements written over all launches, with repetition."""
    return sorted(e for k in kernels for t in range(k.footprint.tiles) for e in tile_elements(k, operand, t, WRITE))


def tile_elements(kernel, operand, tile, mode):
    present = any(isinstance(o, Operand) and o.ref == operand.ref for o in kernel.operands)
    return elements(kernel, operand, tile, mode) if present else []


def parameters():
    return [torch.rand(30, 9), torch.rand(200), torch.rand(40, 3).t(), torch.rand(1)]


def alike(tensors, **changed):
    return [torch.rand_like(t, **changed) for t in tensors]


def assert_chunks_match(kernels, written_list, *read_lists):
    for i, target in enumerate(written_list):
        assert write_elements(kernels, target) == list(range(target.numel))
        for kernel in kernels:
            for tile in range(kernel.footprint.tiles):
                mine = sorted(tile_elements(kernel, target, tile, WRITE))
                for others in read_lists:
                    assert sorted(tile_elements(kernel, others[i], tile, READ)) == mine


def test_a_foreach_operator_walks_all_lists_alike():
    a = parameters()
    call = call_of("aten::_foreach_addcmul_.Scalar", a, alike(a), alike(a), 1.0)
    [kernel] = run_model(call, H200)
    assert kernel.footprint.tiles == sum(-(-t.numel() // 64) for t in a)
    assert_chunks_match([kernel], call["self"], call["self"], call["tensor1"], call["tensor2"])


def test_a_foreach_operator_with_results_writes_these():
    a = parameters()
    call = call_of("aten::_foreach_sqrt", a)
    kernels = run_model(call, H200)
    assert_chunks_match(kernels, call.outputs, call["self"])


def test_copies_do_not_read_what_they_overwrite():
    a = parameters()
    call = call_of("aten::_foreach_copy_", a, alike(a))
    [kernel] = run_model(call, H200)
    assert tile_elements(kernel, call["self"][0], 0, READ) == []
    assert_chunks_match([kernel], call["self"], call["src"])


def test_a_scalar_tensor_is_read_by_every_tile():
    call = call_of("aten::_foreach_mul_.Tensor", parameters(), torch.tensor(2.0))
    [kernel] = run_model(call, H200)
    assert all(tile_elements(kernel, call["other"], t, READ) == [0] for t in range(kernel.footprint.tiles))


def test_differing_layouts_take_a_launch_a_tensor():
    a = [torch.rand(8, 9), torch.rand(9, 8).t()]
    b = [torch.rand(8, 9), torch.rand(8, 9)]
    call = call_of("aten::_foreach_add_.List", a, b)
    kernels = run_model(call, H200)
    assert len(kernels) == 2
    assert [write_elements(kernels, o) for o in call["self"]] == [list(range(72))] * 2


def test_launches_end_when_full_of_tensors_or_chunks(monkeypatch):
    many = call_of("aten::_foreach_neg_", [torch.rand(2) for _ in range(111)])
    assert [k.footprint.tiles for k in run_model(many, H200)] == [110, 1]
    divided = call_of("aten::_foreach_div_.ScalarList", [torch.rand(2) for _ in range(97)], [2.0] * 97)
    assert [k.footprint.tiles for k in run_model(divided, H200)] == [96, 1]
    monkeypatch.setattr(multi_tensor, "CHUNK", 1)
    long = call_of("aten::_foreach_neg_", [torch.rand(300), torch.rand(100)])
    kernels = run_model(long, H200)
    assert [k.footprint.tiles for k in kernels] == [320, 80]
    assert [write_elements(kernels, o) for o in long["self"]] == [list(range(300)), list(range(100))]


@pytest.mark.parametrize("amsgrad", [False, True])
def test_the_fused_adamw_updates_parameters_and_states(amsgrad):
    p = parameters()
    steps = [torch.tensor(1.0) for _ in p]
    lists = [p, alike(p), alike(p), alike(p), alike(p) if amsgrad else [], steps]
    numbers = {"lr": 0.1, "beta1": 0.9, "beta2": 0.99, "weight_decay": 0.0, "eps": 1e-8, "maximize": False}
    call = call_of("aten::_fused_adamw_", *lists, amsgrad=amsgrad, **numbers)
    kernels = run_model(call, H200)
    for name in ("self", "exp_avgs", "exp_avg_sqs", *(["max_exp_avg_sqs"] if amsgrad else [])):
        assert_chunks_match(kernels, call[name], call["grads"], call[name])
    assert all(write_elements(kernels, g) == [] for g in call["grads"])
    assert tile_elements(kernels[0], call["state_steps"][0], 0, READ) == [0]


def test_norms_are_parts_and_a_cleanup():
    p = parameters()
    call = call_of("aten::_foreach_norm.Scalar", p)
    parts, cleanup = run_model(call, H200)
    assert cleanup.footprint.tiles == len(p)
    for tensor in call["self"]:
        read = [e for t in range(parts.footprint.tiles) for e in tile_elements(parts, tensor, t, READ)]
        assert sorted(read) == sorted(positions(tensor).flatten().tolist())
    for out in call.outputs:
        assert write_elements([cleanup], out) == [0]


def test_unscaling_raises_one_flag():
    call = call_of("aten::_amp_foreach_non_finite_check_and_unscale_", parameters(), torch.zeros(1), torch.ones(1))
    [kernel] = run_model(call, H200)
    assert elements(kernel, call["found_inf"], 3, 2) == [0]
    assert_chunks_match([kernel], call["self"], call["self"])
