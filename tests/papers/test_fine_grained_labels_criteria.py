"""The rules of chapter 02 hold for what they judge and fail for what they do not.

The setting is the chapter's, small: idealised networks with one detector a class and feature, three runs.
"""

from dataclasses import replace

import judged
import numpy as np
import pytest
import torch

from mvnb import stats, training
from mvnb.papers.fine_grained_labels import data, measure, theory
from mvnb.papers.fine_grained_labels import training as arms

K, RUNS, STEP, RATE, SIGNAL = 8, 3, 0.064, 0.05, 4
WORLD = data.HierarchicalMultiView(K, 2 + 2 * K, 16, jitter=0.05, noise=0.005, strong_noise=0.2)
ALPHA = np.sqrt([1 - WORLD.jitter, 1 + WORLD.jitter]).mean()
UNIT = (STEP, SIGNAL, ALPHA, RATE, K)
COARSE, FINE = data.true_labels(K, 1), data.true_labels(K, K)
WRONG = COARSE._replace(of=lambda points: 1 - points.superclass)
TRAINER = arms.Trainer(RUNS, 50, torch.device("cpu"), RATE, STEP)


def held_out(world):
    return {kind: TRAINER.held_out(world, 2, 6, kind == "hard") for kind in ("easy", "hard")}


def verdict(id, *measured, **named):
    return judged.verdict("fine_grained_labels", id, "mean", *measured, **named)


def train(labels, world=WORLD, steps=80, trainer=TRAINER, **how):
    marks = [m for m in (1, 5, 10, 20, 40, 80) if m <= steps]
    return trainer.train(world, labels, 1, steps, tests=held_out(world), log_at=marks, **how)


@pytest.fixture(scope="module")
def coarse():
    return train(COARSE)


@pytest.fixture(scope="module")
def fine():
    return train(FINE)


@pytest.fixture(scope="module")
def binomial():
    return train(COARSE, replace(WORLD, binomial=True))


@pytest.fixture(scope="module")
def kinds():
    """Balanced kinds of labels of the chapter, and the runs on them."""
    found = {name: labels for name, labels in data.label_kinds(K, {}).items() if name not in ("random, 2", "random, 8")}
    return found, arms.by_kind(TRAINER, WORLD, found, 20, held_out(WORLD))


def test_hard_points_tell_coarse_from_fine(coarse, fine):
    assert [verdict("coarse-fails-on-hard", measure.least_error(run)) for run in (coarse, fine)] == ["holds", "fails"]
    assert [verdict("fine-understands-hard", measure.last_error(run)) for run in (fine, coarse)] == ["holds", "fails"]
    silent = train(COARSE, steps=1, trainer=replace(TRAINER, bias_rate=50.0))  # the bias falls so fast: nothing fires
    for runs, expected in (((coarse, fine), "holds"), ((silent, fine), "fails"), ((coarse, silent), "fails")):
        easy = [measure.last_error(run, "easy") for run in runs]
        assert verdict("easy-points-learned", coarse=easy[0], fine=easy[1]) == expected


@pytest.mark.parametrize(
    ("ratio", "harm", "cure"),
    [
        ("growth-ratio-k", "coarse-fails-on-hard", "fine-understands-hard"),
        ("growth-ratio-k-binomial", "coarse-fails-on-hard-binomial", "fine-understands-hard-binomial"),
    ],
)
def test_rules_of_the_lesson_fail_for_fine_labels_and_for_binomial_counts(coarse, fine, binomial, ratio, harm, cure):
    for run, expected in ((coarse, "holds"), (fine, "fails"), (binomial, "fails")):
        assert verdict(ratio, **measure.ratio_over_k(run, K)) == expected
        assert verdict(harm, measure.least_error(run)) == expected
    assert [verdict(cure, measure.last_error(run)) for run in (fine, binomial)] == ["holds", "fails"]


def test_log_law_needs_its_own_rate(coarse, fine):
    kappa = theory.coarse_clock(*UNIT)
    found = [
        verdict("log-law", **measure.log_law(*one, since=10)) for one in ((coarse, kappa), (coarse, 2 * kappa), (fine, kappa))
    ]
    assert found == ["holds", "fails", "fails"]


def test_fine_flow_needs_fine_labels_and_their_number(coarse, fine):
    pairs = ((fine, fine, UNIT), (coarse, fine, UNIT), (fine, coarse, UNIT), (fine, fine, (*UNIT[:-1], 2 * K)))
    assert [verdict("fine-flow", **measure.fine_flow(*pair)) for pair in pairs] == ["holds", "fails", "fails", "fails"]


