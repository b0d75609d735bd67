"""The paper's comparison, smaller: methods of domain generalisation on framed images, each domain left out in turn.

The protocol is DomainBed's (Gulrajani and Lopez-Paz 2021): train on all domains but one, choose by validation, test on the one
left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from mvnb import probes
from mvnb.models import MLP
from mvnb.papers.nuclear_norm.data import FramedDomains, split_domains
from mvnb.papers.nuclear_norm.training import DomainObjective, SegmentMeans, domain_batches, loss_valley
from mvnb.training.core import fit
from mvnb.training.optimizers import Adam
from mvnb.training.stacking import Params, generators, predict, stack_modules, to_device

N_DOMAINS = 4


def methods(strength: float) -> dict[str, dict[str, float]]:
    """Return the penalties of each method by its name; ``strength`` is the weight of the nuclear norm (NU).

    Weights as in DomainBed, but for IRM, whose weight of 100 does not train a small network in some hundred steps.
    """
    return {
        "ERM": {},
        "ERM-NU": {"nuclear": strength},
        "Mixup": {"mixup": 1},
        "Mixup-NU": {"mixup": 1, "nuclear": strength},
        "CORAL": {"coral": 1},
        "weight decay": {"decay": 0.01},
        "IRM": {"irm": 1},
        "VREx": {"vrex": 10},
        "GroupDRO": {"dro": 0.01},
    }


class Domains(NamedTuple):
    """Points ``x`` ``(N, inputs)``, ``y`` ``(N,)`` and the indices of B runs' points.

    ``train`` ``(B, E, m)``, ``valid`` ``(B, v)`` of the training domains, ``test`` ``(B, t)`` of the domain left out.
    """

    x: Tensor
    y: Tensor
    train: Tensor
    valid: Tensor
    test: Tensor


class LeftOut(NamedTuple):
    """The measurements of a comparison, each ``(settings, B)``.

    Accuracy in the domain left out: ``best`` at the checkpoint of the best validation accuracy (the first of them), ``last``,
    and ``averaged`` of SWAD's weights. ``valid`` is the last validation accuracy, ``train`` the last accuracy on as many points
    that are trained on, ``risk`` their mean cross-entropy then, and ``earlier`` after four fifths of the steps; ``head`` is the
    Frobenius norm of the last layer, and ``features`` ``(settings, B, t, k)`` are the last features of the domain left out.
    """

    best: Tensor
    last: Tensor
    averaged: Tensor
    valid: Tensor
    train: Tensor
    risk: Tensor
    earlier: Tensor
    head: Tensor
    features: Tensor


@dataclass(frozen=True)
class Comparison:
    """Images ``(N, channels, S, S)`` with labels ``(N,)``, and the networks that learn them.

    ``domain`` ``(N,)`` where the images come from domains of their own; without it they are framed and spread over four.
    ``hidden`` and ``features`` are widths; ``batch`` points a domain and step; Adam with ``step_size``. ``ValueError`` for
    fewer than 5 steps.
    """

    images: Tensor
    labels: Tensor
    hidden: int
    features: int
    steps: int
    batch: int
    step_size: float
    domain: Tensor | None = None

    def __post_init__(self):
        if self.steps < 5:
            raise ValueError(f"steps must be at least the 5 checkpoints, got {self.steps}")

    def domains(self, world: FramedDomains, seeds: Sequence[int], device="cpu") -> Domains:
        """Return the worlds of several seeds as one table of points; a row of indices for each seed and domain left out."""
        inputs, splits, n = [], [], len(self.labels)
        for seed in seeds:
            g, x, domain = torch.Generator().manual_seed(seed), self.images, self.domain
            if domain is None:
                domain = torch.randint(N_DOMAINS, (n,), generator=g)
                x = world.frame(x, self.labels, domain, self._classes, g)
            inputs.append(x.flatten(1))
            splits.append(split_domains(domain, g))
        tables = []
        for parts in zip(*splits):
            least = min(part.shape[-1] for part in parts)
            tables.append(torch.cat([part[..., :least] + i * n for i, part in enumerate(parts)]))
        return to_device(Domains(torch.cat(inputs), self.labels.repeat(len(inputs)), *tables), device)

    @property
    def _classes(self) -> int:
        return int(self.labels.max()) + 1

    def _stack(self, settings: Sequence[dict[str, float]], points: Domains, seeds: Sequence[int]):
        """A network, and the objective, the parameters and the batches of all settings on all runs."""
        (runs, n_domains, _), copies, streams, nets = points.train.shape, len(settings), [], []
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                nets += [MLP((points.x.shape[1], self.hidden, self.features, self._classes))] * (runs // len(seeds))
            streams += generators(1000 * seed + 7, runs // len(seeds))
        params = {k: v.repeat(copies, *[1] * (v.dim() - 1)).to(points.x.device) for k, v in stack_modules(nets).items()}
        params["q"] = points.x.new_full((copies * runs, n_domains), 1 / n_domains)
        objective = DomainObjective([one for one in settings for _ in nets], self.steps // 10, points.x.device)
        return nets[0], objective, params, domain_batches(points.x, points.y, points.train, self.batch, copies, streams)

    def run(self, settings: Sequence[dict[str, float]], world: FramedDomains, seeds: Sequence[int], device="cpu") -> LeftOut:
        """Train every setting (of :class:`DomainObjective`) on all seeds and domains left out, as one stack with Adam.

        Settings of a run share the start and the batches. What warms up does so for a tenth of the steps. Returns
        ``(settings, seeds * domains)`` each.
        """
        points, checkpoints = self.domains(world, seeds, device), 15 if self.steps >= 60 else 5
        net, objective, params, batches = self._stack(settings, points, seeds)
        copies, every = len(settings), self.steps // checkpoints
        optimizer = SegmentMeans(Adam(self.step_size), every, checkpoints)
        fitted = points.train[..., : points.valid.shape[1] // points.train.shape[1]].flatten(1)
        train, valid, test = (
            (points.x[i].repeat(copies, 1, 1), points.y[i].repeat(copies, 1)) for i in (fitted, points.valid, points.test)
        )

        def outputs(p: Params, part: nn.Module, x: Tensor) -> Tensor:
            return predict(part, {k: p[k] for k, _ in part.named_parameters()}, x)

        def judged(p: Params, x: Tensor, y: Tensor) -> Tensor:
            logits = outputs(p, net, x)
            risk = -logits.log_softmax(-1).gather(-1, y[..., None]).mean((1, 2))
            return torch.stack([probes.accuracy(logits, y), risk.double()], 1)

        run = fit(
            objective,
            params,
            batches,
            steps=self.steps,
            optimizer=optimizer,
            probes={
                "valid": lambda p: judged(p, *valid),
                "test": lambda p: judged(p, *test)[:, 0],
                "train": lambda p: judged(p, *train),
            },
            log_at=[every * (i + 1) for i in range(checkpoints)],
        )
        (seen, risk), there = run.log["valid"].unbind(-1), run.log["test"]  # (checkpoint, replica)
        mean = optimizer.averaged(run, [loss_valley(one) for one in risk.T])
        head = [k for k in run.params if k.endswith(".weight")][-1]
        measured = (
            there.gather(0, seen.argmax(0)[None])[0],
            there[-1],
            judged(mean, *test)[:, 0],
            seen[-1],
            run.log["train"][-1, :, 0],
            run.log["train"][-1, :, 1],
            run.log["train"][4 * checkpoints // 5 - 1, :, 1],
            run.params[head].flatten(1).norm(dim=1),
            outputs(run.params, nn.Sequential(*list(net)[:-1]), test[0]),
        )
        return LeftOut(*(v.cpu().double().unflatten(0, (copies, -1)) for v in measured))

    def first_losses(self, settings, world: FramedDomains, seeds: Sequence[int], device="cpu") -> Tensor:
        """Return the losses of the first 50 steps of :meth:`run`, ``(50, settings * seeds * domains)``."""
        _, objective, params, batches = self._stack(settings, self.domains(world, seeds, device), seeds)
        return fit(objective, params, batches, steps=50, optimizer=Adam(self.step_size), log_at=range(50)).log["loss"]


def worlds(agree: float) -> dict[str, FramedDomains]:
    """Return frames without a hint, with one that is right with probability ``agree``, and with four strong ones."""
    return {
        "no hint": FramedDomains(agree=0.0, cues=0),
        "one weak hint": FramedDomains(agree=agree),
        "four strong hints": FramedDomains(agree=0.95, cues=4),
    }
