"""Pretraining on fine labels and fine-tuning on coarse ones in a training loop of one's own, without this package."""

import torch
from torch.nn import functional as F


def train_fine_to_coarse(net: torch.nn.Sequential, x, fine, coarse, steps: int, step_size: float = 0.1) -> None:
    """Train ``net``, which ends in a linear layer, on the labels ``fine``, then with a new last layer on ``coarse``."""
    for labels, size in ((fine, step_size), (coarse, step_size / 4)):
        net[-1] = torch.nn.Linear(net[-1].in_features, int(labels.max()) + 1)
        optimizer = torch.optim.SGD(net.parameters(), size, momentum=0.9)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
        for _ in range(steps):
            batch = torch.randint(len(x), (64,))
            loss = F.cross_entropy(net(x[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
