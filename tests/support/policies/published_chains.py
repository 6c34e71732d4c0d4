"""The chains of kernels that cuSync's authors tuned by hand, with their tile shapes and split-k, recorded by the model.

``tests/data/cusync_policy_shapes.csv`` holds the rows (from the repository's tile_sizes_db.py, eval_mlp.py,
attention.cu and eval_resnet.py; split-k of the baseline). Their split-k sums inside the kernel; here a launch of its
own adds up, and is folded into the stage before it, as activations and softmax are
(`tileprof.policy.synthesis.epilogue_fusion`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from torch.nn import functional

from tests.support.policies.recorded_modules import record
from tileprof.analysis.dependencies.graph import TileGraph
from tileprof.errors import UserError
from tileprof.policy.synthesis.cusync_kinds import Shipped, shipped_policy
from tileprof.policy.synthesis.epilogue_fusion import fuse
from tileprof.policy.synthesis.prediction import Predictor
from tileprof.policy.synthesis.search import synthesise
from tileprof.policy.verification.verifier import verify

DATA = Path(__file__).parents[2] / "data" / "cusync_policy_shapes.csv"
KINDS = ("rowsync", "tilesync", "stridedsync")
CONVOLUTION_KINDS = ("rowsync", "conv2dtile")


@dataclass(frozen=True)
class Chain:
    """Return rows of the table that run one after the other; ``size`` is tokens or images."""

    model: str
    arch: str
    block: str
    size: int
    rows: tuple[Any, ...]

    @property
    def convolutions(self) -> bool:
        return str(self.rows[0].op).startswith("conv")

    def run(self) -> None:
        """Run the program, on tensors without values."""
        if self.convolutions:
            self._convolve()
        elif self.block == "attention":
            self._attend()
        else:
            self._multiply()

    def tiles(self) -> tuple[str, ...]:
        family = "conv" if self.convolutions else "gemm"
        return tuple(
            f"{family}@{r.m}x{r.n}x{r.k}={r.tile_m}x{r.tile_n}x{r.tile_k},"
            f"split={1 if pd.isna(r.split_k) else r.split_k}"
            for r in self.rows
        )

    def _multiply(self) -> None:
        up, down = self.rows
        hidden = _half(up.m, up.k) @ _half(up.n, up.k).T
        if up.n == down.k:
            hidden = functional.gelu(hidden)
        else:
            gate, other = hidden.chunk(2, dim=-1)
            hidden = functional.silu(gate) * other
        _ = hidden @ _half(down.n, down.k).T

    def _attend(self) -> None:
        first, scores, values, last = self.rows
        q, k, v = (_half(first.m, first.k) @ _half(first.n, first.k).T).split(first.n // 3, dim=-1)
        assert (scores.k, values.n) == (first.n // 3, first.n // 3)
        _ = (torch.softmax(q @ k.T, dim=-1) @ v) @ _half(last.n, last.k).T

    def _convolve(self) -> None:
        first, *others = self.rows
        x = _half(self.size, first.c_in, first.h_in, first.h_in).to(memory_format=torch.channels_last)
        for n, row in enumerate((first, others[0])):
            w = _half(row.c_out, row.c_in, row.r, row.r).to(memory_format=torch.channels_last)
            x = functional.conv2d(functional.relu(x) if n else x, w, padding=row.pad)


def _half(*shape: int) -> torch.Tensor:
    return torch.empty(*map(int, shape), dtype=torch.float16)


def chains() -> Iterator[Chain]:
    frame = pd.read_csv(DATA, dtype=dict.fromkeys(("h_in", "c_in", "c_out", "r", "pad", "split_k"), "Int64"))
    for (model, arch, block, size), rows in frame.groupby(["model", "arch", "block", "batch"], sort=False):
        yield Chain(str(model), str(arch), str(block), int(size), tuple(rows.itertuples(index=False)))


@dataclass(frozen=True)
class PairOutcome:
    """One pair of stages: the times, in microseconds, of the synthesised policy and of cuSync's kinds (None if a kind
    does not fit).
    """

    chain: Chain
    pair: str
    kind: str
    semaphores: int
    stream_us: float
    policy_us: float
    shipped_us: dict[str, float]
    missing: dict[str, int]
    reason: str

    @property
    def best_shipped_us(self) -> float:
        """Return the shortest time of cuSync's policies that wait for everything; infinite if there is none."""
        return min((us for kind, us in self.shipped_us.items() if self.missing[kind] == 0), default=float("inf"))


DEVICES = {"v100": "V100", "a100": "A100-40GB"}


def measure(chain: Chain, folder: Path) -> list[PairOutcome]:
    """Return every pair of neighbours of a chain."""
    path = folder / f"{chain.model}-{chain.arch}-{chain.block}-{chain.size}.tileprof"
    graph = record(chain.run, path, fake=True, tile=chain.tiles(), device=DEVICES[chain.arch])
    stages = [n for n, kernel in enumerate(graph.launches["kernel"]) if kernel.startswith(("gemm", "implicit"))]
    return [_pair(chain, graph, pair, n) for n, pair in enumerate(pairwise(stages))]


def _pair(chain: Chain, whole: TileGraph, pair: tuple[int, int], number: int) -> PairOutcome:
    graph = fuse(whole, pair)
    predict = Predictor(graph)
    policy = synthesise(graph, pair, predictor=predict)
    shipped_us, missing = {}, {}
    for kind in CONVOLUTION_KINDS if chain.convolutions else KINDS:
        try:
            shipped_waits = shipped_policy(Shipped(kind), graph, *pair)
        except UserError:  # a stride that does not divide the columns
            continue
        # cuSync's users choose an order of tiles that suits the kind: that of the synthesised policy, or
        # ascending.
        orders = (policy.stages, shipped_waits.stages)
        shipped_us[kind] = min(predict(replace(shipped_waits, stages=s), pair).policy_ns for s in orders) / 1000
        missing[kind] = len(verify(shipped_waits, graph, pair).missing)
    edge = policy.edges[0]
    names = f"{chain.rows[number].op} -> {chain.rows[number + 1].op}"
    return PairOutcome(
        chain, names, edge.kind, sum(s.count for s in policy.semaphores), policy.prediction["stream_us"],
        policy.prediction["policy_us"], shipped_us, missing, edge.reason,
    )  # fmt: skip
