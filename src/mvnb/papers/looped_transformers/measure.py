"""Measures of chapter 14: what its claims judge, functions from prompts, loops and kept values to numbers per run.

Functions that return dictionaries have the claims as keys: arrays hold one number per run, and other numbers have no chance in
them. Logarithms of errors are relative to the error at the start.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from mvnb import stats
from mvnb.papers.looped_transformers import theory
from mvnb.papers.looped_transformers.training import Descent, Params, squared_error

PRINTED = {16: 4.57, 32: 3.13, 64: 2.07, 128: 1.62}
"""Mean condition numbers that the paper prints, by n."""


def in_sets(values: Tensor, size: int) -> Tensor:
    """Return per-prompt values ``(prompt, ...)`` in sets of prompts, ``(set, size, ...)``; what is left over is dropped."""
    return values[: len(values) // size * size].unflatten(0, (-1, size))


def tenths(values: Tensor) -> Tensor:
    """Return means ``(10, ...)`` over ten groups of prompts."""
    return torch.stack([part.mean(0) for part in values.tensor_split(10)])


# --- Figure 8.1, and the prediction ---


def violations(errors: Tensor, kappa: Tensor, power: int, floor: float = -math.inf) -> int:
    """Count logarithms of errors ``(prompt, T + 1)`` above ``-power T / (2 kappa)``, where this exceeds ``floor``."""
    bound = -power / 2 * torch.arange(errors.shape[1]) / kappa[: len(errors), None]
    return int(((errors > bound) & (bound >= floor))[:, 1:].sum())


def printed_condition_numbers(kappas: Mapping[int, Tensor]) -> Tensor:
    """Return the largest distance of a printed mean from its expectation, in standard deviations of a mean over ten prompts.

    A run has twenty sets of ten prompts of each n.
    """
    means = {n: in_sets(in_sets(kappa, 10).mean(1), 20) for n, kappa in kappas.items()}
    return torch.stack([(PRINTED[n] - one.mean(1)).abs() / one.std(1) for n, one in means.items()]).amax(0)


def figure(found: Mapping[int, Descent], trials: int) -> dict:
    """Return what the claims on Figure 8.1 judge; ``found`` has the prompts of each n, ascending."""
    every = list(found.values())
    loops = every[0].exact.shape[1] - 1
    marks = [round(loops * part) for part in (0.05, 0.25, 1.0)]
    errors = torch.stack([in_sets(one.exact[:, marks], trials).mean(1) for one in every])
    kappas = torch.stack([in_sets(one.kappa, trials).mean(1) for one in every])
    wide = torch.stack([gaps(one.exact[:, marks], one.kappa, marks, 20 * trials) for one in every])
    steep = torch.stack([in_sets(-one.exact[:, -1] * one.kappa / loops, 20 * trials).median(1).values for one in every])
    rounded = torch.stack([gaps(one.iterates[:, -1:], one.kappa, [loops], trials)[:, 0] for one in every])
    true = gaps(every[-1].exact[: len(every[-1].iterates), -1:], every[-1].kappa, [loops], trials)[:, 0]
    above = [violations(one.exact, one.kappa, 2) for one in every]
    iterates = [violations(one.iterates, one.kappa, 2, floor=-60) for one in every]
    return {
        "loop-is-descent": max(one.difference for one in every),
        "more-examples-are-faster": {"error": -errors.diff(dim=0).amax((0, 2)), "kappa": -kappas.diff(dim=0).amax(0)},
        "theorem-holds-for-theta": {"exact": sum(above), "iterates": sum(iterates)},
        "gap-narrows": {"gap": (wide[1:] / wide[:-1]).amin((0, 2)), "exponents": steep.diff(dim=0).amin(0)},
        "narrowing-is-rounding": {"fall": -rounded.diff(dim=0).amax(0), "last": rounded[-1], "exact": true},
    }


def gaps(errors: Tensor, kappa: Tensor, marks: Sequence[int], size: int) -> Tensor:
    """Return by how much Theorem 8.25 exceeds logarithms of errors ``(prompt, mark)``: medians of sets, ``(set, mark)``."""
    return in_sets(-torch.tensor(marks) / kappa[: len(errors), None] - errors, size).median(1).values


def prediction(spectrum: Tensor, share: Tensor, loops: int, trials: int, part: float = 1.0) -> dict:
    """Return what the claims on the prediction judge, for steps of ``part`` / L.

    The *worst* theta* is the eigenvector of the smallest eigenvalue.
    """
    t, step = torch.arange(loops + 1), part / spectrum[:, -1]
    kappa, first = spectrum[:, -1] / spectrum[:, 0], torch.zeros_like(share)
    first[:, 0] = 1
    errors, worst = (theory.log_error(spectrum, one, t, power=1, step=step) for one in (share, first))
    sharp = t * torch.log1p(-1 / kappa)[:, None]
    distance = float((worst - sharp)[:, 1:].abs().max())
    return {
        "main-theorem": violations(errors, kappa, 1),
        "more-loops-are-better": int((errors.diff() >= 1e-9).sum()),
        "twice-the-exponent": {"violations": violations(errors, kappa, 2), "distance": distance},
        "bound-is-tight": in_sets((-20 / (2 * kappa) - worst[:, 20]).exp(), trials).median(1).values,
    }


def any_tokens(kinds: Sequence[Tensor], theta: Tensor, step: float | None = None) -> int:
    """Count violations of Theorem 8.16 up to 40 loops, with 1 / L of each prompt or a fixed ``step``."""
    count, t = 0, torch.arange(41)
    for tokens in kinds:
        spectrum, share = theory.anatomy(tokens, theta)
        fixed = None if step is None else torch.full((len(tokens),), step, dtype=torch.float64)
        errors = theory.log_error(spectrum, share, t, power=1, step=fixed)
        count += violations(errors, spectrum[:, -1] / spectrum[:, 0], 1)
    return count


def diverging(spectra: Tensor, step: float, trials: int) -> Tensor:
    """Return the share of prompts ``(set,)`` with these ``spectra`` on which descent with a fixed ``step`` diverges."""
    return in_sets((spectra[:, -1] * step > 2).double(), trials).mean(1)


def solved_elsewhere(x: Tensor, theta: Tensor, steps: Tensor, noise: float = 0.0) -> int:
    """Count prompts that one loop with ``steps`` ``(prompt, 1)`` solves to 1e-9 at a distance from theta* above 1/2."""
    end = theory.descent(x, (x @ theta[..., None])[..., 0] + noise, steps)[-1]
    return int(((((end * theta).sum(-1) - 1).abs() < 1e-9) & ((end - theta).norm(dim=-1) > 0.5)).sum())


# --- Numbers of loops, and of examples ---


def exponents(kappas: Sequence[float], needed: Mapping[str, Sequence[int]]) -> dict:
    """Return what the claims on schedules judge: the exponent of the number of loops in the condition number."""
    found = {kind: float(stats.power_law_fit(kappas, counts).slope) for kind, counts in needed.items()}
    return {
        "loops-in-proportion-to-kappa": {"largest": found["1/L"], "middle": found["2/(L+mu)"]},
        "chebyshev-takes-the-root": found["Chebyshev"],
    }


def in_proportion(spectra: Mapping[int, Tensor]) -> dict:
    """Return, of ``spectra`` ``(prompt, d)`` by d, the ratio of errors after 20 loops with 1 / L, and the largest kappa."""
    left = [theory.residuals(values, (1 / values[:, -1:]).expand(-1, 20))[:, -1].mean(1) for values in spectra.values()]
    errors = torch.stack([tenths(one) for one in left])
    kappas = torch.stack([tenths(values[:, -1] / values[:, 0]) for values in spectra.values()])
    return {"error": errors.amax(0) / errors.amin(0), "kappa": kappas.amax(0)}


def near_one(spectra: Mapping[float, Tensor]) -> dict:
    """Return the least and the largest (kappa - 1) / eps, over eps, of ``spectra`` ``(prompt, d)`` by eps."""
    excess = torch.stack([(values[:, -1] / values[:, 0] - 1) / eps for eps, values in spectra.items()])
    return {"least": excess.amin(0), "largest": excess.amax(0)}


# --- Best and trained steps ---


def limits(squares: Mapping[str, Tensor], ratio: float) -> dict:
    """Return the least and the largest ratio, over T, of a prompt's squared errors ``(T, prompt)`` and their limit."""
    t = torch.arange(1, 1 + len(squares["best"])).double()[:, None]
    over = squares["best"] / theory.least_mean_square(ratio, t), squares["memory"] / ratio**t
    both = [{"least": one.amin(0), "largest": one.amax(0)} for one in over]
    return dict(zip(("d-over-n-a-loop", "memory-reaches-the-same-rate"), both))


