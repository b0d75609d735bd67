"""The rules of chapter 03 hold for what they judge and fail for a broken variant.

The setting is the chapter's, small: four classes, ten kernels a class, fewer dimensions. Claims whose rule is on a
deviation from a closed form are broken in the closed form, the others in the training.
"""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import judged
import numpy as np
import pytest
import torch

from mvnb import kept_runs, training
from mvnb.papers.mask_reconstruction import data, measure, model, theory
from mvnb.papers.mask_reconstruction import training as arms

REPLICAS, CLASSES, FILTERS, POINTS, DIM, POWER, THRESHOLD, KEEP, RATE = 4, 4, 10, 80, 128, 4, 0.6, 0.5, 1.6
FEATURES, ACTIVATION = 2 * CLASSES, (POWER, THRESHOLD)
WORLD = data.SparseMultiView(CLASSES, 10, DIM, foreign=RATE, balanced=True)
best = partial(model.best_correlations, n_features=FEATURES)


def verdict(id, value=None, **named):
    return judged.verdict("mask_reconstruction", id, "mean", *() if value is None else (value,), **named)


def knows(run):
    return best(run.params).numpy() > THRESHOLD


@pytest.fixture(scope="module")
def runs():
    """Autoencoders and networks from scratch; one sample, one start."""
    points, start = data.draw(WORLD, POINTS, CLASSES * FILTERS, 0.02, training.generators(0, REPLICAS), "cpu")
    lone = replace(WORLD, single_view=1.0)
    worlds = {"multi-view": WORLD, "single-view": lone}
    tests = {kind: world.sample(400, torch.Generator().manual_seed(9)) for kind, world in worlds.items()}
    owned, pace = start.unflatten(1, (CLASSES, FILTERS)), training.FlowGD(relative=0.03, absolute=0.3, knee=0.6, relax=0.8)

    def autoencode(steps):
        return arms.autoencode(start, (points.x, KEEP), ACTIVATION, steps, pace, **arms.logged(best, steps, 5))

    scratch = arms.from_scratch(owned, points, ACTIVATION, 700, **arms.logged(best, 700, 2))
    return SimpleNamespace(
        points=points, start=start, owned=owned, tests=tests, autoencode=autoencode, mae=autoencode(420), scratch=scratch
    )


def accuracies(runs, params):
    return measure.accuracies(arms.outputs(params, ACTIVATION), runs.tests)


def test_all_features_holds_for_the_autoencoder_and_fails_from_labels_or_too_early(runs):
    found = [verdict("mae-all-features", knows(one).mean(1)) for one in (runs.mae, runs.scratch, runs.autoencode(120))]
    assert found == ["holds", "fails", "fails"]


def test_purity_fails_when_kernels_are_mixed(runs):
    weight = runs.mae.params["weight"]
    held = [(one[..., :FEATURES] > THRESHOLD / 2).numpy() for one in (weight, weight + weight.roll(1, -1))]
    assert [verdict("mae-pure-kernels", measure.pure(one)) for one in held] == ["holds", "fails"]


STRENGTHS = theory.strength_rule((1.0, 1.3), (0.2, 0.4), RATE, CLASSES)


def level(power=POWER, threshold=THRESHOLD, keep=KEEP):
    return theory.autoencoder_fixed_point(power, threshold, keep, *STRENGTHS)


def test_the_level_is_that_of_this_mask_ratio_and_threshold(runs):
    def at(level):
        return verdict("mae-fixed-point", **measure.off_level(best(runs.mae.params).numpy(), level, THRESHOLD))

    assert at(level()) == "holds"
    broken = level(keep=0.6), level(threshold=THRESHOLD / 2), level(power=2)
    assert {at(one) for one in (*broken, KEEP**0.5)} == {"fails"}  # the last is the paper's bound, for a small threshold


def test_capture_times_need_the_right_law_and_strengths(runs):
    def timed(activation, points):
        return verdict("capture-times", **measure.off_times(*measure.captures(runs.mae, points, activation)))

    weaker = runs.points._replace(strength=0.87 * runs.points.strength)  # a moment of one half
    assert timed(ACTIVATION, runs.points) == "holds"
    assert timed((POWER + 1, THRESHOLD), runs.points) == timed(ACTIVATION, weaker) == "fails"


def test_the_loss_descends_the_predicted_stairs_only(runs):
    def on_stairs(keep, run):
        return verdict("mae-staircase", measure.stairs(run, runs.points, ACTIVATION, keep, level(keep=keep))[1])

    together = runs.mae.log["best"].amax(-1, keepdim=True).expand_as(runs.mae.log["best"])  # all in one stair
    assert on_stairs(KEEP, runs.mae) == "holds" and on_stairs(2 * KEEP, runs.mae) == "fails"
    assert on_stairs(KEEP, SimpleNamespace(log=runs.mae.log | {"best": together})) == "fails"


