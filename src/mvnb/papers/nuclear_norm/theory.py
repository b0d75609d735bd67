"""Closed forms for weight decay against rank and nuclear-norm penalties when environments change.

Source: Shi thesis 2024, chapter 6 and appendix E (after Shi, Ming, Fan, Sala and Liang 2024), called "Shi" below. The world
has r invariant features, uniform on [0, 1] once multiplied by the label, and n = d - r environmental ones from D_gamma:
uniform on [0, 1] with probability 1/2 + gamma, else on [-1, 0]. Elsewhere gamma becomes -gamma. The model weighs the features
and sums them; by convexity and symmetry the optimum has one weight alpha on the invariant and one weight beta on the
environmental features. The identity for their ratio, the transition, and what the nuclear norm does are derived in chapter 12.
"""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import numpy as np
from scipy import fft, optimize, special, stats

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


class Moments(NamedTuple):
    """Expectations at the weights (alpha, beta), all for one feature of a group.

    ``loss`` of the logistic loss; ``slope`` of ``|l'|``; ``bend_r`` and ``bend_u`` of ``l'' tau(z_j)`` for an invariant and an
    environmental feature, with the Stein kernels of the two laws.
    """

    loss: float
    slope: float
    bend_r: float
    bend_u: float


class GroupPopulation(NamedTuple):
    """The world of ``r`` invariant and ``n`` environmental features of correlation ``gamma``, with infinite data.

    The margin ``alpha S_R + beta S_U`` is a sum of many independent terms. Its density is the Fourier transform of a product
    of known functions, and the loss is analytic, so sums over a grid are exact to rounding; no point is sampled. ``r`` is at
    least 8, so that the density is smooth. Source: Shi, section 6.4.
    """

    r: int
    n: int
    gamma: float

    @property
    def _variance(self) -> float:
        """Variance of an environmental feature, ``1/3 - gamma^2`` (Shi, Lemma E.3)."""
        return 1 / 3 - self.gamma**2

    def _frequencies(self, alpha: float, beta: float):
        """A grid that covers the margins, frequencies, the two transforms, and that of all features but one of each group."""
        if self.r < 8:
            raise ValueError(f"at least 8 invariant features are needed, got {self.r}")
        low, high = -beta * self.n, alpha * self.r + beta * self.n
        deviation = math.sqrt(alpha**2 * self.r / 12 + beta**2 * self.n * self._variance)
        # Aliases of the density are below exp(-40), the loss is analytic in a strip: beyond this width nothing is gained.
        step = 0.35 * min(1.0, deviation)
        size = fft.next_fast_len(math.ceil(1.02 * (high - low) / step), real=True)
        grid = low - 0.01 * (high - low) + step * np.arange(size)
        t = 2 * math.pi * np.fft.rfftfreq(size, step)
        one, two = _uniform(alpha * t), self._environmental(_uniform(beta * t))
        others = one ** (self.r - 1) * two ** (self.n - 1) * np.exp(-1j * t * grid[0]) / size
        others[1 : (size + 1) // 2] *= 2  # the other half is the conjugate
        return grid, t, one, two, others

    def _environmental(self, uniform: np.ndarray, odd: bool = False) -> np.ndarray:
        """The transform for D_gamma from that for U[0, 1], of an even function of z or of an odd one."""
        other = -uniform.conj() if odd else uniform.conj()
        return (0.5 + self.gamma) * uniform + (0.5 - self.gamma) * other

    def _pushes(self, alpha: float, beta: float) -> tuple[float, float]:
        """Expectations of ``|l'| z_j`` for an invariant and for an environmental feature."""
        grid, t, one, two, others = self._frequencies(alpha, beta)
        wave = np.fft.rfft(special.expit(-grid)) * others
        pull_one, pull_two = _uniform_mean(alpha * t), self._environmental(_uniform_mean(beta * t), odd=True)
        return float((wave @ (pull_one * two)).real), float((wave @ (one * pull_two)).real)

    def moments(self, alpha: float, beta: float) -> Moments:
        """All expectations at once, for ``alpha > 0`` and ``beta >= 0``. ``ValueError`` for fewer than 8 invariant features."""
        grid, t, one, two, others = self._frequencies(alpha, beta)
        sigmoid = special.expit(-grid)
        loss, slope, bend = (np.fft.rfft(g) * others for g in (np.logaddexp(0, -grid), sigmoid, sigmoid * (1 - sigmoid)))
        node, weight = np.polynomial.legendre.leggauss(48)
        node, weight = (node + 1) / 2, weight / 2
        stein_one = np.exp(1j * np.multiply.outer(alpha * t, node)) @ (weight * stein_kernel(node))
        phase = np.exp(1j * np.multiply.outer(beta * t, node))
        stein_two = phase @ ((0.5 + self.gamma) * weight * stein_kernel(node, self.gamma))
        stein_two += phase.conj() @ ((0.5 - self.gamma) * weight * stein_kernel(-node, self.gamma))
        return Moments(
            float((loss @ (one * two)).real),
            float((slope @ (one * two)).real),
            float((bend @ (stein_one * two)).real),
            float((bend @ (one * stein_two)).real),
        )

    def decay_optimum(self, weight: float) -> tuple[float, float]:
        """The optimum ``(alpha, beta)`` under ``weight / 2 |w|^2``, weight positive. Source: Shi, eq. (6.4) and Lemma 6.1."""

        def slope(logs):
            alpha, beta = np.exp(logs)
            by_r, by_u = self._pushes(alpha, beta)
            return [math.log(by_r / (weight * alpha)), math.log(by_u / (weight * beta))]

        # From weights in the ratio 1 / (2 gamma) whose mean margin m solves weight m = sigmoid(-m) |E z|^2.
        square = self.r / 4 + self.n * self.gamma**2
        margin = optimize.brentq(lambda m: weight * m - special.expit(-m) * square, 0, 200 + 2 * square / weight)
        guess = margin / 2 / square, self.gamma * margin / square
        found = optimize.root(slope, np.log(guess), tol=1e-13, options={"eps": 1e-10})
        if np.abs(found.fun).max() > 1e-6:
            raise ValueError(f"no optimum found at weight {weight}: {found.message}")
        return tuple(np.exp(found.x))

    def accuracy(self, ratio: float, gamma: float | None = None) -> float:
        """Probability of a positive margin at ``alpha / beta = ratio`` where environmental features have correlation gamma.

        By default minus the training one, that is, elsewhere; by the inversion of Gil-Pelaez. Exact to about 1e-12.
        """
        gamma = -self.gamma if gamma is None else gamma
        deviation = math.sqrt(ratio**2 * self.r / 12 + self.n * self._variance)
        mean = ratio * self.r / 2 + self.n * gamma

        # Im E exp(itm) / t is even: a sum replaces the integral exactly while the margins stay within half a period.
        step = math.pi / (abs(mean) + 14 * deviation)
        t = step * np.arange(1, math.ceil(12 / deviation / step))  # beyond it the integrand is below exp(-70)
        one, two = _uniform(ratio * t), np.sinc(t / math.pi) + 4j * gamma * np.sin(t / 2) ** 2 / t
        wave = (one**self.r * two**self.n).imag / t
        return float(np.clip(0.5 + step / math.pi * (mean / 2 + wave.sum()), 0, 1))

    def normal_accuracy(self, ratio: float) -> float:
        """What :meth:`accuracy` is elsewhere if the margin were normal."""
        deviation = math.sqrt(ratio**2 * self.r / 12 + self.n * self._variance)
        return float(stats.norm.cdf((ratio * self.r / 2 - self.n * self.gamma) / deviation))

    # What the nuclear norm does to the same model.

    def _nuclear_prices(self) -> tuple[float, float]:
        """Slopes of the nuclear norm of ``X diag(w) / sqrt(N)`` at beta = 0: in alpha and, upwards, in beta."""
        r, n, g, v = self.r, self.n, self.gamma, self._variance
        square = 1 / 12 + r / 4
        root = math.sqrt(square * (v + n * g**2) - r * n * g**2 / 4)  # of the determinant of the block of means
        size = math.sqrt(square)
        return (r - 1) / math.sqrt(12) + size, (n - 1) * math.sqrt(v) + root / size

    def _nuclear_alpha(self, weight: float) -> float:
        """The optimum in alpha at beta = 0 under ``weight`` times the nuclear norm; 0 where the weight leaves nothing."""
        price = weight * self._nuclear_prices()[0]
        if price >= self.r / 4:
            return 0.0
        return math.exp(optimize.brentq(lambda log: self.r * self._pushes(math.exp(log), 0.0)[0] / price - 1, -14, 3))

    def excess(self, weight: float) -> float:
        """By how much environmental features fall short of their price, relative: if positive, the optimum is without them.

        ``ValueError`` from :meth:`nuclear_limit` on, where no invariant feature is left and the price is another. Chapter 12.
        """
        alpha = self._nuclear_alpha(weight)
        if not alpha:
            raise ValueError(f"weight must be below {self.nuclear_limit():g}, got {weight:g}")
        return 1 - self.n * self.gamma * self.moments(alpha, 0.0).slope / (weight * self._nuclear_prices()[1])

    def nuclear_limit(self) -> float:
        """The weight from which on the nuclear norm leaves nothing, where invariant features are the last to go."""
        return self.r / 4 / self._nuclear_prices()[0]


def _uniform(u: np.ndarray) -> np.ndarray:
    """``E exp(iuz)`` for z uniform on [0, 1]."""
    return np.exp(0.5j * u) * np.sinc(u / (2 * math.pi))


def _uniform_mean(u: np.ndarray) -> np.ndarray:
    """``E[z exp(iuz)]`` for z uniform on [0, 1]: half of the first two spherical Bessel functions at u/2."""
    return np.exp(0.5j * u) * (np.sinc(u / (2 * math.pi)) + 1j * special.spherical_jn(1, u / 2)) / 2


def stein_kernel(z, gamma: float | None = None):
    """The function tau with ``Cov(g(z), z) = E[g'(z) tau(z)]`` for all smooth g: of U[0, 1], or of D_gamma.

    It is ``E[(z' - E z') 1(z' > z)]`` over the density at z; its mean is the variance, and it is at most ``max(1/8, 1/2 +
    gamma)``.
    """
    z = np.asarray(z, dtype=float)
    if gamma is None:
        return z * (1 - z) / 2
    return np.where(z >= 0, (1 - z) * (1 + z - 2 * gamma) / 2, (1 + z) * (1 - z + 2 * gamma) / 2)


def ratio_bounds(alpha: float, gamma: float) -> tuple[float, float]:
    """Between what ``2 gamma alpha / beta`` lies at the optimum under weight decay, for any weight: chapter 12."""
    return 1 - alpha / 4, 1 + (1 + 2 * gamma) * alpha


def transition(r: int, gamma: float) -> float:
    """Number of features d* at which weight decay goes from right to wrong elsewhere: ``r + r / (4 gamma^2)``."""
    return r + r / (4 * gamma**2)
