"""The patch network against explicit loops, autograd and the model it abbreviates; the other networks by their shapes."""

import math
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import PatchCNN
from torch import nn
from torch.nn import functional as F

from mvnb import losses, training
from mvnb.data import MultiView, Patches, embed
from mvnb.models import (
    MLP,
    PatchObjective,
    ResNet18,
    SmallConvNet,
    TwoLayer,
    TwoLayerObjective,
    patch_cnn,
    patch_logits,
    smoothed_relu,
    two_layer_outputs,
)

few = settings(max_examples=20, deadline=None)
some = settings(max_examples=60, deadline=None)
powers, thresholds = st.integers(1, 12) | st.floats(1.0, 6.0), st.floats(0.01, 5.0)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, scale=1.0):
    return scale * torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


# --- the activation ---


def piecewise(x, power, threshold):
    """The definition, a number at a time."""
    if x <= 0:
        return 0.0
    if x <= threshold:
        return x**power / (power * threshold ** (power - 1))
    return x - (1 - 1 / power) * threshold


@some
@given(power=powers, threshold=thresholds, x=st.floats(-20, 20))
def test_smoothed_relu_is_the_piecewise_definition(power, threshold, x):
    value = smoothed_relu(torch.tensor(x, dtype=torch.float64), power, threshold).item()
    assert math.isclose(value, piecewise(x, power, threshold), rel_tol=1e-10, abs_tol=1e-12)


@some
@given(power=st.integers(2, 12) | st.floats(1.5, 6.0), threshold=thresholds)
def test_smoothed_relu_and_its_slope_are_continuous(power, threshold):
    for kink, value, slope in ((0.0, 0.0, 0.0), (threshold, threshold / power, 1.0)):
        step = 1e-9 * threshold
        x = torch.tensor([kink - step, kink, kink + step], dtype=torch.float64)
        assert torch.allclose(smoothed_relu(x, power, threshold), torch.full_like(x, value), atol=1e-8 * threshold, rtol=0)
        (found,) = torch.autograd.grad(smoothed_relu(x.requires_grad_(), power, threshold).sum(), x)
        assert torch.allclose(found, torch.full_like(x, slope), atol=1e-4, rtol=0)


@some
@given(power=powers, threshold=thresholds, a=st.floats(-9, 9), b=st.floats(-9, 9), share=st.floats(0, 1))
def test_smoothed_relu_is_convex_increasing_and_1_lipschitz(power, threshold, a, b, share):
    points = torch.tensor([a, b, share * a + (1 - share) * b], dtype=torch.float64)
    fa, fb, between = smoothed_relu(points, power, threshold).tolist()
    assert between <= share * fa + (1 - share) * fb + 1e-12
    assert abs(fa - fb) <= abs(a - b) + 1e-12
    assert (fa - fb) * (a - b) >= 0


def test_smoothed_relu_of_power_1_is_relu():
    x = torch.tensor([-3.0, -1e-3, 0.0, 1e-3, 0.1, 7.0], dtype=torch.float64)
    assert torch.allclose(smoothed_relu(x, 1, 0.1), x.relu(), atol=1e-15, rtol=0)


def test_smoothed_relu_takes_no_power_of_a_large_number():
    x = torch.tensor([-1e30, 1e30], requires_grad=True)
    value = smoothed_relu(x, 8, 0.1)
    value.sum().backward()
    assert value.tolist() == pytest.approx([0.0, 1e30])
    assert x.grad.tolist() == [0.0, 1.0]


@pytest.mark.parametrize(("power", "threshold"), [(0.5, 0.1), (0, 0.1), (3, 0.0), (3, -1.0)])
def test_smoothed_relu_refuses(power, threshold):
    with pytest.raises(ValueError, match="power"):
        smoothed_relu(torch.zeros(1), power, threshold)


# --- the patch network ---


