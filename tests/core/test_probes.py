"""The probes on weights whose knowledge is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mvnb import probes, training
from mvnb.data import MultiView
from mvnb.models import patch_logits

few = settings(max_examples=25, deadline=None)
nan = float("nan")


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# --- correlations ---


@few
@given(n_classes=st.integers(1, 4), n_filters=st.integers(1, 3), n_views=st.integers(1, 3), replicas=st.integers(1, 3))
def test_correlations_are_inner_products_with_the_own_features(n_classes, n_filters, n_views, replicas):
    weight = normal(2, replicas, n_classes, n_filters, n_classes * n_views)
    own = probes.own_correlations(weight)
    assert own.shape == (2, replicas, n_classes, n_filters, n_views)
    features = torch.eye(n_classes * n_views, dtype=torch.float64).view(n_classes, n_views, -1)
    for y in range(n_classes):
        torch.testing.assert_close(own[..., y, :, :], weight[..., y, :, :] @ features[y].T)
    assert torch.equal(probes.max_correlation(weight), own.max(-2).values)
    level = 0.4
    expected = torch.where(own >= level, own, 0.0).sum(-2)
    assert torch.allclose(probes.total_correlation(weight, level), expected, atol=1e-12)


def test_correlations_by_hand():
    weight = torch.zeros(2, 2, 4)  # two classes with two filters
    weight[0] = torch.tensor([[3.0, -1.0, 9.0, 9.0], [2.0, -2.0, 9.0, 9.0]])
    weight[1] = torch.tensor([[9.0, 9.0, 0.5, 0.25], [9.0, 9.0, -7.0, 1.0]])
    assert probes.own_correlations(weight)[1].tolist() == [[0.5, 0.25], [-7.0, 1.0]]
    assert probes.max_correlation(weight).tolist() == [[3.0, -1.0], [0.5, 1.0]]
    assert probes.total_correlation(weight, 0.5).tolist() == [[5.0, 0.0], [0.5, 1.0]]
    assert probes.total_correlation(weight, 2.5).tolist() == [[3.0, 0.0], [0.0, 0.0]]


def test_balance():
    correlation = torch.tensor([[2.0, 4.0], [4.0, 1.0], [3.0, 3.0], [5.0, -1.0], [0.0, 0.0], [-2.0, -1.0]])
    expected = torch.tensor([0.5, 0.25, 1.0, 0.0, 0.0, 0.0])
    assert torch.equal(probes.balance(correlation), expected)
    assert torch.equal(probes.balance(correlation.double().view(2, 3, 2)), expected.double().view(2, 3))
    assert probes.balance(torch.tensor([2.0, 8.0, 4.0])) == 0.25


# --- accuracies ---


def test_accuracy_and_class_accuracy():
    prediction = torch.tensor([0, 1, 1, 2, 2, 2])
    y = torch.tensor([0, 1, 0, 2, 2, 1])
    logits = torch.nn.functional.one_hot(prediction, 4).double()
    assert probes.accuracy(logits, y) == pytest.approx(4 / 6)
    assert np.array_equal(probes.class_accuracy(logits, y), [0.5, 0.5, 1.0, nan], equal_nan=True)
    logits, y = torch.stack([logits, logits]), torch.stack([y, y.roll(1)])
    assert probes.accuracy(logits, y).tolist() == pytest.approx([4 / 6, 3 / 6])
    assert np.array_equal(probes.class_accuracy(logits, y)[1], [0.0, 0.5, 1.0, nan], equal_nan=True)


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
    return world.sample(len(y), seeded(), y=y, dtype=torch.float64)


def logits_of(weight):
    return lambda x, multiplicity: patch_logits(weight, x, multiplicity, 8, 0.1)


def test_features_known_by_construction_are_found():
    weight = knowing()[None]
    found = probes.feature_accuracy(logits_of(weight), fresh_points())
    assert found.shape == (1, 5, 2)
    assert found[0].tolist() == [[1.0, 1.0], *[list(map(float, known)) for known in KNOWS]]
    assert probes.learned_counts(found).tolist() == [[2, 2, 1, 1, 0]]


def test_each_replica_is_judged_by_its_own_weights():
    whole = torch.zeros_like(knowing())
    for y in range(5):
        whole[y, 0, 2 * y] = whole[y, 1, 2 * y + 1] = 3.0
    first_only = whole.clone()
    first_only[:, 1] = 0
    found = probes.feature_accuracy(logits_of(torch.stack([whole, first_only, knowing()])), fresh_points())
    counts = probes.learned_counts(found)
    assert counts[0].tolist() == [2] * 5
    assert counts[1, 1:].tolist() == [1] * 4
    assert counts[2].tolist() == [2, 2, 1, 1, 0]


def test_full_points_hide_what_is_not_known():
    """Without the deletion a class with one feature looks as good as a class with both."""
    sample = fresh_points()
    plain = probes.class_accuracy(logits_of(knowing())(sample.x, sample.multiplicity), sample.y)
    assert plain.tolist() == [1.0, 1.0, 1.0, 1.0, 0.0]


def test_a_stronger_foreign_response_spoils_a_feature():
    weight = knowing()
    weight[1, 0, 2] = 0.0  # class 1 forgets its first feature, class 2 takes it for its own
    weight[2, 1, 2] = 3.0
    found = probes.feature_accuracy(logits_of(weight[None]), fresh_points())[0]
    assert found[1].tolist() == [0.0, 1.0]
    assert found[2].tolist() == [1.0, 0.0]


def test_learned_counts_use_the_threshold():
    values = torch.tensor([[0.9, 0.89], [1.0, 0.95], [0.5, nan]])
    assert probes.learned_counts(values).tolist() == [1, 2, 0]
    assert probes.learned_counts(values, threshold=0.5).tolist() == [2, 2, 1]
    assert not probes.learned_counts(values).is_floating_point()


def test_a_tie_is_not_a_hit():
    logits = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    assert probes.accuracy(logits, torch.tensor([0, 0])).item() == 0.5


def test_cosines_are_signed_scale_free_and_survive_tiny_weights():
    w = torch.tensor([[[3.0, 4.0], [0.0, 0.0]], [[-1.0, 0.0], [0.0, 2.0]]])
    want = torch.tensor([[[0.6, 0.8], [0.0, 0.0]], [[-1.0, 0.0], [0.0, 1.0]]], dtype=torch.float64)
    for scale in (1.0, 1e-30):
        assert torch.allclose(probes.cosines(scale * w, torch.tensor([[2.0, 0.0], [0.0, 0.5]])), want)
        assert torch.allclose(probes.cosines(scale * w, torch.tensor([0.0, 7.0])), want[..., 1])


# --- linear probes ---


def test_a_linear_probe_is_logistic_regression():
    from sklearn.linear_model import LogisticRegression

    x, noise = normal(2, 60, 3), normal(2, 60, seed=1)
    y = (3 * x[..., 0] + 0.5 + noise > 0).long()
    x, scale = 7 * x, torch.full((2, 1, 1), 7.0, dtype=torch.float64)
    probe = probes.linear_probe(x, y, 2, training.SGD(2.0), 2000, scale)
    for r in range(2):
        fitted = LogisticRegression(C=np.inf, tol=1e-10).fit(x[r] / 7, y[r])
        logits = probe(x)[r]
        assert np.allclose(logits[:, 1] - logits[:, 0], fitted.decision_function(x[r] / 7), atol=1e-4)
