"""Closed forms of *Provably Learning Diverse Features in Multi-View Data with Midpoint Mixup*.

Source: Chidambaram, Wang, Wu and Ge 2024 (arXiv 2210.13512), called "Chidambaram et al. 2024" below.

The linear part of the paper has data ``x = beta v_{y,1} + (1 - beta) v_{y,2}`` with ``beta`` uniform on [0.1, 0.9], all
features orthonormal, labels uniform on ``n_classes`` classes, and a model ``g_y(x) = <w_y, x>``. A class is described
by its two *correlations* ``(<w_y, v_{y,1}>, <w_y, v_{y,2}>)``; their difference is its *gap*. Cross-class correlations
are 0 unless a function takes them. The non-linear part has patches and the smoothed ReLU with exponent ``act_power``
(alpha) and ``threshold`` (rho).
"""

from functools import lru_cache

import numpy as np
from scipy.integrate import solve_ivp
from scipy.linalg import eigh_tridiagonal
from scipy.optimize import linprog, minimize_scalar
from scipy.special import digamma, expit

BETA_RANGE = (0.1, 0.9)
"""Support of the coefficient of the first feature in the linear data (Chidambaram et al. 2024, Def. 3.1)."""


# --- Losses of a model that has learned both features equally (Lemma 3.2, Proposition 3.3) ---


def cross_pair_fraction(counts):
    """Return the fraction of the N^2 ordered pairs of points whose labels differ, ``1 - sum_y (n_y / N)^2``.

    ``counts`` ``(..., n_classes)``: points per class, nonnegative with a positive sum (``ValueError`` otherwise).
    Source: Chidambaram et al. 2024, Lemma 3.2 (the constant in front of its cross-class term).
    """
    counts = np.asarray(counts, dtype=float)
    total = counts.sum(-1, keepdims=True)
    if np.any(counts < 0) or np.any(total <= 0):
        raise ValueError("counts must be nonnegative and must not all be zero")
    return 1.0 - np.sum((counts / total) ** 2, axis=-1)


def midpoint_loss(c, n_classes, p_cross):
    """Return the Midpoint Mixup loss of the linear model whose within-class correlations all equal ``c``.

    ``p_cross log(2 + (k-2) e^{-c/2}) + (1 - p_cross) log(1 + (k-1) e^{-c})``, exact for every sample because the
    mirrored coefficients sum to one. Arguments broadcast; ``c`` is any real, ``n_classes >= 2``, ``p_cross`` in [0, 1]
    is the fraction of cross-class pairs (:func:`cross_pair_fraction`); ``ValueError`` outside these ranges. Source:
    Chidambaram et al. 2024, Lemma 3.2.
    """
    c, k = np.asarray(c, dtype=float), _classes(n_classes)
    p_cross = _checked(p_cross, lambda p: (p >= 0) & (p <= 1), "p_cross must lie in [0, 1]")
    cross = np.logaddexp(np.log(2.0), _log(k - 2) - c / 2)
    same = np.logaddexp(0.0, np.log(k - 1) - c)
    return p_cross * cross + (1 - p_cross) * same


def _expected_entropy(beta_a):
    """Return the mean label entropy ``E[-l log l - (1-l) log(1-l)]`` in nats for ``l ~ Beta(beta_a, beta_a)``.

    Equals ``digamma(2a+1) - digamma(a+1)``: 0 at a -> 0, 1/2 for uniform mixing (a = 1), log 2 at the midpoint limit
    a -> infinity. It is the smallest loss any function can have on a cross-class pair. Broadcasts over ``beta_a > 0``
    (``ValueError`` otherwise). Source: Chidambaram et al. 2024, Eq. (C.3).
    """
    a = _positive(beta_a, "beta_a")
    return digamma(2 * a + 1) - digamma(a + 1)


def _mixup_gap(n_classes, scale, beta_a):
    """Return the excess Mixup loss on one cross-class pair, over the best function, for equal correlations ``scale``.

    ``E[log(k-2 + e^{l C} + e^{(1-l) C}) - (l^2 + (1-l)^2) C] - E[entropy(l)]`` with ``C = scale`` and ``l ~
    Beta(beta_a, beta_a)``: positive and convex in ``scale``. All cross-class pairs are alike, so the excess of the
    whole loss is at least the fraction of cross-class pairs times this number.

    ``n_classes >= 2`` and ``beta_a > 0`` are scalars, ``scale`` any array; the result has the shape of ``scale``.
    Source: Chidambaram et al. 2024, Prop. 3.3.
    """
    k, a = float(_classes(n_classes)), float(_positive(beta_a, "beta_a"))
    mix, weights = _beta_rule(a)
    scale = np.asarray(scale, dtype=float)[..., None]  # (..., node)
    log_total = np.logaddexp(_log(k - 2), np.logaddexp(mix * scale, (1 - mix) * scale))
    return (log_total - (mix**2 + (1 - mix) ** 2) * scale) @ weights - _expected_entropy(a)


