"""Measures of chapter 05: what its claims judge, functions from runs to numbers per run, and from closed forms to numbers.

A function whose name ends in ``claims`` returns what is judged by the id of the claim: one number per run, or several by name.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from mvnb.papers.local_signal_adaptivity import theory

# --- One filter ---

accuracy = np.vectorize(theory.accuracy, otypes=[float])
"""Exact accuracy by arrays of c and b."""


def least_rise(values: np.ndarray) -> np.ndarray:
    """Return the smallest rise of each run from the mean over a fifth of training to the next, of ``(mark, run)``."""
    fifths = np.stack([part.mean(0) for part in np.array_split(values, 5)])
    return np.diff(fifths, axis=0).min(0)


def force_claims(k: int, gradient: Callable = theory.population_gradient) -> dict:
    """Return what the lemmas on the population gradient say, at ``k`` noise patches (growth: at five k)."""
    sigma = theory.noise_scale(k)
    spots = [(c, -r * c) for c in (0.01, 0.05, 0.2, 0.6, 1.5) for r in (-0.5, -0.01, 0, 0.1, 0.3, 0.5, 0.9)]
    pulls = np.array([gradient(*spot, k, sigma).c_noise / theory.noise_pull_bound(*spot, k, sigma) for spot in spots])
    early = [
        gradient(h / math.log(q) ** 4, 0.0, q, theory.noise_scale(q)).c for q in (1e2, 1e3, 1e5, 1e8, 1e12) for h in (0.01, 1)
    ]
    along = np.array([gradient(c, 0.0, k, sigma).b for c in np.geomspace(0.005, 1, 40)])
    silent = gradient(1.0, -0.9, k, sigma).b
    signs = {"changes": np.count_nonzero(np.diff(along > 0)), "small": along[0], "large": along[-1], "silent": silent}
    return {
        "noise-shrinks-filter": {"wrong": np.count_nonzero(pulls < 0), "share": pulls.max()},
        "filter-grows-when-small": max(early),
        "bias-falls-beyond-a-filter-size": signs,
    }


def first_steps_claims(path: np.ndarray, k: int) -> dict:
    """Return how the bias of a :func:`~mvnb.papers.local_signal_adaptivity.theory.population_path` begins."""
    c, b = path
    return {"bias-rises-first": {"first": b[1], "last": b[-1], "share": (b / c)[b > 0].max() * k}}


def stage_claims(log: Mapping[str, np.ndarray], path: np.ndarray, k: int, sigma: float) -> dict:
    """Return what Figure 3.3 shows, of runs with c, v and b ``(mark, run)``, against the population's path."""
    c, v, b = (log[name] for name in "cvb")
    right, late = accuracy(c, b, k, sigma, v), slice(2, None)  # from 5 % of training on
    ratio = -b[late] / c[late]
    ends = np.stack([c[-1] / path[0][-1], b[-1] / path[1][-1]])
    return {
        "two-stages": {"c": least_rise(c), "fall": least_rise(-b[late]), "ratio": least_rise(ratio)},
        "one-filter-beats-linear": {"accuracy": right[-1], "rise": least_rise(right)},
        "population-path": np.abs(ends - 1).max(0),
        "ratio-decides-accuracy": np.abs(right[late] - accuracy(1.0, -ratio, k, sigma)).max(0),
    }


def small_world_claims(works: np.ndarray, too_large: np.ndarray) -> dict:
    """Return the last accuracies ``(run,)`` with a step that works, and which runs end well with it, and dead with another."""
    return {"small-world-solved": works, "dead-units": {"dead": too_large < 0.001, "alive": works > 0.9}}


# --- Frozen filters ---

COMMON = (0.0, 0.5, 1.0, 1.5, 2.0)
"""Common thresholds over sigma, of which the best is taken for each draw."""


