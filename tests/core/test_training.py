"""A stack is its members, a step is the formula, and looking changes nothing."""

import copy
import math
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import PatchCNN
from torch import Tensor, nn

from mvnb import losses, probes, training
from mvnb.data import MultiView
from mvnb.models import MLP, PatchObjective, patch_logits

few = settings(max_examples=25, deadline=None)
some = settings(max_examples=60, deadline=None)

WORLD = MultiView(3, 30, noise_low=0.02, noise_high=0.05, balanced=True)
OPTIMIZERS = {
    "gd": training.SGD(0.3),
    "flow": training.FlowGD(max_step=50.0, relative=0.1, absolute=0.05, knee=0.3),
    "adam": training.Adam(0.01),
}
each_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=seeded(seed), dtype=torch.float64)


def difference(one, other):
    return max((one[k] - other[k]).abs().max().item() for k in one)


# --- a stack is its members ---


def patch_run(seed, replicas, optimizer, lam):
    generators = training.generators(seed, replicas)
    sample = training.stack([WORLD.sample(9, g, dtype=torch.float64) for g in generators])
    weight = torch.stack([0.1 * torch.randn(3, 4, WORLD.dim, generator=g, dtype=torch.float64) for g in generators])
    objective = PatchObjective(4, 0.1, torch.float64)
    return training.fit(objective, {"weight": weight}, (*sample, lam), steps=20, optimizer=optimizer, log_at=range(21))


@each_optimizer
@pytest.mark.parametrize("lam", [None, 0.5], ids=["erm", "midpoint"])
def test_a_replica_of_a_patch_stack_is_a_run_of_its_own(optimizer, lam):
    stack = patch_run(5, 3, optimizer, lam)
    for r in range(3):
        alone = patch_run(5 + r, 1, optimizer, lam)
        assert torch.allclose(stack.params["weight"][r], alone.params["weight"][0], atol=1e-10, rtol=1e-10)
        for name in ("loss", "time"):
            assert torch.allclose(stack.log[name][:, r], alone.log[name][:, 0], atol=1e-10, rtol=1e-10)
    moved = stack.params["weight"] - patch_run(5, 3, training.SGD(0.0), lam).params["weight"]
    assert moved.abs().amax((1, 2, 3)).min() > 0.05
    assert stack.params["weight"].std(0).mean() > 0.03  # the replicas are different runs


def module_run(make, seed, replicas, optimizer):
    modules, batches = [], []
    for g in training.generators(seed, replicas):
        modules.append(make(g))
        batches.append((torch.randn(12, 3, 6, generator=g, dtype=torch.float64), torch.randint(3, (12,), generator=g)))
    params = training.stack(modules)
    batch = tuple(torch.stack(part) for part in zip(*batches))
    objective = training.ModuleObjective(modules[0], losses.midpoint_mixup)
    return training.fit(objective, params, batch, steps=15, optimizer=optimizer)


def drawn_mlp(generator):
    net = nn.Sequential(nn.Flatten(), *MLP((18, 5, 3))).double()
    with torch.no_grad():
        for p in net.parameters():
            p.copy_(0.3 * torch.randn(p.shape, generator=generator, dtype=p.dtype))
    return net


def drawn_patch_net(generator):
    return PatchCNN(3, 2, 6, power=4, threshold=0.3, generator=generator)


cases = [(drawn_patch_net, "gd"), (drawn_patch_net, "flow"), (drawn_patch_net, "adam"), (drawn_mlp, "gd"), (drawn_mlp, "adam")]


@pytest.mark.parametrize(("make", "name"), cases)
def test_a_replica_of_stacked_modules_is_a_run_of_its_own(make, name):
    stack = module_run(make, 7, 3, OPTIMIZERS[name])
    for r in range(3):
        alone = module_run(make, 7 + r, 1, OPTIMIZERS[name])
        assert difference({k: p[r : r + 1] for k, p in stack.params.items()}, alone.params) < 1e-10
        assert torch.allclose(stack.log["loss"][:, r], alone.log["loss"][:, 0], atol=1e-10, rtol=0)
    assert (stack.log["loss"][-1] < stack.log["loss"][0]).all()


# --- steps in one call ---


def descend(objective, optimizer, lam, wide=torch.float64, start=None, **how):
    x, y, multiplicity = training.stack([WORLD.sample(9, g, dtype=torch.float64) for g in training.generators(0, 3)])
    batch = (x, y, multiplicity, torch.rand(3, 9, 9, generator=seeded()) if lam == "drawn" else lam)
    how = {"steps": 20, "optimizer": optimizer, "log_at": [0, 7, 8, 20]} | how
    return training.fit(objective, start or {"weight": 0.3 * normal(3, 3, 4, WORLD.dim).to(wide)}, batch, **how)


