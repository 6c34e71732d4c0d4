"""A program computed stage by stage in PyTorch, on any device: what the kernel is compared with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import torch
from torch import Tensor
from torch.nn import functional

from tileprof.runtime.encoder.program import HEAD, Attention, Epilogue, Matrix, Norm, Product, Program

_EPILOGUES: Final[dict[Epilogue, Callable[[Tensor], Tensor]]] = {
    "none": lambda v: v,
    "gelu": functional.gelu,
    "gelu_tanh": lambda v: functional.gelu(v, approximate="tanh"),
    "silu": functional.silu,
    "relu": functional.relu,
}


def run(program: Program, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return every matrix of the program by name, two-dimensional, in float32 within a stage and in the program's dtype
    between them.
    """
    dtype: torch.dtype = getattr(torch, program.dtype)
    device = next(iter(inputs.values())).device
    tensors = dict(inputs)
    for stage in program.stages:
        tensors[stage.out.tensor] = torch.full((stage.rows, stage.out.pitch), float("nan"), dtype=dtype, device=device)
    for name, rows, columns in program.outputs:
        tensors[name] = torch.full((rows, columns), float("nan"), dtype=dtype, device=device)
    for stage in program.stages:
        if isinstance(stage, Product):
            _product(stage, tensors)
        else:
            _attention(stage, tensors)
    if program.last is not None:
        matrix, norm = program.last
        _, rows, columns = next(output for output in program.outputs if output[0] == norm.output)
        _normalise(_window(tensors, matrix, rows, columns), norm, tensors)
    return tensors


def _window(tensors: Mapping[str, Tensor], matrix: Matrix, rows: int, columns: int) -> Tensor:
    tensor = tensors[matrix.tensor]
    return tensor.as_strided((rows, columns), (matrix.pitch, 1), tensor.storage_offset() + matrix.column)


def _product(stage: Product, tensors: dict[str, Tensor]) -> None:
    rows = _window(tensors, stage.activations, stage.rows, stage.depth)
    if stage.norm is not None:
        rows = _normalise(rows, stage.norm, tensors)
    weight = tensors[stage.weight].float()
    result = rows.float() @ (weight.t() if stage.k_major else weight)
    if stage.bias is not None:
        result = result + tensors[stage.bias].float()
    result = activated(stage.epilogue, result)
    if stage.residual is not None:
        result = result + _window(tensors, stage.residual, stage.rows, stage.columns).float()
    _window(tensors, stage.out, stage.rows, stage.columns).copy_(result)


def _normalise(rows: Tensor, norm: Norm, tensors: dict[str, Tensor]) -> Tensor:
    gamma, beta = tensors[norm.gamma].float(), tensors[norm.beta].float()
    normed = functional.layer_norm(rows.float(), (rows.shape[1],), gamma, beta, norm.epsilon).to(rows.dtype)
    if norm.output is not None:
        tensors[norm.output] = normed
    return normed


def activated(epilogue: Epilogue, values: Tensor) -> Tensor:
    """Return what an epilogue makes of values."""
    return _EPILOGUES[epilogue](values)


def _attention(stage: Attention, tensors: dict[str, Tensor]) -> None:
    batch, share = stage.rows // stage.length, stage.heads // stage.key_heads

    def heads(matrix: Matrix, number: int) -> Tensor:
        flat = _window(tensors, matrix, stage.rows, number * HEAD)
        return flat.float().reshape(batch, stage.length, number, HEAD).transpose(1, 2)

    query = heads(stage.query, stage.heads)
    if stage.cache_outputs is not None:
        for name, matrix in zip(stage.cache_outputs, (stage.key, stage.value), strict=True):
            tensors[name].view(batch, stage.key_heads, stage.length, HEAD).copy_(heads(matrix, stage.key_heads))
    key, value = (heads(m, stage.key_heads).repeat_interleave(share, 1) for m in (stage.key, stage.value))
    scores = query @ key.transpose(2, 3) * stage.scale
    if (mask := stage.mask) is not None:
        mask_rows = tensors[mask.tensor]
        shape = (batch, stage.heads, stage.length, stage.length)
        added = mask_rows.as_strided(shape, (*mask.strides, 1), mask_rows.storage_offset())
        scores = scores + (torch.where(added, 0.0, mask.false) if mask.boolean else added.float())
    if stage.causal:
        ahead = torch.ones(stage.length, stage.length, dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(ahead, float("-inf"))
    result = (scores.softmax(-1) @ value).transpose(1, 2).reshape(stage.rows, stage.heads * HEAD)
    _window(tensors, stage.out, stage.rows, stage.heads * HEAD).copy_(result)