def test_patch_network_is_its_definition():
    net = PatchCNN(3, 2, 4, power=3, threshold=0.5, init_scale=1.0, generator=seeded())
    x, multiplicity = normal(5, 6, 4, seed=1), torch.tensor([1, 2, 1, 1, 7, 0])
    with torch.no_grad():
        plain, weighted = net(x), net(x, multiplicity)
    for i in range(5):
        for y in range(3):
            terms = [sum(piecewise((net.weight[y, r] @ x[i, p]).item(), 3, 0.5) for r in range(2)) for p in range(6)]
            assert math.isclose(plain[i, y], sum(terms), rel_tol=1e-12, abs_tol=1e-12)
            counted = sum(m * t for m, t in zip(multiplicity.tolist(), terms))
            assert math.isclose(weighted[i, y], counted, rel_tol=1e-12, abs_tol=1e-12)


def test_patch_network_starts_at_its_scale():
    paper = PatchCNN(10, 20, 25, generator=seeded()).weight
    assert paper.shape == (10, 20, 25) and paper.dtype == torch.float64
    assert paper.std().item() == pytest.approx(1 / 5, rel=0.05)
    own = PatchCNN(10, 20, 25, init_scale=0.01, generator=seeded(), dtype=torch.float32).weight
    assert own.dtype == torch.float32
    assert own.std().item() == pytest.approx(0.01, rel=0.05)


def test_patch_logits_of_a_stack_are_those_of_its_members():
    weight, x, multiplicity = normal(4, 3, 2, 6), normal(4, 5, 7, 6, seed=1), torch.arange(7)
    together = patch_logits(weight, x, multiplicity, 4, 0.3)
    shared = patch_logits(weight, x[0], multiplicity, 4, 0.3)
    for r in range(4):
        assert torch.allclose(together[r], patch_logits(weight[r], x[r], multiplicity, 4, 0.3), rtol=1e-12)
        assert torch.allclose(shared[r], patch_logits(weight[r], x[0], multiplicity, 4, 0.3), rtol=1e-12)


# --- its objective, by hand ---

both_ways = pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "tensors"])
POWER, THRESHOLD, REPLICAS, POINTS = 4, 0.1, 3, 7


def problem(seed=0):
    """A stack of small nets and data whose responses fall on all three pieces of the activation."""
    weight = normal(REPLICAS, 3, 2, 6, seed=seed, scale=0.15)
    x = normal(REPLICAS, POINTS, 5, 6, seed=seed + 1)
    y = torch.randint(3, (REPLICAS, POINTS), generator=seeded(seed + 2))
    multiplicity = torch.tensor([1.0, 1.0, 1.0, 3.0, 0.5], dtype=torch.float64).expand(REPLICAS, -1)
    return weight, x, y, multiplicity


def by_autograd(loss, weight, x, y, multiplicity, power=POWER):
    values, grads = [], []
    for r in range(len(weight)):
        leaf = weight[r].clone().requires_grad_()
        value = loss(r, lambda z, leaf=leaf: patch_logits(leaf, z, multiplicity[0], power, THRESHOLD), x[r], y[r])
        grads.append(torch.autograd.grad(value, leaf)[0])
        values.append(value.detach())
    return torch.stack(values), torch.stack(grads)


def mirrored(lam):
    """Weights of all ordered pairs in which the pair (j, i) is the same point as (i, j): only i <= j is used."""
    upper = torch.ones(lam.shape[-2:], dtype=torch.bool).triu()
    return torch.where(upper, lam, 1 - lam.mT)


@both_ways
@few
@given(seed=st.integers(0, 10_000), power=st.integers(2, 9))
def test_erm_gradient(compiled, seed, power):
    weight, *batch = problem(seed)
    loss, grad = PatchObjective(power, THRESHOLD, torch.float64, compiled)({"weight": weight}, *batch)
    expected, by_hand = by_autograd(lambda r, f, x, y: losses.cross_entropy(f, x, y), weight, *batch, power)
    assert torch.allclose(loss, expected, atol=1e-10, rtol=1e-10)
    assert torch.allclose(grad["weight"], by_hand, atol=1e-10, rtol=1e-10)


