"""The criteria of chapter 02 hold for what they judge and fail for what they do not.

The setting is the chapter's, small: idealised networks with one detector a class and feature, three runs. The limits are the
chapter's own.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mvnb import losses, probes, stats, training
from mvnb.data import load_images
from mvnb.models import MLP
from mvnb.papers.fine_grained_labels import data as hierarchical
from mvnb.papers.fine_grained_labels import theory
from mvnb.papers.fine_grained_labels.data import HierarchicalMultiView
from mvnb.papers.fine_grained_labels.label_functions import cluster_within, grouped_labels, random_ids
from mvnb.papers.fine_grained_labels.model import (
    ReluPatchObjective,
    compressed_detectors,
    detector_masks,
    max_read_out,
    relu_logits,
    relu_responses,
    stratified_detectors,
)

K, RUNS, STEP, RATE, SIGNAL = 8, 3, 0.064, 0.05, 4
WORLD = HierarchicalMultiView(K, 2 + 2 * K, 16, jitter=0.05, noise=0.005, strong_noise=0.2)
ALPHA = theory.mean_coefficient(WORLD.jitter)
MARKS = [1, 5, 10, 20, 40, 80]
COARSE, FINE = (lambda s: s // K), (lambda s: s)


def fails_on_hard(errors):
    return errors.mean(-1).min() >= 0.9


def understands_hard(errors):
    return errors.mean() <= 0.02


def ratio_is(ratio, expected, within=0.05):
    return np.abs(ratio / expected - 1).max() <= within


def follows(values, curve, within):
    return np.abs(values / curve[:, None] - 1).max() <= within


def train(label, n_labels, world=WORLD, rate=RATE, steps=MARKS[-1], points=2, start=None, superclasses=False, shift=0):
    """A stack of idealised networks, and what the criteria read of it."""
    fresh = training.Fresh(world.sample, 2 * K * points, training.generators(50 + shift, RUNS))

    def batches(step):
        return (fresh(step)[0], label(fresh(step)[1]))

    zero = stratified_detectors(n_labels, world.n_features, world.dim, 1e-5, RUNS)
    hard = world.sample(6 * 2 * K, torch.Generator().manual_seed(3), hard=True)
    easy = world.sample(6 * 2 * K, torch.Generator().manual_seed(4))

    def error(p, test):
        return 1 - probes.accuracy(max_read_out(relu_logits(p, test.x)), test.subclass // K)

    own = (easy.subclass // K).view(1, -1, 1).expand(RUNS, -1, 1)
    run = training.fit(
        ReluPatchObjective(rate, superclasses),
        start or zero,
        batches,
        steps=steps,
        optimizer=training.GD(STEP),
        probes={
            "moved": lambda p: (p["weight"] - zero["weight"]).diagonal(dim1=-2, dim2=-1),
            "hard": lambda p: error(p, hard),
            "easy": lambda p: error(p, easy),
            "output": lambda p: max_read_out(relu_logits(p, easy.x)).gather(2, own).mean((1, 2)),
        },
        log_at=[m for m in MARKS if m <= steps],
    )
    return SimpleNamespace(params=run.params, **{name: values.numpy() for name, values in run.log.items()})


def growth(run, table):
    """Own common and own fine growth, (T, R) each."""
    own, common = table > 0, np.arange(2 + 2 * K) < 2
    return [run.moved[..., : 2 + 2 * K][..., own & which].mean(-1) for which in (common, ~common)]


@pytest.fixture(scope="module")
def coarse():
    return train(COARSE, 2)


@pytest.fixture(scope="module")
def fine():
    return train(FINE, 2 * K)


TABLES = {g: theory.grouped_label_probabilities(K, g) for g in (1, 2, 4, 8)}


def test_hard_points_tell_coarse_from_fine(coarse, fine):
    assert fails_on_hard(coarse.hard[1:])
    assert not fails_on_hard(fine.hard[1:])
    assert understands_hard(fine.hard[-1])
    assert not understands_hard(coarse.hard[-1])
    assert max(coarse.easy[-1].mean(), fine.easy[-1].mean()) <= 0.01


def test_untrained_networks_do_not_pass_for_easy_points():
    assert train(COARSE, 2, steps=1, rate=50.0).easy[-1].mean() > 0.01  # the bias falls so fast that nothing fires


def test_growth_ratio_fails_for_fine_labels_and_for_binomial_counts(coarse, fine):
    assert ratio_is(np.divide(*growth(coarse, TABLES[1])), K)
    assert not ratio_is(np.divide(*growth(fine, TABLES[8])), K)
    binomial = train(COARSE, 2, world=replace(WORLD, counts="bernoulli", n_patches=20))
    assert not ratio_is(np.divide(*growth(binomial, TABLES[1])), K)


def test_log_law_needs_its_own_rate(coarse, fine):
    kappa = theory.coarse_clock(STEP, SIGNAL, ALPHA, RATE, K)
    late = slice(1, None)
    law = theory.coarse_response(kappa * np.array(MARKS))
    assert follows(coarse.output[late], law[late], 0.05)
    assert not follows(coarse.output[late], theory.coarse_response(2 * kappa * np.array(MARKS))[late], 0.05)
    assert not follows(coarse.output[late], np.sqrt(np.array(MARKS))[late], 0.05)
    assert not follows(fine.output[late], law[late], 0.05)


def test_fine_flow_needs_the_siblings(fine, coarse):
    flow = theory.fine_trajectory(MARKS, STEP, SIGNAL, ALPHA, RATE, K)
    assert all(follows(values, line, 0.2) for values, line in zip(growth(fine, TABLES[8]), flow))
    assert ratio_is(np.divide(*growth(fine, TABLES[8]))[0], theory.growth_ratio(K, K), 0.08)
    assert not follows(growth(coarse, TABLES[1])[0], flow[0], 0.2)
    assert not follows(growth(fine, TABLES[8])[0], flow[1], 0.2)  # as if siblings did not push back


def test_ratios_tell_kinds_of_labels_apart():
    first = {g: train(lambda s, g=g: s * g // K, 2 * g, steps=1) for g in (2, 4)}
    for g, run in first.items():
        ratio = np.divide(*growth(run, TABLES[g]))
        assert ratio_is(ratio, theory.growth_ratio(K, g), 0.06)
        assert not ratio_is(ratio, theory.growth_ratio(K, 8 // g), 0.06)


def test_random_ids_do_not_pass_for_true_labels():
    def ids(s):
        return s // K * 2 + torch.arange(s.shape[-1]) // (2 * K) % 2

    run = train(ids, 4, points=8, steps=20)
    assert run.hard[-1].mean() >= 0.8
    true = train(lambda s: s * 2 // K, 4, points=8, steps=20)
    assert not true.hard[-1].mean() >= 0.8


def test_threshold_formula_is_sharp_enough_to_fail():
    world = replace(WORLD, distractor_low=RATE, strong_noise=0.0)
    hard = world.sample(2 * K * 24, torch.Generator().manual_seed(3), hard=True)
    run = train(COARSE, 2, world=world, steps=20)
    measured = 1 - probes.accuracy(relu_logits(run.params, hard.x), hard.subclass // K).numpy()

    def formula(ratio):
        return theory.hard_error(ratio, SIGNAL, ALPHA, 4, RATE, 0.35, RATE)

    assert abs(measured.mean() - formula(K)) <= 0.08
    assert not abs(measured.mean() - formula(K - 2)) <= 0.08
    assert not abs(measured.mean() - formula(K + 3)) <= 0.08


def test_noise_fires_without_a_bias():
    noisy = replace(WORLD, noise=0.05)

    def firing(rate, start):
        run = train(COARSE, 2, world=noisy, rate=rate, steps=10, start=start)
        test = noisy.sample(2 * K, torch.Generator().manual_seed(4))
        said = relu_responses(run.params["weight"], run.params["bias"], test.x)
        return (said > 0)[:, test.kind == hierarchical.NOISE].double().mean().item()

    free = {**stratified_detectors(2, WORLD.n_features, WORLD.dim, 1e-5, RUNS)}
    assert firing(0.3, None) < 1e-4
    assert not firing(0.0, {**free, "bias": torch.zeros_like(free["bias"])}) < 1e-4


def test_detector_counts_need_the_right_threshold():
    m, threshold, slack = 4000, theory.detector_threshold(4000, 10), 0.2
    start = compressed_detectors(4, m, 10, 12, 1e-5, threshold, training.generators(0, RUNS), slack)

    def score(expected_threshold):
        masks = detector_masks(start["weight"], 10, 1e-5, threshold, slack)
        expected = theory.detector_counts(m, 10, expected_threshold, slack)
        counts = [mask.sum(2).double() for mask in masks]
        return max(abs(c.mean().item() - e) / (e / c.numel()) ** 0.5 for c, e in zip(counts, expected))

    assert score(threshold) <= 4
    assert not score(threshold + 0.1) <= 4


def test_fine_tuning_on_wrong_labels_would_be_noticed(fine):
    before = fine.params["weight"]

    def kept(run):
        return (run.params["weight"] - before).diagonal(dim1=-2, dim2=-1)

    own = torch.as_tensor(TABLES[8] > 0)
    right = train(COARSE, 2 * K, start=fine.params, superclasses=True, steps=5, shift=9)
    wrong = train(lambda s: 1 - s // K, 2 * K, start=fine.params, superclasses=True, steps=5, shift=9)

    def grown(run):
        return 1 + (kept(run)[:, own].mean() / before.diagonal(dim1=-2, dim2=-1)[:, own].mean()).item()

    assert grown(right) >= 0.99 and right.hard[-1].mean() <= 0.02
    assert not (grown(wrong) >= 0.99 and wrong.hard[-1].mean() <= 0.02)


def keeps_noise_out(without, with_bias):
    """The chapter's criterion on errors on easy points: with many patches and no bias, and with the bias."""
    return without.mean() >= 0.1 and with_bias.mean() <= 0.02


