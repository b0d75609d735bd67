"""Domains: penalties against automatic differentiation, averages of weights, batches, framed images, folders."""

import runpy

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional as F

from mvnb import kept_runs, training
from mvnb.data import load_images
from mvnb.models import MLP
from mvnb.papers.nuclear_norm.data import FramedDomains, domain_folder, split_domains
from mvnb.papers.nuclear_norm.training import (
    Comparison,
    DomainNet,
    DomainObjective,
    LeftOut,
    _domain_batches,
    _DomainAdam,
    _loss_valley,
    _restarted,
)

D64 = torch.float64
SETTINGS = [
    {},
    {"nuclear": 0.7},
    {"coral": 1.0},
    {"irm": 3.0},
    {"vrex": 2.0},
    {"dro": 0.5},
    {"mixup": 1},
    {"mixup": 1, "nuclear": 0.3, "decay": 0.1},
    {"decay": 0.1},
]
E, N, DIM, CLASSES = 3, 8, 5, 4


def network():
    return DomainNet(torch.nn.Sequential(*MLP((DIM, 7, 6)), torch.nn.ReLU()), 6, CLASSES).double()


@pytest.fixture(scope="module")
def problem():
    torch.manual_seed(0)
    params = training.stack([network() for _ in SETTINGS])
    params["q"] = torch.full((len(SETTINGS), E), 1 / E, dtype=D64)
    x = torch.randn(len(SETTINGS), E, N, DIM, dtype=D64)
    y = torch.randint(CLASSES, (len(SETTINGS), E, N))
    partner = torch.tensor([1, 2, 0]).expand(len(SETTINGS), E)
    return params, (x, y, partner, torch.rand(len(SETTINGS), E, dtype=D64))


def written_out(setting, params, x, y, partner, lam):
    """The loss of one replica as the papers have it, to be differentiated."""
    target = F.one_hot(y, CLASSES).double()
    if "mixup" in setting:
        w = lam[:, None, None]
        x, target = w * x + (1 - w) * x[partner], w * target + (1 - w) * target[partner]
    hidden = F.relu(x @ params["body.0.weight"].T + params["body.0.bias"])
    z = F.relu(hidden @ params["body.2.weight"].T + params["body.2.bias"])
    logits = z @ params["head.weight"].T + params["head.bias"]

    def risk(a, t):
        return -(t * a.log_softmax(-1)).sum(-1).mean()

    risks = torch.stack([risk(logits[e], target[e]) for e in range(E)])
    loss = risks.mean()
    if "dro" in setting:
        q = (setting["dro"] * risks.detach()).exp()
        loss = (q / q.sum() * risks).sum()
    if "nuclear" in setting:
        loss = loss + setting["nuclear"] * torch.linalg.svdvals(z.flatten(0, 1)).sum() / (E * N)
    if "vrex" in setting:
        loss = loss + setting["vrex"] * (risks - risks.mean()).square().mean()
    for e in range(E):
        if "coral" in setting:
            for f in range(e):
                apart = (z[e].mean(0) - z[f].mean(0)).square().mean() + (z[e].T.cov() - z[f].T.cov()).square().mean()
                loss = loss + setting["coral"] * apart / 3
        if "irm" in setting:
            scale = torch.ones((), dtype=D64, requires_grad=True)
            parts = [risk(logits[e, i::2] * scale, target[e, i::2]) for i in (0, 1)]
            even, odd = (torch.autograd.grad(part, scale, create_graph=True)[0] for part in parts)
            loss = loss + setting["irm"] * even * odd / E
    if "decay" in setting:
        loss = loss + setting["decay"] / 2 * sum(v.square().sum() for v in params.values())
    return loss


@pytest.mark.parametrize("r", range(len(SETTINGS)), ids=lambda r: "+".join(SETTINGS[r]) or "erm")
def test_gradients_are_those_of_automatic_differentiation(problem, r):
    params, batch = problem
    own = {k: v.clone() for k, v in params.items()}
    objective = DomainObjective(network(), SETTINGS)
    losses, grads = objective(own, *batch, torch.tensor(5))
    leaf = {k: v[r].clone().requires_grad_() for k, v in params.items() if k != "q"}
    loss = written_out(SETTINGS[r], leaf, *(v[r] for v in batch))
    assert abs(loss.item() - losses[r].item()) < 1e-10
    for g, k in zip(torch.autograd.grad(loss, list(leaf.values())), leaf):
        assert (g - grads[k][r]).abs().max() < 1e-10


