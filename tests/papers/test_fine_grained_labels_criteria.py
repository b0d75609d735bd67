"""The rules of chapter 02 hold for what they judge and fail for what they do not.

The setting is the chapter's, small: idealised networks with one detector a class and feature, three runs.
"""

from dataclasses import replace
from functools import partial

import judged
import numpy as np
import pytest
import torch

from mvnb import probes, training
from mvnb.papers.fine_grained_labels import data, measure, theory
from mvnb.papers.fine_grained_labels import training as arms
from mvnb.papers.fine_grained_labels.data import HierarchicalMultiView, nearest_cluster
from mvnb.papers.fine_grained_labels.model import (
    Start,
    compressed_detectors,
    detector_masks,
    max_read_out,
    relu_logits,
    relu_responses,
)

K, RUNS, STEP, RATE, SIGNAL = 8, 3, 0.064, 0.05, 4
WORLD = HierarchicalMultiView(K, 2 + 2 * K, 16, jitter=0.05, noise=0.005, strong_noise=0.2)
ALPHA = np.sqrt([1 - WORLD.jitter, 1 + WORLD.jitter]).mean()
MARKS = [1, 5, 10, 20, 40, 80]
TABLES = {g: theory.grouped_label_probabilities(K, g) for g in (1, 2, 4, 8)}
RANDOM = theory.random_label_probabilities(K, 2)


def coarse_labels(points):
    return points.superclass


def fine_labels(points):
    return points.subclass


def groups(g):
    return lambda points: points.subclass * g // K


def ids(points):
    return points.superclass * 2 + torch.arange(points.x.shape[-3]) // (2 * K) % 2


verdict = partial(judged.verdict, "fine_grained_labels")


TRAINER = arms.Trainer(RUNS, 50, torch.device("cpu"), RATE, STEP)


def train(label, table, world=WORLD, rate=RATE, steps=MARKS[-1], purpose=1, **how):
    """A stack of idealised networks, tested on the same points each time."""
    trainer, marks = replace(TRAINER, bias_rate=rate), [m for m in MARKS if m <= steps]
    tests = {kind: trainer.held_out(world, 2, 6, kind == "hard") for kind in ("easy", "hard")}
    return trainer.train(world, label, table, purpose, steps, tests=tests, log_at=marks, **how)


def errors(run, kind="hard", looks=slice(None)):
    return measure.errors(run.log[kind][looks])


def growth(run):
    """Own common and own fine growth, mean over classes, (look, run) each."""
    return run.log["growth"].mean(2).movedim(-1, 0).numpy()


def off(values, curve):
    """A run's largest relative distance from a curve."""
    return np.abs(values / curve[:, None] - 1).max(0)


@pytest.fixture(scope="module")
def coarse():
    return train(coarse_labels, TABLES[1])


@pytest.fixture(scope="module")
def fine():
    return train(fine_labels, TABLES[8])


@pytest.fixture(scope="module")
def binomial():
    return train(coarse_labels, TABLES[1], world=replace(WORLD, binomial=True))


@pytest.fixture(scope="module")
def random():
    return train(ids, RANDOM, points=8, steps=20)


def test_hard_points_tell_coarse_from_fine(coarse, fine):
    fails = [verdict("coarse-fails-on-hard", "mean", errors(run, looks=slice(1, None)).min(0)) for run in (coarse, fine)]
    assert fails == ["holds", "fails"]
    assert [verdict("fine-understands-hard", "mean", errors(run)[-1]) for run in (fine, coarse)] == ["holds", "fails"]
    easy = {name: errors(run, "easy")[-1] for name, run in (("coarse", coarse), ("fine", fine))}
    assert verdict("easy-points-learned", "mean", **easy) == "holds"


def test_untrained_networks_do_not_pass_for_easy_points():
    silent = errors(train(coarse_labels, TABLES[1], steps=1, rate=50.0), "easy")[-1]  # the bias falls so fast: nothing fires
    assert verdict("easy-points-learned", "mean", coarse=silent, fine=silent) == "fails"


def test_growth_ratio_fails_for_fine_labels_and_for_binomial_counts(coarse, fine, binomial):
    def ratio_is_k(id, run):
        ratio = measure.growth_ratio(run) / K
        return verdict(id, "mean", least=ratio.min(0), most=ratio.max(0))

    assert [ratio_is_k("growth-ratio-k", run) for run in (coarse, fine)] == ["holds", "fails"]
    assert [ratio_is_k("growth-ratio-k-binomial", run) for run in (coarse, binomial)] == ["holds", "fails"]