@both_ways
@few
@given(seed=st.integers(0, 10_000), power=st.integers(2, 9))
def test_midpoint_gradient(compiled, seed, power):
    weight, *batch = problem(seed)
    loss, grad = PatchObjective(power, THRESHOLD, torch.float64, compiled)({"weight": weight}, *batch, 0.5)
    expected, by_hand = by_autograd(lambda r, f, x, y: losses.midpoint_mixup(f, x, y), weight, *batch, power)
    assert torch.allclose(loss, expected, atol=1e-10, rtol=1e-10)
    assert torch.allclose(grad["weight"], by_hand, atol=1e-10, rtol=1e-10)


@both_ways
@few
@given(seed=st.integers(0, 10_000))
def test_gradient_with_a_weight_for_every_pair(compiled, seed):
    weight, *batch = problem(seed)
    lam = torch.rand(REPLICAS, POINTS, POINTS, generator=seeded(seed + 3), dtype=torch.float64)
    loss, grad = PatchObjective(POWER, THRESHOLD, torch.float64, compiled)({"weight": weight}, *batch, lam)
    full = mirrored(lam)
    expected, by_hand = by_autograd(lambda r, f, x, y: losses.mixup_all_pairs(f, x, y, full[r]), weight, *batch)
    assert torch.allclose(loss, expected, atol=1e-10, rtol=1e-10)
    assert torch.allclose(grad["weight"], by_hand, atol=1e-10, rtol=1e-10)


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
@pytest.mark.parametrize("tensor", [False, True])
def test_blocks_of_pairs_change_nothing(rows, tensor, monkeypatch):
    weight, *batch = problem()
    lam = torch.rand(REPLICAS, POINTS, POINTS, generator=seeded(3), dtype=torch.float64) if tensor else 0.5
    objective = PatchObjective(POWER, THRESHOLD, torch.float64, compiled=False)
    loss, grad = objective({"weight": weight}, *batch, lam)
    row, calls, activation = REPLICAS * POINTS * 5 * 3 * 2, [], patch_cnn.smoothed_relu_and_slope
    monkeypatch.setattr(patch_cnn, "CACHED", rows * row)

    def counted(u, power):
        calls.append(u.shape[1])
        return activation(u, power)

    monkeypatch.setattr(patch_cnn, "smoothed_relu_and_slope", counted)
    blocked_loss, blocked = objective({"weight": weight}, *batch, lam)
    assert len(calls) == math.ceil(POINTS / rows) and sum(calls) == POINTS
    assert torch.allclose(blocked_loss, loss, atol=1e-12, rtol=1e-12)
    assert torch.allclose(blocked["weight"], grad["weight"], atol=1e-12, rtol=1e-12)


@both_ways
@pytest.mark.parametrize("lam", [None, 0.5, "pairs"])
def test_single_precision_is_close_and_keeps_the_weights_precision(lam, compiled):
    weight, *batch = problem(5)
    if lam == "pairs":
        lam = torch.rand(REPLICAS, POINTS, POINTS, generator=seeded(6), dtype=torch.float64)
    loss, grad = PatchObjective(POWER, THRESHOLD, compiled=compiled)({"weight": weight}, *batch, lam)
    exact_loss, exact = PatchObjective(POWER, THRESHOLD, torch.float64)({"weight": weight}, *batch, lam)
    assert grad["weight"].dtype == loss.dtype == torch.float64
    assert torch.allclose(loss, exact_loss, rtol=1e-5)
    difference = (grad["weight"] - exact["weight"]).abs().max()
    assert 0 < difference < 1e-5 * exact["weight"].abs().max()


@both_ways
def test_objective_changes_none_of_its_inputs(compiled):
    weight, *batch = problem()
    before = [part.clone() for part in (weight, *batch)]
    for lam in (None, 0.5, torch.full((REPLICAS, POINTS, POINTS), 0.3)):
        PatchObjective(POWER, THRESHOLD, torch.float64, compiled)({"weight": weight}, *batch, lam)
    assert all(torch.equal(a, b) for a, b in zip(before, (weight, *batch)))


@pytest.mark.parametrize("power", [1, 0, -2, 2.5])
def test_objective_refuses_powers(power):
    with pytest.raises(ValueError, match="power"):
        PatchObjective(power, 0.1)


