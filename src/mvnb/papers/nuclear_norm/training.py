"""The paper's comparison, smaller: methods of domain generalisation on framed images, each domain left out in turn.

The protocol and the methods are DomainBed's (Gulrajani and Lopez-Paz 2021): train on all domains but one, choose by validation,
test on the one left out. The nuclear norm follows Shi thesis 2024, chapter 6, averages of weights Cha et al. 2021 (SWAD). All
runs of a comparison are one stack, in which the penalties of a replica say which method it runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import one_hot

from mvnb import probes
from mvnb.gradients import returns_gradients, with_gradients
from mvnb.losses import nuclear_norm, sample_mixing
from mvnb.models import MLP
from mvnb.papers.nuclear_norm.data import FramedDomains, split_domains
from mvnb.training.core import fit
from mvnb.training.loop import cosine
from mvnb.training.optimizers import Adam
from mvnb.training.stacking import Fresh, Params, apply_stack, generators, pick, predict, stack, to_device

N_DOMAINS = 4
PENALTIES = ("nuclear", "coral", "irm", "vrex", "dro", "mixup", "decay")


class DomainNet(nn.Module):
    """A network that returns its features, the input of its linear ``head``, beside the logits.

    ``body`` maps inputs to features of width ``features``.
    """

    def __init__(self, body: nn.Module, features: int, n_classes: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(features, n_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)


class DomainObjective:
    """Risk of a stack of :class:`DomainNet` over several domains plus penalties, and its gradient.

    An objective for :func:`mvnb.training.fit`. ``settings`` has one dictionary per replica, such as ``{"mixup": 1, "nuclear":
    0.3}``, with what is added to the mean risk of its domains. ``nuclear``: times the nuclear norm of the features of the
    batch, over its number of rows, from step ``warmup`` on. ``coral``: times the mean squared difference of the features' means
    and covariances over pairs of domains. ``irm``: times the mean of the squared slopes of the domains' risks in a common scale
    of the logits, estimated by the product of two halves of a batch. ``vrex``: times the variance of the risks. Before step
    ``warmup`` the weights of both are 1 (if any), as in DomainBed. ``dro``: rate at which GroupDRO shifts weight to domains of
    higher risk (it replaces the mean). ``mixup``: 1 to mix pairs of domains. ``decay``: half of it times the squared length of
    all parameters. Raises ``ValueError`` for other names.

    ``params`` are those of ``stack``, with ``q`` ``(R, E)`` beside them where a replica runs GroupDRO (equal weights at the
    start; updated in place). A batch is ``x`` ``(R, E, n, inputs)``, ``y`` ``(R, E, n)``, ``partner`` ``(R, E)``, the domain
    with which each is mixed, ``lam`` ``(R, E)``, and the step, a tensor without axes.
    """

    def __init__(self, net: DomainNet, settings: Sequence[dict[str, float]], warmup: int = 0, device="cpu"):
        unknown = sorted({k for one in settings for k in one} - set(PENALTIES))
        if unknown:
            raise ValueError(f"settings must name penalties among {', '.join(PENALTIES)}, got {', '.join(unknown)}")
        like = {"dtype": net.head.weight.dtype, "device": device}
        weights = {k: torch.tensor([float(one.get(k, 0)) for one in settings], **like) for k in PENALTIES}
        self.warmup, self._rows = warmup, {k: v.nonzero()[:, 0] for k, v in weights.items()}
        self._weights = {k: v[self._rows[k]] for k, v in weights.items()}
        self._net, self._names = net, [k for k, _ in net.named_parameters()]

    @returns_gradients(x="R domains n inputs", y="int R domains n", partner="int R domains", lam="R domains")
    def __call__(
        self, params: Params, x: Tensor, y: Tensor, partner: Tensor, lam: Tensor, step: Tensor
    ) -> tuple[Tensor, Params]:
        return with_gradients(self._losses, self._names)(params, x, y, partner, lam, step)

    def _losses(self, params: Params, x: Tensor, y: Tensor, partner: Tensor, lam: Tensor, step: Tensor) -> Tensor:
        target = one_hot(y, self._net.head.out_features).to(x.dtype)
        rows = self._rows["mixup"]
        if len(rows):
            row, weight = torch.arange(len(rows), device=x.device)[:, None], lam[rows][..., None, None]
            others = ((v, v[rows]) for v in (x, target))
            x, target = (v.index_copy(0, rows, torch.lerp(own[row, partner[rows]], own, weight)) for v, own in others)

        features, logits = (v.unflatten(1, y.shape[1:]) for v in apply_stack(self._net, params, x.flatten(1, 2)))
        log_prob = logits.log_softmax(-1)  # (R, E, n, classes)
        risk = -(target * log_prob).sum(-1).mean(-1)  # (R, E)
        loss, rows = risk.mean(1), self._rows["dro"]
        if len(rows):
            q = params["q"][rows] * (self._weights["dro"][:, None] * risk[rows].detach()).exp()
            q = q / q.sum(1, keepdim=True)
            params["q"][rows] = q
            loss = loss.index_copy(0, rows, (q * risk[rows]).sum(1))

        def halves(rows: Tensor) -> Tensor:  # d/ds CE(s logits) at s = 1 is the mean of sum_k (p_k - t_k) logit_k
            point = ((log_prob[rows].exp() - target[rows]) * logits[rows]).sum(-1)  # (R, E, n)
            return (point[..., 0::2].mean(-1) * point[..., 1::2].mean(-1)).mean(1)

        penalties = {
            "vrex": lambda rows, weight: weight * risk[rows].var(1, correction=0),
            "irm": lambda rows, weight: weight * halves(rows),
            "nuclear": lambda rows, weight: weight * nuclear_norm(features[rows].flatten(1, 2)) / y[0].numel(),
            "coral": lambda rows, weight: weight * _coral(features[rows]),
            "decay": lambda rows, weight: weight / 2 * sum(params[k][rows].flatten(1).square().sum(1) for k in self._names),
        }
        for name, penalty in penalties.items():
            rows, weight, early = self._rows[name], self._weights[name], int(step) < self.warmup
            if len(rows) and not (early and name == "nuclear"):
                annealed = torch.ones_like(weight) if early and name in ("irm", "vrex") else weight
                loss = loss.index_add(0, rows, penalty(rows, annealed))
        return loss


def _coral(features: Tensor) -> Tensor:
    """Return CORAL's penalty ``(R,)`` of features ``(R, E, n, k)``. Source: Sun and Saenko 2016, as in DomainBed."""
    mean = features.mean(2)
    centred = features - mean[:, :, None]
    cov = centred.mT @ centred / (features.shape[2] - 1)  # (R, E, k, k)
    i, j = torch.triu_indices(features.shape[1], features.shape[1], 1, device=features.device)
    return ((mean[:, i] - mean[:, j]).square().mean(-1) + (cov[:, i] - cov[:, j]).square().mean((-2, -1))).mean(1)


