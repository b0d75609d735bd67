r"""Closed forms for contrastive pretraining: what is learned, how it is weighed, and what that costs in labels.

Source: Shi thesis 2024, chapter 7 and appendix F (Shi et al. 2023), called "Shi" below. In the linear model T tasks share s
features; each has ``q = r - s`` of its own; a representation gives the shared ones the weight ``alpha`` and those of task t
the weight ``alpha_t`` (squares of the diagonal of A* in Shi, Lemma F.3), within ``s alpha + q sum alpha_t <= s + q``.
The optimal weights for all mixtures, the error of the shortest interpolation and the similarities are derived in chapter 13.
"""

from __future__ import annotations

import numpy as np
import torch
from scipy import optimize, special, stats
from torch import Tensor
from torch.nn.functional import softplus

# --- Finite worlds, by enumeration ---


def contrastive_loss(phi: Tensor, p_r: Tensor, p_u: Tensor, loss=lambda t: softplus(-t)) -> Tensor:
    """Return ``E loss(phi(x)^T (phi(x+) - phi(x-)))``, exactly: Shi, eq. (7.1) on the hidden representation model.

    ``phi`` ``(..., N_R, N_U, k)`` at each pair of an invariant and a spurious value, which are independent with probabilities
    ``p_r`` ``(N_R,)`` and ``p_u`` ``(N_U,)``; ``loss`` is logistic by default. Returns ``(...)``.
    """
    gram = torch.einsum("...aik,...bjk->...aibj", phi, phi)
    own = torch.einsum("...aiaj->...aij", gram)  # (a, i, j): x and x+
    t = own[..., :, :, :, None, None] - gram[..., :, :, None, :, :]  # (a, i, j, b, l)
    chance = p_r[:, None, None] * p_u[:, None] * p_u  # (a, i, j)
    return (loss(t) * (chance[..., None, None] * (p_r[:, None] * p_u))).sum((-1, -2, -3, -4, -5))


def pca_objective(phi: Tensor, p_r: Tensor, p_u: Tensor) -> Tensor:
    """``-E ||phi_{z_R} - phi_0||^2``, the right side of Shi, Theorem 7.1; arguments as for :func:`contrastive_loss`."""
    mean = torch.einsum("...aik,i->...ak", phi, p_u)
    centred = mean - torch.einsum("...ak,a->...k", mean, p_r)[..., None, :]
    return -torch.einsum("...ak,a->...", centred.square(), p_r)


def pca_gap(phi: Tensor, p_r: Tensor, p_u: Tensor) -> float:
    """Return the distance of both sides of Shi, Theorem 7.1: the loss for ``-t``, and :func:`pca_objective`."""
    return (contrastive_loss(phi, p_r, p_u, lambda t: -t) - pca_objective(phi, p_r, p_u)).abs().item()


def square_losses() -> tuple[float, float]:
    """Return the loss of two squares with four values: in order of the exclusive-or of the first two bits, and separable."""
    quarter, sure = torch.full((4,), 0.25).double(), torch.ones(1).double()
    corners = torch.tensor([[-1, 0], [1, 0], [0, -1], [0, 1]]).double()[:, None]
    return tuple(contrastive_loss(square, quarter, sure).item() for square in (corners, corners[[0, 3, 2, 1]]))


def binary_features(chance: Tensor) -> tuple[Tensor, Tensor]:
    """Return the probabilities ``(2^k,)`` of all values of independent bits, 1 with ``chance`` ``(k,)``, and their flips.

    ``flips[i]`` are the places of the values whose bit i is flipped.
    """
    bits = torch.cartesian_prod(*[torch.arange(2)] * len(chance))
    flips = torch.arange(len(bits)) ^ (2 ** torch.arange(len(chance)).flip(0))[:, None]
    return torch.where(bits.bool(), chance, 1 - chance).prod(1), flips


# --- The optimal representation of the linear model ---


def project_capped(values: Tensor, total: float) -> Tensor:
    """The nearest point with entries in [0, 1] and sum at most ``total``: ``(..., n)`` to ``(..., n)``.

    ``clamp(values - shift)`` with the least shift that is not negative. The sum is linear in the shift between the places
    where an entry reaches 0 or 1, so it is found exactly.
    """
    places = torch.cat([torch.zeros_like(values[..., :1]), values, values - 1], -1).clamp(min=0).sort(-1).values
    sums = (values[..., None, :] - places[..., :, None]).clamp(0, 1).sum(-1)  # not increasing; 0 at the end
    last = ((sums > total).sum(-1, keepdim=True) - 1).clamp(min=0)
    low, high = places.gather(-1, last), places.gather(-1, last + 1)
    above, below = sums.gather(-1, last), sums.gather(-1, last + 1)
    part = (above - total).clamp(min=0) / (above - below).clamp(min=torch.finfo(values.dtype).tiny)
    return (values - (low + part * (high - low))).clamp(0, 1)


def project_gram(gram: Tensor, rank: float) -> Tensor:
    """The nearest symmetric ``G`` with ``0 <= G <= I`` and ``tr G <= rank``: ``(..., d, d)`` to the same.

    ``G = W^T W`` runs through this set when W has spectral norm at most 1 and Frobenius norm at most the root of ``rank``.
    """
    values, vectors = torch.linalg.eigh((gram + gram.mT) / 2)
    return (vectors * project_capped(values, rank)[..., None, :]) @ vectors.mT