@pytest.mark.parametrize("lam", [None, 0.5, "drawn"])
@pytest.mark.parametrize("lr", [0.4, torch.tensor([0.1, 0.3, 0.4])], ids=["common", "each"])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_in_one_call_are_those_taken_one_by_one(lam, lr, momentum):
    objective, optimizer = PatchObjective(4, 0.1, torch.float64), training.SGD(lr, momentum)
    one = descend(objective, optimizer, lam)
    by_one = descend(lambda params, *batch: objective(params, *batch), optimizer, lam)  # a function has no other method
    assert difference(one.params, by_one.params) < 1e-12 and difference(one.log, by_one.log) < 1e-12
    assert difference(one.params, descend(objective, training.SGD(0.2, momentum), lam).params) > 1e-3
    first = descend(objective, optimizer, lam, steps=5, log_at=[0])
    resumed = descend(objective, optimizer, lam, start=first, log_at=[7, 8, 20])
    assert difference(one.params, resumed.params) == difference(one.log, resumed.log) == 0


def test_steps_in_one_call_keep_the_precision_of_the_weights():
    tiny = descend(PatchObjective(4, 0.1), training.SGD(1e-12), None)
    assert tiny.params["weight"].dtype == torch.float64 and (tiny.params["weight"] != 0.3 * normal(3, 3, 4, WORLD.dim)).any()


@pytest.mark.parametrize(
    "objective, optimizer, taken",
    [
        (PatchObjective(4, 0.1), training.SGD(0.1), True),
        (partial(PatchObjective(4, 0.1), lam=0.5), training.SGD(0.1), True),
        (type("Other", (PatchObjective,), {})(4, 0.1), training.SGD(0.1), False),
        (PatchObjective(4, 0.1, compiled=False), training.SGD(0.1), False),
        (PatchObjective(4, 0.1), training.SGD(lambda step: 0.1), False),
        (PatchObjective(4, 0.1), training.SGD(0.1, weight_decay=0.1), False),
        (PatchObjective(4, 0.1), training.SGD(0.1, rates={"weight": 2.0}), False),
    ],
)
def test_steps_are_taken_in_one_call_where_the_kernel_takes_the_same(objective, optimizer, taken):
    batch = training.stack([WORLD.sample(9, 0)])
    params = {"weight": torch.ones(1, 3, 4, WORLD.dim)}
    assert (optimizer.descend(objective, params, batch, {"time": torch.zeros(1), "count": 0}, 0) is not None) == taken


def test_the_first_replica_does_not_depend_on_how_many_follow():
    one, many = (training.generators(3, replicas)[0] for replicas in (1, 5))
    assert torch.equal(torch.randn(4, generator=one), torch.randn(4, generator=many))
    draws = [torch.randn(4, generator=g) for g in training.generators(3, 3)]
    assert torch.equal(draws[2], torch.randn(4, generator=training.generators(5, 1)[0]))
    assert not torch.equal(draws[0], draws[1])
    with pytest.raises(ValueError, match="replicas"):
        training.generators(0, 0)


class Sample(NamedTuple):
    x: Tensor
    y: Tensor


def test_stack_keeps_the_type_and_the_order():
    parts = [Sample(torch.full((2, 3), float(r)), torch.tensor([r, r])) for r in range(4)]
    together = training.stack(parts)
    assert type(together) is Sample
    assert together.x.shape == (4, 2, 3)
    assert together.y[:, 0].tolist() == [0, 1, 2, 3]


def test_stack_copies_parameters_and_buffers_of_modules():
    modules = [nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)) for _ in range(3)]
    for r, m in enumerate(modules):
        m[1].running_mean.fill_(r)
    params = training.stack(modules)
    assert params["0.weight"].shape == (3, 2, 3) and not params["0.weight"].requires_grad
    assert {k for k in params if "running" in k or "num" in k} == {f"1.{k}" for k, _ in modules[0][1].named_buffers()}
    before = [m[0].weight.clone() for m in modules]
    assert all(torch.equal(params["0.weight"][r], before[r]) for r in range(3))
    assert params["1.running_mean"].tolist() == [[0, 0], [1, 1], [2, 2]]
    params["0.weight"].zero_()
    params["1.running_mean"].add_(5)
    assert all(torch.equal(m[0].weight, w) for m, w in zip(modules, before))
    assert all((m[1].running_mean == r).all() for r, m in enumerate(modules))


