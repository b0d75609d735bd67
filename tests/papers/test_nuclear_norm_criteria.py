"""The rules of chapter 12 hold for what they judge and fail for broken variants of it.

Runs, closed forms and measures are the chapter's, with its settings or smaller ones.
"""

from functools import partial

import judged
import numpy as np
import pytest
import torch

from mvnb import kept_runs
from mvnb.data import load_images
from mvnb.papers.nuclear_norm import measure, model, theory
from mvnb.papers.nuclear_norm import training as arms
from mvnb.papers.nuclear_norm.data import EnvironmentFeatures, FramedDomains

verdicts = partial(judged.verdicts, "nuclear_norm")


def changed(before, after):
    """The claims whose verdicts differ, all others alike."""
    first, second = verdicts(before), verdicts(after)
    return {id: (first[id], second[id]) for id in first if first[id] != second[id]}


TURNED = ("holds", "fails")

# --- Closed forms ---


@pytest.fixture(scope="module")
def table():
    return measure.plane_table(measure.PLANE_WEIGHTS)


@pytest.fixture(scope="module")
def frontiers():
    return {penalty: measure.plane_frontier(penalty) for penalty in ("decay", "nuclear")}


def test_rules_on_the_plane_tell_penalties_and_weights_apart(table, frontiers):
    good = measure.plane_claims(table, frontiers)
    assert set(verdicts(good).values()) == {"holds"}
    weak = measure.plane_table({name: weights[::-1] for name, weights in measure.PLANE_WEIGHTS.items()})
    swapped = {"decay": frontiers["nuclear"], "nuclear": frontiers["decay"]}
    found = changed(good, measure.plane_claims(weak, swapped))
    assert found == dict.fromkeys(("plane-strong-limits", "plane-diagonal-is-exact", "plane-nuclear-leans-less"), TURNED)


@pytest.fixture(scope="module")
def optima():
    return [one for r, gamma, d in measure.CELLS[:2] for one in measure.decay_optima(r, gamma, [d], (10.0, 1.0, 1e-3))]


def test_optima_under_decay_pass_and_points_beside_them_do_not(optima):
    good = measure.decay_claims(optima)
    assert set(verdicts(good).values()) == {"holds"}
    beside = [(group, decay, 1.2 * alpha, beta) for group, decay, alpha, beta in optima]
    found = changed(good, measure.decay_claims(beside))
    assert found == dict.fromkeys(("ratio-identity", "ratio-limit"), TURNED)
    beside = [(group, decay, 1.6 * alpha, beta) for group, decay, alpha, beta in optima]
    assert changed(good, measure.decay_claims(beside))["lemma-ordering"] == TURNED
    swapped = [(group, decay, beta, alpha) for group, decay, alpha, beta in optima]
    assert changed(good, measure.decay_claims(swapped))["lemma-ordering"] == TURNED


@pytest.mark.parametrize(("d", "found"), [(214, "holds"), (60, "fails")])
def test_decay_is_right_elsewhere_with_too_few_features(d, found):
    """With the decay ignored, or with fewer features than the proposition asks for."""
    optima = measure.decay_optima(40, 0.48, [d], [1.0])
    assert verdicts(measure.decay_claims(optima))["decay-fails-elsewhere"] == found
    ((group, _, alpha, beta),) = measure.decay_optima(40, 0.48, [214], [1.0])
    ignored = [(group, 1.0, alpha, 1e-3 * beta)]  # as without decay
    assert verdicts(measure.decay_claims(ignored))["decay-fails-elsewhere"] == "fails"


