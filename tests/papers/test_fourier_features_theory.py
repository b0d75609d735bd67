"""Margins, designs, twins and the polynomial network of chapter 10, against enumeration and automatic differentiation."""

import itertools
import math

import numpy as np
import pytest
import torch
from reference import PolynomialNet
from torch.nn import functional as F

from mvnb import training
from mvnb.papers.fourier_features import theory
from mvnb.papers.fourier_features.data import ModularSum
from mvnb.papers.fourier_features.polynomial import (
    PolynomialObjective,
    _neuron_norms,
    group_norm,
    polynomial_logits,
)

SIZES = [(5, 2), (7, 2), (11, 2), (3, 3), (5, 3), (7, 3), (9, 3), (5, 4), (7, 4), (5, 5)]  # (p, k); 9 is no prime
DESIGNS = [theory.sign_phases, theory.grid_phases, theory.cyclic_phases]
NETWORKS = [(design(k), p) for design in DESIGNS for p, k in SIZES]
NETWORKS += [(theory.halved_phases(), p) for p, k in SIZES if k == 3]


def neuron(p, k, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(k, p)), rng.normal(size=p)


def logits(u, w):
    """Outputs and labels at all points, ``(p^k, p)`` and ``(p^k,)``."""
    world = ModularSum(u.shape[1], u.shape[0])
    params = {"u": torch.tensor(u)[None], "w": torch.tensor(w)[None]}
    return polynomial_logits(params, world.points[None])[0].numpy(), world.labels.numpy()


# --- The single neuron ---


@pytest.mark.parametrize(("p", "k"), [(3, 2), (5, 2), (7, 3), (9, 3), (5, 4), (3, 5)])
def test_the_fourier_form_is_the_definition_for_any_neuron(p, k):
    u, w = neuron(p, k)
    assert theory.neuron_margin(u, w) == pytest.approx(theory.enumerated_margin(u, w), rel=1e-10)
    world = ModularSum(p, k)
    points, labels = world.points.numpy(), world.labels.numpy()
    power = sum(u[i][points[:, i]] for i in range(k)) ** k
    eta = [np.mean(power * w[(labels - delta) % p]) for delta in range(p)]  # Definition C.8
    assert theory.neuron_margin(u, w) == pytest.approx(eta[0] - np.mean(eta[1:]), rel=1e-10)
    # The prefactor is 1 + 1/(p-1); the thesis prints 1 - 1/(p-1).
    assert eta[0] - np.mean(eta[1:]) == pytest.approx((1 + 1 / (p - 1)) * (eta[0] - np.mean(eta)), rel=1e-9)


def test_gradient_of_the_margin_is_autograds():
    u, w = neuron(7, 3)
    tu, tw = torch.tensor(u, requires_grad=True), torch.tensor(w, requires_grad=True)
    product = torch.fft.fft(tu).prod(0) * torch.fft.fft(tw).conj()
    (math.factorial(3) * product[1:].sum().real / (6 * 7**3)).backward()
    du, dw = theory.neuron_margin_gradient(u, w)
    np.testing.assert_allclose(du, tu.grad.numpy(), atol=1e-12)
    np.testing.assert_allclose(dw, tw.grad.numpy(), atol=1e-12)


