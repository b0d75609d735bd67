"""A rule that cannot fail tests nothing: the ones of chapter 01 hold for what they judge and fail for what they do not.

The setting is the chapter's, small: four classes, eight filters. Over five disjoint sets of eight seeds the chapter's limits
held here, too: 91 to 97 % of classes have one feature under ERM (limit 80 %), 95 to 100 % of the classes that Midpoint Mixup
has fitted have both (95 %), and the winner was named correctly every time (95 %).
"""

from functools import partial
from types import SimpleNamespace

import judged
import numpy as np
import pytest
import torch

from mvnb import probes, training
from mvnb.data import MultiView
from mvnb.models import PatchObjective, patch_logits
from mvnb.papers.midpoint_mixup import measure, theory
from mvnb.papers.midpoint_mixup.images import kept_curves

REPLICAS, CLASSES, FILTERS, POINTS, POWER, THRESHOLD, INIT_SCALE, LOW = 8, 4, 8, 16, 8, 0.1, 0.011, 0.6
WORLD = MultiView(CLASSES, 1000, low=LOW, noise_low=0.006, noise_high=0.006, slots=3, balanced=True)
ERM = {"steps": 450, "optimizer": training.FlowGD(max_step=400, relative=0.02, absolute=0.3, knee=THRESHOLD)}
MIDPOINT = {"steps": 600, "optimizer": training.FlowGD(max_step=80, relative=0.1, absolute=0.3, knee=THRESHOLD)}


verdict = partial(judged.verdict, "midpoint_mixup")


def share(hits, among):
    """Share of some classes that are hits, for each run; none is no success."""
    return (hits & among).sum(1) / np.maximum(among.sum(1), 1)


def one_feature_in_most_classes(run):
    return verdict("erm-one-feature", "mean", (run.learned == 1).mean(1))


def both_features_in_fitted_classes(run):
    return verdict("midpoint-both-features", "mean", share(run.learned == 2, run.fitted))


def features_learned_equally(run):
    total = measure.total_correlation(run.weight, 2 * THRESHOLD / LOW)
    balance = measure.balance(total).numpy()
    return verdict("midpoint-equal-features", "mean", [np.median(b[m]) for b, m in zip(balance, run.fitted) if m.any()])


def winner_named(run, named):
    return verdict("winner-decided-at-start", "mean", share(run.best[-1].argmax(-1) == named, run.learned == 1))


def escape_timed(run, named, power):
    """Median relative error of a run's times at which named features leave the polynomial part."""
    level = THRESHOLD / (2 - LOW)
    first, strength = (np.take_along_axis(a, named[..., None], -1)[..., 0] for a in (run.best[0], run.strength))
    predicted = theory.escape_time(first, strength, CLASSES, power, THRESHOLD, level)
    track = np.take_along_axis(run.best, named[None, ..., None], -1)[..., 0]
    r, y = np.nonzero((track > level).any(0))
    measured = run.time[(track > level).argmax(0)[r, y], r]
    assert len(r) >= 20
    error = np.abs(measured / predicted[r, y] - 1)
    return verdict("escape-time", "mean", [np.median(error[r == run]) for run in np.unique(r)])


@pytest.fixture(scope="module")
def start():
    generators = training.generators(0, REPLICAS)
    data = training.stack([WORLD.sample(POINTS, g, dtype=torch.float64) for g in generators])
    shape = (CLASSES, FILTERS, WORLD.dim)
    weight = torch.stack([INIT_SCALE * torch.randn(shape, dtype=torch.float64, generator=g) for g in generators])
    y = torch.arange(CLASSES).repeat_interleave(40)
    return SimpleNamespace(data=data, weight=weight, fresh=WORLD.sample(len(y), 10**6, y, torch.float64))


