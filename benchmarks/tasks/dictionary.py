"""Two-layer network on dictionary data: combinations of hidden binary patterns, a few of which decide the label."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.models import TwoLayer, TwoLayerObjective
from tasks.base import Task, jax, jnp, normal

RELEVANT = 5


def loss(f, x: Tensor, y: Tensor) -> Tensor:
    """Return the logistic loss of one replica."""
    return F.softplus(-y * f(x)).mean()


def jax_loss(params, x, y):
    """Return the logistic loss of one replica in JAX."""
    return jax.nn.softplus(-y * (jax.nn.relu(x @ params["w"].T + params["b"]) @ params["a"])).mean()


def dictionary(replicas: int, dim: int = 100, width: int = 200, n: int = 256) -> Task:
    """Return the task with fresh batches of ``(phi - 1/2) / sqrt(dim / 4)``, with fair coins phi in dictionary coordinates.

    The label says whether most of the first five patterns are present.
    """
    scale = 2 / math.sqrt(dim)

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        drawn = torch.randint(256, ((n * dim + 7) // 8,), generator=generator, dtype=torch.uint8)
        bits = torch.from_numpy(np.unpackbits(drawn.numpy(), count=n * dim))
        x = bits.view(n, dim).float().sub_(0.5).mul_(scale)
        return x, torch.sign(x[:, :RELEVANT].sum(1))

    def user_draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        phi = torch.randint(0, 2, (n, dim), generator=generator, dtype=torch.float32)
        y = torch.sign(phi[:, :RELEVANT].sum(1) - RELEVANT / 2)
        return phi.sub_(0.5).mul_(scale), y

    def jax_draw(key):
        phi = jax.random.bernoulli(key, 0.5, (n, dim)).astype(float)
        return (phi - 0.5) * scale, jnp.sign(phi[:, :RELEVANT].sum(1) - RELEVANT / 2)

    modules = [
        TwoLayer(normal(width, dim, seed=r), torch.zeros(width), normal(width, seed=r + 1000, scale=width**-0.5))
        for r in range(replicas)
    ]
    return Task(
        sizes={"replicas": replicas, "width": width, "samples": n, "dim": dim},
        modules=modules,
        objective=TwoLayerObjective(),
        loss=loss,
        jax_loss=jax_loss,
        flops=2 * 2 * replicas * n * dim * width,  # first layer and gradient of its weights
        draw=draw,
        user_draw=user_draw,
        jax_draw=jax_draw,
        block=4,
    )
