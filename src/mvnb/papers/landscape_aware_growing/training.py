"""Training of the networks of chapter 07: first a small one, then all networks grown from it, on the same batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from mvnb import training
from mvnb.gradients import Params
from mvnb.models import TransformerObjective, initial_parameters
from mvnb.papers.landscape_aware_growing.data import LANGUAGE_OBJECTIVES, Text
from mvnb.papers.landscape_aware_growing.model import Growth, grow, random_layers

WEIGHTS, VALIDATION, BATCHES = 0, 1, 10
"""Purposes of random numbers (:func:`mvnb.training.stream`); batches take one per step, random layers those in between."""


@dataclass(frozen=True)
class Setup:
    """The data and the sizes of networks, whatever their depth and learning rate.

    ``objective`` is a name in ``LANGUAGE_OBJECTIVES``, ``length`` the number of tokens in a sequence, ``batch_size`` the number
    of sequences per step, and ``n_valid`` the number of validation windows. ``init_std``, ``embedding_std`` and ``new_std`` are
    the standard deviations of first weights, embeddings and new random layers.
    """

    text: Text
    objective: str = "causal"
    norm: str = "pre"
    length: int = 32
    dim: int = 32
    n_heads: int = 2
    batch_size: int = 16
    n_valid: int = 256
    init_std: float = 0.02
    embedding_std: float = 0.02
    new_std: float = 0.02
    device: torch.device | str = "cpu"

    @property
    def model(self) -> TransformerObjective:
        """The objective of :func:`mvnb.training.fit`."""
        return TransformerObjective(self.n_heads, self.norm, causal=self.objective == "causal")

    def drawn(self, n: int, generator: torch.Generator, valid: bool = False) -> tuple[Tensor, ...]:
        """Return ``n`` sequences as the objective asks for them."""
        windows = self.text.windows(n, self.length + 1, generator, valid)
        return LANGUAGE_OBJECTIVES[self.objective](windows, generator)


def falling(full: float, start: int, steps: int, last: float) -> Callable[[int], float]:
    """Return the learning rate of each step: constant until ``start``, then along a cosine to ``last`` times ``full``.

    The first 100 steps warm up. The cosine takes ``steps`` steps; with ``last`` = 1 the rate stays constant.
    """

    def rate(step: int) -> float:
        along = min(max(step - start, 0) / steps, 1.0)
        return full * min(1.0, (step + 1) / 100) * (last + (1 - last) * (1 + np.cos(np.pi * along)) / 2)

    return rate


def optimizer(rate: Callable[[int], float]) -> training.AdamW:
    """Return AdamW with this learning rate."""
    return training.AdamW(rate, betas=(0.9, 0.99), weight_decay=0.01)


def batches(setup: Setup, seeds: Sequence[int], copies: int = 1) -> Callable[[int], tuple[Tensor, ...]]:
    """Return the batches of a stack: at each step one batch per seed, the same for all ``copies`` networks of this seed."""

    def batch(step: int) -> tuple[Tensor, ...]:
        rows = [setup.drawn(setup.batch_size, training.stream(seed, BATCHES + step)) for seed in seeds]
        return tuple(torch.stack(part).repeat_interleave(copies, 0) for part in zip(*rows))

    return training.in_blocks(batch, setup.device)


def validation(setup: Setup, seeds: Sequence[int]) -> Callable[[Params], Tensor]:
    """Return a function from the parameters of a stack to its validation losses, each on the windows of its seed."""
    sets = [setup.drawn(setup.n_valid, training.stream(seed, VALIDATION), valid=True) for seed in seeds]
    held = [torch.stack(part).to(setup.device) for part in zip(*sets)]

    @torch.no_grad()
    def losses(params: Params) -> Tensor:
        n, every = len(params["head"]), []
        for rows in torch.arange(n, device=setup.device).split(12):  # to save memory
            part = {name: value[rows] for name, value in params.items()}
            every.append(setup.model.losses(part, *(one[rows * len(seeds) // n] for one in held)))
        return torch.cat(every).double()

    return losses


def pretrain(
    setup: Setup, n_layers: int, seeds: Sequence[int], steps: int, rate: Callable[[int], float], **logged
) -> training.Run:
    """Train a stack of small networks, one per seed; ``logged`` are further arguments of :func:`mvnb.training.fit`."""
    sizes = setup.text.n_tokens, setup.length, setup.dim, n_layers
    stds = {"std": setup.init_std, "embedding_std": setup.embedding_std}
    first = [initial_parameters(*sizes, training.stream(seed, WEIGHTS), **stds) for seed in seeds]
    params = {name: torch.stack([one[name] for one in first]).to(setup.device) for name in first[0]}
    return training.fit(setup.model, params, batches(setup, seeds), steps=steps, optimizer=optimizer(rate), **logged)


def grown(setup: Setup, run: training.Run, operators: Sequence[Growth], seeds: Sequence[int]) -> training.Run:
    """Return every network of a run grown by every operator, ready to be trained on; operators are innermost.

    The moments of the optimizer grow too: copies take those of their source, and random layers begin with none.
    """
    depth = run.params["layers.up"].shape[1]
    plans = [one.plan(depth) for one in operators]
    params = grow(run.params, plans, random_layers(seeds, setup.new_std))
    state = grow(run.state, plans, lambda name, like: torch.zeros_like(like))
    running = torch.ones(len(params["head"]), dtype=torch.bool, device=params["head"].device)
    return training.Run(params, np.array([], int), {"loss": [], "time": [], "valid": []}, run.step, running, state)


def race(
    setup: Setup,
    run: training.Run,
    operators: Sequence[Growth],
    seeds: Sequence[int],
    rate: Callable[[int], float],
    looks: Sequence[int],
    at_once: int = 12,
) -> tuple[np.ndarray, Params]:
    """Grow every network of a run by every operator and train all of them on the same batches, up to the last look.

    Return the validation losses ``(look, seed, operator)`` after ``looks`` steps, in ascending order, and the parameters, whose
    first axis is that of seeds and operators. ``at_once`` operators are trained in one stack.
    """
    losses, params = [], []
    for first in range(0, len(operators), at_once):
        part = operators[first : first + at_once]
        end = training.fit(
            setup.model,
            grown(setup, run, part, seeds),
            batches(setup, seeds, len(part)),
            steps=run.step + looks[-1],
            optimizer=optimizer(rate),
            probes={"valid": validation(setup, seeds)},
            log_at=[run.step + look for look in looks],
        )
        losses.append(end.log["valid"].view(len(looks), len(seeds), len(part)))
        params.append({name: value.unflatten(0, (len(seeds), len(part))) for name, value in end.params.items()})
    together = {name: torch.cat([one[name] for one in params], 1).flatten(0, 1) for name in params[0]}
    return torch.cat(losses, 2).numpy(), together
