"""Measures of chapter 12: what its claims judge, functions from runs to numbers per run, and from closed forms to numbers.

A function whose name ends in ``claims`` returns what is judged by the id of the claim: one number per run, or several by name.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from torch import Tensor

from mvnb.papers.nuclear_norm import theory
from mvnb.papers.nuclear_norm.model import LabelledFeatures
from mvnb.papers.nuclear_norm.training import LeftOut, stable_rank

# --- The plane ---

PLANE_WEIGHTS = {
    "decay": (1e3, 1.0, 0.1, 0.01, 0.001),
    "nuclear": (0.4, 0.1, 0.03, 0.01, 0.001),
    "diagonal": (0.3, 0.05, 0.03, 0.01, 0.001),
}


def plane_table(weights: Mapping[str, Sequence[float]]) -> dict[tuple[str, float], tuple[float, float, float]]:
    """Return by penalty and weight the optimum's ratio of weights, and its accuracies in training and elsewhere."""
    found = {}
    for penalty, each in weights.items():
        for weight in each:
            ratio = np.divide(*theory.plane_optimum(penalty, weight)[::-1])
            found[penalty, weight] = (ratio, *(float(theory.plane_accuracy(ratio, share)) for share in (0.7, 0.3)))
    return found


def plane_frontier(penalty: str) -> tuple[np.ndarray, np.ndarray]:
    """Return training losses and ratios of weights of twelve optima, from a weak to a strong penalty."""
    weights = np.geomspace(3e-4, 300.0 if penalty == "decay" else 0.42, 12)
    optima = [theory.plane_optimum(penalty, weight) for weight in weights]
    return np.array([theory.plane_loss(beta, 0.2)[0] for beta in optima]), np.array([b / a for a, b in optima])


def plane_claims(table: Mapping, frontiers: Mapping[str, tuple]) -> dict:
    """Return limits of strong penalties, the diagonal model's ratios, and that of nuclear norm over decay at equal loss."""
    (decay, *_), (nuclear, *_), (*dropped, weak, _, _) = (
        [one for (name, _), one in table.items() if name == penalty] for penalty in ("decay", "nuclear", "diagonal")
    )
    levels = np.linspace(0.05, 0.65, 13)
    at_level = {name: np.interp(levels, *frontiers[name]) for name in ("nuclear", "decay")}
    return {
        "plane-strong-limits": {"decay": decay[2], "nuclear": nuclear[2]},
        "plane-diagonal-is-exact": {"strong": max(one[0] for one in dropped), "weak": weak[0]},
        "plane-nuclear-leans-less": (at_level["nuclear"] / at_level["decay"]).max(),
    }


def plane_run_claims(runs: Mapping, table: Mapping) -> dict:
    """Return accuracies of the runs at the end, against the optima of a :func:`plane_table`, and the growth of the head."""
    ratio = {name: np.maximum(one[-1], 0) for name, one in runs["ratio"].items()}
    here, there = ({name: theory.plane_accuracy(one, share) for name, one in ratio.items()} for share in (0.7, 0.3))
    erm, free_erm, free = "no penalty", "no penalty, free head", "nuclear norm, free head"
    return {
        "plane-runs-reach-the-optima": {
            "nuclear": there["nuclear norm"] - table["nuclear", 0.1][2],
            "decay": there["weight decay"] - table["decay", 0.1][2],
        },
        "plane-erm-as-printed": {"fixed": there[erm], "free": there[free_erm], "here": (here[erm] + here[free_erm]) / 2},
        "plane-erm-below-nuclear": {"fixed": there["nuclear norm"] - there[erm], "free": there[free] - there[free_erm]},
        "free-head-escapes": {
            "objective": runs["loss"][free][-1] / runs["loss"]["nuclear norm"][-1],
            "head": runs["head"][free][-1] / runs["head"][free][0],
        },
    }


# --- Many features, exactly ---

CELLS = ((40, 0.48, 214), (49, 0.45, 300), (64, 0.40, 470), (100, 0.35, 920))
"""Worlds (r, gamma, d) with more features than Proposition 6.3 asks for."""


def decay_optima(r: int, gamma: float, sizes: Sequence[int], decays: Sequence[float]) -> list[tuple]:
    """Return world, decay and the weights alpha and beta at the optimum, for each number of features d and each decay."""
    groups = [theory.GroupPopulation(r, int(d) - r, gamma) for d in sizes]
    return [(group, decay, *group.decay_optimum(decay)) for group in groups for decay in decays]


