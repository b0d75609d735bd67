"""The criteria of chapter 09 hold for what they judge and fail for what they do not.

The functions are the chapter's own, read from its source; the limits are the chapter's.
"""

import math

import numpy as np
import pytest
import torch
from chapter_source import functions_of

from mvnb import stats, training
from mvnb.data import GaussianMixture
from mvnb.papers.gradient_features import theory
from mvnb.papers.gradient_features.data import BlockParity, LinearMargin, MultiIndex

RUNS = 3


@pytest.fixture(scope="module")
def page():
    return functions_of("09_gradient_features")


def run(page, name, *args, **changes):
    page[name].__globals__.update(changes, device=torch.device("cpu"))
    return page[name](*args)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def parts(world):
    return world.means, world.labels, world.masses, world.stds


def test_a_start_that_is_not_mirrored_has_another_first_step(page):
    x, y = GaussianMixture.orthogonal(6, 2.0, [1, -1, -1, 1]).sample(200, generator(), torch.float64)
    start = {k: v.double() for k, v in page["symmetric_start"](8, 6, [generator()], 1.0, 0.5).items()}

    def deviation(signs):
        net = page["TwoLayer"](start["w"][0], start["b"][0], start["a"][0] * signs)
        (1 - y * net(x)).clamp(min=0).mean().backward()
        g, _ = theory.sample_gradient(start["w"], -start["b"], x, y)
        return (
            (page["first_step"]({**start, "a": start["a"] * signs}, g, start["a"], 0.7)["w"][0] + 0.7 * net.w.grad).abs().max()
        )

    assert deviation(torch.ones(32)) < 1e-12
    assert not deviation(torch.cat([torch.ones(16), 9 * torch.ones(16)])) < 1e-12


def test_sampling_notices_another_threshold():
    w, b = torch.randn(3, 6, generator=generator()).double(), torch.ones(3).double()
    x, y = LinearMargin(6).sample(100_000, generator(1), torch.float64)
    on = (x @ w.T > b).double()
    seen = (on * y[:, None]).T @ x / len(x)
    spread = (on.T @ (y[:, None] * x).square() / len(x) - seen.square()).sqrt()
    scores = [((seen - theory.linear_gradient(w, c * b, 0.5)).abs() / spread * len(x) ** 0.5).max() for c in (1, 1.1)]
    assert scores[0] <= 5 and not scores[1] <= 5


def test_nice_neurons_and_good_networks(page):
    world = GaussianMixture.orthogonal(64, 10.0, [1, 1, -1, -1])
    x, y = world.sample(1000, generator(7), torch.float64)
    star = ((x @ world.features.T - 5).clamp(min=0) * world.labels / 2.5).sum(1)
    opt = (1 - y * star).clamp(min=0).mean().item()
    common = {"clusters": world, "features": world.features, "n_clusters": 4, "kink": 2.5, "x": x, "y": y, "star": star}
    p = 0.0355

    def draw(m, sigma, wide=True):
        shares, excess, distance = [], [], []
        for g in training.generators(0, RUNS):
            a, vectors, length, cosine = run(page, "drawn_gradients", m, g, **common, sigma_w=sigma)
            nice = (cosine > 0.95) & (length >= 1.25)[:, None]
            gap, loss, *_ = run(page, "good_network", a, vectors, length, nice, m * p, wide, **common)
            shares.append(nice.double().sum(0) / (m * p))
            excess.append(loss.item() - opt)
            distance.append(gap.item())
        return torch.stack(shares), max(excess), np.mean(distance)

    shares, excess, distance = draw(25600, 1 / 15)
    assert (shares >= 0.25).all() and abs(shares.mean() - 0.5) <= 0.05 and excess <= 2e-3
    narrow = draw(25600, 1 / 30)
    assert not abs(narrow[0].mean() - 0.5) <= 0.05
    few = draw(400, 1 / 15)
    assert not few[1] <= 2e-3
    assert stats.power_law_fit([400 * p, 25600 * p], [few[2], distance]).slope <= -0.25
    assert draw(25600, 1 / 15, wide=False)[2] <= distance
    assert not stats.power_law_fit([400 * p, 25600 * p], [distance, distance]).slope <= -0.25