def test_a_replica_does_not_depend_on_the_others(problem):
    params, batch = problem
    whole = DomainObjective(network(), SETTINGS)
    losses, _ = whole({k: v.clone() for k, v in params.items()}, *batch, torch.tensor(5))
    for r, setting in enumerate(SETTINGS):
        alone = DomainObjective(network(), [setting])
        loss, _ = alone({k: v[r : r + 1].clone() for k, v in params.items()}, *(v[r : r + 1] for v in batch), torch.tensor(5))
        assert loss.item() == pytest.approx(losses[r].item(), abs=1e-12)


def test_warm_up_and_annealing(problem):
    params, batch = problem
    late = DomainObjective(network(), SETTINGS, warmup=10)
    before, after = (late({k: v.clone() for k, v in params.items()}, *batch, torch.tensor(t))[0] for t in (9, 10))
    changed = (before - after).abs() > 1e-9
    assert changed.tolist() == [bool({"nuclear", "irm", "vrex"} & set(one)) for one in SETTINGS]
    with pytest.raises(ValueError, match="got sam"):
        DomainObjective(network(), [{"sam": 0.05}])


# --- Averages of weights ---


def test_segment_means_are_means_of_the_snapshots():
    inner = training.Adam(0.1)
    start = {"w": torch.ones(2, 3)}
    seen = []

    def objective(params, target):
        seen.append(params["w"].clone())
        return (params["w"] - target).square().sum(1), {"w": 2 * (params["w"] - target)}

    batch = (torch.arange(6.0).view(2, 3),)
    means = _DomainAdam(0.1, every=2, segments=3)
    run = training.fit(objective, start, batch, steps=6, optimizer=means)
    plain = training.fit(objective, start, batch, steps=6, optimizer=inner)
    assert torch.equal(run.params["w"], plain.params["w"])  # watching changes nothing
    path = torch.stack([*seen[1:6], run.params["w"]], 1)  # (replica, step, ...)
    for i in range(3):
        torch.testing.assert_close(means.averaged(run, [(i, i)] * 2)["w"], path[:, 2 * i : 2 * i + 2].mean(1))
    windows = means.averaged(run, [(0, 2), (1, 2)])["w"]
    torch.testing.assert_close(windows[0], path[0].mean(0))
    torch.testing.assert_close(windows[1], path[1, 2:].mean(0))


def test_restarted_replicas_take_the_steps_of_a_new_adam():
    start, batch = {"w": torch.ones(2, 3, dtype=D64)}, (torch.arange(6.0, dtype=D64).view(2, 3),)

    def objective(params, target):
        return (params["w"] - target).square().sum(1), {"w": 2 * (params["w"] - target)}

    def trained(start, steps, optimizer):
        return training.fit(objective, start, batch, steps=steps, optimizer=optimizer).params["w"]

    anew = torch.tensor([False, True])
    restarting = _DomainAdam(_restarted(lambda _: 0.1, anew, 4), anew=anew, restart=4)
    whole, first = trained(start, 9, training.Adam(0.1)), trained(start, 4, training.Adam(0.1))
    second = trained({"w": first}, 5, training.Adam(0.1))
    torch.testing.assert_close(trained(start, 9, restarting), torch.stack([whole[0], second[1]]))
    assert (whole[1] - second[1]).abs().max() > 1e-3


@pytest.mark.parametrize(
    ("losses", "window"),
    [
        ([5, 4, 3, 2, 2.5, 2.5, 2.2, 9, 9, 9, 9, 9, 9], (3, 6)),  # valley, then a wall longer than the tolerance
        ([5, 4, 3, 2, 2.5, 2.5, 9, 9, 9, 9, 9, 2.2], (3, 11)),  # five bad checkpoints are tolerated
        ([5, 4, 3, 2, 1], (4, 4)),  # still falling: the last
        ([1, 1, 1, 1], (0, 3)),
    ],
)
def test_loss_valleys(losses, window):
    assert _loss_valley(torch.tensor(losses, dtype=D64)) == window


# --- Batches and data ---


