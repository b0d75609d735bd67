"""Measures of chapter 02, which its claims judge: measurements on trained networks and on the values of the kept runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from mvnb import probes, training
from mvnb.blocks import in_parts
from mvnb.papers.fine_grained_labels import data, model, theory
from mvnb.papers.fine_grained_labels.data import HierarchicalMultiView, HierarchicalPatches, Labels, Split
from mvnb.training import Params, Run

# --- Patch networks ---


def own_growth(params: Params, start: model.Start, table: np.ndarray) -> Tensor:
    """Return the mean growth of each class's singleton detectors of its common and of its fine features, ``(R, label, 2)``."""
    own = torch.as_tensor(table > 0, device=start.single.device)
    moved = (params["weight"] - start.params["weight"])[..., : own.shape[1]]
    single = start.single[..., : own.shape[1]] & own[:, None]
    common = torch.arange(own.shape[1], device=own.device) < 2
    masks = [single & which for which in (common, ~common)]
    return torch.stack([(moved * mask).sum((2, 3)) / mask.sum((2, 3)) for mask in masks], -1)


def growth_ratio(run: Run) -> np.ndarray:
    """Return the logged common over fine growth, each averaged over the classes with detectors, ``(look, run)``."""
    common, fine = np.moveaxis(np.nanmean(run.log["growth"].numpy(), 2), -1, 0)
    return common / np.where(fine == 0, np.nan, fine)


def read_out_ratio(params: Params, start: model.Start, n_subclasses: int) -> Tensor:
    """Return the common over the fine growth that a hard point compares through the max read-out, ``(R,)``.

    Of idealised networks, in which detector f moves along feature f. Each growth is the largest among the labels of the
    feature's superclass, averaged over features.
    """
    moved = (params["weight"] - start.params["weight"]).diagonal(dim1=-2, dim2=-1)  # (R, label, feature)
    largest = moved.unflatten(1, (2, -1)).amax(2)  # (R, superclass, feature)
    parts = largest[..., :2], largest[..., 2 : 2 + 2 * n_subclasses]
    own = [part.unflatten(-1, (2, -1)).diagonal(dim1=1, dim2=2).mean((1, 2)) for part in parts]
    return own[0] / own[1]


def margins(params: Params, test: HierarchicalPatches) -> Tensor:
    """Return the output of the right superclass minus that of the wrong one at each test point, ``(R, n)``."""
    second_minus_first = model.max_read_out(model.relu_logits(params, test.x)).diff(dim=-1)[..., 0]
    return second_minus_first * (2 * test.superclass - 1)


def errors(margin: Tensor) -> np.ndarray:
    """Return the share of misjudged points over the last axis of the margins; ties count as errors."""
    return (margin <= 0).double().mean(-1).cpu().numpy()


def first_step(world: HierarchicalMultiView, points: HierarchicalPatches, labels: Tensor, n_labels: int) -> np.ndarray:
    """Return how far one step of size 1 from outputs near 0 moves each detector along its feature, ``(label, feature)``."""
    start = model.stratified_detectors(n_labels, world.n_features, world.dim, 1e-12, 1, torch.float64)
    _, gradient = model.ReluPatchObjective(0.0)(start, points.x[None], labels[None])
    return -gradient["weight"][0].diagonal(dim1=-2, dim2=-1).numpy()


def firing_on_noise(params: Params, test: HierarchicalPatches) -> np.ndarray:
    """Return the share of pairs of a noise patch and a neuron that fire, at the first 32 test points, ``(R,)``."""
    fires = model.relu_responses(params["weight"], params["bias"], test.x[:, :32]) > 0
    noisy = test.kind[:, :32] == data.NOISE
    share = (fires.double().mean((3, 4)) * noisy).sum((1, 2)) / noisy.sum((1, 2))
    return share.cpu().numpy()


def louder_on_foreign(params: Params, start: model.Start, table: np.ndarray) -> np.ndarray:
    """Return the share of neurons that respond more than at the start to a feature not of their class, ``(R,)``."""
    foreign = torch.as_tensor(table == 0, device=start.single.device)[:, None]
    now, before = (torch.relu(p["weight"][..., : foreign.shape[-1]] + p["bias"][..., None]) for p in (params, start.params))
    louder, neurons = ((now - before > 1e-9) & foreign).any(-1), (start.params["weight"] != 0).any(-1)
    return ((louder & neurons).sum((1, 2)) / neurons.sum((1, 2))).cpu().numpy()


def last_error(run: Run, kind: str = "hard") -> np.ndarray:
    """Return the error at the end on the test points of this kind, ``(R,)``."""
    return errors(run.log[kind][-1])


