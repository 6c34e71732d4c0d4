"""The algorithm that cuBLASLt would choose, without a launch: ``python -m tileprof.harvest.library_choices``.

``cublasLtMatmulAlgoGetHeuristic`` runs on the host, so that every core asks for itself: hundreds of thousands of
problems in a minute. Answers are algorithms (tile, stages, split-k, cluster as cuBLASLt numbers them); which kernel one
is launched as is known from the cases that were launched, too (`tileprof.harvest.products`).

A worker asks for cases of the harvest first, its share of ``--launched`` of them, then for more that follow from
``--seed`` and its number: `more_cases` lists them again, and so the files hold answers alone::

    answer      [asked] int32            place in ``algorithms``; -1 where cuBLASLt has none
    algorithms  [algorithms, 9] int64    what `ATTRIBUTES` names
    workspace   [algorithms] int64       largest one that was asked for, bytes
    asked       [2] int64                how many of the harvest, how many more
"""

from __future__ import annotations

import ctypes
import multiprocessing
import sys
import time
from argparse import ArgumentParser
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from tileprof.harvest.product_cases import Case, Dtype, Op, asked, harvested, held_out

if TYPE_CHECKING:
    from collections.abc import Iterator

ATTRIBUTES: Final = (
    "id", "tile", "split_k", "reduction", "swizzling", "custom", "stages", "inner_shape", "cluster",
)  # fmt: skip
"""Attributes in the order of ``cublasLtMatmulAlgoConfigAttributes_t``, from 0."""
_WIDE: Final = {"inner_shape": 2, "cluster": 2}
_WORKSPACE, _BIAS_WORKSPACE = 32 << 20, 1 << 20
"""The workspaces that PyTorch gives cuBLAS on Hopper, and cuBLASLt, which it calls for products with a bias."""
_TYPES: Final = {Dtype.FP32: 0, Dtype.TF32: 0, Dtype.FP16: 2, Dtype.BF16: 14}
_COMPUTE, _COMPUTE_TF32 = 68, 77
ASKED: Final = (Op.MM, Op.ADDMM, Op.ADDMM_MATRIX, Op.BMM, Op.BADDBMM)
"""The library is not told whether a matrix is added: it answers as without."""
_TRANSA, _TRANSB, _EPILOGUE, _BIAS_POINTER, _BIAS = 3, 4, 7, 8, 4
_BATCH_COUNT, _BATCH_STRIDE, _MOST_WORKSPACE = 5, 6, 1


_size = ctypes.c_size_t


class _Result(ctypes.Structure):
    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int),
        ("waves", ctypes.c_float), ("reserved", ctypes.c_int * 4),
    )  # fmt: skip


