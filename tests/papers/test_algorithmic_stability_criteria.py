"""The criteria of chapter 04 hold for what they judge and fail for what they do not.

The setting is the chapter's, smaller: logistic regression and residual networks on digits, the chapter's limits. Maxima over
few pairs of one trial move with the rounding of single trajectories: networks have several trials, whose maxima are averaged.
"""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from mvnb import losses, probes, stats, training
from mvnb.data import load_images
from mvnb.models import ResidualMLP
from mvnb.papers.algorithmic_stability import theory
from mvnb.papers.algorithmic_stability.pairs import LockStep, sample_swaps

SIZES, NET_SIZES, SEED, TRIALS = (150, 300, 600, 1200), (200, 530, 1400), 1000, 4
DIGITS = load_images("digits")
X = torch.cat([DIGITS.x_train, DIGITS.x_test]).flatten(1)
Y = torch.cat([DIGITS.y_train, DIGITS.y_test])
POOL, TEST = len(DIGITS.y_train), len(DIGITS.y_test)


def exponent(ms, values):
    return stats.maxima_exponent(np.array(ms, dtype=float), values)[0]


def equal_runs(distance, spread):
    return distance < 0.01 and spread < 0.01


def obeys_bounds(distance, bound, stability, lipschitz):
    return (distance <= bound).all() and (stability <= (1 + 1e-4) * lipschitz * distance).all()


def in_range(exponents):
    return min(exponents) >= -1.6 and max(exponents) <= -0.6


def tracks(stability, gap):
    return abs(stability - gap) <= 0.5


def zero_one_no_faster(gap01, gap):
    return gap01 >= gap - 0.2


def lags(stability, gap):
    return stability - gap >= 0.1


def two_of_three_lag(differences):
    return np.median(differences) >= 0.1


def flatter(nets, control):
    return np.mean(nets) >= control + 0.1


def distance_stays(nets, control):
    return np.mean(nets) > -0.5 and control < -0.6


def connected(barriers):
    return barriers.max() <= 0.02


def momentum_disconnects(small, plain, momentum):
    return momentum >= plain >= small - 0.005


def bends(ms, top):
    middle = len(ms) // 2
    parts = (slice(0, middle), slice(middle - 1, None))
    small, large = (stats.power_law_fit(np.array(ms[p], dtype=float), top[p]).slope for p in parts)
    return abs(large - small) >= 0.5


def read_out(logits_of, first, second, members):
    """Gaps, stability and distance of one size, as in the chapter."""
    loss = [-logits_of(p, slice(POOL, None)).log_softmax(-1) for p in (first, second)]
    own = [z.gather(-1, members.labels[POOL:].expand(len(z), -1)[..., None])[..., 0] for z in loss]
    on_train = -logits_of(first, members.rows).log_softmax(-1)
    on_train = on_train.gather(-1, members.labels[members.rows][..., None])[..., 0]
    gap = torch.maximum(own[0].mean(1) - on_train.mean(1), own[0].std(1) / TEST**0.5)
    return gap, (own[0] - own[1]).abs().amax(1), probes.parameter_distance(first, second)


@pytest.fixture(scope="module")
def control():
    """Logistic regression: pairs in lock-step, and pairs of unrelated sets."""
    points, high = torch.cat([X, torch.ones(len(X), 1)], 1), (Y >= 5).long()
    lipschitz = theory.logistic_constants(points.double().numpy())[0]

    def objective(params, x, y):
        w, sign = params["w"], 2 * y - 1
        z = sign * (x @ w[..., None])[..., 0]
        slope = -sign * torch.sigmoid(-z) / y.shape[1]
        return torch.nn.functional.softplus(-z).mean(1), {"w": (slope[:, None] @ x)[:, 0]}

    def logits_of(params, rows):
        z = (points[rows] @ params["w"][..., None])[..., 0]
        return torch.stack([-z / 2, z / 2], -1)

    def experiment(unrelated):
        g, out = torch.Generator().manual_seed(SEED), []
        for m in SIZES:
            swaps = sample_swaps(POOL, TEST, m, 16, g)
            first, second = swaps.members
            table = torch.cat([first, second.roll(1, 0) if unrelated else second])
            batches = LockStep(points, high, [table], 128, [SEED])
            start = {"w": torch.zeros(32, points.shape[1])}
            run = training.fit(objective, start, batches, steps=300, optimizer=training.GD(0.1))
            halves = [{"w": w} for w in run.params["w"].chunk(2)]
            values = read_out(logits_of, *halves, SimpleNamespace(rows=first, labels=high))
            visits = batches.visits(0, swaps.position, 300).sum(0).numpy()
            out.append([v.double().numpy() for v in values] + [theory.distance_bound(0.1, lipschitz, 128, visits)])
        gap, stability, distance, bound = (np.stack(part) for part in zip(*out))
        return SimpleNamespace(gap=gap, stability=stability, distance=distance, bound=bound, lipschitz=lipschitz)

    return experiment(False), experiment(True)


def b(measured, ms=SIZES):
    return {name: exponent(ms, getattr(measured, name)) for name in ("gap", "stability", "distance")}


def test_logistic_criteria_notice_unrelated_sets(control):
    paired, unrelated = control
    assert obeys_bounds(paired.distance, paired.bound, paired.stability, paired.lipschitz)
    assert not obeys_bounds(unrelated.distance, unrelated.bound, unrelated.stability, unrelated.lipschitz)


