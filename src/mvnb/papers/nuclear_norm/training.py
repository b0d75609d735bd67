"""Learning from several domains at once: objectives of domain generalisation, and weights averaged along the way.

Definitions follow DomainBed (Gulrajani and Lopez-Paz 2021), the nuclear norm Shi thesis 2024, chapter 6, and the averages Cha
et al. 2021 (SWAD). All runs of a comparison are one stack: a replica's penalties say which algorithm it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mvnb.gradients import returns_gradients
from mvnb.losses import nuclear_norm, sample_mixing
from mvnb.training.stacking import Fresh, Params, pick

PENALTIES = ("nuclear", "coral", "irm", "vrex", "dro", "mixup", "decay")


class DomainObjective:
    """Risk of a stack of :class:`mvnb.models.MLP` over several domains plus penalties, and its gradient.

    An objective for :func:`mvnb.training.fit`. ``settings`` has one dictionary a replica, such as ``{"mixup": 1, "nuclear":
    0.3}``: what it adds to the mean risk of its domains. ``nuclear``: times the nuclear norm of the features of the batch, over
    its number of rows, from step ``warmup`` on. ``coral``: times the mean squared difference of the features' means and
    covariances over pairs of domains. ``irm``: times the mean of the squared slopes of the domains' risks in a common scale of
    the logits, estimated by the product of two halves of a batch. ``vrex``: times the variance of the risks. Before step
    ``warmup`` the weights of both are 1 (if any), as in DomainBed. ``dro``: rate at which GroupDRO shifts weight to domains of
    higher risk (it replaces the mean). ``mixup``: 1 to mix pairs of domains. ``decay``: half of it times the squared length of
    all parameters. ``ValueError`` for other names.

    ``params`` as of ``stack_modules``, with ``q`` ``(R, E)`` beside them where a replica runs GroupDRO (equal weights at the
    start; updated in place). A batch is ``x`` ``(R, E, n, inputs)``, ``y`` ``(R, E, n)``, ``partner`` ``(R, E)``, the domain
    with which each is mixed, ``lam`` ``(R, E)``, and the step, a tensor without axes. The features are the activations before
    the last layer.
    """

    def __init__(self, settings: Sequence[dict[str, float]], warmup: int = 0, device="cpu", dtype=torch.float32):
        unknown = sorted({k for one in settings for k in one} - set(PENALTIES))
        if unknown:
            raise ValueError(f"unknown penalties {', '.join(unknown)}; there are {', '.join(PENALTIES)}")
        weights = {k: torch.tensor([float(one.get(k, 0)) for one in settings], dtype=dtype, device=device) for k in PENALTIES}
        self.warmup, self._rows = warmup, {k: v.nonzero()[:, 0] for k, v in weights.items()}
        self._weights = {k: v[self._rows[k]] for k, v in weights.items()}

    @returns_gradients
    def __call__(
        self, params: Params, x: Tensor, y: Tensor, partner: Tensor, lam: Tensor, step: Tensor
    ) -> tuple[Tensor, Params]:
        leaves = {k: v.detach().requires_grad_() for k, v in params.items() if k != "q"}
        names = [k.removesuffix(".weight") for k in leaves if k.endswith(".weight")]
        target = one_hot(y, leaves[f"{names[-1]}.bias"].shape[-1]).to(x.dtype)
        x, target = self._mix(x, target, partner, lam)

        def layer(name: str, z: Tensor) -> Tensor:
            return torch.baddbmm(leaves[f"{name}.bias"][:, None], z, leaves[f"{name}.weight"].mT)

        z = x.flatten(1, 2)
        for name in names[:-1]:
            z = layer(name, z).relu()
        logits = layer(names[-1], z).unflatten(1, y.shape[1:])  # (R, E, n, classes)
        features, log_prob = z.unflatten(1, y.shape[1:]), logits.log_softmax(-1)
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
            "nuclear": lambda rows, weight: weight * nuclear_norm(features[rows].flatten(1, 2))[0] / y[0].numel(),
            "coral": lambda rows, weight: weight * _coral(features[rows]),
            "decay": lambda rows, weight: weight / 2 * sum(v[rows].flatten(1).square().sum(1) for v in leaves.values()),
        }
        for name, penalty in penalties.items():
            rows, weight, early = self._rows[name], self._weights[name], int(step) < self.warmup
            if len(rows) and not (early and name == "nuclear"):
                annealed = torch.ones_like(weight) if early and name in ("irm", "vrex") else weight
                loss = loss.index_add(0, rows, penalty(rows, annealed))
        return loss.detach(), dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values()))))

    def _mix(self, x: Tensor, target: Tensor, partner: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows["mixup"]
        row, weight = torch.arange(len(rows), device=x.device)[:, None], lam[rows][..., None, None]

        def mixed(v: Tensor) -> Tensor:
            own = v[rows]
            return v.index_copy(0, rows, torch.lerp(own[row, partner[rows]], own, weight))

        return (mixed(x), mixed(target)) if len(rows) else (x, target)


def _coral(features: Tensor) -> Tensor:
    """CORAL's penalty ``(R,)`` of features ``(R, E, n, k)``. Source: Sun and Saenko 2016, as in DomainBed."""
    mean = features.mean(2)
    centred = features - mean[:, :, None]
    cov = centred.mT @ centred / (features.shape[2] - 1)  # (R, E, k, k)
    i, j = torch.triu_indices(features.shape[1], features.shape[1], 1, device=features.device)
    return ((mean[:, i] - mean[:, j]).square().mean(-1) + (cov[:, i] - cov[:, j]).square().mean((-2, -1))).mean(1)


