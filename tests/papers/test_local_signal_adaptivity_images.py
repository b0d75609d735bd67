"""Parts of the image experiments of chapter 05: pasting, backgrounds, the small network, its kernel and its activity."""

import pytest
import torch
from reference import linearised, parameter_jacobian

from mvnb import probes
from mvnb.data import resize
from mvnb.papers.local_signal_adaptivity.data import paste, texture_background
from mvnb.papers.local_signal_adaptivity.model import WindowNet, window_jacobian


def test_pasting():
    g = torch.Generator().manual_seed(0)
    images, behind = torch.rand(300, 2, 8, 8, generator=g), torch.randn(300, 2, 12, 12, generator=g)
    out, seen = paste(images, behind, g), set()
    for i, changed in enumerate((out != behind).all(1)):
        top, left = changed.nonzero()[0].tolist()
        seen.add((top, left))
        assert torch.equal(out[i, :, top : top + 8, left : left + 8], images[i])
        rest = torch.ones(12, 12, dtype=torch.bool)
        rest[top : top + 8, left : left + 8] = False
        assert torch.equal(out[i, :, rest], behind[i, :, rest])
    assert len(seen) == 25
    assert paste(images, 0 * behind, g).sum() == pytest.approx(images.sum().item(), rel=1e-5)
    with pytest.raises(ValueError, match="images must fit"):
        paste(behind, images, g)


def test_backgrounds():
    g = torch.Generator().manual_seed(0)
    texture = texture_background(40, 1, 16, g)
    assert texture.amin() == 0 and texture.amax() == 1
    neighbours = torch.corrcoef(torch.stack([texture[..., :-1].flatten(), texture[..., 1:].flatten()]))[0, 1]
    assert neighbours > 0.5  # rough at no scale
    pool = torch.arange(3.0).view(3, 1, 1, 1).expand(3, 1, 4, 4)
    assert resize(torch.rand(2, 3, 28, 28), 8).shape == (2, 3, 8, 8)
    assert torch.equal(resize(pool, 4), pool)


def test_window_jacobian_is_autograd():
    torch.manual_seed(0)
    net = WindowNet(2, 1, (3, 4)).double()
    center = {k: p.detach() for k, p in net.named_parameters()}
    x = torch.randn(7, 2, 12, 12).double()
    assert torch.allclose(window_jacobian(center, x, chunk=3), parameter_jacobian(net, center, x), atol=1e-12)
    with pytest.raises(ValueError, match="one output"):
        window_jacobian({k: p.detach() for k, p in WindowNet(2, 3, (3, 4)).named_parameters()}, x.float())


def test_window_net_is_a_convolution():
    torch.manual_seed(0)
    net = WindowNet(2, 3, (4, 5))
    x = torch.randn(6, 2, 16, 16)
    first = net.first.weight.view(4, 4, 4, 2).permute(0, 3, 1, 2)  # filter, (row, column, channel) to channel first
    second = net.second.weight.view(5, 3, 3, 4).permute(0, 3, 1, 2)
    h = torch.relu(torch.nn.functional.conv2d(x, first, net.first.bias, 2))
    h2 = torch.relu(torch.nn.functional.conv2d(h, second, net.second.bias))
    assert torch.allclose(net(x), net.head(0.3 * h2.sum((2, 3))), atol=1e-5)


def test_linearised_network_and_ridge():
    torch.manual_seed(0)
    net = WindowNet(1, 1, (2, 3)).double()
    center = {k: p.detach() for k, p in net.named_parameters()}
    x = torch.randn(5, 1, 16, 16, dtype=torch.float64)
    line = linearised(net, center)
    assert torch.allclose(line(center, x), net(x))
    other = {k: p + torch.randn_like(p) for k, p in center.items()}
    middle = {k: 0.5 * (center[k] + other[k]) for k in center}
    assert torch.allclose(2 * line(middle, x), line(center, x) + line(other, x))
    jacobian = parameter_jacobian(net, center, x, chunk=2)
    step = torch.cat([(other[k] - center[k]).flatten() for k in center])
    assert torch.allclose((line(other, x) - net(x))[:, 0], jacobian @ step)
    tiny = {k: center[k] + 1e-6 * (other[k] - center[k]) for k in center}
    near = torch.func.functional_call(net, tiny, (x,)) - net(x)
    assert torch.allclose(near[:, 0], 1e-6 * jacobian @ step, rtol=1e-3, atol=1e-9)


def test_ridge_forms_agree():
    g = torch.Generator().manual_seed(0)
    for n, size in ((8, 20), (20, 8), (37, 50)):
        x, y = torch.randn(n, size, generator=g).double(), torch.randn(n, 2, generator=g).double()
        weight = probes.ridge_fit(x, y, 0.3)
        strength = 0.3 * x.square().sum() / n
        assert torch.allclose(x.T @ (x @ weight - y) + strength * weight, torch.zeros_like(weight), atol=1e-9)
    with pytest.raises(ValueError, match="positive"):
        probes.ridge_fit(x, y, 0.0)


def test_textures_have_amplitudes_of_one_over_frequency_and_are_stretched_one_by_one():
    """Every texture reaches 0 and 1, and the logarithm of its amplitudes falls with slope -1 in that of the frequency."""
    side = 32
    texture = texture_background(60, 2, side, 1)
    assert (texture.amin((1, 2, 3)) == 0).all() and (texture.amax((1, 2, 3)) == 1).all()
    strength = torch.fft.rfft2(texture).abs().log().mean((0, 1))
    frequency = torch.hypot(torch.fft.fftfreq(side)[:, None], torch.fft.rfftfreq(side))
    x, y = frequency.flatten()[1:].log(), strength.flatten()[1:]
    slope = ((x - x.mean()) * (y - y.mean())).sum() / (x - x.mean()).square().sum()
    assert slope == pytest.approx(-1, abs=0.05)
