"""Online gradient descent on a signal patch among noise patches, with a learned threshold.

The network is ``f(X) = sum_i phi_b(<w, X_i>)`` with ``phi_b(x) = relu(x + b) - relu(-x + b)``; one of the k + 1 patches is
``y w_star``, the others are ``N(0, sigma^2 I)`` with ``sigma = log(k) / sqrt(k)``. Source: Karp et al. 2021.
"""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.papers.local_signal_adaptivity.model import SoftThresholdFilter
from mvnb.papers.local_signal_adaptivity.training import SoftThresholdObjective
from tasks.base import Task, jax, jnp, normal


def loss(f, x: Tensor, y: Tensor) -> Tensor:
    """Return the logistic loss of one replica."""
    return F.softplus(-y * f(x)).mean()


def jax_loss(params, x, y):
    """Return the logistic loss of one replica in JAX."""
    s, b = x @ params["w"], params["b"]
    return jax.nn.softplus(-y * (jax.nn.relu(s + b) - jax.nn.relu(b - s)).sum(-1)).mean()


def signal_in_noise(replicas: int, k: int = 200, dim: int = 10, n: int = 100) -> Task:
    """Return the task with fresh batches of ``n`` points; the step size of the threshold is ``k`` times smaller.

    The signal lies along the first axis of the first patch, since a sum over patches does not depend on their order.
    """
    sigma = math.log(k) / math.sqrt(k)

    def with_signal(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[:, 0] = 0.0
        x[:, 0, 0] = y
        return x, y

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        x = torch.randn(n, k + 1, dim, generator=generator).mul_(sigma)
        return with_signal(x, torch.randint(0, 2, (n,), generator=generator).mul_(2).sub_(1).float())

    def jax_draw(key):
        noise, sign = jax.random.split(key)
        y = jax.random.rademacher(sign, (n,), float)
        signal = jnp.zeros((n, 1, dim)).at[:, 0, 0].set(y)
        return jnp.concatenate([signal, sigma * jax.random.normal(noise, (n, k, dim))], 1), y

    modules = [SoftThresholdFilter(normal(dim, seed=r, scale=0.3), -0.1) for r in range(replicas)]

    def authors(steps: int, replicas: int, batch: tuple | None) -> dict[str, Tensor]:
        """Train in the way of the paper's code: NumPy draws, and a gradient compiled by JAX is called once per step."""
        slope, finals = jax.jit(jax.grad(jax_loss)), []
        for r, module in enumerate(modules[:replicas]):
            rng = np.random.default_rng(r)
            params = {name: jnp.asarray(part.detach().numpy()) for name, part in module.named_parameters()}
            for _ in range(steps):
                if batch is None:
                    y = rng.choice([-1.0, 1.0], n)
                    x = rng.normal(0, sigma, (n, k + 1, dim))
                    x[:, 0], x[:, 0, 0] = 0, y
                else:
                    x, y = (part[r].numpy() for part in batch)
                grads = slope(params, jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32))
                params = {"w": params["w"] - 0.1 * grads["w"], "b": params["b"] - 0.1 / k * grads["b"]}
            finals.append(params)
        return {name: torch.from_numpy(np.stack([final[name] for final in finals])) for name in ("w", "b")}

    return Task(
        sizes={"replicas": replicas, "samples": n, "patches": k + 1, "dim": dim},
        modules=modules,
        objective=SoftThresholdObjective(),
        loss=loss,
        jax_loss=jax_loss,
        flops=2 * 2 * replicas * n * (k + 1) * dim,  # forward pass and gradient of the weights
        draw=draw,
        user_draw=draw,
        jax_draw=jax_draw,
        rates={"b": 1 / k},
        authors=authors if jax else None,
    )