def decay_claims(optima: Iterable[tuple]) -> dict:
    """Return what Lemma 6.1, its replacement and Proposition 6.3 say of :func:`decay_optima`."""
    rows = []
    for group, decay, alpha, beta in optima:
        scaled, (by_r, by_u) = 2 * group.gamma * alpha / beta, group.bends(alpha, beta)
        low, high = theory.ratio_bounds(alpha, group.gamma)
        error = abs(scaled * (decay + by_r) / (decay + by_u) - 1)
        in_order = 0 < beta < alpha < group.r**-0.5
        over = group.accuracy(alpha / beta) / math.exp(-group.r / 10)
        rows.append((error, not low <= scaled <= high, not in_order, scaled / 1.5, abs(scaled - 1) * (decay >= 10), over))
    error, outside, disordered, ratio, limit, over = np.array(rows, dtype=float).T
    return {
        "ratio-identity": {"error": error.max(), "outside": outside.sum()},
        "lemma-ordering": {"violations": disordered.sum(), "ratio": ratio.max()},
        "ratio-limit": limit.max(),
        "decay-fails-elsewhere": over.max(),
    }


def transition_curves(r: int, gamma: float, decays: Sequence[float]) -> dict[float, np.ndarray]:
    """Return by decay rows of d, exact and normal accuracy elsewhere, for d from half of the transition to three times it."""
    star, curves = theory.transition(r, gamma), {}
    sizes = np.unique((r + np.geomspace(0.45, 3.2, 10) * (star - r)).round().astype(int))
    for decay in decays:
        found = [(one, alpha / beta) for one, _, alpha, beta in decay_optima(r, gamma, sizes, [decay])]
        curves[decay] = np.array([(one.r + one.n, one.accuracy(ratio), one.normal_accuracy(ratio)) for one, ratio in found]).T
    return curves


def sign_change(r: int, gamma: float, decay: float) -> tuple[float, float]:
    """Return the d at which the mean margin elsewhere changes its sign under a decay, and the accuracy there."""
    before, d = (0.0, 1.0, 1.0), r + math.floor(0.9 * (theory.transition(r, gamma) - r))
    while before[1] > 0:
        last, ((group, _, alpha, beta),) = before, decay_optima(r, gamma, [d], [decay])
        before, d = (d, group.mean_margin(alpha / beta), group.accuracy(alpha / beta)), d + 1
    share = last[1] / (last[1] - before[1])
    return tuple(share * new + (1 - share) * old for new, old in zip(before[::2], last[::2]))


def transition_claims(curves: Mapping[float, np.ndarray], star: float, changes: Iterable[tuple[float, float]]) -> dict:
    """Return distances: of the first decay's crossing of 1/2 from ``star``; of curves from the normal ones; from 1/2."""
    sizes, exact, _ = next(iter(curves.values()))[:, ::-1]
    return {
        "transition-place": abs(np.interp(0.5, exact, sizes) / star - 1),
        "transition-shape": max(np.abs(exact - normal).max() for _, exact, normal in curves.values()),
        "transition-sign": max(abs(accuracy - 0.5) for _, accuracy in changes),
    }


def shortfall(groups: Iterable[theory.GroupPopulation], shares: Iterable[float]) -> np.ndarray:
    """Return by how many % environmental features fall short of their price, ``(group, share of the largest weight)``."""
    return np.array([[100 * one.excess(share * one.nuclear_limit()) for share in shares] for one in groups])


def vanishing_claims(accuracies: Sequence[float]) -> dict:
    """Return the least rise of the accuracy elsewhere from one decay to a smaller one, and the last accuracy."""
    return {"no-penalty-is-enough": {"rise": np.diff(accuracies).min(), "last": accuracies[-1]}}


# --- One weight per feature, trained ---


def elsewhere(w: Tensor, points: LabelledFeatures) -> np.ndarray:
    """Return accuracies elsewhere ``(setting, run)`` of weights ``(setting, run, d)``."""
    return (points.there @ w[..., None] > 0).double().mean((-2, -1)).numpy()


def feature_rank(w: Tensor, points: LabelledFeatures) -> np.ndarray:
    """Return stable ranks ``(setting, run)`` of the features on the training points."""
    return stable_rank(points.root * w[..., None, :]).numpy()