class Library:
    """cuBLASLt, asked for the best algorithm of a product as PyTorch calls it: column-major, so transposed."""

    def __init__(self) -> None:
        import torch  # noqa: PLC0415 - heavy; loads the library, and makes the context

        torch.zeros(1, device="cuda")
        torch.mm(torch.zeros(8, 8, device="cuda"), torch.zeros(8, 8, device="cuda"))
        maps = Path("/proc/self/maps").read_text().splitlines()
        self._lib = ctypes.CDLL(next(line.split()[-1] for line in maps if "libcublasLt.so" in line))
        self._handle = ctypes.c_void_p()
        self._check(self._lib.cublasLtCreate(ctypes.byref(self._handle)))
        self._plain, self._biased = (self._preference(most) for most in (_WORKSPACE, _BIAS_WORKSPACE))
        self._descriptions: dict[tuple[int, ...], ctypes.c_void_p] = {}

    def choice(self, case: Case) -> _Result | None:
        """Return the algorithm for a case; None where cuBLASLt has none."""
        op, dtype, column_a, column_b, batch, m, n, k, _ = case
        # d^T = b^T a^T: cuBLAS's first operand is b. It is transposed where b's columns are contiguous.
        kind = _TYPES[Dtype(dtype)]
        first = self._layout(kind, (k, n) if column_b else (n, k), batch)
        second = self._layout(kind, (m, k) if column_a else (k, m), batch)
        result = self._layout(kind, (n, m), batch)
        best, count = _Result(), ctypes.c_int()
        status = self._lib.cublasLtMatmulAlgoGetHeuristic(
            self._handle, self._description(op, dtype, column_a, column_b), first, second, result, result,
            self._biased if op == Op.ADDMM else self._plain, 1, ctypes.byref(best), ctypes.byref(count),
        )  # fmt: skip
        for layout in (first, second, result):
            self._lib.cublasLtMatrixLayoutDestroy(layout)
        return best if status == 0 and count.value else None

    def attributes(self, best: _Result) -> list[int]:
        """Return what `ATTRIBUTES` names."""
        values = []
        for number, name in enumerate(ATTRIBUTES):
            value, written = ctypes.c_uint32(0), ctypes.c_size_t()
            self._lib.cublasLtMatmulAlgoConfigGetAttribute(
                ctypes.byref(best), number, ctypes.byref(value), _size(_WIDE.get(name, 4)), ctypes.byref(written)
            )
            values.append(value.value)
        return values

    def _preference(self, workspace: int) -> ctypes.c_void_p:
        preference, most = ctypes.c_void_p(), ctypes.c_uint64(workspace)
        self._check(self._lib.cublasLtMatmulPreferenceCreate(ctypes.byref(preference)))
        self._check(
            self._lib.cublasLtMatmulPreferenceSetAttribute(preference, _MOST_WORKSPACE, ctypes.byref(most), _size(8))
        )
        return preference

    def _description(self, op: int, dtype: int, column_a: int, column_b: int) -> ctypes.c_void_p:
        key = (int(op == Op.ADDMM), dtype, column_a, column_b)
        if key not in self._descriptions:
            handle = ctypes.c_void_p()
            compute = _COMPUTE_TF32 if dtype == Dtype.TF32 else _COMPUTE
            self._check(self._lib.cublasLtMatmulDescCreate(ctypes.byref(handle), compute, 0))
            values = {_TRANSA: column_b, _TRANSB: column_a}
            if op == Op.ADDMM:
                values[_EPILOGUE] = _BIAS
                pointer = ctypes.c_uint64(1 << 40)
                self._check(
                    self._lib.cublasLtMatmulDescSetAttribute(handle, _BIAS_POINTER, ctypes.byref(pointer), _size(8))
                )
            for attribute, number in values.items():
                value = ctypes.c_int32(number)
                self._check(self._lib.cublasLtMatmulDescSetAttribute(handle, attribute, ctypes.byref(value), _size(4)))
            self._descriptions[key] = handle
        return self._descriptions[key]

    def _layout(self, kind: int, sizes: tuple[int, int], batch: int) -> ctypes.c_void_p:
        handle = ctypes.c_void_p()
        rows, columns = sizes
        self._lib.cublasLtMatrixLayoutCreate(
            ctypes.byref(handle), kind, ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows)
        )
        if batch > 1:
            count, stride = ctypes.c_int32(batch), ctypes.c_int64(rows * columns)
            self._lib.cublasLtMatrixLayoutSetAttribute(handle, _BATCH_COUNT, ctypes.byref(count), _size(4))
            self._lib.cublasLtMatrixLayoutSetAttribute(handle, _BATCH_STRIDE, ctypes.byref(stride), _size(8))
        return handle

    def _check(self, status: int) -> None:
        if status:
            raise RuntimeError(f"cuBLASLt returned status {status}")


def more_cases(seed: int) -> Iterator[Case]:
    """Yield cases without end, the same ones for a seed; none is held out."""
    yield from asked(Random(seed))  # noqa: S311 - a list of shapes


def _work(worker: int, workers: int, launched: int, seed: int, ends: float, folder: Path) -> None:
    library = Library()
    known = np.concatenate([held_out(), harvested(max(0, launched - len(held_out())))])[worker::workers]
    answers: list[int] = []
    places: dict[bytes, int] = {}
    algorithms: list[list[int]] = []
    workspace: list[int] = []

    def ask(case: Case) -> None:
        best = library.choice(case) if case[0] in ASKED and case[1] != Dtype.FP8 else None
        if best is None:
            answers.append(-1)
            return
        place = places.setdefault(bytes(best.algorithm), len(algorithms))
        if place == len(algorithms):
            algorithms.append(library.attributes(best))
            workspace.append(0)
        workspace[place] = max(workspace[place], best.workspace)
        answers.append(place)

    for row in known.tolist():
        ask(tuple(row))
    first = len(answers)
    for case in more_cases(seed * 1000 + worker):
        if time.time() > ends:
            break
        ask(case)
    np.savez_compressed(
        folder / f"choices-{worker:02d}.npz",
        answer=np.array(answers, np.int32),
        algorithms=np.array(algorithms, np.int64).reshape(len(algorithms), len(ATTRIBUTES)),
        workspace=np.array(workspace, np.int64),
        asked=np.array([first, len(answers) - first], np.int64),
    )
    sys.stderr.write(f"worker {worker}: {first:,} cases of the harvest, {len(answers) - first:,} more\n")


def main(words: list[str] | None = None) -> int:
    """Ask from several processes at once, for a time."""
    parser = ArgumentParser("python -m tileprof.harvest.library_choices", description="ask cuBLASLt without launching")
    parser.add_argument("-o", "--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--launched", type=int, default=0, help="number of cases of the harvest to ask for first")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(words)
    options.output.mkdir(parents=True, exist_ok=True)
    context: Any = multiprocessing.get_context("spawn")
    ends = time.time() + options.seconds
    workers = [
        context.Process(
            target=_work, args=(w, options.workers, options.launched, options.seed, ends, options.output)
        )
        for w in range(options.workers)
    ]  # fmt: skip
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return int(any(worker.exitcode for worker in workers))


if __name__ == "__main__":
    sys.exit(main())
