"""Chooses the elements of a matrix that dropout keeps: a function of the seed and the element's number alone, so that
tiles may run in any order.

The words are Philox4x32-10's (Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011):
key = seed, counter = number, the first of the four words. They are what `triton.language.randint` gives; both sides
compare whole numbers, so that no rounding comes between.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from tileprof.errors import UserError
from tileprof.runtime.stages.tiling import Span

MOST_SEED: Final = 2**63 - 1
"""The key has 64 bits; Triton takes it as a signed number."""

_WORD: Final = 0xFFFFFFFF
_ROUNDS: Final = 10
_FACTORS: Final = (0xD2511F53, 0xCD9E8D57)
_KEY_STEPS: Final = (0x9E3779B9, 0xBB67AE85)
_AT_A_TIME: Final = 1 << 22
"""Elements worked on together: their words take 32 MiB, and several such are held."""


def check(dropout: float, seed: int) -> None:
    """Raise `UserError` for what is not a probability, or no seed."""
    if not 0 <= dropout < 1:
        raise UserError(f"dropout is {dropout}; it is the share of elements that become 0, from 0 to below 1")
    if not isinstance(seed, int) or isinstance(seed, bool) or not 0 <= seed <= MOST_SEED:
        raise UserError(f"the seed is {seed!r}; it is a whole number from 0 to {MOST_SEED}")


def threshold(dropout: float) -> int:
    """Return elements whose word is below this are dropped: a share ``dropout`` of all words."""
    return min(_WORD, round(dropout * 2**32))


def words(seed: int, number: Any) -> Any:
    """Return the random words, 0 to 2^32 - 1, of elements of these numbers (int64, not negative); int64 of the same
    shape and device.
    """
    key = [seed & _WORD, seed >> 32]
    zero = torch.zeros_like(number)
    a, b, c, d = number & _WORD, number >> 32, zero, zero
    for _ in range(_ROUNDS):
        (high_a, low_a), (high_c, low_c) = _product(_FACTORS[0], a), _product(_FACTORS[1], c)
        a, b, c, d = high_c ^ b ^ key[0], low_c, high_a ^ d ^ key[1], low_a
        key = [(k + step) & _WORD for k, step in zip(key, _KEY_STEPS, strict=True)]
    return a


def apply(value: Any, dropout: float, seed: int, first_row: int = 0) -> Any:
    """Return ``value`` [rows, columns], rows of a matrix from ``first_row`` on: dropped elements 0, the others divided
    by ``1
    - dropout``.

    An element's number is its row-major place in the whole matrix. Without dropout, ``value`` itself.
    """
    if not dropout:
        return value
    rows, columns = value.shape
    step = max(1, _AT_A_TIME // columns)
    spans = ((row, min(rows, row + step)) for row in range(0, rows, step))
    mask = torch.cat([_mask_of(dropout, seed, (first_row + b, first_row + e), columns, value.device) for b, e in spans])
    return torch.where(mask, value * (1 / (1 - dropout)), 0.0)


def _mask_of(dropout: float, seed: int, rows: Span, columns: int, device: Any) -> Any:
    number = torch.arange(rows[0] * columns, rows[1] * columns, device=device).reshape(-1, columns)
    return words(seed, number) >= threshold(dropout)


def _product(factor: int, word: Any) -> tuple[Any, Any]:
    """Return high and low 32 bits of a product of words, by halves of ``word``: int64 has no room for all 64 bits."""
    low, high = factor * (word & 0xFFFF), factor * (word >> 16)
    high = high + (low >> 16)
    return high >> 16, (high & 0xFFFF) << 16 | low & 0xFFFF
