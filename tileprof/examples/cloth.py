"""Steps of a cloth: a grid of masses and springs that falls on spheres, made of many small kernels.

Simulators for learning to move are like this. Springs of each kind (along, across, diagonal, bending) touch memory of
their own until the forces are summed; spheres that the cloth is far from are left out, which depends on the data.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

from tileprof.examples.parts.common import building, positive, print_result, stepped, stepping, torch

STIFFNESS, DAMPING, GRAVITY, STEP_S = 120.0, 0.02, 9.81, 2e-3

SPRINGS = ((0, 1), (1, 0), (1, 1), (1, -1), (0, 2), (2, 0))
"""Distance in rows and columns between the ends of a spring."""


class Cloth:
    """``[batch, rows, columns, 3]`` positions and velocities, and spheres ``[3]`` that stand still."""

    def __init__(self, options: Namespace) -> None:
        n = options.size
        grid = torch.stack(torch.meshgrid(torch.arange(n), torch.arange(n), indexing="ij"), dim=-1) / n
        flat = torch.cat([grid, torch.ones(n, n, 1)], dim=-1)
        self.position = flat.expand(options.batch, n, n, 3) + 0.01 * torch.randn(options.batch, n, n, 3)
        self.velocity = torch.zeros_like(self.position)
        self.spheres = [torch.rand(3) * torch.tensor([1.0, 1.0, 0.5]) for _ in range(options.spheres)]
        self.rest = [((down * down + across * across) ** 0.5) / n for down, across in SPRINGS]

    def step(self) -> Any:
        """Return the positions after one step."""
        forces = [self._spring(*ends, rest) for ends, rest in zip(SPRINGS, self.rest, strict=True)]
        pushes = [self._push(sphere) for sphere in self.spheres]
        near = torch.stack([depth.amax() for _, depth in pushes]) > 0
        total = torch.stack(forces).sum(dim=0) - DAMPING * self.velocity
        total[..., 2] -= GRAVITY
        for (push, _), touches in zip(pushes, near.tolist(), strict=True):
            if touches:
                total = total + push
        self.velocity = self.velocity + STEP_S * total
        self.position = self.position + STEP_S * self.velocity
        return self.position

    def _spring(self, down: int, across: int, rest: float) -> Any:
        """Forces of one kind of spring on all masses."""
        p, force = self.position, torch.zeros_like(self.position)
        rows, columns = p.shape[1] - down, p.shape[2] - abs(across)
        left, right = max(0, -across), max(0, across)
        one, other = p[:, :rows, left : left + columns], p[:, down:, right : right + columns]
        apart = other - one
        length = apart.square().sum(dim=-1, keepdim=True).sqrt().clamp_min(1e-6)
        pull = apart * (STIFFNESS * (length - rest) / length)
        force[:, :rows, left : left + columns] += pull
        force[:, down:, right : right + columns] -= pull
        return force

    def _push(self, centre: Any) -> tuple[Any, Any]:
        """Return what a sphere does to masses inside of it, and how deep they are."""
        apart = self.position - centre
        distance = apart.square().sum(dim=-1, keepdim=True).sqrt().clamp_min(1e-6)
        depth = (0.2 - distance).clamp_min(0.0)
        return apart * (800.0 * depth / distance), depth


def main(argv: Sequence[str] | None = None) -> None:
    """Run the steps as ``argv`` asks and print one line."""
    options = stepping(__doc__, batch=4, capturable=False)
    options.add_argument("--size", type=positive, default=48, help="masses along a side")
    options.add_argument("--spheres", type=positive, default=4, help="spheres")
    values = options.parse_args(argv)
    with building(values):
        cloth = Cloth(values)
        print_result("cloth", stepped("cloth", values, cloth.step))


if __name__ == "__main__":
    main()
