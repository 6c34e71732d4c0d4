"""The function that `torch.compile` calls: regions found, the rest by Inductor, and a race of the two."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from tileprof.errors import UserError
from tileprof.runtime.compile.inductor import inductor, own_copy, rest_by_inductor, rest_by_pytorch
from tileprof.runtime.compile.options import Options
from tileprof.runtime.compile.racing import verdict_cache
from tileprof.runtime.compile.racing.ahead import Ahead
from tileprof.runtime.compile.racing.race import Program, Race
from tileprof.runtime.compile.racing.region_program import Traced, Way, names_of
from tileprof.runtime.compile.racing.report import Report, announce
from tileprof.runtime.compile.regions import aten, policy_files, products
from tileprof.runtime.compile.regions.finders import FINDERS
from tileprof.runtime.compile.regions.masks import write_out_masks
from tileprof.runtime.compile.regions.outer_products import outer_products_as_multiplications
from tileprof.runtime.compile.regions.partition import proposed
from tileprof.runtime.compile.regions.region import Region
from tileprof.runtime.persistent.persistent_build import nvcc

LOG: Final = logging.getLogger("tileprof.runtime.compile")

FOLDED_BYTES: Final = 512 * 10**6
"""Copies of weights that a program may make without ``frozen=True``."""


def backend(
    module: fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Return what `torch.compile` calls with a graph and example inputs; returns what runs in its place.

    Raises `UserError` for options that mean nothing.
    """
    settings = Options.of(options)
    policies = {path: policy_files.load_policies(path) for path in settings.policies}
    report = Report()
    announce(report)
    reason = left_to_inductor(inputs, settings)
    if reason is None:
        device = _device(inputs)
        question = verdict_cache.question(module, inputs, settings, device)
        verdict = None if settings.remeasure else verdict_cache.recall(question)
        if verdict is not None and not verdict.winner:
            report.ours_us, report.inductor_us = verdict.ours_us, verdict.inductor_us
            reason = f"measured before: {verdict.sentence}"
    if reason is None:
        plain = own_copy(module)
        try:
            copied_module = own_copy(module)
            write_out_masks(copied_module)
            graph = Traced(copied_module, inputs)
            regions = _regions(graph, settings, policies, report)
        except Exception:
            LOG.exception("looking for regions failed, which is a bug of tileprof")
            reason = "looking for regions failed"
        else:
            if regions:
                race = Race(question, verdict, settings.later)
                return _program(module, inputs, plain, graph, regions, settings, device, report, race)
            reason = report.reason or "no region of the graph is one that a kernel of tileprof computes"
    report.reason = reason
    LOG.info("left to Inductor: %s", reason)
    return inductor(module, inputs)


def _regions(
    graph: Traced, options: Options, policies: Mapping[Path, policy_files.AnyPolicy], report: Report
) -> list[Region]:
    """Return what kernels of this package compute of a graph; the report says what, and what they do not."""
    assert graph.module is not None
    nodes = graph.module.graph
    reason = _why_not_comparable(nodes)
    if reason is not None:
        report.reason = reason
    regions = [] if reason else proposed(nodes, [policy_files.finder(policies, options.scheduler), *FINDERS])
    region_nodes = {n for region in regions for n in region.nodes}
    if reason is None:
        regions = proposed(nodes, [products.finder(options, region_nodes)], regions)
    regions = _without_large_copies(regions, options)
    region_nodes = {n for region in regions for n in region.nodes}
    report.region_counts.update(r.name for r in regions)
    report.regions = regions
    report.inductor_operators.update(
        _name(n) for n in nodes.nodes if n.op == "call_function" and n not in region_nodes and _works(n)
    )
    for name, count in report.region_counts.items():
        LOG.info("taken: %s%s", f"{count} times " if count > 1 else "", name)
    if report.inductor_operators:
        LOG.info(
            "left to Inductor: %s",
            ", ".join(f"{count} {name}" for name, count in report.inductor_operators.most_common()),
        )
    return regions


