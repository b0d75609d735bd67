"""Measures of chapter 13: probes against other implementations, and what the claims judge on values known by reasoning."""

import dataclasses
import math

import numpy as np
import pytest
import scipy.stats
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from torch.nn import functional as F

from mvnb import claims, kept_runs, stats
from mvnb.papers.contrastive_tradeoff import data, measure, model, theory, training
from mvnb.training import percent_fallen


def gen(seed=0):
    return torch.Generator().manual_seed(seed)


# --- Finite worlds and weights ---


def test_values_of_bits_and_their_flips():
    p, flips = theory.binary_features(torch.tensor([0.5, 0.2, 0.1]))
    assert p.tolist() == pytest.approx([0.36, 0.04, 0.09, 0.01] * 2)  # 000, 001, 010, 011, ...
    assert flips.tolist() == [[4, 5, 6, 7, 0, 1, 2, 3], [2, 3, 0, 1, 6, 7, 4, 5], [1, 0, 3, 2, 5, 4, 7, 6]]


def test_gaps_of_exact_claims(monkeypatch):
    phi, half = torch.randn(2, 2, 3, generator=gen()), torch.full((2,), 0.5)
    loss = theory.contrastive_loss(phi, half, half, lambda t: -t).item()
    monkeypatch.setattr(theory, "pca_objective", lambda *given: torch.tensor(5.0))
    assert theory.pca_gap(phi, half, half) == pytest.approx(5 - loss)
    for weights, gap in (([1.0, 0.3, 0.3], 0.4), ([0.7, 0.5, 0.5], 0.3), ([1.0, 0.8, 0.2], 0)):
        monkeypatch.setattr(theory, "mixture_weights", lambda *given, weights=weights: np.array(weights))
        assert theory.mixture_gap([0.5, 0.5], 2, 2) == pytest.approx(gap)


def test_strengths_of_a_cube():
    sides = torch.tensor([3.0, 2.0, 1.0])
    phi = (torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3) * sides)[None]
    p, flips = theory.binary_features(torch.full((3,), 0.3))
    assert measure.strengths(phi, flips, p, torch.tensor([2.0]))[0].tolist() == pytest.approx([0.75, 0.5, 0.25])
    assert measure.least_lead(
        torch.tensor([[[0.9, 0.5, 0.4], [0.9, 0.3, 0.1]], [[0.8, 0.6, 0.1], [0.7, 0.4, 0.0]]])
    ).tolist() == (pytest.approx([0.1, 0.2]))
    apart = torch.tensor([[0.0, 4.0], [0.0, 2.0]])[None, :, :, None]  # of two values, by the spurious bit
    assert measure.spurious_strength(apart, torch.tensor([2.0])).tolist() == [0.75]


def test_labelings_that_are_readable():
    square = torch.tensor([[1.0, 0], [0, 1], [-1, 0], [0, -1]]).double()  # in this order around it: 16 - 2 labelings
    simplex = torch.eye(4).double()
    failed, share = measure.readable(torch.stack([square, square[[0, 2, 1, 3]]]))
    assert failed.tolist() == [0, 1] and share.tolist() == [14 / 16] * 2
    assert [one.tolist() for one in measure.readable(simplex[None])] == [[0], [1]]


def test_weights_that_are_off():
    world = data.Mixture(2, 2, 3)
    rows = [[1.0, 0.8, 0.5, 0.7, 0.3, 0.3, 0, 0.2, 0.1], [1, 1, 0.5, 0.5, 0.5, 0.5, 0, 0, 0], [0.2, 0.6, *[0.5] * 4, 0, 0, 0]]
    two = torch.tensor(rows).diag_embed()
    one = torch.tensor([[1.0, 1.0, 1.0, 0.4, 0.02, 0.0, 0.0], [1, 1, 1, 1, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0]]).diag_embed()
    found = measure.learned_weights(world, {1: one, 2: two})  # off are a private weight, none, the shared ones
    assert found["off"].tolist() == pytest.approx([0.3, 0, 0.6]) and found["spurious"].tolist() == pytest.approx([0.2, 0, 0])
    found = measure.factor_weights(world, two)
    assert found["off"].tolist() == pytest.approx([0.15, 0, 0]) and found["spurious"].tolist() == pytest.approx([0.2, 0, 0])
    found = measure.rare_task(np.array([[0.1, 0], [0.5, 0.6], [0.9, 0.7]]), np.array([[0.2], [0.4], [0.8]]))
    assert {key: value.tolist() for key, value in found.items()} == {
        "rare": [0.1, 0], "second": pytest.approx([0.1, 0.2]), "third": pytest.approx([0.1, -0.1])
    }  # fmt: skip


