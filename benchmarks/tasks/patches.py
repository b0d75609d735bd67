"""Patch network of chapter 01 on one full batch: cross-entropy (ERM) or Midpoint Mixup over all pairs."""

from __future__ import annotations

from functools import partial

import torch
from reference import PatchCNN
from torch import Tensor, nn

from mvnb import losses
from mvnb.data import MultiView
from mvnb.models import PatchObjective
from mvnb.training import generators, stack
from tasks.base import Task, jax, jnp, normal

POWER, THRESHOLD, STEP_SIZE = 8, 0.1, 0.1


def _jax_pre(weight, x):
    """Return pre-activations ``(n, p, k, m)`` by one matrix product, several times faster in JAX than an einsum."""
    (k, m, dim), (n, patches, _) = weight.shape, x.shape
    return (x.reshape(n * patches, dim) @ weight.reshape(k * m, dim).T).reshape(n, patches, k, m)


def _jax_logits(pre, multiplicity):
    """Return the logits ``(..., k)`` of pre-activations ``(..., p, k, m)``."""
    pre = jax.nn.relu(pre)
    rise = THRESHOLD / POWER * (pre / THRESHOLD) ** POWER
    response = jnp.where(pre < THRESHOLD, rise, pre - (1 - 1 / POWER) * THRESHOLD)
    return jnp.einsum("...pkm,p->...k", response, multiplicity)


def jax_erm(params, x, y, multiplicity):
    """Return the cross-entropy of one replica in JAX."""
    weight = params["weight"]
    log_prob = jax.nn.log_softmax(_jax_logits(_jax_pre(weight, x), multiplicity))
    return -(jax.nn.one_hot(y, len(weight)) * log_prob).sum(-1).mean()


def jax_midpoint(params, x, y, multiplicity):
    """Return the Midpoint Mixup loss of one replica in JAX, using its structure.

    Pre-activations are linear in the input, so they are mixed instead of the inputs, and each unordered pair is computed once.
    """
    pre, label = _jax_pre(params["weight"], x), jax.nn.one_hot(y, len(params["weight"]))
    i, j = jnp.triu_indices(len(y))
    log_prob = jax.nn.log_softmax(_jax_logits((pre[i] + pre[j]) / 2, multiplicity))
    weight = jnp.where(i == j, 1, 2) / len(y) ** 2
    return -(weight * ((label[i] + label[j]) / 2 * log_prob).sum(-1)).sum()


class PatchConvolution(nn.Module):
    """Patch network as its authors write it: a convolution that strides over patches, and a power of every pre-activation.

    Source: the code of Chidambaram et al. 2024.
    """

    def __init__(self, weight: Tensor):
        super().__init__()
        n_classes, n_filters, dim = weight.shape
        self.n_classes = n_classes
        self.conv = nn.Conv2d(1, n_classes * n_filters, kernel_size=(1, dim), stride=(1, dim), bias=False)
        self.conv.weight = nn.Parameter(weight.detach().reshape(-1, 1, 1, dim).clone())

    def forward(self, image: Tensor, multiplicity: Tensor) -> Tensor:
        """Return logits ``(n, k)`` for images ``(n, 1, 1, patches * dim)`` and multiplicities ``(patches,)``."""
        pre = self.conv(image)
        small = (pre > 0) * (pre < THRESHOLD) * pre**POWER / (POWER * THRESHOLD ** (POWER - 1))
        value = small + (pre >= THRESHOLD) * (pre - (1 - 1 / POWER) * THRESHOLD)
        return (value * multiplicity).view(len(image), self.n_classes, -1).sum(2)


def _authors(modules: list[nn.Module], batch: tuple, lam: float | None, step_size: float):
    """Return training in the way of the paper's code, except that repeated patches are stored once, as for all contenders."""

    def train(steps: int, replicas: int, given: tuple | None) -> dict[str, Tensor]:
        finals = []
        for r, start in enumerate(modules[:replicas]):
            x, y, multiplicity = (part[r] for part in batch)
            model, image = PatchConvolution(start.weight), x.flatten(1)[:, None, None]
            logits = partial(model, multiplicity=multiplicity)
            optimizer = torch.optim.SGD(model.parameters(), lr=step_size)
            for _ in range(steps):
                optimizer.zero_grad()
                (losses.cross_entropy if lam is None else losses.midpoint_mixup)(logits, image, y).backward()
                optimizer.step()
            finals.append(model.conv.weight.detach().view(start.weight.shape))
        return {"weight": torch.stack(finals)}

    return train


def _task(batch: tuple, n_classes: int, n_filters: int, init_scale: float, lam: float | None, **more) -> Task:
    replicas, n, patches, dim = batch[0].shape
    modules = [
        PatchCNN(n_classes, n_filters, dim, POWER, THRESHOLD, init_scale, g, torch.float32) for g in generators(1000, replicas)
    ]
    sizes = {"replicas": replicas, "classes": n_classes, "filters": n_filters, "samples": n, "patches": patches, "dim": dim}
    return Task(
        sizes=sizes,
        modules=modules,
        objective=partial(PatchObjective(POWER, THRESHOLD), lam=lam),
        loss=losses.cross_entropy if lam is None else losses.midpoint_mixup,
        jax_loss=jax_erm if lam is None else jax_midpoint,
        flops=2 * 2 * replicas * n * patches * dim * n_classes * n_filters,  # forward pass and gradient of the weights
        batch=batch,
        step_size=STEP_SIZE,
        **more,
    )


def multi_view(
    replicas: int, lam: float | None = None, n: int = 32, patches: int = 4, n_classes: int = 8, n_filters: int = 16
) -> Task:
    """Return the task with multi-view data at the sizes of chapter 01.

    All but the first patches are equal; they are stored once, as the last patch.
    """
    data = MultiView(n_classes, 1000, low=0.6, noise_low=0.006, noise_high=0.006, slots=patches - 1, balanced=True)
    sample = stack([data.sample(n, g, dtype=torch.float32) for g in generators(0, replicas)])
    task = _task(tuple(sample), n_classes, n_filters, 0.05, lam)
    task.authors = _authors(task.modules, task.batch, lam, STEP_SIZE)
    return task


def gaussian(
    replicas: int,
    n_classes: int,
    n_filters: int,
    n: int,
    patches: int,
    dim: int,
    init_scale: float = 0.3,
    lam: float | None = None,
    has_autograd: bool = True,
) -> Task:
    """Return the task with Gaussian patches and random labels.

    Pre-activations are about as large as the threshold, so that all branches of the activation are used.
    """
    x = normal(replicas, n, patches, dim, seed=0, scale=0.1)
    y = torch.randint(n_classes, (replicas, n), generator=torch.Generator().manual_seed(1))
    batch = (x, y, torch.ones(replicas, patches))
    return _task(batch, n_classes, n_filters, init_scale, lam, has_autograd=has_autograd)