def _chi_square_points(freedom: int, points: int) -> np.ndarray:
    return stats.chi2.ppf((np.arange(points) + 0.5) / points, freedom)


def mixture_weights(shares, s: int, q: int, points: int = 60):
    """Return the weights ``(alpha, alpha_1, ..., alpha_T)`` of Shi, Lemma F.3, for the logistic loss, by quadratic programs.

    ``shares`` ``(T,)`` sum to 1. Expectations are means over a grid of quantiles.
    """
    w = np.asarray(shares, dtype=float)
    z, own = _chi_square_points(s, points)[:, None], _chi_square_points(q, points)

    def value(a):
        t = a[0] * z + a[1:, None, None] * own  # (task, z, own)
        slope = special.expit(-t)
        by_shared = -w @ (slope * z).mean((1, 2))
        return w @ np.logaddexp(0, -t).mean((1, 2)), np.append(by_shared, -w * (slope * own).mean((1, 2)))

    cost = np.append(s, np.full(len(w), q))
    budget = {"type": "ineq", "fun": lambda a: s + q - cost @ a, "jac": lambda a: -cost}
    start = np.append(0.5, np.full(len(w), 1 / len(w)))
    options, bounds = {"ftol": 1e-12, "maxiter": 500}, [(0, 1)] * len(start)
    return optimize.minimize(value, start, (), "SLSQP", jac=True, bounds=bounds, constraints=budget, options=options).x


def mixture_gap(shares, s: int, q: int) -> float:
    """Return how far the optimal weight of shared features and the sum of the private weights are from 1."""
    found = mixture_weights(shares, s, q)
    return max(abs(found[0] - 1), abs(found[1:].sum() - 1))


def drop_threshold(others: int, s: int, q: int) -> float:
    """Return the largest share, relative to that of each of ``others`` equal tasks, at which a task gets no weight.

    ``E g(Z + Z' / others) / E g(Z)`` with chi squares of s and q + 2 degrees and g minus the derivative of the logistic loss;
    to about three digits, from 300 quantiles each.
    """
    z, own = _chi_square_points(s, 300)[:, None], _chi_square_points(q + 2, 300)
    return float(special.expit(-z - own / others).mean() / special.expit(-z).mean())


# --- What it costs ---


def predictor_norm(v1, v2, alpha, private):
    """Length of the shortest predictor that equals the label, ``sqrt(v1 / alpha + v2 / alpha_t)``: Shi, eq. (F.68)."""
    return np.sqrt(v1 / np.asarray(alpha, float) + v2 / np.asarray(private, float))


def rademacher_bound(m, s, q, v1, v2, alpha, private):
    """``predictor_norm * sqrt((s alpha + q alpha_t) / m)``: an upper bound of the Rademacher complexity, without O(.)."""
    return predictor_norm(v1, v2, alpha, private) * np.sqrt((s * alpha + q * np.asarray(private, float)) / m)


def interpolation_error(m: float, s: int, q: int, v1: float, v2: float, private: float) -> float:
    """Squared error of the shortest interpolation of m noiseless labels, on average over inputs, in the limit of many features.

    Weights 1 on s and ``private`` (above 0) on q features. 0 for ``m >= s + q``; exact at ``private = 1``. The limit is
    that of Hastie et al. 2022, here for two kinds of features.
    """
    if m >= s + q:
        return 0.0

    def left(log_kappa):
        kappa = np.exp(log_kappa)
        return s / (1 + kappa) + q * private / (private + kappa) - m

    kappa = np.exp(optimize.brentq(left, -40, 40))
    bias = kappa**2 * (v1 / (1 + kappa) ** 2 + v2 / (private + kappa) ** 2)
    return float(bias / (1 - (s / (1 + kappa) ** 2 + q * private**2 / (private + kappa) ** 2) / m))


def endless_error(m, s, q, v1, v2):
    """Return the limit, as the number of tasks grows, of the squared error of the shortest interpolation of ``m`` labels.

    A mean over labelled points of any size, without an approximation; ``m`` is an array of whole numbers. Infinite at s - 1, s
    and s + 1, and 0 from s + q on. Derived in chapter 13.
    """
    m = np.asarray(m, dtype=float)
    with np.errstate(divide="ignore", invalid="ignore"):
        few = v1 * (1 - m / s) + v2 * (s - 1) / (s - m - 1)
        many = v2 * (1 - (m - s) / q) * (m - 1) / (m - s - 1)
    return np.where(m >= s + q, 0.0, np.where(m <= s - 2, few, np.where(m >= s + 2, many, np.inf)))


def regularised_private(n_tasks, q, gamma):
    """Return ``sqrt(beta)`` after contrastive regularisation within a distance of gamma: Shi, Proposition F.9 (there q = s)."""
    return np.minimum(1.0, 1 / np.sqrt(n_tasks) + np.asarray(gamma, dtype=float) / np.sqrt(q))


def weight_cosine(first, second, s: int, q: int):
    """Linear CKA of two representations on a task's own data: the cosine of their weights, 1 on s features and these on q.

    ``first`` and ``second`` are private weights of the task, broadcast.
    """
    return (s + q * first * second) / np.sqrt((s + q * first**2) * (s + q * second**2))
