"""Training of chapter 13: objectives, and the arms, which say what is trained on what, from which start.

SimCLR, MoCo v2, SimSiam and NNCLR are objectives for a stack of networks. The losses take embeddings with any leading axes. The
slow copy of the network and the queue of earlier embeddings are entries of the parameters without a gradient, which change when
the objective is called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim.swa_utils import update_bn

from mvnb.gradients import Params, returns_gradients, with_gradients
from mvnb.models import MLP
from mvnb.papers.contrastive_tradeoff import data, model, theory
from mvnb.papers.contrastive_tradeoff.model import ContrastiveNet, Networks
from mvnb.training import SGD, Adam, AdamW, Fresh, Run, cosine, fit, generators, stack, to_device
from mvnb.training.stacking import apply_stack

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


# --- Objectives ---


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
        if method not in model.HEADS:
            raise ValueError(f"method must be one of {', '.join(model.HEADS)}, got {method!r}")
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
        return with_gradients(self.losses, self.names)(params, first, second)

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
        return tuple(F.normalize(v, dim=-1) for v in apply_stack(self.net, params, x))

    def _enqueue(self, params: Params, new: Tensor) -> None:
        """Put new embeddings in front and drop the oldest."""
        queue = params[_QUEUE]
        queue.copy_(torch.cat([new, queue], 1)[:, : queue.shape[1]])


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
        return with_gradients(self.losses, self.names)(params, first, second, y)

    def losses(self, params: Params, first: Tensor, second: Tensor, y: Tensor) -> Tensor:
        """Return the losses ``(R,)``, and let the contrastive loss update its slow copy and queue."""
        encoder = {k.removeprefix("encoder."): v for k, v in params.items() if k.startswith("encoder.")}
        logits = model.head_logits(params, apply_stack(self.contrastive.net.encoder, encoder, first))
        losses = F.cross_entropy(logits.flatten(0, 1), y.flatten(), reduction="none").view(y.shape).mean(1)
        if self.weight:
            losses = losses + self.weight * self.contrastive.losses(params, first, second)
        return losses


def pair_loss(params: Params, x: Tensor, plus: Tensor) -> tuple[Tensor, Params]:
    """Return the mean logistic loss of ``x^T G x+`` and its gradient in ``G``."""
    t = ((x @ params["g"]) * plus).sum(-1)  # (replica, pair)
    pull = -torch.sigmoid(-t)[..., None] / t.shape[1]
    slope = (pull * x).mT @ plus
    return F.softplus(-t).mean(1), {"g": (slope + slope.mT) / 2}


def factor_loss(params: Params, x: Tensor, plus: Tensor) -> tuple[Tensor, Params]:
    """Return :func:`pair_loss` of ``G = W^T W`` and its gradient in ``W``."""
    loss, grads = pair_loss({"g": params["w"].mT @ params["w"]}, x, plus)
    return loss, {"w": 2 * params["w"] @ grads["g"]}


# --- Arms: finite worlds ---


def train_tables(start: Tensor, length: Tensor, p_r: Tensor, p_u: Tensor, steps: int) -> Tensor:
    """Return tables ``(run, N_R, N_U, k)`` that minimise the contrastive loss, from ``start``, with one ``length`` per run.

    ``p_r`` and ``p_u`` are the probabilities of the invariant and the spurious values.
    """
    scale = length.view(-1, 1, 1, 1)

    def objective(params):
        v = params["v"].detach().requires_grad_()
        loss = theory.contrastive_loss(scale * F.normalize(v, dim=-1), p_r, p_u)
        return loss.detach(), {"v": torch.autograd.grad((loss / length**2).sum(), v)[0]}  # scaled, or short ones learn slowly

    run = fit(objective, {"v": start}, (), steps=steps, optimizer=Adam(lambda s: 0.1 * (1 - s / steps) + 1e-4))
    return scale * F.normalize(run.params["v"], dim=-1)


# --- Arms: the linear model ---


@dataclass(frozen=True)
class ProjectedGD(SGD):
    """Gradient descent that applies ``project`` to each parameter after each step."""

    project: Callable[[Tensor], Tensor] = lambda value: value

    def step(self, params: Params, grads: Params, state: dict) -> float | Tensor:
        eta = super().step(params, grads, state)
        params.update({name: self.project(value) for name, value in params.items()})
        return eta


def pretrain_linear(world: data.Mixture, shares: Sequence[float], *, steps, batch, replicas, seed, factor=False) -> Tensor:
    """Return the matrices ``G`` ``(R, d, d)`` learned on a mixture, by descent on ``G`` or, if ``factor``, on ``W``."""
    rank, k = world.shared + world.private, world.shared + world.private * len(shares)
    d, streams = k + world.spurious, generators(seed, replicas)
    batches = Fresh(world.pairs(shares), batch, streams)

    def capped(w):
        u, sizes, v = torch.linalg.svd(w, full_matrices=False)
        return u * theory.project_capped(sizes**2, rank).sqrt()[:, None] @ v

    if factor:
        start = 0.2 * torch.stack([torch.randn(k, d, generator=g) for g in streams])
        w = _descend_projected(factor_loss, {"w": start}, batches, steps, 0.8, capped)["w"]
        return w.mT @ w
    start = (torch.eye(d) * rank / d).expand(replicas, d, d)
    return _descend_projected(pair_loss, {"g": start}, batches, steps, 2.0, lambda g: theory.project_gram(g, rank))["g"]


def pretrain_with_rare_task(world: data.Mixture, ratios: Sequence[float], others: int, **setting) -> tuple:
    """Return the weight of a rare task, learned ``(ratio, run)`` and optimal ``(ratio, 1)``.

    Beside ``others`` equal tasks its share is ``ratios`` times that at which it gets no weight. ``setting`` is that of
    :func:`pretrain_linear`.
    """
    edge, learned, optimal = theory.drop_threshold(others, world.shared, world.private), [], []
    for ratio in ratios:
        shares = np.append(np.ones(others), ratio * edge)
        shares /= shares.sum()
        learned.append(world.by_task(pretrain_linear(world, shares.tolist(), **setting))[:, -1].numpy())
        optimal.append(theory.mixture_weights(shares, world.shared, world.private)[-1:])
    return np.array(learned), np.array(optimal)


def regularise_linear(world: data.Mixture, radii: Sequence[float], n_tasks: int, *, steps, batch, replicas, seed) -> Tensor:
    """Return roots of mean private weights ``(radius, R)`` after descent on one task's pairs, within radii around the best W.

    Frobenius distances are ``radii`` times the root of the number of private features. The optimum is that of ``n_tasks``
    equal tasks; the private features of the others have no gradient and are left out.
    """
    rows, kinds = len(radii) * replicas, torch.tensor([world.shared, world.private, world.spurious])
    start = torch.tensor([1.0, n_tasks**-0.5, 0.0]).repeat_interleave(kinds).diag().expand(rows, -1, -1)
    radius = world.private**0.5 * torch.tensor(radii).float().clamp(min=1e-6).repeat_interleave(replicas)

    def near(w):
        u, sizes, v = torch.linalg.svd(w, full_matrices=False)
        gap = u * sizes.clamp(max=1)[:, None] @ v - start
        far = (gap.norm(dim=(1, 2)) / radius).clamp(min=1)
        return start + gap / far[:, None, None]

    batches = Fresh(world.pairs([1.0]), batch, generators(seed, rows))
    w = _descend_projected(factor_loss, {"w": start}, batches, steps, 0.8, near)["w"]
    return world.by_kind(w.mT @ w)[1].mean(1).unflatten(0, (-1, replicas)).sqrt()


def _descend_projected(objective, start: Params, batches, steps: int, lr: float, project) -> Params:
    optimizer = ProjectedGD(lambda i: lr / (1 + 30 * i / steps), project=project)
    return fit(objective, start, batches, steps=steps, optimizer=optimizer).params


# --- Arms: small sets of pictures ---


def pretrain(nets: Networks, pictures: Tensor, method: str, *, passes, batch, lr, temperature, decay=0.0) -> Params:
    """Return parameters of untrained networks after ``passes`` over unlabelled ``pictures`` with a contrastive method."""
    untrained = nets.untrained(method)
    objective = ContrastiveObjective(untrained[0], method, temperature, queue=min(512, 8 * batch))
    start = objective.start(untrained, generators(1000 * nets.seed + 400_000, nets.runs))
    views = data.two_views(pictures, generators(1000 * nets.seed + 500_000, nets.runs), batch)
    return _descend(objective, to_device(start, nets.device), views, max(2, passes * len(pictures) // batch), lr, decay).params


def pretrain_further(nets: Networks, sets: data.SmallSets, params: Params, *, steps, batch, temperature, lr=0.003) -> Params:
    """Return parameters of networks ``params`` after SimCLR on the target's labelled pictures, without their labels."""
    objective = ContrastiveObjective(nets.untrained("simclr")[0], "simclr", temperature)
    return _descend(objective, params, data.two_views(sets.known[0], nets.streams(60), batch), steps, lr).params


