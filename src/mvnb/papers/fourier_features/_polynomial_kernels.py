"""Gathering and scattering of a polynomial network's embeddings on a CPU, compiled, with the power in the same pass.

The tensor version in ``polynomial.py`` is the reference, and runs on graphics cards.
"""

from __future__ import annotations

from mvnb.compiled import FAST, compiled


@compiled(fastmath=FAST)
def forward(u, x, act, slope):
    """Writes ``z^k`` and ``k z^(k-1)`` ``(R, n, m)``, ``z = sum_j u[j, x_j]``; ``u`` ``(R, k, p, m)``, ``x`` ``(R, n, k)``."""
    replicas, n, width = act.shape
    k = u.shape[1]
    for r in range(replicas):
        for i in range(n):
            z, power = act[r, i], slope[r, i]
            first = u[r, 0, x[r, i, 0]]
            for f in range(width):
                z[f] = first[f]
            for j in range(1, k):
                row = u[r, j, x[r, i, j]]
                for f in range(width):
                    z[f] += row[f]
            for f in range(width):
                power[f] = z[f]
            for _ in range(k - 2):  # whole rows at a time, or the loops are not vectorised
                for f in range(width):
                    power[f] *= z[f]
            for f in range(width):
                z[f] *= power[f]
                power[f] *= k


@compiled(fastmath=FAST)
def backward(back, slope, x, d_u):
    """Adds ``back * slope`` ``(R, n, m)`` to the rows of ``d_u`` ``(R, k, p, m)`` that the points read."""
    replicas, n, width = back.shape
    k = d_u.shape[1]
    for r in range(replicas):
        for i in range(n):
            push, power = back[r, i], slope[r, i]
            for j in range(k):
                row = d_u[r, j, x[r, i, j]]
                for f in range(width):
                    row[f] += push[f] * power[f]
