"""The computation of a stack of transformer blocks, as a list of stages over named matrices; independent of tiles and
of a device.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

HEAD: Final = 64
"""Columns of a head that the kernel can take."""

Dtype = Literal["float16", "bfloat16"]
Epilogue = Literal["none", "gelu", "gelu_tanh", "silu", "relu"]


@dataclass(frozen=True, slots=True)
class Matrix:
    """Rows of a tensor, ``pitch`` elements apart, from a column on."""

    tensor: str
    pitch: int
    column: int = 0


@dataclass(frozen=True, slots=True)
class Norm:
    """LayerNorm over whole rows: gamma and beta, tensors' names. ``output``: where the normalised rows are stored too,
    because other stages read them.
    """

    gamma: str
    beta: str
    epsilon: float
    output: str | None = None


@dataclass(frozen=True, slots=True)
class Product:
    """out = epilogue(norm(activations) @ weight + bias) + residual.

    ``weight`` is a tensor of ``depth`` x ``columns``, or of ``columns`` x ``depth`` where it is ``k_major``.
    """

    name: str
    rows: int
    columns: int
    depth: int
    activations: Matrix
    weight: str
    k_major: bool
    out: Matrix
    bias: str | None = None
    norm: Norm | None = None
    epilogue: Epilogue = "none"
    residual: Matrix | None = None


@dataclass(frozen=True, slots=True)
class Mask:
    """Added to scores: a tensor of halves, or ``false`` where a tensor of booleans is false. Strides in elements; keys
    are next to each other.
    """

    tensor: str
    strides: tuple[int, int, int]
    """Steps in elements from sequence to sequence, head to head and query to query."""
    boolean: bool
    false: float = 0.0


@dataclass(frozen=True, slots=True)
class Attention:
    """Softmax attention within sequences of ``length`` rows: ``heads`` heads of queries, neighbours of which share one
    of ``key_heads``.
    """

    name: str
    rows: int
    length: int
    heads: int
    key_heads: int
    query: Matrix
    key: Matrix
    value: Matrix
    out: Matrix
    scale: float
    causal: bool = False
    mask: Mask | None = None
    cache_outputs: tuple[str, str] | None = None
    """Outputs of the program that get keys and values as (sequence, head, row, column)."""


Stage = Product | Attention


@dataclass(frozen=True, slots=True)
class Program:
    """Stages in order. ``inputs``: names of the tensors that the caller gives, in order; ``outputs``: (name, rows,
    columns) of those that it gets.
    """

    name: str
    dtype: Dtype
    stages: tuple[Stage, ...]
    inputs: tuple[str, ...]
    activations: frozenset[str]
    """Inputs whose address may differ from call to call; the others are parameters."""
    outputs: tuple[tuple[str, int, int], ...]
    last: tuple[Matrix, Norm] | None = None
    """Rows whose norm is a result, under the name by which it is kept."""

    def products(self) -> tuple[Product, ...]:
        """Return the stages that are products."""
        return tuple(stage for stage in self.stages if isinstance(stage, Product))

    def read_plain(self) -> frozenset[str]:
        """Return tensors that stages read as they are, not normalised, or that the caller gets."""
        tensors = {name for name, _, _ in self.outputs}
        for stage in self.stages:
            if isinstance(stage, Attention):
                tensors |= {stage.query.tensor, stage.key.tensor, stage.value.tensor}
                continue
            if stage.norm is None:
                tensors.add(stage.activations.tensor)
            if stage.residual is not None:
                tensors.add(stage.residual.tensor)
        return frozenset(tensors)
