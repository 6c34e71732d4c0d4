"""Models of transformers, torchvision, timm and torch_geometric, small and with random weights, as programs for ACS.

    python tests/gpu/measuring/acs/acs_models.py NAME [NAME …] [--train [sgd]] [--device cuda] [--steps N] [--digest]

Several models run one after another. A step is a forward pass, with ``--train`` one of the optimiser too; its result is
then what it made of the weights.
"""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Any

# deterministic products; the library reads this when CUDA starts
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from tileprof.examples.parts.common import building, print_result, stepped, stepping

Step = Callable[[], torch.Tensor]
Made = tuple[torch.nn.Module, Step, list[torch.Tensor]]
"""A model, a call of it, and the inputs of the call."""

SIZE = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 128}
WITHOUT_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


def _tokens(vocabulary: int = 500) -> torch.Tensor:
    return torch.randint(0, vocabulary, (2, 16))


def _transformer(configuration: str, model: str, inputs: Callable[[], dict[str, Any]], **sizes: Any) -> Any:
    """Return a function that makes a model of transformers and returns its first result."""

    def make() -> Made:
        library = import_module("transformers")
        network = getattr(library, model)(getattr(library, configuration)(**sizes))
        arguments = inputs()
        return network, lambda: network(**arguments)[0], [t for t in arguments.values() if isinstance(t, torch.Tensor)]

    return make


def _image(name: str, side: int = 64, **more: Any) -> Any:
    def make() -> Made:
        network = getattr(import_module("torchvision.models"), name)(weights=None, num_classes=10, **more)
        images = torch.randn(2, 3, side, side)
        return network, lambda: network(images), [images]

    return make


def _timm(name: str, side: int = 64, **more: Any) -> Any:
    def make() -> Made:
        network = import_module("timm").create_model(name, pretrained=False, num_classes=10, **more)
        images = torch.randn(1, 3, side, side)
        return network, lambda: network(images), [images]

    return make


def _clip() -> Made:
    """The two towers of CLIP, which are independent until the end."""
    library = import_module("transformers")
    texts = {"vocab_size": 500, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 499, **SIZE}
    images = {"image_size": 64, "patch_size": 16, **SIZE}
    network = library.CLIPModel(library.CLIPConfig(text_config=texts, vision_config=images, projection_dim=32))
    tokens, pixels = _tokens(), torch.randn(2, 3, 64, 64)
    return network, lambda: network(input_ids=tokens, pixel_values=pixels).logits_per_image, [tokens, pixels]


def _perceptron() -> Made:
    widths = (64, 256, 256, 256, 10)
    layers = [
        layer for inputs, outputs in pairwise(widths) for layer in (torch.nn.Linear(inputs, outputs), torch.nn.ReLU())
    ]
    network, rows = torch.nn.Sequential(*layers), torch.randn(32, 64)
    return network, lambda: network(rows), [rows]


def _graph(layer: str, **more: Any) -> Any:
    """Two layers of torch_geometric over a random graph of 200 nodes and 1,200 edges."""

    def make() -> Made:
        kind = getattr(import_module("torch_geometric.nn"), layer)
        layers = torch.nn.ModuleList([kind(32, 32, **more), kind(32, 32, **more)])
        nodes, edges = torch.randn(200, 32), torch.randint(0, 200, (2, 1200))

        def step() -> torch.Tensor:
            x = nodes
            for each in layers:
                x = each(x, edges).relu()
            return x

        return layers, step, [nodes]

    return make


def _hetero_graph() -> Made:
    """Two layers of torch_geometric over a graph of three kinds of nodes and six of edges, one convolution each."""
    library = import_module("torch_geometric.nn")
    counts = {"author": 150, "paper": 200, "venue": 40}
    kinds = [(source, f"to {target}", target) for source in counts for target in counts if source != target]
    layers = torch.nn.ModuleList(
        [library.HeteroConv({kind: library.SAGEConv((32, 32), 32) for kind in kinds}) for _ in range(2)]
    )
    nodes = {name: torch.randn(count, 32) for name, count in counts.items()}
    edges = {kind: torch.stack([torch.randint(0, counts[end], (600,)) for end in kind[::2]]) for kind in kinds}

    def step() -> torch.Tensor:
        x = nodes
        for layer in layers:
            x = {name: rows.relu() for name, rows in layer(x, edges).items()}
        return torch.cat(list(x.values()))

    return layers, step, list(nodes.values())