def least_error(run: Run, kind: str = "hard", since: int = 5) -> np.ndarray:
    """Return the smallest error on the test points of this kind at any logged step from ``since`` on, ``(R,)``."""
    return errors(run.log[kind])[run.steps >= since].min(0)


def ratio_over_k(run: Run, k: int, since: int = 5) -> dict[str, np.ndarray]:
    """Return the least and the largest ratio of growth, over k, at any logged step from ``since`` on, ``(R,)`` each."""
    ratio = growth_ratio(run)[run.steps >= since] / k
    return {"least": ratio.min(0), "most": ratio.max(0)}


def log_law(run: Run, clock: float, since: int = 5) -> dict[str, np.ndarray]:
    """Return how far the output under coarse labels is from the log law, and its slope in log t over the last decade.

    The distance is the largest relative one from step ``since`` on. ``clock`` is kappa. Margins are outputs, as the other is 0.
    """
    output, late = run.log["easy"].mean(-1).numpy(), run.steps >= run.steps[-1] // 10
    off = np.abs(output / theory.coarse_response(clock * run.steps)[:, None] - 1)
    slope = np.polyfit(np.log(run.steps[late]), output[late], 1)[0]
    return {"error": off[run.steps >= since].max(0), "slope": slope}


def fine_flow(random: Run, ideal: Run, unit: Sequence[float]) -> dict[str, np.ndarray]:
    """Return the first ratio of growth in random networks over k/(2k-1), and how far the idealised ones are from the flow.

    ``unit`` has the arguments of :func:`theory.fine_trajectory` after the times.
    """
    growth = ideal.log["growth"].mean(2).numpy()  # (look, run, feature)
    flow = theory.fine_trajectory(ideal.steps, *unit).T[:, None]
    early = growth_ratio(random)[random.steps == 1][0]
    return {"ratio": early / theory.growth_ratio(unit[-1], unit[-1]), "off": np.abs(growth / flow - 1).max((0, 2))}


def detector_counts(start: model.Start, n_neurons: int, n_detectors: float) -> dict[str, tuple[float, float, np.ndarray]]:
    """Return by kind of detector its mean number, the expected one, and each run's deviation in standard errors, ``(R,)``.

    ``n_detectors`` of the ``n_neurons`` of a class exceed the threshold on average.
    """
    threshold, found = theory.detector_threshold(n_neurons, n_detectors), {}
    expected = theory.detector_counts(n_neurons, start.single.shape[-1], threshold, model.SLACK)
    for kind, mean in zip(("single", "possible"), expected):
        counts = getattr(start, kind).sum(2).double().cpu().flatten(1).numpy()
        found[kind] = counts.mean(), mean, (counts.mean(1) - mean) / (mean / counts.shape[1]) ** 0.5
    return found


def off_ratio(runs: Mapping[str, Run], kinds: Mapping[str, Labels], uneven: bool) -> np.ndarray:
    """Return the largest relative deviation of the first ratio from the expected one, ``(R,)``.

    Over the kinds of labels that are balanced in a batch, or those that are not: drawn IDs and clusters.
    """
    names = [name for name in runs if (name.startswith(("random", "clusters")) and not name.endswith("dealt")) == uneven]
    return np.max([np.abs(runs[name].log["read-out"][0].numpy() / kinds[name].ratio - 1) for name in names], 0)


def refinement(runs: Mapping[str, Run]) -> dict[str, np.ndarray]:
    """Return the largest rise of the hard error from true labels to the next finer ones, and its fall from first to last."""
    levels = [last_error(run) for name, run in runs.items() if name in ("coarse", "fine") or name.startswith("true")]
    change = np.diff(levels, axis=0)
    return {"rise": change.max(0), "fall": -change.sum(0)}


def fewest_errors(runs: Mapping[str, Run], names: str | tuple[str, ...], kind: str = "hard") -> np.ndarray:
    """Return the smallest error at the end over the runs whose names begin like this, ``(R,)``."""
    return np.min([last_error(run, kind) for name, run in runs.items() if name.startswith(names)], 0)