# --- a step is the formula ---


def test_gradient_descent_on_a_linear_model_is_the_printed_step():
    x, y = normal(2, 8, 5), torch.randint(3, (2, 8), generator=seeded(1))
    weight = normal(2, 3, 5, seed=2)
    module = nn.Linear(5, 3, bias=False).double()
    run = training.fit(
        training.ModuleObjective(module, losses.cross_entropy), {"weight": weight}, (x, y), steps=4, optimizer=training.SGD(0.7)
    )
    for r in range(2):
        w, points = weight[r].numpy().copy(), x[r].numpy()
        for _ in range(4):
            phi = np.exp(points @ w.T)
            phi /= phi.sum(1, keepdims=True)
            w += 0.7 * (np.eye(3)[y[r]] - phi).T @ points / 8
        assert np.allclose(run.params["weight"][r], w, rtol=0, atol=1e-10)


@pytest.mark.parametrize("midpoint", [False, True])
def test_gradient_descent_on_the_patch_network_is_the_printed_step(midpoint):
    """The gradient over points (or pairs) and patches in loops: residual times slope times patch."""
    power, threshold, eta = 4, 0.1, 0.5
    sample = training.stack([WORLD.sample(4, seeded(3), dtype=torch.float64)])
    weight = 0.15 * normal(1, 3, 2, 6, seed=4)
    run = training.fit(
        PatchObjective(power, threshold, torch.float64),
        {"weight": weight},
        (*sample, 0.5 if midpoint else None),
        steps=1,
        optimizer=training.SGD(eta),
    )
    x, y, times = (part[0].numpy() for part in sample)
    w, gradient = weight[0].numpy(), np.zeros((3, 2, 6))
    pairs = [(i, j) for i in range(4) for j in (range(4) if midpoint else [i])]
    for i, j in pairs:
        z = (x[i] + x[j]) / 2
        response = np.einsum("crd,pd->crp", w, z)
        rise = np.clip(response / threshold, 0, 1)
        value = threshold / power * rise**power + np.maximum(response - threshold, 0)
        phi = np.exp((value * times).sum((1, 2)))
        phi /= phi.sum()
        for c in range(3):
            residual = phi[c] - (float(y[i] == c) + float(y[j] == c)) / 2
            for r in range(2):
                for p in range(len(z)):
                    gradient[c, r] += residual * times[p] * rise[c, r, p] ** (power - 1) * z[p] / len(pairs)
    assert np.abs(gradient).max() > 0.01
    assert np.allclose(run.params["weight"][0], w - eta * gradient, rtol=0, atol=1e-10)


def plain_training(net, batches, steps, optimizer):
    """What one would write without this package; the losses before each step."""
    values = []
    for step in range(steps):
        optimizer.zero_grad()
        value = losses.cross_entropy(net, *batches(step))
        value.backward()
        optimizer.step()
        values.append(value.item())
    return values


def batch_norm_net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).double()


def convolution_net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(1, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(48, 3)).double()


def test_networks_with_convolutions_are_separate_plain_runs():
    with torch.random.fork_rng():
        nets = [convolution_net(r) for r in range(3)]
    x, y = normal(3, 4, 8, 1, 6, 6), torch.randint(3, (3, 4, 8), generator=seeded(1))  # (replica, step, n, ...)
    objective = training.ModuleObjective(nets[0], losses.cross_entropy)
    batches = lambda step: (x[:, min(step, 3)], y[:, min(step, 3)])  # noqa: E731
    run = training.fit(objective, training.stack(nets), batches, steps=4, optimizer=training.Adam(0.01), log_at=range(5))
    for r, net in enumerate(nets):
        values = plain_training(net, lambda s, r=r: (x[r, s], y[r, s]), 4, torch.optim.Adam(net.parameters(), 0.01))
        assert np.allclose(run.log["loss"][:4, r], values, rtol=0, atol=1e-10)
        assert all(torch.allclose(run.params[k][r], p, atol=1e-10, rtol=0) for k, p in net.named_parameters())


