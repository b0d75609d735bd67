"""Sparse parities in context with heads of linear attention: the bit code, its margins and its noise.

Source: Shi thesis 2024, section 5.5 and appendix D.3, called "Shi" below. Symbols: d = 2^nu hidden features phi in
{-1, 1}^d, of which the first k are important; a task is a pair (i, j) with label y = phi_i phi_j; gamma is the lean of its
pair towards 1. A head sees ``v . zeta`` with ``zeta = z * phi_q`` and ``z`` the mean of ``y phi`` over the context. The
counter-examples, the law of the accuracy and the counts are derived in chapter 11.
"""

from __future__ import annotations

from itertools import combinations
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

_SIGNS = np.array([(1, 1), (1, -1), (-1, 1), (-1, -1)])  # of a pair of features


class Heads(NamedTuple):
    """Read-out ``signs`` ``(m,)`` and diagonals ``values`` ``(m, d)`` of a network ``sum_i a_i relu(v_i . zeta)``."""

    signs: np.ndarray
    values: np.ndarray

    def __call__(self, zeta):
        """Outputs ``(...)`` at ``zeta`` ``(..., d)``."""
        return np.maximum(np.asarray(zeta) @ self.values.T, 0) @ self.signs

    @property
    def norm(self) -> float:
        """Squared Frobenius norm of all weights, what weight decay charges."""
        return float((self.values**2).sum())


def digits(n_bits, n_used=None):
    """Vectors ``(n_used, 2^n_bits)`` of -1 and 1: row n is the n-th binary digit of 0, 1, 2, ..., from the right."""
    place = np.arange(n_bits if n_used is None else n_used)[:, None]
    return 2.0 * (np.arange(2**n_bits) >> place & 1) - 1


def bit_code(n_bits, n_used, gamma):
    """The thesis's network with ``2 (n_used + 1)`` heads for ``d = 2^n_bits`` features. Source: Shi, Theorem 5.5.1.

    ``n_used`` = nu_1 for the small model, ``n_bits`` = nu_2 for the large one; gamma in (0, 1/4). ``ValueError`` otherwise.
    """
    if not 0 < gamma < 0.25 or not 1 <= n_used <= n_bits:
        raise ValueError(f"gamma must lie in (0, 1/4) and n_used in 1 .. n_bits, got {gamma} and {n_used}")
    half = np.vstack([digits(n_bits, n_used), np.full((1, 2**n_bits), -n_used)]) / (4 * gamma)
    signs = np.append(-np.ones(n_used), 1.0)
    return Heads(np.tile(signs, 2), np.vstack([half, -half]))


def bit_code_output(zeta, n_used, gamma):
    """Its output ``(...)``, ``(nu |1 . zeta| - sum_n |b_n . zeta|) / (4 gamma)``, since heads come in pairs of signs."""
    zeta = np.asarray(zeta)
    bits = digits(int(np.log2(zeta.shape[-1])), n_used)
    return (n_used * np.abs(zeta.sum(-1)) - np.abs(zeta @ bits.T).sum(-1)) / (4 * gamma)


def patterns(d, gamma):
    """All noiseless inputs: ``zeta`` ``(P, 4, d)``, labels ``(4,)`` and pairs ``(P, 2)``, for the P pairs and four signs."""
    pairs = np.array(list(combinations(range(d), 2)))
    zeta = np.zeros((len(pairs), 4, d))
    np.put_along_axis(zeta, pairs[:, None], 2 * gamma * _SIGNS, 2)
    return zeta, _SIGNS.prod(1), pairs


def margins(heads, gamma):
    """``y g`` of a network on all noiseless inputs, ``(P, 4)``; zero hinge loss where it is 1 or more."""
    zeta, labels, _ = patterns(heads.values.shape[1], gamma)
    return labels * heads(zeta)


def hamming(pairs, n_used):
    """Return in how many of their first ``n_used`` digits the members of pairs ``(P, 2)`` (from 0) differ: ``(P,)``."""
    differ = np.bitwise_xor(*np.asarray(pairs).T)[:, None] >> np.arange(n_used) & 1
    return differ.sum(1)


def bit_code_norm(n_bits, n_used, gamma):
    """``d nu (nu + 1) / (8 gamma^2)``, the squared norm of :func:`bit_code`."""
    return 2**n_bits * n_used * (n_used + 1) / (8 * gamma**2)


def one_against_all(gamma):
    """A network of six heads for d = 4 with zero loss and a norm of ``2.75 / gamma^2``, below the bit code's 3."""
    negative = (4 * np.eye(4) - 1) / 2
    positive = np.full((1, 4), 2.0)
    values = np.vstack([positive, -positive, negative]) / (4 * gamma)
    return Heads(np.array([1.0, 1, -1, -1, -1, -1]), values)


