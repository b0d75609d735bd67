"""Training of a single network with an optimizer of PyTorch; for large networks, a stack of replicas saves no time."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def cosine(step: int, steps: int, rise: int = 0) -> float:
    """Return the factor of the step size, which goes up to 1 in ``rise`` steps and then down to 0 along a cosine.

    >>> [round(cosine(step, steps=6, rise=2), 2) for step in range(6)]
    [0.5, 1.0, 1.0, 0.85, 0.5, 0.15]
    """
    return (step + 1) / rise if step < rise else (1 + math.cos(math.pi * (step - rise) / (steps - rise))) / 2


def minimise(
    optimizer: torch.optim.Optimizer,
    loss: Callable[[Tensor, torch.Generator], Tensor],
    n: int,
    *,
    steps: int,
    batch: int,
    seed: int,
    rise: int = 0,
) -> list[float]:
    """Minimise ``loss(rows, generator)`` over batches of ``n`` points and return the loss of each step.

    Parameters
    ----------
    optimizer
        Optimizer of the parameters, whose step sizes are multiplied by :func:`cosine`.
    loss
        Differentiable loss of the points ``rows`` ``(batch,)``, indices on the CPU; it may draw from the generator.
    n
        Number of points; each is used once before any is used again.
    steps, batch
        Number of steps and of points per step.
    seed
        Seed of the order of the points.
    rise
        Number of steps in which the step size grows.
    """
    g = torch.Generator().manual_seed(seed)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, steps, rise))
    order, losses = torch.empty(0, dtype=torch.long), []
    for _ in range(steps):
        if len(order) < batch:
            order = torch.cat([order, torch.randperm(n, generator=g)])
        rows, order = order[:batch], order[batch:]
        value = loss(rows, g)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        schedule.step()
        losses.append(value.detach())
    return torch.stack(losses).tolist()


def percent_fallen(losses: Sequence[float]) -> float:
    """Return by what percentage the loss fell over the last fifth of the steps; each end is an average over a 20th.

    >>> percent_fallen([2.0] * 90 + [1.5] * 10)
    25.0
    """
    width = max(1, len(losses) // 20)
    start, end = (sum(part) / width for part in (losses[-4 * width :][:width], losses[-width:]))
    return round(100 * (1 - end / start), 2)