@dataclass(frozen=True)
class _DomainAdam(Adam):
    """Adam that also keeps, for each segment of ``every`` steps, the mean of the weights after them.

    ``segments`` is the number of segments of the whole run; steps after them are not averaged. The moments of the replicas
    ``anew`` are set to zero at step ``restart``; ``lr`` must then be that of :func:`_restarted`.
    """

    every: int = 1
    segments: int = 1
    anew: Tensor | None = None
    restart: int = 0

    def step(self, params: Params, grads: Params, state: dict):
        if self.restart and state["count"] == self.restart:
            for name in (f"{moment}.{k}" for moment in "mv" for k in grads):
                state[name][self.anew] = 0.0
        passed = super().step(params, grads, state)
        segment = (state["count"] - 1) // self.every
        if segment < self.segments:
            for k in grads:
                name = f"segment.{k}"
                if name not in state:
                    state[name] = params[k].new_zeros(len(params[k]), self.segments, *params[k].shape[1:])
                state[name][:, segment].add_(params[k], alpha=1 / self.every)
        return passed

    def averaged(self, run, windows: Sequence[tuple[int, int]]) -> Params:
        """Return the mean over the segments of each replica's window, ends included, after a run: ``(R, ...)``."""
        place = torch.arange(self.segments)
        inside = torch.stack([(place >= a) & (place <= b) for a, b in windows])
        weight = inside.double() / inside.sum(1, keepdim=True)
        means = {k.removeprefix("segment."): v for k, v in run.state.items() if k.startswith("segment.")}
        return {k: torch.einsum("rs,rs...->r...", weight.to(v), v) for k, v in means.items()}


def _restarted(rate: Callable[[int], float], anew: Tensor, restart: int) -> Callable[[int], float | Tensor]:
    """Return the step sizes with which Adam, its moments set to zero at step ``restart`` where ``anew``, starts from there.

    Adam divides its moments by ``1 - beta^count``; the factors undo this for the count of the whole run and do it for the count
    since the restart.
    """

    def lr(step: int) -> float | Tensor:
        if step < restart or not anew.any():
            return rate(step)
        first, second = ((1 - beta ** (step + 1)) / (1 - beta ** (step + 1 - restart)) for beta in Adam.betas)
        return rate(step) * torch.where(anew, first / second**0.5, 1.0).double()

    return lr


