"""Objectives of mask-reconstruction pretraining: losses written out, autograd, enumeration of every mask, stacking."""

from itertools import product

import pytest
import torch

from mvnb import training
from mvnb.models import patch_features, smoothed_relu
from mvnb.papers.mask_reconstruction.model import (
    FineTuneObjective,
    MaskedAutoencoderObjective,
    TeacherStudentObjective,
)

POWER, THRESHOLD, KEEP = 3, 0.5, 0.4
R, N, P, D, K, CLASSES = 2, 3, 4, 6, 5, 3


@pytest.fixture
def batch():
    g = torch.Generator().manual_seed(0)
    return {
        "weight": 0.6 * torch.randn(R, K, D, generator=g, dtype=torch.float64),
        "head": torch.randn(R, CLASSES, K, generator=g, dtype=torch.float64),
        "x": torch.randn(R, N, P, D, generator=g, dtype=torch.float64),
        "y": torch.randint(CLASSES, (R, N), generator=g),
    }


def response(weight, x):
    """(n, patches, kernels) of one replica."""
    return smoothed_relu(x @ weight.T, POWER, THRESHOLD)


def teacher_student(weight, x, mask, teacher_weight, keep=KEEP):
    """The loss as printed, of one replica; ``mask`` (n, patches)."""
    target = response(teacher_weight, x).sum(1)
    student = response(weight, mask[..., None] * x).sum(1) / keep
    return (target - student).square().sum(-1).mean() / 2


def autoencoder(weight, x, mask, keep=KEEP):
    decoded = response(weight, mask[..., None] * x) @ weight / keep
    return (x - decoded).square().sum((1, 2)).mean() / 2


def over_masks(loss):
    """The exact expectation over independent masks, by enumeration."""
    total = 0.0
    for bits in product((0.0, 1.0), repeat=P):
        kept = sum(bits)
        total = total + KEEP**kept * (1 - KEEP) ** (P - kept) * loss(torch.tensor(bits, dtype=torch.float64).expand(N, P))
    return total


def differentiated(loss, weight):
    weight = weight.clone().requires_grad_()
    value = loss(weight)
    return value.detach(), torch.autograd.grad(value, weight)[0]


def agree(a, b, tolerance=1e-12):
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance)


def random_mask():
    return (torch.rand(R, N, P, generator=torch.Generator().manual_seed(1)) < KEEP).double()


def test_teacher_student_in_expectation_is_the_enumeration_of_masks(batch):
    losses, grads = TeacherStudentObjective(POWER, THRESHOLD)({"weight": batch["weight"]}, batch["x"], KEEP)
    tau = 1 + (1 - KEEP) / KEEP
    for r in range(R):
        teacher = tau * batch["weight"][r]

        def loss(w, r=r, t=teacher):
            return over_masks(lambda mask: teacher_student(w, batch["x"][r], mask, t))

        value, grad = differentiated(loss, batch["weight"][r])
        assert agree(losses[r], value) and agree(grads["weight"][r], grad)


def test_the_teacher_is_held_fixed_in_the_gradient(batch):
    _, grads = TeacherStudentObjective(POWER, THRESHOLD)({"weight": batch["weight"]}, batch["x"], KEEP)

    def loss(w):
        return over_masks(lambda mask: teacher_student(w, batch["x"][0], mask, w / KEEP))

    assert not agree(grads["weight"][0], differentiated(loss, batch["weight"][0])[1], 1e-3)


def test_teacher_student_with_a_frozen_teacher(batch):
    teacher = batch["weight"].flip(1)
    objective = TeacherStudentObjective(POWER, THRESHOLD)
    target = objective.features(teacher, batch["x"])
    losses, grads = objective({"weight": batch["weight"]}, batch["x"], KEEP, target)

    def loss(w):
        return over_masks(lambda mask: teacher_student(w, batch["x"][0], mask, teacher[0]))

    value, grad = differentiated(loss, batch["weight"][0])
    assert agree(losses[0], value) and agree(grads["weight"][0], grad)