@pytest.fixture(scope="module")
def train(start):
    """``train(lam, how)``: a stack trained on points (``lam=None``) or on mixtures, and what the criteria read of it."""

    def logits(params, x, multiplicity):
        return patch_logits(params["weight"], x, multiplicity, POWER, THRESHOLD)

    def fitted(params):
        x, y, multiplicity = start.data
        return (measure.class_accuracy(logits(params, x, multiplicity[0]), y) == 1).double()

    def run(lam, how):
        run = training.fit(
            PatchObjective(POWER, THRESHOLD),
            {"weight": start.weight},
            (*start.data, lam),
            probes={"best": lambda p: probes.max_correlation(p["weight"]), "fitted": fitted},
            log_at=range(how["steps"] + 1),
            **how,
        )
        known = measure.feature_accuracy(lambda x, multiplicity: logits(run.params, x, multiplicity), start.fresh)
        axes = torch.stack([2 * start.data.y, 2 * start.data.y + 1], -1)
        beta = start.data.x.amax(2).gather(2, axes)[..., None].numpy()  # (replica, point, view, 1)
        strength = [theory.feature_strength(b, y, CLASSES, POWER) for b, y in zip(beta, start.data.y.numpy())]
        return SimpleNamespace(
            weight=run.params["weight"],
            learned=(known >= 0.9).sum(-1).numpy(),
            fitted=run.log["fitted"][-(how["steps"] // 5) :].numpy().min(0) == 1,  # through the last fifth of the run
            best=run.log["best"].numpy(),
            time=run.log["time"].numpy(),
            strength=np.stack(strength),
        )

    return run


@pytest.fixture(scope="module")
def erm(train):
    return train(None, ERM)


@pytest.fixture(scope="module")
def midpoint(train):
    return train(0.5, MIDPOINT)


def test_one_feature_holds_for_erm_and_fails_for_midpoint(erm, midpoint):
    assert one_feature_in_most_classes(erm) != "fails"  # with so few classes it may stay undecided
    assert one_feature_in_most_classes(midpoint) == "fails"


def test_both_features_holds_for_midpoint_and_fails_when_nothing_is_mixed(midpoint, train):
    assert both_features_in_fitted_classes(midpoint) == "holds"
    unmixed = train(None, MIDPOINT)
    assert unmixed.fitted.sum() >= 10
    assert both_features_in_fitted_classes(unmixed) == "fails"
    assert features_learned_equally(midpoint) != "fails"
    assert features_learned_equally(unmixed) == "fails"


def test_both_features_fails_before_training_has_done_its_work(train):
    assert both_features_in_fitted_classes(train(0.5, MIDPOINT | {"steps": 5})) == "fails"


def test_winner_is_named_by_its_own_strength_and_start_only(erm):
    named = theory.predicted_winner(erm.strength, erm.best[0], POWER)
    assert winner_named(erm, named) == "holds"
    assert winner_named(erm, 1 - named) == "fails"
    neighbour = theory.predicted_winner(np.roll(erm.strength, 1, 0), np.roll(erm.best[0], 1, 0), POWER)
    assert winner_named(erm, neighbour) == "fails"


def test_escape_time_needs_the_right_exponent_and_start(erm):
    named = theory.predicted_winner(erm.strength, erm.best[0], POWER)
    assert escape_timed(erm, named, POWER) == "holds"
    assert escape_timed(erm, named, POWER - 1) == "fails"
    assert escape_timed(erm, named, POWER + 1) == "fails"
    shifted = SimpleNamespace(**vars(erm) | {"best": np.concatenate([1.05 * erm.best[:1], erm.best[1:]])})
    assert escape_timed(shifted, named, POWER) == "fails"


def test_features_must_be_deleted_to_be_counted(erm, start):
    """Had the test of learning left the other feature in place, ERM would pass for having learned both."""
    x, y, multiplicity = start.fresh
    seen = measure.class_accuracy(patch_logits(erm.weight, x, multiplicity, POWER, THRESHOLD), y.expand(REPLICAS, -1))
    undeleted = SimpleNamespace(fitted=erm.fitted, learned=(torch.stack([seen, seen], -1) >= 0.9).sum(-1).numpy())
    assert both_features_in_fitted_classes(undeleted) == "holds"
    assert one_feature_in_most_classes(undeleted) == "fails"


def test_rules_of_the_linear_theory_fail_for_other_correlations_ascent_and_a_larger_scale():
    p_cross = 0.8
    excess = [theory.midpoint_loss(c, 5, p_cross) - p_cross * np.log(2) for c in (80.0, 5.0)]
    found = [verdict("equal-correlations-optimal", "exact", error=0.0, excess=float(one)) for one in excess]
    assert found == ["holds", "fails"]

    scale, k = np.meshgrid([1.0, 5.0, 20.0], [10, 1000])
    leading, lagging = theory.linear_gradient_correlations(scale, k, "midpoint", "equal")
    assert verdict("gap-always-closes", "exact", (leading - lagging).max()) == "holds"
    assert verdict("gap-always-closes", "exact", (lagging - leading).max()) == "fails"

    sizes = np.array([10, 100, 1000])
    exact, bound = theory.erm_gradient_bound(20.0, sizes)
    for scale, expected in ((20.0, "holds"), (40.0, "fails")):
        _, other = theory.erm_gradient_bound(scale, sizes)
        slope = np.polyfit(np.log(sizes), np.log(exact), 1)[0]
        assert verdict("erm-starves-lagging-feature", "exact", slope=slope, push=(exact / other).max()) == expected
    assert verdict("erm-starves-lagging-feature", "exact", slope=0.0, push=(exact / bound).max()) == "fails"


def test_a_method_does_not_beat_itself():
    names = ("", "-narrow", "-wide")
    for id in (
        "images-midpoint-beats-erm",
        "cifar10-view-adds-to-the-lead",
        *(f"cifar10{n}-midpoint-beats-erm" for n in names),
    ):
        assert verdict(id, "mean", [0.0] * 5) == "fails"
        assert verdict(id, "mean", [4.0, -5.0, 6.0]) == "undecided"


def test_rows_of_the_kept_run_do_not_hold_for_erm_in_the_place_of_mixup():
    """ERM against ERM with the next seed: the lead is noise, and so is what the second view would add to it."""
    kept = kept_curves("cifar10")[1]
    late = {group: arms["ERM"]["error"][:, -5:].mean(1) for group, arms in kept.items()}
    lead = {group: error - np.roll(error, 1) for group, error in late.items()}
    assert verdict("cifar10-midpoint-beats-erm", "mean", lead["with the view"]) != "holds"
    assert verdict("cifar10-view-adds-to-the-lead", "mean", lead["with the view"] - lead["without"]) != "holds"
