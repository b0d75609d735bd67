"""Measures of chapter 03, which its claims judge: numbers per run, of stacks of trained networks and of kept runs.

``best`` ``(run, feature)`` is the best correlation of any kernel with each feature, ``known`` where it exceeds the threshold.
``activation`` is the exponent and the threshold of the smoothed ReLU.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np
import torch
from scipy.integrate import simpson
from scipy.stats import spearmanr
from torch import Tensor

from mvnb import probes, stats, training
from mvnb.models import PatchObjective
from mvnb.papers.mask_reconstruction import theory
from mvnb.papers.mask_reconstruction.data import SparsePatches, own_tiles, pictures
from mvnb.papers.mask_reconstruction.model import FineTuneObjective, MaskedAutoencoderObjective, TeacherStudentObjective
from mvnb.papers.mask_reconstruction.training import Activation, Logits, centroid_head, teacher_student
from mvnb.training import Params, Run

# --- Gradients and growth, without runs ---


def over_masks(loss, w: Tensor, x: Tensor, keep: float) -> tuple[Tensor, Tensor]:
    """Return the expectation of ``loss(w, x, mask, keep)`` over all masks for each row of ``w`` and ``x``, and its gradient.

    ``w`` is ``(R, kernels, dim)``, ``x`` is ``(R, n, patches, dim)``, a mask ``(n, patches)`` is the same for all points.
    """
    leaf, value, (n, patches) = w.clone().requires_grad_(), 0.0, x.shape[1:3]
    for bits in product((0.0, 1.0), repeat=patches):
        weight = keep ** sum(bits) * (1 - keep) ** (patches - sum(bits))
        mask = torch.tensor(bits).double().expand(n, patches)
        value = value + weight * torch.stack([loss(leaf[r], x[r], mask, keep) for r in range(len(x))])
    return value.detach(), torch.autograd.grad(value.sum(), leaf)[0]


def push(name: str, responses: Sequence[float], activation: Activation, keep: float = 0.5) -> float:
    """Return minus the slope of a loss in the last of some kernels' responses, each to a feature and a patch of its own.

    ``name`` is "MAE", "Teacher-student", or "ERM" for labels of two classes, of which the kernels of the second are zero.
    """
    size = len(responses)
    weight = torch.diag(torch.tensor(responses, dtype=torch.float64))[None]
    patches = torch.eye(size, dtype=torch.float64)[None, None]
    if name == "ERM":
        both, rest = torch.stack([weight, 0 * weight], 1), (torch.zeros(1, 1, dtype=torch.long), patches.new_ones(1, size))
        grad = PatchObjective(*activation, torch.float64)({"weight": both}, patches, *rest)[1]["weight"][:, 0]
    else:
        objective = {"MAE": MaskedAutoencoderObjective, "Teacher-student": TeacherStudentObjective}[name]
        grad = objective(*activation)({"weight": weight}, patches, keep)[1]["weight"]
    return -grad[0, -1, -1].item()


def growth_exponent(name: str, activation: Activation) -> float:
    """Return the exponent of the push on one kernel, a slope on logarithmic axes for correlations of 0.01 to 0.03."""
    u = np.geomspace(0.01, 0.03, 6)
    return stats.power_law_fit(u, [push(name, [v], activation) for v in u]).slope


def growth_time(name: str, start: float, end: float, activation: Activation, steps: int = 200) -> float:
    """Return the flow time of one kernel from a correlation to another, the integral of 1 / push."""
    u = np.geomspace(start, end, steps + 1)
    return simpson([v / push(name, [v], activation) for v in u], x=np.log(u))


def pair_growth_rate(activation: Activation, keep: float, step: float = 0.002, steps: int = 2500) -> float:
    """Return the exponential rate at which a teacher-student kernel grows that holds both features of a point."""
    kernel, points = torch.ones(1, 1, 2, dtype=torch.float64), torch.eye(2, dtype=torch.float64)[None, None]
    how = {"probes": {"sum": lambda params: params["weight"].sum((1, 2))}, "log_at": (steps - round(1 / step), steps)}
    run = teacher_student(kernel, (points, keep), activation, steps, training.SGD(step), **how)
    start, end = run.log["sum"][:, 0].numpy()
    return np.log(end / start)


# --- Margins after one step of the head ---


def margin_error(sample: SparsePatches, psi: np.ndarray, foreign: float) -> float:
    """Return the largest deviation of margins from their closed form, for kernels of lengths ``psi`` on noise-free points."""
    n_features, y = len(psi), sample.y.numpy()
    n_classes, points, squared = n_features // 2, np.arange(len(y)), (psi**2).reshape(-1, 2)
    is_own = np.arange(n_features) // 2 == np.arange(n_classes)[:, None]  # (class, kernel)
    mean_hidden = np.where(is_own, 1.15, foreign / n_classes * 0.3) * psi
    head, z = mean_hidden - mean_hidden.mean(0), total_strength(sample, n_features)  # one step of size eta_2 = k
    outputs, per_class, error = (psi * z) @ head.T, z.reshape(-1, n_classes, 2), 0.0
    for j in ((y + shift) % n_classes for shift in range(1, n_classes)):
        sizes = per_class[points, y], per_class[points, j], squared[y], squared[j]
        margin = theory.ideal_margin(*sizes, 1.15, 0.3, foreign, n_classes, n_classes)
        error = max(error, np.abs(outputs[points, y] - outputs[points, j] - margin).max())
    return float(error)


def total_strength(sample: SparsePatches, n_features: int) -> np.ndarray:
    """Return the total strength of each feature in each point, ``(n, features)``."""
    return sample.x.sum(1)[:, :n_features].double().numpy()


def centroid_accuracy(train: SparsePatches, tests: Sequence[SparsePatches], known: np.ndarray) -> list[float]:
    """Return accuracies on ``tests`` after one head step from ``train``, for an encoder of the features ``known`` (2k,)."""
    n_classes = len(known) // 2
    answers = [total_strength(s, len(known)) * known for s in (train, *tests)]
    head = theory.centroid_head(answers[0], train.y.numpy(), n_classes, n_classes)
    return [probes.accuracy(torch.from_numpy(a @ head.T), s.y).item() for a, s in zip(answers[1:], tests)]


# --- Features ---


def share(hits: np.ndarray, of: np.ndarray) -> np.ndarray:
    """Return the share of each run's ``of`` that are hits, 0 where there are none: (run,)."""
    hits, of = (a.reshape(len(a), -1) for a in (hits & of, of))
    return hits.sum(1) / np.maximum(of.sum(1), 1)