def test_hard_points_with_binomial_counts_tell_labels_and_counts_apart(coarse, fine, binomial):
    fails = [verdict("coarse-fails-on-hard-binomial", "mean", errors(run)[-1]) for run in (coarse, binomial)]
    assert fails == ["holds", "fails"]
    learns = [verdict("fine-understands-hard-binomial", "mean", errors(run)[-1]) for run in (fine, binomial)]
    assert learns == ["holds", "fails"]


def test_log_law_needs_its_own_rate(coarse, fine):
    kappa = theory.coarse_clock(STEP, SIGNAL, ALPHA, RATE, K)
    marks = np.array(MARKS)[2:]

    def found(output, clock):
        slope = np.polyfit(np.log(marks[1:]), output[1:], 1)[0]
        return verdict("log-law", "mean", error=off(output, theory.coarse_response(clock)), slope=slope)

    right, other = (run.log["easy"][2:].mean(-1).numpy() for run in (coarse, fine))
    assert found(right, kappa * marks) == "holds"
    assert found(right, 2 * kappa * marks) == found(other, kappa * marks) == "fails"
    assert found(np.sqrt(marks)[:, None].repeat(RUNS, 1), kappa * marks) == "fails"


def test_fine_flow_needs_the_siblings(fine, coarse):
    flow = theory.fine_trajectory(MARKS, STEP, SIGNAL, ALPHA, RATE, K)

    def found(values, lines):
        ratio = np.divide(*values)[0] / theory.growth_ratio(K, K)
        return verdict("fine-flow", "mean", ratio=ratio, off=np.max([off(*pair) for pair in zip(values, lines)], 0))

    assert found(growth(fine), flow) == "holds"
    assert found(growth(coarse), flow) == "fails"
    assert found(growth(fine), flow[[1, 1]]) == "fails"  # as if siblings did not push back


def read_out_ratio(label, table, points=8):
    """The ratio at the read-out after one step, one per run."""
    start = TRAINER.idealised(WORLD, len(table))
    return measure.read_out_ratio(train(label, table, steps=1, start=start, points=points).params, start, K)


