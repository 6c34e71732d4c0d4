"""``scaled_dot_product_attention`` as PyTorch dispatches it: which backend, which kernels, forward and backward.

A case is `COLUMNS`. Heads and lengths are those of models of text, images and sound; nothing forces a backend.
"""

from __future__ import annotations

from enum import IntEnum
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.operators.registry import other_kernels

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

COLUMNS: Final = (
    "pass", "dtype", "layout", "batch", "heads", "kv_heads", "queries", "keys", "size", "value_size", "causal", "mask",
    "dropout",
)  # fmt: skip
CASES: Final = 12_000
_SEED: Final = 20261124
_MOST_FLOPS: Final = (2e10, 2e10, 4e11, 4e11)
_MOST_ELEMENTS: Final = 1 << 26
POOL: Final = 1 << 30
_REPETITIONS: Final = 4
_MEMORY: Final = 0.09
"""Part of the GPU's memory, for ten processes: graphs of several backward passes are kept at once. A case that does not
fit is an error.
"""


class Pass(IntEnum):
    """The pass that is launched; a forward pass of training keeps what the backward pass needs."""

    INFERENCE = 0
    TRAINING_FORWARD = 1
    BACKWARD = 2


class Layout(IntEnum):
    """The layout of query, key and value: with heads outermost, with heads innermost but one, or as one tensor of all
    three.
    """

    HEADS_OUTSIDE = 0
    HEADS_INSIDE = 1
    PACKED = 2


class Mask(IntEnum):
    """None; booleans or numbers of ``[batch, 1, queries, keys]``; numbers of ``[1, heads, queries, keys]``."""

    NONE = 0
    BOOLEAN = 1
    ADDED = 2
    ADDED_PER_HEAD = 3


_SIZES: Final = (
    *(64, 64, 64, 64, 64, 64, 128, 128, 128, 128, 128, 32, 32, 80, 80, 96, 96, 40, 48, 72, 160, 256, 256, 16, 24, 112),
    *(192, 88, 100, 36, 512),
)
_LENGTHS: Final = (
    *(
        1,
        7,
        16,
        32,
        49,
        50,
        64,
        77,
        100,
        128,
        128,
        144,
        196,
        197,
        197,
        256,
        256,
        257,
        300,
        400,
        512,
        512,
        512,
        576,
        577,
    ),
    *(784, 1000, 1024, 1024, 1024, 1500, 1500, 2048, 2048, 3000, 4096, 4096, 8192, 3, 10, 20, 33, 199, 499),
)
_HEADS: Final = (1, 2, 3, 4, 5, 6, 8, 8, 8, 12, 12, 12, 12, 16, 16, 16, 20, 24, 32, 32, 40, 48, 64)
_BATCHES: Final = (1, 1, 1, 2, 2, 4, 4, 8, 8, 16, 32, 64)


def drawn(count: int, seed: int) -> NDArray[np.int64]:
    """Return different cases, training ones in all passes."""
    random = np.random.default_rng(seed)
    cases: dict[tuple[int, ...], None] = {}
    while len(cases) < count:
        dtype = int(random.choice(4, p=(0.2, 0.04, 0.41, 0.35)))
        batch, heads, size = (int(random.choice(some)) for some in (_BATCHES, _HEADS, _SIZES))
        keys = int(random.choice(_LENGTHS))
        queries = keys if random.random() < 0.75 else int(random.choice((1, *_LENGTHS)))
        kind = random.random()
        causal = int(kind < 0.3 and queries == keys)
        mask = int(random.choice(4, p=(0, 0.45, 0.35, 0.2))) if kind > 0.65 else 0
        grouped = random.random() < 0.15 and heads % 4 == 0 and dtype >= 2
        layout = int(random.choice(3, p=(0.2, 0.6, 0.2)))
        if queries != keys or grouped:
            layout = min(layout, 1)
        value_size = 128 if size == 192 and random.random() < 0.5 and layout < 2 else size
        training = random.random() < 0.4
        dropout = int(training and random.random() < 0.3)
        kv_heads = heads // 4 if grouped else heads
        flops = 4.0 * batch * heads * queries * keys * size
        masked = (0, batch, batch, heads)[mask] * queries * keys
        largest = max(masked, batch * heads * max(queries, keys) * size)
        if flops > _MOST_FLOPS[dtype] or largest > _MOST_ELEMENTS:
            continue
        case = (dtype, layout, batch, heads, kv_heads, queries, keys, size, value_size, causal, mask, dropout)
        for what in (Pass.TRAINING_FORWARD, Pass.BACKWARD) if training else (Pass.INFERENCE,):
            cases[int(what), *case] = None
    return np.array(list(cases)[:count], np.int64)


def held_out() -> NDArray[np.int64]:
    """Return the cases that no table may have."""
    return drawn(HELD_OUT, _HELD_OUT_SEED)


