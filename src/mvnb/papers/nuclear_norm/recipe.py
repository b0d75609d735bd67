"""ERM-NU in a training loop of one's own, without this package."""

import torch
from torch.nn import functional as F


def nuclear_penalty(features):
    """Return the nuclear norm of a batch of features ``(n, k)`` over n; autograd differentiates it."""
    return torch.linalg.svdvals(features).sum() / len(features)


def train_erm_nu(body, head, x, y, weight, *, steps, warmup=100, step_size=0.001, head_decay=0.0) -> None:
    """Train ``head(body(x))`` on labels ``y``, from step ``warmup`` on with ``weight`` times the penalty."""
    groups = [{"params": body.parameters()}, {"params": head.parameters(), "weight_decay": head_decay}]
    optimizer = torch.optim.Adam(groups, step_size)
    for step in range(steps):
        rows = torch.randint(len(x), (96,))
        features = body(x[rows])
        loss = F.cross_entropy(head(features), y[rows])
        if step >= warmup:
            loss = loss + weight * nuclear_penalty(features)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
