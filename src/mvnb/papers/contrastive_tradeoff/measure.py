"""Measures of chapter 13: what its claims judge, functions from runs to numbers per run; and the probes behind them.

In the linear model s = q features are shared and private, and a run is an eighth of the draws.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from mvnb.blocks import in_parts
from mvnb.gradients import Params
from mvnb.papers.contrastive_tradeoff import data, theory
from mvnb.papers.contrastive_tradeoff.model import Networks

# --- Finite worlds ---


def strengths(phi: Tensor, flips: Tensor, p: Tensor, length: Tensor) -> Tensor:
    """Return how strongly tables ``(run, N, k)`` encode each feature: the mean distance to the flipped value over 2 lengths.

    ``flips`` ``(feature, N)`` are the values with the feature flipped, ``p`` ``(N,)`` the probabilities.
    """
    apart = (phi[:, None] - phi[:, flips]).norm(dim=-1)
    return (apart * p).sum(-1) / (2 * length[:, None])


def spurious_strength(phi: Tensor, length: Tensor) -> Tensor:
    """Return how strongly tables ``(run, N_R, 2, k)`` encode the spurious bit, ``(run,)``."""
    return (phi[:, :, 0] - phi[:, :, 1]).norm(dim=-1).mean(1) / (2 * length)


def least_lead(strength: Tensor) -> Tensor:
    """Return the least lead of a feature over the next one, ``(run,)``, of strengths ``(length, run, feature)``."""
    return -strength.diff(dim=2).amax((0, 2))


def separable(phi: Tensor, labels: Tensor) -> Tensor:
    """Return which labelings ``(L, 4)`` of four vectors ``phi`` ``(run, 4, k)`` a plane can separate, ``(run, L)``.

    Labels are 1 and -1. Least squares finds the plane of a square or a simplex.
    """
    inputs = torch.cat([phi, torch.ones_like(phi[..., :1])], -1)
    found = torch.linalg.pinv(inputs) @ labels.T
    return ((inputs @ found) * labels.T > 0.05).all(1)


def readable(phi: Tensor) -> tuple[Tensor, Tensor]:
    """Return if a label of four vectors is not separable, that of the first bit, and the share of labelings that are."""
    labelings = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0])] * 4).double()
    found = separable(phi, labelings).double()
    return 1 - found[:, 3], found.mean(1)


# --- Weights of the linear model ---


def learned_weights(world: data.Mixture, grams: Mapping[int, Tensor]) -> dict[str, Tensor]:
    """Return the largest distance from 1 and 1/T, over tasks and T, of mean weights, and the largest spurious weight."""
    off, spurious = [], []
    for n_tasks, gram in grams.items():
        of_shared, _, of_spurious = world.by_kind(gram)
        off += [(world.by_task(gram) - 1 / n_tasks).abs().amax(1), (of_shared.mean(1) - 1).abs()]
        spurious.append(of_spurious.amax(1))
    return {"off": torch.stack(off).amax(0), "spurious": torch.stack(spurious).amax(0)}


def factor_weights(world: data.Mixture, gram: Tensor) -> dict[str, Tensor]:
    """Return the mean distance of private weights from 1/T, over tasks, and the largest spurious weight."""
    found = world.by_task(gram)
    return {"off": (found - 1 / found.shape[1]).abs().mean(1), "spurious": world.by_kind(gram)[2].amax(1)}


def rare_task(learned: np.ndarray, optimal: np.ndarray) -> dict[str, np.ndarray]:
    """Return the weight of a task below the threshold, and the distance from the optimal one at two shares above it."""
    _, second, third = learned - optimal
    return {"rare": learned[0], "second": second, "third": third}


# --- Errors of linear predictors from few labels ---

ABSOLUTE = (2 / np.pi) ** 0.5
"""Mean absolute value of a standard normal number: of an error with squared mean e^2 it makes the paper's loss."""


def in_groups(values, n: int = 8) -> np.ndarray:
    """Return means ``(n, ...)`` over ``n`` groups of the last axis."""
    return np.stack([part.mean(-1) for part in np.array_split(np.asarray(values), n, -1)])


