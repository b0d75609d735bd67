"""The paper's two linear models and how they are trained: a matrix in the plane, one weight per feature in the theory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import softplus

from mvnb import losses, training
from mvnb.gradients import with_gradients
from mvnb.papers.nuclear_norm.data import EnvironmentFeatures

# --- One weight per feature, head of ones (section 6.4) ---


class LabelledFeatures(NamedTuple):
    """Features times labels of several runs: ``z`` ``(run, n, d)`` to train on, ``there`` ``(run, n', d)`` from elsewhere.

    ``root`` ``(run, d, d)`` has the Gram matrix of ``z`` over n, hence the singular values of ``z / sqrt(n)``.
    """

    z: Tensor
    there: Tensor
    root: Tensor

    @classmethod
    def draw(cls, world: EnvironmentFeatures, seeds: Sequence[int], n: int, noise: float = 0.0) -> LabelledFeatures:
        """Draw ``n`` points per seed, whose label is wrong with probability ``noise``, and 4,000 from elsewhere."""
        train, test = [], []
        for seed in seeds:
            g = torch.Generator().manual_seed(seed)
            x, y = world.sample(n, g)
            flip = torch.rand(len(y), generator=g) < noise
            train.append(x * torch.where(flip, -y, y)[:, None])
            x, y = world.sample(4000, g, elsewhere=True)
            test.append(x * y[:, None])
        z, there = torch.stack(train), torch.stack(test)
        root = torch.linalg.cholesky(z.mT @ z / n + 1e-6 * torch.eye(z.shape[-1])).mT
        return cls(z, there, root)


def logistic_loss(w: Tensor, points: LabelledFeatures) -> Tensor:
    """Return the mean logistic loss of the margins ``<w, z>`` for weights ``w`` ``(setting, run, d)``."""
    margin = torch.einsum("rnj,srj->srn", points.z, w)
    return softplus(-margin).mean(-1)


def nuclear_norm(w: Tensor, points: LabelledFeatures) -> Tensor:
    """Return the nuclear norm of the features ``w_j x_j`` of all points, over the square root of their number."""
    return losses.nuclear_norm(points.root * w[..., None, :])


def weight_decay(w: Tensor, points: LabelledFeatures) -> Tensor:
    """Return half of the squared length."""
    return w.square().sum(-1) / 2


def train_weights(points: LabelledFeatures, penalty, strengths: Sequence[float], steps: int) -> Tensor:
    """Return weights ``(setting, run, d)`` after descent on the logistic loss plus each strength times the penalty.

    Adam from equal weights 0.1, with a step that falls from 0.05 to 0 along a cosine.
    """
    shape = (len(strengths), len(points.z), points.z.shape[-1])
    strength = torch.tensor(strengths)[:, None]

    def loss(params):
        w = params["w"].view(shape)
        return (logistic_loss(w, points) + strength * penalty(w, points)).flatten()

    start = {"w": torch.full((shape[0] * shape[1], shape[2]), 0.1)}
    adam = training.Adam(lambda step: 0.05 * training.cosine(step, steps))
    return training.fit(with_gradients(loss), start, (), steps=steps, optimizer=adam).params["w"].view(shape)


# --- The plane: features A x, head v (section 6.3.1) ---


PLANE_ARMS = {
    "no penalty": (0.0, 0.0, False),
    "weight decay": (0.0, 0.1, False),
    "nuclear norm": (0.1, 0.0, False),
    "nuclear norm, free head": (0.1, 0.0, True),
    "no penalty, free head": (0.0, 0.0, True),
}
"""By name the weights of the nuclear norm of the features and of the decay of ``A^T v``, and if the head v is trained."""


def train_plane(arms: Mapping[str, tuple], gamma: float, n: int, runs: int, steps: int, seed: int) -> dict:
    """Train all arms on the same points and from the same starts: gradient descent with step 0.5 on all points.

    Starts are PyTorch's, with the head brought to length 1. Returns the logged ``"steps"`` and by arm, each ``(step, run)``,
    the ``"ratio"`` of the weights ``A^T v`` of the inputs, the objective ``"loss"``, the nuclear ``"norm"`` of the features
    over the square root of n, and the length of the ``"head"``.
    """
    streams = training.generators(seed, runs)
    drawn = training.stack([EnvironmentFeatures.uniform(1, 1, gamma).sample(n, g) for g in streams])
    first = torch.stack([torch.rand(6, generator=g) for g in streams]).double() * 2**0.5 - 0.5**0.5
    x, y, first = (value.double().repeat(len(arms), *[1] * (value.dim() - 1)) for value in (*drawn, first))
    nuclear, decay, free = torch.tensor([*arms.values()]).double().repeat_interleave(runs, 0).T
    root = torch.linalg.cholesky(x.mT @ x / n).mT  # has the singular values of x / sqrt(n)

    def beta(params):
        return torch.einsum("rij,ri->rj", params["a"], params["v"])

    def norm(params):
        return losses.nuclear_norm(root @ params["a"].mT)

    def loss(params):
        params = params | {"v": torch.where(free[:, None] > 0, params["v"], params["v"].detach())}
        margin = y * torch.einsum("rnj,rj->rn", x, beta(params))
        return softplus(-margin).mean(1) + nuclear * norm(params) + decay / 2 * beta(params).square().sum(1)

    start = {"a": first[:, :4].view(-1, 2, 2), "v": first[:, 4:] / first[:, 4:].norm(dim=1, keepdim=True)}
    probes = {
        "ratio": lambda params: beta(params)[:, 1] / beta(params)[:, 0],
        "norm": norm,
        "head": lambda params: params["v"].norm(dim=1),
    }
    at = sorted({int(step) for step in np.geomspace(1, steps, 40)})
    run = training.fit(with_gradients(loss), start, (), steps=steps, optimizer=training.SGD(0.5), probes=probes, log_at=at)
    by_arm = {key: value.view(len(at), len(arms), runs).unbind(1) for key, value in run.log.items()}
    return {"steps": np.array(at)} | {key: dict(zip(arms, (one.numpy() for one in each))) for key, each in by_arm.items()}
