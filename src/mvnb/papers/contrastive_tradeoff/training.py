"""SimCLR, MoCo v2, SimSiam and NNCLR as objectives for a stack of networks.

The losses take embeddings with any leading axes. The slow copy of the network and the queue of earlier embeddings are entries
of the parameters without a gradient, which change when the objective is called.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from mvnb.gradients import returns_gradients
from mvnb.training.stacking import Params, one_by_one, stack

METHODS = ("simclr", "moco", "simsiam", "nnclr")
_KEY, _QUEUE = "key.", "queue"


# --- Losses ---


def nt_xent(first: Tensor, second: Tensor, temperature: float) -> Tensor:
    """Return NT-Xent, the loss of SimCLR: ``(..., n, D)`` twice to ``(...)``.

    Each of the 2n embeddings, of length 1, is compared with its partner among all others. Equal embeddings give
    ``log(2n - 1)``. Source: Chen et al. 2020.
    """
    z = torch.cat([first, second], -2) / math.sqrt(temperature)
    itself = torch.eye(z.shape[-2], dtype=torch.bool, device=z.device)
    total = (z @ z.mT).masked_fill(itself, -torch.inf).logsumexp(-1)
    return total.mean(-1) - (first * second).sum(-1).mean(-1) / temperature


def _info_nce(query: Tensor, key: Tensor, negatives: Tensor, temperature: float) -> Tensor:
    """Return InfoNCE, the loss of MoCo, of ``query`` and ``key`` ``(..., n, D)`` and ``negatives`` ``(..., K, D)``.

    Each query, of length 1, is compared with its key among its key and the negatives. Equal similarities give ``log(1 + K)``.
    Source: He et al. 2020.
    """
    own = (query * key).sum(-1, keepdim=True)
    logits = torch.cat([own, query @ negatives.mT], -1) / temperature
    return (logits.logsumexp(-1) - logits[..., 0]).mean(-1)


def _nearest(query: Tensor, support: Tensor) -> Tensor:
    """Return for each query ``(..., n, D)`` the most similar element of ``support`` ``(..., K, D)``."""
    place = (query @ support.mT).argmax(-1, keepdim=True)
    return support.gather(-2, place.expand(*place.shape[:-1], support.shape[-1]))


# --- Networks and objectives ---


class ContrastiveNet(nn.Module):
    """An encoder with a projector and a predictor; maps inputs to embeddings and predictions ``(z, p)``.

    ``encoder`` maps ``(n, ...)`` to features ``(n, features)``. ``project`` has the widths of the projector's layers after the
    features, ``predict`` those of the predictor's layers after the projection; an empty one is the identity. Hidden layers have
    batch normalisation, always over the current batch, and a ReLU.
    """

    def __init__(self, encoder: nn.Module, features: int, project: Sequence[int] = (), predict: Sequence[int] = ()):
        super().__init__()
        widths = [features, *project]
        self.encoder, self.width = encoder, widths[-1]
        self.projector, self.predictor = _head(widths), _head([self.width, *predict])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        z = self.projector(self.encoder(x))
        return z, self.predictor(z)


def _head(widths: list[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for i, (a, b) in enumerate(pairwise(widths)):
        hidden = i < len(widths) - 2
        layers.append(nn.Linear(a, b, bias=not hidden))
        if hidden:
            layers += [nn.BatchNorm1d(b, track_running_stats=False), nn.ReLU()]
    return nn.Sequential(*layers)


class ContrastiveObjective:
    """The loss of a contrastive method and its gradient, for a stack of :class:`ContrastiveNet`.

    An objective for :func:`mvnb.training.fit`: batches are two views ``(R, n, ...)`` of the same images; the start comes from
    :meth:`start`. SimSiam ignores ``temperature``; ``momentum`` is that of MoCo's slow copy; ``queue`` is the number of earlier
    embeddings that MoCo uses as negatives and in which NNCLR looks for neighbours. Raises ``ValueError`` unless the temperature
    is positive, the momentum lies in [0, 1) and the queue has an element.

    As in the code that Shi et al. published, views are embedded one after the other, NNCLR compares neighbours with predictions
    by :func:`nt_xent`, MoCo adds the losses of both directions, and the others average them.
    """

    def __init__(self, net: ContrastiveNet, method: str, temperature: float = 0.5, momentum: float = 0.99, queue: int = 1024):
        if method not in METHODS:
            raise ValueError(f"method must be one of {', '.join(METHODS)}, got {method!r}")
        if temperature <= 0 or not 0 <= momentum < 1 or queue < 1:
            raise ValueError("temperature must be positive, momentum in [0, 1) and queue at least 1")
        self.net, self.method, self.temperature, self.momentum, self.queue = net, method, temperature, momentum, queue
        self.names = [k for k, _ in net.named_parameters()]

    def start(self, nets: Sequence[ContrastiveNet], generators: Sequence[torch.Generator]) -> Params:
        """Return the parameters of a stack of ``nets``, with the method's slow copy or its queue of random directions."""
        params = stack(nets)
        if self.method == "moco":
            params |= {_KEY + k: v.clone() for k, v in params.items()}
        if self.method in ("moco", "nnclr"):
            drawn = [torch.randn(self.queue, self.net.width, generator=g) for g in generators]
            params[_QUEUE] = F.normalize(torch.stack(drawn), dim=-1)
        return params

    @returns_gradients(first="R n ...", second="R n ...")
    def __call__(self, params: Params, first: Tensor, second: Tensor) -> tuple[Tensor, Params]:
        leaves = {k: params[k].detach().requires_grad_() for k in self.names}
        losses = self.losses(params | leaves, first, second)
        return losses.detach(), dict(zip(self.names, torch.autograd.grad(losses.sum(), list(leaves.values()))))

    def losses(self, params: Params, first: Tensor, second: Tensor) -> Tensor:
        """Return the losses ``(R,)`` and update the slow copy and the queue."""
        (z1, p1), (z2, p2) = (self._embed(params, view) for view in (first, second))
        if self.method == "simclr":
            return nt_xent(z1, z2, self.temperature)
        if self.method == "simsiam":
            return -((p1 * z2.detach()).sum(-1) + (p2 * z1.detach()).sum(-1)).mean(-1) / 2
        if self.method == "nnclr":
            near1, near2 = (_nearest(v.detach(), params[_QUEUE]) for v in (z1, z2))
            self._enqueue(params, z2.detach())
            return (nt_xent(near1, p2, self.temperature) + nt_xent(near2, p1, self.temperature)) / 2
        with torch.no_grad():
            slow = {k: params[_KEY + k] for k in self.net.state_dict()}
            for k in self.names:
                slow[k].lerp_(params[k], 1 - self.momentum)
            k1, k2 = (self._embed(slow, view)[0] for view in (first, second))
            negatives = params[_QUEUE].clone()
            self._enqueue(params, torch.cat([k1, k2], 1))
        return _info_nce(z1, k2, negatives, self.temperature) + _info_nce(z2, k1, negatives, self.temperature)

    def _embed(self, params: Params, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return embeddings and predictions ``(R, n, D)`` of ``x`` ``(R, n, ...)``, of length 1."""
        return tuple(F.normalize(v, dim=-1) for v in _apply_stack(self.net, params, x))

    def _enqueue(self, params: Params, new: Tensor) -> None:
        """Put new embeddings in front and drop the oldest."""
        queue = params[_QUEUE]
        queue.copy_(torch.cat([new, queue], 1)[:, : queue.shape[1]])


def _apply_stack(module: nn.Module, params: Params, x: Tensor):
    """Return the outputs of a stack of ``module`` in training mode on ``x`` ``(R, n, ...)``; buffers change in place.

    Computed at once or replica by replica, see :func:`mvnb.training.stacking.one_by_one`. ``params`` may have other entries.
    """
    own = {k: params[k] for k in module.state_dict()}
    if not one_by_one(module, x.device):
        return vmap(lambda p, one: functional_call(module, p, (one,)))(own, x)
    rows = [functional_call(module, {k: v[r] for k, v in own.items()}, (x[r],)) for r in range(len(x))]
    return torch.stack(rows) if torch.is_tensor(rows[0]) else tuple(torch.stack(parts) for parts in zip(*rows))


class RegularisedObjective:
    """Cross-entropy of a linear head on the encoder's features, plus ``weight`` times a contrastive loss: eq. (7.9).

    A batch has two views ``(R, n, ...)`` and labels ``(R, n)`` of the first one. The head is ``head.weight``
    ``(R, classes, features)`` and ``head.bias`` ``(R, classes)`` among the parameters. ``weight=0`` is plain fine-tuning, with
    gradients of the encoder and the head only. Source: Shi thesis 2024, eq. (7.9).
    """

    def __init__(self, contrastive: ContrastiveObjective, weight: float):
        if weight < 0:
            raise ValueError(f"weight must not be negative, got {weight}")
        self.contrastive, self.weight = contrastive, weight
        encoder = [k for k in contrastive.names if k.startswith("encoder.")]
        self.names = [*(contrastive.names if weight else encoder), "head.weight", "head.bias"]

    @returns_gradients(first="R n ...", second="R n ...", y="int R n")
    def __call__(self, params: Params, first: Tensor, second: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        leaves = {k: params[k].detach().requires_grad_() for k in self.names}
        live = params | leaves
        encoder = {k.removeprefix("encoder."): v for k, v in live.items() if k.startswith("encoder.")}
        features = _apply_stack(self.contrastive.net.encoder, encoder, first)
        logits = torch.baddbmm(live["head.bias"][:, None], features, live["head.weight"].mT)
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)
        if self.weight:
            losses = losses + self.weight * self.contrastive.losses(live, first, second)
        return losses.detach(), dict(zip(self.names, torch.autograd.grad(losses.sum(), list(leaves.values()))))


def linear_cka(first: Tensor, second: Tensor) -> Tensor:
    """Return linear centred kernel alignment of features of the same points, ``(..., n, p)``, ``(..., n, q)`` to ``(...)``.

    ``||Y^T X||^2 / (||X^T X|| ||Y^T Y||)`` of centred features, in [0, 1]; rotations and scale do not change it.
    Differentiable. Source: Kornblith et al. 2019.
    """
    x, y = (v.double() - v.double().mean(-2, keepdim=True) for v in (first, second))
    cross, own, other = (torch.linalg.matrix_norm(a) for a in (y.mT @ x, x.mT @ x, y.mT @ y))
    return cross.square() / (own * other)
