"""Linear self-attention of low rank on fresh prompts of labelled examples, as in chapter 11.

Attention depends on the examples of a prompt only through their correlations ``h = X^T y / M``, so contenders draw these.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from mvnb.papers.icl_and_scale.data import InContextRegression
from tasks.base import Task, jax, jnp, normal

SPECTRUM, EXAMPLES = (2.0, 1.2, 0.8, 0.5, 0.3, 0.2, 0.14, 0.1), 40


class LowRank(nn.Module):
    """Predictions ``h^T a b^T q`` ``(n,)`` from correlations h ``(n, dim)`` and queries q ``(n, dim)``."""

    def __init__(self, a: Tensor, b: Tensor):
        super().__init__()
        self.a, self.b = nn.Parameter(a), nn.Parameter(b)

    def forward(self, h: Tensor, query: Tensor) -> Tensor:
        return ((h @ self.a) * (query @ self.b)).sum(-1)


def loss(f, h: Tensor, query: Tensor, target: Tensor) -> Tensor:
    """Return half the mean squared error of one replica."""
    return (f(h, query) - target).square().mean() / 2


def jax_loss(params, h, query, target):
    """Return half the mean squared error of one replica in JAX."""
    return jnp.square(((h @ params["a"]) * (query @ params["b"])).sum(-1) - target).mean() / 2


def objective(params: dict[str, Tensor], h: Tensor, query: Tensor, target: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """Return half the mean squared error of each replica of a stack, and its gradient."""
    left, right = torch.bmm(h, params["a"]), torch.bmm(query, params["b"])
    error = (left * right).sum(-1) - target
    push = (error / error.shape[1])[..., None]
    d_a, d_b = torch.bmm(h.mT, push * right), torch.bmm(query.mT, push * left)
    return error.square().mean(1) / 2, {"a": d_a, "b": d_b}


def linear_attention(replicas: int, rank: int = 8, n: int = 256) -> Task:
    """Return the task with prompts of 40 examples in 8 dimensions.

    ``X^T y / M`` has the distribution of :meth:`InContextRegression.correlations`.
    """
    dim, world = len(SPECTRUM), InContextRegression(SPECTRUM, EXAMPLES)
    spread = torch.tensor(SPECTRUM).sqrt()
    jax_spread = jnp.asarray(spread.numpy()) if jax else None

    def user_draw(n: int, generator: torch.Generator) -> tuple[Tensor, ...]:
        w, query, t = torch.randn(3, n, dim, generator=generator)
        u, query = spread * w, spread * query
        length = u.norm(dim=1, keepdim=True)
        e = u / length
        c = 2 * torch._standard_gamma(torch.full((n, 1), EXAMPLES / 2), generator=generator)
        t = t - (t * e).sum(1, keepdim=True) * e
        return spread * length * (c * e + c.sqrt() * t) / EXAMPLES, query, (query * w).sum(1)

    def jax_draw(key):
        normals, uniforms = jax.random.split(key)
        w, query, t = jax.random.normal(normals, (3, n, dim))
        u, query = jax_spread * w, jax_spread * query
        length = jnp.linalg.norm(u, axis=1, keepdims=True)
        e = u / length
        # Chi-squared with an even number of degrees of freedom; JAX's own sampler uses rejection, which takes longer.
        c = -2 * jnp.log1p(-jax.random.uniform(uniforms, (n, EXAMPLES // 2))).sum(1, keepdims=True)
        t = t - (t * e).sum(1, keepdims=True) * e
        return jax_spread * length * (c * e + jnp.sqrt(c) * t) / EXAMPLES, query, (query * w).sum(1)

    modules = [
        LowRank(normal(dim, rank, seed=r, scale=0.1), normal(dim, rank, seed=r + 1000, scale=0.1)) for r in range(replicas)
    ]
    return Task(
        sizes={"replicas": replicas, "rank": rank, "samples": n, "dim": dim},
        modules=modules,
        objective=objective,
        loss=loss,
        jax_loss=jax_loss,
        flops=2 * 2 * 2 * replicas * n * dim * rank,  # forward pass and gradient of both factors
        draw=world.correlations,
        user_draw=user_draw,
        jax_draw=jax_draw,
        block=16,
        step_size=0.03,
    )
