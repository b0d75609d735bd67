"""Inputs that are sums of dictionary patterns, a few of which decide the label."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import comb
from torch import Tensor

from mvnb.data.multi_view import Points
from mvnb.seeds import Seed, as_generator


def orthonormal_features(n_features: int, dim: int, generator: Seed, dtype=torch.float32) -> Tensor:
    """Draw orthonormal features from the uniform (Haar) distribution, as the rows of a matrix ``(n_features, dim)``.

    They are the Q factor in the QR decomposition of a Gaussian matrix, with signs such that the diagonal of R is positive.
    Raises ``ValueError`` if ``dim < n_features``.

    >>> features = orthonormal_features(2, 5, 0)
    >>> torch.allclose(features @ features.T, torch.eye(2), atol=1e-6)
    True
    """
    generator = as_generator(generator)
    if dim < n_features:
        raise ValueError(f"{n_features} orthonormal features need dim >= {n_features}, got dim={dim}")
    gaussian = torch.randn(dim, n_features, generator=generator, dtype=torch.float64)
    q, r = torch.linalg.qr(gaussian)
    return (q * r.diagonal().sign()).T.to(dtype).contiguous()


@dataclass(frozen=True, eq=False)
class DictionaryData:
    r"""Hidden patterns of which the first k are class relevant; the label is decided by *how many* of these are present.

    A point belongs to component c and has s relevant patterns with probability ``weights[c, s]``; which s of the k they are
    is uniform. Every other pattern is present with probability ``p_other[c]``, independently. The label is 1 when s is in
    ``positive`` and else -1. With an orthonormal dictionary M (:func:`orthonormal_features`) inputs are
    ``x @ M``; what is sampled are the coordinates ``x = (hidden - mean) / scale``, so that the mean is 0 and ``E ||x||^2 = 1``,
    by the exact moments. That the relevant patterns come first is no loss: a dictionary has no order.

    Source: Shi thesis 2024, section 2.2.1 (A, k, P, D, p_o); the components hold its mixture, intervals, and parities.

    Parameters
    ----------
    n_patterns
        All patterns, D, at least k.
    weights
        ``(n_components, k + 1)``, not negative, sum 1.
    p_other
        ``(n_components,)``, in [0, 1].
    positive
        The counts P with label 1, from 0 to k.

    Raises
    ------
    ValueError
        When a size, a probability or a count is out of its range.
    """

    n_patterns: int
    weights: np.ndarray
    p_other: np.ndarray
    positive: tuple[int, ...]

    def __post_init__(self):
        weights = np.atleast_2d(np.asarray(self.weights, dtype=float))
        p_other = np.atleast_1d(np.asarray(self.p_other, dtype=float))
        k = weights.shape[1] - 1
        if not 1 <= k <= self.n_patterns:
            raise ValueError(f"there must be 1 to n_patterns={self.n_patterns} relevant patterns, got {k}")
        if (weights < 0).any() or abs(weights.sum() - 1) > 1e-9:
            raise ValueError("weights must not be negative, and sum to 1")
        if p_other.shape != weights.shape[:1] or (p_other < 0).any() or (p_other > 1).any():
            raise ValueError(f"p_other must hold {len(weights)} probabilities, got {p_other.tolist()}")
        if not set(self.positive) <= set(range(k + 1)):
            raise ValueError(f"positive must hold counts from 0 to {k}, got {self.positive}")
        object.__setattr__(self, "weights", weights)
        object.__setattr__(self, "p_other", p_other)
        object.__setattr__(self, "positive", tuple(sorted(self.positive)))
        if self.scale < 1e-7:  # 0 up to the root of rounding
            raise ValueError("all points are equal: no pattern varies")

    # --- The distributions of the thesis ---

    @classmethod
    def independent(
        cls, n_patterns: int, n_relevant: int, positive: Iterable[int], p_relevant: float = 0.5, p_other: float = 0.5
    ) -> DictionaryData:
        """Independent patterns: relevant ones with probability ``p_relevant``, all others with ``p_other``."""
        counts = _binomial(n_relevant, p_relevant)
        return cls(n_patterns, counts[None], np.array([p_other]), tuple(positive))

    @classmethod
    def parity(cls, n_patterns: int = 100, n_relevant: int = 5, p_o: float = 0.5) -> DictionaryData:
        """Odd counts are positive. With probability ``p_o`` all patterns are fair coins; else the relevant ones are all present
        or all absent (even odds) and any other one is present with probability ``p_o / (2 - 2 p_o)``.

        ``ValueError`` for an even ``n_relevant`` (the two blocks would share a label) and for ``p_o`` outside (0, 2/3].
        Source: Shi thesis 2024, appendix A.5 and A.7.1.
        """
        if n_relevant % 2 == 0:
            raise ValueError(f"n_relevant must be odd, got {n_relevant}")
        if not 0 < p_o <= 2 / 3:
            raise ValueError(f"p_o must lie in (0, 2/3], got {p_o}")
        counts = np.arange(n_relevant + 1)
        blocks = np.where((counts == 0) | (counts == n_relevant), 0.5, 0.0)
        weights = np.stack([p_o * _binomial(n_relevant, 0.5), (1 - p_o) * blocks])
        return cls(n_patterns, weights, np.array([0.5, p_o / (2 - 2 * p_o)]), tuple(range(1, n_relevant + 1, 2)))

    @classmethod
    def interval(
        cls, n_patterns: int = 100, n_relevant: int = 30, low: int = 20, high: int = 30, p_relevant: float = 2 / 3
    ) -> DictionaryData:
        """Counts from ``low`` to ``high`` are positive; other patterns are fair coins. Source: Shi thesis 2024, A.7.1."""
        return cls.independent(n_patterns, n_relevant, range(low, high + 1), p_relevant)

    def without_structure(self) -> DictionaryData:
        """The same labels with all patterns independent fair coins (the thesis's A1')."""
        return self.independent(self.n_patterns, self.n_relevant, self.positive)

    def unbalanced(self, negative: float) -> DictionaryData:
        """The same two classes, with a share ``negative`` in (0, 1) of points labelled -1."""
        if not 0 < negative < 1:
            raise ValueError(f"the share of negative points must lie in (0, 1), got {negative}")
        ratio = np.where(self.labels > 0, (1 - negative) / self.positive_share, negative / (1 - self.positive_share))
        return DictionaryData(self.n_patterns, self.weights * ratio, self.p_other, self.positive)

    # --- Exact moments ---

    @property
    def n_relevant(self) -> int:
        """Number of relevant patterns, k."""
        return self.weights.shape[1] - 1

    @property
    def labels(self) -> np.ndarray:
        """Label of every count, ``(k + 1,)``, -1 or 1."""
        return np.where(np.isin(np.arange(self.n_relevant + 1), self.positive), 1, -1)

    @property
    def positive_share(self) -> float:
        """Probability of the label 1."""
        return float(self.weights[:, self.labels > 0].sum())

    @property
    def _means(self) -> tuple[float, float]:
        """Probability that a relevant pattern, and that another one, is present."""
        k = self.n_relevant
        return float(self.weights.sum(0) @ np.arange(k + 1) / k), float(self.weights.sum(1) @ self.p_other)

    @property
    def scale(self) -> float:
        """Root of the total variance of the hidden patterns (the thesis's sigma with a tilde)."""
        own, other = (m * (1 - m) for m in self._means)
        k = self.n_relevant
        return float(np.sqrt(max(k * own + (self.n_patterns - k) * other, 0.0)))

    @property
    def correlations(self) -> tuple[float, float]:
        """Covariance of the label with a relevant pattern (gamma) and with another one (0 where the thesis's A2 holds)."""
        y, (own, other) = self.labels, self._means
        mean = float((self.weights @ y).sum())
        with_own = float(self.weights.sum(0) @ (y * np.arange(self.n_relevant + 1))) / self.n_relevant
        return with_own - mean * own, float((self.weights @ y) @ self.p_other) - mean * other

    @property
    def other_covariance(self) -> float:
        """Covariance of two patterns that are not relevant; not 0 when components differ in ``p_other``."""
        share = self.weights.sum(1)
        return float(share @ self.p_other**2 - (share @ self.p_other) ** 2)

    # --- Sampling ---

    def _normalise(self, hidden: Tensor) -> Tensor:
        """Return patterns of zeros and ones ``(..., n_patterns)`` as coordinates of inputs, of the same shape."""
        own, other = self._means
        x = hidden - other
        x[..., : self.n_relevant] += other - own
        return x.div_(self.scale)

    def sample(self, n: int, generator: Seed, dtype: torch.dtype = torch.float32, normalised: bool = True) -> Points:
        """``n`` points: ``x`` ``(n, n_patterns)``; the zeros and ones themselves when not ``normalised``."""
        generator = as_generator(generator)
        k = self.n_relevant
        flat = torch.multinomial(torch.from_numpy(self.weights).flatten(), n, replacement=True, generator=generator)
        component, count = flat // (k + 1), flat % (k + 1)
        hidden = torch.empty(n, self.n_patterns, dtype=dtype)
        # The s smallest of k random keys are a uniform set of s relevant patterns.
        order = torch.rand(n, k, generator=generator).argsort(1)
        hidden[:, :k].scatter_(1, order, (torch.arange(k) < count[:, None]).to(dtype))
        uniform = torch.rand(n, self.n_patterns - k, generator=generator)
        hidden[:, k:] = uniform < torch.from_numpy(self.p_other).to(torch.float32)[component, None]
        y = torch.from_numpy(self.labels)[count].to(dtype)
        return Points(self._normalise(hidden) if normalised else hidden, y)


@dataclass(frozen=True, eq=False)
class PatternCodes:
    """Relevant patterns that are one of a few fixed code words, half of them positive; all other patterns are fair coins.

    ``codes`` ``(n_codes, k)`` of zeros and ones; the first half has label 1, the rest -1. Source: Shi thesis 2024, A.7.4
    (50 + 50 random words, k = 50, D = 250). ``ValueError`` for an odd number of codes or too few patterns.
    """

    n_patterns: int
    codes: Tensor

    def __post_init__(self):
        n_codes, k = self.codes.shape
        if n_codes % 2 or n_codes < 2:
            raise ValueError(f"there must be an even number of codes, got {n_codes}")
        if k > self.n_patterns:
            raise ValueError(f"codes of {k} patterns need n_patterns >= {k}, got {self.n_patterns}")

    @classmethod
    def random(cls, n_patterns: int, n_relevant: int, n_codes: int, generator: Seed) -> PatternCodes:
        """Code words of independent fair coins."""
        generator = as_generator(generator)
        return cls(n_patterns, torch.randint(2, (n_codes, n_relevant), generator=generator).float())

    @property
    def scale(self) -> float:
        """Root of the total variance of the hidden patterns."""
        mean = self.codes.double().mean(0)
        return float(((mean * (1 - mean)).sum() + (self.n_patterns - self.codes.shape[1]) / 4).sqrt())

    @property
    def correlations(self) -> Tensor:
        """Covariance of the label with every pattern, ``(n_patterns,)`` in float64: half the difference of class means."""
        half = len(self.codes) // 2
        own = (self.codes[:half].double().mean(0) - self.codes[half:].double().mean(0)) / 2
        return torch.cat([own, own.new_zeros(self.n_patterns - len(own))])

    def sample(self, n: int, generator: Seed, dtype: torch.dtype = torch.float32) -> Points:
        """``n`` points with mean 0 and ``E ||x||^2 = 1``: ``x`` ``(n, n_patterns)``."""
        generator = as_generator(generator)
        word = torch.randint(len(self.codes), (n,), generator=generator)
        centred = self.codes - self.codes.mean(0)
        other = torch.randint(2, (n, self.n_patterns - self.codes.shape[1]), generator=generator).to(dtype) - 0.5
        x = torch.cat([centred.to(dtype)[word], other], 1) / self.scale
        return Points(x, torch.where(word < len(self.codes) // 2, 1.0, -1.0).to(dtype))


def _binomial(n: int, p: float) -> np.ndarray:
    """Probabilities of 0 to n successes (importing ``scipy.stats`` for them would take most of a second)."""
    counts = np.arange(n + 1)
    return comb(n, counts) * p**counts * (1 - p) ** (n - counts)
