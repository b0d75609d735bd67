"""The linear model: pretraining on a mixture of tasks by stochastic descent, and linear predictors fitted to few labels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.gradients import Params
from mvnb.papers.contrastive_tradeoff.theory import project_capped, project_gram
from mvnb.training import SGD, Fresh, fit, generators

ABSOLUTE = (2 / np.pi) ** 0.5
"""Mean absolute value of a standard normal number: of an error with squared mean e^2 it makes the paper's loss."""


def pair_loss(params: Params, x: Tensor, plus: Tensor) -> tuple[Tensor, Params]:
    """Return the mean logistic loss of ``x^T G x+`` and its gradient, for ``G`` or for ``W`` with ``G = W^T W``."""
    gram = params["w"].mT @ params["w"] if "w" in params else params["g"]
    t = ((x @ gram) * plus).sum(-1)  # (replica, pair)
    pull = -torch.sigmoid(-t)[..., None] / t.shape[1]
    slope = (pull * x).mT @ plus
    slope = (slope + slope.mT) / 2
    return F.softplus(-t).mean(1), {"w": 2 * params["w"] @ slope} if "w" in params else {"g": slope}


@dataclass(frozen=True)
class ProjectedGD(SGD):
    """Gradient descent that applies ``project`` to the parameters, in place, after each step."""

    project: Callable[[Params], None] = lambda params: None

    def step(self, params: Params, grads: Params, state: dict) -> float | Tensor:
        eta = super().step(params, grads, state)
        self.project(params)
        return eta


@dataclass(frozen=True)
class LinearModel:
    """Stacks of runs in the linear model, in the coordinates of the features: shared, private by task, spurious.

    Start and projection are the same in rotated coordinates, so the dictionary of the paper's inputs makes no difference.
    """

    shared: int
    private: int
    spurious: int
    steps: int = 400
    batch: int = 256
    replicas: int = 4
    seed: int = 0

    def pairs(self, shares: Sequence[float]) -> Callable:
        """Return a sampler of pairs of views ``(n, d)`` twice, from tasks with these shares."""
        cuts = torch.tensor(shares).cumsum(0)[:-1]

        def draw(n, generator):
            z = torch.randn(n, self.shared + self.private * len(shares) + self.spurious, generator=generator)
            redrawn = torch.randn(n, self.spurious, generator=generator)
            task = F.one_hot(torch.bucketize(torch.rand(n, generator=generator), cuts), len(shares)).to(z)
            z[:, self.shared : -self.spurious] *= task.repeat_interleave(self.private, 1)
            return z, torch.cat([z[:, : -self.spurious], redrawn], 1)

        return draw

    def pretrain(self, shares: Sequence[float], factor: bool = False) -> Tensor:
        """Return the matrices ``G`` ``(R, d, d)`` learned on a mixture, by descent on ``G`` or, if ``factor``, on ``W``."""
        rank, k = self.shared + self.private, self.shared + self.private * len(shares)
        d, streams = k + self.spurious, generators(self.seed, self.replicas)
        if factor:
            params = {"w": 0.2 * torch.stack([torch.randn(k, d, generator=g) for g in streams])}
        else:
            params = {"g": (torch.eye(d) * rank / d).expand(self.replicas, d, d)}

        def project(params):
            if "g" in params:
                params["g"] = project_gram(params["g"], rank)
            else:
                u, sizes, v = torch.linalg.svd(params["w"], full_matrices=False)
                params["w"] = u * project_capped(sizes**2, rank).sqrt()[:, None] @ v

        found = self._descend(params, shares, streams, 0.8 if factor else 2.0, project)
        return found["w"].mT @ found["w"] if factor else found["g"]

    def regularise(self, radii: Sequence[float], n_tasks: int) -> Tensor:
        """Return mean private weights ``(radius, R)`` after descent on one task's pairs, within radii around the optimum ``W``.

        Frobenius distances are ``radii`` times the root of the number of private features. The optimum is that of ``n_tasks``
        equal tasks; the private features of the others have no gradient and are left out.
        """
        rows, kinds = len(radii) * self.replicas, torch.tensor([self.shared, self.private, self.spurious])
        begin = torch.tensor([1.0, n_tasks**-0.5, 0.0]).repeat_interleave(kinds).diag().expand(rows, -1, -1)
        radius = self.private**0.5 * torch.tensor(radii).float().clamp(min=1e-6).repeat_interleave(self.replicas)

        def project(params):
            u, sizes, v = torch.linalg.svd(params["w"], full_matrices=False)
            gap = u * sizes.clamp(max=1)[:, None] @ v - begin
            far = (gap.norm(dim=(1, 2)) / radius).clamp(min=1)
            params["w"] = begin + gap / far[:, None, None]

        w = self._descend({"w": begin}, [1.0], generators(self.seed, rows), 0.8, project)["w"]
        return self.by_kind(w.mT @ w)[1].mean(1).unflatten(0, (-1, self.replicas))

    def by_kind(self, gram: Tensor) -> tuple[Tensor, ...]:
        """Return the weights ``(R, ...)`` of shared, private and spurious features, the diagonal of ``G``."""
        rest = gram.shape[-1] - self.shared - self.spurious
        return gram.diagonal(dim1=1, dim2=2).split([self.shared, rest, self.spurious], 1)

    def by_task(self, gram: Tensor) -> Tensor:
        """Return the mean weight of each task's private features, ``(R, T)``."""
        return self.by_kind(gram)[1].unflatten(1, (-1, self.private)).mean(2)

    def _descend(self, params: Params, shares, streams, step_size: float, project) -> Params:
        fresh = Fresh(self.pairs(shares), self.batch, streams)
        step = ProjectedGD(lambda i: step_size / (1 + 30 * i / self.steps), project=project)
        return fit(pair_loss, params, fresh, steps=self.steps, optimizer=step).params