# --- Few labels ---


@pytest.fixture(scope="module")
def few():
    return data.FewLabels.draw(8, 25, 10, gen(3))


@pytest.mark.parametrize("m", [4, 15, 25])
def test_predictors_are_those_of_other_solvers(few, m):
    noise = 0.3 * torch.randn(8, 25, generator=gen(4)).double()
    root = np.repeat([1.0, 0.2**0.5], 10)
    for run in range(3):
        z, y, u = (part[run].numpy() for part in (few.z, few.y, few.u))
        shortest = np.linalg.pinv((z * root)[:m]) @ y[:m] * root
        assert measure.interpolation_errors(few, 0.2, m)[run].item() == pytest.approx(
            ((shortest - u) ** 2).sum(), rel=1e-5, abs=1e-9
        )
        ridge = Ridge(alpha=0.05 * m, fit_intercept=False).fit((z * root)[:m], (y + noise[run].numpy())[:m]).coef_ * root
        assert measure.ridge_errors(few, 0.2, m, 0.05, noise)[run].item() == pytest.approx(((ridge - u) ** 2).sum())
        blind = np.linalg.pinv(z[:m, :10]) @ y[:m]
        at = few.z[run].flip(0).numpy()
        assert measure.blind_errors(few, m, few.z.flip(1))[run] == pytest.approx(np.abs(at[:, :10] @ blind - at @ u).mean())


def test_groups_and_tables(few):
    assert measure.in_groups(np.arange(16.0), 4).tolist() == [1.5, 5.5, 9.5, 13.5]
    assert measure.in_groups(np.arange(12.0).reshape(2, 6), 3).tolist() == [[0.5, 6.5], [2.5, 8.5], [4.5, 10.5]]
    table = measure.error_table(few, [1, 4], [5, 15])
    assert np.allclose(table[1, 0], measure.interpolation_errors(few, 0.25, 5)) and table.shape == (2, 2, 8)
    noise = torch.ones(8, 25).double()
    noisy = measure.noisy_errors(few, noise, (1, 4), (5, 15), (0.1, 1.0))
    expected = measure.ABSOLUTE * measure.ridge_errors(few, 0.25, 15, 1.0, noise).sqrt()
    assert list(noisy) == [(1, 5), (1, 15), (4, 5), (4, 15)] and noisy[4, 15][1] == pytest.approx(expected)


def test_growth_of_a_product():
    """Roots of squared errors T times m, so that every difference is known; ``ABSOLUTE`` makes absolute errors of them."""
    tasks, counts = [1, 2, 10, 50, 200], [2, 5, 10, 12, 15, 18, 20, 25]
    errors = np.multiply.outer(np.multiply.outer(tasks, counts), np.ones(16)) ** 2.0
    errors[3, 0], errors[1, -2:] = 0, 0  # too few and too many labels for the growth
    found, a = measure.growth(errors, tasks, counts, 10), (2 / math.pi) ** 0.5
    assert found["least"] == pytest.approx(5 * a) and found["ten"] == pytest.approx(10)
    assert found["fewer"] == pytest.approx(9 * a * (11 - 5)) and found["more"] == pytest.approx(9 * a * (11 - 18))
    assert found["at"][50] == pytest.approx(750 * a) and found["price"][:, 2, 1] == pytest.approx(9 * 5 * a)
    assert found["least"].shape == (8,)


