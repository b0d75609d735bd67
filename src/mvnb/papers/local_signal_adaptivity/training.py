"""Training of the networks of local signal adaptivity: objectives of the filter, and the two arms of the image experiment."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb import training
from mvnb.blocks import CACHED, in_parts
from mvnb.data import Points
from mvnb.gradients import Params, returns_gradients
from mvnb.papers.local_signal_adaptivity import _soft_threshold_kernels as kernels
from mvnb.papers.local_signal_adaptivity.model import WindowNet, window_jacobian


class SoftThresholdObjective:
    """Logistic loss of a stack of soft-threshold filters and its gradient, written by hand.

    An objective for :func:`mvnb.training.fit`: ``params`` ``w`` ``(R, dim)`` and ``b`` ``(R,)``, points ``x``
    ``(R, n, patches, dim)``, labels ``y`` ``(R, n)`` of -1 and 1; returns losses ``(R,)`` and gradients. Both slopes are 0 at
    the kinks. Source: Karp thesis 2024, Algorithm 3.1.
    """

    @returns_gradients(w="R dim", b="R", x="R n patches dim", y="sign R n")
    def __call__(self, params: Params, x: Tensor, y: Tensor) -> tuple[Tensor, Params]:
        chunk = max(1, CACHED // x[0].numel()) if x.device.type == "cpu" else len(x)
        losses, w, b = in_parts(self._part, (params["w"], params["b"], x, y), chunk)
        return losses, {"w": w, "b": b}

    def _part(self, w: Tensor, b: Tensor, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        b, flat = b[:, None, None], x.flatten(1, 2)  # (replica, batch * patch, dim)
        z = torch.bmm(w[:, None], flat.mT).view(x.shape[:3])  # the other way round takes five times as long
        up, down = (z + b).relu_(), (b - z).relu_()
        margin = y * (up - down).sum(-1)
        push = (-y * torch.sigmoid(-margin) / y.shape[1])[..., None]  # derivative in the output, (replica, batch, 1)
        up, down = up.sign_(), down.sign_()
        d_z = (up + down).mul_(push)
        d_w = torch.bmm(d_z.view(len(x), 1, -1), flat)[:, 0]
        return F.softplus(-margin).mean(1), d_w, ((up - down) * push).sum((1, 2))


class SurvivorObjective:
    r"""The same loss on ``n`` fresh :class:`~mvnb.papers.local_signal_adaptivity.data.SignalInNoise` points, without patches.

    A noise patch enters the output and the gradient in b through its projection on w alone, and the gradient in w through that
    and, if it survives the threshold, through a part orthogonal to w that is independent of everything else. So only the
    projections of the *surviving* patches are drawn (their number is binomial, their size a truncated Gaussian), and one
    Gaussian vector a step for all orthogonal parts. The law of losses and gradients is that of the dense objective.

    Called with float64 ``params`` ``w`` ``(R, dim)``, the signal along the first axis, and ``b`` ``(R,)``, and with the
    ``keys`` ``(R,)`` of a step (:func:`step_keys`), which decide all randomness. CPU only.
    """

    def __init__(self, n_noise: int, sigma: float, n: int):
        if n_noise < 1 or n < 1 or sigma <= 0:
            raise ValueError(f"need n_noise >= 1, n >= 1 and sigma > 0, got {n_noise}, {n} and {sigma}")
        self.n_noise, self.sigma, self.n = n_noise, sigma, n

    @returns_gradients(w="R dim", b="R", keys="int R")
    def outputs(self, params: Params, keys: Tensor) -> tuple[Tensor, ...]:
        """For a point with y = 1: the output and the sums of ``(p + q) Z``, ``p - q`` and ``(p + q)^2``; each ``(R, n)``."""
        own, sums = self._draw(params, keys.numpy().view(np.uint64))
        pull, tilt, square = map(torch.from_numpy, sums)
        return torch.from_numpy(own)[:, None] + pull + params["b"][:, None] * tilt, pull, tilt, square

    def _draw(self, params: Params, keys: np.ndarray) -> tuple[np.ndarray, list[np.ndarray]]:
        w, b = params["w"].numpy(), params["b"].numpy()
        sums = [np.empty((len(b), self.n)) for _ in range(3)]
        kernels.survivors(keys, b, self.sigma * _lengths(w), self.n_noise, kernels.QUANTILES, *sums)
        return np.maximum(w[:, 0] + b, 0) - np.maximum(b - w[:, 0], 0), sums

    @returns_gradients(w="R dim", b="R", keys="int R")
    def __call__(self, params: Params, keys: Tensor) -> tuple[Tensor, Params]:
        w, b, keys = params["w"].numpy(), params["b"].numpy(), keys.numpy().view(np.uint64)
        own, sums = self._draw(params, keys)  # by symmetry, y = 1 throughout
        total, loose = np.empty((len(b), 5)), _gaussians(keys, w.shape[1])
        kernels.reduce(own, b, *sums, total)
        loss, push, pull, tilt, square = total.T
        ray = w / _lengths(w)[:, None]
        loose *= self.sigma * np.sqrt(square)[:, None]
        along = pull / _lengths(w) - (loose * ray).sum(1)
        d_w = along[:, None] * ray + loose
        up, down = w[:, 0] + b > 0, b - w[:, 0] > 0
        d_w[:, 0] += push * (up * 1.0 + down)
        d_b = tilt + push * (up * 1.0 - down)
        return torch.from_numpy(loss.copy()), {"w": torch.from_numpy(d_w), "b": torch.from_numpy(d_b)}


def _gaussians(keys: np.ndarray, dim: int) -> np.ndarray:
    """Return standard normal numbers ``(R, dim)`` from the keys, of streams that the survivors do not use."""
    mix = kernels.mix.py_func
    state = mix(~keys)[:, None] + np.arange(1, 2 * dim + 1, dtype=np.uint64) * kernels.GOLDEN
    uniform = ((mix(state) >> np.uint64(11)) + 0.5) * 2.0**-53
    return np.sqrt(-2 * np.log(uniform[:, ::2])) * np.cos(2 * np.pi * uniform[:, 1::2])


def _lengths(w: np.ndarray) -> np.ndarray:
    return np.maximum(np.linalg.norm(w, axis=1), 1e-150)


def step_keys(seed: int, replicas: int) -> Callable[[int], tuple[Tensor]]:
    """The ``batches`` of :func:`mvnb.training.fit` for :class:`SurvivorObjective`: a function of the step that returns keys.

    Replica r has the keys of a single run with seed ``seed + r``.
    """
    base = np.array([(seed + r) * 0xD1342543DE82EF95 % 2**64 for r in range(replicas)], dtype=np.uint64)

    def keys(step: int) -> tuple[Tensor]:
        return (torch.from_numpy((base + np.uint64((step + 1) * 0x632BE59BD9B4E019 % 2**64)).view(np.int64)),)

    return keys


# --- The arm of the filters ---


def filter_start(seed: int, replicas: int, dim: int, size: float = 1e-6) -> Params:
    """Return filters of length ``size`` in random directions, without biases; replica r as with ``seed + r`` alone."""
    w = torch.stack([F.normalize(torch.randn(dim, generator=g).double(), dim=0) for g in training.generators(seed, replicas)])
    return {"w": size * w, "b": torch.zeros(replicas).double()}


def train_filters(objective, batches, start: Params, steps: int, step_size: float, bias_rate: float, marks) -> dict:
    """Return c, v and b ``(mark, run)`` of filters trained by Algorithm 3.1; the bias has ``bias_rate`` of the step."""
    looks = {"c": lambda p: p["w"][:, 0], "v": lambda p: p["w"][:, 1:].norm(dim=1), "b": lambda p: p["b"]}
    optimizer = training.SGD(step_size, rates={"b": bias_rate})
    run = training.fit(objective, start, batches, steps=steps, optimizer=optimizer, probes=looks, log_at=marks)
    return {name: one.numpy() for name, one in run.log.items()}


# --- Arms of the image experiment: both return logits ``(setting, n, 2)`` on the images that they were fitted to and on others


def network_arm(train: Points, x: Tensor, *, width: int, step_size: float, passes: int, batch: int, seed: int) -> tuple:
    """Return the logits of a :class:`WindowNet`, trained with cross-entropy, on its images and on ``x``, and all losses.

    Adam, whose step size rises during a fifth of the steps and then falls to 0 along a cosine.
    """
    torch.manual_seed(seed)
    net = WindowNet(x.shape[1], 2, (width, 2 * width)).to(x.device)
    steps = passes * len(train.y) // batch
    losses = training.minimise(
        torch.optim.Adam(net.parameters(), step_size),
        lambda rows, _: F.cross_entropy(net.convolved(train.x[rows]), train.y[rows]),
        len(train.y),
        steps=steps,
        batch=batch,
        seed=seed,
        rise=max(1, steps // 5),
    )
    with torch.no_grad():
        own, others = (torch.cat([net.convolved(part) for part in one.split(500)])[None] for one in (train.x, x))
    return own, others, losses


def kernel_arm(train: Points, x: Tensor, *, width: int, ridges: Sequence[float], seed: int) -> tuple[Tensor, Tensor]:
    """Return the logits of ridge regression on the tangent kernel of a random :class:`WindowNet`, on its images and on ``x``.

    One setting per ridge, which is relative to the mean diagonal of the kernel matrix. Targets are -1 and 1, minus their mean,
    which is added to the predictions. The kernel matrix is computed in blocks; so are the Jacobians, twenty images at a time.
    """
    torch.manual_seed(seed)
    net = WindowNet(x.shape[1], 1, (width, 2 * width)).to(x.device)
    start = {name: p.detach() for name, p in net.named_parameters()}
    rows, sign = window_jacobian(start, train.x, 20), 2.0 * train.y.double() - 1
    gram = _products(rows).double()
    size, target = gram.diagonal().mean(), (sign - sign.mean())[:, None]
    eye = torch.eye(len(rows), dtype=torch.float64, device=x.device)
    fits = [torch.cholesky_solve(target, torch.linalg.cholesky(gram + ridge * size * eye)) for ridge in ridges]
    weight = rows.T @ torch.cat(fits, 1).to(rows)
    scores = (one @ weight + sign.mean() for one in (rows, window_jacobian(start, x, 20)))
    own, others = (torch.stack([-one.T, one.T], -1) for one in scores)
    return own, others


def _products(rows: Tensor, block: int = 1000) -> Tensor:
    """Return the products of all pairs of rows, each pair of blocks once."""
    out = rows.new_empty(len(rows), len(rows))
    for i in range(0, len(rows), block):
        part = rows[i : i + block] @ rows[i:].T
        out[i : i + block, i:], out[i:, i : i + block] = part, part.T
    return out
