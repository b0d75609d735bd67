"""LAG@k for networks with a list of layers, in a training loop of one's own."""

import copy

import torch
from torch import nn


def grow(layers: nn.ModuleList, index: int, count: int, block: int, fresh=None) -> nn.ModuleList:
    """Return ``layers`` with ``count`` new ones, copies or from ``fresh()``, behind blocks of layers from ``index`` on."""
    grown = [*layers[:index]]
    for start in range(index, index + count, block):
        old = layers[start : start + block]
        grown += [*old, *(fresh() if fresh else one for one in old)]
    return nn.ModuleList(copy.deepcopy(one) for one in [*grown, *layers[index + count :]])


def grow_by_lag(candidates, loss, batch, valid, k: int, step_size: float = 1e-3):
    """Train each grown network for ``k`` steps on the same batches; return the one with the lowest loss, and its optimizer.

    ``loss(network, data)`` is the loss on a batch or on the validation data ``valid``, ``batch(step)`` the batch of a step.
    """
    tried = []
    for network in candidates:
        optimizer = torch.optim.AdamW(network.parameters(), step_size)
        for step in range(k):
            optimizer.zero_grad()
            loss(network, batch(step)).backward()
            optimizer.step()
        with torch.no_grad():
            tried.append((loss(network, valid).item(), network, optimizer))
    return min(tried, key=lambda one: one[0])[1:]