@both_ways
@pytest.mark.parametrize("lam", [None, 0.5, "pairs"])
def test_zero_weights_are_stationary_at_the_loss_of_guessing(lam, compiled):
    weight, *batch = problem()
    if lam == "pairs":
        lam = torch.rand(REPLICAS, POINTS, POINTS, generator=seeded(), dtype=torch.float64)
    objective = PatchObjective(POWER, THRESHOLD, torch.float64, compiled)
    loss, grad = objective({"weight": torch.zeros_like(weight)}, *batch, lam)
    assert torch.allclose(loss, torch.full_like(loss, math.log(3)), atol=1e-12, rtol=0)
    assert (grad["weight"] == 0).all()


# --- what training must not depend on ---

WORLD = MultiView(3, 30, noise_low=0.02, noise_high=0.05, balanced=True)
MIXES = pytest.mark.parametrize("lam", [None, 0.5], ids=["erm", "midpoint"])


def train(params, sample, lam, steps=25):
    """Final weights and losses of gradient descent far enough for the filters to leave the polynomial part."""
    run = training.fit(
        PatchObjective(POWER, THRESHOLD, torch.float64),
        {"weight": params},
        (*sample, lam),
        steps=steps,
        optimizer=training.SGD(0.4),
        log_at=range(steps + 1),
    )
    return run.params["weight"], run.log["loss"]


def start(replicas=2, dim=WORLD.dim):
    sample = training.stack([WORLD.sample(9, g, dtype=torch.float64) for g in training.generators(0, replicas)])
    return normal(replicas, 3, 2, dim, seed=9, scale=0.1), sample


@MIXES
def test_feature_coordinates_are_the_whole_model(lam):
    dim = 4 * WORLD.dim
    weight, sample = start(dim=dim)
    features = nn.init.orthogonal_(torch.empty(WORLD.dim, dim, dtype=torch.float64), generator=seeded(4))
    full, full_loss = train(weight, embed(sample, features), lam)
    reduced, reduced_loss = train(weight @ features.T, sample, lam)
    assert torch.allclose(full_loss, reduced_loss, atol=1e-8, rtol=0)
    assert (full_loss[-1] < full_loss[0] - 0.05).all()
    assert torch.allclose(full @ features.T, reduced, atol=1e-8, rtol=0)
    outside = torch.eye(dim, dtype=torch.float64) - features.T @ features
    assert torch.allclose(full @ outside, weight @ outside, atol=1e-12, rtol=0)
    assert (weight @ outside).abs().max() > 0.1


@MIXES
def test_renaming_the_classes_renames_the_run(lam):
    weight, sample = start()
    old = torch.tensor([2, 0, 1])  # the old name of each new class
    new = old.argsort()
    axes = torch.stack([2 * old, 2 * old + 1], 1).flatten()
    renamed = Patches(sample.x[..., axes], new[sample.y], sample.multiplicity)
    final, loss = train(weight, sample, lam)
    other, other_loss = train(weight[:, old][..., axes], renamed, lam)
    assert torch.allclose(other_loss, loss, atol=1e-10, rtol=0)
    assert torch.allclose(other, final[:, old][..., axes], atol=1e-9, rtol=0)
    assert (final - weight).abs().max() > 0.1


@MIXES
def test_the_order_of_points_patches_and_filters_does_not_matter(lam):
    weight, sample = start()
    final, _ = train(weight, sample, lam)
    points, patches = torch.randperm(9, generator=seeded(1)), torch.randperm(sample.x.shape[2], generator=seeded(2))
    shuffled = Patches(sample.x[:, points][:, :, patches], sample.y[:, points], sample.multiplicity[:, patches])
    other, _ = train(weight.flip(2), shuffled, lam)
    assert torch.allclose(other.flip(2), final, atol=1e-9, rtol=0)


# --- the other networks ---


def test_mlp():
    net = MLP((5, 7, 6, 3))
    assert [type(layer) for layer in net] == [nn.Linear, nn.ReLU, nn.Linear, nn.ReLU, nn.Linear]
    assert [tuple(layer.weight.shape) for layer in net if isinstance(layer, nn.Linear)] == [(7, 5), (6, 7), (3, 6)]
    x = torch.randn(4, 5, generator=seeded())
    with torch.no_grad():
        assert torch.allclose(net(x), net[4](net[2](net[0](x).relu()).relu()))
    assert [type(layer) for layer in MLP((5, 3))] == [nn.Linear]


