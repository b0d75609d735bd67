"""Closed forms for weight decay and nuclear-norm penalties when environments change.

Source: Shi thesis 2024, chapter 6 and appendix E (after Shi, Ming, Fan, Sala and Liang 2024), called "Shi" below. The world
has r shared features (Shi: invariant), uniform on [0, 1] once multiplied by the label, and n = d - r environmental ones from
D_gamma: uniform on [0, 1] with probability 1/2 + gamma, else on [-1, 0]. Elsewhere gamma becomes -gamma. The model weighs the
features and sums them; by convexity and symmetry the optimum has one weight alpha on the shared and one weight beta on the
environmental features. The identity for their ratio, the transition, and the selection by the nuclear norm are derived in
chapter 12.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import optimize, special, stats

# --- Two features: the plane of section 6.3.1 ---


def plane_accuracy(ratio, share):
    """Accuracy of the rule ``sign(x_1 + ratio x_2)``, ``ratio >= 0``, in the plane.

    ``x_1`` goes with the label always, ``x_2`` with probability ``share`` (0.7 where Shi trains, 0.3 where he tests). Arrays
    are broadcast. Source: derived for the world of Shi, section 6.3.1.
    """
    ratio = np.asarray(ratio, dtype=float)
    near = 1 - (1 - share) * ratio / 2
    far = share + (1 - share) / (2 * np.maximum(ratio, 1e-300))
    return np.where(ratio <= 1, near, far)


def plane_moments(gamma: float) -> tuple[np.ndarray, np.ndarray]:
    """``E[yx]`` ``(2,)`` and ``E[xx^T]`` ``(2, 2)`` in the plane."""
    return np.array([0.5, gamma]), np.array([[1 / 3, gamma / 2], [gamma / 2, 1 / 3]])


def plane_loss(beta: np.ndarray, gamma: float) -> tuple[float, np.ndarray]:
    """Logistic loss of ``x -> <beta, x>`` on the population in the plane, and its gradient ``(2,)``, by quadrature."""
    z, mass = _plane_grid(gamma)
    margin = z @ beta
    slope = -special.expit(-margin) * mass
    return float(np.logaddexp(0, -margin) @ mass), slope @ z


@functools.cache
def _plane_grid(gamma: float):
    node, weight = np.polynomial.legendre.leggauss(40)
    node, weight = (node + 1) / 2, weight / 2
    second = np.concatenate([node, -node])
    mass = np.concatenate([(0.5 + gamma) * weight, (0.5 - gamma) * weight])
    first, other = np.meshgrid(node, second, indexing="ij")
    return np.stack([first.ravel(), other.ravel()], 1), np.outer(weight, mass).ravel()


PENALTIES = ("decay", "nuclear", "diagonal")


def plane_optimum(penalty: str, weight: float, gamma: float = 0.2) -> np.ndarray:
    """Weights ``(2,)`` that minimise the population loss in the plane plus a penalty.

    ``"decay"``: ``weight / 2 |beta|^2``; ``"nuclear"``: ``weight |X A^T|_* / sqrt(n)`` for a full matrix A under a fixed head
    of length 1, which is ``weight sqrt(beta^T Sigma beta)``; ``"diagonal"``: the same for diagonal A. The nuclear norms are
    convex in the weights, so what is found is the optimum. ``ValueError`` for another penalty or a weight that is not
    positive.
    """
    if penalty not in PENALTIES or weight <= 0:
        raise ValueError(f"penalty must be one of {', '.join(PENALTIES)} with a positive weight, got {penalty!r}, {weight}")
    form = plane_moments(gamma)[1]  # the nuclear norm is the root of a quadratic form
    if penalty == "diagonal":
        # for beta_2 >= 0, where the optimum is: the loss falls when the sign of a negative beta_2 is turned
        form = np.where(np.eye(2), form, math.sqrt(np.linalg.det(form)))

    def objective(beta):
        loss, slope = plane_loss(beta, gamma)
        if penalty == "decay":
            return loss + weight / 2 * beta @ beta, slope + weight * beta
        size = math.sqrt(max(beta @ form @ beta, 1e-300))
        return loss + weight * size, slope + weight * (form @ beta) / size

    precise = {"ftol": 1e-15, "gtol": 1e-11, "maxiter": 5000}
    return optimize.minimize(objective, [1.0, 0.2], jac=True, bounds=[(0, None)] * 2, method="L-BFGS-B", options=precise).x


# --- Many features: the population of section 6.4, exactly ---


class GroupPopulation(NamedTuple):
    """World of ``r`` shared features of D_``strength`` and ``n`` environmental ones of D_``gamma``, with infinite data.

    The strength 1/2 makes shared features uniform on [0, 1]. With ``|l'(m)| = 1 / (1 + e^m)``, which is the integral of ``Re
    e^(-sm) / cosh(pi t)`` over ``s = 1/2 + it``, ``t > 0``, expectations over the margin are integrals of products of known
    transforms. The trapezoidal rule is exact to rounding; no point is sampled. Source: Shi, section 6.4.
    """

    r: int
    n: int
    gamma: float
    strength: float = 0.5

    @property
    def _variances(self) -> tuple[float, float]:
        """Variances of a shared and an environmental feature, ``1/3 - gamma^2`` (Shi, Lemma E.3)."""
        return 1 / 3 - self.strength**2, 1 / 3 - self.gamma**2

    def _line(self, alpha: float, beta: float):
        """Return points s, transforms of both kinds of features, and those of all others but one of each, with weights."""
        step = math.pi / (40 + alpha * self.r + beta * self.n)  # of the aliases nothing is left
        t = step * np.arange(math.ceil(12 / step))
        s = 0.5 + 1j * t
        one, two = _transform(alpha * s, self.strength), _transform(beta * s, self.gamma)
        others = one ** (self.r - 1) * two ** (self.n - 1) * step / np.cosh(math.pi * t)
        others[0] /= 2
        return s, one, two, others

    def slope(self, alpha: float, beta: float) -> float:
        """Return ``E|l'(m)|`` at the margin m of the weights ``alpha > 0`` and ``beta >= 0``."""
        _, one, two, others = self._line(alpha, beta)
        return float((one * two @ others).real)

    def pushes(self, alpha: float, beta: float) -> tuple[float, float]:
        """Return ``E[|l'(m)| z_j]`` for a shared and for an environmental feature, ``alpha > 0`` and ``beta >= 0``."""
        s, one, two, others = self._line(alpha, beta)
        by_r, by_u = _transform_mean(alpha * s, self.strength), _transform_mean(beta * s, self.gamma)
        return float((by_r * two @ others).real), float((one * by_u @ others).real)

    def bends(self, alpha: float, beta: float) -> tuple[float, float]:
        """Return ``E[l''(m) tau(z_j)]``, with the Stein kernels tau, for a shared and for an environmental feature."""
        s, one, two, others = self._line(alpha, beta)
        node, mass = np.polynomial.legendre.leggauss(48)
        node, mass = np.concatenate([node + 1, -node - 1]) / 2, np.concatenate([mass, mass]) / 2

        def kernel(weight, gamma):
            share = np.where(node > 0, 0.5 + gamma, 0.5 - gamma) * mass * stein_kernel(node, gamma)
            return np.exp(-np.multiply.outer(weight * s, node)) @ share

        by_r, by_u = kernel(alpha, self.strength), kernel(beta, self.gamma)
        return float((s * by_r * two @ others).real), float((s * one * by_u @ others).real)

    def decay_optimum(self, weight: float) -> tuple[float, float]:
        """Return the optimum ``(alpha, beta)`` under ``weight / 2 |w|^2``, weight positive.

        Source: Shi, eq. (6.4) and Lemma 6.1.
        """

        def slope(logs):
            weights = np.exp(logs)
            return np.log(self.pushes(*weights)) - np.log(weight * weights)

        # From weights in the ratio of correlations whose mean margin m solves weight m = sigmoid(-m) |E z|^2.
        square = self.r * self.strength**2 + self.n * self.gamma**2
        margin = optimize.brentq(lambda m: weight * m - special.expit(-m) * square, 0, 200 + 2 * square / weight)
        guess = np.array([self.strength, self.gamma]) * margin / square
        found = optimize.root(slope, np.log(guess), tol=1e-13, options={"eps": 1e-10})
        if np.abs(found.fun).max() > 1e-6:
            raise ValueError(f"no optimum found at weight {weight}: {found.message}")
        return tuple(np.exp(found.x))

    def mean_margin(self, ratio: float) -> float:
        """Return the mean margin elsewhere over beta, at ``alpha / beta = ratio``."""
        return ratio * self.r * self.strength - self.n * self.gamma

    def _deviation(self, ratio: float) -> float:
        """Return the standard deviation of the margin over beta."""
        of_shared, of_environmental = self._variances
        return math.sqrt(ratio**2 * self.r * of_shared + self.n * of_environmental)

    def accuracy(self, ratio: float, gamma: float | None = None) -> float:
        """Return the probability of a positive margin at ``alpha / beta = ratio`` if environmental features are of D_gamma.

        By default gamma is minus the training one, that is, elsewhere. By the inversion of Gil-Pelaez, exact to about 1e-12.
        ``ValueError`` for fewer than 8 shared features.
        """
        if self.r < 8:
            raise ValueError(f"at least 8 shared features are needed, got {self.r}")
        gamma = -self.gamma if gamma is None else gamma
        deviation, mean = self._deviation(ratio), ratio * self.r * self.strength + self.n * gamma

        # Im E exp(itm) / t is even: a sum replaces the integral exactly while the margins stay within half a period.
        step = math.pi / (abs(mean) + 14 * deviation)
        t = step * np.arange(1, math.ceil(12 / deviation / step))  # beyond it the integrand is below exp(-70)
        one, two = _transform(-1j * ratio * t, self.strength), _transform(-1j * t, gamma)
        wave = (one**self.r * two**self.n).imag / t
        return float(np.clip(0.5 + step / math.pi * (mean / 2 + wave.sum()), 0, 1))

    def normal_accuracy(self, ratio: float) -> float:
        """Return what :meth:`accuracy` is elsewhere if the margin is normal."""
        return float(stats.norm.cdf(self.mean_margin(ratio) / self._deviation(ratio)))

    # -- under the nuclear norm of X diag(w) / sqrt(N) --

    def _prices(self) -> tuple[float, float]:
        """Return the slopes of the nuclear norm at beta = 0: in alpha and, upwards, in beta."""
        (v, u), means = self._variances, (self.r * self.strength**2, self.n * self.gamma**2)
        square = v + means[0]
        root = math.sqrt(square * (u + means[1]) - means[0] * means[1])  # of the determinant of the block of means
        return (self.r - 1) * math.sqrt(v) + math.sqrt(square), (self.n - 1) * math.sqrt(u) + root / math.sqrt(square)

    def _nuclear_alpha(self, weight: float) -> float:
        """Return the optimum in alpha at beta = 0 under ``weight`` times the norm; 0 where the weight leaves no feature."""
        if weight >= self.nuclear_limit():
            return 0.0
        price, high = weight * self._prices()[0] / self.r, -3

        def over(log):
            return self.pushes(math.exp(log), 0.0)[0] / price - 1

        while over(high) > 0:
            high += 1
        return math.exp(optimize.brentq(over, -14, high))

    def excess(self, weight: float) -> float:
        """Return by how much environmental features fall short of their price, relative: if positive, they get no weight.

        ``ValueError`` from :meth:`nuclear_limit` on, where no shared feature is left and the price is another. Chapter 12.
        """
        alpha = self._nuclear_alpha(weight)
        if not alpha:
            raise ValueError(f"weight must be below {self.nuclear_limit():g}, got {weight:g}")
        return 1 - self.n * self.gamma * self.slope(alpha, 0.0) / (weight * self._prices()[1])

    def nuclear_limit(self) -> float:
        """Return the weight from which on the nuclear norm leaves no shared feature, if there are no others."""
        return self.r * self.strength / 2 / self._prices()[0]


