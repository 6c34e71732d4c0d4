"""Parts that the examples share: options, random weights, the recorded run and the one line that it prints.

A program's stdout is its own, recorded or not: the line with its checksum must come out the same either way.
"""

from __future__ import annotations

import hashlib
import sys
import time
from argparse import ArgumentDefaultsHelpFormatter, ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

import tileprof

try:
    import torch
except ImportError as error:
    raise SystemExit("The examples need PyTorch: pip install torch") from error

__all__ = [
    "DTYPES",
    "building",
    "forward",
    "library",
    "parser",
    "positive",
    "print_result",
    "stepped",
    "stepping",
    "torch",
]

DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}

WARM = 2
"""Steps that are not timed."""


def positive(text: str) -> int:
    """Return an option that counts something: an integer of at least 1."""
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise ArgumentTypeError(f"expected an integer of at least 1, got {text!r}")
    return value


def parser(description: str | None, *, dtype: str = "float32", batch: int = 1) -> ArgumentParser:
    """Return a parser with the options that every example has; ``dtype`` and ``batch`` are its defaults."""
    options = ArgumentParser(description=description, formatter_class=ArgumentDefaultsHelpFormatter, allow_abbrev=False)
    options.add_argument("--batch", type=positive, default=batch, help="independent inputs in one forward pass")
    options.add_argument("--dtype", choices=sorted(DTYPES), default=dtype, help="type of weights and activations")
    options.add_argument("--device", default="cpu", help="PyTorch device to run on")
    options.add_argument("--seed", type=int, default=0, help="seed of weights and inputs")
    return options


def stepping(
    description: str | None, *, dtype: str = "float32", batch: int = 1, capturable: bool = True
) -> ArgumentParser:
    """Return the same as `parser`, for programs that do the same several times (`stepped`)."""
    options = parser(description, dtype=dtype, batch=batch)
    options.add_argument(
        "--steps", type=positive, default=1, help="number of steps; with several, the time of one goes to stderr"
    )
    options.add_argument(
        "--digest", action="store_true", help="print a digest of the results of all steps, bit for bit"
    )
    if capturable:
        options.add_argument("--graph", action="store_true", help="capture a step in a CUDA graph and replay it")
        options.add_argument(
            "--keep",
            action="store_true",
            help="keep all that a step makes until its end, so that no memory is recycled",
        )
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


def stepped(name: str, options: Namespace, step: Any) -> Any:
    """Run ``step()`` ``options.steps`` times; the last result. With several steps, their mean time without the first
    two goes to stderr, and with ``options.graph`` they are replays of a CUDA graph.
    """
    cuda = str(options.device).startswith("cuda")
    if getattr(options, "keep", False):
        step = _keeping(step)
    with torch.no_grad(), tileprof.capture():
        if getattr(options, "graph", False) and cuda:
            step = _replay_of(step)
        result, begin, digest = None, 0.0, hashlib.sha256()
        for number in range(options.steps):
            if number == min(WARM, options.steps - 1):
                _finish(cuda=cuda)
                begin = time.perf_counter()
            result = step()
            if getattr(options, "digest", False):
                digest.update(result.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes())
        _finish(cuda=cuda)
    timed_steps = max(1, options.steps - WARM)
    if options.steps > 1:
        sys.stderr.write(f"{name}: {(time.perf_counter() - begin) / timed_steps * 1e6:.1f} us per step\n")
    if getattr(options, "digest", False):
        print(f"{name}: {options.steps} results, {digest.hexdigest()}")
    return result


def _finish(*, cuda: bool) -> None:
    if cuda:
        torch.cuda.synchronize()


def _keeping(step: Any) -> Any:
    """``step`` whose intermediate tensors live to its end, as in training: branches that would take turns in one piece
    of memory no longer wait for each other.
    """
    from torch.utils._python_dispatch import TorchDispatchMode  # noqa: PLC0415 - of no use to other programs

    class Keeping(TorchDispatchMode):  # type: ignore[misc]  # torch is untyped here
        def __init__(self) -> None:
            super().__init__()
            self.results: list[Any] = []

        def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = function(*args, **(kwargs or {}))
            self.results.append(result)
            return result

    def keeping_step() -> Any:
        with Keeping():
            return step()

    return keeping_step


def _replay_of(step: Any) -> Any:
    """``step`` as the replay of a graph, after a run of it on another stream, as capturing needs."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> Any:
        graph.replay()
        return result

    return replay


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


def library(name: str) -> Any:
    """Return an installed library; SystemExit with the line to type if it is not installed."""
    try:
        return import_module(name)
    except ImportError as error:
        raise SystemExit(f"This example needs {name}: pip install {name}") from error
