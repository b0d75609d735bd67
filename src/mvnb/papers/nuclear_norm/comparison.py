"""The paper's comparison, smaller: methods of domain generalisation on framed images, each domain left out in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mvnb.models import MLP
from mvnb.papers.nuclear_norm.data import FramedDomains, LeaveOneOut
from mvnb.papers.nuclear_norm.leave_one_out import Domains, LeftOut, first_losses, leave_one_out
from mvnb.training.stacking import generators, to_device

N_DOMAINS = 4


def methods(strength: float) -> dict[str, dict[str, float]]:
    """Penalties of each method by its name; ``strength`` is the weight of the nuclear norm (NU).

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


@dataclass(frozen=True)
class Comparison:
    """Images ``(N, channels, S, S)`` with labels ``(N,)``, and the networks that learn them.

    ``domain`` ``(N,)`` where the images come from domains of their own; without it they are framed and spread over four.
    ``hidden`` and ``features`` are widths; ``batch`` points a domain and step; Adam with ``step_size``.
    """

    images: Tensor
    labels: Tensor
    hidden: int
    features: int
    steps: int
    batch: int
    step_size: float
    domain: Tensor | None = None

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.labels.max()) + 1

    def draw(self, world: FramedDomains, seed: int) -> tuple[Tensor, LeaveOneOut]:
        """Inputs ``(N, pixels)`` of one world, and their splits."""
        g = torch.Generator().manual_seed(seed)
        if self.domain is not None:
            return self.images.flatten(1), LeaveOneOut.of(self.domain, g)
        domain = torch.randint(N_DOMAINS, (len(self.labels),), generator=g)
        framed = world.frame(self.images, self.labels, domain, self.classes, g)
        return framed.flatten(1), LeaveOneOut.of(domain, g)

    def domains(self, world: FramedDomains, seeds: Sequence[int], device="cpu") -> Domains:
        """The worlds of several seeds as one table of points; a row of indices for each seed and domain left out."""
        drawn = [self.draw(world, seed) for seed in seeds]
        tables = []
        for name in ("train", "valid", "test"):
            parts = [getattr(split, name) for _, split in drawn]
            least = min(part.shape[-1] for part in parts)
            tables.append(torch.cat([part[..., :least] + i * len(self.labels) for i, part in enumerate(parts)]))
        x = torch.cat([inputs for inputs, _ in drawn])
        return to_device(Domains(x, self.labels.repeat(len(drawn)), *tables), device)

    def _given(self, settings, world, seeds, device):
        points, nets, streams = self.domains(world, seeds, device), [], []
        left_out = len(points.train) // len(seeds)
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                nets += [MLP((points.x.shape[1], self.hidden, self.features, self.classes))] * left_out
            streams += generators(1000 * seed + 7, left_out)
        return list(settings), points, nets, streams

    def run(self, settings: Sequence[dict[str, float]], world: FramedDomains, seeds: Sequence[int], device="cpu") -> LeftOut:
        """All settings on all seeds and domains left out, ``(settings, seeds * domains)`` each."""
        how = {"steps": self.steps, "batch": self.batch, "step_size": self.step_size}
        return leave_one_out(*self._given(settings, world, seeds, device), **how, checkpoints=15 if self.steps >= 60 else 5)

    def first_losses(self, settings, world: FramedDomains, seeds: Sequence[int], device="cpu", stop: int = 50) -> Tensor:
        """The losses of the first steps of :meth:`run`, ``(stop, settings * seeds * domains)``."""
        how = {"steps": self.steps, "batch": self.batch, "step_size": self.step_size}
        return first_losses(*self._given(settings, world, seeds, device), **how, stop=stop)


def worlds(agree: float) -> dict[str, FramedDomains]:
    """Frames without a hint, with one that is right with probability ``agree``, and with four strong ones."""
    return {
        "no hint": FramedDomains(agree=0.0, cues=0),
        "one weak hint": FramedDomains(agree=agree),
        "four strong hints": FramedDomains(agree=0.95, cues=4),
    }
