"""Each closed form of the mask-reconstruction paper against enumeration, autograd, quadrature or simulation."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.integrate import quad, solve_ivp

from mvnb import training
from mvnb.models import PatchObjective, smoothed_relu
from mvnb.papers.mask_reconstruction import theory
from mvnb.papers.mask_reconstruction.data import SparseMultiView
from mvnb.papers.mask_reconstruction.model import FineTuneObjective, MaskedAutoencoderObjective, TeacherStudentObjective

few = settings(max_examples=25, deadline=None)


def one_feature(strength, patches, empty=0):
    """One replica, one point: ``patches`` patches of a feature of dimension 1, and empty ones."""
    x = torch.zeros(1, 1, patches + empty, 1, dtype=torch.float64)
    x[..., :patches, :] = strength
    return x


def push(objective, u, *batch):
    """Minus the gradient of a single kernel of length u along the feature."""
    params = {"weight": torch.tensor([[[u]]], dtype=torch.float64)}
    return -objective(params, *batch)[1]["weight"].item()


@pytest.mark.parametrize(("power", "patches", "keep"), [(2, 1, 0.5), (3, 2, 0.3), (4, 3, 0.7)])
def test_growth_laws_are_the_gradients_below_the_threshold(power, patches, keep):
    strength, threshold, u = 0.9, 0.4, 0.05
    x = one_feature(strength, patches)

    def moment(n):
        return patches * strength**n

    law = theory.teacher_student_growth(power, threshold, keep, moment(2 * power), moment(power) ** 2)
    measured = push(TeacherStudentObjective(power, threshold), u, x, keep)
    assert np.isclose(measured, law.constant * u**law.exponent, rtol=1e-9)
    law = theory.autoencoder_growth(power, threshold, moment(power + 1))
    # The second term of the gradient, which turns growth into rest, is a power of u smaller; it is removed by an extrapolation.
    fractions = [push(MaskedAutoencoderObjective(power, threshold), s, x, keep) / s**law.exponent for s in (u / 50, u / 100)]
    assert np.isclose(fractions[1], law.constant, rtol=1e-2) and law.exponent == power
    law = theory.supervised_growth(power, threshold, moment(power) / 2, 2)
    params = {"weight": torch.tensor([[[[u]], [[0.0]]]], dtype=torch.float64)}
    batch = (x, torch.tensor([[0]]), torch.ones(1, patches, dtype=torch.float64))
    measured = -PatchObjective(power, threshold, torch.float64)(params, *batch)[1]["weight"][0, 0, 0, 0].item() / 2
    logit = patches * smoothed_relu(torch.tensor(u * strength, dtype=torch.float64), power, threshold).item()
    assert np.isclose(measured, law.constant * u**law.exponent * 2 / (1 + math.exp(logit)), rtol=1e-6)


@few
@given(st.integers(1, 7), st.floats(0.1, 5.0), st.floats(0.01, 0.2), st.floats(1.1, 4.0))
def test_growth_times_are_those_of_the_differential_equation(exponent, constant, start, ratio):
    law = theory.GrowthLaw(constant, exponent)
    time = law.time(start, ratio * start)
    path = solve_ivp(lambda t, u: constant * u**exponent, (0, time), [start], rtol=1e-9, atol=1e-14)
    assert np.isclose(path.y[0, -1], ratio * start, rtol=1e-5)
    if exponent > 1:
        assert law.time(start) > time


def test_a_held_feature_drifts_at_the_predicted_rate():
    power, threshold, keep, u = 3, 0.2, 0.4, 1.3
    measured = push(TeacherStudentObjective(power, threshold), u, one_feature(0.8, 1), keep)
    predicted = theory.teacher_student_drift(power, threshold, keep, 1.0, 0.8)
    assert np.isclose(measured, predicted, rtol=1e-10)
    assert predicted > 0


def test_two_features_in_a_kernel_grow_exponentially():
    keep, frequency = 0.4, 1.0
    x = torch.eye(2, dtype=torch.float64)[None, None]  # two patches, a feature each
    objective, w = TeacherStudentObjective(3, 0.2), torch.tensor([[[5.0, 5.0]]], dtype=torch.float64)
    step = 1e-3
    for _ in range(1000):
        before = w.clone()
        w = w - step * objective({"weight": w}, x, keep)[1]["weight"]
    rate = math.log(w.sum() / before.sum()) / step
    # The constant drift of each feature adds to the exponential, and is small beside it.
    assert np.isclose(rate, theory.teacher_student_pair_rate(keep, frequency), rtol=0.03)


@few
@given(st.sampled_from([2, 3, 4]), st.floats(0.1, 0.8), st.floats(0.05, 1.0), st.floats(0.3, 1.5))
def test_the_fixed_point_is_one(power, threshold, keep, strength):
    u = theory.autoencoder_fixed_point(power, threshold, keep, strength)
    answer = smoothed_relu(torch.tensor(u * strength, dtype=torch.float64), power, threshold).item()
    assert np.isclose(u * answer, keep * strength, rtol=1e-7)
    x = one_feature(strength, 1)
    objective = MaskedAutoencoderObjective(power, threshold)
    assert abs(push(objective, u, x, keep)) < 1e-8
    assert push(objective, 0.99 * u, x, keep) > 0 > push(objective, 1.01 * u, x, keep)


def test_the_fixed_point_of_a_law_of_strengths():
    strengths, weights = theory.strength_rule((1.0, 1.3), (0.2, 0.4), 2.0, 5)
    u = theory.autoencoder_fixed_point(4, 0.5, 0.5, strengths, weights)

    def integrand(z):
        at = torch.tensor(u * z, dtype=torch.float64, requires_grad=True)
        value = smoothed_relu(at, 4, 0.5)
        (slope,) = torch.autograd.grad(value, at)
        value, slope = value.item(), slope.item()
        return (value + slope * u * z) * (z - u * value / 0.5)

    own, foreign = quad(integrand, 1.0, 1.3)[0] / 0.3 / 5, quad(integrand, 0.2, 0.4)[0] / 0.2 * 0.8 * 0.4
    assert abs(own + foreign) < 1e-6


def test_the_limit_of_a_small_threshold_is_the_papers_bound():
    assert np.isclose(theory.autoencoder_fixed_point(4, 1e-6, 0.3, 1.0) ** 2, 0.3, rtol=1e-5)
    with pytest.raises(ValueError, match="positive"):
        theory.autoencoder_fixed_point(4, 0.5, 0.5, [0.0])


def test_the_lottery_names_every_winner_and_whoever_is_ahead_of_the_last():
    initial = np.array([[0.9, 0.1], [0.6, 0.5], [0.2, 0.3], [0.51, 0.2]])
    assert theory.lottery(initial).tolist() == [[True, False], [True, True], [False, False], [True, False]]


def test_the_first_head_step_is_the_centroid_classifier():
    g = torch.Generator().manual_seed(0)
    y = torch.arange(4).repeat(5)[None]
    x, w = torch.randn(1, 20, 3, 6, generator=g).double(), torch.randn(1, 7, 6, generator=g).double()
    objective, params = FineTuneObjective(3, 0.4), {"weight": w, "head": torch.zeros(1, 4, 7).double()}
    stepped = training.fit(objective, params, (x, y), steps=1, optimizer=training.SGD(2.5)).params
    hidden = objective.features(w, x)[0].numpy()
    head = theory.centroid_head(hidden, y[0].numpy(), 4, 2.5)
    assert np.allclose(stepped["head"][0].numpy(), head, atol=1e-12)
    means = np.stack([hidden[y[0].numpy() == i].mean(0) for i in range(4)])
    assert np.allclose(head, 2.5 / 4 * (means - hidden.mean(0)), atol=1e-12)
    assert torch.equal(stepped["weight"], w)


def test_ideal_margins_are_those_of_the_population_head():
    k, rate, psi, eta = 4, 1.2, np.array([0.5, 1.5, 1.0, 2.0, 0.3, 0.7, 1.1, 0.9]), 3.0
    own, foreign = 1.15, 0.3
    # Mean features given each class, exactly.
    mean = np.where(np.arange(8) // 2 == np.arange(k)[:, None], own, rate / k * foreign) * psi  # (class, kernel)
    head = eta / k * (mean - mean.mean(0))
    z = np.random.default_rng(0).uniform(0, 1, size=8)
    logits = head @ (psi * z)
    squared, view = (psi**2).reshape(k, 2), z.reshape(k, 2)
    for j in (1, 3):
        margin = theory.ideal_margin(view[0], view[j], squared[0], squared[j], own, foreign, rate, k, eta)
        assert np.isclose(logits[0] - logits[j], margin, rtol=1e-12)


def test_single_view_accuracy_against_simulation():
    learned = np.array([[1, 0], [1, 1], [0, 1], [0, 0]], dtype=bool)
    world = SparseMultiView(4, 24, 8, foreign=1.0, single_view=1.0, patch_noise=0, background_noise=0)
    sample = world.sample(20_000, torch.Generator().manual_seed(0))
    shown = torch.zeros(20_000, 8).scatter_add_(1, sample.holds.clamp(min=0), sample.strength * (sample.holds >= 0))
    logits = (shown * torch.tensor(learned.reshape(-1))).view(-1, 4, 2).sum(-1)
    # A class of which nothing was learned is right when nobody else speaks: ties count as right here.
    right = (logits.gather(1, sample.y[:, None])[:, 0] >= logits.amax(1)).double()
    assert abs(right.mean().item() - theory.single_view_accuracy(learned.ravel(), 1.0)) < 4 * right.std().item() / math.sqrt(
        20_000
    )
    assert theory.single_view_accuracy(np.ones(8), 1.0) == 1.0


@pytest.mark.parametrize(("strength", "keep"), [(1.15, 0.5), (0.7, 0.2), (1.0, 1.0)])
def test_a_stair_is_what_the_loss_falls_by_when_a_feature_is_held(strength, keep):
    power, threshold = 4, 0.6
    level = theory.autoencoder_fixed_point(power, threshold, keep, strength)
    objective, x = MaskedAutoencoderObjective(power, threshold), one_feature(strength, 3, empty=1)
    empty, held = (objective({"weight": torch.tensor([[[u]]]).double()}, x, keep)[0].item() for u in (0.0, level))
    assert empty - held == pytest.approx(3 * theory.stair(level, strength, power, threshold, keep), abs=1e-12)


def test_sums_by_feature_count_only_patches_that_show_it():
    holds = np.array([[0, -1, 1], [1, 1, -1]])
    strength = np.array([[2.0, 9.0, 3.0], [1.0, 2.0, 9.0]])
    assert theory.per_feature(lambda z: z**2, strength, holds, 3).tolist() == [2.0, 7.0, 0.0]
