r"""Maximum margins for addition modulo p with the activation z -> z^k, and networks that attain them.

Source: Shi thesis 2024, chapter 4 and appendix C (after Li et al. 2024), called "Shi" below. A neuron has k embeddings ``u_1``
to ``u_k`` and output weights ``w``, vectors with p entries, and writes ``(sum_i u_i(a_i))^k w``; p is odd. The designs by sets
of phases with fewer neurons, and the exact shares of the frequencies, are derived in chapter 10.

NumPy, float64. Fourier coefficients are ``numpy.fft``'s: ``sum_a f(a) exp(-2 pi i j a / p)``.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections import Counter

import numpy as np

# --- Margins ---


def max_margin(k, p):
    """The largest margin of networks with ``L_{2,k+1}`` norm 1; ``k`` at least 2 and ``p`` odd. Source: Shi, Theorem 4.9."""
    return 2 * math.factorial(k) / ((2 * k + 2) ** ((k + 1) / 2) * (p - 1) * p ** ((k - 1) / 2))


def neuron_margin(u, w):
    """A neuron's output at the right class minus its mean at the others, in the mean over all points, by Fourier transform.

    ``u`` ``(..., k, p)`` and ``w`` ``(..., p)``, any real numbers, p odd; returns ``(...)``. Source: Shi, Lemma C.14.
    """
    k, p = np.shape(u)[-2:]
    product = np.fft.fft(u).prod(-2) * np.conj(np.fft.fft(w))
    return math.factorial(k) * product[..., 1:].sum(-1).real / ((p - 1) * p**k)


def neuron_margin_gradient(u, w):
    """Gradients of :func:`neuron_margin` in ``u`` ``(..., k, p)`` and ``w`` ``(..., p)``."""
    k, p = np.shape(u)[-2:]
    at, back = np.fft.fft(u), np.conj(np.fft.fft(w))
    scale = math.factorial(k) / ((p - 1) * p**k)

    def pulled(coefficients):  # the gradient of Re sum_{j != 0} c_j x^(j) in a real vector x
        coefficients[..., 0] = 0
        return scale * np.fft.fft(coefficients).real

    others = np.stack([np.delete(at, i, -2).prod(-2) * back for i in range(k)], -2)
    return pulled(others), pulled(np.conj(at.prod(-2)))


def enumerated_margin(u, w):
    """The same as :func:`neuron_margin`, for one neuron and by its definition, over all ``p^k`` points."""
    k, p = u.shape
    total = functools.reduce(np.add.outer, u) ** k
    label = functools.reduce(np.add.outer, [np.arange(p)] * k) % p
    by_label = np.bincount(label.ravel(), total.ravel(), p) / p**k
    right = by_label @ w
    return right - (by_label.sum() * w.sum() - right) / (p - 1)


# --- Networks from sets of phases ---


def sign_phases(k):
    """Phases ``(2 * 4^(k-1), k)`` of the construction of Shi, Lemma C.18: quarter turns, the first one 0 or -1.

    A cosine has phase 0, a sine -1/4 of a turn, and a minus sign half a turn; the output weights' phase is the sum.
    """
    quarter = np.array(list(itertools.product((0, -1), *[range(4)] * (k - 1))))
    return quarter * np.pi / 2


def grid_phases(k):
    """Phases ``(3^k, k)``: every combination of thirds of a turn."""
    return np.array(list(itertools.product(range(3), repeat=k))) * 2 * np.pi / 3


def cyclic_phases(k):
    """Phases ``(2 * 3^(k-1), k)``: multiples of ``(1, 3, ..., 3^(k-2), 4 * 3^(k-2)) / (2 * 3^(k-1))`` of a turn."""
    n = 2 * 3 ** (k - 1)
    step = np.array([3**i for i in range(k - 1)] + [4 * 3 ** (k - 2)])
    return np.arange(n)[:, None] * step % n * (2 * np.pi / n)


def halved_phases():
    """Phases ``(16, 3)`` for k = 3: half of a group of order 32 that contains half a turn of all three."""
    turns = [(t, 5 * t + 4 * a, 5 * t + 4 * b) for t in range(4) for a in (0, 1) for b in (0, 1)]
    return np.array(turns) % 8 * np.pi / 4


def network(phases, p):
    """Embeddings ``u`` ``(k, p, m)`` and output weights ``w`` ``(m, p)`` of norm ``L_{2,k+1}`` 1, a neuron for each of the rows
    of ``phases`` ``(N, k)`` and each of the ``(p - 1) / 2`` frequencies: ``m = N (p - 1) / 2``, one frequency after the other.

    Embeddings are cosines with the phases given, output weights cosines with their sum. ``ValueError`` for even p.
    """
    if p % 2 == 0 or p < 3:
        raise ValueError(f"p must be odd and at least 3, got {p}")
    n, k = np.shape(phases)
    m = n * (p - 1) // 2
    size = math.sqrt(2 / ((k + 1) * p)) / m ** (1 / (k + 1))
    turn = 2 * np.pi / p * np.outer(np.arange(1, (p + 1) // 2), np.arange(p))  # (frequency, number)
    phases = np.asarray(phases)
    u = np.cos(phases.T[:, None, None] + turn.T[None, :, :, None])  # (k, number, frequency, N)
    w = np.cos(phases.sum(1)[None, :, None] + turn[:, None])  # (frequency, N, number)
    return size * u.reshape(k, p, m), size * w.reshape(m, p)


def surviving_modes(phases):
    """Fourier modes of ``(sum_j cos x_j)^k`` that are left when the neurons with these phases ``(N, k)`` are averaged.

    Integers ``(modes, k)``: n with ``|n|_1 <= k``, of the parity of k, and ``mean exp(i (n + 1) . phases) != 0``. The network
    of :func:`network` attains :func:`max_margin` when only ``(-1, ..., -1)`` is among them.
    """
    n = _modes(np.shape(phases)[1])
    return n[np.abs(np.exp(1j * (n + 1) @ np.transpose(phases)).mean(1)) > 1e-9]


def _modes(k):
    """Integer vectors with ``|n|_1 <= k`` and ``|n|_1 = k`` modulo 2."""
    n = np.array(list(itertools.product(range(-k, k + 1), repeat=k)))
    size = np.abs(n).sum(1)
    return n[(size <= k) & (size % 2 == k % 2)]


def fewest_neurons(k):
    """The least number of neurons a frequency whose phases form a group, or half of one, and attain the margin, by trying all
    groups; quick for k up to 3.

    Groups of N phases are the duals of the lattices of index N in ``Z^k``, which are listed by their Hermite normal forms.
    Half of a group does if it contains half a turn of all phases, which is the same neuron: if the lattice has even sums only.
    """
    forbidden = _modes(k) + 1
    forbidden = forbidden[forbidden.any(1)]

    def lattices(n):
        yield from _lattices(k, n)
        yield from (basis for basis in _lattices(k, 2 * n) if not (basis.sum(1) % 2).any())

    return next(n for n in itertools.count(1) if any(_avoids(basis, forbidden) for basis in lattices(n)))


def _lattices(k, index):
    """Lower triangular bases ``(k, k)`` (rows) of all lattices of an index: the entries below d are 0 to d - 1."""
    for diagonal in itertools.product(range(1, index + 1), repeat=k):
        if math.prod(diagonal) != index:
            continue
        below = np.tril_indices(k, -1)
        for entries in itertools.product(*(range(diagonal[column]) for column in below[1])):
            basis = np.diag(diagonal)
            basis[below] = entries
            yield basis


def _avoids(basis, vectors):
    """Whether no row of ``vectors`` is an integer combination of the rows of a lower triangular basis."""
    rest, inside = vectors.copy(), np.ones(len(vectors), dtype=bool)
    for row in reversed(range(len(basis))):
        times, left = np.divmod(rest[:, row], basis[row, row])
        inside &= left == 0
        rest = rest - times[:, None] * basis[row]
    return not inside.any()


# --- Twins: the same numbers in another order ---


def _orderings(k, p):
    """Number of different orders of the numbers of each multiset of k numbers below p: integers ``(multisets,)``."""
    counts = (Counter(one).values() for one in itertools.combinations_with_replacement(range(p), k))
    return np.array([math.factorial(k) // math.prod(map(math.factorial, count)) for count in counts])


def twin_share(k, p, n_train):
    """Expected share of the ``p^k - n_train`` test points of a random split that have a permutation in the training set."""
    n = _orderings(k, p)
    total, test = p**k, p**k - n_train
    # lone[j]: none of j given other points is in the training set
    lone = np.cumprod([1.0, *(max(test - j, 0) / (total - j) for j in range(1, n.max()))])
    return 1 - float((n * lone[n - 1]).sum()) / total


def known_share(k, p, n_train):
    """Expected share of the multisets of which a random training set of ``n_train`` points has some ordering."""
    n = _orderings(k, p)
    absent = np.cumprod([1.0] + [max(p**k - n_train - j, 0) / (p**k - j) for j in range(n.max())])
    return 1 - float(absent[n].mean())