class Attention:
    """The family; see the module."""

    name = "attention"
    columns = COLUMNS

    def __init__(self) -> None:
        self._pool: Any = None
        self._torch: Any = None
        self.before: Callable[[], object] | None = None

    def cases(self) -> NDArray[np.int64]:
        """Return held-out cases first (`HELD_OUT`), then those of the table."""
        held_rows = held_out()
        held_keys = {tuple(row) for row in held_rows.tolist()}
        rest = [row for row in drawn(CASES, _SEED).tolist() if tuple(row) not in held_keys]
        return np.concatenate([held_rows, np.array(rest, np.int64)])

    def prepare(self) -> None:
        """Fill the pool with numbers that are finite in all types."""
        import torch  # noqa: PLC0415 - heavy

        torch.cuda.set_per_process_memory_fraction(_MEMORY)
        self.use(torch, torch.empty(POOL, dtype=torch.float16, device="cuda").normal_())
        self.before = other_kernels(torch)

    def use(self, torch: Any, pool: Any) -> None:
        """Take operands from a pool of `POOL` elements of float16, wherever it lies."""
        self._torch, self._pool = torch, pool

    def calls(self, case: tuple[int, ...]) -> Sequence[Callable[[], object]]:
        """Return the repetitions of a call. It runs here once, because cuDNN plans each new shape for a tenth of a
        second or more; and so do forward passes that a backward pass needs.
        """
        (call, *more) = self.repetitions(case)
        call()
        return [call, *more]

    def repetitions(self, case: tuple[int, ...]) -> Sequence[Callable[[], object]]:
        """Return the repetitions of a call that has not run."""
        torch = self._torch
        what, dtype, layout, batch, heads, kv_heads, queries, keys, size, value_size, causal, mask, dropout = case
        self._at = 0
        kind = (torch.float32, torch.float32, torch.float16, torch.bfloat16)[dtype]
        if layout == Layout.PACKED:
            packed = self._numbers(kind, batch, keys, 3, heads, size)
            q, k, v = (packed[:, :, i].transpose(1, 2) for i in range(3))
        else:
            shapes = ((heads, queries, size), (kv_heads, keys, size), (kv_heads, keys, value_size))
            q, k, v = (self._operand(kind, layout, batch, *shape) for shape in shapes)
        attention_mask = None
        if mask == Mask.BOOLEAN:
            attention_mask = torch.ones(batch, 1, queries, keys, dtype=torch.bool, device=self._pool.device)
        elif mask:
            shape = (batch, 1) if mask == Mask.ADDED else (1, heads)
            attention_mask = self._numbers(kind, *shape, queries, keys)
        attend = partial(
            torch.nn.functional.scaled_dot_product_attention, attn_mask=attention_mask, dropout_p=0.1 * dropout,
            is_causal=bool(causal), enable_gqa=kv_heads != heads,
        )  # fmt: skip
        tf32 = dtype == 0
        if what == Pass.INFERENCE:
            return [partial(self._in_mode, attend, q, k, v, tf32=tf32) for _ in range(_REPETITIONS)]
        q, k, v = (one.detach().requires_grad_() for one in (q, k, v))
        if what == Pass.TRAINING_FORWARD:
            return [partial(self._in_mode, attend, q, k, v, tf32=tf32, grad=True) for _ in range(_REPETITIONS)]
        out = self._in_mode(attend, q, k, v, tf32=tf32, grad=True)
        gradient = torch.ones_like(out)
        backward = partial(torch.autograd.grad, out, (q, k, v), gradient, retain_graph=True)
        return [partial(self._in_mode, backward, tf32=tf32, grad=True) for _ in range(_REPETITIONS)]

    def _in_mode(self, call: Callable[..., Any], *operands: Any, tf32: bool, grad: bool = False) -> Any:
        if self._torch.backends.cuda.matmul.allow_tf32 != tf32:
            self._torch.backends.cuda.matmul.allow_tf32 = tf32
        with self._torch.set_grad_enabled(grad):
            return call(*operands)

    def _operand(self, kind: Any, layout: int, batch: int, heads: int, length: int, size: int) -> Any:
        if layout == Layout.HEADS_OUTSIDE:
            return self._numbers(kind, batch, heads, length, size)
        return self._numbers(kind, batch, length, heads, size).transpose(1, 2)

    def _numbers(self, kind: Any, *shape: int) -> Any:
        elements = int(np.prod(shape))
        size = elements * kind.itemsize // 2
        if self._at + size > len(self._pool):
            self._at = 0
        flat = self._pool[self._at : self._at + size].view(kind)[:elements]
        self._at += -(-size // 256) * 256
        return flat.view(shape)


HELD_OUT, _HELD_OUT_SEED = 100, 7
FAMILY: Final = Attention()