def views(known: np.ndarray) -> np.ndarray:
    """Return how many features of each class are known, ``(run, feature)`` to ``(run, class)``."""
    return known.reshape(len(known), -1, 2).sum(-1)


def one_view(known: np.ndarray) -> np.ndarray:
    """Return the share of classes of which exactly one feature is known, (run,)."""
    return (views(known) == 1).mean(1)


def at_most_one_view(known: np.ndarray) -> np.ndarray:
    """Return the share of classes of which at most one feature is known, (run,)."""
    return (views(known) <= 1).mean(1)


def pure(held: np.ndarray) -> np.ndarray:
    """Return the share of the kernels with a feature that have one only, (run,); ``held`` is ``(run, kernel, feature)``."""
    return share(held.sum(-1) == 1, held.any(-1))


def at_first(log: Mapping[str, Tensor], true: Tensor) -> dict[str, Tensor]:
    """Return a log's values at each run's first look at which ``true`` ``(looks, runs)``, or at its last look."""
    look, runs = torch.where(true.any(0), true.int().argmax(0), len(true) - 1), torch.arange(true.shape[1])
    return {key: rows[look, runs] for key, rows in log.items()}


# --- The masked autoencoder: levels, stairs and times ---


def off_level(best: np.ndarray, level: float, threshold: float) -> dict[str, np.ndarray]:
    """Return each run's median deviation from the predicted level, over features known, and the share within 10 %."""
    off, known = np.abs(best / level - 1), best > threshold
    return {
        "median": np.array([np.median(d[on]) if on.any() else 1.0 for d, on in zip(off, known)]),
        "within": share(off <= 0.1, known),
    }


def per_feature(value, points: SparsePatches, n_features: int) -> np.ndarray:
    """Return ``value(strength)``, summed over the patches that show a feature, mean over points: (run, feature)."""
    return theory.per_feature(value, points.strength.cpu().numpy(), points.holds.cpu().numpy(), n_features)