def subset_code(n_negative, size, d, gamma):
    """``n_negative + 2`` heads for d features, each named by a subset of heads of this size, none inside another.

    Any two features then have a head that is positive on one and negative on the other, both ways round. ``ValueError`` when
    there are not d subsets.
    """
    names = list(combinations(range(n_negative), size))[:d]
    if len(names) < d:
        raise ValueError(f"{n_negative} heads have {len(names)} subsets of size {size}, fewer than {d}")
    member = np.array([[head in name for name in names] for head in range(n_negative)], dtype=float)
    both = (member.T @ member)[np.triu_indices(d, 1)].max()  # most heads that two features share
    scale = [1 + both, -(1 + n_negative - 2 * size + both)]  # as many negative heads fire on a positive pattern
    values = np.vstack([np.outer(scale, np.ones(d)), 2 * member - 1]) / (4 * gamma)
    return Heads(np.append([1.0, 1.0], -np.ones(n_negative)), values)


def ordering_code(d, gamma):
    """A network of four heads for any d, ``c |1 . zeta| - |v . zeta|``, whose v puts the features in order.

    Margins are ``|i - j|`` for label -1 and ``d - 1 - |i + j - d - 1|`` for label 1 (features from 1), both at least 1; the
    squared norm is ``d (d - 1) (2 d - 1) / (12 gamma^2)``.
    """
    half = np.vstack([np.full(d, (d - 1) / 2), np.arange(d) - (d - 1) / 2]) / (2 * gamma)
    return Heads(np.array([1.0, -1.0, 1.0, -1.0]), np.vstack([half, -half]))


# --- Finite contexts ---


def context_signal(pairs, d, n_context, gamma, generator: int | np.random.Generator, flip=0.0):
    """``zeta`` ``(n, d)`` and labels ``(n,)`` for contexts of ``n_context`` examples and a query, tasks ``pairs`` ``(n, 2)``.

    Drawn from the exact distribution of the sum, at a cost that does not depend on ``n_context``: off the pair ``y phi`` is a
    fair coin, and on it the counts of the four sign patterns tell all. ``flip`` is the probability of a flipped label.
    """
    generator = np.random.default_rng(generator)
    pairs, n = np.asarray(pairs), len(pairs)
    chance = np.array([0.25 + gamma, 0.25, 0.25, 0.25 - gamma])
    z = 2 * generator.binomial(n_context, 0.5, (n, d)) / n_context - 1
    chances = np.concatenate([(1 - flip) * chance, flip * chance])
    counts = generator.multinomial(n_context, chances, n)
    counts = counts[:, :4] - counts[:, 4:]  # (n, pattern), flipped ones negative
    query = 2.0 * generator.integers(0, 2, (n, d)) - 1
    drawn = _SIGNS[generator.choice(4, n, p=chance)]
    rows = np.arange(n)
    for own, other in ((0, 1), (1, 0)):
        z[rows, pairs[:, own]] = counts @ _SIGNS[:, other] / n_context  # y phi_i = phi_j
        query[rows, pairs[:, own]] = drawn[:, own]
    return z * query, drawn.prod(1)


def signal_to_noise(d, n_context, gamma, flip=0.0):
    """``4 gamma |1 - 2 flip| sqrt(M / d)``: mean over standard deviation of what every head sees, whatever the model's size."""
    return 4 * gamma * np.abs(1 - 2 * np.asarray(flip)) * np.sqrt(np.asarray(n_context) / d)


def small_accuracy(kappa):
    """Accuracy of the model with one digit, ``1 - 2 q (1 - q)`` with ``q = Phi(kappa / sqrt 2)``, for large M and d."""
    q = ndtr(np.asarray(kappa) / np.sqrt(2))
    return 1 - 2 * q * (1 - q)


def gaussian_accuracy(kappa, n_used, draws=20000):
    """Return the same for ``n_used`` digits and pairs that differ in one of them, by simulating ``n_used + 1`` normals.

    Inputs of the heads are independent normals of variance 1; their means are kappa for the sum and for digits that agree when
    the query's label is 1, and kappa for digits that differ when it is -1.
    """
    normal = np.random.default_rng(0).standard_normal((draws, n_used + 1))
    agree = np.append([1.0, 0.0], np.ones(n_used - 1))
    right = []
    for label, mean in ((1, kappa * agree), (-1, kappa * (1 - agree))):
        size = np.abs(normal + mean)
        right.append(np.mean(label * (n_used * size[:, 0] - size[:, 1:].sum(1)) > 0))
    return float(np.mean(right))


def projected_noise(heads, noise):
    """Return squared norms ``(n,)`` of ``noise`` ``(n, d)`` projected onto the span of the heads, with a pseudo-inverse."""
    basis = np.linalg.svd(heads.values, full_matrices=False)[2][: np.linalg.matrix_rank(heads.values)]
    return ((np.asarray(noise) @ basis.T) ** 2).sum(-1)