def mean_square(spectra: Tensor, steps: Tensor) -> Tensor:
    """Return mean squared errors of theta ``(run,)`` over the spectra ``(prompt, d)`` for schedules ``(run, T)``."""
    return torch.stack([theory.residuals(spectra, one)[:, -1].square().mean() for one in steps])


def trained_steps(trained: Mapping[int, Tensor], spectra: Tensor) -> dict:
    """Return what the claims on trained steps ``(run, T)`` by T judge, on ``spectra`` of other prompts."""
    excess, deviation = [], []
    for loops, runs in trained.items():
        best = theory.best_steps_for(spectra, loops)
        reached = mean_square(spectra, runs)
        excess.append(reached / mean_square(spectra, best[None]) - 1)
        deviation.append((runs.sort(1).values / best.sort().values - 1).abs().amax(1))
    own = theory.residuals(spectra, (1 / spectra[:, -1:]).expand(-1, loops))[:, -1].square().mean()
    found = {"excess": torch.stack(excess).amax(0), "deviation": torch.stack(deviation).amax(0)}
    return {"training-finds-the-best-steps": found, "trained-steps-beat-the-papers": own / reached}


def values(
    taught: Params, loops: Mapping[str, Params], examples: Tensor, theta: Tensor, scale: Tensor
) -> dict:  # fmt: skip
    """Return what the claims on the values of R loops judge, on ``examples`` ``(1, N, n, d + 1)`` with deviations ``scale``.

    ``loops`` are others, by name: with the best ``steps`` alone, and with the ``inverse`` covariance as values.
    """
    size = taught["log_step"].shape[1]
    error = {name: squared_error(one, examples, theta, size).mean(1) for name, one in (loops | {"taught": taught}).items()}
    left = torch.linalg.cond(scale[:, None] * taught["value"][:, :-1] * scale) * (scale.min() / scale.max()) ** 2
    return {
        "values-learn-the-covariance": {"left": left, "gain": error["steps"] / error["taught"]},
        "learned-values-match-the-inverse": error["taught"] / error["inverse"] - 1,
    }