def test_ratios_tell_kinds_of_labels_apart(kinds):
    labels, runs = kinds
    assert verdict("ratio-by-label", measure.off_ratio(runs, labels, uneven=False)) == "holds"
    other = {"true, 2": labels["true, 4"], "true, 4": labels["true, 2"]}
    assert verdict("ratio-by-label", measure.off_ratio({name: runs[name] for name in other}, other, uneven=False)) == "fails"
    dealt = labels["random, 8 dealt"]
    for of, expected in ((dealt.of, "holds"), (FINE.of, "fails")):  # true labels, trained and measured as IDs
        named = {f"clusters, {K}": dealt._replace(of=of)}
        found = arms.by_kind(TRAINER, WORLD, named, 2, {})
        assert verdict("ratio-of-uneven-labels", measure.off_ratio(found, named, uneven=True)) == expected


def test_random_ids_do_not_pass_for_true_labels(kinds):
    for id in ("random-ids-do-not-help", "backgrounds-explain-the-rest"):
        found = [verdict(id, measure.fewest_errors(kinds[1], name)) for name in ("random", "true", ("true", "random"))]
        assert found == ["holds", "fails", "fails"]


def test_finer_labels_help_only_where_they_are_true(kinds):
    names, runs = ("coarse", "true, 2", "true, 4", "fine"), kinds[1]
    for used, expected in ((names, "holds"), (names[::-1], "fails"), (("coarse", *["random, 8 dealt"] * 3), "fails")):
        levels = dict(zip(names, (runs[name] for name in used)))
        assert verdict("granularity-monotone", **measure.refinement(levels)) == expected


def test_the_threshold_needs_the_formula_and_the_ratio_that_of_the_size():
    ratio, clean, noisy = arms.by_subclasses(TRAINER, replace(WORLD, distractor_low=RATE), (4, 8, 16), 20)
    sizes = np.array([4, 8, 16])
    law = (SIGNAL, ALPHA, 4, RATE, 0.35, RATE)
    k_star = theory.critical_subclasses(SIGNAL, ALPHA, 4, (RATE + 0.35) / 2, RATE)

    def found(sizes, noisy, k_star):
        return verdict(
            "hard-error-threshold", **measure.hard_threshold(sizes, clean, noisy, theory.hard_error(sizes, *law), k_star)
        )

    broken = ((0.7 * sizes, noisy, k_star), (sizes, noisy[::-1], k_star), (sizes, noisy, 3 * k_star))
    assert [found(*one) for one in ((sizes, noisy, k_star), *broken)] == ["holds", "fails", "fails", "fails"]
    slopes = [[stats.power_law_fit(sizes, one).slope for one in values.T] for values in (ratio, ratio**0.9)]
    assert [verdict("ratio-scales-like-k", one) for one in slopes] == ["holds", "fails"]


def test_noise_fires_without_a_bias_and_drowns_the_signal_at_many_patches():
    small, counts = data.HierarchicalMultiView(2, 12, 16, noise=0.1, jitter=0.05), (16, 512)
    without, with_bias = (replace(TRAINER, bias_rate=rate, step_size=step) for rate, step in ((0.0, 0.02), (0.4, 0.1)))
    found = {"no bias": arms.by_patches(without, small, TRAINER.random(small, 2, 16, 1e-3), counts)}
    found["bias"] = arms.by_patches(with_bias, small, TRAINER.idealised(small, 2), counts)
    few = {name: values[:, :1] for name, values in found.items()}
    swapped = {"bias": found["no bias"], "no bias": found["bias"]}
    rows = [verdict("bias-keeps-noise-out", **measure.noise_kept_out(one)) for one in (found, few, swapped)]
    assert rows == ["holds", "fails", "fails"]
    assert found["no bias"][0].min() > 0.4 and found["bias"][0].max() < 1e-3


def test_invariants_need_a_bias_and_right_labels():
    noisy, start = replace(WORLD, noise=0.05), TRAINER.idealised(WORLD, 2)
    free = start._replace(params={**start.params, "bias": torch.zeros_like(start.params["bias"])})
    test = TRAINER.held_out(noisy, 4, 2)

    def found(labels, rate, start):
        run = train(labels, noisy, 10, replace(TRAINER, bias_rate=rate), start=start)
        foreign = measure.louder_on_foreign(run.params, start, COARSE.table)
        return verdict("invariants", noise=measure.firing_on_noise(run.params, test), foreign=foreign)

    assert [found(*one) for one in ((COARSE, 0.3, start), (COARSE, 0.0, free), (WRONG, 0.3, start))] == [
        "holds",
        "fails",
        "fails",
    ]


def test_detector_counts_need_the_right_threshold():
    start = TRAINER.drawn(replace(WORLD, n_subclasses=4), 2, 4000, 10)
    for n, expected in ((10, "holds"), (20, "fails")):
        scores = [score for *_, score in measure.detector_counts(start, 4000, n).values()]
        assert verdict("detector-counts", np.abs(scores).max(0)) == expected