def test_few_patches_do_not_drown_the_signal():
    free = {
        "weight": torch.stack([1e-3 * torch.randn(2, 16, 12, generator=g) for g in training.generators(0, RUNS)]),
        "bias": torch.zeros(RUNS, 2, 16),
    }
    networks = {0.0: (free, 0.02), 0.4: (stratified_detectors(2, 6, 12, 1e-3, RUNS), 0.1)}  # by 1 / lambda

    def error(rate, patches):
        world = HierarchicalMultiView(2, 12, patches, noise=0.1, jitter=0.05)
        fresh = training.Fresh(world.sample, 16, training.generators(8, RUNS))
        start, step = networks[rate]
        batches = lambda t: (fresh(t)[0], fresh(t)[1] // 2)  # noqa: E731
        run = training.fit(ReluPatchObjective(rate), start, batches, steps=10, optimizer=training.GD(step))
        test = world.sample(128, torch.Generator().manual_seed(4))
        return 1 - probes.accuracy(relu_logits(run.params, test.x), test.subclass // 2)

    assert keeps_noise_out(error(0.0, 512), error(0.4, 512))
    assert not keeps_noise_out(error(0.0, 16), error(0.4, 16))


def clusters_do_not_help(hard, fine_hard):
    return hard.mean() >= fine_hard.mean() + 0.3


def test_clusters_that_find_the_subclasses_are_told_from_those_that_find_backgrounds(fine):
    """k-means of patch sums in every superclass finds backgrounds where there are any, and else the subclasses."""

    def trained(world):
        pool = world.sample(60 * K, torch.Generator().manual_seed(5))
        sums, sign = pool.x.sum(1), pool.subclass // K
        found = cluster_within(sums.numpy(), sign.numpy(), K, 0, 4)
        centres = torch.stack([sums[found == c].mean(0) for c in range(2 * K)])
        fresh = training.Fresh(world.sample, 16 * K, training.generators(50, RUNS))

        def batches(step):
            x, subclass, *_ = fresh(step)
            distance = torch.cdist(x.sum(-2), centres.expand(RUNS, -1, -1))
            home = torch.arange(2 * K) // K
            return x, distance.masked_fill(home != (subclass // K)[..., None], torch.inf).argmin(-1)

        start = stratified_detectors(2 * K, world.n_features, world.dim, 1e-5, RUNS)
        run = training.fit(ReluPatchObjective(RATE), start, batches, steps=20, optimizer=training.GD(STEP))
        hard = world.sample(6 * 2 * K, torch.Generator().manual_seed(3), hard=True)
        return 1 - probes.accuracy(max_read_out(relu_logits(run.params, hard.x)), hard.subclass // K).numpy()

    behind = replace(WORLD, n_backgrounds=8, background_patches=4, n_patches=24, dim=2 * K + 10)
    assert clusters_do_not_help(trained(behind), fine.hard[-1])
    assert not clusters_do_not_help(trained(WORLD), fine.hard[-1])


def probe_hard_error(params, every=None):
    """Error on hard points of a linear probe of pooled responses, fitted on easy points and, at ``every`` place, hard ones."""
    easy, hard = (WORLD.sample(20 * 2 * K, torch.Generator().manual_seed(60 + h), hard=h) for h in (False, True))
    chosen = torch.zeros(len(easy.x), dtype=torch.bool)
    chosen[::every] = every is not None
    x = torch.where(chosen[:, None, None], hard.x, easy.x)
    test = WORLD.sample(6 * 2 * K, torch.Generator().manual_seed(3), hard=True)

    def pooled(x):
        return relu_responses(params["weight"], params["bias"], x).sum(2).flatten(2)

    seen, linear = pooled(x), nn.Linear(params["bias"][0].numel(), 2)
    scale = seen.norm(dim=-1).square().mean(1).sqrt()[:, None, None]
    start = {"weight": torch.zeros(RUNS, 2, seen.shape[-1]), "bias": torch.zeros(RUNS, 2)}
    batch = (seen / scale, (easy.subclass // K).expand(RUNS, -1))
    descent = training.GD(2.0, momentum=0.9)
    fitted = training.fit(training.stacked(linear, losses.cross_entropy), start, batch, steps=300, optimizer=descent)
    logits = training.predict(linear, fitted.params, pooled(test.x) / scale)
    return 1 - probes.accuracy(logits, test.subclass // K).numpy()


def test_probes_take_the_shortcut_unless_points_and_backbone_say_otherwise(coarse, fine):
    def takes_the_shortcut(errors):
        return errors.mean() >= 0.9

    def backbone_helps(coarse_errors, fine_errors):
        return (coarse_errors - fine_errors).mean() >= 0.2

    assert takes_the_shortcut(probe_hard_error(coarse.params))
    assert takes_the_shortcut(probe_hard_error(fine.params))
    assert not takes_the_shortcut(probe_hard_error(fine.params, 1))
    few = probe_hard_error(coarse.params, 19)
    assert backbone_helps(few, probe_hard_error(fine.params, 19))
    ids = train(lambda s: s // K * 2 + torch.arange(s.shape[-1]) // (2 * K) % 2, 4, points=8, steps=20)
    assert not backbone_helps(few, probe_hard_error(ids.params, 19))


# Real images. The criteria take percentages, one a run.


def surely_positive(values):
    return values.mean() > stats.mean_interval(values)[1]


def rises_with_granularity(levels):
    """Probe accuracies, (level, run), from coarse to fine."""
    rise = levels[-1] - levels[0]
    return rise.mean() >= 2 and surely_positive(rise) and levels[:-1].mean(1).max() < levels[-1].mean()


def loses_the_gain(true, unique, split):
    return (true - unique).mean() >= 1 and (true - split).mean() >= 0.5


def teaches_little(coarse, true, random):
    return (random - coarse).mean() <= 0.6 * (true - coarse).mean()


def tunes_no_worse(coarse_error, true_error):
    return (coarse_error - true_error).mean() >= -coarse_error.std(ddof=1)


@pytest.fixture(scope="module")
def images():
    """Perceptrons on 500 digits, five runs: probes and fine-tuning by kind of pretraining label, true or shuffled."""
    digits = load_images("digits").standardised()
    picks = [torch.randperm(len(digits.y_train), generator=g)[:500] for g in training.generators(0, 5)]
    x = torch.stack([digits.x_train.flatten(1)[p] for p in picks])
    y = torch.stack([digits.y_train[p] for p in picks])
    x_test = digits.x_test.flatten(1).expand(5, -1, -1)
    tree = ((0, 2, 3, 5, 6, 8), (1, 4, 7, 9))
    two, two_test = grouped_labels(y, tree), grouped_labels(digits.y_test, tree)
    g = torch.Generator().manual_seed(1)
    shuffle = torch.randperm(500, generator=g)
    within = [torch.from_numpy(cluster_within(a.numpy(), b.numpy(), 16, 0)) for a, b in zip(x, y)]
    everything = torch.zeros(500, dtype=torch.long).numpy()
    labels = {
        "coarse": two,
        "true": y,
        "shuffled": y[:, shuffle],
        "random": random_ids(two, 5, g),
        "split": torch.stack(within),
        "clusters": torch.stack([torch.from_numpy(cluster_within(a.numpy(), everything, 10, 0)) for a in x]),
        "unique": torch.arange(500).expand(5, -1),
    }
    body = nn.Sequential(MLP((64, 64, 32)), nn.ReLU())

    def fit(y, step, start=None):
        modules = []
        for r in range(5):
            torch.manual_seed(r)
            modules.append(nn.Sequential(MLP((64, 64, 32)), nn.ReLU(), nn.Linear(32, int(y.max()) + 1)))
        orders = [torch.randperm(500, generator=g) for g in training.generators(7, 5)]
        order = torch.stack(orders)[:, :500].view(5, 10, 50)
        batches = lambda t: tuple(z[torch.arange(5)[:, None], order[:, t % 10]] for z in (x, y))  # noqa: E731
        descent = training.GD(lambda t: step * (1 + math.cos(math.pi * t / 250)) / 2, momentum=0.9, weight_decay=5e-5)
        params = training.stack_modules(modules) | (start or {})
        return modules[0], training.fit(
            training.stacked(modules[0], losses.cross_entropy), params, batches, steps=250, optimizer=descent
        ).params

    backbones = {
        name: {part: value for part, value in fit(kind, 0.1)[1].items() if part.startswith("0.")}
        for name, kind in labels.items()
    }

    def probe(name, answers, answers_test, classes):
        seen, unseen = (training.predict(body, backbones[name], z) for z in (x, x_test))
        linear, scale = nn.Linear(32, classes), seen.norm(dim=-1).mean()
        start = {"weight": torch.zeros(5, classes, 32), "bias": torch.zeros(5, classes)}
        head = training.fit(
            training.stacked(linear, losses.cross_entropy),
            start,
            (seen / scale, answers),
            steps=150,
            optimizer=training.Adam(0.3),
        )
        return 100 * probes.accuracy(training.predict(linear, head.params, unseen / scale), answers_test).numpy()

    def tuned_error(name, answers):
        net, params = fit(answers, 0.025, backbones[name])
        return 100 - 100 * probes.accuracy(training.predict(net, params, x_test), two_test).numpy()

    return SimpleNamespace(
        ten={name: probe(name, y, digits.y_test, 10) for name in labels if name != "clusters"},
        two={name: probe(name, two, two_test, 2) for name in ("coarse", "true", "clusters", "unique")},
        odd={name: probe(name, y % 2, digits.y_test % 2, 2) for name in ("coarse", "true", "shuffled")},
        tuned={name: tuned_error(name, two) for name in ("coarse", "true", "unique")},
        tuned_wrong=tuned_error("true", two[:, shuffle]),
    )


def test_probe_criteria_hold_for_true_labels_and_fail_for_shuffled_ones(images):
    for accuracy in (images.ten, images.odd):
        assert rises_with_granularity(np.stack([accuracy["coarse"], accuracy["true"]]))
        assert not rises_with_granularity(np.stack([accuracy["coarse"], accuracy["shuffled"]]))
    assert loses_the_gain(images.ten["true"], images.ten["unique"], images.ten["split"])
    assert not loses_the_gain(images.ten["shuffled"], images.ten["unique"], images.ten["split"])


def test_random_labels_are_told_from_true_ones(images):
    assert teaches_little(images.ten["coarse"], images.ten["true"], images.ten["random"])
    assert not teaches_little(images.ten["coarse"], images.ten["true"], images.ten["true"])


def test_clusters_of_everything_are_told_from_true_classes(images):
    assert surely_positive(images.two["coarse"] - images.two["clusters"])
    assert not surely_positive(images.two["coarse"] - images.two["true"])


def test_fine_tuning_criteria_notice_wrong_labels(images):
    tuned, probed = images.tuned, 100 - images.two["unique"]
    assert tunes_no_worse(tuned["coarse"], tuned["true"])
    assert not tunes_no_worse(tuned["coarse"], images.tuned_wrong)
    assert (tuned["unique"] - tuned["true"]).mean() > 0
    assert not (tuned["coarse"] - images.tuned_wrong).mean() > 0
    assert surely_positive(probed - tuned["unique"])
    assert not surely_positive(probed - images.tuned_wrong)
