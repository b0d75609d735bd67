"""Representations that are tables, one vector of a given length for each input of a finite world."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.papers.contrastive_tradeoff.theory import contrastive_loss
from mvnb.training import Adam, fit


def train_tables(start: Tensor, length: Tensor, p_r: Tensor, p_u: Tensor, steps: int) -> Tensor:
    """Return tables ``(run, N_R, N_U, k)`` that minimise the contrastive loss, from ``start``, with one ``length`` per run.

    ``p_r`` and ``p_u`` are the probabilities of the invariant and the spurious values.
    """
    scale = length.view(-1, 1, 1, 1)

    def objective(params):
        v = params["v"].detach().requires_grad_()
        loss = contrastive_loss(scale * F.normalize(v, dim=-1), p_r, p_u)
        return loss.detach(), {"v": torch.autograd.grad((loss / length**2).sum(), v)[0]}  # scaled, or short ones learn slowly

    run = fit(objective, {"v": start}, (), steps=steps, optimizer=Adam(lambda s: 0.1 * (1 - s / steps) + 1e-4))
    return scale * F.normalize(run.params["v"], dim=-1)


def separable(phi: Tensor, labels: Tensor) -> Tensor:
    """Return which labelings ``(L, 4)`` of four vectors ``phi`` ``(run, 4, k)`` a plane can separate, ``(run, L)``.

    Labels are 1 and -1. Least squares finds the plane of a square or a simplex.
    """
    inputs = torch.cat([phi, torch.ones_like(phi[..., :1])], -1)
    found = torch.linalg.pinv(inputs) @ labels.T
    return ((inputs @ found) * labels.T > 0.05).all(1)


def strengths(phi: Tensor, flips: Tensor, p: Tensor, length: Tensor) -> Tensor:
    """Return how strongly tables ``(run, N, k)`` encode each feature: the mean distance to the flipped value over 2 lengths.

    ``flips`` ``(feature, N)`` are the values with the feature flipped, ``p`` ``(N,)`` the probabilities.
    """
    apart = (phi[:, None] - phi[:, flips]).norm(dim=-1)
    return (apart * p).sum(-1) / (2 * length[:, None])