def fine_tune(nets: Networks, sets: data.SmallSets, params, rows, *, weight, steps, batch, temperature, lr=0.01) -> Callable:
    """Return networks ``params`` after fine-tuning with a linear head, and with ``weight`` times SimCLR's loss.

    They map pictures ``(n, ...)`` to logits ``(R, n, classes)``. ``rows`` ``(R, n)`` are the places of each run's labelled
    pictures. The head starts at 0.
    """
    objective = RegularisedObjective(ContrastiveObjective(nets.untrained("simclr")[0], "simclr", temperature), weight)
    x, y = sets.known
    batches = data.two_views(x, nets.streams(40), batch, rows, y.to(nets.device))
    found = _descend(objective, params | _head_at_zero(nets, sets), batches, steps, lr).params
    return lambda x: model.head_logits(found, nets.encode(found, x))


def adapt(nets, sets: data.SmallSets, params, rows, *, weight, steps, batch, temperature, lr=0.003, stored=10) -> Callable:
    """Return adapters, of one hidden layer, between the frozen features of networks ``params`` and a linear head.

    They are trained on ``stored`` views of each labelled picture, with ``weight`` times SimCLR's loss on their outputs; other
    arguments are those of :func:`fine_tune`.
    """
    (x, labels), n, streams = sets.known, rows.shape[1], nets.streams(80)
    u = torch.cat([torch.rand(n * stored, 7, generator=g) for g in streams])
    views = data.grey_view(x[rows.repeat(1, stored).to(nets.device)].flatten(0, 1), u)
    seen = model.encode(nets.net, params, views.unflatten(0, (nets.runs, -1))).unflatten(1, (stored, n))
    y, scale, run = labels[rows].to(nets.device), seen.std(), torch.arange(nets.runs)[:, None]
    torch.manual_seed(1_000_003 * nets.seed + 29)
    adapters = [ContrastiveNet(MLP([nets.features, 64, nets.features]), nets.features) for _ in range(nets.runs)]
    inner = ContrastiveObjective(adapters[0], "simclr", temperature)

    def batches(step):
        u = torch.stack([torch.rand(3, batch, generator=g) for g in streams], 1)
        i, a, b = ((k * v).long() for k, v in zip((n, stored, stored), u))
        return seen[run, a, i] / scale, seen[run, b, i] / scale, y[run, i]

    start = to_device(inner.start(adapters, streams), nets.device) | _head_at_zero(nets, sets)
    found = _descend(RegularisedObjective(inner, weight), start, batches, steps, lr).params
    return lambda x: model.head_logits(found, model.encode(inner.net.encoder, found, nets.encode(params, x) / scale))


