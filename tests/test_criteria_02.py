"""The criteria of chapter 02 hold for what they judge and fail for what they do not.

The setting is the chapter's, small: idealised networks with one detector a class and feature, three runs. The limits are the
chapter's own.
"""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from mvnb import losses, probes, stats, training
from mvnb.data import HierarchicalMultiView, grouped_labels, hierarchical, load_images
from mvnb.models import (
    MLP,
    ReluPatchObjective,
    compressed_detectors,
    detector_masks,
    max_read_out,
    relu_logits,
    relu_responses,
    stratified_detectors,
)
from mvnb.theory import fine_grained_labels as theory

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
        assert not ratio_is(ratio, theory.random_growth_ratio(K, g), 0.06)


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


def rises_with_granularity(levels):
    """The chapter's criterion on probe accuracies in percent, (level, run), from coarse to fine."""
    rise = levels[-1] - levels[0]
    half = stats.mean_interval(rise)[1]
    return rise.mean() >= 2 and rise.mean() > half and levels[:-1].mean(1).max() < levels[-1].mean()


def test_probe_criterion_holds_for_true_labels_and_fails_for_permuted_ones():
    """A perceptron on 300 digits, trained on two groups or on ten classes, true or shuffled over the images."""
    digits = load_images("digits").standardised()
    x_test, y_test = digits.x_test.flatten(1), digits.y_test
    picks = [torch.randperm(len(digits.y_train), generator=g)[:300] for g in training.generators(0, 4)]
    x = torch.stack([digits.x_train.flatten(1)[p] for p in picks])
    y = torch.stack([digits.y_train[p] for p in picks])
    two = grouped_labels(y, ((0, 2, 3, 5, 6, 8), (1, 4, 7, 9)))
    shuffled = y[:, torch.randperm(300, generator=torch.Generator().manual_seed(1))]

    def probe_accuracy(labels, n_labels):
        modules = []
        for r in range(4):
            torch.manual_seed(r)
            modules.append(nn.Sequential(MLP((64, 64, 32)), nn.ReLU(), nn.Linear(32, n_labels)))
        objective = training.stacked(modules[0], losses.cross_entropy)
        run = training.fit(objective, training.stack_modules(modules), (x, labels), steps=150, optimizer=training.Adam(0.01))
        backbone = {name: part for name, part in run.params.items() if name.startswith("0.")}
        seen, unseen = (training.predict(modules[0][:2], backbone, z) for z in (x, x_test.expand(4, -1, -1)))
        linear = nn.Linear(32, 10)
        start = {"weight": torch.zeros(4, 10, 32), "bias": torch.zeros(4, 10)}
        probe = training.stacked(linear, losses.cross_entropy)
        scale = seen.norm(dim=-1).mean()
        head = training.fit(probe, start, (seen / scale, y), steps=150, optimizer=training.Adam(0.3)).params
        return 100 * probes.accuracy(training.predict(linear, head, unseen / scale), y_test).numpy()

    coarse = probe_accuracy(two, 2)
    assert rises_with_granularity(np.stack([coarse, probe_accuracy(y, 10)]))
    assert not rises_with_granularity(np.stack([coarse, probe_accuracy(shuffled, 10)]))
