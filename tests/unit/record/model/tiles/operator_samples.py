"""OpInfo's samples of every operator, with tiles so small that small samples have several."""

from __future__ import annotations

import sys
import types
import unittest
import warnings
from contextlib import contextmanager
from importlib import import_module
from itertools import islice
from pkgutil import walk_packages

import pytest
import torch

from tests.unit.record.model.tiles import checked_operators, watch
from tileprof.record.model import tiles
from tileprof.record.model.tiles import load_all
from tileprof.record.model.tiles.foundations import overrides, sketch

PARTS = 16
"""Number of tests among which the operators are divided, so that several processes share the work."""

SAMPLES = 2
FINER = 128

NOT_FOR_THE_CPU = ("jiterator", "bmm triton_optimized")
NOT_STRIDED = ("to_sparse", "sparse.")


@contextmanager
def all_operators():
    """Return all of OpInfo's operators.

    Its test base class needs ``expecttest``, which nothing here uses. It searches the whole stack for the test that
    asks for a sample, which takes four fifths of the time. Each seed of a sample would be kept for devices that are not
    there, together with a description of the stack.
    """
    sys.modules.setdefault("expecttest", types.SimpleNamespace(TestCase=unittest.TestCase))
    with warnings.catch_warnings(), pytest.MonkeyPatch.context() as patch:
        warnings.simplefilter("ignore")
        database = import_module("torch.testing._internal.common_methods_invocations").op_db
        for name in ("common_utils", "opinfo.core"):
            patch.setattr(f"torch.testing._internal.{name}.extract_test_fn", lambda: None)
        for name in ("cuda", "mtia", "xpu"):
            patch.setattr(f"torch.{name}.manual_seed_all", lambda _: None)
        yield database


@contextmanager
def tiny_tiles(monkeypatch):
    """Make the ranges of all models `FINER` times shorter."""
    load_all()
    blocks, ranges = sketch.blocks, sketch.ranges
    for info in walk_packages(tiles.__path__, f"{tiles.__name__}."):
        module = import_module(info.name)
        if module is sketch:
            continue
        if hasattr(module, "blocks"):
            monkeypatch.setattr(module, "blocks", lambda total, chunk: blocks(total, max(1, chunk // FINER)))
        if hasattr(module, "ranges"):
            monkeypatch.setattr(module, "ranges", lambda n, chunk, *more: ranges(n, max(1, chunk // FINER), *more))
    with overrides.override("gemm=2x3x2", "conv=2x3x2", "attention=2x2"):
        yield


def tried_operators(operators):
    """Return the number of perturbed elements, the models that were checked against PyTorch this way, and the
    faults.
    """
    attempts, checked, wrong = 0, set(), []
    for op in operators:
        name = f"{op.name} {op.variant_test_name}".strip()
        if name.startswith((*NOT_FOR_THE_CPU, *NOT_STRIDED)):
            continue
        for sample in _samples(op):
            watched_calls = watch.Watch(taints=True)
            try:
                with watched_calls:
                    op(sample.input, *sample.args, **sample.kwargs)
            except AssertionError as error:
                wrong.append(f"{name}: {error}")
            attempts += watched_calls.attempts
            checked |= {checked_operators.model_of(one) for one in watched_calls.checked}
    return attempts, checked, wrong


def _samples(op):
    dtype = next((d for d in (torch.float32, torch.int64, torch.bool) if d in op.dtypes), None)
    if dtype is None:
        return []
    torch.manual_seed(0)
    samples = list(islice(op.sample_inputs("cpu", dtype, requires_grad=False), 12))
    return samples[: SAMPLES - 1] + samples[-1:] if len(samples) > SAMPLES else samples