def selection_claims(nuclear: Tensor, decayed: Tensor, points: LabelledFeatures, shared: int) -> dict:
    """Return features wrongly kept or dropped over all nuclear weights, least accuracy there, and the largest under decay."""
    invariant = np.arange(nuclear.shape[-1]) < shared
    wrong = ((np.abs(nuclear.numpy()) > 0.01) != invariant).sum((0, 2))
    return {
        "training-selects": {"wrong": wrong, "accuracy": elsewhere(nuclear, points).min(0)},
        "decay-does-not-select": elsewhere(decayed, points).max(0),
    }


def rise_and_fall_claims(accuracy: np.ndarray, rank: np.ndarray) -> dict:
    """Return points from no penalty to the peak and from there to the largest weight, and the rank's least fall."""
    peak = accuracy[1:-1].max(0)
    return {
        "rise-then-fall-in-the-model": {"rise": 100 * (peak - accuracy[0]), "fall": 100 * (peak - accuracy[-1])},
        "stable-rank-falls-in-the-model": -np.diff(rank, axis=0).max(0),
    }


# --- Methods on images; in %, a seed is the mean over its left-out domains ---

RIVALS = {"mixup": "Mixup", "coral": "CORAL", "irm": "IRM", "vrex": "VREx", "dro": "GroupDRO", "decay": "weight decay"}
SWAD = {"ERM": "SWAD", "ERM-NU": "SWAD-NU", "CORAL": "SWAD-CORAL"}


def by_seed(values, seeds: int) -> np.ndarray:
    """Return means over left-out domains, ``(..., seed * domain)`` to ``(..., seed)``."""
    values = np.asarray(values)
    return values.reshape(*values.shape[:-1], seeds, -1).mean(-1)


def reached(names: Sequence[str], found: LeftOut, seeds: int) -> dict[str, np.ndarray]:
    """Return accuracies ``(seed,)`` by method, those of SWAD's averages under their own names."""
    averaged = {SWAD[name]: row for name, row in zip(names, found.averaged) if name in SWAD}
    return {name: 100 * by_seed(row, seeds) for name, row in (dict(zip(names, found.best)) | averaged).items()}


def gain(reached: Mapping[str, np.ndarray], better: str, worse: str) -> np.ndarray:
    """Return the difference of each seed that has both."""
    return np.subtract(*zip(*zip(reached[better], reached[worse])))


def method_claims(reached: Mapping[str, np.ndarray]) -> dict:
    """Return what the claims on the live comparison judge."""
    rivals = {key: RIVALS[key] for key in ("irm", "vrex", "dro")}
    return {
        "nu-helps-erm": gain(reached, "ERM-NU", "ERM"),
        "nu-helps-mixup": gain(reached, "Mixup-NU", "Mixup"),
        "nu-helps-swad": gain(reached, "SWAD-NU", "SWAD"),
        "nu-above-risk-methods": {name: gain(reached, "ERM-NU", rival) for name, rival in rivals.items()},
        "nu-above-decay": gain(reached, "ERM-NU", "weight decay"),
        "decay-does-not-help": gain(reached, "weight decay", "ERM"),
        "nu-against-coral": {"erm": gain(reached, "ERM-NU", "CORAL"), "swad": gain(reached, "SWAD-NU", "SWAD-CORAL")},
    }


def part(found: LeftOut, settings: Sequence[int], runs: int | None = None) -> LeftOut:
    """Return the measurements of some settings, and of the first runs."""
    return LeftOut(*(value[settings, :runs] for value in found))


def of_features(found: LeftOut, seeds: int) -> dict[str, np.ndarray]:
    """Return accuracy, stable ranks and lengths at the end, ``(setting, seed, domain)``."""
    z = found.features
    each = {
        "there": 100 * found.last,
        "rank": stable_rank(z),
        "centred": stable_rank(z - z.mean(-2, keepdim=True)),
        "length": z.norm(dim=-1).mean(-1),
        "head": found.head,
    }
    return {name: value.unflatten(-1, (seeds, -1)).numpy() for name, value in each.items()}


def over_weights(pair: Mapping[str, np.ndarray], swept: Mapping[str, np.ndarray], weights: Sequence[float]) -> dict:
    """Return :func:`of_features` in the order of the ``weights``: of the first two from ``pair``, of the others from ``swept``.

    ``swept`` may have fewer seeds, to which ``pair`` is then cut.
    """
    rows = {name: np.concatenate([pair[name][:, : one.shape[1]], one]) for name, one in swept.items()}
    return {name: one[np.argsort(weights)] for name, one in rows.items()}