def test_networks_with_batch_normalisation_are_separate_plain_runs():
    with torch.random.fork_rng():
        nets = [batch_norm_net(r) for r in range(3)]
    x, y = normal(3, 4, 8, 1, 6, 6), torch.randint(3, (3, 4, 8), generator=seeded(1))  # (replica, step, n, ...)
    params = training.stack(nets)
    run = training.fit(
        training.ModuleObjective(nets[0], losses.cross_entropy),
        params,
        lambda step: (x[:, min(step, 3)], y[:, min(step, 3)]),
        steps=4,
        optimizer=training.Adam(0.01),
        log_at=range(5),
    )
    test = normal(3, 7, 1, 6, 6, seed=5)
    outputs = training.predict(nets[0], run.params, test, chunk=3)
    for r, net in enumerate(nets):
        values = plain_training(net, lambda s, r=r: (x[r, s], y[r, s]), 4, torch.optim.Adam(net.parameters(), 0.01))
        assert np.allclose(run.log["loss"][:4, r], values, rtol=0, atol=1e-10)
        # The bias before a normalisation has the gradient 0, and Adam blows up the rounding errors in it.
        assert all(torch.allclose(run.params[k][r], p, atol=1e-9, rtol=0) for k, p in net.named_parameters())
        assert all(torch.allclose(run.params[k][r].double(), b.double(), atol=1e-10, rtol=0) for k, b in net.named_buffers())
        with torch.no_grad():
            assert torch.allclose(outputs[r], net.eval()(test[r]), atol=1e-10, rtol=0)
            assert not torch.allclose(outputs[r], net.train()(test[r]), atol=1e-3)
    assert (run.params["1.num_batches_tracked"] == 4).all() and (params["1.num_batches_tracked"] == 0).all()


@pytest.mark.parametrize("training_mode", [True, False])
def test_predict_is_the_evaluation_mode_of_each_replica_and_restores_the_mode(training_mode):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        nets = [nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)).double() for _ in range(2)]
    for r, net in enumerate(nets):
        net[1].running_mean.copy_(normal(3, seed=r))
    params = training.stack(nets)
    before = {k: p.clone() for k, p in params.items()}
    x = normal(2, 11, 4, seed=8)
    nets[0].train(training_mode)
    whole, chunks = (training.predict(nets[0], params, x, chunk) for chunk in (1000, 4))
    assert nets[0].training is training_mode
    assert torch.allclose(whole, chunks, atol=1e-12, rtol=0)
    assert not whole.requires_grad
    for r in range(2):
        with torch.no_grad():
            assert torch.allclose(whole[r], copy.deepcopy(nets[r]).eval()(x[r]), atol=1e-12, rtol=0)
    assert all(torch.equal(before[k], params[k]) for k in before)


def test_predict_without_buffers():
    nets = [drawn_mlp(seeded(r)) for r in range(3)]
    params = training.stack(nets)
    x = normal(3, 5, 3, 6)
    out = training.predict(nets[0], params, x)
    assert out.shape == (3, 5, 3)
    assert all(torch.allclose(out[r], nets[r](x[r]), atol=1e-12, rtol=0) for r in range(3))


# --- steps along the flow ---


def flow_step(optimizer, weight, gradient):
    params = {"weight": weight.clone()}
    eta = optimizer.step(params, {"weight": gradient}, {"time": torch.zeros(len(weight), dtype=torch.float64)})
    return eta, params["weight"]


@some
@given(
    seed=st.integers(0, 10_000),
    relative=st.floats(0.01, 0.5),
    absolute=st.floats(0.01, 1.0) | st.just(math.inf),
    knee=st.floats(0.0, 3.0) | st.just(math.inf),
    max_step=st.floats(0.001, 10.0) | st.just(math.inf),
    horizon=st.floats(0.001, 10.0) | st.just(math.inf),
)
def test_a_flow_step_is_the_largest_that_keeps_its_bounds(seed, relative, absolute, knee, max_step, horizon):
    scale = torch.tensor([0.1, 1.0, 0.5], dtype=torch.float64).view(3, 1, 1, 1)
    weight, gradient = scale * normal(3, 2, 4, 5, seed=seed), normal(3, 2, 4, 5, seed=seed + 1)
    if math.isinf(min(absolute, max_step, horizon)):
        knee = math.inf  # otherwise nothing need bound a step
    optimizer = training.FlowGD(max_step, relative, absolute, knee, horizon)
    eta, after = flow_step(optimizer, weight, gradient)
    for r in range(3):
        ratios = [eta[r] / max_step, eta[r] / horizon]
        for row, change in zip(weight[r].flatten(0, 1), (after - weight)[r].flatten(0, 1)):
            allowed = relative * row.norm() if row.norm() < knee else absolute
            ratios.append(change.norm() / allowed)
        assert max(ratios) == pytest.approx(1.0, rel=1e-9)
    assert torch.allclose(after, weight - eta.view(3, 1, 1, 1) * gradient, atol=1e-12, rtol=0)