def test_the_transition_is_not_where_the_proposition_begins():
    curves = measure.transition_curves(16, 0.3, [1.0, 0.01])
    changes = [measure.sign_change(16, 0.3, decay) for decay in (1.0, 0.05)]
    star = theory.transition(16, 0.3)
    good = measure.transition_claims(curves, star, changes)
    assert set(verdicts(good).values()) == {"holds"}
    assert (changes[1][0] - 16) / (star - 16) == pytest.approx(1.08, abs=0.01)  # as the page says
    there = 16 + 16 / 0.3**2
    assert changed(good, measure.transition_claims(curves, there, changes)) == {"transition-place": TURNED}
    weak = {0.01: curves[0.01] + [[0], [0.05], [0]], 1.0: curves[1.0]}  # another decay first, another shape
    found = changed(good, measure.transition_claims(weak, 0.9 * star, changes))
    assert found == dict.fromkeys(("transition-place", "transition-shape"), TURNED)
    at_star = theory.GroupPopulation(16, 44, 0.3)
    alpha, beta = at_star.decay_optimum(0.05)
    moved = [(star, at_star.accuracy(alpha / beta))]  # the sign is taken to change where strong decay's does
    assert changed(good, measure.transition_claims(curves, star, moved)) == {"transition-sign": TURNED}


def test_selection_fails_where_environmental_features_are_as_strong():
    worlds = [theory.GroupPopulation(16, 44, gamma) for gamma in (0.3, 0.45)]
    slack = [measure.shortfall([one], (1e-6, 0.1)).min() for one in worlds]
    for id in ("nuclear-norm-selects", "nuclear-right-elsewhere"):
        assert [judged.verdict("nuclear_norm", id, "exact", one) for one in slack] == list(TURNED)


def test_vanishing_decay_is_needed():
    def found(decays):
        optima = measure.decay_optima(16, 0.3, [60], decays)
        accuracies = [group.accuracy(alpha / beta) for group, _, alpha, beta in optima]
        return verdicts(measure.vanishing_claims(accuracies))["no-penalty-is-enough"]

    assert [found(decays) for decays in ((1.0, 1e-4, 1e-8), (1.0, 1e-2, 1e-4), (1e-8, 1e-4, 1e-8))] == [
        "holds",
        "fails",
        "fails",
    ]


# --- Runs in the plane ---


@pytest.fixture(scope="module")
def plane_runs():
    return model.train_plane(model.PLANE_ARMS, 0.2, 1000, 4, 1000, 0)


def test_the_runs_in_the_plane_are_judged_as_on_the_page(plane_runs, table):
    good = verdicts(measure.plane_run_claims(plane_runs, table))
    assert good == {
        "plane-runs-reach-the-optima": "holds",
        "plane-erm-as-printed": "fails",
        "plane-erm-below-nuclear": "fails",
        "free-head-escapes": "holds",
    }


def test_a_head_that_is_held_does_not_escape(plane_runs, table):
    good = measure.plane_run_claims(plane_runs, table)
    held = model.PLANE_ARMS | {"nuclear norm, free head": model.PLANE_ARMS["nuclear norm"]}
    runs = model.train_plane(held, 0.2, 1000, 4, 1000, 0)
    assert changed(good, measure.plane_run_claims(runs, table)) == {"free-head-escapes": TURNED}


def test_a_penalty_that_is_ignored_or_exchanged_is_noticed(plane_runs, table):
    good, arms = measure.plane_run_claims(plane_runs, table), model.PLANE_ARMS
    exchanged = arms | {"nuclear norm": arms["weight decay"], "weight decay": arms["nuclear norm"]}
    runs = model.train_plane(exchanged, 0.2, 1000, 4, 1000, 0)
    assert changed(good, measure.plane_run_claims(runs, table))["plane-runs-reach-the-optima"] == TURNED
    decayed = arms | {"no penalty": (0.0, 1.0, False), "no penalty, free head": (0.0, 1.0, True)}
    runs = model.train_plane(decayed, 0.2, 1000, 4, 1000, 0)  # ERM with decay is worse elsewhere, as the paper has it
    assert changed(good, measure.plane_run_claims(runs, table)) == {"plane-erm-below-nuclear": ("fails", "holds")}


# --- One weight per feature ---


def test_training_selects_only_under_the_nuclear_norm_of_the_right_features():
    points = model.LabelledFeatures.draw(EnvironmentFeatures.uniform(16, 44, 0.3), (0, 1), 2000)
    nuclear = model.train_weights(points, model.nuclear_norm, (3e-3, 3e-2, 0.3), 450)
    decayed = model.train_weights(points, model.weight_decay, (0.0, 1e-2, 0.1), 450)
    good = measure.selection_claims(nuclear, decayed, points, 16)
    assert set(verdicts(good).values()) == {"holds"}
    weak = model.train_weights(points, model.nuclear_norm, (1e-4,), 450)
    for broken in (decayed, weak, nuclear.flip(-1)):  # another penalty, too weak a one, the wrong features
        assert changed(good, measure.selection_claims(broken, decayed, points, 16)) == {"training-selects": TURNED}
    assert changed(good, measure.selection_claims(nuclear, nuclear, points, 16)) == {"decay-does-not-select": TURNED}


