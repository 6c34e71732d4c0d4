"""How long decompositions and solutions of matrices take: operators without a tile model, of many launches on a GPU.

Their launches are modelled as one, in which every tile may touch everything. Its time is that of all of them, gaps left
out: measured on an H200 for square matrices of float32 (PyTorch 2.11, cuSOLVER 12, 2026-11-28; one call each, so an
order of magnitude), and estimated for other sizes and batches. Such calls are chains of small kernels, whose time says
little about the GPU.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.record.model.tile_model import Operand

if TYPE_CHECKING:
    from tileprof.record.model.tile_model import Call

_ONE: Final = {
    "_linalg_svd": ((16, 149), (64, 760), (256, 5838), (512, 16502)),
    "_linalg_eigh": ((16, 83), (64, 510), (256, 4243), (512, 12791), (1024, 9800)),
    "linalg_qr": ((16, 44), (64, 176), (256, 705), (512, 1758), (1024, 4182)),
    "linalg_cholesky_ex": ((16, 22), (64, 22), (256, 84), (512, 180), (1024, 359)),
    "linalg_lu_factor_ex": ((16, 32), (64, 95), (256, 371), (512, 835), (1024, 1847)),
    "_linalg_solve_ex": ((16, 44), (64, 125), (256, 483), (512, 1064), (1024, 2354)),
    "linalg_inv_ex": ((16, 44), (64, 125), (256, 479), (512, 1069), (1024, 2344)),
    "_linalg_det": ((16, 39), (64, 102), (256, 381), (512, 843), (1024, 1847)),
    "_linalg_slogdet": ((16, 44), (64, 106), (256, 384), (512, 852), (1024, 1855)),
    "linalg_lstsq": ((16, 45), (64, 405), (256, 744), (512, 1824), (1024, 4364)),
    "linalg_matrix_exp": ((16, 38), (64, 44), (256, 113), (512, 171), (1024, 547)),
    "linalg_eig": ((16, 403), (64, 1823), (256, 10811), (512, 22298)),
    "cholesky_solve": ((16, 13), (64, 36), (256, 155), (512, 323), (1024, 771)),
}
"""By operator: sizes of one matrix, and microseconds."""
_MANY: Final = {
    "_linalg_svd": ((64, 16, 154), (64, 64, 48669), (8, 256, 46826), (512, 32, 561)),
    "_linalg_eigh": ((64, 16, 94), (64, 64, 33763), (8, 256, 33566), (512, 32, 363)),
    "linalg_qr": ((64, 16, 1026), (64, 64, 2871), (8, 256, 6321), (512, 32, 14221)),
    "linalg_cholesky_ex": ((64, 16, 14), (64, 64, 47), (8, 256, 206), (512, 32, 31)),
    "linalg_lu_factor_ex": ((64, 16, 21), (64, 64, 246), (8, 256, 1219), (512, 32, 20)),
    "_linalg_solve_ex": ((64, 16, 35), (64, 64, 335), (8, 256, 1922), (512, 32, 141)),
    "linalg_inv_ex": ((64, 16, 34), (64, 64, 334), (8, 256, 1857), (512, 32, 136)),
    "_linalg_det": ((64, 16, 31), (64, 64, 254), (8, 256, 1226), (512, 32, 31)),
    "_linalg_slogdet": ((64, 16, 37), (64, 64, 262), (8, 256, 1237), (512, 32, 38)),
    "linalg_lstsq": ((64, 16, 206), (64, 64, 3962), (8, 256, 5884), (512, 32, 840)),
    "linalg_matrix_exp": ((64, 16, 89), (64, 64, 109), (8, 256, 171), (512, 32, 166)),
    "cholesky_solve": ((64, 16, 10), (64, 64, 131), (8, 256, 656), (512, 32, 65)),
}
"""By operator: numbers of matrices, their sizes, and microseconds."""


def chain_ns(call: Call) -> float:
    """Return how long the launches of a call take one after another, in ns; 0 for operators that were not measured."""
    name = call.op.removeprefix("aten::").partition(".")[0]
    matrices = next((o for o in call.tensors if len(o.shape) >= 2), None)
    if name not in _ONE or not isinstance(matrices, Operand) or not matrices.numel:
        return 0.0
    size = float(np.sqrt(np.prod(matrices.shape[-2:], dtype=np.float64)))
    number = int(np.prod(matrices.shape[:-2], dtype=np.int64))
    return 1e3 * _of_one(name, size) * _times(name, number, size)


def _of_one(name: str, size: float) -> float:
    """Return the microseconds of one matrix, on lines between the measured sizes, in logarithms."""
    sizes, times = (np.log(column) for column in zip(*_ONE[name], strict=True))
    at = np.log(size)
    if at <= sizes[0]:
        return float(np.exp(times[0]))
    last = max((times[-1] - times[-2]) / (sizes[-1] - sizes[-2]), 1.0)
    beyond = max(at - sizes[-1], 0.0) * last
    return float(np.exp(np.interp(at, sizes, times) + beyond))


def _times(name: str, number: int, size: float) -> float:
    """Return by what a batch takes longer than one matrix: a power of its number, that of the batch of the nearest
    size.
    """
    if number <= 1 or name not in _MANY:
        return float(max(number, 1))
    nearest = min(_MANY[name], key=lambda m: abs(np.log(m[1] / size)))
    many, its_size, time = nearest
    power = np.log(time / _of_one(name, its_size)) / np.log(many)
    return float(number ** max(power, 0.0))
