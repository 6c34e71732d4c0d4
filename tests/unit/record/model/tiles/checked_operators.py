"""The tile models that the oracle of perturbed inputs checks against PyTorch, counted over all of OpInfo's samples.

    python -m tests.unit.record.model.tiles.checked_operators

runs all samples (some minutes) and rewrites `LIST` and the table of `PAGE`.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Final

import pytest

from tileprof.record.model.tile_model import REGISTRY
from tileprof.record.model.tiles import load_all

ROOT = Path(__file__).parents[5]
LIST = Path(__file__).with_name("checked_operators.json")
PAGE = "docs/model-recorder.md"
HOW = (
    "run `python -m tests.unit.record.model.tiles.checked_operators`, and give a reason in UNCHECKED for what it names"
)

_BEGIN, _END = "<!-- checked against PyTorch -->\n", "<!-- end of checked against PyTorch -->\n"

_BY_REASON: Final = {
    "They take lists of tensors, each tensor with the model of one tensor": (
        "_amp_foreach_non_finite_check_and_unscale_ _foreach_abs _foreach_abs_ _foreach_acos _foreach_acos_ "
        "_foreach_add _foreach_add_ _foreach_addcdiv _foreach_addcdiv_ _foreach_addcmul _foreach_addcmul_ "
        "_foreach_asin _foreach_asin_ _foreach_atan _foreach_atan_ _foreach_ceil _foreach_ceil_ "
        "_foreach_clamp_max _foreach_clamp_max_ _foreach_clamp_min _foreach_clamp_min_ _foreach_clone "
        "_foreach_copy _foreach_copy_ _foreach_cos _foreach_cos_ _foreach_cosh _foreach_cosh_ _foreach_div "
        "_foreach_div_ _foreach_erf _foreach_erf_ _foreach_erfc _foreach_erfc_ _foreach_exp _foreach_exp_ "
        "_foreach_expm1 _foreach_expm1_ _foreach_floor _foreach_floor_ _foreach_frac _foreach_frac_ "
        "_foreach_lerp _foreach_lerp_ _foreach_lgamma _foreach_lgamma_ _foreach_log _foreach_log10 "
        "_foreach_log10_ _foreach_log1p _foreach_log1p_ _foreach_log2 _foreach_log2_ _foreach_log_ _foreach_max "
        "_foreach_maximum _foreach_maximum_ _foreach_minimum _foreach_minimum_ _foreach_mm _foreach_mul "
        "_foreach_mul_ _foreach_neg _foreach_neg_ _foreach_norm _foreach_pow _foreach_pow_ _foreach_reciprocal "
        "_foreach_reciprocal_ _foreach_round _foreach_round_ _foreach_rsqrt _foreach_rsqrt_ _foreach_sigmoid "
        "_foreach_sigmoid_ _foreach_sign _foreach_sign_ _foreach_sin _foreach_sin_ _foreach_sinh _foreach_sinh_ "
        "_foreach_sqrt _foreach_sqrt_ _foreach_sub _foreach_sub_ _foreach_tan _foreach_tan_ _foreach_tanh "
        "_foreach_tanh_ _foreach_trunc _foreach_trunc_ _foreach_zero _foreach_zero_ _fused_adagrad_ _fused_adam_ "
        "_fused_adamw_ _fused_sgd_"
    ),
    "OpInfo's samples run the forward pass only": (
        "_fused_rms_norm_backward _scaled_dot_product_cudnn_attention_backward "
        "_scaled_dot_product_efficient_attention_backward _scaled_dot_product_flash_attention_backward "
        "_scaled_dot_product_flash_attention_for_cpu_backward "
        "_scaled_dot_product_fused_attention_overrideable_backward _thnn_fused_gru_cell_backward "
        "_thnn_fused_lstm_cell_backward_impl _upsample_nearest_exact1d_backward "
        "_upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward batch_norm_backward "
        "convolution_backward convolution_backward_overrideable cudnn_batch_norm_backward diagonal_backward "
        "embedding_dense_backward glu_backward grid_sampler_2d_backward grid_sampler_3d_backward "
        "native_batch_norm_backward native_group_norm_backward "
        "native_layer_norm_backward nll_loss2d_backward nll_loss_backward reflection_pad1d_backward "
        "reflection_pad2d_backward reflection_pad3d_backward replication_pad1d_backward "
        "replication_pad2d_backward replication_pad3d_backward select_backward slice_backward "
        "upsample_bicubic2d_backward upsample_bilinear2d_backward upsample_linear1d_backward "
        "upsample_nearest1d_backward "
        "upsample_nearest2d_backward upsample_nearest3d_backward upsample_trilinear3d_backward"
    ),
    "They draw random numbers, which differ for another input": (
        "_fused_dropout _standard_gamma bernoulli bernoulli_ binomial cauchy_ exponential exponential_ eye "
        "geometric_ log_normal_ multinomial native_dropout normal normal_ poisson rand rand_like randint "
        "randint_like randn randn_like random_ randperm rrelu_with_noise rrelu_with_noise_ uniform uniform_"
    ),
    "They launch no kernel (views, allocation, queries of metadata)": (
        "_assert_async _fused_sdp_choice _has_compatible_shallow_copy_type _nested_tensor_size _reshape_alias "
        "_unsafe_view _version alias as_strided_ detach detach_ empty empty_like empty_permuted empty_strided "
        "is_pinned is_same_size lift lift_fresh new_empty new_empty_strided record_stream resize_ resize_as_ "
        "retain_grad set_ squeeze_ swapaxes_ sym_numel sym_size sym_storage_offset sym_stride t_ transpose_ "
        "unsafe_chunk unsafe_split unsafe_split_with_sizes unsqueeze_"
    ),
    "OpInfo's samples do not call them on the CPU": (
        "_cudnn_rnn _grouped_mm _masked_softmax _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_efficient_attention "
        "_scaled_dot_product_flash_attention _scaled_dot_product_flash_attention_for_cpu "
        "_scaled_dot_product_fused_attention_overrideable _scaled_mm _thnn_fused_gru_cell _thnn_fused_lstm_cell "
        "copy im2col repeat_interleave"
    ),
    "They are torchvision's; other tests compare them with loops": "torchvision::nms torchvision::roi_align",
}
UNCHECKED: Final = {
    op if "::" in op else f"aten::{op}": reason for reason, ops in _BY_REASON.items() for op in ops.split()
}
"""By operator: why the oracle reaches neither its model nor one with the same function."""


def listed() -> list[str]:
    """Return operators whose model was checked against PyTorch, or has the function of a checked one."""
    names: list[str] = json.loads(LIST.read_text())
    same = {REGISTRY[name].model for name in names if name in REGISTRY}
    return sorted({*names, *(op for op, entry in REGISTRY.items() if entry.model in same)})


def model_of(op: str) -> str:
    """Return the registered name of an operator's model: its own overload, or any."""
    return op if op in REGISTRY else op.split(".", 1)[0]


