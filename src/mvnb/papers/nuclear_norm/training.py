"""Learning from several domains at once: objectives of domain generalisation, and weights averaged along the way.

Definitions follow DomainBed (Gulrajani and Lopez-Paz 2021), the nuclear norm Shi thesis 2024, chapter 6, and the averages Cha
et al. 2021 (SWAD). All runs of a comparison are one stack: a replica's numbers in :class:`Penalties` say which algorithm it
runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from mvnb.gradients import returns_gradients
from mvnb.losses import nuclear_norm, sample_mixing
from mvnb.training.stacking import Params, pick


@dataclass(frozen=True)
class Penalties:
    """What each replica adds to the mean risk of its domains: numbers of shape ``(R,)``, 0 for nothing.

    ``nuclear``: times the nuclear norm of the features of the batch, over its number of rows. ``coral``: times the mean
    squared difference of the features' means and covariances over pairs of domains. ``irm``: times the mean of the squared
    slopes of the domains' risks in a common scale of the logits, estimated by the product of two halves of a batch. ``vrex``:
    times the variance of the risks. ``dro``: rate at which GroupDRO shifts weight to domains of higher risk (it replaces the
    mean). ``mixup``: 1 to mix pairs of domains. ``decay``: half of it times the squared length of all parameters.
    """

    nuclear: Tensor
    coral: Tensor
    irm: Tensor
    vrex: Tensor
    dro: Tensor
    mixup: Tensor
    decay: Tensor

    @classmethod
    def of(cls, settings: Sequence[dict[str, float]], device="cpu", dtype=torch.float32) -> Penalties:
        """From one dictionary a replica, such as ``{"mixup": 1, "nuclear": 0.3}``. ``ValueError`` for unknown names."""
        names = [one.name for one in fields(cls)]
        unknown = sorted({k for one in settings for k in one} - set(names))
        if unknown:
            raise ValueError(f"unknown penalties {', '.join(unknown)}; there are {', '.join(names)}")
        return cls(*(torch.tensor([float(one.get(k, 0)) for one in settings], dtype=dtype, device=device) for k in names))


class DomainObjective:
    """Risk of a stack of :class:`mvnb.models.MLP` over several domains plus penalties, and its gradient.

    An objective for :func:`mvnb.training.fit`. ``params`` as of ``stack_modules``, with ``q`` ``(R, E)`` beside them where a
    replica runs GroupDRO (equal weights at the start; updated in place). A batch is ``x`` ``(R, E, n, inputs)``, ``y`` ``(R,
    E, n)``, ``partner`` ``(R, E)``, the domain with which each is mixed, ``lam`` ``(R, E)``, and the step, a tensor without
    axes. The features are the activations before the last layer. ``nuclear`` acts from step ``warmup`` on; ``irm`` and
    ``vrex`` have weight 1 (if any) before step ``anneal``, as in DomainBed.
    """

    def __init__(self, penalties: Penalties, warmup: int = 0, anneal: int = 0):
        self.penalties, self.warmup, self.anneal = penalties, warmup, anneal
        self._rows = {one.name: getattr(penalties, one.name).nonzero()[:, 0] for one in fields(Penalties)}

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
        loss = self._risk(params, logits, target, int(step))
        loss = self._on_features(loss, z.unflatten(1, y.shape[1:]), int(step))
        rows = self._rows["decay"]
        if len(rows):
            squares = sum(v[rows].flatten(1).square().sum(1) for v in leaves.values())
            loss = loss.index_add(0, rows, self.penalties.decay[rows] / 2 * squares)
        return loss.detach(), dict(zip(leaves, torch.autograd.grad(loss.sum(), list(leaves.values()))))

    def _mix(self, x: Tensor, target: Tensor, partner: Tensor, lam: Tensor) -> tuple[Tensor, Tensor]:
        rows = self._rows["mixup"]
        if not len(rows):
            return x, target
        row, weight = torch.arange(len(rows), device=x.device)[:, None], lam[rows][..., None, None]

        def mixed(v: Tensor) -> Tensor:
            own = v[rows]
            return v.index_copy(0, rows, torch.lerp(own[row, partner[rows]], own, weight))

        return mixed(x), mixed(target)

    def _risk(self, params: Params, logits: Tensor, target: Tensor, step: int) -> Tensor:
        """Losses ``(R,)`` of all that depends on the logits alone."""
        log_prob = logits.log_softmax(-1)
        risk = -(target * log_prob).sum(-1).mean(-1)  # (R, E)
        loss, rows = risk.mean(1), self._rows["dro"]
        if len(rows):
            q = params["q"][rows] * (self.penalties.dro[rows, None] * risk[rows].detach()).exp()
            q = q / q.sum(1, keepdim=True)
            params["q"][rows] = q
            loss = loss.index_copy(0, rows, (q * risk[rows]).sum(1))
        rows = self._rows["vrex"]
        if len(rows):
            loss = loss.index_add(0, rows, self._annealed("vrex", step) * risk[rows].var(1, correction=0))
        rows = self._rows["irm"]
        if len(rows):  # d/ds CE(s logits) at s = 1 is the mean of sum_k (p_k - t_k) logit_k
            point = ((log_prob[rows].exp() - target[rows]) * logits[rows]).sum(-1)  # (R, E, n)
            halves = point[..., 0::2].mean(-1) * point[..., 1::2].mean(-1)
            loss = loss.index_add(0, rows, self._annealed("irm", step) * halves.mean(1))
        return loss

    def _annealed(self, name: str, step: int) -> Tensor:
        factor = getattr(self.penalties, name)[self._rows[name]]
        return factor if step >= self.anneal else torch.ones_like(factor)

    def _on_features(self, loss: Tensor, features: Tensor, step: int) -> Tensor:
        """The losses with the penalties of the features ``(R, E, n, k)``."""
        rows = self._rows["nuclear"]
        if len(rows) and step >= self.warmup:
            norm = nuclear_norm(features[rows].flatten(1, 2))[0]
            loss = loss.index_add(0, rows, self.penalties.nuclear[rows] * norm / features[0, ..., 0].numel())
        rows = self._rows["coral"]
        return loss.index_add(0, rows, self.penalties.coral[rows] * _coral(features[rows])) if len(rows) else loss


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

    ``means(run)`` returns them, ``(R, segments, ...)`` by name. ``segments`` is the number of segments of the whole run;
    steps after them are not averaged. A mean over segments is the mean over all their steps.
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

    def means(self, run) -> Params:
        """The means of a finished :class:`mvnb.training.Run`."""
        return {k.removeprefix("segment."): v for k, v in run.state.items() if k.startswith("segment.")}


def loss_valley(losses: Tensor, converge: int = 3, tolerance: int = 6, ratio: float = 0.3) -> tuple[int, int]:
    """First and last checkpoint of SWAD's average, from the validation losses ``(T,)`` at the ends of the segments.

    It begins at the first checkpoint that is the least of ``converge`` in a row, itself first; their mean times ``1 + ratio``
    is the limit; it ends before the first checkpoint from which on ``tolerance`` in a row are above the limit. Only the last
    checkpoint where none begins it. Source: Cha et al. 2021, with the defaults of their code.
    """
    values = losses.tolist()
    starts = [i for i in range(len(values) - converge + 1) if values[i] == min(values[i : i + converge])]
    if not starts:
        return len(values) - 1, len(values) - 1
    first = starts[0]
    limit = (1 + ratio) * sum(values[first : first + converge]) / converge
    last = first
    while last + 1 < len(values) and min(values[last + 1 : last + 1 + tolerance]) <= limit:
        last += 1
    return first, last


def averaged(means: Params, windows: Sequence[tuple[int, int]]) -> Params:
    """Mean over the segments of each replica's window, ends included: parameters ``(R, ...)``."""
    segments = next(iter(means.values())).shape[1]
    place = torch.arange(segments)
    inside = torch.stack([(place >= a) & (place <= b) for a, b in windows])
    weight = inside.double() / inside.sum(1, keepdim=True)
    return {k: torch.einsum("rs,rs...->r...", weight.to(v), v) for k, v in means.items()}