MODELS: dict[str, Callable[[], Made]] = {
    "bert": _transformer(
        "BertConfig", "BertModel", lambda: {"input_ids": _tokens()}, vocab_size=500, **SIZE, **WITHOUT_DROPOUT
    ),
    "llama": _transformer(
        "LlamaConfig", "LlamaForCausalLM", lambda: {"input_ids": _tokens(), "use_cache": False}, vocab_size=500, **SIZE
    ),
    "t5": _transformer(
        "T5Config",
        "T5Model",
        lambda: {"input_ids": _tokens(), "decoder_input_ids": _tokens(), "use_cache": False},
        vocab_size=500,
        d_model=64,
        d_kv=32,
        d_ff=128,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
    ),
    "vit": _transformer(
        "ViTConfig",
        "ViTModel",
        lambda: {"pixel_values": torch.randn(2, 3, 32, 32)},
        image_size=32,
        patch_size=8,
        **SIZE,
        **WITHOUT_DROPOUT,
    ),
    "clip": _clip,
    "resnet18": _image("resnet18"),
    "googlenet": _image("googlenet", aux_logits=False, init_weights=False),
    "shufflenet": _image("shufflenet_v2_x0_5"),
    "squeezenet": _image("squeezenet1_1"),
    "inception_v3": _image("inception_v3", side=96, aux_logits=False, init_weights=False),
    "nasnetalarge": _timm("nasnetalarge", stem_size=32, num_features=960),
    "hrnet": _timm("hrnet_w18_small", side=96),
    "mlp": _perceptron,
    "gcn": _graph("GCNConv"),
    "gat": _graph("GATConv", heads=2, concat=False),
    "sage": _graph("SAGEConv"),
    "hetero": _hetero_graph,
}


def _training(network: torch.nn.Module, forward: Step, kind: str) -> Step:
    """One step of the optimiser on the mean square of the result."""
    optimiser: torch.optim.Optimizer
    if kind == "adam":
        optimiser = torch.optim.Adam(network.parameters(), lr=1e-3, foreach=False)
    else:
        optimiser = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9, foreach=False)

    def step() -> torch.Tensor:
        with torch.enable_grad():
            optimiser.zero_grad()
            forward().square().mean().backward()
            optimiser.step()
        # Sums of bit patterns, because a digest of all weights would copy them to the host in each step.
        return torch.stack([weights.detach().view(torch.int32).sum() for weights in network.parameters()])

    return step


def _moving(step: Step, inputs: list[torch.Tensor]) -> Step:
    """Call ``step`` with other inputs each time, so that memory of the last step differs from what the next one
    writes.
    """

    def next_input() -> torch.Tensor:
        for tensor in inputs:
            tensor.copy_(tensor.roll(1, dims=-1))
        return step()

    return next_input


def main(argv: Sequence[str] | None = None) -> None:
    """Run the models named by the first arguments."""
    options = stepping(__doc__)
    options.add_argument("names", nargs="+", choices=sorted(MODELS))
    options.add_argument("--train", nargs="?", const="adam", choices=("adam", "sgd"), help="an optimiser's step, too")
    values = options.parse_args(argv)
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.benchmark = False
    for name in values.names:
        _run(name, values)


def _run(name: str, values: Namespace) -> None:
    with building(values):
        network, step, inputs = MODELS[name]()
        step = _moving(step, inputs)
        network.train(values.train is not None)
        for module in network.modules():
            if isinstance(module, torch.nn.Dropout):
                module.p = 0.0
        if values.train is not None:
            step = _training(network, step, values.train)
        print_result(name, stepped(name, values, step))


if __name__ == "__main__":
    main()