@pytest.mark.parametrize(("channels", "side"), [(1, 4), (2, 8), (6, 9), (2, 28)])
def test_small_conv_net(channels, side):
    net = SmallConvNet(channels, 7, width=8)
    x = torch.randn(3, channels, side, side, generator=seeded())
    assert net(x).shape == (3, 7)
    assert not list(net.buffers())
    assert torch.allclose(net(x)[1:2], net(x[1:2]), atol=1e-5)  # points do not see each other
    assert {p.shape[0] for p in net.convs.parameters()} == {8, 16}


@pytest.mark.parametrize("channels", [1, 6])
def test_resnet18(channels):
    net = ResNet18(channels, 5, width=4)
    assert net(torch.randn(2, channels, 16, 16, generator=seeded())).shape == (2, 5)
    x, sides = torch.zeros(2, channels, 16, 16), []
    for block in (net.stem, *net.blocks):
        x = block(x)
        sides.append((x.shape[1], x.shape[2]))
    assert sides == [(4, 16)] * 3 + [(8, 8)] * 2 + [(16, 4)] * 2 + [(32, 2)] * 2
    assert sum(isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3) for m in net.modules()) == 17


def test_resnet18_has_the_published_size():
    with torch.device("meta"):
        net = ResNet18(3, 10)
    assert sum(p.numel() for p in net.parameters()) == 11_173_962


def test_a_mixing_number_other_than_the_midpoint_is_refused():
    objective = PatchObjective(4, 0.3)
    weight = torch.zeros(1, 2, 1, 4, dtype=torch.float64)
    x, y = torch.zeros(1, 3, 2, 4, dtype=torch.float64), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match=r"0\.5"):
        objective({"weight": weight}, x, y, torch.ones(1, 2), 0.3)


# --- the compiled part of the patch network's objective ---

each_mix = pytest.mark.parametrize("lam", [None, 0.5, "pairs"])


def mixed(lam):
    return torch.rand(REPLICAS, POINTS, POINTS, generator=seeded(6), dtype=torch.float64) if lam == "pairs" else lam


def some_patches(n_classes, n_filters, scale=0.15):
    weight, (_, x, y, multiplicity) = normal(REPLICAS, n_classes, n_filters, 6, seed=1, scale=scale), problem(2)
    return {"weight": weight}, x, y % n_classes, multiplicity


def both(power, dtype, lam, params, *batch):
    return [PatchObjective(power, THRESHOLD, dtype, compiled)(params, *batch, mixed(lam)) for compiled in (True, False)]


@each_mix
@pytest.mark.parametrize("power", [2, 3, 8, 11])
@pytest.mark.parametrize(("n_classes", "n_filters"), [(3, 1), (2, 5), (4, 8)])
@pytest.mark.parametrize(("dtype", "accuracy"), [(torch.float64, 1e-12), (torch.float32, 1e-5)])
def test_compiled_and_tensor_operations_agree(dtype, accuracy, n_classes, n_filters, power, lam):
    (loss, grad), (expected, reference) = both(power, dtype, lam, *some_patches(n_classes, n_filters))
    assert loss.dtype == expected.dtype == torch.float64 and grad.keys() == reference.keys() == {"weight"}
    assert torch.allclose(loss, expected, rtol=accuracy, atol=0)
    assert (grad["weight"] - reference["weight"]).abs().max() < accuracy * reference["weight"].abs().max()
    assert reference["weight"].abs().amax((1, 2, 3)).min() > 0.01 and loss.unique().numel() == REPLICAS


@both_ways
@each_mix
@pytest.mark.parametrize("power", range(2, 12))
def test_tiny_responses_give_the_right_gradient_or_none(power, lam, compiled):
    """From the seventh power on, slopes at 1e-8 are lost in single precision; below, they must be right."""
    params, *batch = some_patches(3, 4, scale=1e-8)
    loss, grad = PatchObjective(power, THRESHOLD, compiled=compiled)(params, *batch, mixed(lam))
    exact_loss, exact = PatchObjective(power, THRESHOLD, torch.float64)(params, *batch, mixed(lam))
    assert torch.allclose(loss, exact_loss, rtol=1e-6)
    largest = exact["weight"].abs().max()
    assert (grad["weight"] - exact["weight"]).abs().max() < 1e-5 * largest + 1e-37
    assert largest > 1e-32 or power > 6