# --- Predictors from few labels ---


@dataclass(frozen=True)
class FewLabels:
    """Labelled points ``z`` ``(run, n, s + q)`` of one task and its weights ``u`` ``(run, s + q)``, half of them private.

    Predictors see ``z`` with the private half times the root of ``private``, the weight of a representation.
    """

    z: Tensor
    u: Tensor

    @classmethod
    def draw(cls, runs: int, points: int, s: int, g: torch.Generator) -> FewLabels:
        """Draw standard normal points, and weights of squared length 1/2 on the shared and on the private features."""
        z = torch.randn(runs, points, 2 * s, generator=g).double()
        u = torch.randn(runs, 2, s, generator=g).double()
        return cls(z, (F.normalize(u, dim=-1) * 0.5**0.5).flatten(1))

    @property
    def y(self) -> Tensor:
        """Labels ``(run, n)`` without noise."""
        return (self.z @ self.u[..., None])[..., 0]

    def root(self, private: float) -> Tensor:
        """Return the roots of the weights."""
        s = self.u.shape[1] // 2
        return torch.tensor([1.0, private**0.5], dtype=torch.float64).repeat_interleave(torch.tensor([s, s]))

    def shortest(self, private: float, m: int) -> Tensor:
        """Return squared errors ``(run,)`` of the shortest interpolation of the first ``m`` labels."""
        x, y = self.z[:, :m] * self.root(private), self.y[:, :m, None]
        if m < x.shape[-1]:
            fit = x.mT @ torch.linalg.solve(x @ x.mT + 1e-10 * torch.eye(m).double(), y)
        else:
            fit = torch.linalg.solve(x.mT @ x + 1e-10 * torch.eye(x.shape[-1]).double(), x.mT @ y)
        return (fit[..., 0] * self.root(private) - self.u).square().sum(1)

    def ridge(self, private: float, m: int, strength: float, noise: Tensor) -> Tensor:
        """Return squared errors ``(run,)`` of ridge regression on ``m`` noisy labels, with the penalty ``m * strength``."""
        x = self.z[:, :m] * self.root(private)
        gram = x.mT @ x + m * strength * torch.eye(x.shape[-1]).double()
        fit = torch.linalg.solve(gram, x.mT @ (self.y + noise)[:, :m, None])[..., 0]
        return (fit * self.root(private) - self.u).square().sum(1)

    def blind(self, m: int, z: Tensor) -> Tensor:
        """Return mean absolute errors ``(run,)`` at ``z`` of predictors from ``m`` labels that see only shared features."""
        s = self.u.shape[1] // 2
        fit = torch.linalg.pinv(self.z[:, :m, :s]) @ self.y[:, :m, None]
        return (z[..., :s] @ fit - z @ self.u[..., None]).abs().mean((1, 2))


def in_groups(values, n: int = 8) -> np.ndarray:
    """Return means ``(n, ...)`` over ``n`` groups of the last axis."""
    return np.stack([part.mean(-1) for part in np.array_split(np.asarray(values), n, -1)])
