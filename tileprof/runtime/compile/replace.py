"""What ``torch.compile`` is given: chains replaced by modules that have a policy and decide which way they run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from statistics import median
from typing import Any, Final

import torch
from torch import fx

from tileprof.errors import UserError
from tileprof.policy.format import Policy, load_policy
from tileprof.runtime.chain import Chain
from tileprof.runtime.compile.find import Found, chains
from tileprof.runtime.compile.gates import Pair, Pairs, joined
from tileprof.runtime.persistent.build import nvcc
from tileprof.runtime.persistent.cost import clusters_on
from tileprof.runtime.persistent.takes import stage_plans
from tileprof.runtime.persistent.tiles import tiled
from tileprof.runtime.pipeline import Pipeline
from tileprof.runtime.schedulers import scheduler

LOG: Final = logging.getLogger("tileprof.runtime.compile")

TOLERANCE: Final = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 5e-2}
"""Largest norm of the difference over the norm of PyTorch's result that passes for rounding."""

_WORTH: Final = 0.98
"""The runtime's way is kept where its time is at most so much of PyTorch's."""


@dataclass(frozen=True, slots=True)
class Options:
    """See `tileprof.runtime.compile`; raises `UserError` for what is none."""

    use: str = "measured"
    scheduler: str = "auto"
    policies: tuple[Path, ...] = ()
    frozen: bool = False

    @classmethod
    def of(cls, given: Mapping[str, Any] | None) -> Options:
        given = dict(given or {})
        known = {f.name for f in fields(cls)}
        if strange := sorted(set(given) - known):
            raise UserError(f"there is no option {strange[0]!r}; known: {', '.join(sorted(known))}")
        policies = given.get("policies", ())
        paths = [policies] if isinstance(policies, str | Path) else policies
        if not isinstance(paths, list | tuple) or not all(isinstance(path, str | Path) for path in paths):
            raise UserError(f"policies is {policies!r}; it is a list of policy files")
        frozen = given.get("frozen", False)
        if not isinstance(frozen, bool):
            raise UserError(f"frozen is {frozen!r}; it is True or False")
        options = cls(
            given.get("use", "measured"), given.get("scheduler", "auto"), tuple(Path(path) for path in paths), frozen
        )
        if options.use not in ("measured", "always", "never"):
            raise UserError(f"use is {options.use!r}; it is measured, always or never")
        if options.scheduler != "auto" and not scheduler(options.scheduler).correct:
            raise UserError(f"{options.scheduler} computes wrong results, for timing; take another scheduler")
        return options