def test_rise_and_fall_and_the_falling_rank_are_not_found_under_decay():
    world = EnvironmentFeatures(tuple(np.linspace(0.15, 0.45, 12)), (0.1,) * 24)
    points, dial = model.LabelledFeatures.draw(world, (0, 1, 2), 2000, noise=0.05), (0.0, 0.01, 0.03, 0.3)

    def found(penalty):
        w = model.train_weights(points, penalty, dial, 450)
        return measure.rise_and_fall_claims(measure.elsewhere(w, points), measure.feature_rank(w, points))

    good = found(model.nuclear_norm)
    assert set(verdicts(good).values()) == {"holds"}
    assert changed(good, found(model.weight_decay)) == dict.fromkeys(good, TURNED)


def test_noise_turns_labels_of_training_points_only():
    world = EnvironmentFeatures.uniform(3, 1, 0.3)
    clean, noisy = (model.LabelledFeatures.draw(world, (0,), 4000, noise) for noise in (0.0, 0.2))
    assert (clean.z[..., :3] >= 0).all() and (noisy.there[..., :3] >= 0).all()
    assert (noisy.z[..., 0] < 0).double().mean().item() == pytest.approx(0.2, abs=0.03)
    torch.testing.assert_close(clean.root.mT @ clean.root, clean.z.mT @ clean.z / 4000 + 1e-6 * torch.eye(4))
    w = torch.rand(2, 1, 4, generator=torch.Generator().manual_seed(0))
    norm = torch.linalg.matrix_norm(clean.z * w[:, 0, None], "nuc") / 4000**0.5
    torch.testing.assert_close(model.nuclear_norm(w, clean)[:, 0], norm, rtol=1e-4, atol=0)


# --- Images ---

NAMES = ["ERM", "ERM-NU", "Mixup", "Mixup-NU", "CORAL", "weight decay", "IRM", "VREx", "GroupDRO"]


def compare(settings, world, seeds=5, steps=300):
    images = load_images("digits")
    x, y = torch.cat([images.x_train, images.x_test]), torch.cat([images.y_train, images.y_test])
    return arms.Comparison(x, y, 32, 32, steps, 32, 0.003).run(settings, world, range(seeds))


@pytest.fixture(scope="module")
def weak_hint():
    """ERM, and ERM with the nuclear norm: not at all, at the default weight, at one that takes everything; and decay."""
    return compare([{}, {"nuclear": 0.6}, {}, {"nuclear": 4.0}, {"decay": 0.01}], FramedDomains())


def test_names_of_methods_and_averages_are_not_exchanged(weak_hint):
    found = measure.reached(["ERM", "CORAL", "Mixup", "ERM-NU"], measure.part(weak_hint, [0, 1, 2, 3]), 5)
    assert list(found) == ["ERM", "CORAL", "Mixup", "ERM-NU", "SWAD", "SWAD-CORAL", "SWAD-NU"]
    by_hand = [100 * weak_hint.best[1, 4 * s : 4 * s + 4].mean().item() for s in range(5)]
    assert found["CORAL"].tolist() == pytest.approx(by_hand)
    assert found["SWAD-CORAL"][0] == pytest.approx(100 * weak_hint.averaged[1, :4].mean().item())
    assert measure.gain({"a": np.array([3.0, 5.0, 9.0]), "b": np.array([1.0, 1.0])}, "a", "b").tolist() == [2, 4]