def stairs(run: Run, points: SparsePatches, activation: Activation, keep: float, level: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the predicted loss ``(look, run)``, a stair lower for each feature known, and the mean deviation ``(run,)``.

    The deviation is a share of all stairs, while some features are known and some are not; 1 if that is never so.
    """
    loss, best = (run.log[key].cpu().numpy() for key in ("loss", "best"))
    known = best > activation[1]  # (look, run, feature)
    heights = per_feature(lambda z: theory.stair(level, z, *activation, keep), points, best.shape[-1])
    predicted, climbing = loss[0] - (known * heights).sum(-1), known.any(-1) & ~known.all(-1)
    off = np.abs(loss - predicted) / heights.sum(-1)
    return predicted, np.array([o[up].mean() if up.any() else 1.0 for o, up in zip(off.T, climbing.T)])


def captures(run: Run, points: SparsePatches, activation: Activation) -> tuple[np.ndarray, np.ndarray]:
    """Return predicted and measured times at which half the threshold is passed, (run, feature); NaN where it never is."""
    power, half = activation[0], activation[1] / 2
    best, clock = (run.log[key].cpu().numpy() for key in ("best", "time"))
    moment = per_feature(lambda z: z ** (power + 1), points, best.shape[-1])
    predicted = theory.autoencoder_growth(*activation, 1.0).time(best[0], half) / moment
    return predicted, stats.first_crossing_time(best, clock, half, 1.0 - power)


def off_times(predicted: np.ndarray, captured: np.ndarray) -> dict[str, np.ndarray]:
    """Return each run's median deviation of capture times, 1 if never captured, and the share of features within 30 %."""
    late = captured / predicted - 1
    error = np.where(np.isfinite(late), np.abs(late), 1.0)
    return {"median": np.median(error, 1), "within": (error <= 0.3).mean(1)}


def off_levels(best: np.ndarray, levels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the largest deviation of a run's mean level over mask ratios, and the share of features within 10 %: (run,).

    ``best`` is ``(ratio, run, feature)``, ``levels`` ``(ratio,)``.
    """
    off, over = np.abs(best.mean(-1) / levels[:, None] - 1), best / levels[:, None, None]
    return off.max(0), (np.abs(over - 1) <= 0.1).mean((0, 2))


def loss_over_empty(losses: Tensor, x: Tensor) -> Tensor:
    """Return losses over that of kernels of zero, which is half the mean squared length of the points: (run,)."""
    return losses / (x.double().square().sum((1, 2, 3)).cpu() / (2 * x.shape[1]))


def runner_up_growth(first: np.ndarray, last: np.ndarray) -> np.ndarray:
    """Return by what factor the kernel grew that ends second for each feature, (run, kernel, feature) to (run, feature)."""
    second = last.argsort(1)[:, -2:-1]
    return (np.take_along_axis(last, second, 1) / np.take_along_axis(first, second, 1))[:, 0]


def losers_growth(growth: Mapping[int, np.ndarray]) -> dict[str, np.ndarray]:
    """Return each run's median growth of runners-up at q = 2 over the larger one at 3 and 4, and that at 4 over that at 3."""
    two, three, four = (np.median(growth[power], 1) for power in (2, 3, 4))
    return {"two": two / np.maximum(three, four), "four": four / three}


# --- The teacher-student loss: pairs (run, kernel, feature) ---


def winners_ahead(first: np.ndarray, held: np.ndarray) -> np.ndarray:
    """Return the share of the pairs held that started within a factor 1 - 1 / log k of the feature's best, (run,)."""
    near = 1 - 1 / np.log(first.shape[-1] // 2)
    return share(first >= near * first.max(1)[:, None], held)


def miscounted(held: np.ndarray, foreseen: np.ndarray, fewest: int) -> np.ndarray:
    """Return the relative error of the number of kernels foreseen to hold ``fewest`` features or more, (run,)."""
    found, told = ((pairs.sum(-1) >= fewest).sum(1) for pairs in (held, foreseen))
    return np.abs(found - told) / np.maximum(told, 1)


def foreseen_share(held: np.ndarray, foreseen: np.ndarray) -> np.ndarray:
    """Return the number of pairs both held and foreseen over the larger of the two numbers, (run,)."""
    both, *sizes = (pairs.sum((1, 2)) for pairs in (held & foreseen, held, foreseen))
    return both / np.maximum(*sizes)


def growth_beyond(beyond: Run, t0: np.ndarray, power: int, n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the time that Theorem 1 allows after T_0, and by what factor the largest correlation grows within it: (run,)."""
    allowed, largest = n_classes * t0 ** (1 / power), beyond.log["best"].amax(-1)
    growth = (largest / largest[0]).cpu().numpy()
    return allowed, np.where(beyond.log["time"].numpy() <= allowed, growth, 1.0).max(0)


# --- Classification ---


def accuracies(logits_of: Logits, tests: Mapping[str, tuple]) -> dict[str, np.ndarray]:
    """Return the accuracy ``(R,)`` on each of some samples."""
    return {kind: probes.accuracy(logits_of(s.x[None]), s.y).cpu().numpy() for kind, s in tests.items()}


def worse_kind(result: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the accuracy of each run on the kind of points on which it is lower, ``(R,)``."""
    return np.minimum(*result.values())


def lead(ours: Mapping[str, np.ndarray], rival: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return by how much our accuracy exceeds a rival's, for each kind of points."""
    return {kind: ours[kind] - rival[kind] for kind in ours}


def rank_agreement(expected: np.ndarray, found: np.ndarray) -> list[float]:
    """Return the rank correlation of each column; 0 where either is constant, or for less than three rows."""
    some = len(expected) > 2
    return [spearmanr(*both).statistic if some and np.prod(np.ptp(both, 1)) else 0.0 for both in zip(expected.T, found.T)]


def head_error(weight: Tensor, points: SparsePatches, activation: Activation, n_classes: int) -> np.ndarray:
    """Return the largest deviation of the first step of the head from the centroid formula, (run,)."""
    head = n_classes * centroid_head(weight, points, activation, n_classes).cpu().numpy()
    hidden = FineTuneObjective(*activation).features(weight, points.x.to(weight.dtype)).cpu().numpy()
    return np.abs(head - theory.centroid_head(hidden, points.y.cpu().numpy(), n_classes, n_classes)).max((1, 2))


def fine_tuned(log: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the smallest ratio of a best correlation to its start, and the growth of the largest stray one, (run,)."""
    best, strays = log["best"], log["strays"]
    return (best / best[0]).amin((0, 2)), strays[-1] / strays[0]


# --- Images ---


def hits(net, params: Params, x: Tensor, y: Tensor) -> Tensor:
    """Return which images ``x`` ``(n, ...)`` a network classifies right, 0 or 1 ``(n,)``; ``params`` is a stack of one."""
    device = next(iter(params.values())).device
    return (training.predict(net, params, x[None].to(device)).argmax(-1).cpu() == y.cpu())[0].double()


def accuracy_by_view(right: Tensor, sample: SparsePatches) -> list[list[float]]:
    """Return the accuracy on the single-view points of each class that show one view, a list of two per class."""
    classes = range(int(sample.y.max()) + 1)
    return [[float(right[(sample.y == c) & (sample.strong == view)].mean()) for view in range(2)] for c in classes]


def looks(net, params: Params, sample: SparsePatches, shown: int) -> dict:
    """Return how a network's last features light the own tiles of pictures; ``params`` is a stack of one.

    The values are the overlap of lit and own tiles, the number of own tiles that are lit, the average precision of a cell
    probe, and the first ``shown`` maps.
    """
    inner = {k.removeprefix("encoder."): v for k, v in params.items() if k.startswith("encoder.")}
    x, own = pictures(sample)[None].to(next(iter(inner.values())).device), own_tiles(sample)
    features = training.predict(net.encoder, inner, x)[0].cpu()
    maps = eigen_cam(features)
    lit = lit_tiles(maps)
    return {
        "covered": float(overlap(lit, own).mean()),
        "lit": float((lit & own).sum(1).double().mean()),
        "precision": cell_probe(features, own),
        "maps": [[round(v, 2) for v in one.flatten().tolist()] for one in maps[:shown]],
    }


def eigen_cam(features: Tensor) -> Tensor:
    """Return features ``(n, features, h, w)`` on their first principal direction, as maps ``(n, h, w)`` in [0, 1].

    The sign is the one in which strong features are positive. Source: Muhammad and Yeasin 2020.
    """
    flat = features.flatten(2).mT  # (n, position, features)
    centred = flat - flat.mean(1, keepdim=True)
    scores = (centred @ torch.linalg.svd(centred, full_matrices=False).Vh[:, :1].mT)[..., 0]
    strong = flat.norm(dim=-1)
    sign = torch.sign(((strong - strong.mean(1, keepdim=True)) * scores).sum(1, keepdim=True))
    maps = (scores * sign).clamp(min=0)
    return (maps / maps.amax(1, keepdim=True).clamp(min=1e-9)).unflatten(1, features.shape[2:])


def lit_tiles(maps: Tensor) -> Tensor:
    """Return which tiles have a quarter above one half, for maps ``(n, 8, 8)``: ``(n, 16)``."""
    return maps.unflatten(2, (4, 2)).unflatten(1, (4, 2)).amax((2, 4)).flatten(1) > 0.5


def overlap(lit: Tensor, own: Tensor) -> Tensor:
    """Return the number of tiles both lit and own over that of tiles lit or own, ``(n,)``."""
    return (lit & own).sum(1) / (lit | own).sum(1)


def cell_probe(features: Tensor, own: Tensor, penalty: float = 1.0) -> float:
    """Return the average precision of ridge regression from features to own tiles, fitted on one half, judged on the other.

    ``features`` are ``(n, features, 8, 8)``, ``own`` is ``(n, 16)``; each tile counts with its four quarters.
    """
    x = features.flatten(2).mT
    x, half = (x - x.mean((0, 1))) / (x.std((0, 1)) + 1e-6), len(own) // 2
    target = own.view(-1, 4, 4).repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1).double()
    x, known, judged = x.double(), (target[:half] - target.mean()).flatten(), target[half:].flatten()
    seen = x[:half].flatten(0, 1)
    weight = torch.linalg.solve(seen.T @ seen + penalty * torch.eye(x.shape[2]), seen.T @ known)
    hits = judged[(x[half:].flatten(0, 1) @ weight).argsort(descending=True)]
    return float((hits.cumsum(0) / torch.arange(1, len(hits) + 1) * hits).sum() / hits.sum())


# --- Kept runs ---


def on_tiles(record: Mapping, arm: str, key: str) -> np.ndarray:
    """Return a value of every seed of the run on planted parts; ``arm`` is "ERM" or "MAE"."""
    return np.array([run["values"][arm][key] for run in record["runs"]])


def gain_on_tiles(record: Mapping, key: str) -> np.ndarray:
    """Return by how much a value is larger with pretraining, (run,)."""
    return on_tiles(record, "MAE", key) - on_tiles(record, "ERM", key)


def on_digits(record: Mapping, arm: str, key: str = "error") -> np.ndarray:
    """Return a value of an arm of the run on MNIST, (number of labels, seed); the mean over a seed's sets of labels."""
    runs = [[row for row in run["values"]["arms"] if row["arm"] == arm] for run in record["runs"]]
    counts = record["parameters"]["labels"]
    return np.array([[np.mean([r[key] for r in of if r["labels"] == n]) for of in runs] for n in counts])


def gain_on_digits(record: Mapping) -> np.ndarray:
    """Return how many points of error pretraining saves, (number of labels, seed)."""
    return on_digits(record, "scratch") - on_digits(record, "pretrained")


def best_settings(*records: Mapping) -> dict[str, list[tuple[float, dict]]]:
    """Return the settings of each arm in runs of tuning with their mean validation errors in percent, the best ones first.

    Settings of "scratch, more" are settings of "scratch".
    """
    errors: dict[str, dict] = {}
    for row in (row for record in records for run in record["runs"] for row in run["values"]["arms"]):
        setting = tuple((key, row[key]) for key in ("encoder_rate", "step_size", "weight_decay"))
        errors.setdefault(row["arm"].split(",")[0], {}).setdefault(setting, []).append(row["error"])
    ranked = {arm: [(float(np.mean(e)), dict(s)) for s, e in of.items()] for arm, of in errors.items()}
    return {arm: sorted(of, key=lambda one: one[0]) for arm, of in ranked.items()}
