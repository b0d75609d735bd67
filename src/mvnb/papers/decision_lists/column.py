"""One position of a shift-symmetric world: a column of W and the entries of V by offset represent both matrices.

For lists that are shifts of one another, all columns of W are shifts of token 0's, and V is ``V[l, i] = v[l - pi(i)]``, so that
logits are a circular convolution of v with attention. A step on the column is the step on the matrices over L.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from mvnb import losses, training
from mvnb.papers.decision_lists import theory
from mvnb.papers.decision_lists.data import DecisionLists


class Column(nn.Module):
    """Attention at the position of token 0; scores ``w`` and entries ``v`` by offset, ``(n_tokens,)`` each."""

    def __init__(self, n_tokens: int):
        super().__init__()
        self.w, self.v = nn.Parameter(torch.zeros(n_tokens)), nn.Parameter(torch.zeros(n_tokens))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits ``(n, n_tokens)`` by offset, the class minus pi(0), for sequences ``(n, length)`` with token 0."""
        attention = self.w[tokens].softmax(-1)
        dense = attention.new_zeros(len(tokens), len(self.v)).scatter(1, tokens, attention)
        spectrum = torch.fft.rfft(dense) * torch.fft.rfft(self.v)
        return torch.fft.irfft(spectrum, n=len(self.v))


def train(
    world: DecisionLists,
    values: Tensor,
    *,
    steps: int,
    step_size: float,
    batch: int,
    seed: int,
    replicas: int,
    n_test: int,
    device="cpu",
    rates: Mapping[str, float] | None = None,
    log_every: int = 4,
) -> training.Run:
    """Train copies of the column from w = 0 and v = ``values``, ``(n_tokens,)`` or one row per run, on fresh sequences.

    Probes: ``error`` on ``n_test`` fresh sequences, ``margin`` by which the column is ordered like its list, and ``w``.
    ``rates`` as for :class:`mvnb.training.SGD`.
    """
    module = Column(world.n_tokens)
    tokens, target = (part.to(device) for part in _draw(world, n_test, torch.Generator().manual_seed(seed + 10**6)))
    own_list = world.lists[:1].to(device).expand(replicas, -1)

    def error(params):
        logits = training.predict(module, params, tokens.expand(len(params["w"]), -1, -1), chunk=n_test)
        return theory.misclassified(logits, target.expand(len(logits), -1)).double().mean(1)

    start = {"w": torch.zeros(replicas, world.n_tokens), "v": values.float().expand(replicas, -1)}
    return training.fit(
        training.ModuleObjective(module, losses.cross_entropy),
        {name: part.contiguous().to(device) for name, part in start.items()},
        training.Fresh(lambda n, g: _draw(world, n, g), batch, training.generators(seed, replicas), device=device),
        steps=steps,
        optimizer=training.SGD(step_size, rates=rates or {}),
        probes={
            "error": error,
            "margin": lambda params: theory.list_margin(params["w"], own_list),
            "w": lambda params: params["w"],
        },
        log_at=sorted({*range(0, steps, log_every), steps}),
    )


def _draw(world: DecisionLists, n: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw ``n`` sequences with token 0 ``(n, length)``, and return them with the token that decides its label ``(n,)``."""
    sample = world.sample(n, generator, containing=0)
    return sample.tokens, sample.decides[:, 0]