@both_ways
@each_mix
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e6, 1e12, 1e30])
def test_huge_logits_give_the_right_numbers(scale, dtype, lam, compiled):
    params, x, y, multiplicity = some_patches(3, 4, scale)
    lam = mixed(lam)
    loss, grad = PatchObjective(8, THRESHOLD, dtype, compiled)(params, x, y, multiplicity, lam)
    assert loss.isfinite().all() and grad["weight"].isfinite().all()
    # So far above the threshold the activation is the ReLU, and the softmax all of its largest entry.
    if lam is None:
        logits = torch.einsum("rnpkm,p->rnk", torch.einsum("rnpd,rkmd->rnpkm", x, params["weight"]).relu(), multiplicity[0])
        expected = logits.amax(-1) - logits.gather(-1, y[..., None])[..., 0]
        assert torch.allclose(loss, expected.mean(1), rtol=1e-5)
    small = {"weight": 1e6 / scale * params["weight"]}
    small_loss, same = PatchObjective(8, THRESHOLD, torch.float64, False)(small, x, y, multiplicity, lam)
    assert torch.allclose(loss, small_loss * scale / 1e6, rtol=1e-5)
    assert (grad["weight"] - same["weight"]).abs().max() < 1e-5 * same["weight"].abs().max()


@both_ways
@each_mix
def test_a_diverged_replica_shows_in_its_loss_and_in_no_other(lam, compiled):
    params, *batch = some_patches(3, 4)
    objective = PatchObjective(POWER, THRESHOLD, compiled=compiled)
    expected, reference = objective(params, *batch, mixed(lam))
    params["weight"][1, 0, 0, 0] = math.nan
    loss, grad = objective(params, *batch, mixed(lam))
    assert loss[1].isnan()
    torch.testing.assert_close(loss[[0, 2]], expected[[0, 2]])
    torch.testing.assert_close(grad["weight"][[0, 2]], reference["weight"][[0, 2]])


@both_ways
@each_mix
def test_labels_multiplicities_and_replicas_need_not_lie_side_by_side(lam, compiled):
    params, x, y, multiplicity = some_patches(3, 4)
    objective = PatchObjective(POWER, THRESHOLD, torch.float64, compiled)
    loss, grad = objective(params, x, y, multiplicity, mixed(lam))
    weight = params["weight"].transpose(0, 1).contiguous().transpose(0, 1)
    weights = mixed(lam).mT.contiguous().mT if lam == "pairs" else lam
    strided = (x.transpose(0, 1).contiguous().transpose(0, 1), y.T.contiguous().T, multiplicity.T.contiguous().T)
    other_loss, other = objective({"weight": weight}, *strided, weights)
    assert torch.allclose(other_loss, loss, rtol=1e-13) and torch.allclose(other["weight"], grad["weight"], atol=1e-13)


