"""What the claims of chapter 02 judge, on runs and values whose numbers are known."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy.stats import t as stats_t

from mvnb import kept_runs, stats
from mvnb.models import patch_logits
from mvnb.papers.fine_grained_labels import data, measure, model, theory
from mvnb.papers.fine_grained_labels import training as arms

K, RUNS, RATE = 8, 3, 0.05
WORLD = data.HierarchicalMultiView(K, 2 + 2 * K, 16, jitter=0.05)
TRAINER = arms.Trainer(RUNS, 50, torch.device("cpu"), RATE, 0.064)
STEPS = np.array([0, 1, 4, 5, 20])


def logged(steps=STEPS, **log):
    return SimpleNamespace(steps=np.array(steps), log={name.replace("_", "-"): torch.as_tensor(v) for name, v in log.items()})


def test_growth_is_that_of_singleton_detectors_of_own_features():
    """Two labels of one subclass each: neuron 0 of label 0 detects its common, 1 its fine feature, 2 nothing alone."""
    start = TRAINER.idealised(data.HierarchicalMultiView(1, 4, 9), 2)
    single = torch.zeros(1, 2, 3, 4, dtype=torch.bool)
    single[0, 0, 0, 0] = single[0, 0, 1, 2] = single[0, 1, 0, 1] = single[0, 1, 1, 3] = single[0, 1, 2, 0] = True
    moved = torch.rand(1, 2, 3, 4, generator=torch.Generator().manual_seed(0))
    start = start._replace(params={"weight": torch.zeros(1, 2, 3, 4)}, single=single)
    growth = measure.own_growth({"weight": moved}, start, data.true_labels(1, 1).table)
    expected = [[moved[0, 0, 0, 0], moved[0, 0, 1, 2]], [moved[0, 1, 0, 1], moved[0, 1, 1, 3]]]
    assert torch.allclose(growth[0], torch.tensor(expected))
    ratio = measure.growth_ratio(logged([0, 1], growth=torch.stack([0 * growth, growth])))
    assert np.isnan(ratio[0, 0]) and np.isclose(ratio[1, 0], growth[0, :, 0].mean() / growth[0, :, 1].mean())


def test_read_out_ratio_is_that_of_the_outputs():
    """Largest outputs of a superclass at points of one patch, with any growth of any detector."""
    start = TRAINER.idealised(WORLD, 4)
    grown = torch.rand(RUNS, 4, 18, 1, generator=torch.Generator().manual_seed(0)) * torch.eye(18)
    params = {"weight": start.params["weight"] + grown, "bias": start.params["bias"] - RATE * grown.norm(dim=-1)}
    outputs = model.max_read_out(model.relu_logits(params, torch.eye(18)[:, None]))  # (run, feature, superclass)
    own = outputs.gather(-1, torch.tensor([0, 1] + [0] * K + [1] * K).expand(RUNS, -1)[..., None])[..., 0]
    expected = own[:, :2].mean(1) / own[:, 2:].mean(1)
    assert np.allclose(measure.read_out_ratio(params, start, K), expected, rtol=1e-3)


def test_margins_are_of_the_right_superclass_and_ties_are_errors():
    world = data.HierarchicalMultiView(1, 4, 9, jitter=0.0)
    test = TRAINER.held_out(world, 1, 2)
    params = {"weight": torch.eye(4)[:2][:, None].expand(RUNS, -1, -1, -1), "bias": torch.zeros(RUNS, 2, 1)}
    assert torch.allclose(measure.margins(params, test), torch.tensor(4.0))
    assert torch.allclose(measure.margins({**params, "weight": params["weight"].flip(1)}, test), torch.tensor(-4.0))
    assert measure.errors(torch.tensor([[-1.0, 0.0, 1.0, 2.0], [1.0, 1.0, 1.0, 0.0]])).tolist() == [0.5, 0.25]


def test_the_first_step_is_a_gradient_of_autograd():
    sample = WORLD.sample(12, 0, dtype=torch.float64)
    labels = torch.randint(5, (12,), generator=torch.Generator().manual_seed(0))
    start = model.stratified_detectors(5, 18, 18, 1e-12, 1, torch.float64)
    weight = start["weight"][0].requires_grad_()
    torch.nn.functional.cross_entropy(patch_logits(weight, sample.x, None, 1, 1.0, start["bias"][0]), labels).backward()
    expected = -weight.grad[:, torch.arange(18), torch.arange(18)]
    assert np.allclose(measure.first_step(WORLD, sample, labels, 5), expected, rtol=0, atol=1e-12)


def test_errors_and_ratios_are_those_of_the_stated_steps():
    margin = torch.tensor([[1.0, 1, 1, 1], [-1, -1, -1, -1], [1, 1, 1, 1], [-1, -1, -1, 1], [-1, -1, -1, -1]])[:, None]
    run = logged(
        hard=margin, easy=-margin, growth=torch.tensor([8.0, 1, 99, 16, 24])[:, None, None, None] * torch.tensor([1, 2])
    )
    assert measure.last_error(run) == [1] and measure.last_error(run, "easy") == [0]
    assert measure.least_error(run) == [0.75] and measure.least_error(run, since=4) == [0]
    run.log["growth"] = torch.stack([torch.tensor([1.0, 99, 7, 9, 8]), torch.ones(5)], -1)[:, None, None]
    assert [float(value[0]) for value in measure.ratio_over_k(run, 8).values()] == [1, 1.125]
    assert list(measure.ratio_over_k(run, 8, since=4)) == ["least", "most"]
    assert measure.ratio_over_k(run, 8, since=4)["least"] == 7 / 8 and measure.ratio_over_k(run, 8, since=1)["most"] == 99 / 8


def test_the_log_law_is_judged_from_its_step_on_and_its_slope_over_a_decade():
    steps = np.array([1, 4, 5, 30, 100, 300])
    law = theory.coarse_response(0.3 * steps)
    output = law * np.array([3, 2, 1.02, 1, 1, 1])
    found = measure.log_law(logged(steps, easy=torch.tensor(output)[:, None, None].expand(-1, 2, 4)), 0.3)
    slope = np.polyfit(np.log(steps[3:]), law[3:], 1)[0]
    assert np.allclose(found["error"], 0.02) and np.allclose(found["slope"], slope) and 0.9 < slope < 1.1


def test_the_flow_is_judged_at_all_steps_and_the_first_ratio_at_step_1():
    unit, steps = (0.064, 4, 1.0, RATE, K), np.array([1, 5, 80])
    flow = torch.tensor(theory.fine_trajectory(steps, *unit).T)[:, None, None].repeat(1, 2, 3, 1)
    flow[1, 1, :, 0] *= 1.3
    early = torch.tensor([[7.0, 1.0], [K, 2 * K - 1], [5.0, 1.0]])[:, None, None].repeat(1, 2, 3, 1)
    found = measure.fine_flow(logged([0, 1, 2], growth=early), logged(steps, growth=flow), unit)
    assert np.allclose(found["ratio"], 1) and np.allclose(found["off"], [0, 0.3])


def test_shares_of_neurons_are_counted():
    world = data.HierarchicalMultiView(1, 4, 9, jitter=0.0)
    test = TRAINER.held_out(world, 1, 2)
    weight, bias = torch.zeros(RUNS, 2, 2, 4), torch.full((RUNS, 2, 2), -0.5)
    weight[..., 0, 0] = weight[..., 1, 1] = 1.0
    bias[0, 0, 0] = 0.1  # one neuron of four fires on all noise, in the first run
    assert np.allclose(measure.firing_on_noise({"weight": weight, "bias": bias}, test), [0.25, 0, 0])
    before = {"weight": weight, "bias": torch.full((RUNS, 2, 2), -0.5)}
    after = {"weight": weight.clone(), "bias": before["bias"]}
    after["weight"][1, 0, 0, 1] = after["weight"][2, 0, 0, 0] = 2.0  # a foreign feature in run 1, an own one in run 2
    start = model.Start(before, *[torch.zeros(RUNS, 2, 2, 4, dtype=torch.bool)] * 2)
    assert measure.louder_on_foreign(after, start, data.true_labels(1, 1).table).tolist() == [0, 0.25, 0]


def test_detectors_are_counted_by_class_and_feature():
    start = TRAINER.drawn(WORLD, 2, 1000, 6)
    aligned = start.params["weight"][..., :18] / model.SCALE
    threshold = theory.detector_threshold(1000, 6)
    possible = (aligned >= threshold - model.SLACK).sum(2).double()  # (run, class, feature)
    mean, expected, score = measure.detector_counts(start, 1000, 6)["possible"]
    assert np.isclose(mean, possible.mean()) and np.isclose(
        expected, theory.detector_counts(1000, 18, threshold, model.SLACK)[1]
    )
    assert np.allclose(score, (possible.mean((1, 2)) - expected) / np.sqrt(expected / 36))
    assert measure.detector_counts(start, 1000, 6)["single"][0] < mean


def test_measures_of_kinds_of_labels():
    def run(first, hard, bare):
        margins = {name: torch.tensor([[[1.0, 1.0]], [[1.0 - 2 * (n > 0), 1.0 - 2 * (n > 1)]]]) for name, n in hard.items()}
        return logged(
            [1, 9], read_out=torch.tensor([[first], [100.0]]), **margins, bare=-margins["hard"] if bare else margins["hard"]
        )

    ratios = {"coarse": 8.8, "true, 2": 8 / 3, "fine": 8 / 15, "fine, split": 8 / 15, "random, 8 dealt": 7.0}
    ratios |= {"random, 8": 4.0, "clusters, 2": 9.0, "clusters, 8": 8.0}
    wrong = {"coarse": 2, "true, 2": 1, "fine": 0, "random, 8 dealt": 1, "random, 8": 2, "clusters, 2": 2, "clusters, 8": 1}
    runs = {name: run(ratio, {"hard": wrong.get(name, 2)}, name == "random, 8 dealt") for name, ratio in ratios.items()}
    kinds = data.label_kinds(K, dict.fromkeys((2, 8)))
    assert np.allclose(measure.off_ratio(runs, kinds, uneven=False), 1 / 8)
    assert np.allclose(measure.off_ratio(runs, kinds, uneven=True), 1 / 2)
    assert [v.tolist() for v in measure.refinement(runs).values()] == [[-0.5], [1.0]]
    assert [v.tolist() for v in measure.refinement(runs | {"fine": runs["clusters, 2"]}).values()] == [[0.5], [0.0]]
    assert measure.fewest_errors(runs, "random") == [0.5] and measure.fewest_errors(runs, ("random", "clusters")) == [0.5]
    assert measure.fewest_errors(runs, "coarse", "bare") == [1.0] and measure.fewest_errors(runs, "clusters, 2") == [1.0]


def test_measures_over_patches_and_sizes():
    found = {"bias": np.array([[[1, 2], [3, 0]], [[5, 6], [4, 7]]]), "no bias": np.array([[[0, 0], [0, 0]], [[1, 2], [8, 9]]])}
    named = measure.noise_kept_out(found)
    assert {name: one.tolist() for name, one in named.items()} == {"without": [8, 9], "error": [5, 7], "firing": [3, 2]}
    clean, noisy = np.array([[0.1], [0.5], [1.0]]), np.array([[0.2], [0.3], [0.7]])
    named = measure.hard_threshold(np.array([2, 4, 16]), clean, noisy, np.array([0.0, 0.7, 1.0]), 4.0)
    assert np.allclose([named["error"], named["rise"], named["crossing"]], [[0.2], [0.1], [2.0]])  # half between 4 and 16


def test_growth_kept_is_added_to_that_before():
    before, added = torch.tensor([[[2.0, 4.0], [1.0, 5.0]]]), torch.tensor([[[1.0, -1.0], [0.5, 0.0]]])
    added, before = (torch.stack([one * 0 + 7, one]) for one in (added, before))
    assert np.allclose(measure.growth_kept(logged(growth=added), logged(growth=before)), [[1.5, 0.875]])


def test_labels_that_follow_a_superclass_drive_its_common_feature():
    """As far as coarse labels do if they are coarse, and not at all if they are dealt in turn."""
    still, generators = replace(WORLD, jitter=0.0, noise=0.1), [torch.Generator().manual_seed(r) for r in range(2)]
    found = []
    for labels in (data.true_labels(K, 1), data.dealt_ids(K, 2, superclasses=1)):

        def label(points, of=labels.of):
            return of(points).expand(2, -1)

        found.append(measure.drift_along_common(still, label, generators, 2))
    assert np.allclose(found, [[1, 1], [0, 0]], rtol=0, atol=1e-9)


def test_the_drift_of_each_replica_is_under_its_own_labels():
    coarse, dealt = data.true_labels(K, 1).of, data.dealt_ids(K, 2, superclasses=1).of
    generators = [torch.Generator().manual_seed(r) for r in range(2)]
    found = measure.drift_along_common(
        replace(WORLD, jitter=0.0), lambda points: torch.stack([coarse(points), dealt(points)]), generators, 2
    )
    assert np.allclose(found, [1, 0], rtol=0, atol=1e-9)


# --- Kept values and errors on digits ---


KEYS = ("test", "probe", "hard", "easy", "labels", "labels fell", "fitted", "fell")


def value(arm, key):
    """A number of an arm and a measurement that no other pair has."""
    return float(1 + measure.ARMS.index(arm) + 10 * KEYS.index(key) ** 2)


def of_seed(shift, arm):
    missing = ("probe", "labels", "labels fell") if arm == "none" else ()
    return [{key: value(arm, key) + shift for key in KEYS if key not in missing} | {"validation": -1.0}]


@pytest.fixture
def kept():
    return measure.kept_errors([{"values": {arm: of_seed(shift, arm) for arm in measure.ARMS}} for shift in (0, 0.5)])


def test_kept_errors_are_sorted_by_arm_and_measurement(kept):
    for arm, found in kept.items():
        assert set(found) == set(KEYS)
        for key, numbers in found.items():
            expected = np.nan if arm == "none" and key in ("probe", "labels", "labels fell") else value(arm, key)
            assert np.array_equal(numbers, [expected, expected + 0.5], equal_nan=True), (arm, key)


def test_claims_on_cifar10_subtract_what_their_units_say(kept):
    gains, seen = measure.gains(kept), {"cifar10-excess-on-hard-images"}
    for id, first, second, key in (
        ("cifar10-ten-fine-tuned", "two", "ten", "test"),
        ("cifar10-pairs-fine-tuned", "two", "pairs", "test"),
        ("cifar10-clusters-fine-tuned", "two", "clusters", "test"),
        ("cifar10-random-fine-tuned", "random IDs", "two", "test"),
        ("cifar10-unique-fine-tuned", "unique", "two", "test"),
        ("cifar10-two-against-none", "none", "two", "test"),
        ("cifar10-pairs-against-none", "none", "pairs", "test"),
        ("cifar10-ten-against-none", "none", "ten", "test"),
        ("cifar10-clusters-against-none", "none", "clusters", "test"),
        ("cifar10-random-against-none", "random IDs", "none", "test"),
        ("cifar10-unique-against-none", "unique", "none", "test"),
        ("cifar10-probe-worse-on-ten", "ten", "two", "probe"),
    ):
        seen.add(id)
        assert gains[id].tolist() == [value(first, key) - value(second, key)] * 2, id
    assert set(gains) == seen


def test_the_gain_on_hard_images_is_what_exceeds_a_proportional_cut(kept):
    for part, gain in (("hard", 6), ("easy", 2)):
        kept["ten"][part] = kept["two"][part] - gain
    kept["ten"]["test"] = 0.9 * kept["two"]["test"]
    for part, (gain, even) in measure.gains_by_difficulty(kept).items():
        assert gain.tolist() == [{"hard": 6, "easy": 2}[part]] * 2 and np.allclose(even, 0.1 * kept["two"][part])
    assert np.allclose(measure.gains(kept)["cifar10-excess-on-hard-images"], 6 - 0.1 * kept["two"]["hard"])
    kept["ten"]["hard"] = 0.9 * kept["two"]["hard"]
    assert np.allclose(measure.gains(kept)["cifar10-excess-on-hard-images"], 0)


def test_holms_correction_multiplies_the_smallest_of_the_p_values_by_their_number():
    """Against values of a t-table: of three differences with three degrees of freedom, in an order that is not theirs."""
    p = {"middle": 0.02, "large": 0.6, "small": 0.01}
    differences = {name: np.array([1, 1, -1, -1.0]) for name in p}
    for name, one in differences.items():  # shifted until the t-test of four values has this p-value
        t = -stats_t.ppf(p[name] / 2, 3)
        differences[name] = one + t * one.std(ddof=1) / 2 * (-1 if name == "small" else 1)
    found = stats.holm_tests(differences)
    expected = {"small": [0.01, 0.03], "middle": [0.02, 0.04], "large": [0.6, 0.6]}
    assert {name: np.round(one, 9).tolist() for name, one in found.items()} == expected
    differences["large"] = differences["middle"]
    assert np.allclose([stats.holm_tests(differences)[name][1] for name in p], [0.04, 0.04, 0.03])
    assert stats.holm_tests({"one": [1, -1, 1, -1]})["one"].tolist() == [1.0, 1.0]


def test_validation_errors_are_means_over_seeds_by_arm_and_step():
    rows = [[{"step_size": size, "validation": 10 * size + shift, "test": 0.0} for size in (0.1, 0.4)] for shift in (1, 2)]
    found = measure.validation_errors(*({"runs": [{"values": {"two": row, "ten": row[1:]}}]} for row in rows))
    assert found == {"two": {0.1: 2.5, 0.4: 5.5}, "ten": {0.4: 5.5}}


def test_steps_of_the_kept_run_are_those_of_the_lowest_validation_error_inside_the_grid():
    chosen = kept_runs.declared("fine_grained_labels")["cifar10"].parameters["step_sizes"]
    names = ("cifar10-tuning", "cifar10-tuning-more", "cifar10-tuning-smallest")
    found = measure.validation_errors(*(kept_runs.load("fine_grained_labels", name) for name in names))
    assert set(found) == set(chosen) and len({tuple(errors) for errors in found.values()}) == 1  # the same grid for each arm
    for arm, errors in found.items():
        assert chosen[arm] == [min(errors, key=errors.get)], arm
        # Unique labels are best where pretraining does next to nothing.
        assert chosen[arm] == [min(errors)] if arm == "unique" else chosen[arm] not in ([min(errors)], [max(errors)]), arm


def test_claims_on_digits_subtract_what_their_units_say():
    names = (data.TARGET, data.JUST_FINER, data.CLASSES, "5 clusters in each target class", "20 clusters in each target class")
    names += ("10 clusters of all", "5 random IDs in each target class", "one per image")
    tuned = {name: 2.0**i for i, name in enumerate(names)}
    errors = {name: (np.array([3 * one]), np.array([one])) for name, one in tuned.items()}
    gains = measure.image_gains(errors, np.array([1000.0]))
    two, three, ten, five, twenty, anywhere, random, unique = tuned.values()
    assert {id: float(one[0]) for id, one in gains.items()} == {
        "fine-tuning-not-worse": two - ten,
        "unique-labels-tune-worse": unique - ten,
        "random-worse-than-coarse": random - two,
        "whole-data-clusters-are-worse": anywhere - two,
        "superclass-clusters-help": two - five,
        "more-clusters-tune-worse": twenty - five,
        "retraining-beats-one-pass": 1000 - two,
        "superclass-probe-worse-on-fine": 3 * (ten - two),
        "probe-below-fine-tuning": 2 * sum(tuned.values()) / 8,
        "just-finer-tunes-worse": three - two,
    }
    assert "just-finer-tunes-worse" not in measure.image_gains({n: e for n, e in errors.items() if n != data.JUST_FINER}, 0)


def test_a_percentage_has_three_decimals():
    assert measure.percent(torch.tensor([True, False, False])) == 33.333
