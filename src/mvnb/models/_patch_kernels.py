"""Compiled CPU kernels for the element-wise part of the patch network's cross-entropy, in one pass over the pre-activations.

A smoothed ReLU, a sum over patches and filters, a softmax and their derivatives lie between the two matrix products of a step.
As tensor operations, they take a dozen passes over memory; here every number is read once and stays in the core's cache. Mixed
pairs are processed one at a time, so that the n^2 pairs are never stored. The tensor operations in ``patch_cnn.py`` are the
reference and run on GPUs.

All arrays are C-contiguous. ``pre`` ``(R, n, patches, width)`` holds the pre-activations in units of the threshold, where
``width = n_classes * n_filters`` is ordered by class; ``y`` ``(R, n)`` holds the labels, and ``multiplicity`` has shape
``(patches,)``. All arrays except labels and losses have the same floating type. The scalars also have this type, because Python
numbers would promote the arithmetic to float64: ``share`` is 1 / power, ``floor`` is the base below which ``base ** exponent``
underflows, ``tiny`` is the smallest normal number, ``scale`` is the threshold, and ``each`` is the weight of a point in the
mean. ``exponent`` is the integer power - 1.
"""

from __future__ import annotations

import numba
import numpy as np

from mvnb.compiled import FAST, compiled


@numba.njit(inline="always")
def _forward(base, u, slope, value, weight, exponent, share, floor):
    """Add ``weight`` times the activation at ``u`` ``(width,)`` to ``value`` and write ``weight`` times its slope to ``slope``.

    Powers are computed by repeated squaring, in passes over arrays that stay in the first-level cache; ``base`` is a buffer.
    """
    one = share / share
    zero = one - one
    n = u.shape[0]
    for f in range(n):
        rise = min(max(u[f], zero), one)
        base[f] = rise if rise > floor else zero  # avoids subnormal powers, which are slow
        slope[f] = one
    while exponent:
        if exponent & 1:
            for f in range(n):
                slope[f] *= base[f]
        exponent >>= 1
        if exponent:
            for f in range(n):
                base[f] *= base[f]
    for f in range(n):
        x = max(u[f], zero)
        rise = min(x, one)
        value[f] += weight * (x - rise + share * slope[f] * rise)
        slope[f] *= weight


@numba.njit(inline="always")
def _pool(value, logit, n_filters, scale):
    """Write the sum of ``value`` over the filters of each class, times ``scale``, to ``logit`` and return the largest logit."""
    top = -np.inf
    for c in range(logit.shape[0]):
        total = value[c * n_filters]
        for j in range(1, n_filters):
            total += value[c * n_filters + j]
        logit[c] = total * scale
        top = max(top, logit[c])
    return top


@compiled(fastmath=FAST)
def plain(pre, y, multiplicity, n_classes, exponent, share, floor, tiny, scale, each, loss):
    """Add each replica's cross-entropy, summed over points, to ``loss`` ``(R,)``; replace ``pre`` by the mean's gradient."""
    replicas, n, patches, width = pre.shape
    n_filters = width // n_classes
    one = scale / scale
    zero = one - one
    slope = np.empty_like(pre[0, 0])  # not in place: loops over arrays that may overlap are not vectorised
    value, push, logit = np.empty_like(pre[0, 0, 0]), np.empty_like(pre[0, 0, 0]), np.empty_like(pre[0, 0, 0, :n_classes])
    for r in range(replicas):
        for i in range(n):
            value[:] = zero
            for p in range(patches):
                _forward(push, pre[r, i, p], slope[p], value, multiplicity[p], exponent, share, floor)
            own, top = y[r, i], _pool(value, logit, n_filters, scale)
            # Sum the other classes' probabilities: 1 - probability would round to 0 long before they vanish.
            mine, others = np.exp(logit[own] - top), zero
            margin = top - logit[own]
            for c in range(n_classes):
                logit[c] = np.exp(logit[c] - top) if c != own else zero
                others += logit[c]
            total = mine + others
            loss[r] += margin + (np.log1p(others) if margin == zero else np.log(total))
            logit[own] = -others
            for c in range(n_classes):
                push[c * n_filters : (c + 1) * n_filters] = each * (logit[c] / total)
            for p in range(patches):
                for f in range(width):
                    g = slope[p, f] * push[f]
                    pre[r, i, p, f] = zero if abs(g) <= tiny else g