# --- Label noise ---


def noise(spectra: Tensor, deviation: float, errors: Tensor, least_squares: Tensor, marks: Sequence[int]) -> dict:
    """Return what the claims on label noise judge.

    ``errors`` ``(T + 1, prompt)`` and ``least_squares`` ``(prompt,)`` are squared errors of predictions with noise of this
    ``deviation``; n is twice the number of eigenvalues.
    """
    known, d = theory.expected_square(spectra, deviation, len(errors) - 1), spectra.shape[1]
    ratios = {f"t{T}": 1 + (errors[T] - known[:, T]) / known[:, T].mean() for T in marks}
    groups = tenths(known)
    return {
        "noise-tends-to-least-squares": {"solved": least_squares * (d - 1) / deviation**2, **ratios},
        "more-loops-can-be-worse": groups.amin(1) / groups[:, -1],
    }


# --- The kept run: linear and softmax attention, trained ---


def kept_loops(runs: Sequence[Mapping], target: float) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return by arm the numbers of loops ``(seed, kappa)`` at which the mean squared error on test prompts is ``target``.

    The logarithm of the error is interpolated between the two numbers of loops, trained by themselves, whose errors are next to
    ``target``; the second dictionary has the mean percentage by which these two fell at the end of training. Raises
    ``ValueError`` if all errors lie on one side.
    """
    found = {arm: np.array([[_crossing(ends, target) for ends in run[arm].values()] for run in runs]) for arm in runs[0]}
    return tuple({arm: rows[..., part] for arm, rows in found.items()} for part in (0, 1))


def _crossing(ends: Mapping[str, Mapping], target: float) -> tuple[float, float]:
    rows = sorted((int(loops), math.log(one["test"] / target), one["fell"]) for loops, one in ends.items())
    for (before, above, fell), (after, below, fell_after) in itertools.pairwise(rows):
        if above > 0 >= below:
            return before + (after - before) * above / (above - below), (fell + fell_after) / 2
    raise ValueError(f"expected an error of {target} between {rows[0][0]} and {rows[-1][0]} loops")


def slopes(kappas: Sequence[float], counts: np.ndarray) -> np.ndarray:
    """Return the exponent of the number of loops ``(seed, kappa)`` in the condition number, ``(seed,)``."""
    return np.array([stats.power_law_fit(kappas, row).slope for row in counts])


def softmax(kappas: Sequence[float], counts: Mapping[str, np.ndarray], fell: Mapping[str, np.ndarray]) -> dict:
    """Return what the claims on the kept run judge, of :func:`kept_loops`."""
    arms = {"one": "one step", "own": "a step per loop"}
    found = {
        kind: {key: slopes(kappas, counts[f"{kind}, {arm}"]) for key, arm in arms.items()} for kind in ("linear", "softmax")
    }
    ratio = {key: (counts[f"softmax, {arm}"] / counts[f"linear, {arm}"]).mean(1) for key, arm in arms.items()}
    ends = {kind: np.mean([fell[f"{kind}, {arm}"].mean(1) for arm in arms.values()], 0) for kind in found}
    return {
        "softmax-keeps-the-law": {key: found["softmax"][key] - found["linear"][key] for key in arms},
        "trained-linear-keeps-the-law": found["linear"],
        "softmax-takes-more-loops": ratio,
        "kept-loops-are-trained": ends,
    }
