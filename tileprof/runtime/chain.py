"""Stage operators in a row, and the policy that their own touches ask for: no trace needed, none consulted."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from tileprof.arrays import I64
from tileprof.errors import UserError
from tileprof.policy.format import Edge, Policy, Semaphores, Stage, WaitTable
from tileprof.policy.format.expression import parse
from tileprof.runtime.executor.memory import Memory
from tileprof.runtime.stages.operator import Operator, operator_of
from tileprof.runtime.stages.view import View

if TYPE_CHECKING:
    from tileprof.policy.verification.verifier import Verification

_TWO_LINES: Final = """nothing here computes it, but it can run under this policy.
In a Triton kernel two lines make it a stage:
    tile = enter(sync, tl.program_id(0))  # in the place of tl.program_id(0)
    leave(sync, tile)                     # behind its last store
and its launches take their stage from tileprof.runtime.synchroniser:
    stages = Synchroniser.from_policy("policy.json")
    kernel[grid](..., stages[0], **stages.launch(0))
A kernel in CUDA C++ takes the header of tileprof export --format cusync. Without changing the program, tileprof run
POLICY --trace TRACE executes the waits over what was recorded"""


@dataclass(frozen=True, slots=True)
class Chain:
    """Operators in stage order; tensors of one name are one memory. Raises `UserError` where they contradict each
    other.
    """

    names: tuple[str, ...]
    operators: tuple[Operator, ...]

    @classmethod
    def of_policy(cls, policy: Policy) -> Chain:
        """Return the operators that a policy's stages name.

        Raises `UserError` for a stage without one or of another grid.
        """
        operators = []
        for number, stage in enumerate(policy.stages):
            place = f"stage {number} ({stage.name})"
            if not stage.operator and stage.kernel and not stage.op.startswith(("aten::", "mem")):
                raise UserError(f"{place} is a kernel of the program's own, {stage.kernel:.60}: {_TWO_LINES}")
            if not stage.operator:
                raise UserError(
                    f"{place} names no operator that computes it{f': {stage.reason}' if stage.reason else ''}. "
                    "To execute only its waits, over the trace that it was made from: "
                    "tileprof run POLICY --trace TRACE"
                )
            try:
                operator = operator_of(stage.operator)
            except UserError as error:
                raise UserError(f"{place}: {error}") from None
            if operator.grid != stage.grid:
                raise UserError(f"{place}: the operator has a grid of {operator.grid} tiles, the stage {stage.grid}")
            operators.append(operator)
        return cls(tuple(stage.name for stage in policy.stages), tuple(operators))

    def __post_init__(self) -> None:
        for name, views in self.tensors().items():
            if len({view.dtype for view in views}) > 1:
                raise UserError(f"tensor {name} is taken as {' and as '.join(sorted({view.dtype for view in views}))}")
        inputs = self.inputs()
        for stage, operator in zip(self.names, self.operators, strict=True):
            if operator.out.overlaps():
                raise UserError(
                    f"stage {stage} writes {operator.out.tensor} as {operator.out.shape} with strides "
                    f"{operator.out.strides}, by which elements overlap"
                )
            if operator.out.tensor in inputs:
                raise UserError(
                    f"stage {stage} writes {operator.out.tensor}, which is an input of the pipeline; give the result "
                    "a tensor of its own"
                )
        for name, view in inputs.items():
            if any(other.elements > view.elements for other in self.tensors()[name]):
                raise UserError(f"tensor {name} is taken as {view.shape} and, elsewhere, as more than that")

    def beside(self, other: Chain) -> Chain:
        """Return both as one chain, whose stages do not wait for each other's. Tensors and stages of ``other`` whose
        names are taken get a prime.
        """
        reserved = set(self.tensors())

        def renamed(view: View) -> View:
            name = view.tensor
            while name in reserved:
                name += "'"
            return replace(view, tensor=name)

        def moved(operator: Operator) -> Operator:
            views = {f.name: getattr(operator, f.name) for f in fields(operator)}  # type: ignore[arg-type]
            return replace(operator, **{n: renamed(v) for n, v in views.items() if isinstance(v, View)})  # type: ignore[type-var]

        names = [f"{name}'" if name in self.names else name for name in other.names]
        return Chain((*self.names, *names), (*self.operators, *map(moved, other.operators)))

    def tensors(self) -> dict[str, list[View]]:
        """Return views of every tensor, in order of first use."""
        views_of: dict[str, list[View]] = {}
        for operator in self.operators:
            for view in operator.views().values():
                views_of.setdefault(view.tensor, []).append(view)
        return views_of

    def inputs(self) -> dict[str, View]:
        """Return tensors that a stage reads before any has written them, each as its largest view; flat, where that
        does not hold the others.
        """
        written_tensors: set[str] = set()
        first: dict[str, int] = {}
        views_of: dict[str, View] = {}
        for operator in self.operators:
            reads = [
                view for role, view in operator.views().items() if role != "out" and view.tensor not in written_tensors
            ]
            for view in reads:
                largest = views_of.get(view.tensor)
                views_of[view.tensor] = view if largest is None or view.elements > largest.elements else largest
                first[view.tensor] = min(first.get(view.tensor, view.offset), view.offset)
            written_tensors.add(operator.out.tensor)
        for name, view in views_of.items():
            if first[name] < view.offset:  # no view begins where another does, and ends where that ends
                views_of[name] = View.contiguous(name, (view.elements,), view.dtype)
        return views_of

    def outputs(self) -> dict[str, View]:
        """Return tensors that no later stage reads, as they are written last."""
        views_of: dict[str, View] = {}
        for operator in self.operators:
            for role, view in operator.views().items():
                if role != "out":
                    views_of.pop(view.tensor, None)
            views_of[operator.out.tensor] = operator.out
        return views_of

    def before(self) -> list[frozenset[int]]:
        """Return the stages that each stage must follow: they write what it reads or writes, or read what it writes."""
        earlier_stages = []
        for stage, operator in enumerate(self.operators):
            tensors = {view.tensor for view in operator.views().values()}
            earlier = enumerate(self.operators[:stage])
            needs = (
                n
                for n, other in earlier
                if other.out.tensor in tensors or operator.out.tensor in {v.tensor for v in other.views().values()}
            )
            earlier_stages.append(frozenset(needs))
        return earlier_stages

    def memory(self) -> Memory:
        """Return what the tiles touch, for the executor; buffers are numbered as in `tensors`."""
        numbers = {name: number for number, name in enumerate(self.tensors())}
        return Memory.build([o.tiles for o in self.operators], [o.touches(numbers) for o in self.operators])

    def policy(self, memory: Memory | None = None) -> Policy:
        """Return the policy with the fewest semaphores that waits for what the tiles need, verified."""
        stages = tuple(
            Stage(name, operator.grid, op=operator.NAME, operator=operator.describe())
            for name, operator in zip(self.names, self.operators, strict=True)
        )
        semaphores: list[Semaphores] = []
        edges: list[Edge] = []
        for (producer, consumer), (parent, child) in self._needs(memory or self.memory()).items():
            order = np.lexsort((parent, child))
            indptr = np.searchsorted(child[order], np.arange(stages[consumer].tiles + 1))
            edges.append(
                Edge(
                    producer, consumer, ("RAW",), "table", len(semaphores),
                    WaitTable(tuple(indptr.tolist()), tuple(parent[order].tolist())), parse("1", ("x", "y", "z")),
                )
            )  # fmt: skip
            x, y, z = (parse(axis, ("x", "y", "z")) for axis in "xyz")
            semaphores.append(Semaphores(producer, stages[producer].grid, (x, y, z)))
        if not edges:
            return Policy(stages, (), (), guard={"renamed": True})
        from tileprof.policy.synthesis.dependency_file import Dependencies  # noqa: PLC0415 - slow to import

        policy = Dependencies(stages, tuple(semaphores), tuple(edges)).policy()
        return Policy(
            stages,
            policy.semaphores,
            policy.edges,
            policy.options,
            {"renamed": True},
            notes=("from what the stages' operators touch",),
        )

    def verify(self, policy: Policy, memory: Memory | None = None) -> Verification:
        """Return the verdict on a policy for these stages: does it wait for everything that the tiles need."""
        from tileprof.policy.verification.relation_graph import graph_of_edges  # noqa: PLC0415 - slow to import
        from tileprof.policy.verification.verifier import verify  # noqa: PLC0415 - slow to import

        grids = [operator.grid for operator in self.operators]
        return verify(policy, graph_of_edges(grids, self._needs(memory or self.memory())), range(len(grids)))

    def _needs(self, memory: Memory) -> dict[tuple[int, int], tuple[I64, I64]]:
        """Return tiles (producer, consumer) that depend on each other, by pair of stages."""
        parents, children = memory.needs()
        stages = len(self.operators)
        from_, to = (np.searchsorted(memory.base, nodes, "right") - 1 for nodes in (parents, children))
        needs = {}
        for key in np.unique(from_ * stages + to).tolist():
            selected = from_ * stages + to == key
            pair = key // stages, key % stages
            needs[pair] = parents[selected] - memory.base[pair[0]], children[selected] - memory.base[pair[1]]
        return needs
