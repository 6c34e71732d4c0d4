"""Launches of programs that were only timed are matched with modelled ones by kernel and grid."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "gpu" / "harvest"))

import program_times

ADD = "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float>, std::array<char*, 3ul> >"
SUM = "void at::native::reduce_kernel<512, 1, at::native::ReduceOp<float, at::native::func_wrapper_t<float> > >"


def launches(*rows: tuple[str, int]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=["kernel", "tiles"])


@pytest.mark.parametrize(
    ("kernel", "outline"),
    [
        (ADD, "vectorized_elementwise_kernel"),
        ("void (anonymous namespace)::softmax_warp_forward<float, float, 7>(float*)", "softmax_warp_forward"),
        ("gemm_fp32_32x64x8_3_nt", "gemm_fp#_#x#x#_#_nt"),
        ("vectorized_elementwise<add>", "vectorized_elementwise"),
        ("Memcpy DtoH (Device -> Pinned)", "memcpy dtoh (device -> pinned)"),
    ],
)
def test_an_outline_has_no_parameters_and_numbers(kernel, outline):
    assert program_times.outline(kernel) == outline


def test_only_kernels_that_recorded_programs_had_for_each_other_match():
    pairs = {(program_times.outline("vectorized_elementwise<add>"), program_times.outline(ADD))}
    mine = launches(("vectorized_elementwise<mul>", 8), ("reduce<sum>", 4), ("vectorized_elementwise<add>", 16))
    assert program_times.alike(mine, launches((SUM, 4), (ADD, 16)), pairs) == {2: 1}
    pairs.add((program_times.outline("reduce<sum>"), program_times.outline(SUM)))
    assert program_times.alike(mine, launches((ADD, 8), (SUM, 4), (ADD, 16)), pairs) == {0: 0, 1: 1, 2: 2}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("timm_repghostnet_050_step", "timm_repghostnet_100"),
        ("torchvision_efficientnet_b2", "timm_tf_efficientnet_b0_step"),
    ],
)
def test_sizes_of_one_model_are_left_out_together(one, other):
    assert program_times.family(one) == program_times.family(other)
    assert program_times.family(one) != program_times.family("transformers_bert")