def frozen_errors(m: int, draws: int, k: float, dim: float, seed: int, common: Sequence[float] = COMMON) -> np.ndarray:
    """Return errors ``(2, draw)`` of the best weights on ``m`` frozen filters, with the best common and with oracle thresholds.

    The noise has the scale ``dim^-1/2``; oracle thresholds just let the signal through (at most 30).
    """
    rows, sigma = [], dim**-0.5
    for r in range(draws):
        filters = theory.random_filters(m, dim, [seed, m, r])
        bars = [*(np.full(m, t) for t in common), np.minimum(0.999 * np.abs(filters[:, 0]) / sigma, 30)]
        *errors, known = (theory.best_weights(filters, bar, k, sigma)[1] for bar in bars)
        rows.append((min(errors), known))
    return np.array(rows).T


def drawn_error(filters: np.ndarray, thresholds: np.ndarray, k: int, sigma: float, seed: int, points: int) -> tuple:
    """Return the share of ``points`` that the best weights misjudge, and the error of the formula.

    Responses of noise patches come from a pool of 60,000, with random signs.
    """
    rng, (weights, formula) = np.random.default_rng(seed), theory.best_weights(filters, thresholds, k, sigma)
    noise = sigma * rng.standard_normal((60_000, filters.shape[1]))
    responses = ((np.abs(noise @ filters.T) >= thresholds * sigma) * (noise @ weights.T)).sum(1)
    own = weights[np.abs(filters[:, 0]) >= thresholds * sigma, 0].sum()
    pick = (responses[rng.integers(len(noise), size=k)] @ rng.choice([-1.0, 1.0], size=k) for _ in range(points))
    return sum(one + own <= 0 for one in pick) / points, formula


def frozen_claims(errors: Mapping[int, np.ndarray], trained: np.ndarray) -> dict:
    """Return what compares frozen filters, :func:`frozen_errors` by number, with the errors ``(run,)`` of a trained one."""
    common, known = ({m: one[kind] for m, one in errors.items()} for kind in (0, 1))
    return {
        "few-frozen-filters-fail": {"one": common[1], "four": common[4]},
        "more-filters-help": {"first": common[1] - common[4], "second": common[4] - common[16]},
        "one-trained-beats-sixteen-frozen": {"trained": trained, "frozen": common[16]},
        "many-frozen-beat-one-trained": {"trained": trained, "some": common[64], "most": common[256]},
        "oracle-thresholds-beat-one-trained": {"trained": trained, "some": known[64], "most": known[256]},
    }


def formula_claims(pairs: np.ndarray) -> dict:
    """Return mean deviations of measured errors from the formula, of ``pairs`` ``(draw, number of filters, 2)``."""
    return {"frozen-error-formula": np.abs(np.diff(pairs, axis=2)[..., 0]).mean(1)}


def limit_claims(scan: Mapping[int, np.ndarray], exponents: Sequence[float], known: Mapping[int, np.ndarray]) -> dict:
    """Return what Theorem 3.2 says of large k: errors ``(k, draw)`` by number, ``known`` ones at the largest k."""
    rise = {m: np.polyfit(exponents, one, 1)[0] for m, one in scan.items()}
    return {
        "lower-bound-begins": {"small": theory.lucky_probability(1e3), "large": theory.lucky_probability(1e11)},
        "linear-at-chance": theory.linear_accuracy(1e18, theory.noise_scale(1e18)),
        "lower-bound-at-large-k": {"one": known[1] >= 0.1, "four": known[4] >= 0.1},
        "frozen-error-rises-with-k": {"one": rise[1], "four": rise[4]},
    }


# --- Kept run on CIFAR-2 ---

TABLE = {"network": (0.947, 0.940, 0.928, 0.917), "kernel": (0.899, 0.873, 0.837, 0.769)}
"""Accuracies in Table B.1, of 16 pixels at a random place of 32, in noise with sigma = 0, 0.5, 1 and 2."""


def cifar2_choices(*tuned: Mapping) -> dict[str, float]:
    """Return the settings with the best validation accuracy: of the network on average over worlds, of the kernel by world."""
    steps = [world["network"] for values in tuned for world in values.values() if world["network"]]
    mean = {step: np.mean([found[step]["test"] for found in steps]) for step in steps[0]}
    ridges = {name: {k: v for values in tuned for k, v in values[name]["kernel"].items()} for name in tuned[0]}
    best = {name: max(found, key=lambda one: found[one]["test"]) for name, found in ridges.items()}
    return {name: float(one) for name, one in {"network": max(mean, key=mean.get), **best}.items()}