@compiled(fastmath=FAST)
def mixed(pre, y, lam, multiplicity, n_classes, exponent, share, floor, tiny, scale, each, loss, grad):
    """Add the summed cross-entropy of all n^2 ordered pairs to ``loss`` ``(R,)`` and the gradient of its mean to ``grad``.

    ``lam`` ``(R, n, n)`` holds the mixing weights, and ``grad`` has the shape of ``pre``.
    """
    replicas, n, patches, width = pre.shape
    n_filters = width // n_classes
    one = scale / scale
    zero = one - one
    mix, slope = np.empty_like(pre[0, 0]), np.empty_like(pre[0, 0])
    value, push, logit = np.empty_like(pre[0, 0, 0]), np.empty_like(pre[0, 0, 0]), np.empty_like(pre[0, 0, 0, :n_classes])
    for r in range(replicas):
        for i in range(n):
            for j in range(i, n):
                a = lam[r, i, j]
                b = one - a
                value[:] = zero
                for p in range(patches):
                    for f in range(width):
                        mix[p, f] = a * pre[r, i, p, f] + b * pre[r, j, p, f]
                    _forward(push, mix[p], slope[p], value, multiplicity[p], exponent, share, floor)
                top = _pool(value, logit, n_filters, scale)
                # Each unordered pair counts twice, a point with itself once.
                weight = one if i == j else one + one
                point = top - a * logit[y[r, i]] - b * logit[y[r, j]]
                total = zero
                for c in range(n_classes):
                    logit[c] = np.exp(logit[c] - top)
                    total += logit[c]
                loss[r] += weight * (point + np.log(total))
                for c in range(n_classes):
                    g = logit[c] / total
                    if c == y[r, i]:
                        g -= a
                    if c == y[r, j]:
                        g -= b
                    push[c * n_filters : (c + 1) * n_filters] = each * weight * g
                for p in range(patches):
                    for f in range(width):
                        g = slope[p, f] * push[f]
                        g = zero if abs(g) <= tiny else g
                        grad[r, i, p, f] += a * g
                        grad[r, j, p, f] += b * g


@compiled(fastmath=FAST)
def descend(weight, velocity, x, y, lam, steps, lr, momentum, time, loss, multiplicity, n_classes, exponent, *scalars):
    """Take ``steps`` steps of gradient descent on ``weight`` ``(R, width, dim)``, one replica after another.

    ``velocity`` has the shape of ``weight`` and is not used if ``momentum`` is 0. ``x`` has shape ``(R, n, patches, dim)``;
    ``lam`` ``(R, n, n)`` holds the mixing weights, or is None. The summed cross-entropy of the first step is added to ``loss``
    ``(R,)``, each step size, ``lr`` ``(R,)``, to ``time`` ``(R,)``.
    """
    replicas, n, patches, dim = x.shape
    width, scale = weight.shape[1], scalars[3]
    pre, flat = np.empty((1, n, patches, width), x.dtype), np.empty((width, dim), x.dtype)
    slope, unused = pre, np.empty(1)
    for r in range(replicas):
        points, own, total = x[r].reshape(-1, dim), y[r : r + 1], loss[r : r + 1]
        for _ in range(steps):
            for f in range(width):
                for k in range(dim):
                    flat[f, k] = weight[r, f, k] / scale
            np.dot(points, flat.T, pre.reshape(-1, width))
            if lam is None:
                plain(pre, own, multiplicity, n_classes, exponent, *scalars, total)
            else:
                slope = np.zeros_like(pre)
                mixed(pre, own, lam[r : r + 1], multiplicity, n_classes, exponent, *scalars, total, slope)
            grad = np.dot(slope.reshape(-1, width).T, points)
            for f in range(width):
                for k in range(dim):
                    if momentum:
                        velocity[r, f, k] = momentum * velocity[r, f, k] + grad[f, k]
                        weight[r, f, k] -= lr[r] * velocity[r, f, k]
                    else:
                        weight[r, f, k] -= lr[r] * grad[f, k]
            time[r] += lr[r]
            total = unused