def minimal_mixup_gap(n_classes, beta_a):
    """Return the scale that minimises :func:`_mixup_gap`, and the minimum, ``(C*, gap)``.

    ``n_classes >= 2`` and ``beta_a > 0`` are scalars. The gap is positive for every finite ``beta_a`` and tends to 0 in the
    midpoint limit, where ``C*`` tends to infinity. Source: Chidambaram et al. 2024, Prop. 3.3 (its epsilon_0).
    """
    best = minimize_scalar(lambda scale: _mixup_gap(n_classes, scale, beta_a), bracket=(0.0, 1.0))
    return float(best.x), float(best.fun)


@lru_cache(maxsize=64)
def _beta_rule(beta_a, n_nodes=128):
    """Return a Gauss rule for Beta(a, a): nodes in (0, 1) and weights that sum to 1 (Golub-Welsch, Jacobi recurrence).

    The density is the weight function, so neither the singularities at a < 1 nor the narrow peak at large a cost accuracy.
    """
    n = np.arange(2, n_nodes)
    squares = np.r_[1 / (2 * beta_a + 1), n * (n + 2 * beta_a - 2) / ((2 * n + 2 * beta_a - 3) * (2 * n + 2 * beta_a - 1))]
    nodes, vectors = eigh_tridiagonal(np.zeros(n_nodes), np.sqrt(squares))
    return (1 + nodes) / 2, vectors[0] ** 2


# --- Population gradients of the linear model (Propositions 3.4 and 3.5) ---


def _gradient_correlations(own, other, n_classes, objective="midpoint"):
    """Return ``n_classes`` times the population ``(<-grad_{w_y} J, v_{y,1}>, <-grad_{w_y} J, v_{y,2}>)`` of a linear model.

    ``own``: the two correlations of class y, shape (..., 2). ``other``: those shared by each of the other classes, same
    shape; they matter only for ``objective="midpoint"``. ``objective`` is ``"erm"`` (cross-entropy) or ``"midpoint"``.
    Leading shapes broadcast with ``n_classes >= 2``; two arrays of the broadcast shape are returned. Gauss-Legendre in
    each coefficient. ``ValueError`` for an unknown objective or a wrong last axis.
    Source: Chidambaram et al. 2024, Def. 3.1 and Calculations (A.9), (A.10).
    """
    k, own, other = _classes(n_classes)[..., None, None], np.asarray(own, dtype=float), np.asarray(other, dtype=float)
    if own.shape[-1:] != (2,) or other.shape[-1:] != (2,):
        raise ValueError("own and other must have a last axis of length 2")
    beta, w = _legendre(200)  # errors below 1e-12 for correlations up to 75, 1e-7 up to 150
    first, second = beta[:, None], beta[None, :]  # the pair of coefficients: (node, 1), (1, node)
    out_own = _class_output(own, first)  # g_y on a point of class y: (..., node, 1)
    if objective == "erm":
        miss = expit(np.log(k - 1) - out_own)[..., 0]  # 1 - phi_y: (..., node)
        return miss @ (w * beta), miss @ (w * (1 - beta))
    if objective != "midpoint":
        raise ValueError(f"objective must be 'erm' or 'midpoint', got {objective!r}")
    log_rest = np.logaddexp(_log(k - 2), _class_output(other, second) / 2)
    cross = np.tanh((log_rest - out_own / 2) / 2)  # A_1 = 1 - 2 phi_y on a cross-class midpoint
    same = expit(np.log(k - 1) - (out_own + _class_output(own, second)) / 2)  # A_2 = 1 - phi_y, both points of class y
    k = k[..., 0, 0]
    to_first = (k - 1) / (2 * k) * _mean2(cross * first, w) + _mean2(same * (first + second) / 2, w) / k
    to_either = (k - 1) / (2 * k) * _mean2(cross, w) + _mean2(same, w) / k
    return to_first, to_either - to_first


