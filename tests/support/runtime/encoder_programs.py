"""Programs of transformer blocks, and inputs for them, for tests of the transformer kernel."""

from __future__ import annotations

from typing import Literal

import torch

from tileprof.runtime.encoder.program import HEAD, Attention, Epilogue, Mask, Matrix, Norm, Product, Program, Stage

Dtype = Literal["float16", "bfloat16"]


def pre_norm(
    rows: int,
    hidden: int,
    layers: int,
    *,
    length: int | None = None,
    k_major: bool = False,
    causal: bool = True,
    dtype: Dtype = "float16",
    epilogue: Epilogue = "gelu_tanh",
    key_heads: int | None = None,
) -> Program:
    """Return GPT-2's blocks (weights of [k, n], causal), or ViT's (K-major, not causal)."""
    stages: list[Stage] = []
    names = ["x"]
    x, heads = Matrix("x", hidden), hidden // HEAD
    key_columns = HEAD * (key_heads or heads)
    for layer in range(layers):
        to = "out" if layer == layers - 1 else f"x{layer}"
        g1, b1, wq, bq, wp, bp, g2, b2, wf, bf, wd, bd = (
            f"{name}{layer}" for name in ("g1", "b1", "wq", "bq", "wp", "bp", "g2", "b2", "wf", "bf", "wd", "bd")
        )
        names += [g1, b1, wq, bq, wp, bp, g2, b2, wf, bf, wd, bd]
        wide = hidden + 2 * key_columns
        qkv = [Matrix(f"qkv{layer}", wide, column) for column in (0, hidden, hidden + key_columns)]
        attention_out, middle, inner = (
            Matrix(f"att{layer}", hidden),
            Matrix(f"mid{layer}", hidden),
            Matrix(f"h{layer}", 4 * hidden),
        )
        stages += [
            Product(f"qkv_{layer}", rows, wide, hidden, x, wq, k_major, qkv[0], bq, Norm(g1, b1, 1e-5)),
            Attention(
                f"att_{layer}",
                rows,
                length or rows,
                heads,
                key_heads or heads,
                *qkv,
                attention_out,
                0.125,
                causal,
            ),
            Product(f"proj_{layer}", rows, hidden, hidden, attention_out, wp, k_major, middle, bp, residual=x),
            Product(
                f"fc_{layer}", rows, 4 * hidden, hidden, middle, wf, k_major, inner, bf, Norm(g2, b2, 1e-5), epilogue
            ),
            Product(
                f"down_{layer}", rows, hidden, 4 * hidden, inner, wd, k_major, Matrix(to, hidden), bd, residual=middle
            ),
        ]
        x = Matrix(to, hidden)
    return Program(
        "pre-norm blocks", dtype, tuple(stages), tuple(names), frozenset({"x"}), (("out", rows, hidden),)
    )  # fmt: skip


def post_norm(rows: int, hidden: int, layers: int, *, length: int | None = None, masked: bool = False) -> Program:
    """Return BERT's blocks, up to the sum that the last norm reads."""
    stages: list[Stage] = []
    names = ["x", *(["mask"] if masked else [])]
    heads, length = hidden // HEAD, length or rows
    source, norm = Matrix("x", hidden), None
    mask = Mask("mask", (length * length, 0, length), boolean=True, false=-65504.0) if masked else None
    for layer in range(layers):
        to = "out" if layer == layers - 1 else f"x{layer}"
        parts = "wq", "bq", "wk", "bk", "wv", "bv", "wp", "bp", "g1", "b1", "wf", "bf", "wd", "bd", "g2", "b2"
        wq, bq, wk, bk, wv, bv, wp, bp, g1, b1, wf, bf, wd, bd, g2, b2 = (f"{part}{layer}" for part in parts)
        names += [wq, bq, wk, bk, wv, bv, wp, bp, g1, b1, wf, bf, wd, bd]
        q, k, v, attention_out, middle, outputs = (
            Matrix(f"{part}{layer}", hidden) for part in ("q", "k", "v", "att", "mid", "kept")
        )
        x = source if norm is None else Matrix(f"normed{layer - 1}", hidden)
        for weight, bias, out, own in ((wq, bq, q, norm), (wk, bk, k, norm), (wv, bv, v, norm)):
            if own is not None and out is not q:
                own = Norm(own.gamma, own.beta, own.epsilon)  # noqa: PLW2901 - one product keeps the rows
            stages.append(Product(f"{out.tensor}_", rows, hidden, hidden, source, weight, True, out, bias, own))
        inner = Matrix(f"h{layer}", 4 * hidden)
        stages += [
            Attention(f"att_{layer}", rows, length, heads, heads, q, k, v, attention_out, 0.125, mask=mask),
            Product(f"proj_{layer}", rows, hidden, hidden, attention_out, wp, True, middle, bp, residual=x),
            Product(
                f"fc_{layer}",
                rows,
                4 * hidden,
                hidden,
                middle,
                wf,
                True,
                inner,
                bf,
                Norm(g1, b1, 1e-12, outputs.tensor),
                "gelu",
            ),
            Product(
                f"down_{layer}", rows, hidden, 4 * hidden, inner, wd, True, Matrix(to, hidden), bd, residual=outputs
            ),
        ]
        source, norm = Matrix(to, hidden), Norm(g2, b2, 1e-12, f"normed{layer}")
        if layer < layers - 1:
            names += [g2, b2]
    activations = frozenset({"x", "mask"} & set(names))
    return Program("post-norm blocks", "float16", tuple(stages), tuple(names), activations, (("out", rows, hidden),))


def inputs_of(program: Program, device: str = "cpu") -> dict[str, torch.Tensor]:
    """Return random inputs by name. Weights preserve the size of values; some elements of masks are false."""
    dice, result = torch.Generator().manual_seed(1), {}
    dtype = getattr(torch, program.dtype)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=dice)

    for stage in program.stages:
        if isinstance(stage, Attention):
            if stage.mask is not None and stage.mask.tensor not in result:
                batch = stage.rows // stage.length
                rows = torch.rand((batch, stage.length, stage.length), generator=dice) > 0.3
                result[stage.mask.tensor] = rows if stage.mask.boolean else torch.where(rows, 0.0, -3.0).to(dtype)
            continue
        shape = (stage.columns, stage.depth) if stage.k_major else (stage.depth, stage.columns)
        result[stage.weight] = (normal(*shape) / stage.depth**0.5).to(dtype)
        if stage.bias is not None:
            result[stage.bias] = (normal(stage.columns) / 2).to(dtype)
        if stage.norm is not None:
            result[stage.norm.gamma] = (1 + normal(stage.depth) / 4).to(dtype)
            result[stage.norm.beta] = (normal(stage.depth) / 4).to(dtype)
        if stage.activations.tensor in program.inputs and stage.activations.tensor not in result:
            result[stage.activations.tensor] = normal(stage.rows, stage.activations.pitch).to(dtype)
    return {name: result[name].to(device) for name in program.inputs}
