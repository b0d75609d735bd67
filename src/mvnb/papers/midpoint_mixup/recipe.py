"""Midpoint Mixup in a training loop of one's own, which needs nothing of this package."""

import torch
from torch.nn import functional as F


def train_on_midpoints(net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor, steps: int, step_size: float = 1e-3) -> None:
    """Train ``net`` on midpoints of random pairs of points ``x`` ``(n, ...)``; each of the two labels has half of the loss."""
    optimizer = torch.optim.Adam(net.parameters(), step_size)
    for _ in range(steps):
        partner = torch.randperm(len(x))
        logits = net((x + x[partner]) / 2)
        loss = (F.cross_entropy(logits, y) + F.cross_entropy(logits, y[partner])) / 2
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