def test_fine_tuning_on_wrong_labels_would_be_noticed(fine):
    start = TRAINER.idealised(WORLD, 2 * K)
    wrong = FINE._replace(of=WRONG.of)
    trained = train(wrong, start=start._replace(params=fine.params), superclasses=True, steps=5)
    for tuned, expected in (
        (arms.fine_tune(TRAINER, WORLD, fine, start, 5, tests=held_out(WORLD)), "holds"),
        (trained, "fails"),
    ):
        grown = measure.growth_kept(tuned, fine).min(1)
        assert verdict("fine-tuning-keeps-features", growth=grown, error=measure.last_error(tuned)) == expected


def test_clusters_that_find_the_subclasses_are_told_from_those_that_find_backgrounds(fine):
    """k-means of patch sums in every superclass finds backgrounds where there are any, and else the subclasses."""
    rows = []
    for world in (replace(WORLD, n_backgrounds=8, background_patches=4, n_patches=24, dim=2 * K + 10), WORLD):
        pools = training.stack([world.sample(60 * K, g) for g in TRAINER.generators(5)])
        labels = data.label_kinds(K, {K: data.nearest_cluster(pools, K, 0, 4)})[f"clusters, {K}"]
        above = measure.last_error(train(labels, world, 20, points=8)) - measure.last_error(fine)
        whole = data.nearest_cluster(pools._replace(superclass=0 * pools.superclass), 8, 0, 10)
        rows.append((above, measure.drift_along_common(world, whole, TRAINER.generators(0), 8)))
    (above, drift), (no_gap, of_subclasses) = rows
    assert np.mean(of_subclasses) > 0.1  # without backgrounds, eight clusters of sixteen subclasses know the superclass
    for one in ((above, drift, "holds"), (no_gap, drift, "fails"), (above, of_subclasses, "fails")):
        assert verdict("clusters-need-alignment", above=one[0], drift=one[1]) == one[2]


def test_probes_take_the_shortcut_unless_points_and_backbone_say_otherwise(coarse, fine, kinds):
    easy, hard = (TRAINER.held_out(WORLD, 60 + h, 20, hard=h) for h in (False, True))

    def error(run, every=None):
        return measure.probe_error(run.params, easy, hard, held_out(WORLD)["hard"], every)

    shortcut = [verdict("probe-takes-the-shortcut", error(*one)) for one in ((coarse,), (fine,), (fine, 1))]
    assert shortcut == ["holds", "holds", "fails"]
    gains = [error(coarse, 19) - error(run, 19) for run in (fine, kinds[1]["random, 8 dealt"])]
    assert [verdict("probe-with-some-hard-points", gain) for gain in gains] == ["holds", "fails"]


@pytest.fixture(scope="module")
def digits():
    """Perceptrons on 500 digits, five runs: errors of a probe and after fine-tuning, by kind of pretraining label."""
    task = data.load_labelled("digits")
    chosen = torch.stack([torch.randperm(len(task.x), generator=g)[:500] for g in training.generators(0, 5)])
    trainer = arms.ImageTrainer(task, chosen, "mlp", epochs=15, batch=100, step_size=0.1, seed=0, device=torch.device("cpu"))
    found = {name: trainer.errors(labels) for name, labels in data.image_labels(task, chosen, 0).items()}
    trainer.target = trainer.target[:, torch.randperm(500, generator=torch.Generator().manual_seed(1))]
    return found, trainer.error()


def test_fine_tuning_rules_notice_wrong_labels(digits):
    """The errors of one kind of labels are replaced by those of networks trained on a shuffled target."""
    found, wrong = digits
    broken = {
        data.CLASSES: ("fine-tuning-not-worse", "unique-labels-tune-worse"),
        data.TARGET: ("random-worse-than-coarse", "whole-data-clusters-are-worse", "retraining-beats-one-pass"),
        "5 clusters in each target class": ("superclass-clusters-help", "more-clusters-tune-worse"),
    }
    broken[data.TARGET] += ("just-finer-tunes-worse", "superclass-probe-worse-on-fine")
    for name, ids in broken.items():
        gains = measure.image_gains(found | {name: (wrong, wrong)}, found[data.TARGET][1])
        assert [verdict(id, gains[id]) for id in ids] == ["fails"] * len(ids)
        assert (verdict("fine-tuning-not-worse", gains["fine-tuning-not-worse"]) == "holds") == (name == data.TARGET)
    badly_tuned = {name: (probed, wrong) for name, (probed, _) in found.items()}
    for errors, expected in ((found, "holds"), (badly_tuned, "fails")):
        assert verdict("probe-below-fine-tuning", measure.image_gains(errors, wrong)["probe-below-fine-tuning"]) == expected
    assert verdict("retraining-beats-one-pass", measure.image_gains(found, wrong)["retraining-beats-one-pass"]) == "holds"
