"""The Mixup losses written out pair by pair, their floors, and the laws of the mixing weight."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as sp
from torch.nn import functional as F

from mvnb import losses

few = settings(max_examples=25, deadline=None)
some = settings(max_examples=60, deadline=None)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def problem(seed, n=6, dim=4, n_classes=3, scale=1.0):
    """A nonlinear model, points and labels."""
    generator = seeded(seed)
    first, second = (torch.randn(*shape, generator=generator, dtype=torch.float64) for shape in ((dim, 5), (5, n_classes)))
    x = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    y = torch.randint(n_classes, (n,), generator=generator)
    return lambda z: scale * (z @ first).tanh() @ second, x, y


def pair_by_pair(f, x, y, lam):
    """Mean over all ordered pairs, in plain loops."""
    total = 0.0
    for i in range(len(x)):
        for j in range(len(x)):
            log_phi = f(lam[i, j] * x[i] + (1 - lam[i, j]) * x[j]).log_softmax(-1)
            total -= (lam[i, j] * log_phi[y[i]] + (1 - lam[i, j]) * log_phi[y[j]]).item()
    return total / len(x) ** 2


def cross_fraction(y):
    return (y[:, None] != y[None, :]).double().mean().item()


# --- the losses ---


@few
@given(seed=st.integers(0, 10_000), lam=st.floats(0, 1))
def test_mixup_over_all_pairs_is_its_definition(seed, lam):
    f, x, y = problem(seed)
    weights = torch.rand(6, 6, generator=seeded(seed + 1), dtype=torch.float64)
    assert math.isclose(losses.mixup_all_pairs(f, x, y, weights), pair_by_pair(f, x, y, weights), rel_tol=1e-12)
    number = pair_by_pair(f, x, y, torch.full((6, 6), lam, dtype=torch.float64))
    assert math.isclose(losses.mixup_all_pairs(f, x, y, lam), number, rel_tol=1e-12)


@few
@given(seed=st.integers(0, 10_000))
def test_midpoint_is_soft_cross_entropy_on_midpoints(seed):
    f, x, y = problem(seed)
    middle = ((x[:, None] + x[None, :]) / 2).flatten(0, 1)
    hot = F.one_hot(y, 3).double()
    label = ((hot[:, None] + hot[None, :]) / 2).flatten(0, 1)
    assert torch.allclose(label.sum(-1), torch.ones(36, dtype=torch.float64))
    value = losses.midpoint_mixup(f, x, y)
    assert torch.allclose(value, losses.cross_entropy(f, middle, label), atol=1e-12, rtol=0)
    assert torch.allclose(value, losses.mixup_all_pairs(f, x, y, 0.5), atol=1e-12, rtol=0)


@few
@given(seed=st.integers(0, 10_000))
def test_weights_of_0_and_1_are_erm(seed):
    f, x, y = problem(seed)
    erm = losses.cross_entropy(f, x, y)
    for lam in (0.0, 1.0, torch.zeros(6, 6), torch.ones(6, 6)):
        assert torch.allclose(losses.mixup_all_pairs(f, x, y, lam), erm, atol=1e-12, rtol=0)
    point = -f(x).log_softmax(-1)[torch.arange(6), y]
    coin = torch.randint(2, (6, 6), generator=seeded(seed)).double()
    expected = (coin * point[:, None] + (1 - coin) * point[None, :]).mean()
    assert torch.allclose(losses.mixup_all_pairs(f, x, y, coin), expected, atol=1e-12, rtol=0)


@few
@given(seed=st.integers(0, 10_000))
def test_swapping_a_pair_and_its_weight_changes_nothing(seed):
    f, x, y = problem(seed)
    lam = torch.rand(6, 6, generator=seeded(seed + 1), dtype=torch.float64)
    assert torch.allclose(losses.mixup_all_pairs(f, x, y, lam), losses.mixup_all_pairs(f, x, y, 1 - lam.T), atol=1e-12, rtol=0)
    order = torch.randperm(6, generator=seeded(seed + 2))
    assert torch.allclose(losses.midpoint_mixup(f, x, y), losses.midpoint_mixup(f, x[order], y[order]), atol=1e-12, rtol=0)


@some
@given(seed=st.integers(0, 10_000), scale=st.floats(0.0, 100.0), n_classes=st.integers(2, 6))
def test_no_model_is_below_the_entropy_of_its_labels(seed, scale, n_classes):
    f, x, y = problem(seed, n_classes=n_classes, scale=scale)
    assert losses.midpoint_mixup(f, x, y) >= cross_fraction(y) * math.log(2) - 1e-12
    lam = torch.rand(6, 6, generator=seeded(seed + 1), dtype=torch.float64)
    entropy = torch.where(y[:, None] != y[None, :], torch.special.entr(lam) + torch.special.entr(1 - lam), 0.0)
    assert losses.mixup_all_pairs(f, x, y, lam) >= entropy.mean() - 1e-12


def test_the_floor_of_the_midpoint_loss_is_reached_in_the_limit():
    y = torch.tensor([0, 0, 1, 2])
    x = F.one_hot(y, 3).double()
    excess = [losses.midpoint_mixup(lambda z, c=c: c * z, x, y).item() - cross_fraction(y) * math.log(2) for c in (1, 20, 80)]
    assert excess[0] > excess[1] > excess[2]
    assert abs(excess[2]) < 1e-12


def test_a_model_that_says_nothing_pays_log_k():
    def f(z):
        return torch.zeros(len(z), 5, dtype=torch.float64)

    x, y = torch.ones(4, 2, dtype=torch.float64), torch.tensor([0, 1, 4, 4])
    for value in (losses.cross_entropy(f, x, y), losses.midpoint_mixup(f, x, y), losses.mixup_all_pairs(f, x, y, 0.3)):
        assert math.isclose(value, math.log(5), rel_tol=1e-12)


@few
@given(seed=st.integers(0, 10_000), lam=st.floats(0, 1))
def test_mixup_of_sampled_pairs(seed, lam):
    f, x, y = problem(seed)
    partner = torch.randint(6, (6,), generator=seeded(seed + 1))
    each = torch.rand(6, generator=seeded(seed + 2), dtype=torch.float64)
    for weight in (each, lam, torch.tensor(lam, dtype=torch.float64)):
        w = torch.as_tensor(weight, dtype=torch.float64).expand(6)
        log_phi = f(w[:, None] * x + (1 - w[:, None]) * x[partner]).log_softmax(-1)
        rows = torch.arange(6)
        expected = -(w * log_phi[rows, y] + (1 - w) * log_phi[rows, y[partner]]).mean()
        assert torch.allclose(losses.mixup(f, x, y, x[partner], y[partner], weight), expected, atol=1e-12, rtol=0)


def test_mixup_of_images():
    x, x2 = (torch.randn(4, 2, 3, 3, generator=seeded(s), dtype=torch.float64) for s in (0, 1))
    y, y2, lam = torch.tensor([0, 1, 2, 0]), torch.tensor([2, 2, 1, 0]), torch.tensor([0.0, 0.2, 0.5, 1.0])
    seen = []

    def f(z):
        seen.append(z)
        return z.mean((-1, -2)) @ torch.eye(2, 3, dtype=torch.float64)

    value = losses.mixup(f, x, y, x2, y2, lam)
    w = lam.double().view(4, 1, 1, 1)
    assert torch.allclose(seen[0], w * x + (1 - w) * x2, atol=1e-7)
    label = lam.double()[:, None] * F.one_hot(y, 3) + (1 - lam.double()[:, None]) * F.one_hot(y2, 3)
    assert torch.allclose(value, losses.cross_entropy(f, seen[0], label), atol=1e-12, rtol=0)


def test_cross_entropies_agree_with_pytorch():
    f, x, y = problem(0)
    target = torch.rand(6, 3, generator=seeded(), dtype=torch.float64).softmax(-1)
    by_hand = -(target * f(x).log_softmax(-1)).sum(-1).mean()
    assert torch.allclose(losses.cross_entropy(f, x, target), by_hand, rtol=1e-12)
    assert torch.allclose(losses.cross_entropy(f, x, F.one_hot(y, 3).double()), losses.cross_entropy(f, x, y), rtol=1e-12)


# --- the laws of the weight ---


def test_midpoint_is_a_law_of_its_own():
    generator = seeded()
    before = generator.get_state()
    assert torch.equal(losses.sample_mixing("midpoint", (3, 2), generator), torch.full((3, 2), 0.5))
    assert torch.equal(generator.get_state(), before)  # nothing is drawn


@pytest.mark.parametrize(("law", "a"), [("uniform", 1.0), (1.0, 1.0), (0.2, 0.2), (8, 8.0)])
def test_weights_follow_their_law(law, a):
    lam = losses.sample_mixing(law, (60, 50), seeded(), torch.float64)
    assert lam.shape == (60, 50)
    assert lam.min() >= 0 and lam.max() <= 1
    assert sp.kstest(lam.flatten().numpy(), sp.beta(a, a).cdf).pvalue > 0.01
    assert lam.mean().item() == pytest.approx(0.5, abs=4 * lam.std().item() / 3000**0.5)
    assert lam.var().item() == pytest.approx(1 / (4 * (2 * a + 1)), rel=0.1)
    for other in (lam.flip(0), lam.flip(1), lam.roll(1, 0), lam.roll(1, 1)):  # every weight is drawn for itself
        assert torch.corrcoef(torch.stack([lam.flatten(), other.flatten()]))[0, 1].abs() < 0.1


def test_the_two_limits_of_the_beta_law():
    narrow, coin = (losses.sample_mixing(a, (2000,), seeded(), torch.float64) for a in (1e6, 0.01))
    assert (narrow - 0.5).abs().max() < 0.01
    assert narrow.std() > 0
    ends = torch.minimum(coin, 1 - coin)
    assert (ends < 1e-3).double().mean() > 0.9
    assert abs((coin > 0.5).double().mean() - 0.5) < 0.05


@pytest.mark.parametrize("law", ["uniform", 0.4])
def test_weights_repeat_with_the_generator_and_take_a_dtype(law):
    one, two, other = (losses.sample_mixing(law, (5,), seeded(s)) for s in (0, 0, 1))
    assert torch.equal(one, two) and not torch.equal(one, other)
    assert one.dtype == torch.float32
    assert losses.sample_mixing(law, (5,), seeded(), torch.float64).dtype == torch.float64


@pytest.mark.parametrize("law", [0, 0.0, -1.0, math.nan, math.inf, "beta", "Midpoint", ""])
def test_other_laws_are_refused(law):
    with pytest.raises(ValueError, match="mixing law"):
        losses.sample_mixing(law, (2,), seeded())