def test_a_gain_is_not_found_where_there_is_none(weak_hint):
    """All methods with NU as the default, all others as ERM; and NU ignored, gone too far, or the results exchanged."""

    def found(nu, others=0):
        rows = [nu if "NU" in name else others for name in NAMES]
        reached = measure.reached(NAMES, measure.part(weak_hint, rows), 5)
        return verdicts(measure.method_claims(reached))

    assert set(found(1).values()) == {"holds"}
    for nu, others in ((3, 0), (0, 1)):
        bad = found(nu, others)
        assert {id for id, one in bad.items() if one == "fails"} == set(bad) - {"decay-does-not-help"}
    ignored = found(2)  # equal but for rounding, which the runs may amplify
    assert {id for id, one in ignored.items() if one == "holds"} <= {"decay-does-not-help", "nu-against-coral"}
    reached = measure.reached(NAMES, measure.part(weak_hint, [1 if name == "weight decay" else 0 for name in NAMES]), 5)
    assert verdicts(measure.method_claims(reached))["decay-does-not-help"] == "fails"


def test_the_dial_is_read_in_the_order_of_its_weights(weak_hint):
    def found(none, default, most, features=32):
        pair = measure.of_features(measure.part(weak_hint, [none, default]), 5)
        dial = measure.of_features(measure.part(weak_hint, [none, default, most]), 5)
        return verdicts(measure.dial_claims(pair, dial, features))

    good = found(0, 1, 3)
    assert good["rise-then-fall-in-networks"] == good["head-grows-in-networks"] == good["stable-rank-is-low"] == "holds"
    assert good["stable-rank-falls-in-networks"] == "fails"
    assert found(1, 0, 3)["stable-rank-falls-in-networks"] != "fails"  # from strong to weak the rank falls
    assert found(0, 3, 1)["rise-then-fall-in-networks"] == found(0, 1, 1)["rise-then-fall-in-networks"] == "fails"
    assert {found(0, k, 3)["head-grows-in-networks"] for k in (2, 3, 4)} == {"fails"}
    assert found(0, 1, 3, features=4)["stable-rank-is-low"] == "fails"


def test_all_settings_start_alike_and_a_run_does_not_depend_on_the_others():
    both = compare([{}, {"mixup": 1}], FramedDomains(), seeds=2, steps=20)
    alone = compare([{"mixup": 1}], FramedDomains(), seeds=2, steps=20)
    torch.testing.assert_close(both.best[1], alone.best[0])
    with pytest.raises(ValueError, match="at least the 5 checkpoints"):
        compare([{}], FramedDomains(), steps=4)


# --- Kept runs ---

ARMS = [f"{name}, {world}" for name in ("cifar10", "mnist") for world in ("no hint", "one weak hint", "eight weak hints")]
ARMS += ["cifar10, one strong hint", "mnist, one strong hint"]


def made_up(arms, methods, seeds):
    """Values of a kept run, no two of which are equal."""
    numbers = np.random.default_rng(seeds).random((seeds, len(arms), 4, len(methods), 4))
    measured = ("best", "averaged", "valid", "train")
    return [
        {arm: {k: dict(zip(methods, m.tolist())) for k, m in zip(measured, row)} for arm, row in zip(arms, run)}
        for run in numbers
    ]


def mean(values, arm, method, measured="best"):
    return np.array([np.mean(run[arm][measured][method]) for run in values])


def test_claims_on_domains_read_their_arms():
    values = made_up(ARMS, ("ERM", "ERM-NU"), 5)

    def gain(arm, measured="best"):
        return mean(values, arm, "ERM-NU", measured) - mean(values, arm, "ERM", measured)

    def both(number):
        return {name: number(name) for name in ("cifar10", "mnist")}

    many = both(lambda name: gain(f"{name}, eight weak hints"))
    expected = {
        "domains-nu-helps": many["cifar10"],
        "domains-nu-helps-digits": many["mnist"],
        "domains-digits-gain-more": many["mnist"] - many["cifar10"],
        "domains-many-hints-gain-more": both(lambda name: many[name] - gain(f"{name}, one weak hint")),
        "domains-strong-hint-does-harm": both(lambda name: gain(f"{name}, one strong hint")),
        "domains-hints-mislead": both(
            lambda name: mean(values, f"{name}, no hint", "ERM") - mean(values, f"{name}, eight weak hints", "ERM")
        ),
        "domains-nu-helps-swad": both(lambda name: gain(f"{name}, eight weak hints", "averaged")),
    }
    same(measure.domains_claims(values), expected)