def test_deviations_from_the_formulas(monkeypatch):
    counts, tasks = [2, 9, 10, 11, 15, 25], [1, 10]
    closed = np.array([[theory.interpolation_error(m, 10, 10, 0.5, 0.5, 1 / t) for m in counts] for t in tasks])
    errors = closed[:, :, None] * np.full(16, 1.2)
    errors[:, 1:4], errors[:, 5] = 99, 99  # near s, and where all is known
    errors[1, 4] *= 0.5
    assert measure.distance_from_formula(errors, tasks, counts, 10) == pytest.approx(0.4)
    limits = {m: float(theory.endless_error(m, 10, 10, 0.5, 0.5)) for m in (2, 5, 15, 18)}
    off, asked = {2: 0.1, 5: -0.3, 15: 0.2, 18: 0.4}, []

    def errors_of(few, private, m):
        asked.append(private)
        return (1 + off[m]) * limits[m] * torch.ones(16)

    monkeypatch.setattr(measure, "interpolation_errors", errors_of)
    assert measure.distance_from_limit(None, 10) == pytest.approx(0.1) and asked == [1e-4] * 4


def test_tasks_inside_and_outside_the_mixture(few, monkeypatch):
    other = data.FewLabels(torch.randn(8, 25, 20, generator=gen(4)).double(), few.u)
    inside, average = measure.ten_tasks(few, other)
    outside = measure.blind_errors(other, 15, few.z)
    assert inside[3] == pytest.approx(measure.ABSOLUTE * measure.interpolation_errors(few, 0.25, 15).sqrt())
    assert average[3] == pytest.approx(0.4 * inside[3] + 0.6 * outside) and average[9] == pytest.approx(inside[9])
    steps = np.cumsum([0, 1, 3, 0.5, 2, 4, 1, 1, 1, 1])[:, None] * np.ones(16)
    found = measure.universality(steps, -2 * steps)
    assert found["target"] == pytest.approx(0.5) and found["average"] == pytest.approx(-1)
    errors, asked = np.ones((2, 3, 8)), []
    errors[:, :2] = 50  # labels that do not suffice
    errors[1, 2, 5] = 4
    monkeypatch.setattr(measure, "blind_errors", lambda few, m, z: asked.append((few, m, z)) or np.full(8, 2.0))
    found = measure.floor(few, other, errors, [10, 20, 25])
    assert found["blind"] == pytest.approx(2 * math.pi**0.5) and asked[0][:2] == (other, 160) and asked[0][2] is few.z
    assert found["universal"] == pytest.approx(measure.ABSOLUTE * np.where(np.arange(8) == 5, 2, 1))


def test_prices_that_labels_hide_and_gaps_that_are_closed(few):
    rows = {(1, 15): [[4.0], [2]], (50, 15): [[9], [3]], (1, 160): [[1], [0.5]], (50, 160): [[7], [1]]}
    found = measure.hidden_price({key: np.array(row) for key, row in rows.items()})
    assert found == {"few": 1.5, "many": 2, "untuned": 7}
    roots, at = np.array([[0.3, 0.5], [1.0, 0.6], [0.5, 0.7]]), {10: np.full(8, 3.0), 1: np.full(8, 1.0)}
    errors, found = measure.regularisation(few, roots, np.array([0.4, 0.9, 0.6]), at)
    assert found["off"] == pytest.approx([0.1, 0.3])
    expected = [measure.ABSOLUTE * measure.interpolation_errors(few, root**2, 15).sqrt() for root in (0.4, 0.8, 0.6)]
    assert errors.T == pytest.approx(np.stack(expected))
    assert found["closed"] == pytest.approx((3 - errors[:, 2]) / 2)
    assert found["rise"] == pytest.approx(np.maximum(errors[:, 1] - errors[:, 0], errors[:, 2] - errors[:, 1]))


def test_the_bound_over_the_complexity():
    vectors = torch.full((16, 20), 2.0).double()
    found = measure.bound_over_complexity(vectors, [1, 4], 15)  # length 2 (10 + 10 / T)^(1/2), for the mean (10 + 10 / T)^(1/2)
    assert found["least"] == pytest.approx(0.5) and found["largest"] == pytest.approx(0.5)


# --- Similarity ---