def noise_kept_out(by_patches: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the error without a bias at the most patches, and with it the largest error and share that fires, ``(R,)`` each.

    ``by_patches`` has ``(firing or error, number of patches, run)`` with ``"bias"`` and with ``"no bias"``.
    """
    firing, error = by_patches["bias"].max(1)
    return {"without": by_patches["no bias"][1, -1], "error": error, "firing": firing}


def hard_threshold(
    sizes: np.ndarray, clean: np.ndarray, noisy: np.ndarray, formula: np.ndarray, k_star: float
) -> dict[str, np.ndarray]:
    """Return how the hard errors ``(size, run)`` without and with strong noise agree with the ``formula``, ``(size,)``.

    The largest distance without it; with it, the smallest rise, and the size at which half is misjudged over ``k_star``.
    """
    half = np.array([np.exp(np.interp(0.5, one, np.log(sizes))) for one in noisy.T])
    off = np.abs(clean - formula[:, None]).max(0)
    return {"error": off, "rise": np.diff(noisy, axis=0).min(0), "crossing": half / k_star}


def drift_along_common(world: HierarchicalMultiView, label, generators: Sequence, n_labels: int) -> list[float]:
    """Return the largest first growth along a common feature over that under coarse labels, one number per run.

    The labels are those of a :func:`~mvnb.papers.fine_grained_labels.data.nearest_cluster` on the whole data, of each replica
    at fresh points without noise.
    """
    silent, drifts = replace(world, noise=0.0), []
    for r, g in enumerate(generators):
        many = silent.sample(400 * world.n_subclasses, g, dtype=torch.float64)
        found = label(many._replace(superclass=0 * many.superclass))[r]
        along = first_step(silent, many, found, n_labels)[:, :2]
        drifts.append(np.abs(along).max() / first_step(silent, many, many.superclass, 2)[0, 0])
    return drifts


def growth_kept(tuned: Run, before: Run) -> np.ndarray:
    """Return the growth of common and of fine detectors after fine-tuning over that before, mean over classes, ``(R, 2)``."""
    return 1 + np.nanmean((tuned.log["growth"][-1] / before.log["growth"][-1]).numpy(), 1)


def probe_error(params: Params, easy, hard, test: HierarchicalPatches, every: int | None = None) -> np.ndarray:
    """Return the error at ``test`` of a probe fitted on easy points, with one in ``every`` replaced by a hard one, ``(R,)``.

    The probe is logistic regression on the responses of the neurons, summed over patches.
    """
    x = easy.x.clone()
    if every:
        x[:, ::every] = hard.x[:, ::every]
    seen, unseen = (model.relu_responses(params["weight"], params["bias"], one).sum(2).flatten(2) for one in (x, test.x))
    scale = seen.square().sum(-1).mean(1).sqrt()[:, None, None]
    logits = probes.linear_probe(seen, easy.superclass, 2, training.SGD(2.0, momentum=0.9), 300, scale)(unseen)
    return 1 - probes.accuracy(logits, test.superclass).cpu().numpy()


# --- Networks on images ---

ARMS = ("none", "two", "pairs", "ten", "clusters", "random IDs", "unique")
"""Pretraining labels of the kept run; "none" is no pretraining."""


def kept_errors(runs: Sequence[Mapping]) -> dict[str, dict[str, np.ndarray]]:
    """Return what a kept run has measured, one number per seed, by arm and name, with NaN where an arm lacks it.

    Errors in percent on the ``"labels"`` of pretraining and of the ``"fitted"`` target, on the images trained on; on the
    ``"test"`` images, and on those of them that are ``"hard"`` or ``"easy"``; of a ``"probe"`` on the test images. ``"fell"``
    is by how many percent the loss on the target fell at the end.
    """
    names = ("test", "labels", "labels fell", "fitted", "fell", "probe", "hard", "easy")
    return {arm: {key: np.array([one["values"][arm][0].get(key, np.nan) for one in runs]) for key in names} for arm in ARMS}


def validation_errors(*records: Mapping) -> dict[str, dict[float, float]]:
    """Return the mean validation error over the seeds of tuning runs, in percent, by arm and step size."""
    errors: dict[str, dict[float, list]] = {}
    for arms in (run["values"] for record in records for run in record["runs"]):
        for arm, row in ((arm, row) for arm, rows in arms.items() for row in rows):
            errors.setdefault(arm, {}).setdefault(row["step_size"], []).append(row["validation"])
    return {arm: {step: float(np.mean(errors)) for step, errors in by_step.items()} for arm, by_step in errors.items()}


COMPARED = {
    "cifar10-ten-fine-tuned": ("two", "ten"),
    "cifar10-pairs-fine-tuned": ("two", "pairs"),
    "cifar10-clusters-fine-tuned": ("two", "clusters"),
    "cifar10-random-fine-tuned": ("random IDs", "two"),
    "cifar10-unique-fine-tuned": ("unique", "two"),
    "cifar10-two-against-none": ("none", "two"),
    "cifar10-pairs-against-none": ("none", "pairs"),
    "cifar10-ten-against-none": ("none", "ten"),
    "cifar10-clusters-against-none": ("none", "clusters"),
    "cifar10-random-against-none": ("random IDs", "none"),
    "cifar10-unique-against-none": ("unique", "none"),
}
"""By claim, the arm that is to have the larger test error, by the paper where it says so, and that with the smaller one."""


def gains(kept: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return by claim what those on CIFAR-10 judge, in points, one number per seed, from :func:`kept_errors`."""
    found = {id: kept[larger]["test"] - kept[smaller]["test"] for id, (larger, smaller) in COMPARED.items()}
    found["cifar10-probe-worse-on-ten"] = kept["ten"]["probe"] - kept["two"]["probe"]
    gain, even = gains_by_difficulty(kept)["hard"]
    return found | {"cifar10-excess-on-hard-images": gain - even}


def gains_by_difficulty(kept: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Return the gain of ten labels over two on hard and on easy images, and that of a proportional cut of all errors."""
    cut = 1 - kept["ten"]["test"] / kept["two"]["test"]
    return {part: (kept["two"][part] - kept["ten"][part], cut * kept["two"][part]) for part in ("hard", "easy")}


def image_gains(errors: Mapping[str, tuple[np.ndarray, np.ndarray]], one_pass: np.ndarray) -> dict[str, np.ndarray]:
    """Return what the claims on the digits judge, in points, one number per run.

    ``errors`` has those of a probe and after fine-tuning by kind of labels, ``one_pass`` those without pretraining.
    """
    probed, tuned = ({name: one[i] for name, one in errors.items()} for i in (0, 1))
    above = {name: error - tuned[data.TARGET] for name, error in tuned.items()}
    five, twenty = (above[f"{n} clusters in each target class"] for n in (5, 20))
    found = {
        "fine-tuning-not-worse": -above[data.CLASSES],
        "unique-labels-tune-worse": above["one per image"] - above[data.CLASSES],
        "random-worse-than-coarse": above["5 random IDs in each target class"],
        "whole-data-clusters-are-worse": above["10 clusters of all"],
        "superclass-clusters-help": -five,
        "more-clusters-tune-worse": twenty - five,
        "retraining-beats-one-pass": one_pass - tuned[data.TARGET],
        "superclass-probe-worse-on-fine": probed[data.CLASSES] - probed[data.TARGET],
        "probe-below-fine-tuning": np.mean([probed[name] - tuned[name] for name in errors], 0),
    }
    return found | ({"just-finer-tunes-worse": above[data.JUST_FINER]} if data.JUST_FINER in above else {})


# --- Raw values of the kept run ---


@torch.no_grad()
def wrong(net, x, y) -> Tensor:
    """Return for each image whether the network, in evaluation mode, misclassifies it."""
    net.eval()
    return in_parts(net, (x,), 1000).argmax(1) != y


def percent(mask: Tensor) -> float:
    """Return the percentage of true entries."""
    return round(100 * float(mask.double().mean()), 3)


def after_pretraining(net, losses: list[float], split: Split, labels: Tensor) -> dict[str, float]:
    """Return the error on the labels in percent, how far the loss fell at the end, and the test error of a :func:`probe`."""
    missed = wrong(net, split.x["pretraining"], labels)
    return {"labels": percent(missed), "labels fell": training.percent_fallen(losses), "probe": probe(net, split)}


def after_training(net, losses: list[float], split: Split) -> tuple[dict[str, float], Tensor]:
    """Return the errors in percent of a network trained on the target with these losses, and which test images it misses."""
    missed = {name: wrong(net, x, split.target(name)) for name, x in split.x.items()}
    found = {"fitted": percent(missed["pretraining"]), "fell": training.percent_fallen(losses)}
    return found | {name: percent(missed[name]) for name in ("validation", "test")}, missed["test"]


def by_difficulty(missed: Tensor, hard: Tensor) -> dict[str, float]:
    """Return the errors in percent on the ``hard`` test images and on the others."""
    return {"hard": percent(missed[hard]), "easy": percent(missed[~hard])}


@torch.no_grad()
def probe(net, split: Split) -> float:
    """Return the test error of logistic regression on the frozen features, its penalty chosen on the validation images."""
    from sklearn.linear_model import LogisticRegression

    net.eval()
    x = {part: in_parts(net[:-1], (images,), 1000).cpu().double().numpy() for part, images in split.x.items()}
    y = {part: split.target(part).cpu().numpy() for part in x}
    mean, std = x["pretraining"].mean(0), x["pretraining"].std(0) + 1e-6
    x = {part: (value - mean) / std for part, value in x.items()}
    fits = [LogisticRegression(C=c, max_iter=1000).fit(x["pretraining"], y["pretraining"]) for c in (1e-3, 1e-2, 1e-1, 1.0)]
    best = max(fits, key=lambda fit: fit.score(x["validation"], y["validation"]))
    return round(100 * (1 - best.score(x["test"], y["test"])), 3)
