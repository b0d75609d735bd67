"""What is measured on pairs of networks: distances, barriers between them, and powers of the sample size."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from mvnb import probes, stats


def parameter_distance(first: Mapping[str, Tensor], second: Mapping[str, Tensor], names: Sequence[str] | None = None) -> Tensor:
    """Return the Euclidean distance ``(R,)`` of two stacks, all parameters (or those in ``names``) as one vector.

    Differentiable. Source: Karp 2024, section 2.4.1.
    """
    return probes.parameter_norm({k: first[k].double() - second[k].double() for k in names or first})


def normalised_distance(
    first: Mapping[str, Tensor], second: Mapping[str, Tensor], names: Sequence[str] | None = None
) -> Tensor:
    """Return the distance over the mean of both norms, ``(R,)``, in [0, 2]. Differentiable. Source: Karp 2024, Figure A.13."""
    mean = (probes.parameter_norm(first, names) + probes.parameter_norm(second, names)) / 2
    return parameter_distance(first, second, names) / mean


def interpolate(first: Mapping[str, Tensor], second: Mapping[str, Tensor], weights: Tensor) -> dict[str, Tensor]:
    """Return the networks ``a * first + (1 - a) * second``: stacks ``(R, ...)``, weights ``(A,)`` to a stack ``(A * R, ...)``.

    Row ``i * R + r`` has weight i and replica r. Running statistics are interpolated, too; counters (integers) are those of
    ``first``. At weights 1 and 0 the result is ``first`` and ``second`` to the last bit (unless they hold infinities).
    Differentiable.
    """
    out = {}
    for k, a in first.items():
        if a.is_floating_point():
            w = weights.to(a).view(-1, *[1] * a.dim())
            out[k] = (w * a + (1 - w) * second[k]).flatten(0, 1)  # (A, R, ...) as (A * R, ...)
        else:
            out[k] = a.expand(len(weights), *a.shape).flatten(0, 1)
    return out


def barrier(curves: Tensor, weights: Tensor) -> Tensor:
    """Return how far an accuracy falls between two solutions, ``(A, ...)`` to ``(...)``, at least 0. Differentiable.

    ``min(acc(0), acc(1)) - min over weights in [0, 1] of acc``; Frankle et al. 2020 call solutions connected when it is
    at most about 0.02. Weights ascend; ``ValueError`` when 0 or 1 is not among them.
    """
    if not {0.0, 1.0} <= set(weights.tolist()):
        raise ValueError("weights must contain 0 and 1")
    inside = curves[(weights >= 0) & (weights <= 1)]
    return torch.minimum(inside[0], inside[-1]) - inside.amin(0)


class PowerCurve(NamedTuple):
    """The curve ``y = scale * x^exponent``."""

    scale: float
    exponent: float


def power_curve_fit(x, y) -> PowerCurve:
    """Return the least-squares curve ``y = a x^b``, fitted in linear space.

    ``scipy.optimize.curve_fit`` from the line through the logarithms (Karp 2024, appendix A.1, which leaves the start open).
    Large values decide this fit; :func:`mvnb.stats.power_law_fit` weighs equal ratios equally. ``x``, ``y``: one-dimensional,
    equally long, positive, at least two different ``x`` (``ValueError`` otherwise).
    """
    from scipy.optimize import curve_fit

    line, x, y = stats.power_law_fit(x, y), np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    # in units of their geometric means, so that one step size serves both parameters
    mean, level = np.exp(np.log(x).mean()), np.exp(np.log(y).mean())
    start = (1.0, line.slope)
    precise = {"jac": lambda z, a, b: np.stack([z**b, a * z**b * np.log(z)], 1), "ftol": 1e-13, "xtol": 1e-13, "gtol": 1e-13}
    (a, b), _ = curve_fit(lambda z, a, b: a * z**b, x / mean, y / level, p0=start, maxfev=10_000, **precise)
    return PowerCurve(float(a * level / mean**b), float(b))
