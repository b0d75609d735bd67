"""The probes on weights whose knowledge is known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mvnb import probes, training

few = settings(max_examples=25, deadline=None)


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


def test_correlations_by_hand():
    weight = torch.zeros(2, 2, 4)  # two classes with two filters
    weight[0] = torch.tensor([[3.0, -1.0, 9.0, 9.0], [2.0, -2.0, 9.0, 9.0]])
    weight[1] = torch.tensor([[9.0, 9.0, 0.5, 0.25], [9.0, 9.0, -7.0, 1.0]])
    assert probes.own_correlations(weight)[1].tolist() == [[0.5, 0.25], [-7.0, 1.0]]
    assert probes.max_correlation(weight).tolist() == [[3.0, -1.0], [0.5, 1.0]]


# --- accuracies ---


def test_accuracy():
    prediction = torch.tensor([0, 1, 1, 2, 2, 2])
    y = torch.tensor([0, 1, 0, 2, 2, 1])
    logits = torch.nn.functional.one_hot(prediction, 4).double()
    assert probes.accuracy(logits, y) == pytest.approx(4 / 6)
    logits, y = torch.stack([logits, logits]), torch.stack([y, y.roll(1)])
    assert probes.accuracy(logits, y).tolist() == pytest.approx([4 / 6, 3 / 6])


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


def test_the_norm_is_that_of_the_parameters_that_are_named():
    params = {"weight": torch.tensor([[3.0]]), "bias": torch.tensor([4.0])}
    found = [probes.parameter_norm(params, names).item() for names in (None, ["bias"], iter(["weight", "bias"]))]
    assert found == [5.0, 4.0, 5.0]
    for names, received in (([], "none"), (["weights"], "weights")):
        with pytest.raises(ValueError, match=rf"names must be of parameters \(weight, bias\), got {received}"):
            probes.parameter_norm(params, names)


@pytest.mark.parametrize("ridge", [0.0, -1.0, np.nan, np.inf])
def test_a_ridge_is_positive_and_finite(ridge):
    with pytest.raises(ValueError, match=f"ridge must be positive and finite, got {ridge}"):
        probes.ridge_fit(torch.eye(2), torch.ones(2, 1), ridge)


def test_labels_out_of_range_and_scales_of_another_shape_are_refused():
    with pytest.raises(ValueError, match="y must lie in 0 to 2, got 3"):
        probes.accuracy(torch.zeros(2, 3), torch.tensor([0, 3]))
    features, y = torch.ones(2, 4, 2), torch.zeros(2, 4, dtype=torch.long)
    with pytest.raises(ValueError, match="y must lie in 0 to 2, got -100"):
        probes.linear_probe(features, y - 100, 3, training.SGD(0.1), 1, torch.ones(2, 1, 1))
    with pytest.raises(ValueError, match=r"scale must have shape \(2, 1, 1\), got \(2,\)"):
        probes.linear_probe(features, y, 3, training.SGD(0.1), 1, torch.ones(2))