def test_beyond_the_horizon_nothing_is_computed_and_the_log_repeats_itself():
    """The fixed batch gives the losses once more; an endless stream of batches is looked at every step."""
    seen = []

    def objective(params, target):
        seen.append(None)
        difference = params["weight"] - target
        return difference.square().sum((1, 2)) / 2, {"weight": difference}

    start, target = normal(2, 3, 4), normal(2, 3, 4, seed=1)
    optimizer = training.FlowGD(max_step=0.1, relative=10.0, horizon=1.05)
    settings = {"steps": 40, "optimizer": optimizer, "probes": {"w": lambda p: p["weight"]}, "log_at": range(41)}
    run = training.fit(objective, {"weight": start}, (target,), **settings)
    assert len(seen) < 20 and len(run.steps) == 41 and run.step == 40
    seen.clear()
    streamed = training.fit(objective, {"weight": start}, lambda step: (target,), **settings)
    assert len(seen) == 41
    assert all(torch.equal(run.log[k], streamed.log[k]) for k in run.log)
    assert torch.equal(run.params["weight"], streamed.params["weight"])


def test_each_bound_of_a_flow_step_binds():
    short, long = torch.tensor([[[[0.2, 0.0]]]]).double(), torch.tensor([[[[2.0, 0.0]]]]).double()
    gradient = torch.tensor([[[[0.0, 4.0]]]]).double()
    cases = [
        (short, {"relative": 0.1, "absolute": 0.5, "knee": 1.0}, 0.02 / 4),
        (long, {"relative": 0.1, "absolute": 0.5, "knee": 1.0}, 0.5 / 4),
        (long, {"relative": 0.1, "absolute": 0.5}, 0.2 / 4),
        (long, {"relative": 0.1, "absolute": 0.5, "knee": 1.0, "max_step": 0.01}, 0.01),
        (long, {"relative": 0.1, "horizon": 0.02}, 0.02),
    ]
    for weight, bounds, expected in cases:
        assert flow_step(training.FlowGD(**bounds), weight, gradient)[0].tolist() == pytest.approx([expected])


def test_a_filter_without_a_gradient_holds_nothing_up():
    weight, gradient = normal(1, 2, 3, 4), normal(1, 2, 3, 4, seed=1)
    gradient[0, 0, 0] = 0
    eta, after = flow_step(training.FlowGD(relative=0.1), weight, gradient)
    assert eta.isfinite().all() and after.isfinite().all()
    assert torch.equal(after[0, 0, 0], weight[0, 0, 0])


def test_flow_time_is_the_sum_of_the_steps_and_stops_at_the_horizon():
    stack = patch_run(5, 3, OPTIMIZERS["flow"], None)
    time = stack.log["time"]
    assert (time[0] == 0).all()
    assert (time.diff(dim=0) > 0).all()
    assert time.diff(dim=0).max() <= 50.0 + 1e-9
    horizon = time[10].min().item()
    stopped = patch_run(5, 3, training.FlowGD(50.0, 0.1, 0.05, 0.3, horizon), None)
    assert torch.allclose(stopped.log["time"][-1], torch.full((3,), horizon, dtype=torch.float64), atol=1e-9, rtol=0)
    first = time[10].argmin()
    assert torch.allclose(stopped.log["loss"][:11, first], stack.log["loss"][:11, first], atol=1e-12, rtol=0)
    assert torch.allclose(stopped.log["loss"][10:, first], stack.log["loss"][10, first].expand(11), atol=1e-9, rtol=0)


def test_filters_beyond_the_knee_have_clocks_of_their_own():
    weight = torch.tensor([[[[0.1, 0.0], [3.0, 0.0], [0.0, 2.0], [5.0, 0.0]]]]).double()
    gradient = torch.tensor([[[[0.0, 0.02], [0.01, 0.0], [0.0, 4.0], [0.0, 0.0]]]]).double()
    optimizer = training.FlowGD(relative=0.2, absolute=0.4, knee=1.0, relax=10.0)
    eta, after = flow_step(optimizer, weight, gradient)
    assert eta.tolist() == pytest.approx([1.0])  # 0.2 * 0.1 / 0.02: the only filter below the knee
    moved = (weight - after)[0, 0]
    assert torch.allclose(moved[0], torch.tensor([0.0, 0.02]).double())
    assert torch.allclose(moved[1], torch.tensor([0.01, 0.0]).double())  # no longer than time itself
    assert torch.allclose(moved[2], torch.tensor([0.0, 0.4]).double())  # no further than ``absolute``
    slow = gradient * torch.tensor([1e-6, 1.0, 1.0, 1.0]).double()[:, None]
    eta, after = flow_step(optimizer, weight, slow)
    assert eta.tolist() == pytest.approx([1e6])
    assert torch.allclose((weight - after)[0, 0, 1], torch.tensor([0.1, 0.0]).double())  # for no longer than ``relax``