def table() -> str:
    """Return the table of `PAGE`, and below it the operators that are not checked, by reason."""
    by_reason: dict[str, list[str]] = {}
    for op, reason in UNCHECKED.items():
        by_reason.setdefault(reason, []).append(op)
    direct = len(json.loads(LIST.read_text()))
    rows = [
        ("checked against PyTorch, by perturbing single elements of OpInfo's samples", direct),
        ("the same function as one of these, under another name", len(listed()) - direct),
        ("not checked, for the reasons below", len(UNCHECKED)),
    ]
    lines = [
        "| operators with a tile model | number |",
        "|---|---|",
        *(f"| {what} | {count} |" for what, count in rows),
    ]
    lines += ["", *(f"- {reason} ({len(ops)}):\n{_wrapped(ops)}" for reason, ops in sorted(by_reason.items()))]
    return "\n".join(lines) + "\n"


def _wrapped(ops: list[str]) -> str:
    names = ", ".join(f"`{op.removeprefix('aten::')}`" for op in sorted(ops))
    return textwrap.fill(names, 120, initial_indent="  ", subsequent_indent="  ")


def main() -> None:
    """Count again."""
    from tests.unit.record.model.tiles.operator_samples import PARTS, all_operators, tiny_tiles, tried_operators

    load_all()
    checked: set[str] = set()
    with pytest.MonkeyPatch.context() as patch, all_operators() as operators, tiny_tiles(patch):
        for part in range(PARTS):
            _, more, wrong = tried_operators(operators[part::PARTS])
            assert not wrong, "\n".join(wrong)
            checked |= more
    LIST.write_text(json.dumps(sorted(checked), indent=1) + "\n")
    page = ROOT / PAGE
    begin, _, rest = page.read_text().partition(_BEGIN)
    page.write_text(f"{begin}{_BEGIN}{table()}{_END}{rest.partition(_END)[2]}")
    missing = sorted(set(REGISTRY) - set(listed()) - set(UNCHECKED))
    print(*missing, sep="\n")  # noqa: T201 - what needs a reason
    print(HOW)  # noqa: T201


if __name__ == "__main__":
    main()
