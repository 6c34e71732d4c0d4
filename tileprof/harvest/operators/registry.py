"""How a family of operators lists its members: name, builder, types and sizes."""

from __future__ import annotations

import math
from itertools import product
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tileprof.harvest.products.product_cases import Dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

DEVICE = "cuda"
_MOST_ELEMENTS: Final = 1 << 23
FLOATS: Final = (Dtype.FP32, Dtype.FP16, Dtype.BF16)
TWO: Final = (Dtype.FP32, Dtype.BF16)
ONE: Final = (Dtype.FP32,)
NUMBERS: Final = (1, 31, 127, 512, 1000, 4096, 10_000, 65_536, 100_003, 262_144, 1 << 20, 3_000_001, 1 << 23)
"""Numbers of elements."""
ROWS: Final = (1, 2, 7, 16, 64, 200, 1024, 4096)
WIDTHS: Final = (1, 8, 31, 64, 100, 128, 256, 384, 768, 1000, 1024, 1025, 2048, 4096, 8192, 32_000)

Call: TypeAlias = "Callable[[], object]"
Builder: TypeAlias = "Callable[[Any, Any, int, int, int], Call]"
Entry: TypeAlias = tuple[str, Builder, tuple[Dtype, ...], list[tuple[int, int, int]]]
"""Name, builder ``(torch, dtype, a, b, c) -> call``, types, sizes."""


def sizes_of(*axes: Sequence[int]) -> list[tuple[int, int, int]]:
    """Return the grid of up to three axes; axes that are missing have the one size 0."""
    padded = (*axes, *(((0,),) * (3 - len(axes))))
    return [(a, b, c) for a, b, c in product(*padded)]


class Registry(list[Entry]):
    """The operators of a family, in the order in which they are defined: a case names one by its place."""

    def operator(self, types: tuple[Dtype, ...], *axes: Sequence[int]) -> Callable[[Any], Any]:
        """Return a decorator that appends a builder under its name."""

        def register(build: Any) -> Any:
            self.append((build.__name__.strip("_"), build, types, sizes_of(*axes)))
            return build

        return register


def random_tensor(torch: Any, dtype: Any, *shape: int, grad: bool = False) -> Any:
    """Return normal random numbers on the GPU. Raises `ValueError` above 2**23 elements."""
    if math.prod(shape) > _MOST_ELEMENTS:
        raise ValueError(f"{shape} is too large")
    return torch.randn(*shape, device=DEVICE).to(dtype).requires_grad_(grad)


def random_ids(torch: Any, limit: int, *shape: int) -> Any:
    """Return random integers below ``limit`` on the GPU."""
    return torch.randint(0, limit, shape, device=DEVICE)


def other_kernels(torch: Any) -> Call:
    """Return a call of a product, a norm and a reduction: as other kernels run before one in a program."""
    x = random_tensor(torch, torch.bfloat16, 256, 256)

    def others() -> None:
        torch.mm(x, x)
        torch.nn.functional.layer_norm(x, (256,))
        torch.sum(x, 0)

    return others


def backward_of(out: Any, *inputs: Any) -> Callable[[], object]:
    """Return a call that computes the gradients of ``inputs``, again and again."""
    import torch  # noqa: PLC0415 - heavy

    grad = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, inputs, grad, retain_graph=True)