@dataclass(frozen=True)
class SegmentMeans:
    """An optimizer that also keeps, for each segment of ``every`` steps, the mean of the weights after them.

    ``segments`` is the number of segments of the whole run; steps after them are not averaged.
    """

    optimizer: object
    every: int
    segments: int

    def start(self, params: Params) -> dict:
        return self.optimizer.start(params)

    def step(self, params: Params, grads: Params, state: dict):
        passed = self.optimizer.step(params, grads, state)
        segment = (state["count"] - 1) // self.every
        if segment < self.segments:
            for k in grads:
                name = f"segment.{k}"
                if name not in state:
                    state[name] = params[k].new_zeros(len(params[k]), self.segments, *params[k].shape[1:])
                state[name][:, segment].add_(params[k], alpha=1 / self.every)
        return passed

    def averaged(self, run, windows: Sequence[tuple[int, int]]) -> Params:
        """Return the mean over the segments of each replica's window, ends included, of a finished run: ``(R, ...)``."""
        place = torch.arange(self.segments)
        inside = torch.stack([(place >= a) & (place <= b) for a, b in windows])
        weight = inside.double() / inside.sum(1, keepdim=True)
        means = {k.removeprefix("segment."): v for k, v in run.state.items() if k.startswith("segment.")}
        return {k: torch.einsum("rs,rs...->r...", weight.to(v), v) for k, v in means.items()}


def loss_valley(losses: Tensor) -> tuple[int, int]:
    """Return the first and last checkpoint of SWAD's average, from the validation losses ``(T,)`` at the ends of the segments.

    It begins at the first checkpoint that is the least of three in a row, itself first; their mean times 1.3 is the limit; it
    ends before the first checkpoint from which on six in a row are above the limit. Only the last checkpoint where none begins
    it. Source: Cha et al. 2021, with the defaults of their code.
    """
    values = losses.tolist()
    starts = [i for i in range(len(values) - 2) if values[i] == min(values[i : i + 3])]
    first = last = starts[0] if starts else len(values) - 1
    limit = 1.3 * sum(values[first : first + 3]) / 3
    while last + 1 < len(values) and min(values[last + 1 : last + 7]) <= limit:
        last += 1
    return first, last


def domain_batches(x: Tensor, y: Tensor, tables: Tensor, n: int, copies: int, generators: Sequence[torch.Generator]):
    """Return mini-batches of several domains, as the ``batches`` of :func:`mvnb.training.fit` with :class:`DomainObjective`.

    ``x`` ``(N, ...)`` and ``y`` ``(N,)`` are all points, ``tables`` ``(B, E, m)`` the indices of the training points of B
    runs in E domains, ``generators`` one a run, used by nothing else. ``copies`` runs with the same points, one an algorithm,
    stand one after the other: replica ``a * B + b`` is algorithm a of run b, and all of them meet the same batches: ``n``
    points a domain with replacement, domains in a random circle (whom Mixup mixes with whom), and Beta(0.2, 0.2) weights, as
    in DomainBed. Steps are asked for in order.
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


def stable_rank(matrix: Tensor) -> Tensor:
    """Return squared Frobenius over squared spectral norm of matrices ``(..., n, k)``, from 1 to the rank; 0 for zeros.

    Differentiable. Shi thesis 2024, section 6.3.3, prints it without the square below, which depends on the scale.
    """
    squares = torch.linalg.svdvals(matrix.double()).square()
    return squares.sum(-1) / squares[..., 0].clamp(min=torch.finfo(torch.float64).tiny)