def test_concentration_needs_fresh_points():
    world, sizes = GaussianMixture.orthogonal(32, 5.0, [1, -1]), np.array([100, 400, 1600])
    w, b = torch.randn(20, 32, generator=generator()).double() / 8, torch.ones(20).double()
    exact, _ = theory.mixture_gradient(w, b, *parts(world))

    def slope(draw):
        errors = [np.mean([(draw(n, g) - exact).norm(dim=1).max() for g in training.generators(0, 4)]) for n in sizes]
        return stats.power_law_fit(sizes, errors).slope

    assert -0.6 <= slope(lambda n, g: theory.sample_gradient(w, b, *world.sample(n, g, torch.float64))[0]) <= -0.4
    assert not slope(lambda n, g: theory.sample_gradient(w, b, *world.sample(100, g, torch.float64))[0]) <= -0.4


def xor_run(page, shuffled=False, steps=40, dim=60):
    world, streams = GaussianMixture.xor(dim, math.sqrt(dim)), training.generators(0, RUNS)
    start = page["symmetric_start"](50, dim, streams, 1.0, 1 / (1.5 * math.sqrt(dim)))
    g = []
    for w, b, stream in zip(start["w"], -start["b"], streams):
        x, y = world.sample(2000, stream)
        g.append(theory.sample_gradient(w, b, x, y[torch.randperm(2000, generator=stream)] if shuffled else y))
    w1 = page["first_step"](start, *(torch.stack(v) for v in zip(*g)), 2 / (0.15 * dim))
    fresh = training.Fresh(world.sample, 128, streams)
    done = run(page, "learn", w1, fresh, steps, 0.05, world.sample(1000, generator(9)))
    return done, page["aligned"](start["w"], world.features), page["aligned"](w1["w"], world.features)


def test_exclusive_or_needs_its_first_step(page):
    done, before, after = xor_run(page)
    assert (done.log["error"][-1] <= 0.005).all() and (before < 0.02).all() and (after > 0.1).all()
    assert not (done.log["error"][0] <= 0.005).all()
    _, _, blind = xor_run(page, shuffled=True, steps=0)
    assert not (blind > 0.1).all()


def test_kernels_are_not_near_bayes_where_signals_are_weak(page):
    d, snr = 32, 3.0
    weak, far = GaussianMixture.xor(d, snr), GaussianMixture.xor(d, math.sqrt(d))
    at, truth = weak.sample(2000, generator(5))
    bayes = theory.xor_bayes_error(snr)
    samples = [weak.sample(32 * d, g) for g in training.generators(0, 3)]
    errors = run(page, "compare_network", d, samples, (at, truth), snr=snr, compare_steps=300, seed=0)
    assert errors.mean() <= bayes + 0.03
    share = run(page, "plane_shares", d, [weak.sample(32 * d, g) for g in training.generators(0, 12)], seed=0).mean()
    assert abs(share - theory.xor_alignment(32 * d, d, snr, 1.0)) <= 0.12
    assert not abs(share - theory.xor_alignment(2 * d, d, snr, 1.0)) <= 0.12
    kernel = [page["wrong"](page["kernel_fit"](*one, at), truth) for one in samples]
    assert not np.mean(kernel) <= bayes + 0.03
    # the claim that fails in the chapter would hold where the lower bound lives
    for world, holds in ((weak, True), (far, False)):
        at, truth = world.sample(1000, generator(5))
        few = [page["wrong"](page["kernel_fit"](*world.sample(48, g), at), truth) for g in training.generators(0, 4)]
        assert (np.median(few) > 0.05) == holds


