"""In-context regression: linear self-attention on prompts, each with a linear task of its own."""

from __future__ import annotations

import torch
from torch import Tensor

from mvnb.models import AttentionObjective, LinearSelfAttention, prompt_moments
from tasks.base import Task, jax, jnp, normal


def loss(f, moments: Tensor, query: Tensor, target: Tensor) -> Tensor:
    """Half the mean squared error of one replica."""
    return (f(moments, query) - target).square().mean() / 2


def jax_loss(params, moments, query, target):
    """Half the mean squared error of one replica in JAX."""
    prediction = ((moments @ params["v"]) * (query @ params["w"].T)).sum(-1)
    return jnp.square(prediction - target).mean() / 2


def prompts(replicas: int, examples: int = 20, dim: int = 8, n: int = 128) -> Task:
    """Fresh batches of ``n`` prompts: Gaussian examples, query and task vector."""

    def draw(n: int, generator: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
        x = torch.randn(n, examples + 1, dim, generator=generator)
        y = (x @ torch.randn(n, dim, 1, generator=generator))[..., 0]
        return prompt_moments(x[:, :-1], y[:, :-1], x[:, -1]), x[:, -1], y[:, -1]

    def jax_draw(key):
        of_inputs, of_tasks = jax.random.split(key)
        x = jax.random.normal(of_inputs, (n, examples + 1, dim))
        y = jnp.einsum("nid,nd->ni", x, jax.random.normal(of_tasks, (n, dim)))
        prompt = jnp.concatenate([x, y.at[:, -1].set(0)[..., None]], -1)
        return jnp.einsum("nia,nib->nab", prompt, prompt) / examples, x[:, -1], y[:, -1]

    size = dim + 1
    products = 2 * examples * size**2 + 2 * 2 * size * (size + dim)  # moments; both factors, and the gradients in them
    modules = [
        LinearSelfAttention(normal(size, seed=r, scale=0.3), normal(size, dim, seed=r + 1000, scale=0.3))
        for r in range(replicas)
    ]
    return Task(
        sizes={"replicas": replicas, "samples": n, "examples": examples, "dim": dim},
        modules=modules,
        objective=AttentionObjective(),
        loss=loss,
        jax_loss=jax_loss,
        flops=replicas * n * products,
        draw=draw,
        jax_draw=jax_draw,
        block=4,
        step_size=0.01,  # prompts are heavy-tailed: a larger one blows up now and then
    )