class DomainBatches:
    """Mini-batches of several domains, as the ``batches`` of :func:`mvnb.training.fit` with :class:`DomainObjective`.

    ``x`` ``(N, ...)`` and ``y`` ``(N,)`` are all points, ``tables`` ``(B, E, m)`` the indices of the training points of B
    runs in E domains, ``generators`` one a run, used by nobody else. ``copies`` runs with the same points, one an algorithm,
    stand one after the other: replica ``a * B + b`` is algorithm a of run b, and all of them meet the same batches: ``n``
    points a domain with replacement, domains in a random circle (whom Mixup mixes with whom), and Beta(0.2, 0.2) weights, as
    in DomainBed. Steps are asked for in order.
    """

    def __init__(self, x: Tensor, y: Tensor, tables: Tensor, n: int, copies: int, generators: Sequence[torch.Generator]):
        self._x, self._y, self._tables, self._n, self._copies = x, y, tables, n, copies
        self._generators, self._drawn, self._block = generators, {}, 25

    def _draw(self) -> tuple[Tensor, ...]:
        size, n_domains = self._tables.shape[2], self._tables.shape[1]
        parts = []
        for g in self._generators:
            place = torch.randint(size, (self._block, n_domains, self._n), generator=g)
            circle = torch.rand(self._block, n_domains, generator=g).argsort(1)
            partner = torch.empty_like(circle).scatter_(1, circle, circle.roll(-1, 1))
            parts.append((place, partner, sample_mixing(0.2, (self._block, n_domains), g, self._x.dtype)))
        return tuple(torch.stack(v, 1).to(self._x.device) for v in zip(*parts))  # (step, run, ...)

    def __call__(self, step: int) -> tuple[Tensor, ...]:
        block, turn = divmod(step, self._block)
        while self._drawn.get("block", -1) < block:
            self._drawn = {"block": self._drawn.get("block", -1) + 1, "parts": self._draw()}
        place, partner, lam = (v[turn] for v in self._drawn["parts"])
        rows = self._tables.gather(2, place)  # (B, E, n)
        batch = (pick(self._x, rows), pick(self._y, rows), partner, lam)
        return *(v.repeat(self._copies, *[1] * (v.dim() - 1)) for v in batch), torch.tensor(step)


def stable_rank(matrix: Tensor) -> Tensor:
    """Return squared Frobenius over squared spectral norm of matrices ``(..., n, k)``, from 1 to the rank; 0 for zeros.

    Differentiable. Shi thesis 2024, section 6.3.3, prints it without the square below, which depends on the scale.
    """
    squares = torch.linalg.svdvals(matrix.double()).square()
    return squares.sum(-1) / squares[..., 0].clamp(min=torch.finfo(torch.float64).tiny)
