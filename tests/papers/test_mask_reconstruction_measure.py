"""Measures of chapter 03, which its claims judge, on values whose result is known."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mvnb.models import smoothed_relu
from mvnb.papers.mask_reconstruction import data, measure, model, theory
from mvnb.papers.mask_reconstruction import training as arms

ACTIVATION, KEEP = (4, 0.6), 0.5


def table(*rows):
    return np.array(rows, dtype=bool)


# --- Gradients and growth ---


def test_the_expectation_over_masks_is_that_of_its_definition():
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(2, 3, 2, 4, generator=g).double(), torch.randn(2, 1, 4, generator=g).double()

    def loss(w, x, mask, keep):  # of a kept patch its inner product with the kernel, divided by keep
        return (mask * (x @ w[0])).sum() / keep + mask[:, 0].sum() * mask[:, 1].sum()

    value, slope = measure.over_masks(loss, w, x, 0.3)
    linear = torch.stack([(x[r] @ w[r, 0]).sum() for r in range(2)])
    assert torch.allclose(value, linear + 9 * 0.3**2) and torch.allclose(slope[:, 0], x.sum((1, 2)))


@pytest.mark.parametrize("name", ["ERM", "MAE", "Teacher-student"])
def test_what_one_kernel_knows_takes_the_push_from_another_only_under_labels(name):
    alone, beside = (measure.push(name, [u, 0.05], ACTIVATION) for u in (0.0, 3.0))
    response = smoothed_relu(torch.tensor([3.0, 0.05]).double(), *ACTIVATION).sum().item()
    left = 2 / (1 + np.exp(response)) if name == "ERM" else 1.0
    assert beside == pytest.approx(left * alone, rel=1e-4) and alone > 0


def test_growth_is_that_of_the_law():
    law = theory.autoencoder_growth(*ACTIVATION, 1.0)
    assert measure.growth_exponent("MAE", ACTIVATION) == pytest.approx(law.exponent, abs=0.01)
    assert measure.growth_exponent("ERM", ACTIVATION) == pytest.approx(3, abs=0.02)
    time = measure.growth_time("MAE", 0.05, 0.1, ACTIVATION)
    assert time == pytest.approx(law.time(0.05, 0.1), rel=0.001)
    assert time == pytest.approx(measure.growth_time("MAE", 0.05, 0.1, ACTIVATION, steps=400), rel=1e-6)


@pytest.mark.parametrize("keep", [0.5, 0.4])
def test_a_kernel_of_two_features_grows_at_the_rate_of_the_mask(keep):
    rate = measure.pair_growth_rate((3, 0.2), keep, step=1 / 500, steps=2500)
    assert rate == pytest.approx(theory.teacher_student_pair_rate(keep, 1.0), rel=0.03)


# --- Margins ---

PURE = data.SparseMultiView(4, 8, 8, foreign=1.2, single_view=1.0, patch_noise=0.0, background_noise=0.0)


def test_margins_are_exact_for_the_mean_strengths_of_the_world_only():
    sample, psi = PURE.sample(50, 0), np.linspace(0.5, 1.5, 8)
    assert measure.margin_error(sample, psi, 1.2) < 1e-10
    tilted = sample._replace(y=(sample.y + 1) % 4)  # a closed form for all labels, right or wrong
    assert measure.margin_error(tilted, psi, 1.2) < 1e-10


def test_broken_margins_are_found(monkeypatch):
    right = theory.ideal_margin
    monkeypatch.setattr(theory, "ideal_margin", lambda *a: 1.01 * right(*a))
    assert measure.margin_error(PURE.sample(50, 0), np.linspace(0.5, 1.5, 8), 1.2) > 1e-3


def test_a_head_on_features_that_are_known_classifies_what_shows_them():
    train, multi = (data.SparseMultiView(4, 8, 8, 1.2, patch_noise=0, background_noise=0).sample(400, g) for g in (0, 1))
    lone = PURE.sample(400, 2)
    everything = measure.centroid_accuracy(train, (multi, lone), np.ones(8))
    first = measure.centroid_accuracy(train, (multi, lone), np.tile([1.0, 0.0], 4))
    assert everything == [1.0, 1.0] and first[0] == 1.0
    shows = (lone.strong == 0).double().mean().item()
    assert shows < first[1] < 0.9
    nothing = measure.centroid_accuracy(train, (multi, lone), np.zeros(8))
    assert nothing == [0.0, 0.0]


def test_the_first_step_of_the_head_is_compared_with_the_centroids_of_its_own_features(monkeypatch):
    world = data.SparseMultiView(3, 8, 10, foreign=1.0, balanced=True)
    points, _ = data.draw(world, 9, 4, 1.0, arms.training.generators(0, 2), "cpu")
    weight = torch.randn(2, 4, 10, generator=torch.Generator().manual_seed(0)).double()
    error = measure.head_error(weight, points, (3, 0.5), 3)
    assert error.shape == (2,) and error.max() < 1e-10
    right = measure.centroid_head
    monkeypatch.setattr(measure, "centroid_head", lambda weight, *a: right(weight.roll(1, -1), *a))
    assert measure.head_error(weight, points, (3, 0.5), 3).min() > 1e-3


# --- Features ---


def test_best_correlations_are_those_of_any_kernel_or_of_the_class():
    weight = torch.tensor([[[1.0, 5.0, 0.0, 9.0], [2.0, 3.0, 4.0, 9.0]]])  # two kernels, three features and an axis beyond
    assert model.best_correlations({"weight": weight}, 3).tolist() == [[2, 5, 4]]
    owned = torch.arange(2 * 2 * 4.0).view(1, 2, 2, 4)  # two classes with two kernels each
    assert model.best_correlations({"weight": owned}, 4).tolist() == [[4, 5, 14, 15]]
    assert model.best_correlations({"weight": torch.cat([owned, owned + 99], -1)}, 4).tolist() == [[4, 5, 14, 15]]


def test_stray_correlations_are_the_largest_that_are_not_held():
    weight = torch.tensor([[[0.9, 0.2], [0.1, 0.4]], [[0.9, 0.8], [-0.5, -0.3]]])
    assert model.stray_correlations({"weight": weight}, 2, 0.5).tolist() == pytest.approx([0.4, 0.0])
    assert model.stray_correlations({"weight": weight}, 1, 0.95).tolist() == pytest.approx([0.9, 0.9])


def test_shares_of_classes_by_the_number_of_views_known():
    known = table([1, 0, 1, 1, 0, 0, 0, 1], [1, 1, 1, 1, 1, 1, 1, 1])  # the first: one, both, none, one
    assert measure.views(known).tolist() == [[1, 2, 0, 1], [2, 2, 2, 2]]
    assert measure.one_view(known).tolist() == [0.5, 0.0] and measure.at_most_one_view(known).tolist() == [0.75, 0.0]


def test_pure_kernels_are_counted_among_those_with_a_feature():
    held = np.array([[[1, 0, 0], [1, 1, 0], [0, 0, 0], [0, 0, 1]], np.zeros((4, 3))], dtype=bool)
    assert measure.pure(held).tolist() == pytest.approx([2 / 3, 0.0])


def test_the_first_look_or_the_last():
    log = {"time": torch.tensor([[0.0, 0.0], [1.0, 2.0], [3.0, 4.0]])}
    assert measure.at_first(log, log["time"] >= 1.5)["time"].tolist() == [3.0, 2.0]
    assert measure.at_first(log, log["time"] >= 3.5)["time"].tolist() == [3.0, 4.0]


# --- The autoencoder ---


def test_deviations_from_the_level_are_those_of_features_known():
    best = np.array([[1.0, 1.05, 1.2, 0.1], [0.1, 0.2, 0.1, 0.2]])
    found = measure.off_level(best, 1.0, 0.6)
    assert found["median"].tolist() == pytest.approx([0.05, 1.0]) and found["within"].tolist() == pytest.approx([2 / 3, 0.0])


def test_deviations_at_several_mask_ratios():
    best, levels = np.array([[[1.0, 1.2], [1.0, 1.0]], [[2.0, 2.1], [2.5, 2.7]]]), np.array([1.0, 2.0])
    largest, within = measure.off_levels(best, levels)  # means over the level: 1.1, 1 and 1.025, 1.3
    assert largest.tolist() == pytest.approx([0.1, 0.3]) and within.tolist() == [0.75, 0.5]


@pytest.fixture
def sample():
    """One run of two points: feature 0 on a patch of strength 1 in each, feature 1 on one of 2 in the second."""
    holds, strength = torch.tensor([[[0, -1], [0, 1]]]), torch.tensor([[[1.0, 0.0], [1.0, 2.0]]])
    return SimpleNamespace(holds=holds, strength=strength)


def test_the_loss_falls_by_a_stair_for_each_feature_known(sample):
    stair = [theory.stair(1.0, z, *ACTIVATION, KEEP) * share for z, share in ((1.0, 1.0), (2.0, 0.5))]
    best = torch.tensor([[0.1, 0.1], [0.7, 0.1], [0.7, 0.7]])[:, None]
    exact = torch.tensor([[9.0], [9.0 - stair[0]], [9.0 - sum(stair)]])
    run = SimpleNamespace(log={"loss": exact, "best": best})
    predicted, off = measure.stairs(run, sample, ACTIVATION, KEEP, 1.0)
    assert predicted[:, 0] == pytest.approx(exact[:, 0].numpy()) and off == pytest.approx([0], abs=1e-6)
    run.log["loss"] = exact + torch.tensor([[0.0], [0.1], [5.0]])  # judged while some are known and some are not
    assert measure.stairs(run, sample, ACTIVATION, KEEP, 1.0)[1] == pytest.approx([0.1 / sum(stair)], rel=1e-4)
    run.log["best"] = best[[0, 0, 2]]
    assert measure.stairs(run, sample, ACTIVATION, KEEP, 1.0)[1] == [1.0]


def test_capture_is_the_passing_of_half_the_threshold_at_the_time_of_the_law(sample):
    start, clock = 0.05, np.linspace(0, 500, 50_001)
    tracks = []
    for moment in (1.0, 0.5 * 2.0**5):  # of the fifth power of strengths
        law = theory.autoencoder_growth(*ACTIVATION, moment)
        n, rate = law.exponent - 1, law.constant
        tracks.append(np.clip(start**-n - n * rate * clock, 1e-3, None) ** (-1 / n))
    run = SimpleNamespace(log={"time": torch.tensor(clock)[:, None], "best": torch.tensor(np.stack(tracks, -1))[:, None]})
    predicted, captured = measure.captures(run, sample, ACTIVATION)
    assert captured == pytest.approx(predicted, rel=1e-3) and predicted[0, 0] == pytest.approx(16 * predicted[0, 1])
    law = theory.autoencoder_growth(*ACTIVATION, 1.0)
    assert predicted[0, 0] == pytest.approx(law.time(start, 0.3))


def test_features_that_are_never_captured_count_as_wrong():
    found = measure.off_times(np.full((2, 4), 10.0), np.array([[11.0, 12.0, 14.0, np.nan], [7.5, 10.0, 10.0, 6.0]]))
    assert found["median"].tolist() == pytest.approx([0.3, 0.125]) and found["within"].tolist() == [0.5, 0.75]


def test_the_loss_is_compared_with_that_of_no_kernels():
    x = torch.randn(2, 5, 3, 4, generator=torch.Generator().manual_seed(0))
    empty = model.MaskedAutoencoderObjective(*ACTIVATION)({"weight": torch.zeros(2, 1, 4)}, x, KEEP)[0]
    assert measure.loss_over_empty(3 * empty, x).tolist() == pytest.approx([3, 3])


def test_runners_up_are_second_at_the_end_for_each_feature():
    first = np.array([[[0.1, 0.2], [0.2, 0.5], [0.4, 0.1]]])
    last = np.array([[[0.3, 9.0], [0.1, 1.0], [5.0, 0.2]]])
    assert measure.runner_up_growth(first, last) == pytest.approx(np.array([[3.0, 2.0]]))
    growth = {2: [[6.0, 2.0, 9.0]], 3: [[1.0, 2.0, 2.0]], 4: [[3.0, 4.0, 3.0]]}
    found = measure.losers_growth(growth)
    assert found["two"].tolist() == [2.0] and found["four"].tolist() == [1.5]


# --- The teacher-student loss ---

HELD = table([[1, 0], [0, 1], [0, 0], [1, 1]])
FORESEEN = table([[1, 0], [0, 0], [0, 1], [0, 1]])


def test_pairs_held_and_foreseen():
    assert measure.foreseen_share(HELD, FORESEEN).tolist() == [0.5] and measure.foreseen_share(FORESEEN, HELD).tolist() == [0.5]
    assert measure.miscounted(HELD, FORESEEN, 1).tolist() == [0.0]
    assert measure.miscounted(HELD, FORESEEN, 2).tolist() == [1.0]
    assert measure.miscounted(HELD[:, :2], FORESEEN[:, :2], 1).tolist() == [1.0]
    assert measure.miscounted(HELD[:, 2:], FORESEEN[:, 2:], 1).tolist() == [0.5]


def test_winners_were_ahead_of_the_best_less_a_share_that_depends_on_the_number_of_classes():
    first = np.zeros((1, 3, 8))  # four classes: 1 - 1 / log 4 = 0.28
    first[0, :, 0], first[0, :, 1] = (1.0, 0.3, 0.2), (0.2, 0.1, 2.0)
    held = np.zeros((1, 3, 8), dtype=bool)
    held[0, [0, 1, 2, 0], [0, 0, 0, 1]] = True
    assert measure.winners_ahead(first, held).tolist() == [0.5]


def test_growth_counts_within_the_time_that_is_allowed():
    best = torch.tensor([[[0.1, 0.2]], [[0.5, 0.4]], [[0.6, 4.0]]])
    run = SimpleNamespace(log={"best": best, "time": torch.tensor([[0.0], [9.0], [11.0]])})
    allowed, growth = measure.growth_beyond(run, np.array([8.0]), 3, 5)  # 5 * 8 ** (1/3)
    assert allowed.tolist() == pytest.approx([10]) and growth.tolist() == pytest.approx([2.5])


# --- Classification ---


def test_the_worse_kind_is_the_one_on_which_a_run_is_worse():
    result = {"multi-view": np.array([0.9, 0.4]), "single-view": np.array([0.7, 0.8])}
    assert measure.worse_kind(result).tolist() == [0.7, 0.4]


def test_a_lead_is_ours_less_the_rivals_for_each_kind():
    ours, rival = ({"multi-view": np.array([a]), "single-view": np.array([b])} for a, b in ((1.0, 0.75), (0.5, 1.0)))
    assert {kind: one.tolist() for kind, one in measure.lead(ours, rival).items()} == {
        "multi-view": [0.5],
        "single-view": [-0.25],
    }


def test_accuracies_are_by_kind_and_run():
    test = SimpleNamespace(x=torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]), y=torch.tensor([0, 1, 1]))
    other = SimpleNamespace(x=test.x, y=torch.tensor([0, 1, 0]))
    found = measure.accuracies(lambda x: torch.cat([x, x.flip(-1)]), {"a": test, "b": other})
    assert found["a"].tolist() == pytest.approx([2 / 3, 1 / 3]) and found["b"].tolist() == [1.0, 0.0]


def test_ranks_are_compared_over_settings_for_each_run():
    expected = np.array([[0.1, 0.1, 0.5], [0.2, 0.2, 0.5], [0.3, 0.3, 0.5]])
    found = np.array([[0.3, 0.9, 0.1], [0.5, 0.5, 0.2], [0.9, 0.1, 0.3]])
    assert measure.rank_agreement(expected, found) == [1.0, -1.0, 0.0]
    assert measure.rank_agreement(expected[:2], found[:2]) == [0.0] * 3


def test_fine_tuning_is_judged_at_its_worst_look_and_its_end():
    best = torch.tensor([[[1.0, 2.0]], [[0.5, 2.0]], [[1.0, 3.0]]])
    kept, strays = measure.fine_tuned({"best": best, "strays": torch.tensor([[0.1], [0.4], [0.2]])})
    assert kept.tolist() == [0.5] and strays.tolist() == pytest.approx([2.0])


# --- Images ---


def test_hits_and_their_share_by_class_and_view():
    net = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(2, 2, bias=False))
    params = {"1.weight": torch.eye(2)[None]}
    x, y = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]]), torch.tensor([0, 1, 1, 0])
    right = measure.hits(net, params, x, y)
    assert right.tolist() == [1, 0, 1, 0]
    sample = SimpleNamespace(y=y, strong=torch.tensor([0, 0, 1, 1]))
    assert measure.accuracy_by_view(right, sample) == [[1.0, 0.0], [0.0, 1.0]]


def test_a_tile_is_lit_if_one_of_its_quarters_is_above_one_half():
    maps = torch.zeros(1, 8, 8)
    maps[0, 0, 3], maps[0, 5, 6], maps[0, 7, 0] = 0.51, 0.49, 1.0
    assert measure.lit_tiles(maps).nonzero().tolist() == [[0, 1], [0, 12]]


def test_overlap_is_of_tiles_lit_or_own():
    lit, own = torch.tensor([[1, 1, 0, 0], [0, 0, 0, 1]]).bool(), torch.tensor([[0, 1, 1, 0], [1, 1, 0, 0]]).bool()
    assert measure.overlap(lit, own).tolist() == pytest.approx([1 / 3, 0.0])


class Bright(torch.nn.Module):
    """Features that are large on bright quarters of tiles: one channel, in units of ``gain``."""

    def __init__(self, gain):
        super().__init__()
        self.gain = torch.nn.Parameter(torch.tensor([gain]))

    def forward(self, x):
        return self.gain * torch.nn.functional.avg_pool2d(x.square(), 4)


@pytest.mark.parametrize("gain", [1.0, -1.0])
def test_looks_of_an_encoder_that_lights_own_tiles_are_perfect(gain):
    sample = data.world_of_tiles(5, 2.0, 0.0).sample(40, 0)
    net = model.Classifier(Bright(gain), 1, 5, 1)
    found = measure.looks(net, {k: v.detach()[None] for k, v in net.state_dict().items()}, sample, shown=2)
    assert found["covered"] == 1 and found["lit"] == 2 and found["precision"] == 1
    maps = torch.tensor(found["maps"]).unflatten(1, (8, 8))
    assert torch.equal(measure.lit_tiles(maps), data.own_tiles(sample)[:2]) and maps.max() == 1


# --- Kept runs ---


def test_values_of_the_run_on_tiles_are_by_arm_and_seed():
    record = {"runs": [{"values": {"ERM": {"lit": a}, "MAE": {"lit": b}}} for a, b in ((1, 4), (2, 8))]}
    assert measure.on_tiles(record, "ERM", "lit").tolist() == [1, 2] and measure.gain_on_tiles(record, "lit").tolist() == [3, 6]


def test_values_of_the_run_on_digits_are_by_number_of_labels_and_seed():
    def rows(seed):
        firsts = {"scratch": 0, "pretrained": 100, "random features": 700}
        sets = [(n, i) for n, draws in ((10, 2), (20, 1)) for i in range(draws)]
        return [
            {"arm": arm, "labels": n, "draw": i, "train": 0.0, "error": first + n + seed + 4 * i}
            for arm, first in firsts.items()
            for n, i in sets
        ]

    runs = [{"values": {"arms": rows(seed)}} for seed in (1, 2, 3)]
    record = {"parameters": {"labels": [10, 20]}, "runs": runs}
    assert measure.on_digits(record, "scratch").tolist() == [[13, 14, 15], [21, 22, 23]]  # the mean of two sets of 10
    assert measure.on_digits(record, "random features").tolist() == [[713, 714, 715], [721, 722, 723]]
    assert measure.on_digits(record, "scratch", "train").max() == 0
    assert (measure.gain_on_digits(record) == -100).all()


def test_the_best_setting_of_each_arm_has_the_smallest_mean_error():
    def row(arm, step_size, error, weight_decay=0.0, encoder_rate=1.0):
        setting = {"step_size": step_size, "weight_decay": weight_decay, "encoder_rate": encoder_rate}
        return {"arm": arm, "labels": 10, "error": error, **setting}

    first = [row("a", 0.1, 5.0), row("a", 0.2, 1.0), row("b", 0.1, 2.0), row("b", 0.1, 3.0, weight_decay=0.5)]
    second = [row("a", 0.1, 1.0), row("a", 0.2, 6.0), row("b", 0.1, 4.0), row("b", 0.1, 1.0, weight_decay=0.5)]
    runs = {"runs": [{"values": {"arms": rows}} for rows in (first, second)]}
    best = measure.best_settings(runs)
    assert [(error, one["step_size"]) for error, one in best["a"]] == [(3.0, 0.1), (3.5, 0.2)]
    assert best["b"][0] == (2.0, {"encoder_rate": 1.0, "step_size": 0.1, "weight_decay": 0.5})
    more = {"runs": [{"values": {"arms": [row("a, more", 0.1, 2.0, encoder_rate=0.3)]}}]}
    assert measure.best_settings(runs, more)["a"][0] == (2.0, {"encoder_rate": 0.3, "step_size": 0.1, "weight_decay": 0.0})
