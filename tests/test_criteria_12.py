"""The criteria of chapter 12 hold for what they judge and fail for what they do not.

The settings are the chapter's, or smaller; the limits are the chapter's own.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from mvnb import losses, stats, training
from mvnb.data import EnvironmentFeatures, FramedDomains, LeaveOneOut, load_images
from mvnb.models import MLP
from mvnb.theory import nuclear_norm as theory

# --- Closed forms ---


def test_accuracies_of_another_share_are_noticed():
    x, y = EnvironmentFeatures.uniform(1, 1, 0.2).sample(20_000, torch.Generator().manual_seed(0), False, torch.float64)
    rho = np.array([0.2, 0.686, 2.0])
    seen = (y[:, None] * (x[:, :1] + torch.tensor(rho) * x[:, 1:]) > 0).double().mean(0).numpy()

    def score(share):
        exact = theory.plane_accuracy(rho, share)
        return (np.abs(seen - exact) / np.sqrt(exact * (1 - exact) / 20_000)).max()

    assert score(0.7) <= 5 and not score(0.67) <= 5


def test_the_ratio_and_its_bounds_fail_off_the_optimum():
    group = theory.GroupPopulation(40, 174, 0.48)
    alpha, beta = group.decay_optimum(0.1)

    def deviation(a, b):
        m = group.moments(a, b)
        return abs(0.96 * a / b / ((0.1 + m.bend_u) / (0.1 + m.bend_r)) - 1)

    def bounded(a, b):
        low, high = theory.ratio_bounds(a, 0.48)
        return low <= 0.96 * a / b <= high

    assert deviation(alpha, beta) < 1e-5 and bounded(alpha, beta)
    assert not deviation(1.01 * alpha, beta) < 1e-5
    assert not bounded(1.2 * alpha, beta) and not bounded(0.9 * alpha, beta)


def test_the_lemma_and_the_proposition_need_their_worlds():
    weak = theory.GroupPopulation(16, 44, 0.3)  # d far below r + r / gamma^2
    alpha, beta = weak.decay_optimum(1e-5)
    assert not weak.accuracy(alpha / beta) <= np.exp(-1.6)
    assert not 0.6 * alpha / beta < 1.5 or not alpha < 16**-0.5  # too little decay for so few features
    strong = theory.GroupPopulation(40, 174, 0.48)
    alpha, beta = strong.decay_optimum(1.0)
    assert strong.accuracy(alpha / beta) <= np.exp(-4) and alpha < 40**-0.5 and 0.96 * alpha / beta < 1.5


def test_the_transition_is_not_where_the_proposition_begins():
    numbers = np.array([20, 30, 40, 44, 50, 60, 90])
    groups = [theory.GroupPopulation(16, int(n), 0.3) for n in numbers]
    there = []
    for one in groups:
        alpha, beta = one.decay_optimum(1.0)
        there.append(one.accuracy(alpha / beta))
    crossing = np.interp(0.5, there[::-1], numbers[::-1] + 16)
    assert abs(crossing / theory.transition(16, 0.3) - 1) <= 0.1
    assert not abs(crossing / (16 + 16 / 0.09) - 1) <= 0.1


def test_selection_fails_where_environmental_features_are_the_stronger_ones():
    assert theory.GroupPopulation(16, 44, 0.3).excess(0.1) > 0
    # a group of 16 uniform features beside 44 of the same law: no reason to leave them out
    assert not theory.GroupPopulation(16, 44, 0.4999).excess(1e-4) > 0


def test_the_strong_limits_differ_from_the_weak_ones():
    there = {}
    for penalty, weights in (("decay", (1e3, 0.01)), ("nuclear", (0.4, 0.001))):
        there[penalty] = [
            float(theory.plane_accuracy(b[1] / b[0], 0.3)) for b in (theory.plane_optimum(penalty, w) for w in weights)
        ]
    assert abs(there["decay"][0] - 0.86) < 0.002 and abs(there["nuclear"][0] - 0.9602) < 0.002
    assert not abs(there["decay"][1] - 0.86) < 0.002 and not abs(there["nuclear"][1] - 0.9602) < 0.002


# --- The model of the theory ---


@pytest.fixture(scope="module")
def weighed():
    """Weights after 450 steps of Adam under three penalties, and their accuracies elsewhere."""
    g = torch.Generator().manual_seed(0)
    world = EnvironmentFeatures.uniform(16, 44, 0.3)
    (x, y), (u, v) = world.sample(2000, g), world.sample(4000, g, elsewhere=True)
    z, there = x * y[:, None], u * v[:, None]
    root = torch.linalg.cholesky(z.T @ z / 2000 + 1e-6 * torch.eye(60)).T
    nuclear, decay = torch.tensor([0.03, 0.0, 1e-4]), torch.tensor([0.0, 0.01, 0.0])

    def objective(params, z):
        w = params["w"]
        margin = w @ z[0].T
        value, slope = losses.nuclear_norm(root * w[:, None])
        push = -torch.sigmoid(-margin) @ z[0] / len(z[0]) + decay[:, None] * w + nuclear[:, None] * (root * slope).sum(1)
        return softplus(-margin).mean(1) + nuclear * value, {"w": push}

    run = training.fit(
        objective,
        {"w": torch.full((3, 60), 0.1)},
        (z[None].expand(3, -1, -1),),
        steps=450,
        optimizer=training.Adam(lambda t: 0.025 * (1 + np.cos(np.pi * t / 450))),
    )
    w = run.params["w"]
    return w, (w @ there.T > 0).double().mean(1)


def test_training_selects_only_under_a_nuclear_norm_that_is_strong_enough(weighed):
    w, there = weighed
    selects = ((w.abs() > 0.01).sum(1) == 16) & (there >= 0.999)
    assert selects.tolist() == [True, False, False]
    assert there[1] <= 0.8 and not there[0] <= 0.8


# --- Images ---


def compare(settings, world, seeds=(0, 1), steps=150):
    images = load_images("digits")
    x, y = torch.cat([images.x_train, images.x_test]), torch.cat([images.y_train, images.y_test])
    drawn, nets, streams = [], [], []
    for s in seeds:
        g = torch.Generator().manual_seed(s)
        domain = torch.randint(4, (len(y),), generator=g)
        framed = world.frame(x, y, domain, 10, g).flatten(1)
        drawn.append((framed, LeaveOneOut.of(domain, g)))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(s)
            nets += [MLP((framed.shape[1], 32, 32, 10))] * 4
        streams += training.generators(s, 4)
    tables = []
    for name in ("train", "valid", "test"):
        parts = [getattr(split, name) for _, split in drawn]
        least = min(part.shape[-1] for part in parts)
        tables.append(torch.cat([p[..., :least] + i * len(y) for i, p in enumerate(parts)]))
    points = training.Domains(torch.cat([one for one, _ in drawn]), y.repeat(len(seeds)), *tables)
    return training.leave_one_out(settings, points, nets, streams, steps=steps, batch=32, step_size=0.003, checkpoints=10)


@pytest.fixture(scope="module")
def weak_hint():
    return compare([{}, {"nuclear": 0.6}, {}, {"nuclear": 4.0}], FramedDomains(), (0, 1, 2), 300)


def above(better, worse):
    mean, half = stats.mean_interval(100 * (better - worse))
    return mean - half > 0


def test_a_gain_is_not_found_where_there_is_none(weak_hint):
    best = weak_hint.best
    assert above(best[1], best[0])
    assert torch.equal(best[0], best[2])  # the same runs
    assert not above(best[2], best[0]) and not above(best[0], best[1])


def test_too_strong_a_penalty_takes_everything(weak_hint):
    last = 100 * weak_hint.last.mean(1)
    assert last[1] > last[0] and last[1] - last[3] >= 20
    length, head = weak_hint.features.norm(dim=-1).mean(-1), weak_hint.head
    assert (length[1] < 0.5 * length[0]).all() and (head[1] > 1.2 * head[0]).all()
    assert not (length[2] < 0.5 * length[0]).any() and not (head[3] > 1.2 * head[0]).any()


def test_strong_hints_turn_both_verdicts():
    settings = [{}, {"nuclear": 0.6}, {"decay": 0.01}]
    best = 100 * compare(settings, FramedDomains(agree=0.95, cues=4), steps=250).best

    def verdicts(values):
        harm, rescue = (stats.mean_interval(v - values[0]) for v in values[1:])
        return harm[0] + harm[1] < -3, rescue[0] - rescue[1] > 0

    assert verdicts(best) == (True, True)
    assert verdicts(100 * compare(settings, FramedDomains(agree=0.0, cues=0)).best) == (False, False)


def test_all_settings_start_alike_and_a_run_does_not_depend_on_the_others():
    both = compare([{}, {"mixup": 1}], FramedDomains(), steps=20)
    alone = compare([{"mixup": 1}], FramedDomains(), steps=20)
    torch.testing.assert_close(both.best[1], alone.best[0])
    with pytest.raises(ValueError, match="at least the 10 checkpoints"):
        compare([{}], FramedDomains(), steps=5)