MEMORY = """
import torch
from mvnb import training
from mvnb.data import MultiView
from mvnb.models import PatchObjective

torch.set_num_threads(1)
sample = training.stack([MultiView(8, 60, slots=3, noise_high=0.05).sample(32, g) for g in training.generators(0, 256)])
assert sample.x.shape == (256, 32, 4, 16)
weight = 0.1 * torch.randn(256, 8, 16, 16, dtype=torch.float64)
for lam in (None, 0.5):
    training.fit(PatchObjective(8, 0.1), {"weight": weight}, (*sample, lam), steps=3, optimizer=training.FlowGD(10.0))
peak = next(line for line in open("/proc/self/status") if line.startswith("VmHWM"))
assert int(peak.split()[1]) < 1e6, peak
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak memory of a process from /proc")
def test_256_replicas_need_less_than_1_gb():
    """Not from ``getrusage``: there a process begins with the peak of the one that started it."""
    subprocess.run([sys.executable, "-c", MEMORY], check=True, timeout=120)


# --- the two-layer network ---


def of_a_module(modules, loss, batch):
    params = training.stack(modules)
    return params, training.ModuleObjective(modules[0], loss)(params, *batch)


@pytest.mark.parametrize("truncated", [False, True], ids=["relu", "truncated"])
@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_two_layer_gradient(loss, truncated):
    modules = [
        TwoLayer(*(normal(*s, seed=10 * r + i) for i, s in enumerate([(7, 5), (7,), (7,)])), truncated) for r in range(3)
    ]
    x, y = normal(3, 11, 5, seed=50), torch.sign(normal(3, 11, seed=51))
    margins = {"logistic": lambda m: F.softplus(-m), "hinge": lambda m: (1 - m).relu()}
    params, (values, by_autograd) = of_a_module(modules, lambda f, x, y: margins[loss](y * f(x)).mean(), (x, y))
    losses, by_hand = TwoLayerObjective(loss, truncated)(params, x, y)
    assert torch.allclose(losses, values, atol=1e-12, rtol=0)
    assert by_hand.keys() == by_autograd.keys() == {"w", "b", "a"}
    for k, g in by_hand.items():
        assert g.shape == params[k].shape
        assert torch.allclose(g, by_autograd[k], atol=1e-10, rtol=0) and g.abs().max() > 0.01


@pytest.mark.parametrize("truncated", [False, True])
def test_two_layer_network_is_its_definition(truncated):
    w, b, a, x = normal(4, 3), normal(4, seed=1), normal(4, seed=2), normal(2, 6, 3, seed=3)
    out = TwoLayer(w, b, a, truncated)(x)
    for i in range(2):
        for j in range(6):
            hidden = [max(0.0, (w[k] @ x[i, j] + b[k]).item()) for k in range(4)]
            value = sum(a[k].item() * (min(1.0, h) if truncated else h) for k, h in enumerate(hidden))
            assert out[i, j].item() == pytest.approx(value, abs=1e-12)


@pytest.mark.parametrize("loss", ["logistic", "hinge"])
def test_two_layer_losses_of_huge_margins_are_finite(loss):
    params = {"w": torch.full((1, 2, 3), 1e4), "b": torch.zeros(1, 2), "a": torch.ones(1, 2)}
    x, y = torch.ones(1, 2, 3), torch.tensor([[1.0, -1.0]])
    value, grads = TwoLayerObjective(loss)(params, x, y)
    assert value.item() == pytest.approx(3e4, rel=1e-3)
    assert grads["a"].tolist() == [[1.5e4, 1.5e4]]


def test_at_the_kinks_both_slopes_are_0():
    """A neuron on its threshold, one on its ceiling, and an example with margin 1."""
    params = {"w": torch.zeros(1, 2, 1), "b": torch.tensor([[0.0, 1.0]]), "a": torch.ones(1, 2)}
    x = torch.ones(1, 1, 1)
    for label in (1.0, -1.0):
        _, grads = TwoLayerObjective("hinge", True)(params, x, torch.tensor([[label]]))
        assert (grads["w"] == 0).all() and (grads["b"] == 0).all()
        assert grads["a"].tolist() == [[0.0, 0.0 if label == 1.0 else 1.0]]
    _, grads = TwoLayerObjective("hinge")(params, x, -torch.ones(1, 1))
    assert grads["b"].tolist() == [[0.0, 1.0]]


@pytest.mark.parametrize("loss", ["square", "", None, "Logistic"])
def test_other_losses_of_the_two_layer_network_are_refused(loss):
    with pytest.raises(ValueError, match="'logistic' or 'hinge'"):
        TwoLayerObjective(loss)


def test_outputs_of_a_stack_are_those_of_its_networks():
    g = seeded()
    w, b, a, x = (torch.randn(3, *shape, generator=g) for shape in ((6, 4), (6,), (6,), (5, 4)))
    together = two_layer_outputs({"w": w, "b": b, "a": a}, x)
    assert torch.allclose(together, torch.stack([TwoLayer(w[r], b[r], a[r])(x[r]) for r in range(3)]), atol=1e-6)