def _transform(u: np.ndarray, gamma: float) -> np.ndarray:
    """Return ``E exp(-uz)`` for z from D_gamma."""
    if not u.any():
        return np.ones_like(u)
    return ((0.5 - gamma) * np.expm1(u) - (0.5 + gamma) * np.expm1(-u)) / u


def _transform_mean(u: np.ndarray, gamma: float) -> np.ndarray:
    """Return ``E[z exp(-uz)]`` for z from D_gamma."""
    if not u.any():
        return np.full_like(u, gamma)
    one, other = (-np.expm1(-v) - v * np.exp(-v) for v in (u, -u))
    return ((0.5 + gamma) * one - (0.5 - gamma) * other) / u**2


def stein_kernel(z, gamma: float = 0.5):
    """Return the function tau with ``Cov(g(z), z) = E[g'(z) tau(z)]`` for all smooth g, of D_gamma; by default of U[0, 1].

    It is ``E[(z' - E z') 1(z' > z)]`` over the density at z; its mean is the variance, and it is at most ``1/2 + gamma``, or
    1/8 for U[0, 1].
    """
    z = np.asarray(z, dtype=float)
    return np.where(z >= 0, (1 - z) * (1 + z - 2 * gamma) / 2, (1 + z) * (1 - z + 2 * gamma) / 2)


def ratio_bounds(alpha: float, gamma: float) -> tuple[float, float]:
    """Return the bounds of ``2 gamma alpha / beta`` at the optimum under weight decay, for any weight: chapter 12."""
    return 1 - alpha / 4, 1 + (1 + 2 * gamma) * alpha


def transition(r: int, gamma: float) -> float:
    """Return the number of features d* at which strong weight decay turns from right to wrong: ``r + r / (4 gamma^2)``."""
    return r + r / (4 * gamma**2)