def test_odds_and_sure_neurons_notice_other_constants():
    d, m = 400, 40_000
    s = torch.randn(m, 2, generator=generator()).double()
    length = torch.full((m,), math.sqrt(d)).double()
    kappa = math.sqrt(math.log(math.log(d)))
    plane, norm = theory.xor_gradient(s, length, kappa * math.sqrt(d), math.sqrt(d))
    cosine = plane[:, 0].abs() / norm
    hits, error = (cosine > 0.95).double().mean(), 5 * math.sqrt(0.2 * 0.8 / m) + 0.01
    assert abs(hits - theory.xor_hit_probability(0.05, kappa, 1.0)) <= error
    assert not abs(hits - theory.xor_hit_probability(0.03, kappa, 1.0)) <= error
    sure = (s[:, 0] >= 1.2 * kappa) & (s[:, 1].abs() <= math.sqrt(2))
    assert not (1 - cosine[sure] <= 1 / math.sqrt(d)).double().mean() >= 0.99
    assert (1 - cosine[sure] <= 0.7).double().mean() >= 0.99  # a wide cone would do
    p = theory.xor_sure_probability(d)
    assert abs(sure.double().mean() - p) <= 5 * math.sqrt(p / m)
    assert not abs(sure.double().mean() - theory.xor_sure_probability(d, std=1.3)) <= 5 * math.sqrt(p / m)


def test_neurons_that_are_not_always_on_see_less():
    w = torch.randn(50, 20, generator=generator()).double()
    norms = [theory.linear_gradient(w, torch.full((50,), -c * math.sqrt(20)).double(), 0.5).norm(dim=1).mean() for c in (1, 8)]
    assert norms[1] >= 0.999 and not norms[0] >= 0.999


def test_parities_need_the_step(page):
    after, before, kernel, cosine = run(page, "parity_arms", BlockParity(48, 3), 4000, 48, 1.0, generator(), n_test=1000)
    assert after <= 0.01 and min(before, kernel) >= 0.15 and cosine >= 0.95
    after, _, _, cosine = run(page, "parity_arms", BlockParity(48, 3), 300, 48, 1.0, generator(), n_test=1000)
    assert not (after <= 0.01 and cosine >= 0.95)


def thresholds(world, level, n=50_000):
    x, y = world.sample(n, generator())
    z = x @ torch.randn(world.dim, 100, generator=generator(1))
    g = (z > level * math.sqrt(world.square_norm)).float().T @ (y[:, None] * x) / n
    return ((g @ world.features.float().T).abs().amax(1) / g.norm(dim=1)).max().item()


def test_mean_and_negative_thresholds():
    for world, zero in ((BlockParity(24, 5, 3, 0.1, 0.1), False), (BlockParity(24, 5, 3, 0.0, 0.1), True)):
        x, y = world.sample(50_000, generator())
        signed = y[:, None] * x @ world.features.float().T
        assert (signed.mean(0).abs() <= 5 * signed.std(0) / len(x) ** 0.5).all() == zero
    three = BlockParity(24, 5, 3, 0.1, 0.1)
    assert not thresholds(three, -1.0) >= 0.95 and thresholds(three, 1.0, 100_000) >= 0.99
    assert thresholds(BlockParity(24, 5, 1, 0.25, 0.1), -1.0) >= 0.95  # with one block they are features


def test_uniform_parities_need_samples(page):
    points = page["cube_of"](11)
    label = points[:, :4].prod(1)

    def learned(n, seed=0):
        g = generator(seed)
        w, b, cosine = page["parity_step"](points, 4, 128, n, g)
        picks = torch.randint(len(points), (2, 1500), generator=g)
        hidden = [(points[i] @ w.T - b).clamp(min=0) for i in picks]
        return 1 - page["read_out"](hidden[0], label[picks[0]]).score(hidden[1], label[picks[1]].numpy()), cosine

    error, cosine = learned(None)
    assert error <= 0.02 and abs(cosine - theory.parity_cosine(4, 11)) <= 0.1
    error, cosine = learned(300)
    assert error >= 0.3 and not abs(cosine - theory.parity_cosine(4, 11)) <= 0.1


def test_polynomials_need_the_step_and_the_samples(page):
    errors = [run(page, "index_errors", MultiIndex(16), n, generator(), n_test=1000) for n in (512, 40)]
    assert errors[0][0] <= 0.1 and not errors[0][1] <= 0.1 and not errors[1][0] <= 0.1