def test_a_flow_without_a_slope_stands_still():
    weight = torch.ones(1, 1, 2, 2, dtype=torch.float64)
    for relax, time in {None: 0.0, 0.0: 0.0, 0.5: 0.5}.items():  # long filters have rested for their own time
        optimizer = training.FlowGD(math.inf, 0.1, 0.1, 0.5, math.inf, relax)
        eta, after = flow_step(optimizer, weight, 0 * weight)
        assert eta.tolist() == [time] and torch.equal(after, weight)


def test_clocks_of_their_own_change_nothing_below_the_knee():
    with_clocks, without = (
        patch_run(5, 3, training.FlowGD(50.0, 0.1, 0.05, math.inf, math.inf, relax), None) for relax in (1.0, None)
    )
    torch.testing.assert_close(with_clocks.params["weight"], without.params["weight"])


def test_long_steps_delay_every_escape_by_one_factor():
    # w' = w^7 leaves a small w at the time w^-6 / 6; the sum over steps of a fraction r is longer, as chapter 01 says.
    def objective(params):
        return -params["w"].pow(8).sum((1, 2)) / 8, {"w": -params["w"].pow(7)}

    start = torch.tensor([1e-2, 1e-3, 1e-4], dtype=torch.float64)[:, None, None]
    for r in (0.03, 0.1, 0.3):
        optimizer, steps = training.FlowGD(relative=r, knee=1.0, absolute=0.0), math.ceil(math.log(1e4) / math.log(1 + r))
        run = training.fit(objective, {"w": start}, (), steps=steps, optimizer=optimizer)
        assert (run.params["w"] >= 1).all()
        delay = run.log["time"][-1] / (start[:, 0, 0] ** -6 / 6)
        assert delay.tolist() == pytest.approx([6 * r / (1 - (1 + r) ** -6)] * 3, rel=1e-9)


def test_learned_filters_with_clocks_of_their_own_settle_where_the_flow_leads():
    # A loss in one variable per filter whose minimum is at 1: (w - 1)^2 / 2 for the long, and w' = w for the short.
    def objective(params):
        w = params["w"]
        return w.sum((1, 2)), {"w": torch.stack([-w[:, 0], w[:, 1] - 1], 1)}

    start = {"w": torch.tensor([[[1e-9], [0.5]]], dtype=torch.float64)}
    optimizer = training.FlowGD(relative=0.1, absolute=0.2, knee=0.1, relax=0.5)
    run = training.fit(objective, start, (), steps=150, optimizer=optimizer)
    assert run.params["w"][0, 1, 0].item() == pytest.approx(1 - 0.5 * 0.9**150, rel=1e-12)
    # Time is that of the short filter, whose growth is exp(t): 150 steps of 10 % are t = 150 log(1.1) up to the step's error.
    assert run.log["time"][-1].item() == pytest.approx(15.0, rel=1e-9)
    assert run.params["w"][0, 0, 0].item() == pytest.approx(1e-9 * 1.1**150, rel=1e-9)


def test_time_counts_constant_steps():
    run = patch_run(0, 2, OPTIMIZERS["gd"], None)
    assert torch.allclose(run.log["time"], 0.3 * torch.arange(21, dtype=torch.float64)[:, None].expand(21, 2))


# --- looking changes nothing ---