@pytest.mark.parametrize(("p", "k"), SIZES)
def test_a_cosine_of_any_frequency_and_phases_attains_the_bound(p, k):
    rng = np.random.default_rng(1)
    h = rng.uniform(0, 6, k)
    for frequency in range(1, (p + 1) // 2):
        turn = 2 * np.pi * frequency * np.arange(p) / p
        beta = math.sqrt(2 / ((k + 1) * p))
        u, w = beta * np.cos(h[:, None] + turn), beta * np.cos(h.sum() + turn)
        assert (u**2).sum() + (w**2).sum() == pytest.approx(1)
        assert theory.neuron_margin(u, w) == pytest.approx(theory.max_margin(k, p), rel=1e-10)
        spectrum = np.abs(np.fft.fft(w))
        assert spectrum[frequency] == pytest.approx(math.sqrt(p / (2 * (k + 1))), rel=1e-12)


def test_special_values_of_the_margin():
    assert theory.max_margin(2, 23) == pytest.approx(math.sqrt(2 / 27) / (math.sqrt(23) * 22))
    assert theory.max_margin(3, 7) == pytest.approx(3 / 16 / (7 * 6))
    printed = {(2, 5): 0.0304290, (2, 7): 0.0171448, (3, 5): 0.009375, (4, 11): 4.16056e-4, (5, 7): 4.72411e-4}
    for (k, p), value in printed.items():
        assert theory.max_margin(k, p) == pytest.approx(value, rel=1e-5)


def test_random_neurons_stay_below_and_the_bound_is_for_unit_norm():
    rng = np.random.default_rng(2)
    u, w = rng.normal(size=(500, 3, 7)), rng.normal(size=(500, 7))
    norm = np.sqrt((u**2).sum((1, 2)) + (w**2).sum(1))
    values = theory.neuron_margin(u, w) / norm**4
    assert (values <= theory.max_margin(3, 7)).all()


def test_for_even_p_another_neuron_beats_the_formula():
    p, k = 6, 3
    sign = (-1.0) ** np.arange(p) / math.sqrt((k + 1) * p)
    assert theory.neuron_margin(np.tile(sign, (k, 1)), sign) > 1.9 * theory.max_margin(k, p)


# --- Designs ---


@pytest.mark.parametrize(("phases", "p"), NETWORKS)
def test_designs_attain_the_margin_at_every_point(phases, p):
    k = phases.shape[1]
    u, w = theory.network(phases, p)
    f, y = logits(u, w)
    own = f[np.arange(len(y)), y]
    others = np.delete(f.ravel(), np.arange(len(y)) * p + y).reshape(len(y), p - 1)
    best = theory.max_margin(k, p)
    np.testing.assert_allclose(own, best * (p - 1) / p, rtol=1e-10)
    np.testing.assert_allclose(others, -best / p, rtol=1e-9)  # not 0, as printed
    norm = torch.tensor(u).square().sum((0, 1)) + torch.tensor(w).square().sum(1)
    assert (norm ** ((k + 1) / 2)).sum().item() == pytest.approx(1)
    assert abs(f.sum(1)).max() < 1e-12


def test_how_many_neurons_the_designs_have():
    for k in range(2, 6):
        assert [len(design(k)) for design in DESIGNS] == [2 ** (2 * k - 1), 3**k, 2 * 3 ** (k - 1)]
        for design in DESIGNS:
            assert (theory.surviving_modes(design(k)) == -1).all()
    for k, p, m in ((3, 97, 1536), (4, 47, 2944), (5, 23, 5632)):
        assert len(theory.sign_phases(k)) * (p - 1) // 2 == m
    assert len(theory.sign_phases(3)) == 32  # per frequency; the thesis's proof for k = 3 counts 56 once


def test_too_few_phases_fail():
    five = np.arange(5)[:, None] * np.array([1, 4]) * 2 * np.pi / 5
    eight = np.arange(8)[:, None] * np.array([1, 3]) * 2 * np.pi / 8
    for phases in (five, eight):
        assert len(theory.surviving_modes(phases)) > 1
        f, y = logits(*theory.network(phases, 7))
        own = f[np.arange(len(y)), y].copy()
        f[np.arange(len(y)), y] = -1
        assert (own - f.max(1)).min() < 0.6 * theory.max_margin(2, 7)


def test_no_group_of_phases_has_fewer_neurons():
    assert [theory.fewest_neurons(k) for k in (2, 3)] == [len(theory.cyclic_phases(2)), len(theory.halved_phases())] == [6, 16]


@pytest.mark.parametrize(("p", "k", "indices"), [(3, 2, range(1, 9)), (3, 3, (4, 8, 9)), (5, 3, (4, 18)), (9, 2, (5, 6))])
def test_groups_are_optimal_exactly_if_no_forbidden_vector_is_in_the_dual_lattice(p, k, indices):
    """Also where p is at most 2k, and modes coincide on the points."""
    forbidden = theory._modes(k) + 1
    forbidden = forbidden[forbidden.any(1)]
    bases, found = [3 * np.eye(k, dtype=int)], []  # thirds of a turn, and others
    for index in indices:
        bases += list(theory._lattices(k, index))[::20] if k > 2 else theory._lattices(k, index)
    for basis in bases:
        index = round(np.linalg.det(basis))
        turns = np.array(list(itertools.product(range(index), repeat=k))) @ np.linalg.inv(basis).T
        turns = np.unique(np.round(turns * index).astype(int) % index, axis=0)
        f, y = logits(*theory.network(2 * np.pi * turns / index, p))
        found.append(np.abs(f / theory.max_margin(k, p) - np.eye(p)[y] + 1 / p).max() < 1e-9)
        assert len(turns) == index and found[-1] == theory._avoids(basis, forbidden)
    assert any(found) and not all(found)


def test_half_of_a_group_does():
    half = theory.halved_phases()
    other = (half + np.pi) % (2 * np.pi)
    whole = {tuple(np.round(phases / (np.pi / 4)).astype(int) % 8) for phases in (*half, *other)}
    sums = {tuple((np.array(a) + b) % 8) for a in whole for b in whole}
    assert len(whole) == 32 and sums == whole  # a group, and half a turn of all phases takes one half to the other
    assert (theory.surviving_modes(half) == -1).all()


def test_the_inequality_behind_the_cyclic_design():
    """No non-zero m with sum_i (|m_i - 1| - 1) <= 0 and an even sum lies in the dual lattice."""
    for k in (2, 3, 4):
        step = np.array([3**i for i in range(k - 1)] + [4 * 3 ** (k - 2)])
        m = np.array(list(itertools.product(range(-k, k + 3), repeat=k)))
        m = m[m.any(1) & (m.sum(1) % 2 == 0) & (m @ step % (2 * 3 ** (k - 1)) == 0)]
        assert len(m) and (np.abs(m - 1).sum(1) - k).min() > 0


@pytest.mark.parametrize("k", [2, 3, 4])
def test_all_frequencies_have_the_same_share(k):
    p = 5
    f, _ = logits(*theory.network(theory.cyclic_phases(k), p))
    spectrum = np.fft.fftn(f.reshape([p] * (k + 1)))
    for j in range(1, p):
        assert spectrum[(j,) * k + (-j % p,)] == pytest.approx(theory.max_margin(k, p) * p**k, rel=1e-10)


@pytest.mark.parametrize("k", range(2, 7))
def test_the_identities_of_the_construction(k):
    rng = np.random.default_rng(k)
    d, x = rng.normal(size=k), rng.uniform(0, 6, k + 1)
    signs = np.array(list(itertools.product((-1, 1), repeat=k)))
    total = ((-1.0) ** ((k - signs.sum(1)) // 2) * (signs @ d) ** k).sum()
    assert total == pytest.approx(2**k * math.factorial(k) * d.prod())
    bits = np.array([b for b in itertools.product((0, 1), repeat=k + 1) if sum(b) % 2 == 0])
    assert len(bits) == 2**k  # of k + 1 variables; with k, as in the sketch, there are half as many
    terms = np.where(bits, np.sin(x), np.cos(x)).prod(1) * (-1.0) ** (bits.sum(1) % 4 == 2)
    assert terms.sum() == pytest.approx(np.cos(x.sum()))


def test_norms_in_the_proof():
    z = np.array([0.2, 0.7, 0.4])
    for k in (2, 3, 5):
        assert (z ** ((k + 1) / 2)).sum() < z.sum() ** ((k + 1) / 2)
    assert z.sum() == z.sum() ** ((1 + 1) / 2)  # k = 1: no preference for one frequency


# --- Twins ---


@pytest.mark.parametrize(("k", "p"), [(2, 7), (3, 5), (4, 3)])
def test_twins_are_counted(k, p):
    world = ModularSum(p, k)
    assert theory._orderings(k, p).sum() == p**k
    assert len(theory._orderings(k, p)) == int(world._multisets.max()) + 1
    n_train = p**k // 2
    twins, known = [], []
    for g in training.generators(0, 300):
        train = world.split(0.5, g)
        twins.append(world.with_twin(train)[~train].double().mean())
        known.append(len(world._multisets[train].unique()) / (int(world._multisets.max()) + 1))
    assert np.mean(twins) == pytest.approx(theory.twin_share(k, p, n_train), abs=0.012)
    assert np.mean(known) == pytest.approx(theory.known_share(k, p, n_train), abs=0.012)
    shares = [theory.twin_share(k, p, p**k // 2) for k, p in ((2, 97), (3, 31), (4, 11), (5, 5))]
    np.testing.assert_allclose(shares, [0.495, 0.947, 0.995, 0.996], atol=5e-4)


def test_splits():
    world = ModularSum(7, 3)
    assert torch.equal(world.labels, world.points.sum(1) % 7) and len(world.points.unique(dim=0)) == 343
    train = world.split(0.5, torch.Generator().manual_seed(0))
    assert train.sum() == 171 and world.with_twin(train)[~train].any()
    train = world.split(0.75, torch.Generator().manual_seed(0), "multiset")
    assert not world.with_twin(train)[~train].any() and world.with_twin(train)[train].all()
    assert len(world._multisets[train].unique()) == int(0.75 * 84)
    again = world.split(0.75, torch.Generator().manual_seed(0), "multiset")
    assert torch.equal(train, again)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModularSum(1, 2), "at least 2"),
        (lambda: ModularSum(5, 1), "at least 2"),
        (lambda: ModularSum(5, 2).split(0.01, torch.Generator()), "both sides"),
        (lambda: ModularSum(5, 2).split(0.5, torch.Generator(), "label"), "'tuple' or 'multiset'"),
        (lambda: theory.network(theory.grid_phases(2), 6), "odd"),
        (lambda: PolynomialObjective(-1.0), "negative"),
    ],
)
def test_bad_input_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


# --- The network ---


def stack(k=3, p=5, m=6, replicas=2, dtype=torch.float64):
    g = torch.Generator().manual_seed(k)
    params = {
        "u": torch.randn(replicas, k, p, m, generator=g, dtype=dtype),
        "w": torch.randn(replicas, m, p, generator=g, dtype=dtype),
    }
    x = torch.randint(p, (replicas, 20, k), generator=g)
    return params, x, x.sum(-1) % p


def reference(params, x, y, penalty):
    """The loss written out, neuron by neuron."""
    k = x.shape[-1]
    f = 0
    for i in range(params["w"].shape[0]):
        f = f + (sum(params["u"][j, x[:, j], i] for j in range(k)) ** k)[:, None] * params["w"][i]
    sizes = [params["u"][:, :, i].square().sum() + params["w"][i].square().sum() for i in range(len(params["w"]))]
    return F.cross_entropy(f, y) + penalty * sum(s ** ((k + 1) / 2) for s in sizes) ** (1 / (k + 1))


@pytest.mark.parametrize("k", [2, 3, 5])
def test_the_gradient_is_autograds(k):
    params, x, y = stack(k)
    loss, grads = PolynomialObjective(0.3)(params, x, y)
    for r in range(2):
        leaves = {n: v[r].clone().requires_grad_() for n, v in params.items()}
        value = reference(leaves, x[r], y[r], 0.3)
        value.backward()
        assert loss[r].item() == pytest.approx(value.item(), rel=1e-12)
        for n, leaf in leaves.items():
            torch.testing.assert_close(grads[n][r], leaf.grad, rtol=1e-10, atol=1e-10)


def test_module_stack_and_single_runs_agree():
    params, x, y = stack()
    net = PolynomialNet(params["u"][1], params["w"][1])
    torch.testing.assert_close(net(x[1]), polynomial_logits(params, x)[1])
    objective, step = PolynomialObjective(0.01), training.Adam(1e-3)
    together = training.fit(objective, params, (x, y), steps=5, optimizer=step)
    for r in range(2):
        alone = {n: v[r : r + 1] for n, v in params.items()}
        run = training.fit(objective, alone, (x[r : r + 1], y[r : r + 1]), steps=5, optimizer=step)
        for n, v in run.params.items():
            torch.testing.assert_close(v[0], together.params[n][r], rtol=1e-10, atol=1e-12)


def test_homogeneity_and_norm():
    params, x, _ = stack(4)
    larger = {n: 1.7 * v for n, v in params.items()}
    torch.testing.assert_close(polynomial_logits(larger, x), 1.7**5 * polynomial_logits(params, x))
    torch.testing.assert_close(group_norm(larger), 1.7 * group_norm(params))
    torch.testing.assert_close(group_norm(params), _neuron_norms(params).pow(5).sum(1).pow(0.2))


def test_shifting_an_input_shifts_the_answer():
    params, x, _ = stack(3, 7)
    moved = {"u": params["u"].clone(), "w": params["w"].roll(-2, 2)}
    moved["u"][:, 0] = params["u"][:, 0].roll(-2, 1)
    shifted = x.clone()
    shifted[..., 0] = (x[..., 0] + 2) % 7
    torch.testing.assert_close(polynomial_logits(moved, x), polynomial_logits(params, shifted).roll(-2, 2))