def _program(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    plain: fx.GraphModule,
    graph: Traced,
    regions: list[Region],
    options: Options,
    device: torch.device,
    report: Report,
    race: Race,
) -> Callable[..., Any]:
    compiler = rest_by_inductor if device.type == "cuda" else rest_by_pytorch
    assert graph.module is not None
    region_nodes = {n for region in regions for n in (*region.nodes, *region.inputs, *region.unread)}
    outer_products_as_multiplications(graph.module.graph, region_nodes)
    selections = _selections(regions) if options.use == "measured" else [regions]
    if race.earlier_verdict is not None:
        selections = [each for each in selections if names_of(each) == race.earlier_verdict.winner]
        if not selections:
            race = replace(race, earlier_verdict=None)  # by another state of this package; measured again
            selections = _selections(regions)
    alone = [region for region in selections[0] if not _chain(region)]  # chains share what is not made for threads
    ahead = Ahead(alone, device)
    first = options.use == "measured" and race.earlier_verdict is None and not race.later
    inductor_program = inductor(module, inputs) if first else _Later(plain)
    ways = [partial(Way, graph, each, device, compiler, ahead) for each in selections]
    program = Program(graph, plain, ways, inductor_program, device, report, race if options.use == "measured" else None)
    undynamic: Callable[..., Any] = torch._dynamo.disable(program)  # noqa: SLF001 - its public name
    return undynamic


class _Later:
    """Inductor's program of a graph, compiled when it is first called; in a capture, where that cannot be, PyTorch's
    operations as they are.
    """

    def __init__(self, module: fx.GraphModule) -> None:
        self._module = module
        self._compiled: Callable[..., Any] | None = None

    def __call__(self, *args: Any) -> Any:
        if self._compiled is None:
            if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
                return self._module(*args)
            self._compiled = inductor(own_copy(self._module), list(args))
        return self._compiled(*args)


def left_to_inductor(inputs: Sequence[Any], options: Options) -> str | None:
    """Return why nothing is looked for in a graph with these inputs; None where it is."""
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    on_gpu = {t.device for t in tensors if t.device.type == "cuda"}
    if options.use == "never":
        return 'use="never" asks for it'
    if torch.is_grad_enabled() and any(t.requires_grad for t in tensors):
        return "gradients are recorded (torch.no_grad() turns that off)"
    if any(isinstance(i, torch.SymInt) for i in inputs) or any(
        not isinstance(n, int) for t in tensors for n in t.shape
    ):
        return "shapes are dynamic"
    if not on_gpu:
        return None if options.use == "always" and tensors else "no tensor is on a GPU"
    if len(on_gpu) > 1:
        return "its tensors are on several GPUs"
    (device,) = on_gpu
    major, minor = torch.cuda.get_device_capability(device)
    if (major, minor) != (9, 0):
        return f"kernels are for compute capability 9.0, and this GPU has {major}.{minor}"
    try:
        nvcc()
    except UserError as error:
        return str(error)
    return None


def _device(inputs: Sequence[Any]) -> torch.device:
    devices = [t.device for t in inputs if isinstance(t, torch.Tensor)]
    device = next((d for d in devices if d.type == "cuda"), devices[0])
    return (
        torch.device("cuda", torch.cuda.current_device()) if device.type == "cuda" and device.index is None else device
    )


def _why_not_comparable(graph: fx.Graph) -> str | None:
    """Return why two runs of a graph cannot be compared; None where they can."""
    for node in graph.nodes:
        random = node.op == "call_function" and torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
        if random and aten.attention(node) is None:
            return f"it draws random numbers ({_name(node)})"
    return None


def _without_large_copies(regions: list[Region], options: Options) -> list[Region]:
    """Return the regions without those whose copies of weights, all together, would need more memory than is
    taken without asking.
    """
    small_enough: list[Region] = []
    total = 0
    for region in regions:
        copied = region.copied
        if copied is None:
            copied = sum(region.inputs[n].meta["val"].nbytes for n in region.folded)
        if not options.frozen and total + copied > FOLDED_BYTES:
            LOG.info(
                "%s is left to Inductor: it keeps %.0f MB of copies of weights, which frozen=True allows",
                region.name,
                copied / 1e6,
            )
            continue
        total += copied
        small_enough.append(region)
    return small_enough


def _selections(regions: list[Region]) -> list[list[Region]]:
    """Return which regions to try together: all; without chains of products, which win alone more often than inside of
    a model; each of a few alone.
    """
    chains = [r for r in regions if _chain(r)]
    others = [r for r in regions if r not in chains]
    selections = [regions]
    if chains and others:
        selections.append(others)
    if 1 < len(others) <= 3:
        selections += [[region] for region in others]
    return selections


def _chain(region: Region) -> bool:
    return region.name.startswith("a chain")


def _works(node: fx.Node) -> bool:
    """Return whether an operation computes anything: taking an item of a tuple, or a view, does not."""
    return node.target not in aten.VIEWS and _name(node) != "getitem"


def _name(node: fx.Node) -> str:
    return str(getattr(node.target, "_opname", None) or getattr(node.target, "__name__", node.target))