def test_batches_are_of_the_right_points_and_shared_by_the_copies():
    x, y = torch.arange(40.0)[:, None], torch.arange(40)
    tables = torch.stack([torch.arange(12).view(3, 4), 20 + torch.arange(12).view(3, 4)])
    make = lambda seed, b: _domain_batches(x, y, tables[b], 5, 2, training.generators(seed, len(b)))  # noqa: E731
    batches = make(0, [0, 1])
    for step in (0, 1, 30, 31):
        own_x, own_y, partner, lam, when = batches(step)
        assert own_x.shape == (4, 3, 5, 1) and int(when) == step
        assert torch.equal(own_x[:2], own_x[2:]) and torch.equal(own_x[..., 0].long(), own_y)
        for b in range(2):
            for e in range(3):
                assert set(own_y[b, e].tolist()) <= set(tables[b, e].tolist())
        assert all(sorted(p.tolist()) == [0, 1, 2] and (p != torch.arange(3)).all() for p in partner)
        assert ((lam >= 0) & (lam <= 1)).all()
    alone = make(1, [1])
    assert torch.equal(alone(3)[0][0], make(0, [0, 1])(3)[0][1])  # run r of a stack is the run with seed + r


def test_leave_one_out_splits():
    domain = torch.arange(60) % 4
    train, valid, test = split_domains(domain, torch.Generator().manual_seed(0))
    assert train.shape == (4, 3, 12) and valid.shape == (4, 9) and test.shape == (4, 15)
    for out in range(4):
        others = [e for e in range(4) if e != out]
        assert [domain[row].unique().tolist() for row in train[out]] == [[e] for e in others]
        assert (domain[test[out]] == out).all() and (domain[valid[out]] != out).all()
        assert not set(train[out].flatten().tolist()) & set(valid[out].tolist())
    with pytest.raises(ValueError, match="two domains"):
        split_domains(torch.zeros(9, dtype=int), torch.Generator())


def test_convolutions_take_the_flattened_images_and_learn():
    g = torch.Generator().manual_seed(0)
    y = torch.randint(3, (400,), generator=g)
    images = 0.5 * torch.rand(400, 3, 8, 8, generator=g)
    images[torch.arange(400), :, :, 2 * y] = 1.0  # a bright row
    how = Comparison(images, y, 16, 8, 60, 8, 0.01, channels=(4, 8), falling=True)
    net = how.network(3 * 10 * 10, 3)
    assert [tuple(v.shape) for v in net(torch.rand(5, 300))] == [(5, 8), (5, 3)]
    assert sum(isinstance(m, torch.nn.Conv2d) for m in net.modules()) == 2
    found = how.run([{}, {"nuclear": 100.0}], FramedDomains(cues=0), [0])
    assert found.best[0].min() > 0.7 and found.last[1].max() < 0.6  # a heavy penalty leaves no features


def test_frames_say_what_they_should():
    g = torch.Generator().manual_seed(0)
    y, domain = torch.randint(10, (4000,), generator=g), torch.randint(4, (4000,), generator=g)
    world = FramedDomains(agree=0.8, cues=1)
    x = world.frame(torch.zeros(4000, 1, 8, 8), y, domain, 10, g)
    assert x.shape == (4000, 1, 12, 12)
    top = x[:, 0, 0, 1:11]
    assert ((top == 1).sum(1) == 1).all()
    said = top.argmax(1)
    for e in range(4):
        own = domain == e
        share = (said[own] == (y[own] + 3 * e) % 10).double().mean().item()
        assert abs(share - 0.82) < 0.05  # agree, and a tenth of the rest by chance
    assert torch.equal(x[:, 0, 5, 5], 0.05 * domain)
    lit = FramedDomains(cues=4).frame(torch.zeros(9, 3, 8, 8), y[:9], domain[:9], 10, g) == 1
    assert lit.sum((1, 2, 3)).eq(12).all()
    eight = FramedDomains(agree=1.0, cues=8).frame(torch.zeros(9, 3, 20, 20), y[:9], domain[:9], 10, g)
    assert eight.shape[-1] == 24 and (eight == 1).sum((1, 2, 3)).eq(8 * 2 * 3).all()  # two pixels each, three channels
    said = eight[:, 0, 0, 2:22].view(9, 10, 2).amin(-1).argmax(1)  # the fifth cue, on top of the outer frame
    assert torch.equal(said, (y[:9] + 15 * domain[:9]) % 10)
    bar = torch.zeros(1, 1, 8, 8)
    bar[..., 3:5] = 1.0
    upright, turned = (FramedDomains(cues=0).frame(bar, y[:1], torch.tensor([e]), 10, g)[0, 0, 2:-2, 2:-2] for e in (0, 18))
    assert torch.equal(upright, bar[0, 0]) and torch.allclose(turned.clamp(min=0.9), bar[0, 0].T.clamp(min=0.9), atol=1e-5)
    with pytest.raises(ValueError, match="agree must lie"):
        FramedDomains(agree=1.5)