def population_losses(c1, c2, n_classes):
    """Return the population losses ``(ERM, Midpoint Mixup)`` of the linear model with correlations c1, c2 in every class.

    ``c1`` and ``c2`` broadcast; Gauss-Legendre with 40 nodes in each coefficient. Source: Chidambaram et al. 2024, Def. 3.1 and
    eqs. (2.1), (3.1).
    """
    beta, weight = _legendre(40)
    own = np.asarray(c1)[..., None] * beta + np.asarray(c2)[..., None] * (1 - beta)  # a point's own logit
    erm = np.log1p((n_classes - 1) * np.exp(-own)) @ weight
    i, j = own[..., :, None] / 2, own[..., None, :] / 2  # contribution of each end of a pair
    different = np.log(n_classes - 2 + np.exp(i) + np.exp(j)) - (i + j) / 2
    same = np.log1p((n_classes - 1) * np.exp(-(i + j)))
    pairs = (1 - 1 / n_classes) * different + same / n_classes
    return erm, pairs @ weight @ weight


def gradient_flow(objective, start, n_classes, time):
    """Return the path ``(2, looks)`` of the two correlations of that model under gradient flow from ``start``.

    ``time`` is in units of ``n_classes``. Cross-class correlations do not stay 0 under the flow, but only the differences
    ``<w_y - w_s, v_{y,l}>`` matter, which follow the same curve, faster by the factor ``k / (k - 1)``.
    """

    def push(_, c):
        return _gradient_correlations(c, c, n_classes, objective)

    return solve_ivp(push, (0, time), start, method="LSODA", rtol=1e-6).y


def linear_gradient_correlations(scale, n_classes, objective="midpoint", others="zero"):
    """Return ``n_classes`` times the two gradient correlations of a class with ``w_y = scale log(k) v_{y,1}``.

    ``scale`` (the paper's C) and ``n_classes >= 2`` broadcast. ``others`` says what the other classes have learned:
    ``"zero"`` nothing, ``"same-gap"`` the same as class y, ``"equal"`` both features with correlation
    ``scale log(k) / 2``. The arrays are the correlations with v_{y,1} and v_{y,2}. Raises ``ValueError`` for an unknown name.
    Source: the setting of Chidambaram et al. 2024, Props. 3.4 and 3.5.
    """
    known = {"zero": (0.0, 0.0), "same-gap": (1.0, 0.0), "equal": (0.5, 0.5)}
    if others not in known:
        raise ValueError(f"others must be one of {sorted(known)}, got {others!r}")
    gap = (np.asarray(scale, dtype=float) * np.log(_classes(n_classes)))[..., None]
    return _gradient_correlations(gap * np.array([1.0, 0.0]), gap * np.array(known[others]), n_classes, objective)


def erm_gradient_bound(scale, n_classes):
    """Return the push of cross-entropy on the lagging feature, ``<-grad_{w_y} J, v_{y,2}>``, and its bound.

    ``exact`` is the population value at ``w_y = scale log(k) v_{y,1}``, the largest among all models with gap at least
    ``scale log(k)``, ``<w_y, v_{y,2}> >= 0`` and no cross-class correlation. ``bound`` replaces every output by its
    smallest value ``a log(k)``, ``a = 0.1 scale``: ``(k-1) / (k^a + k-1) * E[1 - beta] / k``. ``scale >= 0`` and
    ``n_classes >= 2`` broadcast (``ValueError`` otherwise). Source: Chidambaram et al. 2024, Prop. 3.5.
    """
    k, scale = _classes(n_classes), _checked(scale, lambda s: s >= 0, "scale must be nonnegative")
    exact = linear_gradient_correlations(scale, k, "erm")[1] / k
    return exact, expit(np.log(k - 1) - BETA_RANGE[0] * scale * np.log(k)) / (2 * k)


