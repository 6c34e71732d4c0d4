"""Whole networks whose cells have branches: GoogLeNet and Inception v3 of torchvision, NASNet-A and PNASNet-5 of timm.

Weights are random.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, library, positive, print_result, stepped, stepping, torch

SMALLEST = 64
"""Pixels of a side that all of them take."""


def _of_torchvision(name: str, classes: int) -> Any:
    models = library("torchvision").models
    return getattr(models, name)(weights=None, num_classes=classes, aux_logits=False, init_weights=False)


def _of_timm(name: str, classes: int) -> Any:
    return library("timm").create_model(name, pretrained=False, num_classes=classes)


KINDS: dict[str, Any] = {
    "googlenet": _of_torchvision,
    "inception_v3": _of_torchvision,
    "nasnetalarge": _of_timm,
    "pnasnet5large": _of_timm,
}


def main(argv: Sequence[str] | None = None) -> None:
    """Run the network as ``argv`` asks and print one line."""
    options = stepping(__doc__)
    options.add_argument("--kind", choices=sorted(KINDS), default="googlenet", help="network")
    options.add_argument("--image", type=positive, default=96, help=f"height and width, at least {SMALLEST}")
    options.add_argument("--classes", type=positive, default=1000, help="results per image")
    values = options.parse_args(argv)
    if values.image < SMALLEST:
        options.error(f"--image takes at least {SMALLEST} pixels")
    with building(values):
        model = KINDS[values.kind](values.kind, values.classes).eval()
        images = torch.randn(values.batch, 3, values.image, values.image)
        print_result("branched", stepped(values.kind, values, lambda: model(images)))


if __name__ == "__main__":
    main()