def test_teacher_student_kernels_do_not_interact(batch):
    objective, changed = TeacherStudentObjective(POWER, THRESHOLD), batch["weight"].clone()
    changed[:, 0] += 1
    before, after = (objective({"weight": w}, batch["x"], KEEP)[1]["weight"] for w in (batch["weight"], changed))
    assert agree(before[:, 1:], after[:, 1:])
    one, other = (
        MaskedAutoencoderObjective(POWER, THRESHOLD)({"weight": w}, batch["x"], KEEP)[1]["weight"]
        for w in (batch["weight"], changed)
    )
    assert not agree(one[:, 1:], other[:, 1:], 1e-3)


def test_nothing_masked_and_an_equal_teacher_is_no_task(batch):
    losses, grads = TeacherStudentObjective(POWER, THRESHOLD)({"weight": batch["weight"]}, batch["x"], 1.0)
    assert (losses == 0).all() and (grads["weight"] == 0).all()


def test_autoencoder_in_expectation_is_the_enumeration_of_masks(batch):
    losses, grads = MaskedAutoencoderObjective(POWER, THRESHOLD)({"weight": batch["weight"]}, batch["x"], KEEP)
    for r in range(R):

        def loss(w, r=r):
            return over_masks(lambda mask: autoencoder(w, batch["x"][r], mask))

        value, grad = differentiated(loss, batch["weight"][r])
        assert agree(losses[r], value) and agree(grads["weight"][r], grad)


def test_autoencoder_with_a_mask(batch):
    mask = random_mask()
    losses, grads = MaskedAutoencoderObjective(POWER, THRESHOLD)({"weight": batch["weight"]}, batch["x"], KEEP, mask)
    for r in range(R):
        value, grad = differentiated(lambda w, r=r: autoencoder(w, batch["x"][r], mask[r]), batch["weight"][r])
        assert agree(losses[r], value) and agree(grads["weight"][r], grad)


def test_the_printed_direction_is_no_gradient_but_agrees_along_each_kernel(batch):
    exact, paper = (
        MaskedAutoencoderObjective(POWER, THRESHOLD, kind)({"weight": batch["weight"]}, batch["x"], KEEP)[1]["weight"]
        for kind in ("exact", "paper")
    )
    assert ((exact - paper).norm() / exact.norm()) > 0.1
    positive = (batch["x"].flatten(1, 2) @ batch["weight"].mT).clamp(min=0)
    assert (positive > 0).any()
    assert agree((exact * batch["weight"]).sum(-1), (paper * batch["weight"]).sum(-1))


def test_keep_may_differ_between_replicas(batch):
    keeps = torch.tensor([0.3, 0.8])
    both = TeacherStudentObjective(POWER, THRESHOLD), MaskedAutoencoderObjective(POWER, THRESHOLD)
    for objective, *mask in ((both[0],), (both[1],), (both[1], random_mask())):
        losses, grads = objective({"weight": batch["weight"]}, batch["x"], keeps, *mask)
        for r, keep in enumerate(keeps.tolist()):
            one = [part[r : r + 1] for part in mask]
            loss, grad = objective({"weight": batch["weight"][r : r + 1]}, batch["x"][r : r + 1], keep, *one)
            assert agree(losses[r], loss[0], 1e-6) and agree(grads["weight"][r], grad["weight"][0], 1e-6)


