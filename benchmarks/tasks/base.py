"""Training tasks, written for every contender."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from mvnb.training import Fresh, Objective, Params, generators, stack

try:
    import jax
    from jax import numpy as jnp
except ImportError:  # an optional extra; without it, its column stays empty
    jax = jnp = None


@dataclass
class Task:
    """Replicas of one network, each with its own start and data, trained by gradient descent in float32.

    ``modules`` are the untrained networks. ``loss(f, *batch)`` is the loss of one replica with module ``f``, and
    ``jax_loss(params, *batch)`` the same in JAX. ``objective`` is the objective of the whole stack, with its gradient written
    by hand. ``batch`` is a stacked batch. Tasks with fresh samples at every step have functions that return a batch of one
    replica: ``draw(n, generator)``, ``jax_draw(key)`` and, for the loop over seeds, ``user_draw(n, generator)`` with PyTorch's
    own samplers; ``block`` is the block size of :class:`mvnb.training.Fresh`. ``rates`` multiplies the step size of the
    parameters it names. ``authors(steps, replicas, batch)`` trains the first replicas in the way of the paper's own code, on
    fresh samples unless ``batch`` is given. ``flops`` counts the multiplications and additions in the matrix products that one
    step of all replicas requires.
    """

    sizes: dict[str, int]
    modules: list[nn.Module]
    objective: Objective
    loss: Callable[..., Tensor]
    jax_loss: Callable
    flops: float
    batch: tuple[Tensor, ...] = ()
    draw: Callable | None = None
    user_draw: Callable | None = None
    jax_draw: Callable | None = None
    block: int = 1
    step_size: float = 0.1
    rates: Mapping[str, float] = field(default_factory=dict)
    has_autograd: bool = True
    authors: Callable[[int, int, tuple[Tensor, ...] | None], Params] | None = None

    def __post_init__(self):
        if self.draw:
            self.batch = self.fresh()(0)

    @property
    def replicas(self) -> int:
        """Number of replicas, R."""
        return len(self.modules)

    @cached_property
    def start(self) -> Params:
        """Stacked parameters before the first step."""
        return stack(self.modules)

    @cached_property
    def compiled(self) -> Objective:
        """Loss of the whole stack and its gradient, compiled by PyTorch at the first call."""
        module, loss = self.modules[0], self.loss
        stack = vmap(grad_and_value(lambda params, *batch: loss(lambda *x: functional_call(module, params, x), *batch)))

        def objective(params: Params, *batch: Tensor) -> tuple[Tensor, Params]:
            grads, losses = stack(params, *batch)
            return losses, grads

        return torch.compile(objective)

    def fresh(self, device="cpu") -> Fresh:
        """Return the stream of fresh samples, from its beginning."""
        return Fresh(self.draw, self.sizes["samples"], generators(0, self.replicas), self.block, device)


def normal(*shape: int, seed: int, scale: float = 1.0) -> Tensor:
    """Return independent ``N(0, scale^2)`` variables in float32."""
    return scale * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