def dial_claims(pair: Mapping[str, np.ndarray], dial: Mapping[str, np.ndarray], n_features: int) -> dict:
    """Return what the claims on the strength of the penalty judge.

    Both as of :func:`of_features`: ``pair`` of ERM and ERM-NU, ``dial`` of all weights in order, with fewer seeds.
    """
    change = {name: (value[1] - value[0]).mean(-1) for name, value in pair.items()}
    there, rank = (dial[name].mean(-1) for name in ("there", "rank"))  # (weight, seed)
    length, head = (pair[name][1] / pair[name][0] for name in ("length", "head"))
    return {
        "rise-then-fall-in-networks": {"rise": change["there"], "fall": there.max(0) - there[-1]},
        "stable-rank-falls-in-networks": {"first": -change["rank"], "least": -np.diff(rank, axis=0).max(0)},
        "stable-rank-is-low": rank.max(0) / n_features,
        "head-grows-in-networks": {"features": length.max(-1), "head": head.min(-1)},
    }


# --- Kept runs on CIFAR-10 and MNIST, in % ---

SETS = ("cifar10", "mnist")


def kept_accuracies(*runs: Sequence[Mapping], measured: str = "best") -> dict[str, dict[str, np.ndarray]]:
    """Return by arm and method what the kept ``runs`` together ``measured``, ``(seed, domain)``."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for values in runs:
        for arm, one in values[0].items():
            rows = {name: np.array([each[arm][measured][name] for each in values]) for name in one[measured]}
            found[arm] = found.get(arm, {}) | rows
    return found


def kept_reached(*runs: Sequence[Mapping]) -> dict[str, dict[str, np.ndarray]]:
    """Return accuracies ``(seed,)`` by arm and method, means over domains; SWAD's averages have their own names."""
    best, averaged = (kept_accuracies(*runs, measured=name) for name in ("best", "averaged"))
    swad = {arm: {SWAD[name]: row for name, row in found.items() if name in SWAD} for arm, found in averaged.items()}
    return {arm: {name: row.mean(1) for name, row in (found | swad[arm]).items()} for arm, found in best.items()}


def _added(reached: Mapping[str, Mapping], world: str, better: str = "ERM-NU", worse: str = "ERM") -> dict[str, np.ndarray]:
    return {name: gain(reached[f"{name}, {world}"], better, worse) for name in SETS}


def domains_claims(values: Sequence[Mapping]) -> dict:
    """Return what the claims on the kept run ``domains`` judge."""
    every = kept_reached(values)
    many, one = _added(every, "eight weak hints"), _added(every, "one weak hint")
    no_hint, misled = ({name: every[f"{name}, {world}"]["ERM"] for name in SETS} for world in ("no hint", "eight weak hints"))
    return {
        "domains-nu-helps": many["cifar10"],
        "domains-nu-helps-digits": many["mnist"],
        "domains-digits-gain-more": many["mnist"] - many["cifar10"],
        "domains-many-hints-gain-more": {name: many[name] - one[name] for name in SETS},
        "domains-strong-hint-does-harm": _added(every, "one strong hint"),
        "domains-hints-mislead": {name: no_hint[name] - misled[name] for name in SETS},
        "domains-nu-helps-swad": _added(every, "eight weak hints", "SWAD-NU", "SWAD"),
    }


def rival_claims(values: Sequence[Mapping], rivals: Sequence[Mapping]) -> dict:
    """Return what the claims on the kept run ``rivals`` judge, in the seeds that it has in common with ``domains``."""
    every = kept_reached(values, rivals)
    found = every["cifar10, eight weak hints"]
    return {
        "rivals-nu-helps": {name: gain(found, f"{RIVALS[name]}-NU", RIVALS[name]) for name in ("mixup", "coral")},
        "rivals-nu-above": {name: gain(found, "ERM-NU", rival) for name, rival in RIVALS.items()},
        "rivals-decay-without-hints": _added(every, "no hint", "weight decay"),
        "rivals-decay-against-strong-hint": _added(every, "one strong hint", "weight decay"),
        "rivals-four-strong-hints-do-harm": gain(every["mnist, four strong hints"], "ERM-NU", "ERM"),
    }
