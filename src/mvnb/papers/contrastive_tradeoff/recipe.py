"""SimCLR and contrastive regularisation in a training loop of one's own, without this package."""

import torch
from torch.nn import functional as F


def simclr_loss(first, second, temperature: float = 0.3):
    """Return the contrastive loss of embeddings ``(n, D)`` of two views of the same images."""
    z = F.normalize(torch.cat([first, second]), dim=1)
    similar = (z @ z.T / temperature).fill_diagonal_(-torch.inf)
    return F.cross_entropy(similar, torch.arange(len(z), device=z.device).roll(len(first)))


def train(encoder, head, x, view, steps: int, y=None, weight: float = 1.0, step_size: float = 0.002) -> None:
    """Pretrain ``encoder`` on images ``x``; with labels ``y``, fine-tune it and ``head`` with ``weight`` times the loss."""
    optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], step_size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    for _ in range(steps):
        rows = torch.randint(len(x), (64,))
        first, second = encoder(view(x[rows])), encoder(view(x[rows]))
        if y is None:
            loss = simclr_loss(head(first), head(second))
        else:
            loss = F.cross_entropy(head(first), y[rows]) + weight * simclr_loss(first, second)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