def empirical_gap_gradient(coefficients, labels, correlations):
    """Return ``<-grad_{w_y} J_MM, v_{y,1} - v_{y,2}>`` on a sample for every class y, split into its two sums.

    ``coefficients``: beta_i in front of the first feature, shape (N,). ``labels``: integers in [0, k), shape (N,).
    ``correlations``: ``<w_y, v_{s,l}>`` at ``[y, s, l]``, shape (k, k, 2); cross-class entries need not vanish.
    Returns ``(cross, same)``, shape (k,) each; the gradient is their sum:

    ``cross = 1/N^2 sum_{i in y, j not in y} (1 - 2 phi_y(z_ij)) (beta_i - 1/2)``,
    ``same  = 2/N^2 sum_{i, j in y} (1 - phi_y(z_ij)) (beta_i - 1/2)``.

    ``ValueError`` when shapes or labels do not fit. Source: Chidambaram et al. 2024, Eq. (C.6), which prints the second
    sum without its factor 2. Memory: N^2 k floats.
    """
    beta, labels = np.asarray(coefficients, dtype=float), np.asarray(labels)
    corr = np.asarray(correlations, dtype=float)
    k = corr.shape[0]
    if corr.shape != (k, k, 2) or beta.ndim != 1 or labels.shape != beta.shape:
        shapes = beta.shape, labels.shape, corr.shape
        raise ValueError(f"expected coefficients (N,), labels (N,) and correlations (k, k, 2), got shapes {shapes}")
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0 or labels.max() >= k:
        raise ValueError("labels must be integers in [0, k)")
    out = (corr[:, labels, 0] * beta + corr[:, labels, 1] * (1 - beta)).T  # (point, class)
    mid = (out[:, None] + out[None, :]) / 2  # (point i, point j, class)
    mid = np.exp(mid - mid.max(-1, keepdims=True))
    phi = mid / mid.sum(-1, keepdims=True)
    member = labels[:, None] == np.arange(k)  # (point, class)
    push = member * (beta - 0.5)[:, None] / len(beta) ** 2
    cross = np.einsum("iy,jy,ijy->y", push, ~member, 1 - 2 * phi)
    same = 2 * np.einsum("iy,jy,ijy->y", push, member, 1 - phi)
    return cross, same


# --- Linear classifiers on the patch data (Proposition 4.4) ---


def separable(n_classes, signal, noise):
    """Return whether some linear classifier ``h_y(x) = sum_p <w_y, x^(p)>`` fits every point, by linear programming.

    Every (label u, noise class v != u) occurs, and its patches sum to ``signal V_u + noise V_v`` with ``V_a = v_{a,1} +
    v_{a,2}``. The unknowns are ``M[a, b] = <w_a, V_b>``; each competitor s != u demands ``signal (M[u,u] - M[s,u]) +
    noise (M[u,v] - M[s,v]) >= 1``. With P patches, C_P per view, mirrored coefficients at their mean delta_2 / 2 and
    noise level gamma, ``signal = C_P delta_2 / 2`` and ``noise = (P - 2 C_P) gamma``. ``n_classes >= 2`` integer,
    ``signal > 0``, ``noise >= 0`` (``ValueError`` otherwise); ``RuntimeError`` if the solver gives no verdict. Source:
    Chidambaram et al. 2024, Prop. 4.4.
    """
    k, signal = int(_classes(n_classes)), float(_positive(signal, "signal"))
    if not noise >= 0:
        raise ValueError("noise must be nonnegative")
    u, v, s = np.indices((k, k, k)).reshape(3, -1)
    keep = (v != u) & (s != u)
    u, v, s = u[keep], v[keep], s[keep]
    row, demands = np.arange(len(u)), np.zeros((len(u), k, k))
    for place, entry in (((u, u), signal), ((u, v), noise), ((s, u), -signal), ((s, v), -noise)):
        demands[row, *place] += entry / max(signal, noise)
    result = linprog(np.zeros(k * k), A_ub=-demands.reshape(-1, k * k), b_ub=-np.ones(len(row)), bounds=(None, None))
    if result.status not in (0, 2):
        raise RuntimeError(f"linear program undecided: {result.message}")
    return result.status == 0


# --- Winner-take-all in the polynomial part of the activation (Claims B.10-B.12) ---


def feature_strength(coefficients, labels, n_classes, act_power):
    """Return the strength ``S_{y,l} = 1/N sum_{i: y_i = y} sum_p beta_{i,p}^alpha`` of feature l of class y in the data.

    ``coefficients``: nonnegative, shape (N, 2, C_P), feature l of point i's own class in its signal patches.
    ``labels``: integers, shape (N,). Returns shape (n_classes, 2). ``ValueError`` when the shapes do not fit. Source:
    Chidambaram et al. 2024, App. B, before Claim B.10.
    """
    coefficients, labels = np.asarray(coefficients, dtype=float), np.asarray(labels)
    if coefficients.ndim != 3 or coefficients.shape[1] != 2 or labels.shape != coefficients.shape[:1]:
        shapes = coefficients.shape, labels.shape
        raise ValueError(f"expected coefficients (N, 2, C_P) and labels (N,), got shapes {shapes}")
    member = labels[:, None] == np.arange(int(_classes(n_classes)))  # (point, class)
    return member.T @ (coefficients**act_power).sum(-1) / len(labels)