def test_similarity_of_networks():
    seen = {i: torch.randn(2, 50, 6, generator=gen(i)) for i in range(9)}
    cka = np.array([[measure.linear_cka(a, b).numpy() for b in seen.values()] for a in seen.values()])
    to_h, found = measure.similarity(seen)
    assert all(to_h[i] == pytest.approx(cka[0, i]) for i in range(9)) and to_h[0] == pytest.approx(1)
    for key, i in (("pictures-cka-falls", 1), ("pictures-cka-decay", 7)):
        assert found[key]["first"] == pytest.approx(cka[0, i])
        assert found[key]["fall"] == pytest.approx(cka[0, i] - cka[0, i + 1])
    pairs = [(a, b) for a in range(4) for b in range(a)]
    unions, single = (np.mean([cka[nets[a], nets[b]] for a, b in pairs], 0) for nets in ([0, 1, 2, 3], [0, 4, 5, 6]))
    assert found["pictures-cka-single-sets"] == pytest.approx(single - unions)


def test_cka_and_the_cosine():
    z, turn = torch.randn(3, 400, 8, generator=gen()).double(), torch.eye(8).double()[:, torch.randperm(8, generator=gen())]
    found, formula = measure.mixtures_cka(z, turn, [(1, 1), (2, 5)])
    assert found[0] == pytest.approx(1) and formula[:, 0].tolist() == pytest.approx([1, theory.weight_cosine(0.5, 0.2, 4, 4)])
    expected = measure.linear_cka(z * data.root_weights(0.5, 4), z * data.root_weights(0.2, 4))
    assert found[1] == pytest.approx(expected) and (expected < 1).all()
    said = measure.cosine(np.array([[0.9, 0.8], [0.7, 0.7], [0.6, 0.2], [1, 1]]), np.array([[0.9], [0.6], [0.5], [0.9]]))
    assert said["distance"] == pytest.approx([0.1, 0.3]) and said["fall"] == pytest.approx([0.1, 0.1])


# --- Probes ---


def test_ridge_accuracy_is_that_of_ridge_regression():
    x, y = torch.randn(2, 90, 6, generator=gen()).double(), torch.arange(90) % 3
    x = x + F.one_hot(y, 6)
    found = measure.ridge_accuracy(x[:, :50], y[:50], x[:, 50:], y[50:], 3)
    for run in range(2):
        train, test = x[run, :50].numpy(), x[run, 50:].numpy()
        alpha = 0.3 * ((train - train.mean(0)) ** 2).sum(0).mean()
        fit = Ridge(alpha=alpha).fit(train, F.one_hot(y[:50]).numpy())
        assert found[run].item() == pytest.approx((fit.predict(test).argmax(1) == y[50:].numpy()).mean())
    assert 0.5 < found.min() and found.max() < 1
    noise = torch.randn(2, 200, 8, generator=gen(6))
    blind = measure.ridge_accuracy(noise[:, :100], torch.arange(100) % 4, noise[:, 100:], torch.arange(100) % 4, 4)
    assert abs(blind.mean() - 0.25) < 0.15  # chance


@pytest.fixture
def small():
    """Sets of pictures whose first pixel is the label; the other pixels are noise."""
    sets = {}
    for i, name in enumerate(data.SETS):
        y = torch.cat([torch.arange(4 + i), torch.randint(4 + i, (196 - i,), generator=gen(i))])
        x = torch.rand(len(y), 1, 3, 3, generator=gen(9 + i))
        x[:, 0, 0, 0] = y.float()
        sets[name] = x, y
    return data.SmallSets(sets, 60)


def told(x):
    """Return the labels of pictures as features of two runs, the second one with other labels on every second picture."""
    y = x[:, 0, 0, 0].long()
    wrong = torch.where(x[:, 0, 1, 1] < 0.5, y, (y + 1) % 4)
    return torch.stack([F.one_hot(y, 8), F.one_hot(wrong, 8)])


def test_a_probe_reads_each_set_with_its_own_labels(small):
    found = measure.probe(told, small, [10, len(small.known[1])])
    assert {key: value.shape for key, value in found.items()} == {"target": (2, 2)} | dict.fromkeys(
        [*data.SETS, "average"], (2,)
    )
    assert all(found[name][0] == 100 for name in data.SETS) and found["target"][0, 1] == 100
    assert found["target"][0, 0] >= 80 and 30 < found["target"][1].max() < 75
    assert found["average"] == pytest.approx(sum((4 + i) * found[name] for i, name in enumerate(data.SETS)) / 22)
    small.sets["relief"] = small.sets["relief"][0], small.sets["relief"][1].roll(1)
    again = measure.probe(told, small, [10])
    assert again["relief"][0] < 60 and again["letters"][0] == 100 and again["target"][0] == found["target"][0, 0]
    small.known[1] = small.known[1].roll(1)
    assert measure.probe(told, small, [10])["target"][0] < 60


