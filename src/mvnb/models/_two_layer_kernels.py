"""The element-wise part of the two-layer network's loss on a CPU, compiled: one pass over what a matrix product made.

The tensor version in ``two_layer.py`` is the reference, and runs on graphics cards.
"""

from __future__ import annotations

import numpy as np

from mvnb.compiled import FAST, compiled


@compiled(fastmath=FAST)
def two_layer(z, b, a, y, cap, each, logistic, loss, d_a, d_b):
    """Adds to ``loss`` ``(R,)``, ``d_a`` and ``d_b`` ``(R, width)`` and turns ``z`` ``(R, n, width)`` into the gradient in it.

    ``z`` are pre-activations without the biases ``b``; the gradients in ``z`` and ``d_b`` still lack the factor ``a``.
    ``cap`` is where the activation is cut off, ``each`` the weight of a point in the mean; all of one floating type.
    """
    replicas, n, width = z.shape
    zero, one = each - each, each / each
    for r in range(replicas):
        for i in range(n):
            total = zero
            for f in range(width):
                total += a[r, f] * min(max(z[r, i, f] + b[r, f], zero), cap)
            margin = y[r, i] * total
            small = np.exp(-abs(margin))  # never overflows
            if logistic:
                loss[r] += each * (max(-margin, zero) + np.log1p(small))
                push = -y[r, i] * each * ((small if margin > zero else one) / (one + small))
            else:
                loss[r] += each * max(one - margin, zero)
                push = -y[r, i] * each if margin < one else zero
            for f in range(width):
                u = z[r, i, f] + b[r, f]
                d_a[r, f] += push * min(max(u, zero), cap)
                g = push if zero < u < cap else zero
                d_b[r, f] += g
                z[r, i, f] = g