def test_folders_of_domains(tmp_path):
    for e, name in enumerate(("art", "photo", "sketch")):
        for c in ("cat", "dog"):
            (tmp_path / name / c).mkdir(parents=True)
            for i in range(2):
                pixels = np.full((6, 8, 3), 50 * e + 10 * i, dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / name / c / f"{i}.png")
    x, y, domain, names = domain_folder(tmp_path, 4)
    assert x.shape == (12, 3, 4, 4) and names == ["art", "photo", "sketch"]
    assert y.tolist() == [0, 0, 1, 1] * 3 and domain.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert x[-1, 0, 0, 0] == pytest.approx(110 / 255)
    (tmp_path / "art" / "fox").mkdir()
    with pytest.raises(ValueError, match="same classes"):
        domain_folder(tmp_path, 4)
    with pytest.raises(FileNotFoundError, match="at least three"):
        domain_folder(tmp_path / "none", 4)


# --- The kept runs ---


def test_an_arm_trains_its_methods_on_its_set_and_world(tmp_path, monkeypatch):
    """Arms of two sets, two worlds and their own step size, with a training that tells by its numbers what it was given."""
    script = runpy.run_path(str(kept_runs.declared("nuclear_norm")["domains-tuning"].script))
    seen = []

    def trained(self, settings, world, seeds, device):
        assert settings == [{}, {"nuclear": 0.5}] and seeds == [3]
        seen.append((self.images.shape, self.step_size, world.cues, world.agree))
        number = torch.arange(8.0).view(2, 4) / 100
        return LeftOut(*(number + k for k in range(8)), None)

    monkeypatch.setattr(Comparison, "run", trained)
    sets = {"digits": {"n_images": 300, "image_side": 8, "steps": 5, "step_size": 0.1}}
    sets["small"] = sets["digits"] | {"image_side": 6}
    monkeypatch.setitem(script["comparison"].__globals__, "load_images", lambda name: load_images("digits"))
    arms = {
        f"{name}, {world}": {"set": name, "world": world, "methods": {"ERM": {}, "ERM-NU": {"nuclear": 0.5}}}
        for name in sets
        for world in ("none", "many")
    }
    arms["digits, many"]["step_size"] = 0.2
    network = {"hidden": 4, "features": 4, "batch": 2}
    worlds = {"none": {"cues": 0, "agree": 0.1}, "many": {"cues": 8, "agree": 0.3}}
    values = script["run"](3, torch.device("cpu"), tmp_path, sets=sets, worlds=worlds, arms=arms, network=network)
    large, little = (300, 1, 8, 8), (300, 1, 6, 6)
    assert seen == [(large, 0.1, 0, 0.1), (large, 0.2, 8, 0.3), (little, 0.1, 0, 0.1), (little, 0.1, 8, 0.3)]
    fields = {"best": 0, "averaged": 2, "valid": 3, "train": 4}
    for one in values.values():
        for name, k in fields.items():
            np.testing.assert_allclose(one[name]["ERM"], [100 * k, 100 * k + 1, 100 * k + 2, 100 * k + 3], atol=1e-4)
            np.testing.assert_allclose(one[name]["ERM-NU"], [100 * k + 4, 100 * k + 5, 100 * k + 6, 100 * k + 7], atol=1e-4)
        np.testing.assert_allclose(one["settled"]["ERM"], (5 + np.arange(4) / 100) / (6 + np.arange(4) / 100))


def test_each_seed_draws_images_of_its_own():
    script = runpy.run_path(str(kept_runs.declared("nuclear_norm")["domains-tuning"].script))
    how = {"n_images": 50, "image_side": 8, "hidden": 4, "features": 4, "steps": 5, "batch": 2, "step_size": 0.1}
    first, again, other = (script["comparison"]("digits", seed, **how) for seed in (0, 0, 1))
    assert len(first.labels) == 50 and first.labels.equal(again.labels) and not first.labels.equal(other.labels)
