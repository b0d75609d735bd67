"""Hierarchical multi-view data, label functions, and the ReLU patch network with its detectors."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mvnb import training
from mvnb.models import patch_logits
from mvnb.papers.fine_grained_labels import data as hierarchical
from mvnb.papers.fine_grained_labels.data import (
    HierarchicalMultiView,
    cluster_within,
    grouped_labels,
    nearest_cluster,
    random_ids,
)
from mvnb.papers.fine_grained_labels.model import (
    ReluPatchObjective,
    compressed_detectors,
    detector_masks,
    max_read_out,
    stratified_detectors,
)

WORLD = HierarchicalMultiView(3, 16, 14, n_backgrounds=2, background_patches=2)


def draw(world=WORLD, n=60, hard=False, seed=0, **kwargs):
    return world.sample(n, torch.Generator().manual_seed(seed), hard=hard, **kwargs)


def count(sample, kind):
    return (sample.kind == kind).sum(1)


def test_easy_points_have_the_stated_patches():
    sample = draw()
    assert sample.x.shape == (60, 14, 16) and sample.x.dtype == torch.float32
    for kind, n in (
        (hierarchical.COMMON, 4),
        (hierarchical.FINE, 4),
        (hierarchical.BACKGROUND, 2),
        (hierarchical.DISTRACTOR, 0),
        (hierarchical.STRONG_NOISE, 0),
        (hierarchical.NOISE, 4),
    ):
        assert (count(sample, kind) == n).all()
    low, high = math.sqrt(0.9), math.sqrt(1.1)
    for i in range(60):
        c = int(sample.subclass[i])
        common = sample.x[i][sample.kind[i] == hierarchical.COMMON]
        fine = sample.x[i][sample.kind[i] == hierarchical.FINE]
        assert ((common[:, c // 3] >= low) & (common[:, c // 3] <= high)).all()
        assert ((fine[:, 2 + c] >= low) & (fine[:, 2 + c] <= high)).all()
        assert torch.equal(common.count_nonzero(1), torch.ones(4, dtype=torch.long))
        behind = sample.x[i][sample.kind[i] == hierarchical.BACKGROUND]
        assert (behind[:, 8 + sample.background[i]] >= 1.5 * low).all()
    assert (sample.x[sample.kind == hierarchical.NOISE] == 0).all()


def test_hard_points_lack_the_common_feature_and_point_to_the_other_superclass():
    world = replace(WORLD, strong_noise=0.3)
    sample = draw(world, hard=True)
    assert (count(sample, hierarchical.COMMON) == 0).all()
    assert (count(sample, hierarchical.STRONG_NOISE) == 1).all()
    assert (count(sample, hierarchical.DISTRACTOR) == 4).all()
    assert (count(sample, hierarchical.FINE) == 4).all()
    for i in range(60):
        weak = sample.x[i][sample.kind[i] == hierarchical.DISTRACTOR]
        other = weak[:, 1 - int(sample.subclass[i]) // 3]
        assert ((other >= 0.25) & (other <= 0.35)).all()
        assert torch.equal(weak.count_nonzero(1), torch.ones(4, dtype=torch.long))
    strong = sample.x[sample.kind == hierarchical.STRONG_NOISE]
    assert abs(strong.std() - 0.3) < 0.03
    assert (sample.x[sample.kind == hierarchical.NOISE] == 0).all()


def test_subclasses_take_turns():
    sample = draw(n=24)
    assert torch.equal(sample.superclass, sample.subclass // 3)
    for part in sample.subclass.split(6):
        assert sorted(part.tolist()) == list(range(6))


def test_noise_has_its_size_everywhere():
    plain, noisy = draw(), draw(replace(WORLD, noise=0.05))
    assert abs((noisy.x - plain.x).std() - 0.05) < 0.002


def test_bernoulli_counts_are_right_in_the_mean():
    world = replace(WORLD, binomial=True, n_patches=20)
    easy, hard = draw(world, 3000), draw(world, 3000, hard=True)
    for sample, kind, mean in (
        (easy, hierarchical.COMMON, 4),
        (easy, hierarchical.FINE, 4),
        (easy, hierarchical.BACKGROUND, 2),
        (hard, hierarchical.FINE, 4),
        (hard, hierarchical.DISTRACTOR, 4),
    ):
        n = count(sample, kind).double()
        assert abs(n.mean() - mean) < 4 * n.std() / math.sqrt(3000)
        assert n.std() > 1
    assert (count(hard, hierarchical.STRONG_NOISE) == 1).all()
    none = (count(hard, hierarchical.FINE) == 0).double().mean()
    assert abs(none - 0.8**20) < 0.01  # the floor of the hard error


def test_strong_noise_finds_a_place_in_crowded_points():
    crowded = HierarchicalMultiView(1, 4, 4, signal_patches=2, distractor_patches=1, binomial=True)
    assert (count(draw(crowded, 500, hard=True), hierarchical.STRONG_NOISE) == 1).all()


def test_same_seed_same_sample():
    first, second, third = draw(), draw(), draw(seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first, second))
    assert not torch.equal(first.x, third.x)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_subclasses": 0}, "n_subclasses"),
        ({"dim": 9}, "dim must be at least"),
        ({"n_patches": 10}, "n_patches must be at least 11"),
        ({"jitter": 1.0}, "jitter"),
        ({"distractor_low": 0.5}, "distractor_low"),
        ({"noise": -1.0}, "noise"),
        ({"n_backgrounds": 0}, "both be positive, or 0"),
        ({"signal_patches": 0}, "signal_patches"),
    ],
)
def test_nonsense_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(WORLD, **change)


# --- Label functions ---


def test_groups_and_random_ids():
    classes = torch.tensor([0, 1, 2, 3, 0])
    assert grouped_labels(classes, [(0, 3), (1, 2)]).tolist() == [0, 1, 1, 0, 0]
    with pytest.raises(ValueError, match="exactly one group"):
        grouped_labels(classes, [(0, 1), (1, 2, 3)])
    superclass = torch.arange(3000) % 3
    ids = random_ids(superclass, 5, torch.Generator().manual_seed(0))
    assert torch.equal(ids // 5, superclass)
    assert (torch.bincount(ids) > 150).all() and len(torch.unique(ids)) == 15


def test_clusters_stay_within_their_superclass():
    rng = np.random.default_rng(0)
    centres = np.array([[0, 0], [10, 0], [0, 10], [10, 10]])
    which = rng.integers(4, size=200)
    points, superclass = centres[which] + 0.1 * rng.normal(size=(200, 2)), which // 2
    labels = cluster_within(points, superclass, 2, seed=0)
    assert np.array_equal(labels // 2, superclass)
    assert all(len(np.unique(labels[which == w])) == 1 for w in range(4)) and len(np.unique(labels)) == 4
    uneven = cluster_within(points, superclass, [1, 3], seed=0)
    assert set(uneven[superclass == 0]) == {0} and set(uneven[superclass == 1]) == {1, 2, 3}
    whole = cluster_within(points, np.zeros(200, dtype=int), 4, seed=0)
    assert len(np.unique(whole)) == 4


def test_a_point_has_the_label_of_the_nearest_centre_of_its_superclass_in_its_run():
    pools = training.stack([WORLD.sample(60, g) for g in training.generators(0, 2)])
    label, sums = nearest_cluster(pools, 2, seed=0, n_init=1), pools.x.sum(2)
    for r in range(2):
        found = torch.as_tensor(cluster_within(sums[r].numpy(), pools.superclass[r].numpy(), 2, seed=0))
        assert torch.equal(label(pools)[r], found)  # of k-means, which has converged
        centres = torch.stack([sums[r][found == c].mean(0) for c in range(4)])
        points = draw(seed=7, dtype=torch.float64)
        distance = (points.x.sum(1).float()[:, None] - centres).norm(dim=-1)
        distance[torch.arange(4) // 2 != points.superclass[:, None]] = torch.inf
        assert torch.equal(label(points)[r], distance.argmin(1))


def test_labels_of_points_have_the_probabilities_and_the_ratio_that_they_state():
    """In a balanced batch exactly. Labels nested in the subclasses, or at random, but never the other way around."""
    k = 8
    world, nearest = (
        HierarchicalMultiView(k, 18, 16, jitter=0.05),
        {n: hierarchical.true_labels(k, n // 2 or 1).of for n in (2, 8)},
    )
    points = draw(world, 2 * k * 320)
    kinds = hierarchical.label_kinds(k, nearest)
    true, random = ["coarse", "true, 2", "true, 4", "fine", "fine, split"], ["random, 2", "random, 8", "random, 8 dealt"]
    assert list(kinds) == [*true, *random, "clusters, 2", "clusters, 8"]
    assert [len(labels.table) for labels in kinds.values()] == [2, 4, 8, 16, 32, 4, 16, 16, 4, 16]
    kinds |= {"unrelated": hierarchical.dealt_ids(k, 4, superclasses=1), "as fine": hierarchical.true_labels(k, k)}
    shown = np.concatenate([np.eye(2)[points.superclass], np.eye(2 * k)[points.subclass]], 1)  # (point, feature)
    for name, (of, table, ratio) in kinds.items():
        labels = np.eye(len(table))[of(points)]
        measured = labels.T @ shown / shown.sum(0)
        if name.startswith("clusters"):
            assert of is nearest[int(name[-1])] and np.array_equal(table, kinds[f"random, {name[-1]}"].table) and ratio == k
        else:
            assert np.allclose(measured, table, rtol=0, atol=0.06 if name in ("random, 2", "random, 8") else 1e-12), name
        drift = table - 1 / len(table)
        if name != "unrelated":
            largest = [drift[: len(table) // 2, feature].max() for feature in (0, 2)]  # at the max read-out
            assert np.isclose(ratio, k * largest[0] / largest[1]), name


def test_dealt_ids_are_balanced_in_each_batch_and_drawn_ones_are_not():
    kinds = hierarchical.label_kinds(4, {})
    for name, balanced in (("random, 2", False), ("fine, split", True), ("random, 8 dealt", True), ("random, 8", False)):
        n = 2 * 4 * (2 if name in ("random, 2", "fine, split") else 8)
        points = draw(HierarchicalMultiView(4, 10, 16), n)
        pairs = torch.stack([points.subclass, kinds[name].of(points)], 1).unique(dim=0)
        assert (len(pairs) == n) == balanced, name


# --- The network ---


def test_compressed_network_is_the_dense_one():
    """Neurons left out never fire, so what is kept moves as in the dense network, and so do the outputs on easy points."""
    world = HierarchicalMultiView(2, 12, 10, noise=0.005)
    scale, threshold, slack = 1e-5, 2.2, 0.3
    g = torch.Generator().manual_seed(0)
    dense = compressed_detectors(2, 400, world.n_features, 12, scale, threshold, [g], math.inf)
    assert dense["weight"].shape == (1, 2, 400, 12)
    dense = {k: v.double() for k, v in dense.items()}
    keep = dense["weight"][0, :, :, : world.n_features].amax(-1) >= scale * (threshold - slack)  # (class, neuron)
    width = int(keep.sum(1).max())
    order = keep.double().argsort(dim=1, descending=True, stable=True)[:, :width]
    part = {
        "weight": dense["weight"].gather(2, order[None, :, :, None].expand(1, 2, width, 12)),
        "bias": dense["bias"].gather(2, order[None]),
    }
    sample = world.sample(24, g, dtype=torch.float64)
    batch = (sample.x[None], sample.superclass[None])
    runs = [
        training.fit(ReluPatchObjective(0.05), p, batch, steps=30, optimizer=training.SGD(0.01)).params for p in (dense, part)
    ]
    again = runs[0]["weight"].gather(2, order[None, :, :, None].expand(1, 2, width, 12))
    assert torch.allclose(again, runs[1]["weight"], rtol=0, atol=1e-12)
    logits = [patch_logits(r["weight"], batch[0], None, 1, 1.0, r["bias"]) for r in runs]
    assert torch.allclose(logits[0], logits[1], rtol=0, atol=1e-12)
    assert (runs[0]["bias"] <= dense["bias"]).all()


def test_compressed_draw_keeps_the_aligned_and_pads_with_silence():
    params = compressed_detectors(3, 500, 8, 12, 0.1, 2.0, training.generators(0, 2))
    assert params["weight"].shape[:2] == (2, 3) and params["weight"].shape[3] == 12
    best = params["weight"][..., :8].amax(-1)
    silent = (params["weight"] == 0).all(-1)
    assert ((best >= 0.1 * 1.7 - 1e-7) | silent).all()
    assert (params["bias"] == -0.2).all()
    one = compressed_detectors(3, 500, 8, 12, 0.1, 2.0, training.generators(1, 1))["weight"][0]
    kept = (one != 0).any(-1).sum()
    assert torch.equal(params["weight"][1][~silent[1]][:kept], one[(one != 0).any(-1)])


def test_singleton_detectors_detect_one_feature():
    params = compressed_detectors(2, 3000, 6, 10, 0.1, 2.2, training.generators(0, 1))
    single, possible = detector_masks(params["weight"], 6, 0.1, 2.2)
    assert single.sum() > 20
    assert (single.sum(-1) <= 1).all() and (possible[single].all())
    assert (possible.sum(-1)[single.any(-1)] == 1).all()


def test_singletons_of_one_feature_move_alike():
    """Theorem D.1: every singleton detector of one class and feature gets the same updates."""
    world = HierarchicalMultiView(2, 12, 10, noise=0.005, jitter=0.05)
    start = {k: v.double() for k, v in compressed_detectors(2, 4000, 6, 12, 1e-5, 2.5, training.generators(0, 1)).items()}
    single, _ = detector_masks(start["weight"], 6, 1e-5, 2.5)
    fresh = training.Fresh(lambda n, g: world.sample(n, g, dtype=torch.float64), 16, training.generators(1, 1))

    def batches(step):
        return (fresh(step)[0], fresh(step)[1] // 2)

    run = training.fit(ReluPatchObjective(0.05), start, batches, steps=20, optimizer=training.SGD(0.01))
    moved = run.params["weight"] - start["weight"]
    for feature in (0, 2, 3):
        group = moved[0, 0][single[0, 0, :, feature]]
        assert len(group) > 2 and group[:, feature].min() > 0
        assert torch.allclose(group, group[:1].expand_as(group), rtol=0, atol=1e-12)


def test_fine_with_one_subclass_is_coarse_and_max_takes_the_right_halves():
    world = HierarchicalMultiView(1, 6, 10)
    sample = draw(world, 8)
    params = stratified_detectors(2, 4, 6, 1e-5, 1)
    fine = ReluPatchObjective(0.05)(params, sample.x[None], sample.subclass[None])
    coarse = ReluPatchObjective(0.05, superclasses=True)(params, sample.x[None], sample.subclass[None])
    torch.testing.assert_close((fine[0], fine[1]["weight"]), (coarse[0], coarse[1]["weight"]))
    logits = torch.tensor([[1.0, 5.0, 2.0, 3.0]])
    assert max_read_out(logits).tolist() == [[5.0, 3.0]]


def test_swapping_superclasses_swaps_outputs():
    world = HierarchicalMultiView(2, 10, 10, noise=0.01)
    x = draw(world, 8).x
    weight = torch.randn(4, 3, 10, generator=torch.Generator().manual_seed(0))
    swap = torch.tensor([1, 0, 4, 5, 2, 3, 6, 7, 8, 9])
    there = patch_logits(weight, x, None, 1, 1.0)
    back = patch_logits(weight[[2, 3, 0, 1]][..., swap], x[..., swap], None, 1, 1.0)
    assert torch.allclose(there[:, [2, 3, 0, 1]], back, atol=1e-6)


def test_losses_at_zero_output():
    sample = draw(n=12)
    for labels, n_labels in ((sample.subclass // 3, 2), (sample.subclass, 6)):
        params = {"weight": torch.zeros(1, n_labels, 2, 16), "bias": -torch.ones(1, n_labels, 2)}
        losses, grads = ReluPatchObjective(0.05)(params, sample.x[None], labels[None])
        assert abs(losses.item() - math.log(n_labels)) < 1e-6
        assert not grads["weight"].any()
    with pytest.raises(ValueError, match="bias_rate"):
        ReluPatchObjective(-0.1)
