"""The list of convolution layers of whole lists of models: ``python tests/gpu/harvest/convolution_layers.py -o FILE``.

Every model of timm, torchvision and `convolution_models` is built and run on PyTorch's ``meta`` device, where nothing
is computed, and its calls of ``aten::convolution`` are counted. It takes an hour or two and continues where it was cut
(``--cache``). Models that look at values cannot run on that device and are left out; the cache says which and why.
Vision transformers have one convolution, the patch embedding, and are not built: their sizes are listed here.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import logging
import sys
import warnings
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import convolution_models

from tileprof.harvest.convolutions.convolution_cases import HELD_OUT_FILE, LAYER_COLUMNS, LAYERS_FILE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

Model = tuple[str, "Callable[[], Any]", "Callable[[], Any]"]
"""Name, the function that builds the model, and the function that makes its inputs."""

_ONE_CONVOLUTION: Final = (
    *("vit_", "deit", "beit", "eva", "flexivit", "naflex", "swin_", "swinv2", "samvit", "aimv2", "mixer", "gmixer"),
    *("resmlp", "gmlp", "cait", "xcit", "volo", "sequencer", "tnt", "twins", "convit", "test_", "crossvit", "jx_nest"),
    *("nest_", "hiera", "pe_", "vitamin", "visformer", "dm_nfnet", "fasternet_x", "regnety_16", "regnety_32"),
    *("regnety_64",),
)
"""Models of timm that are not built: transformers, and the largest ones."""
_EMBEDDINGS: Final = (
    (192, 384, 512, 640, 768, 1024, 1152, 1280, 1408, 1664), (8, 14, 16, 32), (224, 240, 256, 336, 384, 448, 518),
)  # fmt: skip
"""Widths, patches and image sizes of vision transformers."""


def timm_models() -> Iterator[Model]:
    """Yield the models of timm at their own image sizes."""
    import timm

    for name in timm.list_models():
        if not name.startswith(_ONE_CONVOLUTION):
            config = timm.get_pretrained_cfg(name)
            size = tuple(config.input_size) if config and config.input_size else (3, 224, 224)
            yield (
                f"timm/{name}",
                lambda name=name: timm.create_model(name, pretrained=False),
                lambda size=size: (_empty(1, *size),),
            )


def torchvision_models() -> Iterator[Model]:
    """Yield the models of torchvision; of detectors, only the backbone."""
    from torchvision import models

    detectors = ("rcnn", "retinanet", "ssd", "fcos")
    for name in models.list_models():
        if name.startswith("quantized"):
            continue
        if any(word in name for word in detectors):
            size = 300 if "ssd300" in name else 320 if "ssdlite" in name else 800
            yield (
                f"torchvision/{name}",
                lambda name=name: models.get_model(name, weights=None, weights_backbone=None).backbone,
                lambda size=size: (_empty(1, 3, size, size),),
            )
            continue
        options: dict[str, Any] = {"weights": None}
        shape: tuple[int, ...] = (3, 299, 299) if name == "inception_v3" else (3, 224, 224)
        if name.startswith(("deeplab", "fcn", "lraspp")):
            options["weights_backbone"], shape = None, (3, 520, 520)
        elif name in {"googlenet", "inception_v3"}:
            options["init_weights"] = False
        elif name.startswith(("r3d", "mc3", "r2plus1d")):
            shape = (3, 16, 112, 112)
        elif name.startswith(("s3d", "mvit", "swin3d")):
            shape = (3, 16, 224, 224)
        elif name.startswith("raft"):
            shape = (3, 520, 960)
        inputs = 2 if name.startswith("raft") else 1
        yield (
            f"torchvision/{name}",
            lambda name=name, options=options: models.get_model(name, **options),
            lambda shape=shape, inputs=inputs: tuple(_empty(1, *shape) for _ in range(inputs)),
        )


def convolutions(build: Callable[[], Any], inputs: Callable[[], Any]) -> list[tuple[int, ...]]:
    """Return the different convolutions of a model's forward pass, each as `LAYER_COLUMNS`."""
    import torch
    from torch.utils._python_dispatch import TorchDispatchMode

    distinct: dict[tuple[int, ...], None] = {}

    class Convolutions(TorchDispatchMode):
        def __torch_dispatch__(self, function: Any, _: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function.overloadpacket in {torch.ops.aten.convolution, torch.ops.aten._convolution}:
                distinct[layer(*args[:2], *args[3:9])] = None
            return function(*args, **(kwargs or {}))

    with torch.device("meta"):
        model, arguments = build().eval(), inputs()
        with torch.no_grad(), Convolutions():
            _ = model(*arguments) if isinstance(arguments, tuple) else model(**arguments)
    return list(distinct)


def layer(
    source: Any, weight: Any, stride: Any, padding: Any, dilation: Any, transposed: Any, extra: Any, groups: Any
) -> tuple[int, ...]:
    """Return a call of ``aten::convolution`` as `LAYER_COLUMNS`; one dimension is two with a height of 1."""
    rank = weight.dim() - 2

    def three(values: Any, fill: int) -> list[int]:
        values = [int(v) for v in values]
        return [fill] * (3 - rank) + (values * rank if len(values) == 1 else values)

    outside = weight.shape[1] * groups if transposed else weight.shape[0]
    return (
        max(rank, 2), int(transposed), int(groups), int(source.shape[0]), int(source.shape[1]), int(outside),
        *three(source.shape[2:], 1), *three(weight.shape[2:], 1), *three(stride, 1), *three(padding, 0),
        *three(dilation, 1), *three(extra, 0),
    )  # fmt: skip


def _empty(*shape: int) -> Any:
    import torch

    return torch.empty(*shape)


def _collection(cache: Path) -> dict[str, list[tuple[int, ...]]]:
    """Return the layers of all models; models in ``cache`` are not built again."""
    layers: dict[str, list[tuple[int, ...]]] = {}
    if cache.exists():
        for line in cache.read_text().splitlines():
            row = json.loads(line)
            layers[row["model"]] = [tuple(one) for one in row["layers"]]
    with cache.open("a") as file:
        for models in (torchvision_models, convolution_models.models, timm_models):
            for name, build, inputs in models():
                if name in layers:
                    continue
                row = {"model": name, "layers": [], "error": ""}
                try:
                    row["layers"] = layers[name] = convolutions(build, inputs)
                except Exception as error:  # noqa: BLE001 - other people's models: what they raise is noted
                    row["error"] = f"{type(error).__name__}: {error}"[:200]
                file.write(json.dumps(row) + "\n")
                file.flush()
    return layers


def _held_out_models() -> set[str]:
    with HELD_OUT_FILE.open(newline="") as file:
        return {row["model"] for row in csv.DictReader(file)}


def write(layers: dict[str, list[tuple[int, ...]]], path: Path) -> None:
    """Write the list of layers with the number of models that have each, without held-out models."""
    held_out_models = _held_out_models()
    models = Counter(one for name, some in layers.items() if name not in held_out_models for one in set(some))
    widths, patches, sizes = _EMBEDDINGS
    for width in widths:
        for patch in patches:
            for size in (size for size in sizes if size % patch == 0):
                window = (1, patch, patch, 1, patch, patch, 0, 0, 0, 1, 1, 1, 0, 0, 0)
                models[2, 0, 1, 1, 3, width, 1, size, size, *window] += 2
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(("models", *LAYER_COLUMNS))
    writer.writerows((models[one], *one) for one in sorted(models))
    with path.open("wb") as file, gzip.GzipFile("", "wb", 9, file, 0) as packed:
        packed.write(text.getvalue().encode())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, default=LAYERS_FILE, metavar="FILE")
    parser.add_argument("--cache", type=Path, default=Path("convolution-layers.jsonl"), metavar="FILE")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    logging.disable(logging.WARNING)
    layers = _collection(options.cache)
    write(layers, options.output)
    sys.stderr.write(f"{len(layers)} models, {sum(map(len, layers.values())):,} layers: {options.output}\n")


if __name__ == "__main__":
    main()
