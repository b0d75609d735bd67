"""The paper's model and objective in a plain training loop."""

import torch
from torch.nn import functional as F

from mvnb.papers.decision_lists.data import DecisionLists


def train_attention(world=None, steps=60, batch=256, learning_rate=10.0, c=200.0, seed=0):
    """Train scores W ``(key, query)`` from 0 with the values V = c P fixed."""
    world, g = world or DecisionLists.shifted(), torch.Generator().manual_seed(seed)
    v = world.value_matrix(c).float()
    w = torch.nn.Parameter(torch.zeros_like(v))
    optimizer = torch.optim.SGD([w], lr=learning_rate)
    for _ in range(steps):
        tokens, decides = world.sample(batch, g)  # (sequence, position)
        scores = w[tokens[:, :, None], tokens[:, None, :]]  # (sequence, key, query)
        logits = v.T[tokens].mT @ scores.softmax(1)  # (sequence, class, query)
        loss = F.cross_entropy(logits, world.permutation[decides])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return w.detach()