def same(found, expected):
    assert found.keys() == expected.keys()
    for id, one in expected.items():
        if isinstance(one, dict):
            same(found[id], one)
        else:
            np.testing.assert_allclose(found[id], one)


def test_claims_on_rivals_compare_the_seeds_that_both_runs_have():
    arm, names = "cifar10, eight weak hints", {**measure.RIVALS, "mixup_nu": "Mixup-NU", "coral_nu": "CORAL-NU"}
    values, rivals = made_up(ARMS, ("ERM", "ERM-NU"), 5), made_up(ARMS, names.values(), 3)
    four = made_up(["mnist, four strong hints"], ("ERM", "ERM-NU"), 3)
    rivals = [one | more for one, more in zip(rivals, four)]
    nu, other = mean(values, arm, "ERM-NU")[:3], {key: mean(rivals, arm, name) for key, name in names.items()}

    def decay(world):
        arms = {name: f"{name}, {world}" for name in ("cifar10", "mnist")}
        return {name: mean(rivals, one, "weight decay") - mean(values, one, "ERM")[:3] for name, one in arms.items()}

    expected = {
        "rivals-nu-helps": {key: other[f"{key}_nu"] - other[key] for key in ("mixup", "coral")},
        "rivals-nu-above": {key: nu - other[key] for key in measure.RIVALS},
        "rivals-decay-without-hints": decay("no hint"),
        "rivals-decay-against-strong-hint": decay("one strong hint"),
        "rivals-four-strong-hints-do-harm": np.subtract(
            *(mean(four, "mnist, four strong hints", name) for name in ("ERM-NU", "ERM"))
        ),
    }
    same(measure.rival_claims(values, rivals), expected)
    found = measure.kept_reached(values, rivals)[arm]
    np.testing.assert_allclose(found["SWAD-NU"], mean(values, arm, "ERM-NU", "averaged"))


def kept(name):
    return [run["values"] for run in kept_runs.load("nuclear_norm", name)["runs"]]


def exchanged(values, first, second, part=""):
    """The values with the results of two methods exchanged in the arms whose name contains ``part``."""
    pairs = {first: second, second: first}

    def swap(by_name):
        return {name: by_name.get(pairs.get(name), one) for name, one in by_name.items()}

    return [
        {arm: {k: swap(one) for k, one in rows.items()} if part in arm else rows for arm, rows in run.items()} for run in values
    ]


def test_rules_on_the_kept_runs_tell_methods_apart():
    values, rivals = kept("domains"), kept("rivals")
    good = measure.domains_claims(values)
    assert verdicts(good) == {
        "domains-nu-helps": "undecided",
        "domains-nu-helps-digits": "holds",
        "domains-digits-gain-more": "holds",
        "domains-many-hints-gain-more": "undecided",
        "domains-strong-hint-does-harm": "fails",
        "domains-hints-mislead": "holds",
        "domains-nu-helps-swad": "undecided",
    }
    turned = verdicts(measure.domains_claims(exchanged(values, "ERM", "ERM-NU", "mnist")))
    assert turned["domains-nu-helps-digits"] == turned["domains-digits-gain-more"] == "fails"
    wrong = [run | {"mnist, eight weak hints": run["cifar10, eight weak hints"]} for run in values]
    assert verdicts(measure.domains_claims(wrong))["domains-digits-gain-more"] != "holds"
    wrong = [run | {"cifar10, no hint": run["cifar10, one strong hint"]} for run in values]
    assert verdicts(measure.domains_claims(wrong))["domains-hints-mislead"] == "fails"
    good = verdicts(measure.rival_claims(values, rivals))
    assert good.pop("rivals-nu-above") == "fails" and set(good.values()) == {"undecided"} and len(good) == 4
    turned = verdicts(measure.rival_claims(values, exchanged(rivals, "Mixup", "Mixup-NU")))
    assert turned["rivals-nu-helps"] == "fails"
    turned = verdicts(measure.rival_claims(values, exchanged(rivals, "ERM-NU", "weight decay", "four")))
    assert turned["rivals-four-strong-hints-do-harm"] == "fails"
