"""Fits to maxima, interpolation between networks, distances, residual networks."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from mvnb import losses, stats, training
from mvnb.papers.algorithmic_stability import measures
from mvnb.papers.algorithmic_stability.networks import ResidualMLP, ResidualMLPObjective, ResNet20

MS = np.array([150.0, 300, 600, 1200])


@pytest.mark.filterwarnings("ignore:Covariance")
@given(b=st.floats(-2, 1), a=st.floats(1e-3, 1e3))
@settings(max_examples=40, deadline=None)
def test_noiseless_curves_are_recovered(a, b):
    fit = measures.power_curve_fit(MS, a * MS**b)
    assert np.isclose(fit.exponent, b, atol=1e-6) and np.isclose(fit.scale, a, rtol=1e-4)


def test_linear_space_weighs_large_values():
    y = MS**-1.0
    small, large = y.copy(), y.copy()
    small[-1] *= 2  # the smallest value, off by the same factor as ...
    large[0] *= 2  # ... the largest
    moved = [abs(measures.power_curve_fit(MS, v).exponent + 1) for v in (small, large)]
    lines = [abs(stats.power_law_fit(MS, v).slope + 1) for v in (small, large)]
    assert moved[1] > 3 * moved[0] and np.isclose(*lines)


def two_stacks(*shape):
    g = torch.Generator().manual_seed(0)
    return [{"a": torch.randn(3, *shape, generator=g), "b": torch.randn(3, generator=g)} for _ in range(2)]


def test_interpolation_has_its_ends_to_the_last_bit():
    first, second = two_stacks(4, 5)
    grid = torch.arange(-25, 51, dtype=torch.float64) / 25
    line = measures.interpolate(first, second, grid)
    for k, v in line.items():
        v = v.view(76, 3, *v.shape[1:])
        assert v[50].equal(first[k]) and v[25].equal(second[k])
        assert torch.allclose(v[75], 2 * first[k] - second[k], atol=1e-6)
    same = measures.interpolate(first, first, grid)
    assert all(torch.allclose(v.view(76, 3, *v.shape[1:]), first[k], atol=1e-6) for k, v in same.items())


def test_interpolation_with_batch_normalisation():
    nets = [ResNet20(1, 4, 4, 1) for _ in range(2)]
    for net in nets:
        net(torch.rand(8, 1, 8, 8))
    stacks = [training.stack([net]) for net in nets]
    line = measures.interpolate(*stacks, torch.tensor([0.0, 0.5, 1.0]))
    mean = "stem_norm.running_mean"
    assert torch.allclose(line[mean][1], (stacks[0][mean] + stacks[1][mean])[0] / 2)
    x = torch.rand(5, 1, 8, 8)
    out = training.predict(nets[0], line, x.expand(3, -1, -1, -1, -1))
    assert torch.allclose(out[2], nets[0].eval()(x), atol=1e-5) and torch.allclose(out[0], nets[1].eval()(x), atol=1e-5)


def test_distances():
    first, second = two_stacks(4)
    flat = [torch.cat([p["a"], p["b"][:, None]], 1).double() for p in (first, second)]
    assert torch.allclose(measures.parameter_distance(first, second), (flat[0] - flat[1]).norm(dim=1))
    assert torch.allclose(measures.parameter_distance(first, second, ["b"]), (flat[0] - flat[1])[:, -1].abs())
    relative = measures.normalised_distance(first, second)
    scaled = [{k: 7 * v for k, v in p.items()} for p in (first, second)]
    assert torch.allclose(measures.normalised_distance(*scaled), relative) and relative.max() <= 2
    opposite = {k: -v for k, v in first.items()}
    assert torch.allclose(measures.normalised_distance(first, opposite), torch.full((3,), 2.0, dtype=torch.float64))


def test_barrier():
    grid = torch.arange(-25, 51, dtype=torch.float64) / 25
    dip = 0.9 - 0.3 * (grid - 0.5).abs().lt(0.1).double()
    outside = 0.9 - 0.5 * grid.lt(0).double()
    curves = torch.stack([dip, outside], 1)
    assert torch.allclose(measures.barrier(curves, grid), torch.tensor([0.3, 0.0], dtype=torch.float64))
    with pytest.raises(ValueError, match="contain 0 and 1"):
        measures.barrier(curves[:20], grid[:20])


def test_resnet20_is_he_et_al():
    net = ResNet20(3, 10)
    assert 265_000 < sum(p.numel() for p in net.parameters()) < 275_000
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d)]
    assert len(convolutions) + 1 == 20 and net(torch.rand(2, 3, 32, 32)).shape == (2, 10)


def test_option_a_shortcut_subsamples_and_pads():
    net = ResNet20(1, 2, 4, 1, norm=False)
    block = net.blocks[1]  # the second stage; its second convolution is zero
    x = torch.rand(2, 4, 8, 8)
    expected = torch.cat([x[..., ::2, ::2], torch.zeros(2, 4, 4, 4)], 1)
    assert block.conv2.bias.abs().max() == 0 and torch.equal(block(x), F.relu(expected))


@pytest.mark.parametrize("make", [lambda: ResNet20(1, 3, 4, 1, norm=False), lambda: ResidualMLP(16, 3, 8, 2)])
def test_without_normalisation_a_stack_is_its_runs(make):
    nets = [make() for _ in range(2)]
    assert not list(nets[0].buffers())
    x, y = torch.rand(2, 5, 1, 4, 4), torch.randint(3, (2, 5))
    objective = training.ModuleObjective(nets[0], losses.cross_entropy)
    values, grads = objective(training.stack(nets), x, y)
    for r, net in enumerate(nets):
        loss = losses.cross_entropy(net, x[r], y[r])
        loss.backward()
        assert torch.allclose(values[r], loss, atol=1e-5)
        assert all(torch.allclose(grads[k][r], p.grad, atol=1e-5) for k, p in net.named_parameters())


def test_cross_entropy_at_zero_logits():
    net = ResidualMLP(4, 10, 8, 1)
    nn.init.zeros_(net.head.weight)
    loss = losses.cross_entropy(net, torch.rand(6, 4), torch.arange(6))
    assert torch.isclose(loss, torch.tensor(10.0).log())


@pytest.mark.parametrize("blocks", [0, 1, 3])
def test_residual_mlp_by_hand_is_autograd(blocks):
    torch.manual_seed(0)
    nets = [ResidualMLP(12, 5, 7, blocks).double() for _ in range(4)]
    params = {k: v + 0.1 * torch.randn_like(v) for k, v in training.stack(nets).items()}
    x, y = torch.rand(4, 9, 3, 2, 2).double(), torch.randint(5, (4, 9))
    loss, grads = ResidualMLPObjective()(params, x, y)
    want, by_autograd = training.ModuleObjective(nets[0], losses.cross_entropy)(params, x, y)
    assert torch.allclose(loss, want, atol=1e-12) and set(grads) == set(by_autograd)
    assert all(torch.allclose(grads[k], by_autograd[k], atol=1e-12) for k in grads)
    twins = {k: v[:2].repeat(2, *[1] * (v.dim() - 1)) for k, v in params.items()}
    loss, grads = ResidualMLPObjective()(twins, x[:2].repeat(2, 1, 1, 1, 1), y[:2].repeat(2, 1))
    assert all(torch.allclose(g[:2], g[2:], atol=1e-12) for g in (loss[:, None], *grads.values()))
