"""Measurements of chapter 01 on weights whose knowledge is known."""

import numpy as np
import torch

from mvnb.data import MultiView
from mvnb.models import patch_logits
from mvnb.papers.midpoint_mixup import measure
from mvnb.probes import own_correlations

nan = float("nan")


def test_total_correlation_is_the_sum_above_the_level():
    weight = torch.randn(2, 3, 4, 5, 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    own = own_correlations(weight)
    expected = torch.where(own >= 0.4, own, 0.0).sum(-2)
    assert torch.allclose(measure.total_correlation(weight, 0.4), expected, atol=1e-12)
    weight = torch.zeros(2, 2, 4)  # two classes with two filters
    weight[0] = torch.tensor([[3.0, -1.0, 9.0, 9.0], [2.0, -2.0, 9.0, 9.0]])
    weight[1] = torch.tensor([[9.0, 9.0, 0.5, 0.25], [9.0, 9.0, -7.0, 1.0]])
    assert measure.total_correlation(weight, 0.5).tolist() == [[5.0, 0.0], [0.5, 1.0]]
    assert measure.total_correlation(weight, 2.5).tolist() == [[3.0, 0.0], [0.0, 0.0]]


def test_balance():
    correlation = torch.tensor([[2.0, 4.0], [4.0, 1.0], [3.0, 3.0], [5.0, -1.0], [0.0, 0.0], [-2.0, -1.0]])
    expected = torch.tensor([0.5, 0.25, 1.0, 0.0, 0.0, 0.0])
    assert torch.equal(measure.balance(correlation), expected)
    assert torch.equal(measure.balance(correlation.double().view(2, 3, 2)), expected.double().view(2, 3))
    assert measure.balance(torch.tensor([2.0, 8.0, 4.0])) == 0.25


def test_class_accuracy():
    prediction = torch.tensor([0, 1, 1, 2, 2, 2])
    y = torch.tensor([0, 1, 0, 2, 2, 1])
    logits = torch.nn.functional.one_hot(prediction, 4).double()
    assert np.array_equal(measure.class_accuracy(logits, y), [0.5, 0.5, 1.0, nan], equal_nan=True)
    logits, y = torch.stack([logits, logits]), torch.stack([y, y.roll(1)])
    assert np.array_equal(measure.class_accuracy(logits, y)[1], [0.0, 0.5, 1.0, nan], equal_nan=True)


KNOWS = [(1, 1), (1, 0), (0, 1), (0, 0)]  # the two features of the classes 1 to 4; class 0 stays out of it


def knowing(strength=3.0):
    """Filters of five classes that respond to exactly the features in KNOWS; class 0 has learned both."""
    weight = torch.zeros(5, 2, 10, dtype=torch.float64)
    for y, known in enumerate([(1, 1), *KNOWS]):
        for view in range(2):
            weight[y, view, 2 * y + view] = strength * known[view]
    return weight


def fresh_points(n_classes=5, each=10):
    world = MultiView(n_classes, 200, noise_low=0.001, noise_high=0.002)
    y = torch.arange(n_classes).repeat_interleave(each)
    return world.sample(len(y), 0, y=y, dtype=torch.float64)


def logits_of(weight):
    return lambda x, multiplicity: patch_logits(weight, x, multiplicity, 8, 0.1)


def test_features_known_by_construction_are_found():
    weight = knowing()[None]
    found = measure.feature_accuracy(logits_of(weight), fresh_points())
    assert found.shape == (1, 5, 2)
    assert found[0].tolist() == [[1.0, 1.0], *[list(map(float, known)) for known in KNOWS]]


def test_each_replica_is_judged_by_its_own_weights():
    whole = torch.zeros_like(knowing())
    for y in range(5):
        whole[y, 0, 2 * y] = whole[y, 1, 2 * y + 1] = 3.0
    first_only = whole.clone()
    first_only[:, 1] = 0
    found = measure.feature_accuracy(logits_of(torch.stack([whole, first_only, knowing()])), fresh_points())
    counts = (found >= 0.9).sum(-1)
    assert counts[0].tolist() == [2] * 5
    assert counts[1, 1:].tolist() == [1] * 4
    assert counts[2].tolist() == [2, 2, 1, 1, 0]


def test_full_points_hide_what_is_not_known():
    """Without the deletion a class with one feature looks as good as a class with both."""
    sample = fresh_points()
    plain = measure.class_accuracy(logits_of(knowing())(sample.x, sample.multiplicity), sample.y)
    assert plain.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_a_stronger_foreign_response_spoils_a_feature():
    weight = knowing()
    weight[1, 0, 2] = 0.0  # class 1 forgets its first feature, class 2 takes it for its own
    weight[2, 1, 2] = 3.0
    found = measure.feature_accuracy(logits_of(weight[None]), fresh_points())[0]
    assert found[1].tolist() == [0.0, 1.0]
    assert found[2].tolist() == [1.0, 0.0]