def cifar2_accuracies(values: Sequence[Mapping], measured: str = "test") -> dict[str, dict[str, np.ndarray]]:
    """Return by arm and world what the kept run ``measured``, where it did, ``(seed,)``; an arm has one setting per world."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for world, arms in values[0].items():
        for arm in (name for name, settings in arms.items() if settings and measured in _only(settings)):
            found.setdefault(arm, {})[world] = np.array([_only(run[world][arm])[measured] for run in values])
    return found


def _only(settings: Mapping[str, Mapping]) -> Mapping:
    if len(settings) != 1:
        raise ValueError(f"an arm must have one setting, got {', '.join(settings) or 'none'}")
    return next(iter(settings.values()))


def shares_kept(values: Sequence[Mapping]) -> dict[str, dict[str, np.ndarray]]:
    """Return by arm and world the share of the accuracy without noise that is kept, ``(seed,)``."""
    return {arm: {world: x / found["0"] for world, x in found.items()} for arm, found in cifar2_accuracies(values).items()}


def cifar2_claims(values: Sequence[Mapping]) -> dict:
    """Return what the claims on the kept run ``cifar2`` judge."""
    right, kept = cifar2_accuracies(values), shares_kept(values)
    ahead = {world: x - right["kernel"][world] for world, x in right["network"].items()}
    lead = {world: x - kept["kernel"][world] for world, x in kept["network"].items()}
    narrow = kept["network"]["1"] - kept["narrow kernel"]["1"]
    return {
        "cifar2-network-keeps-more": lead["1"],
        "cifar2-keeps-more-025": lead["0.25"],
        "cifar2-keeps-more-05": lead["0.5"],
        "cifar2-keeps-more-2": lead["2"],
        "cifar2-keeps-more-4": lead["4"],
        "cifar2-keeps-more-texture": lead["texture"],
        "cifar2-lead-grows": lead["2"] - lead["0.5"],
        "cifar2-keeps-nine-tenths": kept["network"]["2"],
        "cifar2-network-ahead-without-noise": ahead["0"],
        "cifar2-network-ahead-in-noise": np.min([x for world, x in ahead.items() if world != "0"], 0),
        "cifar2-squared-noise-fits-better": {
            arm: from_table(kept[arm], arm, ("0.5", "1", "2")) - from_table(kept[arm], arm, ("0.25", "1", "4")) for arm in TABLE
        },
        "cifar2-width-does-not-close-the-gap": lead["1"] - narrow / 2,
    }


def cifar2_again_claims(values: Sequence[Mapping], textures: Sequence[Mapping], longer: Sequence[Mapping]) -> dict:
    """Return the claims on the network with its own step size for ``textures``, and trained ``longer``, paired by seed."""
    kernel, plain = shares_kept(values)["kernel"], cifar2_accuracies(values)["network"]["0"]
    return {
        "cifar2-keeps-more-texture-own-step": cifar2_accuracies(textures)["network"]["texture"] / plain - kernel["texture"],
        "cifar2-keeps-more-trained-longer": shares_kept(longer)["network"]["1"] - kernel["1"],
    }


def from_table(kept: Mapping[str, np.ndarray], arm: str, worlds: Sequence[str]) -> np.ndarray:
    """Return the mean distance ``(seed,)`` of the shares kept in three ``worlds`` from those in Table B.1."""
    plain, *noisy = TABLE[arm]
    return np.mean([abs(kept[world] - one / plain) for world, one in zip(worlds, noisy)], 0)


def digits_claims(values: Sequence[Mapping]) -> dict:
    """Return what the claims on the same run on digits judge, in worlds "0", "gaussian" and "texture"."""
    kept = shares_kept(values)
    lead = {world: x - kept["kernel"][world] for world, x in kept["network"].items()}
    return {"digits-network-keeps-more-gaussian": lead["gaussian"], "digits-network-keeps-more-texture": lead["texture"]}