def test_lost_views_hold_from_labels_and_fail_with_masks_or_reconstruction(runs):
    masked = arms.masked_labels(runs.owned, runs.points, KEEP, ACTIVATION, 500, seed=3)
    lost = [verdict("sl-loses-views", measure.one_view(knows(one))) for one in (runs.scratch, runs.mae, masked)]
    missing = [verdict("labels-need-reconstruction", (~knows(one)).mean(1)) for one in (runs.scratch, masked)]
    assert lost == ["holds", "fails", "fails"] and missing == ["holds", "fails"]


def test_claims_on_networks_trained_on_hold_for_those_that_are_stopped_only(runs):
    further, log = arms.train_on(runs.scratch, runs.points, ACTIVATION, 700, best)
    ours = {kind: np.ones(REPLICAS) for kind in runs.tests}  # a rival that makes no mistake
    leads = [measure.lead(ours, accuracies(runs, one.params))["single-view"] for one in (runs.scratch, further)]
    assert [verdict("mrp-beats-sl-trained-on", one) == "holds" for one in leads] == [True, False]
    views = [measure.one_view(knows(one)) for one in (runs.scratch, further, runs.mae)]
    assert [verdict("sl-loses-views-trained-on", one) == "holds" for one in views] == [True, False, False]
    then = measure.at_first(log, log["time"] >= runs.mae.log["time"][-1])
    assert (then["time"] < log["time"][-1]).all()
    known = [(one > THRESHOLD).double().mean(1) for one in (then["best"], best(runs.mae.params))]
    assert [verdict("labels-at-equal-time", one) for one in known] == ["holds", "fails"]


def test_classification_holds_pretrained_and_fails_from_scratch(runs):
    def judged_from(weight):
        tuned = arms.fine_tune(weight, runs.points, ACTIVATION, CLASSES, steps=120, stop=0.003, probes={"best": best})
        probe = arms.linear_probe(weight, runs.points, ACTIVATION, CLASSES, 300)
        return tuned, accuracies(runs, tuned.params), measure.accuracies(probe, runs.tests)

    def classifies(tuned, probed):
        return verdict("mrp-classifies-both", tuned=measure.worse_kind(tuned), probed=measure.worse_kind(probed))

    pretrained = runs.mae.params["weight"]
    (_, ours, probed), (_, random, guessed), (_, other, _) = map(judged_from, (pretrained, runs.start, pretrained.roll(1, -1)))
    scratch = accuracies(runs, runs.scratch.params)
    assert classifies(ours, probed) == "holds"
    assert classifies(random, probed) == classifies(ours, guessed) == classifies(other, probed) == "fails"
    ahead = [verdict("mrp-beats-sl", measure.lead(one, scratch)["single-view"]) for one in (ours, random, scratch)]
    assert ahead == ["holds", "fails", "fails"]
    half = [verdict("sl-half-of-single-view", single=a["single-view"], multi=a["multi-view"]) for a in (scratch, ours)]
    assert half == ["holds", "fails"]
    learned = knows(runs.scratch)
    formula = [theory.single_view_accuracy(one, RATE) for one in (learned, np.ones_like(learned), np.zeros_like(learned))]
    off = [verdict("sl-errors-explained", np.abs(scratch["single-view"] - one)) for one in formula]
    assert off == ["holds", "fails", "fails"]


def test_fine_tuning_keeps_features_unless_it_climbs(runs):
    how = {"probes": {"best": best, "strays": partial(model.stray_correlations, n_features=FEATURES, held=THRESHOLD / 2)}}
    tuned = arms.fine_tune(runs.mae.params["weight"], runs.points, ACTIVATION, CLASSES, steps=120, stop=0.003, **how)
    climbing = {"best": tuned.log["best"].flip(0) * torch.linspace(1, 0.9, len(tuned.log["best"]))[:, None, None]}
    found = [verdict("fine-tuning-keeps-features", measure.fine_tuned(tuned.log | one)[0]) for one in ({}, climbing)]
    assert found == ["holds", "fails"]


