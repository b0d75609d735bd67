"""The rules of chapter 02 hold for what they judge and fail for what they do not.

The setting is the chapter's, small: idealised networks with one detector a class and feature, three runs.
"""

import math
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import judged
import numpy as np
import pytest
import torch
from torch import nn

from mvnb import probes, training
from mvnb.data import load_images
from mvnb.losses import cross_entropy
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
ALPHA = np.sqrt([1 - WORLD.jitter, 1 + WORLD.jitter]).mean()
MARKS = [1, 5, 10, 20, 40, 80]
COARSE, FINE = (lambda s: s // K), (lambda s: s)


verdict = partial(judged.verdict, "fine_grained_labels")


def errs_on_hard(errors):
    return verdict("coarse-fails-on-hard", "mean", errors.min(0))


def understands_hard(errors):
    return verdict("fine-understands-hard", "mean", errors)


def ratio_is_k(ratio):
    ratio = ratio / K
    return verdict("growth-ratio-k", "mean", least=ratio.min(0), most=ratio.max(0))


def off(values, curve):
    """A run's largest relative distance from a curve."""
    return np.abs(values / curve[:, None] - 1).max(0)


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
    assert [errs_on_hard(run.hard[1:]) for run in (coarse, fine)] == ["holds", "fails"]
    assert [understands_hard(run.hard[-1]) for run in (fine, coarse)] == ["holds", "fails"]
    assert verdict("easy-points-learned", "mean", coarse=coarse.easy[-1], fine=fine.easy[-1]) == "holds"


def test_untrained_networks_do_not_pass_for_easy_points():
    silent = train(COARSE, 2, steps=1, rate=50.0).easy[-1]  # the bias falls so fast that nothing fires
    assert verdict("easy-points-learned", "mean", coarse=silent, fine=silent) == "fails"


def test_growth_ratio_fails_for_fine_labels_and_for_binomial_counts(coarse, fine):
    binomial = train(COARSE, 2, world=replace(WORLD, binomial=True, n_patches=20))
    ratios = [np.divide(*growth(run, table)) for run, table in ((coarse, TABLES[1]), (fine, TABLES[8]), (binomial, TABLES[1]))]
    assert [ratio_is_k(ratio) for ratio in ratios] == ["holds", "fails", "fails"]


def test_log_law_needs_its_own_rate(coarse, fine):
    kappa = theory.coarse_clock(STEP, SIGNAL, ALPHA, RATE, K)
    marks = np.array(MARKS)[1:]

    def found(output, clock):
        slope = np.polyfit(np.log(marks[2:]), output[2:], 1)[0]
        return verdict("log-law", "mean", error=off(output, theory.coarse_response(clock)), slope=slope)

    assert found(coarse.output[1:], kappa * marks) == "holds"
    assert found(coarse.output[1:], 2 * kappa * marks) == found(fine.output[1:], kappa * marks) == "fails"
    assert found(np.sqrt(marks)[:, None].repeat(RUNS, 1), kappa * marks) == "fails"


def test_fine_flow_needs_the_siblings(fine, coarse):
    flow = theory.fine_trajectory(MARKS, STEP, SIGNAL, ALPHA, RATE, K)

    def found(values, lines):
        ratio = np.divide(*values)[0] / theory.growth_ratio(K, K)
        return verdict("fine-flow", "mean", ratio=ratio, off=np.max([off(*pair) for pair in zip(values, lines)], 0))

    own = growth(fine, TABLES[8])
    assert found(own, flow) == "holds"
    assert found(growth(coarse, TABLES[1]), flow) == "fails"
    assert found(own, flow[[1, 1]]) == "fails"  # as if siblings did not push back


def test_ratios_tell_kinds_of_labels_apart():
    first = {g: train(lambda s, g=g: s * g // K, 2 * g, steps=1) for g in (2, 4)}

    def found(by):
        far = [np.abs(np.divide(*growth(run, TABLES[g])) / theory.growth_ratio(K, by(g)) - 1) for g, run in first.items()]
        return verdict("ratio-by-label", "mean", np.max(far, 0)[0])

    assert found(lambda g: g) == "holds" and found(lambda g: 8 // g) == "fails"
    slopes = [np.log(np.divide(*growth(run, TABLES[g]))[0]) / np.log(g) for g, run in first.items()]
    assert verdict("ratio-scales-like-k", "mean", slopes[0]) == "fails"  # it is of k, not of g


def test_random_ids_do_not_pass_for_true_labels():
    def ids(s):
        return s // K * 2 + torch.arange(s.shape[-1]) // (2 * K) % 2

    random, true = (train(label, 4, points=8, steps=20).hard[-1] for label in (ids, lambda s: s * 2 // K))
    assert [verdict("random-ids-do-not-help", "mean", hard) for hard in (random, true)] == ["holds", "fails"]


def test_finer_labels_help_only_where_they_are_true(coarse, fine):
    def found(levels):
        steps = np.diff(levels, axis=0)
        return verdict("granularity-monotone", "mean", rise=steps.max(0), fall=-steps.sum(0))

    middle = train(lambda s: s * 2 // K, 4, points=8, steps=20).hard[-1]
    random = train(lambda s: s // K * 2 + torch.arange(s.shape[-1]) // (2 * K) % 2, 4, points=8, steps=20).hard[-1]
    assert found([coarse.hard[-1], middle, fine.hard[-1]]) == "holds"
    assert found([coarse.hard[-1], random, random]) == found([fine.hard[-1], middle, coarse.hard[-1]]) == "fails"


def test_threshold_formula_is_sharp_enough_to_fail():
    world = replace(WORLD, distractor_low=RATE, strong_noise=0.0)
    hard = world.sample(2 * K * 24, torch.Generator().manual_seed(3), hard=True)
    run = train(COARSE, 2, world=world, steps=20)
    measured = 1 - probes.accuracy(relu_logits(run.params, hard.x), hard.subclass // K).numpy()

    def formula(ratio):
        return theory.hard_error(ratio, SIGNAL, ALPHA, 4, RATE, 0.35, RATE)

    def found(ratio):
        return verdict("hard-error-threshold", "mean", error=abs(measured - formula(ratio)), rise=[0.0] * 3, crossing=[1.0] * 3)

    assert [found(ratio) for ratio in (K, K - 2, K + 3)] == ["holds", "fails", "fails"]


def test_noise_fires_without_a_bias():
    noisy = replace(WORLD, noise=0.05)

    def firing(rate, start):
        run = train(COARSE, 2, world=noisy, rate=rate, steps=10, start=start)
        test = noisy.sample(2 * K, torch.Generator().manual_seed(4))
        said = relu_responses(run.params["weight"], run.params["bias"], test.x)
        share = (said > 0)[:, test.kind == hierarchical.NOISE].double().mean((1, 2, 3))
        return verdict("invariants", "mean", noise=share, foreign=[0.0] * RUNS)

    free = {**stratified_detectors(2, WORLD.n_features, WORLD.dim, 1e-5, RUNS)}
    assert firing(0.3, None) == "holds"
    assert firing(0.0, {**free, "bias": torch.zeros_like(free["bias"])}) == "fails"


def test_detector_counts_need_the_right_threshold():
    m, threshold, slack = 4000, theory.detector_threshold(4000, 10), 0.2
    start = compressed_detectors(4, m, 10, 12, 1e-5, threshold, training.generators(0, RUNS), slack)

    def score(expected_threshold):
        masks = detector_masks(start["weight"], 10, 1e-5, threshold, slack)
        expected = theory.detector_counts(m, 10, expected_threshold, slack)
        counts = [mask.sum(2).double().flatten(1) for mask in masks]  # by run
        scores = [(c.mean(1) - e) / (e / c.shape[1]) ** 0.5 for c, e in zip(counts, expected)]
        return verdict("detector-counts", "mean", torch.stack(scores).abs().amax(0))

    assert score(threshold) == "holds"
    assert score(threshold + 0.3) == "fails"


def test_fine_tuning_on_wrong_labels_would_be_noticed(fine):
    before = fine.params["weight"]

    def kept(run):
        return (run.params["weight"] - before).diagonal(dim1=-2, dim2=-1)

    own = torch.as_tensor(TABLES[8] > 0)
    right = train(COARSE, 2 * K, start=fine.params, superclasses=True, steps=5, shift=9)
    wrong = train(lambda s: 1 - s // K, 2 * K, start=fine.params, superclasses=True, steps=5, shift=9)

    def grown(run):
        growth = 1 + kept(run)[:, own].mean(1) / before.diagonal(dim1=-2, dim2=-1)[:, own].mean(1)
        return verdict("fine-tuning-keeps-features", "mean", growth=growth, error=run.hard[-1])

    assert grown(right) == "holds" and grown(wrong) == "fails"


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

    def found(patches):
        named = {"without": error(0.0, patches), "error": error(0.4, patches), "firing": [0.0] * RUNS}
        return verdict("bias-keeps-noise-out", "mean", **named)

    assert found(512) == "holds" and found(16) == "fails"


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
    above = [trained(world) - fine.hard[-1] for world in (behind, WORLD)]
    assert [verdict("clusters-need-alignment", "mean", above=a, drift=[0.0] * RUNS) for a in above] == ["holds", "fails"]


def probe_hard_error(params, every=None):
    """Error on hard points of a linear probe of pooled responses, fitted on easy points and, at ``every`` place, hard ones."""
    easy, hard = (WORLD.sample(20 * 2 * K, torch.Generator().manual_seed(60 + h), hard=h) for h in (False, True))
    chosen = torch.zeros(len(easy.x), dtype=torch.bool)
    chosen[::every] = every is not None
    x = torch.where(chosen[:, None, None], hard.x, easy.x)
    test = WORLD.sample(6 * 2 * K, torch.Generator().manual_seed(3), hard=True)

    def pooled(x):
        return relu_responses(params["weight"], params["bias"], x).sum(2).flatten(2)

    seen, descent = pooled(x), training.GD(2.0, momentum=0.9)
    scale = seen.norm(dim=-1).square().mean(1).sqrt()[:, None, None]
    logits_of = probes.linear_probe(seen, (easy.subclass // K).expand(RUNS, -1), 2, descent, 300, scale)
    return 1 - probes.accuracy(logits_of(pooled(test.x)), test.subclass // K).numpy()


def test_probes_take_the_shortcut_unless_points_and_backbone_say_otherwise(coarse, fine):
    shortcut = [probe_hard_error(run.params) for run in (coarse, fine)] + [probe_hard_error(fine.params, 1)]
    assert [verdict("probe-takes-the-shortcut", "mean", e) for e in shortcut] == ["holds", "holds", "fails"]
    few = probe_hard_error(coarse.params, 19)
    ids = train(lambda s: s // K * 2 + torch.arange(s.shape[-1]) // (2 * K) % 2, 4, points=8, steps=20)
    gains = [few - probe_hard_error(run.params, 19) for run in (fine, ids)]
    assert [verdict("probe-with-some-hard-points", "mean", gain) for gain in gains] == ["holds", "fails"]


# Real images, in percentage points, one number a run.


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
        objective = training.stacked(modules[0], cross_entropy)
        return modules[0], training.fit(objective, params, batches, steps=250, optimizer=descent).params

    backbones = {
        name: {part: value for part, value in fit(kind, 0.1)[1].items() if part.startswith("0.")}
        for name, kind in labels.items()
    }

    def probe(name, answers, answers_test, classes):
        seen, unseen = (training.predict(body, backbones[name], z) for z in (x, x_test))
        scale = seen.norm(dim=-1).mean().expand(5, 1, 1)
        logits_of = probes.linear_probe(seen, answers, classes, training.Adam(0.3), 150, scale)
        return 100 * probes.accuracy(logits_of(unseen), answers_test).numpy()

    def tuned_error(name, answers):
        net, params = fit(answers, 0.025, backbones[name])
        return 100 - 100 * probes.accuracy(training.predict(net, params, x_test), two_test).numpy()

    return SimpleNamespace(
        ten={name: probe(name, y, digits.y_test, 10) for name in labels if name != "clusters"},
        two={name: probe(name, two, two_test, 2) for name in ("coarse", "true", "clusters", "unique")},
        odd={name: probe(name, y % 2, digits.y_test % 2, 2) for name in ("coarse", "true")},
        tuned={name: tuned_error(name, two) for name in ("coarse", "true", "unique")},
        tuned_wrong=tuned_error("true", two[:, shuffle]),
    )


def test_probe_rules_hold_for_true_labels_and_fail_for_others(images):
    def rises(id, by):
        rise = by["true"] - by["coarse"]
        return [verdict(id, "mean", two=one, three=one, five=one) for one in (rise, -rise)]

    def too_fine(label):
        rest = {"unique": images.ten[label] - images.ten["unique"], "split": images.ten[label] - images.ten["split"]}
        return verdict("too-fine-is-worse", "mean", **rest)

    assert rises("probe-rises-with-granularity", images.ten) == ["holds", "fails"]
    assert rises("parity-rises-with-granularity", images.odd) == ["holds", "fails"]
    assert [too_fine(label) for label in ("true", "shuffled")] == ["holds", "fails"]


def test_random_labels_and_clusters_are_told_from_true_classes(images):
    ten, two = images.ten, images.two
    little = [ten[label] - ten["coarse"] - 0.6 * (ten["true"] - ten["coarse"]) for label in ("random", "true")]
    assert [verdict("random-labels-teach-little", "mean", gain) for gain in little] == ["holds", "fails"]
    worse = [ten["random"] - ten["true"], ten["true"] - ten["coarse"]]
    assert [verdict("random-probe-worse-than-coarse", "mean", one) for one in worse] == ["holds", "fails"]
    astray = [two["coarse"] - two["clusters"], two["clusters"] - two["coarse"]]
    assert [verdict("whole-data-clusters-probe-worse", "mean", one) for one in astray] == ["holds", "fails"]


def test_fine_tuning_rules_notice_wrong_labels(images):
    tuned, wrong, probed = images.tuned, images.tuned_wrong, 100 - images.two["unique"]
    assert verdict("fine-tuning-not-worse", "mean", wrong - tuned["true"]) == "holds"
    assert verdict("fine-tuning-not-worse", "mean", tuned["coarse"] - wrong) == "fails"
    assert verdict("unique-labels-tune-worse", "mean", tuned["unique"] - wrong) == "fails"
    losses = [probed - tuned["unique"], probed - wrong]
    assert [verdict("probe-below-fine-tuning", "mean", loss) for loss in losses] == ["holds", "fails"]