def test_ratios_tell_kinds_of_labels_apart():
    """Also where only the labels differ: true fine labels, trained with the table of as many random IDs."""
    many = theory.random_label_probabilities(K, K)

    def found(id, ratio, expected):
        return verdict(id, "mean", np.abs(ratio / expected - 1))

    first = {g: read_out_ratio(groups(g), TABLES[g]) for g in (2, 4)}
    for g, ratio in first.items():
        by = [theory.growth_ratio(K, one) for one in (g, 8 // g)]
        assert [found("ratio-by-label", ratio, one) for one in by] == ["holds", "fails"]
    dealt = read_out_ratio(lambda points: points.superclass * K + torch.arange(points.x.shape[-3]) // (2 * K) % K, many)
    true = read_out_ratio(fine_labels, many)
    assert [found("ratio-by-label", ratio, K) for ratio in (dealt, true)] == ["holds", "fails"]
    assert found("ratio-of-uneven-labels", dealt, K) == "holds" and found("ratio-of-uneven-labels", true, K) == "fails"
    slopes = np.log(first[2]) / np.log(2)
    assert verdict("ratio-scales-like-k", "mean", slopes) == "fails"  # it is of k, not of g


def test_read_out_ratio_is_that_of_the_outputs():
    """Largest outputs of a superclass at points of one patch, with any growth of any detector."""
    start = TRAINER.idealised(WORLD, 4)
    grown = torch.rand(RUNS, 4, 18, 1, generator=torch.Generator().manual_seed(0)) * torch.eye(18)
    params = {"weight": start.params["weight"] + grown, "bias": start.params["bias"] - RATE * grown.norm(dim=-1)}
    outputs = max_read_out(relu_logits(params, torch.eye(18)[:, None]))  # (run, feature, superclass)
    own = outputs.gather(-1, torch.tensor([0, 1] + [0] * K + [1] * K).expand(RUNS, -1)[..., None])[..., 0]
    expected = own[:, :2].mean(1) / own[:, 2:].mean(1)
    assert np.allclose(measure.read_out_ratio(params, start, K), expected, rtol=1e-3)


def test_random_ids_do_not_pass_for_true_labels(random):
    true = train(groups(2), TABLES[2], points=8, steps=20)
    for id in ("random-ids-do-not-help", "backgrounds-explain-the-rest"):
        assert [verdict(id, "mean", errors(run)[-1]) for run in (random, true)] == ["holds", "fails"]


def test_finer_labels_help_only_where_they_are_true(coarse, fine, random):
    def found(*levels):
        steps = np.diff([errors(run)[-1] for run in levels], axis=0)
        return verdict("granularity-monotone", "mean", rise=steps.max(0), fall=-steps.sum(0))

    middle = train(groups(4), TABLES[4], points=8, steps=20)
    assert found(coarse, middle, fine) == "holds"
    assert found(coarse, random, random) == found(fine, middle, coarse) == "fails"


def test_threshold_formula_is_sharp_enough_to_fail():
    world = replace(WORLD, distractor_low=RATE, strong_noise=0.0)
    run = train(coarse_labels, TABLES[1], world=world, steps=20)
    hard = TRAINER.held_out(world, 3, 24, hard=True)
    measured = measure.errors(measure.margins(run.params, hard))

    def found(ratio):
        formula = theory.hard_error(ratio, SIGNAL, ALPHA, 4, RATE, 0.35, RATE)
        return verdict("hard-error-threshold", "mean", error=abs(measured - formula), rise=[0.0] * 3, crossing=[1.0] * 3)

    assert [found(ratio) for ratio in (K, K - 2, K + 3)] == ["holds", "fails", "fails"]


def test_noise_fires_without_a_bias():
    noisy = replace(WORLD, noise=0.05)
    start = TRAINER.idealised(noisy, 2)
    free = start._replace(params={**start.params, "bias": torch.zeros_like(start.params["bias"])})
    test = TRAINER.held_out(noisy, 4, 2)

    def firing(rate, start):
        run = train(coarse_labels, TABLES[1], world=noisy, rate=rate, steps=10, start=start)
        return verdict("invariants", "mean", noise=measure.firing_on_noise(run.params, test), foreign=[0.0] * RUNS)

    assert firing(0.3, start) == "holds" and firing(0.0, free) == "fails"


def test_wrong_labels_make_neurons_louder_on_foreign_features():
    start = TRAINER.idealised(WORLD, 2)

    def foreign(label):
        run = train(label, TABLES[1], steps=10, start=start)
        share = measure.louder_on_foreign(run.params, start, TABLES[1])
        return verdict("invariants", "mean", noise=[0.0] * RUNS, foreign=share)

    assert foreign(coarse_labels) == "holds" and foreign(lambda points: 1 - points.superclass) == "fails"


def test_detector_counts_need_the_right_threshold():
    m, threshold, slack = 4000, theory.detector_threshold(4000, 10), 0.2
    start = compressed_detectors(2, m, 10, 12, 1e-5, threshold, training.generators(0, RUNS), slack)

    def score(expected_threshold):
        masks = detector_masks(start["weight"], 10, 1e-5, threshold, slack)
        expected = theory.detector_counts(m, 10, expected_threshold, slack)
        counts = [mask.sum(2).double().flatten(1) for mask in masks]  # by run
        scores = [(c.mean(1) - e) / (e / c.shape[1]) ** 0.5 for c, e in zip(counts, expected)]
        return verdict("detector-counts", "mean", torch.stack(scores).abs().amax(0))

    assert score(threshold) == "holds"
    assert score(threshold + 0.3) == "fails"


def test_fine_tuning_on_wrong_labels_would_be_noticed(fine):
    trained = TRAINER.idealised(WORLD, 2 * K)._replace(params=fine.params)
    how = {"start": trained, "superclasses": True, "steps": 5, "purpose": 9}

    def grown(label):
        run = train(label, TABLES[8], **how)
        added = (run.log["growth"][-1] / fine.log["growth"][-1]).mean(1).numpy()
        return verdict("fine-tuning-keeps-features", "mean", growth=1 + added.min(1), error=errors(run)[-1])

    assert grown(coarse_labels) == "holds" and grown(lambda points: 1 - points.superclass) == "fails"


def test_few_patches_do_not_drown_the_signal():
    table, small = theory.grouped_label_probabilities(2, 1), HierarchicalMultiView(2, 12, 16, noise=0.1, jitter=0.05)
    weight = torch.stack([1e-3 * torch.randn(2, 16, 12, generator=g) for g in training.generators(0, RUNS)])
    mask = torch.zeros(RUNS, 2, 16, 6, dtype=torch.bool)
    free = Start({"weight": weight, "bias": torch.zeros(RUNS, 2, 16)}, mask, mask)
    networks = {0.0: (free, 0.02), 0.4: (TRAINER.idealised(small, 2), 0.1)}  # by 1 / lambda

    def error(rate, patches):
        world, (start, step) = replace(small, n_patches=patches), networks[rate]
        trainer = replace(TRAINER, bias_rate=rate, step_size=step)
        run = trainer.train(world, coarse_labels, table, 8, 10, start=start, points=4)
        return measure.errors(measure.margins(run.params, trainer.held_out(world, 4, 32)))

    def found(patches):
        named = {"without": error(0.0, patches), "error": error(0.4, patches), "firing": [0.0] * RUNS}
        return verdict("bias-keeps-noise-out", "mean", **named)

    assert found(512) == "holds" and found(16) == "fails"


def test_clusters_that_find_the_subclasses_are_told_from_those_that_find_backgrounds(fine):
    """k-means of patch sums in every superclass finds backgrounds where there are any, and else the subclasses."""

    def trained(world):
        pool = training.stack([world.sample(60 * K, g) for g in training.generators(5, RUNS)])
        label = nearest_cluster(pool.x.sum(2), pool.superclass, K, 0, 4)
        run = train(lambda points: label(points.x.sum(-2), points.superclass), TABLES[8], world=world, points=8, steps=20)
        return errors(run)[-1]

    behind = replace(WORLD, n_backgrounds=8, background_patches=4, n_patches=24, dim=2 * K + 10)
    above = [trained(world) - errors(fine)[-1] for world in (behind, WORLD)]
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

    seen, descent = pooled(x), training.SGD(2.0, momentum=0.9)
    scale = seen.norm(dim=-1).square().mean(1).sqrt()[:, None, None]
    logits_of = probes.linear_probe(seen, easy.superclass.expand(RUNS, -1), 2, descent, 300, scale)
    return 1 - probes.accuracy(logits_of(pooled(test.x)), test.superclass).numpy()


def test_probes_take_the_shortcut_unless_points_and_backbone_say_otherwise(coarse, fine, random):
    shortcut = [probe_hard_error(run.params) for run in (coarse, fine)] + [probe_hard_error(fine.params, 1)]
    assert [verdict("probe-takes-the-shortcut", "mean", e) for e in shortcut] == ["holds", "holds", "fails"]
    few = probe_hard_error(coarse.params, 19)
    gains = [few - probe_hard_error(run.params, 19) for run in (fine, random)]
    assert [verdict("probe-with-some-hard-points", "mean", gain) for gain in gains] == ["holds", "fails"]


def test_rows_of_the_kept_run_do_not_hold_for_exchanged_labels():
    """A row that holds fails, and one that fails holds, when the two label sets of the difference change places."""
    error = {arm: found["same"] for arm, found in measure.kept_errors("cifar10").items()}
    opposite = {"holds": "fails", "fails": "holds", "undecided": "undecided"}
    for id, arm, sign in (
        ("cifar10-ten-fine-tuned", "ten", 1),
        ("cifar10-random-fine-tuned", "random IDs", -1),
        ("cifar10-unique-fine-tuned", "unique", -1),
    ):
        gain = sign * (error["two"] - error[arm])
        found = [verdict(id, "mean", one) for one in (gain, -gain)]
        assert found[1] == opposite[found[0]] and verdict(id, "mean", 0 * gain) == "fails"


# Digits, in percentage points, one number per run.


@pytest.fixture(scope="module")
def digits():
    """Perceptrons on 500 digits, five runs: errors of a probe and after fine-tuning, by kind of pretraining label."""
    task = data.load_labelled("digits")
    chosen = torch.stack([torch.randperm(len(task.x), generator=g)[:500] for g in training.generators(0, 5)])
    trainer = arms.ImageTrainer(task, chosen, "mlp", epochs=15, batch=100, step_size=0.1, seed=0, device=torch.device("cpu"))
    found = {name: trainer.errors(labels) for name, labels in data.image_labels(task, chosen, 0).items()}
    shuffled = trainer.target[:, torch.randperm(500, generator=torch.Generator().manual_seed(1))]
    trainer.target = shuffled
    return found, trainer.error()


def test_fine_tuning_rules_notice_wrong_labels(digits):
    found, wrong = digits
    true, unique = found[data.CLASSES][1], found["one per image"][1]
    assert verdict("fine-tuning-not-worse", "mean", wrong - true) == "holds"
    for id in ("fine-tuning-not-worse", "superclass-clusters-help", "retraining-beats-one-pass"):
        assert verdict(id, "mean", true - wrong) == "fails"
    for id in (
        "unique-labels-tune-worse",
        "random-worse-than-coarse",
        "whole-data-clusters-are-worse",
        "more-clusters-tune-worse",
    ):
        assert verdict(id, "mean", unique - wrong) == "fails"
    gaps = [probed - tuned for probed, tuned in found.values()]
    assert verdict("probe-below-fine-tuning", "mean", np.mean(gaps, 0)) == "holds"
    assert verdict("probe-below-fine-tuning", "mean", found[data.CLASSES][0] - wrong) == "fails"