def predicted_winner(strength, initial_correlation, act_power):
    """Return the index (0 or 1) of the feature that ERM learns, ``argmax_l S_l^{1/(alpha-2)} Lambda_l(0)``.

    ``strength`` >= 0 and ``initial_correlation`` (the largest over the neurons of the class), shapes (..., 2),
    broadcast. A negative correlation never grows; the index is -1 where neither feature can grow. ``act_power > 2``
    (``ValueError`` otherwise). Source: Chidambaram et al. 2024, Claim B.10.
    """
    _check_power(act_power)
    score = np.asarray(strength, dtype=float) ** (1 / (act_power - 2)) * np.maximum(initial_correlation, 0.0)
    return np.where(score.max(-1) > 0, score.argmax(-1), -1)[()]


def escape_time(initial_correlation, strength, n_classes, act_power, threshold, level):
    """Return the time in which a correlation grows to ``level`` in the polynomial part of the activation.

    Solves ``ds/dt = c s^{alpha-1}``, ``c = (1 - 1/k) S / rho^{alpha-1}`` (the class is not yet fitted, so
    ``1 - phi_y = 1 - 1/k``): ``(s0^{-(alpha-2)} - level^{-(alpha-2)}) / ((alpha-2) c)``. Broadcasts over
    ``initial_correlation`` and ``strength``; 0 from ``level`` on, infinity for a correlation or strength that is not
    positive. ``act_power > 2``, the rest positive (``ValueError`` otherwise). Valid up to
    ``level = threshold / (largest coefficient)``. Source: Chidambaram et al. 2024, Claims B.10-B.12, Eq. (B.13).
    """
    _check_power(act_power)
    threshold, level = float(_positive(threshold, "threshold")), float(_positive(level, "level"))
    start, strength = np.asarray(initial_correlation, dtype=float), np.asarray(strength, dtype=float)
    power = act_power - 2
    with np.errstate(divide="ignore", invalid="ignore"):
        # in units of rho, so that large powers of small numbers cancel
        way = (np.maximum(start, 0.0) / threshold) ** -power - (level / threshold) ** -power
        time = way * threshold / (power * (1 - 1 / _classes(n_classes)) * strength)
    return np.where(start >= level, 0.0, np.where((start > 0) & (strength > 0), time, np.inf))[()]


def race_bound(margin, power):
    """Return the largest growth factor of the slower of two power iterations ``x += eta x^{q-1}`` while the faster escapes.

    For ``x_0 = (1 + margin) S^{1/(q-2)} y_0`` and small steps, ``y(T_x) / y_0 <= (1 - (1+margin)^{-(q-2)})^{-1/(q-2)}``
    whatever the level and however small ``y_0``: the constant that Lemma B.11 hides in its polylog. ``margin > 0``
    broadcasts, ``power > 2`` (``ValueError`` otherwise). Source: integrating Chidambaram et al. 2024, Lemma B.11.
    """
    _check_power(power)
    p = power - 2
    return (-np.expm1(-p * np.log1p(_positive(margin, "margin")))) ** (-1 / p)


# --- Checks and quadrature ---


def _checked(value, right, rule):
    """Return a number or an array in float64, or raise ``ValueError`` with the rule if it breaks it."""
    value = np.asarray(value, dtype=float)
    if not np.all(right(value)):
        raise ValueError(rule)
    return value


def _classes(n_classes):
    return _checked(n_classes, lambda k: k >= 2, "n_classes must be at least 2")


def _positive(value, name):
    return _checked(value, lambda v: v > 0, f"{name} must be positive")


def _check_power(power):
    if not power > 2:
        raise ValueError(f"power must exceed 2 (at 2 growth is exponential), got {power}")


def _log(x):
    """Return the logarithm, with ``log 0 = -inf`` and no warning (with two classes there is no third one)."""
    with np.errstate(divide="ignore"):
        return np.log(x)


@lru_cache
def _legendre(n_nodes):
    """Return Gauss-Legendre nodes on the support of the coefficients, and weights of the uniform law (they sum to 1)."""
    (low, high), (x, w) = BETA_RANGE, np.polynomial.legendre.leggauss(n_nodes)
    return low + (high - low) * (x + 1) / 2, w / 2


def _class_output(correlations, beta):
    """Return the output of a class on its own points, shape (..., *beta.shape), or (..., 1, node) for a flat ``beta``."""
    return correlations[..., 0, None, None] * beta + correlations[..., 1, None, None] * (1 - beta)


def _mean2(values, weights):
    """Return the mean over a pair of independent coefficients, the last two axes."""
    values = np.broadcast_to(values, (*values.shape[:-2], len(weights), len(weights)))
    return np.einsum("...ij,i,j->...", values, weights, weights)
