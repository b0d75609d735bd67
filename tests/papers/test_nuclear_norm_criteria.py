"""The criteria of chapter 12 hold for what they judge and fail for what they do not.

The settings are the chapter's, or smaller; the limits are the chapter's own.
"""

import numpy as np
import pytest
import torch
from torch.nn.functional import softplus

from mvnb import kept_runs, losses, probes, stats, training
from mvnb.data import load_images
from mvnb.models import MLP
from mvnb.papers.nuclear_norm import theory
from mvnb.papers.nuclear_norm.data import EnvironmentFeatures, FramedDomains, LeaveOneOut
from mvnb.papers.nuclear_norm.leave_one_out import Domains, leave_one_out

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


def test_ratio_shape_and_vanishing_decay_are_not_met_elsewhere():
    few = theory.GroupPopulation(16, 44, 0.3)
    scaled = {w: 0.6 * np.divide(*few.decay_optimum(w)) for w in (10.0, 1e-4)}
    assert abs(scaled[10.0] - 1) <= 0.005 and not abs(scaled[1e-4] - 1) <= 0.005  # ratio-limit
    ratio = scaled[1e-4] / 0.6
    assert abs(few.accuracy(ratio) - few.normal_accuracy(ratio)) <= 0.03  # transition-shape
    assert not abs(few.accuracy(ratio) - few.normal_accuracy(1.1 * ratio)) <= 0.03
    assert not few.accuracy(ratio) >= 0.95  # no-penalty-is-enough asks for less decay


def test_optima_in_the_plane_are_told_apart():
    level, found = 0.3, {}
    for penalty, top in (("decay", 300.0), ("nuclear", 0.42)):
        optima = [theory.plane_optimum(penalty, w) for w in np.geomspace(3e-4, top, 12)]
        found[penalty] = np.interp(level, [theory.plane_loss(b, 0.2)[0] for b in optima], [b[1] / b[0] for b in optima])
    assert found["nuclear"] < 0.95 * found["decay"] and not found["decay"] < 0.95 * found["nuclear"]
    there = [
        float(theory.plane_accuracy(b[1] / b[0], 0.3)) for b in (theory.plane_optimum(k, 0.1) for k in ("nuclear", "decay"))
    ]
    assert not abs(there[0] - there[1]) < 0.02  # a run that ends at the other penalty's optimum is noticed


def test_a_head_that_hardly_grows_does_not_escape():
    sigma = theory.plane_moments(0.2)[1]

    def objective(length):
        beta = theory.plane_optimum("nuclear", 0.1 / length)
        return theory.plane_loss(beta, 0.2)[0] + 0.1 / length * np.sqrt(beta @ sigma @ beta)

    assert objective(11.0) < 0.9 * objective(1.0) and not objective(1.1) < 0.9 * objective(1.0)


# --- The model of the theory ---


def descend(world, nuclear, decay, steps=450, noise=0.0):
    """Weights after Adam under several penalties, accuracies elsewhere, and stable ranks."""
    g = torch.Generator().manual_seed(0)
    (x, y), (u, v) = world.sample(2000, g), world.sample(4000, g, elsewhere=True)
    y = torch.where(torch.rand(len(y), generator=g) < noise, -y, y)
    z, there = x * y[:, None], u * v[:, None]
    root = torch.linalg.cholesky(z.T @ z / len(z) + 1e-6 * torch.eye(z.shape[1])).T
    nuclear, decay = torch.tensor(nuclear), torch.tensor(decay)

    def objective(params, z):
        w = params["w"]
        margin = w @ z[0].T
        value, slope = losses.nuclear_norm(root * w[:, None])
        push = -torch.sigmoid(-margin) @ z[0] / len(z[0]) + decay[:, None] * w + nuclear[:, None] * (root * slope).sum(1)
        return softplus(-margin).mean(1) + nuclear * value, {"w": push}

    run = training.fit(
        objective,
        {"w": torch.full((len(nuclear), z.shape[1]), 0.1)},
        (z[None].expand(len(nuclear), -1, -1),),
        steps=steps,
        optimizer=training.Adam(lambda t: 0.025 * (1 + np.cos(np.pi * t / steps))),
    )
    w = run.params["w"]
    return w, (w @ there.T > 0).double().mean(1), probes.stable_rank(root * w[:, None])


@pytest.fixture(scope="module")
def weighed():
    return descend(EnvironmentFeatures.uniform(16, 44, 0.3), [0.03, 0.0, 1e-4], [0.0, 0.01, 0.0])[:2]


def test_rise_and_fall_and_the_falling_rank_are_not_found_under_decay():
    world = EnvironmentFeatures(tuple(np.linspace(0.15, 0.45, 12)), (0.1,) * 24)
    none, dial = [0.0, 0.0, 0.0], [0.0, 0.03, 0.3]

    def verdicts(nuclear, decay):
        _, there, rank = descend(world, nuclear, decay, noise=0.05)
        return bool(there[1] - max(there[0], there[2]) >= 0.003), bool((rank.diff() < 0).all())

    assert verdicts(dial, none) == (True, True)
    assert verdicts(none, dial) == (False, False)


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
    points = Domains(torch.cat([one for one, _ in drawn]), y.repeat(len(seeds)), *tables)
    return leave_one_out(settings, points, nets, streams, steps=steps, batch=32, step_size=0.003, checkpoints=10)


@pytest.fixture(scope="module")
def weak_hint():
    return compare([{}, {"nuclear": 0.6}, {}, {"nuclear": 4.0}], FramedDomains(), (0, 1, 2), 300)


def above(better, worse, least=0.0):
    mean, half = stats.mean_interval(100 * (better - worse))
    return mean - half > least


def test_a_gain_is_not_found_where_there_is_none(weak_hint):
    best = weak_hint.best
    assert above(best[1], best[0])
    assert not above(best[2], best[0]) and not above(best[0], best[1])
    assert above(best[1], best[0], -2) and not above(best[3], best[0], -2)  # nu-against-coral
    kept = kept_runs.load("nuclear_norm", "longer")["reached"]
    nu, erm = (np.array(kept[k]) / 100 for k in ("ERM-NU", "ERM"))
    assert above(nu, erm) and not above(erm, nu)


def test_a_hint_is_what_the_nuclear_norm_gains_from(weak_hint):
    none = compare([{}, {"nuclear": 0.6}], FramedDomains(agree=0.0, cues=0), (0, 1, 2), 300).best
    more = (weak_hint.best[1] - weak_hint.best[0]) - (none[1] - none[0])
    assert more.mean() > 0 and not -more.mean() > 0


def test_a_low_stable_rank_is_noticed(weak_hint):
    limit = weak_hint.features.shape[-1] / 4
    assert probes.stable_rank(weak_hint.features).mean(1).max() <= limit
    assert not probes.stable_rank(torch.randn(450, 32, generator=torch.Generator().manual_seed(0))) <= limit


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
