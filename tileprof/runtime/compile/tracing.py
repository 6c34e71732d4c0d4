"""The ATen graph of a module's forward pass, as the backend sees it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import fx


def traced(
    module: fx.GraphModule,
    inputs: Sequence[Any],
    compiler: Callable[[fx.GraphModule, Sequence[Any]], Callable[..., Any]],
) -> Callable[..., Any]:
    """Return a graph of Dynamo lowered to ATen without Inductor's decompositions: ``compiler`` gets it with fake inputs
    and returns what runs it, given a list of inputs.

    Layer norms, activations, convolutions, batch norms and attention are single nodes; inputs that the module changes
    are changed by ``copy_`` nodes at the end.
    """
    from torch._dynamo.backends.common import aot_autograd  # noqa: PLC0415 - slow to import

    program: Callable[..., Any] = aot_autograd(
        fw_compiler=compiler, bw_compiler=compiler, inference_compiler=compiler, keep_inference_input_mutations=True
    )(module, inputs)  # fmt: skip
    return program


def inference_graphs(module: Callable[..., Any], *args: Any, **kwargs: Any) -> list[fx.GraphModule]:
    """Return the ATen graphs of one call without gradients: one, unless Dynamo breaks the program. The call runs."""
    graphs: list[fx.GraphModule] = []

    def keep(graph: fx.GraphModule, _: Sequence[Any]) -> Callable[..., Any]:
        from functorch.compile import make_boxed_func  # noqa: PLC0415 - slow to import

        graphs.append(graph)
        boxed: Callable[..., Any] = make_boxed_func(graph.forward)
        return boxed

    torch._dynamo.reset()  # noqa: SLF001 - its public name
    with torch.no_grad():
        torch.compile(module, backend=lambda graph, inputs: traced(graph, inputs, keep))(*args, **kwargs)
    return graphs
