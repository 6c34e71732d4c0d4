"""Random chains that the persistent kernel runs, sound policies for them, and their plans."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.support.runtime.chains import matrix, weight
from tileprof.errors import UserError
from tileprof.policy.format import Edge, Policy, Semaphores, Stage, WaitTable
from tileprof.runtime.chain import Chain
from tileprof.runtime.persistent.plan import SPLITS, Box, Plan
from tileprof.runtime.persistent.task_lists import plan_of
from tileprof.runtime.stages.conv import Conv2d
from tileprof.runtime.stages.gemm import Gemm


def policy_of(chain: Chain, kind: str, orders: list[tuple[int, ...] | None] | None = None) -> Policy:
    """Return a sound policy that waits for every parent tile (``tile``), for whole rows of tiles (``row``), or for
    every other tile of them (``strided``).
    """
    given_orders = orders or [None] * len(chain.operators)
    stages = tuple(
        Stage(name, o.grid, op=o.NAME, operator=o.describe(), order=order)
        for name, o, order in zip(chain.names, chain.operators, given_orders, strict=True)
    )
    if kind == "fewest":
        result = chain.policy()
        return replace(result, stages=stages)
    semaphores, edges = [], []
    for (producer, consumer), (parent, child) in chain._needs(chain.memory()).items():
        gx, gy, gz = stages[producer].grid
        tile = np.arange(gx * gy * gz)
        x, y = tile % gx, tile // gx % gy
        down, across = (y, x) if chain.operators[producer].rows_along == "y" else (x, y)
        of = {"tile": tile, "row": down, "strided": 2 * down + across % 2}[kind]
        _, of = np.unique(of, return_inverse=True)
        full = np.bincount(of)
        waits = [sorted(set(of[parent[child == t]].tolist())) for t in range(stages[consumer].tiles)]
        flat = [s for w in waits for s in w]
        indptr = np.cumsum([0] + [len(w) for w in waits]).tolist()
        edges.append(
            Edge(
                producer,
                consumer,
                ("RAW",),
                "table",
                len(semaphores),
                WaitTable(tuple(indptr), tuple(flat)),
                tuple(full[flat].tolist()),
            )
        )
        semaphores.append(Semaphores(producer, (len(full), 1, 1), tuple(of.tolist())))
    return Policy(stages, tuple(semaphores), tuple(edges), guard={"renamed": True})


@st.composite
def products(draw: st.DrawFn) -> Chain:
    """Draw two to four products of ragged sizes, with residuals of earlier results, and memory that is written
    twice.
    """
    m = draw(st.integers(1, 300))
    widths = [8 * draw(st.integers(1, 40)) for _ in range(draw(st.integers(3, 5)))]
    height = draw(st.sampled_from([16, 24, 64, 128, 256]))
    tensors = [f"t{n}" for n in range(len(widths))]
    reuse = draw(st.booleans())
    operators: list[Gemm] = []
    for n, (k, width) in enumerate(pairwise(widths)):
        name = tensors[n + 1]
        if reuse and n >= 2 and widths[n + 1] == widths[n - 1] and n + 1 < len(widths):
            name = operators[n - 2].out.tensor
        tensors[n + 1] = name
        gate = draw(st.booleans())
        columns = draw(st.sampled_from([16, 48, 88, 128] if not gate else [8, 24, 64]))
        earlier = [o.out for o in operators if o.out.shape == (m, width) and o.out.tensor != name]
        residual = draw(st.sampled_from([None, *earlier]))
        operators.append(
            Gemm(
                matrix(tensors[n], m, k),
                weight(f"w{n}", k, width * (1 + gate)),
                matrix(name, m, width),
                residual=residual,
                tile=(height if height > 128 else min(m, height), columns),
                epilogue="silu_gate" if gate else "gelu",
                rows_along=draw(st.sampled_from("xy")),
            )
        )
    return Chain(tuple(f"s{n}" for n in range(len(operators))), tuple(operators))


@st.composite
def convolutions(draw: st.DrawFn) -> Chain:
    images, size = draw(st.integers(1, 3)), draw(st.integers(4, 9))
    operators: list[Conv2d] = []
    x = matrix("x", images, size, size, 64)
    for n in range(draw(st.integers(2, 3))):
        kernel = draw(st.sampled_from([1, 3]))
        stride = draw(st.sampled_from([1, 1, 2]))
        padding = kernel // 2
        side = (x.shape[1] + 2 * padding - kernel) // stride + 1
        out = matrix(f"h{n}", images, side, side, 64)
        residual = x if x.shape == out.shape and draw(st.booleans()) else None
        result = [
            Conv2d(
                x,
                matrix(f"w{n}", 64, kernel, kernel, 64),
                out,
                tile=(h, 32),
                stride=stride,
                padding=padding,
                residual=residual,
            )
            for h in range(1, 65)
        ]
        operators.append(draw(st.sampled_from([o for o in result if Box.of(o) is not None])))
        x = out
    return Chain(tuple(f"s{n}" for n in range(len(operators))), tuple(operators))


@st.composite
def random_plans(draw: st.DrawFn) -> Plan:
    chain = draw(st.one_of(products(), convolutions()))
    kind = draw(st.sampled_from(["tile", "row", "strided", "fewest"]))
    orders = [
        tuple(draw(st.permutations(range(o.tiles)))) if o.tiles < 20 and draw(st.booleans()) else None
        for o in chain.operators
    ]
    policy = policy_of(chain, kind, orders)
    split = 2 if chain.operators[0].tile[0] > 128 else draw(st.sampled_from(SPLITS))
    abreast = [draw(st.booleans()) for _ in chain.operators] if split > 1 and draw(st.booleans()) else None
    try:
        return plan_of(policy, chain, clusters=draw(st.integers(1, 6)), split=split, abreast=abreast)
    except UserError:
        assume(False)
        raise
