"""The decisions of races, kept on disk: a second process need not compile Inductor's program to run ours, nor look for
regions to run Inductor's.

A verdict holds for one graph with its shapes, one kind of GPU, and one state of PyTorch, its settings and this package;
anything else is another file. What is recalled is still compared: the first call's results are compared with PyTorch's.
"""

from __future__ import annotations

import json
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

import torch
from torch import fx

from tileprof import building
from tileprof.runtime.compile.options import Options

LOG: Final = logging.getLogger("tileprof.runtime.compile")


@dataclass(frozen=True, slots=True)
class Verdict:
    """``winner``: the regions of the program that won, as `Way.name` says them, empty where Inductor's did; times in
    microseconds; ``measured``: the day.
    """

    winner: str
    ours_us: float
    inductor_us: float
    measured: str = ""

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        winner = f"ours ({self.winner})" if self.winner else "Inductor's"
        return f"{self.ours_us:.1f} us against Inductor's {self.inductor_us:.1f} us on {self.measured}; kept {winner}"


def question(module: fx.GraphModule, inputs: Sequence[Any], options: Options, device: torch.device) -> str | None:
    """Return what a race about this graph would answer, as a hash; None where two processes may not mean the same by
    it.
    """
    if device.type != "cuda" or options.use != "measured" or options.policies:
        return None
    text = _text(module.graph, inputs)
    if " at 0x" in text:  # an object without a name of its own
        return None
    return sha256(json.dumps([text, repr(options), *_surroundings(device)]).encode()).hexdigest()[:32]


def recall(key: str | None) -> Verdict | None:
    """Return the verdict of an earlier process; a file that holds none is as good as no file."""
    if key is None:
        return None
    try:
        fields = json.loads(_file(key).read_text(encoding="utf-8"))
        return Verdict(
            str(fields["kept"]), float(fields["ours_us"]), float(fields["inductor_us"]), str(fields["measured"])
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep(key: str | None, verdict: Verdict) -> None:
    """Write a verdict down for later processes. Where that fails they measure again."""
    if key is None:
        return
    path = _file(key)
    row = {
        "kept": verdict.winner,
        "ours_us": verdict.ours_us,
        "inductor_us": verdict.inductor_us,
        "measured": verdict.measured or datetime.now(UTC).date().isoformat(),
    }
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        Path(file.name).replace(path)  # whole or not at all, even if another process writes
    except OSError as error:
        LOG.info("the verdict is not kept for later processes: %s", error)


def _file(key: str) -> Path:
    return building.cache_folder("verdicts") / f"{key}.json"


def _text(graph: fx.Graph, inputs: Sequence[Any]) -> str:
    """Return a graph of Dynamo in words that another process would use, too."""
    numbers: dict[fx.Node, int] = {}
    lines = [_shape(value) for value in inputs]
    for node in graph.nodes:
        numbers[node] = len(numbers)
        args = fx.node.map_arg((node.args, dict(node.kwargs)), lambda n: f"%{numbers[n]}")
        target = "" if node.op == "placeholder" else _target(node.target)
        lines.append(f"{node.op} {target} {args} {_shape(node.meta.get('example_value'))}")
    return "\n".join(lines)


def _target(target: Any) -> str:
    if isinstance(target, str):
        return target
    return f"{getattr(target, '__module__', '')}.{getattr(target, '__qualname__', None) or target}"


def _shape(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {tuple(value.shape)} {tuple(value.stride())} {value.device.type}"
    return type(value).__name__ if isinstance(value, torch.nn.Module) else ""


def _surroundings(device: torch.device) -> list[str]:
    import triton  # type: ignore[import-untyped, unused-ignore]  # noqa: PLC0415 - on a GPU only
    from torch._inductor import config  # noqa: PLC0415 - slow to import

    gpu = torch.cuda.get_device_properties(device)
    settings = torch.backends.cuda
    return [
        gpu.name,
        str(gpu.multi_processor_count),
        str(gpu.total_memory),
        torch.__version__,
        triton.__version__,
        sys.version,
        _sources(),
        config.get_hash().hex(),
        str(settings.matmul.allow_tf32),
        str(settings.matmul.allow_fp16_reduced_precision_reduction),
        str(
            [
                settings.flash_sdp_enabled(),
                settings.mem_efficient_sdp_enabled(),
                settings.cudnn_sdp_enabled(),
                settings.math_sdp_enabled(),
            ]
        ),
    ]


@cache
def _sources() -> str:
    """Return a hash of this package's runtime: another kernel may win where this one has lost."""
    hashed = sha256()
    folder = Path(__file__).parents[2]
    for path in sorted(p for p in folder.rglob("*") if p.suffix in {".py", ".cu", ".cuh", ".h"}):
        hashed.update(path.relative_to(folder).as_posix().encode())
        hashed.update(path.read_bytes())
    return hashed.hexdigest()