def _loss_valley(losses: Tensor) -> tuple[int, int]:
    """Return the first and last checkpoint of SWAD's average, from the validation losses ``(T,)`` at the ends of segments.

    The average begins at the first checkpoint that is the least of three in a row, itself first; their mean times 1.3 is the
    limit; the average ends before the first checkpoint from which on six in a row are above the limit. If no checkpoint begins
    it, the average is the last one. Source: Cha et al. 2021, section 3.3, with the defaults of their code; the code itself may
    begin up to two checkpoints earlier and counts some early checkpoints twice.
    """
    values = losses.tolist()
    starts = [i for i in range(len(values) - 2) if values[i] == min(values[i : i + 3])]
    first = last = starts[0] if starts else len(values) - 1
    limit = 1.3 * sum(values[first : first + 3]) / 3
    while last + 1 < len(values) and min(values[last + 1 : last + 7]) <= limit:
        last += 1
    return first, last


def _domain_batches(x: Tensor, y: Tensor, tables: Tensor, n: int, copies: int, generators: Sequence[torch.Generator]):
    """Return mini-batches of several domains, as the ``batches`` of :func:`mvnb.training.fit` with :class:`DomainObjective`.

    ``x`` ``(N, ...)`` and ``y`` ``(N,)`` are all points, ``tables`` ``(B, E, m)`` the indices of the training points of B
    runs in E domains, ``generators`` one per run, used by nothing else. Replica ``a * B + b`` of ``copies * B`` is method a of
    run b. All methods of a run meet the same batches: ``n`` points per domain with replacement, domains in a random circle
    (Mixup mixes each with the next), and Beta(0.2, 0.2) weights, as in DomainBed. Steps are requested in order.
    """
    _, n_domains, size = tables.shape

    def draw(steps: int, g: torch.Generator) -> tuple[Tensor, ...]:
        place = torch.randint(size, (steps, n_domains, n), generator=g)
        circle = torch.rand(steps, n_domains, generator=g).argsort(1)
        partner = torch.empty_like(circle).scatter_(1, circle, circle.roll(-1, 1))
        return place, partner, sample_mixing(0.2, (steps, n_domains), g, x.dtype)

    fresh = Fresh(draw, 1, generators, 25, x.device)

    def batch(step: int) -> tuple[Tensor, ...]:
        place, partner, lam = (v[:, 0] for v in fresh(step))  # (B, E, n), (B, E), (B, E)
        rows = tables.gather(2, place)
        parts = (pick(x, rows), pick(y, rows), partner, lam)
        return *(v.repeat(copies, *[1] * (v.dim() - 1)) for v in parts), torch.tensor(step)

    return batch


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

    ``domain`` ``(N,)`` where the images come from domains of their own; without it they are framed and spread over four. The
    network has 3x3 convolutions of stride 2 with the ``channels``, each with group normalisation and ReLU, then ReLU layers of
    ``hidden`` and ``features`` units and a linear head. ``batch`` points per domain and step; Adam with ``step_size``, constant
    or falling to 0 as a cosine. Accuracies are over ``judged`` points (0: as many as there are). Raises ``ValueError`` for
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
    channels: Sequence[int] = ()
    falling: bool = False
    judged: int = 0

    def __post_init__(self):
        if self.steps < 5:
            raise ValueError(f"steps must be at least the 5 checkpoints, got {self.steps}")

    def network(self, inputs: int, n_classes: int) -> DomainNet:
        """Return a network for flattened square images of ``inputs`` numbers."""
        shape = (self.images.shape[1], *[math.isqrt(inputs // self.images.shape[1])] * 2)
        layers: list[nn.Module] = [nn.Unflatten(-1, shape)]
        for a, b in pairwise((shape[0], *self.channels)):
            layers += [nn.Conv2d(a, b, 3, stride=2, padding=1), nn.GroupNorm(4, b), nn.ReLU()]
        layers = [*layers, nn.Flatten(-3)] if self.channels else []
        width = nn.Sequential(*layers)(torch.zeros(1, inputs)).shape[-1]
        return DomainNet(nn.Sequential(*layers, *MLP((width, self.hidden, self.features)), nn.ReLU()), self.features, n_classes)

    def domains(self, world: FramedDomains, seeds: Sequence[int], device="cpu") -> Domains:
        """Return the points of several seeds as one table, with a row of indices for each seed and domain left out."""
        inputs, splits, n, n_classes = [], [], len(self.labels), int(self.labels.max()) + 1
        for seed in seeds:
            g, x, domain = torch.Generator().manual_seed(seed), self.images, self.domain
            if domain is None:
                domain = torch.randint(N_DOMAINS, (n,), generator=g)
                x = world.frame(x, self.labels, domain, n_classes, g)
            inputs.append(x.flatten(1))
            splits.append(split_domains(domain, g))
        tables = []
        for parts in zip(*splits):
            least = min(part.shape[-1] for part in parts)
            tables.append(torch.cat([part[..., :least] + i * n for i, part in enumerate(parts)]))
        return to_device(Domains(torch.cat(inputs), self.labels.repeat(len(inputs)), *tables), device)

    def _stack(self, settings: Sequence[dict[str, float]], points: Domains, seeds: Sequence[int]):
        """Return a network, and the objective, the parameters and the batches of all settings on all runs."""
        (runs, n_domains, _), copies, streams, nets = points.train.shape, len(settings), [], []
        for seed in seeds:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(seed)
                nets += [self.network(points.x.shape[1], int(points.y.max()) + 1)] * (runs // len(seeds))
            streams += generators(1000 * seed + 7, runs // len(seeds))
        params = {k: v.repeat(copies, *[1] * (v.dim() - 1)).to(points.x.device) for k, v in stack(nets).items()}
        params["q"] = points.x.new_full((copies * runs, n_domains), 1 / n_domains)
        objective = DomainObjective(nets[0], [one for one in settings for _ in nets], self.steps // 10, points.x.device)
        return nets[0], objective, params, _domain_batches(points.x, points.y, points.train, self.batch, copies, streams)

    def run(self, settings: Sequence[dict[str, float]], world: FramedDomains, seeds: Sequence[int], device="cpu") -> LeftOut:
        """Train every setting (of :class:`DomainObjective`) on all seeds and domains left out, as one stack with Adam.

        Settings share the start and the batches. The nuclear norm, IRM and VREx set in after a tenth of the steps, and Adam
        starts anew then for IRM and VREx, as in DomainBed. Returns ``(settings, seeds * domains)`` each.
        """
        points, checkpoints = self.domains(world, seeds, device), 15 if self.steps >= 60 else 5
        net, objective, params, batches = self._stack(settings, points, seeds)
        copies, every, restart = len(settings), self.steps // checkpoints, objective.warmup
        anew = torch.tensor([not one.keys().isdisjoint(("irm", "vrex")) for one in settings], device=points.x.device)
        anew = anew.repeat_interleave(len(points.train))
        rate = (lambda step: self.step_size * cosine(step, self.steps)) if self.falling else lambda _: self.step_size
        optimizer = _DomainAdam(_restarted(rate, anew, restart), every=every, segments=checkpoints, anew=anew, restart=restart)
        valid = points.valid.unflatten(1, (points.train.shape[1], -1))
        tables = points.train[..., : valid.shape[-1]], valid, points.test[:, None]  # (run, domain, point)
        rows = (v[..., : self.judged // v.shape[1] or None].flatten(1) for v in tables)
        train, valid, test = ((points.x[i].repeat(copies, 1, 1), points.y[i].repeat(copies, 1)) for i in rows)

        def of_part(name: str, p: Params, x: Tensor) -> Tensor:
            own = {k.removeprefix(f"{name}."): v for k, v in p.items() if k.startswith(f"{name}.")}
            return predict(getattr(net, name), own, x)

        def judged(p: Params, x: Tensor, y: Tensor) -> Tensor:
            logits = of_part("head", p, of_part("body", p, x))
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
        mean = optimizer.averaged(run, [_loss_valley(one) for one in risk.T])
        measured = (
            there.gather(0, seen.argmax(0)[None])[0],
            there[-1],
            judged(mean, *test)[:, 0],
            seen[-1],
            run.log["train"][-1, :, 0],
            run.log["train"][-1, :, 1],
            run.log["train"][4 * checkpoints // 5 - 1, :, 1],
            run.params["head.weight"].flatten(1).norm(dim=1),
            of_part("body", run.params, test[0]),
        )
        return LeftOut(*(v.cpu().double().unflatten(0, (copies, -1)) for v in measured))

    def first_losses(self, settings, world: FramedDomains, seeds: Sequence[int], device="cpu") -> Tensor:
        """Return the losses of the first 50 steps of :meth:`run`, ``(50, settings * seeds * domains)``."""
        _, objective, params, batches = self._stack(settings, self.domains(world, seeds, device), seeds)
        return fit(objective, params, batches, steps=50, optimizer=Adam(self.step_size), log_at=range(50)).log["loss"]


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


def stable_rank(matrix: Tensor) -> Tensor:
    """Return squared Frobenius over squared spectral norm of matrices ``(..., n, k)``, from 1 to the rank; 0 for zeros.

    Differentiable. Shi thesis 2024, section 6.3.3, prints it without the square below, which depends on the scale.
    """
    squares = torch.linalg.svdvals(matrix.double()).square()
    return squares.sum(-1) / squares[..., 0].clamp(min=torch.finfo(torch.float64).tiny)