def test_criteria_of_the_control_fail_for_networks(control, nets):
    convex, network = b(control[0]), b(nets[0]["2b"], NET_SIZES)
    assert in_range(convex.values()) and tracks(convex["stability"], convex["gap"])
    assert not in_range(network.values()) and not tracks(network["stability"], network["gap"])
    assert zero_one_no_faster(-0.8, -1.1) and not zero_one_no_faster(-1.4, -1.1)


@pytest.fixture(scope="module")
def nets():
    """Residual networks in the three configurations: read-outs and barriers by trial, and the distances after null swaps."""
    trials = [trial(SEED + i) for i in range(TRIALS)]
    names = {config: vars(values) for config, values in trials[0][0].items()}
    measured = {
        config: SimpleNamespace(**{k: np.stack([getattr(found[config], k) for found, _ in trials]) for k in keys})
        for config, keys in names.items()
    }
    return measured, np.array([apart for _, apart in trials])


def trial(seed):
    """One trial of the three configurations, and how far apart null swaps end in the same and in another order."""
    torch.manual_seed(1000 * seed)
    net = ResidualMLP(64, 10, 24, 2)
    objective, grid = training.stacked(net, losses.cross_entropy), probes.interpolation_grid()
    configs = {
        "1a": (0.07, 8, 0.0),
        "2a": (lambda s: 0.2 * 0.1 ** ((s >= 160) + (s >= 240)), 32, 0.0),
        "2b": (lambda s: 0.15 * 0.1 ** ((s >= 160) + (s >= 240)), 32, 0.9),
    }
    g = torch.Generator().manual_seed(1000 * seed)
    swaps = [sample_swaps(POOL, TEST, m, 4, g) for m in NET_SIZES]

    def logits_of(params, rows):
        x = X[rows]
        return training.predict(net, params, x if x.dim() == 3 else x.expand(len(params["head.bias"]), -1, -1))

    def train(tables, batch, step, momentum, seeds, steps=500):
        start = training.stack_modules([net] * sum(len(t) for t in tables))
        batches = LockStep(X, Y, tables, batch, seeds)
        return training.fit(objective, start, batches, steps=steps, optimizer=training.GD(step, momentum=momentum)).params

    out = {}
    for name, (step, batch, momentum) in configs.items():
        params = train([s.table for s in swaps], batch, step, momentum, [seed] * 3)
        values, barriers = [], []
        for i, s in enumerate(swaps):
            halves = [{k: v[8 * i + 4 * h :][:4] for k, v in params.items()} for h in (0, 1)]
            values.append(read_out(logits_of, *halves, SimpleNamespace(rows=s.members[0], labels=Y)))
            line = probes.interpolate(*({k: v[:2] for k, v in p.items()} for p in halves), grid)
            accuracy = probes.accuracy(logits_of(line, slice(POOL, None)), Y[POOL:])
            barriers.append(probes.barrier(accuracy.view(len(grid), 2), grid))
        gap, stability, distance = (torch.stack(part).double().numpy() for part in zip(*values))
        out[name] = SimpleNamespace(gap=gap, stability=stability, distance=distance, barriers=torch.stack(barriers).numpy())
    rows = swaps[0].members[0]
    null = train([rows, rows], 32, 0.2, 0.9, [seed, seed], 40)
    other = train([rows, rows], 32, 0.2, 0.9, [seed, seed + 1], 40)
    apart = [
        probes.normalised_distance(*({k: v.chunk(2)[h] for k, v in p.items()} for h in (0, 1))).max().item()
        for p in (null, other)
    ]
    return out, apart


def test_null_swaps_notice_another_order(nets):
    same, other = nets[1].T
    assert equal_runs(same.max(), 0.0)
    assert not equal_runs(other.min(), 0.0) and not equal_runs(0.0, 0.2)


def test_stability_criteria_hold_for_networks_and_fail_for_logistic_regression(nets, control):
    found, convex = {name: b(v, NET_SIZES) for name, v in nets[0].items()}, b(control[0])
    differences = [v["stability"] - v["gap"] for v in found.values()]
    assert two_of_three_lag(differences) and sum(d >= 0.1 for d in differences) >= 2
    assert not lags(convex["stability"], convex["gap"])
    assert flatter([v["stability"] for v in found.values()], convex["stability"])
    assert not flatter([convex["stability"]] * 3, convex["stability"])
    assert distance_stays([v["distance"] for v in found.values()], convex["distance"])
    assert not distance_stays([convex["distance"]] * 3, convex["distance"])
    assert not distance_stays([v["distance"] for v in found.values()], found["2b"]["distance"])


def test_connectivity_criteria_notice_momentum(nets):
    small, plain, momentum = (nets[0][name].barriers for name in ("1a", "2a", "2b"))
    assert connected(small) and not connected(momentum)
    assert momentum_disconnects(small.mean(), plain.mean(), momentum.mean())
    assert not momentum_disconnects(small.mean(), momentum.mean(), plain.mean())


def test_one_rate_is_told_from_two():
    ms = (10, 25, 60, 150, 400, 1000)
    top = np.array(ms, dtype=float) ** -0.8
    assert not bends(ms, top)
    assert bends(ms, np.minimum(top, 0.03))