def _head_at_zero(nets: Networks, sets: data.SmallSets) -> Params:
    shape, like = (nets.runs, sets.classes[data.TARGET]), {"device": nets.device}
    return {"head.weight": torch.zeros(*shape, nets.features, **like), "head.bias": torch.zeros(*shape, **like)}


def _descend(objective, start: Params, batches, steps: int, lr: float, decay: float = 0.0, rise: int = 0) -> Run:
    """Return a run of AdamW, whose step size falls to 0 along a cosine after ``rise`` steps, with the loss of each step."""
    adam = AdamW(lambda step: lr * cosine(step, steps, rise), weight_decay=decay)
    return fit(objective, start, batches, steps=steps, optimizer=adam, log_at=range(steps))


# --- Arms: colour images ---


def pretrain_colour(
    net: ContrastiveNet,
    sets: Sequence[Tensor],
    *,
    method,
    passes,
    batch,
    view,
    temperature,
    step_size,
    weight_decay,
    queue,
    seed,
) -> list[float]:
    """Train a network by ``"simclr"`` or ``"moco"``, in place, with a warm-up and a cosine; return the loss of each step.

    A step takes ``batch`` images of each of ``sets``, which are equally large. So a further set changes neither the number of
    steps nor the images and views of the first set, nor the number of its images among the negatives: MoCo's queue has room for
    ``queue`` steps. Views have ``view`` pixels both ways.
    """
    g, *streams = (torch.Generator().manual_seed(seed + 1000 * i) for i in range(1 + len(sets)))
    order = torch.cat([torch.randperm(len(sets[0]), generator=g) for _ in range(passes)]).to(sets[0].device).split(batch)
    objective = ContrastiveObjective(net, method, temperature, queue=2 * batch * len(sets) * queue)

    def batches(step):
        views = (torch.cat([data.colour_view(x[order[step]], g, view) for x, g in zip(sets, streams)]) for _ in range(2))
        return tuple(one.to(memory_format=torch.channels_last)[None] for one in views)

    start, steps = to_device(objective.start([net], [g]), sets[0].device), len(sets[0]) * passes // batch
    run = _descend(objective, start, batches, steps, step_size, weight_decay, rise=max(1, steps // 20))
    net.load_state_dict({name: run.params[name][0] for name in net.state_dict()})
    return run.log["loss"][:, 0].tolist()


def colour_arm(target: data.ColourImages, other: data.ColourImages, *, widths, method="", added=0, seed, **setting) -> tuple:
    """Return an encoder, and the losses of its pretraining on the target and, if ``added``, the other set.

    Without ``widths`` of an encoder the features are pixels, means of two by two; without ``method`` the encoder is untrained.
    """
    if not widths:
        return nn.Sequential(nn.AvgPool2d(2), nn.Flatten()), []
    net = model.colour_network(widths, seed).to(target.unlabelled.device)
    sets = [one.unlabelled for one in ([target, other] if added else [target])]
    return net.encoder, pretrain_colour(net, sets, method=method, seed=seed, **setting) if method else []


def for_probing(encoder: nn.Module, images: data.ColourImages) -> nn.Module:
    """Return ``encoder`` in evaluation mode, its statistics of batch normalisation those of the unlabelled ``images``."""
    update_bn(images.unlabelled.split(1000), encoder)
    return encoder.eval()
