"""Mixtures of Gaussian clusters with labels -1 and 1.

Source: Shi thesis 2024, chapter 3, cited as "Shi" below.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mvnb.data.multi_view import Points
from mvnb.seeds import Seed, as_generator


@dataclass(frozen=True)
class GaussianMixture:
    """Mixture of Gaussian clusters ``N(mu_j, sigma_j^2 I)``, each of which has a label of -1 or 1.

    ``means`` has shape ``(r, dim)``, one row per cluster, and ``labels`` has shape ``(r,)``. The probabilities ``masses``
    ``(r,)`` of the clusters are positive and sum to 1; they are equal by default. The standard deviations ``stds`` ``(r,)`` are
    positive, and 1 by default. All four are stored in float64. Raises ``ValueError`` if a shape or value is invalid.
    Source: Shi, section 3.4.1, where both labels have mass 1/2. The covariance printed there, ``sigma_j I``, is read as
    ``sigma_j^2 I``.

    >>> x, y = GaussianMixture.xor(dim=10, norm=6.0).sample(100, 0)
    >>> x.shape, y.unique()
    (torch.Size([100, 10]), tensor([-1.,  1.]))
    """

    means: Tensor
    labels: Tensor
    masses: Tensor | None = None
    stds: Tensor | None = None

    def __post_init__(self):
        r = len(self.means)
        defaults = {"masses": 1 / max(r, 1), "stds": 1.0}
        for name in ("means", "labels", "masses", "stds"):
            value = getattr(self, name)
            value = [defaults[name]] * r if value is None else value
            object.__setattr__(self, name, torch.as_tensor(value, dtype=torch.float64))
        if self.means.dim() != 2 or any(v.shape != (r,) for v in (self.labels, self.masses, self.stds)):
            shapes = [tuple(v.shape) for v in (self.means, self.labels, self.masses, self.stds)]
            raise ValueError(f"expected means (r, dim) and labels, masses and stds (r,), got shapes {shapes}")
        if (self.labels.abs() != 1).any():
            raise ValueError(f"labels must be -1 or 1, got {sorted(set(self.labels.tolist()))}")
        if not self.means.isfinite().all():
            raise ValueError(f"means must be finite, got {self.means[~self.means.isfinite()][0].item()}")
        positive = (self.masses > 0).all() and ((self.stds > 0) & self.stds.isfinite()).all()
        if not positive or not abs(self.masses.sum() - 1) <= 1e-9:
            received = f"masses {self.masses.tolist()} and stds {self.stds.tolist()}"
            raise ValueError(f"masses must be positive and sum to 1, and stds positive and finite, got {received}")

    @classmethod
    def xor(cls, dim: int, norm: float, masses=(1.0,)) -> GaussianMixture:
        """Return an XOR mixture in one plane, or in orthogonal planes with the given ``masses``, which sum to 1.

        Plane l has the means ``+- norm e_{2l}`` with label 1 and ``+- norm e_{2l+1}`` with label -1, each with a quarter of the
        plane's mass. Raises ``ValueError`` if ``dim`` is less than twice the number of planes. Source: Shi, section 3.4.1 (one
        plane), after Refinetti et al. 2021.
        """
        axes = 2 * len(masses)
        if dim < axes:
            raise ValueError(f"{len(masses)} planes need dim >= {axes}, got dim={dim}")
        means = norm * torch.eye(axes, dim, dtype=torch.float64).repeat_interleave(2, 0)
        means[1::2] *= -1
        each = torch.tensor(masses, dtype=torch.float64).repeat_interleave(4) / 4
        labels = torch.tensor([1.0, 1.0, -1.0, -1.0]).repeat(len(masses))
        return cls(means, labels, each)

    @classmethod
    def orthogonal(cls, dim: int, norm: float, labels) -> GaussianMixture:
        """Return a mixture of clusters of equal mass with means ``norm e_j``, one for each of the given ``labels``.

        Raises ``ValueError`` if ``dim`` is less than the number of labels.
        """
        labels = torch.as_tensor(labels).double()
        if dim < len(labels):
            raise ValueError(f"{len(labels)} orthogonal means need dim >= {len(labels)}, got dim={dim}")
        return cls(norm * torch.eye(len(labels), dim, dtype=torch.float64), labels)

    @property
    def features(self) -> Tensor:
        """Unit vectors ``D_j = mu_j / |mu_j|`` along the means, as rows ``(r, dim)`` in float64."""
        return self.means / self.means.norm(dim=1, keepdim=True)

    def sample(self, n: int, generator: Seed, dtype=torch.float32) -> Points:
        """Draw ``n`` points ``x`` ``(n, dim)`` with labels ``y`` ``(n,)``, both of type ``dtype``."""
        generator = as_generator(generator)
        one = torch.multinomial(self.masses, n, replacement=True, generator=generator)
        x = torch.randn(n, self.means.shape[1], generator=generator, dtype=dtype)
        x = x.mul_(self.stds.to(dtype)[one, None]).add_(self.means.to(dtype)[one])
        return Points(x, self.labels.to(dtype)[one])