def backend(
    module: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What `torch.compile` calls with a graph and example inputs; returns what runs in its place."""
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415 - slow to import

    chosen = Options.of(options)
    policies = [load_policy(path) for path in chosen.policies]

    def inference(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        replace_chains(graph, chosen, policies)
        return _boxed(graph)

    made: Callable[..., Any] = aot_autograd(
        fw_compiler=lambda graph, _: _boxed(graph), bw_compiler=lambda graph, _: _boxed(graph), inference_compiler=inference
    )(module, inputs)  # fmt: skip
    return made


def _boxed(graph: fx.GraphModule) -> Callable[..., Any]:
    from functorch.compile import make_boxed_func  # noqa: PLC0415 - slow to import

    boxed: Callable[..., Any] = make_boxed_func(graph.forward)
    return boxed


def replace_chains(graph: fx.GraphModule, options: Options, policies: Sequence[Policy] = ()) -> int:
    """Put a `ChainModule` in the place of every chain that is found; how many."""
    count = 0
    for found in list(chains(graph.graph)) if options.use != "never" else ():
        chain, way, pairs = _suited(found, options)
        try:
            policy = next((p for p in policies if _same(p, chain)), None)
            if policy is None and (policy := next((p for p in policies if _same(p, found.chain)), None)) is not None:
                pairs = Pairs()
            policy = policy or chain.policy()
        except UserError as error:
            LOG.info("a chain of %d stages stays PyTorch's: %s", len(found.stages), error)
            continue
        name = f"tileprof_chain_{count}"
        graph.add_submodule(
            name, ChainModule(policy, _plain(graph, found), tuple(found.inputs), replace(options, scheduler=way), pairs)
        )
        with graph.graph.inserting_before(found.last):
            node = graph.graph.call_module(name, tuple(found.inputs.values()))
        node.meta = dict(found.last.meta)
        if options.use != "always" and node.meta["val"].device.type != "cuda":
            LOG.info('a chain of %d stages stays PyTorch\'s on a CPU, but for use="always"', len(found.stages))
        found.last.replace_all_uses_with(node)
        count += 1
    if count:
        graph.graph.eliminate_dead_code()
        graph.recompile()
    return count


def _suited(found: Found, options: Options) -> tuple[Chain, str, Pairs]:
    """The chain in tiles for the scheduler asked for, its name, and which of its tensors are made of two: of itself the persistent kernel where it can compute the
    chain, otherwise ``cusync``.
    """
    chain, name = found.chain, options.scheduler
    device = found.last.meta["val"].device
    fits = device.type == "cuda" and torch.cuda.get_device_capability(device) == (9, 0)
    for wanted, pairs in [joined(chain), (chain, Pairs())] if options.frozen else [(chain, Pairs())]:
        if not fits or name not in ("auto", "persistent"):
            break
        try:
            made, _ = tiled(wanted, clusters_on(torch.cuda.get_device_properties(device).multi_processor_count))
            stage_plans(made)
            nvcc()  # these tiles are for that kernel alone, which is compiled at first use
        except UserError as error:
            LOG.info("a chain of %d stages is not for the persistent kernel: %s", len(found.stages), error)
        else:
            return made, "persistent", pairs
    return chain, "cusync" if name == "auto" else name, Pairs()


def _same(policy: Policy, chain: Chain) -> bool:
    """Whether the policy's stages are the chain's, whatever tensors are called."""
    try:
        other = Chain.of_policy(policy)
    except UserError:
        return False
    return _shape(other) == _shape(chain)


def _shape(chain: Chain) -> list[Any]:
    numbers = {name: number for number, name in enumerate(chain.tensors())}
    return [
        (operator.NAME, operator.describe()["parameters"] | {
            role: (numbers[v.tensor], v.shape, v.strides, v.dtype, v.offset) for role, v in operator.views().items()
        })
        for operator in chain.operators
    ]  # fmt: skip


def _plain(graph: fx.GraphModule, found: Found) -> fx.GraphModule:
    """The chain's own nodes as a module: PyTorch's way."""
    copy = fx.Graph()
    known: dict[fx.Node, fx.Node] = {}
    for name, node in found.inputs.items():
        known[node] = copy.placeholder(name)
    needed: set[fx.Node] = set()
    waiting = [found.last]
    while waiting:
        node = waiting.pop()
        if node not in known and node not in needed:
            needed.add(node)
            waiting.extend(node.all_input_nodes)
    for node in graph.graph.nodes:
        if node in needed:
            known[node] = copy.node_copy(node, known.__getitem__)
    copy.output(known[found.last])
    return fx.GraphModule(graph, copy)


class ChainModule(torch.nn.Module):  # type: ignore[misc]  # PyTorch is not followed
    """A chain that runs by the runtime, or by PyTorch, whichever the options and the first call have chosen."""

    def __init__(
        self,
        policy: Policy,
        plain: fx.GraphModule,
        names: tuple[str, ...],
        options: Options,
        pairs: Pairs | None = None,
    ) -> None:
        super().__init__()
        self.plain, self.names, self.options = plain, names, options
        self.cpu = Pipeline(policy)
        self._choice: dict[torch.device, bool] = {}
        self._gpu: dict[tuple[int, int], Any] = {}
        self._pairs = [(Pair(), *parts) for parts in (pairs or {}).values()]

    def forward(self, *tensors: Any) -> Any:
        """The chain's result; a tensor of its own at every call."""
        device = tensors[0].device
        if device.type != "cuda":
            named = self._named(tensors) if self.options.use == "always" else None
            return self.plain(*tensors) if named is None else self.cpu(**named)
        if device not in self._choice:
            if torch.cuda.is_current_stream_capturing():
                return self.plain(*tensors)  # nothing can be compiled or timed now; the next call outside decides
            choice = self._worth_it(device, tensors)
            if choice is None:
                return self.plain(*tensors)
            self._choice[device] = choice
        pipeline = self._pipeline(device) if self._choice[device] else None
        named = None if pipeline is None else self._named(tensors)
        if pipeline is None or named is None:
            return self.plain(*tensors)
        out = pipeline(**named)
        return out.clone()  # the pipeline's own memory is overwritten by its next call

    def _named(self, tensors: tuple[Any, ...]) -> dict[str, Any] | None:
        """The pipeline's inputs; None where two of the tensors cannot be had as one now."""
        given: dict[str, Any] = dict(zip(self.names, tensors, strict=True))
        for pair, first, second in self._pairs:
            whole = pair.of(given[first], given.pop(second))
            if whole is None:
                return None
            given[first] = whole
        return dict(zip(self._inputs(), given.values(), strict=True))

    def _inputs(self) -> list[str]:
        """The policy's names of the chain's inputs, in the chain's order: a policy file may use others."""
        return list(self.cpu.inputs)

    def _pipeline(self, device: torch.device) -> Any:
        """The current stream's pipeline: semaphores and intermediate results are not shared between streams. None where it cannot be made now."""
        from tileprof.runtime.gpu import GpuPipeline  # noqa: PLC0415 - imports Triton

        key = int(device.index or 0), int(torch.cuda.current_stream(device).cuda_stream)
        if key not in self._gpu:
            if torch.cuda.is_current_stream_capturing():
                return None
            made = next((pipeline for (number, _), pipeline in self._gpu.items() if number == key[0]), None)
            with torch.cuda.device(device):
                self._gpu[key] = made.twin() if made else GpuPipeline(
                    self.cpu.policy, schedule=self.options.scheduler, device=str(device)
                )  # fmt: skip
        return self._gpu[key]

    def _worth_it(self, device: torch.device, tensors: tuple[Any, ...]) -> bool | None:
        """Whether the runtime's way agrees with PyTorch's and, unless it is to be taken anyway, beats it. None: these inputs cannot tell, another call may."""
        what = " -> ".join(
            str(v.shape[-1]) for v in (self.cpu.chain.operators[0].views()["a"], *self.cpu.outputs.values())
        )
        try:
            pipeline = self._pipeline(device)
            named = self._named(tensors)
            if named is None:
                return None
            out, wanted = pipeline(**named).float(), self.plain(*tensors).float()
            pipeline.check()
            if pipeline.refused:
                LOG.warning("chain %s stays PyTorch's: %s", what, pipeline.refused)
                return False
            size, far = float(wanted.norm()), float((out - wanted).norm())
            if not 0 < size < float("inf"):
                LOG.info("chain %s stays PyTorch's for now: a result of norm %g cannot be compared", what, size)
                return None
            if not far / size < TOLERANCE[tensors[0].dtype]:
                LOG.warning("chain %s stays PyTorch's: results differ by %.1e", what, far / size)
                return False
            return self.options.use == "always" or self._faster(what, pipeline, named, tensors)
        except (UserError, RuntimeError, OSError) as error:  # of the compiler, memory, capture: PyTorch's way is there
            LOG.warning("chain %s stays PyTorch's: %s", what, (str(error) or type(error).__name__).splitlines()[0])
            return False

    def _faster(self, what: str, pipeline: Any, named: Mapping[str, Any], tensors: tuple[Any, ...]) -> bool:
        from tileprof.runtime.timing import time_graph  # noqa: PLC0415 - only where there is a race

        ours = median(time_graph(lambda: pipeline.launch(named)))
        theirs = median(time_graph(lambda: self.plain(*tensors)))
        LOG.info("chain %s: %.1f us as tiles, %.1f us by PyTorch, in CUDA graphs", what, ours, theirs)
        return ours < _WORTH * theirs
