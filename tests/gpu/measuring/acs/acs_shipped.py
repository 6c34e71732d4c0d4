"""Examples as they are shipped to machines without Python's cost per call: frozen TorchScript, or a library that
AOTInductor compiled.

    python tests/gpu/measuring/acs/acs_shipped.py PACKAGE NAME --kind script|inductor [--device cuda] [--steps N]
        [--digest]

PACKAGE is made where it is not. A step is a call of it; `tree_lstm` is for one tree.
"""

from __future__ import annotations

import importlib
import os
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

# deterministic products; the library reads this when CUDA starts
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

import torch

from tileprof.examples.parts.common import building, print_result, stepped, stepping


class Tree(torch.nn.Module):
    """A Tree-LSTM over one tree of 32 leaves."""

    def __init__(self) -> None:
        super().__init__()
        module = importlib.import_module("tileprof.examples.tree_lstm")
        self.children_of_nodes = module.tree(32, 0)
        self.model = module.TreeLstm(512)

    def forward(self, words: Any) -> Any:
        """The root's state, of ``[nodes, batch, width]`` words."""
        return self.model(words, self.children_of_nodes)


def _cells(kind: str) -> Callable[[], tuple[torch.nn.Module, torch.Tensor]]:
    def make() -> tuple[torch.nn.Module, torch.Tensor]:
        cell = importlib.import_module("tileprof.examples.inception").CELLS[kind]
        return torch.nn.Sequential(*(cell(256) for _ in range(9))), torch.randn(1, 256, 14, 14)

    return make


def _tree() -> tuple[torch.nn.Module, torch.Tensor]:
    tree = Tree()
    return tree, torch.randn(len(tree.children_of_nodes), 8, 512)


PROGRAMS = {"inception": _cells("inception"), "nasnet": _cells("nasnet"), "tree_lstm": _tree}


def package(path: Path, model: torch.nn.Module, example: torch.Tensor, kind: str) -> None:
    """Write a model as a file that `loaded` reads."""
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "script":
            torch.jit.freeze(torch.jit.trace(model, (example,), check_trace=False)).save(str(path))
        else:
            inductor = importlib.import_module("torch._inductor")
            inductor.aoti_compile_and_package(torch.export.export(model, (example,)), package_path=str(path))


def load(path: Path, kind: str, device: str) -> Any:
    """Return a function of the model's input."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if kind == "script":
            return torch.jit.load(str(path), map_location=device)
        return importlib.import_module("torch._inductor").aoti_load_package(str(path))


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program of the command line."""
    options = stepping(__doc__, capturable=False)
    options.add_argument("package", type=Path)
    options.add_argument("name", choices=sorted(PROGRAMS))
    options.add_argument("--kind", choices=("script", "inductor"), default="script")
    values = options.parse_args(argv)
    torch.backends.cudnn.benchmark = False
    with building(values):
        model, example = PROGRAMS[values.name]()
        if not values.package.exists():
            package(values.package, model.eval().requires_grad_(requires_grad=False), example, values.kind)
    call = load(values.package, values.kind, values.device)
    print_result(values.name, stepped(f"{values.name} as {values.kind}", values, lambda: call(example)))


if __name__ == "__main__":
    main()