def test_the_lottery_is_foreseen_by_its_own_start_only():
    activation = 3, 0.2
    world = replace(WORLD, dim=64, n_patches=12, foreign=1.0)
    points, start = data.draw(world, POINTS, CLASSES * 40, 0.04, training.generators(5, REPLICAS), "cpu")
    run, idle = (arms.until_all_held(start, points.x, keep, activation, 120, best) for keep in (KEEP, 1.0))
    known = [(best(one.params) >= 0.2).double().mean(1) for one in (run, idle)]  # without a mask the teacher is the student
    assert [verdict("ts-all-features", one) for one in known] == ["holds", "fails"]
    initial, final = (w[..., :FEATURES].numpy() for w in (start, run.params["weight"]))
    held, own = final >= 0.2, theory.lottery(initial)

    def counted(pairs):
        return verdict("ts-active-kernels", measure.miscounted(held, pairs, 1))

    def ahead(initial):
        return verdict("winners-were-ahead", measure.winners_ahead(initial, held))

    assert ahead(initial) == counted(held) == "holds" and counted(own) != "fails"
    assert verdict("lottery-foreseen", measure.foreseen_share(held, held)) == "holds"
    assert counted(initial >= 0.4 * initial.max(-2).min(-1)[..., None, None]) == "fails"
    for other in (np.roll(initial, 1, 0), np.roll(initial, 1, 1), np.roll(initial, 1, 2)):
        foreseen = measure.foreseen_share(held, theory.lottery(other))
        assert foreseen.max() < 0.2 < measure.foreseen_share(held, own).min()
        assert verdict("lottery-foreseen", foreseen) == ahead(other) == "fails"


# --- Images: small runs, and the values that were kept ---


@pytest.fixture(scope="module")
def planted():
    """A test sample of pictures, and what networks make of it that were trained on true and on shuffled labels."""
    world, network = data.world_of_tiles(5, 2.0, 0.6), model.NETWORKS["small"]._replace(squares=1)
    samples = [world.sample(400, g) for g in training.generators(3, 4)]
    x, y = torch.stack([data.pictures(s) for s in samples]), torch.stack([s.y for s in samples])
    exam = world.sample(300, torch.Generator().manual_seed(9))

    def trained(y, steps):
        how = {"labels": 100, "n_classes": 5, "batch": 25, "seed": 0, "steps": steps, "label_steps": 200}
        net, runs = arms.image_arms(x, y, network, **how)

        def seen(params):
            right = measure.hits(net, params, data.pictures(exam), exam.y).mean().item()
            return {"multi": right, **measure.looks(net, params, exam, 300)}

        return [
            {"values": {name: seen({k: v[r : r + 1] for k, v in runs[name].params.items()}) for name in ("ERM", "MAE")}}
            for r in range(4)
        ]

    order = torch.randperm(400, generator=torch.Generator().manual_seed(1))
    return {"runs": trained(y, 500)}, {"runs": trained(y[:, order], 10)}, data.own_tiles(exam)


def test_pretraining_helps_on_pictures_only_if_labels_mean_something(planted):
    true, shuffled, _ = planted
    gain = measure.gain_on_tiles(true, "multi")
    assert [verdict("images-pretraining-helps", 100 * one) for one in (gain, -gain, 0 * gain)] == ["holds", "fails", "fails"]
    # Five classes: with shuffled labels both guess, and neither's lead over the other means a thing.
    guessed = [measure.on_tiles(shuffled, arm, "multi").mean() for arm in ("ERM", "MAE")]
    assert max(guessed) <= 0.35 < measure.on_tiles(true, "ERM", "multi").mean()
    assert verdict("images-pretraining-helps", 100 * measure.gain_on_tiles(shuffled, "multi")) != "holds"


def test_maps_of_pretrained_networks_cover_own_tiles_of_their_own_picture(planted):
    record, _, own = planted

    def covered(arm, shift):
        maps = torch.tensor(measure.on_tiles(record, arm, "maps")).unflatten(-1, (8, 8))
        return np.array([measure.overlap(measure.lit_tiles(one.roll(shift, 0)), own).mean() for one in maps])

    assert covered("MAE", 0) == pytest.approx(measure.on_tiles(record, "MAE", "covered"), abs=0.02)
    gain = measure.gain_on_tiles(record, "covered")
    assert [verdict("images-cam-covers-parts", one) for one in (gain, -gain, 0 * gain)] == ["holds", "fails", "fails"]
    assert verdict("images-cam-covers-parts", covered("MAE", 1) - covered("ERM", 1)) != "holds"
    sharper = measure.gain_on_tiles(record, "precision")
    assert [verdict("images-cell-probe", one) for one in (sharper, -sharper)] == ["holds", "fails"]


def test_gains_on_mnist_fail_if_the_arms_are_one_or_change_places():
    record = kept_runs.load("mask_reconstruction", "mnist")
    ids = [f"mnist-shifted-{n}-labels" for n in record["parameters"]["labels"]]
    assert ids[0] == "mnist-shifted-100-labels"
    for id, gain in zip(ids, measure.gain_on_digits(record), strict=True):
        found = [verdict(id, one) for one in (gain, -gain, gain + 5, -gain - 5, 0 * gain)]
        assert set(found[:2]) in ({"holds", "fails"}, {"undecided"}) and found[2:] == ["holds", "fails", "fails"]