def test_fine_tuning_is_autograd(batch):
    objective, params = FineTuneObjective(POWER, THRESHOLD), {k: batch[k] for k in ("weight", "head")}
    losses, grads = objective(params, batch["x"], batch["y"])
    hidden = patch_features(batch["weight"], batch["x"], None, POWER, THRESHOLD)
    assert agree(objective.logits(params, batch["x"]), hidden @ batch["head"].mT)
    for r in range(R):
        leaves = [batch[k][r].clone().requires_grad_() for k in ("weight", "head")]
        logits = response(leaves[0], batch["x"][r]).sum(1) @ leaves[1].T
        value = torch.nn.functional.cross_entropy(logits, batch["y"][r])
        kernels, head = torch.autograd.grad(value, leaves)
        assert agree(losses[r], value.detach())
        assert agree(grads["weight"][r], kernels) and agree(grads["head"][r], head)


def test_a_head_of_zeros_moves_no_kernel_and_keeps_its_columns_balanced(batch):
    params = {"weight": batch["weight"], "head": torch.zeros_like(batch["head"])}
    losses, grads = FineTuneObjective(POWER, THRESHOLD)(params, batch["x"], batch["y"])
    assert agree(losses, torch.full((R,), CLASSES, dtype=torch.float64).log())
    assert (grads["weight"] == 0).all() and grads["head"].sum(1).abs().max() < 1e-14


def test_a_stack_follows_its_single_runs(batch):
    objective, optimizer = MaskedAutoencoderObjective(POWER, THRESHOLD), training.FlowGD(relative=0.1, absolute=0.05, knee=0.5)
    together = training.fit(objective, {"weight": batch["weight"]}, (batch["x"], KEEP), steps=20, optimizer=optimizer)
    for r in range(R):
        alone = training.fit(
            objective, {"weight": batch["weight"][r : r + 1]}, (batch["x"][r : r + 1], KEEP), steps=20, optimizer=optimizer
        )
        assert agree(together.params["weight"][r], alone.params["weight"][0], 1e-9)


@pytest.mark.parametrize("kind", [TeacherStudentObjective, MaskedAutoencoderObjective, FineTuneObjective])
@pytest.mark.parametrize("power", [1, 2.5])
def test_powers_are_integers_of_at_least_two(kind, power):
    with pytest.raises(ValueError, match="power"):
        kind(power, 0.5)


def test_thresholds_and_gradients_are_checked():
    with pytest.raises(ValueError, match="threshold"):
        FineTuneObjective(3, 0.0)
    with pytest.raises(ValueError, match="gradient"):
        MaskedAutoencoderObjective(3, 0.5, "printed")


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 1e-6), (torch.float64, 1e-14)])
@pytest.mark.parametrize("power", [2, 3, 4, 7])
@pytest.mark.parametrize("scale", [1.0, 2.5])
def test_features_of_many_numbers_are_the_smoothed_relu(dtype, tolerance, power, scale):
    g = torch.Generator().manual_seed(1)
    x = torch.randn(2, 97, 5, 3, generator=g, dtype=dtype)
    weight = torch.randn(2, 7, 3, generator=g, dtype=dtype)
    expected = smoothed_relu(scale * torch.einsum("rnpd,rkd->rnpk", x, weight), power, THRESHOLD).sum(2)
    torch.testing.assert_close(
        MaskedAutoencoderObjective(power, THRESHOLD).features(weight, x, scale), expected, atol=20 * tolerance, rtol=tolerance
    )


@pytest.mark.parametrize("kind", [TeacherStudentObjective, MaskedAutoencoderObjective, FineTuneObjective])
def test_replicas_one_after_the_other_are_the_stack(batch, kind, monkeypatch):
    """What fits into the cache is taken together; both ways give the same losses and gradients."""
    params = {k: batch[k] for k in ("weight", "head")}
    keep = torch.tensor([0.3, 0.6], dtype=torch.float64)
    rest = (batch["x"], batch["y"]) if kind is FineTuneObjective else (batch["x"], keep)
    together = kind(POWER, THRESHOLD)(params, *rest)
    monkeypatch.setattr("mvnb.papers.mask_reconstruction.model._CACHED", 1)
    apart = kind(POWER, THRESHOLD)(params, *rest)
    torch.testing.assert_close(apart, together, atol=1e-12, rtol=0)