def test_a_probe_is_asked_about_other_pictures(small):
    """Features by which each picture can be memorised, and nothing else."""
    ways = 60 * torch.randn(8, 300, generator=gen())
    small.own = 50  # as many as there are for tests
    found = measure.probe(lambda x: (x.flatten(1)[:, 1:] @ ways).cos()[None], small, [len(small.known[1])])
    assert all(value.max() < 60 for value in found.values())


def test_accuracies_of_labels_are_means_over_disjoint_parts(small):
    """Pixels are added to the features, so that no score is exactly at its threshold."""

    def features(x):
        return told(x) + 0.1 * x.flatten(1)[:, 1:]

    (x, y), (x_test, y_test) = small.known, small.test
    parts = [slice(7 * i, 7 * i + 7) for i in range(8)]
    scores = [measure.ridge_accuracy(features(x[part]), y[part], features(x_test), y_test, 4) for part in parts]
    assert measure.probe(features, small, [7])["target"][:, 0] == pytest.approx(100 * torch.stack(scores).mean(0))


def test_classifiers_get_the_same_pictures_and_their_own_weight(small, monkeypatch):
    nets = model.Networks(model.make_encoder("mlp", 3, 4, 4), 4, 2, 0, torch.device("cpu"))
    trained = [{k: v + i for k, v in nets.untrained("simclr")[0].state_dict().items()} for i in range(2)]
    asked, rows = [], [small.labelled(m, nets.streams(20)) for m in (8, 20)]
    monkeypatch.setattr(measure, "probe_labelled", lambda *given: asked.append(given[3]) or np.full(2, len(given[3][0])))

    def arm(nets, sets, params, some, *, weight, steps):
        asked.append(some)
        assert sets is small and steps == 7
        y = small.test[1].clone()
        y[: int(10 * weight + [one is params for one in trained].index(True))] += 1  # so many mistakes
        return lambda x: F.one_hot(y, 8).expand(2, -1, -1)

    found = measure.tuned(nets, small, trained, {"one": (arm, 0.1), "other": (arm, 2.0)}, [8, 20], steps=7)
    assert found["LP"].tolist() == [[[8, 8]] * 2, [[20, 20]] * 2]
    n = len(small.test[1])
    for name, mistakes in (("one", 1), ("other", 20)):
        expected = [[[100 * (1 - (mistakes + i) / n)] * 2 for i in range(2)]] * 2
        assert found[name].tolist() == pytest.approx(np.array(expected))
    assert all(torch.equal(some, rows[i // 2 % 2]) for i, some in enumerate(asked)) and len(asked) == 12


def test_linear_probes_use_the_labelled_pictures_of_each_run(small, monkeypatch):
    nets = model.Networks(model.make_encoder("mlp", 3, 4, 4), 4, 2, 0, torch.device("cpu"))
    monkeypatch.setattr(nets, "encode", lambda params, x: told(x))
    rows = small.labelled(30, nets.streams(20))
    (x, y), (x_test, y_test) = small.known, small.test
    found = measure.probe_labelled(nets, small, {}, rows)
    for run in range(2):
        seen, asked = (told(one)[run : run + 1] for one in (x[rows[run]], x_test))
        assert found[run] == pytest.approx(100 * measure.ridge_accuracy(seen, y[rows[run]], asked, y_test, 4).item())
    assert found[0] == 100 > found[1]


# --- The kept run ---


def test_a_logistic_probe_chooses_its_penalty_on_other_images():
    def images(flip):
        """Two classes, told by the first of two numbers; with ``flip``, in the images for the penalty, by its opposite."""
        y = {part: (torch.arange(n) % 3 == 0).long() for part, n in (("valid", 40), ("labelled", 100), ("test", 60))}
        x = {part: torch.randn(len(label), 2, generator=gen(len(label))) for part, label in y.items()}
        for part, label in y.items():
            x[part][:, 0] += 1.5 * (2 * label - 1) * (-1 if flip and part == "valid" else 1)
        one = object.__new__(data.ColourImages)
        one.x, one.y = x, y
        return one

    def probe(one, penalties=(1.0, 1e6), **changes):
        return measure.logistic_probe(
            torch.nn.Identity(), one, [10, 0], **{"draws": 3, "seed": 5, "judged": "test"} | changes, penalties=penalties
        )

    one = images(False)
    mean, std = one.x["labelled"].mean(0), one.x["labelled"].std(0) + 1e-6
    scaled = {part: ((x - mean) / std).numpy() for part, x in one.x.items()}
    fit = LogisticRegression(C=1.0).fit(scaled["labelled"], one.y["labelled"])
    found = probe(one, (1.0,))
    few, every = found["accuracy"]
    assert found["penalty"] == [[0, 0, 0], [0]]
    assert found["fitted"][1] == pytest.approx(100 * fit.score(scaled["labelled"], one.y["labelled"]), abs=1e-3)
    assert probe(one, (1.0,), judged="valid")["accuracy"][1] == 100 * fit.score(scaled["valid"], one.y["valid"])
    assert every == pytest.approx(100 * fit.score(scaled["test"], one.y["test"]), abs=1e-3) and 70 < few < 100
    assert probe(one, draws=1) != probe(one, draws=2) and probe(one)["accuracy"][1] == every
    g, rows = gen(10**6 + 5), []
    for _ in range(3):
        rows.append(data.balanced_subset(one.y["labelled"], 10, g))
    fits = [LogisticRegression(C=1.0).fit(scaled["labelled"][row], one.y["labelled"][row]) for row in rows]
    assert few == pytest.approx(np.mean([100 * fit.score(scaled["test"], one.y["test"]) for fit in fits]), abs=1e-3)
    poor = images(True)  # whose images for the penalty prefer what is wrong on the others
    each = [probe(poor, (penalty,))["accuracy"][1] for penalty in (1.0, 1e6)]
    assert max(each) > min(each) and probe(poor)["accuracy"][1] == min(each)
    assert probe(poor)["penalty"][1] == [each.index(min(each))]


def test_the_script_keeps_what_each_arm_gives_on_each_set(tmp_path, monkeypatch):
    asked = []

    def arm(*images, seed, **setting):
        asked.append((images, seed, setting))
        return setting["widths"], [3.0] * 19 + [1.0] * setting.get("steps", 0)

    monkeypatch.setattr(data, "ColourImages", lambda name, **given: (name, given["seed"], given["n"]))
    monkeypatch.setattr(training, "colour_arm", arm)
    monkeypatch.setattr(training, "for_probing", lambda *given: given)
    monkeypatch.setattr(measure, "logistic_probe", lambda *given, **named: [given, named])
    arms = {"one": {"widths": [1], "method": "moco", "lr": 7, "steps": 1, "added": 0, "seeds": 5}}
    arms |= {"other": {"widths": [2], "added": 1, "seeds": 3}}
    given = {"sizes": {"n": 7}, "side": 8, "probing": {"draws": 2}, "arms": arms}
    given |= {"pretraining": {"batch": 5}, "methods": {"simclr": {"temperature": 3}, "moco": {"temperature": 2, "lr": 1}}}
    one = dataclasses.replace(
        kept_runs.declared("contrastive_tradeoff")["cifar10"], parameters={"target": "a", "added": "b"} | given
    )
    found = one.call("run", 12, torch.device("cpu"), tmp_path)
    assert found == one.call("run", 12, torch.device("cpu"), tmp_path) and len(asked) == 2  # the second time from the folder
    sets = ("a", 12, 7), ("b", 12, 7)
    settings = {"widths": [1], "method": "moco", "temperature": 2, "lr": 7, "steps": 1, "added": 0}, {"widths": [2], "added": 1}
    assert asked == [(sets, 12, {"batch": 5} | setting) for setting in settings]
    for name, (loss, fell) in {"one": (1.0, percent_fallen([3.0] * 19 + [1.0])), "other": (3.0, 0.0)}.items():
        probes = {key: [((arms[name]["widths"], at), at), {"draws": 2, "seed": 12}] for key, at in zip("ab", sets)}
        assert found[name] == {"loss": loss, "fell": fell} | probes
    assert list(one.call("run", 13, torch.device("cpu"), tmp_path / "next")) == ["one"]  # of a seed that the other leaves out


def kept_values(seeds=5):
    """Values of the kept run in which every arm has a level of its own, and rises with labels by its place times 4."""
    names = kept_runs.declared("contrastive_tradeoff")["cifar10"].parameters["arms"]
    levels = {name: 2.0**i for i, name in enumerate(names)}
    rows = {name: (np.array([0, 0, 4.0 * i]) + level, [3 * level] * 3) for i, (name, level) in enumerate(levels.items())}
    return levels, [
        {
            name: {"cifar10": {"accuracy": (of_cifar10 + r * level).tolist()}, "mnist": {"accuracy": of_mnist}}
            for (name, (of_cifar10, of_mnist)), level in zip(rows.items(), levels.values())
            if r < names[name]["seeds"]
        }
        for r in range(seeds)
    ]


def test_values_of_the_kept_run_are_told_apart():
    levels, values = kept_values()
    kept = measure.kept_accuracies(values)
    found, lost, places = measure.cifar10(kept), measure.lost(kept), list(levels)

    def mean(arm, on="cifar10", seeds=5):
        cifar = levels[arm] * (1 + np.arange(seeds)) + 4 * places.index(arm) / 3
        return {"cifar10": cifar, "both": (cifar + 3 * levels[arm]) / 2}[on]

    control = np.maximum(mean("pixels"), mean("untrained"))
    for method, prefix, seeds in (("SimCLR", "cifar10-", 5), ("MoCo", "cifar10-moco-", 3)):
        alone, added = (f"{method}, {kind}" for kind in ("alone", "added"))
        falls = "cifar10-falls-at-equal-passes" if method == "SimCLR" else "cifar10-moco-falls"
        expected = {falls: mean(alone, seeds=seeds) - mean(added, seeds=seeds)}
        expected[f"{prefix}average-rises"] = mean(added, "both", seeds) - mean(alone, "both", seeds)
        expected[f"{prefix}{'encoder-' * (method == 'SimCLR')}ahead"] = mean(alone, seeds=seeds) - control[:seeds]
        assert all(found.pop(id) == pytest.approx(value) for id, value in expected.items())
        assert lost[method].mean(1) == pytest.approx(expected[falls]) and lost[method].shape == (seeds, 3)
    rise = 4 * (places.index("SimCLR, added") - places.index("SimCLR, alone"))
    assert found.pop("cifar10-fewer-labels-lose-more") == pytest.approx(rise) and not found


def test_the_primary_claim_is_the_headline_and_the_others_get_holms_correction():
    found = measure.cifar10(measure.kept_accuracies(kept_values()[1]))
    declared = claims.declared("contrastive_tradeoff")
    of_run = {id for id, claim in declared.items() if claim.kept == "cifar10"}
    assert of_run == set(found) and [id for id in of_run if declared[id].headline] == [next(iter(found))]
    rng = np.random.default_rng(0)
    values = {"first": np.full(5, 9.0)} | {str(i): rng.normal(i / 2, 1, 5 - i % 2) for i in range(4)}
    after = stats.holm_tests({name: values[name] for name in "0123"})
    p = [scipy.stats.ttest_1samp(values[str(i)], 0).pvalue for i in range(4)]
    assert list(after) == list("0123") and [one for one, _ in after.values()] == pytest.approx(p)
    order = sorted(range(4), key=p.__getitem__)
    for rank, i in enumerate(order):
        holm = max((4 - k) * p[order[k]] for k in range(rank + 1))
        assert after[str(i)][1] == pytest.approx(min(1, holm))


def test_steps_are_the_best_of_a_grid_that_is_the_same_for_both_methods_and_inside_it():
    declared, best = kept_runs.declared("contrastive_tradeoff"), {}
    run, tuning = (declared[name].parameters for name in ("cifar10", "cifar10-tuning"))
    tried = [one["values"] for one in kept_runs.load("contrastive_tradeoff", "cifar10-tuning")["runs"]]
    scores = {arm: np.mean([one[arm]["cifar10"]["accuracy"] for one in tried]) for arm in tried[0]}
    assert measure.validated(tried) == pytest.approx(scores)
    for arm, one in tuning["arms"].items():
        best.setdefault(one["method"], {})[one["step_size"]] = scores[arm]
        assert one["widths"] == run["arms"]["SimCLR, alone"]["widths"]
    assert list(best["simclr"]) == list(best["moco"]) and len(best["moco"]) <= 12
    for method, by_step in best.items():
        step = max(by_step, key=by_step.get)
        assert run["methods"][method]["step_size"] == step and min(by_step) < step < max(by_step)
        assert run["methods"][method]["temperature"] == tuning["methods"][method]["temperature"]
    same = "passes", "batch", "view", "weight_decay", "queue"
    assert all(run["pretraining"][key] == tuning["pretraining"][key] for key in same)
    seeds = [range(one["seed"], one["seed"] + one["seeds"]) for one in (run, tuning)]
    assert tuning["probing"]["judged"] == "valid" and run["probing"]["judged"] == "test" and not {*seeds[0]} & {*seeds[1]}


# --- Small sets ---


def test_what_unions_lose():
    target = np.arange(4)[:, None, None] * np.array([[-1.0, -2, -5], [-2, -3, -7]])  # (union, run, labels)
    average = np.array([[1.0, 2], [9, 9], [9, 9], [5, 8]])
    scores = [{"target": one, "average": mean} for one, mean in zip(target, average)]
    for i, score in enumerate(scores):
        score |= {name: np.full(2, 10.0 * i * (k + 1)) for k, name in enumerate(data.SETS)}
    pixels, untrained = ({"target": np.array([[-7.0, level, -20]])} for level in (-9.0, -8.0))
    found = measure.small_sets(scores, pixels, untrained, 1)
    drops = found.pop("pictures-target-drops")
    assert drops["lost"].tolist() == [4, 6] and drops["ahead"].tolist() == [8, 8]
    assert {key: value.tolist() for key, value in found.items()} == {
        "pictures-ahead-of-pixels": [9, 9], "pictures-all-sets-drop": [6, 9], "pictures-fewer-labels-lose-more": [-8, -10],
        "pictures-average-rises": [4, 6], "pictures-other-sets-rise": [90, 90],
    }  # fmt: skip


def test_gains_of_classifiers_and_of_an_update():
    levels = {"LP": 70, "FT": 60, "CR": 65, "adapter, FT": 50, "adapter, CR": 58}
    rows = np.arange(4)[:, None] * np.array([1.0, 2.0])  # (union, run)
    tuned = {name: np.stack([level + i * rows, level + i * (rows + 2)]) for i, (name, level) in enumerate(levels.items())}
    found = {key: value.tolist() for key, value in measure.classifiers(tuned).items()}
    assert found == {
        "pictures-regularisation-helps": [7.5, 9], "pictures-regularisation-beats-the-probe": [0, 3],
        "pictures-adapters-gain": [12, 15], "pictures-adapters-beat-the-probe": [4, 16],
    }  # fmt: skip
    before = [{"target": np.full((2, 3), 10.0 * i)} for i in range(4)]
    after = [{"target": 10.0 * i + (i + 1) ** 2 * np.array([[1, 2, 3], [2, 3, 4]])} for i in range(4)]
    gain, found = measure.updates(before, after)
    assert gain.shape == (4, 2, 3) and found["pictures-update-then-probe"].tolist() == [32, 48]
    assert found["pictures-update-helps-diverse-more"].tolist() == [16, 24]


def test_what_a_table_says():
    table = np.zeros((3, 4, 5))
    table[0, 0], table[0, 3] = [9, 8, 7, 6, 5], [1, 2, 3, 4, 3]
    table[1], table[2] = 2, np.where(np.arange(5) < 3, 10, 1)
    assert measure.printed_table(table) == {"fewer": 6, "best": 12}


def test_scores_of_the_tuning_are_mean_accuracies_on_the_target():
    run = {"simclr 0.1": {"cifar10": {"accuracy": [1.0, 3.0]}, "mnist": {"accuracy": [9.0, 9.0]}}}
    assert measure.validated([run]) == {"simclr 0.1": 2.0}