def interpolation_errors(few: data.FewLabels, private: float, m: int) -> Tensor:
    """Return squared errors ``(run,)`` of the shortest interpolation of ``m`` labels, from features of weight ``private``."""
    root = data.root_weights(private, few.u.shape[1] // 2)
    x, y = few.z[:, :m] * root, few.y[:, :m, None]
    if m < x.shape[-1]:
        fit = x.mT @ torch.linalg.solve(x @ x.mT + 1e-10 * torch.eye(m).double(), y)
    else:
        fit = torch.linalg.solve(x.mT @ x + 1e-10 * torch.eye(x.shape[-1]).double(), x.mT @ y)
    return (fit[..., 0] * root - few.u).square().sum(1)


def ridge_errors(few: data.FewLabels, private: float, m: int, strength: float, noise: Tensor) -> Tensor:
    """Return squared errors ``(run,)`` of ridge regression on ``m`` noisy labels, with the penalty ``m * strength``."""
    root = data.root_weights(private, few.u.shape[1] // 2)
    x = few.z[:, :m] * root
    gram = x.mT @ x + m * strength * torch.eye(x.shape[-1]).double()
    fit = torch.linalg.solve(gram, x.mT @ (few.y + noise)[:, :m, None])[..., 0]
    return (fit * root - few.u).square().sum(1)


def blind_errors(few: data.FewLabels, m: int, z: Tensor) -> np.ndarray:
    """Return mean absolute errors ``(run,)`` at ``z`` of predictors from ``m`` labels that see only shared features."""
    s = few.u.shape[1] // 2
    fit = torch.linalg.pinv(few.z[:, :m, :s]) @ few.y[:, :m, None]
    return (z[..., :s] @ fit - z @ few.u[..., None]).abs().mean((1, 2)).numpy()


def error_table(few: data.FewLabels, tasks: Sequence[int], counts: Sequence[int]) -> np.ndarray:
    """Return squared errors ``(T, m, run)`` of even mixtures."""
    return np.array([[interpolation_errors(few, 1 / t, m).numpy() for m in counts] for t in tasks])


def growth(errors: np.ndarray, tasks: Sequence[int], counts: Sequence[int], s: int) -> dict[str, np.ndarray]:
    """Return what an :func:`error_table` says of mean absolute errors.

    ``least``: least increase from one T to the next, 5 labels or more and fewer than 2 s; ``ten``: ratio of T = 10 and 1 with
    15 labels; ``fewer``, ``more``: price of ten tasks with 10 and 12 labels minus that with 5, with 18; ``at``: errors with 15
    labels by T; ``price`` ``(group, T, m)``: errors minus those for T = 1.
    """
    grouped = ABSOLUTE * in_groups(np.sqrt(errors))  # (group, T, m)
    price = grouped - grouped[:, :1]
    at = dict(zip(tasks, grouped[:, :, counts.index(15)].T))
    five, ten, twelve, eighteen = (price[:, tasks.index(10), counts.index(m)] for m in (5, 10, 12, 18))
    peak, below = (ten + twelve) / 2, [5 <= m < 2 * s for m in counts]
    least = np.diff(grouped[:, :, below], axis=1).min((1, 2))
    return {"least": least, "ten": at[10] / at[1], "fewer": peak - five, "more": peak - eighteen, "at": at, "price": price}


def distance_from_limit(few: data.FewLabels, s: int, private: float = 1e-4) -> np.ndarray:
    """Return the mean relative deviation from the limit of many tasks, over four numbers of labels."""
    limits = {m: float(theory.endless_error(m, s, s, 0.5, 0.5)) for m in (2, 5, 15, 18)}
    return np.mean([in_groups(interpolation_errors(few, private, m)) / limit - 1 for m, limit in limits.items()], 0)


def distance_from_formula(errors: np.ndarray, tasks: Sequence[int], counts: Sequence[int], s: int) -> np.ndarray:
    """Return the largest relative deviation of an :func:`error_table` from the closed form, away from m = s."""
    clear = [i for i, m in enumerate(counts) if m < 2 * s and abs(m - s) > 1]
    closed = [[theory.interpolation_error(counts[i], s, s, 0.5, 0.5, 1 / t) for i in clear] for t in tasks]
    return np.abs(in_groups(errors[:, clear]) / np.array(closed) - 1).max((1, 2))


def bound_over_complexity(vectors: Tensor, tasks: Sequence[int], m: int) -> dict[str, np.ndarray]:
    """Return the least and the largest ratio, over T, of the bound and the complexity that normal ``vectors`` measure."""
    s, ratios = vectors.shape[1] // 2, []
    for t in tasks:
        lengths = in_groups((vectors * data.root_weights(1 / t, s)).norm(dim=1))
        complexity = theory.predictor_norm(0.5, 0.5, 1.0, 1 / t) / m**0.5 * lengths
        ratios.append(theory.rademacher_bound(m, s, s, 0.5, 0.5, 1.0, 1 / t) / complexity)
    return {"least": np.min(ratios, 0), "largest": np.max(ratios, 0)}


def ten_tasks(few: data.FewLabels, other: data.FewLabels) -> tuple[np.ndarray, np.ndarray]:
    """Return errors with 15 labels ``(T, run)`` on a task of a mixture of T = 1 to 10, and the mean over ten tasks.

    Tasks outside the mixture are those of ``other``.
    """
    first = np.arange(1, 11)
    inside = np.stack([ABSOLUTE * interpolation_errors(few, 1 / t, 15).sqrt() for t in first])
    return inside, inside + (1 - first[:, None] / 10) * (blind_errors(other, 15, few.z) - inside)


def universality(inside: np.ndarray, average: np.ndarray) -> dict[str, np.ndarray]:
    """Return the largest change of the average, a task more, and the least of the target's error, of :func:`ten_tasks`."""
    average, target = (np.diff(in_groups(one), axis=1) for one in (average, inside))
    return {"average": average.max(1), "target": target.min(1)}


def floor(few: data.FewLabels, other: data.FewLabels, errors: np.ndarray, counts: Sequence[int]) -> dict[str, np.ndarray]:
    """Return the error on another task with 160 labels over its floor, and the largest with more than s + q labels.

    ``errors`` are an :func:`error_table`; tasks outside the mixture are those of ``other``.
    """
    enough = errors[:, [m > few.u.shape[1] for m in counts]]
    blind = blind_errors(other, 160, few.z) / np.sqrt(1 / np.pi)
    return {"blind": blind, "universal": ABSOLUTE * np.sqrt(enough).max((0, 1))}


def noisy_errors(few: data.FewLabels, noise: Tensor, tasks, counts, penalties: Sequence[float]) -> dict:
    """Return mean absolute errors ``(penalty, group)`` of ridge regression by T and number of noisy labels."""
    found = {
        (t, m): torch.stack([ridge_errors(few, 1 / t, m, k, noise).sqrt() for k in penalties]) for t in tasks for m in counts
    }
    return {key: ABSOLUTE * in_groups(errors).T for key, errors in found.items()}


def hidden_price(noisy: Mapping[tuple[int, int], np.ndarray]) -> dict[str, np.ndarray]:
    """Return the error for T = 50 over that for T = 1: 15 and 160 labels, best penalty; 160, the first penalty."""
    few, many = (noisy[50, m].min(0) / noisy[1, m].min(0) for m in (15, 160))
    return {"few": few, "many": many, "untuned": noisy[50, 160][0] / noisy[1, 160][0]}


def regularisation(few: data.FewLabels, roots: np.ndarray, formula: np.ndarray, at: Mapping) -> tuple[np.ndarray, dict]:
    """Return errors ``(group, radius)`` with 15 labels after regularisation, and what the claims on it judge.

    ``roots`` ``(radius, run)`` of the private weight, their ``formula`` ``(radius,)``, errors ``at`` by T before. ``off``:
    largest distance of the roots from the formula; ``closed``: share of the gap between T = 10 and 1 that is closed in the end;
    ``rise``: largest step up of the errors.
    """
    errors = [interpolation_errors(few, root**2, 15).sqrt() for root in roots.mean(1)]
    errors = ABSOLUTE * in_groups(torch.stack(errors))
    closed = (at[10] - errors[:, -1]) / (at[10] - at[1])
    off = np.abs(roots - formula[:, None]).max(0)
    return errors, {"off": off, "closed": closed, "rise": np.diff(errors, axis=1).max(1)}


# --- Similarity ---


def linear_cka(first: Tensor, second: Tensor) -> Tensor:
    """Return linear centred kernel alignment of features of the same points, ``(..., n, p)``, ``(..., n, q)`` to ``(...)``.

    ``||Y^T X||^2 / (||X^T X|| ||Y^T Y||)`` of centred features, in [0, 1]; rotations and scale do not change it.
    Differentiable. Source: Kornblith et al. 2019.
    """
    x, y = (v.double() - v.double().mean(-2, keepdim=True) for v in (first, second))
    cross, own, other = (torch.linalg.matrix_norm(a) for a in (y.mT @ x, x.mT @ x, y.mT @ y))
    return cross.square() / (own * other)


def mixtures_cka(z: Tensor, turn: Tensor, pairs: Sequence[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    """Return CKA of pairs of even mixtures, one of them turned, on points ``z`` ``(set, n, 2 s)``, and its formula.

    ``(pair, set)`` and ``(pair, 1)``.
    """
    s = z.shape[-1] // 2
    found = [linear_cka((z * data.root_weights(1 / a, s)) @ turn, z * data.root_weights(1 / b, s)).numpy() for a, b in pairs]
    return np.array(found), np.array([[theory.weight_cosine(1 / a, 1 / b, s, s)] for a, b in pairs])


def cosine(similar: np.ndarray, formula: np.ndarray) -> dict[str, np.ndarray]:
    """Return the largest distance of :func:`mixtures_cka` from the formula, and the least fall over the first three pairs."""
    return {"distance": np.abs(similar - formula).max(0), "fall": -np.diff(similar[:3], axis=0).max(0)}


def similarity(features: Mapping[str, Tensor]) -> tuple[dict[str, np.ndarray], dict]:
    """Return CKA with H of each network ``(run,)``, and what the claims judge.

    ``features`` ``(run, n, p)`` of H, HP, HPR, HPRL, P, R, L and of H with two weight decays, in this order. By claim: CKA of H
    and HP, and its fall to HPR; CKA with H at the smaller decay, and its fall to the larger one; mean CKA of two networks of
    one set each minus that of two unions.
    """
    cka = np.array([[linear_cka(x, y).cpu().numpy() for y in features.values()] for x in features.values()])
    apart = ~np.eye(4, dtype=bool)
    union, single = (cka[np.ix_(k, k)][apart].mean(0) for k in (range(4), [0, 4, 5, 6]))
    first = {"pictures-cka-falls": 1, "pictures-cka-decay": 7}
    falls = {name: {"first": cka[0, i], "fall": cka[0, i] - cka[0, i + 1]} for name, i in first.items()}
    return dict(zip(features, cka[0])), falls | {"pictures-cka-single-sets": single - union}


# --- Probes of pictures: accuracies in %, apart from that of ridge regression ---


def ridge_accuracy(train: Tensor, y: Tensor, test: Tensor, y_test: Tensor, classes: int, strength: float = 0.3) -> Tensor:
    """Return the accuracy ``(R,)`` of ridge regression from features ``(R, n, D)`` to one-hot labels ``(n,)``.

    The penalty is ``strength`` times the mean squared size of a feature's column.
    """
    train, test = train.double(), test.double()
    centre = train.mean(1, keepdim=True)
    a, goal = train - centre, F.one_hot(y, classes).double().to(train.device)
    gram = a.mT @ a
    size = gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-9)[:, None, None]  # above 0 for blank pictures
    penalty = strength * size * torch.eye(a.shape[-1], device=a.device)
    fitted = torch.linalg.solve(gram + penalty, a.mT @ (goal - goal.mean(0)))
    logits = (test - centre) @ fitted + goal.mean(0)
    return (logits.argmax(-1) == y_test.to(a.device)).double().mean(1).cpu()


def probe(features: Callable[[Tensor], Tensor], sets: data.SmallSets, labels: Sequence[int]) -> dict[str, np.ndarray]:
    """Return accuracies on the ``"target"`` ``(R, labels)``, on each set, and their class-weighted ``"average"``.

    ``features`` maps pictures to ``(R, n, D)``. Accuracies on the target are means over up to eight disjoint sets of labelled
    pictures, the same for all networks.
    """
    (x, y), (x_test, y_test), c = sets.known, sets.test, sets.classes
    seen, asked, rows = features(x), features(x_test), []
    for m in labels:
        parts = torch.arange(len(y)).split(m)[: max(1, min(8, len(y) // m))]
        scores = [ridge_accuracy(seen[:, part], y[part], asked, y_test, c[data.TARGET]) for part in parts]
        rows.append(torch.stack(scores).mean(0))
    found = {"target": torch.stack(rows, 1)}
    for name, (x, y) in sets.sets.items():
        held = slice(sets.own, sets.own + sets.n_test)
        found[name] = ridge_accuracy(features(x[: sets.own]), y[: sets.own], features(x[held]), y[held], c[name])
    found["average"] = sum(c[name] * found[name] for name in sets.sets) / sum(c.values())
    return {key: 100 * value.numpy() for key, value in found.items()}


def probe_labelled(nets: Networks, sets: data.SmallSets, params: Params, rows: Tensor) -> np.ndarray:
    """Return the accuracies ``(R,)`` on the target of linear probes from each run's labelled pictures ``rows`` ``(R, n)``."""
    (x, y), (x_test, y_test), classes = sets.known, sets.test, sets.classes[data.TARGET]
    seen, asked = nets.encode(params, x), nets.encode(params, x_test)
    scores = [ridge_accuracy(seen[r : r + 1, s], y[s], asked[r : r + 1], y_test, classes) for r, s in enumerate(rows)]
    return 100 * torch.cat(scores).numpy()


def accuracy(classifier: Callable[[Tensor], Tensor], test: tuple[Tensor, Tensor]) -> np.ndarray:
    """Return the accuracies ``(R,)`` of a stack of classifiers on test pictures."""
    x, y = test
    return 100 * (classifier(x).argmax(-1).cpu() == y).double().mean(1).numpy()


def tuned(nets: Networks, sets: data.SmallSets, trained: Sequence[Params], arms: Mapping, labels, **setting) -> dict:
    """Return accuracies ``(labels, union, run)`` on the target of linear probes, "LP", and of each of ``arms``.

    Classifiers are made from the networks ``trained`` on each union, all with the same labelled pictures. An arm is a function
    like :func:`~mvnb.papers.contrastive_tradeoff.training.fine_tune`, with ``setting``, and the weight of the contrastive loss.
    """
    rows = [sets.labelled(m, nets.streams(20)) for m in labels]
    found = {"LP": [[probe_labelled(nets, sets, params, some) for params in trained] for some in rows]}
    for name, (arm, weight) in arms.items():
        fits = [[arm(nets, sets, params, some, weight=weight, **setting) for params in trained] for some in rows]
        found[name] = [[accuracy(fit, sets.test) for fit in row] for row in fits]
    return {name: np.array(one) for name, one in found.items()}


def logistic_probe(
    features: Callable, images: data.ColourImages, labels, draws: int, penalties, judged: str, seed: int
) -> dict:
    """Return what logistic regression on features gives for each number of labels; 0 stands for all.

    ``accuracy``, on the images ``judged``, and ``fitted``, on the labelled ones, are means over ``draws`` subsets; for each the
    penalty is the best on the validation images. ``penalty`` lists these choices, as places in ``penalties``.
    """
    from sklearn.linear_model import LogisticRegression

    with torch.no_grad():
        x = {part: in_parts(features, (value,), 1000).cpu() for part, value in images.x.items()}
    mean, std = x["labelled"].mean(0), x["labelled"].std(0) + 1e-6
    x = {part: ((value - mean) / std).numpy() for part, value in x.items()}
    found = {"accuracy": [], "fitted": [], "penalty": []}
    for n in labels:
        g, each = torch.Generator().manual_seed(seed + 10**6), []
        for _ in range(draws if n else 1):
            rows = data.balanced_subset(images.y["labelled"], n or len(images.y["labelled"]), g)
            points = x["labelled"][rows], images.y["labelled"][rows].numpy()
            fits = [LogisticRegression(C=1 / penalty, max_iter=100).fit(*points) for penalty in penalties]
            scores = [fit.score(x["valid"], images.y["valid"]) for fit in fits]
            place = max(range(len(fits)), key=scores.__getitem__)
            each.append((100 * fits[place].score(x[judged], images.y[judged]), 100 * fits[place].score(*points), place))
        accuracy, fitted, chosen = zip(*each)
        found["accuracy"].append(round(sum(accuracy) / len(each), 3))
        found["fitted"].append(round(sum(fitted) / len(each), 3))
        found["penalty"].append(list(chosen))
    return found


# --- What the claims on pictures judge, in points ---


def small_sets(scores: Sequence[Mapping[str, np.ndarray]], pixels: Mapping, untrained: Mapping, at: int) -> dict:
    """Return what the claims on H, HP, HPR and HPRL judge, by claim, from a :func:`probe` of each and of two controls.

    On the target with the labels at the place ``at``: lost from H to HPR, and the lead of H over an untrained network; the lead
    over raw pixels; lost to HPRL. Lost to HPR with the fewest labels minus with all; gained to HPRL on average over all sets,
    and on the other sets, mean of three.
    """
    target, average = (np.stack([found[key] for found in scores]) for key in ("target", "average"))
    lost = target[0] - target  # (union, run, labels)
    ahead, pixels = ((target[0] - one["target"])[:, at] for one in (untrained, pixels))
    return {
        "pictures-target-drops": {"lost": lost[2, :, at], "ahead": ahead},
        "pictures-ahead-of-pixels": pixels,
        "pictures-all-sets-drop": lost[3, :, at],
        "pictures-fewer-labels-lose-more": lost[2, :, 0] - lost[2, :, -1],
        "pictures-average-rises": average[3] - average[0],
        "pictures-other-sets-rise": np.mean([scores[3][name] - scores[0][name] for name in data.SETS[1:]], 0),
    }


def classifiers(tuned: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return gains of the contrastive loss, by claim, from accuracies ``(labels, union, run)`` by kind of classifier.

    Those of CR are means over numbers of labels and unions, those of adapters over numbers of labels on the last union.
    """
    last = {kind: found[:, 3].mean(0) for kind, found in tuned.items()}
    return {
        "pictures-regularisation-helps": (tuned["CR"] - tuned["FT"]).mean((0, 1)),
        "pictures-regularisation-beats-the-probe": (tuned["CR"] - tuned["LP"]).mean((0, 1)),
        "pictures-adapters-gain": last["adapter, CR"] - last["adapter, FT"],
        "pictures-adapters-beat-the-probe": last["adapter, CR"] - last["LP"],
    }


def updates(before: Sequence[Mapping], after: Sequence[Mapping]) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Return gains on the target ``(union, run, labels)`` of an update, from a :func:`probe` of each union; and by claim.

    The latter are means over numbers of labels: of the last union; of HPR minus that of H.
    """
    gain = np.stack([new["target"] - old["target"] for new, old in zip(after, before)])
    more = (gain[2] - gain[0]).mean(1)
    return gain, {"pictures-update-then-probe": gain[3].mean(1), "pictures-update-helps-diverse-more": more}


# --- What the claims on kept runs judge, in points ---


def kept_accuracies(values: Sequence[Mapping]) -> dict[str, dict[str, np.ndarray]]:
    """Return accuracies ``(seed, labels)`` by arm and set from the values of the run on CIFAR-10; their mean is ``"both"``.

    An arm with fewer seeds has the first ones.
    """
    found = {}
    for arm in values[0]:
        runs = [run[arm] for run in values if arm in run]
        found[arm] = {key: np.array([run[key]["accuracy"] for run in runs]) for key in ("cifar10", "mnist")}
        found[arm]["both"] = (found[arm]["cifar10"] + found[arm]["mnist"]) / 2
    return found


def lost(kept: Mapping[str, Mapping[str, np.ndarray]], on: str = "cifar10") -> dict[str, np.ndarray]:
    """Return points lost on a set by adding MNIST, ``(seed, labels)``, by method, from :func:`kept_accuracies`."""
    return {kind: kept[f"{kind}, alone"][on] - kept[f"{kind}, added"][on] for kind in ("SimCLR", "MoCo")}


def cifar10(kept: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return what the claims on CIFAR-10 judge, ``(seed,)`` by claim, from :func:`kept_accuracies`; the primary claim is first.

    Means over numbers of labels, except ``fewer-labels``: lost with the fewest minus with all. ``ahead``: lead, after
    pretraining on CIFAR-10 alone, over raw pixels or the untrained encoder, whichever is better in the seed.
    """
    own, both = ({kind: one.mean(1) for kind, one in lost(kept, on).items()} for on in ("cifar10", "both"))
    control = np.maximum(*(kept[arm]["cifar10"].mean(1) for arm in ("pixels", "untrained")))
    level = {kind: kept[f"{kind}, alone"]["cifar10"].mean(1) for kind in own}
    by_labels = lost(kept)["SimCLR"]
    return {
        "cifar10-falls-at-equal-passes": own["SimCLR"],
        "cifar10-encoder-ahead": level["SimCLR"] - control,
        "cifar10-average-rises": -both["SimCLR"],
        "cifar10-fewer-labels-lose-more": by_labels[:, 0] - by_labels[:, -1],
        "cifar10-moco-ahead": level["MoCo"] - control[: len(level["MoCo"])],
        "cifar10-moco-falls": own["MoCo"],
        "cifar10-moco-average-rises": -both["MoCo"],
    }


def validated(values: Sequence[Mapping]) -> dict[str, float]:
    """Return by arm of the tuning run the accuracy on validation images of CIFAR-10, mean over runs and numbers of labels."""
    return {arm: float(np.mean([run[arm]["cifar10"]["accuracy"] for run in values])) for arm in values[0]}


def printed_table(table: np.ndarray) -> dict[str, float]:
    """Return the loss of LP with the fewest labels minus all, and the cells of Ours, of a table ``(method, union, labels)``."""
    lost = table[0, 0] - table[0, 3]
    return {"fewer": lost[0] - lost[-1], "best": (table[2] >= table[:2].max(0)).sum()}
