"""What the examples share: options, random weights, the recorded run and the one line that it prints.

A program's stdout is its own, recorded or not: the line with its checksum must come out the same either way.
"""

from __future__ import annotations

from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import tileprof

try:
    import torch
except ImportError as error:
    raise SystemExit("The examples need PyTorch: pip install 'tileprof[examples]'") from error

__all__ = ["DTYPES", "building", "forward", "parser", "positive", "print_result", "torch", "transformers"]

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def positive(text: str) -> int:
    """An option that counts something: an integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return value


def parser(description: str | None, *, dtype: str = "float32", batch: int = 1) -> ArgumentParser:
    """A parser with the options that every example has; ``dtype`` and ``batch`` are its defaults."""
    options = ArgumentParser(description=description, formatter_class=ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    options.add_argument("--batch", type=positive, default=batch, help="independent inputs in one forward pass")
    options.add_argument("--dtype", choices=sorted(DTYPES), default=dtype, help="type of weights and activations")
    options.add_argument("--device", default="cpu", help="PyTorch device to run on")
    options.add_argument("--seed", type=int, default=0, help="seed of weights and inputs")
    return options


@contextmanager
def building(options: Namespace) -> Iterator[None]:
    """Make tensors in the type, on the device and from the seed that ``options`` ask for."""
    before = torch.get_default_dtype()
    torch.manual_seed(options.seed)
    torch.set_default_dtype(DTYPES[options.dtype])
    try:
        with torch.device(options.device):
            yield
    finally:
        torch.set_default_dtype(before)


def forward(model: Any, *inputs: Any, **more: Any) -> Any:
    """Run ``model`` once without gradients: the part of the program that a recording keeps."""
    with torch.no_grad(), tileprof.capture():
        return model(*inputs, **more)


def print_result(name: str, output: Any) -> None:
    """Print shape, type and checksum (mean magnitude) of the result, in one line."""
    shape = "x".join(map(str, output.shape)) or "scalar"
    kind = str(output.dtype).removeprefix("torch.")
    print(f"{name}: output {shape} {kind}, checksum {_checksum(output)}")


def _checksum(output: Any) -> str:
    from torch._subclasses.fake_tensor import FakeTensor  # noqa: PLC0415  (slow to import, needed at the end only)

    if isinstance(output, FakeTensor) or output.is_meta:
        return "none (tensors without values)"
    return f"{output.detach().double().abs().mean().item():.6e}"


def transformers() -> Any:
    """The transformers library; SystemExit with the line to type if it is not installed."""
    try:
        return import_module("transformers")
    except ImportError as error:
        raise SystemExit("This example needs transformers: pip install 'tileprof[examples]'") from error
