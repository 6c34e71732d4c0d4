"""Chains of products as regions: run by a policy's pipeline, tile by tile."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import fx

from tileprof.errors import UserError
from tileprof.policy.format import Policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.compile.options import Options
from tileprof.runtime.compile.regions import aten
from tileprof.runtime.compile.regions.chain_matcher import ChainMatch, chains
from tileprof.runtime.compile.regions.gates import Pairs, joined
from tileprof.runtime.compile.regions.region import Finder, Region, Runner
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.persistent_build import nvcc
from tileprof.runtime.persistent.supported import stage_plans
from tileprof.runtime.persistent.tile_choice import tiled
from tileprof.runtime.pipeline import Pipeline

LOG: Final = logging.getLogger("tileprof.runtime.compile")


def finder(options: Options, used_nodes: Collection[fx.Node] = ()) -> Finder:
    """Yield who looks for chains of products without nodes that are ``used_nodes``."""
    pipelines: dict[tuple[Chain, str, torch.device], Any] = {}

    def regions(graph: fx.Graph) -> Iterator[Region]:
        reasons: Counter[str] = Counter()
        for match in list(chains(graph)):
            if any(product in used_nodes for product in match.products):
                continue
            chain, scheduler, pairs, reason = suited(match, options)
            reasons.update(
                [f"a chain of {len(match.stages)} stages is not for the persistent kernel: {reason}"] if reason else []
            )
            if reason and options.scheduler == "auto" and options.use == "measured":
                continue  # Triton's products lose to cuBLAS, whatever overlaps
            yield _region(match, _Plan(chain, scheduler, pairs), pipelines)
        for reason, count in reasons.items():
            LOG.info("%s%s", reason, f" ({count} times)" if count > 1 else "")

    return regions


@dataclass(frozen=True, slots=True)
class _Plan:
    """The way to run a chain: in the tiles of ``chain`` under a scheduler, with ``pairs`` of weights as one."""

    chain: Chain
    scheduler: str
    pairs: Pairs


def _region(match: ChainMatch, plan: _Plan, pipelines: dict[tuple[Chain, str, torch.device], Any]) -> Region:
    nodes = _between(match)
    inputs = aten.inputs_of(nodes)
    sources = {name: node.args[0] if node in nodes else node for name, node in match.inputs.items()}
    turned = {name for name, node in match.inputs.items() if node in nodes}
    at = {name: inputs.index(node) for name, node in sources.items()}
    folded = tuple(sorted({at[part] for parts in plan.pairs.values() for part in parts}))

    def build(device: torch.device) -> Runner:
        key = plan.chain, plan.scheduler, device
        if key not in pipelines:
            pipelines[key] = pipeline_on(device, plan.chain.policy(), plan.scheduler)
        return ChainRunner(_another(pipelines[key]), at, turned, plan.pairs)

    name = f"a chain of {len(match.products)} products"
    return Region(name, nodes, inputs, (match.last,), (), build, folded)


def _between(match: ChainMatch) -> tuple[fx.Node, ...]:
    """Return the products, what stands between them, and transposed weights without another reader."""
    ancestors: set[fx.Node] = set()
    waiting = [match.last]
    while waiting:
        node = waiting.pop()
        if node not in ancestors:
            ancestors.add(node)
            waiting.extend(a for a in node.all_input_nodes if a.op == "call_function")
    inside: set[fx.Node] = set()
    for node in sorted(ancestors):
        if node in match.products or any(a in inside for a in node.all_input_nodes):
            inside.add(node)
    for node in match.inputs.values():
        turned = aten.calls(node, aten.ATEN.t.default) and aten.parameter(node.args[0])
        if turned and all(user in inside for user in node.users):
            inside.add(node)
    return tuple(sorted(inside))


def pipeline_on(device: torch.device, policy: Policy, scheduler: str) -> Any:
    """Return the pipeline of a policy: under a scheduler of the runtime on a GPU, tile by tile on the CPU."""
    if device.type != "cuda":
        return Pipeline(policy)
    from tileprof.runtime.policy_on_gpu import GpuPipeline  # noqa: PLC0415 - imports Triton

    with torch.cuda.device(device):
        return GpuPipeline(policy, schedule=scheduler, device=str(device))


def _another(pipeline: Any) -> Any:
    """Return a pipeline with memory and semaphores of its own, and the same code: layers of a model are the same
    chain.
    """
    return pipeline if isinstance(pipeline, Pipeline) else pipeline.twin()


class ChainRunner:
    """A chain by its pipeline, whose inputs are found ``at`` some of the region's; ``turned``: names of those that are
    transposed first.
    """

    def __init__(self, pipeline: Any, at: dict[str, int], turned: set[str], pairs: Pairs) -> None:
        self.pipeline, self.frozen = pipeline, bool(pairs)
        self._at, self._turned, self._pairs = at, turned, pairs
        self._wholes: dict[str, Any] = {}

    def __call__(self, *inputs: Any) -> tuple[Any, ...]:
        out = self.pipeline(**self._arguments(inputs))
        self._refuse()
        return (out.clone(),)  # the pipeline's own memory is overwritten by its next call

    def check(self) -> None:
        """Raises `RuntimeError` for kernels whose results are not to be used, and what a wait that gave up raises."""
        if isinstance(self.pipeline, Pipeline):
            return
        self.pipeline.check()
        self._refuse()

    def twin(self) -> ChainRunner:
        """Return another runner with semaphores and memory of its own."""
        return ChainRunner(_another(self.pipeline), self._at, self._turned, self._pairs)

    def _refuse(self) -> None:
        if getattr(self.pipeline, "refused", None):
            raise RuntimeError(self.pipeline.refused)

    def _arguments(self, inputs: tuple[Any, ...]) -> dict[str, Any]:
        """Return the pipeline's inputs by its own names, which a policy file may have chosen, in the order of the
        chain.
        """
        arguments = {name: inputs[at].t() if name in self._turned else inputs[at] for name, at in self._at.items()}
        for whole, (first, second) in self._pairs.items():
            if whole not in self._wholes:
                self._wholes[whole] = _side_by_side(arguments[first], arguments[second])
            del arguments[second]
            arguments[first] = self._wholes[whole]
        return dict(zip(self.pipeline.inputs, arguments.values(), strict=True))


def _side_by_side(first: Any, second: Any) -> Any:
    """Return a copy of both along their last dimension, which lies outermost in memory."""
    if first.dim() == 1:
        return torch.cat([first.detach(), second.detach()])
    return torch.cat([first.detach().t(), second.detach().t()]).t()


def suited(match: ChainMatch, options: Options) -> tuple[Chain, str, Pairs, str | None]:
    """Return the chain in tiles for the scheduler asked for, its name, which of its tensors are made of two, and why
    the persistent kernel is not what runs it on a GPU that has it. Without an option the scheduler is the
    persistent kernel where that can compute the chain, otherwise ``cusync``.
    """
    chain, name, reason = match.chain, options.scheduler, None
    device = match.last.meta["val"].device
    fits = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    for variant, pairs in [joined(chain), (chain, Pairs())] if options.frozen else [(chain, Pairs())]:
        if not fits or name not in ("auto", "persistent"):
            break
        try:
            tiled_chain, _ = tiled(variant, clusters_on(torch.cuda.get_device_properties(device).multi_processor_count))
            stage_plans(tiled_chain)
            nvcc()  # these tiles are for that kernel alone, which is compiled at first use
        except UserError as error:
            reason = str(error)
        else:
            return tiled_chain, "persistent", pairs, None
    return chain, "cusync" if name == "auto" else name, Pairs(), reason