@each_optimizer
def test_logging_leaves_no_trace(optimizer):
    sample = training.stack([WORLD.sample(9, g, dtype=torch.float64) for g in training.generators(0, 2)])
    start = {"weight": 0.1 * normal(2, 3, 4, WORLD.dim)}
    before = start["weight"].clone()
    looks = {
        "best": lambda p: probes.max_correlation(p["weight"]),
        "weight": lambda p: p["weight"],
        "size": lambda p: p["weight"].flatten(1).norm(dim=1),
    }
    objective, seen = PatchObjective(4, 0.1), []
    for how in ({}, {"log_at": [3]}, {"probes": looks, "log_at": range(13)}, {"probes": looks}):
        run = training.fit(objective, start, tuple(sample), steps=12, optimizer=optimizer, **how)
        seen.append(run)
        assert torch.equal(start["weight"], before)
        assert torch.equal(run.params["weight"], seen[0].params["weight"])
    assert [run.steps.tolist() for run in seen] == [[0, 12], [3], list(range(13)), [0, 12]]
    full = seen[2].log
    assert {k: tuple(v.shape) for k, v in full.items()} == {
        "loss": (13, 2),
        "time": (13, 2),
        "best": (13, 2, 3, 2),
        "weight": (13, 2, 3, 4, 6),
        "size": (13, 2),
    }
    for k, rows in seen[3].log.items():
        assert torch.equal(rows, full[k][[0, 12]])
    assert torch.equal(full["weight"][0], before) and torch.equal(full["weight"][-1], run.params["weight"])
    assert torch.equal(full["best"], probes.max_correlation(full["weight"]))


def test_the_logged_loss_is_that_of_the_logged_parameters():
    sample = training.stack([WORLD.sample(9, g, dtype=torch.float64) for g in training.generators(0, 2)])
    run = training.fit(
        PatchObjective(4, 0.1, torch.float64),
        {"weight": 0.1 * normal(2, 3, 4, WORLD.dim)},
        tuple(sample),
        steps=6,
        optimizer=training.SGD(0.5),
        probes={"weight": lambda p: p["weight"]},
        log_at=[0, 4, 6],
    )
    for row, weight in zip(run.log["loss"], run.log["weight"]):
        logits = patch_logits(weight, sample.x, sample.multiplicity[0], 4, 0.1)
        expected = torch.nn.functional.cross_entropy(logits.mT, sample.y, reduction="none").mean(1)
        assert torch.allclose(row, expected, atol=1e-12, rtol=0)


def counted(calls):
    def objective(params, target):
        calls.append(target[0].item())
        return ((params["w"] - target[:, None]) ** 2).sum(1), {"w": 2 * (params["w"] - target[:, None])}

    return objective


@pytest.mark.parametrize(("log_at", "evaluations"), [(None, 6), ([0], 5), ([2, 5], 6), ([4], 5)])
def test_nothing_is_computed_that_is_not_needed(log_at, evaluations):
    calls, looks = [], []
    run = training.fit(
        counted(calls),
        {"w": torch.ones(2, 3)},
        lambda step: (torch.full((2,), float(step)),),
        steps=5,
        optimizer=training.SGD(0.1),
        probes={"look": lambda p: looks.append(1) or p["w"].sum(1)},
        log_at=log_at,
    )
    assert calls == list(range(evaluations))
    assert len(looks) == len(run.steps) == (2 if log_at is None else len(log_at))


def test_no_steps_leave_the_parameters_and_negative_ones_are_refused():
    start = {"w": torch.ones(2, 3)}
    arguments = {"optimizer": training.SGD(0.1)}
    run = training.fit(counted([]), start, (torch.zeros(2),), steps=0, **arguments)
    assert torch.equal(run.params["w"], start["w"]) and run.params["w"] is not start["w"]
    assert run.steps.tolist() == [0] and run.log["loss"].tolist() == [[3.0, 3.0]]
    with pytest.raises(ValueError, match="steps"):
        training.fit(counted([]), start, (torch.zeros(2),), steps=-1, **arguments)


@few
@given(steps=st.integers(0, 500), count=st.integers(2, 60))
def test_log_steps(steps, count):
    logged = training.log_steps(steps, count)
    assert logged[0] == 0 and logged[-1] == steps
    assert logged == sorted(set(logged))
    assert len(logged) == min(count, steps + 1)
    gaps = np.diff(logged)
    assert steps == 0 or gaps.max() - gaps.min() <= 1


@pytest.mark.parametrize("steps, count", [(10, 1), (10, 0), (-1, 5)])
def test_log_steps_without_both_ends_are_refused(steps, count):
    with pytest.raises(ValueError, match=f"got steps={steps}, count={count}"):
        training.log_steps(steps, count)


# --- devices ---


def test_devices(monkeypatch):
    assert training.pick_device("cpu") == torch.device("cpu")
    for there in (True, False):
        monkeypatch.setattr(torch.cuda, "is_available", lambda there=there: there)
        assert training.pick_device("auto").type == ("cuda" if there else "cpu")