def test_planes_of_equal_mass_have_no_order(page):
    def order(masses, steps=120):
        world, streams = GaussianMixture.xor(12, 6.0, masses), training.generators(0, 2)
        start = page["symmetric_start"](200, 12, streams, 1.0, 1 / 9)
        g, response = theory.mixture_gradient(start["w"].double(), -start["b"].double(), *parts(world))
        w1 = page["first_step"](start, g, 0 * response, (2 / 6.0 / g.norm(dim=-1).quantile(0.9)).item())
        alone = [GaussianMixture(world.means[4 * j : 4 * j + 4], world.labels[:4]).sample(300, generator(3)) for j in range(3)]
        x, y = (torch.cat(v).expand(2, *torch.cat(v).shape) for v in zip(*alone))
        done = run(page, "learn", w1, training.Fresh(world.sample, 128, streams), steps, 0.004, alone[0])
        hinge = (1 - y * page["two_layer_outputs"](done.params, x)).clamp(min=0).unflatten(1, (3, -1)).mean(2)
        return hinge[:, 0].max() < 0.5 < hinge[:, 2].min()

    assert order((0.6, 0.28, 0.12))
    assert not order((1 / 3, 1 / 3, 1 / 3))


def test_tickets_are_the_aligned_neurons_after_the_step(page):
    world, streams = GaussianMixture.xor(64, 6.0), training.generators(0, 4)
    start = page["symmetric_start"](100, 64, streams, 1.0, 1 / 9)
    g, response = theory.mixture_gradient(start["w"].double(), -start["b"].double(), *parts(world))
    cosine = start["a"].sign()[..., None] * (g @ world.features.T) / g.norm(dim=-1, keepdim=True)
    eta = (2 / 6.0 / g.norm(dim=-1)[cosine.amax(-1) > 0.95].median()).item()
    w1 = page["first_step"](start, g, 0 * response, eta)
    fitness = cosine - 0.5 * (3 * w1["w"].norm(dim=-1, keepdim=True) - 1).abs()
    fitness = fitness.masked_fill((start["b"] > 0)[..., None], -9)
    best = fitness.topk(1, 1).indices.flatten(1)
    other = torch.stack([torch.randperm(400, generator=g)[:4] for g in training.generators(0, 4)])
    test = world.sample(1000, generator(9))

    def success(params):
        fresh = training.Fresh(world.sample, 128, training.generators(50, 4))
        return (run(page, "learn", params, fresh, 100, 0.05, test, ("w",)).log["error"][-1] < 0.05).double().mean()

    reset = {**start, "a": torch.zeros_like(start["a"])}
    assert success(page["pick"](w1, best)) >= 0.75
    assert max(success(page["pick"](w1, other)), success(page["pick"](reset, best))) <= 0.4
    larger = fitness.topk(2, 1).indices.flatten(1)
    assert success(page["pick"](w1, larger)) >= 0.75 and success(page["pick"](reset, larger)) <= 0.4
    backwards = (-fitness).topk(2, 1).indices.flatten(1)
    assert not success(page["pick"](w1, backwards)) >= 0.75


def test_networks_of_a_race_see_the_same_points(page):
    """Each arm ends as it would alone."""
    world = GaussianMixture.xor(16, 3.0)
    arms = [page["symmetric_start"](3, 16, training.generators(k, 2), 1.0, 1 / 9) for k in (0, 9)]
    common = {"seed": 0, "ticket_runs": 2, "ticket_world": world, "test": world.sample(500, generator(9)), "w1": arms[0]}
    page["race"].__globals__.update(common, device=torch.device("cpu"))
    both = page["race"](dict(zip("ab", arms)), 25, 0.05)
    alone = page["race"]({"b": arms[1]}, 25, 0.05)
    a, b, b_alone = (one[-1] for one in (both["a"], both["b"], alone["b"]))  # at the start, outputs are 0 up to rounding
    assert (b - b_alone).abs().max() < 0.01 and (a - b).abs().min() > 0.05


def test_a_read_out_on_sets_of_one_size_is_not_as_short_as_the_lemma_says():
    mp = 0.0355 * np.array([1600, 6400, 25600])

    def holds(sizes):
        length = 2 * np.sqrt(4 / sizes) * mp**0.25
        return length.max() < 2 * length.min()

    assert holds(np.sqrt(mp)) and not holds(np.full(3, 10.0)) and not holds(mp)