@pytest.mark.parametrize("name", ["gpu", "cuda:99", "", "cpu:x", "mps", "xpu", "hpu", "meta"])
def test_absent_devices_are_refused_in_one_short_line(name):
    with pytest.raises(ValueError, match="device must be 'auto', 'cpu' or another available device") as found:
        training.pick_device(name)
    assert len(str(found.value)) < 350 and "\n" not in str(found.value) and "http" not in str(found.value)


@pytest.mark.parametrize("log_at", [[], [-1], [0, 4]])
def test_steps_to_log_at_must_be_there(log_at):
    params = {"w": torch.ones(2, 3)}
    with pytest.raises(ValueError, match="log_at"):
        training.fit(lambda p: (p["w"].sum(-1), p), params, (), steps=3, optimizer=training.SGD(0.1), log_at=log_at)


def test_a_flow_step_takes_vectors_and_stands_still_without_gradients():
    state = {"time": torch.zeros(2, dtype=torch.float64)}
    params = {"w": torch.ones(2, 3), "b": torch.ones(2, 4, 3)}
    grads = {"w": torch.zeros(2, 3), "b": torch.zeros(2, 4, 3)}
    optimizer = training.FlowGD()
    assert optimizer.step(params, grads, state).tolist() == [0.0, 0.0]
    assert all((p == 1).all() for p in params.values())
    grads["w"] = torch.full((2, 3), 2.0)
    assert torch.allclose(optimizer.step(params, grads, state), torch.tensor(0.05, dtype=torch.float64))


def test_training_takes_subnormal_numbers_for_zero_and_leaves_the_mode_as_it_was():
    tiny = torch.tensor([[1e-42]])
    seen = []

    def objective(params, x):
        seen.append((params["w"] * 1).item())
        if len(seen) == 2:
            raise KeyboardInterrupt
        return x, {"w": torch.zeros_like(params["w"])}

    with pytest.raises(KeyboardInterrupt):
        training.fit(objective, {"w": tiny}, (torch.zeros(1),), steps=2, optimizer=training.SGD(1.0))
    assert seen == [0.0, 0.0] and (tiny * 1).item() > 0


# --- single networks ---


def test_the_step_size_goes_up_and_then_down_along_a_cosine():
    assert [training.cosine(step, 8) for step in (0, 4, 8)] == pytest.approx([1, 0.5, 0])
    assert [training.cosine(step, 12, 4) for step in (0, 3, 4, 8, 12)] == pytest.approx([0.25, 1, 1, 0.5, 0])


def test_every_point_is_used_once_before_any_is_used_again():
    seen, weight = [], torch.zeros(1, requires_grad=True)

    def loss(rows, generator):
        seen.append(rows.tolist())
        return (weight * len(rows)).sum()

    how = {"steps": 10, "batch": 4, "seed": 3}
    training.minimise(torch.optim.SGD([weight], 0.0), loss, 10, **how)
    used = [row for rows in seen for row in rows]
    assert [sorted(used[place : place + 10]) for place in range(0, 40, 10)] == [list(range(10))] * 4
    assert used[:10] != used[10:20] and all(len(rows) == 4 for rows in seen)
    first, seen[:] = list(seen), []
    training.minimise(torch.optim.SGD([weight], 0.0), loss, 10, **how)
    assert seen == first
    seen.clear()
    training.minimise(torch.optim.SGD([weight], 0.0), loss, 10, **how | {"seed": 4})
    assert seen != first


def test_a_single_network_takes_the_steps_of_its_optimizer_along_the_cosine():
    weight = torch.full((1,), 3.0, dtype=torch.float64, requires_grad=True)
    losses = training.minimise(
        torch.optim.SGD([weight], 0.1), lambda rows, generator: weight.square().sum() / 2, 5, steps=6, batch=2, seed=0, rise=2
    )
    expected = [3.0]
    for step in range(6):
        expected.append(expected[-1] * (1 - 0.1 * training.cosine(step, 6, 2)))
    assert losses == pytest.approx([one**2 / 2 for one in expected[:-1]]) and weight.item() == pytest.approx(expected[-1])


def test_the_fall_of_a_loss_is_that_of_its_last_fifth():
    values = [10.0] * 80 + [4.0] * 5 + [7.0] * 10 + [3.0] * 5
    assert training.percent_fallen(values) == 25 and training.percent_fallen([2.0, 2.0, 2.0, 1.0]) == 50
    assert training.percent_fallen([5.0] * 40) == 0 and training.percent_fallen([6.0] * 95 + [9.0] * 5) == -50
